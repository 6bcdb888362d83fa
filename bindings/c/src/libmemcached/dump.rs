//! Lists the keys of all servers.

use std::ffi::{CString, c_void};

use super::constants::*;
use super::ffi::arguments;
use super::report::ErrorContext;
use super::stats::connect_all;
use super::types::{memcached_dump_fn, memcached_st};
use crate::guarded;

/// memcached's size classes, at most. A server that has fewer refuses the next.
const CLASSES_MAX: u32 = 255;

/// Calls functions with each key of each server, as far as `stats cachedump` lists them: memcached limits it to two
/// megabytes for each size class.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_dump(
    ptr: Option<&memcached_st>,
    function: *const memcached_dump_fn,
    context: *mut c_void,
    number_of_callbacks: u32,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
        arguments!(functions: array(function, number_of_callbacks as usize));
        dump(memc, functions, context).err().unwrap_or(MEMCACHED_SUCCESS)
    })
}

fn dump(
    memc: &memcached_st,
    functions: &[memcached_dump_fn],
    context: *mut c_void,
) -> Result<(), memcached_return_t> {
    let servers = memc.begin()?.instances.borrow().clone();
    if memc.is_binary() {
        let message = "Binary protocol is not supported for memcached_dump()";
        return Err(memc.fail_with(MEMCACHED_NOT_SUPPORTED, message));
    }
    // No key is reported before all servers answer; as in libmemcached, one that does not is tried twice.
    connect_all(memc, &servers).or_else(|_| connect_all(memc, &servers))?;
    let mut result = Ok(());
    for server in &servers {
        for class in 1..=CLASSES_MAX {
            let keys = match server.keys(memc, class) {
                Ok(keys) => keys,
                Err(MEMCACHED_INVALID_ARGUMENTS) => break,
                Err(_) => {
                    result = Err(MEMCACHED_SOME_ERRORS);
                    break;
                }
            };
            for key in keys {
                let Ok(key) = CString::new(key) else { continue };
                let call = |function: &memcached_dump_fn| {
                    let Some(function) = function else { return MEMCACHED_SUCCESS };
                    // SAFETY: the caller passed the function for this call, with its `context`; the key lives until it returns.
                    unsafe { function(memc, key.as_ptr(), key.as_bytes().len(), context) }
                };
                if let Some(rc) = functions.iter().map(call).find(|rc| *rc != MEMCACHED_SUCCESS) {
                    memc.fail_of(server, rc, ErrorContext::default());
                    result = Err(MEMCACHED_SOME_ERRORS);
                }
            }
        }
    }
    result
}
