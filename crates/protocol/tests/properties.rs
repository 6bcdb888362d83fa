//! Properties for any bytes: splits of a stream do not matter, nothing panics, decoding always makes progress.

mod common;

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::{Setup, events, packet};
use fabcache_protocol::bounds::{DATAGRAM_MAX, FABRIC_NAME_MAX, RUN_MAX};
use fabcache_protocol::{Command, Decoded, Decoder, FabricMemory, Limits, Protocol, number, udp};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Union;

const COMMANDS: &[&str] = &[
    "get",
    "gets",
    "gat",
    "gats",
    "set",
    "add",
    "replace",
    "append",
    "prepend",
    "cas",
    "delete",
    "incr",
    "decr",
    "touch",
    "mg",
    "ms",
    "md",
    "ma",
    "mn",
    "me",
    "mx",
    "flush_all",
    "version",
    "verbosity",
    "stats",
    "quit",
    "shutdown",
    "lru_crawler",
    "slabs",
    "watch",
    "cache_memlimit",
    "shm attach",
    "shm accessed",
    "fabric hello",
    "fabric attach",
    "GET",
    "foo",
    "",
];

const WORDS: &[&str] = &[
    "a",
    "key",
    "0",
    "1",
    "5",
    "30",
    "-1",
    "+2",
    "noreply",
    "4294967296",
    "2147483645",
    "18446744073709551615",
    "18446744073709551616",
    "x",
    "b",
    "q",
    "k",
    "v",
    "t",
    "s",
    "c",
    "f",
    "I",
    "MA",
    "Mz",
    "T30",
    "Tx",
    "N0",
    "C5",
    "E7",
    "O123",
    "D2",
    "J3",
    "Zm9v",
    "Zm9",
    "HTTP/1.1",
    "\u{e4}\0\r",
    "",
];

fn word() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        20 => select(WORDS).prop_map(|word| word.as_bytes().to_vec()),
        1 => (245..255usize).prop_map(|len| vec![b'k'; len]),
        1 => vec(any::<u8>(), 0..6),
    ]
}

fn line_end() -> impl Strategy<Value = &'static [u8]> {
    prop_oneof![8 => Just(&b"\r\n"[..]), 2 => Just(&b"\n"[..]), 1 => Just(&b""[..])]
}

/// The words of `fabric attach`, and their meaning; some values are impossible.
fn attach() -> impl Strategy<Value = (String, Option<Attach>)> {
    let memory = || (any::<u64>(), any::<u64>(), prop_oneof![3 => 0..1u64 << 21, 1 => any::<u64>()]);
    let name = vec(any::<u8>(), 0..300);
    (name, any::<u64>(), 0..70_000u32, memory(), memory()).prop_map(
        |(name, token, credits, staging, landing)| {
            let numbers = [staging.0, staging.1, staging.2, landing.0, landing.1, landing.2];
            let numbers = numbers.map(|number| number.to_string()).join(" ");
            let words = format!("{} {token:x} {credits} {numbers}", STANDARD.encode(&name));
            let is_memory = |(at, _, bytes): (u64, u64, u64)| at.checked_add(bytes).is_some();
            let is_sound = (1..=FABRIC_NAME_MAX).contains(&name.len())
                && (1..=u32::from(u16::MAX)).contains(&credits)
                && is_memory(staging)
                && is_memory(landing);
            (words, is_sound.then_some((name, token, credits, staging, landing)))
        },
    )
}

type Attach = (Vec<u8>, u64, u32, (u64, u64, u64), (u64, u64, u64));

/// Returns what a client states when it attaches, in either protocol.
fn attached(bytes: &[u8]) -> Option<Attach> {
    let mut decoder = Decoder::new(None, Limits { inline_value_max: 0 });
    let Decoded::Request { consumed, request } = decoder.decode(bytes) else { panic!("a whole request") };
    assert_eq!(consumed, bytes.len());
    match request.command {
        Command::FabricAttach(attach) => {
            let memory = |memory: FabricMemory| (memory.address, memory.key, memory.bytes);
            let (staging, landing) = (memory(attach.staging), memory(attach.landing));
            Some((attach.name(), attach.token, attach.credits.into(), staging, landing))
        }
        Command::Refused(_) => None,
        other => panic!("{other:?}"),
    }
}

/// Builds any line of words.
fn line() -> impl Strategy<Value = Vec<u8>> {
    (select(COMMANDS), vec(word(), 0..7), line_end()).prop_map(|(command, words, end)| {
        let mut line = command.as_bytes().to_vec();
        for word in words {
            line.push(b' ');
            line.extend(word);
        }
        line.extend(end);
        line
    })
}

/// Builds a storage command with its data, which may be shorter or longer than stated.
fn store() -> impl Strategy<Value = Vec<u8>> {
    let head =
        select(&["set k 1 0 ", "add key 0 -1 ", "ms k ", "cas k 0 0 ", "set k x 0 ", "append k 0 0 "][..]);
    let tail = select(&["", " noreply", " 5", " q s", " 5 noreply", " MA N3", " z"][..]);
    (head, vec(any::<u8>(), 0..80), tail, line_end(), line_end(), 0..12usize).prop_map(
        |(head, data, tail, line_end, data_end, wrong)| {
            let len = data.len() + if wrong < 3 { wrong } else { 0 };
            [format!("{head}{len}{tail}").as_bytes(), line_end, &data, data_end].concat()
        },
    )
}

fn binary_packet() -> impl Strategy<Value = Vec<u8>> {
    let valid = select(
        &[
            (0x00u8, 0usize),
            (0x01, 8),
            (0x05, 20),
            (0x09, 0),
            (0x0e, 0),
            (0x11, 8),
            (0x1c, 4),
            (0x24, 4),
            (0x04, 0),
        ][..],
    );
    let valid = (valid, vec(any::<u8>(), 1..9), vec(any::<u8>(), 0..60), any::<u64>()).prop_map(
        |((opcode, extras), key, value, cas)| {
            let value = if matches!(opcode, 0x01 | 0x0e | 0x11) { value } else { Vec::new() };
            packet(opcode, &key, &vec![7; extras], &value, cas)
        },
    );
    let any =
        (any::<u8>(), vec(any::<u8>(), 0..40), select(&[0usize, 4, 8, 20, 255][..]), vec(any::<u8>(), 0..60))
            .prop_map(|(opcode, key, extras, value)| packet(opcode, &key, &vec![1; extras], &value, 0));
    let words = (0xa0..0xa3u8, prop_oneof![attach().prop_map(|(words, _)| words), Just("1 3".to_owned())])
        .prop_map(|(opcode, words)| packet(opcode, b"", b"", words.as_bytes(), 0));
    let bare = (0..0x30u8).prop_map(|opcode| packet(opcode, b"", b"", b"", 0));
    prop_oneof![6 => valid, 1 => any, 2 => bare, 1 => words]
}

/// Builds a stream of mostly valid pieces, some of them damaged.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let text = vec(prop_oneof![4 => line(), 3 => store()], 0..12).boxed();
    let binary = vec(binary_packet(), 0..12).boxed();
    let mixed = vec(prop_oneof![line(), store(), binary_packet(), vec(any::<u8>(), 0..30)], 0..12).boxed();
    let damage = proptest::option::of((any::<prop::sample::Index>(), any::<u8>()));
    (Union::new([text, binary, mixed]), damage).prop_map(|(pieces, damage)| {
        let mut stream = pieces.concat();
        if let Some((at, byte)) = damage
            && !stream.is_empty()
        {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        stream
    })
}

/// Builds the flags of a meta request, which is often plain.
fn plain_flags() -> impl Strategy<Value = String> {
    let letter = select(&["v", "v", "k", "f", "s", "c", "t", "q", "h", "l", "MS", "MA", "I"][..]);
    let word = prop_oneof![
        8 => letter.prop_map(str::to_owned),
        2 => (select(&["T", "F", "O"][..]), any::<i32>()).prop_map(|(letter, number)| format!("{letter}{number}")),
        2 => (select(&["T", "F", "O"][..]), 0..100u32).prop_map(|(letter, number)| format!("{letter}{number}")),
        1 => "O[a-z]{0,33}",
    ];
    vec(word, 0..5).prop_map(|words| words.iter().map(|word| format!(" {word}")).collect())
}

/// Builds a stream of mostly plain requests, some of them damaged.
fn plain_stream() -> impl Strategy<Value = Vec<u8>> {
    let keys = prop_oneof![
        4 => vec("[a-z]{1,9}", 1..4),
        1 => vec("[a-z]{1,60}", 1..60),
    ];
    let get = (select(&["get", "gets"][..]), keys, line_end())
        .prop_map(|(name, keys, end)| [format!("{name} {}", keys.join(" ")).as_bytes(), end].concat());
    let head = prop_oneof![
        4 => (0..3u32, any::<u32>(), 0..99u32).prop_map(|(key, flags, time)| format!("set k{key} {flags} {time} ")),
        1 => Just("set k 0 4294967295 ".to_owned()),
        3 => Just("ms k ".to_owned()),
    ];
    let tail = prop_oneof![4 => Just(String::new()), 1 => Just(" noreply".to_owned()), 3 => plain_flags()];
    let set = (head, "[a-z\r\n]{0,30}", tail, line_end()).prop_map(|(head, data, tail, end)| {
        let line = format!("{head}{}{tail}", data.len());
        [line.as_bytes(), end, data.as_bytes(), b"\r\n"].concat()
    });
    let meta_get = ("[a-z]{1,60}", plain_flags(), line_end())
        .prop_map(|(key, flags, end)| [format!("mg {key}{flags}").as_bytes(), end].concat());
    let piece = prop_oneof![8 => get, 6 => meta_get, 8 => set, 1 => line(), 1 => store()];
    let damage = vec((any::<prop::sample::Index>(), select(&b"\r\n  0-xg\0"[..])), 0..3);
    (vec(piece, 0..40), damage).prop_map(|(pieces, damage)| {
        let mut stream = pieces.concat();
        for (at, byte) in damage {
            if !stream.is_empty() {
                let at = at.index(stream.len());
                stream[at] = byte;
            }
        }
        stream
    })
}

fn setup() -> impl Strategy<Value = Setup> {
    let protocol = select(&[None, None, None, Some(Protocol::Text), Some(Protocol::Binary)][..]);
    (protocol, prop::bool::weighted(0.1), prop::bool::weighted(0.3))
        .prop_map(|(protocol, auth, mixed)| Setup { protocol, auth, mixed, ..Setup::default() })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn decoding_does_not_depend_on_splits(stream in stream(), pieces in vec(1..50usize, 0..80), setup in setup()) {
        let whole = events(&stream, [], setup);
        prop_assert_eq!(&events(&stream, pieces, setup), &whole);
        prop_assert_eq!(&events(&stream, std::iter::repeat_n(1, stream.len()), setup), &whole);
    }

    #[test]
    fn any_bytes_decode_or_fail(stream in vec(any::<u8>(), 0..400), pieces in vec(1..50usize, 0..20), setup in setup()) {
        prop_assert_eq!(events(&stream, pieces, setup), events(&stream, [], setup));
    }

    #[test]
    fn runs_hold_what_decoding_one_by_one_returns(
        stream in prop_oneof![3 => plain_stream(), 1 => stream()],
        pieces in vec(1..400usize, 0..20),
        setup in setup(),
        run in select(&[1usize, 2, 5, RUN_MAX, usize::MAX][..]),
    ) {
        let whole = events(&stream, [], setup);
        let in_runs = Setup { run, ..setup };
        prop_assert_eq!(&events(&stream, [], in_runs), &whole);
        prop_assert_eq!(&events(&stream, pieces, in_runs), &whole);
    }

    #[test]
    fn long_lines_decode_alike_at_every_split(
        head in select(&["get ", "gets  ", "gat 0 ", "set ", "   get ", "mg ", "get", ""][..]),
        (word, words) in (1..260usize, 0..900usize),
        piece in 1..3000usize,
    ) {
        let words = format!("{} ", "k".repeat(word)).repeat(words.min(6000 / word));
        let stream = format!("{head}{words}\r\nversion\r\n");
        let pieces = std::iter::repeat_n(piece, stream.len() / piece);
        let whole = events(stream.as_bytes(), [], Setup::default());
        prop_assert_eq!(&events(stream.as_bytes(), pieces, Setup::default()), &whole);
        let in_runs = Setup { run: RUN_MAX, ..Setup::default() };
        prop_assert_eq!(&events(stream.as_bytes(), [], in_runs), &whole);
    }

    #[test]
    fn numbers_round_trip(n in any::<u64>(), m in any::<i32>(), shift in 0..64u32) {
        let n = n >> shift;
        let mut written = Vec::new();
        number::push_u64(&mut written, n);
        prop_assert_eq!(&written, &n.to_string().into_bytes());
        prop_assert_eq!(number::parse_u64(&written), Some(n));
        let m = m >> (shift / 2);
        prop_assert_eq!(number::parse_i32(m.to_string().as_bytes()), Some(m));
    }

    #[test]
    fn numbers_parse_as_in_rust(word in "-?[0-9]{1,23}[0-9 x]?") {
        let bytes = word.as_bytes();
        let within = |longest| bytes.len() <= longest;
        prop_assert_eq!(number::parse_i32(bytes), word.parse().ok().filter(|_| within(11)));
        let unsigned = !word.starts_with('-');
        prop_assert_eq!(number::parse_u32(bytes), word.parse().ok().filter(|_| unsigned && within(11)));
        prop_assert_eq!(number::parse_u64(bytes), word.parse().ok().filter(|_| unsigned && within(22)));
    }

    #[test]
    fn attach_decodes_in_either_protocol((words, said) in attach()) {
        prop_assert_eq!(&attached(format!("fabric attach {words}\r\n").as_bytes()), &said);
        prop_assert_eq!(&attached(&packet(0xa2, b"", b"", words.as_bytes(), 0)), &said);
    }

    #[test]
    fn datagrams_reassemble(id in any::<u16>(), reply in vec(any::<u8>(), 0..6000)) {
        let mut parts = BTreeMap::new();
        let mut total = 0;
        for (frame, payload) in udp::split(id, &reply).expect("few enough") {
            prop_assert_eq!(&frame[..2], id.to_be_bytes());
            prop_assert_eq!(&frame[6..], [0, 0]);
            prop_assert!(frame.len() + payload.len() <= DATAGRAM_MAX);
            total = u16::from_be_bytes([frame[4], frame[5]]);
            parts.insert(u16::from_be_bytes([frame[2], frame[3]]), payload);
        }
        prop_assert_eq!(parts.len(), usize::from(total));
        let joined: Vec<u8> = parts.into_values().flatten().copied().collect();
        prop_assert_eq!(joined, reply);
    }

    #[test]
    fn request_datagrams_round_trip(datagram in vec(any::<u8>(), 0..30)) {
        if let Some(frame) = udp::parse(&datagram) {
            prop_assert_eq!(frame.payload, &datagram[udp::FRAME..]);
            prop_assert_eq!(frame.id.to_be_bytes(), &datagram[..2]);
        }
    }
}
