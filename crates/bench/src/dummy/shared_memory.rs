//! A dummy that shares memory: a region that the benchmark filled, and channels.
//!
//! It accepts the client library's `shm attach` on a Unix socket. Clients then read the region's items as they read a
//! server's. One thread answers the requests of all channels as the dummy over sockets does; no request changes the region.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fabcache_layout::channel::{CHANNEL_VERSION, Shape, SpinPolicy};
use fabcache_layout::format::FORMAT_VERSION;
use fabcache_protocol::{Command, Decoded, Decoder};
use fabcache_store::backing::Sharing;
use fabcache_store::liveness::Liveness;
use fabcache_store::{Handle, Store};
use fabcache_transport::shm::{NewChannel, ShmLink};
use fabcache_transport::unix::UnixListener;
use fabcache_transport::{Link, Listener, Received};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::answers::Shared;
use super::connection::{Connection, Interest, LIMITS};
use super::{BACKLOG, SOCKET_MODE, private_path};
use crate::process::{Cpus, pin};

/// The server's default shape of channels.
const SHAPE: Shape = Shape { slots: 64, slot_bytes: 1 << 10, staging_bytes: 1 << 20 };
/// Polls between readings of the clock.
const POLLS_PER_CLOCK: u32 = 64;
/// Maximum sleep. Readers stop reading a region whose clock is three seconds behind.
const SLEEP_MAX: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
/// How long a new client may take to request the memory.
const REQUEST_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// Longer than any request for the memory.
const REQUEST_BYTES_MAX: usize = 256;

/// The dummy, in a thread of this process. It stops when dropped.
#[derive(Debug)]
pub struct SharedMemoryDummy {
    url: String,
    store: Arc<Store>,
    doorbell: Arc<OwnedFd>,
    thread: Option<JoinHandle<Result<()>>>,
    /// Shows readers that the region has a server.
    _life: Liveness,
}

impl SharedMemoryDummy {
    /// Starts a dummy on these CPUs that shares the region of the handle's store.
    ///
    /// # Errors
    /// The region cannot be shared, or the socket cannot be opened.
    pub fn start(handle: Handle, cpus: &Cpus) -> Result<SharedMemoryDummy> {
        let store = Arc::clone(handle.store());
        let sharing = store.share_region().context("the region cannot be shared")?;
        ensure!(sharing == Some(Sharing::Sealed), "the region is not sealed");
        let path = private_path();
        let listener = UnixListener::bind(&path, SOCKET_MODE, BACKLOG)
            .with_context(|| format!("cannot listen at {}", path.display()))?;
        let doorbell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let life = Liveness::keep(&store).context("cannot give a sign of life")?;
        let (report_pinned, pinned) = sync_channel(1);
        let (of_thread, cpus) = (Arc::clone(&doorbell), cpus.clone());
        let worker = move || {
            let is_pinned = pin(None, &cpus);
            let begins = is_pinned.is_ok();
            // The receiver waits for it.
            let _ = report_pinned.send(is_pinned);
            if begins { Worker::new(handle, listener, of_thread).run() } else { Ok(()) }
        };
        let thread = std::thread::Builder::new().name("dummy".into()).spawn(worker)?;
        pinned.recv().context("the dummy's thread ended")??;
        let url = format!("shm://{}", path.display());
        Ok(SharedMemoryDummy { url, store, doorbell, thread: Some(thread), _life: life })
    }

    /// Returns its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the region's file, which can only be read, and its length.
    ///
    /// # Errors
    /// The region has no file.
    pub fn region(&self) -> Result<(BorrowedFd<'_>, u64)> {
        Ok((self.store.region().context("the region has no file")?, self.store.region_bytes()))
    }
}

impl Drop for SharedMemoryDummy {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take()
            && rustix::io::write(&*self.doorbell, &1u64.to_ne_bytes()).is_ok()
        {
            // Clients have already noticed a failure.
            drop(thread.join());
        }
    }
}

/// The state of the thread.
struct Worker {
    shared: Shared,
    handle: Handle,
    listener: UnixListener,
    doorbell: Arc<OwnedFd>,
    connections: Vec<Connection>,
    spin: SpinPolicy,
    buffer: Vec<u8>,
}

impl Worker {
    fn new(handle: Handle, listener: UnixListener, doorbell: Arc<OwnedFd>) -> Worker {
        let shared = Shared::new(None, Default::default());
        let (connections, spin, buffer) = (Vec::new(), SpinPolicy::default(), Vec::new());
        Worker { shared, handle, listener, doorbell, connections, spin, buffer }
    }

    /// Runs until the doorbell rings, or the system fails.
    fn run(&mut self) -> Result<()> {
        while self.sleep()? {
            self.spin();
        }
        Ok(())
    }

    /// Answers requests until none arrives for as long as the spin policy says.
    fn spin(&mut self) {
        let Some(time) = self.spin.spin_time() else {
            self.spin = self.spin.after_sleep(Duration::ZERO);
            return;
        };
        let mut has_served = false;
        let mut until = Instant::now() + time;
        while Instant::now() < until {
            for _ in 0..POLLS_PER_CLOCK {
                if self.serve(|connection| connection.link().has_unread()) {
                    has_served = true;
                    until = Instant::now() + time;
                }
                std::hint::spin_loop();
            }
        }
        self.spin =
            if has_served { self.spin.after_success() } else { self.spin.after_sleep(Duration::ZERO) };
    }

    /// Serves the connections that `is_due` selects; returns whether it selects any.
    fn serve(&mut self, is_due: impl Fn(&Connection) -> bool) -> bool {
        let Worker { shared, connections, buffer, .. } = self;
        let mut has_served = false;
        connections.retain_mut(|connection| {
            if !is_due(connection) {
                return true;
            }
            has_served = true;
            connection.serve(shared, buffer) != Interest::End
        });
        has_served
    }

    /// Sleeps until a request or a client arrives, or the region's clock is due. Returns false once the doorbell rings.
    fn sleep(&mut self) -> Result<bool> {
        let mut is_idle = true;
        for link in self.connections.iter_mut().filter_map(Connection::as_polled) {
            is_idle &= link.arm_wakeup();
        }
        let mut waited = vec![
            PollFd::new(&*self.doorbell, PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.descriptor(), PollFlags::IN),
        ];
        let sockets = self.connections.iter().filter_map(|connection| connection.link().descriptor());
        waited.extend(sockets.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)));
        let time = if is_idle { SLEEP_MAX } else { Timespec::default() };
        match poll(&mut waited, Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !waited[0].revents().is_empty() {
            return Ok(false);
        }
        for link in self.connections.iter_mut().filter_map(Connection::as_polled) {
            link.drain_wakeup();
            link.start_polling();
        }
        while let Some(link) = self.listener.accept()? {
            // A refused client notices the end of its connection.
            self.connections.extend(self.attach(link));
        }
        self.handle.maintain();
        self.serve(|_| true);
        Ok(true)
    }

    /// Shares memory with a client that requests it first.
    fn attach(&self, mut link: Box<dyn Link>) -> Result<Connection> {
        let socket = link.descriptor().context("a link without a socket")?;
        poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], Some(&REQUEST_TIMEOUT))?;
        let mut request = [0; REQUEST_BYTES_MAX];
        let Received::Bytes(count) = link.receive(&mut request)? else { bail!("no request") };
        let mut decoder = Decoder::new(None, LIMITS);
        let Decoded::Request { request, .. } = decoder.decode(&request[..count]) else {
            bail!("an incomplete request");
        };
        let versions = Command::ShmAttach { channel: CHANNEL_VERSION, region: FORMAT_VERSION };
        ensure!(request.command == versions, "the dummy only shares memory");
        let stream = link.into_stream().ok().context("a link without a socket")?;
        let store = self.handle.store();
        let region = store.region().context("the region has no file")?;
        let answer = format!("SHM {} {}\r\n", store.region_bytes(), store.clock_ns());
        let link = ShmLink::attach(stream, NewChannel::create(&SHAPE)?, Some(region), answer.as_bytes())?;
        Ok(Connection::mixed(Box::new(link)))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use fabcache_client::{Client, Options, Protocol, SharedMemory, Transport, Ttl};
    use fabcache_store::clock::SystemTimeSource;

    use super::*;
    use crate::store::keys;

    const VALUE: [u8; 100] = [b'v'; 100];

    fn dummy() -> SharedMemoryDummy {
        let store = keys::store_with(8 << 20, 1, Box::new(SystemTimeSource)).expect("memory");
        let handle = Handle::new(&store);
        keys::fill(&handle, 10, VALUE.len());
        SharedMemoryDummy::start(handle, &Cpus::current().expect("some")).expect("it listens")
    }

    fn client(dummy: &SharedMemoryDummy, protocol: Protocol) -> Client {
        let options = Options { protocol, shared_memory: SharedMemory::Required, ..Options::default() };
        let client = Client::new([format!("unix://{}", path(dummy))], options).expect("an address");
        // It connects, so that the first get is not a request.
        client.versions().into_iter().for_each(|version| drop(version.expect("it is up")));
        client
    }

    fn path(dummy: &SharedMemoryDummy) -> &str {
        dummy.url().strip_prefix("shm://").expect("a path")
    }

    #[track_caller]
    fn assert_value(client: &Client, number: u64) {
        let found = client.get(&keys::key(number)).expect("an answer");
        assert_eq!(found.expect("it is in the region").value, VALUE);
    }

    #[test]
    fn the_client_library_runs_whole_against_it() {
        let dummy = dummy();
        for protocol in [Protocol::Auto, Protocol::Text, Protocol::Binary] {
            let client = client(&dummy, protocol);
            // Enough that it reports reads.
            (0..2_000).for_each(|read| assert_value(&client, read % 10));
            for len in [1usize, 3_000, 3_000_000] {
                client.set(b"any", &vec![b'x'; len], Ttl::NEVER).expect("a constant answer");
            }
            assert_eq!(client.get(b"any").expect("an answer"), None, "no request changes the region");
            assert_eq!(client.transports(), [Some(Transport::SharedMemory)]);
        }
    }

    #[test]
    fn the_regions_clock_advances_until_it_stops() {
        let dummy = dummy();
        let client = client(&dummy, Protocol::Auto);
        assert_value(&client, 0);
        // Readers would ask through the channel, where the dummy knows no item.
        std::thread::sleep(Duration::from_millis(4_500));
        assert_value(&client, 1);
        let path = std::path::PathBuf::from(path(&dummy));
        assert!(path.exists());
        drop(dummy);
        assert!(client.get(&keys::key(0)).is_err() && !path.exists());
    }

    #[test]
    fn a_failed_start_is_reported() {
        let store = keys::store_with(8 << 20, 1, Box::new(SystemTimeSource)).expect("memory");
        let error = SharedMemoryDummy::start(Handle::new(&store), &1_000.into()).expect_err("no such CPU");
        assert!(format!("{error:#}").contains("CPU 1000"), "{error:#}");
    }

    #[test]
    fn it_only_shares_memory() {
        let dummy = dummy();
        let mut other = UnixStream::connect(path(&dummy)).expect("it listens");
        other.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
        other.write_all(b"mn\r\n").expect("it is up");
        let mut answer = Vec::new();
        other.read_to_end(&mut answer).expect("the end");
        assert_eq!(answer, b"");
        assert_value(&client(&dummy, Protocol::Meta), 0);
    }
}
