//! Datagrams: each is a connection of one turn, which continues when its tickets return.

use fabcache_transport::Received;

use super::Worker;
use super::connection::{Connection, EndReason};
use super::token::ConnectionToken;
use super::turn_budget::TurnBudget;
use crate::bounds::PENDING_DATAGRAMS_MAX;
use crate::commands::{Context, Role};

impl Connection {
    /// Executes a datagram's requests and sends its answer. Returns false if it goes on when a ticket returns.
    fn serve_datagram(&mut self, ctx: &mut Context, buffer: &mut [u8]) -> bool {
        // Requests kept from an earlier turn come first; the link then has no more bytes.
        let waited = self.input.waiting().len();
        buffer[..waited].copy_from_slice(self.input.waiting());
        self.input.consume(waited);
        let mut len = waited;
        while len < buffer.len() {
            match self.link.receive(&mut buffer[len..]) {
                Ok(Received::Bytes(more)) => len += more,
                _ => break,
            }
        }
        ctx.counters().bytes_read.add((len - waited) as u64);
        let mut used = 0;
        (self.needs_ticket, self.needs_memory) = (false, false);
        let completes = |role: &Role| matches!(role, Role::Dumping(_) | Role::Completing(_));
        while (used < len && !self.starved || completes(&self.session.role))
            && self.closing.is_none()
            && !self.needs_ticket
            && !self.needs_memory
            && !self.awaits_flash()
            && !self.is_backlogged()
        {
            let mut budget = TurnBudget::new(Some(u32::MAX));
            used += self.work(ctx, &buffer[used..len], &mut budget);
            // The whole answer must exist before it is cut into datagrams.
            self.session.queue.push_bytes(&mut ctx.out);
        }
        if self.is_full() {
            tracing::debug!(peer = %self.session.info.address, "the answer to a datagram is too long to send");
            return true;
        }
        let waits = self.needs_memory || self.awaits_flash();
        let queue = &mut self.session.queue;
        if queue.has_pending() || waits {
            self.input.append(&buffer[used..len]);
            queue.unpin_excess();
            return false;
        }
        if self.needs_ticket {
            tracing::debug!(peer = %self.session.info.address, "no ticket is left for a datagram");
            return true;
        }
        if let Ok(sent) = queue.send(&mut *self.link) {
            ctx.counters().bytes_written.add(sent);
        }
        if self.link.has_unsent() {
            let _ = self.link.flush();
        }
        true
    }
}

impl Worker {
    /// Serves a new datagram, in a free slot of the table; keeps it there while answers are pending.
    pub(super) fn add_datagram(&mut self, mut connection: Connection, index: usize) {
        connection.set_place(ConnectionToken { index, generation: self.connections[index].generation });
        if connection.serve_datagram(&mut self.ctx, &mut self.buffer) {
            // One without a place to wait for its ticket may return that later, to no other connection.
            let slot = &mut self.connections[index];
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(index);
            return;
        }
        self.pending_datagrams += 1;
        if self.pending_datagrams > PENDING_DATAGRAMS_MAX {
            return self.close(index, Box::new(connection), EndReason::Slow);
        }
        // The datagrams received with it do not wait for its answer.
        let _ = connection.link.flush();
        let (place, needs_memory) = (connection.place(), connection.needs_memory);
        self.connections[index].connection = Some(Box::new(connection));
        if needs_memory {
            self.note_needs_memory(place);
        }
    }

    /// Continues a datagram after one of its tickets returned.
    pub(super) fn continue_datagram(&mut self, index: usize) {
        let slot = &mut self.connections[index].connection;
        let Some(connection) = slot else { return };
        if connection.serve_datagram(&mut self.ctx, &mut self.buffer)
            && let Some(connection) = slot.take()
        {
            return self.close(index, connection, EndReason::Normal);
        }
        let slot = &self.connections[index].connection;
        if let Some(place) = slot.as_ref().filter(|c| c.needs_memory).map(|c| c.place()) {
            self.note_needs_memory(place);
        }
    }
}
