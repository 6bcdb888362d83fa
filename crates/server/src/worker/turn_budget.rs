//! The budget of a connection's turn.

use fabcache_protocol::Command;
use fabcache_protocol::bounds::RUN_MAX;

use crate::bounds::STEPS_PER_TURN_MAX;

/// How much a turn may still do, and what it has done.
pub struct TurnBudget {
    /// The number of parts of long values, buffers without a request and commands about the server that may follow; of
    /// all requests, if `-R` is given.
    pub left: u32,
    /// Whether requests count.
    counts_requests: bool,
    /// Whether a request was executed: the turn ends before it receives again.
    pub has_served: bool,
    /// Whether more input is available after the last receive.
    pub has_more: bool,
}

impl TurnBudget {
    /// A turn of at most `requests_max` requests, as `-R` says.
    pub fn new(requests_max: Option<u32>) -> TurnBudget {
        TurnBudget {
            left: requests_max.unwrap_or(STEPS_PER_TURN_MAX),
            counts_requests: requests_max.is_some(),
            has_served: false,
            has_more: false,
        }
    }

    pub fn count_request(&mut self) {
        self.count_requests(1);
    }

    pub fn count_requests(&mut self, count: usize) {
        self.has_served = true;
        self.left -= if self.counts_requests { count as u32 } else { 0 };
    }

    /// Counts what takes long, whether or not requests count.
    pub fn count_step(&mut self) {
        self.left = self.left.saturating_sub(u32::from(!self.counts_requests));
    }

    /// Returns how many requests a run may have.
    pub fn run_max(&self) -> usize {
        if self.counts_requests { self.left as usize } else { RUN_MAX }
    }
}

/// Returns whether a command is about single items, rather than about the server, which may take long.
pub fn is_about_items(command: &Command<'_>) -> bool {
    use Command::{Arithmetic, Delete, Get, Inspect, Noop, Refused, ShmAccessed, Store, Touch};
    matches!(
        command,
        Get(_)
            | Store(_)
            | Delete(_)
            | Arithmetic(_)
            | Touch(_)
            | Inspect(_)
            | Noop
            | Refused(_)
            | ShmAccessed(_)
    )
}
