//! Servers of a handle, and lists of them.

use std::cell::RefCell;
use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};

use fabcache::libmemcached::create::*;
use fabcache::libmemcached::flush::memcached_version;
use fabcache::libmemcached::hash::memcached_generate_hash;
use fabcache::libmemcached::server::*;
use fabcache::libmemcached::server_list::*;
use fabcache::libmemcached::*;
use fabcache_client::distribution::{Hash, Hashing, Mapping, Names, Placement, Weights};
use fabcache_client::{Address, Distribution};

use crate::common::{Handle, Running, c_text, call, out, taken};
use fabcache::libmemcached::callback_types::memcached_server_fn;
use fabcache::libmemcached::instance::memcached_instance_st;

fn name_and_port(server: *const memcached_instance_st) -> (String, u16) {
    // SAFETY: the handle keeps its servers.
    let server = unsafe { server.as_ref() };
    (c_text(call!(memcached_server_name(server))), call!(memcached_server_port(server)))
}

unsafe extern "C" fn note(
    memc: *const memcached_st,
    server: *const memcached_instance_st,
    context: *mut c_void,
) -> memcached_return_t {
    // SAFETY: the test passes its list.
    let seen = unsafe { &*context.cast::<RefCell<Vec<(String, u16)>>>() };
    seen.borrow_mut().push(name_and_port(server));
    // SAFETY: the library passes its handle, which may be read here.
    let memc = unsafe { memc.as_ref() };
    assert!(call!(memcached_server_count(memc)) > 0);
    MEMCACHED_SUCCESS
}

fn listed(memc: &Handle) -> Vec<(String, u16)> {
    let seen = RefCell::new(Vec::new());
    let callbacks: [memcached_server_fn; 1] = [Some(note)];
    let context: *mut c_void = (&raw const seen).cast_mut().cast();
    assert_eq!(
        call!(memcached_server_cursor(memc.get_ref(), callbacks.as_ptr(), context, 1)),
        MEMCACHED_SUCCESS
    );
    seen.into_inner()
}

#[test]
fn server_list_is_parsed_and_pushed() {
    let list = call!(memcached_servers_parse(c"one:22222:3, two,/tmp/socket,[::1]:5 7".as_ptr()));
    assert_eq!(call!(memcached_server_list_count(list)), 4);
    // SAFETY: the list has this many entries.
    let servers = unsafe { std::slice::from_raw_parts(list, 4) };
    let seen: Vec<(u16, u32, u32)> =
        servers.iter().map(|server| (server.port, server.weight, server.type_)).collect();
    assert_eq!(seen, [(22222, 3, 0), (11211, 1, 0), (0, 1, 2), (5, 7, 0)]);
    let code = out();
    let list = call!(memcached_server_list_append_with_weight(list, c"three".as_ptr(), 9, 0, Some(&code)));
    assert_eq!(taken(&code), MEMCACHED_SUCCESS);
    // A name inside the list itself, which may be reallocated meanwhile.
    // SAFETY: the list has this many entries.
    let servers = unsafe { std::slice::from_raw_parts(list, 5) };
    let own_name = servers[4].hostname.as_ptr();
    let list = call!(memcached_server_list_append(list, own_name, 10, Some(&code)));
    assert_eq!(taken(&code), MEMCACHED_SUCCESS);
    let memc = Handle::new();
    assert_eq!(call!(memcached_server_push(memc.get_ref(), list)), MEMCACHED_SUCCESS);
    call!(memcached_server_list_free(list));
    let names = ["one", "two", "/tmp/socket", "[::1]", "three", "three"].map(String::from);
    let expected: Vec<(String, u16)> = names.into_iter().zip([22222, 11211, 0, 5, 9, 10]).collect();
    assert_eq!(listed(&memc), expected);
    assert_eq!(memc.number_of_hosts.get(), 6);
    assert_eq!(call!(memcached_server_count(memc.get_ref())), 6);
    let kind = call!(memcached_server_type(Some(memc.server(2))));
    assert_eq!(c_text(kind), "SOCKET");
    assert!(call!(memcached_server_instance_by_position(memc.get_ref(), 6)).is_null());
    call!(memcached_servers_reset(memc.get_ref()));
    assert_eq!(memc.number_of_hosts.get(), 0);
    assert!(call!(memcached_servers_parse(c"".as_ptr())).is_null());
    assert!(call!(memcached_servers_parse(null())).is_null());
}

#[test]
fn invalid_host_names_are_rejected() {
    let memc = Handle::new();
    let long = CString::new("h".repeat(2000)).expect("text");
    let add = |name: *const _| call!(memcached_server_add(memc.get_ref(), name, 0));
    assert_eq!(add(long.as_ptr()), MEMCACHED_INVALID_ARGUMENTS);
    assert_eq!(call!(memcached_server_add_unix_socket(memc.get_ref(), null())), MEMCACHED_INVALID_ARGUMENTS);
    assert_eq!(call!(memcached_server_add_udp(memc.get_ref(), c"h".as_ptr(), 1)), MEMCACHED_DEPRECATED);
    assert_eq!(add(null()), MEMCACHED_SUCCESS);
    assert_eq!(listed(&memc), [("localhost".into(), 11211)]);
}

/// Distributions as libmemcached numbers them, and as the client library names them.
fn ways() -> Vec<(Vec<(memcached_behavior_t, u64)>, Hashing)> {
    let ring = |names, weights| Placement::Ring { names, weights };
    let with = |hash, placement| Hashing { hash, placement, ..Hashing::default() };
    let distribution = |to: u32| (MEMCACHED_BEHAVIOR_DISTRIBUTION, u64::from(to));
    vec![
        (vec![], Hashing::default()),
        (vec![(MEMCACHED_BEHAVIOR_HASH, MEMCACHED_HASH_MD5.into())], with(Hash::Md5, Placement::Modula)),
        (vec![(MEMCACHED_BEHAVIOR_KETAMA, 1)], with(Hash::OneAtATime, ring(Names::Ketama, Weights::Never))),
        (
            vec![(MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED, 1)],
            with(Hash::Md5, ring(Names::Ketama, Weights::Always)),
        ),
        (
            vec![
                (MEMCACHED_BEHAVIOR_HASH, MEMCACHED_HASH_FNV1A_32.into()),
                distribution(MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA_SPY),
            ],
            with(Hash::Fnv32a, ring(Names::Spy, Weights::Never)),
        ),
    ]
}

#[test]
fn keys_map_to_the_same_servers_as_in_the_client_library() {
    let names = ["alpha", "beta:5555", "gamma", "10.1.2.3:22222"];
    let addresses: Vec<Address> = names.iter().map(|name| name.parse().expect("an address")).collect();
    for (behaviors, hashing) in ways() {
        let memc = Handle::new();
        let list = call!(memcached_servers_parse(CString::new(names.join(",")).expect("text").as_ptr()));
        call!(memcached_server_push(memc.get_ref(), list));
        call!(memcached_server_list_free(list));
        for (behavior, to) in behaviors {
            memc.behave(behavior, to);
        }
        let mapping = Mapping::new(&Distribution::Custom(hashing.clone()), &addresses, |_| true);
        for i in 0..500 {
            let key = format!("key{i}");
            let server = call!(memcached_server_by_key(memc.get_ref(), key.as_ptr().cast(), key.len(), None));
            let at = mapping.server_of(key.as_bytes()).expect("there are servers");
            assert_eq!(server, std::ptr::from_ref(memc.server(at as u32)), "{key} {hashing:?}");
        }
    }
}

#[test]
fn transport_does_not_change_key_placement() {
    let [tcp, fabric] = ["one:1,two:2,[::1]:3", "fab://one:1,FAB://two:2,fab://[::1]:3"].map(|servers| {
        let text = CString::new(servers).expect("no zero");
        let list = call!(memcached_servers_parse(text.as_ptr()));
        let memc = Handle::new();
        memc.behave(MEMCACHED_BEHAVIOR_DISTRIBUTION, u64::from(MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA));
        assert_eq!(call!(memcached_server_push(memc.get_ref(), list)), MEMCACHED_SUCCESS);
        call!(memcached_server_list_free(list));
        memc
    });
    let names = ["fab://one", "FAB://two", "fab://[::1]"].map(String::from);
    assert_eq!(listed(&fabric), names.into_iter().zip([1, 2, 3]).collect::<Vec<_>>());
    for number in 0..200 {
        let key = format!("key{number}");
        let of =
            |memc: &Handle| call!(memcached_generate_hash(memc.get_ref(), key.as_ptr().cast(), key.len()));
        assert_eq!(of(&tcp), of(&fabric), "{key}");
    }
}

#[test]
fn clone_has_the_same_servers_and_its_own_connections() {
    let server = Running::start();
    for memc in server.handles() {
        memc.behave(MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1);
        memc.set("k", "v");
        let copy = Handle::of(call!(memcached_clone(null_mut(), memc.get_ref())));
        assert_eq!(listed(&copy), listed(&memc));
        drop(memc);
        assert_eq!(copy.get("k"), Ok("v".into()));
        assert!(copy.result.item_cas.get() > 0, "settings are copied");
        let more = Handle::new();
        assert_eq!(call!(memcached_push(more.get_ref(), copy.get_ref())), MEMCACHED_SUCCESS);
        assert_eq!(more.get("k"), Ok("v".into()));
        assert_eq!(call!(memcached_reset(more.get_ref())), MEMCACHED_SUCCESS);
        assert_eq!(more.get("k"), Err(MEMCACHED_NO_SERVERS));
    }
}

#[test]
fn server_version_is_known_after_a_version_call() {
    let server = Running::start();
    for memc in server.handles() {
        let parts = || {
            let server = Some(memc.server(0));
            [
                call!(memcached_server_major_version(server)),
                call!(memcached_server_minor_version(server)),
                call!(memcached_server_micro_version(server)),
            ]
        };
        assert_eq!(parts(), [255, 255, 255]);
        assert_eq!(call!(memcached_version(memc.get_ref())), MEMCACHED_SUCCESS);
        assert_eq!(parts()[..2], [1, 6]);
    }
}

/// Programs built with libmemcached's private headers read and write a server's fields at these offsets.
#[test]
fn port_set_in_a_server_counts_for_its_first_connection() {
    const PORT_AT: usize = 16;
    const FD_AT: usize = 20;
    let running = Running::start();
    for (before, expected) in [(running.port, MEMCACHED_SUCCESS), (0, MEMCACHED_CONNECTION_FAILURE)] {
        let memc = Handle::new();
        memc.add(c"127.0.0.1", running.port);
        let server = call!(memcached_server_instance_by_position(memc.get_ref(), 0));
        let field = |at: usize| server.cast_mut().cast::<u8>().wrapping_add(at);
        let (port, descriptor) = (field(PORT_AT).cast::<u16>(), field(FD_AT).cast::<i32>());
        // SAFETY: the field is within the server, aligned, and in a cell; no reference to it exists now.
        let set_port = |to: u16| unsafe { port.write(to) };
        set_port(before);
        assert_eq!(memc.set("k", "v"), expected);
        // SAFETY: as above.
        assert_eq!(unsafe { descriptor.read() }, -1, "no descriptor");
        set_port(0);
        // libmemcached keeps the address that it resolved.
        call!(memcached_quit(memc.get_ref()));
        assert_eq!(memc.get("k").is_ok(), expected == MEMCACHED_SUCCESS);
    }
}
