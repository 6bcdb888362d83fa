//! A flash tier: fabcached with `--flash` beside memcached with extstore, and beside both with RAM only.
//!
//! Each case starts a fresh server of each kind, stores items that exceed its memory, and then reads them: many clients
//! over several connections, each with several requests in flight, so that the servers' reads of the device overlap.
//!
//! - `servers.rs`: starts the servers; `cgroup.rs`: limits their memory, and with it the page cache.
//! - `filled.rs`: a server with its items; `library.rs`: reads by the client library through shared memory; `hits.rs`: hits
//!   in RAM beside reads from the device.
//! - `table.rs`: the results.

pub mod cgroup;
mod filled;
mod hits;
mod library;
pub mod servers;
mod table;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fabcache_testbed::slow_devices::SlowDevices;

use self::cgroup::MemoryGroup;
use self::filled::Filled;
use self::hits::RamHits;
use self::library::LibraryClients;
use self::servers::{Amount, Servers};
pub use self::table::table;
use crate::engine::{Engine, Outcome, Pace, Plan, Popularity, Round, Sizes, Work};
use crate::experiment::{Experiment, Rounds};
use crate::items::{self, Items};
use crate::results::{Case, Sample};
use crate::target::Target;

/// Bytes of a key.
const KEY_BYTES: usize = 20;
/// The longest value: extstore does not take items that exceed memcached's default limit.
pub const VALUE_BYTES_MAX: usize = 1_000_000;
/// Bytes of the items for which memory for each item is measured, and how many times the memory they take: so many that
/// memory holds little but the index.
const INDEX_VALUE_BYTES: usize = 100;
const INDEX_SPILL: f64 = 15.0;
/// A device has room for the items, their overhead, and segments in reserve.
const DEVICE_PART: f64 = 1.5;
const DEVICE_SPARE_BYTES: u64 = 256 << 20;
/// Sizes of devices are multiples of this.
const DEVICE_STEP_BYTES: u64 = 64 << 20;

/// Clients have fewer gets in flight of values that together exceed this: servers take memory for them.
const IN_FLIGHT_BYTES_MAX: usize = 8 << 20;

/// Names of the figures of a round.
mod figure {
    /// Part of the reads of all items that hit.
    pub const SUCCESS: &str = "success_part";
    /// Number of items.
    pub const ITEMS: &str = "items";
    /// Items that the server refused while it was filled.
    pub const REFUSED: &str = "fill_refused";
    /// Items stored per second.
    pub const FILL_PER_S: &str = "fill_per_s";
    /// Memory of the process for each item that it still has.
    pub const RESIDENT_BYTES_EACH: &str = "resident_bytes_each";
    /// Bytes that the process wrote to devices, for each byte of keys and values that it accepted.
    pub const WRITTEN_EACH: &str = "device_bytes_each_accepted";
    /// The same by the server's statistics, which count writes to tmpfs too.
    pub const TIER_WRITTEN_EACH: &str = "extstore_bytes_each_accepted";
    /// Page cache of the server's cgroup.
    pub const PAGE_CACHE_BYTES: &str = "page_cache_bytes";
    /// That, as a part of the bytes that exceed the memory.
    pub const PAGE_CACHE_PART: &str = "page_cache_part";
    /// 99th percentile of hits in RAM: alone, beside reads of RAM, beside reads of the device.
    pub const HITS_P99_US: [&str; 3] = ["alone_p99_us", "beside_ram_p99_us", "beside_flash_p99_us"];
    /// Part of the reads alone that read the device.
    pub const ALONE_DEVICE_PART: &str = "alone_device_part";
    /// Reads per second of the other client, of RAM and of the device.
    pub const OTHER_PER_S: [&str; 2] = ["other_ram_per_s", "other_flash_per_s"];
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Reads of all items.
    Get,
    /// Hits in RAM beside reads of the device.
    RamHits,
    /// Memory for each item.
    RamPerItem,
}

/// The experiment.
#[derive(Debug)]
pub struct FlashTier {
    /// What is measured.
    pub measures: Vec<Measure>,
    /// Bytes of values.
    pub value_sizes: Vec<usize>,
    /// Ratios of the bytes of all items to the memory.
    pub spills: Vec<f64>,
    /// Memory of each server in bytes (`-m`).
    pub memory_bytes: u64,
    /// That for [`Measure::RamPerItem`].
    pub index_memory_bytes: u64,
    /// Number of clients.
    pub clients: usize,
    /// Requests in flight of each.
    pub window: usize,
    /// Megabytes stored per second; `None` for as many as the server takes.
    pub fill_megabytes_per_s: Option<f64>,
    /// Duration of a round.
    pub time: Duration,
    /// Whether to compare every byte of every value.
    pub verify: bool,
    /// Where the files of the devices are.
    pub directory: PathBuf,
    /// What is mounted there, if reads and writes are to take longer.
    pub slow_devices: Option<SlowDevices>,
    /// The servers.
    pub servers: Servers,
    /// How the page cache is limited.
    pub page_cache: PageCache,
}

/// What keeps the items on the devices out of the page cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageCache {
    /// A memory cgroup for each server.
    Limited,
    /// The devices are memory, on tmpfs.
    Unused,
    /// Nothing, for this reason: the comparison is void.
    Unlimited(String),
}

impl Measure {
    /// All.
    pub const ALL: [Measure; 3] = [Measure::Get, Measure::RamHits, Measure::RamPerItem];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Measure::Get => "get",
            Measure::RamHits => "ram-hits",
            Measure::RamPerItem => "ram-per-item",
        }
    }

    /// Returns the measure of this name.
    ///
    /// # Errors
    /// The name is unknown.
    pub fn of_name(name: &str) -> Result<Measure> {
        match Measure::ALL.into_iter().find(|measure| measure.name() == name) {
            Some(measure) => Ok(measure),
            None => bail!("unknown measure {name:?}; use get, ram-hits or ram-per-item"),
        }
    }
}

impl PageCache {
    /// Returns how the page cache can be limited for devices in a directory.
    pub fn of(directory: &Path) -> PageCache {
        match MemoryGroup::new(1 << 20) {
            _ if servers::is_tmpfs(directory) => PageCache::Unused,
            Ok(_) => PageCache::Limited,
            Err(error) => PageCache::Unlimited(format!("{error:#}")),
        }
    }

    fn described(&self) -> String {
        match self {
            PageCache::Limited => "each server in a memory cgroup, which after filling is limited to what the server uses without the \
                                   page cache, and a little more"
                .to_owned(),
            PageCache::Unused => "the devices are memory, so nothing limits the page cache".to_owned(),
            PageCache::Unlimited(why) => {
                format!("VOID as a comparison, because the page cache is not limited: {why}")
            }
        }
    }
}

impl FlashTier {
    /// Checks the values.
    ///
    /// # Errors
    /// A value is out of range.
    pub fn check(&self) -> Result<()> {
        let sizes_fit = self.value_sizes.iter().all(|bytes| (1..=VALUE_BYTES_MAX).contains(bytes));
        ensure!(sizes_fit, "give values of 1 to {VALUE_BYTES_MAX} bytes");
        let spills_fit = self.spills.iter().all(|spill| *spill > 0.0 && *spill <= 1e3);
        ensure!(spills_fit, "give spill factors above 0 and up to 1000");
        for (value_bytes, spill) in self.sizes_and_spills() {
            self.amount(self.memory_bytes, value_bytes, spill)?;
        }
        self.work(1, 1, self.window).check()
    }

    fn sizes_and_spills(&self) -> Vec<(usize, f64)> {
        let of_size = |size: &usize| self.spills.iter().map(|spill| (*size, *spill)).collect::<Vec<_>>();
        self.value_sizes.iter().flat_map(of_size).collect()
    }

    /// Returns the items and the device for so much memory.
    fn amount(&self, memory_bytes: u64, value_bytes: usize, spill: f64) -> Result<Amount> {
        let bytes = memory_bytes as f64 * spill;
        let items = bytes / (KEY_BYTES + value_bytes) as f64;
        ensure!(
            (1.0..=f64::from(u32::MAX)).contains(&items),
            "values of {value_bytes} bytes in {spill} times {memory_bytes} bytes are {items:.0} items: give another size, memory or factor"
        );
        let device_bytes =
            ((bytes * DEVICE_PART) as u64 + DEVICE_SPARE_BYTES).next_multiple_of(DEVICE_STEP_BYTES);
        Ok(Amount { memory_bytes, value_bytes, items: items as u64, device_bytes })
    }

    /// Returns the gets in flight of a client.
    fn window(&self, value_bytes: usize) -> usize {
        self.window.min(IN_FLIGHT_BYTES_MAX / (self.clients * value_bytes).max(1)).max(1)
    }

    /// Returns reads of so many items.
    fn work(&self, keys: u64, value_bytes: usize, pipeline: usize) -> Work {
        Work {
            keys,
            key_bytes: KEY_BYTES,
            popularity: Popularity::Uniform,
            sizes: Sizes::Same(value_bytes),
            get_share: 1.0,
            batch: 1,
            pipeline,
            verify: self.verify,
        }
    }
}

/// Connects clients of one thread.
fn connect(target: &Target, work: &Work, clients: usize) -> Result<Engine> {
    Engine::connect(&Plan::new(target, work, clients, 1))
}

/// Runs a closed loop.
fn run(engine: &mut Engine, time: Duration, seed: u32) -> Result<Outcome> {
    engine.run(&Round { pace: Pace::Closed, duration_ns: time.as_nanos() as u64, seed: seed.into() })
}

impl Experiment for FlashTier {
    fn name(&self) -> &'static str {
        "hybrid"
    }

    fn method(&self) -> String {
        let file_system = match &self.slow_devices {
            Some(slow) => format!("a FUSE mount (memory, each request takes {:?} more)", slow.delay()),
            None => servers::file_system(&self.directory).unwrap_or_default(),
        };
        let limit = self.page_cache.described();
        let rate = self.fill_megabytes_per_s.map_or(String::new(), |rate| format!(" at up to {rate} MB/s"));
        format!(
            "fresh servers with {} MB ({} MB for ram-per-item), filled over a Unix socket{rate} with items of spill factor times \
             that, keys of {KEY_BYTES} bytes; then {} clients of one thread, with {} gets in flight each (of at most {} MB together), of random items, for {} s a round; \
             shm: clients of the library, which read the server's memory, and send requests for items on flash; \
             the devices are files on {file_system}; {limit}; ram-hits: one client with one get in flight of {} items in RAM, stored and read before each round, alone, \
             beside the other clients reading the same items, and beside the other clients reading all items; {}",
            self.memory_bytes >> 20,
            self.index_memory_bytes >> 20,
            self.clients,
            self.window,
            IN_FLIGHT_BYTES_MAX >> 20,
            self.time.as_secs_f64(),
            hits::ITEMS,
            items::compared(self.verify)
        )
    }

    fn has_client_limit(&self) -> bool {
        // The dummy never evicts, so nothing would miss.
        false
    }

    fn cases(&self) -> Vec<Case> {
        let case = |measure: Measure, value_bytes: usize, spill: f64| {
            Case::new(measure.name()).with("value_bytes", value_bytes).with("spill_factor", spill)
        };
        let of = |measure: &Measure| match measure {
            Measure::Get | Measure::RamHits => {
                self.sizes_and_spills().into_iter().map(|(size, spill)| case(*measure, size, spill)).collect()
            }
            Measure::RamPerItem => vec![case(*measure, INDEX_VALUE_BYTES, INDEX_SPILL)],
        };
        self.measures.iter().flat_map(|measure| -> Vec<Case> { of(measure) }).collect()
    }

    fn prepare<'e>(&'e self, target: &'e Target, case: &Case) -> Result<Box<dyn Rounds + 'e>> {
        let number = |name: &str| case.number(name).with_context(|| format!("a case has a {name}"));
        let (value_bytes, spill) = (number("value_bytes")? as usize, number("spill_factor")?);
        let measure = Measure::of_name(&case.operation)?;
        let memory_bytes = match measure {
            Measure::Get | Measure::RamHits => self.memory_bytes,
            Measure::RamPerItem => self.index_memory_bytes,
        };
        let amount = self.amount(memory_bytes, value_bytes, spill)?;
        let filled = Filled::new(self, target, amount)?;
        Ok(match measure {
            Measure::Get | Measure::RamPerItem => Box::new(Reads::new(self, target, filled)?),
            Measure::RamHits => Box::new(RamHits::new(self, target, filled)?),
        })
    }
}

/// Reads of all items of one target.
struct Reads<'e> {
    tier: &'e FlashTier,
    clients: Clients,
    filled: Filled,
}

/// What reads.
enum Clients {
    /// The load generator, over sockets.
    Sockets(Engine),
    /// The client library, through shared memory.
    Library(LibraryClients),
}

impl Clients {
    fn run(&mut self, time: Duration, seed: u32) -> Result<Sample> {
        match self {
            Clients::Sockets(engine) => run(engine, time, seed).map(Sample::from),
            Clients::Library(clients) => clients.run(time, seed),
        }
    }
}

impl<'e> Reads<'e> {
    fn new(tier: &'e FlashTier, target: &Target, filled: Filled) -> Result<Reads<'e>> {
        let Amount { items, value_bytes, .. } = filled.amount;
        let clients = match target.shares_memory() {
            true => Clients::Library(LibraryClients::connect(tier, target, items, value_bytes)?),
            false => {
                let work = tier.work(items, value_bytes, tier.window(value_bytes));
                Clients::Sockets(connect(target, &work, tier.clients)?)
            }
        };
        Ok(Reads { tier, clients, filled })
    }
}

impl Rounds for Reads<'_> {
    fn round(&mut self, number: u32) -> Result<Sample> {
        let cpu_before = self.filled.cpu_ns()?;
        let sample = self.clients.run(self.tier.time, number)?;
        let server_cpu_ns = self.filled.cpu_ns()?.saturating_sub(cpu_before);
        let mut sample = Sample { server_cpu_ns: Some(server_cpu_ns), ..sample };
        let success = 1.0 - sample.misses as f64 / sample.operations.max(1) as f64;
        sample.figures.insert(figure::SUCCESS.into(), success);
        sample.figures.extend(self.filled.figures(success)?);
        Ok(sample)
    }
}

/// Returns keys and values.
fn items() -> Result<Items> {
    Items::new(KEY_BYTES)
}
