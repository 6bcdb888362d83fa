//! Invalid arguments: impossible addresses, and NULL for every pointer.

use super::*;

#[test]
fn invalid_addresses_are_rejected() {
    let open = |addresses: &[*const c_char]| {
        let mut cache = std::ptr::dangling_mut::<Cache>();
        let code = call!(fabcache_open(addresses.as_ptr(), addresses.len(), null(), &raw mut cache));
        assert!(cache.is_null());
        (code, last_error())
    };
    assert_eq!(open(&[]).0, Code::NoServers);
    assert_eq!(open(&[null()]), (Code::InvalidArgument, "an address is NULL".into()));
    let (code, text) = open(&[c"localhost".as_ptr(), c"ftp://x".as_ptr()]);
    assert!(code == Code::BadAddress && text.contains("ftp://x"), "{text}");
    assert_eq!(open(&[c"\xff".as_ptr()]).0, Code::InvalidArgument);
    assert_eq!(call!(fabcache_open(null(), 1, null(), null_mut())), Code::InvalidArgument);
    let mut cache = null_mut();
    assert_eq!(call!(fabcache_open(null(), 1, null(), &raw mut cache)), Code::InvalidArgument);
    call!(fabcache_close(null_mut()));
}

fn all_invalid(codes: &[Code]) {
    for (number, code) in codes.iter().enumerate() {
        assert_eq!(*code, Code::InvalidArgument, "call {number}: {}", last_error());
    }
}

#[test]
fn null_arguments_of_reads_are_errors() {
    let cache = Open::at(&["tcp://127.0.0.1:1"]);
    let (no, key, cache) = (null::<Cache>(), c"k".as_ptr(), cache.0.cast_const());
    let (mut value, mut buffer) = (null_mut(), [0u8; 1]);
    let (value, buffer): (_, *mut c_void) = (&raw mut value, buffer.as_mut_ptr().cast());
    let beyond = usize::MAX;
    all_invalid(&[
        call!(fabcache_get(no, key, 1, buffer, 1, null_mut())),
        call!(fabcache_get(cache, null(), 1, buffer, 1, null_mut())),
        call!(fabcache_get(cache, key, beyond, buffer, 1, null_mut())),
        call!(fabcache_get(cache, key, 1, null_mut(), 1, null_mut())),
        call!(fabcache_get_and_touch(no, key, 1, 0, buffer, 1, null_mut())),
        call!(fabcache_get_and_touch(cache, key, 1, 0, null_mut(), 1, null_mut())),
        call!(fabcache_get_alloc(no, key, 1, value, null_mut())),
        call!(fabcache_get_alloc(cache, key, 1, null_mut(), null_mut())),
        call!(fabcache_get_and_touch_alloc(no, key, 1, 0, value, null_mut())),
        call!(fabcache_get_and_touch_alloc(cache, key, 1, 0, null_mut(), null_mut())),
        call!(fabcache_get_many(no, &raw const key, &raw const beyond, 1, Some(found), null_mut())),
        call!(fabcache_get_many(cache, null(), &raw const beyond, 1, Some(found), null_mut())),
        call!(fabcache_get_many(cache, &raw const key, null(), 1, Some(found), null_mut())),
        call!(fabcache_get_many(cache, &raw const key, &raw const beyond, 1, Some(found), null_mut())),
        call!(fabcache_get_many(cache, &raw const key, &raw const beyond, 1, None, null_mut())),
        call!(fabcache_exists(no, key, 1)),
    ]);
}

#[test]
fn null_arguments_of_writes_are_errors() {
    let cache = Open::at(&["tcp://127.0.0.1:1"]);
    let (no, key, cache) = (null::<Cache>(), c"k".as_ptr(), cache.0.cast_const());
    let mut buffer = [0u8; 1];
    let buffer: *mut c_void = buffer.as_mut_ptr().cast();
    let beyond = usize::MAX;
    all_invalid(&[
        call!(fabcache_set(no, key, 1, buffer, 1, 0, 0)),
        call!(fabcache_set(cache, null(), 1, buffer, 1, 0, 0)),
        call!(fabcache_set(cache, key, 1, null(), 1, 0, 0)),
        call!(fabcache_set(cache, key, 1, buffer, beyond, 0, 0)),
        call!(fabcache_add(no, key, 1, buffer, 1, 0, 0)),
        call!(fabcache_replace(no, key, 1, buffer, 1, 0, 0)),
        call!(fabcache_append(no, key, 1, buffer, 1)),
        call!(fabcache_prepend(no, key, 1, buffer, 1)),
        call!(fabcache_cas(no, key, 1, buffer, 1, 0, 0, 1)),
        call!(fabcache_incr(no, key, 1, 1, null_mut())),
        call!(fabcache_decr(no, key, 1, 1, null_mut())),
        call!(fabcache_incr_or_set(no, key, 1, 1, 1, 0, null_mut())),
        call!(fabcache_decr_or_set(no, key, 1, 1, 1, 0, null_mut())),
        call!(fabcache_touch(no, key, 1, 1)),
        call!(fabcache_delete(no, key, 1)),
        call!(fabcache_delete(cache, null(), 1)),
    ]);
}

#[test]
fn null_arguments_of_server_calls_are_errors() {
    let cache = Open::at(&["tcp://127.0.0.1:1"]);
    let (no, key, cache) = (null::<Cache>(), c"k".as_ptr(), cache.0.cast_const());
    all_invalid(&[
        call!(fabcache_flush(no, 0)),
        call!(fabcache_stats(no, null(), Some(stat), null_mut())),
        call!(fabcache_stats(cache, null(), None, null_mut())),
        call!(fabcache_versions(no, Some(said), null_mut())),
        call!(fabcache_versions(cache, None, null_mut())),
        call!(fabcache_verbosity(no, 0)),
        call!(fabcache_transports(no, Some(way), null_mut())),
        call!(fabcache_transports(cache, None, null_mut())),
        call!(fabcache_server_of(no, key, 1, null_mut())),
        call!(fabcache_server_of(cache, key, 1, null_mut())),
    ]);
    assert_eq!(call!(fabcache_server_count(no)), 0);
    assert!(call!(fabcache_server_address(no, 0)).is_null());
    call!(fabcache_free(null_mut()));
}

#[test]
fn null_arguments_of_requests_are_errors() {
    let cache = Open::at(&["tcp://127.0.0.1:1"]);
    let (no, key, cache) = (null::<Cache>(), c"k".as_ptr(), cache.0.cast_const());
    let request = call!(fabcache_request_new(cache));
    let mut buffer = [0u8; 1];
    let buffer: *mut c_void = buffer.as_mut_ptr().cast();
    all_invalid(&[
        call!(fabcache_iset(null_mut(), key, 1, buffer, 1, 0, 0)),
        call!(fabcache_iset(request, null(), 1, buffer, 1, 0, 0)),
        call!(fabcache_bset(null_mut(), key, 1, buffer, 1, 0, 0)),
        call!(fabcache_bset(request, key, 1, null(), 1, 0, 0)),
        call!(fabcache_iget(null_mut(), key, 1, buffer, 1)),
        call!(fabcache_iget(request, key, 1, null_mut(), 1)),
        call!(fabcache_bget(null_mut(), key, 1, buffer, 1)),
        call!(fabcache_bget(request, null(), 1, buffer, 1)),
        call!(fabcache_test(null_mut())),
        call!(fabcache_wait(null_mut())),
    ]);
    assert_eq!(call!(fabcache_wait(request)), Code::NothingAsked);
    call!(fabcache_request_free(request));
    assert!(call!(fabcache_request_new(no)).is_null());
    assert!(call!(fabcache_request_value(null(), null_mut())).is_null());
    call!(fabcache_request_free(null_mut()));
}
