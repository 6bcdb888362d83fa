//! The library's names, error texts and hashes match the output of libmemcached's own programs.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use fabcache::libmemcached::hashkit::*;
use fabcache::libmemcached::names::*;
use fabcache::libmemcached::strerror::memcached_strerror;
use fabcache::libmemcached::*;

const TEXTS: &str = include_str!("libmemcached/texts.txt");
const HASHKIT: &str = include_str!("libmemcached/hashkit.txt");

fn text(text: *const c_char) -> String {
    // SAFETY: each of these is a constant that ends with a zero.
    unsafe { CStr::from_ptr(text) }.to_str().expect("ASCII").to_owned()
}

#[test]
fn names_and_error_texts_match_libmemcached() {
    let mut compared = 0;
    for line in TEXTS.lines() {
        let mut words = line.splitn(3, ' ');
        let (Some(function), Some(number), Some(expected)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let number = number.parse::<i32>().expect(line).cast_unsigned();
        let found = match function {
            "memcached_strerror" => memcached_strerror(None, number),
            "libmemcached_string_behavior" => libmemcached_string_behavior(number),
            "libmemcached_string_distribution" => libmemcached_string_distribution(number),
            "libmemcached_string_hash" => libmemcached_string_hash(number),
            "libhashkit_string_hash" => libhashkit_string_hash(number),
            "hashkit_strerror" => hashkit_strerror(None, number),
            other => panic!("{other}"),
        };
        assert_eq!(text(found), expected, "{line}");
        compared += 1;
    }
    assert!(compared > 100, "only {compared} are recorded");
}

#[test]
fn hashes_match_libhashkit() {
    let mut compared = 0;
    for line in HASHKIT.lines().filter_map(|line| line.strip_prefix("digest of \"")) {
        let (key, rest) = line.rsplit_once("\" by ").expect(line);
        let (algorithm, expected) = rest.split_once(": ").expect(line);
        let key: &[u8] = if key == "bytes above 127" { b"\xe4\xf6\xfc" } else { key.as_bytes() };
        let algorithm = algorithm.parse::<i32>().expect(line).cast_unsigned();
        // SAFETY: the key has the stated length.
        let found = unsafe { libhashkit_digest(key.as_ptr().cast(), key.len(), algorithm) };
        assert_eq!(found.to_string(), expected, "{line}");
        compared += 1;
    }
    assert!(compared > 40, "only {compared} are recorded");
}

unsafe extern "C" fn own(_: *const c_char, length: usize, context: *mut c_void) -> u32 {
    // SAFETY: the context is the test's.
    unsafe { *context.cast::<u32>() + length as u32 }
}

#[test]
fn hashkit_is_selected_copied_and_compared() {
    // SAFETY: null, so the library allocates it.
    let kit = unsafe { hashkit_create(ptr::null_mut()) };
    // SAFETY: the kit was just created.
    let first = unsafe { kit.as_ref() };
    assert_eq!(hashkit_get_function(first), HASHKIT_HASH_DEFAULT);
    assert_eq!(hashkit_set_function(first, HASHKIT_HASH_MURMUR3), HASHKIT_SUCCESS);
    assert_eq!(hashkit_set_function(first, HASHKIT_HASH_HSIEH), HASHKIT_INVALID_ARGUMENT);
    assert_eq!(hashkit_get_function(first), HASHKIT_HASH_MURMUR3);
    assert_eq!(hashkit_get_distribution_function(first), HASHKIT_HASH_DEFAULT);
    // SAFETY: the destination is null, the source a kit.
    let copy = unsafe { hashkit_clone(ptr::null_mut(), first) };
    // SAFETY: the kit was just created.
    let second = unsafe { copy.as_ref() };
    assert!(hashkit_compare(first, second));
    let mut context = 7_u32;
    // SAFETY: the function takes this context.
    let rc = unsafe { hashkit_set_custom_function(second, Some(own), (&raw mut context).cast()) };
    assert_eq!(rc, HASHKIT_SUCCESS);
    assert_eq!(hashkit_get_function(second), HASHKIT_HASH_CUSTOM);
    assert!(!hashkit_compare(first, second));
    // SAFETY: the key has the stated length; the context lives.
    assert_eq!(unsafe { hashkit_digest(second, c"abc".as_ptr(), 3) }, 10);
    for kit in [kit, copy] {
        // SAFETY: each was created here, and is not used any more.
        unsafe { hashkit_free(kit) };
    }
}

#[test]
fn unsupported_calls_fail_and_exported_symbols_are_not_null() {
    assert!(!hashkit_key(None, c"key".as_ptr(), 3));
    assert!(hashkit_encrypt(None, c"text".as_ptr(), 4).is_null());
    assert!(hashkit_decrypt(None, c"text".as_ptr(), 4).is_null());
    assert_eq!(hashkit_set_function(None, HASHKIT_HASH_MD5), HASHKIT_INVALID_ARGUMENT);
    assert!(!hashkit_compare(None, None));
    // SAFETY: null arguments.
    unsafe { hashkit_free(ptr::null_mut()) };
    // SAFETY: the key is null, and so is the result.
    unsafe { libhashkit_md5_signature(ptr::null(), 0, ptr::null_mut()) };
    let mut signature = [0; 16];
    // SAFETY: the buffer has 16 bytes.
    unsafe { libhashkit_md5_signature(c"hello".as_ptr().cast(), 5, signature.as_mut_ptr()) };
    assert_eq!(signature[..4], [0x5d, 0x41, 0x40, 0x2a]);
}
