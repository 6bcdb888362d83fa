//! A worker: one thread, one epoll instance, perhaps a ring, and the connections it alone serves.
//!
//! ```text
//!   wait -> take new links, accept -> for each ready connection: receive, decode, execute, send -> housekeeping
//! ```
//! A connection is served until it has no more input, its turn is over (`-R`), or its answers wait unsent; then it is
//! waited for, or put at the end of the run queue. A worker that has nothing to do sleeps in the kernel; anything
//! that concerns it makes a descriptor ready.

mod accepting;
mod attach;
mod connection;
mod datagram;
mod epoll;
mod fabric;
pub mod flash;
pub mod inbox;
mod input;
mod listener;
mod long_value;
mod polled;
mod ring;
pub mod source;
mod timeouts;
pub mod token;
mod turn_budget;
mod visibility;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fabcache_store::{Handle, Miss};
use fabcache_transport::fabric::FabricEndpoint;
use fabcache_uring::BufferId;

use crate::bounds::{
    DRAIN_TIME_MAX, EVENTS_PER_TURN_MAX, PINNING_STILL_MAX, POLLING_TIME_MAX, POLLS_PER_TURN, RECEIVE_BYTES,
};
use crate::commands::{self, Context};
use crate::openshmem::{MappedReads, PeHooks, PeSource};
use crate::shared::{Phase, Shared};
use crate::tickets::{PendingAnswer, PendingRequest, TicketSlab};
use accepting::Accepting;
pub use connection::Connection;
use connection::{EndReason, Turn};
use epoll::{Poll, ReadyEvent};
use fabric::FabricHooks;
use inbox::{Answer, Inbox};
pub use listener::ListenerEntry;
use polled::PolledConnections;
use source::WorkerSource;
use token::{ConnectionToken, TicketId};

/// How often connections are checked for timeouts, while any timeout applies.
const TIMEOUT_TICK: Duration = Duration::from_secs(1);

/// One worker's state.
pub struct Worker {
    ctx: Context,
    poll: Poll,
    accepting: Accepting,
    /// By token; the token's upper half distinguishes connections that had the same index.
    connections: Vec<ConnectionSlot>,
    free: Vec<usize>,
    /// Connections that have something to do without being ready again.
    runnable: VecDeque<usize>,
    /// Connections that wait, and until when: in this order, as all pauses are equally long.
    paused: VecDeque<(Instant, ConnectionToken)>,
    /// Connections whose next request waits for a ticket.
    needing_tickets: Vec<ConnectionToken>,
    /// Connections whose next request waits for memory.
    needing_memory: Vec<ConnectionToken>,
    /// The number of datagrams in the table.
    pending_datagrams: usize,
    /// The connections that are polled.
    polled: PolledConnections,
    /// The connections that watch events.
    watching: Vec<usize>,
    /// What drives links in groups: the fabric, if there is one.
    sources: Vec<WorkerSource>,
    buffer: Box<[u8]>,
    now: Instant,
    /// When connections are next checked for timeouts; none if no timeout applies.
    next_tick: Option<Instant>,
    /// The last call for pinned memory that was answered.
    pins_wanted_ms: u64,
    drain_until: Option<Instant>,
}

#[derive(Default)]
struct ConnectionSlot {
    generation: u32,
    /// Whether it is in the run queue, once.
    queued: bool,
    connection: Option<Box<Connection>>,
}

impl Worker {
    /// A worker that listens at all of `listeners`, and has `port` if there is a fabric.
    ///
    /// # Errors
    /// The system's.
    pub fn new(
        shared: Arc<Shared>,
        worker: usize,
        listeners: Arc<[ListenerEntry]>,
        port: Option<FabricEndpoint>,
    ) -> std::io::Result<Worker> {
        let poll = Poll::new(shared.settings.engine)?;
        poll.add_doorbell(shared.inboxes[worker].doorbell())?;
        let now = Instant::now();
        let mut sources = Vec::new();
        if let Some(port) = port.clone() {
            poll.add_source(&port, sources.len())?;
            sources.push(WorkerSource::new(Box::new(port), Box::new(FabricHooks::default()), now));
        }
        if let Some(source) = PeSource::new(&shared) {
            sources.push(WorkerSource::new(Box::new(source), Box::new(PeHooks), now));
        }
        let accepting = Accepting::new(listeners, worker, &poll)?;
        let handle = Handle::new(&shared.store);
        handle.wait_for_flash(true);
        let tickets = TicketSlab::new(&shared.inboxes[worker]);
        let connection_bytes = size_of::<Connection>();
        let mut ctx = Context {
            shared,
            handle,
            worker,
            port,
            tickets,
            flash: None,
            forwarded_bytes: Arc::default(),
            forwarded_requests: Vec::new(),
            mapped_reads: MappedReads::default(),
            forwarded_answer_bytes: 0,
            connection_bytes,
            out: Vec::new(),
        };
        ctx.flash = flash::reads_of(&ctx, &poll)?;
        Ok(Worker {
            ctx,
            poll,
            accepting,
            connections: Vec::new(),
            free: Vec::new(),
            runnable: VecDeque::new(),
            paused: VecDeque::new(),
            needing_tickets: Vec::new(),
            needing_memory: Vec::new(),
            pending_datagrams: 0,
            polled: PolledConnections::default(),
            watching: Vec::new(),
            sources,
            buffer: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            now,
            next_tick: None,
            pins_wanted_ms: 0,
            drain_until: None,
        })
    }

    /// Serves until the server stops.
    pub fn run(mut self) {
        let mut ready = Vec::with_capacity(EVENTS_PER_TURN_MAX);
        if let Err(error) = self.poll.enable() {
            tracing::error!(worker = self.ctx.worker, "cannot use its ring: {error}; use --engine epoll");
            return;
        }
        while !self.is_done() {
            let mut timeout = self.timeout();
            if timeout != Some(Duration::ZERO) {
                timeout = self.arm_sources(timeout);
            }
            if let Some(flash) = &mut self.ctx.flash {
                flash.submit();
            }
            if timeout != Some(Duration::ZERO) && !self.ctx.tickets.is_empty() && !self.inbox().arm_wakeup() {
                timeout = Some(Duration::ZERO);
            }
            if let Err(error) = self.poll.wait(&mut ready, timeout) {
                tracing::error!(worker = self.ctx.worker, "cannot wait for events: {error}");
                break;
            }
            self.disarm_sources();
            self.now = Instant::now();
            self.ctx.shared.store.tick();
            self.ctx.counters().turns.inc();
            // A connection that becomes runnable in this turn waits for the next, behind new events.
            let runnable = self.runnable.len();
            for event in ready.drain(..) {
                match event {
                    ReadyEvent::Doorbell => self.take_new_links(),
                    ReadyEvent::Listener(index) => self.accept(index),
                    // They are taken in each turn.
                    ReadyEvent::Flash => {}
                    ReadyEvent::Source(index) => self.sources[index].set_ready(self.now),
                    ReadyEvent::Connection(place) => {
                        if let Some(connection) = self.at(place) {
                            connection.drain_wakeup();
                            self.serve_unless_queued(place.index);
                        }
                    }
                    ReadyEvent::Broken(place) => self.serve_or_close_broken(place),
                    ReadyEvent::Completion(completion) => self.take_completion(completion),
                }
            }
            self.serve_runnable(runnable);
            if self.serve_sources() {
                self.serve_answered();
            }
            self.spin_on_sources();
            self.serve_polled();
            self.reopen_sources();
            if let Some(tick) = self.next_tick
                && self.now >= tick
            {
                self.drop_timed_out(tick);
            }
            self.resume_paused();
            self.shed_pins();
            self.accepting.resume(&self.ctx.shared, &self.poll, self.now);
            self.follow_phase();
        }
        self.close_all();
        self.close_sources();
    }

    fn timeout(&self) -> Option<Duration> {
        if self.has_work() || !self.polled.is_empty() {
            return Some(Duration::ZERO);
        }
        let mut until = self.drain_until;
        let resumes_at = self.paused.front().map(|(until, _)| *until);
        let reopens_at = self.sources.iter().filter_map(WorkerSource::reopens_at).min();
        let expires_at = self.ctx.tickets.next_expiry();
        let wait_ends = self.ctx.flash.as_ref().and_then(flash::FlashReads::next_expiry);
        for at in [self.accepting.resumes_at(), self.next_tick, reopens_at, resumes_at, expires_at, wait_ends]
        {
            until = [until, at].into_iter().flatten().min();
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        [left, self.memory_wait()].into_iter().flatten().min()
    }

    /// Returns whether connections are queued, or reads have ended.
    fn has_work(&self) -> bool {
        !self.runnable.is_empty() || self.ctx.flash.as_ref().is_some_and(flash::FlashReads::has_done)
    }

    // ---- connections ----

    /// The connection that is still there.
    fn at(&mut self, place: ConnectionToken) -> Option<&mut Connection> {
        let slot = self.connections.get_mut(place.index)?;
        if slot.generation != place.generation {
            return None;
        }
        slot.connection.as_deref_mut()
    }

    fn inbox(&self) -> &Inbox {
        &self.ctx.shared.inboxes[self.ctx.worker]
    }

    fn take_new_links(&mut self) {
        for new in self.inbox().take() {
            self.add(Connection::new(&self.ctx, new.link, self.accepting.entry(new.listener), self.now));
        }
        // The doorbell also announces lines for watchers.
        for index in self.watching.clone() {
            self.serve_unless_queued(index);
        }
    }

    fn accept(&mut self, listener: usize) {
        let accepted = self.accepting.accept(&self.ctx, listener, &self.poll, self.now);
        for link in accepted {
            self.add(Connection::new(&self.ctx, link, self.accepting.entry(listener), self.now));
        }
    }

    fn add(&mut self, mut connection: Connection) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(ConnectionSlot::default());
            self.connections.len() - 1
        });
        if connection.is_one_shot() {
            return self.add_datagram(connection, index);
        }
        connection.set_place(ConnectionToken { index, generation: self.connections[index].generation });
        match self.poll.add_connection(&mut connection) {
            Ok(()) => {
                self.connections[index].connection = Some(Box::new(connection));
                // Input that arrived with the handshake, or before epoll was configured.
                self.serve(index);
            }
            Err(error) => {
                tracing::warn!("cannot wait for a connection: {error}");
                connection.close(&self.ctx, EndReason::Error);
                self.free.push(index);
            }
        }
    }

    /// Gives a connection its turn, unless it is in the run queue: no connection gets two turns at once.
    fn serve_unless_queued(&mut self, index: usize) {
        if !self.connections[index].queued {
            self.serve(index);
        }
    }

    /// Gives a connection its turn.
    fn serve(&mut self, index: usize) {
        self.serve_received(index, None);
    }

    /// Gives a connection its turn, with bytes that the ring has received for it.
    fn serve_received(&mut self, index: usize, received: Option<BufferId>) {
        let Some(mut connection) = self.connections[index].connection.take_if(|c| !c.is_paused()) else {
            return;
        };
        let received = received.and_then(|buffer| Some(self.poll.ring.as_ref()?.bytes(buffer)));
        let turn = connection.serve_received(&mut self.ctx, &mut self.buffer, received, self.now);
        debug_assert!(self.ctx.out.is_empty(), "leftover output would go to another connection");
        if self.next_tick.is_none() && connection.may_time_out(&self.ctx) {
            self.next_tick = Some(self.now + TIMEOUT_TICK);
        }
        if connection.is_watching() && !self.watching.contains(&index) {
            self.watching.push(index);
        }
        if connection.needs_ticket && !self.needing_tickets.contains(&connection.place()) {
            self.needing_tickets.push(connection.place());
        }
        if connection.needs_memory {
            self.note_needs_memory(connection.place());
        }
        match turn {
            Turn::Wait => {
                if connection.can_be_polled() {
                    if connection.expects_more() {
                        connection.start_polling();
                        self.polled.add(index, self.now);
                    } else if !self.polled.contains(index) && !connection.arm_wakeup() {
                        self.queue(index);
                    }
                }
                if let Err(error) = self.poll.update(&mut connection) {
                    tracing::warn!("cannot wait for a connection: {error}");
                    return self.close(index, connection, EndReason::Error);
                }
                self.connections[index].connection = Some(connection);
            }
            Turn::Yield => {
                self.polled.note(index);
                self.queue(index);
                if connection.is_overfed()
                    && let Err(error) = self.poll.update(&mut connection)
                {
                    tracing::warn!("cannot wait for a connection: {error}");
                    return self.close(index, connection, EndReason::Error);
                }
                self.connections[index].connection = Some(connection);
            }
            Turn::Pause(until) => {
                // While its descriptor is watched, a broken connection would be reported again and again.
                self.poll.remove(&mut connection);
                self.paused.push_back((until, connection.place()));
                self.connections[index].connection = Some(connection);
            }
            Turn::End(ended) => self.close(index, connection, ended),
        }
    }

    /// Serves a connection whose peer is gone. Closes it if it only awaits tickets: nothing else would end the events.
    fn serve_or_close_broken(&mut self, place: ConnectionToken) {
        let Some(connection) = self.at(place) else { return };
        connection.drain_wakeup();
        if connection.is_paused() || !connection.awaits_only_tickets() {
            return self.serve_unless_queued(place.index);
        }
        if let Some(connection) = self.connections[place.index].connection.take() {
            self.close(place.index, connection, EndReason::Error);
        }
    }

    // ---- pending answers ----

    /// Answers the requests whose tickets returned or whose time is over, and continues connections that need tickets.
    fn return_tickets(&mut self) {
        if self.ctx.tickets.is_empty() {
            return;
        }
        let completions = self.inbox().take_completions();
        // Before the owners of these, which would use the same tickets again.
        if !completions.is_empty() {
            self.continue_needing_tickets();
        }
        for completion in completions {
            if let Some(answer) = self.ctx.tickets.take_back(completion.id) {
                let completed = completion.answer.unwrap_or_else(|| answer.failure());
                self.answer(completion.id, &answer, completed);
            }
        }
        let expired = self.ctx.tickets.expire(self.now);
        if !expired.is_empty() {
            self.continue_needing_tickets();
        }
        for (id, answer) in expired {
            self.answer(id, &answer, answer.failure());
        }
    }

    /// Gives the first `count` connections of the run queue their turn, and those whose answers have come.
    fn serve_runnable(&mut self, count: usize) {
        let waiting = self.runnable.len();
        self.finish_flash_reads();
        self.return_tickets();
        self.continue_needing_memory();
        let answered = self.runnable.split_off(waiting);
        for _ in 0..count {
            if let Some(index) = self.runnable.pop_front() {
                self.serve_queued(index);
            }
        }
        // Once for all their answers.
        for index in answered {
            self.serve_queued(index);
        }
    }

    /// Sends the answers that have come.
    pub(super) fn serve_answered(&mut self) {
        let waiting = self.runnable.len();
        self.return_tickets();
        for index in self.runnable.split_off(waiting) {
            self.serve_queued(index);
        }
    }

    /// Queues the connections whose next requests wait for tickets.
    fn continue_needing_tickets(&mut self) {
        for place in std::mem::take(&mut self.needing_tickets) {
            if self.at(place).is_some() {
                self.queue(place.index);
            }
        }
    }

    /// Puts an answer in its connection's queue; drops it if the connection has closed.
    fn answer(&mut self, id: TicketId, pending: &PendingAnswer, mut answer: Answer) {
        if let PendingRequest::Read { key, cfd } = &pending.request {
            commands::count_read(&self.ctx, *cfd, key, answer.found().ok_or(Miss::Absent));
        }
        let (owner, now) = (pending.owner, self.now);
        if let Answer::Fetched(item, fetched, sends_value) = answer {
            answer = Answer::Fetched(item, self.ctx.handle.promote(fetched), sends_value);
        }
        if let Answer::Forwarded(bytes) | Answer::Read(_, bytes) = &answer {
            self.ctx.note_forwarded_answer(bytes.len() as u64);
        }
        let encoded = pending.encode(answer);
        let Some(connection) = self.at(owner) else { return };
        connection.complete(id, encoded, now);
        if connection.is_one_shot() {
            self.continue_datagram(owner.index);
        } else {
            self.queue(owner.index);
        }
    }

    /// Serves the connections whose pause is over.
    fn resume_paused(&mut self) {
        while let Some((until, place)) = self.paused.front().copied()
            && self.now >= until
        {
            self.paused.pop_front();
            let slot = &mut self.connections[place.index];
            let Some(mut connection) = slot.connection.take_if(|_| slot.generation == place.generation)
            else {
                continue;
            };
            connection.resume();
            match self.poll.add_connection(&mut connection) {
                Ok(()) => {
                    slot.connection = Some(connection);
                    self.serve_unless_queued(place.index);
                }
                Err(error) => {
                    tracing::warn!("cannot wait for a connection: {error}");
                    self.close(place.index, connection, EndReason::Error);
                }
            }
        }
    }

    /// Gives a connection that was queued its turn.
    fn serve_queued(&mut self, index: usize) {
        self.connections[index].queued = false;
        self.serve(index);
    }

    /// Queues it for a turn after the others.
    fn queue(&mut self, index: usize) {
        if !std::mem::replace(&mut self.connections[index].queued, true) {
            self.runnable.push_back(index);
        }
    }

    /// Polls the polled connections for a while: where input is frequent, it arrives before a system call would end.
    fn serve_polled(&mut self) {
        if self.polled.is_empty() {
            return;
        }
        let is_driven = |at| {
            let connection = self.connections[self.polled.at(at)].connection.as_ref();
            connection.is_some_and(|c| self.sources.iter().any(|source| source.drives(c.kind())))
        };
        let are_driven =
            self.sources.iter().any(WorkerSource::is_spun_on) || (0..self.polled.len()).any(is_driven);
        let until = Instant::now() + POLLING_TIME_MAX;
        let mut is_idle = true;
        for _ in 0..POLLS_PER_TURN {
            if are_driven && Instant::now() >= until {
                break;
            }
            let mut served = are_driven && self.serve_sources();
            if served {
                self.serve_answered();
            }
            let mut at = 0;
            // Ended connections are not in the table any more.
            while at < self.polled.len() {
                let index = self.polled.at(at);
                let slot = &self.connections[index];
                if !slot.queued && slot.connection.as_ref().is_some_and(|connection| connection.has_unread())
                {
                    self.serve(index);
                    served = true;
                }
                at += 1;
            }
            is_idle &= !served;
            if !served {
                std::hint::spin_loop();
            }
        }
        // Where there are fewer CPUs than threads, a client or another worker may need this one's.
        if is_idle && !self.has_work() {
            std::thread::yield_now();
        }
        self.now = Instant::now();
        let connections = &mut self.connections;
        let mut busy = Vec::new();
        self.polled.retire(self.now, |index| {
            let Some(connection) = &mut connections[index].connection else { return true };
            let is_armed = connection.arm_wakeup();
            if !is_armed {
                busy.push(index);
            }
            is_armed
        });
        for index in busy {
            self.serve_unless_queued(index);
        }
    }

    fn close(&mut self, index: usize, mut connection: Box<Connection>, ended: EndReason) {
        self.polled.remove(index);
        self.watching.retain(|watching| *watching != index);
        self.poll.remove(&mut connection);
        self.pending_datagrams -= usize::from(connection.is_one_shot());
        connection.close(&self.ctx, ended);
        let slot = &mut self.connections[index];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
    }

    /// Too much memory is pinned for a long value: closes the connection that has pinned memory without progress for
    /// longest.
    fn shed_pins(&mut self) {
        let wanted_ms = self.ctx.shared.pins_wanted_ms.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.pins_wanted_ms, wanted_ms) == wanted_ms {
            return;
        }
        let standing = |index: &usize| {
            let connection = self.connections[*index].connection.as_ref().filter(|c| c.pins_memory())?;
            let still = self.now.saturating_duration_since(connection.last_progress());
            (still >= PINNING_STILL_MAX).then_some(still)
        };
        let slowest =
            (0..self.connections.len()).filter(|index| standing(index).is_some()).max_by_key(standing);
        if let Some(index) = slowest
            && let Some(connection) = self.connections[index].connection.take()
        {
            self.ctx.counters().pinning_kicks.inc();
            self.close(index, connection, EndReason::Slow);
        }
    }

    fn drop_timed_out(&mut self, tick: Instant) {
        if self.now.saturating_duration_since(tick) >= TIMEOUT_TICK {
            // This worker was slow or the process stopped, so clients may have waited for it: serve them first.
            self.next_tick = Some(self.now + TIMEOUT_TICK);
            return;
        }
        for index in 0..self.connections.len() {
            let ended =
                self.connections[index].connection.as_ref().and_then(|c| c.timed_out(&self.ctx, self.now));
            if let Some(ended) = ended
                && let Some(connection) = self.connections[index].connection.take()
            {
                match ended {
                    EndReason::Idle => self.ctx.counters().idle_kicks.inc(),
                    _ => self.ctx.counters().stalled_kicks.inc(),
                }
                self.close(index, connection, ended);
            }
        }
        let some_left =
            self.connections.iter().flat_map(|slot| &slot.connection).any(|c| c.may_time_out(&self.ctx));
        self.next_tick = some_left.then_some(self.now + TIMEOUT_TICK);
    }

    // ---- stopping ----

    fn follow_phase(&mut self) {
        let phase = self.ctx.shared.phase();
        if phase >= Phase::Leaving {
            self.accepting.stop(&self.poll);
        }
        if phase >= Phase::Draining {
            self.drain_until.get_or_insert(self.now + DRAIN_TIME_MAX);
            for index in 0..self.connections.len() {
                let quiet = self.connections[index].connection.as_ref().is_some_and(|c| c.is_quiet());
                if quiet && let Some(connection) = self.connections[index].connection.take() {
                    self.close(index, connection, EndReason::Shutdown);
                }
            }
        }
    }

    fn is_done(&self) -> bool {
        match self.ctx.shared.phase() {
            Phase::Running | Phase::Leaving => false,
            Phase::Draining => {
                let none_left = self.connections.iter().all(|slot| slot.connection.is_none());
                self.drain_until.is_some_and(|until| none_left || self.now >= until)
            }
            Phase::Stopped => true,
        }
    }

    fn close_all(&mut self) {
        for index in 0..self.connections.len() {
            if let Some(connection) = self.connections[index].connection.take() {
                self.close(index, connection, EndReason::Shutdown);
            }
        }
    }
}
