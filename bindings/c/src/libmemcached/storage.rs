//! Values stored.

use std::ffi::c_char;

use fabcache_client::{Mode, Stored};

use super::constants::*;
use super::ffi::arguments;
use super::query::refused;
use super::report::ErrorContext;
use super::types::{flags, memcached_st};
use crate::guarded;

/// The most that a UDP datagram over IPv4 holds, and so no value of a request in one.
const DATAGRAM_BYTES_MAX: usize = 65_507;

/// An item to store.
#[derive(Clone, Copy)]
struct Item<'a> {
    key: &'a [u8],
    value: &'a [u8],
    expiration: i64,
    flags: u32,
    mode: Mode,
}

fn store(memc: &memcached_st, group: Option<&[u8]>, item: Item<'_>) -> memcached_return_t {
    try_store(memc, group, item).map_or_else(|code| code, |()| MEMCACHED_SUCCESS)
}

fn try_store(memc: &memcached_st, group: Option<&[u8]>, item: Item<'_>) -> Result<(), memcached_return_t> {
    let inner = memc.begin()?;
    memc.check_changed(inner, item.key)?;
    let server = memc.server_of(inner, group, item.key)?;
    let Item { value, flags: item_flags, .. } = item;
    if memc.has(flags::USE_UDP) && value.len() > DATAGRAM_BYTES_MAX {
        return Err(memc.fail_of(&server, MEMCACHED_WRITE_FAILURE, ErrorContext::default()));
    }
    // In a packet no CAS is one of 0.
    let mode = if item.mode == Mode::Compare(0) && memc.is_binary() { Mode::Set } else { item.mode };
    let ttl = memc.ttl(item.expiration);
    let is_buffered = memc.has(flags::BUFFER_REQUESTS);
    if mode == Mode::Set && (is_buffered || !memc.is_replying()) {
        inner.with_key(item.key, |key| {
            server.store_later(memc, |client| client.bset_with_flags(key, value, ttl, item_flags))
        })?;
        // With the text protocol, requests without replies are sent at once.
        let is_kept = is_buffered && (memc.is_replying() || memc.is_binary());
        return if is_kept { Err(MEMCACHED_BUFFERED) } else { Ok(()) };
    }
    let stored = inner.with_key(item.key, |key| {
        server.call(memc, |client| client.store(key, value, mode, ttl, item_flags))
    });
    let stored = match stored {
        // The caller asked for no answer.
        Ok(_) if !memc.is_replying() => Ok(()),
        Ok(stored) => code_of(memc, mode, stored),
        Err(code) => Err(code),
    };
    if mode == Mode::Set && memc.is_replicated() {
        for replica in memc.replicas(inner, group, item.key) {
            inner.with_key(item.key, |key| {
                // The answers of replicas are ignored.
                let _ = replica.call(memc, |client| client.store(key, value, mode, ttl, item_flags));
            });
        }
    }
    stored
}

/// The protocols have different codes for it.
fn code_of(memc: &memcached_st, mode: Mode, stored: Stored) -> Result<(), memcached_return_t> {
    match stored {
        Stored::Stored => Ok(()),
        Stored::Exists => Err(MEMCACHED_DATA_EXISTS),
        Stored::NotFound => Err(MEMCACHED_NOTFOUND),
        Stored::NotStored => Err(match mode {
            Mode::Add if memc.is_binary() => MEMCACHED_DATA_EXISTS,
            Mode::Replace if memc.is_binary() => MEMCACHED_NOTFOUND,
            _ => MEMCACHED_NOTSTORED,
        }),
    }
}

macro_rules! stores {
    ($($(#[$doc:meta])* $name:ident $name_by_key:ident $mode:expr;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                ptr: Option<&memcached_st>,
                key: *const c_char,
                key_length: usize,
                value: *const c_char,
                value_length: usize,
                expiration: i64,
                flags: u32,
            ) -> memcached_return_t {
                guarded(MEMCACHED_FAILURE, || {
                    let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
                    arguments!(|code| refused(ptr, code);
                        key: key(key, key_length), value: value(value, value_length));
                    store(memc, None, Item { key, value, expiration, flags, mode: $mode })
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
                value: *const c_char,
                value_length: usize,
                expiration: i64,
                flags: u32,
            ) -> memcached_return_t {
                guarded(MEMCACHED_FAILURE, || {
                    let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
                    arguments!(|code| refused(ptr, code);
                        group: key(group_key, group_key_length),
                        key: key(key, key_length), value: value(value, value_length));
                    store(memc, Some(group), Item { key, value, expiration, flags, mode: $mode })
                })
            }
        )*
    };
}

stores! {
    /// Stores a value.
    memcached_set memcached_set_by_key Mode::Set;
    /// Stores a value if the key is not there.
    memcached_add memcached_add_by_key Mode::Add;
    /// Stores a value if the key is there.
    memcached_replace memcached_replace_by_key Mode::Replace;
    /// Adds bytes behind a value.
    memcached_append memcached_append_by_key Mode::Append;
    /// Adds bytes before a value.
    memcached_prepend memcached_prepend_by_key Mode::Prepend;
}

/// Stores a value if the item is still the one with this CAS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_cas(
    ptr: Option<&memcached_st>,
    key: *const c_char,
    key_length: usize,
    value: *const c_char,
    value_length: usize,
    expiration: i64,
    flags: u32,
    cas: u64,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
        arguments!(|code| refused(ptr, code);
            key: key(key, key_length), value: value(value, value_length));
        store(memc, None, Item { key, value, expiration, flags, mode: Mode::Compare(cas) })
    })
}

/// Stores a value if the item is still the one with this CAS. The server is that of the group's key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_cas_by_key(
    ptr: Option<&memcached_st>,
    group_key: *const c_char,
    group_key_length: usize,
    key: *const c_char,
    key_length: usize,
    value: *const c_char,
    value_length: usize,
    expiration: i64,
    flags: u32,
    cas: u64,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
        arguments!(|code| refused(ptr, code);
            group: key(group_key, group_key_length),
            key: key(key, key_length), value: value(value, value_length));
        store(memc, Some(group), Item { key, value, expiration, flags, mode: Mode::Compare(cas) })
    })
}
