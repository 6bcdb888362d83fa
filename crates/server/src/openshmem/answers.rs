//! Divides the bytes that a PE answers into the answers to single requests.
//!
//! Each forwarded request is followed by a no-op in the binary protocol, with the request's number as its opaque value. Its
//! answer ends the request's, which may be empty: a quiet request is mostly not answered. Answers consist of units that tell
//! their length: packets, lines, and lines with a value.

use fabcache_protocol::binary::{REQUEST, RESPONSE};

use crate::bounds::ITEM_BYTES_MAX_MAX;

/// Bytes of a packet's header (memcached's doc/protocol-binary.xml).
const HEADER_BYTES: usize = 24;
const NOOP: u8 = 0x0a;

/// Appends the no-op that ends the answer to request `number`.
pub fn push_end(number: u32, into: &mut Vec<u8>) {
    let mut packet = [0; HEADER_BYTES];
    (packet[0], packet[1]) = (REQUEST, NOOP);
    packet[12..16].copy_from_slice(&number.to_be_bytes());
    into.extend_from_slice(&packet);
}

/// An answer that the protocols do not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer to request {0} is not an answer of memcached's protocols")]
pub struct AnswerError(pub u32);

/// Received bytes, up to the end of the next answer.
#[derive(Debug, Default)]
pub struct Answers {
    /// What has been received.
    pub received: Vec<u8>,
    /// The bytes before have been returned.
    start: usize,
    /// The units before belong to the next answer.
    scanned: usize,
}

impl Answers {
    /// Returns the answer to request `number`, once all of it is there.
    ///
    /// # Errors
    /// It is invalid, or another's.
    pub fn next(&mut self, number: u32) -> Result<Option<&[u8]>, AnswerError> {
        self.next_within(number, ANSWER_BYTES_MAX)
    }

    fn next_within(&mut self, number: u32, bytes_max: usize) -> Result<Option<&[u8]>, AnswerError> {
        loop {
            let rest = &self.received[self.scanned..];
            let scanned = self.scanned - self.start;
            match unit(rest).ok_or(AnswerError(number))? {
                None => return Ok(None),
                Some(len) if len > bytes_max - scanned => return Err(AnswerError(number)),
                Some(len) if rest.len() < len => return Ok(None),
                Some(HEADER_BYTES) if rest[0] == RESPONSE && rest[1] == NOOP => {
                    if rest[12..16] != number.to_be_bytes() {
                        return Err(AnswerError(number));
                    }
                    let answer = self.start..self.scanned;
                    self.scanned += HEADER_BYTES;
                    self.start = self.scanned;
                    return Ok(Some(&self.received[answer]));
                }
                Some(len) => self.scanned += len,
            }
        }
    }

    /// Frees what was returned. If no answer is awaited, the rest is discarded: it would be kept without a limit.
    pub fn settle(&mut self, is_awaited: bool) {
        if !is_awaited {
            return self.clear();
        }
        self.received.drain(..self.start);
        if self.received.is_empty() {
            self.received.shrink_to(KEPT_BYTES_MAX);
        }
        self.scanned -= self.start;
        self.start = 0;
    }

    /// Forgets everything, when the link has ended.
    pub fn clear(&mut self) {
        self.received.clear();
        self.received.shrink_to(KEPT_BYTES_MAX);
        (self.start, self.scanned) = (0, 0);
    }
}

/// Returns the length of the unit that the bytes begin with, if it is known: `Some(None)` if more must come, `None` if it is
/// no unit.
fn unit(bytes: &[u8]) -> Option<Option<usize>> {
    match bytes.first() {
        None => Some(None),
        Some(&RESPONSE) => {
            let Some(body) = bytes.get(8..12) else { return Some(None) };
            let body = u32::from_be_bytes(body.try_into().expect("four bytes"));
            Some(Some(HEADER_BYTES + body as usize))
        }
        Some(_) => {
            let Some(end) = memchr::memchr(b'\n', &bytes[..bytes.len().min(LINE_BYTES_MAX)]) else {
                return if bytes.len() >= LINE_BYTES_MAX { None } else { Some(None) };
            };
            let line = bytes[..end].strip_suffix(b"\r")?;
            let mut words = line.split(|byte| *byte == b' ');
            let value = match words.next()? {
                b"VA" => words.next(),
                b"VALUE" => words.nth(2),
                _ => return Some(Some(end + 1)),
            };
            let value: usize = std::str::from_utf8(value?).ok()?.parse().ok()?;
            end.checked_add(1 + 2)?.checked_add(value).map(Some)
        }
    }
}

/// Memory that is kept for the next answers.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// No answer is longer: it has one value at most, and what encloses that.
const ANSWER_BYTES_MAX: usize = ITEM_BYTES_MAX_MAX as usize + (1 << 20);

/// No line of an answer is longer: `me` answers less than this, and other lines hold a key and flags.
const LINE_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use fabcache_protocol::{Decoded, Decoder, Encoding, Limits, Reply};
    use proptest::prelude::*;

    use super::*;

    /// The answer to the no-op of this number.
    fn end(number: u32) -> Vec<u8> {
        let mut request = Vec::new();
        push_end(number, &mut request);
        let mut decoder = Decoder::mixed(Limits { inline_value_max: 1 << 10 });
        let Decoded::Request { consumed: HEADER_BYTES, request } = decoder.decode(&request) else {
            panic!("a no-op")
        };
        assert!(matches!(request.encoding, Encoding::Binary(_)));
        let mut answer = Vec::new();
        request.encoding.reply(&Reply::Noop, &mut answer);
        answer
    }

    const UNITS: [&[u8]; 12] = [
        b"STORED\r\n",
        b"END\r\n",
        b"VALUE key 5 7\r\n\x81\n\r\nEND\r\n",
        b"VALUE key 5 0 99\r\n\r\nEND\r\n",
        b"VA 4 t-1 s4\r\nEN\r\n\r\n",
        b"VA 0\r\n\r\n",
        b"HD\r\n",
        b"SERVER_ERROR out of memory\r\n",
        b"ME key exp=-1 la=0\r\n",
        b"",
        // A GET's answer whose value is a no-op's.
        b"\x81\x00\0\0\x04\0\0\0\0\0\0\x1c\0\0\0\x05\0\0\0\0\0\0\0\x01\0\0\0\0\x81\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\0",
        b"12\r\n",
    ];

    proptest! {
        #[test]
        fn answers_are_divided_however_they_arrive(
            units in proptest::collection::vec(0..UNITS.len(), 1..20),
            cuts in proptest::collection::vec(1usize..40, 1..400),
        ) {
            let (mut stream, mut expected) = (Vec::new(), Vec::new());
            for (number, unit) in (5u32..).zip(&units) {
                stream.extend_from_slice(UNITS[*unit]);
                stream.extend(end(number));
                expected.push(UNITS[*unit].to_vec());
            }
            let (mut answers, mut got, mut cuts) = (Answers::default(), Vec::new(), cuts.into_iter().cycle());
            let mut rest = &stream[..];
            while !rest.is_empty() {
                let (first, behind) = rest.split_at(cuts.next().expect("endless").min(rest.len()));
                answers.received.extend_from_slice(first);
                while let Some(answer) = answers.next(5 + got.len() as u32).expect("valid") {
                    got.push(answer.to_vec());
                }
                answers.settle(true);
                rest = behind;
            }
            prop_assert_eq!(got, expected);
            prop_assert!(answers.received.is_empty());
        }

        #[test]
        fn any_bytes_are_divided_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut answers = Answers { received: bytes, ..Answers::default() };
            while let Ok(Some(_)) = answers.next(0) {}
            answers.settle(true);
        }
    }

    #[test]
    fn unrequested_bytes_are_discarded() {
        let received = [end(5), b"ERROR\r\nVA 9".to_vec()].concat();
        let mut answers = Answers { received, ..Answers::default() };
        assert_eq!(answers.next(5), Ok(Some(&b""[..])));
        assert_eq!(answers.next(6), Ok(None));
        answers.settle(false);
        answers.received.extend([b"HD\r\n".to_vec(), end(6)].concat());
        assert_eq!(answers.next(6), Ok(Some(&b"HD\r\n"[..])));
    }

    #[test]
    fn answers_longer_than_any_value_are_errors() {
        // However a unit arrives: its length decides.
        for (unit, is_valid) in [
            (format!("VA {ITEM_BYTES_MAX_MAX}\r\n"), true),
            (format!("VA {ANSWER_BYTES_MAX}\r\n"), false),
            (format!("VALUE k 0 {}\r\n", 1u64 << 40), false),
            ("x".repeat(LINE_BYTES_MAX - 2) + "\r\n", true),
            ("x".repeat(LINE_BYTES_MAX - 1) + "\r\n", false),
        ] {
            let mut answers = Answers { received: unit.into_bytes(), ..Answers::default() };
            assert_eq!(answers.next(0).is_ok(), is_valid, "{}", answers.received.len());
        }
        let mut received = vec![RESPONSE; HEADER_BYTES];
        received[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(Answers { received, ..Answers::default() }.next(3), Err(AnswerError(3)));
        // Several units are limited together.
        for (limit, is_valid) in [(HEADER_BYTES + 2 * 8, true), (HEADER_BYTES + 2 * 8 - 1, false)] {
            let received = [&b"STORED\r\nSTORED\r\n"[..], &end(3)].concat();
            let mut answers = Answers { received, ..Answers::default() };
            assert_eq!(answers.next_within(3, limit).is_ok(), is_valid, "{limit}");
        }
    }

    #[test]
    fn answers_to_other_requests_are_errors() {
        let mut answers = Answers { received: end(7), ..Answers::default() };
        assert_eq!(answers.next(8), Err(AnswerError(8)));
        for wrong in
            [&b"VA x\r\n"[..], b"VALUE key\r\n", b"line\n", b"VA 18446744073709551615\r\n", &[b'x'; 70_000]]
        {
            let mut answers = Answers { received: wrong.to_vec(), ..Answers::default() };
            assert_eq!(answers.next(0), Err(AnswerError(0)), "{}", wrong.escape_ascii());
        }
    }
}
