//! Behaviours: the settings of a handle by number.

use std::ffi::c_int;

use super::constants::*;
use super::ffi::arguments;
use super::types::*;
use crate::guarded;

/// Sets one.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_behavior_set(
    ptr: Option<&memcached_st>,
    flag: memcached_behavior_t,
    data: u64,
) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        ptr.map_or(MEMCACHED_INVALID_ARGUMENTS, |memc| set(memc, flag, data))
    })
}

/// Returns the value of a behavior.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_behavior_get(ptr: Option<&memcached_st>, flag: memcached_behavior_t) -> u64 {
    guarded(0, || ptr.map_or(MEMCACHED_INVALID_ARGUMENTS.into(), |memc| get(memc, flag)))
}

/// Returns the flag bit of a behaviour that is one.
fn bit_of(flag: memcached_behavior_t) -> Option<u16> {
    Some(match flag {
        MEMCACHED_BEHAVIOR_NO_BLOCK => flags::NO_BLOCK,
        MEMCACHED_BEHAVIOR_TCP_NODELAY => flags::TCP_NODELAY,
        MEMCACHED_BEHAVIOR_SUPPORT_CAS => flags::SUPPORT_CAS,
        MEMCACHED_BEHAVIOR_BUFFER_REQUESTS => flags::BUFFER_REQUESTS,
        MEMCACHED_BEHAVIOR_SORT_HOSTS => flags::USE_SORT_HOSTS,
        MEMCACHED_BEHAVIOR_VERIFY_KEY => flags::VERIFY_KEY,
        MEMCACHED_BEHAVIOR_BINARY_PROTOCOL => flags::BINARY_PROTOCOL,
        MEMCACHED_BEHAVIOR_HASH_WITH_PREFIX_KEY => flags::HASH_WITH_NAMESPACE,
        MEMCACHED_BEHAVIOR_USE_UDP => flags::USE_UDP,
        MEMCACHED_BEHAVIOR_AUTO_EJECT_HOSTS | MEMCACHED_BEHAVIOR_REMOVE_FAILED_SERVERS => {
            flags::AUTO_EJECT_HOSTS
        }
        MEMCACHED_BEHAVIOR_RANDOMIZE_REPLICA_READ => flags::RANDOMIZE_REPLICA_READ,
        MEMCACHED_BEHAVIOR_TCP_KEEPALIVE => flags::TCP_KEEPALIVE,
        _ => return None,
    })
}

fn set(memc: &memcached_st, flag: memcached_behavior_t, data: u64) -> memcached_return_t {
    let number = data as u32;
    if let Some(bit) = bit_of(flag) {
        return set_bit(memc, flag, bit, data != 0);
    }
    match flag {
        MEMCACHED_BEHAVIOR_NOREPLY if data == 0 && memc.has(flags::USE_UDP) => {
            return memc.fail_with(
                MEMCACHED_INVALID_ARGUMENTS,
                "MEMCACHED_BEHAVIOR_NOREPLY cannot be disabled while MEMCACHED_BEHAVIOR_USE_UDP is enabled.",
            );
        }
        MEMCACHED_BEHAVIOR_NOREPLY => memc.set_flag(flags::REPLY, data == 0),
        MEMCACHED_BEHAVIOR_HASH => return set_key_hash(memc, number),
        MEMCACHED_BEHAVIOR_KETAMA_HASH => return set_distribution_hash(memc, number),
        MEMCACHED_BEHAVIOR_DISTRIBUTION => return set_distribution(memc, number),
        MEMCACHED_BEHAVIOR_KETAMA if data != 0 => {
            return set_distribution(memc, MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA);
        }
        MEMCACHED_BEHAVIOR_KETAMA => return set_distribution(memc, MEMCACHED_DISTRIBUTION_MODULA),
        MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED if data != 0 => {
            set_key_hash(memc, MEMCACHED_HASH_MD5);
            set_distribution_hash(memc, MEMCACHED_HASH_MD5);
            return set_distribution(memc, MEMCACHED_DISTRIBUTION_CONSISTENT_WEIGHTED);
        }
        MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED => {
            memc.ketama.weighted.set(0);
            return set_distribution(memc, MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA);
        }
        MEMCACHED_BEHAVIOR_SERVER_FAILURE_LIMIT if data == 0 => {
            return memc.fail_with(
                MEMCACHED_INVALID_ARGUMENTS,
                "MEMCACHED_BEHAVIOR_SERVER_FAILURE_LIMIT requires a value greater then zero.",
            );
        }
        MEMCACHED_BEHAVIOR_CACHE_LOOKUPS => {
            return memc
                .fail_with(MEMCACHED_DEPRECATED, "MEMCACHED_BEHAVIOR_CACHE_LOOKUPS has been deprecated.");
        }
        MEMCACHED_BEHAVIOR_USER_DATA => {
            return memc.fail_with(MEMCACHED_DEPRECATED, "MEMCACHED_BEHAVIOR_USER_DATA deprecated.");
        }
        MEMCACHED_BEHAVIOR_CORK => {
            return memc.fail_with(
                MEMCACHED_DEPRECATED,
                "MEMCACHED_BEHAVIOR_CORK is now incorporated into the driver by default.",
            );
        }
        MEMCACHED_BEHAVIOR_LOAD_FROM_FILE => {
            return memc.fail_with(
                MEMCACHED_INVALID_ARGUMENTS,
                "MEMCACHED_BEHAVIOR_LOAD_FROM_FILE can not be set with memcached_behavior_set()",
            );
        }
        other => return set_number(memc, other, number),
    }
    MEMCACHED_SUCCESS
}

fn set_bit(memc: &memcached_st, flag: memcached_behavior_t, bit: u16, to: bool) -> memcached_return_t {
    match flag {
        MEMCACHED_BEHAVIOR_VERIFY_KEY if memc.is_binary() => {
            return memc.fail_with(
                MEMCACHED_INVALID_ARGUMENTS,
                "MEMCACHED_BEHAVIOR_VERIFY_KEY if the binary protocol has been enabled.",
            );
        }
        MEMCACHED_BEHAVIOR_BINARY_PROTOCOL => {
            memc.reconnect();
            if to {
                memc.set_flag(flags::VERIFY_KEY, false);
            }
        }
        MEMCACHED_BEHAVIOR_BUFFER_REQUESTS if memc.has(flags::USE_UDP) => {
            return memc.fail_with(
                MEMCACHED_INVALID_ARGUMENTS,
                "MEMCACHED_BEHAVIOR_BUFFER_REQUESTS cannot be set while MEMCACHED_BEHAVIOR_USE_UDP is enabled.",
            );
        }
        // Datagrams have no replies.
        MEMCACHED_BEHAVIOR_USE_UDP => {
            memc.reconnect();
            memc.set_flag(flags::REPLY, !to);
            if to {
                memc.set_flag(flags::BUFFER_REQUESTS, false);
            }
        }
        MEMCACHED_BEHAVIOR_NO_BLOCK
        | MEMCACHED_BEHAVIOR_BUFFER_REQUESTS
        | MEMCACHED_BEHAVIOR_TCP_NODELAY
        | MEMCACHED_BEHAVIOR_TCP_KEEPALIVE => memc.reconnect(),
        _ => {}
    }
    memc.set_flag(bit, to);
    if matches!(
        flag,
        MEMCACHED_BEHAVIOR_SORT_HOSTS
            | MEMCACHED_BEHAVIOR_AUTO_EJECT_HOSTS
            | MEMCACHED_BEHAVIOR_REMOVE_FAILED_SERVERS
    ) {
        memc.redistribute();
    }
    MEMCACHED_SUCCESS
}

fn set_number(memc: &memcached_st, flag: memcached_behavior_t, number: u32) -> memcached_return_t {
    let signed = number.cast_signed();
    match flag {
        MEMCACHED_BEHAVIOR_NUMBER_OF_REPLICAS => memc.number_of_replicas.set(number),
        MEMCACHED_BEHAVIOR_IO_MSG_WATERMARK => memc.io_msg_watermark.set(number),
        MEMCACHED_BEHAVIOR_IO_BYTES_WATERMARK => memc.io_bytes_watermark.set(number),
        MEMCACHED_BEHAVIOR_IO_KEY_PREFETCH => memc.io_key_prefetch.set(number),
        MEMCACHED_BEHAVIOR_SND_TIMEOUT => memc.snd_timeout.set(signed),
        MEMCACHED_BEHAVIOR_RCV_TIMEOUT => memc.rcv_timeout.set(signed),
        MEMCACHED_BEHAVIOR_SERVER_FAILURE_LIMIT => memc.server_failure_limit.set(number),
        MEMCACHED_BEHAVIOR_SERVER_TIMEOUT_LIMIT => memc.server_timeout_limit.set(number),
        MEMCACHED_BEHAVIOR_RETRY_TIMEOUT => memc.retry_timeout.set(signed),
        MEMCACHED_BEHAVIOR_DEAD_TIMEOUT => memc.dead_timeout.set(signed),
        MEMCACHED_BEHAVIOR_TCP_KEEPIDLE => memc.tcp_keepidle.set(number),
        MEMCACHED_BEHAVIOR_SOCKET_SEND_SIZE => memc.send_size.set(signed),
        MEMCACHED_BEHAVIOR_SOCKET_RECV_SIZE => memc.recv_size.set(signed),
        MEMCACHED_BEHAVIOR_POLL_TIMEOUT => {
            memc.poll_timeout.set(signed);
            memc.reconnect();
        }
        MEMCACHED_BEHAVIOR_CONNECT_TIMEOUT => {
            memc.connect_timeout.set(signed);
            memc.reconnect();
        }
        _ => {
            return memc.fail_with(
                MEMCACHED_INVALID_ARGUMENTS,
                "Invalid behavior passed to memcached_behavior_set()",
            );
        }
    }
    MEMCACHED_SUCCESS
}

fn get(memc: &memcached_st, flag: memcached_behavior_t) -> u64 {
    if let Some(bit) = bit_of(flag) {
        return memc.has(bit).into();
    }
    let signed = |number: i32| i64::from(number).cast_unsigned();
    // Less than none is what the kernel chooses, which libmemcached asks it if there is a server.
    let size = |bytes: i32, option| match u64::try_from(bytes) {
        Ok(bytes) => bytes,
        Err(_) if memc.number_of_hosts.get() > 0 => size_of_buffer(option),
        Err(_) => 0,
    };
    match flag {
        MEMCACHED_BEHAVIOR_NOREPLY => (!memc.is_replying()).into(),
        MEMCACHED_BEHAVIOR_HASH => memc.hashkit.base_hash.number().into(),
        MEMCACHED_BEHAVIOR_KETAMA_HASH => memc.hashkit.distribution_hash.number().into(),
        MEMCACHED_BEHAVIOR_DISTRIBUTION => memc.distribution.get().into(),
        MEMCACHED_BEHAVIOR_KETAMA => is_ring(memc).into(),
        MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED => (is_ring(memc) && memc.ketama.weighted.get() != 0).into(),
        MEMCACHED_BEHAVIOR_NUMBER_OF_REPLICAS => memc.number_of_replicas.get().into(),
        MEMCACHED_BEHAVIOR_IO_MSG_WATERMARK => memc.io_msg_watermark.get().into(),
        MEMCACHED_BEHAVIOR_IO_BYTES_WATERMARK => memc.io_bytes_watermark.get().into(),
        MEMCACHED_BEHAVIOR_IO_KEY_PREFETCH => memc.io_key_prefetch.get().into(),
        MEMCACHED_BEHAVIOR_SND_TIMEOUT => signed(memc.snd_timeout.get()),
        MEMCACHED_BEHAVIOR_RCV_TIMEOUT => signed(memc.rcv_timeout.get()),
        MEMCACHED_BEHAVIOR_SERVER_FAILURE_LIMIT => memc.server_failure_limit.get().into(),
        MEMCACHED_BEHAVIOR_SERVER_TIMEOUT_LIMIT => memc.server_timeout_limit.get().into(),
        MEMCACHED_BEHAVIOR_RETRY_TIMEOUT => signed(memc.retry_timeout.get()),
        MEMCACHED_BEHAVIOR_DEAD_TIMEOUT => signed(memc.dead_timeout.get()),
        MEMCACHED_BEHAVIOR_TCP_KEEPIDLE => memc.tcp_keepidle.get().into(),
        MEMCACHED_BEHAVIOR_SOCKET_SEND_SIZE => size(memc.send_size.get(), libc::SO_SNDBUF),
        MEMCACHED_BEHAVIOR_SOCKET_RECV_SIZE => size(memc.recv_size.get(), libc::SO_RCVBUF),
        MEMCACHED_BEHAVIOR_POLL_TIMEOUT => signed(memc.poll_timeout.get()),
        MEMCACHED_BEHAVIOR_CONNECT_TIMEOUT => signed(memc.connect_timeout.get()),
        MEMCACHED_BEHAVIOR_CACHE_LOOKUPS | MEMCACHED_BEHAVIOR_CORK => 1,
        MEMCACHED_BEHAVIOR_USER_DATA => {
            memc.fail_with(MEMCACHED_DEPRECATED, "MEMCACHED_BEHAVIOR_USER_DATA deprecated.");
            0
        }
        MEMCACHED_BEHAVIOR_LOAD_FROM_FILE => {
            u64::from(memc.inner().is_some_and(|inner| inner.file.borrow().is_some()))
        }
        _ => {
            memc.fail_with(
                MEMCACHED_INVALID_ARGUMENTS,
                "Invalid behavior passed to memcached_behavior_get()",
            );
            0
        }
    }
}

/// Returns the buffer size of a new socket; 0 if none can be created.
fn size_of_buffer(option: c_int) -> u64 {
    let mut bytes: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: socket(2) has no preconditions. getsockopt(2) gets an open socket and writes at most `len` bytes to
    // `bytes`, which has as many. The socket is closed once, by its only owner.
    let requested = unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return 0;
        }
        let requested =
            libc::getsockopt(socket, libc::SOL_SOCKET, option, (&raw mut bytes).cast(), &raw mut len);
        libc::close(socket);
        requested
    };
    if requested == 0 { u64::try_from(bytes).unwrap_or(0) } else { 0 }
}

// ---- hashes and distributions ----

/// Returns whether keys are mapped by points on a ring.
fn is_ring(memc: &memcached_st) -> bool {
    matches!(
        memc.distribution.get(),
        MEMCACHED_DISTRIBUTION_CONSISTENT
            | MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA
            | MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA_SPY
            | MEMCACHED_DISTRIBUTION_CONSISTENT_WEIGHTED
    )
}

fn set_distribution(memc: &memcached_st, to: memcached_server_distribution_t) -> memcached_return_t {
    if to >= MEMCACHED_DISTRIBUTION_CONSISTENT_MAX {
        return memc.fail_with(MEMCACHED_INVALID_ARGUMENTS, "Invalid memcached_server_distribution_t");
    }
    memc.distribution.set(to);
    if to == MEMCACHED_DISTRIBUTION_CONSISTENT_WEIGHTED {
        memc.ketama.weighted.set(1);
    }
    memc.redistribute();
    MEMCACHED_SUCCESS
}

fn set_key_hash(memc: &memcached_st, to: memcached_hash_t) -> memcached_return_t {
    match memc.hashkit.base_hash.set(to) {
        Ok(()) => MEMCACHED_SUCCESS,
        Err(_) => memc.fail_with(MEMCACHED_INVALID_ARGUMENTS, "Invalid memcached_hash_t()"),
    }
}

fn set_distribution_hash(memc: &memcached_st, to: memcached_hash_t) -> memcached_return_t {
    match memc.hashkit.distribution_hash.set(to) {
        Ok(()) => MEMCACHED_SUCCESS,
        Err(_) => memc.fail_with(MEMCACHED_INVALID_ARGUMENTS, "Invalid memcached_hash_t()"),
    }
}

/// Sets how keys are mapped to servers.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_behavior_set_distribution(
    ptr: Option<&memcached_st>,
    kind: memcached_server_distribution_t,
) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        ptr.map_or(MEMCACHED_INVALID_ARGUMENTS, |memc| set_distribution(memc, kind))
    })
}

/// How keys are mapped to servers.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_behavior_get_distribution(
    ptr: Option<&memcached_st>,
) -> memcached_server_distribution_t {
    ptr.map_or(MEMCACHED_DISTRIBUTION_CONSISTENT_MAX, |memc| memc.distribution.get())
}

/// Sets the hash of keys.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_behavior_set_key_hash(
    ptr: Option<&memcached_st>,
    kind: memcached_hash_t,
) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        ptr.map_or(MEMCACHED_INVALID_ARGUMENTS, |memc| set_key_hash(memc, kind))
    })
}

/// The hash of keys.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_behavior_get_key_hash(ptr: Option<&memcached_st>) -> memcached_hash_t {
    ptr.map_or(MEMCACHED_HASH_MAX, |memc| memc.hashkit.base_hash.number())
}

/// Sets the hash that libmemcached means for the points of servers.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_behavior_set_distribution_hash(
    ptr: Option<&memcached_st>,
    kind: memcached_hash_t,
) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        ptr.map_or(MEMCACHED_INVALID_ARGUMENTS, |memc| set_distribution_hash(memc, kind))
    })
}

/// The hash that libmemcached means for the points of servers.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_behavior_get_distribution_hash(ptr: Option<&memcached_st>) -> memcached_hash_t {
    ptr.map_or(MEMCACHED_HASH_MAX, |memc| memc.hashkit.distribution_hash.number())
}

/// Assigns a server to each bucket of keys. The previous assignment is unused, because this client never forwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_bucket_set(
    ptr: Option<&memcached_st>,
    host_map: *const u32,
    _forward_map: *const u32,
    buckets: u32,
    replicas: u32,
) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        let Some((memc, inner)) = ptr.and_then(|memc| Some((memc, memc.inner()?))) else {
            return MEMCACHED_INVALID_ARGUMENTS;
        };
        if host_map.is_null() || buckets == 0 {
            return MEMCACHED_INVALID_ARGUMENTS;
        }
        let set = set_distribution(memc, MEMCACHED_DISTRIBUTION_VIRTUAL_BUCKET);
        arguments!(map: array(host_map, buckets as usize));
        inner.buckets.replace(map.into());
        memc.number_of_replicas.set(replicas);
        memc.redistribute();
        set
    })
}
