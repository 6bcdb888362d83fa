//! Counters that many clients increment through all PEs count each increment once.

use std::process::Child;
use std::thread;

use fabcache_client::{Client, Ttl};

use crate::common::process::{Process, again};
use crate::jobs::{amount, options, started_patient, through, through_all, unix};

/// Two counters, then, are on different PEs nearly surely.
const COUNTERS: usize = 8;
const THREADS_OF_PE: usize = 2;
const PROCESSES_OF_PE: usize = 2;
const ADDRESS: &str = "FABCACHE_TEST_ADDRESS";
const ROUNDS: &str = "FABCACHE_TEST_ROUNDS";

fn counter(number: usize) -> Vec<u8> {
    format!("counter{number}").into_bytes()
}

/// Increments each counter once a round. The client's own counter has counted exactly what it did itself.
fn increment(client: &Client, rounds: usize, own: &str) {
    client.set(own.as_bytes(), b"0", Ttl::NEVER).expect("stored");
    for round in 1..=rounds as u64 {
        for number in 0..COUNTERS {
            client.incr(&counter(number), 1).expect("answered").expect("there");
        }
        assert_eq!(client.incr(own.as_bytes(), 1).expect("answered"), Some(round), "{own}");
    }
}

#[test]
#[ignore = "a client, run by the others"]
fn client_process() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let rounds = std::env::var(ROUNDS).expect("run by another test").parse().expect("a number");
    let client = Client::new([address], options()).expect("an address");
    increment(&client, rounds, &format!("process{}", std::process::id()));
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn each_increment_counts_once() {
    increment_everywhere("-m 32", amount(100, 5000));
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn each_increment_counts_once_with_mutexes() {
    increment_everywhere("-m 32 --openshmem-mutex", amount(50, 1000));
}

/// Starts a job with these options, and lets clients of all PEs increment counters.
fn increment_everywhere(options: &str, rounds: usize) {
    let job = started_patient(options);
    let first = through(&job, 0);
    for number in 0..COUNTERS {
        first.set(&counter(number), b"0", Ttl::NEVER).expect("stored");
    }
    let start_process = |pe: usize| -> Child {
        let mut command = again("counters::client_process");
        command.env(ADDRESS, unix(&job, pe)).env(ROUNDS, rounds.to_string());
        command.spawn().expect("this program starts")
    };
    let processes: Vec<Process> = (0..job.pes() * PROCESSES_OF_PE)
        .map(|number| Process(start_process(number / PROCESSES_OF_PE)))
        .collect();
    thread::scope(|scope| {
        for number in 0..job.pes() * THREADS_OF_PE {
            let client = through(&job, number / THREADS_OF_PE);
            scope.spawn(move || increment(&client, rounds, &format!("thread{number}")));
        }
    });
    for mut process in processes {
        let status = process.0.wait().expect("a child");
        assert!(status.success(), "a client process reports why");
    }
    let expected = (rounds * job.pes() * (THREADS_OF_PE + PROCESSES_OF_PE)).to_string();
    for (pe, client) in through_all(&job).iter().enumerate() {
        for number in 0..COUNTERS {
            let found = client.get(&counter(number)).expect("answered").expect("there");
            let found = String::from_utf8_lossy(&found.value).into_owned();
            assert_eq!(found, expected, "counter {number} through PE {pe}");
        }
    }
}
