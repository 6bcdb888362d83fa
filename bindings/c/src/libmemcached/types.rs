//! libmemcached's structures, as its headers of 1.1.4 lay them out on 64-bit Linux.
//!
//! Fields that programs may change between calls and in callbacks are cells, so a reference to a handle or a result
//! makes no claim that they could break. Threads never share one, which is libmemcached's rule as well.

#![allow(missing_docs)] // Their fields are libmemcached's.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_ulong, c_ulonglong, c_void};
use std::mem::offset_of;

use super::constants::{
    MEMCACHED_MAX_KEY, MEMCACHED_NI_MAXHOST, MEMCACHED_VERSION_STRING_LENGTH, memcached_connection_t,
    memcached_return_t, memcached_server_distribution_t, memcached_server_state_t,
};

pub type memcached_free_fn = Option<unsafe extern "C" fn(*const memcached_st, *mut c_void, *mut c_void)>;
pub type memcached_malloc_fn =
    Option<unsafe extern "C" fn(*const memcached_st, usize, *mut c_void) -> *mut c_void>;
pub type memcached_realloc_fn =
    Option<unsafe extern "C" fn(*const memcached_st, *mut c_void, usize, *mut c_void) -> *mut c_void>;
pub type memcached_calloc_fn =
    Option<unsafe extern "C" fn(*const memcached_st, usize, usize, *mut c_void) -> *mut c_void>;
pub type memcached_clone_fn =
    Option<unsafe extern "C" fn(*mut memcached_st, *const memcached_st) -> memcached_return_t>;
pub type memcached_cleanup_fn = Option<unsafe extern "C" fn(*const memcached_st) -> memcached_return_t>;
pub type memcached_trigger_key_fn = Option<
    unsafe extern "C" fn(
        *const memcached_st,
        *const c_char,
        usize,
        *mut memcached_result_st,
    ) -> memcached_return_t,
>;
pub type memcached_trigger_delete_key_fn =
    Option<unsafe extern "C" fn(*const memcached_st, *const c_char, usize) -> memcached_return_t>;
pub type memcached_dump_fn = Option<
    unsafe extern "C" fn(*const memcached_st, *const c_char, usize, *mut c_void) -> memcached_return_t,
>;
pub type memcached_execute_fn = Option<
    unsafe extern "C" fn(*const memcached_st, *mut memcached_result_st, *mut c_void) -> memcached_return_t,
>;
pub type hashkit_hash_fn = Option<unsafe extern "C" fn(*const c_char, usize, *mut c_void) -> u32>;

/// A handle. Its memory may be the caller's.
#[repr(C)]
#[derive(Debug)]
pub struct memcached_st {
    /// Bits of [`handle_state`].
    pub state: Cell<u8>,
    /// Bits of [`flags`].
    pub flags: Cell<[u8; 2]>,
    pub distribution: Cell<memcached_server_distribution_t>,
    pub hashkit: hashkit_st,
    pub server_version: Cell<c_uint>,
    pub number_of_hosts: Cell<u32>,
    /// libmemcached's array of servers, opaque to programs. Here it points to a [`State`](super::handle::State) from
    /// `memcached_create` to `memcached_free`; otherwise it is NULL.
    pub servers: Cell<*mut c_void>,
    pub last_disconnected_server: Cell<*mut c_void>,
    pub snd_timeout: Cell<i32>,
    pub rcv_timeout: Cell<i32>,
    pub server_failure_limit: Cell<u32>,
    pub server_timeout_limit: Cell<u32>,
    pub io_msg_watermark: Cell<u32>,
    pub io_bytes_watermark: Cell<u32>,
    pub io_key_prefetch: Cell<u32>,
    pub tcp_keepidle: Cell<u32>,
    pub poll_timeout: Cell<i32>,
    pub connect_timeout: Cell<i32>,
    pub retry_timeout: Cell<i32>,
    pub dead_timeout: Cell<i32>,
    pub send_size: Cell<c_int>,
    pub recv_size: Cell<c_int>,
    pub user_data: Cell<*mut c_void>,
    pub query_id: Cell<u64>,
    pub number_of_replicas: Cell<u32>,
    pub result: memcached_result_st,
    pub ketama: ketama_st,
    pub virtual_bucket: Cell<*mut c_void>,
    pub allocators: memcached_allocator_t,
    pub on_clone: Cell<memcached_clone_fn>,
    pub on_cleanup: Cell<memcached_cleanup_fn>,
    pub get_key_failure: Cell<memcached_trigger_key_fn>,
    pub delete_trigger: Cell<memcached_trigger_delete_key_fn>,
    pub callbacks: Cell<*mut memcached_callback_st>,
    pub sasl: memcached_sasl_st,
    pub error_messages: Cell<*mut c_void>,
    pub namespace: Cell<*mut c_void>,
    pub configure: configure_st,
    /// Bit 0: `is_allocated`.
    pub options: Cell<u8>,
}

/// Bits of `memcached_st.state`.
pub mod handle_state {
    pub const IS_PURGING: u8 = 1;
    pub const IS_PROCESSING_INPUT: u8 = 1 << 1;
    pub const IS_TIME_FOR_REBUILD: u8 = 1 << 2;
    pub const IS_PARSING: u8 = 1 << 3;
}

/// Bits of `memcached_st.flags`, the first byte's first.
pub mod flags {
    pub const AUTO_EJECT_HOSTS: u16 = 1;
    pub const BINARY_PROTOCOL: u16 = 1 << 1;
    pub const BUFFER_REQUESTS: u16 = 1 << 2;
    pub const HASH_WITH_NAMESPACE: u16 = 1 << 3;
    pub const NO_BLOCK: u16 = 1 << 4;
    pub const REPLY: u16 = 1 << 5;
    pub const RANDOMIZE_REPLICA_READ: u16 = 1 << 6;
    pub const SUPPORT_CAS: u16 = 1 << 7;
    pub const TCP_NODELAY: u16 = 1 << 8;
    pub const USE_SORT_HOSTS: u16 = 1 << 9;
    pub const USE_UDP: u16 = 1 << 10;
    pub const VERIFY_KEY: u16 = 1 << 11;
    pub const TCP_KEEPALIVE: u16 = 1 << 12;
    pub const IS_AES: u16 = 1 << 13;
    pub const IS_FETCHING_VERSION: u16 = 1 << 14;
}

/// `options.is_allocated` of all structures that have it.
pub const IS_ALLOCATED: u8 = 1;
/// `options.is_initialized` of all structures that have it.
pub const IS_INITIALIZED: u8 = 1 << 1;

#[repr(C)]
#[derive(Debug)]
pub struct ketama_st {
    pub weighted: Cell<u8>,
    pub continuum_count: Cell<u32>,
    pub continuum_points_counter: Cell<u32>,
    pub next_distribution_rebuild: Cell<i64>,
    pub continuum: Cell<*mut c_void>,
}

#[repr(C)]
#[derive(Debug)]
pub struct configure_st {
    pub initial_pool_size: Cell<u32>,
    pub max_pool_size: Cell<u32>,
    pub version: Cell<i32>,
    pub filename: Cell<*mut c_void>,
}

#[repr(C)]
#[derive(Clone, Debug)]
pub struct memcached_allocator_t {
    pub calloc: Cell<memcached_calloc_fn>,
    pub free: Cell<memcached_free_fn>,
    pub malloc: Cell<memcached_malloc_fn>,
    pub realloc: Cell<memcached_realloc_fn>,
    pub context: Cell<*mut c_void>,
}

#[repr(C)]
#[derive(Debug)]
pub struct memcached_callback_st {
    pub callback: Cell<*mut memcached_execute_fn>,
    pub context: Cell<*mut c_void>,
    pub number_of_callback: Cell<u32>,
}

#[repr(C)]
#[derive(Debug)]
pub struct memcached_sasl_st {
    pub callbacks: Cell<*mut c_void>,
    pub is_allocated: Cell<u8>,
}

/// Memory of a handle's allocator, or none: `string` to `string + current_size`, filled up to `end`.
#[repr(C)]
#[derive(Debug)]
pub struct memcached_string_st {
    pub end: Cell<*mut c_char>,
    pub string: Cell<*mut c_char>,
    pub current_size: Cell<usize>,
    pub root: Cell<*const memcached_st>,
    pub options: Cell<u8>,
}

#[repr(C)]
#[derive(Debug)]
pub struct memcached_result_st {
    pub item_flags: Cell<u32>,
    pub item_expiration: Cell<i64>,
    pub key_length: Cell<usize>,
    pub item_cas: Cell<u64>,
    pub root: Cell<*const memcached_st>,
    pub value: memcached_string_st,
    pub numeric_value: Cell<u64>,
    pub count: Cell<u64>,
    pub item_key: [Cell<c_char>; MEMCACHED_MAX_KEY],
    pub options: Cell<u8>,
}

/// A server in a list that a program passes to `memcached_server_push`.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct memcached_server_st {
    pub options: u8,
    /// Of the list, in its first.
    pub number_of_hosts: u32,
    pub cursor_active: u32,
    pub port: u16,
    pub io_bytes_sent: u32,
    pub request_id: u32,
    pub server_failure_counter: u32,
    pub server_failure_counter_query_id: u64,
    pub server_timeout_counter: u32,
    pub server_timeout_counter_query_id: u64,
    pub weight: u32,
    pub version: u32,
    pub state: memcached_server_state_t,
    pub io_wait_count: io_wait_count_st,
    pub major_version: u8,
    pub micro_version: u8,
    pub minor_version: u8,
    pub type_: memcached_connection_t,
    pub next_retry: i64,
    pub root: *mut memcached_st,
    pub limit_maxbytes: u64,
    pub error_messages: *mut c_void,
    pub hostname: [c_char; MEMCACHED_NI_MAXHOST],
}

#[repr(C)]
#[derive(Clone, Debug)]
pub struct io_wait_count_st {
    pub read: u32,
    pub write: u32,
    pub timeouts: u32,
    pub bytes_read: usize,
}

pub type memcached_server_list_st = *mut memcached_server_st;

#[repr(C)]
#[derive(Debug)]
pub struct memcached_stat_st {
    pub connection_structures: c_ulong,
    pub curr_connections: c_ulong,
    pub curr_items: c_ulong,
    pub pid: c_int,
    pub pointer_size: c_ulong,
    pub rusage_system_microseconds: c_ulong,
    pub rusage_system_seconds: c_ulong,
    pub rusage_user_microseconds: c_ulong,
    pub rusage_user_seconds: c_ulong,
    pub threads: c_ulong,
    pub time: c_ulong,
    pub total_connections: c_ulong,
    pub total_items: c_ulong,
    pub uptime: c_ulong,
    pub bytes: c_ulonglong,
    pub bytes_read: c_ulonglong,
    pub bytes_written: c_ulonglong,
    pub cmd_get: c_ulonglong,
    pub cmd_set: c_ulonglong,
    pub evictions: c_ulonglong,
    pub get_hits: c_ulonglong,
    pub get_misses: c_ulonglong,
    pub limit_maxbytes: c_ulonglong,
    pub version: [c_char; MEMCACHED_VERSION_STRING_LENGTH],
    pub future: *mut c_void,
    pub root: *mut memcached_st,
}

#[repr(C)]
#[derive(Debug)]
pub struct memcached_analysis_st {
    pub root: *mut memcached_st,
    pub average_item_size: u32,
    pub longest_uptime: u32,
    pub least_free_server: u32,
    pub most_consumed_server: u32,
    pub oldest_server: u32,
    pub pool_hit_ratio: f64,
    pub most_used_bytes: u64,
    pub least_remaining_bytes: u64,
}

/// libhashkit's choice of hashes.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct hashkit_st {
    pub base_hash: hashkit_function_st,
    pub distribution_hash: hashkit_function_st,
    /// Bit 0: `is_base_same_distributed`.
    pub flags: Cell<u8>,
    /// Bit 0: `is_allocated`.
    pub options: Cell<u8>,
    pub key: Cell<*mut c_void>,
}

#[repr(C)]
#[derive(Clone, Debug)]
pub struct hashkit_function_st {
    pub function: Cell<hashkit_hash_fn>,
    pub context: Cell<*mut c_void>,
}

// As a C compiler has them; `cargo xtask libmemcached` compares all of it.
const _: () = {
    assert!(size_of::<memcached_st>() == 696);
    assert!(size_of::<memcached_server_st>() == 1168);
    assert!(size_of::<memcached_result_st>() == 352);
    assert!(size_of::<memcached_string_st>() == 40);
    assert!(size_of::<memcached_stat_st>() == 224);
    assert!(size_of::<memcached_analysis_st>() == 56);
    assert!(size_of::<hashkit_st>() == 48);
    assert!(size_of::<memcached_sasl_st>() == 16);
    assert!(size_of::<memcached_allocator_t>() == 40);
    assert!(size_of::<memcached_callback_st>() == 24);
    assert!(offset_of!(memcached_st, flags) == 1);
    assert!(offset_of!(memcached_st, distribution) == 4);
    assert!(offset_of!(memcached_st, servers) == 64);
    assert!(offset_of!(memcached_st, send_size) == 128);
    assert!(offset_of!(memcached_st, result) == 160);
    assert!(offset_of!(memcached_st, ketama) == 512);
    assert!(offset_of!(memcached_st, allocators) == 552);
    assert!(offset_of!(memcached_st, error_messages) == 648);
    assert!(offset_of!(memcached_st, options) == 688);
    assert!(offset_of!(memcached_server_st, major_version) == 96);
    assert!(offset_of!(memcached_server_st, hostname) == 136);
    assert!(offset_of!(memcached_result_st, item_key) == 96);
    assert!(offset_of!(memcached_stat_st, version) == 184);
};
