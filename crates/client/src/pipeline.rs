//! One connection with many operations in flight, shared by all threads that make non-blocking calls.
//!
//! Its state is behind one lock, held to send and to receive what is possible without waiting. A thread that issues,
//! tests or waits makes progress for all. The first waiting thread is the leader: it waits for the stream without the
//! lock, and only it receives from then on, so that it never waits for bytes that another thread took. The other
//! threads wait for the leader, which notifies them after each turn; when it leaves, one of them takes its place. For
//! futures, a thread of the connection waits: the driver.
//!
//! Answers arrive in the order of the requests, as the protocols promise, and carry the request's number, or in the
//! text protocol the key of a value. An answer out of order means a broken connection, and ends all operations in
//! flight with the same failure.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use fabcache_layout::process::Process;

use crate::answer::Answer;
use crate::bounds::{
    BYTES_GATHERED_MAX, DRIVER_LINGER, OPERATIONS_GATHERED_MAX, OPERATIONS_SENT_AT_ONCE,
    REQUESTS_IN_FLIGHT_MAX, TRUSTED_IDLE, TURNS_AT_ONCE,
};
use crate::connection::is_quiet;
use crate::error::{Error, Failure};
use crate::input::{Input, Received};
use crate::message::Encoding;
use crate::operation::{Operation, OperationSlot, Payload};
use crate::path_selector::LatencySample;
use crate::stream::{Lending, Stream, Until, Waiter};
use crate::text::ExpectedAnswer;
use crate::waking;

/// The server of a pipeline, which records its outcomes.
pub trait Observer: Send + Sync + Debug {
    /// Records whether the connection works.
    fn note(&self, outcome: Result<(), &Failure>);

    /// Records when a timed request was answered, and the length of the value found.
    fn note_time(&self, sample: LatencySample, ended: Instant, value_bytes: Option<usize>);
}

/// A connection with many operations in flight.
#[derive(Debug)]
pub struct Pipeline {
    server: Weak<dyn Observer>,
    /// The server's address.
    name: String,
    /// How long the server may leave the oldest request unanswered.
    timeout: Duration,
    /// The encoding that the server accepts.
    encoding: Encoding,
    waiter: Box<dyn Waiter>,
    /// Its stream is one that gathers.
    gathers: bool,
    state: Mutex<State>,
    /// Notified when the leader had its turn or left, or there is something to drive.
    progress: Condvar,
}

#[derive(Debug)]
struct State {
    stream: Box<dyn Stream>,
    /// The connection's server.
    process: Process,
    input: Input,
    /// Operations in the order in which they are sent and answered.
    operations: VecDeque<Operation>,
    /// The first operation that is not wholly sent, and the number of its sent bytes.
    unsent: usize,
    sent: usize,
    /// Since when nothing has moved for the first operation.
    quiet_since: Instant,
    next_opaque: u32,
    /// The condition that the leader waits for, while there is a leader.
    leader: Option<Until>,
    followers: usize,
    /// Operations in flight that futures await.
    awaited: usize,
    has_driver: bool,
    /// Wakers to wake once the lock is released.
    wakers: Vec<Waker>,
    /// The failure of the connection: nothing is or will be in flight.
    broken: Option<Failure>,
    /// An answer has arrived since the server was last notified of one.
    was_answered: bool,
    /// Counts operations in flight that store, as `Server::storing`.
    storing: Arc<AtomicUsize>,
    /// Receives an unrequested value.
    unasked: Vec<u8>,
}

impl Pipeline {
    /// Returns a pipeline over a stream on which nothing was sent yet.
    ///
    /// # Errors
    /// The system's.
    pub fn new(
        server: Weak<dyn Observer>,
        name: String,
        storing: &Arc<AtomicUsize>,
        stream: Box<dyn Stream>,
        timeout: Duration,
    ) -> io::Result<Arc<Pipeline>> {
        let (encoding, waiter, gathers) = (stream.encoding(), stream.waiter()?, stream.gathers());
        let process = Process::current();
        let state = State {
            stream,
            process,
            input: Input::default(),
            operations: VecDeque::new(),
            unsent: 0,
            sent: 0,
            quiet_since: Instant::now(),
            next_opaque: 0,
            leader: None,
            followers: 0,
            awaited: 0,
            has_driver: false,
            wakers: Vec::new(),
            broken: None,
            was_answered: false,
            storing: Arc::clone(storing),
            unasked: Vec::with_capacity(1),
        };
        Ok(Arc::new(Pipeline {
            server,
            name,
            timeout,
            encoding,
            waiter,
            gathers,
            state: Mutex::new(state),
            progress: Condvar::new(),
        }))
    }

    /// Returns the encoding that the server accepts.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Returns the failure with the server's name.
    pub fn error(&self, failure: Failure) -> Error {
        Error::Server { server: self.name.clone(), failure }
    }

    /// Records the latency of a request that was chosen as the faster path, and the length of the value found.
    pub fn note_time(&self, sample: LatencySample, ended: Instant, value_bytes: Option<usize>) {
        if let Some(server) = self.server.upgrade() {
            server.note_time(sample, ended, value_bytes);
        }
    }

    /// Returns whether it is usable: not broken, and if nothing is in flight, the server has neither closed it nor sent
    /// anything.
    pub fn is_usable(&self) -> bool {
        let state = &mut *self.lock();
        if state.broken.is_some() || !state.operations.is_empty() {
            return state.broken.is_none();
        }
        let is_trusted = state.quiet_since.elapsed() < TRUSTED_IDLE;
        state.input.is_empty() && (is_trusted || is_quiet(&mut *state.stream, &mut state.unasked))
    }

    /// Adds an operation, and sends what can be sent without waiting; a stream that gathers sends once there are
    /// several, or a caller asks for a result. `borrowed` is a value that is copied only as far as necessary. Waits
    /// if too many operations are in flight.
    pub fn issue(&self, mut operation: Operation, borrowed: Option<&[u8]>) {
        let mut state = self.wait_until(|state| state.operations.len() < REQUESTS_IN_FLIGHT_MAX);
        if let Some(failure) = &state.broken {
            operation.end(Err(failure.copy()));
            return self.leave(state);
        }
        operation.opaque = state.next_opaque;
        state.next_opaque = state.next_opaque.wrapping_add(1);
        operation.message.end_with(operation.opaque);
        if state.operations.is_empty() {
            state.quiet_since = Instant::now();
        }
        // A thread that already waits would have to be woken to send it.
        let is_held = self.gathers && !state.is_waited_for() && state.holds(operation.len(), borrowed);
        let pushed = if is_held {
            state.hold(operation, borrowed);
            Ok(())
        } else {
            state.push(operation, borrowed).and_then(|()| state.send())
        };
        if let Err(failure) = pushed {
            state.fail_to_send(failure);
        }
        self.wake_leader(&state);
        self.leave(state);
    }

    /// Sends gathered requests whose results will not be asked for.
    pub fn send_gathered(&self) {
        if !self.gathers {
            return;
        }
        let mut state = self.lock();
        if state.unsent < state.operations.len()
            && let Err(failure) = state.send()
        {
            state.fail_to_send(failure);
        }
        self.leave(state);
    }

    /// Makes progress without waiting.
    pub fn test(&self) {
        let mut state = self.lock();
        self.advance(&mut state);
        self.leave(state);
    }

    /// Waits until the operation is over, which it is in bounded time.
    pub fn wait(&self, slot: &OperationSlot) {
        let state = self.wait_until(|_| slot.is_over());
        self.leave(state);
    }

    /// Makes progress without waiting. If the operation has not completed then, the waker is woken when it does.
    /// Returns whether it has completed.
    pub fn watch(self: &Arc<Self>, slot: &OperationSlot, waker: &Waker) -> bool {
        // The waker is cloned before the locks are taken, and a replaced one dropped after they are released: both
        // may run the caller's code.
        let mut waker = Some(waker.clone());
        let mut state = self.lock();
        self.advance(&mut state);
        let mut watched = slot.lock();
        let is_over = watched.over.is_some();
        if !is_over {
            std::mem::swap(&mut watched.waker, &mut waker);
            if !std::mem::replace(&mut watched.is_awaited, true) {
                state.awaited += 1;
            }
        }
        drop(watched);
        if !is_over {
            self.drive(&mut state);
        }
        self.leave(state);
        is_over
    }

    /// Ensures that a driver thread waits for this connection.
    fn drive(self: &Arc<Self>, state: &mut State) {
        if state.has_driver {
            // The driver may be about to end.
            return if state.awaited == 1 {
                self.progress.notify_all()
            };
        }
        let pipeline = Arc::clone(self);
        let driver = std::thread::Builder::new().name("fabcache-driver".into());
        match driver.spawn(move || pipeline.drive_while_awaited()) {
            Ok(_) => state.has_driver = true,
            Err(error) => {
                state.fail(error.into());
                self.wake_leader(state);
            }
        }
    }

    fn drive_while_awaited(&self) {
        loop {
            let state = self.wait_until(|state| state.awaited == 0);
            self.leave(state);
            // The next await often follows the answer just delivered.
            let linger =
                self.progress.wait_timeout_while(self.lock(), DRIVER_LINGER, |state| state.awaited == 0);
            let (mut state, _) = linger.expect(NO_PANIC);
            if state.awaited == 0 {
                state.has_driver = false;
                return;
            }
        }
    }

    /// Makes progress, waiting if necessary, until the connection is broken or `done` holds.
    fn wait_until(&self, done: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        if state.broken.is_some() || done(&state) {
            return state;
        }
        self.advance(&mut state);
        loop {
            state = self.wake(state);
            if state.broken.is_some() || done(&state) {
                return state;
            }
            state = match state.leader {
                None => self.lead(state),
                Some(_) => {
                    state.followers += 1;
                    let mut state = self.progress.wait(state).expect(NO_PANIC);
                    state.followers -= 1;
                    state
                }
            };
        }
    }

    /// Waits for the stream.
    fn lead<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let (until, deadline) = (state.until(), state.quiet_since + self.timeout);
        state.leader = Some(until);
        drop(state);
        let waited = self.waiter.wait(until, deadline);
        let mut state = self.lock();
        state.leader = None;
        if let Err(error) = waited {
            state.fail(error.into());
        }
        self.advance(&mut state);
        if state.followers > 0 {
            self.progress.notify_all();
        }
        state
    }

    /// Sends and receives what is possible without waiting.
    fn advance(&self, state: &mut State) {
        if state.broken.is_some() {
            return;
        }
        if let Err(failure) = state.send() {
            state.fail_to_send(failure);
        }
        if state.leader.is_some() {
            return self.wake_leader(state);
        }
        if let Err(failure) = state.receive() {
            state.fail(failure);
        }
        let is_requested = !state.operations.is_empty();
        if is_requested && state.quiet_since.elapsed() >= self.timeout {
            state.fail(Failure::Broken(io::ErrorKind::TimedOut.into()));
        }
        self.notify_server(state);
    }

    /// Wakes the leader, because it must wait for something else or not at all.
    fn wake_leader(&self, state: &State) {
        let is_wrong = |until: Until| state.broken.is_some() || !until.covers(state.until());
        if state.leader.is_some_and(is_wrong) {
            self.waiter.wake();
        }
    }

    fn notify_server(&self, state: &mut State) {
        if std::mem::take(&mut state.was_answered)
            && let Some(server) = self.server.upgrade()
        {
            server.note(state.broken.as_ref().map_or(Ok(()), Err));
        }
    }

    fn wake<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while let Some(waker) = state.wakers.pop() {
            drop(state);
            waking::wake(waker);
            state = self.lock();
        }
        state
    }

    /// Releases the lock, and lets another thread lead.
    fn leave(&self, mut state: MutexGuard<'_, State>) {
        self.notify_server(&mut state);
        let state = self.wake(state);
        if state.followers > 0 && state.leader.is_none() {
            self.progress.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().expect(NO_PANIC);
        if !state.process.is_current() && state.broken.is_none() {
            state.fail(Failure::Broken(io::Error::other(FORKED)));
            // That says nothing about the server.
            state.was_answered = false;
        }
        state
    }
}

/// A forked child uses nothing of its parent's stream, whose answers are the parent's.
const FORKED: &str = "the request was made before fork(2), by the parent process";

const NO_PANIC: &str = "no thread panics while it holds a connection's state";

impl Drop for State {
    fn drop(&mut self) {
        // Gathered operations count as requested.
        if self.broken.is_none() && self.process.is_current() && self.unsent < self.operations.len() {
            let _ = self.send();
        }
        // No caller waits for these, and their results will never be known.
        let storing = self.operations.iter().filter(|operation| operation.payload != Payload::None).count();
        self.storing.fetch_sub(storing, Ordering::Release);
    }
}

impl State {
    /// Returns what to wait for.
    fn until(&self) -> Until {
        if self.unsent == self.operations.len() {
            Until::Arrived
        } else if self.unsent == 0 {
            // A refusal may arrive before everything is sent, but is read afterwards.
            Until::CanSend
        } else {
            Until::Either
        }
    }

    /// Returns whether threads or futures wait for operations in flight.
    fn is_waited_for(&self) -> bool {
        self.leader.is_some() || self.followers > 0 || self.awaited > 0
    }

    /// Returns whether an operation of this many bytes, and a value, can wait for others before it is sent: an answer
    /// is outstanding, and little is gathered.
    fn holds(&self, bytes: usize, borrowed: Option<&[u8]>) -> bool {
        let held = self.operations.range(self.unsent..);
        let bytes = bytes + borrowed.map_or(0, <[u8]>::len);
        self.unsent > 0
            && held.len() + 1 < OPERATIONS_GATHERED_MAX
            && held.map(Operation::len).sum::<usize>() + bytes <= BYTES_GATHERED_MAX
    }

    /// Queues an operation to be sent with others.
    fn hold(&mut self, mut operation: Operation, borrowed: Option<&[u8]>) {
        if let Some(value) = borrowed {
            operation.payload = Payload::Copy;
            operation.copy.extend_from_slice(value);
        }
        self.queue(operation);
    }

    fn queue(&mut self, operation: Operation) {
        if operation.payload != Payload::None {
            self.storing.fetch_add(1, Ordering::Release);
        }
        self.operations.push_back(operation);
    }

    /// Queues an operation. Of a borrowed value, the part that can be sent without waiting is not copied.
    fn push(&mut self, mut operation: Operation, borrowed: Option<&[u8]>) -> Result<(), Failure> {
        let mut sent = Ok(0);
        if let Some(value) = borrowed {
            operation.payload = Payload::Copy;
            let parts = [operation.message.as_bytes(), value, operation.message.value_end()];
            if self.unsent == self.operations.len() {
                sent = self.stream.send(&parts.map(IoSlice::new));
            }
            let len: usize = parts.iter().map(|part| part.len()).sum();
            if sent.as_ref().is_ok_and(|sent| *sent == len) {
                self.unsent += 1;
                sent = Ok(0);
                operation.payload = Payload::Sent;
            } else {
                operation.copy.extend_from_slice(value);
            }
        }
        self.queue(operation);
        self.sent += sent?;
        Ok(())
    }

    /// Sends what is possible now.
    fn send(&mut self) -> Result<(), Failure> {
        for _ in 0..TURNS_AT_ONCE {
            if self.unsent == self.operations.len() {
                return Ok(());
            }
            let sent = match self.lend_next()? {
                Some(sent) => sent,
                None => self.send_parts()?,
            };
            if sent == 0 {
                return Ok(());
            }
            if self.unsent == 0 {
                self.quiet_since = Instant::now();
            }
            self.sent += sent;
            while let Some(len) = self.operations.get(self.unsent).map(Operation::len)
                && len <= self.sent
            {
                self.sent -= len;
                self.unsent += 1;
            }
        }
        Ok(())
    }

    /// Lends the value of the next operation; returns the number of bytes sent with it, or `None` if it has none to
    /// lend.
    fn lend_next(&mut self) -> Result<Option<usize>, Failure> {
        let next = self.operations.get_mut(self.unsent).filter(|_| self.sent == 0);
        let Some(Operation { message, lent: Some(lent), .. }) = next else { return Ok(None) };
        Ok(match self.stream.lend(message.as_bytes(), lent)? {
            Lending::Sent => Some(message.as_bytes().len() + lent.bytes().len()),
            Lending::Later => Some(0),
            Lending::Never => None,
        })
    }

    /// Sends what is possible now of the next operations, up to one with a value to lend. Returns the number of
    /// bytes.
    fn send_parts(&mut self) -> Result<usize, Failure> {
        let mut parts = [IoSlice::new(&[]); 3 * OPERATIONS_SENT_AT_ONCE];
        let (mut count, mut before) = (0, self.sent);
        let next = self.operations.range(self.unsent..).take(OPERATIONS_SENT_AT_ONCE);
        for operation in next.enumerate().take_while(|(i, next)| *i == 0 || next.lent.is_none()) {
            for part in operation.1.parts() {
                let skipped = before.min(part.len());
                before -= skipped;
                if skipped < part.len() {
                    parts[count] = IoSlice::new(&part[skipped..]);
                    count += 1;
                }
            }
        }
        Ok(self.stream.send(&parts[..count])?)
    }

    /// Receives what has arrived, and completes the operations that it answers. Returns whether there may be more.
    fn receive(&mut self) -> Result<bool, Failure> {
        self.take_answers()?;
        for _ in 0..TURNS_AT_ONCE {
            if self.unsent == 0 {
                return Ok(false);
            }
            let (_, value) = awaited(&mut self.operations[0], &mut self.unasked);
            let received = self.input.receive(&mut *self.stream, value)?;
            if received == Received::Nothing {
                return Ok(false);
            }
            self.quiet_since = Instant::now();
            self.take_answers()?;
            if received == Received::All {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn take_answers(&mut self) -> Result<(), Failure> {
        while self.unsent > 0 {
            let first = &mut self.operations[0];
            let opaque = first.opaque;
            let (requested, value) = awaited(first, &mut self.unasked);
            match self.input.answer(requested, value) {
                Ok(None) => return Ok(()),
                Ok(Some(answer)) if requested.is_none() && !answer.is_of(opaque) => {
                    return Err(Failure::protocol(format!("{answer:?} is not the next").as_bytes()));
                }
                Ok(Some(answer)) => self.end_first(Ok(answer)),
                Err(failure) if failure.breaks() => return Err(failure),
                Err(failure) => self.end_first(Err(failure)),
            }
        }
        Ok(())
    }

    fn end_first(&mut self, result: Result<Answer, Failure>) {
        let first = self.operations.pop_front().expect("an answer has an operation");
        self.unsent = self.unsent.saturating_sub(1);
        self.was_answered = true;
        if first.payload != Payload::None {
            self.storing.fetch_sub(1, Ordering::Release);
        }
        let (waker, was_awaited) = first.end(result);
        self.awaited -= usize::from(was_awaited);
        self.wakers.extend(waker);
    }

    /// After a failed send: completes the operations whose answers have arrived, and all others with this failure.
    fn fail_to_send(&mut self, failure: Failure) {
        while let Ok(true) = self.receive() {}
        self.fail(failure);
    }

    /// Ends all operations with this failure.
    fn fail(&mut self, failure: Failure) {
        while !self.operations.is_empty() {
            self.end_first(Err(failure.copy()));
        }
        self.broken.get_or_insert(failure);
    }
}

/// Returns what an operation's answer replies to, where it does not identify itself, and where its value goes: the
/// value that the caller wants stored is not overwritten.
fn awaited<'a>(
    operation: &'a mut Operation,
    unasked: &'a mut Vec<u8>,
) -> (Option<ExpectedAnswer<'a>>, &'a mut Vec<u8>) {
    let value = if operation.payload == Payload::None { &mut operation.value } else { unasked };
    (operation.message.requested(), value)
}

#[cfg(test)]
mod tests;
