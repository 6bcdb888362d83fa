//! Finds the answers in the bytes that a server sends.
//!
//! Text answers follow each other in the order of the commands; their [`Shape`] determines their ends.
//! Binary answers carry the opaque of their command, so silent commands take no space. Each batch ends
//! with a sentinel (`mn`, or a Noop with its own opaque): extra bytes appear before its answer.

use crate::unit::{Shape, Unit, Wire};

/// The answer to the text sentinel.
pub const SENTINEL: &[u8] = b"MN\r\n";

/// The text sentinel.
pub const SENTINEL_COMMAND: &[u8] = b"mn\r\n";

/// Bytes of a binary header.
pub const HEADER_LEN: usize = 24;

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Complete, according to its shape.
    Complete,
    /// The server closed the connection.
    Closed,
    /// The server sent nothing for the time limit.
    TimedOut,
    /// The answer does not have this shape.
    Malformed,
    /// An earlier answer did not end properly, so this one was not read.
    Missing,
}

/// A server's answer to one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The bytes, without the sentinel's answer.
    pub bytes: Vec<u8>,
    /// How it ended.
    pub end: End,
}

impl Answer {
    fn new(bytes: &[u8], end: End) -> Self {
        Self { bytes: bytes.to_vec(), end }
    }
}

/// The result of one attempt to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// At least one more byte.
    Data,
    /// The peer closed.
    Closed,
    /// Nothing within the time limit.
    TimedOut,
}

/// A source of answers: a connection, or a script in tests.
pub trait Source {
    /// Returns the received bytes that are not consumed.
    fn unread(&self) -> &[u8];
    /// Consumes `len` bytes.
    fn consume(&mut self, len: usize);
    /// Waits for more bytes.
    fn fill(&mut self) -> Fill;
}

/// The answers to the commands of one batch, and extra bytes before the sentinel's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answers {
    /// One answer per command.
    pub each: Vec<Answer>,
    /// Bytes that answer no command; the sentinel's own answer is not among them.
    pub stray: Answer,
}

/// Reads the answers to a batch that ended with the sentinel.
pub fn collect(source: &mut impl Source, units: &[&Unit], sentinel_opaque: u32) -> Answers {
    match units.first().map(|unit| unit.wire) {
        Some(Wire::Binary) => collect_binary(source, units, sentinel_opaque),
        _ => collect_ascii(source, units),
    }
}

/// Reads the answer to a command that is sent alone and hangs up.
pub fn collect_one(source: &mut impl Source, shape: Shape) -> Answer {
    if shape == Shape::Packets {
        return framed(source, |bytes| match packet_len(bytes) {
            Packet::Complete(len) => Frame::Complete { answer: len, total: len },
            Packet::Incomplete => Frame::Incomplete,
            Packet::Malformed => Frame::Malformed,
        });
    }
    framed(source, |bytes| frame(shape, bytes))
}

/// Reads up to the end of the connection.
pub fn collect_to_close(source: &mut impl Source) -> Answer {
    loop {
        let end = match source.fill() {
            Fill::Data => continue,
            Fill::Closed => End::Closed,
            Fill::TimedOut => End::TimedOut,
        };
        return Answer::new(source.unread(), end);
    }
}

fn collect_ascii(source: &mut impl Source, units: &[&Unit]) -> Answers {
    let mut each = Vec::with_capacity(units.len());
    let mut broken = false;
    for unit in units {
        let answer = if broken {
            Answer::new(b"", End::Missing)
        } else {
            framed(source, |bytes| frame(unit.shape, bytes))
        };
        broken |= answer.end != End::Complete;
        each.push(answer);
    }
    let stray = if broken {
        Answer::new(b"", End::Missing)
    } else {
        let mut answer = framed(source, |bytes| frame(Shape::Line, bytes));
        if answer.bytes == SENTINEL {
            answer.bytes.clear();
        }
        answer
    };
    Answers { each, stray }
}

fn framed(source: &mut impl Source, frame: impl Fn(&[u8]) -> Frame) -> Answer {
    loop {
        let end = match frame(source.unread()) {
            Frame::Complete { answer, total } => {
                let answer = Answer::new(&source.unread()[..answer], End::Complete);
                source.consume(total);
                return answer;
            }
            Frame::Malformed => End::Malformed,
            Frame::Incomplete => match source.fill() {
                Fill::Data => continue,
                Fill::Closed => End::Closed,
                Fill::TimedOut => End::TimedOut,
            },
        };
        return Answer::new(source.unread(), end);
    }
}

fn collect_binary(source: &mut impl Source, units: &[&Unit], sentinel_opaque: u32) -> Answers {
    let mut each = vec![Answer::new(b"", End::Complete); units.len()];
    let mut stray = Answer::new(b"", End::Complete);
    loop {
        let end = match packet_len(source.unread()) {
            Packet::Complete(len) => {
                let packet = &source.unread()[..len];
                let opaque = u32::from_be_bytes(packet[12..16].try_into().expect("four bytes"));
                if opaque == sentinel_opaque {
                    source.consume(len);
                    return Answers { each, stray };
                }
                let place = units.iter().position(|unit| unit.opaque == opaque);
                let answer = place.map_or(&mut stray, |place| &mut each[place]);
                answer.bytes.extend_from_slice(packet);
                source.consume(len);
                continue;
            }
            Packet::Malformed => End::Malformed,
            Packet::Incomplete => match source.fill() {
                Fill::Data => continue,
                Fill::Closed => End::Closed,
                Fill::TimedOut => End::TimedOut,
            },
        };
        stray.bytes.extend_from_slice(source.unread());
        stray.end = end;
        return Answers { each, stray };
    }
}

enum Frame {
    Complete { answer: usize, total: usize },
    Incomplete,
    Malformed,
}

impl Frame {
    fn whole(len: usize) -> Self {
        Frame::Complete { answer: len, total: len }
    }
}

fn frame(shape: Shape, bytes: &[u8]) -> Frame {
    let mut at = 0;
    loop {
        let Some(line) = line(&bytes[at..]) else { return Frame::Incomplete };
        let after = at + line.len();
        let data = match (shape, line) {
            (Shape::Line, _) => return Frame::whole(after),
            (Shape::UntilSentinel, SENTINEL) => return Frame::Complete { answer: at, total: after },
            (Shape::UntilSentinel | Shape::Meta, [b'V', b'A', b' ', ..]) => announced(line, 1),
            (Shape::UntilSentinel | Shape::Values, [b'V', b'A', b'L', b'U', b'E', b' ', ..]) => {
                announced(line, 3)
            }
            (Shape::Stats, [b'S', b'T', b'A', b'T', b' ', ..]) => Some(0),
            (Shape::Dump, [b'k', b'e', b'y', b'=', ..] | [b'm', b'g', b' ', ..]) => Some(0),
            // "OK" starts a dump of 1.6.45, and no other answer of this shape.
            (Shape::Dump, b"OK\r\n") => Some(0),
            (Shape::UntilSentinel, _) => Some(0),
            _ => return Frame::whole(after),
        };
        let Some(data) = data else { return Frame::Malformed };
        at = after + data;
        if shape == Shape::Meta {
            return if bytes.len() < at { Frame::Incomplete } else { Frame::whole(at) };
        }
        if bytes.len() < at {
            return Frame::Incomplete;
        }
    }
}

/// Returns the number of data bytes, line end included, that the word at `place` of the line announces.
fn announced(line: &[u8], place: usize) -> Option<usize> {
    let word = line.trim_ascii_end().split(|&byte| byte == b' ').nth(place)?;
    let len: usize = std::str::from_utf8(word).ok()?.parse().ok()?;
    // No value in a run is longer than 2 MiB; a corrupt length must not make the reader wait for
    // gigabytes.
    (len <= 2 << 20).then_some(len + 2)
}

fn line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|&byte| byte == b'\n')?;
    Some(&bytes[..=end])
}

/// Returns the lines of a text answer, without their ends.
pub fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split_inclusive(|&byte| byte == b'\n').map(|line| {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        line.strip_suffix(b"\r").unwrap_or(line)
    })
}

enum Packet {
    Complete(usize),
    Incomplete,
    Malformed,
}

fn packet_len(bytes: &[u8]) -> Packet {
    match bytes {
        [] => Packet::Incomplete,
        [0x81, ..] if bytes.len() < HEADER_LEN => Packet::Incomplete,
        [0x81, ..] => {
            let body = u32::from_be_bytes(bytes[8..12].try_into().expect("four bytes")) as usize;
            match body {
                _ if body > 2 << 20 => Packet::Malformed,
                _ if bytes.len() < HEADER_LEN + body => Packet::Incomplete,
                _ => Packet::Complete(HEADER_LEN + body),
            }
        }
        _ => Packet::Malformed,
    }
}

/// A parsed binary answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketView<'a> {
    /// The header without its CAS value: magic, opcode, lengths, data type, status, opaque.
    pub head: &'a [u8],
    /// 0, or an error status.
    pub status: u16,
    /// CAS value.
    pub cas: u64,
    /// Extras, key and value.
    pub body: &'a [u8],
}

/// Returns the packets of a binary answer, without an incomplete last one.
pub fn packets(mut bytes: &[u8]) -> Vec<PacketView<'_>> {
    let mut packets = Vec::new();
    while let Packet::Complete(len) = packet_len(bytes) {
        packets.push(PacketView {
            head: &bytes[..16],
            status: u16::from_be_bytes([bytes[6], bytes[7]]),
            cas: u64::from_be_bytes(bytes[16..24].try_into().expect("eight bytes")),
            body: &bytes[HEADER_LEN..len],
        });
        bytes = &bytes[len..];
    }
    packets
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::request::Request;

    /// Delivers its bytes a few at a time, then closes or sends nothing.
    pub(crate) struct Script {
        pub(crate) bytes: Vec<u8>,
        pub(crate) shown: usize,
        pub(crate) used: usize,
        pub(crate) step: usize,
        pub(crate) last: Fill,
    }

    impl Script {
        pub(crate) fn new(bytes: &[u8], step: usize, last: Fill) -> Self {
            Self { bytes: bytes.to_vec(), shown: 0, used: 0, step, last }
        }
    }

    impl Source for Script {
        fn unread(&self) -> &[u8] {
            &self.bytes[self.used..self.shown]
        }

        fn consume(&mut self, len: usize) {
            self.used += len;
        }

        fn fill(&mut self) -> Fill {
            if self.shown == self.bytes.len() {
                return self.last;
            }
            self.shown = (self.shown + self.step).min(self.bytes.len());
            Fill::Data
        }
    }

    fn ascii(shape: Shape) -> Unit {
        Unit::ascii("test", Request::default(), shape)
    }

    fn texts(answers: &Answers) -> Vec<&[u8]> {
        answers.each.iter().map(|answer| &answer.bytes[..]).collect()
    }

    #[test]
    fn text_answers_are_split_in_any_chunks() {
        let units = [
            ascii(Shape::Line),
            ascii(Shape::Values),
            ascii(Shape::UntilSentinel),
            ascii(Shape::Meta),
            ascii(Shape::Stats),
            ascii(Shape::Values),
        ];
        let units: Vec<&Unit> = units.iter().collect();
        let expected: [&[u8]; 6] = [
            b"STORED\r\n",
            b"VALUE a 0 5\r\nEND\r\n\r\nVALUE b 0 0 17\r\n\r\nEND\r\n",
            b"VA 4\r\nMN\r\n\r\nERROR\r\n",
            b"VA 2 s2\r\nxy\r\n",
            b"STAT a 1\r\nEND\r\n",
            b"CLIENT_ERROR bad command line format\r\n",
        ];
        let mut stream = Vec::new();
        for (place, answer) in expected.iter().enumerate() {
            stream.extend_from_slice(answer);
            if place == 2 {
                stream.extend_from_slice(SENTINEL);
            }
        }
        stream.extend_from_slice(SENTINEL);
        for step in [1, 2, 7, 1000] {
            let answers = collect(&mut Script::new(&stream, step, Fill::TimedOut), &units, 0);
            assert_eq!(texts(&answers), expected);
            assert_eq!(answers.stray, Answer::new(b"", End::Complete));
        }
    }

    #[test]
    fn extra_bytes_are_stray() {
        let unit = ascii(Shape::Line);
        let mut script = Script::new(b"STORED\r\n\r\nMN\r\n", 100, Fill::TimedOut);
        let answers = collect(&mut script, &[&unit], 0);
        assert_eq!(answers.stray.bytes, b"\r\n");
    }

    #[test]
    fn an_interrupted_stream_is_reported() {
        for (last, end) in [(Fill::Closed, End::Closed), (Fill::TimedOut, End::TimedOut)] {
            let unit = ascii(Shape::Values);
            let answers = collect(&mut Script::new(b"VALUE a 0 9\r\nab", 3, last), &[&unit, &unit], 0);
            assert_eq!(answers.each[0], Answer::new(b"VALUE a 0 9\r\nab", end));
            assert_eq!(answers.each[1].end, End::Missing);
        }
        let unit = ascii(Shape::Values);
        let answers = collect(&mut Script::new(b"VALUE a 0 x\r\n", 50, Fill::TimedOut), &[&unit], 0);
        assert_eq!(answers.each[0].end, End::Malformed);
    }

    pub(crate) fn packet(opcode: u8, status: u16, opaque: u32, cas: u64, body: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x81, opcode, 0, 0, 0, 0];
        packet.extend(status.to_be_bytes());
        packet.extend((body.len() as u32).to_be_bytes());
        packet.extend(opaque.to_be_bytes());
        packet.extend(cas.to_be_bytes());
        packet.extend(body);
        packet
    }

    #[test]
    fn binary_answers_go_to_their_commands() {
        let units: Vec<Unit> = (10..13).map(|opaque| Unit::binary("t", Request::default(), opaque)).collect();
        let units: Vec<&Unit> = units.iter().collect();
        let (first, third) = (packet(1, 0, 10, 5, b"ab"), packet(2, 1, 12, 0, b""));
        let stray = packet(9, 0, 99, 0, b"");
        let stream = [&first[..], &third, &third, &stray, &packet(10, 0, 500, 0, b"")].concat();
        for step in [1, 10, 1000] {
            let answers = collect(&mut Script::new(&stream, step, Fill::TimedOut), &units, 500);
            assert_eq!(answers.each[0].bytes, first);
            assert_eq!(answers.each[1].bytes, b"");
            assert_eq!(answers.each[2].bytes, [&third[..], &third].concat());
            assert_eq!(answers.stray.bytes, stray);
        }
        let view = packets(&first)[0];
        assert_eq!((view.status, view.cas, view.body), (0, 5, &b"ab"[..]));
    }

    #[test]
    fn dumps_and_closed_connections_are_read_to_their_end() {
        let dump = b"OK\r\nkey=a exp=-1\nEND\r\nrest";
        let answer = collect_one(&mut Script::new(dump, 4, Fill::TimedOut), Shape::Dump);
        assert_eq!(answer.bytes, &dump[..dump.len() - 4]);
        let answer = collect_to_close(&mut Script::new(b"ERROR\r\n", 2, Fill::Closed));
        assert_eq!(answer, Answer::new(b"ERROR\r\n", End::Closed));
    }
}
