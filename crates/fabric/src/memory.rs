//! Memory that a provider has registered.
//!
//! - [`Pool`]: equal [`Buffer`]s, owned by their holder or by the operation that uses them.
//! - [`Registration`]: memory registered with libfabric, until it is dropped.

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use rustix::mm::{MapFlags, ProtFlags};

use crate::domain::{Access, Domain, LocalUse};
use crate::error::Error;
use crate::object::Object;
use crate::provider::LONG_KEYS;
use crate::sys;

/// The address and key with which a peer reads or writes memory of this process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RemoteMemory {
    /// The address of its first byte, in the provider's terms.
    pub address: u64,
    /// The key that grants access.
    pub key: u64,
    /// Its length.
    pub bytes: u64,
}

impl fmt::Debug for RemoteMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the key, which would let a reader of the log access the memory.
        write!(f, "RemoteMemory({} bytes)", self.bytes)
    }
}

/// A registration, which ends when dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    // Declared before the domain that it belongs to.
    held: Ownership,
    key: u64,
    domain: Arc<Domain>,
}

#[derive(Debug)]
enum Ownership {
    /// The provider needs no registration.
    None,
    /// Owned until it ends.
    OwnedPages(Option<Object<sys::FidMr>>),
    /// Shared with the endpoint that it is bound to.
    BoundRegistration(Arc<BoundRegistration>),
}

/// A registration that is bound to an endpoint and must end before that is closed: the first to close ends it.
#[derive(Debug)]
pub(crate) struct BoundRegistration(Mutex<BoundState>);

#[derive(Debug)]
enum BoundState {
    Open(Object<sys::FidMr>),
    Ended,
    /// The provider still holds the memory.
    Stuck,
}

impl BoundRegistration {
    /// Ends it, unless it has ended. Returns false if the provider still holds the memory.
    pub fn end(&self) -> bool {
        let mut state = self.0.lock().expect("no thread panics while it ends a registration");
        let is_over = match std::mem::replace(&mut *state, BoundState::Stuck) {
            BoundState::Open(object) => object.close(),
            BoundState::Ended => true,
            BoundState::Stuck => false,
        };
        if is_over {
            *state = BoundState::Ended;
        }
        is_over
    }

    /// Returns whether it has ended, and the provider has released the memory.
    pub fn has_ended(&self) -> bool {
        matches!(*self.0.lock().expect("no thread panics while it ends a registration"), BoundState::Ended)
    }
}

/// Memory that could not be registered.
#[derive(Debug)]
pub(crate) struct FailedRegistration {
    error: Error,
    /// The provider keeps what was registered open, so that peers or an interface may still access it.
    is_stuck: bool,
}

impl From<Error> for FailedRegistration {
    /// Nothing was registered.
    fn from(error: Error) -> FailedRegistration {
        FailedRegistration { error, is_stuck: false }
    }
}

impl FailedRegistration {
    /// Closes an object that is of no use because of `error`.
    pub fn closing(object: Object<sys::FidMr>, error: Error) -> FailedRegistration {
        if object.close() {
            return error.into();
        }
        let why = "the provider does not release the memory, which stays allocated for good";
        FailedRegistration { error: Error::System(format!("{error}; {why}")), is_stuck: true }
    }

    /// Returns whether the memory must never be freed.
    pub fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// Returns the error. Drops the memory's owner only if the provider has released the memory.
    pub fn without<T>(self, owner: T) -> Error {
        if self.is_stuck {
            std::mem::forget(owner);
        }
        self.error
    }
}

impl Registration {
    pub fn new(object: Object<sys::FidMr>, domain: Arc<Domain>) -> Result<Registration, FailedRegistration> {
        let (object, key) = with_key(object, &domain)?;
        Ok(Registration { held: Ownership::OwnedPages(Some(object)), key, domain })
    }

    /// Returns an empty registration, where none is needed.
    pub fn none(domain: Arc<Domain>) -> Registration {
        Registration { held: Ownership::None, key: 0, domain }
    }

    /// Returns a registration that is bound to an endpoint and enabled, and its handle for ending it before the
    /// endpoint closes.
    pub fn bound(
        object: Object<sys::FidMr>,
        domain: Arc<Domain>,
    ) -> Result<(Registration, Arc<BoundRegistration>), FailedRegistration> {
        let (object, key) = with_key(object, &domain)?;
        let bound = Arc::new(BoundRegistration(Mutex::new(BoundState::Open(object))));
        Ok((Registration { held: Ownership::BoundRegistration(Arc::clone(&bound)), key, domain }, bound))
    }

    /// Ends it. Returns false if the provider still holds the memory, which must then never be freed.
    pub(crate) fn end(&mut self) -> bool {
        match &mut self.held {
            Ownership::None => true,
            Ownership::OwnedPages(object) => object.take().is_none_or(Object::close),
            Ownership::BoundRegistration(bound) => bound.end(),
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(&self.held, Ownership::BoundRegistration(bound) if bound.has_ended())
    }

    /// Returns the descriptor with which local operations name this registration.
    pub(crate) fn descriptor(&self) -> *mut std::ffi::c_void {
        match &self.held {
            // SAFETY: the object is open while this value owns it.
            Ownership::OwnedPages(Some(object)) => unsafe { (*object.as_ptr()).mem_desc },
            // Where memory is bound, local access is not registered.
            Ownership::OwnedPages(None) | Ownership::None | Ownership::BoundRegistration(_) => {
                std::ptr::null_mut()
            }
        }
    }

    /// Returns the address and key for peers.
    pub(crate) fn remote(&self, base: *const u8, bytes: usize) -> RemoteMemory {
        RemoteMemory { address: self.domain.remote_address(base), key: self.key, bytes: bytes as u64 }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Owners that need the result have called `end` before.
        self.end();
    }
}

impl Domain {
    /// Registers memory for all endpoints. Where the provider binds memory to one endpoint each, local access needs no
    /// registration and gets none.
    ///
    /// # Safety
    /// The memory stays mapped while the registration lives, and what peers or operations may do to it is compatible
    /// with all other accesses to it meanwhile.
    pub(crate) unsafe fn register(
        self: &Arc<Domain>,
        base: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Registration, FailedRegistration> {
        if self.binds_memory() {
            assert!(
                matches!(access, Access::Local(_)),
                "memory for peers is registered by the endpoint that they reach"
            );
            return Ok(Registration::none(Arc::clone(self)));
        }
        // SAFETY: the conditions of `registered` are those of this function, which the caller upholds for as long as the
        // registration lives, which owns the object.
        let object = unsafe { self.registered(base, bytes, access) }?;
        Registration::new(object, Arc::clone(self))
    }
}

/// Returns an object of registered and enabled memory, and its key.
fn with_key(
    object: Object<sys::FidMr>,
    domain: &Domain,
) -> Result<(Object<sys::FidMr>, u64), FailedRegistration> {
    // SAFETY: the object is open while this value owns it.
    let key = unsafe { (*object.as_ptr()).key };
    if key == sys::FI_KEY_NOTAVAIL {
        let error = Error::Unfit { provider: domain.provider().to_string(), why: LONG_KEYS };
        return Err(FailedRegistration::closing(object, error));
    }
    Ok((object, key))
}

/// Pages of this process.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) base: NonNull<u8>,
    pub(crate) bytes: usize,
    /// A peer or the provider may still use them: they are never unmapped.
    pub(crate) is_kept: bool,
}

// SAFETY: any thread may unmap pages, and this type accesses none: its holders prove each access to them.
unsafe impl Send for Pages {}
// SAFETY: `&Pages` only copies the address and numbers: its holders prove each access to the memory.
unsafe impl Sync for Pages {}

impl Pages {
    pub(crate) fn new(bytes: usize) -> Result<Pages, Error> {
        let (anywhere, access) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        let flags = MapFlags::PRIVATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { rustix::mm::mmap_anonymous(anywhere, bytes, access, flags) };
        let base = base.map_err(|error| Error::System(format!("no {bytes} bytes of memory: {error}")))?;
        Ok(Pages {
            base: NonNull::new(base.cast()).expect("a mapping is not at address 0"),
            bytes,
            is_kept: false,
        })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        // SAFETY: this value owns the mapping, and all users are gone.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Equal buffers in one registration.
#[derive(Clone, Debug)]
pub struct Pool(Arc<PoolInner>);

#[derive(Debug)]
struct PoolInner {
    // Declared before the pages that it registers.
    registration: Registration,
    pages: Pages,
    buffer_bytes: usize,
    free: Mutex<Vec<u32>>,
}

impl Pool {
    /// Returns `count` buffers of `bytes` bytes each, zeroed. Memory is touched on use, unless the provider pins it.
    ///
    /// # Errors
    /// There is no memory, or it cannot be registered.
    pub fn new(
        domain: &Arc<Domain>,
        local_use: LocalUse,
        buffers: usize,
        buffer_bytes: usize,
    ) -> Result<Pool, Error> {
        let bytes = buffers.max(1).checked_mul(buffer_bytes.max(1));
        let bytes = bytes.ok_or(Error::Size("more buffers than there are addresses"))?;
        let pages = Pages::new(bytes)?;
        // SAFETY: the pages are unmapped after the registration has ended; a buffer belongs to one operation at a
        // time.
        let registration = unsafe { domain.register(pages.base.as_ptr(), bytes, Access::Local(local_use)) };
        let registration = match registration {
            Ok(registration) => registration,
            Err(failed) => return Err(failed.without(pages)),
        };
        let free = (0..u32::try_from(buffers).map_err(|_| Error::Size("more than 2^32 buffers"))?).rev();
        let free = Mutex::new(free.collect());
        Ok(Pool(Arc::new(PoolInner { registration, pages, buffer_bytes: buffer_bytes.max(1), free })))
    }

    /// Takes a buffer, if one is free.
    pub fn take(&self) -> Option<Buffer> {
        let index = self.0.free().pop()?;
        let at = index as usize * self.0.buffer_bytes;
        // SAFETY: within the pages, which have room for this many buffers.
        let base = unsafe { self.0.pages.base.add(at) };
        let home = BufferOrigin::Pool(Arc::clone(&self.0), index);
        Some(Buffer { base, bytes: self.0.buffer_bytes, descriptor: self.0.registration.descriptor(), home })
    }

    /// Returns the number of free buffers.
    pub fn free(&self) -> usize {
        self.0.free().len()
    }

    /// Returns the length of each buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.0.buffer_bytes
    }

    /// Returns the total length of all buffers.
    pub fn bytes(&self) -> usize {
        self.0.pages.bytes
    }
}

impl PoolInner {
    fn free(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.free.lock().expect("no thread panics while it takes a buffer")
    }
}

/// Registered memory owned by its holder.
pub struct Buffer {
    base: NonNull<u8>,
    bytes: usize,
    descriptor: *mut std::ffi::c_void,
    home: BufferOrigin,
}

/// Takes back a part of a buffer.
pub(crate) trait PartOwner: Send + Sync {
    /// Takes back the part of `bytes` bytes at `base`, which is not used any more.
    fn give_back(&self, base: NonNull<u8>, bytes: usize);
}

/// Where a buffer's memory is returned on drop.
enum BufferOrigin {
    Pool(Arc<PoolInner>, u32),
    /// A caller's memory.
    OwnedPages(ManuallyDrop<Box<OwnedPages>>),
    /// The same, registered for longer than the loan.
    Lent(ManuallyDrop<Box<dyn Any + Send + Sync>>),
    /// A part of another buffer.
    Part(Arc<dyn PartOwner>),
}

struct OwnedPages {
    // Declared before the memory that it registers.
    registration: Registration,
    memory: Vec<u8>,
}

// SAFETY: `base` and `bytes` name memory that only this value, or its parts, access, from any thread. `descriptor` is a
// provider's handle: only libfabric dereferences it, in calls that FI_THREAD_SAFE allows on every thread. Every variant
// of `home` is Send, as `home_is_send_and_sync` checks.
unsafe impl Send for Buffer {}
// SAFETY: `&Buffer` only reads the memory at `base`, copies `bytes` and `descriptor`, and reads which variant `home` is,
// every one of which is Sync, as `home_is_send_and_sync` checks.
unsafe impl Sync for Buffer {}

/// Checks when compiling that a buffer's origin can go to, and be shared with, other threads.
const _: fn() = || {
    fn home_is_send_and_sync<T: Send + Sync>() {}
    home_is_send_and_sync::<BufferOrigin>();
};

impl Buffer {
    /// Returns the caller's memory, registered in place to read into. The provider decides whether to cache the registration:
    /// providers that pin memory keep recent registrations, and notice when memory is unmapped.
    ///
    /// # Errors
    /// It cannot be registered.
    pub fn own(domain: &Arc<Domain>, mut memory: Vec<u8>) -> Result<Buffer, (Vec<u8>, Error)> {
        let (base, bytes) = (memory.as_mut_ptr(), memory.len());
        if bytes == 0 {
            return Err((memory, Error::Size("memory to register has at least one byte")));
        }
        // SAFETY: the vector is neither moved nor freed before the registration has ended, and one operation at a
        // time uses it.
        let registration = match unsafe { domain.register(base, bytes, Access::Local(LocalUse::READ)) } {
            Ok(registration) => registration,
            Err(failed) => {
                let copy = if failed.is_stuck() { memory.clone() } else { std::mem::take(&mut memory) };
                return Err((copy, failed.without(memory)));
            }
        };
        let descriptor = registration.descriptor();
        let base = NonNull::new(base).expect("a vector is not at address 0");
        let home = BufferOrigin::OwnedPages(ManuallyDrop::new(Box::new(OwnedPages { registration, memory })));
        Ok(Buffer { base, bytes, descriptor, home })
    }

    /// Returns the caller's memory, or `None` for a pool's buffer.
    pub fn into_own(mut self) -> Option<Vec<u8>> {
        let BufferOrigin::OwnedPages(own) = &mut self.home else { return None };
        // SAFETY: it is taken once: this value is forgotten below.
        let mut own = unsafe { ManuallyDrop::take(own) };
        std::mem::forget(self);
        let is_over = own.registration.end();
        let memory = std::mem::take(&mut own.memory);
        if is_over {
            return Some(memory);
        }
        let copy = memory.clone();
        std::mem::forget(memory);
        Some(copy)
    }

    /// Returns whether it is a caller's memory, lent from [`crate::RegisteredMemory`].
    pub fn is_lent(&self) -> bool {
        matches!(self.home, BufferOrigin::Lent(_))
    }

    /// Returns a buffer of memory that `owner` has registered.
    ///
    /// # Safety
    /// `base` begins `bytes` initialized bytes that `owner` keeps mapped, and that nothing else accesses while `owner` is
    /// in the buffer. `descriptor` is that of their registration.
    pub(crate) unsafe fn lent(
        base: NonNull<u8>,
        bytes: usize,
        descriptor: *mut std::ffi::c_void,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Buffer {
        Buffer { base, bytes, descriptor, home: BufferOrigin::Lent(ManuallyDrop::new(owner)) }
    }

    /// Returns the owner of lent memory; drops any other buffer.
    pub(crate) fn into_owner(mut self) -> Option<Box<dyn Any + Send + Sync>> {
        let BufferOrigin::Lent(owner) = &mut self.home else { return None };
        // SAFETY: `take` requires that the value is not used again; `self` is forgotten below, so its drop does not run.
        let owner = unsafe { ManuallyDrop::take(owner) };
        std::mem::forget(self);
        Some(owner)
    }

    /// Returns a part of a buffer that is used only through such disjoint parts.
    ///
    /// # Panics
    /// The range is not within the buffer.
    ///
    /// # Safety
    /// `of` keeps `whole`, and while the part lives nothing else accesses the bytes of its range.
    pub(crate) unsafe fn part(whole: &Buffer, range: Range<usize>, of: Arc<dyn PartOwner>) -> Buffer {
        assert!(range.start <= range.end && range.end <= whole.bytes, "a part is within its buffer");
        // SAFETY: the assertion keeps the offset within the buffer's memory, which is one allocation.
        let base = unsafe { whole.base.add(range.start) };
        let (bytes, descriptor) = (range.len(), whole.descriptor);
        Buffer { base, bytes, descriptor, home: BufferOrigin::Part(of) }
    }

    /// Returns its length, without a reference to the bytes, parts of which others may own.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address of the first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(crate) fn descriptor(&self) -> *mut std::ffi::c_void {
        self.descriptor
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: who made the buffer has proven that at `base` are `bytes` initialized bytes that it alone accesses, until
        // it is dropped. An operation takes the value, so libfabric accesses none of them while this one is borrowed.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: who made the buffer has proven that at `base` are `bytes` initialized bytes that it alone accesses, until
        // it is dropped; `&mut self` excludes all other references to them.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &mut self.home {
            BufferOrigin::Pool(pool, index) => pool.free().push(*index),
            // SAFETY: `drop` runs once, and not at all after `into_own` took the value; nothing uses the buffer afterwards.
            BufferOrigin::OwnedPages(own) => unsafe { ManuallyDrop::drop(own) },
            // SAFETY: `drop` runs once, and not at all after `into_owner` took the value; nothing uses the buffer afterwards.
            BufferOrigin::Lent(own) => unsafe { ManuallyDrop::drop(own) },
            BufferOrigin::Part(of) => of.give_back(self.base, self.bytes),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes)
    }
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        self.pages.is_kept = !self.registration.end();
    }
}

impl Drop for OwnedPages {
    fn drop(&mut self) {
        if !self.registration.end() {
            std::mem::forget(std::mem::take(&mut self.memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Terms;
    use crate::domain::REGISTRATION_CACHE;
    use crate::endpoint::Endpoint;
    use crate::endpoint_setup::EndpointOptions;
    use crate::fake::{CACHING_LIBRARY, FakeProvider, LIBRARY, calls, last_base};
    use crate::peer_memory::{ExposedMemory, PeerAccess, SharedArea};
    use crate::{RegisteredMemory, RegistrationCache};

    fn endpoint(domain: &Arc<Domain>) -> Endpoint {
        Endpoint::open(domain, EndpointOptions { operations: 4, peers: 1, waits: false })
            .expect("an endpoint")
    }

    fn exposed(domain: &Arc<Domain>, bytes: &Arc<Vec<u8>>) -> ExposedMemory {
        let base = NonNull::new(bytes.as_ptr().cast_mut()).expect("a non-null pointer");
        // SAFETY: the count keeps it alive, and nothing writes it.
        unsafe { ExposedMemory::new(domain, base, bytes.len(), Arc::clone(bytes) as Arc<_>) }
            .expect("registered")
    }

    #[test]
    fn exposed_memory_is_bound_to_the_passive_endpoint_and_enabled() {
        let domain = FakeProvider::default().open();
        let pool = Pool::new(&domain, LocalUse::SEND, 4, 100).expect("memory");
        assert!(pool.take().expect("free").descriptor().is_null());
        let (mut a, mut b) = (endpoint(&domain), endpoint(&domain));
        assert_eq!(calls(), [""; 0], "memory of this process alone is not registered");
        let bytes = Arc::new(vec![0; 5000]);
        let region = exposed(&domain, &bytes);
        assert_eq!(calls(), [""; 0], "the endpoint is not known yet");
        let by_a = region.by(&mut a).expect("registered");
        assert_eq!(calls(), ["register 5000", "bind memory8 to endpoint4", "enable memory8"]);
        let by_b = region.by(&mut b).expect("registered");
        assert_eq!(calls(), ["register 5000", "bind memory9 to endpoint7", "enable memory9"]);
        assert_eq!((by_a.key, by_b.key), (1008, 1009), "the keys after enabling");
        assert_eq!((by_a.address, by_a.bytes), (0, 5000));
        let area = SharedArea::new(&mut a, 4096, PeerAccess::Write).expect("memory");
        assert_eq!(calls(), ["register 4096", "bind memory10 to endpoint4", "enable memory10"]);
        assert_eq!(area.remote().key, 1010);
        // The endpoint is dropped first, or the memory is.
        drop(a);
        let closed = ["close memory8", "close memory10", "close endpoint4", "close queue3", "close vector2"];
        assert_eq!(calls(), closed);
        drop(area);
        assert_eq!(calls(), [""; 0]);
        let mut again = endpoint(&domain);
        region.by(&mut again).expect("registered");
        assert_eq!(region.registrations().len(), 2, "registrations of closed endpoints are removed");
        calls();
        drop(region);
        assert_eq!(calls(), ["close memory9", "close memory14"]);
        assert_eq!(Arc::strong_count(&bytes), 1);
        drop(b);
        assert_eq!(calls(), ["close endpoint7", "close queue6", "close vector5"]);
        drop((again, pool, domain));
        assert_eq!(calls().last().map(String::as_str), Some("close fabric0"));
    }

    #[test]
    fn unbindable_memory_is_released() {
        for refused in ["register", "bind", "enable"] {
            let domain =
                FakeProvider { refuses: Some((refused, -sys::FI_ENOSYS)), ..FakeProvider::default() }.open();
            let mut endpoint = endpoint(&domain);
            calls();
            let error =
                SharedArea::new(&mut endpoint, 4096, PeerAccess::Read).expect_err(refused).to_string();
            assert!(error.contains("memory"), "{error}");
            let last = calls().pop().expect("it was tried");
            assert_eq!(last == "close memory5", refused != "register", "{refused}: {last}");
        }
        let domain = FakeProvider { memory_modes: 0, ..FakeProvider::default() }.open();
        let mut endpoint = endpoint(&domain);
        let area = SharedArea::new(&mut endpoint, 4096, PeerAccess::Read).expect("memory");
        assert_eq!(calls(), ["register 4096"], "most providers register with the domain");
        drop(endpoint);
        assert_eq!(calls()[0], "close endpoint4");
        drop(area);
        assert_eq!(calls(), ["close memory5"]);
    }

    #[test]
    fn read_only_memory_needs_a_library_opened_without_its_cache() {
        // Whatever this process has in its environment by now.
        let verbs = FakeProvider { name: "verbs;ofi_rxm", ..FakeProvider::default() };
        let (domain, caching) = (verbs.open(), verbs.open_of(&CACHING_LIBRARY));
        let bytes = Arc::new(vec![0; 5000]);
        let base = NonNull::from(bytes.as_slice()).cast();
        // SAFETY: the vector lives as long as the `Arc`, and nothing writes it.
        let expose = |domain| unsafe { ExposedMemory::new(domain, base, 5000, Arc::clone(&bytes) as Arc<_>) };
        assert!(expose(&domain).is_ok());
        let error = expose(&caching).expect_err("peers could write it").to_string();
        assert!(error.contains(REGISTRATION_CACHE), "{error}");
    }

    #[test]
    fn unregistrable_memory_that_the_provider_keeps_open_stays() {
        for refused in ["bind", "enable"] {
            let domain = FakeProvider {
                refuses: Some((refused, -sys::FI_ENOSYS)),
                refuses_to_close: Some("memory"),
                ..FakeProvider::default()
            }
            .open();
            let mut endpoint = endpoint(&domain);
            let bytes = Arc::new(vec![0; 5000]);
            let region = exposed(&domain, &bytes);
            calls();
            let error = region.by(&mut endpoint).expect_err(refused).to_string();
            assert!(error.contains("stays allocated"), "{error}");
            assert_eq!(calls().last().map(String::as_str), Some("close memory5"));
            drop(region);
            assert_eq!(Arc::strong_count(&bytes), 2, "peers may still read it");
            let error = SharedArea::new(&mut endpoint, 4096, PeerAccess::Write).expect_err(refused);
            assert!(error.to_string().contains("stays allocated"), "{error}");
            let base = last_base() as *mut std::ffi::c_void;
            // SAFETY: the call only reports whether pages are mapped there, and writes one byte into the array.
            let mapped = unsafe { libc::mincore(base, 4096, [0u8; 1].as_mut_ptr()) };
            assert_eq!(mapped, 0, "the pages stay mapped");
        }
    }

    #[test]
    fn memory_without_a_usable_key_that_the_provider_keeps_open_stays() {
        // Without FI_MR_ENDPOINT the key is known at once: this one says that it does not fit.
        let domain = FakeProvider {
            memory_modes: 0,
            has_long_keys: true,
            refuses_to_close: Some("memory"),
            ..FakeProvider::default()
        }
        .open();
        let memory = vec![7; 100];
        let at = memory.as_ptr();
        let (copy, error) = Buffer::own(&domain, memory).expect_err("it has no key");
        assert!(error.to_string().contains("stays allocated"), "{error}");
        assert!(
            copy == [7; 100] && copy.as_ptr() != at,
            "the registered bytes are not the caller's any more"
        );
        assert!(Pool::new(&domain, LocalUse::SEND, 1, 100).is_err());
        let cache = RegistrationCache::new(1, 1 << 20);
        let (memory, error) = RegisteredMemory::new(vec![7; 100], &cache).lend(&domain).expect_err("no key");
        assert!(error.to_string().contains("stays allocated"), "{error}");
        let base = last_base() as *const u8;
        drop(memory);
        // SAFETY: the memory is leaked, as the last registration was not released, so that it is still readable.
        assert_eq!(unsafe { std::slice::from_raw_parts(base, 100) }, [7; 100]);
    }

    #[test]
    fn memory_the_provider_keeps_open_stays() {
        let domain = FakeProvider::default().open();
        let mut a = endpoint(&domain);
        let bytes = Arc::new(vec![0; 5000]);
        let region = exposed(&domain, &bytes);
        region.by(&mut a).expect("registered");
        calls();
        FakeProvider { refuses: Some(("close", -sys::FI_EBUSY)), ..FakeProvider::default() }.is_there();
        drop(a);
        assert_eq!(calls()[..2], ["close memory5", "close endpoint4"]);
        FakeProvider::default().is_there();
        let mut b = endpoint(&domain);
        region.by(&mut b).expect("registered");
        assert_eq!(region.registrations().len(), 2, "the registration is kept");
        calls();
        drop(region);
        assert_eq!(calls(), ["close memory9"], "ending is not retried");
        assert_eq!(Arc::strong_count(&bytes), 2, "peers may still read it");
    }

    #[test]
    fn unknown_registration_modes_are_rejected() {
        for (memory_modes, why) in [
            (sys::FI_MR_RAW, "longer than eight bytes"),
            (sys::FI_MR_ENDPOINT | sys::FI_MR_LOCAL, "for one endpoint each"),
            (1 << 20, "unsupported kind of memory registration"),
        ] {
            FakeProvider { memory_modes, ..FakeProvider::default() }.is_there();
            let survey = LIBRARY.survey().expect("it lists");
            assert!(survey.providers.is_empty());
            assert!(survey.rejected[0].why.contains(why), "{:?}", survey.rejected);
        }
        FakeProvider { name: "cxi", ..FakeProvider::default() }.is_there();
        assert_eq!(LIBRARY.survey().expect("it lists").providers[0].name, "cxi");
    }

    #[test]
    fn endpoints_report_whether_reads_are_one_sided() {
        for (name, emulates_reads, expected) in [
            ("efa", Some(false), true),
            ("efa", Some(true), false),
            // Before libfabric 1.18.
            ("efa", None, false),
            ("verbs;ofi_rxm", None, true),
            ("tcp;ofi_rxm", None, false),
        ] {
            let domain = FakeProvider { name, emulates_reads, ..FakeProvider::default() }.open();
            assert_eq!(endpoint(&domain).is_one_sided(), expected, "{name} {emulates_reads:?}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let number = 0x5ec2_e75e_c2e7_u64;
        let memory = RemoteMemory { address: number, key: number, bytes: 4096 };
        assert_eq!(format!("{memory:?}"), "RemoteMemory(4096 bytes)");
        let terms = Terms {
            own_token: number,
            peer_token: number,
            own_credits: 2,
            peer_credits: 3,
            staging_bytes: 4,
            landing_bytes: 5,
        };
        assert_eq!(format!("{terms:?}"), "Terms(credits 2, 3; bytes 4, 5)");
    }
}
