//! Random calls of servers, which must return the same results over all transports.

use std::collections::HashMap;

use fabcache_client::{
    Client, CompletedRequest, Error, Failure, Mode, Options, Outcome, Protocol, Request, Ttl,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::block_on;

/// How long a failed server is avoided: no server is to be marked down.
const NOT_SEEN: u64 = 1 << 60;
/// The largest item.
pub const ITEM_BYTES_MAX: usize = 128 << 10;

/// A call, with keys and values given by number.
#[derive(Clone, Debug)]
pub enum Call {
    Get(usize),
    Contains(usize),
    GetAndTouch(usize, Ttl),
    GetMany(Vec<usize>),
    Set(usize, Value, Ttl, u32),
    Store(usize, Value, Mode, Ttl, u32),
    Cas(usize, Value, Ttl, Compare),
    Arithmetic(usize, u64, bool),
    ArithmeticOrSet(usize, u64, bool, u64, Ttl),
    Touch(usize, Ttl),
    Delete(usize),
    Flush,
    Stats,
    Versions,
    Verbosity,
    /// Non-blocking calls: stores first, then reads.
    Window(Vec<(usize, Value, Ttl, u32)>, Vec<usize>, CallStyle),
}

/// The CAS that a store compares with.
#[derive(Clone, Copy, Debug)]
pub enum Compare {
    /// The last CAS seen for this key.
    Seen,
    This(u64),
}

/// How non-blocking calls are made and awaited.
#[derive(Clone, Copy, Debug)]
pub struct CallStyle {
    buffered: bool,
    awaited: bool,
    last_first: bool,
}

/// A value.
#[derive(Clone)]
pub enum Value {
    Text(&'static str),
    Pattern(usize),
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Text(text) => write!(f, "{text:?}"),
            Value::Pattern(len) => write!(f, "{len} bytes"),
        }
    }
}

impl Value {
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Value::Text(text) => (*text).into(),
            // Including bytes that could pass for the end of a line or the start of a packet.
            Value::Pattern(len) => b"\r\n\x80\x81mn\r\nEN\r\n\0".iter().copied().cycle().take(*len).collect(),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Value::Text(text) => text.len(),
            Value::Pattern(len) => *len,
        }
    }
}

/// The keys; with `are_words`, only keys that are words of a line.
fn keys(are_words: bool) -> Vec<Vec<u8>> {
    let mut keys = vec![
        b"key".into(),
        b"n".into(),
        vec![b'x'; 250],
        b"with a space".into(),
        vec![0x80; 24],
        b"\0\r\n\x7f".into(),
        "Schl\u{fc}ssel".into(),
        // The longest key that fits in base64.
        vec![0xff; 186],
        Vec::new(),
        vec![b'x'; 251],
    ];
    if are_words {
        let bytes = keys.iter_mut().flatten();
        bytes.filter(|byte| matches!(byte, 0..=b' ' | 0x7f)).for_each(|byte| *byte = b'_');
    }
    keys
}

fn key() -> impl Strategy<Value = usize> {
    // Few keys, so that they repeat; sometimes invalid ones.
    prop_oneof![20 => 0..4usize, 8 => 4..8usize, 1 => 8..10usize]
}

fn value() -> impl Strategy<Value = Value> {
    let number =
        prop::sample::select(vec!["", "0", "7", "99", "18446744073709551615", "18446744073709551616", "1x"]);
    prop_oneof![
        8 => number.prop_map(Value::Text),
        8 => (0..300usize).prop_map(Value::Pattern),
        4 => (15_000..17_000usize).prop_map(Value::Pattern),
        4 => (0..ITEM_BYTES_MAX - 400).prop_map(Value::Pattern),
        2 => (ITEM_BYTES_MAX - 400..ITEM_BYTES_MAX + 400).prop_map(Value::Pattern),
        1 => (ITEM_BYTES_MAX..3 * ITEM_BYTES_MAX).prop_map(Value::Pattern),
    ]
}

/// Times that every server interprets alike.
pub fn plain_ttl() -> impl Strategy<Value = Ttl> + Clone + 'static {
    prop::sample::select(vec![
        Ttl::NEVER,
        Ttl::EXPIRED,
        Ttl::seconds(100),
        Ttl::seconds(31 * 24 * 3600),
        Ttl::exact(-1),
        Ttl::exact(1_000_000_000),
    ])
}

/// Any times.
pub fn ttl() -> impl Strategy<Value = Ttl> + Clone + 'static {
    const DAY: u32 = 24 * 3600;
    // Relative ones, Unix times of 31 and of 32 bits, and beyond.
    let seconds =
        prop::sample::select(vec![100, 30 * DAY, 30 * DAY + 1, 1_000_000_000, 4_000_000_000, u32::MAX]);
    // As Unix times these are past, or soon will be.
    let exact = prop::sample::select(vec![i64::MIN, -1, 0, 100, 1_000_000_000, 4_000_000_000]);
    prop_oneof![
        4 => Just(Ttl::NEVER),
        4 => seconds.prop_map(Ttl::seconds),
        1 => Just(Ttl::EXPIRED),
        1 => exact.prop_map(Ttl::exact)
    ]
}

/// Any call, with times from `ttl`.
pub fn call(ttl: impl Strategy<Value = Ttl> + Clone + 'static) -> impl Strategy<Value = Call> {
    let ttl = || ttl.clone();
    let compare = prop_oneof![
        4 => Just(Compare::Seen),
        1 => prop::sample::select(vec![0, 1, u64::MAX]).prop_map(Compare::This)
    ];
    let how = any::<(bool, bool, bool)>().prop_map(|(buffered, awaited, last_first)| CallStyle {
        buffered,
        awaited,
        last_first,
    });
    let delta = prop::sample::select(vec![0, 1, 93, u64::MAX]);
    let delta_or_set = delta.clone();
    let mode = prop::sample::select(vec![Mode::Set, Mode::Add, Mode::Replace, Mode::Append, Mode::Prepend]);
    prop_oneof![
        4 => key().prop_map(Call::Get),
        2 => key().prop_map(Call::Contains),
        2 => (key(), ttl()).prop_map(|(key, ttl)| Call::GetAndTouch(key, ttl)),
        2 => vec(0..8usize, 0..12).prop_map(Call::GetMany),
        4 => (key(), value(), ttl(), any::<u32>()).prop_map(|(key, value, ttl, flags)| Call::Set(key, value, ttl, flags)),
        8 => (key(), value(), mode, ttl(), any::<u32>())
            .prop_map(|(key, value, mode, ttl, flags)| Call::Store(key, value, mode, ttl, flags)),
        3 => (key(), value(), ttl(), compare)
            .prop_map(|(key, value, ttl, compare)| Call::Cas(key, value, ttl, compare)),
        3 => (key(), delta, any::<bool>()).prop_map(|(key, delta, decrement)| Call::Arithmetic(key, delta, decrement)),
        2 => (key(), delta_or_set, any::<bool>(), any::<u64>(), ttl()).prop_map(|(key, delta, decrement, initial, ttl)| {
            Call::ArithmeticOrSet(key, delta, decrement, initial, ttl)
        }),
        2 => (key(), ttl()).prop_map(|(key, ttl)| Call::Touch(key, ttl)),
        2 => key().prop_map(Call::Delete),
        1 => Just(Call::Flush),
        1 => Just(Call::Stats),
        1 => Just(Call::Versions),
        1 => Just(Call::Verbosity),
        3 => (vec((key(), value(), ttl(), any::<u32>()), 0..10), vec(key(), 0..10), how)
            .prop_map(|(stored, read, how)| Call::Window(stored, read, how)),
    ]
}

/// A call's result, independent of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallResult {
    /// The item found, with its flags and CAS.
    Items(Vec<Option<(Vec<u8>, u32, u64)>>),
    Number(Option<u64>),
    Said(String),
    Failed(String),
    All(Vec<CallResult>),
}

/// Removes what differs between servers with different histories: CAS values and statistics.
pub fn in_common(call: &Call, done: CallResult) -> CallResult {
    match done {
        CallResult::Said(_) if matches!(call, Call::Stats | Call::Versions) => {
            CallResult::Said("something".into())
        }
        CallResult::Items(items) => CallResult::Items(
            items.into_iter().map(|item| item.map(|(value, flags, _)| (value, flags, 0))).collect(),
        ),
        CallResult::All(all) => CallResult::All(all.into_iter().map(|done| in_common(call, done)).collect()),
        other => other,
    }
}

/// Returns whether the result of a call depends on how many items were stored before.
pub fn is_by_chance(call: &Call) -> bool {
    matches!(call, Call::Cas(.., Compare::This(1)))
}

/// Translates error texts that differ between the protocols.
fn in_one_protocols_words(why: &str) -> &str {
    match why {
        "Too large." => "object too large for cache",
        "Out of memory allocating item" => "out of memory storing object",
        "Non-numeric server-side value for incr or decr" => "cannot increment or decrement non-numeric value",
        other => other,
    }
}

fn done<T>(result: Result<T, Error>, reported: impl FnOnce(T) -> CallResult) -> CallResult {
    match result {
        Ok(value) => reported(value),
        Err(Error::Server { failure: Failure::Refused(why), .. }) => {
            CallResult::Failed(in_one_protocols_words(&why).into())
        }
        Err(Error::Server { failure, .. }) => panic!("{failure}: client and server are out of step"),
        Err(error) => CallResult::Failed(error.to_string()),
    }
}

fn said<T: std::fmt::Debug>(result: Result<T, Error>) -> CallResult {
    done(result, |value| CallResult::Said(format!("{value:?}")))
}

/// An empty server, and the CAS values seen.
pub struct Side {
    client: Client,
    protocol: Protocol,
    keys: Vec<Vec<u8>>,
    /// The last CAS of each key.
    seen: HashMap<usize, u64>,
    /// Request objects to reuse.
    spare: Vec<Request>,
}

impl Side {
    /// Keys are words, so that the text protocol can carry them.
    pub fn with_words(address: &str, options: Options) -> Side {
        Side { keys: keys(true), ..Side::new(address, options) }
    }

    pub fn new(address: &str, options: Options) -> Side {
        let protocol = options.protocol;
        let client = Client::new([address], options).expect("an address");
        Side { client, protocol, keys: keys(false), seen: HashMap::new(), spare: Vec::new() }
    }

    /// Takes over the CAS values that another client saw.
    pub fn learn(&mut self, other: &mut Side) {
        self.seen.extend(other.seen.drain());
    }

    pub fn flush(&self) {
        self.client.flush(0).expect("flushed");
    }

    pub fn call(&mut self, call: &Call) -> CallResult {
        let cache = &self.client;
        let key = |number: usize| &self.keys[number][..];
        match call {
            Call::Get(number) => {
                let found = cache.get(key(*number));
                self.found(*number, found)
            }
            Call::Contains(number) => said(cache.contains(key(*number))),
            Call::GetAndTouch(number, ttl) => {
                let found = cache.get_and_touch(key(*number), *ttl);
                self.found(*number, found)
            }
            Call::GetMany(numbers) => {
                let keys: Vec<&[u8]> = numbers.iter().map(|number| key(*number)).collect();
                done(cache.get_many(&keys), |many| {
                    assert!(many.failed.is_empty(), "{:?}", many.failed);
                    let items = many.items.into_iter();
                    CallResult::Items(
                        items.map(|item| item.map(|item| (item.value, item.flags, item.cas))).collect(),
                    )
                })
            }
            Call::Set(number, value, ttl, flags) => {
                said(cache.set_with_flags(key(*number), &value.bytes(), *ttl, *flags))
            }
            Call::Store(number, value, mode, ttl, flags) => {
                let stored = said(cache.store(key(*number), &value.bytes(), *mode, *ttl, *flags));
                self.after_refusal(*number, value, stored)
            }
            Call::Cas(number, value, ttl, compare) => {
                let cas = match compare {
                    Compare::Seen => self.seen.get(number).copied().unwrap_or(NOT_SEEN),
                    Compare::This(cas) => *cas,
                };
                let compared = said(cache.cas(key(*number), &value.bytes(), *ttl, cas));
                self.after_refusal(*number, value, compared)
            }
            Call::Arithmetic(number, delta, true) => {
                done(cache.decr(key(*number), *delta), CallResult::Number)
            }
            Call::Arithmetic(number, delta, false) => {
                done(cache.incr(key(*number), *delta), CallResult::Number)
            }
            Call::ArithmeticOrSet(number, delta, decrement, initial, ttl) => {
                let way = if *decrement { Client::decr_or_set } else { Client::incr_or_set };
                said(way(cache, key(*number), *delta, *initial, *ttl))
            }
            Call::Touch(number, ttl) => said(cache.touch(key(*number), *ttl)),
            Call::Delete(number) => said(cache.delete(key(*number))),
            Call::Flush => said(cache.flush(0)),
            Call::Stats => done(cache.stats("").remove(0), |stats| {
                CallResult::Said(stats.into_iter().map(|(name, _)| name + " ").collect())
            }),
            Call::Versions => said(cache.versions().remove(0)),
            Call::Verbosity => self.verbosity(),
            Call::Window(stored, read, how) => self.window(stored, read, *how),
        }
    }

    /// The binary protocol has no such request.
    fn verbosity(&self) -> CallResult {
        let requested = said(self.client.verbosity(1).remove(0));
        if self.protocol != Protocol::Binary {
            return requested;
        }
        assert!(matches!(requested, CallResult::Failed(_)), "{requested:?}");
        said(Ok(()))
    }

    fn found(&mut self, number: usize, found: Result<Option<fabcache_client::Item>, Error>) -> CallResult {
        done(found, |item| {
            self.seen.extend(item.as_ref().map(|item| (number, item.cas)));
            CallResult::Items(vec![item.map(|item| (item.value, item.flags, item.cas))])
        })
    }

    /// A too large value may remove the old one or not, depending on the protocol.
    fn after_refusal(&self, number: usize, value: &Value, done: CallResult) -> CallResult {
        if matches!(done, CallResult::Failed(_)) && value.len() > ITEM_BYTES_MAX / 2 {
            let _ = self.client.delete(&self.keys[number]);
        }
        done
    }

    fn window(&mut self, stored: &[(usize, Value, Ttl, u32)], read: &[usize], how: CallStyle) -> CallResult {
        let mut spare = std::mem::take(&mut self.spare);
        let mut request = || spare.pop().unwrap_or_else(|| self.client.request());
        let mut window = Vec::new();
        for (number, value, ttl, flags) in stored {
            let mut request = request();
            if how.buffered {
                request.bset_with_flags(&self.keys[*number], &value.bytes(), *ttl, *flags);
            } else {
                request.iset_with_flags(self.keys[*number].clone(), value.bytes(), *ttl, *flags);
            }
            window.push(request);
        }
        for number in read {
            let mut request = request();
            let buffer = Vec::with_capacity(100);
            if how.buffered {
                request.bget(&self.keys[*number], buffer);
            } else {
                request.iget(self.keys[*number].clone(), buffer);
            }
            window.push(request);
        }
        let mut all = vec![CallResult::All(Vec::new()); window.len()];
        let mut order: Vec<usize> = (0..window.len()).collect();
        if how.last_first {
            order.reverse();
        }
        for at in order {
            let request = &mut window[at];
            let completed = if how.awaited { block_on(&mut *request) } else { request.wait() };
            all[at] = self.completed_is(completed);
        }
        spare.append(&mut window);
        self.spare = spare;
        CallResult::All(all)
    }

    fn completed_is(&self, completed: CompletedRequest) -> CallResult {
        let CompletedRequest { key, value, result } = completed;
        let number = self.keys.iter().position(|known| *known == key).expect("a known key");
        let given_back =
            CallResult::Items(vec![Some((number.to_string().into(), 0, 0)), Some((value, 0, 0))]);
        let came_to = done(result, |outcome| match outcome {
            Outcome::Found { flags, cas } => CallResult::Items(vec![Some((Vec::new(), flags, cas))]),
            other => CallResult::Said(format!("{other:?}")),
        });
        CallResult::All(vec![given_back, came_to])
    }
}
