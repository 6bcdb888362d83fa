//! One link's state in its endpoint.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Instant;

use fabcache_fabric::channel::doorbell::ServerDoorbells;
use fabcache_fabric::channel::{
    Draft, HEADER_BYTES, MESSAGE_BYTES, OperationId, PIECE_BYTES_MAX, ProtocolError, SHORT_BYTES, SendMode,
    ServerEnd,
};
use fabcache_fabric::{Buffer, Error, Peer, RemoteAddress, RemoteMemory};
use rustix::net::SendFlags;
use socket2::Socket;

use super::bounds::PUTS_MAX;
use super::resources::Resources;

/// Why a link is broken.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// Its client broke the protocol.
    Protocol(ProtocolError),
    /// The fabric did.
    Fabric(Error),
    /// It takes too long.
    Stuck,
    /// It has not proven that the endpoint is its own.
    Unproven,
}

impl Failure {
    pub fn to_io(&self) -> io::Error {
        match self {
            Failure::Protocol(broken) => io::Error::new(io::ErrorKind::InvalidData, *broken),
            Failure::Fabric(error) => io::Error::new(io::ErrorKind::ConnectionReset, error.clone()),
            Failure::Stuck => {
                let text = "the other end of the link does not answer over the fabric";
                io::Error::new(io::ErrorKind::TimedOut, text)
            }
            Failure::Unproven => {
                let text = "the client has not proven that the endpoint it named is its own";
                io::Error::new(io::ErrorKind::TimedOut, text)
            }
        }
    }
}

/// Why something is not sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendBlocked {
    /// Retry after another operation completes.
    Later,
    /// The link is broken.
    ProtocolError,
}

/// One link.
#[derive(Debug)]
pub(super) struct LinkState {
    pub index: u32,
    pub token: u64,
    pub tag: u64,
    pub credits: u16,
    pub peer: Peer,
    pub end: ServerEnd<Buffer, Buffer>,
    pub staging: RemoteMemory,
    pub landing: RemoteMemory,
    pub failure: Option<Failure>,
    /// Operations in flight, and the sends among them.
    pub operations: usize,
    pub sends: usize,
    /// Whether its application has more to send than `send` accepted.
    pub unsent: usize,
    /// Its application waits until everything accepted is sent.
    pub is_flushing: bool,
    /// When the fabric stopped accepting.
    pub blocked_since: Option<Instant>,
    pub is_blocked: bool,
    pub waits_for_bounce: bool,
    /// Since then.
    pub waits_since: Instant,
    /// Whether it waited without success, and has its own buffer until it gets a shared one.
    pub is_starved: bool,
    pub waits_for_send: bool,
    /// A bounce buffer that it waited for.
    pub handed: Option<Buffer>,
    /// When an operation of its staging memory last completed or was received.
    pub moved: Instant,
    /// Whether it is in the list of links to report.
    pub is_listed: bool,
    pub doorbells: ServerDoorbells,
    /// The sign of life.
    pub socket: Arc<Socket>,
    /// The deadline of its proof, while it is missing.
    pub prove_until: Option<Instant>,
    /// It was dropped, and stays until this time.
    pub lingering: Option<Instant>,
}

/// Returns an operation's token: the link in the upper 24 bits, and its number.
pub(super) fn operation_token(index: u32, number: u64) -> u64 {
    u64::from(index) << 40 | number & ((1 << 40) - 1)
}

/// The link of an operation, and which it is of it.
pub(super) fn operation_of(token: u64) -> (u32, OperationId) {
    ((token >> 40) as u32, OperationId::from_number(token & ((1 << 40) - 1)))
}

impl LinkState {
    /// A link whose client has no memory yet.
    pub fn new(
        index: u32,
        tag: u64,
        peer: Peer,
        end: ServerEnd<Buffer, Buffer>,
        socket: Arc<Socket>,
    ) -> LinkState {
        LinkState {
            index,
            token: 0,
            tag,
            credits: 0,
            peer,
            end,
            staging: RemoteMemory { address: 0, key: 0, bytes: 0 },
            landing: RemoteMemory { address: 0, key: 0, bytes: 0 },
            failure: None,
            operations: 0,
            sends: 0,
            unsent: 0,
            is_flushing: false,
            blocked_since: None,
            is_blocked: false,
            waits_for_bounce: false,
            waits_since: Instant::now(),
            is_starved: false,
            waits_for_send: false,
            handed: None,
            moved: Instant::now(),
            is_listed: false,
            doorbells: ServerDoorbells::default(),
            socket,
            prove_until: None,
            lingering: None,
        }
    }

    /// There is something for its application to do.
    pub fn is_ready(&self) -> bool {
        let can_send = self.unsent > 0
            && !(self.is_blocked || self.waits_for_send)
            && (!self.waits_for_bounce || self.may_take_own())
            && self.end.puts_in_flight() < PUTS_MAX
            && self.end.next(self.unsent) != SendMode::Later;
        self.failure.is_some()
            || self.end.incoming().is_some()
            || self.end.has_peer_left()
            || can_send
            || self.is_flushing && !self.end.has_unsent()
    }

    /// Returns whether reads or writes of its client's memory are in flight.
    pub fn is_on_memory(&self) -> bool {
        self.operations > self.sends
    }

    /// It may have a bounce buffer of its own.
    fn may_take_own(&self) -> bool {
        self.is_starved && self.end.is_off_memory()
    }

    fn fail(&mut self, error: Error) -> SendBlocked {
        self.failure.get_or_insert(Failure::Fabric(error));
        SendBlocked::ProtocolError
    }

    /// The fabric refused something.
    fn refused(&mut self, error: Error) -> SendBlocked {
        if !error.is_again() {
            return self.fail(error);
        }
        self.is_blocked = true;
        self.blocked_since.get_or_insert_with(Instant::now);
        SendBlocked::Later
    }

    fn accepted(&mut self) {
        self.blocked_since = None;
    }

    /// Does everything that does not need the application: posts buffers, starts reads, sends short messages.
    pub fn settle(&mut self, shared: &mut Resources) {
        while let Some(buffer) = self.end.freed() {
            shared.repost(buffer);
        }
        if self.failure.is_none() && !self.is_blocked {
            let _ = self.send_shorts(shared).and_then(|()| self.begin_reads(shared));
        }
    }

    /// Sends a doorbell if its client must be notified.
    pub fn notify(&mut self) {
        if self.doorbells.must_notify() {
            // A full socket wakes the client as well, and a closed one is noticed by its end.
            let _ = rustix::net::send(&*self.socket, b"!", SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    // ---- receiving ----

    fn begin_reads(&mut self, shared: &mut Resources) -> Result<(), SendBlocked> {
        while self.lingering.is_none() && self.end.next_read(PIECE_BYTES_MAX).is_some() {
            let buffer = self.take_bounce(shared).ok_or(SendBlocked::Later)?;
            let Some(read) = self.end.next_read(buffer.len()) else { break };
            let staged = || RemoteAddress {
                address: self.staging.address.wrapping_add(read.at),
                key: self.staging.key,
            };
            let from = read.key.map_or_else(staged, |key| RemoteAddress { address: read.at, key });
            let ticket = self.end.read_ticket();
            let token = operation_token(self.index, ticket.number());
            match shared.endpoint.read(self.peer, from, buffer, 0..read.bytes, token) {
                Ok(()) => {
                    if self.end.is_off_memory() {
                        self.moved = Instant::now();
                    }
                    let begun = self.end.read_begun(read);
                    debug_assert_eq!(begun, ticket);
                    self.operations += 1;
                    self.accepted();
                }
                Err(refused) => {
                    drop(refused.buffer);
                    return Err(self.refused(refused.error));
                }
            }
        }
        Ok(())
    }

    /// Takes a bounce buffer: the one assigned to this link, or one that no link waits for. Otherwise it joins the
    /// queue.
    fn take_bounce(&mut self, shared: &mut Resources) -> Option<Buffer> {
        if let Some(buffer) = self.handed.take() {
            return Some(buffer);
        }
        if shared.bounce_queue.is_empty()
            && let Some(buffer) = shared.bounces.take()
        {
            return Some(buffer);
        }
        if !self.waits_for_bounce {
            (self.waits_for_bounce, self.waits_since) = (true, Instant::now());
            shared.bounce_queue.push_back(self.index);
        }
        if self.may_take_own() { shared.take_own_bounce() } else { None }
    }

    /// Copies received bytes; returns their number.
    pub fn receive(&mut self, shared: &mut Resources, into: &mut [u8]) -> usize {
        let mut received = 0;
        while received < into.len()
            && let Some(bytes) = self.end.incoming()
        {
            let len = bytes.len().min(into.len() - received);
            into[received..received + len].copy_from_slice(&bytes[..len]);
            received += len;
            if self.end.consume(len).is_some() {
                self.moved = Instant::now();
            }
        }
        if received > 0 || self.end.has_incoming() {
            // Buffers that others took from it are read again.
            self.settle(shared);
        }
        received
    }

    // ---- sending ----

    /// Sends credits and acknowledgements, but no bytes of the stream.
    fn send_shorts(&mut self, shared: &mut Resources) -> Result<(), SendBlocked> {
        let mut message = [0; SHORT_BYTES];
        while let Some(draft) = self.end.short(&mut message) {
            let bytes = &message[..draft.bytes()];
            if bytes.len() <= shared.inject_bytes {
                shared.endpoint.inject(self.peer, bytes).map_err(|error| self.refused(error))?;
            } else {
                let mut buffer = self.take_send(shared).ok_or(SendBlocked::Later)?;
                buffer[..bytes.len()].copy_from_slice(bytes);
                self.send_buffer(shared, buffer, bytes.len())?;
            }
            self.sent(draft);
        }
        Ok(())
    }

    fn sent(&mut self, draft: Draft) {
        self.end.sent(draft);
        self.doorbells.posted();
        self.accepted();
    }

    fn take_send(&mut self, shared: &mut Resources) -> Option<Buffer> {
        let buffer = shared.take_send(self.sends);
        if buffer.is_none() && !self.waits_for_send {
            self.waits_for_send = true;
            shared.send_queue.push_back(self.index);
        }
        buffer
    }

    fn send_buffer(&mut self, shared: &mut Resources, buffer: Buffer, len: usize) -> Result<(), SendBlocked> {
        let token = operation_token(self.index, 0);
        match shared.endpoint.send(self.peer, buffer, len, token) {
            Ok(()) => {
                self.operations += 1;
                self.sends += 1;
                Ok(())
            }
            Err(refused) => {
                drop(refused.buffer);
                Err(self.refused(refused.error))
            }
        }
    }

    /// Takes a beginning of `parts`; how much.
    pub fn send(&mut self, shared: &mut Resources, parts: &[IoSlice<'_>]) -> usize {
        let whole: usize = parts.iter().map(|part| part.len()).sum();
        let mut rest: Vec<IoSlice<'_>> = Vec::new();
        let mut taken = 0;
        if !self.end.has_proof() {
            self.end.want_proof();
            self.settle(shared);
        }
        while taken < whole {
            let now = if taken == 0 { parts } else { &rest };
            let more = match self.end.next(whole - taken) {
                _ if self.is_blocked => break,
                SendMode::Later => break,
                SendMode::Data => self.send_data(shared, now, whole - taken),
                SendMode::StagingRange(_) if self.end.puts_in_flight() >= PUTS_MAX => break,
                SendMode::StagingRange(_) => self.put(shared, now, whole - taken),
            };
            match more {
                Ok(more) => taken += more,
                Err(_) => break,
            }
            if taken < whole {
                rest = behind(parts, taken);
            }
        }
        self.unsent = whole - taken;
        if self.unsent == 0 {
            // It was assigned for this, or for reads.
            self.handed = None;
        }
        taken
    }

    fn send_data(
        &mut self,
        shared: &mut Resources,
        parts: &[IoSlice<'_>],
        len: usize,
    ) -> Result<usize, SendBlocked> {
        let injected = shared.inject_bytes.min(MESSAGE_BYTES);
        // If this much can be injected, nothing is sent otherwise: with shm a send completes only when its peer
        // polls, which delays all later sends.
        let draft = if HEADER_BYTES + len <= injected || injected >= MESSAGE_BYTES / 2 {
            let draft = self.end.data(parts, &mut shared.scratch[..injected]).ok_or(SendBlocked::Later)?;
            let message = &shared.scratch[..draft.bytes()];
            shared.endpoint.inject(self.peer, message).map_err(|error| self.refused(error))?;
            draft
        } else {
            let mut buffer = self.take_send(shared).ok_or(SendBlocked::Later)?;
            let draft = self.end.data(parts, &mut buffer).ok_or(SendBlocked::Later)?;
            self.send_buffer(shared, buffer, draft.bytes())?;
            draft
        };
        let taken = draft.taken();
        self.sent(draft);
        Ok(taken)
    }

    /// Writes a chunk of the parts, of this many bytes, to the client's memory.
    fn put(
        &mut self,
        shared: &mut Resources,
        parts: &[IoSlice<'_>],
        len: usize,
    ) -> Result<usize, SendBlocked> {
        let mut buffer = self.take_bounce(shared).ok_or(SendBlocked::Later)?;
        let SendMode::StagingRange(piece) = self.end.next(len.min(buffer.len())) else {
            return Err(SendBlocked::Later);
        };
        let mut filled = 0;
        for part in parts {
            let len = part.len().min(piece.bytes - filled);
            buffer[filled..filled + len].copy_from_slice(&part[..len]);
            filled += len;
        }
        let to = RemoteAddress {
            address: self.landing.address.wrapping_add(piece.at as u64),
            key: self.landing.key,
        };
        let ticket = self.end.put_ticket();
        let token = operation_token(self.index, ticket.number());
        match shared.endpoint.write(self.peer, to, buffer, 0..piece.bytes, token) {
            Ok(()) => {
                let begun = self.end.put_begun(piece);
                debug_assert_eq!(begun, ticket);
                self.operations += 1;
                self.moved = Instant::now();
                self.accepted();
                Ok(piece.bytes)
            }
            Err(refused) => {
                drop(refused.buffer);
                Err(self.refused(refused.error))
            }
        }
    }
}

/// Returns the parts without their first `count` bytes.
fn behind<'a>(parts: &'a [IoSlice<'a>], mut count: usize) -> Vec<IoSlice<'a>> {
    let mut rest = Vec::with_capacity(parts.len());
    for part in parts {
        let skipped = part.len().min(count);
        count -= skipped;
        if skipped < part.len() {
            rest.push(IoSlice::new(&part[skipped..]));
        }
    }
    rest
}
