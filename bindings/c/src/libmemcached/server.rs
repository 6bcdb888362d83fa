//! The servers of a handle.

use std::ffi::{c_char, c_void};
use std::ptr::null;
use std::rc::Rc;

use super::constants::*;
use super::ffi::{Out, arguments, put};
use super::instance::memcached_instance_st;
use super::query::refused;
use super::types::*;
use crate::guarded;
use crate::libmemcached::callback_types::memcached_server_fn;

impl memcached_st {
    /// Adds a server.
    pub(crate) fn add_server(
        &self,
        name: &[u8],
        port: u16,
        kind: memcached_connection_t,
        weight: u32,
    ) -> memcached_return_t {
        let Some(inner) = self.inner() else { return MEMCACHED_INVALID_ARGUMENTS };
        // Zero is what callers leave out.
        let weight = weight.max(1);
        if weight > 1 && self.is_consistent() {
            self.ketama.weighted.set(1);
        }
        let server = memcached_instance_st::new(name, port, kind, weight);
        let count = {
            let mut servers = inner.instances.borrow_mut();
            servers.push(Rc::new(server));
            servers.len()
        };
        self.number_of_hosts.set(u32::try_from(count).unwrap_or(u32::MAX));
        self.redistribute();
        MEMCACHED_SUCCESS
    }

    /// Adds the servers of another handle.
    pub(crate) fn push_servers(&self, from: &memcached_st) -> memcached_return_t {
        let servers = from.inner().map(|inner| inner.instances.borrow().clone()).unwrap_or_default();
        for server in servers {
            let added =
                self.add_server(server.name().to_bytes(), server.port.get(), server.kind, server.weight);
            if added != MEMCACHED_SUCCESS {
                return added;
            }
        }
        MEMCACHED_SUCCESS
    }

    fn is_consistent(&self) -> bool {
        matches!(
            self.distribution.get(),
            MEMCACHED_DISTRIBUTION_CONSISTENT
                | MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA
                | MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA_SPY
                | MEMCACHED_DISTRIBUTION_CONSISTENT_WEIGHTED
        )
    }

    /// Adds a server by TCP, or by a Unix socket if `host` is a path.
    pub(crate) fn add_host(&self, host: Option<&[u8]>, port: u16, weight: u32) -> memcached_return_t {
        let port = if port == 0 { MEMCACHED_DEFAULT_PORT } else { port };
        let host = host.filter(|host| !host.is_empty()).unwrap_or(b"localhost");
        if host.len() >= MEMCACHED_NI_MAXHOST {
            return self.fail_with(MEMCACHED_INVALID_ARGUMENTS, "Invalid hostname provided");
        }
        let kind =
            if host.starts_with(b"/") { MEMCACHED_CONNECTION_UNIX_SOCKET } else { MEMCACHED_CONNECTION_TCP };
        self.add_server(host, port, kind, weight)
    }

    pub(crate) fn add_socket(&self, path: Option<&[u8]>, weight: u32) -> memcached_return_t {
        match path {
            Some(path) if !path.is_empty() && path.len() < MEMCACHED_NI_MAXHOST => {
                self.add_server(path, 0, MEMCACHED_CONNECTION_UNIX_SOCKET, weight)
            }
            _ => self.fail_with(MEMCACHED_INVALID_ARGUMENTS, "Invalid filename for socket provided"),
        }
    }
}

/// Adds a server of a weight, by TCP; by a Unix socket if its name is a path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_server_add_with_weight(
    ptr: Option<&memcached_st>,
    hostname: *const c_char,
    port: u16,
    weight: u32,
) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
        arguments!(host: text(hostname));
        memc.add_host(host, port, weight)
    })
}

/// Adds a server by TCP; by a Unix socket if its name is a path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_server_add(
    ptr: Option<&memcached_st>,
    hostname: *const c_char,
    port: u16,
) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
        arguments!(host: text(hostname));
        memc.add_host(host, port, 1)
    })
}

/// Adds a server of a weight by a Unix socket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_server_add_unix_socket_with_weight(
    ptr: Option<&memcached_st>,
    filename: *const c_char,
    weight: u32,
) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        let Some(memc) = ptr else { return MEMCACHED_FAILURE };
        arguments!(path: text(filename));
        memc.add_socket(path, weight)
    })
}

/// Adds a server by a Unix socket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_server_add_unix_socket(
    ptr: Option<&memcached_st>,
    filename: *const c_char,
) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        let Some(memc) = ptr else { return MEMCACHED_FAILURE };
        arguments!(path: text(filename));
        memc.add_socket(path, 1)
    })
}

/// libmemcached offers no UDP any more either.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_server_add_udp_with_weight(
    ptr: Option<&memcached_st>,
    _hostname: *const c_char,
    _port: u16,
    _weight: u32,
) -> memcached_return_t {
    no_udp(ptr)
}

/// libmemcached offers no UDP any more either.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_server_add_udp(
    ptr: Option<&memcached_st>,
    _hostname: *const c_char,
    _port: u16,
) -> memcached_return_t {
    no_udp(ptr)
}

fn no_udp(ptr: Option<&memcached_st>) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        ptr.map_or(MEMCACHED_INVALID_ARGUMENTS, |memc| memc.fail(MEMCACHED_DEPRECATED))
    })
}

/// Calls each function for each server, until one returns a failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_server_cursor(
    ptr: Option<&memcached_st>,
    callback: *const memcached_server_fn,
    context: *mut c_void,
    number_of_callbacks: u32,
) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        let Some(inner) = ptr.and_then(memcached_st::inner) else { return MEMCACHED_INVALID_ARGUMENTS };
        let memc = ptr.map_or(null(), std::ptr::from_ref);
        let servers = inner.instances.borrow().clone();
        if servers.is_empty() {
            return MEMCACHED_NO_SERVERS;
        }
        arguments!(callbacks: array(callback, number_of_callbacks as usize));
        let mut reported = MEMCACHED_SUCCESS;
        for server in servers {
            for callback in callbacks.iter().flatten() {
                // SAFETY: the caller passed the function for this call, with its `context`; the server outlives it.
                let said = unsafe { callback(memc, Rc::as_ptr(&server), context) };
                if said != MEMCACHED_SUCCESS {
                    reported = MEMCACHED_SOME_ERRORS;
                    break;
                }
            }
        }
        reported
    })
}

/// The server of a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_server_by_key(
    ptr: Option<&memcached_st>,
    key: *const c_char,
    key_length: usize,
    error: Out<'_, memcached_return_t>,
) -> *const memcached_instance_st {
    guarded(null(), || {
        let Some((memc, inner)) = ptr.and_then(|memc| Some((memc, memc.inner()?))) else {
            put(error, MEMCACHED_INVALID_ARGUMENTS);
            return null();
        };
        let refuse = |code| {
            put(error, refused(ptr, code));
            null()
        };
        arguments!(refuse; key: key(key, key_length));
        let found = if inner.instances.borrow().is_empty() {
            Err(MEMCACHED_NO_SERVERS)
        } else {
            memc.check_key(inner, key).and_then(|()| memc.server_of(inner, None, key))
        };
        if let Err(code) = &found {
            // libmemcached leaves it unchanged if there is a server.
            put(error, *code);
        }
        found.map_or(null(), |server| Rc::as_ptr(&server))
    })
}

/// The server at a position.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_server_instance_by_position(
    ptr: Option<&memcached_st>,
    server_key: u32,
) -> *const memcached_instance_st {
    guarded(null(), || {
        let Some(inner) = ptr.and_then(memcached_st::inner) else { return null() };
        inner.instances.borrow().get(server_key as usize).map_or(null(), Rc::as_ptr)
    })
}

/// The server that was lost last; null for none.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_server_get_last_disconnect(
    ptr: Option<&memcached_st>,
) -> *const memcached_instance_st {
    guarded(null(), || {
        let Some(inner) = ptr.and_then(memcached_st::inner) else { return null() };
        inner.last_disconnected.borrow().as_ref().map_or(null(), Rc::as_ptr)
    })
}

/// How many servers there are.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_server_count(ptr: Option<&memcached_st>) -> u32 {
    ptr.map_or(0, |memc| memc.number_of_hosts.get())
}

/// Answers that are still to be fetched from a server, and stores that wait to be sent.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_server_response_count(ptr: Option<&memcached_instance_st>) -> u32 {
    guarded(0, || ptr.map_or(0, |server| u32::from(!server.requested.borrow().is_empty())))
}

/// A server's name: host, or path of a Unix socket.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_server_name(ptr: Option<&memcached_instance_st>) -> *const c_char {
    ptr.map_or(null(), |server| server.name().as_ptr())
}

/// A server's port.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_server_port(ptr: Option<&memcached_instance_st>) -> u16 {
    ptr.map_or(0, |server| server.port.get())
}

/// Returns 0 for the local port, as libmemcached does without a connection, because a server may have several here.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_server_srcport(_ptr: Option<&memcached_instance_st>) -> u16 {
    0
}

/// Sets when a failed server is retried.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_instance_next_retry(ptr: Option<&memcached_instance_st>, absolute_time: i64) {
    if let Some(server) = ptr {
        server.next_retry.set(absolute_time);
    }
}

/// How a server is reached, in a word.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_server_type(ptr: Option<&memcached_instance_st>) -> *const c_char {
    let word = match ptr.map(|server| server.kind) {
        Some(MEMCACHED_CONNECTION_TCP) => c"TCP",
        Some(MEMCACHED_CONNECTION_UDP) => c"UDP",
        Some(MEMCACHED_CONNECTION_UNIX_SOCKET) => c"SOCKET",
        _ => c"UNKNOWN",
    };
    word.as_ptr()
}

/// Returns the major version of a server; 255 while unknown.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_server_major_version(ptr: Option<&memcached_instance_st>) -> u8 {
    ptr.map_or(u8::MAX, |server| server.version.get()[0])
}

/// The second part.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_server_minor_version(ptr: Option<&memcached_instance_st>) -> u8 {
    ptr.map_or(u8::MAX, |server| server.version.get()[1])
}

/// The third part.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_server_micro_version(ptr: Option<&memcached_instance_st>) -> u8 {
    ptr.map_or(u8::MAX, |server| server.version.get()[2])
}
