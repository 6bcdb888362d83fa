//! Requests and responses of the three protocols, as far as a load generator needs them.

use anyhow::{Context, Result, bail, ensure};

/// A protocol's encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// The classic text protocol.
    Text,
    /// The meta protocol.
    Meta,
    /// The binary protocol.
    Binary,
}

/// A response, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// A value.
    Value {
        /// The request that it answers, if the response identifies it.
        of: AnswerOf<'a>,
        /// The value.
        value: &'a [u8],
    },
    /// The key is absent.
    Miss(AnswerOf<'a>),
    /// All values of a request have been sent.
    End,
    /// The value was stored.
    Stored(AnswerOf<'a>),
}

/// The request that a response belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerOf<'a> {
    /// The next in order.
    Next,
    /// The request for this key.
    Key(&'a [u8]),
    /// The request with this mark.
    Mark(u32),
}

/// Maximum length of a line: a key of 250 bytes and some numbers.
const LINE_BYTES_MAX: usize = 1_024;
/// Length of a packet header.
const HEADER_BYTES: usize = 24;
/// Maximum length of a value.
const VALUE_BYTES_MAX: usize = 1 << 30;

const REQUEST: u8 = 0x80;
const RESPONSE: u8 = 0x81;
const GET: u8 = 0x00;
const SET: u8 = 0x01;
const STATUS_OK: u16 = 0;
const STATUS_NOT_FOUND: u16 = 1;
/// Extras of a set: flags and time to live.
const SET_EXTRAS: [u8; 8] = [0; 8];

impl Encoding {
    /// Returns whether an end marker follows the values of a multiget; otherwise each key has its own
    /// response.
    pub fn has_end(self) -> bool {
        self == Encoding::Text
    }

    /// Appends a request for values. Each key has a mark. Without a multiget in the protocol there is one
    /// request per key; none is quiet, so that a lost value is not mistaken for a miss.
    pub fn get<'k>(self, keys: impl Iterator<Item = (&'k [u8], u32)>, out: &mut Vec<u8>) {
        match self {
            Encoding::Text => {
                out.extend_from_slice(b"get");
                for (key, _) in keys {
                    out.push(b' ');
                    out.extend_from_slice(key);
                }
                out.extend_from_slice(b"\r\n");
            }
            Encoding::Meta => {
                for (key, _) in keys {
                    out.extend_from_slice(b"mg ");
                    out.extend_from_slice(key);
                    out.extend_from_slice(b" v\r\n");
                }
            }
            Encoding::Binary => {
                for (key, mark) in keys {
                    packet(GET, [key, b"", b""], mark, out);
                }
            }
        }
    }

    /// Appends a storage request.
    pub fn set(self, key: &[u8], value: &[u8], mark: u32, out: &mut Vec<u8>) {
        match self {
            Encoding::Text => {
                out.extend_from_slice(b"set ");
                out.extend_from_slice(key);
                out.extend_from_slice(b" 0 0 ");
            }
            Encoding::Meta => {
                out.extend_from_slice(b"ms ");
                out.extend_from_slice(key);
                out.push(b' ');
            }
            Encoding::Binary => {
                packet(SET, [key, &SET_EXTRAS, value], mark, out);
                return;
            }
        }
        decimal(value.len(), out);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }

    /// Returns the first response in `input` and its length; `None` if it is incomplete.
    ///
    /// # Errors
    /// The server refuses, or the bytes are no response.
    pub fn decode(self, input: &[u8]) -> Result<Option<(Answer<'_>, usize)>> {
        match self {
            Encoding::Text | Encoding::Meta => line(input, self),
            Encoding::Binary => decode_packet(input),
        }
    }
}

/// Appends a packet: key, extras and value.
fn packet(opcode: u8, [key, extras, value]: [&[u8]; 3], mark: u32, out: &mut Vec<u8>) {
    let body = (key.len() + extras.len() + value.len()) as u32;
    let mut header = [0; HEADER_BYTES];
    header[0] = REQUEST;
    header[1] = opcode;
    header[2..4].copy_from_slice(&(key.len() as u16).to_be_bytes());
    header[4] = extras.len() as u8;
    header[8..12].copy_from_slice(&body.to_be_bytes());
    header[12..16].copy_from_slice(&mark.to_be_bytes());
    out.extend_from_slice(&header);
    out.extend_from_slice(extras);
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

fn decimal(number: usize, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

fn line(input: &[u8], encoding: Encoding) -> Result<Option<(Answer<'_>, usize)>> {
    let looked_at = &input[..input.len().min(LINE_BYTES_MAX)];
    let Some(end) = looked_at.iter().position(|byte| *byte == b'\n') else {
        ensure!(looked_at.len() < LINE_BYTES_MAX, "the answer is not a line: {}", shown(looked_at));
        return Ok(None);
    };
    let after = end + 1;
    let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    let mut words = line.split(|byte| *byte == b' ');
    let answer = match (words.next().unwrap_or_default(), encoding) {
        (b"VALUE", Encoding::Text) => {
            let key = words.next().with_context(|| no_answer(line))?;
            let len = words.nth(1).and_then(number).with_context(|| no_answer(line))?;
            return value(input, after, len, AnswerOf::Key(key));
        }
        (b"VA", Encoding::Meta) => {
            let len = words.next().and_then(number).with_context(|| no_answer(line))?;
            return value(input, after, len, AnswerOf::Next);
        }
        (b"END", Encoding::Text) => Answer::End,
        (b"EN", Encoding::Meta) => Answer::Miss(AnswerOf::Next),
        (b"STORED", Encoding::Text) | (b"HD", Encoding::Meta) => Answer::Stored(AnswerOf::Next),
        (b"ERROR" | b"CLIENT_ERROR" | b"SERVER_ERROR", _) => bail!("the server refuses: {}", shown(line)),
        _ => bail!(no_answer(line)),
    };
    Ok(Some((answer, after)))
}

fn value<'a>(
    input: &'a [u8],
    at: usize,
    len: usize,
    of: AnswerOf<'a>,
) -> Result<Option<(Answer<'a>, usize)>> {
    ensure!(len <= VALUE_BYTES_MAX, "a value of {len} bytes");
    let end = at + len;
    match input.get(end..end + 2) {
        None => Ok(None),
        Some(b"\r\n") => Ok(Some((Answer::Value { of, value: &input[at..end] }, end + 2))),
        Some(other) => bail!("no line end after a value of {len} bytes: {}", shown(other)),
    }
}

fn number(word: &[u8]) -> Option<usize> {
    let digit = |sum: usize, byte: &u8| {
        let digit = usize::from(byte.wrapping_sub(b'0'));
        if digit > 9 { None } else { sum.checked_mul(10)?.checked_add(digit) }
    };
    if word.is_empty() { None } else { word.iter().try_fold(0, digit) }
}

fn decode_packet(input: &[u8]) -> Result<Option<(Answer<'_>, usize)>> {
    let Some(header) = input.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let [magic, opcode, k0, k1, extras, _, s0, s1, b0, b1, b2, b3, m0, m1, m2, m3, ..] = *header;
    ensure!(magic == RESPONSE, "the answer is not a packet: {}", shown(&header[..]));
    let status = u16::from_be_bytes([s0, s1]);
    let body = u32::from_be_bytes([b0, b1, b2, b3]) as usize;
    let mark = u32::from_be_bytes([m0, m1, m2, m3]);
    let before = usize::from(u16::from_be_bytes([k0, k1])) + usize::from(extras);
    ensure!(
        before <= body && body <= VALUE_BYTES_MAX,
        "the answer's lengths are wrong: {}",
        shown(&header[..])
    );
    let end = HEADER_BYTES + body;
    if input.len() < end {
        return Ok(None);
    }
    let value = &input[HEADER_BYTES + before..end];
    let answer = match (opcode, status) {
        (GET, STATUS_OK) => Answer::Value { of: AnswerOf::Mark(mark), value },
        (GET, STATUS_NOT_FOUND) => Answer::Miss(AnswerOf::Mark(mark)),
        (SET, STATUS_OK) => Answer::Stored(AnswerOf::Mark(mark)),
        _ => bail!("the server refuses: status {status}, {}", shown(value)),
    };
    Ok(Some((answer, end)))
}

fn no_answer(line: &[u8]) -> String {
    format!("no answer to the request: {}", shown(line))
}

/// Formats the beginning of some bytes for an error message.
pub fn shown(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes[..bytes.len().min(80)].escape_ascii())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const FORMS: [Encoding; 3] = [Encoding::Text, Encoding::Meta, Encoding::Binary];

    #[test]
    fn requests_are_the_protocols() {
        let of = |encoding: Encoding, keys: &[&str]| {
            let mut out = Vec::new();
            encoding.get(keys.iter().map(|key| (key.as_bytes(), 7)), &mut out);
            out
        };
        assert_eq!(of(Encoding::Text, &["a", "b"]), b"get a b\r\n");
        assert_eq!(of(Encoding::Meta, &["a", "b"]), b"mg a v\r\nmg b v\r\n");
        let one = of(Encoding::Binary, &["abc"]);
        assert_eq!(one, b"\x80\0\0\x03\0\0\0\0\0\0\0\x03\0\0\0\x07\0\0\0\0\0\0\0\0abc");
        assert_eq!(of(Encoding::Binary, &["a", "b"]).len(), 2 * 24 + 2);
        let mut out = Vec::new();
        Encoding::Text.set(b"k", b"12345678901", 0, &mut out);
        Encoding::Meta.set(b"k", b"", 0, &mut out);
        assert_eq!(out, b"set k 0 0 11\r\n12345678901\r\nms k 0\r\n\r\n");
    }

    #[test]
    fn answers_are_read_when_they_are_whole() {
        let value = b"a\r\nb";
        let mut packet = b"\x81\0\0\0\x04\0\0\0\0\0\0\x08\0\0\0\x09\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        packet.extend_from_slice(value);
        for (encoding, bytes, answer) in [
            (
                Encoding::Text,
                &b"VALUE key 0 4\r\na\r\nb\r\n"[..],
                Answer::Value { of: AnswerOf::Key(b"key"), value },
            ),
            (
                Encoding::Text,
                b"VALUE key 0 4 77\r\na\r\nb\r\n",
                Answer::Value { of: AnswerOf::Key(b"key"), value },
            ),
            (Encoding::Text, b"END\r\n", Answer::End),
            (Encoding::Text, b"STORED\r\n", Answer::Stored(AnswerOf::Next)),
            (Encoding::Meta, b"VA 4 f7\r\na\r\nb\r\n", Answer::Value { of: AnswerOf::Next, value }),
            (Encoding::Meta, b"EN\r\n", Answer::Miss(AnswerOf::Next)),
            (Encoding::Meta, b"HD\r\n", Answer::Stored(AnswerOf::Next)),
            (Encoding::Binary, &packet, Answer::Value { of: AnswerOf::Mark(9), value }),
        ] {
            for len in 0..bytes.len() {
                assert_eq!(encoding.decode(&bytes[..len]).expect("a beginning"), None, "{encoding:?} {len}");
            }
            let more = [bytes, b"more"].concat();
            assert_eq!(encoding.decode(&more).expect("an answer"), Some((answer, bytes.len())));
        }
    }

    #[test]
    fn invalid_responses_are_rejected() {
        for (encoding, bytes, reported) in [
            (Encoding::Text, &b"SERVER_ERROR out of memory\r\n"[..], "out of memory"),
            (Encoding::Text, b"VA 3\r\nabc\r\n", "no answer"),
            (Encoding::Meta, b"END\r\n", "no answer"),
            (Encoding::Text, b"VALUE k 0 x\r\n", "no answer"),
            (Encoding::Text, b"VALUE k 0 18446744073709551616\r\n", "no answer"),
            (Encoding::Text, b"VALUE k 0 1\r\nabcd", "no line end after"),
            (Encoding::Text, &[b'a'; 2_000], "not a line"),
            (Encoding::Binary, &[b'a'; 24], "not a packet"),
        ] {
            let error = encoding.decode(bytes).expect_err(reported).to_string();
            assert!(error.contains(reported), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_rejected(bytes in vec(any::<u8>(), 0..200), is_packet in any::<bool>()) {
            let mut bytes = bytes;
            if let (true, Some(first)) = (is_packet, bytes.first_mut()) {
                *first = RESPONSE;
            }
            for encoding in FORMS {
                let _ = encoding.decode(&bytes);
            }
        }
    }
}
