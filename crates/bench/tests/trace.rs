//! Replays traces on servers in this process and checks every response; also on a broken server.

mod common;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{TestServer, run};
use fabcache_bench::random::Random;
use fabcache_bench::results::{Results, Sample};
use fabcache_bench::target::Target;
use fabcache_bench::trace::generate::Kind;
use fabcache_bench::trace::plan::Plan;
use fabcache_bench::trace::replay::{Replay, Source, table};
use fabcache_client::Protocol;

/// Returns a plan without pacing that compares every byte.
fn plan() -> Plan {
    Plan::new(false, true)
}

/// A temporary file, removed on drop.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, bytes: &[u8]) -> TempFile {
        let path = std::env::temp_dir().join(format!("fabcache-bench-file-{name}-{}", std::process::id()));
        std::fs::write(&path, bytes).expect("a file");
        TempFile(path)
    }

    fn replay(&self) -> Replay {
        self.replay_as(plan())
    }

    fn replay_as(&self, plan: Plan) -> Replay {
        Replay::new(vec![Source::of_path(&self.0)], plan)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns a trace of all operations on few keys, some of them counters, and the expected counts of two
/// replays.
fn mixed(lines: u32) -> (String, [ReplayCounts; 2]) {
    let operations = [
        "get", "get", "get", "get", "get", "gets", "set", "set", "add", "replace", "cas", "append",
        "prepend", "delete", "incr", "decr",
    ];
    let mut random = Random::new(4);
    let mut text = String::new();
    let mut requests = Vec::new();
    for i in 0..lines {
        let key = random.below(40);
        let operation = operations[random.below(operations.len() as u32) as usize];
        let is_counter = key.is_multiple_of(3);
        let is_counting = matches!(operation, "incr" | "decr");
        let is_joining = matches!(operation, "append" | "prepend");
        // Counters are never appended to, and only counters are incremented.
        if is_counting != is_counter && is_counting || is_joining && is_counter {
            continue;
        }
        let value_bytes = match operation {
            "delete" | "incr" | "decr" => 0,
            _ if is_counter => 1 + random.below(4),
            _ => [1, 20, 300, 20_000][random.below(4) as usize],
        };
        let ttl_s = if operation == "set" { 100_000 } else { 0 };
        let second = i / 100;
        writeln!(text, "{second},ns:{key},{},{value_bytes},7,{operation},{ttl_s}", key % 30 + 1)
            .expect("memory");
        requests.push((key, operation));
    }
    let mut there = HashSet::new();
    let expected = [(); 2].map(|()| expected(&requests, &mut there));
    (text, expected)
}

/// Counts of one replay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ReplayCounts {
    gets: u64,
    misses: u64,
    not_stored: u64,
}

/// Returns the counts for a cache that starts with the keys in `there` and loses nothing.
fn expected(requests: &[(u32, &str)], there: &mut HashSet<u32>) -> ReplayCounts {
    let mut expected = ReplayCounts::default();
    for &(key, operation) in requests {
        let was_there = there.contains(&key);
        match operation {
            "get" | "gets" => {
                expected.gets += 1;
                expected.misses += u64::from(!was_there);
                there.insert(key);
            }
            "set" => drop(there.insert(key)),
            "add" => {
                expected.not_stored += u64::from(was_there);
                there.insert(key);
            }
            "delete" => {
                expected.not_stored += u64::from(!was_there);
                there.remove(&key);
            }
            _ => expected.not_stored += u64::from(!was_there),
        }
    }
    expected
}

fn counts_of(sample: &Sample) -> ReplayCounts {
    let figure = |name: &str| sample.figures[name] as u64;
    ReplayCounts { gets: figure("gets"), misses: sample.misses, not_stored: figure("not_stored") }
}

#[test]
fn every_operation_matches_the_model() {
    let (text, expected) = mixed(6_000);
    let file = TempFile::new("mixed", text.as_bytes());
    let server = TestServer::start("trace-mixed", "");
    for (transport, protocol) in [
        ("unix", Protocol::Meta),
        ("unix", Protocol::Text),
        ("unix", Protocol::Binary),
        ("shm", Protocol::Auto),
    ] {
        for window in [1, 2, 64] {
            let replay = file.replay_as(Plan { window, ..plan() });
            let results = run(&replay, &[&server.target(transport, protocol)]).expect("right answers");
            assert_eq!(results.samples.len(), 2, "two rounds");
            for (sample, expected) in results.samples.iter().zip(expected) {
                let what = format!("{transport} {protocol:?} window {window} round {}", sample.round);
                assert_eq!(counts_of(sample), expected, "{what}");
                assert_eq!(sample.figures["refused"], 0.0, "{what}");
                assert_eq!(sample.operations, text.lines().count() as u64, "{what}");
                assert_eq!(sample.latency.is_some(), window == 1, "{what}");
                let hits = expected.gets - expected.misses;
                assert!(sample.verified > hits / 2 && sample.verified <= hits, "{what}: {}", sample.verified);
            }
            assert!(table(&results).contains(&file.0.display().to_string()));
        }
    }
}

#[test]
fn unfilled_keys_miss_again() {
    let text: String = (0..100).map(|i| format!("{i},k{},9,50,0,get,0\n", i % 10)).collect();
    let file = TempFile::new("fill", text.as_bytes());
    let server = TestServer::start("trace-fill", "");
    let target = server.target("unix", Protocol::Auto);
    let misses = |replay: &Replay| -> Vec<u64> {
        run(replay, &[&target]).expect("right answers").samples.iter().map(|sample| sample.misses).collect()
    };
    assert_eq!(misses(&file.replay()), [10, 0]);
    assert_eq!(misses(&file.replay_as(Plan { flushes: true, ..plan() })), [10, 10]);
    assert_eq!(misses(&file.replay_as(Plan { fills: false, ..plan() })), [100, 100]);
    assert_eq!(misses(&file.replay_as(Plan { requests_max: 5, ..plan() })), [5, 0]);
    let paced =
        run(&file.replay_as(Plan { speed: Some(1_000.0), ..plan() }), &[&target]).expect("right answers");
    assert!(paced.samples[0].figures.contains_key("late_ms"));
}

#[test]
fn evictions_and_refusals_are_counted() {
    let server = TestServer::start("trace-evicts", "-m 4");
    let target = server.target("shm", Protocol::Auto);
    let plan = Plan { requests_max: 20_000, ..plan() };
    let replay = Replay::new(vec![Source::Synthetic(Kind::Sizes)], plan);
    let results = run(&replay, &[&target]).expect("right answers");
    let sample = &results.samples[0];
    assert!(sample.misses as f64 > sample.figures["objects"], "something was evicted");
    let ratio = 1.0 - sample.misses as f64 / sample.figures["gets"];
    assert!((sample.figures["hit_ratio"] - ratio).abs() < 1e-9 && ratio > 0.0);
    assert!(sample.figures["byte_hit_ratio"] > 0.0);

    let full = TestServer::start("trace-full", "-m 4 -M");
    let results = run(&replay, &[&full.target("unix", Protocol::Meta)]).expect("refusals are counted");
    assert!(results.samples[0].figures["refused"] > 0.0);
    assert!(table(&results).contains("changes refused"));
}

#[test]
fn malformed_records_fail_or_are_counted() {
    let server = TestServer::start("trace-malformed", "");
    let target = server.target("unix", Protocol::Auto);
    let replayed = |replay: &Replay| run(replay, &[&target]).map_err(|error| format!("{error:#}"));
    let file = TempFile::new("malformed", b"0,k,1,5,0,get,0\n0,k,1,5,0,fetch,0\n0,k,1,5,0,get,0\n");
    let error = replayed(&file.replay()).expect_err("a malformed line");
    assert!(error.contains("line 2") && error.contains("fetch"), "{error}");
    let results =
        replayed(&file.replay_as(Plan { skips_malformed: true, ..plan() })).expect("a line was skipped");
    assert_eq!((results.samples[0].operations, results.samples[0].figures["skipped_records"]), (2, 1.0));
    assert!(table(&results).contains("1 malformed records skipped"));
    let empty = TempFile::new("empty", b"");
    assert!(replayed(&empty.replay()).expect_err("nothing").contains("no request"));
    let packed = TempFile::new("packed", b"\x28\xb5\x2f\xfd and so on");
    assert!(replayed(&packed.replay()).expect_err("compressed").contains("zstd -dc"));
}

/// A fault of the fake server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// No fault.
    None,
    /// Flips a bit of each value.
    Bit,
    /// Keeps the first value of each key.
    Old,
    /// Returns another key's value.
    Foreign,
    /// Acknowledges a delete without deleting.
    Undead,
    /// Never answers the second get.
    NoProgress,
    /// Closes the connection at the second get.
    Closed,
}

/// Serves the text protocol with the given fault.
fn serve(stream: UnixStream, fault: Fault) -> std::io::Result<()> {
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    let (mut values, mut line) = (HashMap::<String, Vec<u8>>::new(), String::new());
    let (mut last, mut gets) = (String::new(), 0);
    while reader.read_line(&mut line)? > 0 {
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["version"] => b"VERSION 1.6.18\r\n".to_vec(),
            ["stats"] => b"STAT pid 1\r\nEND\r\n".to_vec(),
            ["get" | "gets", key] => {
                gets += 1;
                match fault {
                    Fault::NoProgress if gets == 2 => {
                        line.clear();
                        continue;
                    }
                    Fault::Closed if gets == 2 => return Ok(()),
                    _ => {}
                }
                let key = if fault == Fault::Foreign && !last.is_empty() { last.as_str() } else { key };
                let found = values.get(key).map(|value| {
                    let head = format!("VALUE {} 0 {} 1\r\n", words[1], value.len() - 2);
                    [head.as_bytes(), value].concat()
                });
                [&found.unwrap_or_default()[..], b"END\r\n"].concat()
            }
            ["set", key, _, _, len] => {
                let mut value = vec![0; len.parse::<usize>().expect("a length") + 2];
                reader.read_exact(&mut value)?;
                value[0] ^= u8::from(fault == Fault::Bit);
                last = key.to_owned();
                if fault != Fault::Old || !values.contains_key(key) {
                    values.insert(key.to_owned(), value);
                }
                b"STORED\r\n".to_vec()
            }
            ["delete", key] => {
                if fault != Fault::Undead {
                    values.remove(key);
                }
                b"DELETED\r\n".to_vec()
            }
            _ => panic!("{line:?}"),
        };
        writer.write_all(&answer)?;
        line.clear();
    }
    Ok(())
}

/// Replays on the fake server. Each connection has its own cache; a trace without interleaved blocking
/// calls uses one.
fn replay_on_fake(path: &Path, fault: Fault, replay: &Replay) -> Result<Results, String> {
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).expect("a socket");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve(stream, fault));
        }
    });
    let url = format!("unix://{}", path.display()).parse().expect("a URL");
    let mut target = Target::new("fake", &[url], Protocol::Text).expect("it is up");
    if fault == Fault::NoProgress {
        target.timeout = Duration::from_secs(1);
    }
    run(replay, &[&target]).map_err(|error| format!("{error:#}"))
}

#[test]
fn wrong_responses_fail_and_name_the_key() {
    let socket = TempFile::new("fake", b"");
    let of = |operation: &str, key: u32| format!("0,k{key},20,40,0,{operation},0\n");
    let stored = [of("set", 1), of("set", 2), of("get", 1), of("set", 1), of("get", 1)].concat();
    let file = TempFile::new("stored", stored.as_bytes());
    let done = replay_on_fake(&socket.0, Fault::None, &file.replay()).expect("right answers");
    assert_eq!((done.samples[0].operations, done.samples[0].misses, done.samples[0].verified), (5, 0, 2));
    for fault in [Fault::Bit, Fault::Old, Fault::Foreign] {
        let error = replay_on_fake(&socket.0, fault, &file.replay()).expect_err("a wrong value");
        assert!(error.contains("get of the key") && error.contains("a wrong value"), "{fault:?}: {error}");
    }
    for fault in [Fault::NoProgress, Fault::Closed] {
        let error = replay_on_fake(&socket.0, fault, &file.replay()).expect_err("no answer");
        assert!(error.contains("get of the key") && error.contains("no answer"), "{fault:?}: {error}");
    }
    // With a window of 1, every request uses the blocking calls' connection.
    let deleted = TempFile::new("deleted", [of("delete", 3), of("delete", 3)].concat().as_bytes());
    let one = deleted.replay_as(Plan { window: 1, ..plan() });
    let error = replay_on_fake(&socket.0, Fault::Undead, &one).expect_err("nothing could be deleted");
    assert!(error.contains("delete of the key") && error.contains("nothing was stored"), "{error}");
}
