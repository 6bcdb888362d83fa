//! Failure tracking and the idle-connection pool of one server.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

use fabcache_layout::process::Process;

use crate::bounds::{IDLE_CONNECTIONS_KEPT, IDLE_TIME_MAX};
use crate::connection::Connection;
use crate::error::Failure;
use crate::message::Encoding;

#[derive(Debug)]
pub struct ConnectionPool {
    state: Mutex<State>,
    /// A connection is idle, or somebody has made one, or could not.
    turned: Condvar,
}

#[derive(Debug)]
pub struct State {
    /// The one that was used last is behind, and is used next.
    idle: VecDeque<Connection>,
    /// Whose they are.
    process: Process,
    /// Threads that make one.
    making: usize,
    /// One after the other.
    pub failures: u32,
    pub down_until: Option<Instant>,
    /// The encoding that it accepts, once it is known.
    pub form: Option<Encoding>,
}

/// Permission to open a connection because none is idle. It is held until that is done.
#[derive(Debug)]
pub struct ConnectPermit<'k>(&'k ConnectionPool);

impl ConnectionPool {
    /// Nothing is known.
    pub fn new() -> ConnectionPool {
        ConnectionPool { state: Mutex::new(State::new()), turned: Condvar::new() }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds a server's state")
    }

    /// For a call. Where connections cost much only one thread makes one at a time: others wait, until then at most, and take
    /// what it or calls meanwhile give back.
    ///
    /// # Errors
    /// The server is down.
    pub fn take(&self, until: Option<Instant>) -> Result<Result<Connection, ConnectPermit<'_>>, Failure> {
        let mut state = self.lock();
        loop {
            if state.is_down() {
                return Err(Failure::Down);
            }
            if !state.process.is_current() {
                // Those of the process that this one was forked from: its answers come on them.
                *state = State::new();
            }
            if let Some(connection) = state.idle.pop_back() {
                return Ok(Ok(connection));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            match left {
                Some(left) if state.making > 0 && !left.is_zero() => {
                    let waited = self.turned.wait_timeout(state, left);
                    (state, _) = waited.expect("no thread panics while it holds a server's state");
                }
                _ => {
                    state.making += 1;
                    return Ok(Err(ConnectPermit(self)));
                }
            }
        }
    }

    /// Keeps one for the next call. Comes back with one that is to be closed once nothing is locked, as nobody had use for it
    /// lately: as many as were used at once are kept for a time, or they would be made again and again.
    #[must_use]
    pub fn put(&self, state: &mut State, connection: Connection) -> Option<Connection> {
        state.idle.push_back(connection);
        self.turned.notify_one();
        let is_spare = state.idle.len() > IDLE_CONNECTIONS_KEPT;
        let is_old = |connection: &Connection| connection.idle_time() >= IDLE_TIME_MAX;
        if is_spare && state.idle.front().is_some_and(is_old) { state.idle.pop_front() } else { None }
    }
}

impl Drop for ConnectPermit<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        // A child has forgotten who made any in its parent.
        state.making = state.making.saturating_sub(1);
        drop(state);
        self.0.turned.notify_all();
    }
}

impl State {
    fn new() -> State {
        let process = Process::current();
        State { idle: VecDeque::new(), process, making: 0, failures: 0, down_until: None, form: None }
    }

    pub fn is_down(&self) -> bool {
        self.down_until.is_some_and(|until| Instant::now() < until)
    }

    /// Those that were made before are likely broken as well. They are to be closed once nothing is locked.
    #[must_use]
    pub fn take_idle(&mut self) -> VecDeque<Connection> {
        std::mem::take(&mut self.idle)
    }

    /// Idle connections.
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
    fn threads_wait_for_a_connection_that_another_makes() {
        let kept = ConnectionPool::new();
        let later = Instant::now() + Duration::from_secs(60);
        let take = |until| kept.take(until).expect("it is up").expect_err("none is idle");
        let making = take(Some(later));
        drop(take(None));
        let soon = Instant::now() + Duration::from_millis(5);
        drop(take(Some(soon)));
        assert!(Instant::now() >= soon, "it has waited in vain");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(take(Some(later))));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished(), "another makes one");
            drop(making);
        });
        let making = take(Some(later));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| kept.take(Some(later)).map(drop));
            kept.lock().down_until = Some(later);
            drop(making);
            let ended = waiting.join().expect("no panic");
            assert!(matches!(ended, Err(Failure::Down)), "{ended:?}");
        });
    }
}
