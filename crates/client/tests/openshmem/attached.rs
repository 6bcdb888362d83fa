//! Clients that are attached to a PE by shared memory get the items of all PEs.

use fabcache_client::{Client, Options, Outcome, Protocol, Transport, Ttl};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::openshmem::Job;

use crate::jobs::{Owners, options, started_patient, unix};

/// From nothing to several times the staging memory of a channel, and the buffers of a link.
const LENGTHS: [usize; 6] = [0, 5, 4_000, 20_000, 70_000, 900_000];

/// Returns a client that is attached to a PE.
#[track_caller]
fn attached(job: &Job, pe: usize, protocol: Protocol) -> Client {
    let client = Client::new([unix(job, pe)], Options { protocol, ..options() }).expect("an address");
    client.get(b"none").expect("answered");
    let transports = client.transports();
    // Over tcp the heap is no file that clients could map.
    let is_attached = matches!(transports[..], [Some(Transport::SharedMemory | Transport::Channel { .. })]);
    assert!(is_attached, "PE {pe}: {transports:?}");
    client
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn attached_clients_get_the_items_of_all_pes() {
    let job = started_patient("-m 64 --shm --shm-staging 256k");
    let owners = Owners::of(&job);
    for protocol in [Protocol::Meta, Protocol::Binary, Protocol::Text] {
        let clients: Vec<Client> = (0..job.pes()).map(|pe| attached(&job, pe, protocol)).collect();
        for (pe, client) in clients.iter().enumerate() {
            for owner in 0..job.pes() {
                let keys = owners.keys(owner, &format!("{protocol:?}{pe}-"), LENGTHS.len());
                for (number, (key, len)) in keys.iter().zip(LENGTHS).enumerate() {
                    let value = pattern(number, len);
                    client.set_with_flags(key.as_bytes(), &value, Ttl::NEVER, 7).expect("stored");
                    // Another client reads it, and deletes it.
                    let other = &clients[(pe + number) % clients.len()];
                    let item = other.get(key.as_bytes()).expect("answered").expect("there");
                    assert!(item.value == value && item.flags == 7, "{key}: {len} bytes through PE {pe}");
                    assert!(other.delete(key.as_bytes()).expect("answered"), "{key}");
                    assert_eq!(client.get(key.as_bytes()).expect("answered"), None, "{key}");
                }
            }
        }
    }
}

/// A get that is under way together with a set of the same key finds what that sets, whichever PE has the key.
#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn requests_under_way_at_several_pes_keep_their_order() {
    let job = started_patient("-m 64 --shm");
    let owners = Owners::of(&job);
    for pe in 0..job.pes() {
        let client = attached(&job, pe, Protocol::Auto);
        let keys: Vec<String> =
            (0..job.pes()).flat_map(|owner| owners.keys(owner, &format!("{pe}-"), LENGTHS.len())).collect();
        let lengths = || LENGTHS.into_iter().cycle();
        for round in 0..5 {
            let pairs = keys.iter().zip(lengths()).map(|(key, len)| {
                let store = client.iset(key.as_str(), pattern(round, len), Ttl::NEVER);
                (store, client.iget(key.as_str(), Vec::new()))
            });
            let pairs: Vec<_> = pairs.collect();
            for ((mut store, mut read), (key, len)) in pairs.into_iter().zip(keys.iter().zip(lengths())) {
                assert!(matches!(store.wait().result, Ok(Outcome::Stored)), "{key}");
                let read = read.wait();
                assert!(matches!(read.result, Ok(Outcome::Found { .. })), "{key}: {:?}", read.result);
                assert!(read.value == pattern(round, len), "{key}: {len} bytes in round {round}");
            }
        }
    }
}
