//! A client's options.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use fabcache_client::distribution::{Hash, Hashing, Names, Placement, Weights};
use fabcache_client::{Credentials, Distribution, Fabric, Protocol};

use super::code::{Code, Fault, answer};
use super::ffi;
use crate::guarded;

/// Options of a client: made by fabcache_options_new(), read by fabcache_open(). One thread at a time may change
/// them.
#[derive(Default)]
pub struct Options {
    /// But for the distribution.
    base: fabcache_client::Options,
    placement: Placement,
    /// None: that of the distribution.
    hash: Option<Hash>,
    namespace_bytes: usize,
    sort_hosts: bool,
}

/// Whether servers that are reached by a Unix socket are asked for their memory: fabcache_options_shared_memory().
#[repr(C)]
pub enum SharedMemory {
    /// Where they share it; else the socket does. So it is if nothing is set.
    Offered = 0,
    /// It must be shared: otherwise calls fail with FABCACHE_REFUSED, and fabcache_last_error() says why.
    Required = 1,
    /// Never.
    Never = 2,
}

/// How values are got from servers whose address begins with fab://: fabcache_options_fabric().
#[repr(C)]
pub enum FabricMode {
    /// As has taken less time lately; by requests where the provider needs the server's help with reads. So it is if nothing
    /// is set.
    Auto = 0,
    /// They are read from the server's memory, without the server.
    OneSided = 1,
    /// The server is asked.
    Request = 2,
}

/// What is spoken with servers over sockets: fabcache_options_protocol().
#[repr(C)]
pub enum Spoken {
    /// The meta protocol, or the text protocol with servers and proxies that do not know it. So it is if nothing is set.
    Auto = 0,
    /// The meta protocol, of memcached from 1.6 on.
    Meta = 1,
    /// The binary protocol. fabcache_options_credentials() are those of SASL then.
    Binary = 2,
    /// The text protocol, in which a key with a space or a control character is FABCACHE_BAD_KEY.
    Text = 3,
}

/// How keys are mapped to servers, as libmemcached does: fabcache_options_distribution().
#[repr(C)]
pub enum Mapping {
    /// The hash modulo the number of servers. So it is if nothing is set.
    Modula = 0,
    /// Consistent hashing, where weights count as soon as one is not 1.
    Ketama = 1,
    /// Consistent hashing with weights, and with MD5 unless fabcache_options_hash() says otherwise.
    KetamaWeighted = 2,
    /// Consistent hashing, with the names that spymemcached gives to servers.
    KetamaSpy = 3,
    /// Each time any server.
    Random = 4,
}

/// The hash of keys: fabcache_options_hash().
#[repr(C)]
#[allow(non_camel_case_types, reason = "C's names are made of these, and would run numbers together")]
pub enum HashName {
    /// Bob Jenkins's one at a time, libmemcached's default.
    OneAtATime = 0,
    /// MD5.
    Md5 = 1,
    /// CRC-32.
    Crc = 2,
    /// FNV-1 of 64 bits.
    Fnv1_64 = 3,
    /// FNV-1a of 64 bits.
    Fnv1a_64 = 4,
    /// FNV-1 of 32 bits.
    Fnv1_32 = 5,
    /// FNV-1a of 32 bits.
    Fnv1a_32 = 6,
    /// MurmurHash2.
    Murmur = 7,
    /// Bob Jenkins's lookup3.
    Jenkins = 8,
    /// MurmurHash3 of 32 bits.
    Murmur3 = 9,
}

impl Options {
    /// As the client library takes them.
    pub(super) fn client_options(&self) -> fabcache_client::Options {
        let hashing = Hashing {
            hash: self.hash.unwrap_or_default(),
            placement: self.placement.clone(),
            namespace_bytes: self.namespace_bytes,
            sort_hosts: self.sort_hosts,
        };
        fabcache_client::Options { distribution: Distribution::Custom(hashing), ..self.base.clone() }
    }
}

/// Options with their defaults, to be freed with fabcache_options_free(). NULL only for a fault of the library.
#[unsafe(no_mangle)]
pub extern "C" fn fabcache_options_new() -> *mut Options {
    guarded(std::ptr::null_mut(), || Box::into_raw(Box::default()))
}

/// Frees options; NULL is allowed. Clients that were opened with them keep their settings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_options_free(options: *mut Options) {
    guarded((), || {
        if !options.is_null() {
            // SAFETY: not NULL, so it came from `Box::into_raw` in `fabcache_options_new`; by the header the caller
            // gives it up here.
            drop(unsafe { Box::from_raw(options) });
        }
    });
}

/// How long connecting may take, in milliseconds from 1 on; 1000 if not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_options_connect_timeout_ms(options: *mut Options, ms: u32) -> Code {
    // SAFETY: `options` is the caller's, as `native` says.
    unsafe { change(options, |options| at_least_1(ms, |time| options.base.connect_timeout = time)) }
}

/// How long a call may take, for each server that it asks, in milliseconds from 1 on; 5000 if not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_options_timeout_ms(options: *mut Options, ms: u32) -> Code {
    // SAFETY: `options` is the caller's, as `native` says.
    unsafe { change(options, |options| at_least_1(ms, |time| options.base.timeout = time)) }
}

/// After how many failures, one after the other, a server is down, from 1 on (1 if not set), and for how many milliseconds
/// (2000). Calls for its keys fail at once meanwhile; or, with auto_eject not 0, its keys belong to the other servers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_options_failures(
    options: *mut Options,
    failures_max: u32,
    retry_after_ms: u32,
    auto_eject: c_int,
) -> Code {
    let set = |options: &mut Options| {
        if failures_max == 0 {
            return Err(none("a number of failures", 0));
        }
        options.base.failures_max = failures_max;
        options.base.retry_after = Duration::from_millis(retry_after_ms.into());
        options.base.auto_eject = auto_eject != 0;
        Ok(())
    };
    // SAFETY: `options` is the caller's, as `native` says.
    unsafe { change(options, set) }
}

/// Whether servers that are reached by a Unix socket are asked for their memory: one of FABCACHE_SHARED_MEMORY_OFFERED,
/// _REQUIRED, _NEVER.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_options_shared_memory(options: *mut Options, shared_memory: c_int) -> Code {
    const OFFERED: c_int = SharedMemory::Offered as c_int;
    const REQUIRED: c_int = SharedMemory::Required as c_int;
    const NEVER: c_int = SharedMemory::Never as c_int;
    let set = |options: &mut Options| {
        options.base.shared_memory = match shared_memory {
            OFFERED => fabcache_client::SharedMemory::Offered,
            REQUIRED => fabcache_client::SharedMemory::Required,
            NEVER => fabcache_client::SharedMemory::Never,
            other => return Err(none("a choice of shared memory", other)),
        };
        Ok(())
    };
    // SAFETY: `options` is the caller's, as `native` says.
    unsafe { change(options, set) }
}

/// Sets how servers are used whose address begins with fab://. mode is one of FABCACHE_FABRIC_MODE_AUTO, _ONE_SIDED,
/// _REQUEST. provider and interface are libfabric's names, or NULL for the server's provider and the interface that
/// leads there; both are copied. With or_tcp not 0, TCP is used where the fabric is not available, and
/// fabcache_transports() says why; otherwise calls fail with FABCACHE_REFUSED then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_options_fabric(
    options: *mut Options,
    mode: c_int,
    provider: *const c_char,
    interface: *const c_char,
    or_tcp: c_int,
) -> Code {
    const AUTO: c_int = FabricMode::Auto as c_int;
    const ONE_SIDED: c_int = FabricMode::OneSided as c_int;
    const REQUEST: c_int = FabricMode::Request as c_int;
    let set = |options: &mut Options| {
        let mode = match mode {
            AUTO => fabcache_client::FabricMode::Auto,
            ONE_SIDED => fabcache_client::FabricMode::OneSided,
            REQUEST => fabcache_client::FabricMode::Request,
            other => return Err(none("a mode of the fabric", other)),
        };
        // SAFETY: `provider` is the caller's, as `native` says.
        let provider = unsafe { name(provider, "provider") }?;
        // SAFETY: `interface` is the caller's, as `native` says.
        let interface = unsafe { name(interface, "interface") }?;
        options.base.fabric = Fabric { mode, provider, interface, or_tcp: or_tcp != 0 };
        Ok(())
    };
    // SAFETY: `options` is the caller's, as `native` says.
    unsafe { change(options, set) }
}

/// A name that may be left out.
///
/// # Safety
/// As [`ffi::text`], unless it is null.
unsafe fn name(text: *const c_char, what: &'static str) -> Result<Option<String>, Fault> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as this function's.
    unsafe { ffi::text(text, what) }.map(|text| Some(text.into()))
}

/// What is spoken with servers over sockets: one of FABCACHE_PROTOCOL_AUTO, _META, _BINARY, _TEXT. Through shared memory it
/// makes no difference.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_options_protocol(options: *mut Options, protocol: c_int) -> Code {
    const AUTO: c_int = Spoken::Auto as c_int;
    const META: c_int = Spoken::Meta as c_int;
    const BINARY: c_int = Spoken::Binary as c_int;
    const TEXT: c_int = Spoken::Text as c_int;
    let set = |options: &mut Options| {
        options.base.protocol = match protocol {
            AUTO => Protocol::Auto,
            META => Protocol::Meta,
            BINARY => Protocol::Binary,
            TEXT => Protocol::Text,
            other => return Err(none("a protocol", other)),
        };
        Ok(())
    };
    // SAFETY: `options` is the caller's, as `native` says.
    unsafe { change(options, set) }
}

/// How keys are mapped to servers: one of FABCACHE_DISTRIBUTION_MODULA and so on. Clients of one cache must agree.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_options_distribution(options: *mut Options, distribution: c_int) -> Code {
    const MODULA: c_int = Mapping::Modula as c_int;
    const KETAMA: c_int = Mapping::Ketama as c_int;
    const KETAMA_WEIGHTED: c_int = Mapping::KetamaWeighted as c_int;
    const KETAMA_SPY: c_int = Mapping::KetamaSpy as c_int;
    const RANDOM: c_int = Mapping::Random as c_int;
    let set = |options: &mut Options| {
        options.placement = match distribution {
            MODULA => Placement::Modula,
            KETAMA => Placement::Ring { names: Names::Ketama, weights: Weights::Heard },
            KETAMA_WEIGHTED => {
                options.hash = options.hash.or(Some(Hash::Md5));
                Placement::Ring { names: Names::Ketama, weights: Weights::Always }
            }
            KETAMA_SPY => Placement::Ring { names: Names::Spy, weights: Weights::Heard },
            RANDOM => Placement::Random,
            other => return Err(none("a distribution", other)),
        };
        Ok(())
    };
    // SAFETY: `options` is the caller's, as `native` says.
    unsafe { change(options, set) }
}

/// The hash of keys: one of FABCACHE_HASH_ONE_AT_A_TIME and so on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_options_hash(options: *mut Options, hash: c_int) -> Code {
    /// By their numbers in [`HashName`].
    const HASHES: [Hash; 10] = [
        Hash::OneAtATime,
        Hash::Md5,
        Hash::Crc,
        Hash::Fnv64,
        Hash::Fnv64a,
        Hash::Fnv32,
        Hash::Fnv32a,
        Hash::Murmur,
        Hash::Jenkins,
        Hash::Murmur3,
    ];
    let set = |options: &mut Options| {
        let known = usize::try_from(hash).ok().and_then(|number| HASHES.get(number));
        options.hash = Some(*known.ok_or_else(|| none("a hash", hash))?);
        Ok(())
    };
    // SAFETY: `options` is the caller's, as `native` says.
    unsafe { change(options, set) }
}

/// So many bytes at a key's start are not hashed (0 if not set), as libmemcached does with its namespace; and with sort_hosts
/// not 0, servers are taken in the order of host and port rather than as they are given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_options_mapping(
    options: *mut Options,
    namespace_length: usize,
    sort_hosts: c_int,
) -> Code {
    let set = |options: &mut Options| {
        options.namespace_bytes = namespace_length;
        options.sort_hosts = sort_hosts != 0;
        Ok(())
    };
    // SAFETY: `options` is the caller's, as `native` says.
    unsafe { change(options, set) }
}

/// Sets the user and password for servers whose clients authenticate. Both texts are copied; user NULL removes them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_options_credentials(
    options: *mut Options,
    user: *const c_char,
    password: *const c_char,
) -> Code {
    let set = |options: &mut Options| {
        options.base.credentials = if user.is_null() {
            None
        } else {
            // SAFETY: `user` is the caller's, as `native` says.
            let user = unsafe { ffi::text(user, "user") }?;
            // SAFETY: `password` is the caller's, as `native` says.
            let password = unsafe { ffi::text(password, "password") }?;
            Some(Credentials { user: user.into(), password: password.into() })
        };
        Ok(())
    };
    // SAFETY: `options` is the caller's, as `native` says.
    unsafe { change(options, set) }
}

/// Changes options.
///
/// # Safety
/// As [`ffi::exclusive`].
unsafe fn change(options: *mut Options, change: impl FnOnce(&mut Options) -> Result<(), Fault>) -> Code {
    answer(|| {
        // SAFETY: as this function's.
        let options = unsafe { ffi::exclusive(options, "options") }?;
        change(options).map(|()| Code::Ok)
    })
}

fn at_least_1(ms: u32, set: impl FnOnce(Duration)) -> Result<(), Fault> {
    if ms == 0 {
        return Err(Fault::new(Code::InvalidArgument, "0 ms is no time in which anything could be answered"));
    }
    set(Duration::from_millis(ms.into()));
    Ok(())
}

fn none(what: &str, number: c_int) -> Fault {
    Fault::new(Code::InvalidArgument, format!("{number} is not {what}; fabcache.h has those that there are"))
}
