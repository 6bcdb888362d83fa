//! Memory that peers access: [`SharedArea`] is allocated for them, [`ExposedMemory`] belongs to another owner.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use fabcache_layout::Memory;

use crate::domain::{Access, Domain};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::memory::{Pages, Registration, RemoteMemory};

/// The access that peers have to a [`SharedArea`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAccess {
    /// Read it.
    Read,
    /// Write it.
    Write,
}

/// Memory that peers read or write at any time.
#[derive(Debug)]
pub struct SharedArea {
    // Declared before the pages that it registers.
    registration: Registration,
    memory: Memory,
    pages: Pages,
}

impl SharedArea {
    /// Returns `bytes` bytes, zeroed, for peers of this endpoint; with some providers, only for these.
    ///
    /// # Errors
    /// There is no memory, or it cannot be registered.
    pub fn new(endpoint: &mut Endpoint, bytes: usize, peers: PeerAccess) -> Result<SharedArea, Error> {
        let pages = Pages::new(bytes.max(1))?;
        let access = match peers {
            PeerAccess::Read => Access::RemoteRead,
            PeerAccess::Write => Access::RemoteWrite,
        };
        // SAFETY: the pages are unmapped after the registration has ended; this process accesses them through
        // `Memory`, which allows concurrent writes.
        let registration = unsafe { endpoint.register(pages.base.as_ptr(), pages.bytes, access) };
        let registration = match registration {
            Ok(registration) => registration,
            Err(failed) => return Err(failed.without(pages)),
        };
        // SAFETY: `pages` is page-aligned and stays mapped for the life of this value, which hands out no copy of the
        // `Memory`; no reference into the pages exists.
        let memory = unsafe { Memory::new(pages.base, pages.bytes as u64) };
        Ok(SharedArea { registration, memory, pages })
    }

    /// Returns the address and key for peers.
    pub fn remote(&self) -> RemoteMemory {
        self.registration.remote(self.pages.base.as_ptr(), self.pages.bytes)
    }

    /// Returns its length.
    pub fn len(&self) -> usize {
        self.pages.bytes
    }

    /// Returns false: an area is never empty.
    pub fn is_empty(&self) -> bool {
        self.pages.bytes == 0
    }

    /// Copies bytes out of it; concurrent writes by peers may tear them.
    ///
    /// # Panics
    /// The range is out of bounds.
    pub fn copy_out(&self, at: usize, into: &mut [u8]) {
        self.memory.copy_out(at as u64, into);
    }

    /// Like [`SharedArea::copy_out`], appending to `into`.
    ///
    /// # Panics
    /// As for [`SharedArea::copy_out`].
    pub fn append_to(&self, at: usize, len: usize, into: &mut Vec<u8>) {
        self.memory.append_to(at as u64, len, into);
    }

    /// Copies bytes into it.
    ///
    /// # Panics
    /// The range is out of bounds.
    pub fn copy_in(&self, at: usize, bytes: &[u8]) {
        self.memory.copy_in(at as u64, bytes);
    }
}

/// Memory that peers may read while this value lives.
pub struct ExposedMemory {
    // Declared, and so dropped, before the memory. One for all endpoints, or one for each.
    registrations: Mutex<Vec<Registration>>,
    domain: Arc<Domain>,
    base: *mut u8,
    bytes: usize,
    of: Arc<dyn Any + Send + Sync>,
}

// SAFETY: only `base` is not Send by itself: this type passes it to libfabric and to peers, and never dereferences it.
// `registrations`, `domain` and `of` are Send, as `others_are_send_and_sync` checks, and `bytes` is a number.
unsafe impl Send for ExposedMemory {}
// SAFETY: `&ExposedMemory` only copies `base` and `bytes`. `registrations` is behind a mutex; it, `domain` and `of` are
// Sync, as `others_are_send_and_sync` checks.
unsafe impl Sync for ExposedMemory {}

/// Checks when compiling that all fields but the address can go to, and be shared with, other threads.
const _: fn() = || {
    fn others_are_send_and_sync<T: Send + Sync>() {}
    others_are_send_and_sync::<(Mutex<Vec<Registration>>, Arc<Domain>, usize, Arc<dyn Any + Send + Sync>)>();
};

impl ExposedMemory {
    /// Lets peers that have its key read `bytes` bytes from `base` on, [by an endpoint](ExposedMemory::by); nothing can be written so.
    ///
    /// # Errors
    /// It cannot be registered: providers that pin memory are bound by the limit of locked memory. Or the provider
    /// would let peers write it as well: registrations in libfabric's cache allow everything, so the cache must be off
    /// ([`crate::REGISTRATION_CACHE`] is `0` in the environment when libfabric is opened).
    ///
    /// # Safety
    /// The memory stays mapped as long as `of` lives, and concurrent writers do not form references to it, as
    /// [`Memory`] does not.
    pub unsafe fn new(
        domain: &Arc<Domain>,
        base: NonNull<u8>,
        bytes: usize,
        of: Arc<dyn Any + Send + Sync>,
    ) -> Result<ExposedMemory, Error> {
        domain.check_read_only()?;
        let mut registrations = Vec::new();
        if !domain.binds_memory() {
            // SAFETY: the caller guarantees that the memory stays mapped while `of` lives, which this value drops after the
            // registration has ended, or never. Peers only read it, and the caller's writers form no references to it.
            let registration = unsafe { domain.register(base.as_ptr(), bytes, Access::RemoteRead) };
            match registration {
                Ok(registration) => registrations.push(registration),
                Err(failed) => return Err(failed.without(of)),
            }
        }
        let registrations = Mutex::new(registrations);
        Ok(ExposedMemory { registrations, domain: Arc::clone(domain), base: base.as_ptr(), bytes, of })
    }

    /// Returns what peers of this endpoint, of the same domain, need to read it.
    ///
    /// # Errors
    /// It cannot be registered for this endpoint.
    ///
    /// # Panics
    /// The endpoint is of another domain.
    pub fn by(&self, endpoint: &mut Endpoint) -> Result<RemoteMemory, Error> {
        assert!(Arc::ptr_eq(endpoint.domain(), &self.domain), "memory is exposed in one domain");
        let mut registrations = self.registrations();
        if !self.domain.binds_memory() {
            let whole = registrations.first().expect("it was registered when it was made");
            return Ok(whole.remote(self.base, self.bytes));
        }
        // SAFETY: the caller of `new` guarantees that the memory stays mapped while `of` lives, which this value drops after
        // the registration has ended, or never. Peers only read it, and no writer forms a reference to it.
        let registration = unsafe { endpoint.register(self.base, self.bytes, Access::RemoteRead) };
        let registration = registration.map_err(|failed| failed.without(Arc::clone(&self.of)))?;
        let remote = registration.remote(self.base, self.bytes);
        // Closed endpoints have ended theirs.
        registrations.retain(|registration| !registration.has_ended());
        registrations.push(registration);
        Ok(remote)
    }

    pub(crate) fn registrations(&self) -> std::sync::MutexGuard<'_, Vec<Registration>> {
        self.registrations.lock().expect("no thread panics while it registers memory")
    }
}

impl fmt::Debug for ExposedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the key, which opens all of it.
        write!(f, "ExposedMemory({} bytes)", self.bytes)
    }
}

impl Drop for SharedArea {
    fn drop(&mut self) {
        self.pages.is_kept = !self.registration.end();
    }
}

impl Drop for ExposedMemory {
    fn drop(&mut self) {
        let mut is_over = true;
        for registration in self.registrations().iter_mut() {
            is_over &= registration.end();
        }
        if !is_over {
            std::mem::forget(Arc::clone(&self.of));
        }
    }
}
