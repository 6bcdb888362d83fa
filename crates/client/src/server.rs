//! One server: its idle connections, and whether it is thought to be up.

mod kept;

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fabcache_layout::KeyHash;

use self::kept::{Kept, State};
use crate::address::{Address, Place};
use crate::bounds::{HANG_UPS_MAX, KEYS_READ_AT_ONCE, TIMEOUT_MAX};
use crate::client::Transport;
use crate::connection::Connection;
use crate::error::{Error, Failure};
use crate::fabric::{self, Among, Asked, Begun, Ended, Remote, Target, Timed};
use crate::input::protocol;
use crate::message::Form;
use crate::meta::refusal;
use crate::options::{Credentials, Protocol, SharedMemory};
use crate::packet::Order;
use crate::pipeline::Pipeline;
use crate::registered::{Found, RegisteredBuffer};
use crate::shm::{self, Attached, Items, Read, Reader, Readers, Refusal, accesses_lines};
use crate::socket::{Socket, ask_for_line, ask_for_packet};
use crate::stream::Stream;
use crate::ways;

/// One server.
#[derive(Debug)]
pub struct Server {
    /// Where it is.
    pub address: Address,
    connect_timeout: Duration,
    timeout: Duration,
    failures_max: u32,
    retry_after: Duration,
    kept: Kept,
    protocol: Protocol,
    credentials: Option<Credentials>,
    shared_memory: SharedMemory,
    memory: Memory,
    /// Where it is reached over the fabric.
    remote: Option<Box<Remote>>,
    /// How the last connection was made.
    transport: Mutex<Option<Transport>>,
    /// Operations in flight that store, of calls that do not wait.
    storing: Arc<AtomicUsize>,
    /// The connection of all calls that do not wait. Held while it is made: who needs it would wait all the same.
    pipeline: Mutex<Option<Arc<Pipeline>>>,
}

/// What is known of a server's memory.
#[derive(Debug, Default)]
struct Memory {
    /// Readers that nobody uses.
    readers: Readers,
    items: Mutex<Option<Arc<Items>>>,
}

/// A key that is to be read from a server's memory soon.
#[derive(Debug)]
pub enum Ticket {
    /// It is read when it is asked for.
    Memory(shm::Ticket),
    /// It is being read.
    Afar(Begun),
}

/// What came of asking for another way than the socket.
enum Way {
    /// Requests go there, and are packets mostly.
    Other(Transport, Box<dyn Stream>),
    /// The socket goes on as it was.
    Socket(Transport),
    /// This one goes on instead.
    Another(Transport, Socket),
}

impl Server {
    /// A server to which nothing is connected yet.
    pub fn new(address: Address, options: &crate::Options) -> Server {
        let is_remote = matches!(address.place, Place::Fabric { .. });
        let timeout = options.timeout.min(TIMEOUT_MAX);
        Server {
            remote: is_remote.then(|| Box::new(Remote::new(options.fabric.clone(), timeout))),
            transport: Mutex::default(),
            address,
            connect_timeout: options.connect_timeout,
            timeout,
            failures_max: options.failures_max.max(1),
            retry_after: options.retry_after,
            protocol: options.protocol,
            credentials: options.credentials.clone(),
            shared_memory: options.shared_memory,
            memory: Memory::default(),
            kept: Kept::new(),
            storing: Arc::default(),
            pipeline: Mutex::default(),
        }
    }

    /// Has failed so often that it is not asked for now.
    pub fn is_down(&self) -> bool {
        self.state().is_down()
    }

    /// A connection for one call.
    ///
    /// # Errors
    /// It is down, or cannot be reached.
    pub fn take(&self) -> Result<Connection, Failure> {
        if self.remote.is_some() && self.storing.load(Ordering::Acquire) > 0 {
            // What was to be stored before does not wait for this call. While it connects there is nothing.
            let current = self.pipeline.try_lock().ok().and_then(|current| current.clone());
            current.iter().for_each(|pipeline| pipeline.send_gathered());
        }
        // An endpoint takes some time and much memory, and most calls no more than a moment.
        let until = self.remote.is_some().then(|| Instant::now() + self.connect_timeout);
        let _making = loop {
            match self.kept.take(until)? {
                Ok(mut connection) => {
                    if connection.begin(self.timeout) {
                        return Ok(connection);
                    }
                    self.forget_form();
                }
                Err(making) => break making,
            }
        };
        let mut connection = Connection::new(self.connect()?);
        connection.begin(self.timeout);
        Ok(connection)
    }

    /// Gives a connection back after a call that came to this; notes what that says of the server.
    pub fn give_back<T>(&self, connection: Connection, done: &Result<T, Failure>) {
        let mut state = self.state();
        self.note_in(&mut state, done.as_ref().map(|_| ()));
        let is_broken = done.as_ref().err().is_some_and(Failure::breaks) || connection.is_unsure();
        let closed = if is_broken { Some(connection) } else { self.kept.put(&mut state, connection) };
        // Over the fabric that takes a while.
        drop(state);
        drop(closed);
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
        match current.as_ref() {
            Some(pipeline) if pipeline.is_usable() => return Ok(Arc::clone(pipeline)),
            Some(_) => self.forget_form(),
            None => {}
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
        let deadline = Instant::now() + self.connect_timeout;
        let known = match self.protocol {
            Protocol::Auto => self.state().form,
            Protocol::Meta => Some(Form::Meta),
            Protocol::Binary => Some(Form::Binary),
            Protocol::Text => Some(Form::Text),
        };
        let stream = match known {
            Some(form) => self.connect_in(form, deadline),
            None => self.find_out(deadline),
        };
        stream
            .map_err(|failure| match failure {
                Failure::Refused(why) => Failure::Rejected(why),
                other => other,
            })
            .inspect_err(|failure| self.note(Err(failure)))
    }

    fn connect_in(&self, form: Form, deadline: Instant) -> Result<Box<dyn Stream>, Failure> {
        let socket = self.socket(form, deadline)?;
        match self.other_way(&socket, deadline)? {
            Way::Other(transport, stream) => Ok(self.connected(transport, stream)),
            Way::Socket(transport) => Ok(self.connected(transport, Box::new(socket))),
            Way::Another(transport, socket) => Ok(self.connected(transport, Box::new(socket))),
        }
    }

    /// Connects, and finds out what the server takes.
    fn find_out(&self, deadline: Instant) -> Result<Box<dyn Stream>, Failure> {
        for _ in 0..HANG_UPS_MAX {
            let mut deadline = deadline;
            let mut socket = self.socket(Form::Meta, deadline)?;
            let way = self.other_way(&socket, deadline);
            // Nothing but a hang-up says that the next connection may do better.
            let hung_up = |failure: &Failure| failure.is_hang_up() && !self.needs_other_way();
            let transport = match way {
                Ok(Way::Other(transport, stream)) => {
                    self.state().form = Some(Form::Meta);
                    return Ok(self.connected(transport, stream));
                }
                Ok(Way::Socket(transport)) => Ok(transport),
                Ok(Way::Another(transport, another)) => {
                    (socket, deadline) = (another, Instant::now() + self.connect_timeout);
                    Ok(transport)
                }
                Err(failure) => Err(failure),
            };
            let asked = transport.and_then(|transport| {
                ask_for_line(&socket.socket, "mn\r\n", deadline).map(|(line, _)| (line, transport))
            });
            match asked {
                Ok((line, transport)) => {
                    socket.form = form_of(line.trim_end())?;
                    self.state().form = Some(socket.form);
                    return Ok(self.connected(transport, Box::new(socket)));
                }
                Err(failure) if hung_up(&failure) => {}
                Err(failure) => return Err(failure),
            }
        }
        let stream = self.connect_in(Form::Text, deadline)?;
        self.state().form = Some(Form::Text);
        Ok(stream)
    }

    /// A socket on which the server knows who this is.
    fn socket(&self, form: Form, deadline: Instant) -> Result<Socket, Failure> {
        let patience = deadline.saturating_duration_since(Instant::now());
        if patience.is_zero() {
            return Err(Failure::Connect(io::ErrorKind::TimedOut.into()));
        }
        let socket = Socket::connect(&self.address.place, form, patience).map_err(Failure::Connect)?;
        if let Some(credentials) = &self.credentials {
            authenticate(&socket, credentials, deadline)?;
        }
        Ok(socket)
    }

    // ---- other ways than the socket ----

    /// Asks the server for its memory or the fabric, if this client is to have any.
    fn other_way(&self, socket: &Socket, deadline: Instant) -> Result<Way, Failure> {
        // Who does not know the meta protocol is no server that has either.
        let is_other = self.protocol == Protocol::Auto && socket.form == Form::Text;
        match (&self.address.place, &self.remote) {
            (_, Some(remote)) => self.over_fabric(remote, socket, is_other, deadline),
            (Place::Unix(_), _) => self.share_memory(socket, is_other, deadline),
            (Place::Tcp { .. } | Place::Fabric { .. }, _) => Ok(Way::Socket(Transport::Tcp)),
        }
    }

    /// The socket alone will not do.
    fn needs_other_way(&self) -> bool {
        match &self.remote {
            Some(remote) => !remote.wanted.or_tcp,
            None => self.must_share_memory(),
        }
    }

    fn share_memory(&self, socket: &Socket, is_other: bool, deadline: Instant) -> Result<Way, Failure> {
        if self.shared_memory == SharedMemory::Never || is_other {
            return Ok(Way::Socket(Transport::Unix { why: None }));
        }
        let known = self.memory.items().clone();
        match shm::attach(socket, known.as_ref(), deadline)? {
            Ok(Attached { stream, items }) => {
                let former = self.memory.items().replace(Arc::clone(&items));
                if former.is_some_and(|former| !Arc::ptr_eq(&former, &items)) {
                    self.memory.readers.change_region();
                }
                Ok(Way::Other(Transport::SharedMemory, Box::new(stream)))
            }
            Err(Refusal(why)) if self.must_share_memory() => {
                Err(Failure::Refused(format!("it shares no memory: {why}")))
            }
            Err(Refusal(why)) => Ok(Way::Socket(Transport::Unix { why: Some(why) })),
        }
    }

    fn must_share_memory(&self) -> bool {
        self.shared_memory == SharedMemory::Required && matches!(self.address.place, Place::Unix(_))
    }

    fn over_fabric(
        &self,
        remote: &Remote,
        socket: &Socket,
        is_other: bool,
        deadline: Instant,
    ) -> Result<Way, Failure> {
        let unreached = remote.unreached().filter(|_| remote.wanted.or_tcp);
        let attached = if is_other {
            Err(Refusal("it speaks the text protocol only".into()))
        } else if let Some(why) = unreached {
            Err(Refusal(why))
        } else {
            fabric::attach(socket, remote, deadline)?
        };
        match attached {
            Ok((transport, mut stream)) => match fabric::prove(&mut stream, Instant::now() + self.timeout) {
                Ok(()) => Ok(Way::Other(transport, Box::new(stream))),
                Err(why) => self.instead_of_fabric(remote, socket.form, why),
            },
            Err(Refusal(why)) if remote.wanted.or_tcp => Ok(Way::Socket(Transport::InsteadOfFabric { why })),
            Err(Refusal(why)) => Err(Failure::Refused(format!("not over the fabric: {why}"))),
        }
    }

    /// After the fabric was agreed on, and nothing got through: the socket is spent.
    fn instead_of_fabric(&self, remote: &Remote, form: Form, why: String) -> Result<Way, Failure> {
        let why = format!("the fabric was agreed on, but not reached: {why}");
        if !remote.wanted.or_tcp {
            remote.forget();
            return Err(Failure::Connect(io::Error::new(io::ErrorKind::TimedOut, why)));
        }
        remote.note_unreached(why.clone(), self.retry_after);
        let socket = self.socket(form, Instant::now() + self.connect_timeout)?;
        Ok(Way::Another(Transport::InsteadOfFabric { why }, socket))
    }

    fn connected(&self, transport: Transport, stream: Box<dyn Stream>) -> Box<dyn Stream> {
        *self.known_transport() = Some(transport);
        stream
    }

    /// How it was last connected to; none before that.
    pub fn transport(&self) -> Option<Transport> {
        self.known_transport().clone()
    }

    fn known_transport(&self) -> MutexGuard<'_, Option<Transport>> {
        self.transport.lock().expect("no thread panics while it notes how a server is reached")
    }

    // ---- reading its memory ----

    /// Reads a key from the server's memory, if it is to be read; a value replaces what is in `value`. Where the server is to be
    /// asked, with what [`Server::note_time`] is to be told then.
    pub fn read(&self, key: &[u8], value: &mut Vec<u8>) -> (Read, Option<Timed>) {
        match self.reader() {
            Some(reader) => (self.read_by(reader, |reader| reader.get(key, value)), None),
            None => self.read_afar(key, value),
        }
    }

    #[cold]
    fn read_afar(&self, key: &[u8], value: &mut Vec<u8>) -> (Read, Option<Timed>) {
        let mut target = Target::new(std::mem::take(value), None);
        match self.begin_afar(key, Among::None, &mut target) {
            Ok(begun) => (self.end_afar_into(begun, value), None),
            Err(Asked { timed }) => {
                *value = target.value;
                (Read::Ask, timed)
            }
        }
    }

    /// The same into registered memory.
    pub fn read_registered(&self, key: &[u8], buffer: &mut RegisteredBuffer) -> (Read, Option<Timed>) {
        if let Some(reader) = self.reader() {
            return (self.read_by(reader, |reader| reader.get(key, buffer.other())), None);
        }
        let mut target = buffer.target();
        match self.begin_afar(key, Among::None, &mut target) {
            Ok(begun) => (self.end_registered(begun, buffer), None),
            Err(Asked { timed }) => {
                buffer.take_back(target.value, Found::Nothing);
                (Read::Ask, timed)
            }
        }
    }

    fn end_registered(&self, begun: Begun, buffer: &mut RegisteredBuffer) -> Read {
        let (read, value, within) = self.end_afar(begun);
        let found = match read {
            Read::Hit { .. } => within.map_or(Found::Other, Found::Within),
            _ => Found::Nothing,
        };
        if buffer.take_back(value, found) { read } else { Read::Ask }
    }

    fn begin_afar(&self, key: &[u8], among: Among, target: &mut Target) -> Result<Begun, Asked> {
        self.remote.as_ref().ok_or(Asked { timed: None })?.begin(key, among, target)
    }

    /// The server was asked until then, and a value has so many bytes if there is one.
    pub fn note_time(&self, timed: Timed, ended: Instant, value_bytes: Option<usize>) {
        if let Some(remote) = &self.remote {
            remote.note_time(timed, ended, value_bytes);
        }
    }

    /// What it came to, where no registered memory was given.
    fn end_afar_into(&self, begun: Begun, value: &mut Vec<u8>) -> Read {
        let (read, found, _) = self.end_afar(begun);
        *value = found;
        read
    }

    /// What it came to, with the value, or where it lies in registered memory.
    fn end_afar(&self, begun: Begun) -> (Read, Vec<u8>, Option<Range<usize>>) {
        let Some(remote) = &self.remote else { return (Read::Ask, Vec::new(), None) };
        let Ended { read, mut value, within, accesses } = remote.end(begun);
        if !matches!(read, Read::Hit { .. }) {
            // It may have been read in part.
            value.clear();
        }
        if let Some(accesses) = accesses {
            self.tell(&accesses);
        }
        (read, value, within)
    }

    #[inline]
    fn read_by(&self, mut reader: Box<Reader>, read: impl FnOnce(&mut Reader) -> Read) -> Read {
        let read = read(&mut reader);
        self.keep(reader, matches!(read, Read::Gone));
        read
    }

    /// The same, where nothing is waited for: not even to tell the server of reads, which is left to [`Server::read`].
    pub fn glance(&self, key: &[u8], value: &mut Vec<u8>) -> Read {
        let Some(mut reader) = self.reader() else { return Read::Ask };
        let read = if reader.must_tell() { Read::Ask } else { reader.get(key, value) };
        if matches!(read, Read::Gone) {
            self.forget_dead();
        } else {
            self.memory.readers.put(reader);
        }
        read
    }

    /// A key that is to be read from the server's memory soon.
    ///
    /// # Errors
    /// The server is to be asked: its memory is not shared, that is faster, or a value is on its way to be stored, and a get
    /// sees what was to be stored before it.
    pub fn foresee(&self, key: &[u8], target: &mut Target) -> Result<Ticket, Asked> {
        if self.storing.load(Ordering::Acquire) > 0 {
            return Err(Asked { timed: None });
        }
        let Some(mut reader) = self.reader() else {
            return self.begin_afar(key, Among::Window, target).map(Ticket::Afar);
        };
        let ticket = reader.foresee(key);
        self.memory.readers.put(reader);
        Ok(Ticket::Memory(ticket))
    }

    /// Reads a key that was foreseen; a value replaces what is in `value`, or is in the registered memory that was given.
    pub fn read_foreseen(
        &self,
        key: &[u8],
        ticket: Ticket,
        value: &mut Vec<u8>,
        registered: Option<&mut RegisteredBuffer>,
    ) -> Read {
        match (ticket, self.reader(), registered) {
            (Ticket::Memory(ticket), Some(reader), registered) => {
                let value = registered.map_or(value, RegisteredBuffer::other);
                self.read_by(reader, |reader| reader.get_foreseen(key, ticket, value))
            }
            (Ticket::Memory(_), None, _) => Read::Ask,
            (Ticket::Afar(begun), _, Some(registered)) => self.end_registered(begun, registered),
            (Ticket::Afar(begun), _, None) => self.end_afar_into(begun, value),
        }
    }

    /// Counts operations in flight that store.
    pub fn storing(&self) -> &Arc<AtomicUsize> {
        &self.storing
    }

    /// Reads many keys from the server's memory, if that is shared, with their memory misses overlapped. `take` is told of
    /// each in order, and may take its value. Returns what [`Server::note_time`] is to be told, if all are to be asked for because
    /// that is faster.
    pub fn read_many<'k>(
        &self,
        count: usize,
        key: impl Fn(usize) -> &'k [u8],
        mut take: impl FnMut(usize, Read, &mut Vec<u8>),
    ) -> Option<Timed> {
        let Some(mut reader) = self.reader() else { return self.read_many_afar(count, key, take) };
        for from in (0..count).step_by(KEYS_READ_AT_ONCE) {
            let mut is_gone = false;
            reader.get_many(
                (count - from).min(KEYS_READ_AT_ONCE),
                |number| key(from + number),
                |number, found, value| {
                    is_gone |= matches!(found, Read::Gone);
                    take(from + number, found, value);
                },
            );
            self.tell_of(&mut reader);
            if is_gone {
                (from + KEYS_READ_AT_ONCE..count)
                    .for_each(|number| take(number, Read::Gone, &mut Vec::new()));
                self.keep(reader, true);
                return None;
            }
        }
        self.keep(reader, false);
        None
    }

    fn read_many_afar<'k>(
        &self,
        count: usize,
        key: impl Fn(usize) -> &'k [u8],
        mut take: impl FnMut(usize, Read, &mut Vec<u8>),
    ) -> Option<Timed> {
        let timed = self.remote.as_ref().and_then(|remote| remote.choose_many(count, &key));
        if timed.is_some_and(|timed| timed.way == ways::Way::Request) {
            (0..count).for_each(|number| take(number, Read::Ask, &mut Vec::new()));
            return timed;
        }
        let (mut under_way, mut value_bytes) = (VecDeque::new(), None);
        let mut end = |number, begun: Option<Begun>| {
            let mut value = Vec::new();
            let read = begun.map_or(Read::Ask, |begun| self.end_afar_into(begun, &mut value));
            if matches!(read, Read::Hit { .. }) {
                value_bytes = Some(value.len());
            }
            take(number, read, &mut value);
        };
        for number in 0..count {
            let begun = loop {
                let begun = self.begin_afar(key(number), Among::Chosen, &mut Target::default()).ok();
                // Where there is no room for more, one that is over makes some.
                match (begun, under_way.pop_front()) {
                    (None, Some((first, begun))) => end(first, begun),
                    (begun, first) => {
                        first.into_iter().for_each(|first| under_way.push_front(first));
                        break begun;
                    }
                }
            };
            under_way.push_back((number, begun));
        }
        under_way.into_iter().for_each(|(number, begun)| end(number, begun));
        if let Some(timed) = timed {
            self.note_time(timed, Instant::now(), value_bytes);
        }
        None
    }

    /// Gives a reader back, after it found the server there or gone.
    #[inline]
    fn keep(&self, mut reader: Box<Reader>, is_gone: bool) {
        if is_gone {
            return self.forget_dead();
        }
        self.tell_of(&mut reader);
        self.memory.readers.put(reader);
    }

    #[cold]
    fn forget_dead(&self) {
        // Those that others use find out themselves; and another server's memory may be there already.
        self.memory.readers.retain(Reader::is_alive);
        self.memory.items().take_if(|items| !items.is_alive());
    }

    #[inline]
    fn reader(&self) -> Option<Box<Reader>> {
        self.memory.readers.take().or_else(|| self.new_reader())
    }

    #[cold]
    fn new_reader(&self) -> Option<Box<Reader>> {
        // Before the items are looked up: at worst it is taken for one of the former.
        let region = self.memory.readers.region();
        let items = self.memory.items().clone()?;
        items.reader(region).ok()
    }

    /// Tells the server of what was read, if that is enough to be told.
    #[inline]
    fn tell_of(&self, reader: &mut Reader) {
        if let Some(accesses) = reader.take_accesses() {
            self.tell(&accesses);
        }
    }

    /// Tells the server of reads. Where that fails nothing is lost but what it would have known.
    #[cold]
    fn tell(&self, accesses: &[(KeyHash, u8)]) {
        let Ok(mut connection) = self.take() else { return };
        if connection.form() != Form::Mixed {
            // It shares no memory any more.
            return self.give_back(connection, &Ok(()));
        }
        let lines = accesses_lines(accesses);
        let told = connection.send([lines.as_bytes()]);
        self.give_back(connection, &told);
    }

    /// A connection was closed: what is there now may be another server.
    fn forget_form(&self) {
        self.state().form = None;
    }

    /// Notes what a call came to.
    pub fn note(&self, done: Result<(), &Failure>) {
        self.note_in(&mut self.state(), done);
    }

    fn note_in(&self, state: &mut State, done: Result<(), &Failure>) {
        match done {
            Err(failure) if failure.breaks() => {
                state.failures += 1;
                state.forget_idle();
                state.form = None;
                if let Some(remote) = self.remote.as_ref().filter(|_| failure.is_hang_up()) {
                    remote.forget();
                }
                if state.failures >= self.failures_max {
                    state.down_until = Some(Instant::now() + self.retry_after);
                }
            }
            _ => (state.failures, state.down_until) = (0, None),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.kept.lock()
    }
}

impl Memory {
    fn items(&self) -> MutexGuard<'_, Option<Arc<Items>>> {
        self.items.lock().expect("no thread panics while it holds what is known of memory")
    }
}

/// What a server takes that answers so to a question of the meta protocol.
fn form_of(line: &str) -> Result<Form, Failure> {
    match line {
        "MN" => Ok(Form::Meta),
        "ERROR" => Ok(Form::Text),
        other => {
            refusal(other)?;
            Err(protocol(other.as_bytes()))
        }
    }
}

/// Says who this is: by text a `set` of any key with `user password` as its value, by packets SASL PLAIN (RFC 4616).
fn authenticate(socket: &Socket, credentials: &Credentials, deadline: Instant) -> Result<(), Failure> {
    let Credentials { user, password } = credentials;
    if socket.form == Form::Binary {
        let mechanisms = ask_for_packet(&socket.socket, Order::Mechanisms, deadline)?;
        if !mechanisms.split_ascii_whitespace().any(|mechanism| mechanism == PLAIN) {
            let why = format!("clients do not authenticate by SASL {PLAIN} but by {mechanisms:?}");
            return Err(Failure::Refused(why));
        }
        let token = format!("\0{user}\0{password}");
        let order = Order::Authenticate { mechanism: PLAIN, token: &token };
        return ask_for_packet(&socket.socket, order, deadline).map(|_| ());
    }
    let token = format!("{user} {password}");
    let request = format!("set auth 0 0 {}\r\n{token}\r\n", token.len());
    let (line, _) = ask_for_line(&socket.socket, &request, deadline)?;
    refusal(line.trim_end())?;
    if line == "STORED\r\n" { Ok(()) } else { Err(protocol(line.as_bytes())) }
}

const PLAIN: &str = "PLAIN";

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use clap::Parser;
    use fabcache_server::options::CommandLine;
    use fabcache_server::{Server as Fabcached, Settings};

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
    fn a_connection_that_the_server_closed_is_not_kept_for_the_next_call() {
        let path = path("closed");
        let listener = UnixListener::bind(&path).expect("a path");
        let server = server(&path, SharedMemory::Never);
        let connection = server.take().expect("it listens");
        server.give_back(connection, &Ok(()));
        assert_eq!(server.state().idle(), 1);
        drop(listener.accept().expect("it came"));
        std::thread::sleep(2 * TRUSTED_IDLE);
        listener.set_nonblocking(true).expect("it can");
        server.tell(&[(KeyHash(1), 1)]);
        assert!(listener.accept().is_ok(), "it was told over another");
        std::fs::remove_file(path).expect("its own");
    }

    #[test]
    fn as_many_connections_are_kept_as_threads_have_called_at_once() {
        const THREADS: usize = 40;
        let path = path("many");
        let listener = UnixListener::bind(&path).expect("a path");
        let server = server(&path, SharedMemory::Never);
        let take_all = || -> Vec<_> { (0..THREADS).map(|_| server.take().expect("it listens")).collect() };
        let mut accepted = Vec::new();
        for _ in 0..3 {
            take_all().into_iter().for_each(|connection| server.give_back(connection, &Ok(())));
            listener.set_nonblocking(true).expect("it can");
            accepted.extend(std::iter::from_fn(|| listener.accept().ok()));
        }
        assert_eq!((accepted.len(), server.state().idle()), (THREADS, THREADS));
        let mut all = take_all();
        let used = all.split_off(THREADS / 2);
        all.iter_mut().for_each(|connection| connection.age(IDLE_TIME_MAX));
        all.into_iter().chain(used).for_each(|connection| server.give_back(connection, &Ok(())));
        assert_eq!(server.state().idle(), THREADS / 2, "nobody has used the others lately");
        let mut all = take_all();
        all.iter_mut().for_each(|connection| connection.age(IDLE_TIME_MAX));
        all.into_iter().for_each(|connection| server.give_back(connection, &Ok(())));
        assert_eq!(server.state().idle(), IDLE_CONNECTIONS_KEPT);
        std::fs::remove_file(path).expect("its own");
    }

    #[test]
    fn a_dead_servers_reader_does_not_take_away_the_memory_of_the_next() {
        let path = path("next");
        let line = format!("fabcached -t 1 -m 8 -s {} --shm", path.display());
        let start = || {
            let parsed = CommandLine::try_parse_from(line.split_whitespace()).expect("flags");
            let settings = Settings::new(&parsed.options, &|_| None).expect("settings");
            Fabcached::start(settings, Vec::new()).expect("a server")
        };
        let server = server(&path, SharedMemory::Required);
        let first = start();
        drop(server.take().expect("it shares its memory"));
        let (late, idle) = (server.new_reader().expect("memory"), server.new_reader().expect("memory"));
        first.stop().expect("no thread failed");
        let second = start();
        drop(server.take().expect("it shares its memory"));
        let current = server.new_reader().expect("memory");
        for reader in [idle, current] {
            server.memory.readers.put(reader);
        }
        server.keep(late, true);
        assert!(
            server.memory.readers.take().is_some_and(|reader| reader.is_alive()),
            "the one that is of use"
        );
        assert!(server.memory.readers.take().is_none(), "and no other");
        let former = server.new_reader().expect("the second server's memory is still read");
        server.memory.readers.change_region();
        server.memory.readers.put(former);
        assert!(server.memory.readers.take().is_none(), "it lives, but is another region's by now");
        second.stop().expect("no thread failed");
    }
}
