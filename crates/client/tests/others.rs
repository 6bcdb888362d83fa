//! The client against other servers and proxies, which `cargo xtask protocols` starts.

mod common;

use common::calls::{Call, CallResult, Side, call, in_common, is_by_chance, plain_ttl};
use fabcache_client::{Client, Credentials, Error, Failure, Options, Protocol, Transport, Ttl};
use proptest::collection::vec;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

/// As many cases as the workspace's differential tests.
const CASES: u32 = 200;

/// Returns a setting that `cargo xtask protocols` passes.
fn reported(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; run cargo xtask protocols"))
}

/// A proxy does not know these calls.
fn is_of_one_server(call: &Call) -> bool {
    matches!(call, Call::GetAndTouch(..) | Call::Flush | Call::Stats | Call::Verbosity)
}

/// memcached accepts as a number any digits followed by white space, and reads beyond the item: an all-blank value
/// may be a number, and one of 2^63 or more is none if a `-` follows. A result with fewer digits is padded with
/// spaces, except while memcached's maintenance holds the item.
fn is_by_chance_for(found: &CallResult, delta: u64, decrement: bool) -> bool {
    let CallResult::Items(items) = found else { return false };
    let is_so = |value: &[u8]| {
        let is_white = |byte: &u8| matches!(byte, b' ' | 9..=13);
        let Some(begin) = value.iter().position(|byte| !is_white(byte)) else { return true };
        let digits = value[begin..].split(is_white).next().unwrap_or_default();
        let Some(number) = str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u64>().ok()) else {
            return false;
        };
        let comes = if decrement { number.saturating_sub(delta) } else { number.wrapping_add(delta) };
        i64::try_from(number).is_err() || comes.to_string().len() < value.len()
    };
    items.iter().flatten().any(|(value, ..)| is_so(value))
}

/// A name, the client under test, and a client of the server behind a proxy.
type Caller = (&'static str, Side, Option<Side>);

/// Makes a call on each side and returns its result.
///
/// # Errors
/// The results differ.
fn on_all(sides: &mut [Caller], call: &Call) -> Result<CallResult, TestCaseError> {
    let mut first = None;
    for (name, side, behind) in sides {
        let done = match behind.as_mut().filter(|_| is_of_one_server(call)) {
            None => side.call(call),
            Some(behind) => {
                let done = behind.call(call);
                side.learn(behind);
                done
            }
        };
        let done = in_common(call, done);
        let expected = first.get_or_insert_with(|| done.clone());
        proptest::prop_assert!(
            done == *expected,
            "{call:?}: {name}\n{:.1000}\n{:.1000}",
            format!("{expected:?}"),
            format!("{done:?}")
        );
    }
    Ok(first.expect("there are sides"))
}

#[test]
#[ignore = "cargo xtask protocols"]
fn memcached_and_proxy_return_the_same_in_all_protocols() {
    let side =
        |address: &str, protocol| Side::with_words(address, Options { protocol, ..Options::default() });
    let server = |name, protocol| side(&reported(name), protocol);
    let sides = || {
        [
            ("meta", server("FABCACHE_TEST_META", Protocol::Meta), None),
            ("binary", server("FABCACHE_TEST_BINARY", Protocol::Binary), None),
            ("text", server("FABCACHE_TEST_TEXT", Protocol::Text), None),
            (
                "through a proxy",
                server("FABCACHE_TEST_PROXY", Protocol::Auto),
                Some(server("FABCACHE_TEST_BEHIND_PROXY", Protocol::Auto)),
            ),
        ]
    };
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let done =
        runner.run(&vec(call(plain_ttl()), 1..60), |calls| {
            let mut sides = sides();
            sides.iter().for_each(|(_, side, behind)| behind.as_ref().unwrap_or(side).flush());
            for call in calls.iter().filter(|call| !is_by_chance(call)) {
                if let Call::Arithmetic(key, delta, decrement)
                | Call::ArithmeticOrSet(key, delta, decrement, ..) = call
                    && is_by_chance_for(&on_all(&mut sides, &Call::Get(*key))?, *delta, *decrement)
                {
                    continue;
                }
                on_all(&mut sides, call)?;
            }
            Ok(())
        });
    done.unwrap_or_else(|failed| panic!("{failed}"));
}

#[test]
#[ignore = "cargo xtask protocols"]
fn proxy_is_addressed_in_text() {
    let proxy = Client::new([reported("FABCACHE_TEST_PROXY")], Options::default()).expect("an address");
    proxy.set(b"proxied", b"value", Ttl::NEVER).expect("stored");
    assert_eq!(proxy.iget("proxied", Vec::new()).wait().value, b"value");
    let refused = proxy.get(b"no word");
    assert!(matches!(refused, Err(Error::Server { failure: Failure::Key, .. })), "{refused:?}");
}

#[test]
#[ignore = "cargo xtask protocols"]
fn memcached_accepts_sasl_credentials() {
    let as_user = |user: &str, password: &str| {
        let credentials = Some(Credentials { user: user.into(), password: password.into() });
        let options = Options { protocol: Protocol::Binary, credentials, ..Options::default() };
        Client::new([reported("FABCACHE_TEST_SASL")], options).expect("an address")
    };
    let user = as_user("fabcache", "a password");
    user.set(b"key", b"value", Ttl::NEVER).expect("stored");
    assert_eq!(user.iget("key", Vec::new()).wait().value, b"value");
    assert_eq!(user.get_many(&["key", "none"]).expect("keys").items.iter().flatten().count(), 1);
    for (name, password) in [("fabcache", "another"), ("nobody", "a password")] {
        let refused = as_user(name, password).get(b"key");
        let why = "Auth failure.";
        assert!(
            matches!(&refused, Err(Error::Server { failure: Failure::Rejected(said), .. }) if said == why),
            "{refused:?}"
        );
    }
}

#[test]
#[ignore = "cargo xtask protocols"]
fn memcached_without_shared_memory_is_reached_over_its_socket() {
    for protocol in [Protocol::Auto, Protocol::Meta, Protocol::Binary, Protocol::Text] {
        let options = Options { protocol, ..Options::default() };
        let cache = Client::new([reported("FABCACHE_TEST_UNIX")], options).expect("an address");
        for round in 0..20 {
            let key = format!("{protocol:?} {round}").replace(' ', "-");
            cache.set(key.as_bytes(), b"value", Ttl::NEVER).expect("stored");
            assert_eq!(cache.iget(&*key, Vec::new()).wait().value, b"value", "{protocol:?}");
            assert_eq!(cache.incr_or_set(b"n", 1, 1, Ttl::EXPIRED).expect("counted"), 1, "{protocol:?}");
        }
        assert!(matches!(&cache.transports()[..], [Some(Transport::Unix { why: Some(_) })]), "{protocol:?}");
    }
}
