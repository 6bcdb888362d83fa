//! Calls that do not wait, and the object that each is known by.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::answer::Answer;
use crate::bounds::VALUE_BYTES_MAX;
use crate::client::{Client, Item, Ttl, checked};
use crate::command::{Action, Command, Mode};
use crate::error::Error;
use crate::input::protocol;
use crate::operation::{Operation, Over, Payload, Slot};
use crate::pipeline::Pipeline;
use crate::shm::Found;

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
    slot: Arc<Slot>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Nothing was asked for.
    Idle,
    /// It is over: it failed before anything was sent, or nothing need be.
    Over(Completed),
    InFlight(Arc<Pipeline>, Kind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Get,
    Set,
}

/// An operation that is over, with all that it was given.
#[derive(Debug)]
pub struct Completed {
    /// The key of `iset` and `iget`, given back.
    pub key: Vec<u8>,
    /// The value of `iset`, given back; of `iget` and `bget` the buffer they were given, with the value that was found.
    pub value: Vec<u8>,
    /// What it came to.
    pub result: Result<Outcome, Error>,
}

/// What an operation came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The value is stored.
    Stored,
    /// A value was found.
    Found {
        /// What it was stored with for the client's own use.
        flags: u32,
        /// Tells this version of it from others; for [`Client::cas`].
        cas: u64,
    },
    /// There is none.
    NotFound,
}

impl Completed {
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
        Request { client: self.clone(), slot: Arc::default(), stage: Stage::Idle }
    }

    /// [`Request::iset`] with an object of its own.
    pub fn iset(&self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, ttl: Ttl) -> Request {
        let mut request = self.request();
        request.iset(key, value, ttl);
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
    /// other three.
    pub fn iset(&mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, ttl: Ttl) {
        let (key, value) = (key.into(), value.into());
        let asked = self.checked(&key, value.len());
        let mut operation = self.begin(key, value, Payload::Value);
        if let Ok(pipeline) = &asked {
            let action = set(operation.value.len(), ttl);
            operation.message.write(&Command { key: &operation.key, action }, pipeline.form());
        }
        self.issue(asked, operation, None, Kind::Set);
    }

    /// Asks for a value; returns once that is done. Key and buffer belong to the operation until it is over, and are
    /// given back then; the value replaces what is in the buffer, whose memory is used.
    pub fn iget(&mut self, key: impl Into<Vec<u8>>, buffer: Vec<u8>) {
        let key = key.into();
        let asked = self.checked(&key, 0);
        let mut operation = self.begin(key, buffer, Payload::None);
        let found =
            asked.as_ref().map_or(Found::Ask, |pipeline| pipeline.read(&operation.key, &mut operation.value));
        if let Some(result) = read_outcome(&found) {
            return self.end(operation, result);
        }
        if let Ok(pipeline) = &asked {
            operation.message.write(&Command { key: &operation.key, action: GET }, pipeline.form());
        }
        self.issue(asked, operation, None, Kind::Get);
    }

    /// Stores a value; returns once key and value may be used again: what could not be sent at once is copied. The
    /// operation itself may still be in flight.
    pub fn bset(&mut self, key: &[u8], value: &[u8], ttl: Ttl) {
        let asked = self.checked(key, value.len());
        let mut operation = self.begin(Vec::new(), Vec::new(), Payload::Copy);
        if let Ok(pipeline) = &asked {
            operation.message.write(&Command { key, action: set(value.len(), ttl) }, pipeline.form());
        }
        self.issue(asked, operation, Some(value), Kind::Set);
    }

    /// Asks for a value; returns once the key may be used again. The operation itself may still be in flight, and has
    /// the buffer until it is over, as that of [`Request::iget`].
    pub fn bget(&mut self, key: &[u8], buffer: Vec<u8>) {
        let asked = self.checked(key, 0);
        let mut operation = self.begin(Vec::new(), buffer, Payload::None);
        let found = asked.as_ref().map_or(Found::Ask, |pipeline| pipeline.read(key, &mut operation.value));
        if let Some(result) = read_outcome(&found) {
            return self.end(operation, result);
        }
        if let Ok(pipeline) = &asked {
            operation.message.write(&Command { key, action: GET }, pipeline.form());
        }
        self.issue(asked, operation, None, Kind::Get);
    }

    /// Whether the operation is over. Never waits; makes progress with all that the connection has in flight.
    pub fn test(&mut self) -> bool {
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
    pub fn wait(&mut self) -> Completed {
        if let Stage::InFlight(pipeline, _) = &self.stage
            && !self.slot.is_over()
        {
            pipeline.wait(&self.slot);
        }
        self.take()
    }

    fn begin(&mut self, key: Vec<u8>, value: Vec<u8>, payload: Payload) -> Operation {
        if matches!(std::mem::replace(&mut self.stage, Stage::Idle), Stage::InFlight(..)) {
            self.give_up();
        }
        let (message, copy) = std::mem::take(&mut self.slot.lock().spare);
        let mut operation =
            Operation { message, key, value, copy, payload, slot: Arc::clone(&self.slot), opaque: 0 };
        if payload == Payload::None {
            operation.value.clear();
        }
        operation
    }

    /// It is over without a request.
    fn end(&mut self, operation: Operation, outcome: Outcome) {
        let Operation { key, value, message, copy, .. } = operation;
        self.slot.lock().spare = (message, copy);
        self.stage = Stage::Over(Completed { key, value, result: Ok(outcome) });
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
        server.pipeline().map_err(|failure| server.error(failure))
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
                let Operation { key, value, .. } = operation;
                Stage::Over(Completed { key, value, result: Err(error) })
            }
        };
    }

    /// What the operation came to, it being over.
    fn take(&mut self) -> Completed {
        let (pipeline, kind) = match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Idle => {
                return Completed { key: Vec::new(), value: Vec::new(), result: Err(Error::NothingAsked) };
            }
            Stage::Over(completed) => return completed,
            Stage::InFlight(pipeline, kind) => (pipeline, kind),
        };
        let over = self.slot.lock().over.take();
        let Over { key, value, result } = over.expect("it is taken only when it is over");
        let outcome = result.and_then(|answer| match (kind, answer) {
            (Kind::Get, Answer::Value(flags)) => Ok(Outcome::Found { flags: flags.flags, cas: flags.cas }),
            (Kind::Get, Answer::Miss) => Ok(Outcome::NotFound),
            (Kind::Set, Answer::Done(_)) => Ok(Outcome::Stored),
            (_, other) => Err(protocol(format!("{other:?}").as_bytes())),
        });
        Completed { key, value, result: outcome.map_err(|failure| pipeline.error(failure)) }
    }
}

impl Future for Request {
    type Output = Completed;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completed> {
        let request = self.get_mut();
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
        // What a waker does when it is dropped is not done under the lock.
        let _waker = self.slot.lock().waker.take();
    }
}

/// What a get came to that needed no request.
fn read_outcome(found: &Found) -> Option<Outcome> {
    match found {
        Found::Hit { flags, cas } => Some(Outcome::Found { flags: *flags, cas: *cas }),
        Found::Miss => Some(Outcome::NotFound),
        Found::Ask | Found::Gone => None,
    }
}

const GET: Action = Action::Get { touch: None };

fn set(len: usize, ttl: Ttl) -> Action {
    Action::Store { mode: Mode::Set, len, exptime: ttl.exptime(), flags: 0 }
}
