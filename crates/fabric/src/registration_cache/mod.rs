//! Callers' reusable memory: registered on first use, and kept registered.
//!
//! ```text
//!   RegisteredMemory --lend--> Buffer --> an operation --> Buffer --into_registered--> RegisteredMemory
//!          |--show--> ReadableMemory --> peers read it ----into_registered-----------------^
//!          '-- RegistrationCache: bounds all registrations, and evicts the least recently lent
//! ```

mod lru;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use fabcache_layout::process::Process;

use self::lru::{Ends, LruList, RegistrationKey};
use crate::cache_registry::IdleCache;
use crate::domain::{Access, Domain, LocalUse};
use crate::error::Error;
use crate::memory::{Buffer, Registration, RemoteMemory};

/// The bounded registrations of callers' memory.
#[derive(Clone)]
pub struct RegistrationCache(Arc<Mutex<CacheState>>);

struct CacheState {
    lru: LruList<Registration>,
    /// The process that made the registrations.
    process: Process,
}

impl Ends for Registration {
    fn end(mut self) -> bool {
        Registration::end(&mut self)
    }
}

impl RegistrationCache {
    /// Returns a cache of at most `count` registrations, of `bytes` bytes together.
    pub fn new(count: usize, bytes: usize) -> RegistrationCache {
        let lru = LruList::new(count, bytes);
        RegistrationCache(Arc::new(Mutex::new(CacheState { lru, process: Process::current() })))
    }

    /// Returns the number of registrations, and their total bytes.
    pub fn sum(&self) -> (usize, usize) {
        self.state().lru.sum()
    }

    fn state(&self) -> MutexGuard<'_, CacheState> {
        lock(&self.0)
    }

    /// Returns the result of `known` for the registration of this memory: the existing one, or a new one.
    fn lend<T>(
        &self,
        of: RegistrationKey,
        memory: &mut [u8],
        domain: &Arc<Domain>,
        known: impl Fn(&Registration) -> T,
    ) -> Result<T, Error> {
        let bytes = memory.len();
        let mut state = self.state();
        if let Some(registration) = state.lru.lend(of) {
            return Ok(known(registration));
        }
        if bytes == 0 || !state.lru.reserve(bytes) {
            return Err(Error::Size("the limit of registered caller memory is reached"));
        }
        drop(state);
        let cache: Arc<dyn IdleCache> = self.0.clone();
        domain.caches().add(&cache);
        let access = if of.is_shown { Access::RemoteRead } else { Access::Local(LocalUse::READ) };
        // Not under the lock, as pinning much memory takes long. SAFETY: the owner ends the registration before it
        // releases the memory, and lends it to one operation at a time; peers do not write it.
        let made = unsafe { domain.register(memory.as_mut_ptr(), bytes, access) };
        let mut state = self.state();
        match made {
            Ok(registration) => {
                let known = known(&registration);
                state.lru.put(of, bytes, registration);
                Ok(known)
            }
            Err(failed) => {
                state.lru.cancel(bytes);
                if failed.is_stuck() {
                    state.lru.keep(of.memory);
                }
                Err(failed.without(()))
            }
        }
    }
}

impl IdleCache for Mutex<CacheState> {
    fn end_idle(&self) -> bool {
        lock(self).lru.end_idle()
    }
}

fn lock(state: &Mutex<CacheState>) -> MutexGuard<'_, CacheState> {
    let mut state = state.lock().expect("no thread panics while it updates the registration cache");
    if !state.process.is_current() {
        // A child process must not end its parent's registrations.
        state.lru.leave_all();
        state.process = Process::current();
    }
    state
}

impl fmt::Debug for RegistrationCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, bytes) = self.sum();
        write!(f, "RegistrationCache({count} of {bytes} bytes)")
    }
}

/// Memory that stays registered between operations.
pub struct RegisteredMemory(Box<RegisteredMemoryInner>);

struct RegisteredMemoryInner {
    number: u64,
    memory: Vec<u8>,
    registrations: RegistrationCache,
    /// The domain that it is registered with for its borrower …
    lent: usize,
    /// … and whether the borrower is peers, which read it.
    is_shown: bool,
}

/// Memory that peers read. Its owner must not write it while peers may still read it. On drop the registration ends;
/// reads by peers then fail.
pub struct ReadableMemory {
    own: Box<RegisteredMemoryInner>,
    remote: RemoteMemory,
}

impl RegisteredMemory {
    /// A caller's memory, registered when it is lent.
    pub fn new(memory: Vec<u8>, registrations: &RegistrationCache) -> RegisteredMemory {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let registrations = registrations.clone();
        RegisteredMemory(Box::new(RegisteredMemoryInner {
            number,
            memory,
            registrations,
            lent: 0,
            is_shown: false,
        }))
    }

    /// Lends the memory to an operation, registered with this domain.
    ///
    /// # Errors
    /// It cannot be registered, or other registrations use up the limit.
    pub fn lend(mut self, domain: &Arc<Domain>) -> Result<Buffer, (RegisteredMemory, Error)> {
        match self.0.lend(domain, false, Registration::descriptor) {
            Ok(descriptor) => {
                let memory = NonNull::from(&mut *self.0.memory);
                // SAFETY: these are the initialized bytes of the vector in `self.0`, which the buffer owns from now on: the
                // vector is not used before `into_registered` takes it out. The cache returned the descriptor for them.
                Ok(unsafe { Buffer::lent(memory.cast(), memory.len(), descriptor, self.0) })
            }
            Err(error) => Err((self, error)),
        }
    }

    /// Exposes the memory to peers of any endpoint of this domain that know its address: they may read all of it, but
    /// not write it, as long as it stays registered, possibly beyond the life of this value.
    ///
    /// # Errors
    /// As for [`RegisteredMemory::lend`]; or the provider binds memory to one endpoint each, or would let peers write it
    /// ([`crate::REGISTRATION_CACHE`]).
    pub fn show(mut self, domain: &Arc<Domain>) -> Result<ReadableMemory, (RegisteredMemory, Error)> {
        let base = self.0.memory.as_ptr();
        let bytes = self.0.memory.len();
        let shown = domain.check_read_only().and_then(|()| match domain.binds_memory() {
            true => Err(Error::Size("memory bound to one endpoint cannot be exposed to all peers")),
            false => self.0.lend(domain, true, |registration| registration.remote(base, bytes)),
        });
        match shown {
            Ok(remote) => Ok(ReadableMemory { own: self.0, remote }),
            Err(error) => Err((self, error)),
        }
    }
}

impl ReadableMemory {
    /// Returns the address and key for peers.
    pub fn remote(&self) -> RemoteMemory {
        self.remote
    }

    /// Takes the memory back from peers.
    pub fn into_registered(self) -> RegisteredMemory {
        self.own.into_registered()
    }
}

impl RegisteredMemoryInner {
    fn lend<T>(
        &mut self,
        domain: &Arc<Domain>,
        is_shown: bool,
        known: impl Fn(&Registration) -> T,
    ) -> Result<T, Error> {
        (self.lent, self.is_shown) = (Arc::as_ptr(domain).addr(), is_shown);
        let of = self.of();
        self.registrations.lend(of, &mut self.memory, domain, known)
    }

    fn of(&self) -> RegistrationKey {
        RegistrationKey { memory: self.number, domain: self.lent, is_shown: self.is_shown }
    }

    /// Marks the registration as idle.
    fn into_registered(self: Box<RegisteredMemoryInner>) -> RegisteredMemory {
        self.registrations.state().lru.give_back(self.of());
        RegisteredMemory(self)
    }
}

impl Buffer {
    /// Returns the registered memory that the buffer was lent from; drops any other buffer.
    pub fn into_registered(self) -> Option<RegisteredMemory> {
        let owner = self.into_owner()?.downcast::<RegisteredMemoryInner>().ok()?;
        Some(owner.into_registered())
    }
}

impl Drop for RegisteredMemoryInner {
    fn drop(&mut self) {
        if !self.registrations.state().lru.end_all_of(self.number) {
            std::mem::forget(std::mem::take(&mut self.memory));
        }
    }
}

impl Deref for RegisteredMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.memory
    }
}

impl DerefMut for RegisteredMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0.memory
    }
}

impl Deref for ReadableMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.own.memory
    }
}

impl fmt::Debug for ReadableMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadableMemory({} bytes)", self.own.memory.len())
    }
}

impl fmt::Debug for RegisteredMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredMemory({} bytes)", self.0.memory.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{FakeProvider, calls, last_access};
    use crate::{Endpoint, EndpointOptions, Pool, sys};

    const LIMIT: usize = 10_000;

    /// Lends memory of a third of the limit, registered.
    fn registered(domain: &Arc<Domain>, registrations: &RegistrationCache) -> Buffer {
        RegisteredMemory::new(vec![0; LIMIT / 3], registrations).lend(domain).expect("within the limit")
    }

    fn idle(buffer: Buffer) -> RegisteredMemory {
        buffer.into_registered().expect("it was lent")
    }

    #[test]
    fn idle_registrations_are_evicted_for_other_memory() {
        let fake = FakeProvider { memory_modes: 0, locked_bytes_max: LIMIT, ..FakeProvider::default() };
        let domain = fake.open();
        let (one, other) = (RegistrationCache::new(9, 1 << 20), RegistrationCache::new(9, 1 << 20));
        let state = idle(registered(&domain, &one));
        let (also_kept, in_use) = (idle(registered(&domain, &other)), registered(&domain, &other));
        calls();
        let pool = Pool::new(&domain, LocalUse::SEND, 1, LIMIT / 2).expect("idle registrations are evicted");
        let expected = ["register 5000", "close memory2", "close memory3", "register 5000"];
        assert_eq!(calls(), expected, "from all caches");
        assert_eq!([one.sum().0, other.sum().0], [0, 1], "registrations in use stay");
        Pool::new(&domain, LocalUse::SEND, 1, LIMIT / 2).expect_err("nothing is idle");
        assert_eq!(calls(), ["register 5000"], "so registration is not retried");
        state.lend(&domain).expect_err("pools are not evicted");
        drop((pool, also_kept, in_use));
        Pool::new(&domain, LocalUse::SEND, 1, LIMIT).expect("all memory is free");
        drop(one);
    }

    #[test]
    fn memory_is_registered_for_its_use_alone() {
        let domain = FakeProvider { memory_modes: 0, ..FakeProvider::default() }.open();
        for (local_use, access) in [
            (LocalUse::SEND, sys::FI_SEND),
            (LocalUse::RECEIVE, sys::FI_RECV),
            (LocalUse::READ.and(LocalUse::WRITE), sys::FI_READ | sys::FI_WRITE),
        ] {
            Pool::new(&domain, local_use, 1, 100).expect("memory");
            assert_eq!(last_access(), access, "{local_use:?}");
        }
        Buffer::own(&domain, vec![0; 100]).expect("memory");
        assert_eq!(last_access(), sys::FI_READ, "values are read into it");
        let cache = RegistrationCache::new(9, 1 << 20);
        let lent = registered(&domain, &cache);
        assert_eq!(last_access(), sys::FI_READ, "values are read into it");
        idle(lent).show(&domain).expect("memory");
        assert_eq!(last_access(), sys::FI_REMOTE_READ, "peers read it");
    }

    #[test]
    fn idle_registrations_are_evicted_for_endpoints() {
        let fake = FakeProvider {
            memory_modes: 0,
            locked_bytes_max: LIMIT,
            endpoint_bytes: LIMIT,
            ..FakeProvider::default()
        };
        let domain = fake.open();
        let registrations = RegistrationCache::new(9, 1 << 20);
        let options = EndpointOptions { operations: 4, peers: 1, waits: false };
        let in_use = registered(&domain, &registrations);
        let error = Endpoint::open(&domain, options).expect_err("too much for the limit");
        assert!(matches!(error, Error::Call { code: sys::FI_ENOMEM, .. }), "{error}");
        let state = idle(in_use);
        Endpoint::open(&domain, options).expect("idle registrations are evicted");
        assert_eq!(registrations.sum(), (0, 0));
        drop(state);
    }
}
