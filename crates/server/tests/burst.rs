//! Runs of plain requests against the general path: the same bytes give the same answers.

mod common;

use std::io::Read;

use common::serve;
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
    let meta_set = (key(), len).prop_map(|(key, len)| format!("ms {key} {len}\r\n{}\r\n", "m".repeat(len)));
    let lines = prop_oneof![
        10 => key().prop_map(|key| format!("get {key}\r\n")),
        4 => key().prop_map(|key| format!("gets {key}\r\n")),
        3 => keys.prop_map(|keys| format!("get {keys}\r\n")),
        6 => meta_set,
        1 => key().prop_map(|key| format!("mg {key} v c\r\n")),
        1 => key().prop_map(|key| format!("delete {key}\r\n")),
        1 => key().prop_map(|key| format!("append {key} 0 0 3\r\nend\r\n")),
        1 => Just(format!("get {}\r\n", "k".repeat(251))),
        1 => Just("get\r\n".to_owned()),
        1 => Just("flush_all\r\n".to_owned()),
        1 => Just("bogus\r\n".to_owned()),
    ];
    prop_oneof![24 => lines.prop_map(String::into_bytes), 8 => set, 2 => writes(), 1 => reads()]
}

/// Statistics that depend on the requests alone: when flushed and expired items are unlinked, the housekeeper decides.
const COUNTS: [&str; 6] = ["cmd_get", "cmd_set", "get_hits", "get_misses", "cmd_meta", "total_items"];

/// Sends the pipeline in these pieces; returns the answers, and the counts after it.
fn answers(flags: &str, pipeline: &[u8], cuts: &[usize]) -> (String, Vec<String>) {
    let server = serve(flags);
    let mut client = server.connect();
    // The first request tells the protocol, and the last one where the answers end.
    client.request("version\r\n", "VERSION 1.6.45\r\n");
    let mut stream = client.stream.try_clone().expect("a socket");
    let receiving = std::thread::spawn(move || {
        let (mut answers, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        while !answers.ends_with(b"MN\r\nMN\r\n") {
            let len = stream.read(&mut buffer).expect("answers");
            assert!(len > 0, "the connection ended after {:?}", String::from_utf8_lossy(&answers));
            answers.extend_from_slice(&buffer[..len]);
        }
        String::from_utf8_lossy(&answers).into_owned()
    });
    let mut rest = pipeline;
    for cut in cuts {
        let (piece, after) = rest.split_at(cut % (rest.len() + 1));
        client.say(piece);
        rest = after;
    }
    client.say(rest);
    client.say("mn\r\nmn\r\n");
    let answers = receiving.join().expect("answers");
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
        let pipeline = requests.concat();
        // While requests are counted by prefix each takes the general path.
        let runs = answers("-m 64 -t 1", &pipeline, &cuts);
        let general = answers("-m 64 -t 1 -D :", &pipeline, &[]);
        prop_assert_eq!(&runs.1, &general.1);
        prop_assert_eq!(runs.1.len(), COUNTS.len());
        prop_assert!(runs.0 == general.0, "{:?}\n{:?}", runs.0, general.0);
    }
}
