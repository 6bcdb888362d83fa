//! The jobs of the tests, and their clients.

use std::thread;
use std::time::{Duration, Instant};

use fabcache_client::distribution::Mapping;
use fabcache_client::{Address, Client, Distribution, Options};
use fabcache_testbed::openshmem::{Job, JobOptions};
use fabcache_testbed::wait::time_max;

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
