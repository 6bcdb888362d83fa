//! Statistics and their comparison, dumps, and libmemcachedutil's queries.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_void};
use std::ptr;

use fabcache::libmemcached::analyze::{memcached_analyze, memcached_analyze_free};
use fabcache::libmemcached::dump::memcached_dump;
use fabcache::libmemcached::error::memcached_last_error_message;
use fabcache::libmemcached::stats::*;
use fabcache::libmemcached::util::*;
use fabcache::libmemcached::*;

use crate::common::{Code, Handle, Running, text};
use fabcache::libmemcached::instance::memcached_instance_st;

/// Returns a port without a listener.
const NOBODY: u16 = 1;

fn stat(handle: &Handle, args: Option<&str>) -> (*mut memcached_stat_st, memcached_return_t) {
    let args = args.map(|args| CString::new(args).expect("no zero"));
    let code = Code::new();
    // SAFETY: a handle; the arguments end with a zero.
    let stat = unsafe {
        memcached_stat(handle.some(), args.as_ref().map_or(ptr::null(), |args| args.as_ptr()), code.out())
    };
    (stat, code.get())
}

fn value(handle: &Handle, stat: *mut memcached_stat_st, key: *const c_char) -> Option<String> {
    let code = Code::new();
    // SAFETY: a handle, its statistics, and a key that ends with a zero.
    let value = unsafe { memcached_stat_get_value(handle.some(), stat, key, code.out()) };
    assert_eq!(value.is_null(), code.get() != MEMCACHED_SUCCESS);
    let found = (!value.is_null()).then(|| text(value));
    // SAFETY: C's own allocator allocated it for the caller.
    unsafe { libc::free(value.cast()) };
    found
}

#[test]
fn statistics_of_all_servers_are_returned_by_name() {
    let ((_first, one), (_second, other)) = (Running::tcp(), Running::tcp());
    let handle = Handle::new(&format!("--SERVER=127.0.0.1:{one} --SERVER=127.0.0.1:{other}"));
    for i in 0..20 {
        assert_eq!(handle.set(&format!("key{i}"), "value"), MEMCACHED_SUCCESS);
    }
    let (stats, rc) = stat(&handle, None);
    assert_eq!(rc, MEMCACHED_SUCCESS);
    // SAFETY: the handle has two servers.
    let both = unsafe { std::slice::from_raw_parts(stats, 2) };
    assert_eq!(both[0].curr_items + both[1].curr_items, 20);
    assert!(both.iter().all(|stat| stat.pid == std::process::id().cast_signed() && stat.limit_maxbytes > 0));
    let code = Code::new();
    // SAFETY: a handle and its statistics.
    let keys = unsafe { memcached_stat_get_keys(handle.some(), stats, code.out()) };
    let mut reported = 0;
    loop {
        // SAFETY: the array ends with null, not reached yet.
        let key = unsafe { keys.add(reported) };
        // SAFETY: as above.
        let key = unsafe { *key };
        if key.is_null() {
            break;
        }
        assert!(value(&handle, stats, key).is_some(), "{}", text(key));
        reported += 1;
    }
    assert_eq!(reported, 22);
    assert_eq!(value(&handle, stats, c"curr_items".as_ptr()), Some(both[0].curr_items.to_string()));
    assert_eq!(value(&handle, stats, c"nothing".as_ptr()), None);
    assert_eq!(value(&handle, stats, ptr::null()), None);
    // SAFETY: C's own allocator allocated it for the caller.
    unsafe { libc::free(keys.cast()) };

    // SAFETY: a handle and its statistics.
    let analysis = unsafe { memcached_analyze(handle.some(), stats, code.out()) };
    // SAFETY: null, or an analysis.
    let found = unsafe { analysis.as_ref() }.expect("an analysis");
    let bytes = both[0].bytes + both[1].bytes;
    assert_eq!(u64::from(found.average_item_size), bytes / 20);
    assert_eq!(found.most_used_bytes, both[0].bytes.max(both[1].bytes));
    assert_eq!(found.most_consumed_server, u32::from(both[1].bytes > both[0].bytes));
    assert_eq!(found.pool_hit_ratio, 0.0);
    // SAFETY: the library allocated it.
    unsafe { memcached_analyze_free(analysis) };
    // SAFETY: the library allocated it.
    unsafe { memcached_stat_free(None, stats) };
}

#[test]
fn dead_server_is_reported_among_statistics() {
    let (_server, port) = Running::tcp();
    let handle = Handle::new(&format!("--SERVER=127.0.0.1:{port} --SERVER=127.0.0.1:{NOBODY}"));
    let (stats, rc) = stat(&handle, None);
    assert_eq!(rc, MEMCACHED_SOME_ERRORS);
    // SAFETY: the handle has two servers.
    let both = unsafe { std::slice::from_raw_parts(stats, 2) };
    assert!(both[0].pid > 0);
    assert_eq!(both[1].pid, -1);
    // SAFETY: the library allocated it.
    unsafe { memcached_stat_free(handle.some(), stats) };
}

#[test]
fn unknown_topics_and_empty_handles_are_rejected() {
    let (_server, port) = Running::tcp();
    let handle = Handle::new(&format!("--SERVER=127.0.0.1:{port}"));
    for (topic, expected) in [
        ("settings", MEMCACHED_SUCCESS),
        ("no such topic", MEMCACHED_INVALID_ARGUMENTS),
        (&"x".repeat(251), MEMCACHED_BAD_KEY_PROVIDED),
    ] {
        let (stats, rc) = stat(&handle, Some(topic));
        assert_eq!(rc, expected, "{topic}");
        // SAFETY: null, or allocated by the library.
        unsafe { memcached_stat_free(handle.some(), stats) };
    }
    let none = Handle::new("--NOREPLY");
    assert_eq!(stat(&none, None).1, MEMCACHED_NO_SERVERS);
    let code = Code::new();
    // SAFETY: a null handle.
    assert!(unsafe { memcached_stat(None, ptr::null(), code.out()) }.is_null());
    assert_eq!(code.get(), MEMCACHED_INVALID_ARGUMENTS);
    // SAFETY: null arguments.
    assert!(unsafe { memcached_analyze(handle.some(), ptr::null(), code.out()) }.is_null());
    assert_eq!(code.get(), MEMCACHED_INVALID_ARGUMENTS);
    // SAFETY: null arguments.
    unsafe { memcached_analyze_free(ptr::null_mut()) };
}

unsafe extern "C" fn note_stat(
    _: *const memcached_instance_st,
    key: *const c_char,
    key_length: usize,
    value: *const c_char,
    _: usize,
    context: *mut c_void,
) -> memcached_return_t {
    // SAFETY: the context is the test's.
    let noted = unsafe { &*context.cast::<RefCell<Vec<(String, String)>>>() };
    assert_eq!(text(key).len(), key_length);
    noted.borrow_mut().push((text(key), text(value)));
    MEMCACHED_FAILURE
}

#[test]
fn stat_execute_ignores_callback_results() {
    let (_server, port) = Running::tcp();
    let handle = Handle::new(&format!("--SERVER=127.0.0.1:{port}"));
    let noted: RefCell<Vec<(String, String)>> = RefCell::default();
    let context = (&raw const noted).cast_mut().cast();
    // SAFETY: the function takes this context.
    let rc = unsafe { memcached_stat_execute(handle.some(), ptr::null(), Some(note_stat), context) };
    assert_eq!(rc, MEMCACHED_SUCCESS);
    assert!(noted.borrow().len() > 30);
    assert!(
        noted.borrow().iter().any(|(key, value)| key == "pid" && *value == std::process::id().to_string())
    );
    // SAFETY: null arguments.
    let rc = unsafe { memcached_stat_execute(None, ptr::null(), Some(note_stat), context) };
    assert_eq!(rc, MEMCACHED_INVALID_ARGUMENTS);

    let stat = std::cell::Cell::new(std::mem::MaybeUninit::uninit());
    // SAFETY: the name ends with a zero.
    let rc = unsafe { memcached_stat_servername(Some(&stat), ptr::null(), c"127.0.0.1".as_ptr(), port) };
    assert_eq!(rc, MEMCACHED_SUCCESS);
    // SAFETY: the code says that it was written.
    assert_eq!(unsafe { stat.into_inner().assume_init() }.pid, std::process::id().cast_signed());
    let stat = std::cell::Cell::new(std::mem::MaybeUninit::uninit());
    // SAFETY: the name ends with a zero.
    let rc = unsafe { memcached_stat_servername(Some(&stat), ptr::null(), c"127.0.0.1".as_ptr(), NOBODY) };
    assert_eq!(rc, MEMCACHED_CONNECTION_FAILURE);
}

unsafe extern "C" fn note_key(
    _: *const memcached_st,
    key: *const c_char,
    key_length: usize,
    context: *mut c_void,
) -> memcached_return_t {
    // SAFETY: the context is the test's.
    let noted = unsafe { &*context.cast::<RefCell<Vec<String>>>() };
    assert_eq!(text(key).len(), key_length);
    noted.borrow_mut().push(text(key));
    MEMCACHED_SUCCESS
}

unsafe extern "C" fn refuse_key(
    _: *const memcached_st,
    _: *const c_char,
    _: usize,
    _: *mut c_void,
) -> memcached_return_t {
    MEMCACHED_FAILURE
}

#[test]
fn dump_passes_every_key_to_every_callback() {
    let ((_first, one), (_second, other)) = (Running::tcp(), Running::tcp());
    let handle = Handle::new(&format!("--SERVER=127.0.0.1:{one} --SERVER=127.0.0.1:{other}"));
    let mut keys: Vec<String> = (0..50).map(|i| format!("key{i}")).collect();
    keys.push("schlüssel".into());
    for key in &keys {
        assert_eq!(handle.set(key, "value"), MEMCACHED_SUCCESS);
    }
    let noted: RefCell<Vec<String>> = RefCell::default();
    let context = (&raw const noted).cast_mut().cast();
    let functions: [memcached_dump_fn; 2] = [Some(note_key), Some(note_key)];
    // SAFETY: there are two functions, which take this context.
    let rc = unsafe { memcached_dump(handle.some(), functions.as_ptr(), context, 2) };
    assert_eq!(rc, MEMCACHED_SUCCESS);
    keys = keys.iter().flat_map(|key| [key.clone(), key.clone()]).collect();
    keys.sort();
    noted.borrow_mut().sort();
    assert_eq!(*noted.borrow(), keys);

    let functions: [memcached_dump_fn; 1] = [Some(refuse_key)];
    // SAFETY: there is one function.
    let rc = unsafe { memcached_dump(handle.some(), functions.as_ptr(), ptr::null_mut(), 1) };
    assert_eq!(rc, MEMCACHED_SOME_ERRORS);
    let binary = Handle::new(&format!("--SERVER=127.0.0.1:{one} --BINARY-PROTOCOL"));
    // SAFETY: there is one function.
    let rc = unsafe { memcached_dump(binary.some(), functions.as_ptr(), ptr::null_mut(), 1) };
    assert_eq!(rc, MEMCACHED_NOT_SUPPORTED);
    let words = text(memcached_last_error_message(binary.some()));
    assert!(words.contains("Binary protocol is not supported for memcached_dump()"), "{words}");
}

#[test]
fn ping_flush_pid_and_version_work() {
    let (_server, port) = Running::tcp();
    let host = c"127.0.0.1".as_ptr();
    let handle = Handle::new(&format!("--SERVER=127.0.0.1:{port}"));
    let code = Code::new();
    // SAFETY: here and below, the name ends with a zero.
    assert!(unsafe { libmemcached_util_ping(host, port, code.out()) });
    assert_eq!(code.get(), MEMCACHED_SUCCESS);
    // SAFETY: as above; no name and no password.
    assert!(unsafe { libmemcached_util_ping2(host, port, ptr::null(), ptr::null(), None) });
    // SAFETY: as above.
    assert!(!unsafe { libmemcached_util_ping(host, NOBODY, code.out()) });
    assert_eq!(code.get(), MEMCACHED_CONNECTION_FAILURE);
    // SAFETY: as above.
    assert_eq!(unsafe { libmemcached_util_getpid(host, port, code.out()) }, std::process::id().cast_signed());
    assert_eq!(code.get(), MEMCACHED_SUCCESS);
    // SAFETY: as above.
    assert_eq!(unsafe { libmemcached_util_getpid2(host, NOBODY, ptr::null(), ptr::null(), code.out()) }, -1);
    assert_eq!(code.get(), MEMCACHED_CONNECTION_FAILURE);

    assert_eq!(handle.set("key", "value"), MEMCACHED_SUCCESS);
    // SAFETY: as above.
    assert!(unsafe { libmemcached_util_flush(host, port, code.out()) });
    assert_eq!(handle.get("key"), None);
    // SAFETY: as above.
    assert!(!unsafe { libmemcached_util_flush(host, NOBODY, code.out()) });
    assert_eq!(code.get(), MEMCACHED_SOME_ERRORS);

    assert!(libmemcached_util_version_check(handle.some(), 1, 4, 99));
    assert!(!libmemcached_util_version_check(handle.some(), 200, 0, 0));
    assert!(!libmemcached_util_version_check(None, 0, 0, 0));
}
