//! `cargo xtask bench`: runs every measurement of `fabcache bench` briefly, against memcached and
//! fabcached, and compares some of them with other tools on the same work.
//!
//! - `quick.rs`: checks that the measurements work.
//! - `tools.rs`: checks that they agree with other tools.

mod quick;
mod tools;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::clients::install::make_packages_ready;
use crate::process::Interrupt;
use crate::servers::{MEMCACHED, Programs};
use crate::workspace;

/// memcached's default, which is enough for brief measurements.
const MEMORY_MIB: u32 = 64;

/// Runs every measurement briefly, and compares some with other tools.
#[derive(clap::Args)]
pub struct Args {
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Of the brief measurements, run only these
    #[arg(long, value_name = "SUBCOMMAND", value_delimiter = ',')]
    subcommand: Vec<String>,
    /// Rounds of each comparison with another tool; medians are reported
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

/// A part of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Every subcommand with --quick, and with --verify if it supports that
    Quick,
    /// Compare memcslap and memcaslap with latency and throughput
    Tools,
}

/// The programs under test.
struct ProgramsUnderTest {
    tool: PathBuf,
    programs: Programs,
}

/// Runs the selected parts; by default both.
///
/// # Errors
/// Something is missing and cannot be installed, or a measurement fails.
pub fn run(args: &Args) -> Result<()> {
    let interrupt = Interrupt::register()?;
    make_packages_ready(&workspace::folder().join("tests/bench"), &interrupt)?;
    let under_test = ProgramsUnderTest::new(args)?;
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    if wanted(Part::Quick) {
        quick::run(&under_test, &args.subcommand, &interrupt)?;
    }
    if wanted(Part::Tools) {
        let amount = tools::Amount { rounds: args.rounds, calls: args.calls, seconds: args.seconds };
        tools::run(&under_test, amount, &interrupt)?;
    }
    Ok(())
}

impl ProgramsUnderTest {
    fn new(args: &Args) -> Result<Self> {
        let tool = args.tool.clone().map_or_else(workspace::build_tool, Ok)?;
        let fabcached = args.server.clone().map_or_else(workspace::build_server, Ok)?;
        let absolute =
            |path: PathBuf| path.canonicalize().with_context(|| format!("{} does not exist", path.display()));
        let programs =
            Programs { memcached: MEMCACHED.into(), fabcached: absolute(fabcached)?, memory_mib: MEMORY_MIB };
        ensure!(programs.memcached.exists(), "{MEMCACHED} is missing (Debian: memcached)");
        Ok(Self { tool: absolute(tool)?, programs })
    }
}
