//! Storage, counters, touches, deletes and their results.

use std::ffi::c_char;

use fabcache::libmemcached::auto::*;
use fabcache::libmemcached::delete::{memcached_delete, memcached_delete_by_key};
use fabcache::libmemcached::exist::memcached_exist;
use fabcache::libmemcached::flush::{memcached_flush, memcached_flush_buffers};
use fabcache::libmemcached::storage::*;
use fabcache::libmemcached::touch::memcached_touch;
use fabcache::libmemcached::*;

use crate::common::{Handle, Running, call, out, taken};

fn start(text: &str) -> *const c_char {
    text.as_ptr().cast()
}

macro_rules! store {
    ($name:ident, $memc:expr, $key:expr, $value:expr) => {
        call!($name($memc.get_ref(), start($key), $key.len(), start($value), $value.len(), 0, 0))
    };
}

#[test]
fn every_storage_call_stores() {
    let server = Running::start();
    for memc in server.handles() {
        assert_eq!(call!(memcached_flush(memc.get_ref(), 0)), MEMCACHED_SUCCESS);
        assert_eq!(memc.set("k", "v"), MEMCACHED_SUCCESS);
        assert_eq!(store!(memcached_add, memc, "k", "x"), MEMCACHED_NOTSTORED);
        assert_eq!(store!(memcached_replace, memc, "none", "x"), MEMCACHED_NOTSTORED);
        assert_eq!(store!(memcached_append, memc, "none", "x"), MEMCACHED_NOTSTORED);
        assert_eq!(store!(memcached_replace, memc, "k", "b"), MEMCACHED_SUCCESS);
        assert_eq!(store!(memcached_append, memc, "k", "c"), MEMCACHED_SUCCESS);
        assert_eq!(store!(memcached_prepend, memc, "k", "a"), MEMCACHED_SUCCESS);
        assert_eq!(memc.get("k"), Ok("abc".into()));
        assert_eq!(memc.set("empty", ""), MEMCACHED_SUCCESS);
        assert_eq!(memc.get("empty"), Ok(String::new()));
        assert_eq!(memc.get("none"), Err(MEMCACHED_NOTFOUND));
        assert_eq!(memc.last_error(), (MEMCACHED_SUCCESS, "SUCCESS".into()), "a miss is no error");
        let large = "x".repeat(3 << 20);
        assert_eq!(memc.set("large", &large), MEMCACHED_E2BIG);
        let many = "y".repeat(300_000);
        assert_eq!(memc.set("many", &many), MEMCACHED_SUCCESS);
        assert_eq!(memc.get("many"), Ok(many));
    }
}

#[test]
fn cas_rejects_items_changed_meanwhile() {
    let server = Running::start();
    for memc in server.handles() {
        memc.behave(MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1);
        memc.set("k", "1");
        assert_eq!(memc.get("k"), Ok("1".into()));
        let cas = memc.result.item_cas.get();
        let swap = |key: &str, cas| {
            call!(memcached_cas(memc.get_ref(), start(key), key.len(), start("2"), 1, 0, 0, cas))
        };
        assert_eq!(swap("k", cas + 1), MEMCACHED_DATA_EXISTS);
        assert_eq!(swap("none", cas), MEMCACHED_NOTFOUND);
        assert_eq!(swap("k", cas), MEMCACHED_SUCCESS);
        assert_eq!(swap("k", cas), MEMCACHED_DATA_EXISTS);
        assert_eq!(memc.get("k"), Ok("2".into()));
    }
}

#[test]
fn binary_protocol_returns_its_own_codes() {
    let server = Running::start();
    for memc in server.handles() {
        memc.behave(MEMCACHED_BEHAVIOR_BINARY_PROTOCOL, 1);
        memc.set("k", "v");
        assert_eq!(store!(memcached_add, memc, "k", "x"), MEMCACHED_DATA_EXISTS);
        assert_eq!(store!(memcached_replace, memc, "none", "x"), MEMCACHED_NOTFOUND);
        assert_eq!(store!(memcached_prepend, memc, "none", "x"), MEMCACHED_NOTSTORED);
        assert_eq!(memc.set("a b", "x"), MEMCACHED_SUCCESS, "any byte may be in a key");
        assert_eq!(memc.get("a b"), Ok("x".into()));
    }
}

#[test]
fn increment_and_decrement_count() {
    let server = Running::start();
    for memc in server.handles() {
        call!(memcached_flush(memc.get_ref(), 0));
        let number = out();
        let value = Some(&number);
        let up = |key: &str, by| call!(memcached_increment(memc.get_ref(), start(key), key.len(), by, value));
        assert_eq!((up("n", 1), taken(&number)), (MEMCACHED_NOTFOUND, u64::MAX));
        memc.set("n", "40");
        assert_eq!((up("n", 2), taken(&number)), (MEMCACHED_SUCCESS, 42));
        let down = call!(memcached_decrement(memc.get_ref(), start("n"), 1, 50, value));
        assert_eq!((down, taken(&number)), (MEMCACHED_SUCCESS, 0));
        memc.set("n", "text");
        assert_eq!(up("n", 1), MEMCACHED_CLIENT_ERROR);
        assert!(memc.last_error().1.contains("cannot increment or decrement non-numeric value"));
        let begin =
            || call!(memcached_increment_with_initial(memc.get_ref(), start("i"), 1, 3, 10, 0, value));
        assert_eq!(begin(), MEMCACHED_INVALID_ARGUMENTS, "the text protocol has no such call");
        memc.behave(MEMCACHED_BEHAVIOR_BINARY_PROTOCOL, 1);
        assert_eq!((begin(), taken(&number)), (MEMCACHED_SUCCESS, 10));
        assert_eq!((begin(), taken(&number)), (MEMCACHED_SUCCESS, 13));
        let never = i64::from(MEMCACHED_EXPIRATION_NOT_ADD);
        let none = call!(memcached_decrement_with_initial(memc.get_ref(), start("z"), 1, 1, 5, never, value));
        assert_eq!(none, MEMCACHED_NOTFOUND);
    }
}

#[test]
fn touch_exist_and_delete_work() {
    let server = Running::start();
    for memc in server.handles() {
        memc.set("k", "v");
        let touch = |key: &str, to| call!(memcached_touch(memc.get_ref(), start(key), key.len(), to));
        let exists = |key: &str| call!(memcached_exist(memc.get_ref(), start(key), key.len()));
        let delete = |key: &str, at| call!(memcached_delete(memc.get_ref(), start(key), key.len(), at));
        assert_eq!(touch("k", 100), MEMCACHED_SUCCESS);
        assert_eq!(touch("none", 100), MEMCACHED_NOTFOUND);
        assert_eq!(exists("k"), MEMCACHED_SUCCESS);
        assert_eq!(exists("none"), MEMCACHED_NOTFOUND);
        assert_eq!(delete("k", 10), MEMCACHED_INVALID_ARGUMENTS);
        assert_eq!(delete("k", 0), MEMCACHED_SUCCESS);
        assert_eq!(delete("k", 0), MEMCACHED_NOTFOUND);
        memc.set("k", "v");
        assert_eq!(touch("k", -1), MEMCACHED_SUCCESS);
        assert_eq!(exists("k"), MEMCACHED_NOTFOUND, "the item expired");
    }
}

#[test]
fn invalid_keys_are_rejected() {
    let server = Running::start();
    for memc in server.handles() {
        let long = "k".repeat(251);
        for bad in ["", &long] {
            assert_eq!(memc.set(bad, "v"), MEMCACHED_BAD_KEY_PROVIDED);
            assert_eq!(memc.get(bad), Err(MEMCACHED_BAD_KEY_PROVIDED));
            assert_eq!(memc.mget(&["good", bad]), MEMCACHED_BAD_KEY_PROVIDED);
        }
        assert_eq!(memc.set(&long[1..], "v"), MEMCACHED_SUCCESS);
        for bad in ["a b", "a\r\nb"] {
            assert_eq!(memc.set(bad, "v"), MEMCACHED_CLIENT_ERROR, "a separator in the key");
            assert!(memc.last_error().1.contains("bad command line format"));
        }
        memc.behave(MEMCACHED_BEHAVIOR_VERIFY_KEY, 1);
        assert_eq!(memc.set("a b", "v"), MEMCACHED_BAD_KEY_PROVIDED);
        assert_eq!(memc.get("a b"), Err(MEMCACHED_BAD_KEY_PROVIDED));
    }
}

#[test]
fn buffered_store_is_visible_to_the_next_read() {
    let server = Running::start();
    for memc in server.handles() {
        memc.behave(MEMCACHED_BEHAVIOR_BUFFER_REQUESTS, 1);
        // More than the buffer holds.
        for i in 0..1300 {
            assert_eq!(memc.set(&format!("k{i}"), &i.to_string()), MEMCACHED_BUFFERED);
        }
        assert_eq!(memc.get("k1299"), Ok("1299".into()));
        for value in ["1", "2", "3"] {
            assert_eq!(memc.set("k", value), MEMCACHED_BUFFERED);
        }
        assert_eq!(store!(memcached_append, memc, "k", "x"), MEMCACHED_SUCCESS);
        assert_eq!(memc.get("k"), Ok("3x".into()));
        assert_eq!(memc.set("k", "4"), MEMCACHED_BUFFERED);
        assert_eq!(call!(memcached_flush_buffers(memc.get_ref())), MEMCACHED_SUCCESS);
        let [other, _] = server.handles();
        assert_eq!(other.get("k"), Ok("4".into()));
        assert_eq!(call!(memcached_delete(memc.get_ref(), start("k"), 1, 0)), MEMCACHED_BUFFERED);
        assert_eq!(other.get("k"), Err(MEMCACHED_NOTFOUND));
    }
}

#[test]
fn noreply_calls_ignore_replies() {
    let server = Running::start();
    for memc in server.handles() {
        call!(memcached_flush(memc.get_ref(), 0));
        memc.behave(MEMCACHED_BEHAVIOR_NOREPLY, 1);
        let number = out();
        assert_eq!(memc.set("n", "1"), MEMCACHED_SUCCESS);
        assert_eq!(store!(memcached_add, memc, "n", "5"), MEMCACHED_SUCCESS);
        let up = call!(memcached_increment(memc.get_ref(), start("n"), 1, 1, Some(&number)));
        assert_eq!((up, taken(&number)), (MEMCACHED_SUCCESS, u64::MAX));
        assert_eq!(call!(memcached_delete(memc.get_ref(), start("none"), 4, 0)), MEMCACHED_SUCCESS);
        assert_eq!(memc.get("n"), Ok("2".into()));
    }
}

#[test]
fn freed_handle_sends_its_buffered_commands() {
    let server = Running::start();
    for memc in server.handles() {
        memc.behave(MEMCACHED_BEHAVIOR_BUFFER_REQUESTS, 1);
        assert_eq!(memc.set("last", "word"), MEMCACHED_BUFFERED);
        drop(memc);
        let [other, _] = server.handles();
        assert_eq!(other.get("last"), Ok("word".into()));
        let deleted = call!(memcached_delete_by_key(other.get_ref(), start("g"), 1, start("last"), 4, 0));
        assert_eq!(deleted, MEMCACHED_SUCCESS);
    }
}

#[test]
fn replicas_are_read_when_the_first_copy_is_missing() {
    let (first, second) = (Running::start(), Running::start());
    let memc = Handle::new();
    memc.add_socket(&first.socket);
    memc.add(c"127.0.0.1", second.port);
    memc.behave(MEMCACHED_BEHAVIOR_BINARY_PROTOCOL, 1);
    memc.behave(MEMCACHED_BEHAVIOR_NUMBER_OF_REPLICAS, 1);
    let keys: Vec<String> = (0..20).map(|i| format!("key{i}")).collect();
    for key in &keys {
        assert_eq!(memc.set(key, key), MEMCACHED_SUCCESS);
    }
    for server in [&first, &second] {
        let [one, _] = server.handles();
        for key in &keys {
            assert_eq!(one.get(key), Ok(key.clone()), "each server has all keys");
        }
    }
    let [only, _] = first.handles();
    call!(memcached_flush(only.get_ref(), 0));
    for key in &keys {
        assert_eq!(memc.get(key), Ok(key.clone()));
    }
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert_eq!(memc.mget(&names), MEMCACHED_SUCCESS);
    assert_eq!(memc.fetch_all().0.len(), keys.len());
    for key in &keys {
        call!(memcached_delete(memc.get_ref(), start(key), key.len(), 0));
        assert_eq!(memc.get(key), Err(MEMCACHED_NOTFOUND), "all copies are deleted");
    }
}
