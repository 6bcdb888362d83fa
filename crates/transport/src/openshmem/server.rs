//! The server's end of a link.

use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::sync::Arc;

use fabcache_fabric::channel::{ProtocolError, Read, SHORT_BYTES, SendMode, ServerEnd, StagingRange};
use fabcache_layout::Memory;
use fabcache_shmem::RemoteHeaps;
use fabcache_shmem::slots::{SlotReader, SlotWriter};

use super::error::{LinkError, check_token};
use super::pipe::{Pipe, PipeLink};
use super::plan::HeapPlan;

/// Wakes the thread that drives a link.
pub trait Wake: Send + Sync + Debug {
    /// Wakes it, if it sleeps.
    fn wake(&self);
}

/// Whether the link is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// This end has not opened it.
    New,
    Open,
    /// Both ends have sent their last message.
    Ended,
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
    /// The worker's bytes, taken from the pipe …
    outgoing: Vec<u8>,
    /// … and how many of them were sent to the client.
    sent: usize,
    /// Buffers for messages that come.
    spare: Vec<Vec<u8>>,
    /// A buffer for what is read of the client's memory.
    spare_read: Vec<u8>,
    message: Vec<u8>,
    wake: Arc<dyn Wake>,
    state: State,
    /// Why it is of no use any more.
    broken: Option<LinkError>,
}

impl ServerLink {
    /// Returns the link of this client. The client learns of it by the first [`ServerLink::open`].
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
        let (shape, requests) = (plan.shape(), plan.requests(client));
        let requests = memory(requests.start, requests.end - requests.start);
        Ok(ServerLink {
            client,
            plan: *plan,
            own: server,
            end: ServerEnd::new(shape.terms(), 0),
            message: vec![0; shape.ring().message_bytes_max()],
            writer: SlotWriter::new(client, plan.answers(server).start, shape.ring())
                .with_mutex(plan.answers_mutex(server)),
            reader: SlotReader::new(requests, shape.ring()).with_mutex(plan.requests_mutex(client)),
            pipe: Arc::new(Pipe::new(client, Arc::clone(&wake))?),
            outgoing: Vec::new(),
            sent: 0,
            spare: Vec::new(),
            spare_read: Vec::new(),
            wake,
            state: State::New,
            broken: None,
        })
    }

    /// Opens the link, which is new or [has ended](ServerLink::has_ended), and returns the worker's end of it.
    ///
    /// # Errors
    /// The system has no descriptor left; the link stays closed.
    ///
    /// # Panics
    /// The link is open.
    pub fn open(&mut self, heaps: &mut dyn RemoteHeaps) -> io::Result<PipeLink> {
        assert_ne!(self.state, State::Open, "the link is open");
        self.pipe = Arc::new(Pipe::new(self.client, Arc::clone(&self.wake))?);
        self.end = ServerEnd::new(self.plan.shape().terms(), 0);
        self.outgoing.clear();
        self.sent = 0;
        self.state = State::Open;
        self.writer.write(heaps, &[]);
        Ok(PipeLink::new(Arc::clone(&self.pipe)))
    }

    /// Returns whether both ends have sent their last message.
    pub fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Returns whether [`ServerLink::progress`] would find something: a message, or what the worker has done.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.broken.is_none() && (self.reader.has_come() || self.pipe.has_news())
    }

    /// Passes what has come to the worker, and what the worker sent to the client. Returns whether there was anything, or the
    /// client got a message.
    ///
    /// # Errors
    /// The client broke the protocol, now or before: the link is of no use any more, and its worker sees the end.
    pub fn progress(&mut self, heaps: &mut dyn RemoteHeaps) -> Result<bool, LinkError> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let progress = self.try_progress(heaps);
        if let Err(broken) = progress {
            self.fail(broken);
        }
        progress
    }

    /// Gives the link up: it is of no use any more, and its worker sees the end.
    pub fn give_up(&mut self) {
        self.fail(LinkError::GivenUp);
    }

    fn fail(&mut self, broken: LinkError) {
        self.broken = Some(broken);
        self.pipe.end();
    }

    fn try_progress(&mut self, heaps: &mut dyn RemoteHeaps) -> Result<bool, LinkError> {
        let has_news = self.pipe.take_news();
        let has_come = self.take_messages(heaps)?;
        if self.state != State::Open || !has_news && !has_come {
            return Ok(has_come);
        }
        let mut any = has_come;
        any |= self.deliver(heaps)?;
        any |= self.send(heaps);
        if self.end.has_peer_left() && !self.end.has_incoming() {
            self.pipe.end();
        }
        if self.outgoing.is_empty() && self.pipe.is_done() {
            self.end.leave();
        }
        Ok(self.report(heaps) || any)
    }

    /// Takes all messages that have come. Returns whether there were any.
    fn take_messages(&mut self, heaps: &mut dyn RemoteHeaps) -> Result<bool, LinkError> {
        let mut any = false;
        loop {
            let mut buffer = self.spare.pop().unwrap_or_default();
            let Some(len) = self.reader.read(heaps, &mut buffer)? else {
                self.spare.push(buffer);
                return Ok(any);
            };
            any = true;
            if self.state != State::Open {
                return Err(LinkError::Closed(len));
            }
            if len == 0 {
                // The client has read this end's last message, and sends nothing more.
                if !self.end.has_said_bye() {
                    return Err(LinkError::Empty);
                }
                self.state = State::Ended;
                continue;
            }
            check_token(&buffer)?;
            self.end.arrived(buffer, len)?;
        }
    }

    /// Passes bytes to the worker. Returns whether it took any.
    fn deliver(&mut self, heaps: &mut dyn RemoteHeaps) -> Result<bool, LinkError> {
        let mut any = false;
        loop {
            if self.end.incoming().is_none() {
                self.read(heaps)?;
            }
            let Some(bytes) = self.end.incoming() else { return Ok(any) };
            let len = self.pipe.push(bytes);
            if len == 0 {
                return Ok(any);
            }
            any = true;
            if let Some(buffer) = self.end.consume(len) {
                self.spare_read = buffer;
            }
        }
    }

    /// Reads the next bytes that the client has staged, if they are next in the stream.
    fn read(&mut self, heaps: &mut dyn RemoteHeaps) -> Result<(), LinkError> {
        let Some(read) = self.end.next_read(usize::MAX) else { return Ok(()) };
        let Read { key: None, at, bytes } = read else {
            // Only staging memory can be read.
            return Err(ProtocolError::Range { at: read.at, bytes: read.bytes as u64 }.into());
        };
        let mut buffer = std::mem::take(&mut self.spare_read);
        buffer.resize(bytes, 0);
        if !heaps.try_get(self.client, self.plan.staging(self.own).start + at, &mut buffer) {
            return Err(LinkError::Unread(bytes));
        }
        let id = self.end.read_begun(read);
        self.end.read_ended(id, buffer);
        Ok(())
    }

    /// Sends what the worker has passed.
    fn send(&mut self, heaps: &mut dyn RemoteHeaps) -> bool {
        let landing = self.plan.landing(self.own).start;
        let mut any = false;
        // Taken from the pipe first: a worker never waits for an access to the client's heap.
        while !self.outgoing.is_empty() || self.pipe.take(&mut self.outgoing) {
            // Nothing else may take the credit of a message about what is put: the next thread's fence would not order it.
            self.report(heaps);
            let bytes = &self.outgoing[self.sent..];
            self.sent += match self.end.next(bytes.len()) {
                // Nobody receives it.
                _ if self.end.has_peer_left() => bytes.len(),
                SendMode::Later => break,
                SendMode::Data => {
                    let Some(draft) = self.end.data(&[IoSlice::new(bytes)], &mut self.message) else { break };
                    self.writer.write(heaps, &self.message[..draft.bytes()]);
                    let taken = draft.taken();
                    self.end.sent(draft);
                    taken
                }
                SendMode::StagingRange(piece) => {
                    let StagingRange { at, bytes: len } = piece;
                    heaps.put(self.client, landing + at as u64, &bytes[..len]);
                    let id = self.end.put_begun(piece);
                    // The message about it follows a fence.
                    self.end.put_ended(id);
                    self.report(heaps);
                    debug_assert!(!self.end.has_unsent(), "there was a credit for the message");
                    len
                }
            };
            any = true;
            if self.sent == self.outgoing.len() {
                self.outgoing.clear();
                self.sent = 0;
            }
        }
        any
    }

    /// Sends what is not part of the stream: credits, what was written, the last message. Returns whether there was anything.
    fn report(&mut self, heaps: &mut dyn RemoteHeaps) -> bool {
        while let Some(buffer) = self.end.freed() {
            self.spare.push(buffer);
        }
        let (mut message, mut any) = ([0; SHORT_BYTES], false);
        while let Some(draft) = self.end.short(&mut message) {
            self.writer.write(heaps, &message[..draft.bytes()]);
            self.end.sent(draft);
            any = true;
        }
        any
    }
}
