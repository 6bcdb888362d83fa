//! `fabcache bench dummy`: a server that only answers.

use std::io::{Read, Write};

use anyhow::{Result, ensure};
use clap::Args;
use fabcache_bench::dummy::{Dummy, Fault, Listen, Settings};
use fabcache_bench::limits::Limits;

/// The addresses and the fault.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Listen at tcp://HOST:PORT, where port 0 selects a free one, or unix:///PATH. May be repeated
    #[arg(long, value_name = "URL", required = true)]
    listen: Vec<Listen>,
    /// Fault in one of EVERY responses: wrong, foreign, truncated, dropped, swapped with the next, or
    /// closed (cut off, and the connection closed); with the prefix set- the last three affect responses to
    /// sets
    #[arg(long, value_name = "KIND@EVERY")]
    fault: Option<Fault>,
    /// Number of threads
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    threads: usize,
    /// Reported memory limit in bytes. The server keeps only the length of each value
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().memory_bytes)]
    memory_bytes: u64,
    /// Reported maximum item size in bytes. The server accepts any size
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().item_bytes)]
    item_bytes: u64,
    /// Exit at the end of the standard input, too
    #[arg(long)]
    until_input_ends: bool,
}

/// Prints its URLs, one per line, and serves.
///
/// # Errors
/// A listener cannot be opened.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.threads > 0, "--threads is at least 1");
    let settings = Settings {
        listen: arguments.listen.clone(),
        fault: arguments.fault,
        limits: Limits { memory_bytes: arguments.memory_bytes, item_bytes: arguments.item_bytes },
        threads: arguments.threads,
    };
    let dummy = Dummy::start(&settings)?;
    let mut out = std::io::stdout();
    for url in dummy.urls() {
        writeln!(out, "{url}")?;
    }
    out.flush()?;
    if arguments.until_input_ends {
        let mut ignored = [0; 64];
        while std::io::stdin().read(&mut ignored)? > 0 {}
        return Ok(());
    }
    loop {
        std::thread::park();
    }
}
