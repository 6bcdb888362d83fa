//! One server: its idle connections, and whether it is thought to be up.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::address::Address;
use crate::bounds::IDLE_CONNECTIONS_MAX;
use crate::connection::Connection;
use crate::error::{Error, Failure};

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
            timeout: options.timeout,
            failures_max: options.failures_max.max(1),
            retry_after: options.retry_after,
            state: Mutex::default(),
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
            let Some(connection) = self.state().idle.pop() else { break };
            // A server that was started again has closed those of the last.
            if connection.is_idle() {
                return Ok(self.begun(connection));
            }
        }
        let opened = Connection::open(&self.address, self.connect_timeout);
        opened.map(|connection| self.begun(connection)).inspect_err(|failure| self.note(Err(failure)))
    }

    fn begun(&self, mut connection: Connection) -> Connection {
        connection.begin(self.timeout);
        connection
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

    fn note(&self, done: Result<(), &Failure>) {
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
