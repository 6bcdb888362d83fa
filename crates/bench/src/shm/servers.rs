//! The servers, connections to them, and their items.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use fabcache_client::{Client, Item, Options, Request, SharedMemory, Transport, Ttl};

use super::{Plan, SERVER_CPU};
use crate::server::{MeasuredProgram, Server};
use crate::store::keys::{KEY_BYTES, key};

/// Upper bound of an item's overhead, including index and free space.
const OVERHEAD_BYTES: u64 = 60;
/// Requests in flight while servers are filled.
const FILL_WINDOW: usize = 256;
/// Maximum number of items of servers reached over a socket: more would not change the figures, and
/// take long to store.
const ITEMS_OVER_SOCKET_MAX: u64 = 100_000;

/// A server on its own Unix socket.
#[derive(Debug)]
pub struct RunningServer {
    /// Its name in tables.
    pub name: String,
    /// The process.
    pub server: Server,
    socket: PathBuf,
}

/// The server that shares its memory, and the server it is compared with.
#[derive(Debug)]
pub struct Servers {
    /// The server that shares its memory.
    pub ours: RunningServer,
    /// The server it is compared with.
    pub against: Option<RunningServer>,
    /// Items stored in the first server; the other has at most a hundred thousand.
    pub items: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
}

/// A client and its transport.
#[derive(Debug)]
pub struct PathClient {
    /// Its name in tables.
    pub name: String,
    /// The client.
    pub client: Client,
    /// The number of stored items.
    pub items: u64,
}

impl RunningServer {
    fn start(program: &MeasuredProgram, flags: &[&str]) -> Result<RunningServer> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let socket = std::env::temp_dir().join(format!("fabcache-bench-{}-{number}", std::process::id()));
        let server = Server::start_unix(program, &socket, flags)?;
        server.pin(&SERVER_CPU.into())?;
        Ok(RunningServer { name: program.name.clone(), server, socket })
    }

    /// Starts a server that shares its memory.
    ///
    /// # Errors
    /// The server does not start.
    pub fn sharing(program: &MeasuredProgram, megabytes: u64, plan: &Plan) -> Result<RunningServer> {
        let megabytes = megabytes.to_string();
        let mut flags = vec!["--shm", "-t", "1", "-c", "4096", "-m", &megabytes];
        flags.extend(plan.huge_pages.then_some("-L"));
        RunningServer::start(program, &flags)
    }

    /// Connects a client.
    ///
    /// # Errors
    /// The server cannot be reached, or not over this transport.
    pub fn client(&self, shared_memory: SharedMemory) -> Result<Client> {
        let address = format!("unix://{}", self.socket.display());
        let client = Client::new([address], Options { shared_memory, ..Options::default() })?;
        client.set(b"connected", b"", Ttl::seconds(1))?;
        let shares = client.transports() == [Some(Transport::SharedMemory)];
        ensure!(shares == (shared_memory == SharedMemory::Required), "the client took another way");
        Ok(client)
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        // A killed server does not remove its socket.
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Servers {
    /// Starts both servers and stores `items` items.
    ///
    /// # Errors
    /// A server does not start, or does not store.
    pub fn start(
        ours: &MeasuredProgram,
        against: Option<&MeasuredProgram>,
        items: u64,
        value_bytes: usize,
        plan: &Plan,
    ) -> Result<Servers> {
        let megabytes = |items| ((resident_bytes(items, value_bytes) * 3 / 2) >> 20) + 64;
        let fewer = items.min(ITEMS_OVER_SOCKET_MAX);
        let ours = RunningServer::sharing(ours, megabytes(items), plan)?;
        let against = against.map(|against| {
            let megabytes = megabytes(fewer).to_string();
            RunningServer::start(against, &["-t", "1", "-m", &megabytes])
        });
        let servers = Servers { ours, against: against.transpose()?, items, value_bytes };
        fill(&servers.ours.client(SharedMemory::Required)?, items, value_bytes)?;
        if let Some(against) = &servers.against {
            fill(&against.client(SharedMemory::Never)?, fewer, value_bytes)?;
        }
        Ok(servers)
    }

    /// Connects to the first server through shared memory.
    ///
    /// # Errors
    /// The server does not share its memory.
    pub fn shared(&self) -> Result<PathClient> {
        let client = self.ours.client(SharedMemory::Required)?;
        Ok(PathClient { name: "shared memory".into(), client, items: self.items })
    }

    /// Connects to the first server over its Unix socket.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn socket(&self) -> Result<PathClient> {
        let client = self.ours.client(SharedMemory::Never)?;
        Ok(PathClient { name: "Unix socket".into(), client, items: self.items })
    }

    /// Connects to the other server over its Unix socket, if there is one.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn against(&self) -> Result<Option<PathClient>> {
        let way = self.against.as_ref().map(|against| {
            let client = against.client(SharedMemory::Never)?;
            let items = self.items.min(ITEMS_OVER_SOCKET_MAX);
            Ok(PathClient { name: against.name.clone(), client, items })
        });
        way.transpose()
    }
}

/// Returns the bytes of so many items.
pub fn resident_bytes(items: u64, value_bytes: usize) -> u64 {
    items * (KEY_BYTES as u64 + value_bytes as u64 + OVERHEAD_BYTES)
}

/// Returns the value under the key with this number.
pub fn value(number: u64, len: usize) -> Vec<u8> {
    let mut value = vec![number as u8; len];
    let reported = len.min(8);
    value[..reported].copy_from_slice(&number.to_le_bytes()[..reported]);
    value
}

/// Returns whether this is the value of the key with this number, comparing its length and both ends.
#[inline]
pub fn is_value(found: &[u8], number: u64, len: usize) -> bool {
    let reported = len.min(8);
    found.len() == len
        && found[..reported] == number.to_le_bytes()[..reported]
        && (reported == len || found[len - 1] == number as u8)
}

/// Checks an item that must be present.
///
/// # Errors
/// The item is missing or wrong.
pub fn check(item: Option<&Item>, number: u64, len: usize) -> Result<()> {
    let item = item.with_context(|| format!("the item of number {number} is missing"))?;
    ensure!(is_value(&item.value, number, len), "a wrong value under the key with number {number}");
    Ok(())
}

fn fill(client: &Client, items: u64, value_bytes: usize) -> Result<()> {
    let window = FILL_WINDOW.min(items as usize).min(((16 << 20) / value_bytes.max(1)).max(1));
    let mut requests: Vec<Request> = (0..window).map(|_| client.request()).collect();
    for number in 0..items {
        let at = number as usize % window;
        if number >= window as u64 {
            requests[at].wait().result?;
        }
        requests[at].iset(key(number), value(number, value_bytes), Ttl::NEVER);
    }
    for request in &mut requests {
        request.wait().result?;
    }
    Ok(())
}
