//! Requests and answers as packets of the binary protocol ([`fabcache_protocol::binary`]): through shared memory,
//! where neither end has to format or parse text, and over sockets to servers for which this protocol is selected.

use fabcache_protocol::binary::{HEADER, REQUEST, RESPONSE, opcode, status};

use crate::answer::{Answer, Flags, Head};
use crate::bounds::{LINE_BYTES_MAX, VALUE_BYTES_MAX};
use crate::command::{Action, Command, Initial, Mode};
use crate::error::Failure;

/// Bytes of the longest extras, except those of [`arithmetic`].
const EXTRAS_BYTES_MAX: usize = 8;
/// Reads a key, and answers only if it is there.
const GET_QUIETLY: u8 = 0x09;
/// The expiry time that says: store no initial number.
const NONE_STORED: u32 = u32::MAX;
/// No item has this CAS: servers count from 1.
const CAS_OF_NONE: u64 = u64::MAX;

/// The fields of a packet that follow from the action.
#[derive(Clone, Copy, Default)]
struct Shape {
    code: u8,
    extras: [u8; EXTRAS_BYTES_MAX],
    extras_len: usize,
    cas: u64,
    value_len: usize,
}

impl Shape {
    fn of(code: u8) -> Shape {
        Shape { code, ..Shape::default() }
    }

    fn with_time(code: u8, exptime: u64) -> Option<Shape> {
        let mut shape = Shape { extras_len: 4, ..Shape::of(code) };
        shape.extras[..4].copy_from_slice(&u32::try_from(exptime).ok()?.to_be_bytes());
        Some(shape)
    }

    fn of_store(code: u8, flags: u32, exptime: u64) -> Option<Shape> {
        let mut shape = Shape { extras_len: 8, ..Shape::of(code) };
        shape.extras[..4].copy_from_slice(&flags.to_be_bytes());
        shape.extras[4..].copy_from_slice(&u32::try_from(exptime).ok()?.to_be_bytes());
        Some(shape)
    }

    /// Returns the fields, or `None` if a packet cannot express the action like a line.
    #[inline]
    fn of_action(action: Action) -> Option<Shape> {
        match action {
            Action::Get { touch: None } => Some(Shape::of(opcode::GET)),
            Action::Get { touch: Some(exptime) } => Shape::with_time(opcode::GAT, exptime),
            Action::Touch(exptime) => Shape::with_time(opcode::TOUCH, exptime),
            Action::Delete => Some(Shape::of(opcode::DELETE)),
            Action::Store { mode, len, exptime, flags } => {
                let shape = match mode {
                    Mode::Set => Shape::of_store(opcode::SET, flags, exptime)?,
                    Mode::Add => Shape::of_store(opcode::ADD, flags, exptime)?,
                    Mode::Replace => Shape::of_store(opcode::REPLACE, flags, exptime)?,
                    Mode::Append => Shape::of(opcode::APPEND),
                    Mode::Prepend => Shape::of(opcode::PREPEND),
                    // The binary protocol uses this value for no CAS.
                    Mode::Compare(0) => return None,
                    Mode::Compare(cas) => Shape { cas, ..Shape::of_store(opcode::SET, flags, exptime)? },
                };
                Some(Shape { value_len: len, ..shape })
            }
            // Their answers differ, and they need not be fast.
            Action::Arithmetic { .. } | Action::Look => None,
        }
    }
}

/// Appends a request's packet to `out`, up to its value. Returns false if a packet cannot express it like a line.
#[inline]
pub fn write(command: &Command<'_>, out: &mut Vec<u8>) -> bool {
    let Some(shape) = Shape::of_action(command.action) else { return false };
    let extras = &shape.extras[..shape.extras_len];
    put(shape.code, extras, command.key, shape.value_len, shape.cas, out);
    true
}

#[inline]
fn put(code: u8, extras: &[u8], key: &[u8], value_len: usize, cas: u64, out: &mut Vec<u8>) {
    let body = extras.len() + key.len() + value_len;
    let mut header = [0; HEADER];
    header[0] = REQUEST;
    header[1] = code;
    header[2..4].copy_from_slice(&(key.len() as u16).to_be_bytes());
    header[4] = extras.len() as u8;
    header[8..12].copy_from_slice(&(body as u32).to_be_bytes());
    header[16..].copy_from_slice(&cas.to_be_bytes());
    out.reserve(HEADER + EXTRAS_BYTES_MAX + key.len());
    out.extend_from_slice(&header);
    out.extend_from_slice(extras);
    out.extend_from_slice(key);
}

/// Appends the packet of any request to `out`, up to its value; an approximation where packets lack a feature.
pub fn write_any(command: &Command<'_>, out: &mut Vec<u8>) {
    let action = match command.action {
        Action::Arithmetic { decrement, delta, initial } => {
            return arithmetic(command.key, decrement, delta, initial, out);
        }
        // There is no other way to test for a key without a change.
        Action::Look => Action::Get { touch: None },
        Action::Get { touch } => Action::Get { touch: touch.map(time) },
        Action::Touch(exptime) => Action::Touch(time(exptime)),
        Action::Delete => Action::Delete,
        Action::Store { mode, len, exptime, flags } => {
            let mode = if mode == Mode::Compare(0) { Mode::Compare(CAS_OF_NONE) } else { mode };
            Action::Store { mode, len, exptime: time(exptime), flags }
        }
    };
    let is_said = write(&Command { action, ..*command }, out);
    debug_assert!(is_said, "{action:?}");
}

/// The largest time that packets can carry: a Unix time beyond it is in the year 2106.
fn time(exptime: u64) -> u64 {
    exptime.min(u64::from(NONE_STORED - 1))
}

fn arithmetic(key: &[u8], decrement: bool, delta: u64, initial: Option<Initial>, out: &mut Vec<u8>) {
    let code = if decrement { opcode::DECREMENT } else { opcode::INCREMENT };
    let (number, exptime) = match initial {
        Some(Initial { number, exptime }) => (number, time(exptime) as u32),
        None => (0, NONE_STORED),
    };
    let mut extras = [0; 20];
    extras[..8].copy_from_slice(&delta.to_be_bytes());
    extras[8..16].copy_from_slice(&number.to_be_bytes());
    extras[16..].copy_from_slice(&exptime.to_be_bytes());
    put(code, &extras, key, 0, 0, out);
}

/// Appends a request for a key whose answer carries this mark. A miss has no answer.
pub fn get_quietly(key: &[u8], opaque: u32, out: &mut Vec<u8>) {
    let at = out.len();
    put(GET_QUIETLY, b"", key, 0, 0, out);
    mark(&mut out[at..], opaque);
}

/// Appends a request that is answered after all earlier ones.
pub fn no_op(out: &mut Vec<u8>) {
    put(opcode::NOOP, b"", b"", 0, 0, out);
}

/// Returns a request without a key, with the contents of the key field and a value.
pub fn order(order: AdminCommand<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    match order {
        AdminCommand::Flush(0) => put(opcode::FLUSH, b"", b"", 0, 0, &mut out),
        AdminCommand::Flush(delay) => put(opcode::FLUSH, &delay.to_be_bytes(), b"", 0, 0, &mut out),
        AdminCommand::Version => put(opcode::VERSION, b"", b"", 0, 0, &mut out),
        AdminCommand::Stats(topic) => put(opcode::STAT, b"", topic.as_bytes(), 0, 0, &mut out),
        AdminCommand::ShareMemory(versions) => {
            put(opcode::SHM_ATTACH, b"", b"", versions.len(), 0, &mut out);
            out.extend_from_slice(&versions);
        }
        AdminCommand::FabricHello(words) => {
            put(opcode::FABRIC_HELLO, b"", b"", words.len(), 0, &mut out);
            out.extend_from_slice(words.as_bytes());
        }
        AdminCommand::FabricAttach(words) => {
            put(opcode::FABRIC_ATTACH, b"", b"", words.len(), 0, &mut out);
            out.extend_from_slice(words.as_bytes());
        }
        AdminCommand::Mechanisms => put(opcode::SASL_LIST, b"", b"", 0, 0, &mut out),
        AdminCommand::Authenticate { mechanism, token } => {
            put(opcode::SASL_AUTH, b"", mechanism.as_bytes(), token.len(), 0, &mut out);
            out.extend_from_slice(token.as_bytes());
        }
    }
    out
}

/// A request without a key.
#[derive(Clone, Copy, Debug)]
pub enum AdminCommand<'a> {
    /// Invalidates all items after this many seconds.
    Flush(u32),
    /// Returns the version.
    Version,
    /// Returns statistics of a topic, which may be empty.
    Stats(&'a str),
    /// Shares the server's memory, with these format versions.
    ShareMemory([u8; 16]),
    /// Offers the fabric; with the words of the corresponding line.
    FabricHello(&'a str),
    /// Attaches over the fabric; with the words of the corresponding line.
    FabricAttach(&'a str),
    /// Lists SASL mechanisms.
    Mechanisms,
    /// Authenticates this client.
    Authenticate {
        /// The mechanism.
        mechanism: &'a str,
        /// The server's challenge.
        token: &'a str,
    },
}

/// The answer to an [`AdminCommand`].
#[derive(Debug, PartialEq, Eq)]
pub struct AdminAnswer<'a> {
    /// The key field.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// Parses the answer to an [`AdminCommand`]: the answer or its failure, and its length. `None` if bytes are missing.
pub fn said(bytes: &[u8]) -> Option<(Result<AdminAnswer<'_>, Failure>, usize)> {
    let header: &[u8; HEADER] = bytes.first_chunk()?;
    let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
    let key_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let value_at = usize::from(header[4]) + key_len;
    if header[0] != RESPONSE || body > LINE_BYTES_MAX || value_at > body {
        return Some((Err(Failure::protocol(header)), HEADER));
    }
    let said = bytes.get(HEADER..HEADER + body)?;
    let status = u16::from_be_bytes([header[6], header[7]]);
    let answer = match status {
        status::OK => {
            Ok(AdminAnswer { key: &said[usize::from(header[4])..value_at], value: &said[value_at..] })
        }
        _ => Err(refused(status, said)),
    };
    Some((answer, HEADER + body))
}

fn refused(status: u16, said: &[u8]) -> Failure {
    if said.is_empty() {
        return Failure::Refused(format!("status {status:#x}"));
    }
    Failure::Refused(String::from_utf8_lossy(said).into_owned())
}

/// Marks the request that starts with this packet.
#[inline]
pub fn mark(packet: &mut [u8], opaque: u32) {
    packet[12..16].copy_from_slice(&opaque.to_be_bytes());
}

/// Parses the head of an answer: the head or its failure, and its length in bytes. `None` if bytes are missing.
#[inline]
pub fn head(bytes: &[u8]) -> Option<(Result<Head, Failure>, usize)> {
    let header: &[u8; HEADER] = bytes.first_chunk()?;
    let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
    let status = u16::from_be_bytes([header[6], header[7]]);
    let opaque = u32::from_be_bytes([header[12], header[13], header[14], header[15]]);
    let cas = u64::from_be_bytes(*header.last_chunk().expect("eight of them"));
    let mut flags = Flags { flags: 0, cas, opaque: Some(opaque) };
    let code = header[1];
    let is_read = matches!(code, opcode::GET | opcode::GAT | GET_QUIETLY);
    let whole = HEADER + body;
    if status == status::OK && is_read {
        let given = bytes.get(HEADER..HEADER + 4)?;
        let len = body.wrapping_sub(4);
        if header[4] != 4 || header[2..4] != [0, 0] || len > VALUE_BYTES_MAX {
            return Some((Err(Failure::protocol(header)), HEADER));
        }
        flags.flags = u32::from_be_bytes(*given.first_chunk().expect("four of them"));
        return Some((Ok(Head::Value(flags, len)), HEADER + 4));
    }
    if body > LINE_BYTES_MAX {
        return Some((Err(Failure::protocol(header)), HEADER));
    }
    let said = bytes.get(HEADER..whole)?;
    let answer = match (status, code) {
        (status::OK, opcode::INCREMENT | opcode::DECREMENT) => match said.try_into() {
            Ok(number) => Answer::Number(u64::from_be_bytes(number)),
            Err(_) => return Some((Err(Failure::protocol(header)), whole)),
        },
        (status::OK, opcode::NOOP) => Answer::NoOp,
        (status::OK, _) => Answer::Done(flags),
        (status::NOT_FOUND, opcode::GET | opcode::GAT | opcode::TOUCH | GET_QUIETLY) => Answer::Miss,
        (status::NOT_FOUND, opcode::REPLACE) => Answer::NotStored,
        (status::NOT_FOUND, _) => Answer::NotFound,
        (status::EXISTS, opcode::ADD) => Answer::NotStored,
        (status::EXISTS, _) => Answer::Exists,
        (status::NOT_STORED, _) => Answer::NotStored,
        _ => return Some((Err(refused(status, said)), whole)),
    };
    Some((Ok(Head::Whole(answer)), whole))
}

#[cfg(test)]
mod tests {
    use fabcache_protocol::{BinaryEncoding, Decoded, Decoder, Encoding, Limits, Reply, Request};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::meta;

    /// Returns what a server decodes a request as.
    fn decoded<R>(request: &[u8], with: impl FnOnce(Request<'_>) -> R) -> R {
        match Decoder::mixed(Limits { inline_value_max: 1 << 20 }).decode(request) {
            Decoded::Request { consumed, request: decoded } => {
                assert_eq!(consumed, request.len());
                with(decoded)
            }
            other => panic!("{other:?}"),
        }
    }

    fn modes() -> impl Strategy<Value = Mode> {
        use Mode::{Add, Append, Compare, Prepend, Replace, Set};
        let compare = any::<u64>().prop_map(Compare);
        prop_oneof![
            Just(Set),
            Just(Add),
            Just(Replace),
            Just(Append),
            Just(Prepend),
            Just(Compare(0)),
            compare
        ]
    }

    fn actions(len: usize) -> impl Strategy<Value = Action> {
        // Lines carry 31 bits.
        let exptime = || prop_oneof![9 => 0..1u64 << 31, 1 => Just(1 << 32)];
        prop_oneof![
            proptest::option::of(exptime()).prop_map(|touch| Action::Get { touch }),
            (modes(), exptime(), any::<u32>()).prop_map(move |(mode, exptime, flags)| Action::Store {
                mode,
                len,
                exptime,
                flags
            }),
            exptime().prop_map(Action::Touch),
            Just(Action::Delete),
            any::<u64>().prop_map(|delta| Action::Arithmetic { decrement: false, delta, initial: None }),
        ]
    }

    /// Replaces what only lines express, or express differently.
    fn in_a_packets_words(command: fabcache_protocol::Command<'_>) -> fabcache_protocol::Command<'_> {
        use fabcache_protocol::{Command::*, Exptime, Get, Store, StoreMode, Touch};
        match command {
            Get(Get { key, value: false, touch: Some(exptime), .. }) => Touch(Touch { key, exptime }),
            Store(store @ Store { mode: StoreMode::Append | StoreMode::Prepend, .. }) => {
                Store(Store { flags: 0, exptime: Exptime(0), ..store })
            }
            other => other,
        }
    }

    proptest! {
        #[test]
        fn packet_and_line_encode_the_same_request(
            (value, action) in vec(any::<u8>(), 0..40).prop_flat_map(|value| (Just(value.clone()), actions(value.len()))),
            key in "[!-~]{1,250}",
        ) {
            let command = Command { key: key.as_bytes(), action };
            let (mut packet, mut line) = (Vec::new(), Vec::new());
            meta::write(&command, &mut line);
            line.extend_from_slice(b"\r\n");
            if !write(&command, &mut packet) {
                prop_assert!(packet.is_empty());
                return Ok(());
            }
            mark(&mut packet, 0x0102_0304);
            if let Action::Store { .. } = action {
                packet.extend_from_slice(&value);
                line.extend_from_slice(&value);
                line.extend_from_slice(b"\r\n");
            }
            decoded(&packet, |by_packet| decoded(&line, |by_line| {
                assert_eq!(by_packet.command, in_a_packets_words(by_line.command));
                assert!(matches!(by_packet.encoding, Encoding::Binary(BinaryEncoding { opaque: 0x0102_0304, .. })));
            }));
        }
    }

    proptest! {
        #[test]
        fn packet_only_fields_are_encoded(
            (decrement, delta, number) in any::<(bool, u64, u64)>(),
            exptime in proptest::option::of(0..1u64 << 31),
            key in "[!-~]{1,250}",
        ) {
            let initial = exptime.map(|exptime| Initial { number, exptime });
            let count = Action::Arithmetic { decrement, delta, initial };
            for (action, line_action) in [(count, count), (Action::Look, Action::Get { touch: None })] {
                let (mut packet, mut line) = (Vec::new(), Vec::new());
                write_any(&Command { key: key.as_bytes(), action }, &mut packet);
                meta::write(&Command { key: key.as_bytes(), action: line_action }, &mut line);
                line.extend_from_slice(b"\r\n");
                decoded(&packet, |by_packet| decoded(&line, |by_line| {
                    assert_eq!(by_packet.command, by_line.command);
                }));
            }
        }
    }

    #[test]
    fn inexpressible_requests_use_the_nearest_opcode() {
        let header_and_extras = |action| {
            let mut packet = Vec::new();
            write_any(&Command { key: b"key", action }, &mut packet);
            packet
        };
        let far = 1 << 40;
        let times = [
            (Action::Touch(far), HEADER..HEADER + 4),
            (Action::Get { touch: Some(far) }, HEADER..HEADER + 4),
            (Action::Store { mode: Mode::Set, len: 0, exptime: far, flags: 0 }, HEADER + 4..HEADER + 8),
            // The largest time would mean that nothing is stored.
            (
                Action::Arithmetic {
                    decrement: false,
                    delta: 1,
                    initial: Some(Initial { number: 1, exptime: far }),
                },
                HEADER + 16..HEADER + 20,
            ),
        ];
        for (action, time) in times {
            assert_eq!(header_and_extras(action)[time], (u32::MAX - 1).to_be_bytes(), "{action:?}");
        }
        let compare = Action::Store { mode: Mode::Compare(0), len: 0, exptime: 0, flags: 0 };
        assert_eq!(header_and_extras(compare)[16..HEADER], u64::MAX.to_be_bytes(), "no item's");
    }

    #[test]
    fn admin_replies_refusals_and_invalid_packets_are_distinguished() {
        let packet = |magic: u8, key: &[u8], extras: &[u8], value: &[u8], status: u16| {
            let mut packet = vec![0; HEADER];
            packet[0] = magic;
            packet[3] = key.len() as u8;
            packet[4] = extras.len() as u8;
            packet[6..8].copy_from_slice(&status.to_be_bytes());
            let body = (extras.len() + key.len() + value.len()) as u32;
            packet[8..12].copy_from_slice(&body.to_be_bytes());
            [&packet, extras, key, value].concat()
        };
        let stat = packet(RESPONSE, b"name", b"xx", b"value", status::OK);
        for cut in 0..stat.len() {
            assert!(said(&stat[..cut]).is_none(), "{cut}");
        }
        let (answer, len) = said(&stat).expect("a whole packet");
        assert_eq!(answer.expect("an answer"), AdminAnswer { key: b"name", value: b"value" });
        assert_eq!(len, stat.len());
        let failure = |packet: &[u8]| said(packet).expect("enough of it").0.expect_err("none");
        let refusal = failure(&packet(RESPONSE, b"", b"", b"Auth failure.", status::AUTH));
        assert_eq!(refusal.to_string(), "refused: Auth failure.");
        let silent = failure(&packet(RESPONSE, b"", b"", b"", status::UNKNOWN));
        assert_eq!(silent.to_string(), "refused: status 0x81");
        let mut long = packet(RESPONSE, b"", b"", b"", status::OK);
        long[8] = 1;
        let mut short = packet(RESPONSE, b"key", b"", b"", status::OK);
        short[11] = 2;
        for wrong in [packet(REQUEST, b"", b"", b"", status::OK), long, short, b"ERROR\r\n".repeat(4)] {
            assert!(failure(&wrong).breaks(), "{wrong:?}");
        }
    }

    #[test]
    fn packet_and_line_decode_to_the_same_reply() {
        let set = |mode| Action::Store { mode, len: 0, exptime: 0, flags: 0 };
        let get = Action::Get { touch: None };
        for (action, reply) in [
            (get, Reply::Miss),
            (Action::Get { touch: Some(1) }, Reply::Miss),
            (Action::Touch(1), Reply::NotFound),
            (Action::Delete, Reply::NotFound),
            (set(Mode::Add), Reply::NotStored),
            (set(Mode::Replace), Reply::NotStored),
            (set(Mode::Append), Reply::NotStored),
            (set(Mode::Prepend), Reply::NotStored),
            (set(Mode::Compare(7)), Reply::Exists),
            (set(Mode::Compare(7)), Reply::NotFound),
        ] {
            let command = Command { key: b"key", action };
            let (mut packet, mut line) = (Vec::new(), Vec::new());
            assert!(write(&command, &mut packet));
            meta::write(&command, &mut line);
            line.extend_from_slice(b"\r\n");
            if matches!(action, Action::Store { .. }) {
                line.extend_from_slice(b"\r\n");
            }
            let answered = |request: &[u8], reply: &Reply<'_>| {
                decoded(request, |request| {
                    let mut answer = Vec::new();
                    request.encoding.reply(reply, &mut answer);
                    answer
                })
            };
            let by_packet = answered(&packet, &reply);
            let (by_packet, len) = head(&by_packet).expect("a whole packet");
            // A line touches a key by a read, which misses.
            let reply = if matches!(action, Action::Touch(_)) { Reply::Miss } else { reply };
            let by_line = String::from_utf8(answered(&line, &reply)).expect("text");
            assert_eq!(
                by_packet.expect("an answer"),
                meta::head(by_line.trim_end()).expect("an answer"),
                "{command:?}"
            );
            assert!(len > HEADER, "the packet has a text as well");
        }
    }

    #[test]
    fn invalid_packets_are_rejected() {
        let packet = |code: u8, status: u16, extras: u8, body: u32| {
            let mut packet = [0; HEADER + 8];
            packet[0] = 0x81;
            packet[1] = code;
            packet[4] = extras;
            packet[6..8].copy_from_slice(&status.to_be_bytes());
            packet[8..12].copy_from_slice(&body.to_be_bytes());
            packet
        };
        let failed = |packet: &[u8]| head(packet).expect("a whole header").0.expect_err("no answer").breaks();
        for packet in [
            packet(opcode::GET, status::OK, 0, 4),
            packet(opcode::GET, status::OK, 4, 3),
            packet(opcode::GET, status::OK, 4, u32::MAX),
            packet(opcode::SET, status::OK, 0, 1 << 20),
            packet(opcode::SET, status::TOO_LARGE, 0, u32::MAX),
        ] {
            assert!(failed(&packet), "{packet:?}");
        }
        assert!(!failed(&packet(opcode::SET, status::TOO_LARGE, 0, 8)), "it refuses, and goes on");
    }
}
