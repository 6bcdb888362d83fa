//! Measures the store by itself: `fabcache bench store`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use fabcache_bench::report::Header;
use fabcache_bench::store::plot::panels;
use fabcache_bench::store::report::Results;
use fabcache_bench::store::{Plan, instructions, operations, scaling, stalls};

use super::output;

/// The measurements, and their duration.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Numbers of resident items; none skips single operations; 10^8 with values of 16 bytes take about 12
    /// GB
    #[arg(long, value_delimiter = ',', num_args = 0.., default_value = "10000,100000,1000000,10000000")]
    items: Vec<u64>,
    /// Value size in bytes; keys have 20 bytes
    #[arg(long, default_value_t = 100)]
    value_bytes: usize,
    /// Numbers of threads; none skips scaling
    #[arg(long, value_delimiter = ',', num_args = 0.., default_value = "1,2,4,8,16,32,64")]
    threads: Vec<usize>,
    /// Resident items while threads are scaled
    #[arg(long, default_value_t = 1_000_000)]
    scaling_items: u64,
    /// Seconds per figure
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Do not measure the longest operations
    #[arg(long)]
    no_stalls: bool,
    /// Do not count instructions, which needs valgrind
    #[arg(long)]
    no_instructions: bool,
    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results as an SVG figure to this file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Perform an operation, given by its number, this many times, and nothing else
    #[arg(long, hide = true, num_args = 2, value_names = ["OPERATION", "COUNT"])]
    only: Option<Vec<u64>>,
}

/// Runs the benchmark, and prints tables.
///
/// # Errors
/// Memory is exhausted, or the results cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some([operation, count]) = arguments.only.as_deref() {
        return instructions::run_child(*operation as usize, *count);
    }
    output::check(&[("--json", arguments.json.as_deref()), ("--plot", arguments.plot.as_deref())])?;
    let mut progress = super::progress();
    let plan = Plan {
        items: arguments.items.clone(),
        value_bytes: arguments.value_bytes,
        threads: arguments.threads.clone(),
        scaling_items: arguments.scaling_items,
        time: Duration::from_secs_f64(arguments.seconds),
        stalls: !arguments.no_stalls,
    };
    let mut resident = Vec::new();
    for items in &plan.items {
        progress(&format!("operations on {items} items"));
        resident.push(operations::measure(*items, &plan)?);
    }
    progress("instructions");
    let program = std::env::current_exe().context("this program's path")?;
    let counted = (!arguments.no_instructions)
        .then(|| instructions::measure(&program, &["bench", "store", "--only"]))
        .transpose()?;
    progress("threads");
    let scaling = if plan.threads.is_empty() { Vec::new() } else { scaling::measure(&plan)? };
    progress("longest operations");
    let stalls = if plan.stalls { stalls::measure(&plan)? } else { Vec::new() };
    progress("");
    let results = Results {
        header: Header::now(),
        value_bytes: plan.value_bytes,
        resident,
        instructions: counted.flatten(),
        scaling_items: plan.scaling_items,
        scaling,
        stalls,
    };
    let kept = super::keep(&results, panels, arguments.plot.as_deref(), arguments.json.as_deref());
    output::print(&results.table())?;
    kept
}
