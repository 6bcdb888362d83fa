//! A server of a handle, and the calls to it.
//!
//! ```text
//!   new --answers--> connected --cannot be connected to--> in timeout --its time is over--> new
//! ```
//! While it is in timeout it is not asked. After so many failures as the handle allows it stays there, or, where failed
//! servers are left out, its keys belong to others.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::io::ErrorKind;
use std::mem::offset_of;
use std::path::Path;
use std::time::Duration;

use fabcache_client::{Client, Error, Failure, Options, Outcome, Protocol, Request};

use super::clock::now;
use super::constants::*;
use super::report::{ErrorContext, Report};
use super::types::{flags, memcached_st};

/// A server of a handle. Public headers hide its contents; but Debian's `memcping` was built with libmemcached's
/// private ones, and reads port and host at these offsets.
#[repr(C)]
pub struct memcached_instance_st {
    before_port: [u8; PORT_AT],
    /// A program may change it before the first connection; libmemcached resolves an address once.
    pub(crate) port: Cell<u16>,
    /// libmemcached's descriptor: always that of no connection, because a server may have several or none.
    fd: Cell<c_int>,
    before_host: [u8; HOST_AT - FD_AT - size_of::<c_int>()],
    /// Host name, or path of a Unix socket, with its end.
    host: [c_char; MEMCACHED_NI_MAXHOST],
    pub(crate) kind: memcached_connection_t,
    pub(crate) weight: u32,
    /// The port of the first connection, and of all later ones.
    connected_port: Cell<Option<u16>>,
    /// Made when it is needed; none again when the handle's settings changed.
    client: RefCell<Option<Client>>,
    /// Stores in flight whose results were not awaited.
    buffered: RefCell<Vec<Request>>,
    /// Requests of `memcached_mget` that were not fetched.
    pub(crate) requested: RefCell<VecDeque<RequestedKey>>,
    pub(crate) state: Cell<memcached_server_state_t>,
    /// One after the other, at most one a query.
    failures: Cell<u32>,
    failure_query: Cell<u64>,
    /// Answers that did not come in time, one after the other.
    timeouts: Cell<u32>,
    /// When a failed server is retried: a Unix time.
    pub(crate) next_retry: Cell<i64>,
    /// Major, minor, micro: all 255 while unknown.
    pub(crate) version: Cell<[u8; 3]>,
    /// The newest last.
    pub(crate) errors: RefCell<Vec<Report>>,
}

/// The prefix of host names that are reached over the fabric, in letters of either case: this library's own.
pub(crate) const FABRIC: &str = "fab://";

/// Returns the rest of a name with this prefix.
pub(crate) fn behind_fabric(name: &[u8]) -> Option<&[u8]> {
    let (before, behind) = name.split_at_checked(FABRIC.len())?;
    before.eq_ignore_ascii_case(FABRIC.as_bytes()).then_some(behind)
}

/// Where libmemcached 1.1.4 has a server's port, its descriptor, and its host.
const PORT_AT: usize = 16;
const FD_AT: usize = 20;
const HOST_AT: usize = 16_576;
const _: () = {
    assert!(offset_of!(memcached_instance_st, port) == PORT_AT);
    assert!(offset_of!(memcached_instance_st, fd) == FD_AT);
    assert!(offset_of!(memcached_instance_st, host) == HOST_AT);
};

/// libmemcached's descriptor of a server without a connection.
const INVALID_SOCKET: c_int = -1;

/// The attributes of a value that was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    /// The client flags it was stored with.
    pub(crate) flags: u32,
    pub(crate) cas: u64,
}

/// A requested key.
#[derive(Debug)]
pub struct RequestedKey {
    pub(crate) request: Request,
    /// Its CAS is requested: the setting at the time of the request.
    pub(crate) tells_cas: bool,
    /// By a group's key.
    pub(crate) is_grouped: bool,
}

/// Maximum number of stores in flight: as many as one connection accepts.
const BUFFERED_MAX: usize = 512;

impl fmt::Debug for memcached_instance_st {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("memcached_instance_st");
        shown.field("name", &self.name()).field("port", &self.port).finish_non_exhaustive()
    }
}

impl memcached_instance_st {
    pub(crate) fn new(
        name: &[u8],
        port: u16,
        kind: memcached_connection_t,
        weight: u32,
    ) -> memcached_instance_st {
        let mut host = [0; MEMCACHED_NI_MAXHOST];
        // The last stays zero.
        for (to, from) in host[..MEMCACHED_NI_MAXHOST - 1].iter_mut().zip(name) {
            *to = from.cast_signed();
        }
        memcached_instance_st {
            before_port: [0; PORT_AT],
            port: Cell::new(port),
            fd: Cell::new(INVALID_SOCKET),
            before_host: [0; HOST_AT - FD_AT - size_of::<c_int>()],
            host,
            kind,
            weight,
            connected_port: Cell::new(None),
            client: RefCell::default(),
            buffered: RefCell::default(),
            requested: RefCell::default(),
            state: Cell::new(MEMCACHED_SERVER_STATE_NEW),
            failures: Cell::new(0),
            failure_query: Cell::new(0),
            timeouts: Cell::new(0),
            next_retry: Cell::new(0),
            version: Cell::new([u8::MAX; 3]),
            errors: RefCell::default(),
        }
    }

    /// Its name: host, or path of a Unix socket.
    pub(crate) fn name(&self) -> &CStr {
        // SAFETY: `new` left a NUL at the end of the array, and nothing writes to it afterwards.
        unsafe { CStr::from_ptr(self.host.as_ptr()) }
    }

    /// Its name as keys are mapped by it: how a host is reached makes no difference.
    pub(crate) fn host(&self) -> Cow<'_, str> {
        let name = self.name().to_bytes();
        String::from_utf8_lossy(behind_fabric(name).unwrap_or(name))
    }

    /// Returns its address for error texts.
    pub(crate) fn place(&self) -> String {
        let name = self.name().to_string_lossy();
        match self.kind {
            MEMCACHED_CONNECTION_UNIX_SOCKET => format!(",  socket: {name}"),
            _ => format!(",  host: {name}:{}", self.port.get()),
        }
    }

    // ---- calls ----

    /// Performs a call, after the stores in flight.
    ///
    /// # Errors
    /// It failed, which is recorded, or the server is down.
    #[inline]
    pub(crate) fn call<T>(
        &self,
        memc: &memcached_st,
        request: impl FnOnce(&Client) -> Result<T, Error>,
    ) -> Result<T, memcached_return_t> {
        self.may_wait(memc)?;
        self.call_in_time(memc, request)
    }

    /// Returns whether an answer may be waited for at all.
    #[inline]
    fn may_wait(&self, memc: &memcached_st) -> Result<(), memcached_return_t> {
        if memc.poll_timeout.get() != 0 {
            return Ok(());
        }
        let reported = ErrorContext { message: "timeout was set to zero", ..ErrorContext::default() };
        Err(memc.fail_of(self, MEMCACHED_TIMEOUT, reported))
    }

    #[inline]
    fn call_in_time<T>(
        &self,
        memc: &memcached_st,
        request: impl FnOnce(&Client) -> Result<T, Error>,
    ) -> Result<T, memcached_return_t> {
        if self.state.get() != MEMCACHED_SERVER_STATE_CONNECTED {
            self.may_be_asked(memc)?;
        }
        if !self.buffered.borrow().is_empty() {
            self.drain(memc)?;
        }
        if !self.requested.borrow().is_empty() {
            // As in libmemcached, where other answers would precede this one's.
            self.requested.borrow_mut().clear();
        }
        let was_connected = self.state.get() == MEMCACHED_SERVER_STATE_CONNECTED;
        match self.with_client(memc, request)? {
            Ok(done) => {
                if !was_connected {
                    self.is_well();
                }
                Ok(done)
            }
            Err(error) => Err(self.failed(memc, &error)),
        }
    }

    /// Reads a value.
    ///
    /// # Errors
    /// As for [`memcached_instance_st::call`].
    #[inline]
    pub(crate) fn get(
        &self,
        memc: &memcached_st,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Option<Attributes>, memcached_return_t> {
        self.call(memc, |client| {
            let found = client.get_into(key, None, value)?;
            Ok(found.map(|found| Attributes { flags: found.flags, cas: found.cas }))
        })
    }

    /// Does something with its client.
    ///
    /// # Errors
    /// There can be none, which is noted.
    #[inline]
    pub(crate) fn with_client<R>(
        &self,
        memc: &memcached_st,
        then: impl FnOnce(&Client) -> R,
    ) -> Result<R, memcached_return_t> {
        if self.client.borrow().is_none() {
            let protocol = if memc.is_binary() { Protocol::Binary } else { Protocol::Auto };
            let client = self.new_client(memc, protocol)?;
            *self.client.borrow_mut() = Some(client);
        }
        let client = self.client.borrow();
        client.as_ref().map(then).ok_or(MEMCACHED_FAILURE)
    }

    /// Connects, so that non-blocking requests fail at once if the server is not reachable.
    ///
    /// # Errors
    /// As for [`memcached_instance_st::call`].
    pub(crate) fn connect(&self, memc: &memcached_st) -> Result<(), memcached_return_t> {
        if self.state.get() == MEMCACHED_SERVER_STATE_CONNECTED {
            return Ok(());
        }
        let version = self.call_in_time(memc, |client| client.versions().remove(0))?;
        self.learn_version(&version);
        Ok(())
    }

    /// Takes a version apart.
    pub(crate) fn learn_version(&self, version: &str) {
        let mut parts = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
        let mut part = || parts.next().unwrap_or(0);
        self.version.set([part(), part(), part()]);
    }

    /// Asks for a value without waiting.
    ///
    /// # Errors
    /// As for [`memcached_instance_st::call`].
    pub(crate) fn ask_for(&self, memc: &memcached_st, key: &[u8]) -> Result<Request, memcached_return_t> {
        self.may_wait(memc)?;
        self.connect(memc)?;
        if !self.buffered.borrow().is_empty() {
            self.drain(memc)?;
        }
        self.with_client(memc, |client| client.iget(key, Vec::new()))
    }

    /// Stores a value without waiting for an answer.
    ///
    /// # Errors
    /// As for [`memcached_instance_st::call`].
    pub(crate) fn store_later(
        &self,
        memc: &memcached_st,
        store: impl FnOnce(&Client) -> Request,
    ) -> Result<(), memcached_return_t> {
        self.connect(memc)?;
        if self.buffered.borrow().len() >= BUFFERED_MAX {
            self.drain(memc)?;
        }
        let request = self.with_client(memc, store)?;
        self.buffered.borrow_mut().push(request);
        Ok(())
    }

    /// Waits for the stores in flight. Refusals are ignored, because the caller did not ask for results.
    ///
    /// # Errors
    /// It failed, which is noted.
    pub(crate) fn drain(&self, memc: &memcached_st) -> Result<(), memcached_return_t> {
        let buffered = self.buffered.take();
        let mut broken = None;
        for mut request in buffered {
            let result: Result<Outcome, Error> = request.wait().result;
            if let Err(error @ Error::Server { .. }) = result
                && !matches!(error, Error::Server { failure: Failure::Refused(_), .. })
            {
                broken = Some(error);
            }
        }
        broken.map_or(Ok(()), |error| Err(self.failed(memc, &error)))
    }

    /// Whether anything is stored without waiting and not waited for yet.
    pub(crate) fn has_buffered(&self) -> bool {
        !self.buffered.borrow().is_empty()
    }

    /// Closes its connections, after sending what is buffered.
    pub(crate) fn quit(&self) {
        for mut request in self.buffered.take() {
            request.wait();
        }
        self.requested.borrow_mut().clear();
        *self.client.borrow_mut() = None;
        if self.state.get() == MEMCACHED_SERVER_STATE_CONNECTED {
            self.state.set(MEMCACHED_SERVER_STATE_NEW);
        }
    }

    /// One call by text, whatever is spoken otherwise: for orders that packets have no room for.
    ///
    /// # Errors
    /// As for [`memcached_instance_st::call`].
    pub(crate) fn call_by_text<T>(
        &self,
        memc: &memcached_st,
        request: impl FnOnce(&Client) -> Result<T, Error>,
    ) -> Result<T, memcached_return_t> {
        if !memc.is_binary() {
            return self.call(memc, request);
        }
        let by_text = self.new_client(memc, Protocol::Auto)?;
        self.call(memc, |_| request(&by_text))
    }

    fn new_client(&self, memc: &memcached_st, protocol: Protocol) -> Result<Client, memcached_return_t> {
        let name = self.name().to_string_lossy();
        let port = self.connected_port.get().unwrap_or_else(|| self.port.get());
        self.connected_port.set(Some(port));
        let address = match self.kind {
            kind if kind != MEMCACHED_CONNECTION_UNIX_SOCKET && port == 0 => {
                // Set by the program: nothing listens there.
                let refused = std::io::Error::from_raw_os_error(libc::ECONNREFUSED);
                return Err(self.not_connected(memc, &refused));
            }
            MEMCACHED_CONNECTION_UNIX_SOCKET => {
                let path = std::path::absolute(Path::new(&*name)).unwrap_or_else(|_| (&*name).into());
                format!("unix://{}", path.display())
            }
            _ => {
                let way = if behind_fabric(self.name().to_bytes()).is_some() { FABRIC } else { "tcp://" };
                let name = self.host();
                let host = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
                if host.contains(':') {
                    format!("{way}[{host}]:{port}")
                } else {
                    format!("{way}{host}:{port}")
                }
            }
        };
        let connecting = duration_of(memc.connect_timeout.get());
        // Without time for answers, only stores that need none are sent; their connection takes its own time.
        let answer = Some(memc.poll_timeout.get()).filter(|time| *time != 0).map_or(connecting, duration_of);
        let options = Options {
            // A server that takes the connection and then says nothing is waited for as for an answer.
            connect_timeout: connecting.min(answer),
            timeout: answer,
            // Retries are decided here, not by the client.
            failures_max: u32::MAX,
            credentials: memc.credentials(),
            protocol,
            ..Options::default()
        };
        Client::new([address], options).map_err(|error| self.failed(memc, &error))
    }

    // ---- failures ----

    /// Returns whether it may be asked now.
    #[cold]
    fn may_be_asked(&self, memc: &memcached_st) -> Result<(), memcached_return_t> {
        if self.failures.get() >= memc.server_failure_limit.get() {
            if memc.has(flags::AUTO_EJECT_HOSTS) {
                self.is_last_lost(memc);
                if memc.dead_timeout.get() > 0 {
                    self.next_retry.set(now() + i64::from(memc.dead_timeout.get()));
                    self.failures.set(memc.server_failure_limit.get().saturating_sub(1));
                }
                memc.redistribute();
                return Err(memc.fail_of(self, MEMCACHED_SERVER_MARKED_DEAD, ErrorContext::default()));
            }
            self.state.set(MEMCACHED_SERVER_STATE_IN_TIMEOUT);
            if self.next_retry.get() == 0 {
                self.next_retry.set(1);
            }
        }
        if self.state.get() == MEMCACHED_SERVER_STATE_IN_TIMEOUT && now() < self.next_retry.get() {
            self.is_last_lost(memc);
            return Err(memc.fail_of(self, MEMCACHED_SERVER_TEMPORARILY_DISABLED, ErrorContext::default()));
        }
        Ok(())
    }

    /// It has answered.
    #[cold]
    fn is_well(&self) {
        self.state.set(MEMCACHED_SERVER_STATE_CONNECTED);
        self.failures.set(0);
        self.timeouts.set(0);
        self.next_retry.set(0);
    }

    fn is_last_lost(&self, memc: &memcached_st) {
        let Some(inner) = memc.inner() else { return };
        let this = inner.instances.borrow().iter().find(|server| std::ptr::eq(&***server, self)).cloned();
        if this.is_some() {
            *inner.last_disconnected.borrow_mut() = this;
        }
    }

    /// It cannot be connected to, and is left alone for a while.
    fn is_lost(&self, memc: &memcached_st) {
        self.next_retry.set(now() + i64::from(memc.retry_timeout.get().max(1)));
        self.state.set(MEMCACHED_SERVER_STATE_IN_TIMEOUT);
        if self.failure_query.get() != memc.query_id.get() {
            self.failures.set(self.failures.get().saturating_add(1));
            self.failure_query.set(memc.query_id.get());
        }
        self.is_last_lost(memc);
    }

    /// That it could not be connected to by TCP is noted twice where libmemcached does, and in fewer words then.
    pub(crate) fn told_again(&self, memc: &memcached_st, code: memcached_return_t) -> memcached_return_t {
        let is_local = self.kind == MEMCACHED_CONNECTION_UNIX_SOCKET;
        if self.state.get() == MEMCACHED_SERVER_STATE_IN_TIMEOUT && !memc.is_binary() && !is_local {
            memc.fail_of(self, code, ErrorContext::default());
        }
        code
    }

    /// Translates a failure to libmemcached's code, and records it.
    #[cold]
    pub(crate) fn failed(&self, memc: &memcached_st, error: &Error) -> memcached_return_t {
        let failure = match error {
            Error::Server { failure, .. } => failure,
            Error::Value(_) => return MEMCACHED_E2BIG,
            Error::Key(_) => return memc.fail(MEMCACHED_BAD_KEY_PROVIDED),
            Error::Address { .. } => {
                let message = &error.to_string();
                let reported = ErrorContext { message, ..ErrorContext::default() };
                let code = memc.fail_of(self, MEMCACHED_HOST_LOOKUP_FAILURE, reported);
                self.is_lost(memc);
                return code;
            }
            other => return memc.fail_with(MEMCACHED_FAILURE, &other.to_string()),
        };
        match failure {
            Failure::Connect(error) => self.not_connected(memc, error),
            Failure::Broken(error) => {
                self.state.set(MEMCACHED_SERVER_STATE_NEW);
                match error.kind() {
                    ErrorKind::TimedOut => {
                        let code = memc.fail_of(self, MEMCACHED_TIMEOUT, TIMED_OUT);
                        let (timeouts, most) =
                            (self.timeouts.get().saturating_add(1), memc.server_timeout_limit.get());
                        let is_lost = most > 0 && timeouts >= most;
                        self.timeouts.set(if is_lost { 0 } else { timeouts });
                        if is_lost {
                            self.is_lost(memc);
                        }
                        code
                    }
                    _ => {
                        let errno = error.raw_os_error().unwrap_or(0);
                        let reported = ErrorContext { errno, ..ErrorContext::default() };
                        memc.fail_of(self, MEMCACHED_CONNECTION_FAILURE, reported)
                    }
                }
            }
            Failure::Protocol(said) => {
                self.state.set(MEMCACHED_SERVER_STATE_NEW);
                let reported = ErrorContext { message: said, ..ErrorContext::default() };
                memc.fail_of(self, MEMCACHED_UNKNOWN_READ_FAILURE, reported)
            }
            // The caller did not ask for results.
            Failure::Refused(_) if !memc.is_replying() => MEMCACHED_SUCCESS,
            Failure::Refused(why) | Failure::Rejected(why) => self.refused(memc, why),
            other => memc.fail_with(MEMCACHED_FAILURE, &other.to_string()),
        }
    }

    fn not_connected(&self, memc: &memcached_st, error: &std::io::Error) -> memcached_return_t {
        let was_lost = self.next_retry.get() > 0;
        let errno = error.raw_os_error().unwrap_or(0);
        let plain = ErrorContext { errno, ..ErrorContext::default() };
        let code = match (error.kind(), error.raw_os_error()) {
            (ErrorKind::TimedOut, _) => memc.fail_of(self, MEMCACHED_TIMEOUT, TIMED_OUT),
            (_, None) => {
                // The resolver's: it has numbers of its own.
                let said = error.to_string();
                let message = said.rsplit_once(": ").map_or(&*said, |(_, why)| why);
                let reported = ErrorContext { message, ..ErrorContext::default() };
                memc.fail_of(self, MEMCACHED_HOST_LOOKUP_FAILURE, reported)
            }
            _ if self.kind == MEMCACHED_CONNECTION_UNIX_SOCKET => memc.fail_of(self, MEMCACHED_ERRNO, plain),
            _ => memc.fail_of(self, MEMCACHED_CONNECTION_FAILURE, plain),
        };
        self.is_lost(memc);
        if !was_lost {
            return code;
        }
        let message = &format!("{}:{}", self.name().to_string_lossy(), self.port.get());
        let reported = ErrorContext { message, ..ErrorContext::default() };
        memc.fail_of(self, MEMCACHED_SERVER_TEMPORARILY_DISABLED, reported)
    }

    /// A server's refusal has only words.
    fn refused(&self, memc: &memcached_st, why: &str) -> memcached_return_t {
        let lower = why.to_ascii_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
        if says(&["too large"]) {
            return MEMCACHED_E2BIG;
        }
        if says(&["out of memory"]) {
            return MEMCACHED_SERVER_MEMORY_ALLOCATION_FAILURE;
        }
        let verbatim = |message| ErrorContext { message, is_verbatim: true, ..ErrorContext::default() };
        if says(&["non-numeric"]) && memc.is_binary() {
            return memc.fail_of(self, MEMCACHED_UNKNOWN_READ_FAILURE, ErrorContext::default());
        }
        if says(&["non-numeric"]) {
            // The binary protocol has another text.
            let message = "cannot increment or decrement non-numeric value";
            return memc.fail_of(self, MEMCACHED_CLIENT_ERROR, verbatim(message));
        }
        if says(&["auth"]) {
            return memc.fail_of(self, MEMCACHED_AUTH_FAILURE, verbatim(why));
        }
        if says(&["bad ", "invalid", "line too long", "usage"]) {
            return memc.fail_of(self, MEMCACHED_CLIENT_ERROR, verbatim(why));
        }
        if says(&["does not know", "unknown command"]) {
            let by_packet = memc.is_binary();
            let code = if by_packet { MEMCACHED_UNKNOWN_READ_FAILURE } else { MEMCACHED_ERROR };
            return memc.fail_of(self, code, ErrorContext::default());
        }
        memc.fail_of(self, MEMCACHED_SERVER_ERROR, verbatim(why))
    }
}

const TIMED_OUT: ErrorContext<'_> = ErrorContext { errno: 0, message: "time out", is_verbatim: false };

/// Milliseconds; less than none are as long as it takes.
fn duration_of(milliseconds: i32) -> Duration {
    const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);
    u64::try_from(milliseconds).map_or(FOREVER, |some| Duration::from_millis(some.max(1)))
}
