//! Options of a run.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::generate::Selection;
use crate::play::Servers;

/// A server that sends nothing for this long has no answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Command-line options.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Number of commands to compare
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    pub commands: u64,
    /// Seed; the same seed sends the same commands
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Protocols to send
    #[arg(long, value_enum, default_value_t = ProtocolArg::All)]
    pub protocol: ProtocolArg,
    /// Stop after this many seconds, and require only the coverage of the commands sent
    #[arg(long, value_name = "SECONDS")]
    pub time_limit: Option<u64>,
    /// Continue until this many differences were found
    #[arg(long, default_value_t = 1, value_name = "K")]
    pub keep_going: usize,
    /// Both servers are memcached 1.6.18, for self-tests: known differences do not occur
    #[arg(long)]
    pub twin: bool,
    /// Ours is several servers, each with its keys, which may give the same CAS values
    #[arg(long)]
    pub sharded: bool,
    /// Leave out the sequences that wait for expiry
    #[arg(long)]
    pub no_wait: bool,
    /// Do not require coverage
    #[arg(long)]
    pub no_coverage: bool,
}

/// The selectable protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProtocolArg {
    /// Classic text.
    Text,
    /// Meta.
    Meta,
    /// Binary.
    Binary,
    /// All three.
    All,
}

/// The options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The two servers.
    pub servers: Servers,
    /// Number of commands to compare.
    pub commands: u64,
    /// Seed of the run.
    pub seed: u64,
    /// Protocols to send.
    pub selection: Selection,
    /// Time limit.
    pub time_limit: Option<Duration>,
    /// Number of differences after which the run stops.
    pub differences_max: usize,
    /// Whether ours is a memcached 1.6.18, too.
    pub twin: bool,
    /// Whether ours is several servers, each with its keys, which may give the same CAS values.
    pub sharded: bool,
    /// Whether to play the sequences that let time pass.
    pub slow: bool,
    /// Whether to minimise the commands of a difference.
    pub shrink: bool,
    /// Whether to fail if a pair of the coverage table is rare.
    pub coverage: bool,
    /// A server that sends nothing for this long has no answer.
    pub timeout: Duration,
    /// Whether to show progress.
    pub progress: bool,
    /// Ends the run when set.
    pub stop: Arc<AtomicBool>,
}

impl RunArgs {
    /// Returns the options of a run against these servers.
    pub fn options(&self, servers: Servers) -> Options {
        let selection = match self.protocol {
            ProtocolArg::Text => Selection::Text,
            ProtocolArg::Meta => Selection::Meta,
            ProtocolArg::Binary => Selection::Binary,
            ProtocolArg::All => Selection::All,
        };
        Options {
            servers,
            commands: self.commands,
            seed: self.seed,
            selection,
            time_limit: self.time_limit.map(Duration::from_secs),
            differences_max: self.keep_going.max(1),
            twin: self.twin,
            sharded: self.sharded,
            slow: !self.no_wait,
            shrink: true,
            coverage: !self.no_coverage,
            timeout: ANSWER_TIMEOUT,
            progress: std::io::IsTerminal::is_terminal(&std::io::stderr()),
            stop: Arc::default(),
        }
    }
}
