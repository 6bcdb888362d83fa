//! Compares two running servers. `cargo xtask differential` also starts them.

#![forbid(unsafe_code)]

use std::net::{SocketAddr, ToSocketAddrs};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use fabcache_differential::run::run_and_print;
use fabcache_differential::saboteur::{Harm, Saboteur};
use fabcache_differential::{RunArgs, Servers, run};

/// Sends the same bytes to memcached 1.6.18 and to fabcached, and compares every answer.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// Address of memcached 1.6.18.
    #[arg(long, value_name = "HOST:PORT")]
    theirs: String,
    /// Address of fabcached.
    #[arg(long, value_name = "HOST:PORT")]
    ours: String,
    /// Alters answers of fabcached in transit, and fails if that is not detected.
    #[arg(long, value_enum, value_name = "HARM")]
    sabotage: Option<Harm>,
    #[command(flatten)]
    run: RunArgs,
}

/// Opportunities skipped between two harms.
const HARM_EVERY: u64 = 50;

fn main() -> Result<()> {
    let cli = Cli::parse();
    let servers = Servers { theirs: resolve(&cli.theirs)?, ours: resolve(&cli.ours)? };
    let Some(harm) = cli.sabotage else { return run_and_print(&cli.run.options(servers)) };
    let saboteur = Saboteur::start(servers.ours, harm, HARM_EVERY)?;
    let report = run(&cli.run.options(Servers { ours: saboteur.address(), ..servers }))?;
    for difference in &report.differences {
        println!("{difference}");
    }
    ensure!(saboteur.done() > 0, "no opportunity for {harm:?}");
    ensure!(!report.differences.is_empty(), "{harm:?} was done {} times and not detected", saboteur.done());
    println!("{harm:?} was noticed");
    Ok(())
}

fn resolve(address: &str) -> Result<SocketAddr> {
    let mut addresses =
        address.to_socket_addrs().with_context(|| format!("{address:?} is not an address"))?;
    addresses.next().with_context(|| format!("{address:?} has no address"))
}
