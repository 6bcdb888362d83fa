//! The server's end of a link.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::{Deref, Range};

use super::flow_control::{Draft, FlowControl, SendMode, StagingRange};
use super::message::{Body, Kind, LentMemory, SHORT_BYTES};
use super::ring::{RingConsumer, RingProducer};
use super::{LENT_BYTES_MAX, LONG_BYTES_MIN, PIECE_BYTES_MAX, ProtocolError, READS_MAX, Terms};

/// Identifies a read or write of this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OperationId(u64);

impl OperationId {
    /// Returns it as a number, for the fabric's operations.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Returns the id with this number.
    pub fn from_number(number: u64) -> OperationId {
        OperationId(number)
    }
}

/// A range of the client's memory to read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// The key of lent memory, where `at` is an address; `None` for staging memory.
    pub key: Option<u64>,
    /// Its offset.
    pub at: u64,
    /// Its length, at most [`PIECE_BYTES_MAX`].
    pub bytes: usize,
}

impl std::fmt::Debug for Read {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Omits the key.
        write!(f, "Read({} bytes from {}, lent: {})", self.bytes, self.at, self.key.is_some())
    }
}

enum Entry {
    Data(Range<usize>),
    Long(RemoteRange),
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Entry::Data(range) => write!(f, "Data({range:?})"),
            Entry::Long(RemoteRange { bytes, consumed, .. }) => write!(f, "Long({consumed} of {bytes})"),
        }
    }
}

/// A range of the client's memory.
struct RemoteRange {
    /// The bytes of the message that precede it.
    before: Range<usize>,
    /// As in [`Read`].
    key: Option<u64>,
    at: u64,
    bytes: u64,
    requested: u64,
    consumed: u64,
}

impl Entry {
    fn long(before: Range<usize>, key: Option<u64>, at: u64, bytes: u64) -> Entry {
        Entry::Long(RemoteRange { before, key, at, bytes, requested: 0, consumed: 0 })
    }
}

/// A part of a Long whose read was started. Parts are in the order of the Longs, and consumed in it.
#[derive(Debug)]
struct RangePart<R> {
    bytes: usize,
    consumed: usize,
    /// The buffer, once it was read.
    buffer: Option<R>,
}

#[derive(Debug)]
struct PendingWrite {
    piece: StagingRange,
    is_written: bool,
}

/// Whether the client has proven that it receives where it said it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProofState {
    /// No proof is needed yet.
    Unwanted,
    /// A proof must be requested …
    Wanted,
    /// … and was requested.
    Requested,
    /// It arrived.
    Given,
}

/// The server's end of a link. `B` is a buffer with a message, `R` one with bytes that were read.
#[derive(Debug)]
pub struct ServerEnd<B, R> {
    flow: FlowControl<B>,
    proof: ProofState,
    /// The number of the proof.
    number: u64,
    staging: RingConsumer,
    incoming: VecDeque<(B, Entry)>,
    parts: VecDeque<RangePart<R>>,
    /// The first part's id.
    first_part: u64,
    landing: RingProducer,
    puts: VecDeque<PendingWrite>,
    /// The first put's id.
    first_put: u64,
}

impl<B: Deref<Target = [u8]>, R: Deref<Target = [u8]>> ServerEnd<B, R> {
    /// Returns an end that has sent nothing yet. The terms are valid; the number is random.
    pub fn new(terms: Terms, number: u64) -> ServerEnd<B, R> {
        debug_assert_eq!(terms.check(), Ok(()));
        ServerEnd {
            flow: FlowControl::new(terms),
            proof: ProofState::Unwanted,
            number,
            staging: RingConsumer::new(terms.staging_bytes),
            incoming: VecDeque::new(),
            parts: VecDeque::new(),
            first_part: 0,
            landing: RingProducer::new(terms.landing_bytes),
            puts: VecDeque::new(),
            first_put: 0,
        }
    }

    // ---- receiving ----

    /// Handles a message: the first `len` bytes of the buffer.
    ///
    /// # Errors
    /// The client violated the protocol: the link is unusable.
    pub fn arrived(&mut self, buffer: B, len: usize) -> Result<(), ProtocolError> {
        self.flow.arrived(buffer, len)?;
        while let Some((buffer, body)) = self.flow.ready.pop_front() {
            match body {
                Body::Data(range) => self.incoming.push_back((buffer, Entry::Data(range))),
                Body::Long { at, bytes } => {
                    self.staging.came(at, bytes).map_err(|broken| self.flow.fail(broken))?;
                    // The message keeps its buffer, so that a client names no more ranges than it has credits for.
                    self.incoming.push_back((buffer, Entry::long(0..0, None, at, bytes)));
                }
                Body::LentMemory { lent: LentMemory { address: at, key, bytes }, before } => {
                    if at.checked_add(bytes).is_none() || !(1..=LENT_BYTES_MAX).contains(&bytes) {
                        return Err(self.flow.fail(ProtocolError::Range { at, bytes }));
                    }
                    self.incoming.push_back((buffer, Entry::long(before, Some(key), at, bytes)));
                }
                Body::Room(total) => {
                    self.landing.give_back(total).map_err(|broken| self.flow.fail(broken))?;
                    self.flow.consumed(buffer, Kind::Room);
                }
                Body::Proof(number) => {
                    if self.proof != ProofState::Requested || number != self.number {
                        return Err(self.flow.fail(ProtocolError::Proof));
                    }
                    self.proof = ProofState::Given;
                    self.flow.consumed(buffer, Kind::Proof);
                }
                other => self.flow.take_common(buffer, &other)?,
            }
        }
        // A client that only says goodbye need not prove anything.
        if !self.flow.has_peer_left() {
            self.want_proof();
        }
        Ok(())
    }

    // ---- the proof ----

    /// Requests the proof that the client receives at the address it named, unless requested before. Before the proof
    /// the client is sent nothing else, and its memory is neither read nor written.
    pub fn want_proof(&mut self) {
        if self.proof == ProofState::Unwanted {
            self.proof = ProofState::Wanted;
        }
    }

    /// Returns whether a required proof is missing.
    pub fn lacks_proof(&self) -> bool {
        matches!(self.proof, ProofState::Wanted | ProofState::Requested)
    }

    /// Returns whether the client has proven its address.
    pub fn has_proof(&self) -> bool {
        self.proof == ProofState::Given
    }

    /// Returns a buffer whose message was consumed. Post it, or another, as a receive again before sending anything,
    /// because the next message tells the client that it is posted.
    pub fn freed(&mut self) -> Option<B> {
        self.flow.freed()
    }

    /// Returns the next read into a buffer of `most` bytes, if there is one and fewer than [`READS_MAX`] parts are
    /// held.
    pub fn next_read(&self, most: usize) -> Option<Read> {
        if self.parts.len() >= READS_MAX || self.flow.check().is_err() || !self.has_proof() {
            return None;
        }
        self.incoming.iter().find_map(|(_, entry)| match entry {
            Entry::Long(RemoteRange { key, at, bytes, requested, .. }) if requested < bytes => {
                let left = usize::try_from(bytes - requested).unwrap_or(usize::MAX);
                Some(Read { key: *key, at: at + requested, bytes: left.min(most).min(PIECE_BYTES_MAX) })
            }
            _ => None,
        })
    }

    /// Notes that this [next read](ServerEnd::next_read) is in flight, under this ticket.
    ///
    /// # Panics
    /// It was not the next.
    pub fn read_begun(&mut self, read: Read) -> OperationId {
        assert_eq!(self.next_read(read.bytes), Some(read), "a read begins that there is");
        for (_, entry) in &mut self.incoming {
            if let Entry::Long(RemoteRange { bytes, requested, .. }) = entry
                && requested < bytes
            {
                *requested += read.bytes as u64;
                break;
            }
        }
        let ticket = self.read_ticket();
        self.parts.push_back(RangePart { bytes: read.bytes, consumed: 0, buffer: None });
        ticket
    }

    /// Returns the id of the next read.
    pub fn read_ticket(&self) -> OperationId {
        OperationId(self.first_part + self.parts.len() as u64)
    }

    /// Notes the end of a read: its bytes are at the buffer's start.
    ///
    /// # Panics
    /// The buffer is shorter than the read.
    pub fn read_ended(&mut self, ticket: OperationId, buffer: R) {
        let index = usize::try_from(ticket.0.wrapping_sub(self.first_part)).ok();
        if let Some(part) = index.and_then(|index| self.parts.get_mut(index)) {
            assert!(part.bytes <= buffer.len(), "what was read is in the buffer");
            part.buffer = Some(buffer);
        }
    }

    /// Returns the number of reads in flight.
    pub fn reads_under_way(&self) -> usize {
        self.parts.iter().filter(|part| part.buffer.is_none()).count()
    }

    /// Returns whether no part is in flight or held.
    pub fn is_off_memory(&self) -> bool {
        self.parts.is_empty() && self.puts_in_flight() == 0
    }

    /// Returns the buffer that was read last if no byte of it was consumed; it is read again in its turn.
    pub fn unread(&mut self) -> Option<R> {
        self.parts.back()?.buffer.as_ref()?;
        let part = self.parts.pop_back()?;
        let last = self.incoming.iter_mut().rev().find_map(|(_, entry)| match entry {
            Entry::Long(RemoteRange { requested, consumed, .. }) if *requested > *consumed => Some(requested),
            _ => None,
        });
        if let Some(requested) = last {
            *requested -= (part.bytes - part.consumed) as u64;
        }
        part.buffer
    }

    /// Returns the next bytes of the stream, if they have arrived.
    pub fn incoming(&self) -> Option<&[u8]> {
        let (buffer, entry) = self.incoming.front()?;
        match entry {
            Entry::Data(range) => Some(&buffer[range.clone()]),
            Entry::Long(RemoteRange { before, .. }) if before.start < before.end => {
                Some(&buffer[before.clone()])
            }
            Entry::Long(_) => {
                let part = self.parts.front()?;
                part.buffer.as_ref().map(|buffer| &buffer[part.consumed..part.bytes])
            }
        }
    }

    /// Returns whether unconsumed bytes have arrived, even if they must be read first.
    pub fn has_incoming(&self) -> bool {
        !self.incoming.is_empty()
    }

    /// Consumes the first `len` bytes of [incoming](ServerEnd::incoming); returns a buffer that was used up.
    pub fn consume(&mut self, len: usize) -> Option<R> {
        let (_, entry) = self.incoming.front_mut()?;
        let mut spent = None;
        let kind = match entry {
            Entry::Data(range) => {
                range.start += len.min(range.len());
                if range.start < range.end {
                    return None;
                }
                Kind::Data
            }
            Entry::Long(RemoteRange { before, .. }) if before.start < before.end => {
                before.start += len.min(before.len());
                return None;
            }
            Entry::Long(RemoteRange { key, bytes, consumed, .. }) => {
                let part = self.parts.front_mut().filter(|part| part.buffer.is_some())?;
                let len = len.min(part.bytes - part.consumed);
                part.consumed += len;
                *consumed += len as u64;
                if part.consumed == part.bytes {
                    spent = self.parts.pop_front().and_then(|part| part.buffer);
                    self.first_part += 1;
                }
                if *consumed < *bytes {
                    return spent;
                }
                match key {
                    None => {
                        self.staging.consumed(*bytes);
                        Kind::Long
                    }
                    Some(_) => {
                        self.flow.lets_go();
                        Kind::LentMemory
                    }
                }
            }
        };
        if let Some((buffer, _)) = self.incoming.pop_front() {
            self.flow.consumed(buffer, kind);
        }
        spent
    }

    /// Returns whether the client's last message has arrived: nothing follows what is incoming.
    pub fn has_peer_left(&self) -> bool {
        self.flow.has_peer_left()
    }

    // ---- sending ----

    /// Returns how the next of `waiting` bytes can be sent.
    pub fn next(&self, waiting: usize) -> SendMode {
        let is_over = self.flow.is_over() || !self.has_proof();
        if waiting == 0 || is_over || self.flow.stream_credits() <= self.puts.len() {
            return SendMode::Later;
        }
        // While a write is in flight no message may follow it, but more can be written.
        let is_long = waiting >= LONG_BYTES_MIN && self.landing.piece_bytes() > 0;
        if !is_long && self.puts.is_empty() {
            return SendMode::Data;
        }
        let bytes = waiting.min(self.landing.piece_bytes());
        match self.landing.room(bytes) {
            Some(at) => SendMode::StagingRange(StagingRange { at, bytes }),
            None => SendMode::Later,
        }
    }

    /// Builds a message with as many bytes of `parts` as it holds; `None` unless [`ServerEnd::next`] returns
    /// [`SendMode::Data`].
    pub fn data(&self, parts: &[IoSlice<'_>], message: &mut [u8]) -> Option<Draft> {
        (self.puts.is_empty() && self.has_proof()).then(|| self.flow.data(parts, message)).flatten()
    }

    /// Records that the next bytes of the stream are being written where [`ServerEnd::next`] said.
    ///
    /// # Panics
    /// [`ServerEnd::next`] did not return this range.
    pub fn put_begun(&mut self, piece: StagingRange) -> OperationId {
        let ticket = self.put_ticket();
        self.landing.fill(piece.at, piece.bytes);
        self.puts.push_back(PendingWrite { piece, is_written: false });
        ticket
    }

    /// Returns the id of the next put.
    pub fn put_ticket(&self) -> OperationId {
        OperationId(self.first_put + self.puts.len() as u64)
    }

    /// Notes the end of a write; a [short](ServerEnd::short) message tells the client when those before have ended.
    pub fn put_ended(&mut self, ticket: OperationId) {
        let index = usize::try_from(ticket.0.wrapping_sub(self.first_put)).ok();
        if let Some(put) = index.and_then(|index| self.puts.get_mut(index)) {
            put.is_written = true;
        }
    }

    /// Returns the number of puts in flight.
    pub fn puts_in_flight(&self) -> usize {
        self.puts.iter().filter(|put| !put.is_written).count()
    }

    /// Builds a message without bytes of the stream, if there is something to report.
    pub fn short(&self, message: &mut [u8; SHORT_BYTES]) -> Option<Draft> {
        match self.proof {
            ProofState::Given => {}
            ProofState::Wanted => {
                return self.flow.short(message, Some(Body::ProofRequest(self.number)), None, true);
            }
            // A client that has sent nothing gets no message but the goodbye.
            ProofState::Unwanted => return self.flow.short(message, None, None, false),
            ProofState::Requested => return None,
        }
        let stream = self
            .puts
            .front()
            .filter(|put| put.is_written)
            .map(|PendingWrite { piece, .. }| Body::Put { at: piece.at as u64, bytes: piece.bytes as u64 });
        self.flow.short(message, self.staging.due().map(Body::Taken), stream, self.has_unsent())
    }

    /// Returns whether bytes were consumed that the client does not know of.
    pub fn has_unsent(&self) -> bool {
        !self.puts.is_empty()
    }

    /// Records that the fabric has accepted a message.
    pub fn sent(&mut self, draft: Draft) {
        self.flow.sent(&draft);
        match draft.body {
            Body::Put { .. } => {
                self.puts.pop_front();
                self.first_put += 1;
            }
            Body::Taken(total) => self.staging.reported(total),
            Body::ProofRequest(_) => self.proof = ProofState::Requested,
            _ => {}
        }
    }

    /// Ends the stream: the last message says so.
    pub fn leave(&mut self) {
        self.flow.leave();
    }

    /// Returns whether the last message was sent.
    pub fn has_said_bye(&self) -> bool {
        self.flow.has_said_bye()
    }

    /// The number of lent memories released but not reported.
    #[cfg(test)]
    pub fn untold(&self) -> usize {
        self.flow.untold()
    }

    /// Returns the buffers of messages, once the link has closed.
    pub fn drain(&mut self) -> impl Iterator<Item = B> {
        let incoming = std::mem::take(&mut self.incoming).into_iter().map(|(buffer, _)| buffer);
        self.flow.drain().chain(incoming)
    }
}
