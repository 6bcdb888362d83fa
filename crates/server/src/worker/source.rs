//! The sources of a worker's links in its event loop: when they are polled, and when a failed one is opened again.
//!
//! Events of a [`Source`] may be visible only to a poll, and some sources make progress only while polled. So a worker
//! whose source has links polls it in every turn, and arms it before it sleeps. After the descriptor became ready the
//! worker spins for more, as its [`SpinPolicy`] says.

use std::time::{Duration, Instant};

use fabcache_layout::channel::SpinPolicy;
use fabcache_transport::{Kind, Source, WaitMode};

use super::Worker;
use super::connection::EndReason;
use super::token::ConnectionToken;
use crate::bounds::{
    SOURCE_DRAIN_PAUSE, SOURCE_DRAIN_TIME_MAX, SOURCE_POLLS_PER_TURN, SOURCE_REOPEN_PAUSE_MAX,
    SOURCE_REOPEN_PAUSE_MIN, SOURCE_STEADY,
};
use crate::commands::Context;
use crate::shared::Phase;

/// The server's own work for a source, beside driving it.
pub trait SourceHooks: Send {
    /// Its name in log lines.
    fn name(&self) -> &'static str;

    /// Opens the source again.
    ///
    /// # Errors
    /// The system or the device cannot.
    fn reopen(&mut self, ctx: &mut Context) -> anyhow::Result<Box<dyn Source>>;

    /// Called after progress.
    fn progressed(&mut self, ctx: &Context);

    /// Called when the source has failed, or cannot be waited for.
    fn failed(&mut self, ctx: &mut Context);
}

/// Decides when a failed source is reopened.
#[derive(Debug)]
struct ReopenTimer {
    /// The time of the last opening, or attempt.
    opened: Instant,
    /// The least time from one opening to the next.
    pause: Duration,
    /// The time at which a failed source is reopened.
    at: Option<Instant>,
}

impl ReopenTimer {
    fn new(now: Instant) -> ReopenTimer {
        ReopenTimer { opened: now, pause: SOURCE_REOPEN_PAUSE_MIN, at: None }
    }

    /// The source failed, or could not be opened.
    fn failed(&mut self, now: Instant) {
        if now.saturating_duration_since(self.opened) >= SOURCE_STEADY {
            self.pause = SOURCE_REOPEN_PAUSE_MIN;
        }
        self.at = Some(now.max(self.opened + self.pause));
        self.pause = (2 * self.pause).min(SOURCE_REOPEN_PAUSE_MAX);
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

/// Whether a worker polls its source, spins on it, or has armed it.
#[derive(Debug, Default)]
struct PollState {
    /// The descriptor became ready, and no poll has been empty since.
    is_ready: bool,
    spin: SpinPolicy,
    /// Until when the worker polls instead of sleeping.
    spins_until: Option<Instant>,
    /// An event arrived while it did.
    had_event: bool,
    is_armed: bool,
    /// When it went to sleep.
    slept_at: Option<Instant>,
}

impl PollState {
    /// Notes that the descriptor was signalled at `now`.
    fn set_ready(&mut self, now: Instant) {
        self.is_ready = true;
        self.start_spinning(now);
    }

    /// Notes an event at `now`: more may follow.
    fn start_spinning(&mut self, now: Instant) {
        if self.spins_until.is_some() {
            self.had_event = true;
            return;
        }
        if self.spin.spin_time().is_none() {
            let slept = self.slept_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
            self.spin = self.spin.after_sleep(slept);
        }
        self.spins_until = self.spin.spin_time().map(|time| now + time);
    }

    /// Returns whether the worker keeps spinning at `now`.
    fn keeps_spinning(&mut self, now: Instant) -> bool {
        let Some(until) = self.spins_until else { return false };
        if std::mem::take(&mut self.had_event) {
            self.spin = self.spin.after_success();
            self.spins_until = self.spin.spin_time().map(|time| now + time);
            return true;
        }
        if now < until {
            return true;
        }
        self.spin = self.spin.after_sleep(Duration::ZERO);
        self.spins_until = None;
        false
    }

    /// Returns how the worker waits for the source's next event; arms the source if the worker may sleep.
    fn arm(&mut self, source: &mut dyn Source) -> WaitMode {
        if source.links() == 0 && !self.is_ready {
            return WaitMode::Sleep;
        }
        let now = Instant::now();
        let keeps_spinning = self.keeps_spinning(now);
        if keeps_spinning && !self.is_ready {
            return WaitMode::Spin;
        }
        // This also clears a signalled descriptor.
        let armed = source.arm();
        self.is_armed = armed != WaitMode::Spin;
        self.is_ready &= !self.is_armed;
        let mode = if keeps_spinning { WaitMode::Spin } else { armed };
        self.slept_at = (mode != WaitMode::Spin).then_some(now);
        mode
    }

    /// Disarms the source after the worker has waited.
    fn disarm(&mut self, source: &mut dyn Source) {
        if std::mem::take(&mut self.is_armed) {
            source.disarm();
        }
    }
}

/// One source of a worker.
pub struct WorkerSource {
    /// `None` after a failure, until it is open again.
    source: Option<Box<dyn Source>>,
    hooks: Box<dyn SourceHooks>,
    reopening: ReopenTimer,
    state: PollState,
    /// Connections to serve; kept for its capacity.
    ready: Vec<u64>,
}

impl WorkerSource {
    /// A source that was just opened.
    pub fn new(source: Box<dyn Source>, hooks: Box<dyn SourceHooks>, now: Instant) -> WorkerSource {
        WorkerSource {
            source: Some(source),
            hooks,
            reopening: ReopenTimer::new(now),
            state: PollState::default(),
            ready: Vec::new(),
        }
    }

    /// Returns whether it drives links of this kind.
    pub fn drives(&self, kind: Kind) -> bool {
        self.source.as_ref().is_some_and(|source| source.kind() == kind)
    }

    /// Returns whether the worker spins on it.
    pub fn is_spun_on(&self) -> bool {
        self.state.spins_until.is_some()
    }

    /// Returns when a failed source is to be reopened.
    pub fn reopens_at(&self) -> Option<Instant> {
        self.reopening.at
    }

    /// Notes that the descriptor was signalled at `now`.
    pub fn set_ready(&mut self, now: Instant) {
        self.state.set_ready(now);
    }
}

impl Worker {
    /// Makes progress with all sources, and serves the connections concerned; returns whether there were any.
    pub(super) fn serve_sources(&mut self) -> bool {
        let mut served = false;
        for at in 0..self.sources.len() {
            served |= self.serve_source(at);
        }
        served
    }

    fn serve_source(&mut self, at: usize) -> bool {
        let WorkerSource { source: Some(source), hooks, state, ready, .. } = &mut self.sources[at] else {
            return false;
        };
        if source.links() == 0 && !state.is_ready {
            return false;
        }
        let mut ready = std::mem::take(ready);
        let progress = source.progress(&mut ready);
        hooks.progressed(&self.ctx);
        let made_progress = source.made_progress();
        if made_progress {
            state.start_spinning(self.now);
        }
        let is_for_some = made_progress || !ready.is_empty();
        for token in ready.drain(..) {
            let place = ConnectionToken::of(token);
            if self.at(place).is_some() {
                self.serve_unless_queued(place.index);
            }
        }
        self.sources[at].ready = ready;
        if let Err(error) = progress {
            tracing::error!(
                worker = self.ctx.worker,
                "{} failed, its clients are cut off, and it is opened again: {error}",
                self.sources[at].hooks.name()
            );
            self.leave_source(at);
        }
        is_for_some
    }

    /// Spins on the sources for as long as their spin policies say. A spin asks a source for events, because that may
    /// be cheaper than epoll or progress, and because nothing else signals reads of the region over the fabric.
    pub(super) fn spin_on_sources(&mut self) {
        for at in 0..self.sources.len() {
            for _ in 0..SOURCE_POLLS_PER_TURN {
                let WorkerSource { source: Some(source), state, .. } = &mut self.sources[at] else { break };
                if state.spins_until.is_none() {
                    break;
                }
                if source.has_events() {
                    (state.is_ready, state.had_event) = (true, true);
                    if self.serve_source(at) {
                        self.serve_answered();
                    }
                }
            }
        }
    }

    /// Arms the sources before a wait of at most `timeout`; returns the longest time that the worker may wait.
    pub(super) fn arm_sources(&mut self, mut timeout: Option<Duration>) -> Option<Duration> {
        for WorkerSource { source, state, .. } in &mut self.sources {
            let Some(source) = source else { continue };
            timeout = match state.arm(&mut **source) {
                WaitMode::Spin => return Some(Duration::ZERO),
                WaitMode::SleepFor(time) => Some(timeout.map_or(time, |timeout| timeout.min(time))),
                WaitMode::Sleep => timeout,
            };
        }
        timeout
    }

    /// Disarms the sources that were armed.
    pub(super) fn disarm_sources(&mut self) {
        for WorkerSource { source, state, .. } in &mut self.sources {
            if let Some(source) = source {
                state.disarm(&mut **source);
            }
        }
    }

    /// Opens sources that have failed again, when it is time.
    pub(super) fn reopen_sources(&mut self) {
        for at in 0..self.sources.len() {
            if self.sources[at].reopening.is_due(self.now) && self.ctx.shared.phase() < Phase::Leaving {
                self.reopen_source(at);
            }
        }
    }

    fn reopen_source(&mut self, at: usize) {
        let worker = self.ctx.worker;
        let WorkerSource { source, hooks, reopening, state, .. } = &mut self.sources[at];
        let opened =
            hooks.reopen(&mut self.ctx).and_then(|source| match self.poll.add_source(&*source, at) {
                Ok(()) => Ok(source),
                Err(error) => {
                    hooks.failed(&mut self.ctx);
                    Err(error.into())
                }
            });
        match opened {
            Ok(opened) => {
                tracing::info!(worker, "{} is open again", hooks.name());
                (*source, *state) = (Some(opened), PollState::default());
            }
            Err(error) => {
                tracing::error!(worker, "{} cannot be opened again: {error:#}", hooks.name());
                reopening.failed(self.now);
            }
        }
    }

    /// Lets the last bytes of closed links arrive, while their clients still receive.
    pub(super) fn close_sources(&mut self) {
        let until = Instant::now() + SOURCE_DRAIN_TIME_MAX;
        let worker = self.ctx.worker;
        let mut sources: Vec<_> = self.sources.iter_mut().filter_map(|open| open.source.as_mut()).collect();
        sources.iter_mut().for_each(|source| source.close());
        let mut ready = Vec::new();
        loop {
            sources.retain_mut(|source| source.links() > 0);
            if sources.is_empty() || Instant::now() >= until {
                return;
            }
            sources.retain_mut(|source| {
                let progress = source.progress(&mut ready);
                if let Err(error) = &progress {
                    tracing::debug!(worker, "links of kind {:?} failed at the end: {error}", source.kind());
                }
                progress.is_ok()
            });
            ready.clear();
            std::thread::sleep(SOURCE_DRAIN_PAUSE);
        }
    }

    /// Closes a failed source and its connections, and plans to open it again.
    fn leave_source(&mut self, at: usize) {
        let Some(source) = self.sources[at].source.take() else { return };
        for index in 0..self.connections.len() {
            let slot = &mut self.connections[index].connection;
            if let Some(connection) = slot.take_if(|connection| connection.kind() == source.kind()) {
                self.close(index, connection, EndReason::Error);
            }
        }
        self.poll.remove_source(&*source);
        self.sources[at].hooks.failed(&mut self.ctx);
        self.sources[at].reopening.failed(self.now);
    }
}

#[cfg(test)]
mod tests {
    use fabcache_transport::memory::MemorySource;

    use super::*;

    #[test]
    fn failed_source_is_reopened_at_once_then_with_backoff() {
        let start = Instant::now();
        let mut reopening = ReopenTimer::new(start);
        let mut now = start + SOURCE_STEADY;
        reopening.failed(now);
        assert!(reopening.is_due(now), "it has worked for long");
        let mut pause = SOURCE_REOPEN_PAUSE_MIN;
        for _ in 0..20 {
            pause = (2 * pause).min(SOURCE_REOPEN_PAUSE_MAX);
            reopening.failed(now);
            assert!(!reopening.is_due(now + pause - Duration::from_nanos(1)));
            now += pause;
            assert!(reopening.is_due(now) && !reopening.is_due(now), "once");
        }
        reopening.failed(now + 2 * SOURCE_STEADY);
        assert!(reopening.is_due(now + 2 * SOURCE_STEADY));
    }

    #[test]
    fn spinning_lasts_while_it_succeeds() {
        let mut now = Instant::now();
        let mut state = PollState::default();
        assert!(!state.keeps_spinning(now), "no notification arrived");
        state.set_ready(now);
        for _ in 0..100 {
            assert!(state.keeps_spinning(now));
            now += Duration::from_micros(100);
            state.set_ready(now);
        }
        // Nothing arrives during a spin, however soon the peer is woken.
        let mut spins = 0;
        for _ in 0..1000 {
            state.slept_at = Some(now);
            now += Duration::from_micros(20);
            state.set_ready(now);
            state.had_event = false;
            while state.keeps_spinning(now) {
                now += Duration::from_micros(10);
                spins += 1;
            }
        }
        assert!(spins < 1000, "{spins} unsuccessful spins");
    }

    #[test]
    fn source_is_armed_for_a_sleep_and_disarmed_after_it() {
        let mut source = MemorySource::new().expect("a descriptor");
        let mut state = PollState::default();
        assert_eq!(state.arm(&mut source), WaitMode::Sleep);
        assert!(!state.is_armed, "without links there is nothing to wait for");
        let link = source.link(3).expect("it is open");
        assert_eq!(state.arm(&mut source), WaitMode::Sleep);
        assert!(state.is_armed && state.slept_at.is_some());
        link.notify();
        state.disarm(&mut source);
        assert!(!state.is_armed);
        state.set_ready(Instant::now());
        assert_eq!(state.arm(&mut source), WaitMode::Spin, "an event is unreported");
        assert!(state.is_ready && !state.is_armed && state.slept_at.is_none());
        source.progress(&mut Vec::new()).expect("it works");
        // The signal is cleared, but the worker spins for the next event.
        let in_a_while = Instant::now() + Duration::from_secs(3600);
        state.spins_until = Some(in_a_while);
        assert_eq!(state.arm(&mut source), WaitMode::Spin);
        assert!(!state.is_ready, "nothing is left");
        state.disarm(&mut source);
        assert_eq!(state.arm(&mut source), WaitMode::Spin);
        assert!(!state.is_armed, "a worker that spins needs no signal");
        state.spins_until = Some(Instant::now());
        assert_eq!(state.arm(&mut source), WaitMode::Sleep);
        assert!(state.is_armed);
    }
}
