//! Names of behaviors, distributions and hashes.

use std::ffi::{CStr, c_char};

use super::constants::{
    hashkit_hash_algorithm_t, memcached_behavior_t, memcached_hash_t, memcached_server_distribution_t,
};

/// A behavior's name.
#[unsafe(no_mangle)]
pub extern "C" fn libmemcached_string_behavior(behavior: memcached_behavior_t) -> *const c_char {
    name(&BEHAVIORS, behavior, c"INVALID memcached_behavior_t")
}

/// A distribution's name.
#[unsafe(no_mangle)]
pub extern "C" fn libmemcached_string_distribution(
    distribution: memcached_server_distribution_t,
) -> *const c_char {
    name(&DISTRIBUTIONS, distribution, c"INVALID memcached_server_distribution_t")
}

/// A hash's name.
#[unsafe(no_mangle)]
pub extern "C" fn libmemcached_string_hash(hash: memcached_hash_t) -> *const c_char {
    name(&HASHES, hash, c"INVALID")
}

/// A hash's name.
#[unsafe(no_mangle)]
pub extern "C" fn libhashkit_string_hash(hash: hashkit_hash_algorithm_t) -> *const c_char {
    name(&HASHES, hash, c"INVALID")
}

fn name(names: &[&'static CStr], number: u32, otherwise: &'static CStr) -> *const c_char {
    usize::try_from(number).ok().and_then(|number| names.get(number)).unwrap_or(&otherwise).as_ptr()
}

const BEHAVIORS: [&CStr; 38] = [
    c"MEMCACHED_BEHAVIOR_NO_BLOCK",
    c"MEMCACHED_BEHAVIOR_TCP_NODELAY",
    c"MEMCACHED_BEHAVIOR_HASH",
    c"MEMCACHED_BEHAVIOR_KETAMA",
    c"MEMCACHED_BEHAVIOR_SOCKET_SEND_SIZE",
    c"MEMCACHED_BEHAVIOR_SOCKET_RECV_SIZE",
    c"MEMCACHED_BEHAVIOR_CACHE_LOOKUPS",
    c"MEMCACHED_BEHAVIOR_SUPPORT_CAS",
    c"MEMCACHED_BEHAVIOR_POLL_TIMEOUT",
    c"MEMCACHED_BEHAVIOR_DISTRIBUTION",
    c"MEMCACHED_BEHAVIOR_BUFFER_REQUESTS",
    c"MEMCACHED_BEHAVIOR_USER_DATA",
    c"MEMCACHED_BEHAVIOR_SORT_HOSTS",
    c"MEMCACHED_BEHAVIOR_VERIFY_KEY",
    c"MEMCACHED_BEHAVIOR_CONNECT_TIMEOUT",
    c"MEMCACHED_BEHAVIOR_RETRY_TIMEOUT",
    c"MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED",
    c"MEMCACHED_BEHAVIOR_KETAMA_HASH",
    c"MEMCACHED_BEHAVIOR_BINARY_PROTOCOL",
    c"MEMCACHED_BEHAVIOR_SND_TIMEOUT",
    c"MEMCACHED_BEHAVIOR_RCV_TIMEOUT",
    c"MEMCACHED_BEHAVIOR_SERVER_FAILURE_LIMIT",
    c"MEMCACHED_BEHAVIOR_IO_MSG_WATERMARK",
    c"MEMCACHED_BEHAVIOR_IO_BYTES_WATERMARK",
    c"MEMCACHED_BEHAVIOR_IO_KEY_PREFETCH",
    c"MEMCACHED_BEHAVIOR_HASH_WITH_PREFIX_KEY",
    c"MEMCACHED_BEHAVIOR_NOREPLY",
    c"MEMCACHED_BEHAVIOR_USE_UDP",
    c"MEMCACHED_BEHAVIOR_AUTO_EJECT_HOSTS",
    c"MEMCACHED_BEHAVIOR_NUMBER_OF_REPLICAS",
    c"MEMCACHED_BEHAVIOR_RANDOMIZE_REPLICA_READ",
    c"MEMCACHED_BEHAVIOR_CORK",
    c"MEMCACHED_BEHAVIOR_TCP_KEEPALIVE",
    c"MEMCACHED_BEHAVIOR_TCP_KEEPIDLE",
    c"MEMCACHED_BEHAVIOR_LOAD_FROM_FILE",
    c"MEMCACHED_BEHAVIOR_REMOVE_FAILED_SERVERS",
    c"MEMCACHED_BEHAVIOR_DEAD_TIMEOUT",
    c"MEMCACHED_BEHAVIOR_SERVER_TIMEOUT_LIMIT",
];

const DISTRIBUTIONS: [&CStr; 7] = [
    c"MEMCACHED_DISTRIBUTION_MODULA",
    c"MEMCACHED_DISTRIBUTION_CONSISTENT",
    c"MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA",
    c"MEMCACHED_DISTRIBUTION_RANDOM",
    c"MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA_SPY",
    c"MEMCACHED_DISTRIBUTION_CONSISTENT_WEIGHTED",
    c"MEMCACHED_DISTRIBUTION_VIRTUAL_BUCKET",
];

const HASHES: [&CStr; 12] = [
    c"DEFAULT",
    c"MD5",
    c"CRC",
    c"FNV1_64",
    c"FNV1A_64",
    c"FNV1_32",
    c"FNV1A_32",
    c"HSIEH",
    c"MURMUR",
    c"JENKINS",
    c"MURMUR3",
    c"CUSTOM",
];
