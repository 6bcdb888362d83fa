//! The client library through shared memory, over a Unix socket, and the limits of the machine.
//!
//! - `servers.rs`: the servers, connections to them, and their items.
//! - `timing.rs`: percentiles of single calls, and calls per second.
//! - `gets.rs`: reads that bypass the server.
//! - `sets.rs`: requests through the channel: one at a time, in windows, and with one CPU for both.
//! - `idle.rs`: the cost of many idle clients for a server.
//! - `floors.rs`: loads, copies, and a cache line's round trip.
//! - `report.rs`, `plot.rs`: the results.

pub mod floors;
pub mod gets;
pub mod idle;
pub mod plot;
pub mod report;
pub mod servers;
pub mod sets;
pub mod timing;

use std::time::Duration;

use anyhow::Result;

use crate::process::pin;
use crate::server::MeasuredProgram;
use report::Figures;

/// CPU of the servers.
pub const SERVER_CPU: usize = 0;
/// CPU of the client.
pub const CLIENT_CPU: usize = 1;
/// The number of hot keys.
pub const HOT_KEYS: u64 = 64;

/// The configuration of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Numbers of resident items.
    pub items: Vec<u64>,
    /// Value sizes, each measured with each number of items.
    pub value_bytes: Vec<usize>,
    /// Maximum bytes of resident keys and values; it may reduce the number of items.
    pub resident_bytes_max: u64,
    /// Value size of SETs, and of multigets.
    pub small_value_bytes: usize,
    /// Interleaved rounds of everything.
    pub rounds: usize,
    /// Duration of a round.
    pub round: Duration,
    /// Whether the server's memory, and that of the floors, is in huge pages.
    pub huge_pages: bool,
    /// Number of idle clients.
    pub idle_clients: usize,
    /// The duration of the idle measurement.
    pub idle: Duration,
}

/// Measures everything.
///
/// # Errors
/// A server does not start, shares no memory, or answers wrongly; or the machine has fewer than two
/// CPUs.
pub fn measure(
    ours: &MeasuredProgram,
    against: Option<&MeasuredProgram>,
    plan: &Plan,
    progress: &mut dyn FnMut(&str),
) -> Result<Figures> {
    pin(None, &CLIENT_CPU.into())?;
    let gets = gets::measure(ours, against, plan, progress)?;
    let (set_floor, sets) = sets::measure(ours, against, plan, progress)?;
    progress("idle clients");
    let idle = idle::measure(ours, plan)?;
    Ok(Figures { gets, set_floor, sets, idle })
}
