//! The client's end of a link.

use std::io::IoSlice;

use fabcache_fabric::channel::{ClientEnd, Incoming, SHORT_BYTES, SendMode, StagingRange};
use fabcache_layout::Memory;
use fabcache_shmem::RemoteHeaps;
use fabcache_shmem::slots::{SlotReader, SlotWriter};

use super::error::{LinkError, check_token};
use super::plan::{HeapPlan, LinkShape};

/// What [`ClientLink::progress`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing.
    Nothing,
    /// Something came.
    Came,
    /// The server has ended the link, and nothing more comes of its requests. The link is open for others.
    Restarted,
}

/// Whether the link is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The server has not opened it, or has ended it, and this end has read everything.
    Closed,
    Open,
    /// This end has sent its last message, the server has not.
    Left,
}

/// The client's end of a link. The thread that calls it has access to the server's heap.
#[derive(Debug)]
pub struct ClientLink {
    shape: LinkShape,
    end: ClientEnd<Vec<u8>>,
    writer: SlotWriter,
    reader: SlotReader,
    staging: Memory,
    landing: Memory,
    /// Buffers for messages that come.
    spare: Vec<Vec<u8>>,
    message: Vec<u8>,
    state: State,
    /// Why it is of no use any more.
    broken: Option<LinkError>,
}

impl ClientLink {
    /// Returns the link to this server, closed until it opens it. `memory` is a part of this PE's heap.
    pub fn new(
        plan: &HeapPlan,
        client: usize,
        server: usize,
        memory: impl Fn(u64, u64) -> Memory,
    ) -> ClientLink {
        let shape = plan.shape();
        let part = |range: std::ops::Range<u64>| memory(range.start, range.end - range.start);
        ClientLink {
            shape,
            end: ClientEnd::new(shape.terms()),
            message: vec![0; shape.ring().message_bytes_max()],
            writer: SlotWriter::new(server, plan.requests(client).start, shape.ring())
                .with_mutex(plan.requests_mutex(client)),
            reader: SlotReader::new(part(plan.answers(server)), shape.ring())
                .with_mutex(plan.answers_mutex(server)),
            staging: part(plan.staging(server)),
            landing: part(plan.landing(server)),
            spare: Vec::new(),
            state: State::Closed,
            broken: None,
        }
    }

    /// Returns whether the server has opened the link, and neither end has ended it.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Returns whether a message lies in the next slot, and the link is not broken.
    #[inline]
    pub fn has_come(&self) -> bool {
        self.broken.is_none() && self.reader.has_come()
    }

    /// Takes what has come, appends the bytes of the stream to `received`, and returns credits.
    ///
    /// # Errors
    /// The server broke the protocol, now or before: the link is of no use any more.
    pub fn progress(
        &mut self,
        heaps: &mut dyn RemoteHeaps,
        received: &mut Vec<u8>,
    ) -> Result<Progress, LinkError> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let progress = self.try_progress(heaps, received);
        self.broken = progress.err();
        progress
    }

    fn try_progress(
        &mut self,
        heaps: &mut dyn RemoteHeaps,
        received: &mut Vec<u8>,
    ) -> Result<Progress, LinkError> {
        let mut progress = Progress::Nothing;
        loop {
            let mut buffer = self.spare.pop().unwrap_or_default();
            let Some(len) = self.reader.read(heaps, &mut buffer)? else {
                self.spare.push(buffer);
                break;
            };
            match (len, self.state) {
                (0, State::Closed) => {
                    self.spare.push(buffer);
                    self.end = ClientEnd::new(self.shape.terms());
                    self.state = State::Open;
                    return Ok(Progress::Restarted);
                }
                (0, _) => return Err(LinkError::Empty),
                (_, State::Closed) => return Err(LinkError::Closed(len)),
                (_, State::Open | State::Left) => {}
            }
            check_token(&buffer)?;
            progress = Progress::Came;
            self.end.arrived(buffer, len)?;
            self.receive(received);
        }
        self.report(heaps);
        Ok(progress)
    }

    /// Sends what is not part of the stream: credits, room, the last message.
    fn report(&mut self, heaps: &mut dyn RemoteHeaps) {
        while let Some(buffer) = self.end.freed() {
            self.spare.push(buffer);
        }
        if self.state == State::Closed {
            return;
        }
        if self.end.has_peer_left() {
            // This needs no credit, which the server returns no more.
            self.writer.write(heaps, &[]);
            self.state = State::Closed;
            return;
        }
        let mut message = [0; SHORT_BYTES];
        while let Some(draft) = self.end.short(&mut message) {
            self.writer.write(heaps, &message[..draft.bytes()]);
            self.end.sent(draft);
        }
        if self.end.has_said_bye() {
            self.state = State::Left;
        }
    }

    /// Ends the link: nothing more is sent. The server learns of that when [`ClientLink::progress`] could tell it, after which
    /// the link is not open.
    pub fn leave(&mut self) {
        self.end.leave();
    }

    /// Sends a prefix of `bytes`, and returns its length; 0 if nothing can be sent now.
    pub fn send(&mut self, heaps: &mut dyn RemoteHeaps, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while sent < bytes.len() && self.is_open() && self.broken.is_none() {
            let rest = &bytes[sent..];
            match self.end.next(rest.len()) {
                SendMode::Later => break,
                SendMode::Data => {
                    let Some(draft) = self.end.data(&[IoSlice::new(rest)], &mut self.message) else { break };
                    self.writer.write(heaps, &self.message[..draft.bytes()]);
                    sent += draft.taken();
                    self.end.sent(draft);
                }
                SendMode::StagingRange(piece @ StagingRange { at, bytes: len }) => {
                    self.staging.copy_in(at as u64, &rest[..len]);
                    self.end.staged(piece);
                    sent += len;
                    self.report(heaps);
                }
            }
        }
        sent
    }

    /// Appends all bytes of the stream that have come.
    fn receive(&mut self, into: &mut Vec<u8>) {
        while let Some(incoming) = self.end.incoming() {
            let len = match incoming {
                Incoming::Bytes(bytes) => {
                    into.extend_from_slice(bytes);
                    bytes.len()
                }
                Incoming::Landed(StagingRange { at, bytes }) => {
                    let start = into.len();
                    into.resize(start + bytes, 0);
                    self.landing.copy_out(at as u64, &mut into[start..]);
                    bytes
                }
            };
            self.end.consume(len);
        }
    }
}
