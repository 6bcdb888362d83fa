//! Server lists: arrays in memory of malloc(3), whose first element has their length.

use std::ffi::c_char;
use std::ptr::null_mut;

use super::constants::*;
use super::ffi::{Out, arguments, put};
use super::instance::{FABRIC, behind_fabric};
use super::types::*;
use crate::guarded;

/// The most servers in a list: as many as a text of a few megabytes can name.
const SERVERS_MAX: usize = 1 << 20;

/// Returns the number of servers in a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_server_list_count(ptr: memcached_server_list_st) -> u32 {
    // SAFETY: NULL or a list, which has at least one element.
    unsafe { ptr.as_ref() }.map_or(0, |first| first.number_of_hosts)
}

/// Appends a server with a weight. Returns the list, which may have moved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_server_list_append_with_weight(
    ptr: memcached_server_list_st,
    hostname: *const c_char,
    port: u16,
    weight: u32,
    error: Out<'_, memcached_return_t>,
) -> memcached_server_list_st {
    guarded(null_mut(), || {
        arguments!(host: text(hostname));
        // SAFETY: libmemcached requires NULL or a list of its own, which the caller gives up for the result.
        let appended = unsafe { append(ptr, host.unwrap_or(b"localhost"), port, weight) };
        put(error, appended.as_ref().err().copied().unwrap_or(MEMCACHED_SUCCESS));
        appended.unwrap_or(null_mut())
    })
}

/// Appends a server. Returns the list, which may have moved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_server_list_append(
    ptr: memcached_server_list_st,
    hostname: *const c_char,
    port: u16,
    error: Out<'_, memcached_return_t>,
) -> memcached_server_list_st {
    // SAFETY: the arguments are passed on, to a function with the same contract.
    unsafe { memcached_server_list_append_with_weight(ptr, hostname, port, 1, error) }
}

/// Appends a server to a list and returns the list, which may have moved.
///
/// # Safety
/// `list` is NULL or a list that nothing else uses: memory of malloc(3) with `number_of_hosts` elements.
unsafe fn append(
    list: memcached_server_list_st,
    host: &[u8],
    port: u16,
    weight: u32,
) -> Result<memcached_server_list_st, memcached_return_t> {
    if host.len() >= MEMCACHED_NI_MAXHOST {
        return Err(MEMCACHED_INVALID_ARGUMENTS);
    }
    // SAFETY: NULL or a list, by this function's contract.
    let count = unsafe { memcached_server_list_count(list) };
    if count as usize >= SERVERS_MAX {
        return Err(MEMCACHED_MEMORY_ALLOCATION_FAILURE);
    }
    // Copied before the list moves, because the name may be in the list.
    let added = entry(host, port, weight);
    let size = (count as usize + 1) * size_of::<memcached_server_st>();
    // SAFETY: the list is NULL or malloc(3)'s, and this function has it alone, so realloc may move it. The result has
    // room for count + 1 elements: the last is written without reading it, and the first exists then.
    unsafe {
        let grown: memcached_server_list_st = libc::realloc(list.cast(), size).cast();
        if grown.is_null() {
            return Err(MEMCACHED_MEMORY_ALLOCATION_FAILURE);
        }
        grown.add(count as usize).write(added);
        (*grown).number_of_hosts = count + 1;
        Ok(grown)
    }
}

fn entry(host: &[u8], port: u16, weight: u32) -> memcached_server_st {
    let is_socket = host.starts_with(b"/");
    let mut hostname = [0; MEMCACHED_NI_MAXHOST];
    for (to, from) in hostname.iter_mut().zip(host) {
        *to = from.cast_signed();
    }
    memcached_server_st {
        options: IS_INITIALIZED,
        number_of_hosts: 0,
        cursor_active: 0,
        port: match port {
            _ if is_socket => 0,
            0 => MEMCACHED_DEFAULT_PORT,
            port => port,
        },
        io_bytes_sent: 0,
        request_id: 0,
        server_failure_counter: 0,
        server_failure_counter_query_id: 0,
        server_timeout_counter: 0,
        server_timeout_counter_query_id: 0,
        weight: weight.max(1),
        version: u32::MAX,
        state: MEMCACHED_SERVER_STATE_NEW,
        io_wait_count: io_wait_count_st { read: 0, write: 0, timeouts: 0, bytes_read: 0 },
        major_version: u8::MAX,
        micro_version: u8::MAX,
        minor_version: u8::MAX,
        type_: if is_socket { MEMCACHED_CONNECTION_UNIX_SOCKET } else { MEMCACHED_CONNECTION_TCP },
        next_retry: 0,
        root: null_mut(),
        limit_maxbytes: 0,
        error_messages: null_mut(),
        hostname,
    }
}

/// Frees a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_server_list_free(ptr: memcached_server_list_st) {
    // SAFETY: NULL or malloc(3)'s memory, which the caller gives up; elements own no other memory.
    unsafe { libc::free(ptr.cast()) };
}

/// Does nothing: a list is freed as a whole.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_server_free(_ptr: *mut memcached_server_st) {}

/// Adds the servers of a list to those of a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_server_push(
    ptr: Option<&memcached_st>,
    list: memcached_server_list_st,
) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        // SAFETY: libmemcached requires NULL or a list.
        let count = unsafe { memcached_server_list_count(list) };
        arguments!(servers: array(list.cast_const(), count as usize));
        if servers.is_empty() {
            return MEMCACHED_SUCCESS;
        }
        let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
        for server in servers {
            let name: Vec<u8> =
                server.hostname.iter().map(|c| c.cast_unsigned()).take_while(|c| *c != 0).collect();
            let added = memc.add_server(&name, server.port, server.type_, server.weight);
            if added != MEMCACHED_SUCCESS {
                return added;
            }
        }
        MEMCACHED_SUCCESS
    })
}

/// Parses a comma-separated list of `host:port` or `host:port weight`; NULL for an empty text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_servers_parse(server_strings: *const c_char) -> memcached_server_list_st {
    guarded(null_mut(), || {
        arguments!(servers: text(server_strings));
        let Some(servers) = servers else { return null_mut() };
        let mut list = null_mut();
        for HostEntry { host, port, weight } in parse(servers) {
            // SAFETY: NULL or a list that this loop made, and has alone.
            match unsafe { append(list, host, port, weight) } {
                Ok(grown) => list = grown,
                Err(_) => {
                    // SAFETY: NULL or a list that this loop made, and has alone: `append` failed and left it unchanged.
                    unsafe { memcached_server_list_free(list) };
                    return null_mut();
                }
            }
        }
        list
    })
}

#[derive(Debug, PartialEq, Eq)]
struct HostEntry<'a> {
    host: &'a [u8],
    port: u16,
    weight: u32,
}

fn parse(servers: &[u8]) -> impl Iterator<Item = HostEntry<'_>> {
    let mut rest = servers;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (one, behind) = match rest.iter().position(|byte| *byte == b',') {
            Some(comma) => (&rest[..comma], &rest[comma + 1..]),
            None => (rest, &rest[rest.len()..]),
        };
        // One space may follow a comma.
        rest = behind.strip_prefix(b" ").unwrap_or(behind);
        Some(named(one))
    })
}

fn named(server: &[u8]) -> HostEntry<'_> {
    let start = if behind_fabric(server).is_some() { FABRIC.len() } else { 0 };
    // An IPv6 address is in brackets.
    let bracket = server[start..].iter().position(|byte| *byte == b']');
    let from = start + bracket.filter(|_| server[start..].starts_with(b"[")).unwrap_or(0);
    let Some(colon) = server[from..].iter().position(|byte| *byte == b':').map(|at| from + at) else {
        return HostEntry { host: server, port: 0, weight: 1 };
    };
    let (host, numbers) = (&server[..colon], &server[colon + 1..]);
    let weight = numbers
        .iter()
        .position(|byte| *byte == b' ')
        .or_else(|| numbers.iter().position(|byte| *byte == b':'))
        .map_or(1, |at| number(&numbers[at + 1..]) as u32);
    HostEntry { host, port: number(numbers) as u16, weight }
}

/// Parses a number as strtoul(3) does: spaces and a sign may precede it, anything may follow.
fn number(text: &[u8]) -> u64 {
    let text = text.trim_ascii_start();
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    let value = digits
        .iter()
        .take_while(|digit| digit.is_ascii_digit())
        .fold(0u64, |value, digit| value.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    if is_negative { value.wrapping_neg() } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_strings_parse_as_in_libmemcached() {
        for (text, expected) in [
            ("h:1:5", vec![("h", 1, 5)]),
            ("h:1 5", vec![("h", 1, 5)]),
            ("h 5", vec![("h 5", 0, 1)]),
            ("::1", vec![("", 0, 1)]),
            ("[::1]:44:3", vec![("[::1]", 44, 3)]),
            ("[::1]", vec![("[::1]", 0, 1)]),
            ("fab://h:3:2", vec![("fab://h", 3, 2)]),
            ("fab://[::1]:4,fab://g", vec![("fab://[::1]", 4, 1), ("fab://g", 0, 1)]),
            ("FAB://h:3:2", vec![("FAB://h", 3, 2)]),
            ("h:1,", vec![("h", 1, 1)]),
            ("  h:2 ,  g:3", vec![("  h", 2, 0), (" g", 3, 1)]),
            ("h:-1", vec![("h", 65535, 1)]),
            ("h:99999", vec![("h", 34463, 1)]),
            (",a", vec![("", 0, 1), ("a", 0, 1)]),
            ("", vec![]),
        ] {
            let named: Vec<HostEntry<'_>> = parse(text.as_bytes()).collect();
            let expected: Vec<HostEntry<'_>> = expected
                .into_iter()
                .map(|(host, port, weight)| HostEntry { host: host.as_bytes(), port, weight })
                .collect();
            assert_eq!(named, expected, "{text:?}");
        }
    }
}
