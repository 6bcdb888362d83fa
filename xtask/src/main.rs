//! Checks that need more than Rust's own test runner: `cargo xtask NAME`.

mod asan;
mod bench;
mod capi;
mod clients;
mod differential;
mod fuzz;
mod libmemcached;
mod loom;
mod openshmem;
mod process;
mod protocols;
mod python;
mod rdma;
mod report;
mod restart;
mod servers;
mod snippets;
mod test_programs;
mod test_results;
mod torture;
mod workspace;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Checks that need more than `cargo test`.
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the tests under AddressSanitizer
    Asan(asan::Args),
    /// Run every measurement briefly, and compare some with other tools
    Bench(bench::Args),
    /// Install the C library, and run programs built against it
    Capi(capi::CapiArgs),
    /// Run real memcached client libraries and tools against the server
    Clients(clients::Args),
    /// Compare every answer with memcached 1.6.18's
    Differential(differential::Args),
    /// Feed random bytes to every parser
    Fuzz(fuzz::Args),
    /// Generate the C header, or check that it is up to date
    Header(capi::HeaderArgs),
    /// Install the C library, its header and its man pages
    Install(capi::InstallArgs),
    /// Compare libfabcache.so with Debian's libmemcached
    Libmemcached(libmemcached::Args),
    /// Check models of the lock-free code, in every interleaving within their bounds
    Loom(loom::Args),
    /// Test servers that are the PEs of an OpenSHMEM job
    Openshmem(openshmem::Args),
    /// Run the client library against memcached in each protocol, and through a proxy
    Protocols(protocols::Args),
    /// Build the Python wheel, and test it beside pymemcache and Django
    Python(python::Args),
    /// Test the fabric over real providers, with RDMA in an emulated machine
    Rdma(rdma::Args),
    /// Check reports of measurements in a browser
    Report(report::Args),
    /// Run memcached's own test of a restart with fabcached
    Restart(restart::Args),
    /// Run the code blocks of the documents
    Snippets(snippets::Args),
    /// Read a region from another process while it is written at full rate
    Torture(torture::Args),
}

fn main() -> Result<()> {
    match Cli::parse().task {
        Task::Asan(args) => asan::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Capi(args) => capi::run(&args),
        Task::Clients(args) => clients::run(&args),
        Task::Differential(args) => differential::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Header(args) => capi::header(&args),
        Task::Install(args) => capi::install(&args),
        Task::Libmemcached(args) => libmemcached::run(&args),
        Task::Loom(args) => loom::run(&args),
        Task::Openshmem(args) => openshmem::run(&args),
        Task::Protocols(args) => protocols::run(&args),
        Task::Python(args) => python::run(&args),
        Task::Rdma(args) => rdma::run(&args),
        Task::Report(args) => report::run(&args),
        Task::Restart(args) => restart::run(&args),
        Task::Snippets(args) => snippets::run(&args),
        Task::Torture(args) => torture::run(&args),
    }
}
