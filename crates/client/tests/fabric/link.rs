//! Clients whose network link goes down and up again.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use fabcache_client::{Client, Error, Fabric, FabricMode, Options, Transport, Ttl};
use fabcache_testbed::report::not_run;

use super::common::fabric::{beside, is_one_sided, options, over, served};
use super::common::process::wait_until;
use super::on_fabric;

/// The command that takes the network link between client and server `down` or `up`, if set.
const LINK: &str = "FABCACHE_LINK";

/// Brings the link up again, however a test ends.
struct Link(String);

impl Link {
    fn is(&self, state: &str) {
        let script = format!("{} {state}", self.0);
        let status = Command::new("sh").args(["-c", &script]).status().expect("a shell");
        assert!(status.success(), "{script}: {status}");
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.is("up");
    }
}

const TIMEOUT: Duration = Duration::from_secs(4);

fn bounded(address: &str, mode: FabricMode, or_tcp: bool) -> Client {
    let (retry_after, fabric) = (Duration::from_millis(1), Fabric { or_tcp, ..options(mode).fabric });
    let options =
        Options { fabric, timeout: TIMEOUT, connect_timeout: TIMEOUT, retry_after, ..Options::default() };
    over(address, options)
}

fn works(cache: &Client, value: &[u8]) {
    cache.set(b"key", value, Ttl::NEVER).expect("stored");
    assert_eq!(cache.get(b"key").expect("answered").expect("there").value, value);
    is_one_sided(cache);
}

/// Stores and gets until a call fails; returns the error and how long that call took.
fn until_it_fails(cache: &Client) -> (Error, Duration) {
    loop {
        let began = Instant::now();
        let stored = cache.set(b"other", &[7; 20_000], Ttl::NEVER);
        let failed = stored.err().or_else(|| cache.get(b"key").err());
        if let Some(error) = failed {
            return (error, began.elapsed());
        }
        // A client on TCP may not notice.
        if matches!(cache.transports()[0], Some(Transport::InsteadOfFabric { .. })) {
            panic!("the pending call was answered");
        }
    }
}

/// Calls until one is answered; prints the errors before.
fn until_it_is_answered(cache: &Client) {
    let (began, mut said) = (Instant::now(), String::new());
    wait_until("a call is answered again", || {
        let Err(error) = cache.get(b"key") else { return true };
        let text = error.to_string();
        if text != said {
            println!("after {:?} up: {text}", began.elapsed());
            said = text;
        }
        false
    });
    println!("answered after {:?}", began.elapsed());
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn link_going_down_fails_calls_or_falls_back_and_recovers() {
    let Ok(link) = std::env::var(LINK) else {
        return not_run(
            "link_going_down_fails_calls_or_falls_back_and_recovers",
            &format!("{LINK} names no command that takes a link down"),
        );
    };
    let (_server, address, path) = served("fabric-link", "");
    let control = beside(&path.0);
    let caches = [(FabricMode::OneSided, false), (FabricMode::Request, false), (FabricMode::Auto, true)]
        .map(|(mode, or_tcp)| bounded(&address, mode, or_tcp));
    caches.iter().for_each(|cache| works(cache, b"value"));
    let link = Link(link);
    thread::scope(|scope| {
        let in_flight: Vec<_> =
            caches.iter().map(|cache| scope.spawn(move || until_it_fails(cache))).collect();
        thread::sleep(Duration::from_millis(300));
        link.is("down");
        for thread in in_flight {
            let (error, time) = thread.join().expect("no panic");
            println!("after {time:?}: {error}");
            assert!(matches!(error, Error::Server { .. }), "{error:?}");
            assert!(time < 4 * TIMEOUT, "{error} took too long");
        }
    });
    // The resources of the disconnected clients are released.
    wait_until("the links are closed", || on_fabric(&control) == 0);
    for cache in &caches[..2] {
        let began = Instant::now();
        let error = cache.get(b"key").expect_err("the link is down");
        println!("after {:?}: {error}", began.elapsed());
        assert!(error.to_string().contains("the fabric was agreed on, but not reached"), "{error}");
        assert!(began.elapsed() < 4 * TIMEOUT, "{error} took too long");
    }
    assert_eq!(caches[2].get(b"key").expect("by TCP").expect("there").value, b"value");
    let [Some(Transport::InsteadOfFabric { why })] = &caches[2].transports()[..] else { panic!("by TCP") };
    assert!(why.contains("not reached"), "{why}");
    link.is("up");
    for cache in &caches[..2] {
        until_it_is_answered(cache);
        works(cache, b"again");
    }
    let fresh = bounded(&address, FabricMode::Auto, true);
    works(&fresh, b"anew");
}
