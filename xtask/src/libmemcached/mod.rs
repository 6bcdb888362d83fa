//! `cargo xtask libmemcached`: compares libfabcache.so under libmemcached's names with Debian's
//! libmemcached.
//!
//! Needs Debian's libmemcached (headers, libraries and tools), memcached, and a C compiler.

mod cases;
mod compare;
mod differential;
mod functions;
mod latency;
mod programs;
mod recorded;
mod requests;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::capi::LIBRARIES;
use crate::process::Interrupt;
use crate::servers::{MEMCACHED, Programs, Transport};
use crate::workspace;

/// Enough memory that no scenario causes an eviction.
const MEMORY_MIB: u32 = 256;

/// Compares libfabcache.so with Debian's libmemcached 1.1.4.
#[derive(clap::Args)]
pub struct Args {
    /// Record Debian's headers and library anew, and write the table of functions in docs/libmemcached.md;
    /// do nothing else
    #[arg(long)]
    record: bool,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Only over these transports
    #[arg(long, value_enum, value_delimiter = ',')]
    transport: Vec<Transport>,
    /// Only these scenarios of the differential program
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    scenario: Vec<String>,
    /// Seed of the differential program's random scenarios
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// libmemcached's own test program, built elsewhere [default: that of LIBMEMCACHED_TESTS; without, its cases are
    /// not run]
    #[arg(long, value_name = "PATH")]
    cases: Option<PathBuf>,
    /// Run the programs with Debian's library
    #[arg(long)]
    plain: bool,
    /// The library [default: the workspace's own, built for release]
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// The server [default: the workspace's own, built for release]
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
}

/// A part of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The recorded facts of Debian's headers and library, and the table of functions
    Recorded,
    /// A program of RDMA-Memcached
    Requests,
    /// Every function of both libraries, call by call
    Differential,
    /// Third-party programs, which pass with libfabcache.so as with libmemcached
    Programs,
    /// libmemcached's own test cases, if their program is there
    Cases,
    /// The time of a call with both libraries; not run by default, because it passes or fails nothing
    Latency,
}

/// The programs under test, and the folder for built files.
struct Subject {
    library: PathBuf,
    programs: Programs,
    scratch: PathBuf,
}

/// Returns the folder of the programs.
fn folder() -> PathBuf {
    workspace::folder().join("tests/libmemcached")
}

/// Runs the selected parts; by default all.
///
/// # Errors
/// A requirement is missing, or there is a difference.
pub fn run(args: &Args) -> Result<()> {
    if args.record {
        let library = workspace::build_library()?;
        recorded::run(&library, true)?;
        return functions::run(&library, true);
    }
    let interrupt = Interrupt::register()?;
    let subject = Subject::new(args)?;
    let transports = if args.transport.is_empty() { &Transport::ALL[..] } else { &args.transport };
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    if wanted(Part::Recorded) {
        recorded::run(&subject.library, false)?;
        functions::run(&subject.library, false)?;
    }
    if wanted(Part::Requests) {
        requests::run(&subject.library, &interrupt)?;
    }
    let mut differences = 0;
    if wanted(Part::Differential) {
        differences = differential::run(&subject, transports, &args.scenario, args.seed, &interrupt)?;
    }
    if wanted(Part::Programs) {
        let preloaded = (!args.plain).then_some(subject.library.as_path());
        programs::run(&subject, transports, preloaded, &interrupt)?;
    }
    if wanted(Part::Cases) {
        cases::run(&subject, args.cases.as_deref(), &interrupt)?;
    }
    if args.only.contains(&Part::Latency) {
        latency::run(&subject, &interrupt)?;
    }
    ensure!(differences == 0, "{differences} answers of libfabcache.so are not libmemcached's");
    Ok(())
}

impl Subject {
    fn new(args: &Args) -> Result<Self> {
        let library = match &args.library {
            Some(path) => path.clone(),
            None => workspace::build_library()?,
        };
        let fabcached = match &args.server {
            Some(path) => path.clone(),
            None => workspace::build_server()?,
        };
        let scratch = workspace::target().join("libmemcached");
        fs::create_dir_all(&scratch).with_context(|| format!("{} cannot be created", scratch.display()))?;
        let fabcached = absolute(&fabcached)?;
        let programs = Programs { memcached: MEMCACHED.into(), fabcached, memory_mib: MEMORY_MIB };
        ensure!(programs.memcached.exists(), "{MEMCACHED} is missing (Debian: memcached)");
        Ok(Self { library: absolute(&library)?, programs, scratch })
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    path.canonicalize().with_context(|| format!("{} does not exist", path.display()))
}
