//! One server: its idle connections, and whether it is thought to be up.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::address::Address;
use crate::bounds::{IDLE_CONNECTIONS_MAX, TIMEOUT_MAX};
use crate::connection::{Connection, connect};
use crate::error::{Error, Failure};
use crate::pipeline::Pipeline;
use crate::stream::Stream;

/// One server.
#[derive(Debug)]
pub struct Server {
    /// Where it is.
    pub address: Address,
    connect_timeout: Duration,
    timeout: Duration,
    failures_max: u32,
    retry_after: Duration,
    state: Mutex<State>,
    /// The connection of all calls that do not wait. Held while it is made: who needs it would wait all the same.
    pipeline: Mutex<Option<Arc<Pipeline>>>,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Connection>,
    /// One after the other.
    failures: u32,
    down_until: Option<Instant>,
}

impl Server {
    /// A server to which nothing is connected yet.
    pub fn new(address: Address, options: &crate::Options) -> Server {
        Server {
            address,
            connect_timeout: options.connect_timeout,
            timeout: options.timeout.min(TIMEOUT_MAX),
            failures_max: options.failures_max.max(1),
            retry_after: options.retry_after,
            state: Mutex::default(),
            pipeline: Mutex::default(),
        }
    }

    /// Has failed so often that it is not asked for now.
    pub fn is_down(&self) -> bool {
        self.state().down_until.is_some_and(|until| Instant::now() < until)
    }

    /// A connection for one call.
    ///
    /// # Errors
    /// It is down, or cannot be reached.
    pub fn take(&self) -> Result<Connection, Failure> {
        if self.is_down() {
            return Err(Failure::Down);
        }
        loop {
            let Some(mut connection) = self.state().idle.pop() else { break };
            // A server that was started again has closed those of the last.
            if connection.begin(self.timeout) {
                return Ok(connection);
            }
        }
        let mut connection = Connection::new(self.connect()?);
        connection.begin(self.timeout);
        Ok(connection)
    }

    /// Gives a connection back after a call that came to this; notes what that says of the server.
    pub fn give_back<T>(&self, connection: Connection, done: &Result<T, Failure>) {
        self.note(done.as_ref().map(|_| ()));
        if done.as_ref().err().is_some_and(Failure::breaks) {
            return;
        }
        let mut state = self.state();
        if state.idle.len() < IDLE_CONNECTIONS_MAX {
            state.idle.push(connection);
        }
    }

    /// One call with a connection of its own.
    ///
    /// # Errors
    /// As `call` says, or no connection is to be had.
    pub fn call<T>(&self, call: impl FnOnce(&mut Connection) -> Result<T, Failure>) -> Result<T, Error> {
        let done = self.take().and_then(|mut connection| {
            let done = call(&mut connection);
            self.give_back(connection, &done);
            done
        });
        done.map_err(|failure| self.error(failure))
    }

    /// The failure, told with the server's name.
    pub fn error(&self, failure: Failure) -> Error {
        Error::Server { server: self.address.to_string(), failure }
    }

    /// The connection for calls that do not wait, which all threads share.
    ///
    /// # Errors
    /// It is down, or cannot be reached.
    pub fn pipeline(self: &Arc<Self>) -> Result<Arc<Pipeline>, Failure> {
        if self.is_down() {
            return Err(Failure::Down);
        }
        let mut current = self.pipeline.lock().expect("no thread panics while it connects");
        if let Some(pipeline) = current.as_ref().filter(|pipeline| pipeline.is_usable()) {
            return Ok(Arc::clone(pipeline));
        }
        let pipeline = Pipeline::new(self, self.connect()?, self.timeout).map_err(Failure::Connect)?;
        Ok(Arc::clone(current.insert(pipeline)))
    }

    /// Another connection takes the place of that for calls that do not wait.
    #[cfg(test)]
    pub fn put_pipeline(&self, pipeline: Arc<Pipeline>) {
        *self.pipeline.lock().expect("no thread panics while it connects") = Some(pipeline);
    }

    fn connect(&self) -> Result<Box<dyn Stream>, Failure> {
        connect(&self.address, self.connect_timeout).inspect_err(|failure| self.note(Err(failure)))
    }

    /// Notes what a call came to.
    pub fn note(&self, done: Result<(), &Failure>) {
        let mut state = self.state();
        match done {
            Err(failure) if failure.breaks() => {
                state.failures += 1;
                // Those made before are likely broken as well.
                state.idle.clear();
                if state.failures >= self.failures_max {
                    state.down_until = Some(Instant::now() + self.retry_after);
                }
            }
            _ => (state.failures, state.down_until) = (0, None),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds a server's state")
    }
}
