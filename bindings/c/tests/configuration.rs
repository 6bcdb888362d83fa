//! Configuration strings are read as libmemcached reads them: the recorded text is what its own programs print.

use fabcache::libmemcached::configuration::{Setting, Settings, Token};
use proptest::prelude::*;

const RECORDED: &str = include_str!("libmemcached/configuration.txt");

/// As the strings are written in the recorded text.
fn unescaped(line: &str) -> Vec<u8> {
    line.replace("\\t", "\t").replace("\\n", "\n").replace("\\0", "\0").into_bytes()
}

#[test]
fn syntax_errors_are_libmemcacheds() {
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

/// A setting in words, and what it is read as.
fn setting() -> impl Strategy<Value = (String, Read)> {
    let name = "[a-zA-Z0-9][a-zA-Z0-9_.-]{1,20}[a-zA-Z0-9]x";
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
    fn settings_are_read_as_they_are_written(settings in proptest::collection::vec(setting(), 1..8)) {
        let (words, expected): (Vec<_>, Vec<_>) = settings.into_iter().unzip();
        let string = words.join(" ");
        let read: Result<Vec<_>, _> = Settings::new(string.as_bytes()).collect();
        let read: Vec<_> = read.map_err(|error| error.to_string()).unwrap().into_iter().map(owned).collect();
        prop_assert_eq!(read, expected, "{}", string);
    }

    #[test]
    fn any_bytes_come_to_an_end(
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
            // Each setting takes a byte or more, and nothing comes after an error.
            let read: Vec<_> = Settings::new(&string).collect();
            prop_assert!(read.len() <= string.len() + 1);
            prop_assert!(read.iter().rev().skip(1).all(Result::is_ok));
        }
    }
}
