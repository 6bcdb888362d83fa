//! One server: its connections, and its failure state.

mod connecting;
mod connection_pool;
mod reading;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fabcache_distribution::{Address, ServerEndpoint};

use self::connection_pool::{ConnectionPool, Lease, State};
pub use self::reading::ReadTicket;
use self::reading::ServerMemory;
use crate::answer::Answer;
use crate::answer::Flags;
use crate::bounds::TIMEOUT_MAX;
use crate::command::Action;
use crate::command::Command;
use crate::connection::Connection;
use crate::error::{Error, Failure};
use crate::fabric::RemoteReader;
use crate::item::{Transport, Ttl};
use crate::options::{Credentials, Protocol, SharedMemory};
use crate::path_selector::LatencySample;
use crate::pipeline::{Observer, Pipeline};
use crate::stream::Stream;

/// One server.
#[derive(Debug)]
pub struct Server {
    /// The server's address.
    pub address: Address,
    connect_timeout: Duration,
    timeout: Duration,
    failures_max: u32,
    retry_after: Duration,
    pool: ConnectionPool,
    protocol: Protocol,
    credentials: Option<Credentials>,
    shared_memory: SharedMemory,
    memory: ServerMemory,
    /// The one-sided reads over the fabric.
    remote: Option<Box<RemoteReader>>,
    /// The transport of the last connection.
    transport: Mutex<Option<Transport>>,
    /// The number of non-blocking stores in flight.
    storing: Arc<AtomicUsize>,
    /// The connection of all non-blocking calls. The lock is held while connecting: other callers would wait anyway.
    pipeline: Mutex<Option<Arc<Pipeline>>>,
}

impl Server {
    /// Returns a server without connections.
    pub fn new(address: Address, options: &crate::Options) -> Server {
        let is_remote = matches!(address.place, ServerEndpoint::Fabric { .. });
        let timeout = options.timeout.min(TIMEOUT_MAX);
        Server {
            remote: is_remote.then(|| Box::new(RemoteReader::new(options.fabric.clone(), timeout))),
            transport: Mutex::default(),
            address,
            connect_timeout: options.connect_timeout,
            timeout,
            failures_max: options.failures_max.max(1),
            retry_after: options.retry_after,
            protocol: options.protocol,
            credentials: options.credentials.clone(),
            shared_memory: options.shared_memory,
            memory: ServerMemory::default(),
            pool: ConnectionPool::new(),
            storing: Arc::default(),
            pipeline: Mutex::default(),
        }
    }

    /// Returns whether the server is down after repeated failures.
    pub fn is_down(&self) -> bool {
        self.state().is_down()
    }

    /// Takes a connection for one call.
    ///
    /// # Errors
    /// The server is down, or cannot be reached.
    pub fn take(&self) -> Result<Connection, Failure> {
        if self.remote.is_some() && self.storing.load(Ordering::Acquire) > 0 {
            // Earlier gathered sets must not wait for this call. There is no pipeline while it connects.
            let current = self.pipeline.try_lock().ok().and_then(|current| current.clone());
            current.iter().for_each(|pipeline| pipeline.send_gathered());
        }
        // Opening an endpoint takes time and much memory, and most calls are short.
        let until = self.remote.is_some().then(|| Instant::now() + self.connect_timeout);
        let _permit = loop {
            match self.pool.take(until)? {
                Lease::Idle(mut connection) => {
                    if connection.begin(self.timeout) {
                        return Ok(connection);
                    }
                    self.forget_form();
                }
                Lease::Connect(permit) => break permit,
            }
        };
        let mut connection = Connection::new(self.connect()?);
        connection.begin(self.timeout);
        Ok(connection)
    }

    /// Returns a connection after a call, and records the call's result.
    pub fn give_back<T>(&self, connection: Connection, done: &Result<T, Failure>) {
        let mut state = self.state();
        let forgotten = self.note_in(&mut state, done.as_ref().map(|_| ()));
        let is_broken = done.as_ref().err().is_some_and(Failure::breaks) || connection.is_unsure();
        let closed = if is_broken { Some(connection) } else { self.pool.put(&mut state, connection) };
        // Over the fabric, closing takes a while.
        drop(state);
        drop((closed, forgotten));
    }

    /// Runs one call with its own connection.
    ///
    /// # Errors
    /// As `call` reports, or connecting fails.
    pub fn call<T>(&self, call: impl FnOnce(&mut Connection) -> Result<T, Failure>) -> Result<T, Error> {
        let done = self.take().and_then(|mut connection| {
            let done = call(&mut connection);
            self.give_back(connection, &done);
            done
        });
        done.map_err(|failure| self.error(failure))
    }

    /// Returns the failure with the server's name.
    pub fn error(&self, failure: Failure) -> Error {
        Error::Server { server: self.address.to_string(), failure }
    }

    /// Returns the connection of non-blocking calls, which all threads share.
    ///
    /// # Errors
    /// The server is down, or cannot be reached.
    pub fn pipeline(self: &Arc<Self>) -> Result<Arc<Pipeline>, Failure> {
        if self.is_down() {
            return Err(Failure::Down);
        }
        let mut current = self.pipeline.lock().expect("no thread panics while it connects");
        match current.as_ref() {
            Some(pipeline) if pipeline.is_usable() => return Ok(Arc::clone(pipeline)),
            Some(_) => self.forget_form(),
            None => {}
        }
        let pipeline = self.new_pipeline(self.connect()?)?;
        Ok(Arc::clone(current.insert(pipeline)))
    }

    /// Makes the connection of non-blocking calls over a stream.
    ///
    /// # Errors
    /// The system cannot wait for the stream.
    pub fn new_pipeline(self: &Arc<Server>, stream: Box<dyn Stream>) -> Result<Arc<Pipeline>, Failure> {
        let server: Arc<dyn Observer> = self.clone();
        let name = self.address.to_string();
        Pipeline::new(Arc::downgrade(&server), name, self.storing(), stream, self.timeout)
            .map_err(Failure::Connect)
    }

    /// Replaces the connection of non-blocking calls.
    #[cfg(test)]
    pub fn put_pipeline(&self, pipeline: Arc<Pipeline>) {
        *self.pipeline.lock().expect("no thread panics while it connects") = Some(pipeline);
    }

    /// Handles a closed connection: a different server may have taken over.
    fn forget_form(&self) {
        self.state().encoding = None;
    }

    /// Records a call's result.
    pub fn note(&self, done: Result<(), &Failure>) {
        let forgotten = self.note_in(&mut self.state(), done);
        drop(forgotten);
    }

    /// Like [`Server::note`]; returns connections to close once no lock is held.
    fn note_in(&self, state: &mut State, done: Result<(), &Failure>) -> VecDeque<Connection> {
        let Some(failure) = done.err().filter(|failure| failure.breaks()) else {
            (state.failures, state.down_until) = (0, None);
            return VecDeque::new();
        };
        state.failures += 1;
        state.encoding = None;
        if let Some(remote) = self.remote.as_ref().filter(|_| failure.is_hang_up()) {
            remote.forget();
        }
        if state.failures >= self.failures_max {
            state.down_until = Some(Instant::now() + self.retry_after);
        }
        state.take_idle()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.pool.lock()
    }
}

impl Server {
    /// Requests a value, which replaces the contents of `value`.
    pub fn get(
        &self,
        key: &[u8],
        ttl: Option<Ttl>,
        sample: Option<LatencySample>,
        value: &mut Vec<u8>,
    ) -> Result<Option<Flags>, Error> {
        let command = Command { key, action: Action::Get { touch: ttl.map(Ttl::exptime) } };
        let requested = self.call(|connection| match connection.request(&command, b"", value)? {
            Answer::Value(flags) => Ok(Some(flags)),
            Answer::Miss => Ok(None),
            other => Err(Failure::unexpected(&other)),
        })?;
        if let Some(sample) = sample {
            self.note_time(sample, Instant::now(), requested.as_ref().map(|_| value.len()));
        }
        Ok(requested)
    }
}

impl Observer for Server {
    fn note(&self, outcome: Result<(), &Failure>) {
        Server::note(self, outcome);
    }

    fn note_time(&self, sample: LatencySample, ended: Instant, value_bytes: Option<usize>) {
        Server::note_time(self, sample, ended, value_bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use clap::Parser;
    use fabcache_layout::KeyHash;
    use fabcache_server::options::CommandLine;
    use fabcache_server::{Server as Fabcached, Settings};
    use fabcache_testbed::local::LocalServer;

    use super::*;
    use crate::Options;
    use crate::bounds::{IDLE_CONNECTIONS_KEPT, IDLE_TIME_MAX, TRUSTED_IDLE};

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("fabcache-server-{name}-{}", std::process::id()))
    }

    fn server(path: &std::path::Path, shared_memory: SharedMemory) -> Server {
        let address = format!("unix://{}", path.display()).parse().expect("an address");
        Server::new(address, &Options { shared_memory, protocol: Protocol::Meta, ..Options::default() })
    }

    #[test]
    fn closed_connection_is_not_pooled() {
        let path = path("closed");
        let listener = UnixListener::bind(&path).expect("a path");
        let server = server(&path, SharedMemory::Never);
        let connection = server.take().expect("the server listens");
        server.give_back(connection, &Ok(()));
        assert_eq!(server.state().idle(), 1);
        drop(listener.accept().expect("a connection"));
        std::thread::sleep(2 * TRUSTED_IDLE);
        listener.set_nonblocking(true).expect("a listener");
        server.report_accesses(&[(KeyHash(1), 1)]);
        assert!(listener.accept().is_ok(), "a new connection was opened");
        std::fs::remove_file(path).expect("the socket file");
    }

    #[test]
    fn pool_keeps_one_connection_per_concurrent_caller() {
        const THREADS: usize = 40;
        let path = path("many");
        let listener = UnixListener::bind(&path).expect("a path");
        let server = server(&path, SharedMemory::Never);
        let take_all =
            || -> Vec<_> { (0..THREADS).map(|_| server.take().expect("the server listens")).collect() };
        let mut accepted = Vec::new();
        for _ in 0..3 {
            take_all().into_iter().for_each(|connection| server.give_back(connection, &Ok(())));
            listener.set_nonblocking(true).expect("a listener");
            accepted.extend(std::iter::from_fn(|| listener.accept().ok()));
        }
        assert_eq!((accepted.len(), server.state().idle()), (THREADS, THREADS));
        let mut all = take_all();
        let used = all.split_off(THREADS / 2);
        all.iter_mut().for_each(|connection| connection.age(IDLE_TIME_MAX));
        all.into_iter().chain(used).for_each(|connection| server.give_back(connection, &Ok(())));
        assert_eq!(server.state().idle(), THREADS / 2, "the others were unused for long");
        let mut all = take_all();
        all.iter_mut().for_each(|connection| connection.age(IDLE_TIME_MAX));
        all.into_iter().for_each(|connection| server.give_back(connection, &Ok(())));
        assert_eq!(server.state().idle(), IDLE_CONNECTIONS_KEPT);
        std::fs::remove_file(path).expect("the socket file");
    }

    #[test]
    fn memory_is_read_no_more_after_an_attachment_without_it() {
        let (running, path) = LocalServer::unix("without", "-m 8 --shm");
        let server = server(&path, SharedMemory::Required);
        drop(server.take().expect("the server shares its memory"));
        server.memory.readers.put(server.new_reader().expect("memory"));
        let in_use = server.new_reader().expect("memory");
        server.memory.change(None);
        assert!(server.memory.readers.take().is_none() && server.new_reader().is_none());
        server.keep(in_use, false);
        assert!(server.memory.readers.take().is_none(), "the reader's region is outdated");
        running.stop().expect("no thread failed");
    }

    #[test]
    fn dead_servers_reader_does_not_unmap_its_successors_region() {
        let path = path("next");
        let line = format!("fabcached -t 1 -m 8 -s {} --shm", path.display());
        let start = || {
            let parsed = CommandLine::try_parse_from(line.split_whitespace()).expect("flags");
            let settings = Settings::new(&parsed.options, &|_| None).expect("settings");
            Fabcached::start(settings, Vec::new()).expect("a server")
        };
        let server = server(&path, SharedMemory::Required);
        let first = start();
        drop(server.take().expect("the server shares its memory"));
        let (late, idle) = (server.new_reader().expect("memory"), server.new_reader().expect("memory"));
        first.stop().expect("no thread failed");
        let second = start();
        drop(server.take().expect("the server shares its memory"));
        let current = server.new_reader().expect("memory");
        for reader in [idle, current] {
            server.memory.readers.put(reader);
        }
        server.keep(late, true);
        assert!(server.memory.readers.take().is_some_and(|reader| reader.is_alive()), "the usable reader");
        assert!(server.memory.readers.take().is_none(), "and no other");
        let former = server.new_reader().expect("the second server's memory is still read");
        server.memory.readers.change_region();
        server.memory.readers.put(former);
        assert!(server.memory.readers.take().is_none(), "the reader's region is outdated");
        second.stop().expect("no thread failed");
    }
}
