//! The dummy's responses.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fabcache_protocol::{
    Command, Decoded, Decoder, Delete, Encoding, Get, Item, Refusal, Reply, Request, SavedEncoding, Store,
    StoreMode, TextEncoding, Value,
};

use super::fault::{Fault, Kind};
use super::lengths::Lengths;
use super::output::Output;
use crate::items::{Items, KEY_BYTES_MIN};
use crate::limits::Limits;

/// The version that the dummy reports.
pub const VERSION: &str = "1.6.0-dummy";
const UNSUPPORTED: Refusal = Refusal::Server("the dummy does not do that");
const MISPLACED: Refusal = Refusal::Client("bad data chunk");

/// State shared by all connections.
#[derive(Debug)]
pub struct Shared {
    /// The items; the number of an item determines its value.
    pub items: Items,
    lengths: Lengths,
    fault: Option<Fault>,
    /// The reported limits.
    limits: Limits,
    /// Number of responses so far that the fault could have applied to.
    chances: AtomicU64,
    started: Instant,
}

/// The responses of one connection.
#[derive(Debug)]
pub struct Answers {
    /// Responses that are not yet sent.
    pub output: Output,
    /// Stop answering.
    pub closing: bool,
    /// The offset in the output at which the current response begins.
    begun: usize,
    /// A response held back until after the next one.
    held: Vec<u8>,
    /// The item and length of a value that is being received.
    storing: Option<(u64, u32)>,
    encoding: SavedEncoding,
}

impl Shared {
    /// Returns the state without any stored item.
    pub fn new(fault: Option<Fault>, limits: Limits) -> Shared {
        let items = Items::new(KEY_BYTES_MIN).expect("it is a length of keys");
        Shared {
            items,
            lengths: Lengths::new(),
            fault,
            limits,
            chances: AtomicU64::new(0),
            started: Instant::now(),
        }
    }

    /// Returns the statistics of a topic.
    fn statistics(&self, topic: &[u8]) -> Vec<(&'static str, String)> {
        match topic {
            b"" => vec![
                ("pid", std::process::id().to_string()),
                ("uptime", self.started.elapsed().as_secs().to_string()),
                ("version", VERSION.to_owned()),
                ("limit_maxbytes", self.limits.memory_bytes.to_string()),
            ],
            b"settings" => vec![
                ("maxbytes", self.limits.memory_bytes.to_string()),
                ("item_size_max", self.limits.item_bytes.to_string()),
            ],
            _ => Vec::new(),
        }
    }

    /// Sets the length of an item's value, as if it had been stored.
    pub fn remember(&self, number: u64, len: u32) {
        self.lengths.put(number, Some(len));
    }

    /// Returns the fault of the next answer of this kind, if any.
    fn fault(&self, of_sets: bool, of_values: bool) -> Option<Kind> {
        let fault = self.fault?;
        if (fault.of_sets, fault.kind.is_of_values()) != (of_sets, of_values) {
            return None;
        }
        let number = self.chances.fetch_add(1, Ordering::Relaxed) + 1;
        number.is_multiple_of(fault.every).then_some(fault.kind)
    }
}

impl Answers {
    /// Returns no responses.
    pub fn new() -> Answers {
        Answers {
            output: Output::default(),
            closing: false,
            begun: 0,
            held: Vec::new(),
            storing: None,
            encoding: SavedEncoding::new(),
        }
    }

    /// Begins a batch; all earlier responses have been sent.
    pub fn begin(&mut self) {
        self.begun = 0;
    }

    /// Appends the response to a request.
    #[inline]
    pub fn request(&mut self, shared: &Shared, request: Request<'_>) {
        let Request { command, encoding } = request;
        match command {
            Command::Get(get) => {
                self.get(shared, &get, &encoding);
                // A text response ends with the line.
                if !matches!(encoding, Encoding::Text(TextEncoding { is_last: false, .. })) {
                    self.end(shared, Some(false));
                }
            }
            Command::Store(store) => self.store(shared, &store, &encoding),
            // Not answered.
            Command::ShmAccessed(_) => {}
            command => {
                self.other(shared, &command, &encoding);
                self.end(shared, None);
            }
        }
    }

    /// Handles the end of a value that a request announced.
    pub fn value_end(&mut self, shared: &Shared, intact: bool) {
        let Some((number, len)) = self.storing.take() else { return };
        if intact {
            shared.lengths.put(number, Some(len));
        }
        let reply = if intact { Reply::Stored(item(len)) } else { Reply::Refused(MISPLACED) };
        self.encoding.encoding().reply(&reply, &mut self.output.bytes);
        self.end(shared, Some(true));
    }

    fn get(&mut self, shared: &Shared, get: &Get<'_>, encoding: &Encoding<'_>) {
        let number = Lengths::number(get.key);
        let Some(len) = shared.lengths.get(number) else {
            return encoding.reply(&Reply::Miss, &mut self.output.bytes);
        };
        if !get.value {
            return encoding.reply(&Reply::Found(item(len)), &mut self.output.bytes);
        }
        if shared.fault.is_some() {
            self.perhaps_wrong_value(shared, number, len, encoding);
        } else {
            encoding.value_head(&item(len), &mut self.output.bytes);
            self.output.value(&shared.items, number, len as usize);
        }
        encoding.value_tail(&mut self.output.bytes);
    }

    fn perhaps_wrong_value(&mut self, shared: &Shared, number: u64, len: u32, encoding: &Encoding<'_>) {
        let fault = shared.fault(false, true);
        let number = if fault == Some(Kind::Foreign) { number ^ 1 } else { number };
        let mut value = Vec::new();
        shared.items.value(number, len as usize, &mut value);
        match fault {
            Some(Kind::Wrong) if len > 0 => value[len as usize / 2] ^= 1,
            Some(Kind::Truncated) => value.truncate(len as usize / 2),
            _ => {}
        }
        encoding.value_head(&item(value.len() as u32), &mut self.output.bytes);
        self.output.bytes.extend_from_slice(&value);
    }

    fn store(&mut self, shared: &Shared, store: &Store<'_>, encoding: &Encoding<'_>) {
        let number = Lengths::number(store.key);
        let len = u32::try_from(store.value.len()).unwrap_or(u32::MAX);
        let known = shared.lengths.get(number).is_some();
        let is_plain = store.compare.is_none();
        let reply = match store.mode {
            StoreMode::Add if known => Reply::NotStored,
            StoreMode::Replace if !known => Reply::NotStored,
            StoreMode::Set | StoreMode::Add | StoreMode::Replace if is_plain => Reply::Stored(item(len)),
            _ => Reply::Refused(UNSUPPORTED),
        };
        let stores = matches!(reply, Reply::Stored(_));
        match store.value {
            Value::Streamed { .. } if stores => {
                self.storing = Some((number, len));
                self.encoding.save(encoding);
                return;
            }
            // The remainder of the value arrives and is discarded.
            Value::Streamed { .. } => self.storing = None,
            Value::Inline(_) if stores => shared.lengths.put(number, Some(len)),
            Value::Inline(_) => {}
        }
        encoding.reply(&reply, &mut self.output.bytes);
        self.end(shared, Some(true));
    }

    fn other(&mut self, shared: &Shared, command: &Command<'_>, encoding: &Encoding<'_>) {
        let out = &mut self.output.bytes;
        let known = |key: &[u8]| shared.lengths.get(Lengths::number(key));
        let reply = match command {
            Command::Noop => Reply::Noop,
            Command::Version => Reply::Version(VERSION),
            Command::Delete(Delete { key, .. }) => {
                let was = known(key);
                shared.lengths.put(Lengths::number(key), None);
                if was.is_some() { Reply::Deleted } else { Reply::NotFound }
            }
            Command::Touch(touch) => match known(touch.key) {
                Some(len) => Reply::Found(item(len)),
                None => Reply::NotFound,
            },
            Command::Flush(_) => {
                shared.lengths.clear();
                Reply::Ok
            }
            Command::Verbosity(_) => Reply::Ok,
            Command::Stats(words) => {
                for (name, value) in shared.statistics(words.text()) {
                    encoding.reply(&Reply::Stat { name: name.as_bytes(), value: value.as_bytes() }, out);
                }
                Reply::StatsEnd
            }
            Command::Quit => {
                self.closing = true;
                Reply::Bye
            }
            Command::Refused(refusal) => Reply::Refused(*refusal),
            _ => Reply::Refused(UNSUPPORTED),
        };
        encoding.reply(&reply, out);
    }

    /// Completes a response: to a set (`true`), a get (`false`), or anything else (`None`).
    #[inline]
    fn end(&mut self, shared: &Shared, of_sets: Option<bool>) {
        if shared.fault.is_some() {
            self.end_perhaps_wrong(shared, of_sets);
        }
    }

    #[cold]
    fn end_perhaps_wrong(&mut self, shared: &Shared, of_sets: Option<bool>) {
        let bytes = &mut self.output.bytes;
        let begun = self.begun;
        if begun == bytes.len() || self.closing {
            return;
        }
        let fault = of_sets.and_then(|of_sets| shared.fault(of_sets, false));
        match fault {
            Some(Kind::Dropped) => bytes.truncate(begun),
            Some(Kind::Swapped) if self.held.is_empty() => self.held = bytes.split_off(begun),
            Some(Kind::Closed) => {
                bytes.truncate(begun + (bytes.len() - begun) / 2);
                self.closing = true;
            }
            _ => bytes.append(&mut self.held),
        }
        self.begun = bytes.len();
    }
}

fn item(len: u32) -> Item {
    Item { len: len.into(), cas: 1, ..Item::default() }
}

/// Answers complete requests; returns the number of consumed bytes.
pub fn respond(shared: &Shared, decoder: &mut Decoder, answers: &mut Answers, input: &[u8]) -> usize {
    answers.begin();
    let mut used = 0;
    while !answers.closing {
        match decoder.decode(&input[used..]) {
            Decoded::Incomplete { .. } => break,
            Decoded::Request { consumed, request } => {
                used += consumed;
                answers.request(shared, request);
            }
            Decoded::ValueEnd { consumed, intact } => {
                used += consumed;
                answers.value_end(shared, intact);
            }
            Decoded::Value { consumed, .. } | Decoded::Skipped { consumed } => used += consumed,
            Decoded::Fatal => answers.closing = true,
        }
    }
    used
}
