//! Restarts of servers that keep their items in a memory file (`-e`): how long a server is away, how fast it reads
//! afterwards, and which items it still has.
//!
//! A round starts a server with an empty file, stores the items, stops the server, starts it again with the same file,
//! and reads. Only the server of the round holds items.
//!
//! - `servers.rs`: starts and stops the servers; `reads.rs`: pipelined reads of random items.
//! - `table.rs`: the results.

mod reads;
pub mod servers;
mod table;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fabcache_testbed::cleanup::Folder;
use rustix::process::Signal;

use self::reads::{BATCH, Reads};
use self::servers::{RestartedServer, Servers};
pub use self::table::table;
use crate::experiment::{Experiment, Rounds};
use crate::fill::fill;
use crate::items::{self, Items};
use crate::results::{Case, Sample};
use crate::target::Target;

/// Bytes of a key.
const KEY_BYTES: usize = 20;
/// Upper bound of the memory beside key and value of an item, with its part of the index.
const OVERHEAD_BYTES: u64 = 60;
/// Memory of a server beside its items.
const SPARE_MEGABYTES: u64 = 64;
/// Items read to find how many the server still has.
const SAMPLE: u64 = 10_000;
/// Part of the speed before the stop at which the server has recovered.
const RECOVERED_PART: f64 = 0.9;
/// Duration of the reads before the stop.
const BEFORE_TIME: Duration = Duration::from_millis(500);
/// Reads that do not recover by then never do.
const RECOVERY_TIME_MAX: Duration = Duration::from_secs(30);
/// After so long without a hit, the server has lost its items.
const LOST_TIME: Duration = Duration::from_secs(1);
/// Time for a server to notice that its client disconnected. SIGUSR1 waits for connected clients.
const DISCONNECT_TIME: Duration = Duration::from_millis(20);
/// Pause between stop and start: memcached discards the items of a server that stopped in the same second of the clock.
const PAUSE: Duration = Duration::from_millis(1_100);

/// Names of the figures of a round.
mod figure {
    /// From the signal to the end of the process.
    pub const STOP_MS: &str = "stop_ms";
    /// From the start of the process to the first answer of a get.
    pub const FIRST_ANSWER_MS: &str = "first_answer_ms";
    /// From the start of the process to the end of the first window with the speed of before. Missing if no window has it.
    pub const RECOVERY_MS: &str = "recovery_ms";
    /// Part of the sampled items that were found after the start.
    pub const HIT_RATIO: &str = "hit_ratio";
    /// Hits per second before the stop.
    pub const HITS_BEFORE_PER_S: &str = "hits_before_per_s";
}

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// By SIGUSR1, which lets it keep its items.
    Clean,
    /// By SIGKILL.
    Kill,
}

/// The experiment.
#[derive(Debug)]
pub struct Restart {
    /// Numbers of items, each measured with every kind of stop.
    pub items: Vec<u64>,
    /// How the servers are stopped.
    pub stops: Vec<Stop>,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Whether to compare every byte of every value.
    pub verify: bool,
    /// Where the memory files are: on tmpfs or DAX.
    pub directory: PathBuf,
    /// The servers.
    pub servers: Servers,
}

impl Stop {
    /// Both.
    pub const ALL: [Stop; 2] = [Stop::Clean, Stop::Kill];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Stop::Clean => "clean",
            Stop::Kill => "kill",
        }
    }

    /// Returns the stop of this name.
    ///
    /// # Errors
    /// The name is unknown.
    pub fn of_name(name: &str) -> Result<Stop> {
        match Stop::ALL.into_iter().find(|stop| stop.name() == name) {
            Some(stop) => Ok(stop),
            None => bail!("unknown stop {name:?}; use clean or kill"),
        }
    }

    fn signal(self) -> Signal {
        match self {
            Stop::Clean => Signal::USR1,
            Stop::Kill => Signal::KILL,
        }
    }
}

impl Restart {
    /// Checks that the items fit in the machine's memory and in the directory of the memory files.
    ///
    /// # Errors
    /// They do not.
    pub fn check(&self) -> Result<()> {
        let items = self.items.iter().copied().max().context("no number of items")?;
        let needed = self.megabytes(items)?;
        let directory = self.directory.display();
        let free = rustix::fs::statvfs(&self.directory)
            .with_context(|| format!("cannot keep memory files in {directory}; give another --dir"))?;
        let free = (free.f_bavail * free.f_frsize) >> 20;
        ensure!(
            needed <= free,
            "{items} items need {needed} MB in {directory}, which has {free} MB free; give fewer --items or another --dir"
        );
        let available = available_megabytes()?;
        ensure!(
            needed <= available,
            "{items} items need {needed} MB of memory, and the machine has {available} MB available; give fewer --items"
        );
        Ok(())
    }

    /// Returns the `-m` with which both servers hold so many items, with room for memcached's slab classes.
    fn megabytes(&self, items: u64) -> Result<u64> {
        let item_bytes = (KEY_BYTES + self.value_bytes) as u64 + OVERHEAD_BYTES;
        let bytes = items.checked_mul(item_bytes * 3 / 2);
        let bytes = bytes.with_context(|| format!("{items} items exceed the address space"))?;
        Ok((bytes >> 20) + SPARE_MEGABYTES)
    }
}

impl Experiment for Restart {
    fn name(&self) -> &'static str {
        "restart"
    }

    fn method(&self) -> String {
        format!(
            "each round: a server with an empty memory file (-e) in {}, filled over its Unix socket with keys of {KEY_BYTES} and \
             values of {} bytes; stopped by SIGUSR1 (clean) or SIGKILL (kill) once its client has left, and started again {} s later; times \
             from the start of the process to the first answer of a get, whose client connects without a delay, and to the end of \
             the first {} ms with {:.0}% of the hits a second before the stop, one thread, gets of random items in batches of \
             {BATCH}; then the hit ratio of {SAMPLE} random items; {}",
            self.directory.display(),
            self.value_bytes,
            PAUSE.as_secs_f64(),
            reads::WINDOW.as_millis(),
            RECOVERED_PART * 100.0,
            items::compared(self.verify)
        )
    }

    fn has_client_limit(&self) -> bool {
        // The dummy cannot be restarted.
        false
    }

    fn cases(&self) -> Vec<Case> {
        let case = |items: u64, stop: Stop| {
            Case::new("restart")
                .with("items", items)
                .with("stop", stop.name())
                .with("value_bytes", self.value_bytes)
        };
        let of_items = |items: &u64| self.stops.iter().map(move |stop| (*items, *stop)).collect::<Vec<_>>();
        self.items.iter().flat_map(of_items).map(|(items, stop)| case(items, stop)).collect()
    }

    fn prepare<'e>(&'e self, target: &'e Target, case: &Case) -> Result<Box<dyn Rounds + 'e>> {
        let server = self.servers.of(target)?;
        server.stop_idle();
        let stop = case.parameters.get("stop").context("a case has a stop")?;
        let items = case.number("items").context("a case has items")? as u64;
        Ok(Box::new(Restarts {
            restart: self,
            server,
            keys: Items::new(KEY_BYTES)?,
            items,
            megabytes: self.megabytes(items)?,
            stop: Stop::of_name(&stop.to_string())?,
        }))
    }
}

/// Restarts of one server with one number of items.
struct Restarts<'e> {
    restart: &'e Restart,
    server: &'e RestartedServer,
    keys: Items,
    items: u64,
    megabytes: u64,
    stop: Stop,
}

impl Rounds for Restarts<'_> {
    fn round(&mut self, number: u32) -> Result<Sample> {
        let folder = Folder::new_in(&self.restart.directory, "fabcache-restart")?;
        self.restart_on(&folder.path().join("items"), number)
    }
}

impl Restarts<'_> {
    fn restart_on(&self, file: &Path, number: u32) -> Result<Sample> {
        let first = self.server.start(file, self.megabytes, &self.keys)?;
        let before_per_s = self.fill_and_read(number)?;
        std::thread::sleep(DISCONNECT_TIME);
        let stopped = first.server.stop(self.stop.signal()).context("cannot stop the filled server")?;
        std::thread::sleep(PAUSE);
        let second = self.server.start(file, self.megabytes, &self.keys).context("after the stop")?;
        let mut reads = self.reads(number)?;
        let recovered_at = recover(&mut reads, before_per_s * RECOVERED_PART)?;
        let (begun, mut sample) = (Instant::now(), Sample::default());
        while sample.operations < SAMPLE {
            let count = BATCH.min((SAMPLE - sample.operations) as usize);
            sample.misses += count as u64 - reads.batch(count)?;
            sample.operations += count as u64;
        }
        sample.elapsed_ns = begun.elapsed().as_nanos() as u64;
        if self.restart.verify {
            sample.verified = sample.operations - sample.misses;
        }
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let hits = (sample.operations - sample.misses) as f64;
        sample.figures = [
            (figure::STOP_MS, Some(ms(stopped))),
            (figure::FIRST_ANSWER_MS, Some(ms(second.first_answer))),
            (figure::RECOVERY_MS, recovered_at.map(|at| ms(at - second.begun))),
            (figure::HIT_RATIO, Some(hits / sample.operations as f64)),
            (figure::HITS_BEFORE_PER_S, Some(before_per_s)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect();
        Ok(sample)
    }

    /// Stores the items, and returns the hits per second.
    fn fill_and_read(&self, number: u32) -> Result<f64> {
        let client = self.server.target().client()?;
        fill(&client, &self.keys, 0..self.items, |_| self.restart.value_bytes)?;
        drop(client);
        let mut reads = self.reads(number)?;
        let per_s = reads.per_s(BEFORE_TIME)?;
        let misses = reads.misses();
        ensure!(
            misses == 0,
            "{misses} reads missed before the stop: the server evicts items with -m {}",
            self.megabytes
        );
        Ok(per_s)
    }

    fn reads(&self, number: u32) -> Result<Reads<'_>> {
        let client = self.server.target().client()?;
        Ok(Reads::new(client, &self.keys, self.items, self.restart.value_bytes, self.restart.verify, number))
    }
}

/// Reads until a window has this many hits per second; returns its end, or `None` if the reads do not recover.
fn recover(reads: &mut Reads<'_>, wanted_per_s: f64) -> Result<Option<Instant>> {
    let begun = Instant::now();
    let mut last_hit = begun;
    while begun.elapsed() < RECOVERY_TIME_MAX && last_hit.elapsed() < LOST_TIME {
        let per_s = reads.window()?;
        if per_s >= wanted_per_s {
            return Ok(Some(Instant::now()));
        }
        if per_s > 0.0 {
            last_hit = Instant::now();
        }
    }
    Ok(None)
}

/// Returns the megabytes of memory that programs can still take.
fn available_megabytes() -> Result<u64> {
    const PATH: &str = "/proc/meminfo";
    let text = std::fs::read_to_string(PATH).with_context(|| format!("cannot read {PATH}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kilobytes.with_context(|| format!("{PATH} has no MemAvailable"))? >> 10)
}
