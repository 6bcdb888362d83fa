//! PEs that are stopped or killed: the others go on, what is read is right, and changes count at most once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fabcache_client::{Client, Error, Failure, Ttl};
use fabcache_testbed::openshmem::{Job, JobOptions};
use fabcache_testbed::random::SplitMix64;
use rustix::process::Signal;

use crate::common::process::{until_up, wait_until};
use crate::common::versions::{StopWhenDropped, floors, read, write};
use crate::jobs::{Owners, amount, pes, start, started, through, through_all};

/// Requests for keys of PEs that run take at most this long.
const SOON: Duration = Duration::from_secs(2);
/// So do requests for keys of another PE: they are given up after 5 s.
const BOUNDED: Duration = Duration::from_secs(7);
/// Until a PE that shows no sign of life is taken to be stopped: more than its time of 2 s.
const NOTICED: Duration = Duration::from_millis(3_500);
/// A stop does not wait for a PE that does not respond, as it does for others.
const STOPPED: Duration = Duration::from_secs(6);
const KEYS: usize = 5;

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change<T> {
    Made(T),
    NotMade,
    Unknown,
}

fn change<T>(result: Result<T, Error>) -> Change<T> {
    match result {
        Ok(value) => Change::Made(value),
        Err(Error::Server { failure: Failure::Refused(why), .. }) => {
            if why.contains("nothing was changed") {
                Change::NotMade
            } else {
                assert!(why.contains("whether it was changed is unknown"), "{why}");
                Change::Unknown
            }
        }
        Err(error) => panic!("{error}"),
    }
}

#[track_caller]
fn within<T>(time_max: Duration, call: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = call();
    assert!(began.elapsed() < time_max, "it took {:?}", began.elapsed());
    result
}

/// Reads and writes keys of PEs that run, through each of them.
fn go_on(clients: &[Client], owners: &Owners, running: &[usize]) {
    for through in running {
        for owner in running {
            for key in owners.keys(*owner, "key", KEYS) {
                let client = &clients[*through];
                within(SOON, || client.set(key.as_bytes(), key.as_bytes(), Ttl::NEVER)).expect("stored");
                let item = within(SOON, || client.get(key.as_bytes())).expect("answered").expect("there");
                assert_eq!(item.value, key.as_bytes());
            }
        }
    }
}

/// Requests keys of a PE that does not respond, through each of the others.
fn miss(clients: &[Client], owners: &Owners, running: &[usize], lost: usize, time_max: Duration) {
    for through in running {
        for key in owners.keys(lost, "key", 2) {
            let client = &clients[*through];
            let found = within(time_max, || client.get(key.as_bytes())).expect("answered");
            // Its memory may still be readable.
            assert!(found.is_none_or(|item| item.value == key.as_bytes()), "{key}");
            let stored = within(time_max, || client.set(key.as_bytes(), key.as_bytes(), Ttl::NEVER));
            assert!(!matches!(change(stored), Change::Made(())), "{key}: stored by a PE that is stopped");
        }
    }
}

fn all_but(lost: usize) -> Vec<usize> {
    (0..pes()).filter(|pe| *pe != lost).collect()
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn others_go_on_while_a_pe_is_stopped() {
    let job = started("-m 32");
    let (clients, owners) = (through_all(&job), Owners::of(&job));
    let all: Vec<usize> = (0..job.pes()).collect();
    for stopped in [job.pes() - 1, 0].into_iter().take(amount(1, 2)) {
        let running = all_but(stopped);
        go_on(&clients, &owners, &all);
        job.stop(stopped);
        go_on(&clients, &owners, &running);
        miss(&clients, &owners, &running, stopped, BOUNDED);
        thread::sleep(NOTICED);
        go_on(&clients, &owners, &running);
        miss(&clients, &owners, &running, stopped, SOON);
        let flushed = within(BOUNDED, || clients[running[0]].flush(0));
        let why = flushed.expect_err("not all PEs are flushed").to_string();
        assert!(why.contains("not all servers of the job"), "{why}");
        for owner in &running {
            for key in owners.keys(*owner, "key", KEYS) {
                assert_eq!(clients[running[0]].get(key.as_bytes()).expect("answered"), None, "{key}");
            }
        }
        job.resume(stopped);
        until_reachable(&job, &owners, stopped);
        go_on(&clients, &owners, &all);
    }
}

/// Waits until each PE stores what belongs to this one.
fn until_reachable(job: &Job, owners: &Owners, pe: usize) {
    let key = owners.keys(pe, "reachable", 1).remove(0);
    for through in through_all(job) {
        until_up(|| through.set(key.as_bytes(), b"", Ttl::NEVER).is_ok());
    }
}

/// Increments a counter until the end; returns how many increments were made, and of how many that is unknown.
fn increment(client: &Client, key: &str, ended: &AtomicBool) -> (u64, u64) {
    let (mut made, mut unknown, mut last) = (0, 0, 0);
    while !ended.load(Ordering::Relaxed) {
        match change(client.incr(key.as_bytes(), 1)) {
            Change::Made(value) => {
                let value = value.expect("the counter is there");
                assert!(value > last, "{value} after {last}");
                (made, last) = (made + 1, value);
            }
            Change::NotMade => thread::sleep(Duration::from_millis(1)),
            Change::Unknown => unknown += 1,
        }
    }
    (made, unknown)
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn increments_count_at_most_once_while_their_pe_is_stopped() {
    let job = started("-m 32");
    let owners = Owners::of(&job);
    let stopped = job.pes() - 1;
    let key = owners.keys(stopped, "counter", 1).remove(0);
    through(&job, 0).set(key.as_bytes(), b"0", Ttl::NEVER).expect("stored");
    let ended = AtomicBool::new(false);
    let counts = thread::scope(|scope| {
        let counting: Vec<_> = all_but(stopped)
            .into_iter()
            .map(|pe| {
                let (client, key, ended) = (through(&job, pe), &key, &ended);
                scope.spawn(move || increment(&client, key, ended))
            })
            .collect();
        let stop = StopWhenDropped(&ended);
        for _ in 0..amount(1, 10) {
            // Not noticed; so long that the PE is noticed, and that requests would be given up.
            for milliseconds in [200, 6_500] {
                job.stop(stopped);
                thread::sleep(Duration::from_millis(milliseconds));
                job.resume(stopped);
                until_reachable(&job, &owners, stopped);
                thread::sleep(Duration::from_millis(200));
            }
        }
        drop(stop);
        counting.into_iter().map(|counting| counting.join().expect("it counted")).collect::<Vec<_>>()
    });
    let made: u64 = counts.iter().map(|(made, _)| made).sum();
    let unknown: u64 = counts.iter().map(|(_, unknown)| unknown).sum();
    let value = |client: &Client| {
        let item = client.get(key.as_bytes()).expect("answered").expect("there");
        String::from_utf8_lossy(&item.value).trim().parse::<u64>().expect("a number")
    };
    let clients = through_all(&job);
    let first = value(&clients[0]);
    assert!((made..=made + unknown).contains(&first), "{first}, of {made} and perhaps {unknown}");
    thread::sleep(Duration::from_secs(1));
    for client in &clients {
        assert_eq!(value(client), first, "a late increment");
    }
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn reads_are_right_while_pes_are_stopped() {
    let job = started("-m 32");
    let hits: Vec<AtomicU64> = (0..job.pes()).map(|_| AtomicU64::new(0)).collect();
    let ledgers: Vec<_> = (0..job.pes()).map(|pe| floors(&format!("through{pe}"))).collect();
    let (ended, ledgers) = (&AtomicBool::new(false), &ledgers);
    thread::scope(|scope| {
        for (pe, hits) in hits.iter().enumerate() {
            let (writer, reader) = (through(&job, pe), through(&job, pe));
            scope.spawn(move || write(&writer, &ledgers[pe], ended));
            // What another PE's client writes.
            let ledger = &ledgers[(pe + 1) % ledgers.len()];
            scope.spawn(move || {
                read(&reader, pe as u64, ledger, ended, || {
                    hits.fetch_add(1, Ordering::Relaxed);
                });
            });
        }
        let _stop = StopWhenDropped(ended);
        let mut random = SplitMix64::new(u64::from(std::process::id()));
        for round in 0..amount(3, 40) {
            let stopped = random.below(job.pes());
            let milliseconds = if round % 3 == 2 { 6_000 } else { random.between(50, 2_500) };
            job.stop(stopped);
            thread::sleep(Duration::from_millis(milliseconds as u64));
            job.resume(stopped);
            let before: Vec<u64> = hits.iter().map(|hits| hits.load(Ordering::Relaxed)).collect();
            let go_on =
                || hits.iter().zip(&before).all(|(hits, before)| hits.load(Ordering::Relaxed) > before + 50);
            wait_until("all clients read again", go_on);
        }
    });
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn killed_pe_ends_the_job() {
    let mut job = started("-m 32");
    job.signal(job.pes() - 1, Signal::KILL);
    let status = job.wait(Duration::from_secs(30)).expect("the launcher ends the job");
    assert!(!status.success(), "{status}{}", job.output_tail());
    wait_until("no process is left", || job.processes().is_empty());
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn others_go_on_after_a_kill_with_recovery() {
    let mut job = start(&JobOptions::new(pes()).launcher("--enable-recovery").server("-m 32"));
    let (clients, owners) = (through_all(&job), Owners::of(&job));
    let killed = job.pes() - 1;
    let running = all_but(killed);
    go_on(&clients, &owners, &running);
    job.signal(killed, Signal::KILL);
    go_on(&clients, &owners, &running);
    miss(&clients, &owners, &running, killed, BOUNDED);
    thread::sleep(NOTICED);
    go_on(&clients, &owners, &running);
    miss(&clients, &owners, &running, killed, SOON);
    for pe in &running {
        job.signal(*pe, Signal::TERM);
    }
    let ended = job.wait(STOPPED);
    assert!(ended.is_some(), "the others do not stop{}", job.output_tail());
    assert!(job.processes().is_empty(), "{:?} are left", job.processes());
}
