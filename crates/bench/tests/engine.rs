//! Many clients of a real server, over TCP, Unix sockets and shared memory, in each protocol; and of
//! broken servers.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use common::TestServer;
use common::clients::{filled, plan, work};
use fabcache_bench::engine::{Arrivals, Engine, Outcome, Pace, Plan, Popularity, Round, Sizes, Work};
use fabcache_bench::items::Items;
use fabcache_bench::mixture::Olio;

const KEYS: u64 = 500;

fn round(pace: Pace, duration_ms: u64) -> Round {
    Round { pace, duration_ns: duration_ms * 1_000_000, seed: 7 }
}

fn run(plan: &Plan, round: &Round) -> anyhow::Result<Outcome> {
    Engine::connect(plan)?.run(round)
}

/// Asserts that every key was found and every byte was right.
fn assert_right(outcome: &Outcome, reads_only: bool, what: &str) {
    assert!(outcome.operations > 0 && outcome.misses == 0, "{what}: {outcome:?}");
    assert!(outcome.verified > 0 && outcome.verified <= outcome.operations, "{what}: {outcome:?}");
    assert!(!reads_only || outcome.verified == outcome.operations, "{what}: {outcome:?}");
    assert!(outcome.elapsed_ns > 0 && outcome.unsent == 0, "{what}: {outcome:?}");
}

#[test]
fn every_response_is_right_in_each_protocol() {
    let (unix, tcp) = (TestServer::start("engine", ""), TestServer::tcp());
    for url in [tcp.url("tcp"), unix.url("unix")] {
        for protocol in ["text", "meta", "binary", "auto"] {
            for (pipeline, batch, get_share) in [(1, 1, 1.0), (16, 1, 0.8), (1, 48, 1.0), (3, 7, 0.5)] {
                let work = Work { pipeline, batch, get_share, ..work(KEYS, Sizes::Same(300)) };
                let what = format!("{url} {protocol} {work:?}");
                let plan =
                    Plan { clients: 5, threads: 2, ..plan(std::slice::from_ref(&url), protocol, &work) };
                filled(&plan);
                let outcome = run(&plan, &round(Pace::Closed, 30)).expect(&what);
                assert_right(&outcome, get_share == 1.0, &what);
                assert_eq!(outcome.value_bytes, outcome.operations * 300, "{what}");
                let requests: u64 = outcome.latency.iter().map(|latency| latency.count()).sum();
                if batch == 1 {
                    assert_eq!(requests, outcome.operations, "{what}");
                }
            }
        }
    }
}

#[test]
fn keys_map_to_the_client_librarys_servers() {
    let servers = [TestServer::tcp(), TestServer::tcp(), TestServer::tcp()];
    let urls: Vec<String> = servers.iter().map(|server| server.url("tcp")).collect();
    for protocol in ["text", "meta", "binary"] {
        for batch in [1, 20] {
            let work = Work { batch, pipeline: 2, ..work(KEYS, Sizes::Same(40)) };
            let plan = Plan { clients: 3, ..plan(&urls, protocol, &work) };
            filled(&plan);
            let outcome = run(&plan, &round(Pace::Closed, 30)).expect("right answers");
            assert_right(&outcome, true, protocol);
            assert_eq!(outcome.operations % batch as u64, 0);
        }
    }
}

#[test]
fn shared_memory_clients_get_right_responses() {
    let server = TestServer::start("engine-shm", "");
    let url = server.url("shm");
    for (pipeline, batch, get_share) in [(1, 1, 1.0), (1, 1, 0.5), (8, 1, 0.5), (1, 48, 1.0)] {
        let work = Work { pipeline, batch, get_share, ..work(KEYS, Sizes::Same(300)) };
        let plan = Plan { clients: 2, ..plan(std::slice::from_ref(&url), "auto", &work) };
        filled(&plan);
        let outcome = run(&plan, &round(Pace::Closed, 30)).expect("right answers");
        assert_right(&outcome, get_share == 1.0, &format!("{work:?}"));
        let pace = Pace::Open { rate_per_s: 2_000.0, arrivals: Arrivals::Even };
        let outcome = run(&plan, &round(pace, 50)).expect("right answers");
        let requests: u64 = outcome.latency.iter().map(|latency| latency.count()).sum();
        assert!((98..=102).contains(&requests), "{outcome:?}");
    }
    let both = Work { pipeline: 8, batch: 48, ..work(KEYS, Sizes::Same(300)) };
    let error = Engine::connect(&plan(&[url], "auto", &both)).expect_err("not both");
    assert!(error.to_string().contains("many keys"), "{error}");
}

#[test]
fn requests_complete_when_answered() {
    let server = TestServer::start("engine-rare", "");
    // Eight in flight, 20 ms apart: the first completes long before its slot is needed again.
    for get_share in [0.0, 1.0] {
        let work = Work { pipeline: 8, get_share, ..work(KEYS, Sizes::Same(100)) };
        let plan = plan(&[server.url("shm")], "auto", &work);
        filled(&plan);
        let pace = Pace::Open { rate_per_s: 50.0, arrivals: Arrivals::Even };
        let is_short = |_| {
            let outcome = run(&plan, &round(pace, 500)).expect("right answers");
            assert!((24..=26).contains(&outcome.operations), "{outcome:?}");
            let median_ms = outcome.all_latency().percentile_ns(50.0) / 1e6;
            println!("{median_ms} ms, {outcome:?}");
            median_ms < 60.0
        };
        // A round in which the machine stalled proves nothing.
        assert!((0..5).any(is_short), "they end when the next is due, a hundred milliseconds later");
    }
}

#[test]
fn sizes_depend_on_numbers_and_misses_are_counted() {
    let server = TestServer::tcp();
    let olio = Olio::of_average(4_096.0).expect("an average");
    let work = Work { popularity: Popularity::Zipf(1.0), get_share: 0.9, ..work(KEYS, Sizes::Olio(olio)) };
    let some = Plan { clients: 4, ..plan(&[server.url("tcp")], "meta", &work) };
    filled(&some);
    let outcome = run(&some, &round(Pace::Closed, 50)).expect("right answers");
    assert_right(&outcome, false, "a mixture");
    assert_eq!(outcome.latency.len(), 3);
    for protocol in ["text", "meta", "binary"] {
        for batch in [1, 10] {
            let beyond = Work {
                keys: KEYS * 2,
                batch,
                popularity: Popularity::Uniform,
                get_share: 1.0,
                ..work.clone()
            };
            let plan = plan(&[server.url("tcp")], protocol, &beyond);
            let outcome = run(&plan, &round(Pace::Closed, 30)).expect("right answers");
            assert!(outcome.misses > 0 && outcome.verified > 0, "{protocol}: {outcome:?}");
            assert_eq!(outcome.misses + outcome.verified, outcome.operations, "{protocol}: {outcome:?}");
        }
    }
}

#[test]
fn wrong_values_are_detected() {
    let server = TestServer::tcp();
    let plan = |bytes, verify| {
        let work = Work { verify, ..work(KEYS, Sizes::Same(bytes)) };
        plan(&[server.url("tcp")], "meta", &work)
    };
    filled(&plan(100, true));
    for verify in [false, true] {
        let error = run(&plan(101, verify), &round(Pace::Closed, 30)).expect_err("they have 100 bytes");
        let error = format!("{error:#}");
        assert!(error.contains("bench-") && error.contains("100 bytes, not 101"), "{error}");
    }
}

#[test]
fn an_open_loop_keeps_its_rate() {
    let server = TestServer::tcp();
    let plan =
        Plan { clients: 4, threads: 2, ..plan(&[server.url("tcp")], "text", &work(KEYS, Sizes::Same(100))) };
    filled(&plan);
    for arrivals in [Arrivals::Even, Arrivals::Poisson] {
        let pace = Pace::Open { rate_per_s: 2_000.0, arrivals };
        let outcome = run(&plan, &round(pace, 200)).expect("right answers");
        let made = outcome.operations + outcome.unsent;
        let slack = if arrivals == Arrivals::Even { 2 } else { 120 };
        assert!(made.abs_diff(400) <= slack, "{arrivals:?}: {outcome:?}");
        assert_eq!(outcome.latency[0].count(), made);
    }
    // The second and last request is due after 100 ms: the rate is an average over the whole round.
    let pace = Pace::Open { rate_per_s: 20.0, arrivals: Arrivals::Even };
    let outcome = run(&plan, &round(pace, 200)).expect("right answers");
    assert!(outcome.elapsed_ns >= 200_000_000, "{outcome:?}");
}

/// Starts a text server for one connection: `answer` receives each key in turn and returns the bytes to
/// send.
fn broken(answer: impl FnMut(u64, &str) -> Vec<u8> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("tcp://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a client");
        serve(stream, answer)
    });
    url
}

fn serve(mut stream: TcpStream, mut answer: impl FnMut(u64, &str) -> Vec<u8>) {
    let lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
    for (at, line) in lines.map_while(Result::ok).enumerate() {
        let key = line.strip_prefix("get ").expect("a get");
        if stream.write_all(&answer(at as u64, key)).is_err() {
            return;
        }
    }
}

/// The items, generated once: that takes a while.
static ITEMS: LazyLock<Items> = LazyLock::new(|| Items::new(20).expect("a length"));

/// Returns the correct response.
fn right(key: &str) -> Vec<u8> {
    let number: u64 = key.trim_start_matches("bench-").parse().expect("a number");
    let mut value = Vec::new();
    ITEMS.value(number, 100, &mut value);
    [format!("VALUE {key} 0 100\r\n").as_bytes(), &value, b"\r\nEND\r\n"].concat()
}

#[test]
fn a_stall_delays_every_due_request() {
    const STALL: Duration = Duration::from_millis(300);
    const RATE: f64 = 1_000.0;
    let stalls = || {
        broken(|at, key| {
            if at == 100 {
                std::thread::sleep(STALL);
            }
            right(key)
        })
    };
    LazyLock::force(&ITEMS);
    // Returns the number of requests that took at least this long.
    let long = |outcome: &Outcome| {
        let latency = &outcome.latency[0];
        let shorter = latency.cumulative().take_while(|(ns, _)| *ns < 100e6).last();
        let part = 1.0 - shorter.map_or(0.0, |(_, part)| part);
        (latency.count() as f64 * part).round() as u64
    };
    let with = |pace| {
        let plan = plan(&[stalls()], "text", &work(KEYS, Sizes::Same(100)));
        run(&plan, &round(pace, 600)).expect("right answers")
    };
    // Requests due in the first 200 ms of the stall waited at least 100 ms of it, on any machine.
    let open = long(&with(Pace::Open { rate_per_s: RATE, arrivals: Arrivals::Even }));
    assert!(open >= 199, "{open}");
    // A closed-loop client does not send during the stall, though the server behaved the same.
    let closed = long(&with(Pace::Closed));
    assert!(closed <= 10, "{closed}");
}

#[test]
fn unsent_requests_are_counted_with_their_latency() {
    let slow = broken(|_, key| {
        std::thread::sleep(Duration::from_millis(20));
        right(key)
    });
    let plan = plan(&[slow], "text", &work(KEYS, Sizes::Same(100)));
    let pace = Pace::Open { rate_per_s: 1_000.0, arrivals: Arrivals::Even };
    let begun = Instant::now();
    let outcome = run(&plan, &round(pace, 200)).expect("right answers");
    assert!(outcome.unsent >= 170 && outcome.operations >= 1, "{outcome:?}");
    assert!((199..=201).contains(&(outcome.operations + outcome.unsent)), "{outcome:?}");
    assert_eq!(outcome.latency[0].count(), outcome.operations + outcome.unsent);
    assert!(begun.elapsed() >= Duration::from_millis(400), "others are given time");
}

#[test]
fn broken_servers_fail_with_the_key() {
    let wrong_byte = |at, key: &str| {
        let mut answer = right(key);
        let last = answer.len() - 9;
        answer[last] ^= u8::from(at == 20);
        answer
    };
    let short = |at, key: &str| {
        if at == 20 { format!("VALUE {key} 0 3\r\nabc\r\nEND\r\n").into_bytes() } else { right(key) }
    };
    let dropped = |at, key: &str| if at == 20 { Vec::new() } else { right(key) };
    let other = |at, key: &str| right(if at == 20 { "bench-00000000009999" } else { key });
    let mut held = Vec::new();
    let reordered = move |at, key: &str| match at {
        20 => {
            held = right(key);
            Vec::new()
        }
        21 => [right(key), std::mem::take(&mut held)].concat(),
        _ => right(key),
    };
    let refuses = |at, key: &str| if at == 20 { b"SERVER_ERROR busy\r\n".to_vec() } else { right(key) };
    let nonsense = |at, key: &str| if at == 20 { b"\x00\xff\r\n".to_vec() } else { right(key) };
    for (url, reported) in [
        (broken(wrong_byte), "a wrong value under the key bench-"),
        (broken(short), "3 bytes, not 100"),
        (broken(dropped), "waiting for the answer to get bench-"),
        (broken(other), "waiting for the answer to get bench-"),
        (broken(reordered), "waiting for the answer to get bench-"),
        (broken(refuses), "busy"),
        (broken(nonsense), "no answer"),
    ] {
        // Several in flight: the next response reveals the missing one. Many keys: none twice in a row.
        let work = Work { pipeline: 8, ..work(1_000_000, Sizes::Same(100)) };
        let error = run(&plan(&[url], "text", &work), &round(Pace::Closed, 5_000)).expect_err(reported);
        let error = format!("{error:#}");
        assert!(error.contains(reported) && error.contains("bench-"), "{reported}: {error}");
    }
}

#[test]
fn a_closed_connection_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("tcp://{}", listener.local_addr().expect("an address"));
    let hangs_up = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).expect("a request");
        stream.write_all(b"VALUE ").expect("it listens");
    });
    let error = run(&plan(&[url], "text", &work(KEYS, Sizes::Same(100))), &round(Pace::Closed, 5_000));
    let error = format!("{:#}", error.expect_err("it hung up"));
    assert!(error.contains("bench-"), "{error}");
    hangs_up.join().expect("no panic");
}
