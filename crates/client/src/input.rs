//! Splits the received bytes into lines and answers, wherever the network cut them.
//!
//! Bytes are received into place: the part of a long value that did not arrive with its line is received into the
//! value itself.

use std::io;
use std::ops::Range;

use fabcache_protocol::binary::RESPONSE;

use crate::answer::{Answer, Flags, Head};
use crate::bounds::{LINE_BYTES_MAX, RECEIVE_BYTES};
use crate::error::Failure;
use crate::packet::AdminAnswer;
use crate::stream::Stream;
use crate::text::{ExpectedAnswer, Line};
use crate::{meta, packet, text};

const LINE_END: &[u8] = b"\r\n";
/// The end after the only value of a text answer.
const VALUE_END: &[u8] = b"\r\nEND\r\n";

/// Received bytes that are not consumed yet.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    /// Bytes consumed so far.
    at: usize,
    /// The number of unread bytes that contain no end of a line.
    looked: usize,
    /// The value being received, once its head is decoded.
    value: Option<IncomingValue>,
    /// The key of the last value, if any.
    key: Vec<u8>,
}

/// A value being received.
#[derive(Clone, Copy, Debug)]
struct IncomingValue {
    flags: Flags,
    /// Its length.
    len: usize,
    /// Its terminator.
    end: &'static [u8],
}

impl IncomingValue {
    fn whole(&self) -> usize {
        self.len + self.end.len()
    }
}

/// The result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Nothing arrived.
    Nothing,
    /// Something arrived, and nothing is left.
    All,
    /// As much as was requested; there may be more.
    Part,
}

impl Input {
    /// Returns whether all received bytes were consumed.
    pub fn is_empty(&self) -> bool {
        self.at == self.bytes.len() && self.value.is_none()
    }

    /// Returns the next line, without its end, if it is complete.
    ///
    /// # Errors
    /// It has no end, or is not text.
    pub fn line(&mut self) -> Result<Option<&str>, Failure> {
        let Some(line) = self.next_line()? else { return Ok(None) };
        let line = &self.bytes[line];
        std::str::from_utf8(line).map(Some).map_err(|_| Failure::protocol(line))
    }

    /// Returns the next line as raw bytes, without its end, if it is complete.
    ///
    /// # Errors
    /// It has no end.
    pub fn line_bytes(&mut self) -> Result<Option<&[u8]>, Failure> {
        Ok(self.next_line()?.map(|line| &self.bytes[line]))
    }

    /// Returns the range of the next line, without its end.
    fn next_line(&mut self) -> Result<Option<Range<usize>>, Failure> {
        let unread = &self.bytes[self.at..];
        let Some(end) = memchr::memchr(b'\n', &unread[self.looked..]) else {
            self.looked = unread.len();
            return if self.looked > LINE_BYTES_MAX {
                Err(Failure::protocol(&unread[..64]))
            } else {
                Ok(None)
            };
        };
        let end = self.looked + end;
        let line = unread[..end].strip_suffix(b"\r").unwrap_or(&unread[..end]);
        let line = self.at..self.at + line.len();
        self.at += end + 1;
        self.looked = 0;
        Ok(Some(line))
    }

    /// Returns the next answer to a request without a key, in a packet, if it is complete.
    ///
    /// # Errors
    /// The server refuses, or the answer is invalid.
    pub fn packet(&mut self) -> Result<Option<AdminAnswer<'_>>, Failure> {
        let Some((said, len)) = packet::said(&self.bytes[self.at..]) else { return Ok(None) };
        self.at += len;
        said.map(Some)
    }

    /// Returns the key that came with the last value, if any.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns the next answer, if it is complete. Its value, if any, replaces the contents of `value`; until then
    /// `value` must be the same at each call, and so must `asked`, where answers do not identify themselves.
    ///
    /// # Errors
    /// The server refuses, or the answer is invalid.
    pub fn answer(
        &mut self,
        requested: Option<ExpectedAnswer<'_>>,
        value: &mut Vec<u8>,
    ) -> Result<Option<Answer>, Failure> {
        let Some(coming) = self.value else {
            let head = match requested {
                None => self.head(),
                Some(requested) => self.text_head(requested),
            };
            let Some((head, end)) = head else { return Ok(None) };
            match head? {
                Head::Whole(answer) => return Ok(Some(answer)),
                Head::Value(flags, len) => {
                    let coming = IncomingValue { flags, len, end };
                    value.clear();
                    let room = value.try_reserve_exact(coming.whole());
                    room.map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
                    self.value = Some(coming);
                    return self.take_value(coming, value);
                }
            }
        };
        self.take_value(coming, value)
    }

    /// Returns the head of the next answer, if it is complete, and the terminator of its value.
    fn head(&mut self) -> Option<(Result<Head, Failure>, &'static [u8])> {
        if self.bytes.get(self.at) == Some(&RESPONSE) {
            let (head, len) = packet::head(&self.bytes[self.at..])?;
            self.at += len;
            return Some((head, b""));
        }
        let line = self.line().transpose()?;
        Some((line.and_then(meta::head), LINE_END))
    }

    /// Returns the head of an answer in the text protocol.
    fn text_head(&mut self, requested: ExpectedAnswer<'_>) -> Option<(Result<Head, Failure>, &'static [u8])> {
        let line = match self.next_line() {
            Ok(line) => &self.bytes[line?],
            Err(failure) => return Some((Err(failure), b"")),
        };
        let head = match text::line(line, requested) {
            Ok(Line::Whole(answer)) => Ok(Head::Whole(answer)),
            Ok(Line::Value { key, flags, len }) => {
                self.key.clear();
                self.key.extend_from_slice(key);
                Ok(Head::Value(flags, len))
            }
            Err(failure) => Err(failure),
        };
        Some((head, if matches!(requested, ExpectedAnswer::Value(_)) { VALUE_END } else { LINE_END }))
    }

    fn take_value(&mut self, coming: IncomingValue, value: &mut Vec<u8>) -> Result<Option<Answer>, Failure> {
        let unread = &self.bytes[self.at..];
        let here = unread.len().min(coming.whole() - value.len());
        value.extend_from_slice(&unread[..here]);
        self.at += here;
        if value.len() < coming.whole() {
            return Ok(None);
        }
        self.value = None;
        if !value.ends_with(coming.end) {
            return Err(Failure::protocol(&value[coming.len..]));
        }
        value.truncate(coming.len);
        Ok(Some(Answer::Value(coming.flags)))
    }

    /// Receives what has arrived, directly into `value` if a value comes next. Call it when the buffered bytes hold
    /// no complete line or answer.
    ///
    /// # Errors
    /// The stream is broken, or the server sends no more.
    pub fn receive(&mut self, stream: &mut dyn Stream, value: &mut Vec<u8>) -> Result<Received, Failure> {
        let missing = self.value.map_or(0, |coming| coming.whole() - value.len());
        if missing <= RECEIVE_BYTES {
            self.make_room();
            return receive(stream, &mut self.bytes);
        }
        debug_assert_eq!(self.at, self.bytes.len(), "the buffered bytes belong to the value");
        let whole = value.len() + missing;
        let received = receive(stream, value)?;
        if value.len() > whole {
            // The buffer held more than this value: the rest belongs to later answers.
            self.bytes.extend_from_slice(&value[whole..]);
            value.truncate(whole);
        }
        Ok(received)
    }

    fn make_room(&mut self) {
        if self.at == self.bytes.len() {
            self.bytes.clear();
            self.at = 0;
        }
        if self.bytes.capacity() - self.bytes.len() < RECEIVE_BYTES / 2 {
            self.bytes.drain(..self.at);
            self.at = 0;
            self.bytes.reserve(RECEIVE_BYTES);
        }
    }
}

fn receive(stream: &mut dyn Stream, into: &mut Vec<u8>) -> Result<Received, Failure> {
    match stream.receive(into)? {
        None => Err(Failure::Broken(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the server closed the connection",
        ))),
        Some(0) => Ok(Received::Nothing),
        Some(_) if into.len() == into.capacity() => Ok(Received::Part),
        Some(_) => Ok(Received::All),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::IoSlice;
    use std::time::Instant;

    use fabcache_protocol::binary::opcode;
    use fabcache_protocol::{BinaryEncoding, Item, Reply};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::message::Encoding;
    use crate::stream::{Until, Waiter};

    /// Received bytes in pieces, with a pause between two.
    #[derive(Debug)]
    struct Pieces(VecDeque<Vec<u8>>);

    impl Stream for Pieces {
        fn encoding(&self) -> Encoding {
            unreachable!("nothing is sent")
        }

        fn send(&mut self, _: &[IoSlice<'_>]) -> io::Result<usize> {
            unreachable!("nothing is sent")
        }

        fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<Option<usize>> {
            let Some(piece) = self.0.front_mut() else { return Ok(None) };
            let len = piece.len().min(into.capacity() - into.len());
            if len == 0 {
                assert!(piece.is_empty(), "the buffer has room");
                self.0.pop_front();
            } else {
                into.extend(piece.drain(..len));
            }
            Ok(Some(len))
        }

        fn wait(&mut self, _: Until, _: Instant) -> io::Result<()> {
            unreachable!("nobody waits")
        }

        fn waiter(&self) -> io::Result<Box<dyn Waiter>> {
            unreachable!("nobody waits")
        }
    }

    type AdminAnswer = Result<(Answer, Vec<u8>), String>;

    const KEY: &[u8] = b"key\xff";

    /// Returns the requests that these answers reply to.
    fn requested(said: &[AdminAnswer], encoding: Encoding) -> Vec<Option<ExpectedAnswer<'static>>> {
        let requested = |said: &AdminAnswer| match said {
            // Single, or one of many.
            Ok((Answer::Value(Flags { opaque: None, .. }) | Answer::Miss, _)) => ExpectedAnswer::Value(KEY),
            Ok((Answer::Value(_), _)) => ExpectedAnswer::Values,
            _ => ExpectedAnswer::Change,
        };
        said.iter().map(|said| (encoding == Encoding::Text).then(|| requested(said))).collect()
    }

    /// Decodes all answers in the pieces, given the requests; each value goes to a buffer with room for `room` bytes.
    fn read(
        pieces: impl IntoIterator<Item = Vec<u8>>,
        requested: &[Option<ExpectedAnswer<'_>>],
        room: usize,
    ) -> Vec<AdminAnswer> {
        let (mut stream, mut input) = (Pieces(pieces.into_iter().collect()), Input::default());
        let mut said = Vec::new();
        let mut value = Vec::with_capacity(room);
        loop {
            let requested = requested.get(said.len()).copied().flatten();
            match input.answer(requested, &mut value) {
                Ok(Some(answer)) => {
                    assert!(requested.is_none() || value.is_empty() || input.key() == KEY);
                    said.push(Ok((answer, std::mem::replace(&mut value, Vec::with_capacity(room)))));
                }
                Err(failure) => said.push(Err(failure.to_string())),
                Ok(None) if input.receive(&mut stream, &mut value).is_err() => {
                    assert!(input.is_empty(), "{said:?}");
                    return said;
                }
                Ok(None) => {}
            }
        }
    }

    fn flags() -> impl Strategy<Value = Flags> {
        let opaque = proptest::option::of(any::<u32>());
        (any::<u32>(), any::<u64>(), opaque).prop_map(|(flags, cas, opaque)| Flags { flags, cas, opaque })
    }

    fn answers(len_max: usize) -> impl Strategy<Value = AdminAnswer> {
        prop_oneof![
            (flags(), vec(any::<u8>(), 0..len_max))
                .prop_map(|(flags, value)| Ok((Answer::Value(flags), value))),
            flags().prop_map(|flags| Ok((Answer::Done(flags), Vec::new()))),
            Just(Ok((Answer::Miss, Vec::new()))),
            Just(Ok((Answer::NotFound, Vec::new()))),
            Just(Err("Out of memory allocating item".into())),
        ]
    }

    fn forms() -> impl Strategy<Value = Encoding> {
        prop_oneof![Just(Encoding::Meta), Just(Encoding::Binary), Just(Encoding::Text)]
    }

    fn as_sent(said: &AdminAnswer, encoding: Encoding) -> Vec<u8> {
        match encoding {
            Encoding::Meta => as_lines(said),
            Encoding::Binary => as_packet(said),
            Encoding::Text => as_text(said),
            Encoding::Mixed => unreachable!("the encoding is text or binary"),
        }
    }

    fn as_text(said: &AdminAnswer) -> Vec<u8> {
        match said {
            Ok((Answer::Value(Flags { flags, cas, opaque }), value)) => {
                let head = format!(" {flags} {} {cas}\r\n", value.len());
                let end: &[u8] = if opaque.is_none() { b"\r\nEND\r\n" } else { b"\r\n" };
                [b"VALUE ", KEY, head.as_bytes(), value, end].concat()
            }
            Ok((Answer::Done(_), _)) => b"STORED\r\n".into(),
            Ok((Answer::Miss, _)) => b"END\r\n".into(),
            Ok((Answer::NotFound, _)) => b"NOT_FOUND\r\n".into(),
            Ok((other, _)) => unreachable!("{other:?} is an admin answer"),
            Err(why) => format!("SERVER_ERROR {why}\r\n").into(),
        }
    }

    fn as_packet(said: &AdminAnswer) -> Vec<u8> {
        let encoding = |opcode, flags: Flags| {
            let opaque = flags.opaque.unwrap_or_default();
            fabcache_protocol::Encoding::Binary(BinaryEncoding { opcode, opaque, key: b"" })
        };
        let item = |flags: &Flags, len| Item { flags: flags.flags, cas: flags.cas, len, ..Item::default() };
        let mut packet = Vec::new();
        match said {
            Ok((Answer::Value(flags), value)) => {
                encoding(opcode::GET, *flags).value_head(&item(flags, value.len() as u64), &mut packet);
                packet.extend_from_slice(value);
            }
            Ok((Answer::Done(flags), _)) => {
                encoding(opcode::SET, *flags).reply(&Reply::Stored(item(flags, 0)), &mut packet);
            }
            Ok((Answer::Miss, _)) => encoding(opcode::GAT, Flags::default()).reply(&Reply::Miss, &mut packet),
            Ok((Answer::NotFound, _)) => {
                encoding(opcode::DELETE, Flags::default()).reply(&Reply::NotFound, &mut packet);
            }
            Ok((other, _)) => unreachable!("{other:?} is an answer in lines"),
            Err(_) => encoding(opcode::SET, Flags::default()).reply(&Reply::OutOfMemory, &mut packet),
        }
        packet
    }

    fn as_lines(said: &AdminAnswer) -> Vec<u8> {
        let words = |flags: &Flags| {
            let opaque = flags.opaque.map(|opaque| format!(" O{opaque}")).unwrap_or_default();
            format!(" f{} c{}{opaque}\r\n", flags.flags, flags.cas)
        };
        match said {
            Ok((Answer::Value(flags), value)) => {
                let head = format!("VA {}{}", value.len(), words(flags));
                [head.as_bytes(), value, b"\r\n"].concat()
            }
            Ok((Answer::Done(flags), _)) => format!("HD{}", words(flags)).into(),
            Ok((Answer::Miss, _)) => b"EN\r\n".into(),
            Ok((Answer::NotFound, _)) => b"NF\r\n".into(),
            Ok(_) => b"MN\r\n".into(),
            Err(why) => format!("SERVER_ERROR {why}\r\n").into(),
        }
    }

    /// Returns the expected decoding: a packet always has a mark, and client flags only with a value; text has no
    /// marks, and does not name the operation.
    fn as_told(said: Vec<AdminAnswer>, encoding: Encoding) -> Vec<AdminAnswer> {
        let reported = |answer| match answer {
            Answer::Done(_) if encoding == Encoding::Text => Answer::Done(Flags::default()),
            Answer::Value(flags) if encoding == Encoding::Text => {
                Answer::Value(Flags { opaque: None, ..flags })
            }
            Answer::Done(flags) if encoding == Encoding::Binary => {
                Answer::Done(Flags { flags: 0, opaque: flags.opaque.or(Some(0)), ..flags })
            }
            Answer::Value(flags) if encoding == Encoding::Binary => {
                Answer::Value(Flags { opaque: flags.opaque.or(Some(0)), ..flags })
            }
            other => other,
        };
        said.into_iter()
            .map(|said| match said {
                Ok((answer, value)) => Ok((reported(answer), value)),
                Err(why) => Err(Failure::Refused(why).to_string()),
            })
            .collect()
    }

    proptest! {
        #[test]
        fn replies_decode_alike_at_every_split(said in vec(answers(40), 1..6), encoding in forms()) {
            let sent: Vec<u8> = said.iter().flat_map(|said| as_sent(said, encoding)).collect();
            let requested = requested(&said, encoding);
            let reported = as_told(said, encoding);
            for at in 0..=sent.len() {
                let (first, second) = sent.split_at(at);
                prop_assert_eq!(&read([first.to_vec(), second.to_vec()], &requested, 0), &reported, "cut at {}", at);
            }
            prop_assert_eq!(&read(sent.iter().map(|byte| vec![*byte]), &requested, 0), &reported);
        }
    }

    proptest! {
        // Each case takes megabytes.
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn long_values_decode_alike_in_chunks_of_any_size(
            mut said in vec(answers(40), 1..6),
            lens in vec(0..3 * RECEIVE_BYTES, 6),
            cuts in vec(0..5 * RECEIVE_BYTES, 0..12),
            room in 0..4 * RECEIVE_BYTES,
            encoding in forms(),
        ) {
            for (said, len) in said.iter_mut().zip(lens) {
                if let Ok((Answer::Value(_), value)) = said {
                    value.extend((value.len()..len).map(|i| (i * 7 % 251) as u8));
                }
            }
            let mut sent: Vec<u8> = said.iter().flat_map(|said| as_sent(said, encoding)).collect();
            let mut pieces = Vec::new();
            for cut in cuts {
                pieces.push(sent.drain(..cut.min(sent.len())).collect());
            }
            pieces.push(sent);
            let requested = requested(&said, encoding);
            prop_assert!(read(pieces, &requested, room) == as_told(said, encoding));
        }

        #[test]
        fn any_bytes_are_a_reply_or_an_error(
            mut said in vec(any::<u8>(), 0..200),
            requested in prop::sample::select(vec![None, Some(ExpectedAnswer::Value(KEY)), Some(ExpectedAnswer::Values), Some(ExpectedAnswer::Change)]),
            is_packet in any::<bool>(),
        ) {
            if let Some(first) = said.first_mut().filter(|_| is_packet) {
                *first = RESPONSE;
            }
            let (mut stream, mut input) = (Pieces([said].into()), Input::default());
            let mut value = Vec::new();
            while input.receive(&mut stream, &mut value).is_ok() {
                while input.answer(requested, &mut value).is_ok_and(|answer| answer.is_some()) {}
            }
        }
    }

    #[test]
    fn endless_line_is_an_error() {
        let (mut stream, mut input) = (Pieces([vec![b'x'; 1 << 20]].into()), Input::default());
        let received = (0..).find(|_| {
            input.receive(&mut stream, &mut Vec::new()).expect("bytes to receive");
            input.line().is_err()
        });
        assert!(received.is_some_and(|received| received < 4));
    }
}
