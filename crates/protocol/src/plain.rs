//! Runs of plain requests: what a pipeline mostly consists of, parsed at once.
//!
//! A plain request is one of the common form: `get` and `gets` with keys, `mg` that reads a value and changes nothing,
//! `set` and `ms` that store whatever the existing item, with their data; words separated by one space, numbers of
//! digits only; Get and GetK, Set without a CAS, and the quiet ones. Anything else ends the run, and is left to
//! [`Decoder::decode`](crate::Decoder::decode), which finds the same requests in the same bytes.

use crate::binary::decode::{Header, PacketAction};
use crate::binary::{self, HEADER, opcode};
use crate::bounds::{KEY_MAX, LINE_MAX, OPAQUE_MAX, RUN_MAX};
use crate::command::{Command, Exptime, Get, Request, Store, Value, Words};
use crate::encoding::{Encoding, MetaCommand, MetaEncoding, TextCommand, TextEncoding};
use crate::line::Multiget;
use crate::reply::{Item, Reply};

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

/// One key of a `get` or `gets` line, an `mg`, or a packet.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PlainGet<'a> {
    /// 1 to 250 bytes.
    pub key: &'a [u8],
    /// The flags of an `mg`, which has at least one; the answers to them need the item alone. The header of a packet.
    pub flags_or_header: &'a [u8],
    /// A miss of the `mg` is not answered. False for a packet, whose header says it.
    pub quiet: bool,
    /// The answer carries the CAS value.
    pub cas: bool,
    /// `END` follows the answer: the key is the last of its line.
    pub is_last: bool,
    /// It is a packet.
    pub is_packet: bool,
}

/// A `set`, an `ms`, or a packet.
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
    /// The client requested no answer to a success; text, to none.
    pub noreply: bool,
    /// The flags of an `ms`; the answer to a success needs the CAS value at most. The header of a packet.
    pub flags_or_header: &'a [u8],
    /// Its answer has flags, or is a packet.
    pub has_echo: bool,
    /// It is an `ms`.
    pub is_meta: bool,
    /// It is a packet.
    pub is_packet: bool,
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
        let get = Get { key: self.key, value: true, ..Get::default() };
        let encoding = self.meta_or_binary().unwrap_or_else(|| Encoding::Text(self.text()));
        Request { command: Command::Get(get), encoding }
    }

    /// The encoding of its answer if it is an `mg` or a packet.
    #[inline]
    pub fn meta_or_binary(&self) -> Option<Encoding<'a>> {
        let PlainGet { key, flags_or_header: flags, quiet, is_packet, .. } = *self;
        if flags.is_empty() {
            None
        } else if is_packet {
            Some(packet_encoding(flags, key))
        } else {
            let new = MetaEncoding::new(MetaCommand::Get);
            Some(Encoding::Meta(MetaEncoding { key, flags, quiet, value: true, ..new }))
        }
    }

    /// The encoding of its answer otherwise.
    #[inline]
    pub fn text(&self) -> TextEncoding<'a> {
        let PlainGet { key, cas, is_last, .. } = *self;
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

    /// Appends the answer that the value was stored with this CAS value, as [`Encoding::reply`] does.
    #[inline]
    pub fn stored(&self, cas: u64, out: &mut Vec<u8>) {
        match (self.is_meta, self.has_echo) {
            _ if self.noreply => {}
            (_, true) => {
                let item = Item { cas, len: self.value.len() as u64, ..Item::default() };
                self.encoding().reply(&Reply::Stored(item), out);
            }
            (false, _) => out.extend_from_slice(b"STORED\r\n"),
            (true, _) => out.extend_from_slice(b"HD\r\n"),
        }
    }

    /// The encoding of its answer.
    pub fn encoding(&self) -> Encoding<'a> {
        let PlainSet { key, flags_or_header: flags, noreply, .. } = *self;
        if self.is_packet {
            return packet_encoding(flags, key);
        }
        if self.is_meta {
            let value_len = self.value.len() as u64;
            let command = MetaCommand::Set;
            return Encoding::Meta(MetaEncoding {
                key,
                flags,
                quiet: noreply,
                value_len,
                ..MetaEncoding::new(command)
            });
        }
        Encoding::Text(TextEncoding { command: TextCommand::Store, key, noreply, ..TextEncoding::default() })
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
        [b'm', b'g', b' ', words @ ..] => {
            let consumed = input.len() - meta_get(words, run)?.len();
            return Some(KeyLine { consumed, rest: None });
        }
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
            run.push(PlainGet { key, cas, is_last, ..PlainGet::default() });
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

/// Returns the encoding of the answer to the packet with this header.
#[inline]
fn packet_encoding<'a>(header: &[u8], key: &'a [u8]) -> Encoding<'a> {
    Header::parse(header.first_chunk().expect("a whole header")).encoding(key)
}

/// Appends the read whose packet is at the front of `input` to a run that is not full. Returns the bytes that it takes;
/// none if it is incomplete or not plain.
#[inline]
pub(crate) fn packet_get<'a>(input: &'a [u8], run: &mut PlainGets<'a>) -> Option<usize> {
    let header = Header::parse(input.first_chunk().filter(|bytes| bytes[0] == binary::REQUEST)?);
    let is_get = matches!(binary::loud(header.opcode()).code, opcode::GET | opcode::GETK);
    if !is_get || header.shape() != PacketAction::Whole {
        return None;
    }
    let packet = input.get(..header.head())?;
    let (head, key) = packet.split_at(HEADER);
    run.push(PlainGet { key, flags_or_header: head, is_packet: true, ..PlainGet::default() });
    Some(packet.len())
}

/// Appends the write whose packet is at the front of `input` to a run, as [`set`] does.
#[inline]
pub(crate) fn packet_set<'a>(input: &'a [u8], value_max: usize, run: &mut PlainSets<'a>) -> Option<usize> {
    let header = Header::parse(input.first_chunk().filter(|bytes| bytes[0] == binary::REQUEST)?);
    let loud = binary::loud(header.opcode());
    if loud.code != opcode::SET || header.shape() != PacketAction::Store || header.value() > value_max as u64
    {
        return None;
    }
    let (packet, rest) = input.split_at_checked(header.head())?;
    let value = rest.get(..header.value() as usize)?;
    let (store, _) = header.store(packet);
    if store.compare.is_some() {
        return None;
    }
    run.push(PlainSet {
        key: store.key,
        value,
        flags: store.flags,
        exptime: store.exptime,
        noreply: loud.quiet,
        flags_or_header: &packet[..HEADER],
        has_echo: true,
        is_meta: false,
        is_packet: true,
    });
    Some(packet.len() + value.len())
}

/// Appends the `mg` with the key and the flags at the front of `words`. Returns what follows its line.
#[inline]
fn meta_get<'a>(words: &'a [u8], run: &mut PlainGets<'a>) -> Option<&'a [u8]> {
    let (key, flags) = key(words)?;
    let mut seen = FlagSet::default();
    let mut rest = flags;
    while let [b' ', letter, after @ ..] = rest {
        seen.insert(*letter)?;
        rest = match letter {
            b'v' | b'f' | b'c' | b's' | b't' | b'h' | b'k' | b'q' => after,
            b'O' => opaque(after)?,
            _ => return None,
        };
    }
    if !seen.has(b'v') {
        return None;
    }
    let (flags_or_header, next) = flags_and_next(flags, rest)?;
    run.push(PlainGet { key, flags_or_header, quiet: seen.has(b'q'), ..PlainGet::default() });
    Some(next)
}

/// The letters of a line's flags.
#[derive(Default, Clone, Copy)]
struct FlagSet(u64);

impl FlagSet {
    /// Adds a letter; none if it is there, or no letter.
    #[inline]
    fn insert(&mut self, letter: u8) -> Option<()> {
        if !letter.is_ascii_alphabetic() || self.has(letter) {
            return None;
        }
        self.0 |= 1 << (letter & 0x3f);
        Some(())
    }

    /// Returns whether a letter is there.
    #[inline]
    fn has(self, letter: u8) -> bool {
        self.0 & 1 << (letter & 0x3f) != 0
    }
}

/// Splits the key at the front of `words` from the rest, which begins with what ends it.
#[inline]
fn key(words: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = word_len(&words[..words.len().min(KEY_MAX + 1)])?;
    if len == 0 { None } else { Some(words.split_at(len)) }
}

/// Returns what follows the opaque at the front of `text`.
#[inline]
fn opaque(text: &[u8]) -> Option<&[u8]> {
    let len = word_len(&text[..text.len().min(OPAQUE_MAX)])?;
    Some(&text[len..])
}

/// Returns the flags at the front of `text` that end where `rest` starts, without the space before them, and what
/// follows their line.
#[inline]
fn flags_and_next<'a>(text: &'a [u8], rest: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let next = line_end(rest)?;
    let flags = &text[..text.len() - rest.len()];
    Some((flags.get(1..).unwrap_or_default(), next))
}

/// Returns what follows the line end at the front of `text`.
#[inline]
fn line_end(text: &[u8]) -> Option<&[u8]> {
    match text {
        [b'\r', b'\n', rest @ ..] | [b'\n', rest @ ..] => Some(rest),
        _ => None,
    }
}

/// Appends keys of `text`, which is the rest of a valid line, to a run that is not full. Returns the bytes left.
#[inline]
pub(crate) fn more_keys<'a>(text: &'a [u8], cas: bool, run: &mut PlainGets<'a>) -> usize {
    let mut words = Words::new(text);
    while !run.is_full()
        && let Some(key) = words.next()
    {
        let is_last = words.is_at_end();
        run.push(PlainGet { key, cas, is_last, ..PlainGet::default() });
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
    let rest = match input {
        [b's', b'e', b't', b' ', words @ ..] => text_set(words, value_max, run)?,
        [b'm', b's', b' ', words @ ..] => meta_set(words, value_max, run)?,
        _ => return None,
    };
    Some(input.len() - rest.len())
}

/// Appends the `set` of these words to a run, as [`set`] does. Returns what follows its value.
#[inline]
fn text_set<'a>(words: &'a [u8], value_max: usize, run: &mut PlainSets<'a>) -> Option<&'a [u8]> {
    let (key, rest) = key(words)?;
    let (flags, rest) = number(rest.strip_prefix(b" ")?)?;
    let (exptime, rest) = exptime(rest.strip_prefix(b" ")?)?;
    let (len, rest) = number(rest.strip_prefix(b" ")?)?;
    let (noreply, rest) = match rest.strip_prefix(b" noreply") {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let (value, next) = data_block(line_end(rest)?, len, value_max)?;
    run.push(PlainSet { key, value, flags, exptime, noreply, ..PlainSet::default() });
    Some(next)
}

/// Appends the `ms` of these words to a run, as [`set`] does. Returns what follows its value.
// Inlined, it would cost each `set` registers.
#[inline(never)]
fn meta_set<'a>(words: &'a [u8], value_max: usize, run: &mut PlainSets<'a>) -> Option<&'a [u8]> {
    let (key, rest) = key(words)?;
    let (len, words) = number(rest.strip_prefix(b" ")?)?;
    let (mut flags, mut expires, mut seen) = (0, Exptime::default(), FlagSet::default());
    let mut rest = words;
    while let [b' ', letter, after @ ..] = rest {
        seen.insert(*letter)?;
        rest = match letter {
            b'T' => set_to(&mut expires, exptime(after)?),
            b'F' => set_to(&mut flags, number(after)?),
            b'M' => match after {
                [b'S', after @ ..] => after,
                _ => return None,
            },
            b'O' => opaque(after)?,
            b'k' | b's' | b'c' | b'q' => after,
            _ => return None,
        };
    }
    let noreply = seen.has(b'q');
    let (flags_or_header, next) = flags_and_next(words, rest)?;
    let (value, next) = data_block(next, len, value_max)?;
    let has_echo = [b'k', b'O', b's', b'c'].into_iter().any(|letter| seen.has(letter));
    run.push(PlainSet {
        key,
        value,
        flags,
        exptime: expires,
        noreply,
        flags_or_header,
        has_echo,
        is_meta: true,
        is_packet: false,
    });
    Some(next)
}

/// Takes a parsed value; returns what follows it.
#[inline]
fn set_to<'a, T>(place: &mut T, (value, rest): (T, &'a [u8])) -> &'a [u8] {
    *place = value;
    rest
}

/// Splits the value of `len` bytes at the front of `data` from what follows its line end.
#[inline]
fn data_block(data: &[u8], len: u32, value_max: usize) -> Option<(&[u8], &[u8])> {
    let len = len as usize;
    if len > value_max || data.get(len..len + 2)? != b"\r\n" {
        return None;
    }
    Some((&data[..len], &data[len + 2..]))
}

/// Parses the expiry time at the front of `text`, which something follows.
#[inline(always)]
fn exptime(text: &[u8]) -> Option<(Exptime, &[u8])> {
    let (seconds, rest) = number(text)?;
    Some((Exptime(i32::try_from(seconds).ok()?.into()), rest))
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
