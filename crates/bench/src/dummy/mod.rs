//! A server that only answers, at once: the most that a client reaches with it is the client's limit.
//!
//! The dummy supports text, meta and binary. It answers a get with the value that
//! [`Items`](crate::items::Items) generates for the item, in the length that was last stored under the
//! key; it keeps nothing else. It can be given a [`Fault`].
//!
//! - `lengths.rs`: metadata of items; `answers.rs`: the response to each request; `output.rs`: sends
//!   them;
//!   `connection.rs`: one connection.
//! - `fault.rs`: the faults of a broken dummy.
//! - `child.rs`: a dummy as a child process.
//! - `recorded_call.rs`: records the bytes of a call and its response.
//! - `shared_memory.rs`: a dummy that shares a region and channels.

mod answers;
mod child;
mod connection;
mod fault;
mod lengths;
mod output;
mod recorded_call;
mod shared_memory;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail, ensure};
use fabcache_transport::tcp::{TcpListener, TcpOptions};
use fabcache_transport::unix::UnixListener;
use fabcache_transport::{Listener, Peer};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use answers::Shared;
pub use child::Child;
use connection::{Connection, Interest};
pub use connection::{ECHO, ECHO_BYTES};
pub use fault::{Fault, Kind};
pub use recorded_call::{RecordedCall, record_call};
pub use shared_memory::SharedMemoryDummy;

use crate::limits::Limits;

/// Length of the listen queue.
const BACKLOG: u32 = 1024;
/// Permissions of a Unix socket: only its own user may connect.
const SOCKET_MODE: u32 = 0o600;
/// Events handled per turn.
const EVENTS_PER_TURN_MAX: usize = 64;
const DOORBELL: u64 = u64::MAX;
/// Tokens from this value on are listeners, except the doorbell's.
const LISTENERS: u64 = 1 << 32;

/// A listener: `tcp://ADDRESS:PORT`, where port 0 selects a free one, or `unix:///PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Listen> {
        if let Some(path) = text.strip_prefix("unix://") {
            ensure!(path.starts_with('/'), "{text:?}: a Unix socket has an absolute path: unix:///PATH");
            return Ok(Listen::Unix(path.into()));
        }
        let Some(place) = text.strip_prefix("tcp://") else {
            bail!("{text:?}: the dummy listens at tcp://HOST:PORT or unix:///PATH");
        };
        let mut addresses =
            place.to_socket_addrs().with_context(|| format!("{text:?} is not tcp://HOST:PORT"))?;
        addresses.next().map(Listen::Tcp).with_context(|| format!("{text:?}: unknown host"))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => write!(f, "tcp://{address}"),
            Listen::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl Listen {
    /// Returns a Unix socket with a unique path.
    pub fn private_socket() -> Listen {
        Listen::Unix(private_path())
    }
}

/// Returns a unique path for a socket.
fn private_path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("fabcache-dummy-{}-{number}", std::process::id()))
}

/// A dummy's options.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen.
    pub listen: Vec<Listen>,
    /// The fault, if any.
    pub fault: Option<Fault>,
    /// The limits that it reports to clients. It accepts anything.
    pub limits: Limits,
    /// Number of threads.
    pub threads: usize,
}

/// A dummy in threads of this process. It stops when dropped.
#[derive(Debug)]
pub struct Dummy {
    urls: Vec<String>,
    doorbell: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Settings {
    /// Returns settings with one thread and without a fault.
    pub fn new(listen: Vec<Listen>) -> Settings {
        Settings { listen, fault: None, limits: Limits::default(), threads: 1 }
    }
}

impl Dummy {
    /// Starts a dummy.
    ///
    /// # Errors
    /// A listener cannot be opened.
    pub fn start(settings: &Settings) -> Result<Dummy> {
        ensure!(!settings.listen.is_empty() && settings.threads > 0, "a dummy has a listener and a thread");
        let mut listeners: Vec<Box<dyn Listener>> = Vec::new();
        for place in &settings.listen {
            let listener = listener(place).with_context(|| format!("cannot listen at {place}"))?;
            listeners.push(listener);
        }
        let urls = listeners.iter().map(|listener| match listener.local() {
            Peer::Socket(address) => Listen::Tcp(address).to_string(),
            peer => format!("unix://{peer}"),
        });
        let urls = urls.collect();
        let (shared, listeners) =
            (Arc::new(Shared::new(settings.fault, settings.limits)), Arc::new(listeners));
        let doorbell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut dummy = Dummy { urls, doorbell, threads: Vec::new() };
        for _ in 0..settings.threads {
            let mut worker = Worker::new(Arc::clone(&shared), Arc::clone(&listeners), &dummy.doorbell)?;
            let name = std::thread::Builder::new().name("dummy".into());
            dummy.threads.push(name.spawn(move || worker.run())?);
        }
        Ok(dummy)
    }

    /// Returns the URLs of its listeners, in the requested order.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }
}

impl Drop for Dummy {
    fn drop(&mut self) {
        // The doorbell is never drained, so that all threads see it.
        if rustix::io::write(&*self.doorbell, &1u64.to_ne_bytes()).is_ok() {
            self.threads.drain(..).for_each(|thread| drop(thread.join()));
        }
    }
}

fn listener(place: &Listen) -> io::Result<Box<dyn Listener>> {
    Ok(match place {
        Listen::Tcp(address) => {
            let options = TcpOptions { backlog: BACKLOG, share_address: false, cpu: None };
            Box::new(TcpListener::bind(*address, &options)?)
        }
        Listen::Unix(path) => Box::new(UnixListener::bind(path, SOCKET_MODE, BACKLOG)?),
    })
}

/// One thread's connections.
struct Worker {
    shared: Arc<Shared>,
    listeners: Arc<Vec<Box<dyn Listener>>>,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection>,
    next: u64,
    buffer: Vec<u8>,
}

impl Worker {
    fn new(
        shared: Arc<Shared>,
        listeners: Arc<Vec<Box<dyn Listener>>>,
        doorbell: &OwnedFd,
    ) -> io::Result<Worker> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, doorbell, EventData::new_u64(DOORBELL), EventFlags::IN)?;
        for (number, listener) in listeners.iter().enumerate() {
            let token = EventData::new_u64(LISTENERS + number as u64);
            epoll::add(&epoll, listener.descriptor(), token, EventFlags::IN | EventFlags::EXCLUSIVE)?;
        }
        Ok(Worker { shared, listeners, epoll, connections: HashMap::new(), next: 0, buffer: Vec::new() })
    }

    /// Runs until the doorbell rings, or the system fails.
    fn run(&mut self) {
        let none = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = [none; EVENTS_PER_TURN_MAX];
        loop {
            let count = match epoll::wait(&self.epoll, &mut events[..], None) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
            };
            for event in &events[..count] {
                match event.data.u64() {
                    DOORBELL => return,
                    token if token >= LISTENERS => self.accept((token - LISTENERS) as usize),
                    token => self.serve(token),
                }
            }
        }
    }

    fn accept(&mut self, listener: usize) {
        // If descriptors ran out, the refused client notices.
        while let Ok(Some(link)) = self.listeners[listener].accept() {
            let token = self.next;
            self.next = (self.next + 1) % LISTENERS;
            let added = link.descriptor().is_some_and(|descriptor| {
                epoll::add(&self.epoll, descriptor, EventData::new_u64(token), EventFlags::IN).is_ok()
            });
            if added {
                self.connections.insert(token, Connection::new(link));
            }
        }
    }

    fn serve(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let waited_for_room = connection.waits_for_room();
        let wants = connection.serve(&self.shared, &mut self.buffer);
        let flags = match wants {
            Interest::End => {
                // Dropping the connection closes its descriptor.
                self.connections.remove(&token);
                return;
            }
            Interest::Requests => EventFlags::IN,
            Interest::Room => EventFlags::OUT,
        };
        if waited_for_room != (wants == Interest::Room) {
            let changed = connection.link().descriptor().is_some_and(|descriptor| {
                epoll::modify(&self.epoll, descriptor, EventData::new_u64(token), flags).is_ok()
            });
            if !changed {
                self.connections.remove(&token);
            }
        }
    }
}
