//! The client's end of a link.

use std::io::IoSlice;

use fabcache_fabric::channel::{ClientEnd, Incoming, SHORT_BYTES, SendMode, StagingRange};
use fabcache_layout::Memory;
use fabcache_shmem::RemoteHeaps;
use fabcache_shmem::slots::{SlotReader, SlotWriter};

use super::plan::{HeapPlan, LinkShape};
use super::server::LinkError;

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
    /// The server has not opened the link since it ended the last one.
    is_closed: bool,
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
        let writer = SlotWriter::new(server, plan.requests(client).start, shape.ring());
        ClientLink {
            shape,
            end: ClientEnd::new(shape.terms()),
            message: vec![0; shape.ring().message_bytes_max()],
            writer,
            reader: SlotReader::new(part(plan.answers(server)), shape.ring()),
            staging: part(plan.staging(server)),
            landing: part(plan.landing(server)),
            spare: Vec::new(),
            is_closed: true,
        }
    }

    /// Returns whether the server has opened the link.
    pub fn is_open(&self) -> bool {
        !self.is_closed
    }

    /// Returns whether a message lies in the next slot.
    #[inline]
    pub fn has_come(&self) -> bool {
        self.reader.has_come()
    }

    /// Takes what has come, appends the bytes of the stream to `received`, and returns credits.
    ///
    /// # Errors
    /// The server broke the protocol: the link is of no use any more.
    pub fn progress(
        &mut self,
        heaps: &mut dyn RemoteHeaps,
        received: &mut Vec<u8>,
    ) -> Result<Progress, LinkError> {
        let mut progress = Progress::Nothing;
        loop {
            let mut buffer = self.spare.pop().unwrap_or_default();
            let Some(len) = self.reader.read(&mut buffer)? else {
                self.spare.push(buffer);
                break;
            };
            if len == 0 {
                // The server has read all slots, the last message of this end included.
                self.spare.push(buffer);
                self.end = ClientEnd::new(self.shape.terms());
                self.is_closed = false;
                return Ok(Progress::Restarted);
            }
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
        if self.is_closed {
            return;
        }
        if self.end.has_peer_left() {
            self.end.leave();
        }
        let mut message = [0; SHORT_BYTES];
        while let Some(draft) = self.end.short(&mut message) {
            self.writer.write(heaps, &message[..draft.bytes()]);
            self.end.sent(draft);
        }
        self.is_closed |= self.end.has_said_bye();
    }

    /// Ends the link: nothing more is sent. The server learns of that when [`ClientLink::progress`] could tell it, after which
    /// the link is closed.
    pub fn leave(&mut self) {
        self.end.leave();
    }

    /// Sends a prefix of `bytes`, and returns its length; 0 if nothing can be sent now.
    pub fn send(&mut self, heaps: &mut dyn RemoteHeaps, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while sent < bytes.len() && !self.is_closed {
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
