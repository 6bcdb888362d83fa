//! The client's end of a link: its endpoint, the message buffers, and the driver of [`fabcache_fabric::channel`].
//! Nothing here blocks.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabcache_fabric::channel::doorbell::ClientDoorbells;
use fabcache_fabric::channel::{
    ClientEnd, Draft, HEADER_BYTES, Incoming, LENT_BEFORE_MAX, LENT_HEADER_BYTES, LONG_BYTES_MIN, LentMemory,
    MESSAGE_BYTES, SHORT_BYTES, SendMode, StagingRange, Terms, receives_for,
};
use fabcache_fabric::{
    Buffer, Completion, Domain, Endpoint, EndpointOptions, Error, Kind, LocalUse, Peer, PeerAccess, Pool,
    ReadableMemory, RejectedOperation, RemoteMemory, SharedArea,
};

use super::lent_buffer::LentBuffer;
use crate::bounds::{
    LANDING_BYTES, LINK_CREDITS, LINK_SENDS, REFUSED_RETRY_MAX, REFUSED_RETRY_MIN, STAGING_BYTES,
};
use crate::stream::{Lending, Until};

/// An endpoint that no server knows yet.
#[derive(Debug)]
pub struct End {
    /// The token that messages to it begin with.
    pub token: u64,
    // Declared before the memory that its operations use.
    endpoint: Endpoint,
    pool: Pool,
    staging: SharedArea,
    landing: SharedArea,
}

impl End {
    /// Opens an endpoint and posts its receives.
    ///
    /// # Errors
    /// The provider fails, or memory cannot be registered.
    pub fn new(domain: &Arc<Domain>) -> Result<End, Error> {
        let token = getrandom::u64().map_err(|error| Error::System(error.to_string()))?;
        let receives = receives_for(LINK_CREDITS);
        let operations = receives + LINK_SENDS;
        let mut endpoint = Endpoint::open(domain, EndpointOptions { operations, peers: 1, waits: true })?;
        let pool = Pool::new(domain, LocalUse::SEND.and(LocalUse::RECEIVE), operations, MESSAGE_BYTES)?;
        let staging = SharedArea::new(&mut endpoint, STAGING_BYTES, PeerAccess::Read)?;
        let landing = SharedArea::new(&mut endpoint, LANDING_BYTES, PeerAccess::Write)?;
        for _ in 0..receives {
            let buffer = pool.take().expect("all buffers are free");
            endpoint.receive(buffer, 0).map_err(|refused| refused.error)?;
        }
        Ok(End { token, endpoint, pool, staging, landing })
    }

    /// Returns the name by which the server finds it.
    pub fn name(&self) -> &[u8] {
        self.endpoint.name()
    }

    /// Returns the number of messages that it accepts.
    pub fn credits(&self) -> u16 {
        LINK_CREDITS
    }

    /// Returns the memory that the server may read.
    pub fn staging(&self) -> RemoteMemory {
        self.staging.remote()
    }

    /// Returns the memory that the server may write.
    pub fn landing(&self) -> RemoteMemory {
        self.landing.remote()
    }

    /// Returns whether reads of a server's memory need no help of its process.
    pub fn is_one_sided(&self) -> bool {
        self.endpoint.is_one_sided()
    }

    /// Returns the domain that registered its memory.
    pub fn domain(&self) -> &Arc<Domain> {
        self.endpoint.domain()
    }
}

/// A link to a server.
#[derive(Debug)]
pub struct Link {
    // Declared before the memory that its operations use.
    endpoint: Endpoint,
    peer: Peer,
    end: ClientEnd<Buffer>,
    pool: Pool,
    staging: SharedArea,
    landing: SharedArea,
    /// Callers' memory that the server may read, in the order of lending.
    lent: VecDeque<Arc<ReadableMemory>>,
    ended: Vec<Completion>,
    /// A rejected receive, which is posted before anything is sent.
    unposted: Option<Buffer>,
    /// A buffer for messages that the provider injects.
    scratch: Box<[u8]>,
    /// When and how often the provider rejected operations: it does so until it knows the server's endpoint.
    refused: Option<(Instant, u32)>,
    /// Whether [`Link::send`] could not send everything.
    unsent: usize,
    pub doorbells: ClientDoorbells,
    /// Short sleeps without a completion.
    pub naps: u32,
    /// The last message was sent, not received: the server may owe an answer.
    is_owed: bool,
    /// A thread sleeps and must be woken when something arrives.
    pub is_asleep: bool,
    broken: Option<(ErrorKind, String)>,
}

impl Link {
    /// Opens a link to the server's endpoint of this name.
    ///
    /// # Errors
    /// The name is invalid.
    pub fn new(end: End, name: &[u8], terms: Terms) -> Result<Link, Error> {
        let End { mut endpoint, pool, staging, landing, .. } = end;
        let peer = endpoint.connect(name)?;
        let scratch = endpoint.domain().provider().inject_bytes.clamp(SHORT_BYTES, MESSAGE_BYTES);
        Ok(Link {
            endpoint,
            peer,
            end: ClientEnd::new(terms),
            pool,
            staging,
            landing,
            lent: VecDeque::new(),
            ended: Vec::new(),
            unposted: None,
            scratch: vec![0; scratch].into(),
            refused: None,
            unsent: 0,
            doorbells: ClientDoorbells::default(),
            naps: 0,
            is_owed: false,
            is_asleep: false,
            broken: None,
        })
    }

    /// Returns the descriptor that reports arrivals, if the provider has one.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn descriptor(&self) -> io::Result<Option<OwnedFd>> {
        self.endpoint.wait_fd().map(|descriptor| descriptor.try_clone_to_owned()).transpose()
    }

    /// Returns whether the descriptor will report everything that arrives from now on.
    pub fn may_wait(&mut self) -> bool {
        self.endpoint.may_wait()
    }

    // ---- progress ----

    /// Handles what has arrived, and sends credits and acknowledgements.
    ///
    /// # Errors
    /// The link is broken.
    pub fn progress(&mut self) -> io::Result<()> {
        self.check()?;
        let done = self.try_progress();
        done.map_err(|fault| self.fail(fault))
    }

    fn try_progress(&mut self) -> Result<(), Fault> {
        let mut ended = std::mem::take(&mut self.ended);
        let polled = self.endpoint.poll(&mut ended);
        let has_come = !ended.is_empty();
        let mut taken = Ok(());
        for Completion { kind, result, buffer, .. } in ended.drain(..) {
            let done = match (kind, result) {
                (_, Err(error)) => Err(Fault::from(error)),
                (Kind::Received, Ok(len)) => self.end.arrived(buffer, len).map_err(Fault::from),
                _ => Ok(()),
            };
            // The other completions still return their buffers.
            taken = taken.and(done);
        }
        self.ended = ended;
        self.lent.drain(..self.end.let_go());
        polled?;
        taken?;
        if has_come {
            self.naps = 0;
            self.refused = None;
        }
        self.tell()
    }

    /// Sends credits and acknowledgements, as far as possible.
    fn tell(&mut self) -> Result<(), Fault> {
        if !self.repost()? {
            return Ok(());
        }
        let mut message = [0; SHORT_BYTES];
        while let Some(draft) = self.end.short(&mut message) {
            if !self.post(&message[..draft.bytes()])? {
                return Ok(());
            }
            self.end.sent(draft);
        }
        Ok(())
    }

    /// Reposts the receives of consumed messages. Returns false if not all are accepted now.
    fn repost(&mut self) -> Result<bool, Fault> {
        while let Some(buffer) = self.unposted.take().or_else(|| self.end.freed()) {
            if let Err(RejectedOperation { buffer, error }) = self.endpoint.receive(buffer, 0) {
                self.unposted = Some(buffer);
                return if error.is_again() { Ok(false) } else { Err(error.into()) };
            }
        }
        Ok(true)
    }

    /// Sends a short message. Returns false if the provider does not accept it now.
    fn post(&mut self, message: &[u8]) -> Result<bool, Fault> {
        let posted = if message.len() <= self.endpoint.domain().provider().inject_bytes {
            self.endpoint.inject(self.peer, message)
        } else {
            let Some(mut buffer) = self.pool.take() else { return Ok(false) };
            buffer[..message.len()].copy_from_slice(message);
            self.endpoint.send(self.peer, buffer, message.len(), 0).map_err(|refused| refused.error)
        };
        self.was_posted(posted)
    }

    fn was_posted(&mut self, posted: Result<(), Error>) -> Result<bool, Fault> {
        match posted {
            Ok(()) => {
                if self.endpoint.wait_fd().is_none() {
                    self.doorbells.posted(Instant::now());
                }
                self.refused = None;
                Ok(true)
            }
            Err(error) if error.is_again() => {
                let times = self.refused.map_or(0, |(_, times)| times + 1);
                let now = Instant::now();
                self.refused = Some((now, times));
                // The two endpoints may still have to connect.
                self.doorbells.posted(now);
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns whether the server must be notified although this end does not sleep: nothing has arrived for a while.
    pub fn must_notify_awake(&mut self) -> bool {
        self.endpoint.wait_fd().is_none() && self.doorbells.must_notify_awake(Instant::now)
    }

    /// Returns the time until the provider must be tried again after a refusal: it is setting up the connection, or
    /// its queue is full.
    pub fn refused_for(&self) -> Option<Duration> {
        let (since, times) = self.refused?;
        let pause = (REFUSED_RETRY_MIN * (1 << times.min(10))).min(REFUSED_RETRY_MAX);
        Some(pause.saturating_sub(since.elapsed())).filter(|left| !left.is_zero())
    }

    /// Returns whether the awaited condition holds, or the link is broken, which the next call reports.
    pub fn is_ready(&mut self, until: Until) -> bool {
        if self.progress().is_err() {
            return true;
        }
        let arrived = until.covers(Until::Arrived) && self.has_come();
        arrived || until.covers(Until::CanSend) && self.can_send()
    }

    /// Returns whether a send can proceed: exactly the condition of [`Link::send`], because the caller then neither
    /// sleeps nor notifies.
    fn can_send(&self) -> bool {
        let next = self.end.next(self.unsent.max(1));
        let has_buffer = next != SendMode::Data || self.pool.free() > 0;
        self.refused_for().is_none() && self.unposted.is_none() && next != SendMode::Later && has_buffer
    }

    /// Returns whether there is something to receive, or the stream has ended.
    pub fn has_come(&self) -> bool {
        self.end.incoming().is_some() || self.end.has_peer_left() || self.broken.is_some()
    }

    /// Returns whether the server sends no more.
    pub fn has_peer_left(&self) -> bool {
        self.end.has_peer_left()
    }

    // ---- the stream ----

    /// Sends the start of the parts; returns the number of bytes.
    ///
    /// # Errors
    /// The link is broken.
    pub fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.check()?;
        let whole: usize = parts.iter().map(|part| part.len()).sum();
        self.unsent = whole;
        let mut sent = 0;
        let mut has_looked = false;
        let mut behind;
        let mut left = parts;
        while sent < whole {
            let taken = self.send_some(left, whole - sent).map_err(|fault| self.fail(fault))?;
            sent += taken;
            if taken == 0 {
                // Credits and buffers may have been returned.
                if std::mem::replace(&mut has_looked, true) {
                    break;
                }
                self.progress()?;
            } else if sent < whole {
                behind = behind_of(parts, sent);
                left = &behind;
            }
        }
        self.unsent = whole - sent;
        Ok(sent)
    }

    fn send_some(&mut self, parts: &[IoSlice<'_>], waiting: usize) -> Result<usize, Fault> {
        if self.refused_for().is_some() || !self.repost()? {
            return Ok(0);
        }
        match self.end.next(waiting) {
            SendMode::Later => Ok(0),
            SendMode::Data => self.send_message(parts, waiting),
            SendMode::StagingRange(piece) => {
                self.stage(parts, piece);
                self.end.staged(piece);
                self.is_owed = true;
                self.tell()?;
                Ok(piece.bytes)
            }
        }
    }

    fn send_message(&mut self, parts: &[IoSlice<'_>], waiting: usize) -> Result<usize, Fault> {
        let sent = self.send_made(HEADER_BYTES + waiting, |end, message| end.data(parts, message))?;
        Ok(sent.unwrap_or(0))
    }

    /// Sends a message of up to this many bytes of the stream; returns the number of bytes in it, or `None` if nothing
    /// can be sent now.
    fn send_made(
        &mut self,
        bytes: usize,
        make: impl FnOnce(&ClientEnd<Buffer>, &mut [u8]) -> Option<Draft>,
    ) -> Result<Option<usize>, Fault> {
        let is_short = bytes <= self.endpoint.domain().provider().inject_bytes.min(self.scratch.len());
        let (draft, posted) = if is_short {
            let Some(draft) = make(&self.end, &mut self.scratch) else { return Ok(None) };
            let posted = self.endpoint.inject(self.peer, &self.scratch[..draft.bytes()]);
            (draft, posted)
        } else {
            let Some(mut buffer) = self.pool.take() else { return Ok(None) };
            let Some(draft) = make(&self.end, &mut buffer) else { return Ok(None) };
            let posted = self.endpoint.send(self.peer, buffer, draft.bytes(), 0);
            (draft, posted.map_err(|refused| refused.error))
        };
        if !self.was_posted(posted)? {
            return Ok(None);
        }
        let taken = draft.taken();
        self.end.sent(draft);
        self.is_owed = true;
        Ok(Some(taken))
    }

    /// Sends all of `before`, and lends the server the value that follows it.
    ///
    /// # Errors
    /// The link is broken.
    pub fn lend(&mut self, before: &[u8], value: &mut LentBuffer) -> io::Result<Lending> {
        self.check()?;
        if value.bytes().len() < LONG_BYTES_MIN || before.len() > LENT_BEFORE_MAX {
            return Ok(Lending::Never);
        }
        let Some((lent, shown)) = value.show(self.endpoint.domain()) else { return Ok(Lending::Never) };
        let mut has_looked = false;
        while !self.try_lend(before, &lent).map_err(|fault| self.fail(fault))? {
            // Credits and buffers may have been returned.
            if std::mem::replace(&mut has_looked, true) {
                // It must fit any message.
                self.unsent = 1;
                return Ok(Lending::Later);
            }
            self.progress()?;
        }
        self.unsent = 0;
        self.lent.push_back(shown);
        Ok(Lending::Sent)
    }

    fn try_lend(&mut self, before: &[u8], lent: &LentMemory) -> Result<bool, Fault> {
        if self.refused_for().is_some() || !self.repost()? {
            return Ok(false);
        }
        let parts = [IoSlice::new(before)];
        let sent =
            self.send_made(LENT_HEADER_BYTES + before.len(), |end, message| end.lend(&parts, lent, message))?;
        Ok(sent.is_some())
    }

    /// Copies the next bytes of the stream to where the server reads them.
    fn stage(&self, parts: &[IoSlice<'_>], StagingRange { mut at, bytes }: StagingRange) {
        let mut left = bytes;
        for part in parts {
            let part = &part[..left.min(part.len())];
            self.staging.copy_in(at, part);
            at += part.len();
            left -= part.len();
        }
        debug_assert_eq!(left, 0);
    }

    /// Appends received bytes to `into`, up to its spare capacity.
    ///
    /// # Errors
    /// The link is broken.
    pub fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        let before = into.len();
        loop {
            let room = into.capacity() - into.len();
            let taken = match self.end.incoming() {
                _ if room == 0 => break,
                None => break,
                Some(Incoming::Bytes(bytes)) => {
                    let len = bytes.len().min(room);
                    into.extend_from_slice(&bytes[..len]);
                    len
                }
                Some(Incoming::Landed(StagingRange { at, bytes })) => {
                    let len = bytes.min(room);
                    self.landing.append_to(at, len, into);
                    len
                }
            };
            self.end.consume(taken);
        }
        let received = into.len() - before;
        self.is_owed &= received == 0;
        if received == 0 {
            self.check()?;
        } else if self.broken.is_none() {
            // Return room and buffers. What was received is delivered even if that fails.
            let reported = self.tell();
            let _ = reported.map_err(|fault| self.fail(fault));
        }
        Ok(received)
    }

    /// Announces the end of the stream, if that is possible at once. Returns whether to wait until the server closes
    /// the socket: it may not have received everything.
    pub fn leave(&mut self) -> bool {
        if self.broken.is_some() {
            return false;
        }
        self.end.leave();
        // Otherwise the socket's end announces it.
        self.progress().is_ok() && self.is_owed
    }

    /// Returns whether the server may still write to its memory after it closed.
    pub fn may_be_written_late(&self) -> bool {
        self.endpoint.domain().provider().trusts_peers()
    }

    fn check(&self) -> io::Result<()> {
        match &self.broken {
            None => Ok(()),
            Some((kind, why)) => Err(io::Error::new(*kind, why.clone())),
        }
    }

    fn fail(&mut self, Fault(kind, why): Fault) -> io::Error {
        let (kind, why) = self.broken.get_or_insert((kind, why));
        io::Error::new(*kind, why.clone())
    }
}

/// The failure of a link.
struct Fault(ErrorKind, String);

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault(ErrorKind::Other, error.to_string())
    }
}

impl From<fabcache_fabric::channel::ProtocolError> for Fault {
    fn from(broken: fabcache_fabric::channel::ProtocolError) -> Fault {
        Fault(ErrorKind::InvalidData, broken.to_string())
    }
}

/// Returns the parts without their first `skipped` bytes.
fn behind_of<'a>(parts: &'a [IoSlice<'_>], mut sent: usize) -> Vec<IoSlice<'a>> {
    let rest = parts.iter().map(|part| {
        let skipped = sent.min(part.len());
        sent -= skipped;
        IoSlice::new(&part[skipped..])
    });
    rest.filter(|part| !part.is_empty()).collect()
}
