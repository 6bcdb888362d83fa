//! Hashes of keys, as libhashkit's numbers and functions.

use std::cell::Cell;
use std::ffi::{c_char, c_void};

use fabcache_client::distribution::Hash;

use super::constants::*;
use super::ffi::arguments;
use super::types::{hashkit_function_st, hashkit_hash_fn, hashkit_st, memcached_st};
use crate::guarded;

/// Bit 0 of `hashkit_st.flags`.
const IS_BASE_SAME_DISTRIBUTED: u8 = 1;

macro_rules! functions {
    ($($number:ident $hash:ident $name:ident,)*) => {
        $(
            /// A hash as a function of libhashkit.
            unsafe extern "C" fn $name(key: *const c_char, len: usize, _: *mut c_void) -> u32 {
                guarded(0, || {
                    arguments!(|_| 0; key: key(key, len));
                    Hash::$hash.of(key)
                })
            }
        )*

        /// Returns the hash with this number; `None` for those that Debian's libhashkit lacks.
        pub fn of_number(number: hashkit_hash_algorithm_t) -> Option<Hash> {
            match number {
                $($number => Some(Hash::$hash),)*
                _ => None,
            }
        }

        /// The function of a number.
        pub fn function_of(number: hashkit_hash_algorithm_t) -> hashkit_hash_fn {
            match number {
                $($number => Some($name),)*
                _ => None,
            }
        }

        /// Returns the number of a hash function; `HASHKIT_HASH_CUSTOM` if it is not one of this library's.
        pub fn number_of(function: hashkit_hash_fn) -> hashkit_hash_algorithm_t {
            let address = function.map_or(0, |function| function as usize);
            $(if address == $name as *const () as usize {
                return $number;
            })*
            HASHKIT_HASH_CUSTOM
        }
    };
}

functions! {
    HASHKIT_HASH_DEFAULT OneAtATime one_at_a_time,
    HASHKIT_HASH_MD5 Md5 md5,
    HASHKIT_HASH_CRC Crc crc,
    HASHKIT_HASH_FNV1_64 Fnv64 fnv1_64,
    HASHKIT_HASH_FNV1A_64 Fnv64a fnv1a_64,
    HASHKIT_HASH_FNV1_32 Fnv32 fnv1_32,
    HASHKIT_HASH_FNV1A_32 Fnv32a fnv1a_32,
    HASHKIT_HASH_MURMUR Murmur murmur,
    HASHKIT_HASH_JENKINS Jenkins jenkins,
    HASHKIT_HASH_MURMUR3 Murmur3 murmur3,
}

impl hashkit_st {
    /// As `hashkit_create` leaves it.
    pub(crate) fn new() -> hashkit_st {
        let function = || hashkit_function_st {
            function: Cell::new(function_of(HASHKIT_HASH_DEFAULT)),
            context: Cell::new(std::ptr::null_mut()),
        };
        hashkit_st {
            base_hash: function(),
            distribution_hash: function(),
            flags: Cell::new(IS_BASE_SAME_DISTRIBUTED),
            options: Cell::new(0),
            key: Cell::new(std::ptr::null_mut()),
        }
    }

    /// Copies another's functions.
    pub(crate) fn copy_from(&self, from: &hashkit_st) {
        for (to, from) in
            [(&self.base_hash, &from.base_hash), (&self.distribution_hash, &from.distribution_hash)]
        {
            to.function.set(from.function.get());
            to.context.set(from.context.get());
        }
        self.flags.set(from.flags.get());
    }

    /// The hash of a key.
    pub(crate) fn digest(&self, key: &[u8]) -> u32 {
        self.base_hash.of(key)
    }
}

impl hashkit_function_st {
    /// Its number.
    pub(crate) fn number(&self) -> hashkit_hash_algorithm_t {
        number_of(self.function.get())
    }

    fn of(&self, key: &[u8]) -> u32 {
        match self.function.get() {
            // SAFETY: this file's function, or the caller's for this purpose with the context set with it; the key is valid
            // until it returns.
            Some(function) => unsafe { function(key.as_ptr().cast(), key.len(), self.context.get()) },
            None => 1,
        }
    }

    /// Sets one of ours.
    ///
    /// # Errors
    /// The number is unknown; the setting is then the one that libhashkit leaves.
    pub(crate) fn set(&self, number: hashkit_hash_algorithm_t) -> Result<(), hashkit_return_t> {
        if let Some(function) = function_of(number) {
            self.function.set(Some(function));
            self.context.set(std::ptr::null_mut());
            return Ok(());
        }
        match number {
            HASHKIT_HASH_CUSTOM | HASHKIT_HASH_HSIEH => Err(HASHKIT_INVALID_ARGUMENT),
            beyond => {
                self.function.set(function_of(HASHKIT_HASH_DEFAULT));
                self.context.set(std::ptr::null_mut());
                if beyond == HASHKIT_HASH_MAX { Err(HASHKIT_INVALID_HASH) } else { Ok(()) }
            }
        }
    }
}

/// The hash of a key by a handle's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_generate_hash(
    ptr: Option<&memcached_st>,
    key: *const c_char,
    key_length: usize,
) -> u32 {
    guarded(u32::MAX, || {
        let Some(memc) = ptr else { return u32::MAX };
        arguments!(|_| u32::MAX; key: key(key, key_length));
        memc.position_of(key).unwrap_or(u32::MAX as usize) as u32
    })
}

/// The hash of a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_generate_hash_value(
    key: *const c_char,
    key_length: usize,
    hash_algorithm: memcached_hash_t,
) -> u32 {
    guarded(1, || {
        arguments!(|_| 1; key: key(key, key_length));
        of_number(hash_algorithm).map_or(1, |hash| hash.of(key))
    })
}

/// A handle's hash functions.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_get_hashkit(ptr: Option<&memcached_st>) -> *const hashkit_st {
    ptr.map_or(std::ptr::null(), |memc| &raw const memc.hashkit)
}

/// Sets a handle's hash functions.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_set_hashkit(
    ptr: Option<&memcached_st>,
    hashk: Option<&hashkit_st>,
) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
        memc.hashkit.copy_from(hashk.unwrap_or(&hashkit_st::new()));
        memc.redistribute();
        MEMCACHED_SUCCESS
    })
}

/// Checks again which servers are ejected.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_autoeject(ptr: Option<&memcached_st>) {
    guarded((), || {
        if let Some(memc) = ptr {
            memc.redistribute_if_due();
        }
    });
}
