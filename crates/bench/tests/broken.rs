//! Every experiment detects a broken server, over every socket kind and in every protocol.
//!
//! Faults: wrong bytes, another item's value, truncated, dropped and reordered responses, and a closed
//! connection. The run then fails with an error that names the key. Trace replays are not covered: the
//! dummy does not know their keys and values, so `trace.rs` has its own broken server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Result;
use fabcache_bench::blocks::Blocks;
use fabcache_bench::dummy::{Dummy, Fault, Kind, Listen, Settings};
use fabcache_bench::engine::Load;
use fabcache_bench::experiment::{Experiment, Plan, Progress, run};
use fabcache_bench::hybrid::Hybrid;
use fabcache_bench::items::Items;
use fabcache_bench::latency::{Latency, Operation};
use fabcache_bench::mixture::Mixture;
use fabcache_bench::multiget::Multiget;
use fabcache_bench::nonblocking::NonBlocking;
use fabcache_bench::results::Results;
use fabcache_bench::target::{Target, protocol_name};
use fabcache_bench::throughput::Throughput;
use fabcache_client::Protocol;

/// How long the client waits for a missing response.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Duration of a round with many clients, in seconds.
const SECONDS: f64 = 0.5;
/// Long enough that the middle byte lies after the bytes that identify the item.
const VALUE_BYTES: usize = 100;
const KEY_BYTES: usize = 20;

const PROTOCOLS: [Protocol; 3] = [Protocol::Meta, Protocol::Text, Protocol::Binary];

/// Faults in responses to gets.
const GET_FAULTS: [&str; 6] =
    ["wrong@10", "foreign@10", "truncated@10", "dropped@10", "swapped@10", "closed@10"];
/// Faults in responses to sets.
const SET_FAULTS: [&str; 3] = ["set-dropped@10", "set-swapped@10", "set-closed@10"];

/// Discards progress reports.
struct NoProgress;

impl Progress for NoProgress {
    fn begin(&self, _rounds: u64) {}
    fn round(&self, _what: &str) {}
}

/// Returns a small experiment of for_each_case kind; with `verify` it compares every byte of for_each_case value.
fn experiments(verify: bool) -> Vec<Box<dyn Experiment>> {
    let items = || Items::new(KEY_BYTES).expect("a length");
    let latency = Latency {
        operations: vec![Operation::Get, Operation::Mix],
        sizes: vec![VALUE_BYTES],
        iterations: 60,
        keys: 50,
        verify,
        items: items(),
    };
    let standard = NonBlocking::standard(true, verify, KEY_BYTES).expect("a length");
    let nonblocking = NonBlocking { sizes: vec![VALUE_BYTES], keys_max: 50, ..standard };
    let blocks = Blocks {
        pair_bytes: 10 * VALUE_BYTES as u64,
        block_bytes: Some(VALUE_BYTES),
        total_bytes: 80 * VALUE_BYTES as u64,
        window: 8,
        verify,
        items: items(),
    };
    let hybrid = Hybrid {
        memory_bytes: Some(50 * VALUE_BYTES as u64),
        spill_factor: 1.0,
        value_bytes: VALUE_BYTES,
        reads: 100,
        ..Hybrid::standard(true, verify, KEY_BYTES).expect("a length")
    };
    let load = |get_share| {
        let mut load = Load::new(50, KEY_BYTES, SECONDS, verify);
        load.work.get_share = get_share;
        load
    };
    let standard = Throughput::standard(true, verify, KEY_BYTES).expect("a length");
    let throughput = Throughput { sizes: vec![VALUE_BYTES], clients: vec![4], load: load(1.0), ..standard };
    let mixture = Mixture { averages: vec![2_048.0], clients: vec![4], load: load(0.9) };
    let multiget =
        Multiget { batches: vec![1, 12], sizes: vec![VALUE_BYTES], clients: vec![4], load: load(1.0) };
    vec![
        Box::new(latency),
        Box::new(nonblocking),
        Box::new(blocks),
        Box::new(hybrid),
        Box::new(throughput),
        Box::new(mixture),
        Box::new(multiget),
    ]
}

/// Returns a socket path that no other test uses.
fn socket_path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("fabcache-broken-{}-{number}", std::process::id()))
}

fn listeners() -> [Listen; 2] {
    [Listen::Tcp(([127, 0, 0, 1], 0).into()), Listen::Unix(socket_path())]
}

/// Runs an experiment against a dummy, with `fault` if given.
fn outcome(
    experiment: &dyn Experiment,
    fault: Option<Fault>,
    place: Listen,
    protocol: Protocol,
) -> Result<Results> {
    let dummy = Dummy::start(&Settings { fault, ..Settings::new(vec![place]) })?;
    // Some measurements key their fill record on the target's name.
    let url = &dummy.urls()[0];
    let mut target = Target::new(&format!("dummy at {url}"), &[url.parse()?], protocol)?;
    if fault.is_some_and(|fault| matches!(fault.kind, Kind::Dropped | Kind::Swapped)) {
        target.timeout = TIMEOUT;
    }
    run(experiment, &[(&target, None)], &Plan { rounds: 1, ..Plan::default() }, &NoProgress)
}

/// Calls `check` for each experiment, protocol and socket kind, concurrently: most of the time is
/// waiting.
fn for_each_case(check: impl Fn(&dyn Experiment, Listen, Protocol, &str) + Sync) {
    std::thread::scope(|scope| {
        for number in 0..experiments(true).len() {
            for protocol in PROTOCOLS {
                for place in listeners() {
                    let check = &check;
                    scope.spawn(move || {
                        let experiment = experiments(true).swap_remove(number);
                        let what = format!("{}, {}, {place}", experiment.name(), protocol_name(protocol));
                        check(&*experiment, place, protocol, &what);
                    });
                }
            }
        }
    });
}

fn assert_detected(faults: &[&str]) {
    for fault in faults {
        let parsed: Fault = fault.parse().expect(fault);
        for_each_case(|experiment, place, protocol, what| {
            if (protocol, parsed.kind, parsed.of_sets) == (Protocol::Text, Kind::Swapped, true) {
                // All STORED responses are equal, so a swap changes nothing.
                return;
            }
            let what = format!("{what}, {fault}");
            let error = outcome(experiment, Some(parsed), place, protocol).map(drop).expect_err(&what);
            let text = format!("{error:#}");
            assert!(text.contains(experiment.name()) && text.contains("bench-"), "{what}: {text}");
            let late = parsed.kind.is_of_values() && text.contains("no answer");
            assert!(!late, "{what}: the response arrived: {text}");
        });
    }
}

#[test]
fn a_correct_server_passes() {
    for_each_case(|experiment, place, protocol, what| {
        let results = outcome(experiment, None, place, protocol);
        let results = results.unwrap_or_else(|error| panic!("{what}: {error:#}"));
        let samples = &results.samples;
        let verified: u64 = samples.iter().map(|sample| sample.verified).sum();
        assert!(verified > 0, "{what}");
        assert!(samples.iter().all(|sample| sample.misses == 0 && sample.errors == 0), "{what}");
    });
}

#[test]
fn wrong_get_responses_are_detected() {
    assert_detected(&GET_FAULTS);
}

#[test]
fn wrong_set_responses_are_detected() {
    assert_detected(&SET_FAULTS);
}

#[test]
fn only_a_full_comparison_detects_a_wrong_middle_byte() {
    // The shortest values of a mixture end before the middle byte.
    for experiment in experiments(false).into_iter().filter(|experiment| experiment.name() != "mixture") {
        let fault = |text: &str| Some(text.parse().expect(text));
        let [place, other] = listeners();
        let results = outcome(&*experiment, fault("wrong@10"), place, Protocol::Meta);
        let results = results.expect("length and number are right");
        assert!(results.samples.iter().all(|sample| sample.verified == 0));
        let error = outcome(&*experiment, fault("foreign@10"), other, Protocol::Meta).map(drop);
        let text = format!("{:#}", error.expect_err(experiment.name()));
        assert!(text.contains("bench-"), "{text}");
    }
}

/// Acknowledges every set and stores nothing.
fn forget(stream: &TcpStream) -> std::io::Result<()> {
    let mut input = BufReader::new(stream);
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["set", _, _, _, len] => {
                let len: u64 = len.parse().expect("a length");
                std::io::copy(&mut (&mut input).take(len + 2), &mut std::io::sink())?;
                "STORED\r\n"
            }
            ["get" | "gets", ..] | ["stats", ..] => "END\r\n",
            ["version"] => "VERSION 1.6.0\r\n",
            _ => "ERROR\r\n",
        };
        (&mut &*stream).write_all(answer.as_bytes())?;
        line.clear();
    }
    Ok(())
}

#[test]
fn a_server_that_stores_nothing_is_detected() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("tcp://{}", listener.local_addr().expect("a port"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.expect("a connection");
            // Ends when the client disconnects.
            std::thread::spawn(move || drop(forget(&stream)));
        }
    });
    let target = Target::new("t", &[url.parse().expect("a URL")], Protocol::Text).expect("it is up");
    let latency = Latency {
        operations: vec![Operation::Set],
        sizes: vec![VALUE_BYTES],
        iterations: 60,
        keys: 50,
        verify: true,
        items: Items::new(KEY_BYTES).expect("a length"),
    };
    let plan = Plan { rounds: 1, ..Plan::default() };
    let error = run(&latency, &[(&target, None)], &plan, &NoProgress).expect_err("nothing is stored");
    let error = format!("{error:#}");
    assert!(error.contains("no value under the key bench-00000000000049"), "{error}");
}
