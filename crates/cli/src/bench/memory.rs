//! Measures how many items servers hold: `fabcache bench memory ours=target/release/fabcached
//! memcached=/usr/bin/memcached`.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use fabcache_bench::memory::fill::fill_all;
use fabcache_bench::memory::mix::Mix;
use fabcache_bench::memory::plot::panels;
use fabcache_bench::memory::report::Results;
use fabcache_bench::report::{Header, ServersHeader};
use fabcache_bench::server::MeasuredProgram;

use super::output;

/// The servers and the items.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Servers, as NAME=PROGRAM; the last one is the baseline
    #[arg(required = true, value_name = "NAME=PROGRAM", value_parser = super::program)]
    servers: Vec<MeasuredProgram>,
    /// Memory limit of each server, in megabytes
    #[arg(long, short, default_value_t = 256)]
    megabytes: u32,
    /// Sizes of the items to store
    #[arg(long, value_enum, default_value_t = Mixes::All)]
    mixes: Mixes,
    /// Use keys of 20 bytes and values of these sizes instead, separated by commas
    #[arg(long, value_delimiter = ',')]
    values: Vec<usize>,
    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results as an SVG figure to this file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Sizes of the items to store.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mixes {
    /// Small objects, 20-byte keys with values of 100 bytes, and of 1 KB
    Main,
    /// 20-byte keys with values of every size from 1 byte to 1 MB
    Sweep,
    /// Both
    All,
}

/// Runs the benchmark, and prints a table.
///
/// # Errors
/// A server does not start or answers wrongly, or the results cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    let servers = &arguments.servers;
    let mixes = match arguments.mixes {
        _ if !arguments.values.is_empty() => arguments.values.iter().copied().map(Mix::of_values).collect(),
        Mixes::Main => Mix::main(),
        Mixes::Sweep => Mix::sweep(),
        Mixes::All => Mix::all(),
    };
    output::check(&[("--json", arguments.json.as_deref()), ("--plot", arguments.plot.as_deref())])?;
    let mut progress = super::progress();
    let filled = fill_all(servers, &mixes, arguments.megabytes, &mut progress)?;
    progress("");
    let results = Results {
        header: ServersHeader {
            run: Header::now(),
            servers: super::versions(servers),
            method: format!(
                "TCP over loopback, text protocol, -m {}, each mix into a fresh server: distinct items, twice what fits; \
                 anonymous, shared and huge pages of the process for an item held; a sample of all items read back",
                arguments.megabytes
            ),
        },
        filled,
    };
    let kept = super::keep(&results, panels, arguments.plot.as_deref(), arguments.json.as_deref());
    output::print(&results.table())?;
    kept
}
