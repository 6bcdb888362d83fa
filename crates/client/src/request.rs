//! Calls that do not wait, and the object that each is known by.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::answer::Answer;
use crate::bounds::VALUE_BYTES_MAX;
use crate::client::Client;
use crate::command::{Action, Command, Mode};
use crate::error::{Error, Failure};
use crate::fabric::{LentBuffer, ServerFallback, Target};
use crate::item::Outcome;
use crate::item::{Item, Ttl, checked};
use crate::operation::{CompletedOperation, Operation, OperationSlot, OwnedPayload, Payload};
use crate::path_selector::LatencySample;
use crate::pipeline::Pipeline;
use crate::registered::{RegisteredBuffer, ValuePlacement};
use crate::server::{ReadTicket, Server};
use crate::shm::ReadResult;

/// One operation at a time that nobody need wait for: asked for with [`Request::iset`], [`Request::iget`],
/// [`Request::bset`] or [`Request::bget`] (or those of [`Client`], which make the object), looked at with
/// [`Request::test`], and over with what [`Request::wait`] returns. Then it can be used again, and costs no allocation
/// then but for what it is given.
///
/// It is a future as well, which needs no runtime: while any is awaited, a thread of the connection's own waits for the
/// server, and ends soon after. `(&mut request).await` leaves it to be used again.
///
/// Dropped, or used again before its operation is over, it does not take that back: what was asked for is done or not,
/// its answer is thrown away, and the connection goes on.
#[derive(Debug)]
pub struct Request {
    client: Client,
    slot: Arc<OperationSlot>,
    stage: Stage,
    /// The operation in flight is a get by request whose time is measured.
    sample: Option<LatencySample>,
    /// Memory for a copy of the next key.
    spare_key: Vec<u8>,
    /// The registered buffer of a get or a set.
    registered: Option<RegisteredBuffer>,
}

#[derive(Debug)]
enum Stage {
    /// Nothing was asked for.
    Idle,
    /// It is over: it failed before anything was sent, or nothing need be.
    Complete(CompletedRequest),
    /// It is read from the server's memory when somebody wants to know what it came to, or is being read.
    Prefetch(PrefetchHint),
    InFlight(Arc<Pipeline>, Kind),
}

#[derive(Debug)]
struct PrefetchHint {
    server: Arc<Server>,
    ticket: ReadTicket,
    key: Vec<u8>,
    /// The key is the caller's.
    is_given: bool,
    value: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Get,
    Set,
}

/// An operation that is over, with all that it was given.
#[derive(Debug)]
pub struct CompletedRequest {
    /// The key of `iset` and `iget`, given back.
    pub key: Vec<u8>,
    /// The value of `iset`, given back; of `iget` and `bget` the buffer they were given, with the value that was found.
    pub value: Vec<u8>,
    /// What it came to.
    pub result: Result<Outcome, Error>,
}

impl CompletedRequest {
    /// What a get found.
    ///
    /// # Errors
    /// It failed.
    pub fn item(self) -> Result<Option<Item>, Error> {
        Ok(match self.result? {
            Outcome::Found { flags, cas } => Some(Item { value: self.value, flags, cas }),
            Outcome::Stored | Outcome::NotFound => None,
        })
    }
}

/// Calls that do not wait. Errors are found in what [`Request::wait`] returns.
impl Client {
    /// A request object with which nothing is asked for yet.
    pub fn request(&self) -> Request {
        let (client, slot) = (self.clone(), Arc::default());
        Request { client, slot, stage: Stage::Idle, sample: None, spare_key: Vec::new(), registered: None }
    }

    /// [`Request::iset`] with an object of its own.
    pub fn iset(&self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, ttl: Ttl) -> Request {
        let mut request = self.request();
        request.iset(key, value, ttl);
        request
    }

    /// [`Request::iset_with_flags`] with an object of its own.
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

    /// [`Request::iget`] with an object of its own.
    pub fn iget(&self, key: impl Into<Vec<u8>>, buffer: Vec<u8>) -> Request {
        let mut request = self.request();
        request.iget(key, buffer);
        request
    }

    /// [`Request::bset`] with an object of its own.
    pub fn bset(&self, key: &[u8], value: &[u8], ttl: Ttl) -> Request {
        let mut request = self.request();
        request.bset(key, value, ttl);
        request
    }

    /// [`Request::bset_with_flags`] with an object of its own.
    pub fn bset_with_flags(&self, key: &[u8], value: &[u8], ttl: Ttl, flags: u32) -> Request {
        let mut request = self.request();
        request.bset_with_flags(key, value, ttl, flags);
        request
    }

    /// [`Request::bget`] with an object of its own.
    pub fn bget(&self, key: &[u8], buffer: Vec<u8>) -> Request {
        let mut request = self.request();
        request.bget(key, buffer);
        request
    }
}

impl Request {
    /// Stores a value; returns once that is asked for. Key and value belong to the operation until it is over, and are
    /// given back then. The value is not copied.
    ///
    /// It waits only where there is no connection to the server yet, or 1024 requests are in flight on it. So do the
    /// other three. Over a fabric a few short requests are gathered while an answer is awaited, and sent with the next that
    /// is tested, waited for, awaited or dropped.
    pub fn iset(&mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, ttl: Ttl) {
        self.iset_with_flags(key, value, ttl, 0);
    }

    /// The same, with flags for the client's own use.
    pub fn iset_with_flags(
        &mut self,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
        ttl: Ttl,
        flags: u32,
    ) {
        let (key, value) = (key.into(), value.into());
        let asked = self.checked(&key, value.len());
        self.leave_last();
        let mut operation = self.operation(key, value, Payload::Value);
        if let Ok(pipeline) = &asked {
            let action = set(operation.value.len(), ttl, flags);
            operation.message.write(&Command { key: &operation.key, action }, pipeline.form());
        }
        self.issue(asked, operation, None, Kind::Set);
    }

    /// Stores a value that is in anything at all, such as a part of something shared; returns once that is asked for. The
    /// value belongs to the operation until it is over, and is dropped then, by whichever thread ends it; it is not copied. It
    /// must be the same bytes all the while, and neither telling nor dropping them may use the client. The key may be used
    /// again.
    pub fn iset_from(&mut self, key: &[u8], value: impl AsRef<[u8]> + Send + 'static, ttl: Ttl, flags: u32) {
        let len = value.as_ref().len();
        let asked = self.checked(key, len);
        self.leave_last();
        let mut operation = self.operation(Vec::new(), Vec::new(), Payload::Owned);
        operation.held = Some(OwnedPayload(Box::new(value)));
        if let Ok(pipeline) = &asked {
            operation.message.write(&Command { key, action: set(len, ttl, flags) }, pipeline.form());
        }
        self.issue(asked, operation, None, Kind::Set);
    }

    /// Asks for a value; returns once that is done. Key and buffer belong to the operation until it is over, and are
    /// given back then; the value replaces what is in the buffer, whose memory is used.
    ///
    /// Where the server's memory is shared it is read when the request is tested, waited for or awaited, together with what
    /// others take that were asked for meanwhile.
    pub fn iget(&mut self, key: impl Into<Vec<u8>>, buffer: Vec<u8>) {
        self.leave_last();
        self.get(key.into(), true, buffer);
    }

    /// The same into registered memory, without a copy where the server's memory is read over a fabric. The buffer belongs to
    /// the operation until it is over: then [`Request::take_buffer`] gives it back, and [`CompletedRequest::value`] is empty.
    pub fn iget_registered(&mut self, key: impl Into<Vec<u8>>, mut buffer: RegisteredBuffer) {
        self.leave_last();
        buffer.clear();
        self.registered = Some(buffer);
        self.get(key.into(), true, Vec::new());
    }

    /// Stores the value of registered memory, which a server on a fabric reads from there, without a copy. The buffer belongs to
    /// the operation until it is over: then [`Request::take_buffer`] gives it back, with the value.
    pub fn iset_registered(
        &mut self,
        key: impl Into<Vec<u8>>,
        mut buffer: RegisteredBuffer,
        ttl: Ttl,
        flags: u32,
    ) {
        let (key, len) = (key.into(), buffer.value().len());
        let asked = self.checked(&key, len);
        self.leave_last();
        let mut operation = self.operation(key, Vec::new(), Payload::Lent);
        operation.lent = Some(buffer.lend());
        self.registered = Some(buffer);
        if let Ok(pipeline) = &asked {
            operation
                .message
                .write(&Command { key: &operation.key, action: set(len, ttl, flags) }, pipeline.form());
        }
        self.issue(asked, operation, None, Kind::Set);
    }

    /// Returns the buffer of [`Request::iget_registered`], with the value if one was found, or of
    /// [`Request::iset_registered`]. None before the operation is over and was waited for or awaited.
    pub fn take_buffer(&mut self) -> Option<RegisteredBuffer> {
        if matches!(self.stage, Stage::Idle) { self.registered.take() } else { None }
    }

    /// Stores a value; returns once key and value may be used again: what could not be sent at once is copied. The
    /// operation itself may still be in flight.
    pub fn bset(&mut self, key: &[u8], value: &[u8], ttl: Ttl) {
        self.bset_with_flags(key, value, ttl, 0);
    }

    /// The same, with flags for the client's own use.
    pub fn bset_with_flags(&mut self, key: &[u8], value: &[u8], ttl: Ttl, flags: u32) {
        let asked = self.checked(key, value.len());
        self.leave_last();
        let mut operation = self.operation(Vec::new(), Vec::new(), Payload::Copy);
        if let Ok(pipeline) = &asked {
            operation.message.write(&Command { key, action: set(value.len(), ttl, flags) }, pipeline.form());
        }
        self.issue(asked, operation, Some(value), Kind::Set);
    }

    /// Asks for a value; returns once the key may be used again. The operation itself may still be in flight, and has
    /// the buffer until it is over, as that of [`Request::iget`].
    pub fn bget(&mut self, key: &[u8], buffer: Vec<u8>) {
        self.leave_last();
        let mut copy = std::mem::take(&mut self.spare_key);
        copy.extend_from_slice(key);
        self.get(copy, false, buffer);
    }

    /// Returns whether the operation is over, and makes progress with everything in flight on the connection.
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

    /// Waits until the operation is over. It is at the latest when the server has left unanswered for
    /// [`crate::Options::timeout`] what stands before all else: then the connection is given up, and all that is in
    /// flight on it has failed.
    pub fn wait(&mut self) -> CompletedRequest {
        self.read();
        if let Stage::InFlight(pipeline, _) = &self.stage
            && !self.slot.is_over()
        {
            pipeline.wait(&self.slot);
        }
        self.take()
    }

    /// Reads that nobody need wait for are not over.
    fn is_being_read(&self) -> bool {
        matches!(&self.stage, Stage::Prefetch(PrefetchHint { ticket: ReadTicket::Remote(begun), .. }) if !begun.test())
    }

    /// The last operation is over, or is left to itself.
    fn leave_last(&mut self) {
        self.registered = None;
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::InFlight(pipeline, _) => {
                pipeline.send_gathered();
                self.give_up();
            }
            Stage::Prefetch(prefetched) => drop(self.keep_key(prefetched.key, prefetched.is_given)),
            Stage::Idle | Stage::Complete(_) => {}
        }
    }

    fn operation(&mut self, key: Vec<u8>, value: Vec<u8>, payload: Payload) -> Operation {
        let (message, copy) = std::mem::take(&mut self.slot.lock().spare);
        let slot = Arc::clone(&self.slot);
        let (held, lent) = (None, None);
        Operation { message, key, value, copy, held, lent, payload, slot, opaque: 0, is_timed: false }
    }

    /// Asks for a value: to be read from memory, or from the server.
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
            // It is not used.
            match &mut self.registered {
                Some(registered) => drop(registered.take_back(target.value, ValuePlacement::Nothing)),
                None => value = target.value,
            }
        }
        value.clear();
        match prefetched {
            Ok(Ok((server, ticket))) => {
                self.stage = Stage::Prefetch(PrefetchHint { server, ticket, key, is_given, value });
            }
            Ok(Err(ServerFallback { sample })) => {
                self.sample = sample;
                self.ask(key, is_given, value);
            }
            Err(_) => self.ask(key, is_given, value),
        }
    }

    /// Reads what was to be read from memory, or asks the server for it.
    fn read(&mut self) {
        if !matches!(self.stage, Stage::Prefetch(_)) {
            return;
        }
        let Stage::Prefetch(prefetched) = std::mem::replace(&mut self.stage, Stage::Idle) else { return };
        let PrefetchHint { server, ticket, key, is_given, mut value } = prefetched;
        let outcome = match server.read_prefetched(&key, ticket, &mut value, self.registered.as_mut()) {
            ReadResult::Hit { flags, cas } => Outcome::Found { flags, cas },
            ReadResult::Miss => {
                self.registered.iter_mut().for_each(RegisteredBuffer::clear);
                Outcome::NotFound
            }
            ReadResult::Ask | ReadResult::Gone => return self.ask(key, is_given, value),
        };
        let key = self.keep_key(key, is_given);
        self.stage = Stage::Complete(CompletedRequest { key, value, result: Ok(outcome) });
    }

    fn ask(&mut self, key: Vec<u8>, is_given: bool, mut value: Vec<u8>) {
        if let Some(registered) = &mut self.registered {
            value = std::mem::take(registered.other());
            registered.clear();
        }
        let asked = self.checked(&key, 0);
        let mut operation = self.operation(Vec::new(), value, Payload::None);
        operation.is_timed = self.sample.is_some();
        if let Ok(pipeline) = &asked {
            operation.message.write(&Command { key: &key, action: GET }, pipeline.form());
        }
        operation.key = self.keep_key(key, is_given);
        self.issue(asked, operation, None, Kind::Get);
    }

    /// The key to be given back: none if it is a copy, whose memory is kept.
    fn keep_key(&mut self, mut key: Vec<u8>, is_given: bool) -> Vec<u8> {
        if is_given {
            return key;
        }
        key.clear();
        self.spare_key = key;
        Vec::new()
    }

    /// Leaves its operation to itself.
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
        if pipeline.form().takes(key) { Ok(pipeline) } else { Err(server.error(Failure::Key)) }
    }

    fn issue(
        &mut self,
        asked: Result<Arc<Pipeline>, Error>,
        operation: Operation,
        borrowed: Option<&[u8]>,
        kind: Kind,
    ) {
        self.stage = match asked {
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

    /// What the operation came to, it being over.
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
            Stage::Prefetch(_) => unreachable!("it was read before"),
            Stage::InFlight(pipeline, kind) => (pipeline, kind),
        };
        let over = self.slot.lock().over.take();
        let CompletedOperation { key, mut value, lent, result, at } =
            over.expect("it is taken only when it is over");
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
        if let Stage::Prefetch(PrefetchHint { ticket: ReadTicket::Remote(begun), .. }) = &request.stage
            && !begun.watch(context.waker())
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
