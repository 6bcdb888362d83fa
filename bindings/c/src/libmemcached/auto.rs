//! Numbers counted up and down.

use std::ffi::c_char;

use super::constants::*;
use super::ffi::{Out, arguments, put};
use super::query::refused;
use super::types::memcached_st;
use crate::guarded;

/// The arithmetic operation.
#[derive(Clone, Copy)]
struct Change {
    is_decrement: bool,
    by: u64,
    /// The number to create and its expiration, if the key is absent.
    initial: Option<(u64, i64)>,
}

fn change(
    ptr: Option<&memcached_st>,
    group: Option<&[u8]>,
    key: &[u8],
    change: Change,
    value: Out<'_, u64>,
) -> memcached_return_t {
    let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
    try_change(memc, group, key, change, value).map_or_else(|code| code, |()| MEMCACHED_SUCCESS)
}

fn try_change(
    memc: &memcached_st,
    group: Option<&[u8]>,
    key: &[u8],
    Change { is_decrement, by, initial }: Change,
    value: Out<'_, u64>,
) -> Result<(), memcached_return_t> {
    let inner = memc.begin()?;
    if initial.is_some() && !memc.is_binary() {
        put(value, u64::MAX);
        // Also of the other: libmemcached's words.
        let message = "memcached_increment_with_initial_by_key() is not supported via the ASCII protocol";
        return Err(memc.fail_with(MEMCACHED_INVALID_ARGUMENTS, message));
    }
    memc.check_changed(inner, key)?;
    let server = memc.server_of(inner, group, key)?;
    // As libmemcached leaves it where there is no number.
    put(value, u64::MAX);
    let initial = initial.filter(|(_, expiration)| *expiration != i64::from(MEMCACHED_EXPIRATION_NOT_ADD));
    let changed = inner.with_key(key, |key| {
        server.call(memc, |client| match (is_decrement, initial) {
            (false, None) => client.incr(key, by),
            (true, None) => client.decr(key, by),
            (false, Some((first, ttl))) => client.incr_or_set(key, by, first, memc.ttl(ttl)).map(Some),
            (true, Some((first, ttl))) => client.decr_or_set(key, by, first, memc.ttl(ttl)).map(Some),
        })
    });
    if !memc.is_replying() {
        return changed.map(|_| ());
    }
    put(value, changed?.ok_or(MEMCACHED_NOTFOUND)?);
    Ok(())
}

macro_rules! counters {
    ($($(#[$doc:meta])* $is_decrement:literal $name:ident $name_by_key:ident $initial:ident $initial_by_key:ident;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                ptr: Option<&memcached_st>,
                key: *const c_char,
                key_length: usize,
                offset: u32,
                value: Out<'_, u64>,
            ) -> memcached_return_t {
                guarded(MEMCACHED_FAILURE, || {
                    arguments!(|code| refused(ptr, code); key: key(key, key_length));
                    let to = Change { is_decrement: $is_decrement, by: offset.into(), initial: None };
                    change(ptr, None, key, to, value)
                })
            }

            $(#[$doc])*
            ///
            /// The server is that of the group's key.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name_by_key(
                ptr: Option<&memcached_st>,
                group_key: *const c_char,
                group_key_length: usize,
                key: *const c_char,
                key_length: usize,
                offset: u64,
                value: Out<'_, u64>,
            ) -> memcached_return_t {
                guarded(MEMCACHED_FAILURE, || {
                    arguments!(|code| refused(ptr, code);
                        group: key(group_key, group_key_length), key: key(key, key_length));
                    let to = Change { is_decrement: $is_decrement, by: offset, initial: None };
                    change(ptr, Some(group), key, to, value)
                })
            }

            $(#[$doc])*
            ///
            /// An absent key is created with the initial value.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $initial(
                ptr: Option<&memcached_st>,
                key: *const c_char,
                key_length: usize,
                offset: u64,
                initial: u64,
                expiration: i64,
                value: Out<'_, u64>,
            ) -> memcached_return_t {
                guarded(MEMCACHED_FAILURE, || {
                    arguments!(|code| refused(ptr, code); key: key(key, key_length));
                    let initial = Some((initial, expiration));
                    let to = Change { is_decrement: $is_decrement, by: offset, initial };
                    change(ptr, None, key, to, value)
                })
            }

            $(#[$doc])*
            ///
            /// An absent key is created with the initial value. The server is that of the group's key.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $initial_by_key(
                ptr: Option<&memcached_st>,
                group_key: *const c_char,
                group_key_length: usize,
                key: *const c_char,
                key_length: usize,
                offset: u64,
                initial: u64,
                expiration: i64,
                value: Out<'_, u64>,
            ) -> memcached_return_t {
                guarded(MEMCACHED_FAILURE, || {
                    arguments!(|code| refused(ptr, code);
                        group: key(group_key, group_key_length), key: key(key, key_length));
                    let initial = Some((initial, expiration));
                    let to = Change { is_decrement: $is_decrement, by: offset, initial };
                    change(ptr, Some(group), key, to, value)
                })
            }
        )*
    };
}

counters! {
    /// Adds to a number.
    false memcached_increment memcached_increment_by_key
        memcached_increment_with_initial memcached_increment_with_initial_by_key;
    /// Subtracts from a number, which does not go below 0.
    true memcached_decrement memcached_decrement_by_key
        memcached_decrement_with_initial memcached_decrement_with_initial_by_key;
}
