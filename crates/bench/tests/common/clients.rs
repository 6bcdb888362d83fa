//! Load for the engine's many clients.

use fabcache_bench::engine::{Plan, Popularity, Sizes, Work};
use fabcache_bench::fill::fill;
use fabcache_bench::items::Items;
use fabcache_bench::target::{ANSWER_TIMEOUT, Target, protocol};

/// Returns a work of single-key reads.
pub fn work(keys: u64, sizes: Sizes) -> Work {
    Work {
        keys,
        key_bytes: 20,
        popularity: Popularity::Uniform,
        sizes,
        get_share: 1.0,
        batch: 1,
        pipeline: 1,
        verify: true,
    }
}

/// Returns a plan with one client.
pub fn plan(urls: &[String], protocol: &str, work: &Work) -> Plan {
    let timeout_ns = ANSWER_TIMEOUT.as_nanos() as u64;
    let (urls, protocol, work) = (urls.to_vec(), protocol.into(), work.clone());
    Plan { urls, protocol, work, clients: 1, threads: 1, timeout_ns }
}

/// Returns a plan's target.
pub fn target(plan: &Plan) -> Target {
    let urls: Vec<_> = plan.urls.iter().map(|url| url.parse().expect("a URL")).collect();
    Target::new("server", &urls, protocol(&plan.protocol).expect("a protocol")).expect("it is up")
}

/// Stores all items of a plan through the client library.
pub fn filled(plan: &Plan) {
    let items = Items::new(plan.work.key_bytes).expect("a length of keys");
    let sizes = plan.work.sizes;
    let client = target(plan).client().expect("it is up");
    fill(&client, &items, 0..plan.work.keys, |number| sizes.value_bytes(number)).expect("it stores");
}
