//! `cargo xtask openshmem`: tests servers that are the PEs of one OpenSHMEM job.
//!
//! Each arrangement is a number of PEs on this machine, and the transports by which they access each other's memory.

mod answers;
mod measure;
mod programs;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fabcache_testbed::openshmem::SERVER_VARIABLE;

use crate::clients::install::make_packages_ready;
use crate::process::{self, Interrupt, Scratch};
use crate::test_programs::{self, Program};
use crate::test_results::{Results, is_left_out};
use crate::workspace;

use programs::TESTS;

/// Time limits of one test program, and with `--long`.
const TIME_MAX: Duration = Duration::from_secs(300);
const LONG_TIME_MAX: Duration = Duration::from_secs(3600);

/// How many PEs there are, and how they access each other's memory.
struct Arrangement {
    name: &'static str,
    pes: usize,
    /// UCX's transports; none for those that it chooses.
    transports: Option<&'static str>,
    is_long: bool,
}

/// UCX's transports between machines without RDMA. `self` is for a PE's own memory.
pub const TCP: Option<&str> = Some("tcp,self");

const ARRANGEMENTS: &[Arrangement] = &[
    Arrangement { name: "2 PEs", pes: 2, transports: None, is_long: false },
    Arrangement { name: "4 PEs", pes: 4, transports: None, is_long: false },
    Arrangement { name: "2 PEs over tcp", pes: 2, transports: TCP, is_long: false },
    Arrangement { name: "8 PEs", pes: 8, transports: None, is_long: true },
    Arrangement { name: "4 PEs over tcp", pes: 4, transports: TCP, is_long: true },
    Arrangement { name: "8 PEs over tcp", pes: 8, transports: TCP, is_long: true },
];

/// Runs the tests of servers in an OpenSHMEM job.
#[derive(clap::Args)]
pub struct Args {
    /// Also run jobs of 8 PEs, and the long forms of tests
    #[arg(long)]
    long: bool,
    /// The server to test [default: the workspace's own, built for release]
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
    /// The command-line tool, which measures [default: the workspace's own, built for release]
    #[arg(long, value_name = "PATH")]
    tool: Option<PathBuf>,
    /// Only run tests whose names contain this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Keep the output of every arrangement, not only of failed ones
    #[arg(long)]
    keep_log: bool,
}

/// Runs the tests.
///
/// # Errors
/// A requirement is missing and cannot be installed, or a test fails.
pub fn run(args: &Args) -> Result<()> {
    let interrupt = Interrupt::register()?;
    make_packages_ready(&workspace::folder().join("tests/openshmem"), &interrupt)
        .context("NOT RUN: OpenSHMEM is missing")?;
    let server = args.server.clone().map_or_else(workspace::build_server, Ok)?;
    let server = server.canonicalize().with_context(|| format!("{} cannot be used", server.display()))?;
    let programs = test_programs::build(TESTS, &interrupt)?;
    let mut results = Results::new(&workspace::target().join("openshmem"), args.keep_log)?;
    for arrangement in ARRANGEMENTS.iter().filter(|arrangement| args.long || !arrangement.is_long) {
        for program in &programs {
            run_program(args, arrangement, program, &server, &interrupt, &mut results)?;
        }
    }
    if args.only.is_none() {
        compare_answers(args, &server, &mut results)?;
        let tool = args.tool.clone().map_or_else(workspace::build_tool, Ok)?;
        measure::run(&tool, &server, &interrupt, &mut results)?;
    }
    results.end()
}

/// PEs whose answers are compared with memcached's, and the commands to compare, with `--long` or without.
const COMPARED_PES: usize = 3;
const COMMANDS: u64 = 20_000;
const LONG_COMMANDS: u64 = 1_000_000;

fn compare_answers(args: &Args, server: &Path, results: &mut Results) -> Result<()> {
    let begun = Instant::now();
    let commands = if args.long { LONG_COMMANDS } else { COMMANDS };
    let report = answers::compare(server, COMPARED_PES, commands)?;
    let outcome = match report.passed() {
        true => Ok(format!(", {} commands\n", report.commands)),
        false => Err("the answers differ".to_owned()),
    };
    results.add(&format!("memcached's answers, {COMPARED_PES} PEs"), &report.text(), outcome, begun.elapsed())
}

fn run_program(
    args: &Args,
    arrangement: &Arrangement,
    program: &Program,
    server: &Path,
    interrupt: &Interrupt,
    results: &mut Results,
) -> Result<()> {
    let name = format!("{}, {}", program.name(), arrangement.name);
    if is_left_out(program, arrangement.name, &name) {
        return Ok(());
    }
    let scratch = Scratch::create()?;
    let mut command = program.command(arrangement.name);
    command.args(&args.only);
    // The jobs' files lie there, and are removed with it even if the program is killed.
    command.env("TMPDIR", scratch.path());
    command.env(SERVER_VARIABLE, server).env("FABCACHE_PES", arrangement.pes.to_string());
    match arrangement.transports {
        Some(transports) => command.env("UCX_TLS", transports),
        None => command.env_remove("UCX_TLS"),
    };
    if args.long {
        command.env("FABCACHE_LONG", "1");
    }
    let time_max = if args.long { LONG_TIME_MAX } else { TIME_MAX };
    let begun = Instant::now();
    let run = process::run(&mut command, scratch.path(), time_max, interrupt)?;
    let output = format!("{}{}", run.stdout, run.stderr);
    results.add_tests(&name, &output, run.failure, begun.elapsed())
}
