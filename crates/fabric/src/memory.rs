//! Memory that a provider has registered.
//!
//! - [`Pool`]: equal [`Buffer`]s, each of whoever holds it, or of the operation that it was given to.
//! - [`Area`]: memory that peers read or write whenever they like, so no references to it are made.
//! - [`Exposed`]: somebody else's memory, which peers may read.

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use fabcache_layout::Memory;
use rustix::mm::{MapFlags, ProtFlags};

use crate::domain::{Access, Domain};
use crate::error::Error;
use crate::lasting::{Lasting, OwnLasting};
use crate::object::Object;
use crate::parts::OwnParts;
use crate::sys;

/// The variable that bounds how many registrations libfabric keeps for later ones of the same memory.
pub const REGISTRATION_CACHE: &str = "FI_MR_CACHE_MAX_COUNT";

/// What a peer needs to read or write memory of this process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RemoteMemory {
    /// What its first byte is called.
    pub address: u64,
    /// What allows to.
    pub key: u64,
    /// Its bytes.
    pub bytes: u64,
}

impl fmt::Debug for RemoteMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without what allows to: it would be in the log of whoever prints what holds this.
        write!(f, "RemoteMemory({} bytes)", self.bytes)
    }
}

/// A registration, which ends when dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    /// There until it is ended. Before the domain, to which it belongs.
    object: Option<Object<sys::FidMr>>,
    domain: Arc<Domain>,
}

impl Registration {
    pub fn new(object: Object<sys::FidMr>, domain: Arc<Domain>) -> Registration {
        Registration { object: Some(object), domain }
    }

    /// Ends it. If false the provider has not let go of the memory, which then stays as it is for good.
    pub(crate) fn end(&mut self) -> bool {
        self.object.take().is_none_or(Object::close)
    }

    fn object(&self) -> *mut sys::FidMr {
        self.object.as_ref().expect("it is there until it is ended").as_ptr()
    }

    pub fn key(&self) -> u64 {
        // SAFETY: the object lives.
        unsafe { (*self.object()).key }
    }

    /// What local operations say which registration their memory is in.
    pub(crate) fn descriptor(&self) -> *mut std::ffi::c_void {
        // SAFETY: the object lives.
        unsafe { (*self.object()).mem_desc }
    }

    fn remote(&self, base: *const u8, bytes: usize) -> RemoteMemory {
        RemoteMemory { address: self.domain.remote_address(base), key: self.key(), bytes: bytes as u64 }
    }
}

/// Pages of this process' own.
#[derive(Debug)]
struct Pages {
    base: NonNull<u8>,
    bytes: usize,
    /// Somebody may use it that nobody can stop: it is not given back.
    is_kept: bool,
}

// SAFETY: only an address; who may do what with the memory is said by who holds it.
unsafe impl Send for Pages {}
// SAFETY: as for Send.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(bytes: usize) -> Result<Pages, Error> {
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
        // SAFETY: the mapping is ours, and whoever used it is gone.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Equal buffers in one registration.
#[derive(Clone, Debug)]
pub struct Pool(Arc<OwnPool>);

#[derive(Debug)]
struct OwnPool {
    // Before the pages, which it is of.
    registration: Registration,
    pages: Pages,
    buffer_bytes: usize,
    free: Mutex<Vec<u32>>,
}

impl Pool {
    /// So many buffers of so many bytes each, zeroed. Memory is touched as it is used, unless the provider pins it.
    ///
    /// # Errors
    /// There is no memory, or it cannot be registered.
    pub fn new(domain: &Arc<Domain>, buffers: usize, buffer_bytes: usize) -> Result<Pool, Error> {
        let bytes = buffers.max(1).checked_mul(buffer_bytes.max(1));
        let bytes = bytes.ok_or(Error::Size("more buffers than there are addresses"))?;
        let pages = Pages::new(bytes)?;
        // SAFETY: the pages are unmapped after the registration has ended; buffers are handed to one operation at a time.
        let registration = unsafe { domain.register(pages.base.as_ptr(), bytes, Access::Local) }?;
        let free = (0..u32::try_from(buffers).map_err(|_| Error::Size("more than 2^32 buffers"))?).rev();
        let free = Mutex::new(free.collect());
        Ok(Pool(Arc::new(OwnPool { registration, pages, buffer_bytes: buffer_bytes.max(1), free })))
    }

    /// A buffer, if one is free.
    pub fn take(&self) -> Option<Buffer> {
        let index = self.0.free().pop()?;
        let at = index as usize * self.0.buffer_bytes;
        // SAFETY: within the pages, for there are so many buffers.
        let base = unsafe { self.0.pages.base.add(at) };
        let home = Home::Pool(Arc::clone(&self.0), index);
        Some(Buffer { base, bytes: self.0.buffer_bytes, descriptor: self.0.registration.descriptor(), home })
    }

    /// How many are free at this moment.
    pub fn free(&self) -> usize {
        self.0.free().len()
    }

    /// Bytes of each.
    pub fn buffer_bytes(&self) -> usize {
        self.0.buffer_bytes
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        self.0.pages.bytes
    }
}

impl OwnPool {
    fn free(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.free.lock().expect("no thread panics while it takes a buffer")
    }
}

/// Registered memory that belongs to whoever holds it.
pub struct Buffer {
    base: NonNull<u8>,
    bytes: usize,
    descriptor: *mut std::ffi::c_void,
    home: Home,
}

/// Where it goes when it is dropped.
enum Home {
    Pool(Arc<OwnPool>, u32),
    /// A caller's memory.
    Own(ManuallyDrop<Box<Own>>),
    /// The same, registered for longer than this.
    Lasting(ManuallyDrop<Box<OwnLasting>>),
    /// A part of another buffer, from there on.
    Part(Arc<OwnParts>, usize),
}

struct Own {
    // Before the memory, which it is of.
    registration: Registration,
    memory: Vec<u8>,
}

// SAFETY: the memory is this value's alone.
unsafe impl Send for Buffer {}
// SAFETY: shared, it is only read.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Memory of the caller's, registered as it lies. Whether that is cached is the provider's: those that pin memory
    /// keep registrations of late, and notice when memory goes away.
    ///
    /// # Errors
    /// It cannot be registered.
    pub fn own(domain: &Arc<Domain>, mut memory: Vec<u8>) -> Result<Buffer, (Vec<u8>, Error)> {
        let (base, bytes) = (memory.as_mut_ptr(), memory.len());
        if bytes == 0 {
            return Err((memory, Error::Size("memory to register has at least one byte")));
        }
        // SAFETY: the vector stays as it is until the registration has ended, and is used by one operation at a time.
        let registration = match unsafe { domain.register(base, bytes, Access::Local) } {
            Ok(registration) => registration,
            Err(error) => return Err((memory, error)),
        };
        let descriptor = registration.descriptor();
        let base = NonNull::new(base).expect("a vector is not at address 0");
        let home = Home::Own(ManuallyDrop::new(Box::new(Own { registration, memory })));
        Ok(Buffer { base, bytes, descriptor, home })
    }

    /// The caller's memory back; none if it is a pool's.
    pub fn into_own(mut self) -> Option<Vec<u8>> {
        let Home::Own(own) = &mut self.home else { return None };
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

    /// Memory that its owner has registered, and lends.
    pub(crate) fn lasting(mut own: Box<OwnLasting>, descriptor: *mut std::ffi::c_void) -> Buffer {
        let memory = own.memory();
        let (base, bytes) = (NonNull::from(&mut *memory).cast(), memory.len());
        Buffer { base, bytes, descriptor, home: Home::Lasting(ManuallyDrop::new(own)) }
    }

    /// What was lent, if it was; else it is dropped.
    pub fn into_lasting(mut self) -> Option<Lasting> {
        let Home::Lasting(own) = &mut self.home else { return None };
        // SAFETY: it is taken once: this value is forgotten below.
        let own = unsafe { ManuallyDrop::take(own) };
        std::mem::forget(self);
        Some(own.into_lasting())
    }

    /// A part of a buffer that nobody uses but through such parts, none of which has a byte of another.
    pub(crate) fn part(whole: &Buffer, range: Range<usize>, of: Arc<OwnParts>) -> Buffer {
        debug_assert!(range.start <= range.end && range.end <= whole.bytes);
        // SAFETY: within the buffer, by the caller's word.
        let base = unsafe { whole.base.add(range.start) };
        let (bytes, descriptor) = (range.len(), whole.descriptor);
        Buffer { base, bytes, descriptor, home: Home::Part(of, range.start) }
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
        // SAFETY: initialised, in bounds, and nobody else's while this value is there: an operation takes the value.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for reading.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &mut self.home {
            Home::Pool(pool, index) => pool.free().push(*index),
            // SAFETY: dropped once, here.
            Home::Own(own) => unsafe { ManuallyDrop::drop(own) },
            // SAFETY: as above.
            Home::Lasting(own) => unsafe { ManuallyDrop::drop(own) },
            Home::Part(of, at) => of.give_back(*at..*at + self.bytes),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes)
    }
}

impl Drop for OwnPool {
    fn drop(&mut self) {
        self.pages.is_kept = !self.registration.end();
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if !self.registration.end() {
            std::mem::forget(std::mem::take(&mut self.memory));
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        self.pages.is_kept = !self.registration.end();
    }
}

impl Drop for Exposed {
    fn drop(&mut self) {
        if !self.registration.end() {
            std::mem::forget(Arc::clone(&self.of));
        }
    }
}

/// What peers may do with an [`Area`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    /// Read it.
    Read,
    /// Write it.
    Write,
}

/// Memory that peers read or write whenever they like.
#[derive(Debug)]
pub struct Area {
    // Before the pages, which it is of.
    registration: Registration,
    memory: Memory,
    pages: Pages,
}

impl Area {
    /// So many bytes, zeroed.
    ///
    /// # Errors
    /// There is no memory, or it cannot be registered.
    pub fn new(domain: &Arc<Domain>, bytes: usize, peers: Peers) -> Result<Area, Error> {
        let pages = Pages::new(bytes.max(1))?;
        let access = match peers {
            Peers::Read => Access::RemoteRead,
            Peers::Write => Access::RemoteWrite,
        };
        // SAFETY: the pages are unmapped after the registration has ended; this process copies from and to them by
        // `Memory`, for which others may write meanwhile.
        let registration = unsafe { domain.register(pages.base.as_ptr(), pages.bytes, access) }?;
        // SAFETY: pages are aligned, and mapped as long as this value, which hands out no copy of it; nobody has
        // references into them.
        let memory = unsafe { Memory::new(pages.base, pages.bytes as u64) };
        Ok(Area { registration, memory, pages })
    }

    /// What peers need.
    pub fn remote(&self) -> RemoteMemory {
        self.registration.remote(self.pages.base.as_ptr(), self.pages.bytes)
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.pages.bytes
    }

    /// It never is.
    pub fn is_empty(&self) -> bool {
        self.pages.bytes == 0
    }

    /// Copies bytes out of it; if a peer writes them meanwhile they may be torn.
    ///
    /// # Panics
    /// They are not all within it.
    pub fn copy_out(&self, at: usize, into: &mut [u8]) {
        self.memory.copy_out(at as u64, into);
    }

    /// The same behind what is in `into`.
    ///
    /// # Panics
    /// As for [`Area::copy_out`].
    pub fn append_to(&self, at: usize, len: usize, into: &mut Vec<u8>) {
        self.memory.append_to(at as u64, len, into);
    }

    /// Copies bytes into it.
    ///
    /// # Panics
    /// There is no room for all of them.
    pub fn copy_in(&self, at: usize, bytes: &[u8]) {
        self.memory.copy_in(at as u64, bytes);
    }
}

/// Somebody's memory that peers may read, as long as this lives.
pub struct Exposed {
    // Before what it is of.
    registration: Registration,
    base: *const u8,
    bytes: usize,
    of: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the address is only told to peers.
unsafe impl Send for Exposed {}
// SAFETY: as for Send.
unsafe impl Sync for Exposed {}

impl Exposed {
    /// Lets peers that have its key read `bytes` bytes from `base` on; nothing can be written so.
    ///
    /// # Errors
    /// It cannot be registered: providers that pin it are bound by the limit of locked memory. Or the provider would let
    /// peers write it as well: registrations in libfabric's cache allow everything, so that has to be off
    /// ([`REGISTRATION_CACHE`] is `0` in the environment when libfabric is opened).
    ///
    /// # Safety
    /// The memory stays mapped as long as `of` lives, and all who write it meanwhile do so without references to it, as
    /// [`Memory`] does.
    pub unsafe fn new(
        domain: &Arc<Domain>,
        base: NonNull<u8>,
        bytes: usize,
        of: Arc<dyn Any + Send + Sync>,
    ) -> Result<Exposed, Error> {
        let has_cache = domain.provider().is_one_sided;
        if has_cache && std::env::var(REGISTRATION_CACHE).as_deref() != Ok("0") {
            let why = "would let clients write the memory that they may read, unless libfabric's cache of registrations \
                       is off: set FI_MR_CACHE_MAX_COUNT=0";
            return Err(Error::Unfit { provider: domain.provider().to_string(), why });
        }
        // SAFETY: it stays mapped by this function's own contract, and is only read.
        let registration = unsafe { domain.register(base.as_ptr(), bytes, Access::RemoteRead) }?;
        Ok(Exposed { registration, base: base.as_ptr(), bytes, of })
    }

    /// What peers need.
    pub fn remote(&self) -> RemoteMemory {
        self.registration.remote(self.base, self.bytes)
    }
}

impl fmt::Debug for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the key, which opens all of it.
        write!(f, "Exposed({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Terms;

    #[test]
    fn what_opens_memory_or_a_link_is_not_printed() {
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
