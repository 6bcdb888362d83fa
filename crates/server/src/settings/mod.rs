//! The server's settings: the options, validated, with their defaults. `listeners.rs`: listen addresses; `flash.rs`: the
//! flash tier.

mod flash;
mod listeners;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fabcache_store::EvictionPolicy;
use fabcache_store::backing::BackingOptions;

use crate::addresses::{ListenAddress, Tls};
use crate::bounds::{FABRIC_LEASE, ITEM_BYTES_MAX_MAX, ITEM_BYTES_MAX_MIN, THREADS_MAX};
use crate::extended_options::ExtendedOptions;
use crate::fabric::FabricSettings;
use crate::openshmem::OpenShmemSettings;
use crate::options::{Options, size};
use crate::process;
use crate::shm::ShmSettings;

pub use flash::FlashSettings;
pub use listeners::{ListenerSettings, TlsSettings};

/// The worker that a new connection stays with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptMode {
    /// The least loaded.
    Balanced,
    /// The one whose own listener took it.
    Local,
}

/// How workers wait for plain connections and receive from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// epoll, and receives from each socket.
    Epoll,
    /// A ring of io_uring for each worker.
    IoUring,
}

impl Engine {
    /// The option's value.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Epoll => "epoll",
            Engine::IoUring => "io_uring",
        }
    }
}

/// The server's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Listen addresses.
    pub listeners: Vec<ListenerSettings>,
    /// The requested TCP port, for `stats settings`.
    pub port: u16,
    /// The requested UDP port.
    pub udp_port: u16,
    /// The requested addresses, as given.
    pub listen: Vec<String>,
    /// Memory, whole region.
    pub memory_bytes: u64,
    /// Maximum of the memory limit.
    pub memory_bytes_max: u64,
    /// Largest item.
    pub item_bytes_max: u64,
    /// Evict when memory is full.
    pub evict: bool,
    /// Which items are evicted.
    pub eviction: EvictionPolicy,
    /// Items have CAS values.
    pub cas: bool,
    /// The memory that backs the region.
    pub backing: BackingOptions,
    /// Lock it.
    pub lock_memory: bool,
    /// Where evicted items go, if they are kept.
    pub flash: Option<FlashSettings>,
    /// Workers.
    pub threads: usize,
    /// Requests of one connection before others get their turn, if that is limited.
    pub requests_per_turn: Option<u32>,
    /// Worker i is pinned to the i-th of these CPUs, and so on from the first; none is pinned if it is empty.
    pub cpus: Vec<usize>,
    /// Maximum number of connections.
    pub connections_max: u32,
    /// Refuse further connections at once, instead of letting them wait.
    pub refuse_fast: bool,
    /// The listen backlog.
    pub backlog: u32,
    /// How workers accept new connections.
    pub accept: AcceptMode,
    /// How workers receive.
    pub engine: Engine,
    /// Idle connections are dropped after this.
    pub idle_timeout: Option<Duration>,
    /// Connections that stall within a request are dropped after this time.
    pub stall_timeout: Option<Duration>,
    /// `flush_all` works.
    pub flush_enabled: bool,
    /// Keys may be listed.
    pub dump_enabled: bool,
    /// `watch` works.
    pub watch_enabled: bool,
    /// `shutdown` works.
    pub shutdown_enabled: bool,
    /// Ends the prefix of a key.
    pub prefix_delimiter: u8,
    /// `stats detail` counts from the start.
    pub detail: bool,
    /// Users for text clients.
    pub auth_file: Option<PathBuf>,
    /// Binary clients authenticate.
    pub sasl: bool,
    /// Their users.
    pub sasl_file: Option<PathBuf>,
    /// TLS, if any listener has it.
    pub tls: Option<TlsSettings>,
    /// Whether clients on this host may read the memory.
    pub shm: Option<ShmSettings>,
    /// Whether clients may attach over a fabric.
    pub fabric: Option<FabricSettings>,
    /// Whether this server is part of an OpenSHMEM job.
    pub openshmem: Option<OpenShmemSettings>,
    /// Become this user.
    pub user: Option<String>,
    /// Run in the background.
    pub daemon: bool,
    /// The pid file.
    pub pidfile: Option<PathBuf>,
    /// Allow core dumps.
    pub core_dumps: bool,
    /// The log verbosity.
    pub verbosity: u8,
    /// Log as JSON.
    pub log_json: bool,
    /// The file for the ports (`MEMCACHED_PORT_FILENAME`).
    pub port_file: Option<PathBuf>,
    /// The extended options.
    pub extended: ExtendedOptions,
    /// Options that have no effect, and why.
    pub without_effect: Vec<String>,
    /// Warnings to log at start.
    pub warnings: Vec<String>,
    /// How long readers over the fabric may rely on a fetched status line, and the server waits before its first
    /// answer: a killed server at the same addresses granted as much.
    pub lease: Duration,
    /// `-f`, for `stats settings`.
    pub slab_growth_factor: f64,
    /// `-n`, for `stats settings`.
    pub slab_min_size: u32,
}

impl Settings {
    /// Returns the CPU that a worker is pinned to, if any.
    pub fn worker_cpu(&self, worker: usize) -> Option<usize> {
        (!self.cpus.is_empty()).then(|| self.cpus[worker % self.cpus.len()])
    }

    /// Checks the options and fills in defaults. `environment` returns the value of a variable.
    ///
    /// # Errors
    /// Something given does not make sense; the error names it and says what would.
    pub fn new(options: &Options, environment: &dyn Fn(&str) -> Option<String>) -> Result<Settings> {
        let extended = ExtendedOptions::parse(&options.extended)?;
        let memory_bytes = megabytes("-m", options.memory_limit.as_deref().unwrap_or("64"))?;
        let memory_bytes_max = memory_bytes_max(options, memory_bytes)?;
        let item_bytes_max = item_bytes_max(options, memory_bytes)?;
        let Counts { threads, requests_per_turn, connections_max, slab_growth_factor, slab_min_size } =
            counts(options)?;
        let (sasl, sasl_file) = (options.enable_sasl.unwrap_or(false), sasl_file(options, environment)?);
        let flash = FlashSettings::new(options, &extended)?;
        let delimiter = options.prefix_delimiter;
        let prefix_delimiter = u8::try_from(delimiter.unwrap_or(':')).ok().filter(u8::is_ascii);
        let mut settings = Settings {
            listeners: Vec::new(),
            port: 0,
            udp_port: 0,
            listen: options.listen.clone(),
            memory_bytes,
            memory_bytes_max,
            item_bytes_max,
            evict: !options.disable_evictions.unwrap_or(false),
            eviction: eviction_policy(options)?,
            cas: !options.disable_cas.unwrap_or(false),
            backing: backing(options)?,
            lock_memory: options.lock_memory.unwrap_or(false),
            threads,
            requests_per_turn,
            cpus: cpus(options)?,
            connections_max,
            refuse_fast: extended.maxconns_fast.unwrap_or(true),
            backlog: options.listen_backlog.unwrap_or(1024).max(1),
            accept: accept_mode(options)?,
            engine: engine(options)?,
            idle_timeout: seconds(extended.idle_timeout.unwrap_or(0)),
            stall_timeout: seconds(options.stall_timeout.unwrap_or(120)),
            flush_enabled: !options.disable_flush_all.unwrap_or(false),
            dump_enabled: !options.disable_dumping.unwrap_or(false),
            watch_enabled: !options.disable_watch.unwrap_or(false),
            shutdown_enabled: options.enable_shutdown.unwrap_or(false),
            prefix_delimiter: prefix_delimiter.context("-D takes an ASCII character")?,
            detail: delimiter.is_some(),
            auth_file: options.auth_file.clone(),
            sasl,
            sasl_file,
            tls: None,
            shm: ShmSettings::new(options)?,
            fabric: FabricSettings::new(options)?,
            openshmem: OpenShmemSettings::new(options)?,
            user: options.user.clone(),
            daemon: options.daemon.unwrap_or(false),
            pidfile: options.pidfile.clone(),
            core_dumps: options.enable_coredumps.unwrap_or(false),
            verbosity: options.verbosity.unwrap_or(0),
            log_json: log_json(options)?,
            port_file: environment("MEMCACHED_PORT_FILENAME").map(PathBuf::from),
            without_effect: without_effect(options, &extended, flash.as_ref()),
            flash,
            warnings: warnings(options, memory_bytes, item_bytes_max),
            lease: FABRIC_LEASE,
            slab_growth_factor,
            slab_min_size,
            extended,
        };
        settings.add_listeners(options)?;
        settings.check_authentication()?;
        settings.check_shm()?;
        settings.check_fabric()?;
        settings.check_openshmem()?;
        settings.add_tls(options)?;
        Ok(settings)
    }

    /// Makes every path absolute, so that it stays valid in another directory.
    ///
    /// # Errors
    /// The current directory is unknown.
    pub fn make_paths_absolute(&mut self) -> Result<()> {
        let sockets = self.listeners.iter_mut().filter_map(|listener| match &mut listener.place {
            ListenAddress::Unix(path) => Some(path),
            ListenAddress::Tcp(_) | ListenAddress::Udp(_) => None,
        });
        let tls = self.tls.iter_mut();
        let tls = tls.flat_map(|tls| [Some(&mut tls.chain), Some(&mut tls.key), tls.authorities.as_mut()]);
        let files = [
            &mut self.backing.file,
            &mut self.auth_file,
            &mut self.sasl_file,
            &mut self.pidfile,
            &mut self.port_file,
        ];
        let devices = self.flash.iter_mut().flat_map(|flash| &mut flash.devices);
        let devices = devices.map(|device| &mut device.path);
        for path in sockets.chain(tls.flatten()).chain(files.into_iter().flatten()).chain(devices) {
            *path = std::path::absolute(&*path)
                .with_context(|| format!("cannot tell where {} is", path.display()))?;
        }
        Ok(())
    }

    /// Shared memory requires a Unix socket: only there does the system report the peer's user, and pass descriptors.
    fn check_shm(&self) -> Result<()> {
        let has_unix = self.listeners.iter().any(|listener| matches!(listener.place, ListenAddress::Unix(_)));
        if self.shm.is_some() && !has_unix {
            bail!("--shm needs a Unix socket for its clients to come by: give one with -s");
        }
        Ok(())
    }

    /// Refuses the fabric beside TLS-only listeners: fabric clients attach over TCP, and their data would go
    /// unencrypted.
    fn check_fabric(&mut self) -> Result<()> {
        let is_plain = |listener: &ListenerSettings| {
            matches!(listener.place, ListenAddress::Tcp(_)) && listener.tls == Tls::Off
        };
        if self.fabric.is_some() && !self.listeners.iter().any(is_plain) {
            bail!(
                "--fabric needs a TCP address without TLS for its clients to come by: give one with -p or -l (notls:)"
            );
        }
        let plain = self.listeners.iter().filter(|listener| is_plain(listener));
        let plain: Vec<SocketAddr> = plain.filter_map(|listener| listener.place.tcp()).collect();
        let unheard = self.fabric.iter().flat_map(|fabric| fabric.peers.unheard(&plain));
        let unheard: Vec<String> = unheard.map(|network| network.to_string()).collect();
        if !unheard.is_empty() {
            self.warnings.push(format!(
                "--fabric-peers lets clients of {} come, who connect by TCP first, and reach no address that is listened on: \
                 give one of this host's in that network with -l, such as -l 10.0.0.5, or all with -l '*'",
                unheard.join(",")
            ));
        }
        Ok(())
    }
}

impl Settings {
    /// Returns whether others may read the memory without this server's help.
    pub fn has_remote_readers(&self) -> bool {
        self.fabric.is_some() || self.openshmem.is_some()
    }

    /// Refuses what a job's memory cannot be.
    fn check_openshmem(&self) -> Result<()> {
        if self.openshmem.is_none() {
            return Ok(());
        }
        let refused = [
            (self.daemon, "-d: the launcher waits for its processes"),
            (
                self.backing.file.is_some(),
                "-e: the items are in the job's symmetric memory, which ends with it",
            ),
            (self.backing.huge_pages, "-L: the OpenSHMEM library chooses the pages of symmetric memory"),
        ];
        match refused.iter().find(|(given, _)| *given) {
            Some((_, why)) => bail!("--fabric openshmem does not go with {why}; leave it out"),
            None => Ok(()),
        }
    }
}

fn seconds(seconds: u32) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)))
}

/// Counts and factors of the command line, checked.
struct Counts {
    threads: usize,
    requests_per_turn: Option<u32>,
    connections_max: u32,
    slab_growth_factor: f64,
    slab_min_size: u32,
}

fn counts(options: &Options) -> Result<Counts> {
    let threads = options.threads.unwrap_or(4);
    if threads == 0 || threads > THREADS_MAX {
        bail!("-t takes a number of threads from 1 to {THREADS_MAX}, not {threads}");
    }
    let requests_per_turn = options.max_reqs_per_event;
    if requests_per_turn == Some(0) {
        bail!("-R takes a number of requests greater than 0");
    }
    let connections_max = options.conn_limit.unwrap_or(1024);
    if connections_max == 0 {
        bail!("-c takes a number of connections greater than 0");
    }
    let slab_growth_factor = options.slab_growth_factor.unwrap_or(1.25);
    if !slab_growth_factor.is_finite() || slab_growth_factor <= 1.0 {
        bail!("-f takes a factor greater than 1, not {slab_growth_factor}");
    }
    let slab_min_size = options.slab_min_size.unwrap_or(48);
    if slab_min_size == 0 {
        bail!("-n takes a number of bytes greater than 0");
    }
    Ok(Counts { threads, requests_per_turn, connections_max, slab_growth_factor, slab_min_size })
}

fn memory_bytes_max(options: &Options, memory_bytes: u64) -> Result<u64> {
    let memory_bytes_max = match &options.memory_max {
        Some(text) => megabytes("--memory-max", text)?,
        None => memory_bytes,
    };
    if memory_bytes_max < memory_bytes {
        bail!("--memory-max is less than -m; it is what -m may be raised to");
    }
    Ok(memory_bytes_max)
}

fn sasl_file(options: &Options, environment: &dyn Fn(&str) -> Option<String>) -> Result<Option<PathBuf>> {
    let sasl = options.enable_sasl.unwrap_or(false);
    let sasl_file =
        options.sasl_pwdb.clone().or_else(|| environment("MEMCACHED_SASL_PWDB").map(PathBuf::from));
    // The users of text clients are those of binary ones, too.
    let sasl_file = sasl_file.or_else(|| options.auth_file.clone().filter(|_| sasl));
    if sasl && sasl_file.is_none() {
        bail!(
            "-S needs users: name a file of user:password lines in MEMCACHED_SASL_PWDB, with --sasl-pwdb or with -Y"
        );
    }
    Ok(sasl_file)
}

fn megabytes(option: &str, text: &str) -> Result<u64> {
    let bytes = size(option, text, 1 << 20)?;
    if bytes < 1 << 20 {
        bail!("{option} {text} is too little memory; 1 MB is the least");
    }
    Ok(bytes)
}

fn item_bytes_max(options: &Options, memory_bytes: u64) -> Result<u64> {
    let given = options.max_item_size.as_deref();
    let bytes = size("-I", given.unwrap_or("1m"), 1)?;
    if !(ITEM_BYTES_MAX_MIN..=ITEM_BYTES_MAX_MAX).contains(&bytes) {
        bail!("-I takes a size from 1k to 1024m, not {}", given.unwrap_or_default());
    }
    if bytes > memory_bytes / 2 {
        match given {
            Some(text) => bail!("-I {text} is more than half the memory; give more (-m) or a smaller item"),
            // The default was not requested.
            None => return Ok(memory_bytes / 2),
        }
    }
    Ok(bytes)
}

fn warnings(options: &Options, memory_bytes: u64, item_bytes_max: u64) -> Vec<String> {
    let possible = [
        too_little_memory(memory_bytes, item_bytes_max),
        large_pages_of_file(options),
        core_dumps_of_shared_memory(options),
    ];
    possible.into_iter().flatten().collect()
}

/// Returns a warning if the largest items take so much of the memory that storing one may fail.
fn too_little_memory(memory_bytes: u64, item_bytes_max: u64) -> Option<String> {
    (item_bytes_max > memory_bytes / 4).then(|| {
        format!(
            "an item of {item_bytes_max} bytes (-I) takes more than a quarter of the memory ({memory_bytes} bytes, -m): it evicts \
             most others, or is refused; give more memory, or a smaller -I"
        )
    })
}

fn eviction_policy(options: &Options) -> Result<EvictionPolicy> {
    let Some(name) = options.eviction.as_deref() else { return Ok(EvictionPolicy::default()) };
    if options.disable_evictions == Some(true) {
        bail!("--eviction {name} has no effect with -M, which refuses stores instead; leave one of them out");
    }
    let known = EvictionPolicy::of_name(name);
    known.with_context(|| {
        let names = EvictionPolicy::ALL.map(EvictionPolicy::name).join(", ");
        format!("--eviction takes one of {names}, not {name:?}")
    })
}

fn cpus(options: &Options) -> Result<Vec<usize>> {
    let pins = options.pin_workers.unwrap_or(false);
    match &options.cpus {
        None if pins => process::cpus::usable(),
        None => Ok(Vec::new()),
        Some(_) if pins => bail!("give either --cpus or --pin-workers, which pins to all CPUs"),
        Some(list) => process::cpus::of_list(list, &process::cpus::usable()?),
    }
}

fn accept_mode(options: &Options) -> Result<AcceptMode> {
    match options.accept.as_deref() {
        None | Some("balanced") => Ok(AcceptMode::Balanced),
        Some("local") => Ok(AcceptMode::Local),
        Some(other) => bail!("--accept takes balanced or local, not {other:?}"),
    }
}

fn engine(options: &Options) -> Result<Engine> {
    match options.engine.as_deref() {
        None | Some("auto" | "epoll") => Ok(Engine::Epoll),
        Some("io_uring") => Ok(Engine::IoUring),
        Some(other) => bail!("--engine takes auto, epoll or io_uring, not {other:?}"),
    }
}

fn log_json(options: &Options) -> Result<bool> {
    match options.log_format.as_deref() {
        None | Some("text") => Ok(false),
        Some("json") => Ok(true),
        Some(other) => bail!("--log-format takes text or json, not {other:?}"),
    }
}

/// Returns where the memory comes from.
fn backing(options: &Options) -> Result<BackingOptions> {
    let discard = options.discard.unwrap_or(false);
    if discard && options.memory_file.is_none() {
        bail!("--discard needs the memory file (-e): give it too, or leave --discard out");
    }
    let huge_pages = options.enable_largepages.unwrap_or(false);
    Ok(BackingOptions { file: options.memory_file.clone(), huge_pages, discard })
}

/// Returns a warning if both a file and huge pages are asked for.
fn large_pages_of_file(options: &Options) -> Option<String> {
    let both = options.memory_file.is_some() && options.enable_largepages.unwrap_or(false);
    both.then(|| {
        "-L has no effect on the memory file (-e): a file on hugetlbfs has huge pages, others have not".into()
    })
}

/// Returns a warning if both core dumps and shared memory are asked for.
fn core_dumps_of_shared_memory(options: &Options) -> Option<String> {
    let both = options.enable_coredumps.unwrap_or(false) && options.shm.unwrap_or(false);
    both.then(|| {
        "there are no core dumps (-r) with --shm: what allows them lets other processes of this user write the memory"
            .into()
    })
}

fn without_effect(
    options: &Options,
    extended: &ExtendedOptions,
    flash: Option<&FlashSettings>,
) -> Vec<String> {
    let mut found = Vec::new();
    for (given, name) in
        [(options.slab_growth_factor.is_some(), "-f"), (options.slab_min_size.is_some(), "-n")]
    {
        if given {
            found.push(format!("{name} has no effect: memory is not divided into slabs"));
        }
    }
    if options.napi_ids.is_some() {
        found.push("-N has no effect: workers are not chosen by NAPI id".to_owned());
    }
    found.extend(flash::notes(options, extended, flash));
    found.extend(extended.without_effect.iter().map(|(name, why)| format!("-o {name} has no effect: {why}")));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::CommandLine;
    use clap::Parser;
    use fabcache_protocol::Protocol;
    use proptest::prelude::*;

    fn of(line: &str) -> Result<Settings> {
        let words = std::iter::once("fabcached").chain(line.split_whitespace());
        Settings::new(&CommandLine::try_parse_from(words)?.options, &|_| None)
    }

    fn places(line: &str) -> Vec<String> {
        let settings = of(line).expect(line);
        settings
            .listeners
            .iter()
            .map(|listener| match &listener.place {
                ListenAddress::Tcp(address) => format!("tcp {address}"),
                ListenAddress::Udp(address) => format!("udp {address}"),
                ListenAddress::Unix(path) => format!("unix {}", path.display()),
            })
            .collect()
    }

    #[test]
    fn listen_addresses_follow_the_options() {
        assert_eq!(places(""), ["tcp 127.0.0.1:11211", "tcp [::1]:11211"]);
        assert_eq!(places("-s /x"), ["unix /x"], "a Unix socket alone turns TCP off");
        assert_eq!(places("-s /x -p 5"), ["unix /x", "tcp 127.0.0.1:5", "tcp [::1]:5"]);
        assert_eq!(places("-s /x -l 127.0.0.1"), ["unix /x", "tcp 127.0.0.1:11211"]);
        assert_eq!(
            places("-p 5 -U 6 -l 127.0.0.1,[::1]:7"),
            ["tcp 127.0.0.1:5", "udp 127.0.0.1:6", "tcp [::1]:7", "udp [::1]:6"]
        );
        assert_eq!(places("-p 0 -U 6 -l 127.0.0.1"), ["udp 127.0.0.1:6"]);
        assert_eq!(places("-l 10.0.0.1:5 -l 10.0.0.1:5"), ["tcp 10.0.0.1:5"]);
        assert_eq!(places("-p -1 -l 127.0.0.1"), ["tcp 127.0.0.1:0"]);
        assert_eq!(places("-U 6 -l 127.0.0.1"), ["tcp 127.0.0.1:6", "udp 127.0.0.1:6"], "-U names both");
        assert_eq!(places("-U -1 -l 127.0.0.1"), ["tcp 127.0.0.1:0", "udp 127.0.0.1:0"]);
        for nowhere in ["-p 0", "-p 0 -l 127.0.0.1"] {
            let settings = of(nowhere).expect("valid");
            assert!(settings.listeners.is_empty(), "{nowhere}");
            assert!(
                settings.warnings.iter().any(|warning| warning.contains("nowhere to listen")),
                "{nowhere}"
            );
        }
    }

    #[test]
    fn sizes_are_checked() {
        let settings = of("-m 100 -I 2m --memory-max 1g").expect("valid");
        assert_eq!((settings.memory_bytes, settings.memory_bytes_max), (100 << 20, 1 << 30));
        assert_eq!(settings.item_bytes_max, 2 << 20);
        assert_eq!(of("-m 1").expect("valid").item_bytes_max, 512 << 10);
        for (wrong, needle) in [
            ("-m x", "-m takes a size"),
            ("-m 0", "greater than 0"),
            ("-m 4gb", "-m takes a suffix of one letter, k, m, g or t: write 4g for \"4gb\""),
            ("-I 1MiB", "write 1m for"),
            ("-m 1.5g", "-m takes a whole number, not \"1.5g\"; write 1536m for it"),
            ("-m 1.5", "write 1536k for it"),
            ("-I 1.5k", "-I takes a whole number, not \"1.5k\""),
            ("-m 99999999999999999999", "-m 99999999999999999999 is more than any machine has"),
            ("-m 20000000000g", "the most is 17179869183g"),
            ("-m g", "-m takes a size such as"),
            ("-m 1..5g", "-m takes a size such as"),
            ("-m 4p", "-m takes a size such as"),
            ("-m 1.5t", "write 1536g for it"),
            ("-m 10k", "too little"),
            ("-m 64 -I 40m", "half the memory"),
            ("-I 10", "1k to 1024m"),
            ("-I 2g", "1k to 1024m"),
            ("-m 10 --memory-max 5", "less than -m"),
            ("--eviction fifo", "one of adaptive, s3fifo, lru"),
            ("-M --eviction lru", "no effect with -M"),
            ("-t 0", "-t takes"),
            ("-c 0", "-c takes"),
            ("-R 0", "-R takes"),
            ("-p 70000", "-p takes a port"),
            ("--accept never", "balanced or local"),
            ("--engine kqueue", "auto, epoll or io_uring"),
            ("--cpus 0,x", "--cpus takes CPUs such as 0-3,8, not \"x\""),
            ("--cpus 99999", "CPU 99999"),
            ("--cpus 0 --pin-workers", "either --cpus or --pin-workers"),
            ("--log-format xml", "text or json"),
            ("-B spdy", "no protocol"),
            ("-a 99", "-a: "),
            ("-B spdy", "-B: "),
            ("-l tag[]:x", "-l tag[]:x: "),
            ("-m -5", "-m takes a size"),
            ("-I -1", "-I takes a size"),
            ("-f 1", "-f takes"),
            ("-f nan", "-f takes"),
            ("-n 0", "-n takes"),
        ] {
            let error = format!("{:#}", of(wrong).expect_err(wrong));
            assert!(error.contains(needle), "{wrong}: {error}");
        }
    }

    #[test]
    fn memory_too_small_for_items_warns() {
        for line in ["-m 1", "-m 3", "-m 64 -I 17m"] {
            let warnings = of(line).expect(line).warnings;
            assert!(warnings.iter().any(|warning| warning.contains("a quarter of the memory")), "{line}");
        }
        for line in ["", "-m 4", "-m 64 -I 16m"] {
            assert_eq!(of(line).expect(line).warnings, [""; 0], "{line}");
        }
    }

    #[test]
    fn unauthenticated_listeners_are_rejected() {
        let text = of("-Y /users").expect("valid");
        assert!(text.listeners.iter().all(|listener| listener.protocol == Some(Protocol::Text)));
        let binary = of("-S --sasl-pwdb /users").expect("valid");
        assert!(binary.listeners.iter().all(|listener| listener.protocol == Some(Protocol::Binary)));
        let both = of("-Y /users -S --sasl-pwdb /users").expect("valid");
        assert!(both.listeners.iter().all(|listener| listener.protocol.is_none()));
        let same = of("-Y /users -S").expect("valid");
        assert_eq!((same.sasl_file, same.auth_file), (Some("/users".into()), Some("/users".into())));
        assert!(same.listeners.iter().all(|listener| listener.protocol.is_none()));
        let exempt = of("-Y /users -l noauth:127.0.0.1").expect("valid");
        assert!(exempt.listeners.iter().all(|listener| !listener.auth && listener.protocol.is_none()));
        for wrong in ["-S", "-Y /users -B binary", "-S --sasl-pwdb /u -B ascii", "-Y /users -U 5"] {
            of(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn fabric_needs_a_plain_tcp_address() {
        let settings =
            of("--fabric tcp,eth0 --fabric-peers 10.0.0.0/8,::1 --fabric-receives 64").expect("valid");
        let fabric = settings.fabric.expect("it is on");
        assert_eq!((fabric.requirements(), fabric.receives), ("tcp,eth0".into(), 64));
        assert_eq!(fabric.peers.to_string(), "10.0.0.0/8,::1/128");
        assert_eq!(of("--fabric -p 5").expect("valid").fabric.expect("it is on").requirements(), "auto");
        assert_eq!(of("--fabric=off").expect("valid").fabric, None);
        assert!(of("--fabric -e /x").expect("a file can be read over a fabric").fabric.is_some());
        let tls = "-o ssl_chain_cert=/c,ssl_key=/k";
        assert!(of(&format!("--fabric -Z {tls} -l 127.0.0.1:1,notls:127.0.0.1:2")).is_ok());
        for wrong in ["--fabric -s /x", "--fabric -p 0 -U 5", &format!("--fabric -Z {tls}")] {
            let error = format!("{:#}", of(wrong).expect_err(wrong));
            assert!(error.contains("TCP address without TLS"), "{error}");
        }
        let file = |text: &str| {
            let options = toml::from_str(text).map_err(anyhow::Error::from)?;
            Ok::<_, anyhow::Error>(
                Settings::new(&options, &|_| None)?.fabric.map(|fabric| fabric.requirements()),
            )
        };
        assert_eq!(file("fabric = true").expect("valid"), Some("auto".into()));
        assert_eq!(file("fabric = false\nfabric-receives = 64").expect("valid"), None);
        let all = "fabric = \"verbs,mlx5_0\"\nfabric-peers = [\"10.0.0.0/8\"]\nfabric-receives = 64";
        assert_eq!(file(all).expect("valid"), Some("verbs,mlx5_0".into()));
        file("fabric = 5").expect_err("a number is neither");
    }

    #[test]
    fn fabric_peers_need_a_reachable_tcp_address() {
        let warned = |line: &str| {
            let warnings = of(&format!("--fabric {line}")).expect(line).warnings;
            warnings.into_iter().find(|warning| warning.contains("--fabric-peers"))
        };
        for heard in [
            "",
            "--fabric-peers local,127.0.0.0/8,::1",
            "--fabric-peers 10.0.0.0/8 -l 10.0.0.5",
            "--fabric-peers 10.0.0.0/8,fd00::/8 -l *",
            "--fabric-peers 10.0.0.0/8,fd00::/8 -l 127.0.0.1 -l 192.0.2.5 -l [::]",
        ] {
            assert_eq!(warned(heard), None, "{heard}");
        }
        for (unheard, which) in [
            ("--fabric-peers 10.0.0.0/8", "clients of 10.0.0.0/8 come"),
            (
                "--fabric-peers 127.0.0.1,10.0.0.0/8,fd00::/8 -l 127.0.0.1",
                "clients of 10.0.0.0/8,fd00::/8 come",
            ),
            ("--fabric-peers 10.0.0.0/8,fd00::/8 -l 10.0.0.5", "clients of fd00::/8 come"),
            ("--fabric-peers 10.0.0.0/8 -s /x -p 7 -U 8", "clients of 10.0.0.0/8 come"),
        ] {
            let warning = warned(unheard).expect(unheard);
            assert!(warning.contains(which) && warning.contains("-l 10.0.0.5"), "{warning}");
        }
        let tls = "-Z -o ssl_chain_cert=/c,ssl_key=/k --fabric-peers 10.0.0.0/8";
        assert!(warned(&format!("{tls} -l 10.0.0.5,notls:127.0.0.1")).is_some(), "encrypted is not fit");
        assert_eq!(warned(&format!("{tls} -l 127.0.0.1,notls:10.0.0.5")), None);
    }

    #[test]
    fn tls_needs_certificates() {
        assert!(of("-Z").expect_err("none").to_string().contains("ssl_chain_cert"));
        let settings =
            of("-Z -o ssl_chain_cert=/c,ssl_key=/k -l notls:127.0.0.1:1,127.0.0.1:2").expect("valid");
        assert_eq!(settings.listeners.iter().map(|l| l.tls).collect::<Vec<_>>(), [Tls::Off, Tls::On]);
        assert!(of("-l mtls:127.0.0.1 -o ssl_chain_cert=/c,ssl_key=/k").is_err());
    }

    #[test]
    fn options_without_effect_warn() {
        let settings = of("-f 1.1 -n 96 -o slab_automove=1").expect("valid");
        assert_eq!(settings.without_effect.len(), 3);
    }

    fn any_argument() -> impl Strategy<Value = String> {
        let flags = prop::sample::select(
            "-p -U -a -B -c -b -m -I -M -k -L -t -R -C -F -X -W -A -D -Y -S -Z -u -d -P -r -o -f -n -N -v --memory-max \
             --stall-timeout --flash=/x:1g --flash --flash-segment --flash-write-mb-s --flash-dwpd --flash-item-size --accept --engine --cpus --eviction --log-format --config --threads=1 -M=false -s --fabric --fabric=tcp --fabric-peers --fabric-receives \
             --fabric=openshmem --openshmem-name=a --openshmem-slots --openshmem-slot-size --openshmem-buffer --openshmem-mutex --openshmem-offload --openshmem-threads \
             --openshmem-one-sided=false --openshmem-timeout --openshmem-sleep"
                .split_whitespace()
                .collect::<Vec<_>>(),
        );
        let number = any::<i64>().prop_map(|n| n.to_string());
        prop_oneof![
            flags.prop_map(str::to_owned),
            number,
            "[0-9]{1,4}[kmg]?",
            any::<String>().prop_filter("no address is looked up", |text| !text.starts_with(['-', '='])),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_command_line_parses_or_is_rejected(words in prop::collection::vec(any_argument(), 0..6)) {
            let words = std::iter::once("fabcached".to_owned()).chain(words);
            if let Ok(line) = CommandLine::try_parse_from(words)
                && let Ok(settings) = Settings::new(&line.options, &|_| None)
            {
                prop_assert!(settings.threads > 0 && settings.requests_per_turn != Some(0));
                prop_assert!(settings.item_bytes_max <= settings.memory_bytes);
                prop_assert!(settings.memory_bytes <= settings.memory_bytes_max);
                prop_assert!(!settings.listeners.is_empty());
            }
        }

        #[test]
        fn any_text_is_a_size_or_rejected(text: String, number in 1u64..1 << 23) {
            let _ = size("-m", &text, 1);
            for (suffix, unit) in [("", 7), ("k", 1 << 10), ("K", 1 << 10), ("m", 1 << 20), ("g", 1 << 30), ("t", 1 << 40)] {
                prop_assert_eq!(size("-m", &format!("{number}{suffix}"), 7).expect("a size"), number * unit);
            }
        }

        #[test]
        fn file_and_command_line_give_the_same_settings(
            threads in 1usize..64, memory in 4u64..1000, requests in 1u32..1000, cas: bool, port in 1u16..,
        ) {
            let file = format!(
                "threads = {threads}\nmemory-limit = {memory}\nmax-reqs-per-event = {requests}\n\
                 disable-cas = {cas}\nport = {port}\nmax-item-size = \"2m\"\n"
            );
            let file = Settings::new(&toml::from_str(&file).expect("valid"), &|_| None).expect("valid");
            let line = of(&format!("-t {threads} -m {memory} -R {requests} -C={cas} -p {port} -I 2m")).expect("valid");
            prop_assert_eq!(format!("{file:?}"), format!("{line:?}"));
        }
    }
}
