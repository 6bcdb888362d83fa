//! Runs of plain requests: what a pipeline mostly consists of, parsed at once.
//!
//! A plain request is one of the common form: `get` and `gets` with keys, `set` and `ms` with their data and without
//! flags, words separated by one space, numbers of digits only. Anything else ends the run, and is left to
//! [`Decoder::decode`](crate::Decoder::decode), which finds the same requests in the same bytes.

use crate::bounds::{KEY_MAX, LINE_MAX, RUN_MAX};
use crate::command::{Command, Exptime, Get, Request, Store, Value, Words};
use crate::encoding::{Encoding, MetaCommand, MetaEncoding, TextCommand, TextEncoding};
use crate::line::Multiget;

/// A run of plain requests, in their order.
#[derive(Debug)]
pub struct PlainRun<T> {
    requests: [T; RUN_MAX],
    len: usize,
    limit: usize,
}

/// A run of plain reads.
pub type PlainGets<'a> = PlainRun<PlainGet<'a>>;

/// A run of plain writes.
pub type PlainSets<'a> = PlainRun<PlainSet<'a>>;

/// One key of a `get` or `gets` line.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PlainGet<'a> {
    /// 1 to 250 bytes.
    pub key: &'a [u8],
    /// The answer carries the CAS value.
    pub cas: bool,
    /// `END` follows the answer: the key is the last of its line.
    pub is_last: bool,
}

/// A `set`, or an `ms` without flags.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PlainSet<'a> {
    /// 1 to 250 bytes.
    pub key: &'a [u8],
    /// The whole value; its line end was right.
    pub value: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// When it expires.
    pub exptime: Exptime,
    /// The client requested no answer.
    pub noreply: bool,
    /// It is an `ms`.
    pub is_meta: bool,
}

impl<T: Copy + Default> PlainRun<T> {
    /// An empty run of at most `limit` requests.
    #[inline]
    pub fn new(limit: usize) -> PlainRun<T> {
        PlainRun { requests: [T::default(); RUN_MAX], len: 0, limit: limit.min(RUN_MAX) }
    }

    /// The requests.
    #[inline]
    pub fn requests(&self) -> &[T] {
        &self.requests[..self.len]
    }

    /// Returns whether it takes no more.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len >= self.limit
    }

    /// Lowers the limit.
    #[inline]
    pub(crate) fn shorten(&mut self, limit: usize) {
        self.limit = self.limit.min(limit);
    }

    /// Removes all requests.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends a request to a run that is not full.
    #[inline]
    fn push(&mut self, request: T) {
        self.requests[self.len] = request;
        self.len += 1;
    }
}

impl<'a> PlainGet<'a> {
    /// Returns the request as [`Decoder::decode`](crate::Decoder::decode) returns it.
    pub fn request(&self) -> Request<'a> {
        Request {
            command: Command::Get(Get { key: self.key, value: true, ..Get::default() }),
            encoding: Encoding::Text(self.encoding()),
        }
    }

    /// The encoding of its answer.
    #[inline]
    pub fn encoding(&self) -> TextEncoding<'a> {
        let PlainGet { key, cas, is_last } = *self;
        TextEncoding { command: TextCommand::Get, key, cas, is_last, ..TextEncoding::default() }
    }
}

impl<'a> PlainSet<'a> {
    /// Returns the request as [`Decoder::decode`](crate::Decoder::decode) returns it.
    pub fn request(&self) -> Request<'a> {
        let PlainSet { key, value, flags, exptime, .. } = *self;
        let store = Store { key, flags, exptime, value: Value::Inline(value), ..Store::default() };
        Request { command: Command::Store(store), encoding: self.encoding() }
    }

    /// Appends the answer that the value was stored, as [`Encoding::reply`] does.
    #[inline]
    pub fn stored(&self, out: &mut Vec<u8>) {
        if self.is_meta {
            out.extend_from_slice(b"HD\r\n");
        } else if !self.noreply {
            out.extend_from_slice(b"STORED\r\n");
        }
    }

    /// The encoding of its answer.
    pub fn encoding(&self) -> Encoding<'a> {
        let key = self.key;
        if self.is_meta {
            return Encoding::Meta(MetaEncoding {
                command: MetaCommand::Set,
                key,
                flags: b"",
                quiet: false,
                value: false,
                binary_key: false,
                value_len: self.value.len() as u64,
            });
        }
        let command = TextCommand::Store;
        Encoding::Text(TextEncoding { command, key, noreply: self.noreply, ..TextEncoding::default() })
    }
}

/// What a line of keys gave to a run.
pub(crate) struct KeyLine {
    /// Bytes up to the end of the line, or of the run's last key on it.
    pub consumed: usize,
    /// The keys that did not fit into the run.
    pub rest: Option<KeyRest>,
}

/// The rest of a valid line of keys.
pub(crate) struct KeyRest {
    pub multiget: Multiget,
    /// Bytes of it, without its end.
    pub text: usize,
    /// Bytes of the line end.
    pub end: usize,
}

/// Appends the keys of the line at the front of `input` to a run that is not full; none, and the run as before, if
/// the line is incomplete or not plain.
#[inline]
pub(crate) fn key_line<'a>(input: &'a [u8], run: &mut PlainGets<'a>) -> Option<KeyLine> {
    let (mut start, cas) = match input {
        [b'g', b'e', b't', b' ', ..] => (4, false),
        [b'g', b'e', b't', b's', b' ', ..] => (5, true),
        _ => return None,
    };
    let line = &input[..input.len().min(LINE_MAX + 1)];
    let before = run.len;
    // Where the run's last key ends, once it is full.
    let mut full_at = None;
    while let Some(length) = word_len(&line[start..]) {
        let stop = start + length;
        let (is_last, end) = match line[stop..] {
            [b' ', ..] => (false, 1),
            [b'\n', ..] => (true, 1),
            [b'\r', b'\n', ..] => (true, 2),
            _ => break,
        };
        let key = &line[start..stop];
        if key.is_empty() || key.len() > KEY_MAX {
            break;
        }
        if full_at.is_none() {
            run.push(PlainGet { key, cas, is_last });
            if run.is_full() {
                full_at = Some(stop);
            }
        }
        if is_last {
            let multiget = Multiget { cas, touch: None };
            let rest = full_at.filter(|at| *at < stop).map(|at| KeyRest { multiget, text: stop - at, end });
            let left = rest.as_ref().map_or(0, |rest| rest.text + rest.end);
            return Some(KeyLine { consumed: stop + end - left, rest });
        }
        start = stop + 1;
    }
    run.len = before;
    None
}

/// Appends keys of `text`, which is the rest of a valid line, to a run that is not full. Returns the bytes left.
#[inline]
pub(crate) fn more_keys<'a>(text: &'a [u8], cas: bool, run: &mut PlainGets<'a>) -> usize {
    let mut words = Words::new(text);
    while !run.is_full()
        && let Some(key) = words.next()
    {
        let is_last = words.is_at_end();
        run.push(PlainGet { key, cas, is_last });
        if is_last {
            return 0;
        }
    }
    words.len()
}

/// Appends the request at the front of `input` to a run that is not full. Returns the bytes that it takes; none if it
/// is incomplete or not plain, or its value has more than `value_max` bytes.
#[inline]
pub(crate) fn set<'a>(input: &'a [u8], value_max: usize, run: &mut PlainSets<'a>) -> Option<usize> {
    let (words, is_meta) = match input {
        [b's', b'e', b't', b' ', words @ ..] => (words, false),
        [b'm', b's', b' ', words @ ..] => (words, true),
        _ => return None,
    };
    let key_len = word_len(&words[..words.len().min(KEY_MAX + 1)])?;
    let (key, rest) = words.split_at(key_len);
    let mut rest = rest.strip_prefix(b" ")?;
    if key.is_empty() {
        return None;
    }
    let mut request = PlainSet { key, is_meta, ..PlainSet::default() };
    if !is_meta {
        let (flags, after) = number(rest)?;
        let (exptime, after) = number(after.strip_prefix(b" ")?)?;
        request.flags = flags;
        request.exptime = Exptime(i32::try_from(exptime).ok()?.into());
        rest = after.strip_prefix(b" ")?;
    }
    let (len, mut rest) = number(rest)?;
    if !is_meta && let Some(after) = rest.strip_prefix(b" noreply") {
        (request.noreply, rest) = (true, after);
    }
    let data = match rest {
        [b'\r', b'\n', data @ ..] | [b'\n', data @ ..] => data,
        _ => return None,
    };
    let len = len as usize;
    if len > value_max || data.get(len..len + 2)? != b"\r\n" {
        return None;
    }
    request.value = &data[..len];
    run.push(request);
    Some(input.len() - data.len() + len + 2)
}

/// Returns where the first space or control character is: the end of the word at the front of `text`.
#[inline]
fn word_len(text: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::MAX / 255;
    let (chunks, rest) = text.as_chunks();
    for (i, chunk) in chunks.iter().enumerate() {
        // The lowest byte below 0x21 has its highest bit set, and none before it.
        let word = u64::from_le_bytes(*chunk);
        let ends = word.wrapping_sub(ONES * 0x21) & !word & (ONES * 0x80);
        if ends != 0 {
            return Some(8 * i + ends.trailing_zeros() as usize / 8);
        }
    }
    let at = text.len() - rest.len();
    rest.iter().position(|byte| *byte <= b' ').map(|i| at + i)
}

/// Parses the digits at the front of `text`, as many as a plain number has, which something follows.
#[inline(always)]
fn number(text: &[u8]) -> Option<(u32, &[u8])> {
    /// Digits that may not overflow 64 bits, and that every parser of a number accepts.
    const PLAIN_DIGITS_MAX: usize = 10;
    let mut n = 0u64;
    for (count, byte) in text.iter().take(PLAIN_DIGITS_MAX + 1).enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return if count > 0 { Some((u32::try_from(n).ok()?, &text[count..])) } else { None };
        }
        n = n * 10 + u64::from(digit);
    }
    None
}
