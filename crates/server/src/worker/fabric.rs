//! A worker's fabric endpoint in its event loop.
//!
//! Completions are visible only to a poll, and some providers make progress only while polled, also with reads of the
//! region, which complete without any event at the server. So a worker with fabric clients polls in every turn. It
//! sleeps where the endpoint has a descriptor that signals; elsewhere, waiting clients notify through their sockets.
//! After the descriptor became ready the worker spins for more, as its [`SpinPolicy`] says.

use std::time::{Duration, Instant};

use fabcache_layout::channel::SpinPolicy;
use fabcache_transport::{Source, WaitMode};

use super::Worker;
use super::connection::EndReason;
use super::token::ConnectionToken;
use crate::bounds::{
    FABRIC_DRAIN_PAUSE, FABRIC_DRAIN_TIME_MAX, FABRIC_POLLS_PER_TURN, FABRIC_REOPEN_PAUSE_MAX,
    FABRIC_REOPEN_PAUSE_MIN, FABRIC_STEADY,
};
use crate::shared::Phase;

/// Decides when a failed endpoint is reopened.
#[derive(Debug)]
struct ReopenTimer {
    /// The time of the last opening, or attempt.
    opened: Instant,
    /// The least time from one opening to the next.
    pause: Duration,
    /// The time at which a failed endpoint is reopened.
    at: Option<Instant>,
}

impl ReopenTimer {
    fn new(now: Instant) -> ReopenTimer {
        ReopenTimer { opened: now, pause: FABRIC_REOPEN_PAUSE_MIN, at: None }
    }

    /// The endpoint failed, or could not be opened.
    fn failed(&mut self, now: Instant) {
        if now.saturating_duration_since(self.opened) >= FABRIC_STEADY {
            self.pause = FABRIC_REOPEN_PAUSE_MIN;
        }
        self.at = Some(now.max(self.opened + self.pause));
        self.pause = (2 * self.pause).min(FABRIC_REOPEN_PAUSE_MAX);
    }

    /// Returns whether it must be reopened now.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.at.is_some_and(|at| now >= at);
        if is_due {
            (self.at, self.opened) = (None, now);
        }
        is_due
    }
}

/// A worker's state of its endpoint.
#[derive(Debug)]
pub struct WorkerFabric {
    reopening: ReopenTimer,
    /// The descriptor became ready, and no poll has been empty since.
    pub is_ready: bool,
    spin: SpinPolicy,
    /// Until when it polls instead of sleeping.
    polls_until: Option<Instant>,
    /// Something came while it did.
    has_come: bool,
    /// When it went to sleep.
    slept_at: Option<Instant>,
    /// Connections to serve; kept for its capacity.
    ready: Vec<u64>,
    /// Dropped messages that are counted already.
    dropped: u64,
}

impl WorkerFabric {
    /// Creates the state of a newly opened endpoint.
    pub fn new(now: Instant) -> WorkerFabric {
        WorkerFabric {
            reopening: ReopenTimer::new(now),
            is_ready: false,
            spin: SpinPolicy::default(),
            polls_until: None,
            has_come: false,
            slept_at: None,
            ready: Vec::new(),
            dropped: 0,
        }
    }

    /// Returns when a failed endpoint is to be reopened.
    pub fn reopens_at(&self) -> Option<Instant> {
        self.reopening.at
    }

    /// Notes that the descriptor was signalled at `now`.
    pub fn set_ready(&mut self, now: Instant) {
        self.is_ready = true;
        if self.polls_until.is_some() {
            self.has_come = true;
            return;
        }
        if self.spin.spin_time().is_none() {
            let slept = self.slept_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
            self.spin = self.spin.after_sleep(slept);
        }
        self.polls_until = self.spin.spin_time().map(|time| now + time);
    }

    /// Returns whether it polls instead of sleeping.
    fn is_looking(&self) -> bool {
        self.polls_until.is_some()
    }

    /// Returns whether it keeps polling at `now`.
    fn keeps_polling(&mut self, now: Instant) -> bool {
        let Some(until) = self.polls_until else { return false };
        if std::mem::take(&mut self.has_come) {
            self.spin = self.spin.after_success();
            self.polls_until = self.spin.spin_time().map(|time| now + time);
            return true;
        }
        if now < until {
            return true;
        }
        self.spin = self.spin.after_sleep(Duration::ZERO);
        self.polls_until = None;
        false
    }
}

impl Worker {
    /// Receives from the fabric, and serves the connections concerned; returns whether there were any.
    pub(super) fn serve_fabric(&mut self) -> bool {
        let Some(port) = &mut self.ctx.port else { return false };
        if port.links() == 0 && !self.fabric.is_ready {
            return false;
        }
        let mut ready = std::mem::take(&mut self.fabric.ready);
        let progress = port.progress(&mut ready);
        let dropped = port.dropped_messages();
        let more = dropped - std::mem::replace(&mut self.fabric.dropped, dropped);
        if more > 0 {
            self.ctx.counters().fabric_dropped_messages.add(more);
        }
        let is_for_some = !ready.is_empty();
        for token in ready.drain(..) {
            let place = ConnectionToken::of(token);
            if self.at(place).is_some() {
                self.serve_unless_queued(place.index);
            }
        }
        self.fabric.ready = ready;
        if let Err(error) = progress {
            tracing::error!(
                worker = self.ctx.worker,
                "the fabric failed, its clients are cut off, and it is opened again: {error}"
            );
            self.leave_fabric();
        }
        is_for_some
    }

    /// Polls the fabric for as long as the spin policy says. It polls the descriptor, because nothing else signals
    /// reads of the region, and because that is cheaper than epoll or the completion queue.
    pub(super) fn poll_fabric(&mut self) {
        for _ in 0..FABRIC_POLLS_PER_TURN {
            if !self.fabric.is_looking() {
                return;
            }
            if self.ctx.port.as_ref().is_some_and(Source::has_events) {
                (self.fabric.is_ready, self.fabric.has_come) = (true, true);
                self.serve_fabric();
            }
        }
    }

    /// Returns how long the fabric need not be polled unless a descriptor is signalled.
    pub(super) fn fabric_sleep_time(&mut self) -> WaitMode {
        let Some(port) = &mut self.ctx.port else { return WaitMode::Sleep };
        if port.links() == 0 && !self.fabric.is_ready {
            return WaitMode::Sleep;
        }
        let now = Instant::now();
        let keeps_polling = self.fabric.keeps_polling(now);
        if keeps_polling && !self.fabric.is_ready {
            return WaitMode::Spin;
        }
        // This also clears a signalled descriptor.
        let sleep = port.arm();
        self.fabric.is_ready &= sleep == WaitMode::Spin;
        let sleep = if keeps_polling { WaitMode::Spin } else { sleep };
        self.fabric.slept_at = (sleep != WaitMode::Spin).then_some(now);
        sleep
    }

    /// Opens an end that has failed again, when it is time.
    pub(super) fn reopen_fabric(&mut self) {
        if !self.fabric.reopening.is_due(self.now) || self.ctx.shared.phase() >= Phase::Leaving {
            return;
        }
        let Some(opened) = self.ctx.shared.fabric.opened() else { return };
        let worker = self.ctx.worker;
        let port = opened.open_port().and_then(|port| {
            port.wait_fd().map_or(Ok(()), |fd| self.poll.add_fabric(fd))?;
            Ok(port)
        });
        match port {
            Ok(port) => {
                tracing::info!(worker, "the fabric is open again");
                opened.set_buffer_bytes(worker, port.registered_bytes());
                let fresh = WorkerFabric::new(self.now);
                let former = std::mem::replace(&mut self.fabric, fresh);
                self.fabric.reopening = former.reopening;
                self.ctx.port = Some(port);
            }
            Err(error) => {
                tracing::error!(worker, "the fabric cannot be opened again: {error:#}");
                self.fabric.reopening.failed(self.now);
            }
        }
    }

    /// Lets the last bytes of closed links arrive, while their clients still receive.
    pub(super) fn drain_fabric(&mut self) {
        let Some(port) = &mut self.ctx.port else { return };
        let until = Instant::now() + FABRIC_DRAIN_TIME_MAX;
        while port.links() > 0 && Instant::now() < until {
            if let Err(error) = port.progress(&mut self.fabric.ready) {
                tracing::debug!(worker = self.ctx.worker, "the fabric failed at the end: {error}");
                return;
            }
            self.fabric.ready.clear();
            std::thread::sleep(FABRIC_DRAIN_PAUSE);
        }
    }

    fn leave_fabric(&mut self) {
        for index in 0..self.connections.len() {
            let slot = &mut self.connections[index].connection;
            if let Some(connection) = slot.take_if(|connection| connection.is_on_fabric()) {
                self.close(index, connection, EndReason::Error);
            }
        }
        if let Some(port) = self.ctx.port.take() {
            port.wait_fd().into_iter().for_each(|fd| self.poll.remove_fabric(fd));
        }
        if let Some(opened) = self.ctx.shared.fabric.opened() {
            opened.set_buffer_bytes(self.ctx.worker, 0);
        }
        self.ctx.counters().fabric_failures.inc();
        self.fabric.reopening.failed(self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_endpoint_is_reopened_at_once_then_with_backoff() {
        let start = Instant::now();
        let mut reopening = ReopenTimer::new(start);
        let mut now = start + FABRIC_STEADY;
        reopening.failed(now);
        assert!(reopening.is_due(now), "it has worked for long");
        let mut pause = FABRIC_REOPEN_PAUSE_MIN;
        for _ in 0..20 {
            pause = (2 * pause).min(FABRIC_REOPEN_PAUSE_MAX);
            reopening.failed(now);
            assert!(!reopening.is_due(now + pause - Duration::from_nanos(1)));
            now += pause;
            assert!(reopening.is_due(now) && !reopening.is_due(now), "once");
        }
        reopening.failed(now + 2 * FABRIC_STEADY);
        assert!(reopening.is_due(now + 2 * FABRIC_STEADY));
    }

    #[test]
    fn polling_lasts_while_it_succeeds() {
        let mut now = Instant::now();
        let mut fabric = WorkerFabric::new(now);
        assert!(!fabric.keeps_polling(now), "no notification arrived");
        fabric.set_ready(now);
        for _ in 0..100 {
            assert!(fabric.keeps_polling(now));
            now += Duration::from_micros(100);
            fabric.set_ready(now);
        }
        // Nothing arrives during a poll, however soon the peer is woken.
        let mut looks = 0;
        for _ in 0..1000 {
            fabric.slept_at = Some(now);
            now += Duration::from_micros(20);
            fabric.set_ready(now);
            fabric.has_come = false;
            while fabric.keeps_polling(now) {
                now += Duration::from_micros(10);
                looks += 1;
            }
        }
        assert!(looks < 1000, "{looks} unsuccessful polls");
    }
}
