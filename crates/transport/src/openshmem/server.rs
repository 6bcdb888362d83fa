//! The server's end of a link.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::sync::Arc;

use fabcache_fabric::channel::{ProtocolError, Read, SHORT_BYTES, SendMode, ServerEnd, StagingRange};
use fabcache_layout::Memory;
use fabcache_shmem::RemoteHeaps;
use fabcache_shmem::slots::{SlotError, SlotReader, SlotWriter};

use super::pipe::{Pipe, PipeLink};
use super::plan::HeapPlan;

/// Wakes the thread that drives a link.
pub trait Wake: Send + Sync + Debug {
    /// Wakes it, if it sleeps.
    fn wake(&self);
}

/// A violation of the rules by the PE at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// A slot's flag.
    #[error("{0}")]
    Slot(#[from] SlotError),
    /// A message.
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
}

/// The server's end of a link. The thread that calls it has access to the client's heap.
#[derive(Debug)]
pub struct ServerLink {
    client: usize,
    plan: HeapPlan,
    own: usize,
    end: ServerEnd<Vec<u8>, Vec<u8>>,
    writer: SlotWriter,
    reader: SlotReader,
    pipe: Arc<Pipe>,
    /// What the worker has sent, taken from the pipe.
    outgoing: VecDeque<u8>,
    /// Buffers for messages that come.
    spare: Vec<Vec<u8>>,
    /// Buffers for what is read of the client's memory.
    spare_reads: Vec<Vec<u8>>,
    message: Vec<u8>,
    wake: Arc<dyn Wake>,
}

impl ServerLink {
    /// Returns the link of this client, and the worker's end of it. The client learns of it by the first
    /// [`ServerLink::open`].
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new(
        plan: &HeapPlan,
        client: usize,
        server: usize,
        memory: impl Fn(u64, u64) -> Memory,
        wake: Arc<dyn Wake>,
    ) -> io::Result<ServerLink> {
        let shape = plan.shape();
        let requests = plan.requests(client);
        let writer = SlotWriter::new(client, plan.answers(server).start, shape.ring());
        let pipe = Arc::new(Pipe::new(client, Arc::clone(&wake))?);
        Ok(ServerLink {
            client,
            plan: *plan,
            own: server,
            end: ServerEnd::new(shape.terms(), 0),
            message: vec![0; shape.ring().message_bytes_max()],
            writer,
            reader: SlotReader::new(memory(requests.start, requests.end - requests.start), shape.ring()),
            pipe,
            outgoing: VecDeque::new(),
            spare: Vec::new(),
            spare_reads: Vec::new(),
            wake,
        })
    }

    /// Opens the link, which is new or [has ended](ServerLink::has_ended), and returns the worker's end of it.
    ///
    /// # Errors
    /// The system has no descriptor left; the link stays closed.
    pub fn open(&mut self, heaps: &mut dyn RemoteHeaps) -> io::Result<PipeLink> {
        self.pipe = Arc::new(Pipe::new(self.client, Arc::clone(&self.wake))?);
        self.end = ServerEnd::new(self.plan.shape().terms(), 0);
        self.outgoing.clear();
        self.writer.write(heaps, &[]);
        Ok(PipeLink(Arc::clone(&self.pipe)))
    }

    /// Returns whether both ends have sent their last message.
    pub fn has_ended(&self) -> bool {
        self.end.has_peer_left() && self.end.has_said_bye()
    }

    /// Returns whether a message lies in the next slot.
    #[inline]
    pub fn has_come(&self) -> bool {
        self.reader.has_come()
    }

    /// Passes what has come to the worker, and what the worker sent to the client. Returns whether there was anything.
    ///
    /// # Errors
    /// The client broke the protocol: the link is of no use any more, and its worker sees the end.
    pub fn progress(&mut self, heaps: &mut dyn RemoteHeaps) -> Result<bool, LinkError> {
        let progressed = self.try_progress(heaps);
        if progressed.is_err() {
            self.pipe.end();
        }
        progressed
    }

    fn try_progress(&mut self, heaps: &mut dyn RemoteHeaps) -> Result<bool, LinkError> {
        let mut any = false;
        loop {
            let mut buffer = self.spare.pop().unwrap_or_default();
            let Some(len) = self.reader.read(&mut buffer)? else {
                self.spare.push(buffer);
                break;
            };
            any = true;
            self.end.arrived(buffer, len)?;
        }
        any |= self.deliver(heaps)?;
        any |= self.send(heaps);
        if self.end.has_peer_left() && !self.end.has_incoming() {
            self.pipe.end();
        }
        if self.outgoing.is_empty() && self.pipe.is_done() {
            self.end.leave();
        }
        self.report(heaps);
        Ok(any)
    }

    /// Reads what the client has staged, and passes bytes to the worker.
    fn deliver(&mut self, heaps: &mut dyn RemoteHeaps) -> Result<bool, LinkError> {
        let mut any = false;
        loop {
            while let Some(read) = self.end.next_read(usize::MAX) {
                let Read { key: None, at, bytes } = read else {
                    return Err(ProtocolError::Range { at: read.at, bytes: read.bytes as u64 }.into());
                };
                let mut buffer = self.spare_reads.pop().unwrap_or_default();
                buffer.resize(bytes, 0);
                heaps.get(self.client, self.plan.staging(self.own).start + at, &mut buffer);
                let id = self.end.read_begun(read);
                self.end.read_ended(id, buffer);
            }
            let Some(bytes) = self.end.incoming() else { return Ok(any) };
            let len = self.pipe.push(bytes);
            if len == 0 {
                return Ok(any);
            }
            any = true;
            self.spare_reads.extend(self.end.consume(len));
        }
    }

    /// Sends what the worker has passed.
    fn send(&mut self, heaps: &mut dyn RemoteHeaps) -> bool {
        let landing = self.plan.landing(self.own).start;
        let mut any = false;
        // Taken from the pipe first: a worker never waits for an access to the client's heap.
        while !self.outgoing.is_empty() || self.pipe.take(&mut self.outgoing) {
            let (bytes, all) = (self.outgoing.as_slices().0, self.outgoing.len());
            let taken = match self.end.next(all) {
                SendMode::Later => break,
                SendMode::Data => {
                    let Some(draft) = self.end.data(&[IoSlice::new(bytes)], &mut self.message) else { break };
                    self.writer.write(heaps, &self.message[..draft.bytes()]);
                    let taken = draft.taken();
                    self.end.sent(draft);
                    taken
                }
                SendMode::StagingRange(StagingRange { at, bytes: len }) => {
                    let len = len.min(bytes.len());
                    heaps.put(self.client, landing + at as u64, &bytes[..len]);
                    let id = self.end.put_begun(StagingRange { at, bytes: len });
                    // The message about it follows a fence.
                    self.end.put_ended(id);
                    self.report(heaps);
                    len
                }
            };
            self.outgoing.drain(..taken);
            any = true;
        }
        any
    }

    /// Sends what is not part of the stream: credits, what was written, the last message.
    fn report(&mut self, heaps: &mut dyn RemoteHeaps) {
        while let Some(buffer) = self.end.freed() {
            self.spare.push(buffer);
        }
        let mut message = [0; SHORT_BYTES];
        while let Some(draft) = self.end.short(&mut message) {
            self.writer.write(heaps, &message[..draft.bytes()]);
            self.end.sent(draft);
        }
    }
}
