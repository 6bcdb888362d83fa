//! Receives the parts of a long value where the store gathers them, rather than through the worker's buffer.

use std::io;

use fabcache_transport::{Link, Received};

use super::connection::Connection;
use super::turn_budget::TurnBudget;
use crate::bounds::RECEIVE_BYTES;
use crate::commands::{self, Context, Receiving, Role};

impl Receiving {
    /// Receives straight into a chunk, and what follows the value into `buffer`, if the chunk's bytes are available.
    fn receive_chunk(
        &mut self,
        ctx: &Context,
        link: &mut dyn Link,
        buffer: &mut [u8],
    ) -> Option<(io::Result<Received>, ReceiveSpace)> {
        let wanted = self.upload().chunk_rest();
        if wanted == 0 || link.available() < wanted as u64 {
            return None;
        }
        let mut received = Ok(Received::Nothing);
        let mut in_buffer = 0;
        let in_value = self.upload().receive_chunk(&ctx.handle, |space, is_last| {
            let rest = if is_last { buffer } else { &mut [] };
            in_buffer = rest.len();
            received = link.receive_in_two(space, rest);
            match received {
                Ok(Received::Bytes(len)) => len.min(space.len()),
                _ => 0,
            }
        })?;
        Some((received, ReceiveSpace { in_value, in_buffer, is_direct: true }))
    }
}

/// The space that one receive may fill, in this order.
pub(super) struct ReceiveSpace {
    /// Bytes of the long value that is coming in.
    pub(super) in_value: usize,
    /// Bytes of the worker's buffer.
    pub(super) in_buffer: usize,
    /// The bytes of the value are counted in its upload.
    pub(super) is_direct: bool,
}

impl Connection {
    /// Receives: the rest of a long value to where it is gathered, everything else to `buffer` from `start` on.
    pub(super) fn receive_bytes(
        &mut self,
        ctx: &Context,
        buffer: &mut [u8],
        start: usize,
    ) -> (io::Result<Received>, ReceiveSpace) {
        let buffer = &mut buffer[start..];
        if self.input.is_empty()
            && self.decoder.value_left() > 0
            && let Role::Receiving(receiving) = &mut self.session.role
        {
            if let Some(received) = receiving.receive_chunk(ctx, &mut *self.link, buffer) {
                return received;
            }
            let (space, is_last) = receiving.space();
            // Further parts are gathered as well, so what follows this space must not be received yet.
            let rest = if is_last { buffer } else { &mut [] };
            let lengths = ReceiveSpace { in_value: space.len(), in_buffer: rest.len(), is_direct: false };
            return (self.link.receive_in_two(space, rest), lengths);
        }
        let lengths = ReceiveSpace { in_value: 0, in_buffer: buffer.len(), is_direct: false };
        (self.link.receive(buffer), lengths)
    }

    /// Takes `len` bytes that were received into the space of a long value.
    pub(super) fn take_part(
        &mut self,
        ctx: &mut Context,
        len: usize,
        is_direct: bool,
        budget: &mut TurnBudget,
    ) {
        // As many bytes make a turn as through the worker's buffer.
        budget.left = budget.left.saturating_sub(len.div_ceil(RECEIVE_BYTES) as u32);
        self.decoder.advance_value(len as u64);
        if !is_direct {
            let flow = commands::receive_in_place(ctx, &mut self.session, len);
            self.follow(flow);
        }
    }

    /// Returns whether bytes of a long value wait for memory.
    pub(super) fn has_blocked_value(&self) -> bool {
        matches!(&self.session.role, Role::Receiving(receiving) if receiving.is_blocked())
    }

    /// Writes what waits of a long value. Returns whether more of it may be received: else the connection waits for memory.
    pub(super) fn may_receive_value(&mut self, ctx: &mut Context) -> bool {
        if ctx.shared.store.is_short_of_memory() {
            self.needs_memory = true;
        } else if self.has_blocked_value() {
            let flow = commands::resume(ctx, &mut self.session);
            self.follow(flow);
        }
        !self.needs_memory
    }

    /// Frees the space of a long value that a stalled client would hold.
    pub(super) fn settle_value(&mut self) {
        if let Role::Receiving(receiving) = &mut self.session.role {
            receiving.settle();
        }
    }
}
