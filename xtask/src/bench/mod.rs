//! `cargo xtask bench`: every measurement of `fabcache bench`, briefly, against memcached and fabcached; and tools of others
//! beside it on the same work.
//!
//! - `quick.rs`: that measurements work.
//! - `tools.rs`: that they measure what others measure.

mod quick;
mod tools;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::clients::install::make_packages_ready;
use crate::process::Interrupt;
use crate::servers::{MEMCACHED, Programs};
use crate::workspace;

/// memcached's default: that is enough for brief measurements.
const MEMORY_MIB: u32 = 64;

/// Every measurement, briefly, and tools of others beside it.
#[derive(clap::Args)]
pub struct Args {
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Of the brief measurements only these
    #[arg(long, value_name = "SUBCOMMAND", value_delimiter = ',')]
    subcommand: Vec<String>,
    /// Rounds of each comparison with another tool, of which medians are told
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Calls in a round of latency, with each tool
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..))]
    calls: u32,
    /// Seconds of a round of throughput, with each tool
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// The command-line tool [default: the workspace's own, built for release]
    #[arg(long, value_name = "PATH")]
    tool: Option<PathBuf>,
    /// The server [default: the workspace's own, built for release]
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
}

/// The parts of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Every subcommand with --quick, and with --verify where it has that
    Quick,
    /// memcslap and memcaslap beside latency and throughput
    Tools,
}

/// What is run.
struct Measured {
    tool: PathBuf,
    programs: Programs,
}

/// Runs both parts, or those that are asked for.
///
/// # Errors
/// Something is missing and cannot be installed, or a measurement fails.
pub fn run(args: &Args) -> Result<()> {
    let interrupt = Interrupt::register()?;
    make_packages_ready(&workspace::folder().join("tests/bench"), &interrupt)?;
    let subject = Measured::new(args)?;
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    if wanted(Part::Quick) {
        quick::run(&subject, &args.subcommand, &interrupt)?;
    }
    if wanted(Part::Tools) {
        let amount = tools::Amount { rounds: args.rounds, calls: args.calls, seconds: args.seconds };
        tools::run(&subject, amount, &interrupt)?;
    }
    Ok(())
}

impl Measured {
    fn new(args: &Args) -> Result<Self> {
        let tool = args.tool.clone().map_or_else(workspace::build_tool, Ok)?;
        let fabcached = args.server.clone().map_or_else(workspace::build_server, Ok)?;
        let absolute =
            |path: PathBuf| path.canonicalize().with_context(|| format!("{} is not there", path.display()));
        let programs =
            Programs { memcached: MEMCACHED.into(), fabcached: absolute(fabcached)?, memory_mib: MEMORY_MIB };
        ensure!(programs.memcached.exists(), "{MEMCACHED} is missing (Debian: memcached)");
        Ok(Self { tool: absolute(tool)?, programs })
    }
}
