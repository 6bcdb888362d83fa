//! The connections of all workers, for `stats conns`.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use fabcache_transport::Kind;

/// A connection's state, in memcached's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// A listener.
    Listening,
    /// Waiting for a request.
    Waiting,
    /// In the middle of a request line.
    Read,
    /// Executing a command.
    ParseCommand,
    /// Receiving a value.
    Nread,
    /// Dropping a refused value.
    Swallow,
    /// It waits to send answers.
    Mwrite,
    /// Watching.
    Watch,
}

impl State {
    fn name(byte: u8) -> &'static str {
        match byte {
            0 => "conn_listening",
            1 => "conn_waiting",
            2 => "conn_read",
            3 => "conn_parse_cmd",
            4 => "conn_nread",
            5 => "conn_swallow",
            6 => "conn_mwrite",
            _ => "conn_watch",
        }
    }
}

/// The visible properties of a connection. Its worker writes them, `stats conns` reads them.
#[derive(Debug)]
pub struct ConnectionInfo {
    /// Its descriptor.
    pub fd: i32,
    /// Its transport.
    pub kind: Kind,
    /// The peer's address, or for a listener its own.
    pub address: String,
    /// The listener that accepted it; `None` for a listener.
    pub listener: Option<String>,
    state: AtomicU8,
    last_command: AtomicU32,
}

impl ConnectionInfo {
    /// A new connection, at second `now`.
    pub fn new(fd: i32, kind: Kind, address: String, listener: Option<String>, now: u32) -> ConnectionInfo {
        let state = match (&listener, kind) {
            (Some(_), _) => State::Waiting,
            // It receives requests itself.
            (None, Kind::Udp) => State::Read,
            (None, _) => State::Listening,
        };
        ConnectionInfo {
            fd,
            kind,
            address,
            listener,
            state: AtomicU8::new(state as u8),
            last_command: AtomicU32::new(now),
        }
    }

    /// Sets its state.
    #[inline]
    pub fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// Notes a request at second `now`.
    #[inline]
    pub fn set_last_command(&self, now: u32) {
        self.last_command.store(now, Ordering::Relaxed);
    }

    /// Returns memcached's name of the state.
    pub fn state_name(&self) -> &'static str {
        State::name(self.state.load(Ordering::Relaxed))
    }

    /// Returns when its last request arrived.
    pub fn last_command(&self) -> u32 {
        self.last_command.load(Ordering::Relaxed)
    }
}

/// A connection's position in the list: by descriptor, without one by address in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(i32, usize);

impl Position {
    /// Returns the position of a connection.
    pub fn of(info: &Arc<ConnectionInfo>) -> Position {
        Position(info.fd, Arc::as_ptr(info).addr())
    }
}

/// All connections, including listeners.
#[derive(Debug, Default)]
pub struct Connections(Mutex<BTreeMap<Position, Arc<ConnectionInfo>>>);

impl Connections {
    /// Adds one.
    pub fn add(&self, info: &Arc<ConnectionInfo>) {
        self.lock().insert(Position::of(info), Arc::clone(info));
    }

    /// Removes one.
    pub fn remove(&self, info: &Arc<ConnectionInfo>) {
        self.lock().remove(&Position::of(info));
    }

    /// Returns the next `most` after a position, by descriptor.
    pub fn after(&self, position: Option<Position>, most: usize) -> Vec<Arc<ConnectionInfo>> {
        let after = position.map_or(Bound::Unbounded, Bound::Excluded);
        self.lock().range((after, Bound::Unbounded)).take(most).map(|(_, info)| Arc::clone(info)).collect()
    }

    /// Returns their number.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Returns the number of listeners.
    pub fn count_listeners(&self) -> usize {
        self.lock().values().filter(|info| info.listener.is_none()).count()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Position, Arc<ConnectionInfo>>> {
        self.0.lock().expect("no thread panics while it holds the connections")
    }
}
