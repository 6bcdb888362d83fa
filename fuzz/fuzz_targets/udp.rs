//! Datagrams: a request is split without a panic and decoded, a reply is reassembled.
#![no_main]

#[path = "../../crates/protocol/tests/common/mod.rs"]
mod common;
mod pieces;

use common::Setup;
use fabcache_protocol::bounds::DATAGRAM_MAX;
use fabcache_protocol::udp;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(frame) = udp::parse(data) {
        assert_eq!(frame.payload, &data[udp::FRAME..]);
        pieces::compare(frame.id as u8, frame.payload, Setup::default());
    }
    // Long enough for several datagrams, for any size of the data.
    let reply = data.repeat(1 + 8 * DATAGRAM_MAX / (data.len() + 1));
    let mut joined = Vec::new();
    for (number, (frame, payload)) in udp::split(7, &reply).expect("few enough").enumerate() {
        assert_eq!(frame[..4], [0, 7, 0, number as u8]);
        assert!(frame.len() + payload.len() <= DATAGRAM_MAX);
        joined.extend_from_slice(payload);
    }
    assert_eq!(joined, reply);
});
