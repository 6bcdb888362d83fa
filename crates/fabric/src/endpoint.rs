//! An endpoint with its completion queue and address vector.
//!
//! A posted operation owns its buffer: the buffer goes in with the call and comes back with the completion, or when
//! the endpoint is dropped, after libfabric closed it.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

use crate::domain::{Access, Domain};
use crate::endpoint_setup::{
    EndpointOptions, NAME_BYTES_MAX, is_of_kind, name_of, open_addresses, open_queue, reads_alone,
};
use crate::error::Error;
use crate::memory::{BoundRegistration, Buffer, FailedRegistration, Registration};
use crate::object::{Object, operation};
use crate::provider::PLACES_MAX;
use crate::signals::SavedHandlers;
use crate::stale;
use crate::sys;

/// Polls per call: the first sees an arrived message, the next its consequences.
const POLLS_BEFORE_CLOSE: usize = 8;

/// Completions read at once.
const COMPLETIONS_AT_ONCE: usize = 32;

/// Space that a provider may require per operation (`struct fi_context2`).
type Context = UnsafeCell<[*mut c_void; 8]>;

/// A peer of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    index: u32,
    generation: u32,
}

#[derive(Debug, Default)]
struct PeerSlot {
    generation: u32,
    address: Option<u64>,
}

/// An address in a peer's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The address in the peer's terms.
    pub address: u64,
    /// The key that grants access.
    pub key: u64,
}

impl fmt::Debug for RemoteAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not printed: a reader of the log could read the memory.
        f.write_str("RemoteAddress(..)")
    }
}

/// The type of a completed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A message was received.
    Received,
    /// A message was sent: its buffer is free.
    Sent,
    /// A peer's memory was read.
    Read,
    /// A peer's memory was written, and the peer sees it.
    Written,
}

/// A completed operation.
#[derive(Debug)]
pub struct Completion {
    /// The token it was posted with.
    pub token: u64,
    /// Its type.
    pub kind: Kind,
    /// The number of bytes, or the error.
    pub result: Result<usize, Error>,
    /// Its buffer.
    pub buffer: Buffer,
}

/// An operation that was not posted.
#[derive(Debug)]
pub struct RejectedOperation {
    /// Its buffer, unchanged.
    pub buffer: Buffer,
    /// Why; if [`Error::is_again`], poll and try again.
    pub error: Error,
}

#[derive(Debug)]
struct Operation {
    /// Its number: earlier operations have smaller ones.
    number: u64,
    token: u64,
    kind: Kind,
    bytes: usize,
    buffer: Buffer,
}

/// The most frequent calls.
#[derive(Clone, Copy)]
struct EndpointCalls {
    receive:
        unsafe extern "C" fn(*mut sys::FidEp, *mut c_void, usize, *mut c_void, u64, *mut c_void) -> isize,
    send: unsafe extern "C" fn(*mut sys::FidEp, *const c_void, usize, *mut c_void, u64, *mut c_void) -> isize,
    inject: unsafe extern "C" fn(*mut sys::FidEp, *const c_void, usize, u64) -> isize,
    read: unsafe extern "C" fn(
        *mut sys::FidEp,
        *mut c_void,
        usize,
        *mut c_void,
        u64,
        u64,
        u64,
        *mut c_void,
    ) -> isize,
    read_places: unsafe extern "C" fn(*mut sys::FidEp, *const sys::FiMsgRma, u64) -> isize,
    write: unsafe extern "C" fn(*mut sys::FidEp, *const sys::FiMsgRma, u64) -> isize,
    poll: unsafe extern "C" fn(*mut sys::FidCq, *mut c_void, usize) -> isize,
    poll_error: unsafe extern "C" fn(*mut sys::FidCq, *mut sys::FiCqErrEntry, u64) -> isize,
}

/// An endpoint. One thread at a time uses it.
pub struct Endpoint {
    /// Closed by `drop`, before the objects that it is bound to and the memory of its operations.
    endpoint: Option<Object<sys::FidEp>>,
    queue: Option<Object<sys::FidCq>>,
    addresses: Object<sys::FidAv>,
    /// Registrations that are bound to the endpoint and end before it is closed.
    bound: Vec<Arc<BoundRegistration>>,
    is_one_sided: bool,
    calls: EndpointCalls,
    /// The provider's state of operations in flight: never moved.
    contexts: Box<[Context]>,
    operations: Vec<Option<Operation>>,
    /// The number of operations so far.
    posted: u64,
    /// Whether peers' memory is accessed within the call, as by shm.
    is_at_once: bool,
    free: Vec<u32>,
    peers: Vec<PeerSlot>,
    free_peers: Vec<u32>,
    name: Vec<u8>,
    wait_fd: Option<RawFd>,
    // Declared last, as all of these belong to it.
    domain: Arc<Domain>,
}

// SAFETY: only `contexts` is not Send by itself. This type takes addresses of them and accesses none; libfabric does so
// in calls that the one user of the endpoint makes, or under its own locks, since the domain is FI_THREAD_SAFE.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// Opens an endpoint. If memory is short, idle registrations of callers' memory are evicted.
    ///
    /// # Errors
    /// The provider fails.
    pub fn open(domain: &Arc<Domain>, options: EndpointOptions) -> Result<Endpoint, Error> {
        domain.caches().make_way(|| Endpoint::try_open(domain, options))
    }

    fn try_open(domain: &Arc<Domain>, options: EndpointOptions) -> Result<Endpoint, Error> {
        let _kept = SavedHandlers::new();
        let failed = |what, result: i32| domain.failure(what, result as isize);
        let missing = |what| failed(what, -sys::FI_ENOSYS);
        let addresses = open_addresses(domain, options.peers)?;
        let (queue, wait_fd) = open_queue(domain, options)?;
        let info = domain.provider().info.sized(options.operations)?;
        let open =
            operation!(domain.table(), FiOpsDomain::endpoint).ok_or_else(|| missing("open an endpoint"))?;
        let mut made = std::ptr::null_mut();
        // SAFETY: `domain` is open, and `info` is a copy of the description that it was opened with. The call may change
        // `info`, which only this function has, and stores the object at `made`; both outlive it.
        let result = unsafe { open(domain.as_ptr(), info.as_ptr(), &raw mut made, std::ptr::null_mut()) };
        if result != 0 {
            return Err(failed("open an endpoint", result));
        }
        // SAFETY: libfabric has just opened it, so nothing else closes it.
        let endpoint = unsafe { Object::<sys::FidEp>::new(made) };
        let endpoint = endpoint.ok_or_else(|| missing("open an endpoint"))?;
        // SAFETY: both are of the same domain, and the endpoint is closed before the address vector.
        let bound = unsafe { endpoint.bind(addresses.fid(), 0) };
        // SAFETY: both are of the same domain, and the endpoint is closed before the queue.
        let bound_queue = unsafe { endpoint.bind(queue.fid(), sys::FI_SEND | sys::FI_RECV) };
        for result in [bound, bound_queue] {
            if result != 0 {
                return Err(failed("bind an endpoint", result));
            }
        }
        // SAFETY: FI_ENABLE has no argument.
        let enable = || unsafe { endpoint.control(sys::FI_ENABLE, std::ptr::null_mut()) };
        let making = stale::making();
        let mut result = enable();
        if result == -sys::FI_EBUSY && domain.provider().trusts_peers() && stale::remove(&making) {
            result = enable();
        }
        drop(making);
        if result != 0 {
            return Err(failed("enable an endpoint", result));
        }
        let name = name_of(domain, &endpoint)?;
        let calls = EndpointCalls::of(&endpoint, &queue).ok_or_else(|| missing("use an endpoint"))?;
        let count = options.operations.max(1);
        Ok(Endpoint {
            queue: Some(queue),
            addresses,
            bound: Vec::new(),
            is_one_sided: domain.provider().is_one_sided && reads_alone(domain, &endpoint),
            endpoint: Some(endpoint),
            calls,
            contexts: (0..count).map(|_| UnsafeCell::new([std::ptr::null_mut(); 8])).collect(),
            operations: (0..count).map(|_| None).collect(),
            posted: 0,
            is_at_once: domain.provider().name == "shm",
            free: (0..count as u32).rev().collect(),
            peers: Vec::new(),
            free_peers: Vec::new(),
            name,
            wait_fd,
            domain: Arc::clone(domain),
        })
    }

    /// Returns its domain.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Returns the name by which peers find it.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns whether its reads of a peer's memory need no help of the peer's process.
    pub fn is_one_sided(&self) -> bool {
        self.is_one_sided
    }

    /// Registers memory for peers of this endpoint.
    ///
    /// # Safety
    /// As for [`Domain::register`].
    pub(crate) unsafe fn register(
        &mut self,
        base: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Registration, FailedRegistration> {
        if !self.domain.binds_memory() {
            // SAFETY: the conditions of `Domain::register` are those of this function, which the caller upholds for as long as
            // the registration lives.
            return unsafe { self.domain.register(base, bytes, access) };
        }
        // SAFETY: the caller upholds the conditions of `Domain::registered` while the registration lives, which owns the
        // object: here until it is returned, later together with `bound`.
        let object = unsafe { self.domain.registered(base, bytes, access) }?;
        let endpoint = self.endpoint.as_ref().expect("present until the endpoint is dropped");
        // SAFETY: both are of the same domain, and the registration ends before the endpoint is closed.
        let mut result = unsafe { object.bind(endpoint.fid(), 0) };
        if result == 0 {
            // SAFETY: FI_ENABLE has no argument.
            result = unsafe { object.control(sys::FI_ENABLE, std::ptr::null_mut()) };
        }
        if result != 0 {
            let error = self.domain.failure("bind memory to an endpoint", result as isize);
            return Err(FailedRegistration::closing(object, error));
        }
        let (registration, bound) = Registration::bound(object, Arc::clone(&self.domain))?;
        self.bound.retain(|bound| !bound.has_ended());
        self.bound.push(bound);
        Ok(registration)
    }

    /// Returns the number of operations in flight.
    pub fn in_flight(&self) -> usize {
        self.operations.len() - self.free.len()
    }

    // ---- peers ----

    /// Adds a peer by its endpoint's name. Nothing is sent.
    ///
    /// # Errors
    /// The name is not one of this provider's.
    pub fn connect(&mut self, name: &[u8]) -> Result<Peer, Error> {
        // A provider reads as many bytes as its addresses have, or a text up to its end.
        let is_text = self.domain.provider().address_format == sys::FI_ADDR_STR;
        let is_whole = if is_text { name.len() < NAME_BYTES_MAX } else { name.len() == self.name.len() };
        if !is_whole {
            return Err(Error::Size("an endpoint's name is as long as those of its provider"));
        }
        // libfabric's vectors of IP addresses may accept nothing more after an invalid one.
        if !is_of_kind(&self.name, name) {
            return Err(Error::Size("an endpoint's name is an address of its provider's kind"));
        }
        let what = "learn a peer's name";
        // SAFETY: the object is open while this value owns it, and libfabric has filled in its structure.
        let table = unsafe { (*self.addresses.as_ptr()).ops };
        let missing = || self.domain.failure(what, -sys::FI_ENOSYS as isize);
        let insert = operation!(table, FiOpsAv::insert).ok_or_else(missing)?;
        let mut aligned = [0u64; NAME_BYTES_MAX / 8];
        for (word, bytes) in aligned.iter_mut().zip(name.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        let mut address = 0;
        let (vector, null) = (self.addresses.as_ptr(), std::ptr::null_mut());
        // SAFETY: the vector lives; the name is as long as the provider's, and followed by zeros.
        let count = unsafe { insert(vector, aligned.as_ptr().cast(), 1, &raw mut address, 0, null) };
        if count != 1 {
            let result = if count < 0 { count as isize } else { -22 };
            return Err(self.domain.failure(what, result));
        }
        let index = self.free_peers.pop().unwrap_or_else(|| {
            self.peers.push(PeerSlot::default());
            self.peers.len() as u32 - 1
        });
        let slot = &mut self.peers[index as usize];
        slot.address = Some(address);
        Ok(Peer { index, generation: slot.generation })
    }

    /// Removes a peer. Its operations in flight complete, successfully or not.
    pub fn disconnect(&mut self, peer: Peer) {
        let Ok(mut address) = self.address(peer) else { return };
        let slot = &mut self.peers[peer.index as usize];
        slot.address = None;
        slot.generation = slot.generation.wrapping_add(1);
        self.free_peers.push(peer.index);
        // SAFETY: the object is open while this value owns it, and libfabric has filled in its structure.
        let table = unsafe { (*self.addresses.as_ptr()).ops };
        if let Some(remove) = operation!(table, FiOpsAv::remove) {
            // SAFETY: the vector lives, and gave this address.
            let _ = unsafe { remove(self.addresses.as_ptr(), &raw mut address, 1, 0) };
        }
    }

    fn address(&self, peer: Peer) -> Result<u64, Error> {
        let slot = self.peers.get(peer.index as usize).filter(|slot| slot.generation == peer.generation);
        slot.and_then(|slot| slot.address).ok_or(Error::NoPeer)
    }

    // ---- operations ----

    /// Posts a receive of a message of any peer into a buffer.
    ///
    /// # Errors
    /// The operation is not posted.
    pub fn receive(&mut self, buffer: Buffer, token: u64) -> Result<(), RejectedOperation> {
        let (call, bytes) = (self.calls.receive, buffer.len());
        self.post(buffer, 0..bytes, token, Kind::Received, None, |posted, _| {
            // SAFETY: the endpoint is enabled. At `base` are the `bytes` bytes of the buffer, registered as `descriptor`
            // says. Buffer and context belong to the operation until its completion, as `operations` keeps both.
            unsafe { call(posted.endpoint, posted.base, bytes, posted.descriptor, u64::MAX, posted.context) }
        })
    }

    /// Posts a send of the first `len` bytes of a buffer.
    ///
    /// # Errors
    /// The operation is not posted.
    pub fn send(
        &mut self,
        peer: Peer,
        buffer: Buffer,
        len: usize,
        token: u64,
    ) -> Result<(), RejectedOperation> {
        let call = self.calls.send;
        self.post(buffer, 0..len, token, Kind::Sent, Some(peer), |posted, address| {
            // SAFETY: the endpoint is enabled and the address is a connected peer's; the buffer has `len` registered
            // bytes. Buffer and context belong to the operation until its completion, as `operations` keeps both.
            unsafe { call(posted.endpoint, posted.base, len, posted.descriptor, address, posted.context) }
        })
    }

    /// Sends a message short enough to be injected ([`crate::Provider::inject_bytes`]): it is copied before this
    /// returns. There is no completion.
    ///
    /// # Errors
    /// The message is not sent; if [`Error::is_again`], poll and try again.
    pub fn inject(&mut self, peer: Peer, message: &[u8]) -> Result<(), Error> {
        if message.len() > self.domain.provider().inject_bytes {
            return Err(Error::Size("a message is too long to be injected"));
        }
        let address = self.address(peer)?;
        let (endpoint, bytes) = (self.endpoint(), message.as_ptr().cast());
        // SAFETY: the endpoint is enabled and the address is a connected peer's; an injected message is copied before
        // the call returns.
        let result = unsafe { (self.calls.inject)(endpoint, bytes, message.len(), address) };
        if result == 0 { Ok(()) } else { Err(self.domain.failure("send a short message", result)) }
    }

    /// Posts a read of a peer's memory into a range of a buffer.
    ///
    /// # Errors
    /// The operation is not posted.
    pub fn read(
        &mut self,
        peer: Peer,
        from: RemoteAddress,
        buffer: Buffer,
        range: Range<usize>,
        token: u64,
    ) -> Result<(), RejectedOperation> {
        let (call, len) = (self.calls.read, range.len());
        let RemoteAddress { address: place, key } = from;
        self.post(buffer, range, token, Kind::Read, Some(peer), |posted, address| {
            let PostTarget { endpoint, base, descriptor, context } = posted;
            // SAFETY: the endpoint is enabled and the address is a connected peer's; the buffer has `len` registered
            // bytes. Buffer and context belong to the operation until its completion, as `operations` keeps both.
            unsafe { call(endpoint, base, len, descriptor, address, place, key, context) }
        })
    }

    /// Posts one read of several ranges of a peer's memory, stored consecutively in a buffer: at most
    /// [`crate::Provider::places_at_once`].
    ///
    /// # Errors
    /// The operation is not posted.
    pub fn read_places(
        &mut self,
        peer: Peer,
        from: &[(RemoteAddress, usize)],
        buffer: Buffer,
        token: u64,
    ) -> Result<(), RejectedOperation> {
        if from.is_empty() || from.len() > self.domain.provider().places_at_once.min(PLACES_MAX) {
            let error = Error::Size("too many ranges for one read");
            return Err(RejectedOperation { buffer, error });
        }
        let call = self.calls.read_places;
        let mut remote = [sys::FiRmaIov { addr: 0, len: 0, key: 0 }; PLACES_MAX];
        let mut bytes = 0usize;
        for (remote, (place, len)) in remote.iter_mut().zip(from) {
            *remote = sys::FiRmaIov { addr: place.address, len: *len, key: place.key };
            bytes = bytes.saturating_add(*len);
        }
        self.post(buffer, 0..bytes, token, Kind::Read, Some(peer), |mut posted, address| {
            let local = sys::IoVec { base: posted.base, len: bytes };
            let message = sys::FiMsgRma {
                msg_iov: &raw const local,
                desc: &raw mut posted.descriptor,
                iov_count: 1,
                addr: address,
                rma_iov: remote.as_ptr(),
                rma_iov_count: from.len(),
                context: posted.context,
                data: 0,
            };
            // SAFETY: the endpoint is enabled and the address is a connected peer's; the lists live through the call
            // and name as many bytes of the peer as there are here. Buffer and context belong to the operation until
            // its completion, as `operations` keeps both.
            unsafe { call(posted.endpoint, &raw const message, 0) }
        })
    }

    /// Posts a write of a range of a buffer to a peer's memory; it completes when the peer can see the bytes.
    ///
    /// # Errors
    /// The operation is not posted.
    pub fn write(
        &mut self,
        peer: Peer,
        to: RemoteAddress,
        buffer: Buffer,
        range: Range<usize>,
        token: u64,
    ) -> Result<(), RejectedOperation> {
        let (call, len) = (self.calls.write, range.len());
        // A write that shm executes at once is complete when it is reported. One that the peer must confirm would
        // delay the completions of all others if the peer was killed or stopped.
        let flags = if self.is_at_once { 0 } else { sys::FI_DELIVERY_COMPLETE };
        let remote = sys::FiRmaIov { addr: to.address, len, key: to.key };
        self.post(buffer, range, token, Kind::Written, Some(peer), |mut posted, address| {
            let local = sys::IoVec { base: posted.base, len };
            let message = sys::FiMsgRma {
                msg_iov: &raw const local,
                desc: &raw mut posted.descriptor,
                iov_count: 1,
                addr: address,
                rma_iov: &raw const remote,
                rma_iov_count: 1,
                context: posted.context,
                data: 0,
            };
            // SAFETY: the endpoint is enabled and the address is a connected peer's; the lists live through the call.
            // Buffer and context belong to the operation until its completion, as `operations` keeps both.
            unsafe { call(posted.endpoint, &raw const message, flags) }
        })
    }

    fn post(
        &mut self,
        mut buffer: Buffer,
        range: Range<usize>,
        token: u64,
        kind: Kind,
        peer: Option<Peer>,
        call: impl FnOnce(PostTarget, u64) -> isize,
    ) -> Result<(), RejectedOperation> {
        if range.start > range.end || range.end > buffer.len() {
            let error = Error::Size("an operation must lie within its buffer");
            return Err(RejectedOperation { buffer, error });
        }
        let address = match peer.map_or(Ok(u64::MAX), |peer| self.address(peer)) {
            Ok(address) => address,
            Err(error) => return Err(RejectedOperation { buffer, error }),
        };
        let Some(index) = self.free.pop() else {
            return Err(RejectedOperation { buffer, error: Error::Full });
        };
        let base = buffer.as_mut_ptr().wrapping_add(range.start).cast();
        let posted = PostTarget {
            endpoint: self.endpoint(),
            base,
            descriptor: buffer.descriptor(),
            context: self.contexts[index as usize].get().cast(),
        };
        // Stored before it is posted: another thread of the provider may complete it at once.
        self.operations[index as usize] =
            Some(Operation { number: self.posted, token, kind, bytes: range.len(), buffer });
        self.posted += 1;
        let result = call(posted, address);
        if result == 0 {
            return Ok(());
        }
        self.free.push(index);
        let operation = self.operations[index as usize].take().expect("just set");
        let what = match kind {
            Kind::Received => "wait for messages",
            Kind::Sent => "send a message",
            Kind::Read => "read a peer's memory",
            Kind::Written => "write a peer's memory",
        };
        Err(RejectedOperation { buffer: operation.buffer, error: self.domain.failure(what, result) })
    }

    fn endpoint(&self) -> *mut sys::FidEp {
        self.endpoint.as_ref().expect("present until the endpoint is dropped").as_ptr()
    }

    // ---- completions ----

    /// Makes progress, and appends completions to `into`. Never blocks.
    ///
    /// # Errors
    /// The completion queue failed; the endpoint cannot be used any more.
    pub fn poll(&mut self, into: &mut Vec<Completion>) -> Result<(), Error> {
        let none = sys::FiCqEntry { op_context: std::ptr::null_mut(), flags: 0, len: 0 };
        let mut entries = [none; COMPLETIONS_AT_ONCE];
        let queue = self.queue.as_ref().expect("present until the endpoint is dropped").as_ptr();
        // SAFETY: the queue is open, and `entries` has room for as many entries of its format.
        let count = unsafe { (self.calls.poll)(queue, entries.as_mut_ptr().cast(), entries.len()) };
        if count >= 0 {
            for entry in &entries[..(count as usize).min(COMPLETIONS_AT_ONCE)] {
                let ended = self.complete(entry.op_context, |operation| match operation.kind {
                    Kind::Received => Ok(entry.len.min(operation.bytes)),
                    _ => Ok(operation.bytes),
                });
                into.extend(ended);
            }
            return Ok(());
        }
        match -count as i32 {
            sys::FI_EAGAIN => Ok(()),
            sys::FI_EAVAIL => self.poll_error(queue, into),
            _ => Err(self.domain.failure("poll for completions", count)),
        }
    }

    fn poll_error(&mut self, queue: *mut sys::FidCq, into: &mut Vec<Completion>) -> Result<(), Error> {
        let mut entry = sys::FiCqErrEntry {
            op_context: std::ptr::null_mut(),
            flags: 0,
            len: 0,
            buf: std::ptr::null_mut(),
            data: 0,
            tag: 0,
            olen: 0,
            err: 0,
            prov_errno: 0,
            err_data: std::ptr::null_mut(),
            err_data_size: 0,
            later: [0; 8],
        };
        // SAFETY: the caller passes the queue that `self` keeps open. `entry` is a whole fi_cq_err_entry that outlives the
        // call; it has no room for the provider's data (`err_data_size` is 0), so the call writes nothing else.
        let count = unsafe { (self.calls.poll_error)(queue, &raw mut entry, 0) };
        if count < 0 && -count as i32 != sys::FI_EAGAIN {
            return Err(self.domain.failure("poll for errors", count));
        }
        if count <= 0 {
            return Ok(());
        }
        let domain = Arc::clone(&self.domain);
        let error = |operation: &Operation| {
            let what = match operation.kind {
                Kind::Received => "receive a message",
                Kind::Sent => "send a message",
                Kind::Read => "read a peer's memory",
                Kind::Written => "write a peer's memory",
            };
            // Some providers report it as a negative number.
            Err(domain.failure(what, -(entry.err as isize).abs()))
        };
        let context = match entry.op_context {
            // The shm provider reports no context for an operation that it cannot do at once; all earlier ones were
            // already reported.
            context if context.is_null() && self.is_at_once => self.first_of_memory(),
            context => context,
        };
        into.extend(self.complete(context, error));
        Ok(())
    }

    /// Returns the context of the first read or write in flight, or null.
    fn first_of_memory(&self) -> *mut c_void {
        let in_flight = self.operations.iter().enumerate().filter_map(|(index, operation)| {
            let operation = operation.as_ref()?;
            matches!(operation.kind, Kind::Read | Kind::Written).then_some((operation.number, index))
        });
        in_flight.min().map_or(std::ptr::null_mut(), |(_, index)| self.contexts[index].get().cast())
    }

    /// Takes the completed operation with this context; `None` for an injected message, which has no context.
    fn complete(
        &mut self,
        context: *mut c_void,
        result: impl FnOnce(&Operation) -> Result<usize, Error>,
    ) -> Option<Completion> {
        let from = (context as usize).checked_sub(self.contexts.as_ptr() as usize)?;
        let index = from / size_of::<Context>();
        let operation = self.operations.get_mut(index)?.take()?;
        self.free.push(index as u32);
        let result = result(&operation);
        Some(Completion { token: operation.token, kind: operation.kind, result, buffer: operation.buffer })
    }

    // ---- waiting ----

    /// Becomes readable when polling is worthwhile, if [`Endpoint::may_wait`] returned true just before; `None` if
    /// the provider has no descriptor.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor is open as long as the queue is, which only `drop` closes: the result borrows `self`.
        self.wait_fd.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Returns whether the descriptor signals the next completion. If not, the caller must poll.
    pub fn may_wait(&mut self) -> bool {
        let Some(try_wait) = operation!(self.domain.fabric_table(), FiOpsFabric::trywait) else {
            return false;
        };
        let mut queue = self.queue.as_ref().expect("present until the endpoint is dropped").fid();
        // SAFETY: the domain keeps the fabric open, and `self` the queue. The call reads one address of an object, as its
        // count says, from `queue`, which outlives it.
        self.wait_fd.is_some() && unsafe { try_wait(self.domain.fabric(), &raw mut queue, 1) } == 0
    }
}

/// The target of an operation.
struct PostTarget {
    endpoint: *mut sys::FidEp,
    base: *mut c_void,
    descriptor: *mut c_void,
    context: *mut c_void,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // ofi_rxm of 1.17 without a shared receive context crashes if it finds a message while closing.
        let mut ended = Vec::new();
        for _ in 0..POLLS_BEFORE_CLOSE {
            if self.poll(&mut ended).is_err() {
                break;
            }
        }
        // Peers cannot reach it any more.
        for bound in self.bound.drain(..) {
            bound.end();
        }
        let is_closed = self.endpoint.take().is_none_or(Object::close);
        if !is_closed {
            // The provider may still write to the memory of operations.
            std::mem::forget(std::mem::take(&mut self.operations));
            std::mem::forget(std::mem::take(&mut self.contexts));
            std::mem::forget(Arc::clone(&self.domain));
        }
        drop(self.queue.take());
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("domain", &self.domain)
            .field("under_way", &self.in_flight())
            .finish()
    }
}

impl EndpointCalls {
    fn of(endpoint: &Object<sys::FidEp>, queue: &Object<sys::FidCq>) -> Option<EndpointCalls> {
        // SAFETY: `endpoint` borrows an open object, whose structure libfabric has filled in.
        let messages = unsafe { (*endpoint.as_ptr()).msg };
        // SAFETY: `endpoint` borrows an open object, whose structure libfabric has filled in.
        let memory = unsafe { (*endpoint.as_ptr()).rma };
        // SAFETY: the queue is open, and libfabric has filled in its structure.
        let completions = unsafe { (*queue.as_ptr()).ops };
        Some(EndpointCalls {
            receive: operation!(messages, FiOpsMsg::recv)?,
            send: operation!(messages, FiOpsMsg::send)?,
            inject: operation!(messages, FiOpsMsg::inject)?,
            read: operation!(memory, FiOpsRma::read)?,
            read_places: operation!(memory, FiOpsRma::readmsg)?,
            write: operation!(memory, FiOpsRma::writemsg)?,
            poll: operation!(completions, FiOpsCq::read)?,
            poll_error: operation!(completions, FiOpsCq::readerr)?,
        })
    }
}
