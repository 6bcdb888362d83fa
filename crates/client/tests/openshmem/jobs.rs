//! The jobs of the tests, and their clients.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fabcache_client::distribution::Mapping;
use fabcache_client::{Address, Client, Distribution, Options};
use fabcache_testbed::openshmem::{Job, JobOptions};
use fabcache_testbed::wait::time_max;

use crate::common::versions::{StopWhenDropped, floors, read, write};

/// Returns the number of PEs.
pub fn pes() -> usize {
    std::env::var("FABCACHE_PES").map_or(2, |pes| pes.parse().expect("FABCACHE_PES is a number"))
}

/// Returns `long` with `FABCACHE_LONG`, else `usual`.
pub fn amount(usual: usize, long: usize) -> usize {
    if std::env::var_os("FABCACHE_LONG").is_some() { long } else { usual }
}

/// Starts a job, with options of its servers.
#[track_caller]
pub fn started(options: &str) -> Job {
    start(&JobOptions::new(pes()).server(options))
}

/// Like [`started`], for tests whose results do not allow that a PE counts as stopped because the machine is busy.
#[track_caller]
pub fn started_patient(options: &str) -> Job {
    started(&format!("{options} --openshmem-timeout {}", time_max().as_millis()))
}

#[track_caller]
pub fn start(options: &JobOptions) -> Job {
    options.start().unwrap_or_else(|error| panic!("{error:#}"))
}

/// Options of clients that fail when nothing has happened for a minute, and request again at once when they have failed.
pub fn options() -> Options {
    let (timeout, retry_after) = (time_max(), Duration::from_millis(1));
    Options { timeout, connect_timeout: timeout, retry_after, ..Options::default() }
}

/// Returns the address of a PE's socket.
pub fn unix(job: &Job, pe: usize) -> String {
    format!("unix://{}", job.socket(pe).display())
}

/// Returns a client of a PE's socket.
pub fn through(job: &Job, pe: usize) -> Client {
    Client::new([unix(job, pe)], options()).expect("an address")
}

/// Returns a client of each PE's socket.
pub fn through_all(job: &Job) -> Vec<Client> {
    (0..job.pes()).map(|pe| through(job, pe)).collect()
}

/// Writes keys through each PE, and verifies reads of them until each PE's readers have found enough. `connect` returns a client of
/// a PE's readers, and `writers` the PEs through which what these read is written.
pub fn read_under_load(job: &Job, connect: impl Fn(usize) -> Client, writers: impl Fn(usize) -> Vec<usize>) {
    let reads = amount(4_000, 200_000) as u64;
    let ledgers: Vec<_> = (0..job.pes()).map(|pe| floors(&format!("through{pe}"))).collect();
    let hits: Vec<AtomicU64> = (0..job.pes()).map(|_| AtomicU64::new(0)).collect();
    let (ended, ledgers) = (&AtomicBool::new(false), &ledgers);
    thread::scope(|scope| {
        for (pe, hits) in hits.iter().enumerate() {
            let writer = through(job, pe);
            scope.spawn(move || write(&writer, &ledgers[pe], ended));
            for number in writers(pe) {
                let reader = connect(pe);
                let seed = (pe * ledgers.len() + number) as u64;
                scope.spawn(move || {
                    read(&reader, seed, &ledgers[number], ended, || {
                        hits.fetch_add(1, Ordering::Relaxed);
                    });
                });
            }
        }
        let _stop = StopWhenDropped(ended);
        let done = || hits.iter().map(|hits| hits.load(Ordering::Relaxed).min(reads)).sum();
        until_done(reads * job.pes() as u64, done);
    });
}

/// Waits until `done` returns `all`, as long as it grows.
///
/// # Panics
/// It has not grown for a minute.
pub fn until_done(all: u64, done: impl Fn() -> u64) {
    let (mut last, mut since) = (0, Instant::now());
    loop {
        let now = done();
        if now >= all {
            return;
        }
        if now > last {
            (last, since) = (now, Instant::now());
        }
        assert!(since.elapsed() < time_max(), "no progress after {now} of {all}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Which PE has which key, by the PEs' names.
pub struct Owners(Mapping);

impl Owners {
    pub fn of(job: &Job) -> Owners {
        let address = |pe| job.address(pe).to_string().parse::<Address>().expect("an address");
        let addresses: Vec<Address> = (0..job.pes()).map(address).collect();
        Owners(Mapping::new(&Distribution::Ketama, &addresses, |_| true))
    }

    pub fn owner(&self, key: &str) -> usize {
        self.0.server_of(key.as_bytes()).expect("there are PEs")
    }

    /// Returns the first keys of a PE whose names begin so.
    pub fn keys(&self, pe: usize, name: &str, count: usize) -> Vec<String> {
        let keys = (0..).map(|number| format!("{name}{number}"));
        keys.filter(|key| self.owner(key) == pe).take(count).collect()
    }
}
