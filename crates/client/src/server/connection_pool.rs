//! Failure tracking and the idle-connection pool of one server.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

use fabcache_layout::process::Process;

use crate::bounds::{IDLE_CONNECTIONS_KEPT, IDLE_TIME_MAX};
use crate::connection::Connection;
use crate::error::Failure;
use crate::message::Encoding;

/// The idle connections of one server, and its failure state.
#[derive(Debug)]
pub struct ConnectionPool {
    state: Mutex<State>,
    /// Signalled when a connection becomes idle, or an attempt to connect ends.
    progress: Condvar,
}

/// The pool's state, under its lock.
#[derive(Debug)]
pub struct State {
    /// Most recently used last; that one is used next.
    idle: VecDeque<Connection>,
    /// The process that made them.
    process: Process,
    /// Threads that are connecting.
    making: usize,
    /// Consecutive failures.
    pub failures: u32,
    pub down_until: Option<Instant>,
    /// The encoding that the server accepts, once known.
    pub encoding: Option<Encoding>,
}

/// Permission to connect, held until the attempt ends.
#[derive(Debug)]
pub struct ConnectPermit<'k>(&'k ConnectionPool);

/// The result of asking for a connection.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would allocate for each call")]
pub enum Lease<'k> {
    /// An idle connection.
    Idle(Connection),
    /// No connection is idle: the caller makes one.
    Connect(ConnectPermit<'k>),
}

impl ConnectionPool {
    /// Returns an empty pool.
    pub fn new() -> ConnectionPool {
        ConnectionPool { state: Mutex::new(State::new()), progress: Condvar::new() }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds a server's state")
    }

    /// Takes an idle connection for a call. With `until`, for transports where connections are expensive, one thread at a
    /// time connects: the others wait until then for a connection that it or a call returns.
    ///
    /// # Errors
    /// The server is down.
    pub fn take(&self, until: Option<Instant>) -> Result<Lease<'_>, Failure> {
        let mut state = self.lock();
        loop {
            if state.is_down() {
                return Err(Failure::Down);
            }
            if !state.process.is_current() {
                // After a fork, the answers on these connections belong to the parent.
                *state = State::new();
            }
            if let Some(connection) = state.idle.pop_back() {
                return Ok(Lease::Idle(connection));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            match left {
                Some(left) if state.making > 0 && !left.is_zero() => {
                    let waited = self.progress.wait_timeout(state, left);
                    (state, _) = waited.expect("no thread panics while it holds a server's state");
                }
                _ => {
                    state.making += 1;
                    return Ok(Lease::Connect(ConnectPermit(self)));
                }
            }
        }
    }

    /// Returns a connection to the pool. The result is a connection to close without the lock, if one has been unused for
    /// long: as many as were in use at once are kept for a while, so that bursts do not reconnect each time.
    #[must_use]
    pub fn put(&self, state: &mut State, connection: Connection) -> Option<Connection> {
        state.idle.push_back(connection);
        self.progress.notify_one();
        let is_spare = state.idle.len() > IDLE_CONNECTIONS_KEPT;
        let is_old = |connection: &Connection| connection.idle_time() >= IDLE_TIME_MAX;
        if is_spare && state.idle.front().is_some_and(is_old) { state.idle.pop_front() } else { None }
    }
}

impl Drop for ConnectPermit<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        // A child process starts with no connecting threads.
        state.making = state.making.saturating_sub(1);
        drop(state);
        self.0.progress.notify_all();
    }
}

impl State {
    fn new() -> State {
        let process = Process::current();
        State { idle: VecDeque::new(), process, making: 0, failures: 0, down_until: None, encoding: None }
    }

    pub fn is_down(&self) -> bool {
        self.down_until.is_some_and(|until| Instant::now() < until)
    }

    /// Removes all idle connections: those are likely broken as well. The caller closes them once no lock is held.
    #[must_use]
    pub fn take_idle(&mut self) -> VecDeque<Connection> {
        std::mem::take(&mut self.idle)
    }

    /// Returns the number of idle connections.
    #[cfg(test)]
    pub fn idle(&self) -> usize {
        self.idle.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn threads_wait_for_a_connection_opened_by_another() {
        let pool = ConnectionPool::new();
        let later = Instant::now() + Duration::from_secs(60);
        let take = |until| match pool.take(until).expect("the server is up") {
            Lease::Connect(permit) => permit,
            Lease::Idle(_) => panic!("none is idle"),
        };
        let making = take(Some(later));
        drop(take(None));
        let soon = Instant::now() + Duration::from_millis(5);
        drop(take(Some(soon)));
        assert!(Instant::now() >= soon, "the wait timed out");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(take(Some(later))));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished(), "another thread connects");
            drop(making);
        });
        let making = take(Some(later));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.take(Some(later)).map(drop));
            pool.lock().down_until = Some(later);
            drop(making);
            let ended = waiting.join().expect("no panic");
            assert!(matches!(ended, Err(Failure::Down)), "{ended:?}");
        });
    }
}
