//! Bad input that every run sends, independent of the seed: one entry for each kind of input that has
//! harmed servers.
//!
//! The answers are compared, except for the entries that only check that the server survives: there
//! memcached 1.6.18 itself waits for ever, reads its own buffer twice, or loses its position in the
//! stream.

use crate::request::Request;
use crate::unit::{Agreement, Ending, Shape, Unit, Wire};

/// The expected behaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    /// Answers, then the connection remains usable.
    Answers,
    /// The server closes the connection.
    Close,
    /// The client closes its half after sending; the server answers, then closes.
    HalfOpen,
    /// Any behaviour, but the server accepts the next connection.
    Survival,
}

/// Returns the corpus: name, bytes, and the expected behaviour.
pub fn units() -> Vec<Unit> {
    let ascii =
        ascii_entries().into_iter().map(|(name, bytes, expect)| unit(name, bytes, expect, Wire::Ascii));
    let binary =
        binary_entries().into_iter().map(|(name, bytes, expect)| unit(name, bytes, expect, Wire::Binary));
    ascii.chain(binary).collect()
}

fn unit(name: &'static str, bytes: Vec<u8>, expect: Expect, wire: Wire) -> Unit {
    let shape = match expect {
        _ if wire == Wire::Binary => Shape::Packets,
        _ => Shape::UntilSentinel,
    };
    let unit = Unit { wire, opaque: BINARY_OPAQUE, ..Unit::ascii(name, Request::of(bytes), shape) };
    match expect {
        Expect::Answers => Unit { whole: true, ..unit.fenced() },
        Expect::Close => unit.ends(Ending::ServerCloses),
        Expect::HalfOpen => unit.ends(Ending::HalfOpen),
        Expect::Survival => Unit { agreement: Agreement::Survival, ..unit.ends(Ending::HalfOpen) },
    }
}

type Entry = (&'static str, Vec<u8>, Expect);

fn ascii_entries() -> Vec<Entry> {
    let mut entries = lines();
    entries.extend(long_lines());
    entries.extend(connections());
    entries
}

/// Malformed lines, and inputs that cause each error message.
const LINES: &[(&str, &[u8])] = &[
    ("spaces only", b"     \r\n"),
    ("spaces only, a page of them", &[b' '; 2000]),
    ("spaces before a command", b"  verbosity 0\r\n flush_all\r\n   nonesuch\r\n"),
    ("noreply hides a negative length", b"set corpus 0 0 -1 noreply\r\n"),
    ("NUL in an unknown command", b"ab\0cd\r\n"),
    ("NUL as an unknown command", b"\0\0\0\0\r\n"),
    ("NUL in a value", b"set corpus 0 0 5\r\n\0a\0b\0\r\nget corpus\r\n"),
    ("line ends in a value", b"set corpus 0 0 9\r\n\r\nEND\r\n\r\n\r\nget corpus\r\ndelete corpus\r\n"),
    ("every byte in an unknown command", b"\x01\x02\x7f\xfe\xff\x1b[31m\r\n"),
    ("upper case", b"GET corpus\r\n"),
    ("mixed case", b"Set corpus 0 0 1\r\n"),
    ("TAB is no space", b"get\tcorpus\r\n"),
    ("TAB in a key", b"get cor\tpus\r\n"),
    ("UTF-8 key", "set schlüssel 0 0 1\r\nx\r\nget schlüssel\r\ndelete schlüssel\r\n".as_bytes()),
    ("negative length", b"set corpus 0 0 -1\r\n"),
    ("most negative length", b"set corpus 0 0 -2147483648\r\n"),
    ("length of 2^31 - 1", b"set corpus 0 0 2147483647\r\n"),
    ("length of 2^31", b"set corpus 0 0 2147483648\r\n"),
    ("length of 2^32 - 1", b"set corpus 0 0 4294967295\r\n"),
    ("length of 2^64", b"set corpus 0 0 18446744073709551616\r\n"),
    ("length that is a word", b"set corpus 0 0 many\r\n"),
    ("length of ms that is negative", b"ms corpus -1\r\n"),
    ("length of ms that is huge", b"ms corpus 2147483647\r\n"),
    ("length of ms that is a word", b"ms corpus many\r\n"),
    ("ms without a length", b"ms corpus\r\n"),
    ("data that is too long", b"set corpus 0 0 3\r\nabcdefgh\r\n"),
    ("data that is too long, twice", b"set corpus 0 0 3\r\nabcdefgh\r\nset corpus 0 0 3\r\nabcdefgh\r\n"),
    ("data without its line end", b"set corpus 0 0 9\r\nabc\r\nzzzzzzzzzzz\r\n"),
    ("data with a bare line feed", b"set corpus 0 0 3\r\nabc\nzzzz\r\n"),
    ("line with a bare line feed", b"set corpus 0 0 3\nabc\r\nget corpus\ndelete corpus\n"),
    ("noreply hides an error", b"set corpus 0 0 3 noreply\r\nabcdefgh\r\n"),
    ("incr that is no number", b"incr corpus 1x\r\n"),
    ("incr by a negative number", b"incr corpus -1\r\n"),
    ("incr by 2^64", b"incr corpus 18446744073709551616\r\n"),
    (
        "incr of a value that is not a number",
        b"set corpus 0 0 3\r\nabc\r\nincr corpus 1\r\ndecr corpus 1\r\nma corpus\r\n",
    ),
    ("touch at no time", b"touch corpus soon\r\n"),
    ("gat at no time", b"gat soon corpus\r\n"),
    ("flush at no time", b"flush_all soon\r\n"),
    ("verbosity that is a word", b"verbosity loud\r\n"),
    ("verbosity below nothing", b"verbosity -1\r\n"),
    ("delete at once", b"delete corpus 0\r\n"),
    ("cachedump of no class", b"stats cachedump\r\n"),
    ("cachedump of a word", b"stats cachedump one 1\r\n"),
    ("cachedump of class 200", b"stats cachedump 200 1\r\n"),
    ("detail of nothing", b"stats detail\r\n"),
    ("detail of a word", b"stats detail maybe\r\n"),
    ("an unknown topic of stats", b"stats nonesuch\r\n"),
    ("an unknown subcommand of slabs", b"slabs nonesuch\r\n"),
    ("slab class that is a word", b"slabs reassign one two\r\n"),
    ("slab class that is none", b"slabs reassign 1 999\r\n"),
    ("slab class to itself", b"slabs reassign 5 5\r\n"),
    ("automove that is a word", b"slabs automove maybe\r\n"),
    ("crawler that sleeps too long", b"lru_crawler sleep 1000001\r\n"),
    ("crawler of no class", b"lru_crawler crawl 300\r\n"),
    ("crawler of a word", b"lru_crawler crawl nonesuch\r\n"),
    ("dump of no class", b"lru_crawler metadump 300\r\n"),
    ("memory below the least", b"cache_memlimit 1\r\n"),
    ("memory in bytes", b"cache_memlimit 2000000000\r\n"),
    ("memory in words", b"cache_memlimit much\r\n"),
    ("watch of nothing", b"watch nonesuch\r\n"),
    ("certificates without TLS", b"refresh_certs\r\n"),
    ("meta flag twice", b"mg corpus s s\r\nms corpus 1 c c\r\nx\r\n"),
    ("meta flag that is none", b"mg corpus z\r\nms corpus 1 z\r\nx\r\nma corpus z\r\n"),
    (
        "meta number that is a word",
        b"mg corpus Tx\r\nmg corpus Nx\r\nmg corpus Rx\r\nms corpus 1 Fx\r\nx\r\n",
    ),
    ("meta key that is no base64", b"mg !!!! b\r\nms !!!! 1 b\r\nx\r\n"),
    ("meta key that is half base64", b"mg Zm9 b\r\n"),
    ("meta opaque that is too long", b"mg corpus O12345678901234567890123456789012\r\n"),
    ("meta opaque that is just right", b"mg corpus k O1234567890123456789012345678901\r\n"),
    ("meta mode that is none", b"ms corpus 1 MZ\r\nx\r\nma corpus MZ\r\n"),
    ("meta data that is too long", b"ms corpus 3 q\r\nabcdefgh\r\n"),
    ("meta number on a word", b"set corpus 0 0 3\r\nabc\r\nma corpus v\r\ndelete corpus\r\n"),
    ("21 words of mg", b"mg corpus k s v c f t h l u q O1 T0 N0 R0 C1 F1 MI J1 D1\r\n"),
];

fn lines() -> Vec<Entry> {
    LINES.iter().map(|&(name, line)| (name, terminated(line), Expect::Answers)).collect()
}

fn terminated(line: &[u8]) -> Vec<u8> {
    let end: &[u8] = if line.ends_with(b"\n") { b"" } else { b"\r\n" };
    [line, end].concat()
}

/// Returns keys and lines at and over their limits.
fn long_lines() -> Vec<Entry> {
    let long = |len: usize| "x".repeat(len);
    let mut entries = Vec::new();
    for command in ["get", "gets", "gat 0", "gats 0", "mg", "md", "delete"] {
        for key_len in [250, 251, 255, 256, 1000] {
            let line = format!("{command} {}\r\n", long(key_len));
            entries.push(("keys at their limit", line.into_bytes(), Expect::Answers));
        }
    }
    for (command, rest) in [("incr", "1"), ("decr", "1"), ("touch", "0")] {
        let line = format!("{command} {} {rest}\r\n", long(251));
        entries.push(("keys at their limit", line.into_bytes(), Expect::Answers));
    }
    let get_after_hit = format!("get corpus {}\r\n", long(251));
    entries.push(("a key that is too long after others", get_after_hit.into_bytes(), Expect::Answers));
    entries.push(("a key of 20000 bytes", format!("get {}\r\n", long(20_000)).into_bytes(), Expect::Answers));
    entries.push(("4000 keys", format!("get {}\r\n", "k ".repeat(4000)).into_bytes(), Expect::Answers));
    entries.push((
        "an unknown command of 2045 bytes",
        format!("{}\r\n", long(2045)).into_bytes(),
        Expect::Answers,
    ));
    entries.push(("2049 bytes without a line end", long(2049).into_bytes(), Expect::Close));
    entries.push(("a page without a line end", long(4096).into_bytes(), Expect::Close));
    entries.push(("a set of a page", format!("set {}", long(4096)).into_bytes(), Expect::Close));
    entries.push(("an mg of a page", format!("mg {}", long(4096)).into_bytes(), Expect::Close));
    entries
}

/// Returns connections that end early, and other protocols.
fn connections() -> Vec<Entry> {
    let entries: &[(&'static str, &'static [u8], Expect)] = &[
        ("HTTP GET", b"GET / HTTP/1.1\r\n", Expect::Close),
        ("HTTP POST", b"POST /x HTTP/1.0\r\n", Expect::Close),
        ("HTTP get in lower case is a get", b"get / HTTP/1.1\r\n", Expect::Answers),
        ("quit with more words", b"quit now\r\n", Expect::Close),
        ("half-open after nothing", b"", Expect::HalfOpen),
        ("half-open after a command", b"get corpus\r\n", Expect::HalfOpen),
        ("half-open after several commands", b"mn\r\nget corpus\r\nmn\r\n", Expect::HalfOpen),
        ("half-open within a line", b"get cor", Expect::HalfOpen),
        ("half-open within data", b"set corpus 0 0 100\r\nabc", Expect::HalfOpen),
        ("half-open within data of ms", b"ms corpus 100 c\r\nabc", Expect::HalfOpen),
        // A server may send the error before or after it has read all the data.
        ("half-open within data that is too large", b"set corpus 0 0 2000000\r\nabc", Expect::Survival),
        ("half-open within the longest data", b"set corpus 0 0 2147483645\r\nabc", Expect::Survival),
        ("half-open within the longest data of ms", b"ms corpus 2147483645\r\nabc", Expect::Survival),
        ("TLS hello", b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03\r\n", Expect::HalfOpen),
        ("Redis", b"*1\r\n$4\r\nPING\r\n", Expect::Answers),
        ("binary answer magic", b"\x81\x00\x00\x00\r\n", Expect::HalfOpen),
    ];
    entries.iter().map(|&(name, bytes, expect)| (name, bytes.to_vec(), expect)).collect()
}

/// One opaque for all entries: an entry is alone in its batch.
const BINARY_OPAQUE: u32 = 0x0c0f_fee0;

fn header(opcode: u8, key_len: u16, extras_len: u8, body_len: u32) -> Vec<u8> {
    let mut header = vec![0x80, opcode];
    header.extend(key_len.to_be_bytes());
    header.extend([extras_len, 0, 0, 0]);
    header.extend(body_len.to_be_bytes());
    header.extend(BINARY_OPAQUE.to_be_bytes());
    header.extend([0; 8]);
    header
}

fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let body = [extras, key, value].concat();
    [header(opcode, key.len() as u16, extras.len() as u8, body.len() as u32), body].concat()
}

/// Returns packets with lengths that contradict each other or overflow.
fn binary_entries() -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let store = |body_len: u32| [header(0x01, 1, 8, body_len), vec![0; 8], b"kabc".to_vec()].concat();
    for body_len in [u32::MAX, u32::MAX - 15, 0x8000_0000, 0x8000_0009, 0x7fff_ffff, 0x1000_0000] {
        entries.push(("body length that overflows, Set", store(body_len), Expect::Survival));
        let append = [header(0x0e, 1, 0, body_len), b"kabc".to_vec()].concat();
        entries.push(("body length that overflows, Append", append, Expect::Survival));
        for opcode in [0x10, 0x1c, 0x1d, 0x21, 0x50] {
            let other = [header(opcode, 1, 4, body_len), b"\0\0\0\0kabc".to_vec()].concat();
            entries.push(("body length that overflows", other, Expect::Survival));
        }
        entries.push((
            "body length of Get",
            [header(0x00, 1, 0, body_len), b"k".to_vec()].concat(),
            Expect::Close,
        ));
        entries.push(("body length of Noop", header(0x0a, 0, 0, body_len), Expect::Close));
    }
    entries.push((
        "body shorter than the key",
        [header(0x00, 1, 0, 0), b"k".to_vec()].concat(),
        Expect::Close,
    ));
    entries.push((
        "body shorter than the extras",
        [header(0x01, 1, 8, 5), vec![b'k'; 9]].concat(),
        Expect::Close,
    ));
    for opcode in [0x00, 0x09, 0x0c, 0x0d, 0x04, 0x10] {
        entries.push(("key of 251 bytes", packet(opcode, b"", &[b'k'; 251], b""), Expect::Close));
        entries.push(("key of 300 bytes", packet(opcode, b"", &[b'k'; 300], b""), Expect::Close));
    }
    for opcode in [0x0c, 0x0d, 0x23, 0x24] {
        let extras: &[u8] = if opcode < 0x20 { b"" } else { &[0; 4] };
        let miss = packet(opcode, extras, &[b'm'; 250], b"");
        entries.push(("miss of the longest key, with the key", miss, Expect::Answers));
    }
    entries.push(("key length without a key", header(0x0c, 0xffff, 0, 0xffff), Expect::Survival));
    entries.push(("extras of 255 bytes", packet(0x01, &[b'e'; 255], b"k", b"v"), Expect::Close));
    entries.push(("extras of 5 bytes, Touch", packet(0x1c, &[0; 5], b"k", b""), Expect::Close));
    entries.push(("half a header", packet(0x00, b"", b"k", b"")[..10].to_vec(), Expect::HalfOpen));
    entries.push((
        "a header without its key",
        packet(0x00, b"", b"key", b"")[..25].to_vec(),
        Expect::HalfOpen,
    ));
    entries.push((
        "half-open within a value",
        packet(0x01, &[0; 8], b"k", &[b'v'; 90])[..60].to_vec(),
        Expect::HalfOpen,
    ));
    entries.push(("half-open after a command", packet(0x00, b"", b"corpus", b""), Expect::HalfOpen));
    entries.push((
        "data type and reserved bytes",
        reserved(packet(0x00, b"", b"corpus", b"")),
        Expect::Answers,
    ));
    entries.push((
        "bad magic after a good packet",
        [packet(0x0a, b"", b"", b""), vec![0; 24]].concat(),
        Expect::Close,
    ));
    entries
}

fn reserved(mut packet: Vec<u8>) -> Vec<u8> {
    packet[5] = 5;
    packet[6..8].copy_from_slice(&[9, 9]);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drift;
    use crate::request::prefix;

    #[test]
    fn no_entry_is_a_known_difference() {
        for unit in units() {
            let mut sent = Vec::new();
            unit.request.render(&prefix(0), |_| None, &mut sent);
            assert!(drift::TABLE.iter().all(|drift| drift.sent.as_bytes() != sent), "{}", unit.command);
        }
    }

    #[test]
    fn binary_packets_are_well_formed() {
        let packet = packet(0x01, &[0; 8], b"key", b"value");
        assert_eq!(packet.len(), 24 + 16);
        assert_eq!(packet[..4], [0x80, 1, 0, 3]);
        assert_eq!(packet[8..12], 16u32.to_be_bytes());
    }
}
