//! The client's end of a link.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::{Deref, Range};

use super::flow_control::{Draft, FlowControl, SendMode, StagingRange};
use super::message::{Body, Kind, LentMemory, SHORT_BYTES};
use super::ring::{RingConsumer, RingProducer};
use super::{LONG_BYTES_MIN, ProtocolError, Terms};

/// The next bytes of the server's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming<'a> {
    /// The bytes.
    Bytes(&'a [u8]),
    /// A range of landing memory.
    Landed(StagingRange),
}

#[derive(Debug)]
enum Entry {
    Data(Range<usize>),
    /// The rest of received bytes, and its length.
    Landed(StagingRange, u64),
}

/// The client's end of a link.
#[derive(Debug)]
pub struct ClientEnd<B> {
    flow: FlowControl<B>,
    staging: RingProducer,
    /// Staged ranges that the server does not know yet.
    staged: VecDeque<StagingRange>,
    landing: RingConsumer,
    incoming: VecDeque<(B, Entry)>,
    /// The proof number to return.
    requested: Option<u64>,
    has_proven: bool,
}

impl<B: Deref<Target = [u8]>> ClientEnd<B> {
    /// Returns an end that has sent nothing yet. The terms are valid.
    pub fn new(terms: Terms) -> ClientEnd<B> {
        debug_assert_eq!(terms.check(), Ok(()));
        ClientEnd {
            flow: FlowControl::new(terms),
            staging: RingProducer::new(terms.staging_bytes),
            staged: VecDeque::new(),
            landing: RingConsumer::new(terms.landing_bytes),
            incoming: VecDeque::new(),
            requested: None,
            has_proven: false,
        }
    }

    // ---- receiving ----

    /// Handles a message: the first `len` bytes of the buffer.
    ///
    /// # Errors
    /// The server violated the protocol: the link is unusable.
    pub fn arrived(&mut self, buffer: B, len: usize) -> Result<(), ProtocolError> {
        self.flow.arrived(buffer, len)?;
        while let Some((buffer, body)) = self.flow.ready.pop_front() {
            match body {
                Body::Data(range) => self.incoming.push_back((buffer, Entry::Data(range))),
                Body::Put { at, bytes } => {
                    self.landing.came(at, bytes).map_err(|broken| self.flow.fail(broken))?;
                    let piece = StagingRange { at: at as usize, bytes: bytes as usize };
                    self.incoming.push_back((buffer, Entry::Landed(piece, bytes)));
                }
                Body::Taken(total) => {
                    self.staging.give_back(total).map_err(|broken| self.flow.fail(broken))?;
                    self.flow.consumed(buffer, Kind::Taken);
                }
                Body::ProofRequest(number) if !self.has_proven && self.requested.is_none() => {
                    self.requested = Some(number);
                    self.flow.consumed(buffer, Kind::ProofRequest);
                }
                other => self.flow.take_common(buffer, &other)?,
            }
        }
        Ok(())
    }

    /// Returns a buffer whose message was consumed. Post it as a receive again before sending anything, because the
    /// next message tells the server that it is posted.
    pub fn freed(&mut self) -> Option<B> {
        self.flow.freed()
    }

    /// Returns the next bytes of the stream, if any have arrived.
    pub fn incoming(&self) -> Option<Incoming<'_>> {
        let (buffer, entry) = self.incoming.front()?;
        Some(match entry {
            Entry::Data(range) => Incoming::Bytes(&buffer[range.clone()]),
            Entry::Landed(piece, _) => Incoming::Landed(*piece),
        })
    }

    /// Consumes the first `len` bytes of [incoming](ClientEnd::incoming).
    pub fn consume(&mut self, len: usize) {
        let Some((_, entry)) = self.incoming.front_mut() else { return };
        let kind = match entry {
            Entry::Data(range) => {
                range.start += len.min(range.len());
                if range.start < range.end {
                    return;
                }
                Kind::Data
            }
            Entry::Landed(piece, whole) => {
                let len = len.min(piece.bytes);
                *piece = StagingRange { at: piece.at + len, bytes: piece.bytes - len };
                if piece.bytes > 0 {
                    return;
                }
                self.landing.consumed(*whole);
                Kind::Put
            }
        };
        if let Some((buffer, _)) = self.incoming.pop_front() {
            self.flow.consumed(buffer, kind);
        }
    }

    /// Returns whether the server's last message has arrived: nothing follows what is incoming.
    pub fn has_peer_left(&self) -> bool {
        self.flow.has_peer_left()
    }

    /// Returns the number of messages with another token than this link's, which were dropped.
    pub fn strays(&self) -> u64 {
        self.flow.strays()
    }

    // ---- sending ----

    /// Returns how the next of `waiting` bytes can be sent.
    pub fn next(&self, waiting: usize) -> SendMode {
        if waiting == 0 || self.flow.is_over() || self.flow.stream_credits() <= self.staged.len() {
            return SendMode::Later;
        }
        if waiting >= LONG_BYTES_MIN && self.staging.piece_bytes() > 0 {
            let bytes = waiting.min(self.staging.piece_bytes());
            return match self.staging.room(bytes) {
                Some(at) => SendMode::StagingRange(StagingRange { at, bytes }),
                None => SendMode::Later,
            };
        }
        // Bytes staged earlier must be sent first.
        if self.staged.is_empty() { SendMode::Data } else { SendMode::Later }
    }

    /// Builds a message with as many bytes of `parts` as it holds; `None` unless [`ClientEnd::next`] returns
    /// [`SendMode::Data`].
    pub fn data(&self, parts: &[IoSlice<'_>], message: &mut [u8]) -> Option<Draft> {
        self.staged.is_empty().then(|| self.flow.data(parts, message)).flatten()
    }

    /// Builds a message with all of `before` and, as the next bytes of the stream, those of lent memory, which must
    /// stay unchanged until the server has [released](ClientEnd::let_go) it. `None` unless [`ClientEnd::next`]
    /// returns [`SendMode::Data`] for one byte, and `before` has at most [`LENT_BEFORE_MAX`](super::LENT_BEFORE_MAX).
    pub fn lend(&self, before: &[IoSlice<'_>], lent: &LentMemory, message: &mut [u8]) -> Option<Draft> {
        self.staged.is_empty().then(|| self.flow.lend(before, lent, message)).flatten()
    }

    /// Returns how many of the oldest lent memories the server has released since the last call.
    pub fn let_go(&mut self) -> usize {
        self.flow.let_go()
    }

    /// Notes that the next bytes of the stream were copied to where [`ClientEnd::next`] said; a
    /// [short](ClientEnd::short) message tells the server.
    ///
    /// [`ClientEnd::next`] did not return this range.
    /// It did not say so.
    pub fn staged(&mut self, piece: StagingRange) {
        self.staging.fill(piece.at, piece.bytes);
        self.staged.push_back(piece);
    }

    /// Builds a message without bytes of the stream, if there is something to report.
    pub fn short(&self, message: &mut [u8; SHORT_BYTES]) -> Option<Draft> {
        let stream =
            self.staged.front().map(|piece| Body::Long { at: piece.at as u64, bytes: piece.bytes as u64 });
        let reported = self.requested.map(Body::Proof).or_else(|| self.landing.due().map(Body::Room));
        // Messages that precede the proof are not acknowledged, and nothing follows the last message.
        let is_unproven = self.flow.has_sent() && !self.has_proven;
        self.flow.short(message, reported, stream, self.has_unsent() || is_unproven)
    }

    /// Returns whether bytes were staged that the server does not know of: [`ClientEnd::short`] still has a message
    /// to send, perhaps not now.
    pub fn has_unsent(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Records that the fabric has accepted a message.
    pub fn sent(&mut self, draft: Draft) {
        self.flow.sent(&draft);
        match draft.body {
            Body::Long { .. } => drop(self.staged.pop_front()),
            Body::Room(total) => self.landing.reported(total),
            Body::Proof(_) => (self.requested, self.has_proven) = (None, true),
            _ => {}
        }
    }

    /// Ends the stream: the last message says so. The server closes the socket when it has everything; receive and
    /// drop what it sends until then.
    pub fn leave(&mut self) {
        self.flow.leave();
    }

    /// Returns whether the last message was sent.
    pub fn has_said_bye(&self) -> bool {
        self.flow.has_said_bye()
    }
}
