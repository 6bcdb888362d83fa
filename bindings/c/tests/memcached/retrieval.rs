//! Multigets and results.

use std::cell::Cell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use fabcache::libmemcached::create::memcached_quit;
use fabcache::libmemcached::fetch::*;
use fabcache::libmemcached::flush::memcached_flush;
use fabcache::libmemcached::get::*;
use fabcache::libmemcached::result::*;
use fabcache::libmemcached::server::memcached_server_response_count;
use fabcache::libmemcached::storage::memcached_set_by_key;
use fabcache::libmemcached::*;

use crate::common::{Handle, Running, call, lossy, out, taken, text_and_free};

fn filled(memc: &Handle) {
    call!(memcached_flush(memc.get_ref(), 0));
    for (key, value) in [("a", "va"), ("b", ""), ("c", "vc")] {
        assert_eq!(memc.set(key, value), MEMCACHED_SUCCESS);
    }
}

#[test]
fn fetch_returns_every_hit_then_ends() {
    let server = Running::start();
    for memc in server.handles() {
        filled(&memc);
        assert_eq!(memc.mget(&["a", "b", "none", "c", "a"]), MEMCACHED_SUCCESS);
        assert_eq!(call!(memcached_server_response_count(Some(memc.server(0)))), 1);
        let (found, end) = memc.fetch_all();
        let found: Vec<(&str, &str)> = found.iter().map(|(key, value)| (&**key, &**value)).collect();
        assert_eq!(found, [("a", "va"), ("b", ""), ("c", "vc"), ("a", "va")]);
        assert_eq!(end, MEMCACHED_NOTFOUND);
        assert_eq!(memc.mget(&["none"]), MEMCACHED_SUCCESS);
        assert_eq!(memc.fetch_all(), (vec![], MEMCACHED_NOTFOUND));
        assert_eq!(memc.mget(&[]), MEMCACHED_INVALID_ARGUMENTS);
    }
}

#[test]
fn fetch_copies_into_caller_buffers() {
    let server = Running::start();
    for memc in server.handles() {
        filled(&memc);
        memc.mget(&["a", "none", "b"]);
        let (key_len, len, flags, code) = (out(), out(), out(), out());
        let mut key = [1; MEMCACHED_MAX_KEY];
        let mut fetch = || {
            let value = call!(memcached_fetch(
                memc.get_ref(),
                key.as_mut_ptr(),
                Some(&key_len),
                Some(&len),
                Some(&flags),
                Some(&code)
            ));
            let key = lossy(key.as_ptr(), taken(&key_len));
            (taken(&code), key, text_and_free(value, taken(&len)), taken(&flags))
        };
        assert_eq!(fetch(), (MEMCACHED_SUCCESS, "a".into(), "va".into(), 7));
        assert_eq!(fetch(), (MEMCACHED_SUCCESS, "b".into(), String::new(), 7));
        assert_eq!(fetch(), (MEMCACHED_END, String::new(), String::new(), 0));
        assert_eq!(fetch(), (MEMCACHED_NOTFOUND, String::new(), String::new(), 0));
    }
}

#[test]
fn caller_result_is_reusable_and_its_value_can_be_taken() {
    let server = Running::start();
    for memc in server.handles() {
        filled(&memc);
        memc.behave(MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1);
        let mut own = MaybeUninit::<memcached_result_st>::uninit();
        let result = call!(memcached_result_create(memc.get_ref(), own.as_mut_ptr()));
        assert_eq!(result, own.as_mut_ptr());
        // SAFETY: the handle was just created.
        let fetched = unsafe { &*result };
        memc.mget(&["a", "c"]);
        let code = out();
        let next = || call!(memcached_fetch_result(memc.get_ref(), result, Some(&code)));
        assert_eq!(next(), result);
        assert!(call!(memcached_result_cas(Some(fetched))) > 0);
        assert_eq!(call!(memcached_result_flags(Some(fetched))), 7);
        let taken_value = call!(memcached_result_take_value(Some(fetched)));
        assert_eq!(text_and_free(taken_value, 2), "va");
        assert_eq!(call!(memcached_result_length(Some(fetched))), 0);
        assert_eq!(next(), result);
        assert_eq!(lossy(call!(memcached_result_value(Some(fetched))), 2), "vc");
        assert!(next().is_null());
        assert_eq!(taken(&code), MEMCACHED_END);
        call!(memcached_result_free(result));
    }
}

#[test]
fn results_store_assigned_values() {
    let memc = Handle::new();
    let result = call!(memcached_result_create(memc.get_ref(), null_mut()));
    // SAFETY: the result was just created.
    let held = Some(unsafe { &*result });
    let mut whole = String::new();
    for part in ["abc", "a longer one than that before", "", "x"] {
        let set = call!(memcached_result_set_value(held, part.as_ptr().cast(), part.len()));
        assert_eq!(set, MEMCACHED_SUCCESS);
        whole.push_str(part);
        let len = call!(memcached_result_length(held));
        assert_eq!(
            lossy(call!(memcached_result_value(held)), len),
            whole,
            "the value is appended, as in libmemcached"
        );
    }
    call!(memcached_result_set_flags(held, 9));
    call!(memcached_result_set_expiration(held, 5));
    assert_eq!(call!(memcached_result_flags(held)), 9);
    call!(memcached_result_reset(held));
    assert_eq!(call!(memcached_result_length(held)), 0);
    assert_eq!(call!(memcached_result_flags(held)), 0);
    assert!(call!(memcached_result_key_value(held)).is_null());
    call!(memcached_result_free(result));
    call!(memcached_result_free(null_mut()));
}

unsafe extern "C" fn count(
    _: *const memcached_st,
    result: *mut memcached_result_st,
    context: *mut c_void,
) -> memcached_return_t {
    // SAFETY: the test passes its counter, and the library a result.
    let (counter, result) = (unsafe { &*context.cast::<Cell<usize>>() }, unsafe { result.as_ref() });
    counter.set(counter.get() + call!(memcached_result_length(result)));
    MEMCACHED_SUCCESS
}

unsafe extern "C" fn refuse(
    _: *const memcached_st,
    _: *mut memcached_result_st,
    _: *mut c_void,
) -> memcached_return_t {
    MEMCACHED_FAILURE
}

#[test]
fn fetch_execute_calls_every_callback() {
    let server = Running::start();
    for memc in server.handles() {
        filled(&memc);
        let bytes = Cell::new(0usize);
        let context: *mut c_void = (&raw const bytes).cast_mut().cast();
        let mut callbacks: [memcached_execute_fn; 2] = [Some(count), Some(count)];
        let mut execute =
            |n| call!(memcached_fetch_execute(memc.get_ref(), callbacks.as_mut_ptr(), context, n));
        memc.mget(&["a", "none", "c"]);
        assert_eq!((execute(2), bytes.get()), (MEMCACHED_SUCCESS, 8));
        assert_eq!((execute(2), bytes.get()), (MEMCACHED_NOTFOUND, 8));
        memc.mget(&["a", "c"]);
        let mut refusing: [memcached_execute_fn; 1] = [Some(refuse)];
        let refused = call!(memcached_fetch_execute(memc.get_ref(), refusing.as_mut_ptr(), null_mut(), 1));
        assert_eq!(refused, MEMCACHED_SOME_ERRORS);
        assert_eq!(memc.fetch_all().0, [], "all results were fetched");
    }
}

#[test]
fn multiget_spans_servers() {
    let servers: Vec<Running> = (0..3).map(|_| Running::start()).collect();
    let memc = Handle::new();
    memc.add_socket(&servers[0].socket);
    memc.add(c"127.0.0.1", servers[1].port);
    memc.add_socket(&servers[2].socket);
    let keys: Vec<String> = (0..3000).map(|i| format!("key{i}")).collect();
    for key in &keys {
        assert_eq!(memc.set(key, &format!("value of {key}")), MEMCACHED_SUCCESS);
    }
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert_eq!(memc.mget(&names), MEMCACHED_SUCCESS);
    let (mut found, end) = memc.fetch_all();
    assert_eq!(end, MEMCACHED_NOTFOUND);
    assert_eq!(found.len(), keys.len());
    assert!(found.iter().all(|(key, value)| *value == format!("value of {key}")));
    found.sort();
    found.dedup();
    assert_eq!(found.len(), keys.len(), "each key is returned once");
    for server in &servers {
        let [only, _] = server.handles();
        assert!(keys.iter().filter(|key| only.get(key).is_ok()).count() > 500, "every server holds a share");
    }
}

#[test]
fn unfetched_results_are_discarded() {
    let server = Running::start();
    for memc in server.handles() {
        filled(&memc);
        memc.mget(&["a", "c"]);
        assert_eq!(memc.get("c"), Ok("vc".into()));
        assert_eq!(memc.fetch_all().0, []);
        memc.mget(&["a", "c"]);
        memc.mget(&["a"]);
        assert_eq!(memc.fetch_all().0.len(), 1);
        memc.mget(&["a", "c"]);
        call!(memcached_quit(memc.get_ref()));
        assert_eq!(memc.fetch_all().0, []);
        memc.mget(&["a", "c"]);
    }
}

#[test]
fn group_key_selects_one_server() {
    let servers = [Running::start(), Running::start()];
    let memc = Handle::new();
    for server in &servers {
        memc.add_socket(&server.socket);
    }
    let (len, flags, code) = (out(), out(), out());
    let keys: Vec<String> = (0..40).map(|i| format!("key{i}")).collect();
    for key in &keys {
        let stored = call!(memcached_set_by_key(
            memc.get_ref(),
            c"group".as_ptr(),
            5,
            key.as_ptr().cast(),
            key.len(),
            c"v".as_ptr(),
            1,
            0,
            0
        ));
        assert_eq!(stored, MEMCACHED_SUCCESS);
        let value = call!(memcached_get_by_key(
            memc.get_ref(),
            c"group".as_ptr(),
            5,
            key.as_ptr().cast(),
            key.len(),
            Some(&len),
            Some(&flags),
            Some(&code)
        ));
        assert_eq!(text_and_free(value, taken(&len)), "v");
    }
    let counts = servers.each_ref().map(|server| {
        let [only, _] = server.handles();
        keys.iter().filter(|key| only.get(key).is_ok()).count()
    });
    assert!(counts == [40, 0] || counts == [0, 40], "{counts:?}");
}
