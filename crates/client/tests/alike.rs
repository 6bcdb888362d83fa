//! Calls return the same results through shared memory, through a channel alone and over TCP, in each protocol.

mod common;

use common::Running;
use common::calls::{ITEM_BYTES_MAX, Side, call, ttl};
use fabcache_client::{Options, Protocol, SharedMemory};
use proptest::collection::vec;
use proptest::prelude::*;

/// Small slots, a small staging area and short turns: transfers are split often.
const MEMORY: &str = "-R 3 --shm --shm-slots 4 --shm-slot-size 128 --shm-staging 16k";

proptest! {
    // Each case takes seven servers.
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn calls_return_the_same_over_all_transports_and_protocols(calls in vec(call(ttl()), 1..60)) {
        let flags = format!("-m 16 -I {ITEM_BYTES_MAX}");
        let (_shared, address) = Running::unix("alike", &format!("{flags} {MEMORY}"));
        let shared_memory = SharedMemory::Required;
        let mut through_memory = Side::new(&address, Options { shared_memory, ..Options::default() });
        let (channel_only, address) =
            Running::over_unmappable_memory("alike-channel", &format!("{flags} {MEMORY}"));
        let by_channel = Side::new(&address, Options::default());
        let (shard, address) = Running::over_symmetric_memory("alike-shard", &format!("{flags} {MEMORY}"));
        let through_shard = Side::new(&address, Options { shared_memory, ..Options::default() });
        let over_tcp = [Protocol::Auto, Protocol::Meta, Protocol::Binary, Protocol::Text]
            .into_iter()
            .map(|protocol| {
                let server = Running::tcp(&flags);
                let new = if protocol == Protocol::Text { Side::with_words } else { Side::new };
                let side = new(&server.address(), Options { protocol, ..Options::default() });
                (server, format!("over TCP by {protocol:?}"), side)
            });
        let beside_memory = [
            (channel_only, "through a channel alone".to_owned(), by_channel),
            (shard, "through a shard".to_owned(), through_shard),
        ];
        let mut others: Vec<_> = over_tcp.chain(beside_memory).collect();
        for (at, call) in calls.iter().enumerate() {
            let memory = through_memory.call(call);
            for (_, name, side) in &mut others {
                let other = side.call(call);
                prop_assert!(
                    memory == other,
                    "call {} {:?}: {}\n{:.1000}\n{:.1000}",
                    at, call, name, format!("{memory:?}"), format!("{other:?}")
                );
            }
        }
    }
}
