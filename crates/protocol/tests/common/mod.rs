//! Shared by the tests and the fuzz targets: feeding a decoder in pieces, and recording its output.
#![allow(dead_code)]

use fabcache_protocol::{
    Command, Decoded, Decoder, Encoding, Item, Limits, MetaCommand, Protocol, Refusal, Reply, Request,
    SavedEncoding, Value,
    plain::{PlainGets, PlainSets},
};

/// Values up to this many bytes are inline in [`events`].
pub const INLINE_VALUE_MAX: usize = 24;

/// How a stream is decoded.
#[derive(Debug, Clone, Copy, Default)]
pub struct Setup {
    pub protocol: Option<Protocol>,
    pub auth: bool,
    /// Accept requests of both protocols.
    pub mixed: bool,
    /// Decode runs of plain requests first, of at most so many; 0: never.
    pub run: usize,
}

/// Returns everything decoded from `stream` when it arrives in pieces of the given sizes, then all at once. Parts of a
/// value are joined and skipped bytes left out: only these may depend on the pieces.
pub fn events(stream: &[u8], pieces: impl IntoIterator<Item = usize>, setup: Setup) -> Vec<String> {
    let limits = Limits { inline_value_max: INLINE_VALUE_MAX };
    let mut decoder = if setup.mixed { Decoder::mixed(limits) } else { Decoder::new(setup.protocol, limits) };
    decoder.require_auth(setup.auth);
    let mut record = Record::default();
    let mut pieces = pieces.into_iter();
    let (mut start, mut end, mut wanted) = (0, 0, 0);
    loop {
        end += pieces.next().map_or(stream.len(), |piece| piece.max(1)).min(stream.len() - end);
        let mut idle = 0;
        loop {
            start += plain_run(&mut decoder, &stream[start..end], setup.run, &mut record);
            let input = &stream[start..end];
            if end < stream.len() {
                // The execution of a request may have to wait, and then it is decoded again.
                let _ = decoder.decode(input);
                decoder.undo();
            }
            let decoded = decoder.decode(input);
            let discard = discards(&decoded);
            match record.take(&decoded, input.len()) {
                Step::Forward(consumed) => {
                    assert!(input.len() >= wanted, "decoded before the missing bytes arrived");
                    wanted = 0;
                    idle = if consumed == 0 { idle + 1 } else { 0 };
                    assert!(idle < 3, "no progress");
                    start += consumed;
                }
                Step::Wait(more) => {
                    assert!(more > 0);
                    wanted = input.len() + more;
                    break;
                }
                Step::Stop => {
                    assert_eq!(decoder.decode(&stream[start..end]), Decoded::Fatal, "a fatal error is final");
                    return record.end();
                }
            }
            if discard {
                decoder.discard_value();
                decoder.discard_value();
            }
        }
        if end == stream.len() {
            return record.end();
        }
    }
}

/// Decodes the plain requests at the front of `input`; returns the bytes that they take.
fn plain_run(decoder: &mut Decoder, input: &[u8], limit: usize, record: &mut Record) -> usize {
    if limit == 0 {
        return 0;
    }
    let mut used = 0;
    loop {
        let before = used;
        let mut gets = PlainGets::new(limit);
        let decoded = decoder.plain_gets(&input[used..], &mut gets);
        let requests = gets.requests().to_vec();
        assert_eq!(requests.is_empty(), decoded == 0);
        // Of some runs only a part is executed.
        let taken = requests.len().saturating_sub(used % 3);
        if taken < requests.len() {
            used += decoder.shorten_gets(&input[used..], &mut gets, taken);
        } else {
            used += decoded;
        }
        assert_eq!(gets.requests(), &requests[..taken]);
        gets.requests().iter().for_each(|get| record.request(&get.request()));
        let between = used;
        let mut sets = PlainSets::new(limit);
        used += decoder.plain_sets(&input[used..], &mut sets);
        assert_eq!(sets.requests().is_empty(), used == between);
        sets.requests().iter().for_each(|set| record.request(&set.request()));
        assert!(gets.requests().len() <= limit && sets.requests().len() <= limit);
        if used == before {
            return used;
        }
    }
}

/// Reject some streamed values.
fn discards(decoded: &Decoded<'_>) -> bool {
    match decoded {
        Decoded::Request { request: Request { command: Command::Store(store), .. }, .. } => {
            matches!(store.value, Value::Streamed { len } if len % 3 == 0)
        }
        _ => false,
    }
}

#[derive(Default)]
struct Record {
    events: Vec<String>,
    value: Option<Vec<u8>>,
    saved: SavedEncoding,
    out: Vec<u8>,
}

enum Step {
    Forward(usize),
    Wait(usize),
    Stop,
}

impl Record {
    fn take(&mut self, decoded: &Decoded<'_>, available: usize) -> Step {
        let consumed = match decoded {
            Decoded::Incomplete { more } => return Step::Wait(*more),
            Decoded::Fatal => return Step::Stop,
            Decoded::Request { consumed, request } => {
                self.request(request);
                *consumed
            }
            Decoded::Value { consumed, bytes } => {
                assert_eq!(*consumed, bytes.len());
                assert!(!bytes.is_empty());
                self.value.get_or_insert_default().extend_from_slice(bytes);
                *consumed
            }
            Decoded::ValueEnd { consumed, intact } => {
                self.flush();
                self.events.push(format!("intact {intact}"));
                *consumed
            }
            Decoded::Skipped { consumed } => {
                assert!(*consumed > 0);
                *consumed
            }
        };
        assert!(consumed <= available);
        Step::Forward(consumed)
    }

    fn request(&mut self, request: &Request<'_>) {
        self.flush();
        self.events.push(format!("{request:?}"));
        self.answer(&request.encoding);
    }

    /// Encodes every reply, whether it fits the command or not, and the same from a copy of the encoding.
    fn answer(&mut self, encoding: &Encoding<'_>) {
        self.saved.save(encoding);
        assert_eq!(self.saved.encoding(), *encoding);
        for reply in REPLIES {
            encoding.reply(reply, &mut self.out);
        }
        encoding.value_head(&ITEM, &mut self.out);
        encoding.value_tail(&mut self.out);
        self.out.clear();
    }

    fn flush(&mut self) {
        if let Some(value) = self.value.take() {
            self.events.push(format!("value {}", value.escape_ascii()));
        }
    }

    fn end(mut self) -> Vec<String> {
        self.flush();
        self.events
    }
}

pub const ITEM: Item = Item {
    flags: 7,
    cas: 42,
    len: 2,
    ttl: Some(60),
    idle: 3,
    fetched: true,
    binary_key: false,
    stale: false,
    won: false,
    token_sent: false,
};

pub const REPLIES: &[Reply<'static>] = &[
    Reply::Found(ITEM),
    Reply::Miss,
    Reply::Stored(ITEM),
    Reply::NotStored,
    Reply::Exists,
    Reply::NotFound,
    Reply::Deleted,
    Reply::Number(12, ITEM),
    Reply::Inspected { item: ITEM, size: 64, class: 1 },
    Reply::TooLarge,
    Reply::OutOfMemory,
    Reply::NonNumeric,
    Reply::Ok,
    Reply::Noop,
    Reply::Version("1.2.3"),
    Reply::Stat { name: b"pid", value: b"1" },
    Reply::StatsEnd,
    Reply::Line(b"RESET"),
    Reply::Sasl(b"PLAIN"),
    Reply::SaslContinue(b"more"),
    Reply::AuthFailure,
    Reply::Bye,
    Reply::Refused(Refusal::UnknownCommand),
    Reply::Refused(Refusal::Client("c")),
    Reply::Refused(Refusal::Server("s")),
    Reply::Refused(Refusal::Error("e")),
    Reply::Refused(Refusal::Status(0x20)),
];

/// Builds a decoder whose values are inline up to 1 KiB.
pub fn decoder() -> Decoder {
    Decoder::new(None, Limits { inline_value_max: 1024 })
}

/// Decodes the one request at the front of `input`, which must take all of it.
#[track_caller]
pub fn request<'a>(decoder: &'a mut Decoder, input: &'a [u8]) -> Request<'a> {
    match decoder.decode(input) {
        Decoded::Request { consumed, request } => {
            assert_eq!(consumed, input.len(), "{request:?}");
            request
        }
        other => panic!("{other:?}"),
    }
}

/// Returns the replies of a simple server to all of `input`: refusals, admin commands and `mn` in full; a read misses
/// unless its key starts with `hit`; a change succeeds unless its key starts with `no`.
pub fn answers(input: &[u8]) -> Vec<u8> {
    let mut decoder = decoder();
    let mut out = Vec::new();
    let mut start = 0;
    let mut saved = SavedEncoding::new();
    loop {
        match decoder.decode(&input[start..]) {
            Decoded::Incomplete { .. } => return out,
            Decoded::Fatal => {
                out.extend_from_slice(b"<closed>");
                return out;
            }
            Decoded::Request { consumed, request } => {
                start += consumed;
                saved.save(&request.encoding);
                answer(&request, &mut out);
            }
            Decoded::ValueEnd { consumed, intact } => {
                start += consumed;
                let reply = match intact {
                    true => Reply::Stored(ITEM),
                    false => Reply::Refused(Refusal::Client("bad data chunk")),
                };
                saved.encoding().reply(&reply, &mut out);
            }
            Decoded::Value { consumed, .. } | Decoded::Skipped { consumed } => start += consumed,
        }
    }
}

/// Returns [`answers`] as text.
pub fn said(input: &[u8]) -> String {
    String::from_utf8_lossy(&answers(input)).into_owned()
}

fn answer(request: &Request<'_>, out: &mut Vec<u8>) {
    let refuses = |key: &[u8]| key.starts_with(b"no");
    let reply = match &request.command {
        Command::Get(get) if !get.key.starts_with(b"hit") => Reply::Miss,
        Command::Get(get) if get.value => {
            request.encoding.value_head(&ITEM, out);
            out.extend_from_slice(b"hi");
            return request.encoding.value_tail(out);
        }
        Command::Get(_) => Reply::Found(ITEM),
        Command::Store(store) if matches!(store.value, Value::Streamed { .. }) => return,
        Command::Store(store) if refuses(store.key) => Reply::NotStored,
        Command::Store(_) => Reply::Stored(ITEM),
        Command::Delete(delete) if refuses(delete.key) => Reply::NotFound,
        Command::Delete(_) => Reply::Deleted,
        Command::Arithmetic(arithmetic) if refuses(arithmetic.key) => Reply::NotFound,
        Command::Arithmetic(_) => Reply::Number(12, ITEM),
        Command::Touch(touch) if refuses(touch.key) => Reply::NotFound,
        Command::Touch(_) => Reply::Found(ITEM),
        Command::Inspect(_) => Reply::Inspected { item: ITEM, size: 64, class: 1 },
        Command::Noop => Reply::Noop,
        Command::Version => Reply::Version("1.6.45"),
        Command::Quit => Reply::Bye,
        Command::Refused(refusal) => Reply::Refused(*refusal),
        _ => Reply::Ok,
    };
    request.encoding.reply(&reply, out);
}

/// Builds a binary request packet.
pub fn packet(opcode: u8, key: &[u8], extras: &[u8], value: &[u8], cas: u64) -> Vec<u8> {
    let body = key.len() + extras.len() + value.len();
    let mut packet = vec![0x80, opcode];
    packet.extend((key.len() as u16).to_be_bytes());
    packet.extend([extras.len() as u8, 0, 0, 0]);
    packet.extend((body as u32).to_be_bytes());
    packet.extend(0xdead_beef_u32.to_be_bytes());
    packet.extend(cas.to_be_bytes());
    packet.extend([extras, key, value].concat());
    packet
}

/// Builds a meta encoding without flags.
pub fn is_meta(encoding: &Encoding<'_>, command: MetaCommand) -> bool {
    matches!(encoding, Encoding::Meta(encoding) if encoding.command == command)
}
