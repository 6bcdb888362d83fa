//! libmemcachedutil's one-call queries of a server or of all servers.

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::ptr;

use super::constants::*;
use super::ffi::{Out, put};
use super::flush::{memcached_flush, memcached_version};
use super::stats::{memcached_stat, memcached_stat_free};
use super::temporary_handle::TemporaryHandle;
use super::types::memcached_st;
use crate::guarded;

/// Whether the server answers: it is asked for its version.
///
/// # Safety
/// The strings are null, or end with a zero.
unsafe fn ping(
    hostname: *const c_char,
    port: u16,
    user: Option<(*const c_char, *const c_char)>,
) -> memcached_return_t {
    // SAFETY: as our caller promises.
    match unsafe { TemporaryHandle::new(hostname, port, user) } {
        // SAFETY: it is a handle.
        Ok(asker) => asker.cause(unsafe { memcached_version(asker.handle()) }),
        Err(rc) => rc,
    }
}

/// Whether a server answers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libmemcached_util_ping(
    hostname: *const c_char,
    port: u16,
    ret: Out<'_, memcached_return_t>,
) -> bool {
    guarded(false, || {
        // SAFETY: as our caller promises.
        let rc = unsafe { ping(hostname, port, None) };
        put(ret, rc);
        rc == MEMCACHED_SUCCESS
    })
}

/// Whether a server answers who has this name and password; null for none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libmemcached_util_ping2(
    hostname: *const c_char,
    port: u16,
    username: *const c_char,
    password: *const c_char,
    ret: Out<'_, memcached_return_t>,
) -> bool {
    guarded(false, || {
        // SAFETY: as our caller promises.
        let rc = unsafe { ping(hostname, port, Some((username, password))) };
        put(ret, rc);
        rc == MEMCACHED_SUCCESS
    })
}

/// # Safety
/// The strings are null, or end with a zero.
unsafe fn process_id(
    hostname: *const c_char,
    port: u16,
    user: Option<(*const c_char, *const c_char)>,
) -> Result<libc::pid_t, memcached_return_t> {
    // SAFETY: as our caller promises.
    let asker = unsafe { TemporaryHandle::new(hostname, port, user) }?;
    let mut rc = MaybeUninit::new(MEMCACHED_FAILURE);
    // SAFETY: it is a handle, and nothing is asked about.
    let stat =
        unsafe { memcached_stat(asker.handle(), ptr::null(), Some(std::cell::Cell::from_mut(&mut rc))) };
    // SAFETY: it was initialized above, and `memcached_stat` writes nothing but codes.
    let rc = unsafe { rc.assume_init() };
    // SAFETY: null, or the statistics of one server.
    let found = unsafe { stat.as_ref() }.map(|stat| stat.pid);
    // SAFETY: they came from there, with this handle.
    unsafe { memcached_stat_free(asker.handle(), stat) };
    match found {
        Some(pid) if rc == MEMCACHED_SUCCESS => Ok(pid),
        _ => Err(asker.cause(rc)),
    }
}

fn tell(found: Result<libc::pid_t, memcached_return_t>, ret: Out<'_, memcached_return_t>) -> libc::pid_t {
    put(ret, found.err().unwrap_or(MEMCACHED_SUCCESS));
    found.unwrap_or(-1)
}

/// The number of a server's process; -1 if it does not answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libmemcached_util_getpid(
    hostname: *const c_char,
    port: u16,
    ret: Out<'_, memcached_return_t>,
) -> libc::pid_t {
    // SAFETY: as our caller promises.
    guarded(-1, || tell(unsafe { process_id(hostname, port, None) }, ret))
}

/// The same, with a name and a password; null for none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libmemcached_util_getpid2(
    hostname: *const c_char,
    port: u16,
    username: *const c_char,
    password: *const c_char,
    ret: Out<'_, memcached_return_t>,
) -> libc::pid_t {
    // SAFETY: as our caller promises.
    guarded(-1, || tell(unsafe { process_id(hostname, port, Some((username, password))) }, ret))
}

/// Empties a server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libmemcached_util_flush(
    hostname: *const c_char,
    port: u16,
    ret: Out<'_, memcached_return_t>,
) -> bool {
    guarded(false, || {
        // SAFETY: as our caller promises.
        let rc = match unsafe { TemporaryHandle::new(hostname, port, None) } {
            // SAFETY: it is a handle.
            Ok(asker) => unsafe { memcached_flush(asker.handle(), 0) },
            Err(rc) => rc,
        };
        put(ret, rc);
        rc == MEMCACHED_SUCCESS
    })
}

/// Whether all servers are of a release or of a later one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libmemcached_util_version_check(
    memc: Option<&memcached_st>,
    major_version: u8,
    minor_version: u8,
    micro_version: u8,
) -> bool {
    guarded(false, || {
        // SAFETY: null or a handle, the caller promises.
        if unsafe { memcached_version(memc) } != MEMCACHED_SUCCESS {
            return false;
        }
        let Some(inner) = memc.and_then(memcached_st::inner) else { return false };
        let wanted = [major_version, minor_version, micro_version];
        inner.instances.borrow().iter().all(|server| server.version.get() >= wanted)
    })
}
