//! Requests over a stream that sends and receives in arbitrary amounts, compared with a map.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

use fabcache_protocol::binary::{RESPONSE, opcode, status};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::fabric::LentBuffer;
use crate::item::Outcome;
use crate::request::Request;
use crate::{Client, Options, Ttl};

/// A server at the other end of a stream that never waits.
#[derive(Debug)]
struct Model {
    encoding: Encoding,
    items: HashMap<String, Vec<u8>>,
    requested: Vec<u8>,
    /// Bytes of a rejected value that are still to come.
    unwanted: usize,
    answers: VecDeque<u8>,
    /// Byte limits of successive calls, repeated.
    lens: Vec<usize>,
    calls: usize,
    /// The number of answer bytes until the stream ends.
    answers_left: usize,
    gathers: bool,
    /// It reads lent values in place.
    lends: bool,
    /// The number of sends.
    sends: Arc<AtomicUsize>,
}

impl Model {
    /// An empty server without byte limits.
    fn new() -> Model {
        Model {
            encoding: Encoding::Mixed,
            items: HashMap::new(),
            requested: Vec::new(),
            unwanted: 0,
            answers: VecDeque::new(),
            lens: vec![usize::MAX],
            calls: 0,
            answers_left: usize::MAX,
            gathers: false,
            lends: false,
            sends: Arc::default(),
        }
    }

    fn next_len(&mut self) -> usize {
        self.calls += 1;
        self.lens[self.calls % self.lens.len()]
    }

    /// Answers the complete requests.
    fn answer(&mut self) {
        loop {
            let unwanted = self.unwanted.min(self.requested.len());
            self.requested.drain(..unwanted);
            self.unwanted -= unwanted;
            if matches!(self.encoding, Encoding::Mixed | Encoding::Binary) {
                if self.answer_packet().is_none() {
                    return;
                }
                continue;
            }
            let Some(end) = memchr::memchr(b'\n', &self.requested) else { return };
            let line = std::str::from_utf8(&self.requested[..end]).expect("text").trim_end().to_owned();
            let words: Vec<&str> = line.split(' ').collect();
            let opaque = words.last().expect("a mark or a placeholder");
            match words[..] {
                ["gets", key] => {
                    if let Some(value) = self.items.get(key) {
                        self.answers.extend(format!("VALUE {key} 0 {} 1\r\n", value.len()).bytes());
                        self.answers.extend(value.iter().chain(b"\r\n"));
                    }
                    self.answers.extend(b"END\r\n");
                }
                ["mg", key, "v", "f", "c", _] => match self.items.get(key) {
                    Some(value) => {
                        self.answers.extend(format!("VA {} f0 c1 {opaque}\r\n", value.len()).bytes());
                        self.answers.extend(value.iter().chain(b"\r\n"));
                    }
                    None => self.answers.extend(b"EN\r\n"),
                },
                ["ms", key, len, "T0", "F0", "MS", _] | ["set", key, "0", "0", len] => {
                    let len = len.parse().expect("a length");
                    if is_refused(key, len) {
                        // Before the value has arrived.
                        self.answers.extend(b"SERVER_ERROR object too large for cache\r\n");
                        self.unwanted = len + 2;
                        self.requested.drain(..=end);
                        continue;
                    }
                    let value = end + 1..end + 1 + len;
                    if self.requested.len() < value.end + 2 {
                        return;
                    }
                    assert_eq!(&self.requested[value.end..value.end + 2], b"\r\n");
                    self.items.insert(key.into(), self.requested[value.clone()].to_vec());
                    let stored =
                        if self.encoding == Encoding::Text { "STORED" } else { &format!("HD {opaque}") };
                    self.answers.extend(stored.bytes().chain(*b"\r\n"));
                    self.requested.drain(..value.end - end + 1);
                }
                _ => panic!("{line}"),
            }
            self.requested.drain(..=end);
        }
    }
}

impl Model {
    /// Answers a complete packet; rejects one before its value has arrived.
    fn answer_packet(&mut self) -> Option<()> {
        let header: &[u8; 24] = self.requested.first_chunk()?;
        let (code, key_len, extras) = (header[1], usize::from(header[3]), usize::from(header[4]));
        let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let (head, len) = (24 + extras + key_len, body - extras - key_len);
        let key = self.requested.get(24 + extras..head)?;
        let key = String::from_utf8(key.to_vec()).expect("text");
        let mut answer = [0; 24];
        answer[0] = RESPONSE;
        answer[1] = code;
        answer[12..16].copy_from_slice(&self.requested[12..16]);
        let mut given = Vec::new();
        if code == opcode::SET && is_refused(&key, len) {
            answer[7] = status::TOO_LARGE as u8;
            given.extend_from_slice(b"Too large.");
            self.unwanted = len;
        } else {
            let value = self.requested.get(head..head + len)?;
            match code {
                opcode::SET => {
                    self.items.insert(key, value.to_vec());
                }
                opcode::GET => match self.items.get(&key) {
                    Some(value) => {
                        answer[4] = 4;
                        given.extend_from_slice(&[0; 4]);
                        given.extend_from_slice(value);
                    }
                    None => answer[7] = status::NOT_FOUND as u8,
                },
                other => panic!("{other}"),
            }
        }
        answer[8..12].copy_from_slice(&(given.len() as u32).to_be_bytes());
        self.answers.extend(answer.iter().chain(&given));
        self.requested.drain(..head + len - self.unwanted);
        Some(())
    }
}

impl Stream for Model {
    fn encoding(&self) -> Encoding {
        self.encoding
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let len = self.next_len();
        let before = self.requested.len();
        for part in parts {
            let left = len - (self.requested.len() - before);
            self.requested.extend_from_slice(&part[..left.min(part.len())]);
        }
        let sent = self.requested.len() - before;
        self.sends.fetch_add(usize::from(sent > 0), Ordering::Relaxed);
        self.answer();
        Ok(sent)
    }

    fn lend(&mut self, before: &[u8], value: &mut LentBuffer) -> io::Result<Lending> {
        if !self.lends || value.bytes().len() < 10 {
            return Ok(Lending::Never);
        }
        match self.next_len() {
            0 => return Ok(Lending::Later),
            1..40 => return Ok(Lending::Never),
            _ => {}
        }
        self.requested.extend_from_slice(before);
        self.requested.extend_from_slice(value.bytes());
        self.answer();
        Ok(Lending::Sent)
    }

    fn gathers(&self) -> bool {
        self.gathers
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<Option<usize>> {
        if self.answers_left == 0 {
            return Ok(None);
        }
        let room = (into.capacity() - into.len()).min(self.answers_left);
        let len = self.next_len().min(room).min(self.answers.len());
        self.answers_left -= len;
        into.extend(self.answers.drain(..len));
        Ok(Some(len))
    }

    fn wait(&mut self, _: Until, _: Instant) -> io::Result<()> {
        Ok(())
    }

    fn waiter(&self) -> io::Result<Box<dyn Waiter>> {
        Ok(Box::<Unblocked>::default())
    }
}

fn is_refused(key: &str, len: usize) -> bool {
    key == "key3" && len > 100
}

/// Reports everything as possibly ready.
#[derive(Debug, Default)]
struct Unblocked(AtomicUsize);

impl Waiter for Unblocked {
    fn wait(&self, _: Until, deadline: Instant) -> io::Result<()> {
        assert!(Instant::now() < deadline, "no progress");
        Ok(())
    }

    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Creates a client of this server only.
fn client_of(model: Model) -> Client {
    let cache = Client::new(["unix:///there/is/no/such/server"], Options::default()).expect("an address");
    let server = cache.server_of(b"any").expect("a server");
    let pipeline = server.new_pipeline(Box::new(model)).expect("a waiter");
    server.put_pipeline(pipeline);
    cache
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Iset,
    Bset,
    Lend,
    Iget,
    Bget,
}

#[derive(Clone, Copy, Debug)]
enum Then {
    Keep,
    Test,
    Wait,
    Drop,
}

fn steps() -> impl Strategy<Value = Vec<(Call, u8, usize, Then)>> {
    use {Call::*, Then::*};
    let calls = prop_oneof![Just(Iset), Just(Bset), Just(Lend), Just(Iget), Just(Bget)];
    let then = prop_oneof![4 => Just(Keep), 1 => Just(Test), 1 => Just(Wait), 1 => Just(Drop)];
    vec((calls, 0..4u8, prop_oneof![9 => 0..20usize, 9 => 0..3000usize, 1 => Just(100_000)], then), 0..60)
}

/// A request and its expected result.
#[derive(Debug)]
struct ExpectedResult {
    request: Request,
    expected: Expected,
    /// The value of its buffer.
    lent: Option<Vec<u8>>,
}

#[derive(Debug)]
enum Expected {
    Stored,
    Refused,
    Found(Option<Vec<u8>>),
}

/// Returns whether the request succeeded as expected; otherwise it failed.
fn is_done(ExpectedResult { mut request, expected, lent }: ExpectedResult) -> bool {
    let completed = request.wait();
    let buffer = request.take_buffer();
    assert!(buffer.as_deref() == lent.as_deref(), "the buffer is returned unchanged");
    match (completed.result, expected) {
        (Ok(Outcome::Stored), Expected::Stored) => true,
        (Err(Error::Server { failure: Failure::Refused(_), .. }), Expected::Refused) => true,
        (Ok(Outcome::NotFound), Expected::Found(None)) => true,
        (Ok(Outcome::Found { .. }), Expected::Found(Some(value))) => {
            assert!(completed.value == value);
            true
        }
        (Err(_), _) => false,
        (other, expected) => panic!("{other:?}, not {expected:?}"),
    }
}

proptest! {
    #[test]
    fn each_request_gets_its_own_reply(
        steps in steps(),
        lens in vec(prop_oneof![Just(0), 1..40usize, 1..5000usize, Just(100_000)], 1..20),
        answers_len in prop_oneof![Just(usize::MAX), 0..10_000usize],
        encoding in prop::sample::select(vec![Encoding::Meta, Encoding::Text, Encoding::Binary, Encoding::Mixed]),
        gathers: bool,
        lends: bool,
    ) {
        // There is progress eventually, whichever calls are the ones that send.
        let lens = lens.into_iter().chain([0, 1000, 1000]).collect();
        let cache = client_of(Model {
            encoding, lens, answers_left: answers_len, gathers, lends, ..Model::new()
        });
        let mut items: HashMap<String, Vec<u8>> = HashMap::new();
        let mut kept: Vec<ExpectedResult> = Vec::new();
        let mut has_failed = false;
        for (i, (call, key, len, then)) in steps.into_iter().enumerate() {
            let (key, value) = (format!("key{key}"), vec![i as u8; len]);
            let expected = match call {
                Call::Iget | Call::Bget => Expected::Found(items.get(&key).cloned()),
                Call::Iset | Call::Bset | Call::Lend if is_refused(&key, len) => Expected::Refused,
                Call::Iset | Call::Bset | Call::Lend => {
                    items.insert(key.clone(), value.clone());
                    Expected::Stored
                }
            };
            let lent = matches!(call, Call::Lend).then(|| value.clone());
            let mut request = match call {
                Call::Lend => {
                    let mut buffer = cache.register(2000);
                    buffer.resize(len).copy_from_slice(&value);
                    let mut request = cache.request();
                    request.iset_registered(key, buffer, Ttl::NEVER, 0);
                    request
                }
                Call::Iset => cache.iset(key, value, Ttl::NEVER),
                Call::Bset => cache.bset(key.as_bytes(), &value, Ttl::NEVER),
                Call::Iget => cache.iget(key, vec![9; len / 3]),
                Call::Bget => cache.bget(key.as_bytes(), Vec::new()),
            };
            match then {
                Then::Drop => drop(request),
                Then::Wait => has_failed |= !is_done(ExpectedResult { request, expected, lent }),
                Then::Keep | Then::Test => {
                    if matches!(then, Then::Test) {
                        request.test();
                    }
                    kept.push(ExpectedResult { request, expected, lent });
                }
            }
        }
        // They were requested in this order, so answers end at one of them.
        let done: Vec<bool> = kept.into_iter().map(is_done).collect();
        prop_assert!(done.is_sorted_by(|before, after| *before || !*after), "{:?}", done);
        prop_assert!(answers_len < usize::MAX || (!has_failed && done.iter().all(|is_done| *is_done)));
    }
}

#[test]
fn requests_are_batched_while_a_reply_is_awaited() {
    let model = Model { gathers: true, ..Model::new() };
    let sends = Arc::clone(&model.sends);
    let cache = client_of(model);
    let sends = || sends.load(Ordering::Relaxed);
    let mut requests: Vec<Request> = (0..8).map(|_| cache.iget("key", Vec::new())).collect();
    assert_eq!(sends(), 1, "the first is sent at once, and the others are gathered");
    requests.push(cache.bset(b"key", b"value", Ttl::NEVER));
    assert_eq!(sends(), 2, "enough are gathered");
    requests.push(cache.iget("key", Vec::new()));
    let mut last = cache.iget("key", Vec::new());
    assert_eq!(last.wait().item().expect("an answer").expect("a value").value, b"value");
    assert_eq!(sends(), 3, "a thread waits");
    for request in &mut requests {
        assert!(request.test());
    }
    requests.extend([cache.iget("key", Vec::new()), cache.iget("key", Vec::new())]);
    assert_eq!(sends(), 4, "nothing was awaited");
    drop(cache.bset(b"key", b"other", Ttl::NEVER));
    assert_eq!(sends(), 5, "its request object was dropped");
    requests.push(cache.bset(b"key", &[0; 5000], Ttl::NEVER));
    assert_eq!(sends(), 6, "a long request");
    requests.push(cache.bset(b"key", b"last", Ttl::NEVER));
    assert_eq!(sends(), 6);
    assert!(cache.get(b"key").is_err(), "no other connection exists");
    requests.iter_mut().rev().for_each(|request| assert!(request.wait().result.is_ok()));
}
