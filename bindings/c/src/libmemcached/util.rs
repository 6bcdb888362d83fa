//! libmemcachedutil's one-call queries of a server or of all servers.

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::ptr;

use super::constants::*;
use super::ffi::{Out, arguments, put};
use super::flush::{memcached_flush, memcached_version};
use super::stats::{memcached_stat, memcached_stat_free};
use super::temporary_handle::TemporaryHandle;
use super::types::memcached_st;
use crate::guarded;

/// A user's name and password; `None` if either is NULL.
fn user_of<'a>(name: Option<&'a [u8]>, password: Option<&'a [u8]>) -> Option<(&'a [u8], &'a [u8])> {
    name.zip(password)
}

/// Asks the server for its version; returns whether it answers.
fn ping(host: Option<&[u8]>, port: u16, user: Option<(&[u8], &[u8])>) -> memcached_return_t {
    match TemporaryHandle::new(host, port, user) {
        Ok(asker) => asker.cause(memcached_version(asker.handle())),
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
        arguments!(host: text(hostname));
        let rc = ping(host, port, None);
        put(ret, rc);
        rc == MEMCACHED_SUCCESS
    })
}

/// Returns whether a server answers with this name and password; NULL for none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libmemcached_util_ping2(
    hostname: *const c_char,
    port: u16,
    username: *const c_char,
    password: *const c_char,
    ret: Out<'_, memcached_return_t>,
) -> bool {
    guarded(false, || {
        arguments!(host: text(hostname), name: text(username), password: text(password));
        let rc = ping(host, port, user_of(name, password));
        put(ret, rc);
        rc == MEMCACHED_SUCCESS
    })
}

/// Asks the server for its process id.
fn process_id(
    host: Option<&[u8]>,
    port: u16,
    user: Option<(&[u8], &[u8])>,
) -> Result<libc::pid_t, memcached_return_t> {
    let asker = TemporaryHandle::new(host, port, user)?;
    let mut rc = MaybeUninit::new(MEMCACHED_FAILURE);
    // SAFETY: the topic is NULL. `rc` stays initialized: `memcached_stat` writes only valid codes. The statistics are
    // NULL or those of the handle's one server, and are freed once, with the handle that they came from.
    let (found, rc) = unsafe {
        let stat = memcached_stat(asker.handle(), ptr::null(), Some(std::cell::Cell::from_mut(&mut rc)));
        let found = stat.as_ref().map(|stat| stat.pid);
        memcached_stat_free(asker.handle(), stat);
        (found, rc.assume_init())
    };
    match found {
        Some(pid) if rc == MEMCACHED_SUCCESS => Ok(pid),
        _ => Err(asker.cause(rc)),
    }
}

/// Stores the code of a result, and returns the process id or -1.
fn report(found: Result<libc::pid_t, memcached_return_t>, ret: Out<'_, memcached_return_t>) -> libc::pid_t {
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
    guarded(-1, || {
        arguments!(host: text(hostname));
        report(process_id(host, port, None), ret)
    })
}

/// As above, with a name and a password; NULL for none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libmemcached_util_getpid2(
    hostname: *const c_char,
    port: u16,
    username: *const c_char,
    password: *const c_char,
    ret: Out<'_, memcached_return_t>,
) -> libc::pid_t {
    guarded(-1, || {
        arguments!(host: text(hostname), name: text(username), password: text(password));
        report(process_id(host, port, user_of(name, password)), ret)
    })
}

/// Empties a server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libmemcached_util_flush(
    hostname: *const c_char,
    port: u16,
    ret: Out<'_, memcached_return_t>,
) -> bool {
    guarded(false, || {
        arguments!(host: text(hostname));
        let rc = match TemporaryHandle::new(host, port, None) {
            Ok(asker) => memcached_flush(asker.handle(), 0),
            Err(rc) => rc,
        };
        put(ret, rc);
        rc == MEMCACHED_SUCCESS
    })
}

/// Whether all servers are of a release or of a later one.
#[unsafe(no_mangle)]
pub extern "C" fn libmemcached_util_version_check(
    memc: Option<&memcached_st>,
    major_version: u8,
    minor_version: u8,
    micro_version: u8,
) -> bool {
    guarded(false, || {
        if memcached_version(memc) != MEMCACHED_SUCCESS {
            return false;
        }
        let Some(inner) = memc.and_then(memcached_st::inner) else { return false };
        let wanted = [major_version, minor_version, micro_version];
        inner.instances.borrow().iter().all(|server| server.version.get() >= wanted)
    })
}
