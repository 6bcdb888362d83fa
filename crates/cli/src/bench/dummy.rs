//! `fabcache bench dummy`: a server that does nothing but answer.

use std::io::{Read, Write};

use anyhow::{Result, ensure};
use clap::Args;
use fabcache_bench::dummy::{Dummy, Fault, Listen, Settings};
use fabcache_bench::limits::Limits;

/// The addresses and the fault.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Where to listen: tcp://HOST:PORT, where port 0 selects a free one, or unix:///PATH. May be repeated
    #[arg(long, value_name = "URL", required = true)]
    listen: Vec<Listen>,
    /// Fault of one in EVERY answers: wrong, foreign, truncated, dropped, swapped with the next, or closed (cut off,
    /// and the connection closed); with the prefix set- the last three concern answers to sets
    #[arg(long, value_name = "KIND@EVERY")]
    fault: Option<Fault>,
    /// Threads that answer
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    threads: usize,
    /// Bytes of memory that it says it has. It keeps only how long each value is
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().memory_bytes)]
    memory_bytes: u64,
    /// Bytes of the largest item that it says it takes. It takes any
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().item_bytes)]
    item_bytes: u64,
    /// End when the standard input does, and not only when stopped
    #[arg(long)]
    until_input_ends: bool,
}

/// Says where it listens, a line each, and answers.
///
/// # Errors
/// It cannot listen there.
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
