//! `fabcache_*` as C calls them: results over shared memory and over TCP, and invalid arguments.

mod server;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::{Read as _, Write as _};
use std::ptr::{null, null_mut};

use fabcache::native::cache::*;
use fabcache::native::change::*;
use fabcache::native::code::*;
use fabcache::native::options::*;
use fabcache::native::registered::*;
use fabcache::native::request::*;
use fabcache::native::retrieval::*;
use fabcache::native::servers::*;
use fabcache::native::storage::*;
use fabcache::native::{Cache, Code, Item};
use server::Running;

/// Calls a C function.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: every pointer in these tests is NULL or valid until the test ends, with its length; and each handle
        // is used by the thread that owns it.
        unsafe { $name($($argument),*) }
    }};
}

mod arguments;

/// A client that is closed on drop.
struct Open(*mut Cache);

// SAFETY: clients may be shared among threads and closed by any of them.
unsafe impl Sync for Open {}

impl Open {
    fn at(addresses: &[&str]) -> Open {
        Open::with(addresses, null_mut())
    }

    fn with(addresses: &[&str], options: *mut Options) -> Open {
        let addresses: Vec<CString> =
            addresses.iter().map(|address| CString::new(*address).expect("text")).collect();
        let pointers: Vec<*const c_char> = addresses.iter().map(|address| address.as_ptr()).collect();
        let mut cache = null_mut();
        let code = call!(fabcache_open(pointers.as_ptr(), pointers.len(), options, &raw mut cache));
        assert_eq!(code, Code::Ok, "{}", last_error());
        call!(fabcache_options_free(options));
        Open(cache)
    }

    fn set(&self, key: &str, value: &[u8]) -> Code {
        let (start, length) = (value.as_ptr().cast(), value.len());
        call!(fabcache_set(self.0, key.as_ptr().cast(), key.len(), start, length, 0, 7))
    }

    /// Returns the code, the contents of a buffer of this size, and the item.
    fn get(&self, key: &str, size: usize) -> (Code, Vec<u8>, Item) {
        let (mut buffer, mut item) = (vec![0xee; size], Item::default());
        let start = buffer.as_mut_ptr().cast();
        let code = call!(fabcache_get(self.0, key.as_ptr().cast(), key.len(), start, size, &raw mut item));
        (code, buffer, item)
    }

    fn value(&self, key: &str) -> Vec<u8> {
        let (mut value, mut item) = (null_mut(), Item::default());
        let code =
            call!(fabcache_get_alloc(self.0, key.as_ptr().cast(), key.len(), &raw mut value, &raw mut item));
        assert_eq!(code, Code::Ok, "{}", last_error());
        // SAFETY: this many bytes are written, followed by a NUL.
        let bytes = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), item.length + 1) }.to_vec();
        call!(fabcache_free(value.cast()));
        assert_eq!(bytes.last(), Some(&0));
        bytes[..item.length].to_vec()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        call!(fabcache_close(self.0));
    }
}

fn text(pointer: *const c_char) -> String {
    assert!(!pointer.is_null());
    // SAFETY: it is not NULL, and the library's texts end with a NUL.
    unsafe { CStr::from_ptr(pointer) }.to_str().expect("UTF-8").to_owned()
}

fn last_error() -> String {
    text(fabcache_last_error())
}

/// Runs the same test over both transports.
fn over_both(name: &str, test: impl Fn(&Open)) {
    let sharing = Running::sharing(name);
    let tcp = Running::tcp();
    for address in [&sharing.address, &tcp.address] {
        test(&Open::at(&[address]));
    }
}

#[test]
fn values_round_trip() {
    over_both("values", |cache| {
        assert_eq!(cache.set("key", b"value"), Code::Ok);
        let (code, buffer, item) = cache.get("key", 5);
        assert_eq!((code, &buffer[..], item.length, item.flags), (Code::Ok, &b"value"[..], 5, 7));
        // Too small: the call returns the length needed, and writes nothing.
        let (code, buffer, item) = cache.get("key", 4);
        assert_eq!((code, &buffer[..], item.length), (Code::BufferTooSmall, &[0xee; 4][..], 5));
        assert_eq!(
            call!(fabcache_get(cache.0, c"key".as_ptr(), 3, null_mut(), 0, null_mut())),
            Code::BufferTooSmall
        );
        // The buffer is reused: a shorter value after a longer one.
        assert_eq!(cache.set("long", &[b'x'; 100_000]), Code::Ok);
        assert_eq!(cache.value("long"), [b'x'; 100_000]);
        assert_eq!(cache.value("key"), b"value");
        assert_eq!(cache.set("empty", b""), Code::Ok);
        assert_eq!(
            cache.get("empty", 3),
            (Code::Ok, vec![0xee; 3], Item { length: 0, ..cache.get("empty", 3).2 })
        );
        assert_eq!(cache.value("empty"), b"");
        assert_eq!(cache.get("none", 9).0, Code::NotFound);
        assert_eq!(call!(fabcache_exists(cache.0, c"key".as_ptr(), 3)), Code::Ok);
        assert_eq!(call!(fabcache_exists(cache.0, c"none".as_ptr(), 4)), Code::NotFound);
        let mut value = std::ptr::dangling_mut::<c_char>();
        assert_eq!(
            call!(fabcache_get_alloc(cache.0, c"none".as_ptr(), 4, &raw mut value, null_mut())),
            Code::NotFound
        );
        assert!(value.is_null());
    });
}

#[test]
fn every_storage_call_stores() {
    over_both("ways", |cache| {
        let (key, a) = (c"key".as_ptr(), c"a".as_ptr().cast());
        assert_eq!(call!(fabcache_replace(cache.0, key, 3, a, 1, 0, 0)), Code::NotStored);
        assert_eq!(call!(fabcache_append(cache.0, key, 3, a, 1)), Code::NotStored);
        assert_eq!(call!(fabcache_prepend(cache.0, key, 3, a, 1)), Code::NotStored);
        assert_eq!(call!(fabcache_cas(cache.0, key, 3, a, 1, 0, 0, 1)), Code::NotFound);
        assert_eq!(call!(fabcache_add(cache.0, key, 3, a, 1, 0, 3)), Code::Ok);
        assert_eq!(call!(fabcache_add(cache.0, key, 3, a, 1, 0, 3)), Code::NotStored);
        assert_eq!(call!(fabcache_append(cache.0, key, 3, c"z".as_ptr().cast(), 1)), Code::Ok);
        assert_eq!(call!(fabcache_prepend(cache.0, key, 3, c"(".as_ptr().cast(), 1)), Code::Ok);
        let (_, buffer, item) = cache.get("key", 3);
        assert_eq!((&buffer[..], item.flags), (&b"(az"[..], 3));
        assert_eq!(call!(fabcache_cas(cache.0, key, 3, a, 1, 0, 9, item.cas + 1)), Code::Exists);
        assert_eq!(call!(fabcache_cas(cache.0, key, 3, a, 1, 0, 9, item.cas)), Code::Ok);
        assert_eq!(call!(fabcache_replace(cache.0, key, 3, null(), 0, 0, 0)), Code::Ok);
        assert_eq!(cache.value("key"), b"");
        // An item that expires at once.
        assert_eq!(call!(fabcache_set(cache.0, key, 3, a, 1, -1, 0)), Code::Ok);
        assert_eq!(cache.get("key", 3).0, Code::NotFound);
    });
}

#[test]
fn items_are_changed() {
    over_both("changes", |cache| {
        let (key, mut number) = (c"n".as_ptr(), 0u64);
        assert_eq!(call!(fabcache_incr(cache.0, key, 1, 1, &raw mut number)), Code::NotFound);
        assert_eq!(call!(fabcache_incr_or_set(cache.0, key, 1, 5, 40, 0, &raw mut number)), Code::Ok);
        assert_eq!(number, 40);
        assert_eq!(call!(fabcache_decr_or_set(cache.0, key, 1, 5, 0, 0, &raw mut number)), Code::Ok);
        assert_eq!(number, 35);
        assert_eq!(call!(fabcache_incr(cache.0, key, 1, 2, null_mut())), Code::Ok);
        assert_eq!(call!(fabcache_decr(cache.0, key, 1, 100, &raw mut number)), Code::Ok);
        assert_eq!(number, 0);
        cache.set("text", b"x");
        assert_eq!(call!(fabcache_incr(cache.0, c"text".as_ptr(), 4, 1, &raw mut number)), Code::Refused);
        assert!(last_error().contains("non-numeric"), "{}", last_error());

        assert_eq!(call!(fabcache_touch(cache.0, key, 1, 100)), Code::Ok);
        assert_eq!(call!(fabcache_touch(cache.0, c"none".as_ptr(), 4, 100)), Code::NotFound);
        let (mut buffer, mut item) = ([0u8; 8], Item::default());
        let into = buffer.as_mut_ptr().cast();
        let touched = call!(fabcache_get_and_touch(cache.0, c"text".as_ptr(), 4, 60, into, 8, &raw mut item));
        assert_eq!((touched, item.length, buffer[0]), (Code::Ok, 1, b'x'));
        let mut value = null_mut();
        let touched = call!(fabcache_get_and_touch_alloc(
            cache.0,
            c"text".as_ptr(),
            4,
            -1,
            &raw mut value,
            &raw mut item
        ));
        assert_eq!((touched, text(value)), (Code::Ok, "x".into()));
        call!(fabcache_free(value.cast()));
        assert_eq!(cache.get("text", 1).0, Code::NotFound);

        assert_eq!(call!(fabcache_delete(cache.0, key, 1)), Code::Ok);
        assert_eq!(call!(fabcache_delete(cache.0, key, 1)), Code::NotFound);
        cache.set("key", b"");
        assert_eq!(call!(fabcache_flush(cache.0, 0)), Code::Ok);
        assert_eq!(cache.get("key", 1).0, Code::NotFound);
    });
}

type Told = BTreeMap<usize, (Vec<u8>, u32)>;

unsafe extern "C" fn found(context: *mut c_void, key: usize, value: *const c_void, item: *const Item) {
    // SAFETY: the context is the test's map, which nothing else uses meanwhile.
    let reported = unsafe { &mut *context.cast::<Told>() };
    // SAFETY: the item is valid until this returns.
    let item = unsafe { *item };
    // SAFETY: so are its bytes.
    let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), item.length) };
    reported.insert(key, (value.to_vec(), item.flags));
}

#[test]
fn multiget_reads_many_keys() {
    over_both("many", |cache| {
        cache.set("a", b"1");
        cache.set("b", b"");
        let keys = [c"a".as_ptr(), c"none".as_ptr(), c"b".as_ptr(), c"a".as_ptr()];
        let (lengths, mut reported) = ([1, 4, 1, 1], Told::new());
        let context = (&raw mut reported).cast();
        let code =
            call!(fabcache_get_many(cache.0, keys.as_ptr(), lengths.as_ptr(), 4, Some(found), context));
        assert_eq!(code, Code::Ok);
        let one = (b"1".to_vec(), 7);
        assert_eq!(reported, Told::from([(0, one.clone()), (2, (Vec::new(), 7)), (3, one)]));
        assert_eq!(call!(fabcache_get_many(cache.0, null(), null(), 0, Some(found), context)), Code::Ok);
        let lengths = [1, 0, 1, 1];
        let code =
            call!(fabcache_get_many(cache.0, keys.as_ptr(), lengths.as_ptr(), 4, Some(found), context));
        assert_eq!(code, Code::BadKey);
    });
}

#[test]
fn failures_of_some_servers_are_reported() {
    let server = Running::tcp();
    let cache = Open::at(&[&server.address, "tcp://127.0.0.1:1"]);
    assert_eq!(call!(fabcache_server_count(cache.0)), 2);
    assert_eq!(text(call!(fabcache_server_address(cache.0, 1))), "tcp://127.0.0.1:1");
    assert!(call!(fabcache_server_address(cache.0, 2)).is_null());
    // A key of each server.
    let of = |wanted: usize| {
        let mut names = (0..).map(|number: u32| format!("k{number}"));
        let is_of = |key: &String| {
            let mut server = 9;
            assert_eq!(
                call!(fabcache_server_of(cache.0, key.as_ptr().cast(), key.len(), &raw mut server)),
                Code::Ok
            );
            server == wanted
        };
        names.find(is_of).expect("one of many")
    };
    let (up, down) = (of(0), of(1));
    assert_eq!(cache.set(&up, b"v"), Code::Ok);
    assert_eq!(cache.set(&down, b"v"), Code::Unreachable);
    assert!(last_error().starts_with("tcp://127.0.0.1:1: cannot connect: "), "{}", last_error());
    assert_eq!(cache.set(&down, b"v"), Code::Down);
    let (keys, lengths) = ([up.as_ptr().cast(), down.as_ptr().cast()], [up.len(), down.len()]);
    let mut reported = Told::new();
    let context = (&raw mut reported).cast();
    let code = call!(fabcache_get_many(cache.0, keys.as_ptr(), lengths.as_ptr(), 2, Some(found), context));
    assert_eq!((code, reported.len()), (Code::Partial, 1));
    assert!(last_error().starts_with("1 of 2 servers failed"), "{}", last_error());
    assert_eq!(call!(fabcache_verbosity(cache.0, 0)), Code::Partial);
    assert_eq!(call!(fabcache_flush(cache.0, 0)), Code::Down);

    let none = Open::at(&["tcp://127.0.0.1:1"]);
    assert_eq!(call!(fabcache_verbosity(none.0, 0)), Code::Unreachable);
    let mut request_value = Item::default();
    let request = call!(fabcache_request_new(none.0));
    assert_eq!(call!(fabcache_iget(request, c"k".as_ptr(), 1, null_mut(), 0)), Code::InProgress);
    assert_eq!(call!(fabcache_wait(request)), Code::Down);
    assert_eq!(call!(fabcache_test(request)), Code::Down);
    assert!(call!(fabcache_request_value(request, &raw mut request_value)).is_null());
    call!(fabcache_request_free(request));
}

unsafe extern "C" fn said(context: *mut c_void, server: *const c_char, text: *const c_char) {
    // SAFETY: valid until this returns.
    unsafe { stat(context, server, text, text) }
}

unsafe extern "C" fn stat(
    context: *mut c_void,
    server: *const c_char,
    name: *const c_char,
    value: *const c_char,
) {
    // SAFETY: the context is the test's list, which nothing else uses meanwhile.
    let reported = unsafe { &mut *context.cast::<Vec<[String; 3]>>() };
    reported.push([text(server), text(name), text(value)]);
}

unsafe extern "C" fn way(context: *mut c_void, server: *const c_char, way: c_int, why: *const c_char) {
    // SAFETY: the context is the test's list, which nothing else uses meanwhile.
    let reported = unsafe { &mut *context.cast::<Vec<(String, c_int, bool)>>() };
    reported.push((text(server), way, why.is_null()));
}

#[test]
fn servers_report_statistics_and_versions() {
    let sharing = Running::sharing("tell");
    let (tcp, channel_only) = (Running::tcp(), Running::channel_only("tell-channel"));
    let cache = Open::at(&[&sharing.address, &tcp.address, &channel_only.address]);
    let mut ways: Vec<(String, c_int, bool)> = Vec::new();
    let context = (&raw mut ways).cast();
    assert_eq!(call!(fabcache_transports(cache.0, Some(way), context)), Code::Ok);
    assert!(ways.drain(..).all(|(_, way, _)| way == TransportKind::None as c_int));
    let mut reported: Vec<[String; 3]> = Vec::new();
    let stats = (&raw mut reported).cast();
    assert_eq!(call!(fabcache_versions(cache.0, Some(said), stats)), Code::Ok);
    assert_eq!(reported.len(), 3);
    assert!(reported[1][0] == tcp.address && reported[1][1].starts_with("1.6."), "{reported:?}");
    assert_eq!(call!(fabcache_stats(cache.0, null(), Some(stat), stats)), Code::Ok);
    assert_eq!(reported.iter().filter(|[_, name, _]| name == "pid").count(), 3);
    reported.clear();
    assert_eq!(call!(fabcache_stats(cache.0, c"settings".as_ptr(), Some(stat), stats)), Code::Ok);
    assert!(reported.iter().any(|[_, name, value]| name == "maxbytes" && value == "67108864"));
    assert_eq!(call!(fabcache_stats(cache.0, c"a\nb".as_ptr(), Some(stat), stats)), Code::InvalidArgument);
    assert_eq!(call!(fabcache_verbosity(cache.0, 0)), Code::Ok);
    assert_eq!(call!(fabcache_transports(cache.0, Some(way), context)), Code::Ok);
    let shared = (sharing.address.clone(), TransportKind::SharedMemory as c_int, true);
    let channel = (channel_only.address.clone(), TransportKind::Channel as c_int, false);
    assert_eq!(ways, [shared, (tcp.address.clone(), TransportKind::Tcp as c_int, true), channel]);
}

#[test]
fn non_blocking_requests_complete() {
    over_both("requests", |cache| {
        let requests: Vec<_> = (0..32).map(|_| call!(fabcache_request_new(cache.0))).collect();
        for round in 0..4 {
            let values: Vec<String> = (0..32).map(|number| format!("value {number} of {round}")).collect();
            for (number, (request, value)) in requests.iter().zip(&values).enumerate() {
                let key = format!("key{number}");
                let (start, length) = (value.as_ptr().cast(), value.len());
                let set = if round % 2 == 0 { fabcache_iset } else { fabcache_bset };
                // SAFETY: key and value live, with their lengths, until the operations complete.
                let requested = unsafe { set(*request, key.as_ptr().cast(), key.len(), start, length, 0, 5) };
                assert_eq!(requested, Code::InProgress);
            }
            for request in &requests {
                while call!(fabcache_test(*request)) == Code::InProgress {}
                assert_eq!(call!(fabcache_wait(*request)), Code::Ok, "{}", last_error());
                assert!(call!(fabcache_request_value(*request, null_mut())).is_null());
            }
            let mut buffers = vec![[0u8; 32]; 32];
            for (number, (request, buffer)) in requests.iter().zip(&mut buffers).enumerate() {
                let key = format!("key{number}");
                let get = if round % 2 == 0 { fabcache_iget } else { fabcache_bget };
                let (name, into) = (key.as_ptr().cast(), buffer.as_mut_ptr().cast());
                // SAFETY: key and buffer live, with their lengths, until the operations complete.
                let requested = unsafe { get(*request, name, key.len(), into, 32) };
                assert_eq!(requested, Code::InProgress);
                let again = call!(fabcache_iget(*request, c"k".as_ptr(), 1, null_mut(), 0));
                assert_eq!(again, Code::InvalidArgument, "one is in flight");
            }
            for ((request, buffer), value) in requests.iter().zip(&buffers).zip(&values) {
                let mut item = Item::default();
                assert_eq!(call!(fabcache_wait(*request)), Code::Ok, "{}", last_error());
                assert!(!call!(fabcache_request_value(*request, &raw mut item)).is_null());
                assert_eq!((item.length, item.flags), (value.len(), 5));
                assert_eq!(&buffer[..item.length], value.as_bytes());
            }
        }
        requests.into_iter().for_each(|request| call!(fabcache_request_free(request)));
    });
}

#[test]
fn requests_report_their_result() {
    over_both("outcomes", |cache| {
        let request = call!(fabcache_request_new(cache.0));
        assert_eq!(call!(fabcache_wait(request)), Code::NothingAsked);
        assert_eq!(call!(fabcache_test(request)), Code::NothingAsked);
        cache.set("key", b"a long value");
        let mut small = [0u8; 3];
        let start = small.as_mut_ptr().cast();
        assert_eq!(call!(fabcache_iget(request, c"key".as_ptr(), 3, start, 3)), Code::InProgress);
        assert_eq!(call!(fabcache_wait(request)), Code::BufferTooSmall);
        let mut item = Item::default();
        let value = call!(fabcache_request_value(request, &raw mut item));
        // SAFETY: this many bytes are valid until the object is reused.
        let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), item.length) };
        assert_eq!((value, small), (&b"a long value"[..], [0; 3]));
        assert_eq!(call!(fabcache_bget(request, c"none".as_ptr(), 4, null_mut(), 0)), Code::InProgress);
        assert_eq!(call!(fabcache_wait(request)), Code::NotFound);
        assert!(call!(fabcache_request_value(request, null_mut())).is_null());
        // An invalid key is reported as the operation's result.
        assert_eq!(call!(fabcache_bget(request, c"".as_ptr(), 0, null_mut(), 0)), Code::InProgress);
        assert_eq!(call!(fabcache_wait(request)), Code::BadKey);
        let huge = vec![0u8; 8 << 20];
        let requested =
            call!(fabcache_bset(request, c"key".as_ptr(), 3, huge.as_ptr().cast(), huge.len(), 0, 0));
        assert_eq!(requested, Code::InProgress);
        assert_eq!(call!(fabcache_wait(request)), Code::Refused);
        assert_eq!(call!(fabcache_wait(request)), Code::Refused, "waiting again returns the same");
        // Freeing an object in flight leaves the caller's memory alone.
        let requested = call!(fabcache_iset(request, c"left".as_ptr(), 4, c"x".as_ptr().cast(), 1, 0, 0));
        assert_eq!(requested, Code::InProgress);
        let second = call!(fabcache_request_new(cache.0));
        call!(fabcache_request_free(request));
        assert_eq!(call!(fabcache_iget(second, c"left".as_ptr(), 4, null_mut(), 0)), Code::InProgress);
        assert_eq!(call!(fabcache_wait(second)), Code::Ok);
        call!(fabcache_request_free(second));
    });
}

/// Far more than is sent at once: the values stay in place until their operations complete.
#[test]
fn long_values_are_sent_without_a_copy() {
    over_both("lent", |cache| {
        let values: Vec<Vec<u8>> = (0..16u8).map(|number| vec![number; 900_000]).collect();
        let requests: Vec<_> = values.iter().map(|_| call!(fabcache_request_new(cache.0))).collect();
        for (request, value) in requests.iter().zip(&values) {
            let (key, start) = (c"long".as_ptr(), value.as_ptr().cast());
            assert_eq!(call!(fabcache_iset(*request, key, 4, start, value.len(), 0, 2)), Code::InProgress);
        }
        let (freed, waited) = requests.split_at(8);
        // No operation is in flight when this returns.
        freed.iter().for_each(|request| call!(fabcache_request_free(*request)));
        for (number, request) in waited.iter().enumerate() {
            let code = if number % 2 == 0 {
                call!(fabcache_wait(*request))
            } else {
                loop {
                    match call!(fabcache_test(*request)) {
                        Code::InProgress => std::thread::yield_now(),
                        code => break code,
                    }
                }
            };
            assert_eq!(code, Code::Ok, "{}", last_error());
            assert_eq!(call!(fabcache_wait(*request)), Code::Ok);
        }
        drop(values);
        assert!(cache.value("long") == vec![15; 900_000]);
        let (code, ..) = cache.get("long", 4);
        assert_eq!(code, Code::BufferTooSmall);
        waited.iter().for_each(|request| call!(fabcache_request_free(*request)));
    });
}

/// The server reports its protocol, then reads nothing: the lent value is returned at the timeout.
#[test]
fn lent_value_is_returned_when_the_server_hangs() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("bound");
    let hung = std::thread::spawn(move || {
        let (mut stream, _) = silent.accept().expect("a client");
        stream.read_exact(&mut [0; b"mn\r\n".len()]).expect("a question");
        stream.write_all(b"MN\r\n").expect("it listens");
        stream
    });
    let options = fabcache_options_new();
    call!(fabcache_options_timeout_ms(options, 1_000));
    let cache = Open::with(&[&address.to_string()], options);
    let request = call!(fabcache_request_new(cache.0));
    let value = vec![1u8; 64 << 20];
    let (key, start) = (c"long".as_ptr(), value.as_ptr().cast());
    assert_eq!(call!(fabcache_iset(request, key, 4, start, value.len(), 0, 0)), Code::InProgress);
    assert_eq!(call!(fabcache_test(request)), Code::InProgress);
    call!(fabcache_request_free(request));
    drop(hung.join().expect("the server got a request"));
}

#[test]
fn registered_buffers_carry_values() {
    over_both("registered", |cache| {
        let (key, buffer) = (c"key".as_ptr(), call!(fabcache_register(cache.0, 100_000)));
        let value = || {
            let mut length = 0;
            let start: *const u8 = call!(fabcache_buffer_value(buffer, &raw mut length)).cast();
            // SAFETY: this many bytes are valid.
            (!start.is_null()).then(|| unsafe { std::slice::from_raw_parts(start, length) }.to_vec())
        };
        let request = call!(fabcache_request_new(cache.0));
        assert_eq!(value().as_deref(), Some(&b""[..]));
        for length in [0, 7, 100_000, 200_000] {
            let start = call!(fabcache_buffer_resize(buffer, length));
            // SAFETY: this many bytes are valid.
            unsafe { std::ptr::write_bytes(start.cast::<u8>(), b'x', length) };
            let expected = vec![b'x'; length];
            assert_eq!(call!(fabcache_set_registered(cache.0, key, 3, buffer, 0, 1)), Code::Ok);
            assert!(cache.value("key") == expected);
            let requested = call!(fabcache_iset_registered(request, c"other".as_ptr(), 5, buffer, 0, 2));
            assert_eq!((requested, value()), (Code::InProgress, None), "an operation uses it");
            assert_eq!(
                call!(fabcache_get_registered(cache.0, key, 3, buffer, null_mut())),
                Code::InvalidArgument
            );
            assert_eq!(call!(fabcache_wait(request)), Code::Ok);
            assert!(value().as_ref() == Some(&expected) && cache.value("other") == expected);
            assert_eq!(
                call!(fabcache_get_registered(cache.0, c"none".as_ptr(), 4, buffer, null_mut())),
                Code::NotFound
            );
            assert_eq!(value().as_deref(), Some(&b""[..]));
            assert_eq!(
                call!(fabcache_iget_registered(request, c"other".as_ptr(), 5, buffer)),
                Code::InProgress
            );
            assert_eq!(call!(fabcache_wait(request)), Code::Ok);
            assert!(value() == Some(expected));
        }
        // Freeing either while an operation uses it does not affect the operation.
        assert_eq!(call!(fabcache_iset_registered(request, key, 3, buffer, 0, 0)), Code::InProgress);
        call!(fabcache_buffer_free(buffer));
        assert_eq!(call!(fabcache_wait(request)), Code::Ok);
        call!(fabcache_request_free(request));
    });
}

#[test]
fn request_objects_outlive_their_client() {
    let server = Running::tcp();
    let cache = Open::at(&[&server.address]);
    let request = call!(fabcache_request_new(cache.0));
    drop(cache);
    assert_eq!(call!(fabcache_iget(request, c"key".as_ptr(), 3, null_mut(), 0)), Code::InProgress);
    assert_eq!(call!(fabcache_wait(request)), Code::NotFound);
    call!(fabcache_request_free(request));
}

#[test]
fn client_is_shared_among_threads() {
    over_both("threads", |cache| {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                scope.spawn(move || {
                    for number in 0..200 {
                        let key = format!("{thread}-{number}");
                        assert_eq!(cache.set(&key, key.as_bytes()), Code::Ok);
                        assert_eq!(cache.value(&key), key.as_bytes());
                        assert_eq!(cache.get("", 0).0, Code::BadKey);
                        assert_eq!(last_error(), "a key has 1 to 250 bytes, not 0");
                    }
                });
            }
        });
    });
}

/// Options with each of their values.
#[test]
fn options_list_every_field() {
    let options = fabcache_options_new();
    for ok in [
        call!(fabcache_options_timeout_ms(options, 100)),
        call!(fabcache_options_connect_timeout_ms(options, 100)),
        call!(fabcache_options_failures(options, 3, 0, 1)),
        call!(fabcache_options_mapping(options, 2, 1)),
        call!(fabcache_options_fabric(options, FabricMode::OneSided as c_int, c"verbs".as_ptr(), null(), 1)),
        call!(fabcache_options_fabric(options, FabricMode::Auto as c_int, null(), c"eth0".as_ptr(), 0)),
        call!(fabcache_options_credentials(options, c"u".as_ptr(), c"p".as_ptr())),
        call!(fabcache_options_credentials(options, null(), null())),
    ] {
        assert_eq!(ok, Code::Ok);
    }
    let choices: [(unsafe extern "C" fn(*mut Options, c_int) -> Code, c_int); 4] = [
        (fabcache_options_shared_memory, 3),
        (fabcache_options_protocol, 4),
        (fabcache_options_distribution, 5),
        (fabcache_options_hash, 10),
    ];
    for (set, count) in choices {
        // SAFETY: the options belong to this thread.
        let set = |options, number| unsafe { set(options, number) };
        assert!((0..count).all(|number| set(options, number) == Code::Ok));
        for wrong in [-1, count, c_int::MAX, c_int::MIN] {
            assert_eq!(set(options, wrong), Code::InvalidArgument);
            assert!(last_error().starts_with(&format!("{wrong} is not a")), "{}", last_error());
        }
        assert_eq!(set(null_mut(), 0), Code::InvalidArgument);
        assert_eq!(last_error(), "options is NULL");
    }
    for wrong in [
        call!(fabcache_options_timeout_ms(options, 0)),
        call!(fabcache_options_connect_timeout_ms(options, 0)),
        call!(fabcache_options_failures(options, 0, 0, 0)),
        call!(fabcache_options_credentials(options, c"u".as_ptr(), null())),
        call!(fabcache_options_fabric(options, 3, null(), null(), 0)),
        call!(fabcache_options_fabric(options, 0, c"\xff".as_ptr(), null(), 0)),
        call!(fabcache_options_fabric(options, 0, null(), c"\xff".as_ptr(), 0)),
        call!(fabcache_options_fabric(null_mut(), 0, null(), null(), 0)),
        call!(fabcache_options_credentials(options, c"\xff".as_ptr(), c"p".as_ptr())),
        call!(fabcache_options_timeout_ms(null_mut(), 1)),
        call!(fabcache_options_connect_timeout_ms(null_mut(), 1)),
        call!(fabcache_options_failures(null_mut(), 1, 1, 1)),
        call!(fabcache_options_mapping(null_mut(), 1, 1)),
        call!(fabcache_options_credentials(null_mut(), null(), null())),
    ] {
        assert_eq!(wrong, Code::InvalidArgument);
    }
    call!(fabcache_options_free(options));
    call!(fabcache_options_free(null_mut()));
}

#[test]
fn server_without_fabric_fails_or_is_reached_by_tcp() {
    let tcp = Running::tcp();
    let address = tcp.address.replace("tcp://", "fab://");
    let cache = Open::at(&[&address]);
    assert_eq!(cache.set("key", b"v"), Code::Refused);
    let reported = last_error();
    assert!(reported.starts_with(&address) && reported.contains("not over the fabric"), "{reported}");
    let options = fabcache_options_new();
    assert_eq!(
        call!(fabcache_options_fabric(options, FabricMode::Auto as c_int, null(), null(), 1)),
        Code::Ok
    );
    let cache = Open::with(&[&address], options);
    assert_eq!(cache.set("key", b"v"), Code::Ok);
    let mut ways: Vec<(String, c_int, bool)> = Vec::new();
    assert_eq!(call!(fabcache_transports(cache.0, Some(way), (&raw mut ways).cast())), Code::Ok);
    assert_eq!(ways, [(address, TransportKind::Tcp as c_int, false)]);
}

#[test]
fn options_take_effect() {
    let sharing = Running::sharing("heeded");
    let keeping = Running::at_socket("keeping", "");
    let options = |shared| {
        let options = fabcache_options_new();
        assert_eq!(call!(fabcache_options_shared_memory(options, shared as c_int)), Code::Ok);
        options
    };
    let cache = Open::with(&[&sharing.address], options(SharedMemory::Never));
    assert_eq!(cache.set("key", b"v"), Code::Ok);
    let mut ways: Vec<(String, c_int, bool)> = Vec::new();
    assert_eq!(call!(fabcache_transports(cache.0, Some(way), (&raw mut ways).cast())), Code::Ok);
    assert_eq!(ways, [(sharing.address.clone(), TransportKind::Unix as c_int, true)]);
    let cache = Open::with(&[&keeping.address], options(SharedMemory::Required));
    assert_eq!(cache.set("key", b"v"), Code::Refused);
    assert!(last_error().starts_with(&keeping.address), "{}", last_error());
    let (remote, mut none) = (c"tcp://127.0.0.1:1".as_ptr(), std::ptr::null_mut());
    let required = options(SharedMemory::Required);
    assert_eq!(call!(fabcache_open(&raw const remote, 1, required, &raw mut none)), Code::BadAddress);
    assert!(last_error().contains("shared memory is required"), "{}", last_error());
    call!(fabcache_options_free(required));
    // A key that only the other protocols can carry.
    for spoken in [Spoken::Auto, Spoken::Meta, Spoken::Binary, Spoken::Text] {
        let carries_all = !matches!(spoken, Spoken::Text);
        let protocol = fabcache_options_new();
        assert_eq!(call!(fabcache_options_protocol(protocol, spoken as c_int)), Code::Ok);
        let cache = Open::with(&[&keeping.address], protocol);
        assert_eq!(cache.set("key", b"v"), Code::Ok);
        assert_eq!(cache.set("a key", b"v"), if carries_all { Code::Ok } else { Code::BadKey });
    }
    // The server of a key by libmemcached's own hashing: 32-bit FNV-1a modulo 2.
    let fnv = fabcache_options_new();
    assert_eq!(call!(fabcache_options_hash(fnv, HashName::Fnv1a_32 as c_int)), Code::Ok);
    let cache = Open::with(&["a", "b"], fnv);
    for key in ["a", "b", "foobar"] {
        let hash = key
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let mut server = 9;
        call!(fabcache_server_of(cache.0, key.as_ptr().cast(), key.len(), &raw mut server));
        assert_eq!(server, hash as usize % 2, "{key}");
    }
}

#[test]
fn credentials_are_sent_to_servers_that_require_them() {
    let users = std::env::temp_dir().join(format!("fabcache-c-users-{}", std::process::id()));
    std::fs::write(&users, "user:secret\n").expect("written");
    let server = Running::tcp_with(&format!("-Y {}", users.display()));
    for (password, wanted) in [(c"secret", Code::Ok), (c"guess", Code::Refused)] {
        let options = fabcache_options_new();
        call!(fabcache_options_credentials(options, c"user".as_ptr(), password.as_ptr()));
        let cache = Open::with(&[&server.address], options);
        assert_eq!(cache.set("key", b"v"), wanted, "{}", last_error());
    }
    assert_eq!(Open::at(&[&server.address]).set("key", b"v"), Code::Refused);
    std::fs::remove_file(users).expect("the file exists");
}

#[test]
fn keys_of_failed_server_move_if_ejection_is_on() {
    let server = Running::tcp();
    let options = fabcache_options_new();
    call!(fabcache_options_failures(options, 1, 60_000, 1));
    let cache = Open::with(&[&server.address, "tcp://127.0.0.1:1"], options);
    let codes: Vec<Code> = (0..20).map(|number| cache.set(&format!("k{number}"), b"v")).collect();
    let failed = codes.iter().filter(|code| **code == Code::Unreachable).count();
    assert!(failed == 1 && codes.iter().filter(|code| **code == Code::Ok).count() == 19, "{codes:?}");
}

#[test]
fn codes_have_texts() {
    let texts: Vec<String> = (-2..40).map(|code| text(fabcache_error_text(code))).collect();
    let known: Vec<&String> = texts.iter().filter(|text| *text != "unknown fabcache code").collect();
    assert_eq!(known.len(), 22);
    assert!(known.iter().all(|text| known.iter().filter(|other| other == &text).count() == 1), "{known:?}");
    assert_eq!(text(fabcache_error_text(Code::TimedOut as c_int)), "timed out");
    assert_eq!(text(fabcache_version()), env!("CARGO_PKG_VERSION"));
}

#[test]
fn silent_server_times_out() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("bound").to_string();
    let options = fabcache_options_new();
    call!(fabcache_options_timeout_ms(options, 50));
    let cache = Open::with(&[&address], options);
    assert_eq!(cache.set("key", b"v"), Code::TimedOut, "{}", last_error());
    assert!(last_error().contains(&address), "{}", last_error());
}
