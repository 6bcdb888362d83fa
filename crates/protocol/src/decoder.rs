//! One connection's decoder: bytes in, requests out.
//!
//! The first byte of the connection selects the protocol unless it is fixed: 0x80 is binary, anything else text
//! (classic and meta share it). The decoder keeps no copy of the input: it returns how much it consumed, and the
//! caller passes the remainder again with more bytes appended. Every split of the same bytes gives the same requests,
//! and no byte is scanned twice without need.
//!
//! ```text
//!   Request --- a request that is all here, or refused without data ---> Request
//!   Request --- a line of several keys ----> Keys  --- the last key ---> Request
//!   Request --- a value to be streamed ----> Value --- ValueEnd -------> Request
//!                                            Value --- discard_value --> Skip
//!   Request --- data of a refused request -> Skip  --- its last byte --> Request
//!   Request --- quit, a broken stream -----> Closed
//! ```
//!
//! Nothing leads out of `Closed`. `Keys` and `Value` do not lead there: their line was valid to its end, and data may
//! be any bytes.

use memchr::memchr;

use crate::binary::decode::{Header, PacketAction};
use crate::binary::{self, HEADER};
use crate::bounds::{LINE_MAX, MULTIGET_INDENT_MAX, MULTIGET_LINE_MAX};
use crate::command::{Command, Get, Request, Store, Value, Words};
use crate::encoding::{Encoding, TextCommand, TextEncoding};
use crate::line::{Line, Multiget};
use crate::plain::{self, KeyRest, PlainGets, PlainSets};
use crate::refusal::{BAD_DATA, BAD_FORMAT, Refusal};
use crate::text::decode as text;

/// Which protocol a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Classic and meta text.
    Text,
    /// Binary.
    Binary,
}

/// What a decoder accepts.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Values up to this many bytes wait until all of it is in the input buffer and come as `Value::Inline`;
    /// longer ones are streamed.
    pub inline_value_max: usize,
}

/// One step of decoding.
#[derive(Debug, PartialEq)]
pub enum Decoded<'a> {
    /// Incomplete: at least `more` further bytes are needed (1 if the number is unknown).
    Incomplete {
        /// Bytes missing.
        more: usize,
    },
    /// A request, which took `consumed` bytes of the input.
    Request {
        /// Bytes of the input that belong to it.
        consumed: usize,
        /// The request.
        request: Request<'a>,
    },
    /// A part of a streamed value.
    Value {
        /// Bytes of the input that belong to it.
        consumed: usize,
        /// The part.
        bytes: &'a [u8],
    },
    /// The end of a streamed value.
    ValueEnd {
        /// Bytes of the input that belong to it.
        consumed: usize,
        /// The terminator was right. If not, the value must not be stored, and the client gets an error
        /// (`Refusal::Client("bad data chunk")`).
        intact: bool,
    },
    /// Bytes to skip, for instance of a rejected value.
    Skipped {
        /// Bytes of the input to drop.
        consumed: usize,
    },
    /// The connection cannot continue: send the answers so far, and close. If the client gets a reason, a
    /// `Command::Refused` precedes this.
    Fatal,
}

/// One connection's decoder.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    protocol: Option<Protocol>,
    /// Each request says by its first byte in which protocol it is.
    is_mixed: bool,
    /// Text that is no known command closes the input without an answer.
    is_datagram: bool,
    auth_required: bool,
    /// A decoded meta key. Takes no memory until the first one.
    key: Vec<u8>,
    progress: Progress,
}

impl Decoder {
    /// A decoder for a new connection; `protocol` none picks it by the first byte.
    pub fn new(protocol: Option<Protocol>, limits: Limits) -> Decoder {
        let state = DecoderState::Request;
        let progress = Progress { state, before: state, scanned: 0, needed: 0 };
        Decoder {
            limits,
            protocol,
            is_mixed: false,
            is_datagram: false,
            auth_required: false,
            key: Vec::new(),
            progress,
        }
    }

    /// A decoder for a connection on which requests of both protocols come, one behind the other: each is of the one that
    /// its first byte says.
    pub fn mixed(limits: Limits) -> Decoder {
        Decoder { is_mixed: true, ..Decoder::new(None, limits) }
    }

    /// A decoder for one datagram. Text that is no command gets no answer and ends it: it may be another server's
    /// answer, and two servers that answer each other's answers do so forever. Answers begin with no command's name
    /// and not with the binary protocol's 0x80.
    pub fn datagram(protocol: Option<Protocol>, limits: Limits) -> Decoder {
        Decoder { is_datagram: true, ..Decoder::new(protocol, limits) }
    }

    /// Returns the protocol, once known; of a mixed connection, that of the last request.
    pub fn protocol(&self) -> Option<Protocol> {
        self.protocol
    }

    /// While set, text accepts only `Command::Authenticate` and refuses everything else; on a text-only connection a
    /// packet is refused and ends it. Binary is unaffected: the server decides which of its commands need SASL first.
    pub fn require_auth(&mut self, required: bool) {
        self.auth_required = required;
    }

    /// Decodes one step from the front of `input`: the bytes that earlier calls did not consume, and newer ones.
    #[inline]
    pub fn decode<'a>(&'a mut self, input: &'a [u8]) -> Decoded<'a> {
        if input.len() < self.progress.needed {
            return Decoded::Incomplete { more: self.progress.needed - input.len() };
        }
        self.progress.needed = 0;
        self.progress.before = self.progress.state;
        match self.progress.state {
            DecoderState::Request => self.request(input),
            DecoderState::Keys { multiget, text, end } => self.progress.keys(input, multiget, text, end),
            DecoderState::Value { left, terminated } => self.progress.value(input, left, terminated),
            DecoderState::Skip { left } => self.progress.skip(input, left),
            DecoderState::Closed => Decoded::Fatal,
        }
    }

    /// Returns to the state before the last request that [`Decoder::decode`] returned. Its bytes are decoded again.
    #[cold]
    pub fn undo(&mut self) {
        self.progress.state = self.progress.before;
    }

    /// Decodes the plain reads at the front of `input`, which is as for [`Decoder::decode`], into `run`, up to its limit.
    /// Returns the bytes that they take; 0 if there are none. They are the requests that `decode` would return.
    #[inline]
    pub fn plain_gets<'a>(&mut self, input: &'a [u8], run: &mut PlainGets<'a>) -> usize {
        run.clear();
        if !self.may_be_plain() {
            return 0;
        }
        self.progress.before = self.progress.state;
        let mut used = match self.progress.state {
            DecoderState::Request => 0,
            _ => self.progress.plain_keys(input, run),
        };
        if self.protocol == Some(Protocol::Binary) {
            while !run.is_full()
                && matches!(self.progress.state, DecoderState::Request)
                && let Some(consumed) = plain::packet_get(&input[used..], run)
            {
                used += consumed;
            }
            return used;
        }
        while !run.is_full()
            && matches!(self.progress.state, DecoderState::Request)
            && let Some(line) = plain::key_line(&input[used..], run)
        {
            used += line.consumed;
            if let Some(KeyRest { multiget, text, end }) = line.rest {
                self.progress.state = DecoderState::Keys { multiget, text, end };
            }
        }
        used
    }

    /// Decodes the last run of [`Decoder::plain_gets`] again, up to its first `taken` requests: the rest is decoded later.
    /// `input` is the same, and nothing was decoded since. Returns the bytes that they take.
    #[cold]
    pub fn shorten_gets<'a>(&mut self, input: &'a [u8], run: &mut PlainGets<'a>, taken: usize) -> usize {
        self.undo();
        run.shorten(taken);
        self.plain_gets(input, run)
    }

    /// Decodes the plain writes at the front of `input`, like [`Decoder::plain_gets`]. All their values are inline.
    #[inline]
    pub fn plain_sets<'a>(&mut self, input: &'a [u8], run: &mut PlainSets<'a>) -> usize {
        run.clear();
        if !self.may_be_plain() || !matches!(self.progress.state, DecoderState::Request) {
            return 0;
        }
        let set = if self.protocol == Some(Protocol::Binary) { plain::packet_set } else { plain::set };
        let mut used = 0;
        while !run.is_full()
            && let Some(consumed) = set(&input[used..], self.limits.inline_value_max, run)
        {
            used += consumed;
        }
        used
    }

    /// Decodes the last run of [`Decoder::plain_sets`] again, up to its first `taken` requests, like [`Decoder::shorten_gets`].
    #[cold]
    pub fn shorten_sets<'a>(&mut self, input: &'a [u8], run: &mut PlainSets<'a>, taken: usize) -> usize {
        run.shorten(taken);
        self.plain_sets(input, run)
    }

    /// Returns whether plain requests may be decoded in a run: the protocol is known and allowed, and no part of the next
    /// request was seen. On connections of mixed protocols and in datagrams pipelines are too short to gain from runs.
    #[inline]
    fn may_be_plain(&self) -> bool {
        self.protocol.is_some()
            && !(self.auth_required || self.is_mixed || self.is_datagram)
            && self.progress.scanned == 0
            && self.progress.needed == 0
    }

    /// Returns the keys that the requests at the front of `input` probably ask for: a prefetch hint. `input` is as
    /// for [`Decoder::decode`]; a data block may be mistaken for a line.
    #[inline]
    pub fn pipelined_keys<'a>(&self, input: &'a [u8]) -> PipelinedKeys<'a> {
        match (self.progress.state, self.protocol) {
            (DecoderState::Keys { text, .. }, _) => PipelinedKeys {
                words: Words::new(&input[..text.min(input.len())]),
                ..PipelinedKeys::default()
            },
            (DecoderState::Request, Some(Protocol::Text)) => {
                PipelinedKeys { lines: input, ..PipelinedKeys::default() }
            }
            (DecoderState::Request, Some(Protocol::Binary)) => {
                PipelinedKeys { packets: input, ..PipelinedKeys::default() }
            }
            _ => PipelinedKeys::default(),
        }
    }

    /// Returns whether a streamed or discarded value is incomplete.
    pub fn is_in_value(&self) -> bool {
        !matches!(self.progress.state, DecoderState::Request)
    }

    /// Returns whether the head of a request is here, and what it announces is not: a data block, or a packet's body.
    pub fn awaits_body(&self) -> bool {
        match self.protocol {
            Some(Protocol::Binary) => self.progress.needed > HEADER,
            _ => self.progress.needed > 0,
        }
    }

    /// Returns whether only the end of a streamed value is outstanding, which needs no more input: the next call
    /// returns it.
    pub fn is_at_value_end(&self) -> bool {
        matches!(self.progress.state, DecoderState::Value { left: 0, terminated: false })
    }

    /// Returns how many bytes of the streamed value are still to come.
    pub fn value_left(&self) -> u64 {
        match self.progress.state {
            DecoderState::Value { left, .. } => left,
            _ => 0,
        }
    }

    /// Counts bytes of the streamed value, at most those still to come, that were received without passing through
    /// `decode`.
    pub fn advance_value(&mut self, len: u64) {
        if let DecoderState::Value { left, .. } = &mut self.progress.state {
            *left = left.checked_sub(len).expect("at most the rest of the value");
        }
    }

    /// Drops the rest of the streamed value that the last request announced: it comes as `Skipped`, without a
    /// `ValueEnd`. Does nothing when no value is streamed.
    pub fn discard_value(&mut self) {
        if let DecoderState::Value { left, terminated } = self.progress.state {
            self.progress.needed = 0;
            self.progress.skip_next(left + if terminated { 2 } else { 0 });
        }
    }

    fn request<'a>(&'a mut self, input: &'a [u8]) -> Decoded<'a> {
        let Some(first) = input.first() else { return Decoded::Incomplete { more: 1 } };
        let said = if *first == binary::REQUEST { Protocol::Binary } else { Protocol::Text };
        if self.is_mixed {
            self.protocol = Some(said);
        }
        match *self.protocol.get_or_insert(said) {
            Protocol::Text => self.text(input),
            Protocol::Binary => self.binary(input),
        }
    }

    fn text<'a>(&'a mut self, input: &'a [u8]) -> Decoded<'a> {
        if self.auth_required && input[0] == binary::REQUEST {
            return self.progress.packet_before_text(input);
        }
        let scanned = self.progress.scanned.min(input.len());
        let newline = memchr(b'\n', &input[scanned..]).map(|at| scanned + at);
        let length = newline.unwrap_or(input.len());
        if length > LINE_MAX && (self.auth_required || !may_be_long(input, length)) {
            return self.progress.close();
        }
        let Some(newline) = newline else {
            self.progress.scanned = input.len();
            return Decoded::Incomplete { more: 1 };
        };
        self.progress.scanned = 0;
        let line = &input[..newline];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let consumed = newline + 1;
        // A datagram cannot authenticate, and "unauthenticated" would answer everything; such short lines are no commands.
        if self.is_datagram && (self.auth_required || consumed < 4) {
            return self.progress.close();
        }
        if self.auth_required {
            self.progress.line(input, line, consumed, text::auth_line(line), 0)
        } else if consumed < 4 {
            // 1.6.45 distinguishes lines too short for any command from unknown commands.
            refused(consumed, BAD_FORMAT)
        } else {
            let parsed = text::line(line, &mut self.key);
            if self.is_datagram && parsed.is_unknown() {
                return self.progress.close();
            }
            self.progress.line(input, line, consumed, parsed, self.limits.inline_value_max as u64)
        }
    }

    fn binary<'a>(&'a mut self, input: &'a [u8]) -> Decoded<'a> {
        let progress = &mut self.progress;
        if input[0] != binary::REQUEST {
            return progress.close();
        }
        let Some(header) = input.first_chunk().map(Header::parse) else {
            return progress.wait(input, HEADER);
        };
        let head = header.head();
        match header.shape() {
            PacketAction::Close(status) => {
                progress.state = DecoderState::Closed;
                Decoded::Request { consumed: HEADER, request: header.refused(status) }
            }
            PacketAction::Swallow(status) => {
                progress.skip_next(header.body());
                Decoded::Request { consumed: HEADER, request: header.refused(status) }
            }
            PacketAction::Whole => {
                let total = head + header.value() as usize;
                let Some(packet) = input.get(..total) else { return progress.wait(input, total) };
                let request = header.whole(packet);
                if request.command == Command::Quit {
                    progress.state = DecoderState::Closed;
                }
                Decoded::Request { consumed: total, request }
            }
            PacketAction::Store => {
                let len = header.value();
                let inline = len <= self.limits.inline_value_max as u64;
                let total = if inline { head + len as usize } else { head };
                let Some(packet) = input.get(..total) else { return progress.wait(input, total) };
                let (packet, data) = packet.split_at(head);
                let (store, encoding) = header.store(packet);
                let value = if inline {
                    Value::Inline(data)
                } else {
                    progress.state = DecoderState::Value { left: len, terminated: false };
                    Value::Streamed { len }
                };
                Decoded::Request { consumed: total, request: filled(store, value, encoding) }
            }
        }
    }
}

/// What [`Decoder::pipelined_keys`] finds.
#[derive(Debug)]
pub struct PipelinedKeys<'a> {
    /// Keys of a multiget.
    words: Words<'a>,
    /// Lines whose second word is a key.
    lines: &'a [u8],
    /// Packets.
    packets: &'a [u8],
}

impl Default for PipelinedKeys<'_> {
    /// No keys.
    fn default() -> Self {
        PipelinedKeys { words: Words::new(b""), lines: b"", packets: b"" }
    }
}

impl<'a> Iterator for PipelinedKeys<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if let Some(key) = self.words.next() {
            return Some(key);
        }
        if !self.packets.is_empty() {
            let packet = std::mem::take(&mut self.packets);
            let (key, rest) = binary::decode::key_ahead(packet)?;
            self.packets = rest;
            return Some(key);
        }
        let newline = memchr(b'\n', self.lines)?;
        let line = &self.lines[..newline];
        self.lines = &self.lines[newline + 1..];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        Some(Words::new(line).nth(1).unwrap_or_default())
    }
}

/// How much of the input was decoded.
#[derive(Debug)]
struct Progress {
    state: DecoderState,
    /// The state before the last request or run of plain reads.
    before: DecoderState,
    /// Bytes at the front of the input that hold no newline, from the last call.
    scanned: usize,
    /// Bytes that the input needs before decoding can continue, from the last call.
    needed: usize,
}

#[derive(Debug, Clone, Copy)]
enum DecoderState {
    Request,
    Keys {
        multiget: Multiget,
        /// Bytes left of the line, without its end.
        text: usize,
        /// Bytes of the line end.
        end: usize,
    },
    Value {
        left: u64,
        /// A line end follows.
        terminated: bool,
    },
    Skip {
        left: u64,
    },
    Closed,
}

impl Progress {
    /// Goes on from a parsed line, which is the first of `input` and takes `consumed` bytes of it with its end.
    #[inline]
    fn line<'a>(
        &mut self,
        input: &'a [u8],
        line: &'a [u8],
        consumed: usize,
        parsed: Line<'a>,
        inline_value_max: u64,
    ) -> Decoded<'a> {
        match parsed {
            Line::Request(request) => {
                if request.command == Command::Quit {
                    self.state = DecoderState::Closed;
                }
                Decoded::Request { consumed, request }
            }
            Line::Keys { keys, multiget } => {
                self.next_key(&line[keys..], keys, multiget, consumed - line.len())
            }
            Line::Store { store, encoding, len } if len <= inline_value_max => {
                let Some(DataBlock { value, intact }) = block(input, consumed, len) else {
                    return self.wait(input, consumed + len as usize + 2);
                };
                let request = if intact {
                    filled(store, Value::Inline(value), encoding)
                } else {
                    Request { command: Command::Refused(BAD_DATA), encoding }
                };
                Decoded::Request { consumed: consumed + value.len() + 2, request }
            }
            Line::Store { store, encoding, len } => {
                self.state = DecoderState::Value { left: len, terminated: true };
                Decoded::Request { consumed, request: filled(store, Value::Streamed { len }, encoding) }
            }
            Line::Swallow { refusal, encoding, len } => {
                self.state = DecoderState::Skip { left: len + 2 };
                Decoded::Request {
                    consumed,
                    request: Request { command: Command::Refused(refusal), encoding },
                }
            }
            Line::Token { len } => {
                let Some(DataBlock { value: token, intact }) = block(input, consumed, len) else {
                    return self.wait(input, consumed + len as usize + 2);
                };
                let request = text::token(token, intact);
                Decoded::Request { consumed: consumed + token.len() + 2, request }
            }
            Line::Close => self.close(),
        }
    }

    fn keys<'a>(&mut self, input: &'a [u8], multiget: Multiget, text: usize, end: usize) -> Decoded<'a> {
        match input.get(..text + end) {
            Some(line) => self.next_key(&line[..text], 0, multiget, end),
            None => self.wait(input, text + end),
        }
    }

    /// Appends keys of the line that was begun to `run`; returns the bytes that they take.
    fn plain_keys<'a>(&mut self, input: &'a [u8], run: &mut PlainGets<'a>) -> usize {
        let DecoderState::Keys { multiget, text, end } = self.state else { return 0 };
        if multiget.touch.is_some() || run.is_full() {
            return 0;
        }
        let Some(line) = input.get(..text + end) else { return 0 };
        let left = plain::more_keys(&line[..text], multiget.cas, run);
        if left == 0 {
            self.state = DecoderState::Request;
            return text + end;
        }
        self.state = DecoderState::Keys { multiget, text: left, end };
        text - left
    }

    /// Returns the first key of `text`, which has at least one, extends to the end of its line and starts `before` bytes
    /// into the input.
    #[inline]
    fn next_key<'a>(&mut self, text: &'a [u8], before: usize, multiget: Multiget, end: usize) -> Decoded<'a> {
        let mut words = Words::new(text);
        let key = words.next().unwrap_or_default();
        let is_last = words.is_at_end();
        let (state, left) = match is_last {
            true => (DecoderState::Request, 0),
            false => (DecoderState::Keys { multiget, text: words.len(), end }, words.len() + end),
        };
        self.state = state;
        let get = Get { key, value: true, touch: multiget.touch, ..Get::default() };
        let command = TextCommand::Get;
        let encoding = TextEncoding { command, key, cas: multiget.cas, is_last, ..TextEncoding::default() };
        Decoded::Request {
            consumed: before + text.len() + end - left,
            request: Request { command: Command::Get(get), encoding: Encoding::Text(encoding) },
        }
    }

    fn value<'a>(&mut self, input: &'a [u8], left: u64, terminated: bool) -> Decoded<'a> {
        if left > 0 {
            let Some((bytes, left)) = front(input, left) else { return Decoded::Incomplete { more: 1 } };
            self.state = DecoderState::Value { left, terminated };
            return Decoded::Value { consumed: bytes.len(), bytes };
        }
        let end = if terminated { &b"\r\n"[..] } else { b"" };
        let Some(given) = input.get(..end.len()) else { return self.wait(input, end.len()) };
        self.state = DecoderState::Request;
        Decoded::ValueEnd { consumed: end.len(), intact: given == end }
    }

    fn skip<'a>(&mut self, input: &'a [u8], left: u64) -> Decoded<'a> {
        let Some((bytes, left)) = front(input, left) else { return Decoded::Incomplete { more: 1 } };
        self.skip_next(left);
        Decoded::Skipped { consumed: bytes.len() }
    }

    fn skip_next(&mut self, left: u64) {
        self.state = if left == 0 { DecoderState::Request } else { DecoderState::Skip { left } };
    }

    /// Refuses a packet on a connection that authenticates by text: it has no line end, so its sender would wait for an
    /// answer for ever.
    #[cold]
    fn packet_before_text<'a>(&mut self, input: &[u8]) -> Decoded<'a> {
        let Some(header) = input.first_chunk().map(Header::parse) else { return self.wait(input, HEADER) };
        self.state = DecoderState::Closed;
        Decoded::Request { consumed: HEADER, request: header.refused(binary::status::AUTH) }
    }

    /// Waits until `total` bytes have arrived.
    fn wait<'a>(&mut self, input: &[u8], total: usize) -> Decoded<'a> {
        self.needed = total;
        Decoded::Incomplete { more: total - input.len() }
    }

    fn close<'a>(&mut self) -> Decoded<'a> {
        self.state = DecoderState::Closed;
        Decoded::Fatal
    }
}

/// Returns whether the line of `length` bytes so far is, or may become, a multiget of acceptable size.
#[cold]
fn may_be_long(input: &[u8], length: usize) -> bool {
    let indent = input.iter().take_while(|byte| **byte == b' ').count();
    let names = [&b"get "[..], b"gets ", b"gat ", b"gats "];
    indent <= MULTIGET_INDENT_MAX
        && length <= MULTIGET_LINE_MAX
        && names.iter().any(|name| input[indent..].starts_with(name))
}

/// A data block, and whether a line end follows it.
struct DataBlock<'a> {
    value: &'a [u8],
    intact: bool,
}

/// The data block of `len` bytes behind a line of `line` bytes; none when it is not all here.
#[inline]
fn block(input: &[u8], line: usize, len: u64) -> Option<DataBlock<'_>> {
    let block = input.get(line..line + len as usize + 2)?;
    let (value, end) = block.split_at(len as usize);
    Some(DataBlock { value, intact: end == b"\r\n" })
}

/// Returns the available part of `left` bytes, and the number that remains; `None` if there is none.
fn front(input: &[u8], left: u64) -> Option<(&[u8], u64)> {
    let here = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
    (here > 0).then(|| (&input[..here], left - here as u64))
}

#[inline]
fn filled<'a>(store: Store<'a>, value: Value<'a>, encoding: Encoding<'a>) -> Request<'a> {
    Request { command: Command::Store(Store { value, ..store }), encoding }
}

fn refused<'a>(consumed: usize, refusal: Refusal) -> Decoded<'a> {
    let encoding = Encoding::Text(TextEncoding::default());
    Decoded::Request { consumed, request: Request { command: Command::Refused(refusal), encoding } }
}
