//! Behaviours, callbacks, namespaces, allocators.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};

use fabcache::libmemcached::allocators::*;
use fabcache::libmemcached::behavior::*;
use fabcache::libmemcached::callback::*;
use fabcache::libmemcached::create::*;
use fabcache::libmemcached::delete::memcached_delete;
use fabcache::libmemcached::hash::*;
use fabcache::libmemcached::hashkit::*;
use fabcache::libmemcached::result::{memcached_result_set_flags, memcached_result_set_value};
use fabcache::libmemcached::server::memcached_server_add;
use fabcache::libmemcached::*;

use crate::common::{Handle, Running, c_text, call, out, taken};

fn behavior(memc: &Handle, flag: memcached_behavior_t) -> u64 {
    call!(memcached_behavior_get(memc.get_ref(), flag))
}

#[test]
fn behaviors_round_trip() {
    let memc = Handle::new();
    let defaults = [
        (MEMCACHED_BEHAVIOR_POLL_TIMEOUT, 5000),
        (MEMCACHED_BEHAVIOR_CONNECT_TIMEOUT, 4000),
        (MEMCACHED_BEHAVIOR_RETRY_TIMEOUT, 2),
        (MEMCACHED_BEHAVIOR_SERVER_FAILURE_LIMIT, 5),
        (MEMCACHED_BEHAVIOR_NOREPLY, 0),
    ];
    for (flag, expected) in defaults {
        assert_eq!(behavior(&memc, flag), expected, "{flag}");
    }
    for flag in 0..MEMCACHED_BEHAVIOR_MAX {
        let (set, before) = (call!(memcached_behavior_set(memc.get_ref(), flag, 1)), behavior(&memc, flag));
        match set {
            MEMCACHED_SUCCESS => assert_eq!(before, 1, "{flag}"),
            refused => assert!(
                matches!(refused, MEMCACHED_DEPRECATED | MEMCACHED_INVALID_ARGUMENTS),
                "{flag}: {refused}"
            ),
        }
    }
    let beyond = call!(memcached_behavior_set(memc.get_ref(), 99, 1));
    assert_eq!(beyond, MEMCACHED_INVALID_ARGUMENTS);
    assert_eq!(behavior(&memc, 99), 0);
    assert_eq!(call!(memcached_behavior_set(None, 0, 0)), MEMCACHED_INVALID_ARGUMENTS);
}

#[test]
fn distributions_and_hashes_are_set_by_number() {
    let memc = Handle::new();
    memc.behave(MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED, 1);
    assert_eq!(behavior(&memc, MEMCACHED_BEHAVIOR_HASH), MEMCACHED_HASH_MD5.into());
    assert_eq!(
        behavior(&memc, MEMCACHED_BEHAVIOR_DISTRIBUTION),
        MEMCACHED_DISTRIBUTION_CONSISTENT_WEIGHTED.into()
    );
    let no_hash = call!(memcached_behavior_set_key_hash(memc.get_ref(), MEMCACHED_HASH_HSIEH));
    assert_eq!(no_hash, MEMCACHED_INVALID_ARGUMENTS);
    assert_eq!(memc.last_error().0, MEMCACHED_INVALID_ARGUMENTS);
    let beyond = call!(memcached_behavior_set_distribution(memc.get_ref(), 7));
    assert_eq!(beyond, MEMCACHED_INVALID_ARGUMENTS);
    // As in Debian's libmemcached.
    let hash = |number| call!(memcached_generate_hash_value(c"k".as_ptr(), 1, number));
    assert_eq!(hash(MEMCACHED_HASH_DEFAULT), 2_150_891_594);
    assert_eq!(hash(MEMCACHED_HASH_HSIEH), 1);
}

unsafe extern "C" fn first_byte(key: *const c_char, len: usize, _: *mut c_void) -> u32 {
    assert!(len > 0);
    // SAFETY: the handle has a first server.
    unsafe { *key }.cast_unsigned().into()
}

#[test]
fn custom_hash_places_keys() {
    let memc = Handle::new();
    let kit = call!(memcached_get_hashkit(memc.get_ref()));
    // SAFETY: the context is the handle's.
    let own = unsafe { &*kit }.clone();
    own.base_hash.function.set(Some(first_byte));
    assert_eq!(call!(memcached_set_hashkit(memc.get_ref(), Some(&own))), MEMCACHED_SUCCESS);
    for host in [c"a", c"b", c"c"] {
        memc.add(host, 1);
    }
    for key in [c"0", c"1", c"2", c"7"] {
        let at = call!(memcached_generate_hash(memc.get_ref(), key.as_ptr(), 1));
        assert_eq!(at, u32::from(key.to_bytes()[0]) % 3);
    }
}

unsafe extern "C" fn spread(key: *const c_char, len: usize, _: *mut c_void) -> u32 {
    // SAFETY: the library passes a key and its length.
    let key: &[u8] = unsafe { std::slice::from_raw_parts(key.cast(), len) };
    let sum = key.iter().fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    sum.wrapping_mul(2_654_435_761)
}

#[test]
fn custom_hash_places_servers_on_the_ring() {
    let memc = Handle::new();
    memc.behave(MEMCACHED_BEHAVIOR_KETAMA, 1);
    let kit = call!(memcached_get_hashkit(memc.get_ref()));
    // SAFETY: the context is the handle's.
    let own = unsafe { &*kit }.clone();
    own.base_hash.function.set(Some(spread));
    assert_eq!(call!(memcached_set_hashkit(memc.get_ref(), Some(&own))), MEMCACHED_SUCCESS);
    for (host, port) in [(c"a", 1), (c"b", 2), (c"c", 3)] {
        memc.add(host, port);
    }
    let at = |i| {
        let key = format!("k{i}");
        call!(memcached_generate_hash(memc.get_ref(), key.as_ptr().cast(), key.len())).to_string()
    };
    let places: String = (0..60).map(at).collect();
    // As in Debian's libmemcached.
    assert_eq!(places, "112222222211111112111111111211111111121111111112111111111222");
}

#[test]
fn namespace_prefixes_every_key() {
    let server = Running::start();
    for memc in server.handles() {
        let [plain, _] = server.handles();
        let set = |namespace: Option<&CStr>| {
            let data = namespace.map_or(null(), |namespace| namespace.as_ptr().cast());
            call!(memcached_callback_set(memc.get_ref(), MEMCACHED_CALLBACK_NAMESPACE, data))
        };
        assert_eq!(set(Some(c"ns:")), MEMCACHED_SUCCESS);
        let code = out();
        let namespace =
            call!(memcached_callback_get(memc.get_ref(), MEMCACHED_CALLBACK_NAMESPACE, Some(&code)));
        assert_eq!((c_text(namespace.cast()), taken(&code)), ("ns:".into(), MEMCACHED_SUCCESS));
        assert_eq!(memc.set("k", "v"), MEMCACHED_SUCCESS);
        assert_eq!(memc.get("k"), Ok("v".into()));
        assert_eq!(plain.get("ns:k"), Ok("v".into()));
        memc.mget(&["k"]);
        assert_eq!(memc.fetch_all().0, [("k".into(), "v".into())], "returned keys have no namespace");
        assert_eq!(set(Some(c"a b")), MEMCACHED_BAD_KEY_PROVIDED);
        assert_eq!(set(Some(c"")), MEMCACHED_INVALID_ARGUMENTS);
        assert_eq!(memc.get("k"), Ok("v".into()), "an invalid namespace changes nothing");
        assert_eq!(set(None), MEMCACHED_SUCCESS);
        assert_eq!(memc.get("k"), Err(MEMCACHED_NOTFOUND));
    }
}

unsafe extern "C" fn make(
    _: *const memcached_st,
    _: *const c_char,
    _: usize,
    result: *mut memcached_result_st,
) -> memcached_return_t {
    // SAFETY: the library passes a result.
    let result = unsafe { result.as_ref() };
    call!(memcached_result_set_flags(result, 3));
    call!(memcached_result_set_value(result, c"made".as_ptr(), 4))
}

thread_local! {
    static TOLD: Cell<usize> = const { Cell::new(0) };
}

unsafe extern "C" fn deleted(_: *const memcached_st, _: *const c_char, len: usize) -> memcached_return_t {
    TOLD.set(TOLD.get() + len);
    MEMCACHED_SUCCESS
}

unsafe extern "C" fn freed(_: *const memcached_st) -> memcached_return_t {
    TOLD.set(TOLD.get() + 100);
    MEMCACHED_SUCCESS
}

unsafe extern "C" fn cloned(_: *mut memcached_st, _: *const memcached_st) -> memcached_return_t {
    TOLD.set(TOLD.get() + 1000);
    MEMCACHED_SUCCESS
}

#[test]
fn caller_callbacks_are_called() {
    let server = Running::start();
    let [memc, _] = server.handles();
    let set = |flag, function: *const c_void| {
        assert_eq!(call!(memcached_callback_set(memc.get_ref(), flag, function)), MEMCACHED_SUCCESS);
        let code = out();
        assert_eq!(call!(memcached_callback_get(memc.get_ref(), flag, Some(&code))), function.cast_mut());
    };
    set(MEMCACHED_CALLBACK_GET_FAILURE, make as *const c_void);
    set(MEMCACHED_CALLBACK_DELETE_TRIGGER, deleted as *const c_void);
    set(MEMCACHED_CALLBACK_CLEANUP_FUNCTION, freed as *const c_void);
    set(MEMCACHED_CALLBACK_CLONE_FUNCTION, cloned as *const c_void);
    assert_eq!(memc.get("absent"), Ok("made".into()));
    let [plain, _] = server.handles();
    assert_eq!(plain.get("absent"), Ok("made".into()), "the created value is stored");
    assert_eq!(call!(memcached_delete(memc.get_ref(), c"absent".as_ptr(), 6, 0)), MEMCACHED_SUCCESS);
    assert_eq!(TOLD.get(), 6);
    drop(Handle::of(call!(memcached_clone(null_mut(), memc.get_ref()))));
    assert_eq!(TOLD.get(), 1106);
    drop(memc);
    assert_eq!(TOLD.get(), 1206);
}

unsafe extern "C" fn takes_servers_away(_: *const c_char, _: usize, memc: *mut c_void) -> u32 {
    // SAFETY: the test passes its handle.
    let memc = unsafe { memc.cast::<memcached_st>().as_ref() };
    call!(memcached_server_add(memc, c"127.0.0.1".as_ptr(), 3));
    call!(memcached_servers_reset(memc));
    5
}

#[test]
fn custom_hash_may_reenter_the_library() {
    for distribution in [MEMCACHED_DISTRIBUTION_MODULA, MEMCACHED_DISTRIBUTION_CONSISTENT] {
        let memc = Handle::new();
        memc.behave(MEMCACHED_BEHAVIOR_DISTRIBUTION, distribution.into());
        for port in 1..3 {
            memc.add(c"127.0.0.1", port);
        }
        let kit = call!(hashkit_create(null_mut()));
        let at = std::ptr::from_ref::<memcached_st>(&memc).cast_mut().cast();
        let set = call!(hashkit_set_custom_function(kit.as_ref(), Some(takes_servers_away), at));
        assert_eq!(set, HASHKIT_SUCCESS);
        assert_eq!(call!(memcached_set_hashkit(memc.get_ref(), kit.as_ref())), MEMCACHED_SUCCESS);
        assert_eq!(memc.set("key", "value"), MEMCACHED_NO_SERVERS);
        assert_eq!(memc.number_of_hosts.get(), 0);
        call!(hashkit_free(kit));
    }
}

#[test]
fn handle_cannot_be_cloned_onto_itself() {
    let memc = Handle::new();
    memc.add(c"127.0.0.1", 1);
    let at = std::ptr::from_ref::<memcached_st>(&memc).cast_mut();
    assert!(call!(memcached_clone(at, memc.get_ref())).is_null());
    assert_eq!(memc.number_of_hosts.get(), 1);
}

unsafe extern "C" fn counted_malloc(_: *const memcached_st, len: usize, context: *mut c_void) -> *mut c_void {
    // SAFETY: the test passes its counter.
    let counter = unsafe { &*context.cast::<Cell<i32>>() };
    counter.set(counter.get() + 1);
    // SAFETY: it has no preconditions.
    unsafe { libc::malloc(len) }
}

unsafe extern "C" fn counted_free(_: *const memcached_st, memory: *mut c_void, context: *mut c_void) {
    // SAFETY: the test passes its counter.
    let counter = unsafe { &*context.cast::<Cell<i32>>() };
    counter.set(counter.get() - i32::from(!memory.is_null()));
    // SAFETY: `counted_malloc` allocated it.
    unsafe { libc::free(memory) };
}

unsafe extern "C" fn no_realloc(
    _: *const memcached_st,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
) -> *mut c_void {
    null_mut()
}

unsafe extern "C" fn no_calloc(_: *const memcached_st, _: usize, _: usize, _: *mut c_void) -> *mut c_void {
    null_mut()
}

unsafe extern "C" fn no_malloc(_: *const memcached_st, _: usize, _: *mut c_void) -> *mut c_void {
    null_mut()
}

#[test]
fn values_use_the_custom_allocator() {
    let server = Running::start();
    let [memc, _] = server.handles();
    let counter = Cell::new(0i32);
    let context: *mut c_void = (&raw const counter).cast_mut().cast();
    let use_these = |malloc| {
        call!(memcached_set_memory_allocators(
            memc.get_ref(),
            malloc,
            Some(counted_free),
            Some(no_realloc),
            Some(no_calloc),
            context
        ))
    };
    assert_eq!(use_these(None), MEMCACHED_INVALID_ARGUMENTS);
    assert_eq!(use_these(Some(counted_malloc)), MEMCACHED_SUCCESS);
    assert_eq!(call!(memcached_get_memory_allocators_context(memc.get_ref())), context);
    memc.set("k", "v");
    assert_eq!(memc.get("k"), Ok("v".into()));
    assert_eq!(counter.get(), 1, "the caller freed it itself");
    memc.mget(&["k"]);
    assert_eq!(memc.fetch_all().0.len(), 1);
    assert_eq!(counter.get(), 1, "the result freed its memory");
    assert_eq!(use_these(Some(no_malloc)), MEMCACHED_SUCCESS);
    assert_eq!(memc.get("k"), Err(MEMCACHED_MEMORY_ALLOCATION_FAILURE));
}

#[test]
fn user_data_is_kept_with_the_handle() {
    let memc = Handle::new();
    let (mut one, mut other) = (1, 2);
    let (one, other): (*mut c_void, *mut c_void) = ((&raw mut one).cast(), (&raw mut other).cast());
    assert!(call!(memcached_set_user_data(memc.get_ref(), one)).is_null());
    assert_eq!(call!(memcached_set_user_data(memc.get_ref(), other)), one);
    assert_eq!(call!(memcached_get_user_data(memc.get_ref())), other);
}
