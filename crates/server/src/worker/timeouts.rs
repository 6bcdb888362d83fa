//! When a connection has been idle or stalled for too long.

use std::time::Instant;

use fabcache_transport::Kind;

use super::connection::{Connection, EndReason};
use crate::commands::{Context, Role};

impl Connection {
    /// Returns when bytes last moved.
    pub fn last_progress(&self) -> Instant {
        self.last_progress
    }

    /// Returns whether it is idle: closing it loses no answer.
    pub fn is_quiet(&self) -> bool {
        self.session.queue.is_empty()
            && !self.link.has_unsent()
            && (self.input.is_empty() || self.starved)
            && !self.is_within_request()
    }

    /// Returns whether it stalled within a request.
    fn is_stalled(&self) -> bool {
        !self.session.queue.is_empty()
            || self.link.has_unsent()
            || !self.input.is_empty()
            || self.is_within_request()
    }

    /// Returns whether a request or its answer is incomplete.
    fn is_within_request(&self) -> bool {
        let role = &self.session.role;
        matches!(role, Role::Receiving(_) | Role::Forwarding(_) | Role::Completing(_) | Role::Dumping(_))
    }

    /// A timeout applies to it.
    pub fn may_time_out(&self, ctx: &Context) -> bool {
        let settings = &ctx.shared.settings;
        settings.idle_timeout.is_some() && !self.is_watching()
            || settings.stall_timeout.is_some() && self.is_stalled()
    }

    /// Returns whether a timeout has expired.
    pub fn timed_out(&self, ctx: &Context, now: Instant) -> Option<EndReason> {
        let waits = self.needs_ticket || self.needs_memory || self.awaits_flash();
        if self.is_one_shot() || waits || self.session.queue.awaits_ticket() {
            // The server is slow, not the client.
            return None;
        }
        if self.kind() == Kind::OpenShmem {
            // A PE that does not respond may do so later.
            return None;
        }
        let settings = &ctx.shared.settings;
        let still = now.saturating_duration_since(self.last_progress);
        if self.is_stalled() && settings.stall_timeout.is_some_and(|timeout| still >= timeout) {
            return Some(EndReason::Slow);
        }
        let idle = settings.idle_timeout.is_some_and(|timeout| still >= timeout);
        (idle && !self.is_watching()).then_some(EndReason::Idle)
    }
}
