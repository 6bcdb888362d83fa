//! Receiving by io_uring (`--engine io_uring`) for plain TCP connections.
//!
//! Each such connection has one multishot receive, which delivers whatever arrives. Everything else stays in epoll,
//! whose descriptor the ring watches, so the worker sleeps in the ring. The reverse would not work: completions of a
//! ring whose descriptor lies in an epoll set wait until the worker enters the ring.
//!
//! A connection that must not receive cancels its request; bytes that arrive before that wait in its input. A request
//! that ended, because it was cancelled or no buffer was free, is repeated after the connection's next turn, which
//! receives from the socket itself.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use fabcache_transport::Kind;
use fabcache_uring::{BufferId, Completion, Outcome, Ring, TOKEN_MAX};

use super::Worker;
use super::connection::{Connection, EndReason, Turn};
use super::epoll::ReadyEvent;
use super::token::{ConnectionToken, Interest};
use super::turn_budget::TurnBudget;
use crate::bounds::RING_INPUT_BYTES_MAX;
use crate::commands::Context;

/// The token under which the ring watches epoll; no connection has its index.
const EPOLL: u64 = TOKEN_MAX;

/// How a connection receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveState {
    /// It receives from its link, when epoll reports it readable.
    ByEpoll,
    /// The ring has no request of it: it may receive from its link.
    Idle,
    /// The ring receives.
    InRing,
    /// Its request was cancelled, and may still deliver bytes.
    Cancelled,
}

/// A worker's ring.
pub struct ReceiveRing {
    ring: Ring,
    watches_epoll: bool,
}

impl ReceiveRing {
    pub fn new() -> io::Result<ReceiveRing> {
        Ok(ReceiveRing { ring: Ring::new()?, watches_epoll: false })
    }

    /// Makes the calling thread the one that uses the ring.
    pub fn enable(&mut self) -> io::Result<()> {
        self.ring.enable()
    }

    /// Waits for at most `timeout`, without limit if none; returns whether epoll has events.
    pub fn wait(
        &mut self,
        epoll: BorrowedFd<'_>,
        ready: &mut Vec<ReadyEvent>,
        timeout: Option<Duration>,
    ) -> io::Result<bool> {
        if !self.watches_epoll {
            self.ring.wait_readable(epoll, EPOLL)?;
            self.watches_epoll = true;
        }
        self.ring.wait(timeout)?;
        while let Some(completion) = self.ring.next_completion() {
            if completion.token != EPOLL {
                ready.push(ReadyEvent::Completion(completion));
                continue;
            }
            self.watches_epoll = false;
            if let Outcome::Failed(error) = completion.outcome {
                return Err(error);
            }
        }
        Ok(!self.watches_epoll)
    }

    /// Requests or cancels the connection's receive, as it wants input or not.
    pub fn update(&mut self, connection: &mut Connection, wants_input: bool) -> io::Result<()> {
        let token = connection.place().token();
        match connection.receive_state {
            ReceiveState::Idle if wants_input => {
                let Some(fd) = connection.descriptor() else { return Ok(()) };
                self.ring.receive(fd, token)?;
                connection.receive_state = ReceiveState::InRing;
            }
            ReceiveState::InRing if !wants_input => {
                self.ring.cancel(token)?;
                connection.receive_state = ReceiveState::Cancelled;
            }
            _ => {}
        }
        Ok(())
    }

    /// Cancels the receive of a connection, whose descriptor may then be closed.
    pub fn remove(&mut self, connection: &mut Connection) -> io::Result<()> {
        self.update(connection, false)?;
        // The ring must not look up the descriptor after it was closed and belongs to another connection.
        self.ring.submit()
    }

    pub fn bytes(&self, buffer: BufferId) -> &[u8] {
        self.ring.bytes(buffer)
    }
}

impl Worker {
    /// Passes what the ring reports to its connection, if that is still there.
    pub(super) fn take_completion(&mut self, completion: Completion) {
        let Completion { token, outcome, has_more } = completion;
        let buffer = if let Outcome::Received(buffer) = outcome { Some(buffer) } else { None };
        let place = ConnectionToken::of(token);
        if let Some(connection) = self.at(place) {
            if !has_more {
                connection.receive_state = ReceiveState::Idle;
            }
            let waits = connection.is_paused() || self.connections[place.index].queued;
            match outcome {
                Outcome::Failed(error) if !waits => self.close_broken(place.index, &error),
                // Requests that were received before are executed first, as epoll has it.
                Outcome::Failed(_) => self.deliver(place.index, true, buffer),
                _ => self.deliver(place.index, matches!(outcome, Outcome::End), buffer),
            }
        }
        if let (Some(buffer), Some(ring)) = (buffer, &mut self.poll.ring) {
            ring.ring.give_back(buffer);
        }
    }

    /// Gives a connection its turn with received bytes. In a pause, or in the run queue, it keeps them.
    fn deliver(&mut self, index: usize, is_end: bool, buffer: Option<BufferId>) {
        let slot = &mut self.connections[index];
        let Some(connection) = &mut slot.connection else { return };
        connection.client_done |= is_end;
        if !slot.queued && !connection.is_paused() {
            self.serve_received(index, buffer);
        } else if let (Some(buffer), Some(ring)) = (buffer, &mut self.poll.ring) {
            connection.keep(&self.ctx, ring.bytes(buffer), self.now);
            if connection.is_overfed()
                && let Err(error) = ring.update(connection, false)
            {
                self.close_broken(index, &error);
            }
        }
    }

    fn close_broken(&mut self, index: usize, error: &io::Error) {
        if let Some(connection) = self.connections[index].connection.take() {
            connection.log_broken(&self.ctx, error);
            self.close(index, connection, EndReason::Error);
        }
    }
}

impl Connection {
    /// Returns whether the ring can receive for it: it is a bare TCP socket. Some kernels lose the end of a Unix socket
    /// that is shut down right after its last bytes (CVE-2026-23473).
    pub(super) fn can_use_ring(&self) -> bool {
        self.kind() == Kind::Tcp && !self.link.is_encrypted()
    }

    /// Returns whether a request in the ring may deliver bytes.
    pub(super) fn is_in_ring(&self) -> bool {
        matches!(self.receive_state, ReceiveState::InRing | ReceiveState::Cancelled)
    }

    /// Returns whether the ring receives although enough input waits.
    pub(super) fn is_overfed(&self) -> bool {
        self.receive_state == ReceiveState::InRing && self.has_enough_input()
    }

    fn has_enough_input(&self) -> bool {
        !self.starved && self.input.waiting().len() >= RING_INPUT_BYTES_MAX
    }

    /// Returns whether the ring is to receive, and epoll to report room to send.
    pub(super) fn ring_interest(&self) -> Interest {
        // Bytes that follow a request for another transport belong to its link.
        let receive = self.takes_input() && self.session.offer.is_none() && !self.has_enough_input();
        Interest { receive, send: self.can_send() || self.link.has_unsent() }
    }

    /// Runs one turn, with bytes that the ring has received, if any.
    pub(super) fn serve_received(
        &mut self,
        ctx: &mut Context,
        buffer: &mut [u8],
        mut received: Option<&[u8]>,
        now: Instant,
    ) -> Turn {
        if let Some(bytes) = received.take_if(|_| !self.input.is_empty() || self.session.offer.is_some()) {
            self.keep(ctx, bytes, now);
        }
        let turn = self.serve(ctx, buffer, &mut received, now);
        let Some(bytes) = received else { return turn };
        self.keep(ctx, bytes, now);
        // Nothing else would report them.
        if turn == Turn::Wait && self.takes_input() { Turn::Yield } else { turn }
    }

    /// Executes the requests that the ring has received; returns whether there is more to do.
    pub(super) fn work_on_received(
        &mut self,
        ctx: &mut Context,
        bytes: &[u8],
        budget: &mut TurnBudget,
        now: Instant,
    ) -> bool {
        self.note_received(ctx, bytes.len(), now);
        budget.has_more = false;
        let used = self.work(ctx, bytes, budget);
        self.input.append(&bytes[used..]);
        self.session.offer.is_some() || self.has_work()
    }

    /// Notes that bytes were received.
    pub(super) fn note_received(&mut self, ctx: &Context, len: usize, now: Instant) {
        self.last_progress = now;
        self.starved = false;
        ctx.counters().bytes_read.add(len as u64);
        self.session.info.set_last_command(ctx.shared.store.now());
    }

    /// Keeps received bytes for a later turn.
    fn keep(&mut self, ctx: &Context, bytes: &[u8], now: Instant) {
        self.note_received(ctx, bytes.len(), now);
        self.input.append(bytes);
    }
}
