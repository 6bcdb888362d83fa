//! Options of a run.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::generate::Selection;
use crate::play::Servers;

/// A server that says nothing for so long has nothing to say.
const PATIENCE: Duration = Duration::from_secs(5);

/// Choices that a person makes on the command line.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// How many commands to compare.
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    pub commands: u64,
    /// The same seed sends the same commands.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// What to send.
    #[arg(long, value_enum, default_value_t = ProtocolArg::All)]
    pub protocol: ProtocolArg,
    /// Stop after so many seconds, and ask only as much coverage as there were commands.
    #[arg(long, value_name = "SECONDS")]
    pub time_limit: Option<u64>,
    /// Go on until so many differences were found.
    #[arg(long, default_value_t = 1, value_name = "K")]
    pub keep_going: usize,
    /// Both servers are memcached 1.6.18, to test the test: no known difference shows.
    #[arg(long)]
    pub twin: bool,
    /// Leave out the sequences that let items expire.
    #[arg(long)]
    pub no_wait: bool,
    /// Ask no coverage.
    #[arg(long)]
    pub no_coverage: bool,
}

/// The protocols to choose from.
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

/// A run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The two servers.
    pub servers: Servers,
    /// Commands to compare.
    pub commands: u64,
    /// Fixes the run.
    pub seed: u64,
    /// What to send.
    pub selection: Selection,
    /// Stop after so long.
    pub time_limit: Option<Duration>,
    /// Differences to find before giving up.
    pub differences_max: usize,
    /// Ours is a memcached 1.6.18, too.
    pub twin: bool,
    /// Play the sequences that let time pass.
    pub slow: bool,
    /// Look for the commands that a difference needs.
    pub shrink: bool,
    /// Fail if a pair of the coverage table is rare.
    pub coverage: bool,
    /// A server that says nothing for so long has nothing to say.
    pub patience: Duration,
    /// Show how far the run is.
    pub progress: bool,
    /// Ends the run when set.
    pub stop: Arc<AtomicBool>,
}

impl RunArgs {
    /// The run against these servers.
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
            slow: !self.no_wait,
            shrink: true,
            coverage: !self.no_coverage,
            patience: PATIENCE,
            progress: std::io::IsTerminal::is_terminal(&std::io::stderr()),
            stop: Arc::default(),
        }
    }
}
