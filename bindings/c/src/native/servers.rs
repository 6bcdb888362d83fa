//! What is asked of all servers.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use fabcache_client::{Error, Transport};

use super::cache::Cache;
use super::code::{Code, Fault, answer};
use super::ffi;

/// Told of each statistic by fabcache_stats(): of which server, what it is called, and its value. The texts are valid until it
/// returns. It may call the library, and must return: by longjmp() or a C++ exception it must not leave.
pub type StatCallback = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        server: *const c_char,
        name: *const c_char,
        value: *const c_char,
    ),
>;

/// Told of each server's version by fabcache_versions(). What holds for fabcache_stat_callback does for this.
pub type VersionCallback =
    Option<unsafe extern "C" fn(context: *mut c_void, server: *const c_char, version: *const c_char)>;

/// Told by fabcache_transports() how each server is reached: transport is one of FABCACHE_TRANSPORT_NONE and so on. why is NULL,
/// or why memory is not shared, or the fabric not used, though that was asked for. What holds for fabcache_stat_callback does for this.
pub type TransportCallback = Option<
    unsafe extern "C" fn(context: *mut c_void, server: *const c_char, transport: c_int, why: *const c_char),
>;

/// How a server is reached: fabcache_transports().
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Nothing was connected yet.
    None = 0,
    /// Over TCP.
    Tcp = 1,
    /// Over a Unix socket.
    Unix = 2,
    /// Items are read from its memory, and requests go through a channel in memory.
    SharedMemory = 3,
    /// Over the fabric.
    Fabric = 4,
}

/// Forgets everything on all servers, after delay seconds. The code is that of the first server that fails or refuses; the
/// others were asked all the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_flush(cache: *const Cache, delay: u32) -> Code {
    answer(|| {
        // SAFETY: `cache` is the caller's, as `native` says.
        let cache = unsafe { ffi::shared(cache, "cache") }?;
        cache.client().flush(delay)?;
        Ok(Code::Ok)
    })
}

/// Calls stat for each statistic of each server, in their order: of a topic such as "items", or with topic NULL the usual ones.
///
/// FABCACHE_PARTIAL: some of the servers failed. Where all did, the code is the first one's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_stats(
    cache: *const Cache,
    topic: *const c_char,
    stat: StatCallback,
    context: *mut c_void,
) -> Code {
    answer(|| {
        // SAFETY: `cache` is the caller's, as `native` says.
        let cache = unsafe { ffi::shared(cache, "cache") }?;
        let stat = stat.ok_or_else(|| Fault::null("stat"))?;
        let topic = if topic.is_null() {
            ""
        } else {
            // SAFETY: `topic` is the caller's, as `native` says.
            unsafe { ffi::text(topic, "topic") }?
        };
        each(cache, cache.client().stats(topic), |server, stats| {
            for (name, value) in stats {
                let (name, value) = (text(name), text(value));
                // SAFETY: `stat` is the caller's function of this type, and the texts are valid until it returns; `context` he
                // has for it.
                unsafe { stat(context, server.as_ptr(), name.as_ptr(), value.as_ptr()) }
            }
        })
    })
}

/// Calls version for each server's version, in their order.
///
/// FABCACHE_PARTIAL: some of the servers failed. Where all did, the code is the first one's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_versions(
    cache: *const Cache,
    version: VersionCallback,
    context: *mut c_void,
) -> Code {
    answer(|| {
        // SAFETY: `cache` is the caller's, as `native` says.
        let cache = unsafe { ffi::shared(cache, "cache") }?;
        let version = version.ok_or_else(|| Fault::null("version"))?;
        each(cache, cache.client().versions(), |server, said| {
            let said = text(said);
            // SAFETY: `version` is the caller's function of this type, and the texts are valid until it returns; `context` he
            // has for it.
            unsafe { version(context, server.as_ptr(), said.as_ptr()) }
        })
    })
}

/// Has all servers log more, or less: 0 is little.
///
/// FABCACHE_PARTIAL: some of the servers failed. Where all did, the code is the first one's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_verbosity(cache: *const Cache, level: u32) -> Code {
    answer(|| {
        // SAFETY: `cache` is the caller's, as `native` says.
        let cache = unsafe { ffi::shared(cache, "cache") }?;
        each(cache, cache.client().verbosity(level), |_, ()| ())
    })
}

/// Calls transport for each server, in their order: how it was last connected to. Nothing is connected for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_transports(
    cache: *const Cache,
    transport: TransportCallback,
    context: *mut c_void,
) -> Code {
    answer(|| {
        // SAFETY: `cache` is the caller's, as `native` says.
        let cache = unsafe { ffi::shared(cache, "cache") }?;
        let transport = transport.ok_or_else(|| Fault::null("transport"))?;
        for (server, way) in cache.names().iter().zip(cache.client().transports()) {
            let (way, why) = match way {
                None => (Way::None, None),
                Some(Transport::Tcp) => (Way::Tcp, None),
                Some(Transport::Unix { why }) => (Way::Unix, why.map(text)),
                Some(Transport::SharedMemory) => (Way::SharedMemory, None),
                Some(Transport::Fabric { .. }) => (Way::Fabric, None),
                Some(Transport::InsteadOfFabric { why }) => (Way::Tcp, Some(text(why))),
            };
            let why = why.as_deref().map_or(std::ptr::null(), CStr::as_ptr);
            // SAFETY: `transport` is the caller's function of this type, and the texts are valid until it returns; `context`
            // he has for it.
            unsafe { transport(context, server.as_ptr(), way as c_int, why) }
        }
        Ok(Code::Ok)
    })
}

/// Tells what each server that answered said.
fn each<T>(
    cache: &Cache,
    answers: Vec<Result<T, Error>>,
    mut tell: impl FnMut(&CStr, T),
) -> Result<Code, Fault> {
    let servers = answers.len();
    let mut failed = Vec::new();
    for (server, answered) in cache.names().iter().zip(answers) {
        match answered {
            Ok(said) => tell(server, said),
            Err(error) => failed.push(error),
        }
    }
    some_failed(failed, servers)
}

/// Returns the code of a call of which these servers failed.
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

/// A text for C, which cannot have a NUL inside.
fn text(text: String) -> CString {
    CString::new(text).unwrap_or_else(|error| {
        let text = String::from_utf8_lossy(&error.into_vec()).replace('\0', "\\0");
        CString::new(text).unwrap_or_default()
    })
}
