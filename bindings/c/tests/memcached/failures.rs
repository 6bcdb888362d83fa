//! Return codes and errors of failed calls.

use std::ffi::{CString, c_void};
use std::net::TcpListener;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use fabcache::libmemcached::auto::memcached_increment;
use fabcache::libmemcached::behavior::{memcached_behavior_get, memcached_behavior_set};
use fabcache::libmemcached::callback::memcached_callback_set;
use fabcache::libmemcached::configuration::{libmemcached_check_configuration, memcached};
use fabcache::libmemcached::create::*;
use fabcache::libmemcached::delete::memcached_delete;
use fabcache::libmemcached::error::*;
use fabcache::libmemcached::exist::memcached_exist;
use fabcache::libmemcached::fetch::*;
use fabcache::libmemcached::flush::*;
use fabcache::libmemcached::get::*;
use fabcache::libmemcached::hash::memcached_generate_hash;
use fabcache::libmemcached::hashkit::libhashkit_digest;
use fabcache::libmemcached::requests::{memcached_bset, memcached_request_create, memcached_request_free};
use fabcache::libmemcached::server::*;
use fabcache::libmemcached::storage::{memcached_set, memcached_set_by_key};
use fabcache::libmemcached::strerror::memcached_strerror;
use fabcache::libmemcached::touch::memcached_touch;
use fabcache::libmemcached::*;
use fabcache_testbed::ports::free_port;

use crate::common::{Handle, Running, c_text, call, out, taken};

/// Returns a port without a listener.
fn closed_port() -> u16 {
    free_port().expect("a port")
}

#[test]
fn calls_without_servers_fail() {
    let memc = Handle::new();
    assert_eq!(memc.last_error(), (MEMCACHED_SUCCESS, "SUCCESS".into()));
    assert_eq!(memc.set("k", "v"), MEMCACHED_NO_SERVERS);
    let (code, text) = memc.last_error();
    assert_eq!(code, MEMCACHED_NO_SERVERS);
    assert!(text.ends_with(") NO SERVERS DEFINED"), "{text}");
    assert_eq!(memc.get("k"), Err(MEMCACHED_NO_SERVERS));
    assert_eq!(memc.mget(&["k"]), MEMCACHED_NO_SERVERS);
    assert_eq!(call!(memcached_flush(memc.get_ref(), 0)), MEMCACHED_NO_SERVERS);
    assert_eq!(call!(memcached_version(memc.get_ref())), MEMCACHED_NO_SERVERS);
    assert_eq!(call!(memcached_flush_buffers(memc.get_ref())), MEMCACHED_SUCCESS);
}

#[test]
fn null_handle_is_rejected() {
    let (k, v, one) = (c"k".as_ptr(), c"v".as_ptr(), 1);
    let (len, flags, code, number) = (out(), out(), out(), out());
    assert_eq!(call!(memcached_set(None, k, 1, v, 1, 0, 0)), MEMCACHED_INVALID_ARGUMENTS);
    assert!(call!(memcached_get(None, k, 1, Some(&len), Some(&flags), Some(&code))).is_null());
    assert_eq!(taken(&code), MEMCACHED_INVALID_ARGUMENTS);
    assert_eq!(call!(memcached_mget(None, &raw const k, &raw const one, 1)), MEMCACHED_INVALID_ARGUMENTS);
    assert!(call!(memcached_fetch_result(None, null_mut(), Some(&code))).is_null());
    assert_eq!(taken(&code), MEMCACHED_INVALID_ARGUMENTS);
    assert_eq!(call!(memcached_delete(None, k, 1, 0)), MEMCACHED_INVALID_ARGUMENTS);
    assert_eq!(call!(memcached_touch(None, k, 1, 0)), MEMCACHED_INVALID_ARGUMENTS);
    assert_eq!(call!(memcached_exist(None, k, 1)), MEMCACHED_INVALID_ARGUMENTS);
    assert_eq!(call!(memcached_increment(None, k, 1, 1, Some(&number))), MEMCACHED_INVALID_ARGUMENTS);
    assert_eq!(call!(memcached_flush(None, 0)), MEMCACHED_INVALID_ARGUMENTS);
    assert_eq!(call!(memcached_server_add(None, k, 1)), MEMCACHED_INVALID_ARGUMENTS);
    assert_eq!(call!(memcached_last_error(None)), MEMCACHED_INVALID_ARGUMENTS);
    assert_eq!(c_text(call!(memcached_last_error_message(None))), "INVALID ARGUMENTS");
    assert_eq!(call!(memcached_reset(None)), MEMCACHED_INVALID_ARGUMENTS);
    call!(memcached_free(null_mut()));
    call!(memcached_quit(None));
}

#[test]
fn impossible_lengths_are_rejected() {
    let server = Running::start();
    for handle in server.handles() {
        let (key, value) = (c"key".as_ptr(), c"value".as_ptr());
        for len in [usize::MAX, isize::MAX.cast_unsigned() + 1] {
            let set = |k, v| call!(memcached_set(Some(&handle), key, k, value, v, 0, 0));
            assert_eq!([set(len, 5), set(3, len)], [MEMCACHED_BAD_KEY_PROVIDED, MEMCACHED_E2BIG]);
            let (keys, lengths) = ([key], [3]);
            let requested = call!(memcached_mget(Some(&handle), keys.as_ptr(), lengths.as_ptr(), len));
            assert_eq!(requested, MEMCACHED_BAD_KEY_PROVIDED);
        }
        assert_eq!(handle.get("key"), Err(MEMCACHED_NOTFOUND));
    }
}

#[test]
fn a_length_of_minus_one_is_rejected_without_reading() {
    let server = Running::start();
    let (k, v, minus_one) = (c"key".as_ptr(), c"value".as_ptr(), usize::MAX);
    for handle in server.handles() {
        // Groups are hashed only if there are several servers.
        handle.add(c"127.0.0.1", closed_port());
        let memc = Some(&*handle);
        let refused = |code, expected, text: &str| {
            assert_eq!(code, expected, "{text}");
            let (last, reported) = handle.last_error();
            assert_eq!(last, expected, "{text}");
            assert!(reported.contains(text), "{reported}");
        };
        let long = |code| refused(code, MEMCACHED_BAD_KEY_PROVIDED, "Key provided was too long.");
        let (len, flags, code, number) = (out(), out(), out(), out());
        long(call!(memcached_set(memc, k, minus_one, v, 5, 0, 0)));
        long(call!(memcached_set_by_key(memc, k, minus_one, k, 3, v, 5, 0, 0)));
        long(call!(memcached_delete(memc, k, minus_one, 0)));
        long(call!(memcached_increment(memc, k, minus_one, 1, Some(&number))));
        assert_eq!(call!(memcached_touch(memc, k, minus_one, 0)), MEMCACHED_BAD_KEY_PROVIDED);
        long(call!(memcached_mget(memc, &raw const k, &raw const minus_one, 1)));
        assert!(call!(memcached_get(memc, k, minus_one, Some(&len), Some(&flags), Some(&code))).is_null());
        long(taken(&code));
        assert_eq!(taken(&len), 0);
        assert!(call!(memcached_server_by_key(memc, k, minus_one, Some(&code))).is_null());
        long(taken(&code));
        assert_eq!(call!(memcached_exist(memc, k, minus_one)), MEMCACHED_CLIENT_ERROR);
        refused(call!(memcached_set(memc, k, 3, v, minus_one, 0, 0)), MEMCACHED_E2BIG, "ITEM TOO BIG");
        let request = call!(memcached_request_create(memc, v.cast_mut(), minus_one, 0));
        // SAFETY: it was just created.
        let started = unsafe { request.as_ref() };
        assert_eq!(call!(memcached_bset(memc, k, minus_one, started, 0, 0)), MEMCACHED_BAD_KEY_PROVIDED);
        call!(memcached_request_free(memc, request));
        assert_eq!(call!(memcached_generate_hash(memc, k, minus_one)), u32::MAX);
    }
    assert_eq!(call!(libhashkit_digest(k, minus_one, HASHKIT_HASH_CRC)), 1);
    assert!(call!(memcached(k, minus_one)).is_null());
    let checked = call!(libmemcached_check_configuration(k, minus_one, null_mut(), 0));
    assert_eq!(checked, MEMCACHED_INVALID_ARGUMENTS);
}

#[test]
fn handle_freed_by_its_cleanup_callback_is_freed_once() {
    unsafe extern "C" fn free_too(memc: *const memcached_st) -> memcached_return_t {
        // SAFETY: the handle is being freed.
        unsafe { memcached_free(memc.cast_mut()) };
        MEMCACHED_SUCCESS
    }
    let handle = call!(memcached_create(null_mut()));
    // SAFETY: the handle was just created.
    let memc = unsafe { handle.as_ref() };
    let cleanup = free_too as *const c_void;
    let set = call!(memcached_callback_set(memc, MEMCACHED_CALLBACK_CLEANUP_FUNCTION, cleanup));
    assert_eq!(set, MEMCACHED_SUCCESS);
    call!(memcached_free(handle));
}

#[test]
fn failed_server_is_not_retried_before_the_timeout() {
    let memc = Handle::new();
    let port = closed_port();
    memc.add(c"127.0.0.1", port);
    memc.behave(MEMCACHED_BEHAVIOR_RETRY_TIMEOUT, 100);
    assert_eq!(memc.set("k", "v"), MEMCACHED_CONNECTION_FAILURE);
    let (code, text) = memc.last_error();
    assert_eq!(code, MEMCACHED_CONNECTION_FAILURE);
    let reported = format!(") CONNECTION FAILURE(Connection refused),  host: 127.0.0.1:{port}");
    assert!(text.ends_with(&reported), "{text}");
    assert_eq!(call!(memcached_last_error_errno(memc.get_ref())), libc::ECONNREFUSED);
    let server = Some(memc.server(0));
    assert_eq!(call!(memcached_server_error_return(server)), MEMCACHED_CONNECTION_FAILURE);
    assert!(c_text(call!(memcached_server_error(server))).ends_with(&reported));
    assert_eq!(memc.get("k"), Err(MEMCACHED_SERVER_TEMPORARILY_DISABLED));
    assert_eq!(memc.mget(&["k"]), MEMCACHED_SERVER_TEMPORARILY_DISABLED);
    assert_eq!(call!(memcached_touch(memc.get_ref(), c"k".as_ptr(), 1, 1)), MEMCACHED_WRITE_FAILURE);
    assert_eq!(call!(memcached_flush(memc.get_ref(), 0)), MEMCACHED_SOME_ERRORS);
    let lost = call!(memcached_server_get_last_disconnect(memc.get_ref()));
    assert_eq!(lost, std::ptr::from_ref(memc.server(0)));
    call!(memcached_reset_last_disconnected_server(memc.get_ref()));
    assert!(call!(memcached_server_get_last_disconnect(memc.get_ref())).is_null());
}

#[test]
fn missing_unix_socket_is_a_connection_error() {
    let memc = Handle::new();
    memc.add_socket(c"/no/such/socket");
    assert_eq!(memc.set("k", "v"), MEMCACHED_ERRNO);
    let (_, text) = memc.last_error();
    assert!(text.ends_with("SYSTEM ERROR(No such file or directory),  socket: /no/such/socket"), "{text}");
}

#[test]
fn restarted_server_is_used_again() {
    let memc = Handle::new();
    let path = std::env::temp_dir().join(format!("fabcache-c-late-{}", std::process::id()));
    let server = Running::start();
    std::fs::remove_file(&path).ok();
    memc.add_socket(&CString::new(path.to_str().expect("text")).expect("text"));
    memc.behave(MEMCACHED_BEHAVIOR_RETRY_TIMEOUT, 1);
    assert_eq!(memc.set("k", "v"), MEMCACHED_ERRNO);
    std::os::unix::fs::symlink(server.socket.to_str().expect("text"), &path).expect("a link");
    let since = Instant::now();
    while memc.set("k", "v") != MEMCACHED_SUCCESS {
        assert!(since.elapsed() < Duration::from_secs(20), "{:?}", memc.last_error());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(since.elapsed() > Duration::from_millis(20), "not at once");
    assert_eq!(memc.get("k"), Ok("v".into()));
    std::fs::remove_file(&path).expect("the link exists");
}

#[test]
fn unresponsive_server_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let memc = Handle::new();
    memc.add(c"127.0.0.1", listener.local_addr().expect("a port").port());
    memc.behave(MEMCACHED_BEHAVIOR_POLL_TIMEOUT, 50);
    assert_eq!(memc.set("k", "v"), MEMCACHED_TIMEOUT);
    assert_eq!(memc.last_error().0, MEMCACHED_TIMEOUT);
    assert_eq!(memc.get("k"), Err(MEMCACHED_TIMEOUT), "the server is not disabled yet");
    memc.behave(MEMCACHED_BEHAVIOR_SERVER_TIMEOUT_LIMIT, 3);
    memc.behave(MEMCACHED_BEHAVIOR_RETRY_TIMEOUT, 100);
    assert_eq!(memc.get("k"), Err(MEMCACHED_TIMEOUT));
    assert_eq!(memc.get("k"), Err(MEMCACHED_SERVER_TEMPORARILY_DISABLED), "the failure limit is reached");
}

#[test]
fn keys_of_failed_server_move_to_the_others() {
    let server = Running::start();
    let memc = Handle::new();
    memc.add_socket(&server.socket);
    memc.add(c"127.0.0.1", closed_port());
    memc.behave(MEMCACHED_BEHAVIOR_KETAMA, 1);
    memc.behave(MEMCACHED_BEHAVIOR_AUTO_EJECT_HOSTS, 1);
    memc.behave(MEMCACHED_BEHAVIOR_SERVER_FAILURE_LIMIT, 1);
    memc.behave(MEMCACHED_BEHAVIOR_RETRY_TIMEOUT, 100);
    memc.behave(MEMCACHED_BEHAVIOR_DEAD_TIMEOUT, 100);
    assert_eq!(call!(memcached_behavior_get(memc.get_ref(), MEMCACHED_BEHAVIOR_DEAD_TIMEOUT)), 100);
    let keys: Vec<String> = (0..50).map(|i| format!("key{i}")).collect();
    let failed = keys.iter().filter(|key| memc.set(key, "v") != MEMCACHED_SUCCESS).count();
    assert!((1..=3).contains(&failed), "{failed} keys of the failed server were not stored");
    for key in &keys {
        assert_eq!(memc.set(key, "v"), MEMCACHED_SUCCESS, "{:?}", memc.last_error());
        assert_eq!(memc.get(key), Ok("v".into()));
    }
}

#[test]
fn return_codes_have_texts() {
    let words = |code| c_text(call!(memcached_strerror(None, code)));
    assert_eq!(words(MEMCACHED_SUCCESS), "SUCCESS");
    assert_eq!(words(MEMCACHED_E2BIG), "ITEM TOO BIG");
    assert_eq!(words(MEMCACHED_MAXIMUM_RETURN), "INVALID memcached_return_t");
    assert_eq!(words(u32::MAX), "INVALID memcached_return_t");
}

#[test]
fn without_time_to_poll_no_answer_is_awaited() {
    let server = Running::start();
    for memc in server.handles() {
        assert_eq!(memc.set("k", "v"), MEMCACHED_SUCCESS);
        memc.behave(MEMCACHED_BEHAVIOR_POLL_TIMEOUT, 0);
        assert_eq!(memc.get("k"), Err(MEMCACHED_TIMEOUT));
        assert!(memc.last_error().1.contains("timeout was set to zero"), "{:?}", memc.last_error());
        assert_eq!(memc.mget(&["k"]), MEMCACHED_TIMEOUT);
        assert_eq!(memc.set("k", "w"), MEMCACHED_TIMEOUT);
        memc.behave(MEMCACHED_BEHAVIOR_NOREPLY, 1);
        assert_eq!(memc.set("n", "v"), MEMCACHED_SUCCESS, "no answer is needed");
        memc.behave(MEMCACHED_BEHAVIOR_NOREPLY, 0);
        memc.behave(MEMCACHED_BEHAVIOR_POLL_TIMEOUT, 1000);
        assert_eq!(memc.get("k"), Ok("v".into()));
        assert_eq!(memc.get("n"), Ok("v".into()));
    }
}

#[test]
fn values_cannot_be_requested_by_udp() {
    let server = Running::start();
    let memc = Handle::new();
    memc.add(c"127.0.0.1", server.port);
    memc.behave(MEMCACHED_BEHAVIOR_BUFFER_REQUESTS, 1);
    memc.behave(MEMCACHED_BEHAVIOR_USE_UDP, 1);
    assert_eq!(call!(memcached_behavior_get(memc.get_ref(), MEMCACHED_BEHAVIOR_BUFFER_REQUESTS)), 0);
    for (flag, to) in [(MEMCACHED_BEHAVIOR_BUFFER_REQUESTS, 1), (MEMCACHED_BEHAVIOR_NOREPLY, 0)] {
        assert_eq!(call!(memcached_behavior_set(memc.get_ref(), flag, to)), MEMCACHED_INVALID_ARGUMENTS);
        assert!(memc.last_error().1.contains("MEMCACHED_BEHAVIOR_USE_UDP is enabled"));
    }
    assert_eq!(memc.set("k", "v"), MEMCACHED_SUCCESS);
    assert_eq!(memc.set("k", &"v".repeat(65_508)), MEMCACHED_WRITE_FAILURE, "too long for a datagram");
    assert_eq!(memc.last_error().0, MEMCACHED_WRITE_FAILURE);
    call!(memcached_quit(memc.get_ref()));
    assert_eq!(memc.last_error().0, MEMCACHED_SUCCESS);
    assert_eq!(memc.get("k"), Err(MEMCACHED_NOT_SUPPORTED));
    assert_eq!(memc.mget(&["k"]), MEMCACHED_NOT_SUPPORTED);
    assert_eq!(call!(memcached_exist(memc.get_ref(), c"k".as_ptr(), 1)), MEMCACHED_NOT_SUPPORTED);
    assert_eq!(call!(memcached_version(memc.get_ref())), MEMCACHED_NOT_SUPPORTED);
    let code = out();
    assert!(call!(memcached_fetch_result(memc.get_ref(), null_mut(), Some(&code))).is_null());
    assert_eq!(taken(&code), MEMCACHED_NOT_SUPPORTED);
    memc.behave(MEMCACHED_BEHAVIOR_USE_UDP, 0);
    assert_eq!(memc.get("k"), Ok("v".into()));
}
