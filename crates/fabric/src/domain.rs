//! An open interface of a provider: registers memory, and opens endpoints.

use std::sync::Arc;

use crate::cache_registry::CacheRegistry;
use crate::error::{Error, MAY_BE_LIMIT};
use crate::library::Library;
use crate::object::{Object, operation};
use crate::provider::Provider;
use crate::signals::SavedHandlers;
use crate::sys;

/// An open interface of a provider. Any thread may use it.
#[derive(Debug)]
pub struct Domain {
    // Declared before the fabric that it belongs to.
    domain: Object<sys::FidDomain>,
    fabric: Object<sys::FidFabric>,
    provider: Provider,
    memory_modes: i32,
    key_bytes: usize,
    /// The caches that keep registrations of idle memory.
    caches: CacheRegistry,
    library: &'static Library,
}

/// The environment variable that bounds libfabric's own registration cache.
pub const REGISTRATION_CACHE: &str = "FI_MR_CACHE_MAX_COUNT";

/// The access that a registration grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Operations of this process.
    Local(LocalUse),
    /// Reads by peers with its key.
    RemoteRead,
    /// Writes by peers with its key.
    RemoteWrite,
}

/// The operations for which memory is registered: only these, because a provider may grant peers more than asked.
///
/// ofi_rxm adds remote reads to memory that is sent from, and with FI_OFI_RXM_USE_RNDV_WRITE=1 remote writes to memory
/// that is received into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalUse(u64);

impl LocalUse {
    /// Messages are sent from the memory.
    pub const SEND: LocalUse = LocalUse(sys::FI_SEND);
    /// Messages are received into the memory.
    pub const RECEIVE: LocalUse = LocalUse(sys::FI_RECV);
    /// The memory receives what is read from peers.
    pub const READ: LocalUse = LocalUse(sys::FI_READ);
    /// The memory is written to peers.
    pub const WRITE: LocalUse = LocalUse(sys::FI_WRITE);
    /// Every operation, for measurements among trusted peers.
    pub const ANY: LocalUse = LocalUse(sys::FI_SEND | sys::FI_RECV | sys::FI_READ | sys::FI_WRITE);

    /// Returns both uses.
    pub const fn and(self, other: LocalUse) -> LocalUse {
        LocalUse(self.0 | other.0)
    }
}

impl Access {
    fn flags(self) -> u64 {
        match self {
            Access::Local(LocalUse(flags)) => flags,
            Access::RemoteRead => sys::FI_REMOTE_READ,
            Access::RemoteWrite => sys::FI_REMOTE_WRITE,
        }
    }
}

impl Domain {
    /// Opens an interface.
    ///
    /// # Errors
    /// The provider fails.
    pub fn open(provider: &Provider) -> Result<Arc<Domain>, Error> {
        let library = provider.info.library();
        let _kept = SavedHandlers::new();
        // fi_domain may change the description: cxi, since libfabric 1.21, removes FI_HMEM from its capabilities. So each
        // domain has its own, of which its endpoints make theirs.
        let provider = Provider::of(provider.info.duplicate()?).ok_or_else(|| {
            Error::System(format!("{provider} has changed since it was listed; list it again"))
        })?;
        let info = provider.info.as_ptr();
        // SAFETY: `provider`, which outlives this use, owns the description, and `Info::copy` has found that it has all
        // attribute structures.
        let fabric_attr = unsafe { (*info).fabric_attr };
        // SAFETY: `provider` owns the description, and `Info::copy` has found that it has all attribute structures.
        let domain_attr = unsafe { (*info).domain_attr };
        let mut made = std::ptr::null_mut();
        // SAFETY: the call reads the attributes, and may change them: they are part of the copy that `provider` owns and
        // nothing else refers to yet. It stores the object at `made`, which outlives the call.
        let result = unsafe { (library.open_fabric)(fabric_attr, &raw mut made, std::ptr::null_mut()) };
        let failed = |what, result| failure(library, &provider, what, result);
        if result != 0 {
            return Err(failed("open the fabric", result));
        }
        // SAFETY: libfabric has just opened it, so nothing else closes it.
        let fabric = unsafe { Object::new(made) };
        let fabric = fabric.ok_or_else(|| failed("open the fabric", -sys::FI_ENOSYS))?;
        // SAFETY: the object is open while this value owns it, and libfabric has filled in its structure.
        let table = unsafe { (*fabric.as_ptr()).ops };
        let open =
            operation!(table, FiOpsFabric::domain).ok_or_else(|| failed("open a domain", -sys::FI_ENOSYS))?;
        let mut made = std::ptr::null_mut();
        // SAFETY: the fabric is open, as `fabric` owns it, and was opened with the attributes of this description. The call
        // may change the description, which is the copy that `provider` owns and nothing else refers to yet. It stores
        // the object at `made`, which outlives the call.
        let result = unsafe { open(fabric.as_ptr(), info, &raw mut made, std::ptr::null_mut()) };
        if result != 0 {
            return Err(failed("open a domain", result));
        }
        // SAFETY: libfabric has just opened it, so nothing else closes it.
        let domain = unsafe { Object::new(made) }.ok_or_else(|| failed("open a domain", -sys::FI_ENOSYS))?;
        // SAFETY: the description, which `provider` owns, has this structure, and libfabric does not access it after the calls.
        let memory_modes = unsafe { (*domain_attr).mr_mode };
        // SAFETY: the description, which `provider` owns, has this structure, and libfabric does not access it after the calls.
        let key_bytes = unsafe { (*domain_attr).mr_key_size };
        let caches = CacheRegistry::default();
        Ok(Arc::new(Domain { domain, fabric, provider, memory_modes, key_bytes, caches, library }))
    }

    /// Returns the provider that it belongs to.
    pub fn provider(&self) -> &Provider {
        &self.provider
    }

    pub(crate) fn caches(&self) -> &CacheRegistry {
        &self.caches
    }

    pub(crate) fn failure(&self, what: &'static str, result: isize) -> Error {
        failure(self.library, &self.provider, what, result as i32)
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::FidDomain {
        self.domain.as_ptr()
    }

    pub(crate) fn table(&self) -> *const sys::FiOpsDomain {
        // SAFETY: the object is open while this value owns it, and libfabric has filled in its structure.
        unsafe { (*self.domain.as_ptr()).ops }
    }

    pub(crate) fn fabric(&self) -> *mut sys::FidFabric {
        self.fabric.as_ptr()
    }

    pub(crate) fn fabric_table(&self) -> *const sys::FiOpsFabric {
        // SAFETY: the object is open while this value owns it, and libfabric has filled in its structure.
        unsafe { (*self.fabric.as_ptr()).ops }
    }

    /// Returns whether memory for peers is bound to one endpoint each.
    pub(crate) fn binds_memory(&self) -> bool {
        self.memory_modes & sys::FI_MR_ENDPOINT != 0
    }

    /// Checks that read-only memory cannot be written: libfabric's registration cache grants every access, so it must
    /// be off.
    pub(crate) fn check_read_only(&self) -> Result<(), Error> {
        if self.provider.is_one_sided && self.library.caches_registrations {
            let why = "would let its peers write the memory that they may read, unless libfabric's cache of registrations \
                       is off: set FI_MR_CACHE_MAX_COUNT=0 before the program opens libfabric";
            return Err(Error::Unfit { provider: self.provider.to_string(), why });
        }
        Ok(())
    }

    /// Registers memory; if that fails, evicts idle registrations and tries again.
    ///
    /// # Safety
    /// The memory stays mapped while the object is open, and what peers or operations may do to it is compatible with
    /// all other accesses to it meanwhile.
    pub(crate) unsafe fn registered(
        &self,
        base: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Object<sys::FidMr>, Error> {
        // SAFETY: the conditions of `try_register` are those of this function, which the caller upholds for as long as the
        // object that is returned is open. An attempt that fails leaves none.
        let make = || unsafe { self.try_register(base, bytes, access) };
        self.caches.make_way(make)
    }

    /// # Safety
    /// As for [`Domain::registered`].
    unsafe fn try_register(
        &self,
        base: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Object<sys::FidMr>, Error> {
        // SAFETY: the object is open while this value owns it, and libfabric has filled in its structure.
        let table = unsafe { (*self.domain.as_ptr()).mr };
        let missing = || self.failure("register memory", -sys::FI_ENOSYS as isize);
        let register = operation!(table, FiOpsMr::reg).ok_or_else(missing)?;
        // If the provider does not choose keys, they must be unpredictable.
        let key = if self.memory_modes & sys::FI_MR_PROV_KEY == 0 { self.random_key()? } else { 0 };
        let (domain, mut made) = (self.domain.fid(), std::ptr::null_mut());
        let (base, flags, null) = (base.cast(), access.flags(), std::ptr::null_mut());
        // SAFETY: `self` keeps the domain open. The caller guarantees that the memory stays mapped while the object is
        // open, and that the access granted is compatible with all others. `made`, where the object is stored, outlives
        // the call.
        let result = unsafe { register(domain, base, bytes, flags, 0, key, 0, &raw mut made, null) };
        if result != 0 {
            return Err(Error::Register {
                bytes,
                provider: self.provider.to_string(),
                code: -result,
                text: self.library.text(-result) + MAY_BE_LIMIT,
            });
        }
        // SAFETY: libfabric has just opened it, so nothing else closes it.
        unsafe { Object::new(made) }.ok_or_else(missing)
    }

    /// Returns the address by which peers name the first byte of memory registered at `base`.
    pub(crate) fn remote_address(&self, base: *const u8) -> u64 {
        if self.memory_modes & sys::FI_MR_VIRT_ADDR != 0 { base as u64 } else { 0 }
    }

    fn random_key(&self) -> Result<u64, Error> {
        let key = getrandom::u64().map_err(|error| Error::System(error.to_string()))?;
        let bits = 8 * self.key_bytes.clamp(1, 8) as u32;
        // Not all ones, which mean no key.
        Ok((key >> (64 - bits)) & !(1 << (bits - 1)))
    }
}

fn failure(library: &'static Library, provider: &Provider, what: &'static str, result: i32) -> Error {
    let code = result.saturating_neg();
    let mut text = library.text(code);
    if code == sys::FI_ENOMEM && provider.pins_memory {
        // The provider registers memory of its own.
        text.push_str(MAY_BE_LIMIT);
    }
    Error::Call { what, provider: provider.to_string(), code, text }
}
