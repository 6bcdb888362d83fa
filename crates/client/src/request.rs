//! Non-blocking calls and their request objects.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::answer::Answer;
use crate::bounds::VALUE_BYTES_MAX;
use crate::client::Client;
use crate::command::{Action, Command, Mode};
use crate::error::{Error, Failure};
use crate::fabric::{LentBuffer, Target, ValuePlacement};
use crate::item::Outcome;
use crate::item::{Item, Ttl, checked};
use crate::operation::{CompletedOperation, Operation, OperationSlot, OwnedPayload, Payload};
use crate::path_selector::LatencySample;
use crate::pipeline::Pipeline;
use crate::read_result::{ReadResult, ServerFallback};
use crate::registered::RegisteredBuffer;
use crate::server::{ReadTicket, Server};

/// One non-blocking operation at a time: started with [`Request::iset`], [`Request::iget`], [`Request::bset`] or
/// [`Request::bget`] (or those of [`Client`], which make the object), polled with [`Request::test`], and completed by
/// [`Request::wait`], which returns its result. The object can then be reused without an allocation, except for its
/// arguments.
///
/// It is also a future, which needs no runtime: while any is awaited, a driver thread of the connection waits for the
/// server, and ends soon after. `(&mut request).await` allows reuse.
///
/// Dropping or reusing it before its operation completes does not cancel the operation: it may or may not take
/// effect, and its answer is discarded.
#[derive(Debug)]
pub struct Request {
    client: Client,
    slot: Arc<OperationSlot>,
    stage: Stage,
    /// The operation in flight is a get by request whose latency is recorded.
    sample: Option<LatencySample>,
    /// Memory for a copy of the next key.
    spare_key: Vec<u8>,
    /// The registered buffer of a get or a set.
    registered: Option<RegisteredBuffer>,
}

#[derive(Debug)]
enum Stage {
    /// No operation.
    Idle,
    /// Completed: it failed before anything was sent, or nothing had to be sent.
    Complete(CompletedRequest),
    /// A GET that reads the server's memory: over a fabric at once, in shared memory when the caller takes the result.
    /// While keys are found on flash, shared memory is read at once too, so that the requests to the server overlap.
    Reading(PendingRead),
    InFlight(Arc<Pipeline>, Kind),
}

#[derive(Debug)]
struct PendingRead {
    server: Arc<Server>,
    ticket: ReadTicket,
    key: Vec<u8>,
    /// The caller owns the key.
    is_given: bool,
    value: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Get,
    Set,
}

/// A completed operation, with everything that it was given.
#[derive(Debug)]
pub struct CompletedRequest {
    /// The key of `iset` and `iget`, returned.
    pub key: Vec<u8>,
    /// The value of `iset`, returned; for `iget` and `bget` their buffer, with the value found.
    pub value: Vec<u8>,
    /// The result.
    pub result: Result<Outcome, Error>,
}

impl CompletedRequest {
    /// Returns the item that a get found.
    ///
    /// # Errors
    /// The operation failed.
    pub fn item(self) -> Result<Option<Item>, Error> {
        Ok(match self.result? {
            Outcome::Found { flags, cas } => Some(Item { value: self.value, flags, cas }),
            Outcome::Stored | Outcome::NotFound => None,
        })
    }
}

/// Non-blocking calls. [`Request::wait`] reports their errors.
impl Client {
    /// Returns a request object without an operation.
    pub fn request(&self) -> Request {
        let (client, slot) = (self.clone(), Arc::default());
        Request { client, slot, stage: Stage::Idle, sample: None, spare_key: Vec::new(), registered: None }
    }

    /// Like [`Request::iset`], with a new request object.
    pub fn iset(&self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, ttl: Ttl) -> Request {
        let mut request = self.request();
        request.iset(key, value, ttl);
        request
    }

    /// Like [`Request::iset_with_flags`], with a new request object.
    pub fn iset_with_flags(
        &self,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
        ttl: Ttl,
        flags: u32,
    ) -> Request {
        let mut request = self.request();
        request.iset_with_flags(key, value, ttl, flags);
        request
    }

    /// Like [`Request::iget`], with a new request object.
    pub fn iget(&self, key: impl Into<Vec<u8>>, buffer: Vec<u8>) -> Request {
        let mut request = self.request();
        request.iget(key, buffer);
        request
    }

    /// Like [`Request::bset`], with a new request object.
    pub fn bset(&self, key: &[u8], value: &[u8], ttl: Ttl) -> Request {
        let mut request = self.request();
        request.bset(key, value, ttl);
        request
    }

    /// Like [`Request::bset_with_flags`], with a new request object.
    pub fn bset_with_flags(&self, key: &[u8], value: &[u8], ttl: Ttl, flags: u32) -> Request {
        let mut request = self.request();
        request.bset_with_flags(key, value, ttl, flags);
        request
    }

    /// Like [`Request::bget`], with a new request object.
    pub fn bget(&self, key: &[u8], buffer: Vec<u8>) -> Request {
        let mut request = self.request();
        request.bget(key, buffer);
        request
    }
}

impl Request {
    /// Starts to store a value. Key and value belong to the operation until it completes, and are returned then. The
    /// value is not copied.
    ///
    /// It waits only if there is no connection to the server yet, or 1024 requests are in flight on it; the other three
    /// do the same. Over a fabric, a few short requests are gathered while an answer is outstanding, and sent with the
    /// next that is tested, waited for, awaited or dropped.
    pub fn iset(&mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, ttl: Ttl) {
        self.iset_with_flags(key, value, ttl, 0);
    }

    /// As [`Request::iset`], with flags for the client's own use.
    pub fn iset_with_flags(
        &mut self,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
        ttl: Ttl,
        flags: u32,
    ) {
        let (key, value) = (key.into(), value.into());
        let requested = self.checked(&key, value.len());
        self.leave_last();
        let mut operation = self.operation(key, value, Payload::Value);
        if let Ok(pipeline) = &requested {
            let action = set(operation.value.len(), ttl, flags);
            operation.message.write(&Command { key: &operation.key, action }, pipeline.encoding());
        }
        self.issue(requested, operation, None, Kind::Set);
    }

    /// Starts to store a value held by any owner, such as a part of something shared. The value belongs to the
    /// operation until it completes, and is then dropped by the thread that completes it; it is not copied. It must
    /// return the same bytes each time, and neither reading nor dropping it may use the client. The key may be
    /// reused.
    pub fn iset_from(&mut self, key: &[u8], value: impl AsRef<[u8]> + Send + 'static, ttl: Ttl, flags: u32) {
        let len = value.as_ref().len();
        let requested = self.checked(key, len);
        self.leave_last();
        let mut operation = self.operation(Vec::new(), Vec::new(), Payload::Owned);
        operation.held = Some(OwnedPayload(Box::new(value)));
        if let Ok(pipeline) = &requested {
            operation.message.write(&Command { key, action: set(len, ttl, flags) }, pipeline.encoding());
        }
        self.issue(requested, operation, None, Kind::Set);
    }

    /// Starts to read a value. Key and buffer belong to the operation until it completes, and are returned then; the
    /// value replaces the contents of the buffer.
    ///
    /// Shared memory is read when the request is tested, waited for or awaited, together with the reads of other
    /// requests that were started meanwhile.
    pub fn iget(&mut self, key: impl Into<Vec<u8>>, buffer: Vec<u8>) {
        self.leave_last();
        self.get(key.into(), true, buffer);
    }

    /// As [`Request::iget`], into registered memory, without a copy over a fabric. The buffer belongs to the
    /// operation until it completes: then [`Request::take_buffer`] returns it, and [`CompletedRequest::value`] is
    /// empty.
    pub fn iget_registered(&mut self, key: impl Into<Vec<u8>>, mut buffer: RegisteredBuffer) {
        self.leave_last();
        buffer.clear();
        self.registered = Some(buffer);
        self.get(key.into(), true, Vec::new());
    }

    /// Starts to store the value of registered memory, which a fabric server reads in place, without a copy. The buffer
    /// belongs to the operation until it completes: then [`Request::take_buffer`] returns it, with the value.
    pub fn iset_registered(
        &mut self,
        key: impl Into<Vec<u8>>,
        mut buffer: RegisteredBuffer,
        ttl: Ttl,
        flags: u32,
    ) {
        let (key, len) = (key.into(), buffer.value().len());
        let requested = self.checked(&key, len);
        self.leave_last();
        let mut operation = self.operation(key, Vec::new(), Payload::Lent);
        operation.lent = Some(buffer.lend());
        self.registered = Some(buffer);
        if let Ok(pipeline) = &requested {
            operation
                .message
                .write(&Command { key: &operation.key, action: set(len, ttl, flags) }, pipeline.encoding());
        }
        self.issue(requested, operation, None, Kind::Set);
    }

    /// Returns the buffer of [`Request::iget_registered`], with the value if one was found, or of
    /// [`Request::iset_registered`]. Returns `None` before the operation was waited for or awaited.
    pub fn take_buffer(&mut self) -> Option<RegisteredBuffer> {
        if matches!(self.stage, Stage::Idle) { self.registered.take() } else { None }
    }

    /// Starts to store a value; returns once key and value may be reused: bytes that could not be sent at once are
    /// copied. The operation may still be in flight.
    pub fn bset(&mut self, key: &[u8], value: &[u8], ttl: Ttl) {
        self.bset_with_flags(key, value, ttl, 0);
    }

    /// As [`Request::bset`], with flags for the client's own use.
    pub fn bset_with_flags(&mut self, key: &[u8], value: &[u8], ttl: Ttl, flags: u32) {
        let requested = self.checked(key, value.len());
        self.leave_last();
        let mut operation = self.operation(Vec::new(), Vec::new(), Payload::Copy);
        if let Ok(pipeline) = &requested {
            operation
                .message
                .write(&Command { key, action: set(value.len(), ttl, flags) }, pipeline.encoding());
        }
        self.issue(requested, operation, Some(value), Kind::Set);
    }

    /// Starts to read a value; returns once the key may be reused. The operation may still be in flight, and owns the
    /// buffer until it completes, as in [`Request::iget`].
    pub fn bget(&mut self, key: &[u8], buffer: Vec<u8>) {
        self.leave_last();
        let mut copy = std::mem::take(&mut self.spare_key);
        copy.extend_from_slice(key);
        self.get(copy, false, buffer);
    }

    /// Returns whether the operation has completed, and makes progress for everything in flight on the connection.
    ///
    /// It blocks only when a value is read from memory, the server must answer or be notified, and the connection is
    /// missing or full.
    pub fn test(&mut self) -> bool {
        if self.is_being_read() {
            return false;
        }
        self.read();
        let Stage::InFlight(pipeline, _) = &self.stage else { return true };
        if self.slot.is_over() {
            return true;
        }
        pipeline.test();
        self.slot.is_over()
    }

    /// Waits until the operation completes. It does so at the latest when the server has left the oldest request of
    /// the connection unanswered for [`crate::Options::timeout`]: then the connection is closed, and all operations
    /// in flight on it fail.
    pub fn wait(&mut self) -> CompletedRequest {
        self.read();
        if let Stage::InFlight(pipeline, _) = &self.stage
            && !self.slot.is_over()
        {
            pipeline.wait(&self.slot);
        }
        self.take()
    }

    /// Returns whether a read is in flight.
    fn is_being_read(&self) -> bool {
        matches!(&self.stage, Stage::Reading(PendingRead { ticket: ReadTicket::Remote(get), .. }) if !get.test())
    }

    /// Completes or abandons the last operation.
    fn leave_last(&mut self) {
        self.registered = None;
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::InFlight(pipeline, _) => {
                pipeline.send_gathered();
                self.give_up();
            }
            Stage::Reading(read) => drop(self.keep_key(read.key, read.is_given)),
            Stage::Idle | Stage::Complete(_) => {}
        }
    }

    fn operation(&mut self, key: Vec<u8>, value: Vec<u8>, payload: Payload) -> Operation {
        let (message, copy) = std::mem::take(&mut self.slot.lock().spare);
        let slot = Arc::clone(&self.slot);
        let (held, lent) = (None, None);
        Operation { message, key, value, copy, held, lent, payload, slot, opaque: 0, is_timed: false }
    }

    /// Starts a read, from memory or from the server.
    fn get(&mut self, key: Vec<u8>, is_given: bool, mut value: Vec<u8>) {
        let mut target = match &mut self.registered {
            Some(registered) => registered.target(),
            None => Target::new(std::mem::take(&mut value), None),
        };
        let prefetched = checked(&key)
            .and_then(|key| self.client.server_of(key))
            .map(|server| server.prefetch(&key, &mut target).map(|ticket| (Arc::clone(server), ticket)));
        self.sample = None;
        if !matches!(prefetched, Ok(Ok((_, ReadTicket::Remote(_))))) {
            // Unused.
            match &mut self.registered {
                Some(registered) => drop(registered.take_back(target.value, ValuePlacement::Nowhere)),
                None => value = target.value,
            }
        }
        value.clear();
        match prefetched {
            Ok(Ok((server, ticket))) => {
                let reads_at_once = matches!(ticket, ReadTicket::Shared(ticket) if ticket.reads_at_once);
                self.stage = Stage::Reading(PendingRead { server, ticket, key, is_given, value });
                if reads_at_once {
                    self.read();
                }
            }
            Ok(Err(ServerFallback { sample })) => {
                self.sample = sample;
                self.request(key, is_given, value);
            }
            Err(_) => self.request(key, is_given, value),
        }
    }

    /// Reads the key from memory, or sends a request to the server.
    fn read(&mut self) {
        if !matches!(self.stage, Stage::Reading(_)) {
            return;
        }
        let Stage::Reading(read) = std::mem::replace(&mut self.stage, Stage::Idle) else { return };
        let PendingRead { server, ticket, key, is_given, mut value } = read;
        let outcome = match server.read_prefetched(&key, ticket, &mut value, self.registered.as_mut()) {
            ReadResult::Hit { flags, cas } => Outcome::Found { flags, cas },
            ReadResult::Miss => {
                self.registered.iter_mut().for_each(RegisteredBuffer::clear);
                Outcome::NotFound
            }
            ReadResult::Fallback(_) | ReadResult::Gone => return self.request(key, is_given, value),
        };
        let key = self.keep_key(key, is_given);
        self.stage = Stage::Complete(CompletedRequest { key, value, result: Ok(outcome) });
    }

    fn request(&mut self, key: Vec<u8>, is_given: bool, mut value: Vec<u8>) {
        if let Some(registered) = &mut self.registered {
            value = std::mem::take(registered.other());
            registered.clear();
        }
        let requested = self.checked(&key, 0);
        let mut operation = self.operation(Vec::new(), value, Payload::None);
        operation.is_timed = self.sample.is_some();
        if let Ok(pipeline) = &requested {
            operation.message.write(&Command { key: &key, action: GET }, pipeline.encoding());
        }
        operation.key = self.keep_key(key, is_given);
        self.issue(requested, operation, None, Kind::Get);
    }

    /// Returns the key to give back, or `None` for a copy, whose memory is kept.
    fn keep_key(&mut self, mut key: Vec<u8>, is_given: bool) -> Vec<u8> {
        if is_given {
            return key;
        }
        key.clear();
        self.spare_key = key;
        Vec::new()
    }

    /// Abandons the operation, which still runs.
    fn give_up(&mut self) {
        let mut slot = self.slot.lock();
        let waker = slot.waker.take();
        let is_over = slot.over.take().is_some();
        drop(slot);
        drop(waker);
        if !is_over {
            self.slot = Arc::default();
        }
    }

    fn checked(&self, key: &[u8], len: usize) -> Result<Arc<Pipeline>, Error> {
        if len > VALUE_BYTES_MAX {
            return Err(Error::Value(len));
        }
        let server = self.client.server_of(checked(key)?)?;
        let pipeline = server.pipeline().map_err(|failure| server.error(failure))?;
        if pipeline.encoding().takes(key) { Ok(pipeline) } else { Err(server.error(Failure::Key)) }
    }

    fn issue(
        &mut self,
        requested: Result<Arc<Pipeline>, Error>,
        operation: Operation,
        borrowed: Option<&[u8]>,
        kind: Kind,
    ) {
        self.stage = match requested {
            Ok(pipeline) => {
                pipeline.issue(operation, borrowed);
                Stage::InFlight(pipeline, kind)
            }
            Err(error) => {
                let Operation { key, value, lent, .. } = operation;
                self.end_lending(lent);
                Stage::Complete(CompletedRequest { key, value, result: Err(error) })
            }
        };
    }

    /// Returns lent memory to its buffer.
    fn end_lending(&mut self, lent: Option<LentBuffer>) {
        if let (Some(registered), Some(lent)) = (&mut self.registered, lent) {
            registered.end_lending(lent);
        }
    }

    /// Takes the result of a completed operation.
    fn take(&mut self) -> CompletedRequest {
        let (pipeline, kind) = match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Idle => {
                return CompletedRequest {
                    key: Vec::new(),
                    value: Vec::new(),
                    result: Err(Error::NothingAsked),
                };
            }
            Stage::Complete(completed) => return completed,
            Stage::Reading(_) => unreachable!("the read has completed"),
            Stage::InFlight(pipeline, kind) => (pipeline, kind),
        };
        let over = self.slot.lock().over.take();
        let CompletedOperation { key, mut value, lent, result, at } =
            over.expect("a completed operation has a result");
        if let (Some(sample), Some(at), Ok(answer)) = (self.sample.take(), at, &result) {
            let is_hit = matches!(answer, Answer::Value(_));
            pipeline.note_time(sample, at, is_hit.then_some(value.len()));
        }
        let outcome = result.and_then(|answer| match (kind, answer) {
            (Kind::Get, Answer::Value(flags)) => Ok(Outcome::Found { flags: flags.flags, cas: flags.cas }),
            (Kind::Get, Answer::Miss) => Ok(Outcome::NotFound),
            (Kind::Set, Answer::Done(_)) => Ok(Outcome::Stored),
            (_, other) => Err(Failure::protocol(format!("{other:?}").as_bytes())),
        });
        if kind == Kind::Set {
            self.end_lending(lent);
        } else if let Some(registered) = &mut self.registered {
            *registered.other() = std::mem::take(&mut value);
            if !matches!(outcome, Ok(Outcome::Found { .. })) {
                registered.clear();
            }
        }
        CompletedRequest { key, value, result: outcome.map_err(|failure| pipeline.error(failure)) }
    }
}

impl Future for Request {
    type Output = CompletedRequest;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CompletedRequest> {
        let request = self.get_mut();
        if let Stage::Reading(PendingRead { ticket: ReadTicket::Remote(get), .. }) = &request.stage
            && !get.watch(context.waker())
        {
            return Poll::Pending;
        }
        request.read();
        if let Stage::InFlight(pipeline, _) = &request.stage
            && !request.slot.is_over()
            && !pipeline.watch(&request.slot, context.waker())
        {
            return Poll::Pending;
        }
        Poll::Ready(request.take())
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Stage::InFlight(pipeline, _) = &self.stage
            && !self.slot.is_over()
        {
            pipeline.send_gathered();
        }
        // A dropped waker may run code: not under the lock.
        let _waker = self.slot.lock().waker.take();
    }
}

const GET: Action = Action::Get { touch: None };

fn set(len: usize, ttl: Ttl, flags: u32) -> Action {
    Action::Store { mode: Mode::Set, len, exptime: ttl.exptime(), flags }
}
