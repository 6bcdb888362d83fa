//! The options of a client.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use fabcache_client::distribution::{Hash, Hashing, Names, Placement, Weights};
use fabcache_client::{Credentials, Distribution, Fabric, Protocol};

use super::code::{Code, Fault};
use super::ffi::{answer_with, guarded_with};
use crate::guarded;

/// Options of a client: made by fabcache_options_new(), read by fabcache_open(). One thread at a time may change
/// them.
#[derive(Default)]
pub struct Options {
    /// All options except the distribution.
    base: fabcache_client::Options,
    placement: Placement,
    /// `None`: the default of the distribution.
    hash: Option<Hash>,
    namespace_bytes: usize,
    sort_hosts: bool,
}

/// Whether a client of a Unix socket uses the server's shared memory: fabcache_options_shared_memory().
#[repr(C)]
pub enum SharedMemory {
    /// The client uses it if the server offers it, if only as a channel for requests; else the socket. The default.
    Offered = 0,
    /// The client requires readable memory: otherwise calls fail with FABCACHE_REFUSED, and fabcache_last_error() says why.
    Required = 1,
    /// The client uses the socket only.
    Never = 2,
}

/// How a client reads values from servers whose address begins with fab://: fabcache_options_fabric().
#[repr(C)]
pub enum FabricMode {
    /// The way that was faster recently; requests if the provider needs the server's help with reads. The default.
    Auto = 0,
    /// RDMA reads from the server's memory, without its CPU.
    OneSided = 1,
    /// Requests to the server.
    Request = 2,
}

/// The protocol over sockets: fabcache_options_protocol().
#[repr(C)]
pub enum Spoken {
    /// The meta protocol, or the text protocol with servers and proxies that do not support it. The default.
    Auto = 0,
    /// The meta protocol of memcached 1.6 and later.
    Meta = 1,
    /// The binary protocol. fabcache_options_credentials() sets the SASL credentials.
    Binary = 2,
    /// The text protocol. A key with a space or a control character is FABCACHE_BAD_KEY.
    Text = 3,
}

/// How keys are mapped to servers, as libmemcached does: fabcache_options_distribution().
#[repr(C)]
pub enum Mapping {
    /// The hash modulo the number of servers. The default.
    Modula = 0,
    /// Consistent hashing; weights apply as soon as one differs from 1.
    Ketama = 1,
    /// Consistent hashing with weights, and with MD5 unless fabcache_options_hash() sets another hash.
    KetamaWeighted = 2,
    /// Consistent hashing with spymemcached's names of servers.
    KetamaSpy = 3,
    /// A random server for each operation.
    Random = 4,
}

/// The hash of keys: fabcache_options_hash().
#[repr(C)]
#[allow(non_camel_case_types, reason = "C's names are made of these, and would run numbers together")]
pub enum HashName {
    /// Bob Jenkins's one-at-a-time hash, libmemcached's default.
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
    /// Returns the options for the Rust client.
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

/// Returns the default options; free them with fabcache_options_free(). NULL only for an internal error.
#[unsafe(no_mangle)]
pub extern "C" fn fabcache_options_new() -> *mut Options {
    guarded(std::ptr::null_mut(), || Box::into_raw(Box::default()))
}

/// Frees options; NULL is allowed. Clients that were opened with them keep their settings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_options_free(options: *mut Options) {
    guarded_with!((), (options: given_up(options)) => drop(options));
}

/// Sets the connect timeout in milliseconds, at least 1; the default is 1000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_options_connect_timeout_ms(options: *mut Options, ms: u32) -> Code {
    answer_with!((options: exclusive(options)) => {
        options.base.connect_timeout = at_least_1(ms)?;
        Ok(Code::Ok)
    })
}

/// Sets the timeout of a call for each server that it asks, in milliseconds, at least 1; the default is 5000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_options_timeout_ms(options: *mut Options, ms: u32) -> Code {
    answer_with!((options: exclusive(options)) => {
        options.base.timeout = at_least_1(ms)?;
        Ok(Code::Ok)
    })
}

/// Sets after how many consecutive failures a server counts as down (at least 1; the default is 1), and for how many
/// milliseconds (default 2000). Until then calls for its keys fail at once; with auto_eject not 0, the other servers take
/// over its keys.
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
    answer_with!((options: exclusive(options)) => set(options).map(|()| Code::Ok))
}

/// Sets whether a client of a Unix socket uses the server's shared memory: FABCACHE_SHARED_MEMORY_OFFERED, _REQUIRED or
/// _NEVER. With _REQUIRED, fabcache_open() refuses addresses other than Unix sockets.
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
    answer_with!((options: exclusive(options)) => set(options).map(|()| Code::Ok))
}

/// Sets how the client uses servers whose address begins with fab://. mode is one of FABCACHE_FABRIC_MODE_AUTO, _ONE_SIDED,
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
    answer_with!((
        options: exclusive(options), provider: optional_text(provider), interface: optional_text(interface)
    ) => {
        let mode = match mode {
            AUTO => fabcache_client::FabricMode::Auto,
            ONE_SIDED => fabcache_client::FabricMode::OneSided,
            REQUEST => fabcache_client::FabricMode::Request,
            other => return Err(none("a mode of the fabric", other)),
        };
        let (provider, interface) = (provider.map(String::from), interface.map(String::from));
        options.base.fabric = Fabric { mode, provider, interface, or_tcp: or_tcp != 0 };
        Ok(Code::Ok)
    })
}

/// Sets the protocol over sockets: FABCACHE_PROTOCOL_AUTO, _META, _BINARY or _TEXT. It does not concern shared memory.
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
    answer_with!((options: exclusive(options)) => set(options).map(|()| Code::Ok))
}

/// Sets how keys are mapped to servers: one of FABCACHE_DISTRIBUTION_MODULA and so on. All clients of a cache must use the
/// same.
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
    answer_with!((options: exclusive(options)) => set(options).map(|()| Code::Ok))
}

/// Sets the hash of keys: one of FABCACHE_HASH_ONE_AT_A_TIME and so on.
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
    answer_with!((options: exclusive(options)) => set(options).map(|()| Code::Ok))
}

/// Excludes the first namespace_length bytes of a key from its hash (default 0), as libmemcached does for its namespace. With
/// sort_hosts not 0, servers are sorted by host and port instead of kept in the order passed.
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
    answer_with!((options: exclusive(options)) => set(options).map(|()| Code::Ok))
}

/// Sets the user and password for servers that require authentication. Both texts are copied; user NULL removes them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_options_credentials(
    options: *mut Options,
    user: *const c_char,
    password: *const c_char,
) -> Code {
    answer_with!((
        options: exclusive(options), user: optional_text(user), password: optional_text(password)
    ) => {
        options.base.credentials = match (user, password) {
            (None, _) => None,
            (Some(_), None) => return Err(Fault::null("password")),
            (Some(user), Some(password)) => {
                Some(Credentials { user: user.into(), password: password.into() })
            }
        };
        Ok(Code::Ok)
    })
}

fn at_least_1(ms: u32) -> Result<Duration, Fault> {
    if ms == 0 {
        return Err(Fault::new(Code::InvalidArgument, "a timeout of 0 ms; it must be at least 1 ms"));
    }
    Ok(Duration::from_millis(ms.into()))
}

fn none(what: &str, number: c_int) -> Fault {
    Fault::new(Code::InvalidArgument, format!("{number} is not {what}; fabcache.h lists the valid ones"))
}
