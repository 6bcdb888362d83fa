//! libhashkit: the hashes of keys and of servers' places, and a choice of two of them.
//!
//! The hashes themselves are the client library's. Encryption with AES is not offered: `hashkit_key` refuses every key.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{self, NonNull};

use fabcache_client::distribution::Hash;
use md5::{Digest, Md5};

use super::constants::*;
use super::ffi::arguments;
use super::hash::of_number;
use super::types::{IS_ALLOCATED, hashkit_function_st, hashkit_hash_fn, hashkit_st};
use crate::guarded;

/// What `hashkit_digest` answers for an algorithm that is not compiled, or none: libhashkit's own.
const DIGEST_OF_NOTHING: u32 = 1;

/// The string that `hashkit_encrypt` would return; it always fails.
#[derive(Debug)]
pub struct hashkit_string_st(());

macro_rules! hashes {
    ($($name:ident $hash:ident,)*) => {
        $(
            #[doc = concat!("The hash `", stringify!($hash), "` of a key.")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(key: *const c_char, key_length: usize) -> u32 {
                arguments!(|_| DIGEST_OF_NOTHING; key: key(key, key_length));
                guarded(DIGEST_OF_NOTHING, || Hash::$hash.of(key))
            }
        )*
    };
}

hashes! {
    libhashkit_one_at_a_time OneAtATime,
    libhashkit_md5 Md5,
    libhashkit_crc32 Crc,
    libhashkit_fnv1_64 Fnv64,
    libhashkit_fnv1a_64 Fnv64a,
    libhashkit_fnv1_32 Fnv32,
    libhashkit_fnv1a_32 Fnv32a,
    libhashkit_murmur Murmur,
    libhashkit_jenkins Jenkins,
    libhashkit_murmur3 Murmur3,
}

/// Hsieh's hash, which Debian's libhashkit does not have either: 0, as there.
#[unsafe(no_mangle)]
pub extern "C" fn libhashkit_hsieh(_key: *const c_char, _key_length: usize) -> u32 {
    0
}

/// MD5 (RFC 1321): 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libhashkit_md5_signature(key: *const u8, length: usize, result: *mut u8) {
    if result.is_null() {
        return;
    }
    arguments!(|_| (); key: key(key.cast(), length));
    let Some(signature) = guarded(None, || Some(<[u8; 16]>::from(Md5::digest(key)))) else { return };
    // SAFETY: `result` is not NULL; libhashkit requires 16 writable bytes there. They do not overlap `signature`, which
    // is a local array.
    unsafe { ptr::copy_nonoverlapping(signature.as_ptr(), result, signature.len()) };
}

/// A key's hash by an algorithm.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libhashkit_digest(
    key: *const c_char,
    key_length: usize,
    algorithm: hashkit_hash_algorithm_t,
) -> u32 {
    arguments!(|_| DIGEST_OF_NOTHING; key: key(key, key_length));
    guarded(DIGEST_OF_NOTHING, || of_number(algorithm).map_or(DIGEST_OF_NOTHING, |hash| hash.of(key)))
}

/// A key's hash by the function that was chosen for keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hashkit_digest(
    kit: Option<&hashkit_st>,
    key: *const c_char,
    key_length: usize,
) -> u32 {
    let Some((function, context)) =
        kit.and_then(|kit| Some((kit.base_hash.function.get()?, kit.base_hash.context.get())))
    else {
        return DIGEST_OF_NOTHING;
    };
    // SAFETY: the function is one of this file's or the caller's, of this type; it gets the context it was set with, and
    // this function's own arguments, whose validity the caller guarantees.
    unsafe { function(key, key_length, context) }
}

/// Returns whether an algorithm is supported; a custom one may be.
#[unsafe(no_mangle)]
pub extern "C" fn libhashkit_has_algorithm(algorithm: hashkit_hash_algorithm_t) -> bool {
    of_number(algorithm).is_some() || algorithm == HASHKIT_HASH_CUSTOM
}

/// Writes `kit` to the caller's memory, or to new memory if `to` is NULL.
///
/// # Safety
/// `to` is NULL or points to writable memory for a `hashkit_st`.
unsafe fn place(to: *mut hashkit_st, kit: hashkit_st) -> *mut hashkit_st {
    match NonNull::new(to) {
        Some(to) => {
            kit.options.set(0);
            // SAFETY: not NULL, so writable by this function's contract; a former value is not dropped.
            unsafe { to.write(kit) };
            to.as_ptr()
        }
        None => {
            kit.options.set(IS_ALLOCATED);
            Box::into_raw(Box::new(kit))
        }
    }
}

/// Begins with the default hash for both; in the caller's memory, if it gives any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hashkit_create(kit: *mut hashkit_st) -> *mut hashkit_st {
    // SAFETY: libhashkit requires NULL or memory for a `hashkit_st`.
    unsafe { place(kit, hashkit_st::new()) }
}

/// A copy, in the caller's memory if it gives any; of nothing, a fresh one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hashkit_clone(
    destination: *mut hashkit_st,
    source: Option<&hashkit_st>,
) -> *mut hashkit_st {
    let copy = source.map_or_else(hashkit_st::new, Clone::clone);
    // SAFETY: libhashkit requires NULL or memory for a `hashkit_st`.
    unsafe { place(destination, copy) }
}

/// Ends what `hashkit_create` or `hashkit_clone` began.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hashkit_free(kit: *mut hashkit_st) {
    let Some(kit) = NonNull::new(kit) else { return };
    // SAFETY: not NULL, so `hashkit_create` or `hashkit_clone` initialized it.
    let options = unsafe { kit.as_ref() }.options.get();
    if options & IS_ALLOCATED != 0 {
        // SAFETY: only `place` sets this flag, on what it took from a box; the caller frees it once.
        drop(unsafe { Box::from_raw(kit.as_ptr()) });
    }
}

/// Returns whether both make the same choice.
#[unsafe(no_mangle)]
pub extern "C" fn hashkit_compare(first: Option<&hashkit_st>, second: Option<&hashkit_st>) -> bool {
    let same = |a: &hashkit_function_st, b: &hashkit_function_st| {
        a.function.get().map(|function| function as usize)
            == b.function.get().map(|function| function as usize)
            && a.context.get() == b.context.get()
    };
    let (Some(first), Some(second)) = (first, second) else { return false };
    same(&first.base_hash, &second.base_hash)
        && same(&first.distribution_hash, &second.distribution_hash)
        && first.flags.get() == second.flags.get()
}

fn choose(function: &hashkit_function_st, algorithm: hashkit_hash_algorithm_t) -> hashkit_return_t {
    function.set(algorithm).err().unwrap_or(HASHKIT_SUCCESS)
}

fn choose_custom(
    function: &hashkit_function_st,
    custom: hashkit_hash_fn,
    context: *mut c_void,
) -> hashkit_return_t {
    if custom.is_none() {
        return HASHKIT_FAILURE;
    }
    function.function.set(custom);
    function.context.set(context);
    HASHKIT_SUCCESS
}

/// Chooses the hash of keys.
#[unsafe(no_mangle)]
pub extern "C" fn hashkit_set_function(
    kit: Option<&hashkit_st>,
    algorithm: hashkit_hash_algorithm_t,
) -> hashkit_return_t {
    kit.map_or(HASHKIT_INVALID_ARGUMENT, |kit| choose(&kit.base_hash, algorithm))
}

/// Chooses the hash of servers' places.
#[unsafe(no_mangle)]
pub extern "C" fn hashkit_set_distribution_function(
    kit: Option<&hashkit_st>,
    algorithm: hashkit_hash_algorithm_t,
) -> hashkit_return_t {
    kit.map_or(HASHKIT_INVALID_ARGUMENT, |kit| choose(&kit.distribution_hash, algorithm))
}

/// Chooses the caller's own hash of keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hashkit_set_custom_function(
    kit: Option<&hashkit_st>,
    function: hashkit_hash_fn,
    context: *mut c_void,
) -> hashkit_return_t {
    kit.map_or(HASHKIT_INVALID_ARGUMENT, |kit| choose_custom(&kit.base_hash, function, context))
}

/// Chooses the caller's own hash of servers' places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hashkit_set_custom_distribution_function(
    kit: Option<&hashkit_st>,
    function: hashkit_hash_fn,
    context: *mut c_void,
) -> hashkit_return_t {
    kit.map_or(HASHKIT_INVALID_ARGUMENT, |kit| choose_custom(&kit.distribution_hash, function, context))
}

/// The hash of keys.
#[unsafe(no_mangle)]
pub extern "C" fn hashkit_get_function(kit: Option<&hashkit_st>) -> hashkit_hash_algorithm_t {
    kit.map_or(HASHKIT_HASH_DEFAULT, |kit| kit.base_hash.number())
}

/// The hash of servers' places.
#[unsafe(no_mangle)]
pub extern "C" fn hashkit_get_distribution_function(kit: Option<&hashkit_st>) -> hashkit_hash_algorithm_t {
    kit.map_or(HASHKIT_HASH_DEFAULT, |kit| kit.distribution_hash.number())
}

/// Not offered: no key is taken.
#[unsafe(no_mangle)]
pub extern "C" fn hashkit_key(_kit: Option<&hashkit_st>, _key: *const c_char, _key_length: usize) -> bool {
    false
}

/// Not offered: nothing is returned.
#[unsafe(no_mangle)]
pub extern "C" fn hashkit_encrypt(
    _kit: Option<&hashkit_st>,
    _source: *const c_char,
    _source_length: usize,
) -> *mut hashkit_string_st {
    ptr::null_mut()
}

/// Not offered: nothing is returned.
#[unsafe(no_mangle)]
pub extern "C" fn hashkit_decrypt(
    _kit: Option<&hashkit_st>,
    _source: *const c_char,
    _source_length: usize,
) -> *mut hashkit_string_st {
    ptr::null_mut()
}

/// There is no such string.
#[unsafe(no_mangle)]
pub extern "C" fn hashkit_string_free(_string: *mut hashkit_string_st) {}

/// There is no such string.
#[unsafe(no_mangle)]
pub extern "C" fn hashkit_string_length(_string: *const hashkit_string_st) -> usize {
    0
}

/// There is no such string.
#[unsafe(no_mangle)]
pub extern "C" fn hashkit_string_c_str(_string: *const hashkit_string_st) -> *const c_char {
    ptr::null()
}

/// A code in words.
#[unsafe(no_mangle)]
pub extern "C" fn hashkit_strerror(_kit: Option<&hashkit_st>, rc: hashkit_return_t) -> *const c_char {
    let text: &CStr = match rc {
        HASHKIT_SUCCESS => c"SUCCESS",
        HASHKIT_FAILURE => c"FAILURE",
        HASHKIT_MEMORY_ALLOCATION_FAILURE => c"MEMORY ALLOCATION FAILURE",
        HASHKIT_INVALID_HASH => c"INVALID hashkit_hash_algorithm_t",
        HASHKIT_INVALID_ARGUMENT => c"INVALID ARGUMENT",
        _ => c"INVALID hashkit_return_t",
    };
    text.as_ptr()
}
