//! `fabcache bench hybrid flash`: servers with a flash tier.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use fabcache_bench::hybrid::flash::servers::{Flags, Kind, Servers, file_system};
use fabcache_bench::hybrid::flash::{FlashTier, Measure, PageCache, table};
use fabcache_bench::process::Cpus;
use fabcache_bench::server::MeasuredProgram;
use fabcache_testbed::slow_devices::SlowDevices;

use super::run::RunArguments;

/// Sizes of values: with --quick, and otherwise.
const VALUE_SIZES: [&[usize]; 2] = [&[4_096], &[100, 4_096, 524_288]];
/// Spill factors: with --quick, and otherwise.
const SPILLS: [&[f64]; 2] = [&[1.33], &[1.33, 4.0]];
/// Megabytes of memory: with --quick, and otherwise.
const MEMORY: [u64; 2] = [64, 256];
/// Seconds of a round: with --quick, and otherwise.
const SECONDS: [f64; 2] = [0.3, 2.0];

/// The servers, their memory and items.
#[derive(Debug, Args)]
pub struct Arguments {
    /// fabcached, with --flash
    #[arg(long, value_name = "PROGRAM", required_unless_present = "memcached")]
    fabcached: Option<PathBuf>,
    /// memcached, with extstore
    #[arg(long, value_name = "PROGRAM")]
    memcached: Option<PathBuf>,
    /// Measure fabcached with clients of its shared memory as well: programs that link the library. Only for the measure get
    #[arg(long, requires = "fabcached")]
    shm: bool,
    /// Which servers of each program, separated by commas: flash, ram (the same memory without a flash tier)
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "ram,flash", value_parser = has_flash)]
    tiers: Vec<bool>,
    /// What to measure, separated by commas: get, ram-hits, ram-per-item [default: all, with --quick get,ram-hits]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = Measure::of_name)]
    measure: Vec<Measure>,
    /// Ratios of the bytes of all items to the memory, separated by commas [default: 1.33,4, with --quick 1.33]
    #[arg(long, value_name = "FACTORS", value_delimiter = ',')]
    spill: Vec<f64>,
    /// Bytes of values, separated by commas [default: 100,4096,524288, with --quick 4096]
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    value_sizes: Vec<usize>,
    /// Megabytes of memory of each server [default: 256, with --quick 64]
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    memory: Option<u64>,
    /// Megabytes of memory of each server for ram-per-item
    #[arg(long, value_name = "MB", default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    index_memory: u64,
    /// Directory of the files that are the devices; on tmpfs the device is memory
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    flash_dir: PathBuf,
    /// Instead, devices in memory whose every read and write takes this many microseconds more: a FUSE mount, which needs root
    #[arg(long, value_name = "MICROSECONDS", conflicts_with = "flash_dir", value_parser = clap::value_parser!(u64).range(..=10_000_000))]
    device_delay: Option<u64>,
    /// Number of clients, each with a connection
    #[arg(long, value_name = "NUMBER", default_value_t = 8)]
    clients: usize,
    /// Gets in flight of each client
    #[arg(long, value_name = "NUMBER", default_value_t = 8)]
    window: usize,
    /// Worker threads of each server [default: as many as CPUs]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// memcached's ext_threads
    #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    ext_threads: u16,
    /// memcached's ext_io_depth
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    ext_io_depth: u16,
    /// Megabytes to store per second, so that extstore's writer keeps up; 0 for as many as the server takes
    #[arg(long, value_name = "MB", default_value_t = 60.0)]
    fill_mb_s: f64,
    /// Seconds of a round [default: 2, with --quick 0.3]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    #[command(flatten)]
    run: RunArguments,
}

fn has_flash(name: &str) -> Result<bool> {
    ensure!(["flash", "ram"].contains(&name), "unknown tier {name:?}; use flash or ram");
    Ok(name == "flash")
}

impl Arguments {
    /// Returns the experiment, with running servers.
    fn experiment(&self) -> Result<FlashTier> {
        let usual = usize::from(!self.run.quick);
        let or =
            |given: &[usize], usual: &[usize]| if given.is_empty() { usual.to_vec() } else { given.to_vec() };
        let threads = match self.threads {
            Some(threads) => threads.into(),
            None => Cpus::current()?.count(),
        };
        ensure!(self.clients > 0 && self.window > 0, "give at least 1 client, and 1 get in flight");
        ensure!(self.fill_mb_s >= 0.0, "--fill-mb-s {}: give 0 or more", self.fill_mb_s);
        let seconds = self.seconds.unwrap_or(SECONDS[usual]);
        ensure!((0.01..=3_600.0).contains(&seconds), "--seconds {seconds}: give from 0.01 to 3600");
        let delay = self.device_delay.map(Duration::from_micros);
        let slow_devices = delay.map(SlowDevices::mount).transpose()?;
        let directory = slow_devices.as_ref().map_or(&*self.flash_dir, SlowDevices::path).to_owned();
        file_system(&directory)?;
        let flags =
            Flags { threads, ext_threads: self.ext_threads.into(), ext_io_depth: self.ext_io_depth.into() };
        let (shm_program, shm_flags) =
            (self.fabcached.clone().filter(|_| self.shm), vec!["--shm".to_owned()]);
        let programs = [
            ("fabcached shm", shm_program, shm_flags, Kind::FabcachedShm),
            ("fabcached", self.fabcached.clone(), Vec::new(), Kind::Fabcached),
            ("memcached", self.memcached.clone(), Vec::new(), Kind::Memcached),
        ];
        let programs: Vec<_> = programs
            .into_iter()
            .filter_map(|(name, program, flags, kind)| {
                Some((MeasuredProgram { name: name.into(), program: program?, flags }, kind))
            })
            .collect();
        let only_gets = self.measure == [Measure::Get];
        ensure!(only_gets || !self.shm, "--shm measures gets only: add --measure get");
        let tier = FlashTier {
            measures: match (self.measure.is_empty(), self.run.quick) {
                (false, _) => self.measure.clone(),
                (true, false) => Measure::ALL.to_vec(),
                (true, true) => vec![Measure::Get, Measure::RamHits],
            },
            value_sizes: or(&self.value_sizes, VALUE_SIZES[usual]),
            spills: if self.spill.is_empty() { SPILLS[usual].to_vec() } else { self.spill.clone() },
            memory_bytes: self.memory.unwrap_or(MEMORY[usual]) << 20,
            index_memory_bytes: self.index_memory << 20,
            clients: self.clients,
            window: self.window,
            fill_megabytes_per_s: (self.fill_mb_s > 0.0).then_some(self.fill_mb_s),
            time: Duration::from_secs_f64(seconds),
            verify: self.run.verify,
            servers: Servers::start(&programs, &self.tiers, flags)?,
            page_cache: if slow_devices.is_some() { PageCache::Unused } else { PageCache::of(&directory) },
            directory,
            slow_devices,
        };
        tier.check()?;
        Ok(tier)
    }
}

/// Runs the benchmark, and prints a table.
///
/// # Errors
/// A server does not start or answers wrongly, or the results cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    arguments.run.check()?;
    let tier = arguments.experiment()?;
    arguments.run.run(&tier, &tier.servers.targets(), table)
}
