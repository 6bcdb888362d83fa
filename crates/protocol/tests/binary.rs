//! The binary protocol: each opcode, its checks, and the replies.

mod common;

use common::{ITEM, answers, decoder, packet, request};
use fabcache_protocol::binary::status;
use fabcache_protocol::{
    Arithmetic, BinaryEncoding, Command, Decoded, Decoder, Delete, Encoding, Exptime, FabricAttach,
    FabricMemory, Get, Limits, PlainGets, PlainSets, Refusal, Reply, Store, StoreMode, Touch, Value, Words,
};

const OPAQUE: u32 = 0xdead_beef;
const EXTRAS: &[u8] = b"\0\0\0\x07\xff\xff\xff\xff";

#[track_caller]
fn decodes_to(packet: &[u8], command: Command<'_>) {
    let mut decoder = decoder();
    let request = request(&mut decoder, packet);
    assert_eq!(request.command, command);
    let Encoding::Binary(encoding) = request.encoding else { panic!("{:?}", request.encoding) };
    assert_eq!((encoding.opcode, encoding.opaque), (packet[1], OPAQUE));
}

/// Encodes the reply to opcode `opcode` for key `key`.
fn says(opcode: u8, reply: Reply<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    Encoding::Binary(BinaryEncoding { opcode, opaque: OPAQUE, key: b"key" }).reply(&reply, &mut out);
    out
}

/// Builds a reply packet.
fn answer(opcode: u8, status: u16, extras: &[u8], key: &[u8], value: &[u8], cas: u64) -> Vec<u8> {
    let mut packet = packet(opcode, key, extras, value, cas);
    packet[0] = 0x81;
    packet[6..8].copy_from_slice(&status.to_be_bytes());
    packet
}

fn error(opcode: u8, status: u16) -> Vec<u8> {
    answer(opcode, status, b"", b"", status::text(status).as_bytes(), 0)
}

#[test]
fn read_opcodes_decode() {
    for opcode in [0x00, 0x09, 0x0c, 0x0d] {
        let get = Get { key: b"a b\0", value: true, ..Get::default() };
        decodes_to(&packet(opcode, b"a b\0", b"", b"", 9), Command::Get(get));
    }
    for opcode in [0x1d, 0x1e, 0x23, 0x24] {
        let touch = Some(Exptime(i64::from(u32::MAX)));
        let get = Get { key: b"k", value: true, touch, ..Get::default() };
        decodes_to(&packet(opcode, b"k", b"\xff\xff\xff\xff", b"", 0), Command::Get(get));
    }
    let touch = Touch { key: b"k", exptime: Exptime(3) };
    decodes_to(&packet(0x1c, b"k", b"\0\0\0\x03", b"", 0), Command::Touch(touch));
}

#[test]
fn store_opcodes_decode() {
    for (opcodes, mode) in
        [([0x01, 0x11], StoreMode::Set), ([0x02, 0x12], StoreMode::Add), ([0x03, 0x13], StoreMode::Replace)]
    {
        for opcode in opcodes {
            let store = Store {
                key: b"k",
                mode,
                flags: 7,
                exptime: Exptime(i64::from(u32::MAX)),
                value: Value::Inline(b"value"),
                ..Store::default()
            };
            decodes_to(&packet(opcode, b"k", EXTRAS, b"value", 0), Command::Store(store.clone()));
            let compared = Store { mode: StoreMode::Set, compare: Some(5), ..store };
            decodes_to(&packet(opcode, b"k", EXTRAS, b"value", 5), Command::Store(compared));
        }
    }
    for (opcode, mode) in [
        (0x0e, StoreMode::Append),
        (0x0f, StoreMode::Prepend),
        (0x19, StoreMode::Append),
        (0x1a, StoreMode::Prepend),
    ] {
        let store = Store { key: b"k", mode, compare: Some(5), ..Store::default() };
        decodes_to(&packet(opcode, b"k", b"", b"", 5), Command::Store(store));
    }
}

#[test]
fn change_opcodes_decode() {
    for opcode in [0x04, 0x14] {
        let delete = Delete { key: b"k", compare: Some(5), ..Delete::default() };
        decodes_to(&packet(opcode, b"k", b"", b"", 5), Command::Delete(delete));
    }
    let extras =
        |exptime: u32| [&3u64.to_be_bytes()[..], &4u64.to_be_bytes(), &exptime.to_be_bytes()].concat();
    for (opcode, decrement) in [(0x05, false), (0x06, true), (0x15, false), (0x16, true)] {
        let create = Some((4, Exptime(9)));
        let arithmetic = Arithmetic { key: b"k", delta: 3, decrement, create, ..Arithmetic::default() };
        decodes_to(&packet(opcode, b"k", &extras(9), b"", 0), Command::Arithmetic(arithmetic.clone()));
        let only = Arithmetic { create: None, compare: Some(1), ..arithmetic };
        decodes_to(&packet(opcode, b"k", &extras(u32::MAX), b"", 1), Command::Arithmetic(only));
    }
    for opcode in [0x08, 0x18] {
        decodes_to(&packet(opcode, b"", b"", b"", 0), Command::Flush(Exptime(0)));
        decodes_to(&packet(opcode, b"", b"\0\0\0\x05", b"", 0), Command::Flush(Exptime(5)));
    }
}

#[test]
fn admin_opcodes_decode() {
    decodes_to(&packet(0x07, b"", b"", b"", 0), Command::Quit);
    decodes_to(&packet(0x17, b"", b"", b"", 0), Command::Quit);
    decodes_to(&packet(0x0a, b"", b"", b"", 0), Command::Noop);
    decodes_to(&packet(0x0b, b"", b"", b"", 0), Command::Version);
    decodes_to(&packet(0x10, b"", b"", b"", 0), Command::Stats(Words::default()));
    decodes_to(&packet(0x10, b"detail on", b"", b"", 0), Command::Stats(Words::new(b"detail on")));
    decodes_to(&packet(0x20, b"", b"", b"", 0), Command::SaslList);
    let versions = [1u64.to_be_bytes(), 3u64.to_be_bytes()].concat();
    decodes_to(&packet(0xa0, b"", b"", &versions, 0), Command::ShmAttach { channel: 1, region: 3 });
    decodes_to(&packet(0xa1, b"", b"", b"1 3", 0), Command::FabricHello { channel: 1, region: 3 });
    let memory = |address| FabricMemory { address, key: 7, bytes: 64 };
    let attach = FabricAttach::new(b"bmFtZQ==", 0xff, 8, memory(100), memory(200)).expect("sound");
    let words = b"bmFtZQ== ff 8 100 7 64 200 7 64";
    decodes_to(&packet(0xa2, b"", b"", words, 0), Command::FabricAttach(attach));
    for (opcode, wrong) in [(0xa1, &b""[..]), (0xa1, b"1"), (0xa2, b"1 2")] {
        let (mut decoder, packet) = (decoder(), packet(opcode, b"", b"", wrong, 0));
        assert_eq!(
            request(&mut decoder, &packet).command,
            Command::Refused(Refusal::Status(status::INVALID))
        );
    }
    let (mechanism, payload) = (&b"PLAIN"[..], &b"\0user\0pass"[..]);
    decodes_to(&packet(0x21, mechanism, b"", payload, 0), Command::SaslAuth { mechanism, payload });
    decodes_to(&packet(0x22, mechanism, b"", b"", 0), Command::SaslStep { mechanism, payload: b"" });
}

#[test]
fn broken_packets_close_the_connection() {
    let noop = packet(0x0a, b"", b"", b"", 0);
    let long = [b'k'; 251];
    let mut cases = vec![
        (packet(0xa1, b"k", b"", b"1 3", 0), status::INVALID),
        (packet(0xa2, b"", b"1234", b"1 3", 0), status::INVALID),
        (packet(0x00, b"", b"", b"", 0), status::INVALID),
        (packet(0x00, b"k", b"e", b"", 0), status::INVALID),
        (packet(0x0d, b"k", b"", b"v", 0), status::INVALID),
        (packet(0x01, b"k", b"", b"v", 0), status::INVALID),
        (packet(0x01, b"", EXTRAS, b"v", 0), status::INVALID),
        (packet(0x11, b"k", b"1234", b"v", 0), status::INVALID),
        (packet(0x0e, b"k", b"e", b"v", 0), status::INVALID),
        (packet(0x04, b"k", b"", b"v", 0), status::INVALID),
        (packet(0x05, b"k", b"", b"", 0), status::INVALID),
        (packet(0x05, b"k", &[0; 20], b"v", 0), status::INVALID),
        (packet(0x1c, b"k", b"", b"", 0), status::INVALID),
        (packet(0x1d, b"k", b"1234", b"v", 0), status::INVALID),
        (packet(0x08, b"k", b"", b"", 0), status::INVALID),
        (packet(0x08, b"", b"12", b"", 0), status::INVALID),
        (packet(0x07, b"", b"", b"v", 0), status::INVALID),
        (packet(0x0a, b"k", b"", b"", 0), status::INVALID),
        (packet(0x0b, b"", b"e", b"", 0), status::INVALID),
        (packet(0x10, b"k", b"e", b"", 0), status::INVALID),
        (packet(0x10, b"k", b"", b"v", 0), status::INVALID),
        (packet(0x20, b"k", b"", b"", 0), status::INVALID),
        (packet(0xa0, b"", b"", b"12345678", 0), status::INVALID),
        (packet(0xa0, b"", &[0; 16], b"", 0), status::INVALID),
        (packet(0x21, b"", b"", b"v", 0), status::INVALID),
        (packet(0x22, b"k", b"e", b"v", 0), status::INVALID),
        (packet(0x00, &long, b"", b"", 0), status::INVALID),
        (packet(0x01, &long, EXTRAS, b"v", 0), status::INVALID),
    ];
    let mut short = packet(0x01, b"key", EXTRAS, b"", 0);
    short[11] = 10;
    cases.push((short, status::UNKNOWN));
    for (packet, status) in cases {
        let expected = [error(packet[1], status), b"<closed>".to_vec()].concat();
        assert_eq!(answers(&[packet.clone(), noop.clone()].concat()), expected, "{packet:?}");
        assert_eq!(answers(&packet[..24]), expected, "the header suffices");
    }
    // Bytes that are not a packet get no reply.
    assert_eq!(
        answers(&[&noop[..], b"x"].concat()),
        [&answer(0x0a, 0, b"", b"", b"", 0)[..], b"<closed>"].concat()
    );
    let version = [&packet(0x07, b"", b"", b"", 0)[..], &noop].concat();
    assert_eq!(answers(&version), [&answer(0x07, 0, b"", b"", b"", 0)[..], b"<closed>"].concat());
}

#[test]
fn rejected_packets_are_skipped() {
    let noop = packet(0x0a, b"", b"", b"", 0);
    let done = answer(0x0a, 0, b"", b"", b"", 0);
    for opcode in [0x1b, 0x1f, 0x25, 0x30, 0x48, 0xff] {
        let unknown = packet(opcode, &[b'k'; 9], b"ext", &[b'v'; 2000], 1);
        let expected = [error(opcode, status::UNKNOWN), done.clone()].concat();
        assert_eq!(answers(&[unknown, noop.clone()].concat()), expected);
    }
    let mechanism = packet(0x21, &[b'M'; 33], b"", b"v", 0);
    assert_eq!(
        answers(&[mechanism, noop.clone()].concat()),
        [error(0x21, status::INVALID), done.clone()].concat()
    );
    let words = packet(0xa2, b"", b"", &[b'1'; 2049], 0);
    assert_eq!(
        answers(&[words, noop.clone()].concat()),
        [error(0xa2, status::INVALID), done.clone()].concat()
    );
    let payload = packet(0x21, b"PLAIN", b"", &[0; 16385], 0);
    assert_eq!(answers(&[payload, noop].concat()), [error(0x21, status::OUT_OF_MEMORY), done].concat());
}

#[test]
fn fabric_refusal_states_its_reason() {
    let why = Reply::Refused(Refusal::Client("why"));
    for opcode in [0xa1, 0xa2] {
        assert_eq!(says(opcode, why), answer(opcode, status::INVALID, b"", b"", b"why", 0));
    }
}

#[test]
fn incomplete_packets_wait_for_more() {
    let set = packet(0x01, b"key", EXTRAS, b"value", 0);
    let mut decoder = decoder();
    for (given, more) in [(1, 23), (23, 1), (24, 16), (39, 1)] {
        assert_eq!(decoder.decode(&set[..given]), Decoded::Incomplete { more });
    }
    assert!(matches!(decoder.decode(&set), Decoded::Request { consumed: 40, .. }));
}

#[test]
fn long_values_are_streamed() {
    let set = packet(0x01, b"key", EXTRAS, b"value", 0);
    let mut decoder = Decoder::new(None, Limits { inline_value_max: 4 });
    assert_eq!(decoder.decode(&set[..30]), Decoded::Incomplete { more: 5 });
    let Decoded::Request { consumed: 35, request } = decoder.decode(&set) else { panic!() };
    let Command::Store(store) = request.command else { panic!() };
    assert_eq!((store.key, store.value), (&b"key"[..], Value::Streamed { len: 5 }));
    assert_eq!(decoder.decode(b"val"), Decoded::Value { consumed: 3, bytes: b"val" });
    assert_eq!(decoder.decode(b"ue\x80"), Decoded::Value { consumed: 2, bytes: b"ue" });
    assert_eq!(decoder.decode(b""), Decoded::ValueEnd { consumed: 0, intact: true });
    decoder.decode(&set);
    decoder.decode(b"val");
    decoder.discard_value();
    assert_eq!(decoder.decode(b"ue\x80"), Decoded::Skipped { consumed: 2 });
    decoder.decode(&set);
    decoder.decode(b"value");
    decoder.discard_value();
    assert_eq!(decoder.decode(b""), Decoded::Incomplete { more: 1 });
}

#[test]
fn hits_encode() {
    let flags = b"\0\0\0\x07";
    for (opcode, key) in [
        (0x00, &b""[..]),
        (0x09, b""),
        (0x0c, b"key"),
        (0x0d, b"key"),
        (0x1d, b""),
        (0x1e, b""),
        (0x23, b"key"),
        (0x24, b"key"),
    ] {
        let encoding = Encoding::Binary(BinaryEncoding { opcode, opaque: OPAQUE, key: b"key" });
        let mut out = Vec::new();
        encoding.value_head(&ITEM, &mut out);
        out.extend_from_slice(b"hi");
        encoding.value_tail(&mut out);
        assert_eq!(out, answer(opcode, 0, flags, key, b"hi", 42), "{opcode:x}");
    }
    assert_eq!(says(0x1c, Reply::Found(ITEM)), answer(0x1c, 0, flags, b"", b"", 42));
}

#[test]
fn misses_encode() {
    for opcode in [0x00, 0x1d] {
        assert_eq!(says(opcode, Reply::Miss), error(opcode, status::NOT_FOUND));
    }
    for opcode in [0x0c, 0x23] {
        assert_eq!(says(opcode, Reply::Miss), answer(opcode, status::NOT_FOUND, b"", b"key", b"", 0));
    }
    for opcode in [0x09, 0x0d, 0x1e, 0x24] {
        assert_eq!(says(opcode, Reply::Miss), b"");
    }
    for opcode in [0x04, 0x14, 0x05, 0x15, 0x1c, 0x01, 0x11] {
        assert_eq!(says(opcode, Reply::NotFound), error(opcode, status::NOT_FOUND));
    }
}

#[test]
fn successful_changes_encode() {
    let number = 12u64.to_be_bytes();
    for (loud, quiet, reply, value, cas) in [
        (0x01, 0x11, Reply::Stored(ITEM), &b""[..], 42),
        (0x02, 0x12, Reply::Stored(ITEM), b"", 42),
        (0x03, 0x13, Reply::Stored(ITEM), b"", 42),
        (0x04, 0x14, Reply::Deleted, b"", 0),
        (0x05, 0x15, Reply::Number(12, ITEM), &number, 42),
        (0x06, 0x16, Reply::Number(12, ITEM), &number, 42),
        (0x07, 0x17, Reply::Bye, b"", 0),
        (0x08, 0x18, Reply::Ok, b"", 0),
        (0x0e, 0x19, Reply::Stored(ITEM), b"", 42),
        (0x0f, 0x1a, Reply::Stored(ITEM), b"", 42),
    ] {
        assert_eq!(says(loud, reply), answer(loud, 0, b"", b"", value, cas));
        assert_eq!(says(quiet, reply), b"", "{quiet:x}");
    }
    assert_eq!(says(0x0a, Reply::Noop), answer(0x0a, 0, b"", b"", b"", 0));
    assert_eq!(says(0x0b, Reply::Version("1.6.45")), answer(0x0b, 0, b"", b"", b"1.6.45", 0));
    assert_eq!(says(0x20, Reply::Sasl(b"PLAIN")), answer(0x20, 0, b"", b"", b"PLAIN", 0));
    assert_eq!(says(0x21, Reply::SaslContinue(b"?")), answer(0x21, 0x21, b"", b"", b"?", 0));
    assert_eq!(says(0x21, Reply::AuthFailure), error(0x21, status::AUTH));
}

#[test]
fn failed_changes_encode() {
    for quiet in [0, 0x10] {
        for (opcode, status) in [(0x01, 5), (0x02, 2), (0x03, 1)] {
            assert_eq!(says(opcode + quiet, Reply::NotStored), error(opcode + quiet, status));
        }
    }
    for opcode in [0x0e, 0x0f, 0x19, 0x1a] {
        assert_eq!(says(opcode, Reply::NotStored), error(opcode, status::NOT_STORED));
    }
    for opcode in [0x01, 0x11, 0x04, 0x14, 0x15] {
        assert_eq!(says(opcode, Reply::Exists), error(opcode, status::EXISTS));
        assert_eq!(says(opcode, Reply::TooLarge), error(opcode, status::TOO_LARGE));
        assert_eq!(says(opcode, Reply::NonNumeric), error(opcode, status::NON_NUMERIC));
    }
    let memory = |text: &[u8], opcode| answer(opcode, status::OUT_OF_MEMORY, b"", b"", text, 0);
    assert_eq!(says(0x11, Reply::OutOfMemory), memory(b"Out of memory allocating item", 0x11));
    assert_eq!(says(0x15, Reply::OutOfMemory), memory(b"Out of memory incrementing value", 0x15));
}

#[test]
fn refusals_encode() {
    let client = Reply::Refused(Refusal::Client("flush_all not allowed"));
    assert_eq!(says(0x18, client), error(0x18, status::AUTH));
    assert_eq!(says(0x01, client), error(0x01, status::INVALID));
    assert_eq!(says(0x10, client), error(0x10, status::NOT_FOUND));
    assert_eq!(says(0x10, Reply::Refused(Refusal::UnknownCommand)), error(0x10, status::NOT_FOUND));
    assert_eq!(says(0x20, Reply::Refused(Refusal::UnknownCommand)), error(0x20, status::UNKNOWN));
    assert_eq!(says(0x11, Reply::Refused(Refusal::Status(0x20))), error(0x11, status::AUTH));
    for status in [1, 2, 3, 4, 5, 6, 0x20, 0x81, 0x82] {
        assert!(!status::text(status).is_empty());
    }
}

#[test]
fn statistics_encode() {
    let stat = Reply::Stat { name: b"pid", value: b"12" };
    assert_eq!(says(0x10, stat), answer(0x10, 0, b"", b"pid", b"12", 0));
    let end = answer(0x10, 0, b"", b"", b"", 0);
    for reply in [Reply::StatsEnd, Reply::Line(b"RESET"), Reply::Ok] {
        assert_eq!(says(0x10, reply), end);
    }
}

#[test]
fn packets_and_lines_may_alternate() {
    let store = packet(0x01, b"key", EXTRAS, b"a line\r\n", 0);
    let stream = [&store[..], b"ms key 2\r\n\x80\x80\r\nmn\r\n", &packet(0x00, b"key", b"", b"", 0)].concat();
    let mut decoder = Decoder::mixed(Limits { inline_value_max: 100 });
    let mut at = 0;
    for expected in ["key=a line\r\n", "key=\u{80}\u{80}", "noop", "get key"] {
        let Decoded::Request { consumed, request } = decoder.decode(&stream[at..]) else { panic!("{at}") };
        let latin = |bytes: &[u8]| bytes.iter().map(|byte| char::from(*byte)).collect::<String>();
        let said = match request.command {
            Command::Store(Store { key, value: Value::Inline(value), .. }) => {
                format!("{}={}", latin(key), latin(value))
            }
            Command::Get(get) => format!("get {}", latin(get.key)),
            Command::Noop => "noop".into(),
            other => panic!("{other:?}"),
        };
        assert_eq!(said, expected);
        at += consumed;
    }
    assert_eq!(at, stream.len());
}

#[test]
fn keys_of_pipelined_packets_are_previewed() {
    let stream = [
        packet(0x01, b"first", EXTRAS, b"a\nvalue", 0),
        packet(0x00, b"second", b"", b"", 0),
        packet(0x0a, b"", b"", b"", 0),
        packet(0x04, b"third", b"", b"", 0),
    ]
    .concat();
    let mut decoder = decoder();
    let Decoded::Request { consumed, .. } = decoder.decode(&stream) else { panic!("a whole request") };
    let ahead: Vec<&[u8]> = decoder.pipelined_keys(&stream[consumed..]).collect();
    assert_eq!(ahead, [&b"second"[..], b"", b"third"]);
    let cut = &stream[consumed..stream.len() - 1];
    assert_eq!(decoder.pipelined_keys(cut).collect::<Vec<_>>(), [&b"second"[..], b""]);
    for len in 0..stream.len() {
        assert!(decoder.pipelined_keys(&stream[..len]).count() <= 4);
    }
    // Wrong lengths: of the packet, and of a key beyond its end.
    assert_eq!(decoder.pipelined_keys(&[&[0x80; 24][..], &[0; 1000]].concat()).count(), 0);
    let mut beyond = packet(0x00, b"key", b"", b"", 0);
    beyond[3] = 200;
    assert_eq!(decoder.pipelined_keys(&[&beyond[..], &[0; 1000]].concat()).count(), 0);
    // A line.
    assert_eq!(decoder.pipelined_keys(&[0; 1000]).count(), 0);
}

/// Returns the keys of the plain reads, or of the plain writes, at the front of `input`, and the bytes that they take.
fn run_of(input: &[u8], sets: bool) -> (Vec<&[u8]>, usize) {
    let mut decoder = decoder();
    assert_eq!(request(&mut decoder, &packet(0x0a, b"", b"", b"", 0)).command, Command::Noop);
    if sets {
        let mut run = PlainSets::new(32);
        let used = decoder.plain_sets(input, &mut run);
        (run.requests().iter().map(|set| set.key).collect(), used)
    } else {
        let mut run = PlainGets::new(32);
        let used = decoder.plain_gets(input, &mut run);
        (run.requests().iter().map(|get| get.key).collect(), used)
    }
}

#[test]
fn plain_packets_come_in_runs_of_one_kind() {
    let get = |opcode, key: &[u8]| packet(opcode, key, b"", b"", 0);
    let set = |opcode, key: &[u8]| packet(opcode, key, &[0; 8], b"value", 0);
    let gets = [get(0x00, b"a"), get(0x09, b"b"), get(0x0c, b"c"), packet(0x0d, b"d", b"", b"", 7)].concat();
    let sets = [set(0x01, b"e"), set(0x11, b"f")].concat();
    let (gets_first, sets_first) = ([&gets[..], &sets].concat(), [&sets[..], &gets].concat());
    let (keys, used) = run_of(&gets_first, false);
    assert_eq!((keys, used), (vec![&b"a"[..], b"b", b"c", b"d"], gets.len()));
    let (keys, used) = run_of(&sets_first, true);
    assert_eq!((keys, used), (vec![&b"e"[..], b"f"], sets.len()));
}

#[test]
fn unusual_packets_are_left_to_the_general_path() {
    let mut wrong_magic = packet(0x00, b"k", b"", b"", 0);
    wrong_magic[0] = 0x81;
    let whole = packet(0x01, b"k", &[0; 8], b"value", 0);
    for input in [
        packet(0x00, b"", b"", b"", 0),
        packet(0x00, b"k", &[0; 4], b"", 0),
        packet(0x00, b"k", b"", b"value", 0),
        packet(0x00, &[b'k'; 251], b"", b"", 0),
        packet(0x1d, b"k", &[0; 4], b"", 0),
        packet(0x01, b"k", &[0; 8], b"value", 1),
        packet(0x01, b"k", &[0; 4], b"value", 0),
        packet(0x02, b"k", &[0; 8], b"value", 0),
        packet(0x0e, b"k", b"", b"value", 0),
        packet(0x0a, b"", b"", b"", 0),
        wrong_magic,
        whole[..whole.len() - 1].to_vec(),
        whole[..23].to_vec(),
        b"get k\r\n".to_vec(),
    ] {
        for sets in [false, true] {
            assert_eq!(run_of(&input, sets), (Vec::new(), 0), "{input:?}");
        }
    }
}
