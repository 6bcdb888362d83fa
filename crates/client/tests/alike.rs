//! Calls return the same results through shared memory and over TCP, in each protocol.

mod common;

use common::Running;
use common::calls::{ITEM_BYTES_MAX, Side, call, ttl};
use fabcache_client::{Options, Protocol, SharedMemory};
use proptest::collection::vec;
use proptest::prelude::*;

/// Small slots, a small staging area and short turns: transfers are split often.
const MEMORY: &str = "-R 3 --shm --shm-slots 4 --shm-slot-size 128 --shm-staging 16k";

proptest! {
    // Each case takes four servers.
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn memory_and_tcp_calls_return_the_same_in_all_protocols(calls in vec(call(ttl()), 1..60)) {
        let flags = format!("-m 16 -I {ITEM_BYTES_MAX}");
        let (_shared, address) = Running::unix("alike", &format!("{flags} {MEMORY}"));
        let shared_memory = SharedMemory::Required;
        let mut through_memory = Side::new(&address, Options { shared_memory, ..Options::default() });
        let mut over_tcp: Vec<_> = [Protocol::Auto, Protocol::Meta, Protocol::Binary, Protocol::Text]
            .into_iter()
            .map(|protocol| {
                let server = Running::tcp(&flags);
                let new = if protocol == Protocol::Text { Side::with_words } else { Side::new };
                let side = new(&server.address(), Options { protocol, ..Options::default() });
                (server, protocol, side)
            })
            .collect();
        for (at, call) in calls.iter().enumerate() {
            let memory = through_memory.call(call);
            for (_, protocol, side) in &mut over_tcp {
                let tcp = side.call(call);
                prop_assert!(
                    memory == tcp,
                    "call {} {:?}: {:?}\n{:.1000}\n{:.1000}",
                    at, call, protocol, format!("{memory:?}"), format!("{tcp:?}")
                );
            }
        }
    }
}
