//! Runs of plain requests against the general path: the same bytes give the same answers.

mod common;

use std::io::Read;

use common::{packet, serve};
use proptest::prelude::*;

/// Writes that follow each other: new keys and known ones, equal ones, several sizes and times to live.
fn writes() -> impl Strategy<Value = Vec<u8>> {
    let exptime = prop_oneof![6 => Just("0"), 1 => Just("-1"), 2 => Just("100"), 2 => Just("5000")];
    let len = prop_oneof![4 => Just(50usize), 4 => 0usize..400, 1 => 4_000usize..16_384];
    let set = (0u8..40, 0u32..3, exptime, len, any::<u8>()).prop_map(|(key, flags, exptime, len, byte)| {
        let value = char::from(b'a' + byte % 26).to_string().repeat(len);
        format!("set b:{key} {flags} {exptime} {len}\r\n{value}\r\n")
    });
    prop::collection::vec(set, 2..60).prop_map(|sets| sets.concat().into_bytes())
}

/// Reads of the keys that [`writes`] writes, with their CAS values.
fn reads() -> impl Strategy<Value = Vec<u8>> {
    Just((0..40).map(|key| format!("gets b:{key}\r\n")).collect::<String>().into_bytes())
}

/// The keys of [`request`] in base64.
const BASE64: [&str; 12] =
    ["YTow", "YTox", "YToy", "YToz", "YTo0", "YTo1", "YTo2", "YTo3", "YTo4", "YTo5", "YToxMA==", "YToxMQ=="];

/// Flags of an `mg`: mostly those whose answers need the item alone.
fn get_flags() -> impl Strategy<Value = String> {
    let flag =
        prop::sample::select(&["f", "c", "s", "t", "k", "q", "h", "O7", "Oopaque", "l", "u", "R40"][..]);
    let flags = prop::collection::vec(flag, 0..4).prop_map(|flags| flags.join(" "));
    prop_oneof![
        3 => Just(" v".to_owned()),
        3 => Just(" v f c".to_owned()),
        3 => flags.clone().prop_map(|flags| format!(" v {flags}").trim_end().to_owned()),
        1 => flags.prop_map(|flags| format!(" {flags}")),
    ]
}

/// Flags of an `ms`: mostly those of a plain write.
fn set_flags() -> impl Strategy<Value = &'static str> {
    const PLAIN: &[&str] = &["", " T0 F0 MS", " F7 T100", " q", " k O1 s", " T5000 q k", " c F1 T0 MS q"];
    const OTHERS: &[&str] = &[" c", " T-1", " MA", " ME T0 F1", " C1", " C5 I", " E9 c", " s O2 MR"];
    prop_oneof![4 => prop::sample::select(PLAIN), 1 => prop::sample::select(OTHERS)]
}

/// Appends one request to a pipeline.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let key = || (0u8..12).prop_map(|key| format!("a:{key}"));
    let keys = prop::collection::vec(key(), 1..60).prop_map(|keys| keys.join(" "));
    let len =
        prop_oneof![8 => 0usize..60, 1 => 10_000usize..16_384, 1 => 16_385usize..40_000, 1 => Just(1 << 20)];
    let exptime = prop_oneof![4 => Just("0"), 1 => Just("-1"), 1 => Just("1000"), 1 => Just("x")];
    let tail = prop_oneof![8 => Just(""), 1 => Just(" noreply"), 1 => Just(" junk")];
    let set = (key(), any::<u32>(), exptime, len.clone(), tail, any::<u8>());
    let set = set.prop_map(|(key, flags, exptime, len, tail, byte)| {
        let mut line = format!("set {key} {flags} {exptime} {len}{tail}\r\n").into_bytes();
        line.extend(std::iter::repeat_n(b'a' + byte % 26, len));
        // Sometimes the data block is not where it ends.
        line.extend_from_slice(if byte == 0 { b"zz\r\n" } else { b"\r\n" });
        line
    });
    let meta_set = (key(), len, set_flags())
        .prop_map(|(key, len, flags)| format!("ms {key} {len}{flags}\r\n{}\r\n", "m".repeat(len)));
    let lines = prop_oneof![
        10 => key().prop_map(|key| format!("get {key}\r\n")),
        4 => key().prop_map(|key| format!("gets {key}\r\n")),
        3 => keys.prop_map(|keys| format!("get {keys}\r\n")),
        6 => meta_set,
        12 => (key(), get_flags()).prop_map(|(key, flags)| format!("mg {key}{flags}\r\n")),
        1 => key().prop_map(|key| format!("delete {key}\r\n")),
        2 => key().prop_map(|key| format!("md {key} I T30\r\n")),
        1 => key().prop_map(|key| format!("mg {key} N30 v\r\n")),
        1 => (0u8..12).prop_map(|key| format!("ms {} 1 b\r\nb\r\n", BASE64[usize::from(key)])),
        1 => key().prop_map(|key| format!("append {key} 0 0 3\r\nend\r\n")),
        1 => Just(format!("get {}\r\n", "k".repeat(251))),
        1 => Just("get\r\n".to_owned()),
        1 => Just("flush_all\r\n".to_owned()),
        1 => Just("bogus\r\n".to_owned()),
    ];
    prop_oneof![24 => lines.prop_map(String::into_bytes), 8 => set, 2 => writes(), 1 => reads()]
}

/// Packets: mostly reads and plain writes, loud and quiet, with marks of their own.
fn binary_request() -> impl Strategy<Value = Vec<u8>> {
    let key = || (0u8..12).prop_map(|key| format!("a:{key}").into_bytes());
    let get = (prop::sample::select(&[0x00u8, 0x09, 0x0c, 0x0d][..]), key(), 0u64..2)
        .prop_map(|(opcode, key, cas)| packet(opcode, b"", &key, b"", cas));
    let len =
        prop_oneof![8 => 0usize..60, 1 => 10_000usize..16_384, 1 => 16_385usize..40_000, 1 => Just(1 << 20)];
    let opcode = prop::sample::select(&[0x01u8, 0x01, 0x11, 0x11, 0x02, 0x03, 0x12][..]);
    let set = (opcode, key(), any::<u32>(), prop::sample::select(&[0u32, 1_000][..]), len, any::<u8>())
        .prop_map(|(opcode, key, flags, exptime, len, byte)| {
            let extras = [flags.to_be_bytes(), exptime.to_be_bytes()].concat();
            packet(opcode, &extras, &key, &vec![byte; len], u64::from(byte % 16 == 0))
        });
    let delete = key().prop_map(|key| packet(0x04, b"", &key, b"", 0));
    let append = key().prop_map(|key| packet(0x0e, b"", &key, b"end", 0));
    let noop = Just(packet(0x0a, b"", b"", b"", 0));
    let unknown = Just(packet(0x7f, b"", b"", b"", 0));
    let flush = Just(packet(0x08, b"", b"", b"", 0));
    let request =
        prop_oneof![24 => get, 16 => set, 1 => delete, 1 => append, 1 => noop, 1 => unknown, 1 => flush];
    (request, any::<[u8; 4]>()).prop_map(|(mut request, opaque)| {
        request[12..16].copy_from_slice(&opaque);
        request
    })
}

/// Returns a request with the same answer that is not plain: no item has the CAS value 0, so the value is sent.
fn general(request: &[u8]) -> Vec<u8> {
    match request.strip_suffix(b"\r\n") {
        Some(line) if line.starts_with(b"mg ") => [line, b" C0\r\n"].concat(),
        _ => request.to_vec(),
    }
}

/// Removes the seconds that the flags `t` and `l` answer: two servers' clocks differ.
fn without_times(answers: &str) -> String {
    let words = answers.split(' ').map(|word| match word.strip_prefix(['t', 'l']) {
        Some(rest) => [&word[..1], rest.trim_start_matches(|letter: char| letter.is_ascii_digit())].concat(),
        None => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Statistics that depend on the requests alone: when flushed and expired items are unlinked, the housekeeper decides.
const COUNTS: [&str; 6] = ["cmd_get", "cmd_set", "get_hits", "get_misses", "cmd_meta", "total_items"];

/// A request that begins a connection, and its answer; requests that end a pipeline, and their answers.
struct Ends {
    first: [Vec<u8>; 2],
    last: [Vec<u8>; 2],
}

fn text_ends() -> Ends {
    let both = |[request, answer]: [&str; 2]| [request.into(), answer.into()];
    Ends { first: both(["version\r\n", "VERSION 1.6.45\r\n"]), last: both(["mn\r\nmn\r\n", "MN\r\nMN\r\n"]) }
}

fn binary_ends() -> Ends {
    let noop = packet(0x0a, b"", b"", b"", 0);
    let mut answer = noop.clone();
    answer[0] = 0x81;
    Ends { first: [noop.clone(), answer.clone()], last: [noop.repeat(3), answer.repeat(3)] }
}

/// Sends the pipeline in these pieces; returns the answers, and the counts after it. While somebody watches, each request
/// takes the general path.
fn answers(ends: &Ends, pipeline: &[u8], cuts: &[usize], is_watched: bool) -> (Vec<u8>, Vec<String>) {
    let server = serve("-m 64 -t 1");
    let mut watcher = server.connect();
    if is_watched {
        watcher.request("watch mutations\r\n", "OK\r\n");
    }
    let mut client = server.connect();
    // The first request tells the protocol, and the last one where the answers end.
    client.say(&ends.first[0]);
    client.hear(&ends.first[1]);
    let end = ends.last[1].clone();
    let mut stream = client.stream.try_clone().expect("a socket");
    let receiving = std::thread::spawn(move || {
        let (mut answers, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        while !answers.ends_with(&end) {
            let len = stream.read(&mut buffer).expect("answers");
            assert!(len > 0, "the connection ended after {:?}", String::from_utf8_lossy(&answers));
            answers.extend_from_slice(&buffer[..len]);
        }
        answers
    });
    let mut rest = pipeline;
    for cut in cuts {
        let (piece, after) = rest.split_at(cut % (rest.len() + 1));
        client.say(piece);
        rest = after;
    }
    client.say(rest);
    client.say(&ends.last[0]);
    let answers = receiving.join().expect("answers");
    let mut client = server.connect();
    client.say("stats\r\n");
    let stats = client.hear_until("END\r\n");
    let is_count = |line: &&str| COUNTS.iter().any(|name| line.starts_with(&format!("STAT {name} ")));
    (answers, stats.lines().filter(is_count).map(str::to_owned).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn runs_are_answered_as_single_requests_are(
        requests in prop::collection::vec(request(), 1..150),
        cuts in prop::collection::vec(any::<usize>(), 0..4),
    ) {
        let general: Vec<_> = requests.iter().map(|request| general(request)).collect();
        let runs = answers(&text_ends(), &requests.concat(), &cuts, false);
        let general = answers(&text_ends(), &general.concat(), &[], true);
        prop_assert_eq!(&runs.1, &general.1);
        prop_assert_eq!(runs.1.len(), COUNTS.len());
        let text = |answers: &[u8]| without_times(&String::from_utf8_lossy(answers));
        prop_assert_eq!(text(&runs.0), text(&general.0));
    }

    #[test]
    fn runs_of_packets_are_answered_as_single_requests_are(
        packets in prop::collection::vec(binary_request(), 1..150),
        cuts in prop::collection::vec(any::<usize>(), 0..4),
    ) {
        let runs = answers(&binary_ends(), &packets.concat(), &cuts, false);
        let general = answers(&binary_ends(), &packets.concat(), &[], true);
        prop_assert_eq!(&runs.1, &general.1);
        prop_assert_eq!(runs.0, general.0);
    }
}
