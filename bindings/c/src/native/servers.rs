//! Calls that concern all servers.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use fabcache_client::{Error, Transport};

use super::cache::Cache;
use super::code::{Code, Fault};
use super::ffi::answer_with;

/// Called by fabcache_stats() for each statistic with its server, name and value. The texts are valid until it returns. It may
/// call the library. It must return normally, not by longjmp() or a C++ exception.
pub type StatCallback = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        server: *const c_char,
        name: *const c_char,
        value: *const c_char,
    ),
>;

/// Called by fabcache_versions() for each server's version. The rules of fabcache_stat_callback apply.
pub type VersionCallback =
    Option<unsafe extern "C" fn(context: *mut c_void, server: *const c_char, version: *const c_char)>;

/// Called by fabcache_transports() for each server. transport is one of FABCACHE_TRANSPORT_NONE and so on. why is NULL, or the
/// reason why shared memory or the fabric is not used although it was requested, or why the memory is not read. The rules of
/// fabcache_stat_callback apply.
pub type TransportCallback = Option<
    unsafe extern "C" fn(context: *mut c_void, server: *const c_char, transport: c_int, why: *const c_char),
>;

/// The transport to a server: fabcache_transports().
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportKind {
    /// Not connected yet.
    None = 0,
    /// Over TCP.
    Tcp = 1,
    /// Over a Unix socket.
    Unix = 2,
    /// Shared memory: the client reads items itself, and sends requests through a channel in memory.
    SharedMemory = 3,
    /// Over the fabric.
    Fabric = 4,
    /// Shared memory without the items: all requests, reads too, go through a channel in memory.
    Channel = 5,
}

/// Invalidates all items on all servers after delay seconds. The code is that of the first server that fails or refuses; the
/// others are asked nevertheless.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_flush(cache: *const Cache, delay: u32) -> Code {
    answer_with!((cache: shared(cache)) => {
        cache.client().flush(delay)?;
        Ok(Code::Ok)
    })
}

/// Calls stat for each statistic of each server, in the order of the servers: those of a topic such as "items", or the general
/// statistics if topic is NULL.
///
/// FABCACHE_PARTIAL: some of the servers failed. If all failed, the code is that of the first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_stats(
    cache: *const Cache,
    topic: *const c_char,
    stat: StatCallback,
    context: *mut c_void,
) -> Code {
    answer_with!((cache: shared(cache), stat: callback(stat), topic: optional_text(topic)) =>
    each(cache, cache.client().stats(topic.unwrap_or_default()), |server, stats| {
        for (name, value) in stats {
            let (name, value) = (text(name), text(value));
            // SAFETY: the caller declares that `stat` accepts its `context`; the texts are valid until it returns.
            unsafe { stat(context, server.as_ptr(), name.as_ptr(), value.as_ptr()) }
        }
    }))
}

/// Calls version for each server's version, in the order of the servers.
///
/// FABCACHE_PARTIAL: some of the servers failed. If all failed, the code is that of the first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_versions(
    cache: *const Cache,
    version: VersionCallback,
    context: *mut c_void,
) -> Code {
    answer_with!((cache: shared(cache), version: callback(version)) =>
    each(cache, cache.client().versions(), |server, answered| {
        let answered = text(answered);
        // SAFETY: the caller declares that `version` accepts its `context`; the texts are valid until it returns.
        unsafe { version(context, server.as_ptr(), answered.as_ptr()) }
    }))
}

/// Sets the log verbosity of all servers; 0 logs least.
///
/// FABCACHE_PARTIAL: some of the servers failed. If all failed, the code is that of the first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_verbosity(cache: *const Cache, level: u32) -> Code {
    answer_with!((cache: shared(cache)) => each(cache, cache.client().verbosity(level), |_, ()| ()))
}

/// Calls transport for each server, in order, with the transport of its last connection. It makes no connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_transports(
    cache: *const Cache,
    transport: TransportCallback,
    context: *mut c_void,
) -> Code {
    answer_with!((cache: shared(cache), transport: callback(transport)) => {
        for (server, used) in cache.names().iter().zip(cache.client().transports()) {
            let (kind, why) = match used {
                None => (TransportKind::None, None),
                Some(Transport::Tcp) => (TransportKind::Tcp, None),
                Some(Transport::Unix { why }) => (TransportKind::Unix, why.map(text)),
                Some(Transport::SharedMemory) => (TransportKind::SharedMemory, None),
                Some(Transport::Channel { why }) => (TransportKind::Channel, Some(text(why))),
                Some(Transport::Fabric { .. }) => (TransportKind::Fabric, None),
                Some(Transport::InsteadOfFabric { why }) => (TransportKind::Tcp, Some(text(why))),
            };
            let why = why.as_deref().map_or(std::ptr::null(), CStr::as_ptr);
            // SAFETY: the caller declares that `transport` accepts its `context`; the texts are valid until it returns.
            unsafe { transport(context, server.as_ptr(), kind as c_int, why) }
        }
        Ok(Code::Ok)
    })
}

/// Calls `report` with each server and its answer.
fn each<T>(
    cache: &Cache,
    answers: Vec<Result<T, Error>>,
    mut report: impl FnMut(&CStr, T),
) -> Result<Code, Fault> {
    let servers = answers.len();
    let mut failed = Vec::new();
    for (server, answered) in cache.names().iter().zip(answers) {
        match answered {
            Ok(answer) => report(server, answer),
            Err(error) => failed.push(error),
        }
    }
    some_failed(failed, servers)
}

/// Returns the code of a call to `servers` servers, of which some failed.
pub(super) fn some_failed(failed: Vec<Error>, servers: usize) -> Result<Code, Fault> {
    let count = failed.len();
    match failed.into_iter().next() {
        None => Ok(Code::Ok),
        Some(first) if count == servers => Err(first.into()),
        Some(first) => {
            let text = format!("{count} of {servers} servers failed; the first of them: {first}");
            Err(Fault::new(Code::Partial, text))
        }
    }
}

/// Returns a text for C, with NUL replaced by `\\0`.
fn text(text: String) -> CString {
    CString::new(text).unwrap_or_else(|error| {
        let text = String::from_utf8_lossy(&error.into_vec()).replace('\0', "\\0");
        CString::new(text).unwrap_or_default()
    })
}
