//! The options of `--fabric openshmem`.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use fabcache_distribution::Address;
use fabcache_transport::openshmem::{LinkShape, SLEEPERS_MAX};

use super::threads::SPARE_THREADS;
use crate::options::{Options, size};

/// The provider name that stands for OpenSHMEM.
pub const PROVIDER: &str = "openshmem";

/// Slots of a link: as many requests of a few hundred bytes as a busy PE has under way to another.
const DEFAULT_SLOTS: u32 = 16;
const DEFAULT_SLOT_BYTES: u32 = 4 << 10;
const DEFAULT_BUFFER_BYTES: u64 = 64 << 10;
/// Others take over from one that waits for a PE that does not respond.
const DEFAULT_THREADS: u32 = 1;
const THREADS_MAX: u32 = (SLEEPERS_MAX - SPARE_THREADS) as u32;
/// Several times what a scheduler lets a busy process wait.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);
const TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// An idle thread that wakes this often takes about a thousandth of a CPU: a wake costs 0.1 ms on a virtual machine, whose caches it
/// finds empty.
const DEFAULT_SLEEP_MAX: Duration = Duration::from_millis(100);
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// What `--fabric openshmem` was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenShmemSettings {
    /// The memory of each link.
    pub shape: LinkShape,
    /// The name by which keys are mapped to this PE; none for the host's.
    pub name: Option<String>,
    /// Whether workers leave the links to PEs of the host to these threads.
    pub offload: bool,
    /// The threads that access other PEs' memory.
    pub threads: usize,
    /// A PE that shows no sign of life for so long is taken to be stopped.
    pub timeout: Duration,
    /// Whether items are read from other PEs' memory; if not given, from that which is mapped into this process.
    pub one_sided: Option<bool>,
    /// The longest sleep of a thread that not all PEs wake.
    pub sleep_max: Duration,
}

impl OpenShmemSettings {
    /// Checks the options; none without `--fabric openshmem`.
    ///
    /// # Errors
    /// Something given does not make sense; the error names it and says what would.
    pub fn new(options: &Options) -> Result<Option<OpenShmemSettings>> {
        if options.fabric.as_deref() != Some(PROVIDER) {
            reject_lone_options(options)?;
            return Ok(None);
        }
        for (option, given) in [
            ("--fabric-peers", !options.fabric_peers.is_empty()),
            ("--fabric-receives", options.fabric_receives.is_some()),
        ] {
            ensure!(
                !given,
                "{option} is for libfabric's providers, not for --fabric {PROVIDER}; leave it out"
            );
        }
        let bytes = |option: &str, given: &Option<String>, default: u64| -> Result<u64> {
            match given {
                None => Ok(default),
                Some(text) => Ok(size(option, text, 1)?.next_multiple_of(64)),
            }
        };
        let slot_bytes =
            bytes("--openshmem-slot-size", &options.openshmem_slot_size, DEFAULT_SLOT_BYTES.into())?;
        let shape = LinkShape {
            slots: options.openshmem_slots.unwrap_or(DEFAULT_SLOTS),
            slot_bytes: u32::try_from(slot_bytes).unwrap_or(u32::MAX),
            buffer_bytes: bytes("--openshmem-buffer", &options.openshmem_buffer, DEFAULT_BUFFER_BYTES)?,
            has_mutexes: options.openshmem_mutex.unwrap_or(false),
        };
        shape.check().context("--openshmem-slots, --openshmem-slot-size, --openshmem-buffer")?;
        let threads = options.openshmem_threads.unwrap_or(DEFAULT_THREADS);
        ensure!(
            (1..=THREADS_MAX).contains(&threads),
            "--openshmem-threads takes a number from 1 to {THREADS_MAX}, not {threads}"
        );
        let milliseconds =
            |given: Option<u32>, default| given.map_or(default, |given| Duration::from_millis(given.into()));
        let timeout = milliseconds(options.openshmem_timeout, DEFAULT_TIMEOUT);
        ensure!(
            timeout >= TIMEOUT_MIN,
            "--openshmem-timeout takes at least {} (ms)",
            TIMEOUT_MIN.as_millis()
        );
        let sleep_max = milliseconds(options.openshmem_sleep, DEFAULT_SLEEP_MAX);
        ensure!(sleep_max <= SLEEP_MAX, "--openshmem-sleep takes at most {} (ms)", SLEEP_MAX.as_millis());
        let name = options.openshmem_name.clone();
        if let Some(name) = &name {
            check_name(name).context("--openshmem-name")?;
        }
        ensure!(
            !shape.has_mutexes || options.openshmem_offload != Some(false),
            "--openshmem-mutex needs --openshmem-offload, as a mutex that a stopped PE holds would block a worker: leave \
             --openshmem-offload=false out"
        );
        Ok(Some(OpenShmemSettings {
            shape,
            name,
            offload: options.openshmem_offload.unwrap_or(false) || shape.has_mutexes,
            threads: threads as usize,
            timeout,
            one_sided: options.openshmem_one_sided,
            sleep_max,
        }))
    }
}

/// Checks that none of the options is given without `--fabric openshmem`.
fn reject_lone_options(options: &Options) -> Result<()> {
    let lone = [
        ("--openshmem-name", options.openshmem_name.is_some()),
        ("--openshmem-slots", options.openshmem_slots.is_some()),
        ("--openshmem-slot-size", options.openshmem_slot_size.is_some()),
        ("--openshmem-buffer", options.openshmem_buffer.is_some()),
        ("--openshmem-mutex", options.openshmem_mutex.is_some()),
        ("--openshmem-offload", options.openshmem_offload.is_some()),
        ("--openshmem-threads", options.openshmem_threads.is_some()),
        ("--openshmem-one-sided", options.openshmem_one_sided.is_some()),
        ("--openshmem-timeout", options.openshmem_timeout.is_some()),
        ("--openshmem-sleep", options.openshmem_sleep.is_some()),
    ];
    // With another fabric, or none, the other options may still be in a file.
    if let (Some((option, _)), None) = (lone.iter().find(|(_, given)| *given), &options.fabric) {
        bail!("{option} needs --fabric {PROVIDER}: give it too, or leave {option} out");
    }
    Ok(())
}

/// Checks that a PE's name is a server's address to clients that map keys by it.
pub fn check_name(name: &str) -> Result<Address> {
    let is_word =
        !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(|byte| byte.is_ascii_graphic());
    ensure!(
        is_word,
        "a name has 1 to {NAME_BYTES_MAX} printable characters, such as node7 or node7:11212, not {name:?}"
    );
    ensure!(!name.contains(['?', '/']), "a name is HOST or HOST:PORT, not {name:?}");
    name.parse::<Address>().with_context(|| format!("a name is HOST or HOST:PORT, not {name:?}"))
}

/// A host's name, and a port.
pub const NAME_BYTES_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::options::CommandLine;
    use crate::settings::Settings;

    fn of(line: &str) -> Result<Settings> {
        let words = format!("fabcached {line}");
        Settings::new(&CommandLine::try_parse_from(words.split_whitespace())?.options, &|_| None)
    }

    #[test]
    fn options_shape_the_links() {
        let settings = of("--fabric openshmem").expect("valid");
        assert!(settings.fabric.is_none() && settings.has_remote_readers());
        let openshmem = settings.openshmem.expect("it is on");
        assert_eq!((openshmem.shape.slots, openshmem.threads, openshmem.one_sided), (16, 1, None));
        assert!(!openshmem.shape.has_mutexes && !openshmem.offload);
        let offload = of("--fabric openshmem --openshmem-offload").expect("valid").openshmem;
        assert!(offload.expect("it is on").offload);
        let line = "--fabric openshmem --openshmem-slots 64 --openshmem-slot-size 1000 --openshmem-buffer 1m \
                    --openshmem-name node7:5 --openshmem-threads 3 --openshmem-one-sided=false --openshmem-timeout 500 \
                    --openshmem-sleep 5 --openshmem-mutex";
        let given = of(line).expect("valid").openshmem.expect("it is on");
        let shape = LinkShape { slots: 64, slot_bytes: 1024, buffer_bytes: 1 << 20, has_mutexes: true };
        let expected = OpenShmemSettings {
            shape,
            name: Some("node7:5".into()),
            offload: true,
            threads: 3,
            timeout: Duration::from_millis(500),
            one_sided: Some(false),
            sleep_max: Duration::from_millis(5),
        };
        assert_eq!(given, expected);
        assert!(of("--fabric tcp").expect("valid").openshmem.is_none());
    }

    #[test]
    fn wrong_options_are_named() {
        for (line, named) in [
            ("--openshmem-slots 16", "--openshmem-slots needs --fabric openshmem"),
            ("--openshmem-mutex", "--openshmem-mutex needs --fabric openshmem"),
            (
                "--fabric openshmem --openshmem-mutex --openshmem-offload=false",
                "leave --openshmem-offload=false out",
            ),
            ("--fabric openshmem --openshmem-slots 12", "power of two"),
            ("--fabric openshmem --openshmem-slot-size 64k", "8192"),
            ("--fabric openshmem --openshmem-buffer 1k", "buffer"),
            ("--fabric openshmem --openshmem-threads 0", "--openshmem-threads"),
            ("--fabric openshmem --openshmem-threads 11", "--openshmem-threads"),
            ("--fabric openshmem --openshmem-timeout 5", "--openshmem-timeout"),
            ("--fabric openshmem --openshmem-sleep 5000", "--openshmem-sleep"),
            ("--fabric openshmem --openshmem-name unix:///x", "--openshmem-name"),
            ("--fabric openshmem --openshmem-name a?weight=2", "--openshmem-name"),
            ("--fabric openshmem --fabric-receives 64", "--fabric-receives"),
            ("--fabric openshmem -d", "-d"),
            ("--fabric openshmem -e /x", "-e"),
            ("--fabric openshmem -L", "-L"),
        ] {
            let error = format!("{:#}", of(line).expect_err(line));
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}
