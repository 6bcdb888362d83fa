//! Configuration strings parse as in libmemcached: the recorded text is the output of its own programs.

use std::ffi::{CStr, c_char};
use std::fmt::Write;
use std::ptr;

use fabcache::libmemcached::behavior::memcached_behavior_get;
use fabcache::libmemcached::callback::memcached_callback_get;
use fabcache::libmemcached::configuration::{
    Setting, Settings, Token, libmemcached_check_configuration, memcached,
};
use fabcache::libmemcached::create::{memcached_create, memcached_free, memcached_reset};
use fabcache::libmemcached::names::libmemcached_string_behavior;
use fabcache::libmemcached::server::{
    memcached_server_count, memcached_server_instance_by_position, memcached_server_name,
    memcached_server_port, memcached_server_type,
};
use fabcache::libmemcached::*;
use proptest::prelude::*;

const RECORDED: &str = include_str!("libmemcached/configuration.txt");

/// Escapes a string as the recorded text does.
fn unescaped(line: &str) -> Vec<u8> {
    line.replace("\\t", "\t").replace("\\n", "\n").replace("\\0", "\0").into_bytes()
}

#[test]
fn syntax_errors_match_libmemcached() {
    let mut lines = RECORDED.lines();
    let mut compared = 0;
    while let Some(line) = lines.next() {
        let Some(string) = line.strip_prefix("> ") else { continue };
        let (code, text) = lines.next().and_then(|line| line.split_once(' ')).expect("a code and a text");
        let string = unescaped(string);
        let error = Settings::new(&string).find_map(Result::err).map(|error| error.to_string());
        if text.starts_with("Error occured during parsing") && !line.contains("bad.conf") {
            assert_eq!(error.as_deref(), Some(text), "{line}");
        } else if code == "0" {
            assert_eq!(error, None, "{line}");
        }
        compared += 1;
    }
    assert!(compared > 300, "only {compared} strings are recorded");
}

fn text(text: *const c_char) -> String {
    // SAFETY: each of these ends with a zero, and lives until the handle is used again.
    unsafe { CStr::from_ptr(text) }.to_str().expect("text").to_owned()
}

/// Prints a handle's settings, as tests/libmemcached/configuration.c does.
fn printed(handle: &memcached_st, fresh: &memcached_st) -> String {
    let (handle, fresh) = (Some(handle), Some(fresh));
    let mut printed = String::from("  hosts");
    let count = memcached_server_count(handle);
    for position in 0..count {
        let server = memcached_server_instance_by_position(handle, position);
        // SAFETY: the server lives as long as the handle.
        let server = unsafe { server.as_ref() };
        let (name, port) = (text(memcached_server_name(server)), memcached_server_port(server));
        let kind = text(memcached_server_type(server));
        write!(printed, " {name}:{port}:{kind}").unwrap();
    }
    printed.push_str("\n  behaviors");
    for behavior in 0..MEMCACHED_BEHAVIOR_MAX {
        let is_size =
            [MEMCACHED_BEHAVIOR_SOCKET_SEND_SIZE, MEMCACHED_BEHAVIOR_SOCKET_RECV_SIZE].contains(&behavior);
        if behavior == MEMCACHED_BEHAVIOR_USER_DATA || is_size && count > 0 {
            continue;
        }
        let value = memcached_behavior_get(handle, behavior);
        if value != memcached_behavior_get(fresh, behavior) {
            write!(printed, " {}={value}", text(libmemcached_string_behavior(behavior))).unwrap();
        }
    }
    let name = memcached_callback_get(handle, MEMCACHED_CALLBACK_NAMESPACE, None);
    let name = if name.is_null() { "none".into() } else { text(name.cast()) };
    let handle = handle.unwrap();
    let (sizes, flags) = (&handle.configure, u16::from_le_bytes(handle.flags.get()));
    write!(
        printed,
        "\n  namespace {name}, pool {} to {}, weighted {}, fetching version {}",
        sizes.initial_pool_size.get(),
        sizes.max_pool_size.get(),
        handle.ketama.weighted.get(),
        u8::from(flags & flags::IS_FETCHING_VERSION != 0),
    )
    .unwrap();
    printed
}

/// Returns the check's text for a string, without addresses of handles.
fn checked(string: &[u8]) -> String {
    let mut buffer = [0; 2048];
    // SAFETY: string and buffer have the stated lengths.
    let rc = unsafe {
        libmemcached_check_configuration(
            string.as_ptr().cast(),
            string.len(),
            buffer.as_mut_ptr(),
            buffer.len(),
        )
    };
    let mut words = text(buffer.as_ptr());
    while let Some(start) = words.find("(0x") {
        let end = start + words[start..].find(')').expect("an address ends") + 2;
        words.replace_range(start..end, "");
    }
    format!("{rc} {words}")
}

#[test]
fn configuration_string_sets_up_the_handle() {
    // SAFETY: null, so the library allocates it.
    let fresh = unsafe { memcached_create(ptr::null_mut()) };
    let mut compared = 0;
    let mut lines = RECORDED.lines().peekable();
    while let Some(line) = lines.next() {
        let string = unescaped(line.strip_prefix("> ").expect(line));
        assert_eq!(checked(&string), lines.next().expect("what the check said"), "{line}");
        let mut expected = Vec::new();
        while let Some(next) = lines.next_if(|line| line.starts_with("  ")) {
            expected.push(next);
        }
        // SAFETY: the string has the stated length.
        let handle = unsafe { memcached(string.as_ptr().cast(), string.len()) };
        // SAFETY: null, or a handle that lives until it is freed below.
        let handle_there = unsafe { handle.as_ref() };
        // SAFETY: `memcached_create` returned a handle, which is freed after the loop.
        let fresh_there = unsafe { fresh.as_ref() }.expect("a handle");
        let found = handle_there.map_or("  no handle".into(), |handle| printed(handle, fresh_there));
        assert_eq!(found, expected.join("\n"), "{line}");
        // SAFETY: null, or the handle from `memcached_create` above, used for the last time.
        unsafe { memcached_free(handle) };
        compared += 1;
    }
    // SAFETY: from `memcached_create` above, used for the last time.
    unsafe { memcached_free(fresh) };
    assert!(compared > 300, "only {compared} strings are recorded");
}

#[test]
fn reset_handle_keeps_no_settings() {
    let string = b"--CONFIGURE-FILE=\"tests/libmemcached/good.conf\" --SERVER=other --NAMESPACE=\"mine\"";
    // SAFETY: the string has the stated length.
    let handle = unsafe { memcached(string.as_ptr().cast(), string.len()) };
    // SAFETY: null or a handle; here and below.
    let memc = unsafe { handle.as_ref() }.expect("a handle");
    memc.user_data.set(handle.cast());
    assert_eq!(memc.number_of_hosts.get(), 2);
    assert_eq!(memcached_reset(Some(memc)), MEMCACHED_SUCCESS);
    // SAFETY: null, so the library allocates it.
    let fresh = unsafe { memcached_create(ptr::null_mut()) };
    // SAFETY: the handle was just created.
    let new = unsafe { fresh.as_ref() }.expect("a handle");
    assert_eq!(printed(memc, new), printed(new, new));
    assert!(memc.user_data.get().is_null());
    for handle in [handle, fresh] {
        // SAFETY: from `memcached_create` above, used for the last time.
        unsafe { memcached_free(handle) };
    }
}

#[test]
fn self_including_file_is_rejected() {
    let path = std::env::temp_dir().join(format!("fabcache-c-include-{}.conf", std::process::id()));
    let string = format!("INCLUDE \"{}\"", path.display());
    std::fs::write(&path, format!("--SERVER=host\n{string}\n")).expect("a file");
    assert_eq!(checked(string.as_bytes()), "43 Failed to parse configuration file");
    std::fs::remove_file(&path).expect("the file exists");
}

#[test]
fn check_without_string_or_buffer_is_rejected() {
    // SAFETY: null arguments.
    let rc = unsafe { libmemcached_check_configuration(ptr::null(), 5, ptr::null_mut(), 0) };
    assert_eq!(rc, MEMCACHED_INVALID_ARGUMENTS);
    // SAFETY: the string has the stated length; there is no buffer.
    let rc = unsafe { libmemcached_check_configuration(c"--FOO".as_ptr(), 5, ptr::null_mut(), 100) };
    assert_eq!(rc, MEMCACHED_PARSE_ERROR);
    let mut buffer = [1; 8];
    // SAFETY: string and buffer have the stated lengths.
    let rc = unsafe { libmemcached_check_configuration(c"--FOO".as_ptr(), 5, buffer.as_mut_ptr(), 5) };
    assert_eq!((rc, buffer[4], buffer[5]), (MEMCACHED_PARSE_ERROR, 0, 1));
    // SAFETY: null arguments.
    assert!(unsafe { memcached(ptr::null(), 5) }.is_null());
    // SAFETY: the length is 0, so nothing is read.
    assert!(unsafe { memcached(c"--SERVER=host".as_ptr(), 0) }.is_null());
}

/// A setting as text, and its parsed value.
fn setting() -> impl Strategy<Value = (String, Read)> {
    let name = "(fab://|Fab://)?[a-zA-Z0-9][a-zA-Z0-9_.-]{1,20}[a-zA-Z0-9]x";
    let weight = proptest::option::of(0..99_999_u32);
    let weighted = |weight: Option<u32>| weight.map_or(String::new(), |weight| format!("/?{weight}"));
    let hash = prop_oneof![
        Just(("MD5", Token::Md5)),
        Just(("fnv1_64", Token::Fnv1_64)),
        Just(("FNV1A_32", Token::Fnv1a32)),
        Just(("jenkins", Token::Jenkins)),
    ];
    prop_oneof![
        (name, proptest::option::of(any::<u16>()), weight.clone()).prop_map(move |(host, port, weight)| {
            let written = port.map_or(String::new(), |port| format!(":{port}"));
            (format!("--SERVER={host}{written}{}", weighted(weight)), Read::Server(host, port, weight))
        }),
        ("[^\"\\\\]{0,20}", weight).prop_map(move |(path, weight)| {
            (format!("--SOCKET=\"{path}\"{}", weighted(weight)), Read::Socket(path, weight))
        }),
        "[^\"\\\\]{0,20}".prop_map(|name| (format!("--namespace=\"{name}\""), Read::Namespace(name))),
        hash.clone().prop_map(|(word, hash)| (format!("--HASH={word}"), Read::Hash(hash))),
        proptest::option::of(hash).prop_map(|hash| {
            let word = hash.map_or(String::new(), |(word, _)| format!(",{word}"));
            let hash = hash.map(|(_, hash)| hash);
            (format!("--DISTRIBUTION=consistent{word}"), Read::Distribution(Token::Consistent, hash))
        }),
        any::<u64>().prop_map(|n| (format!("--Poll-Timeout={n}"), Read::Number(Token::PollTimeout, n))),
        Just(("--SORT-HOSTS".into(), Read::Switch(Token::SortHosts))),
        Just(("--hash-with-namespace".into(), Read::Switch(Token::HashWithNamespace))),
        Just(("RESET".into(), Read::Reset)),
    ]
}

/// [`Setting`], owned.
#[derive(Debug, Clone, PartialEq)]
enum Read {
    Server(String, Option<u16>, Option<u32>),
    Socket(String, Option<u32>),
    Namespace(String),
    Distribution(Token, Option<Token>),
    Hash(Token),
    Number(Token, u64),
    Switch(Token),
    Reset,
    Other,
}

fn owned(setting: Setting<'_>) -> Read {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text was given");
    match setting {
        Setting::Server { host, port, weight } => Read::Server(text(host), port, weight),
        Setting::Socket { path, weight } => Read::Socket(text(path), weight),
        Setting::Namespace(name) => Read::Namespace(text(name)),
        Setting::Distribution(distribution, hash) => Read::Distribution(distribution, hash),
        Setting::Hash(hash) => Read::Hash(hash),
        Setting::Number(token, number) => Read::Number(token, number),
        Setting::Switch(token) => Read::Switch(token),
        Setting::Reset => Read::Reset,
        Setting::ConfigureFile(_) | Setting::Include(_) => Read::Other,
    }
}

proptest! {
    #[test]
    fn settings_round_trip(settings in proptest::collection::vec(setting(), 1..8)) {
        let (words, expected): (Vec<_>, Vec<_>) = settings.into_iter().unzip();
        let string = words.join(" ");
        let read: Result<Vec<_>, _> = Settings::new(string.as_bytes()).collect();
        let read: Vec<_> = read.map_err(|error| error.to_string()).unwrap().into_iter().map(owned).collect();
        prop_assert_eq!(read, expected, "{}", string);
    }

    #[test]
    fn any_bytes_parse_or_fail(
        bytes in proptest::collection::vec(any::<u8>(), 0..64),
        words in proptest::collection::vec(
            prop_oneof![
                Just("--SERVER="), Just("--HASH="), Just("--SOCKET="), Just("--DISTRIBUTION="), Just("INCLUDE"),
                Just(" "), Just(","), Just("1.2.3.4"), Just("host"), Just(":12"), Just("/?3"), Just("\"a\\\"b\""),
                Just("MD5"), Just("modula"), Just("\n"), Just("#c\n"), Just("END"), Just("--POOL-MIN="), Just("12"),
            ],
            0..16,
        ),
    ) {
        for string in [bytes, words.concat().into_bytes()] {
            // Each setting takes at least a byte, and parsing stops at an error.
            let read: Vec<_> = Settings::new(&string).collect();
            prop_assert!(read.len() <= string.len() + 1);
            prop_assert!(read.iter().rev().skip(1).all(Result::is_ok));
        }
    }
}
