//! Text, before and after authentication: the split of the stream does not matter.
#![no_main]

#[path = "../../crates/protocol/tests/common/mod.rs"]
mod common;
mod pieces;

use common::Setup;
use fabcache_protocol::Protocol;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((choice, rest)) = data.split_first() else { return };
    let setup = Setup { protocol: Some(Protocol::Text), auth: *choice & 7 == 0, ..Setup::default() };
    pieces::compare(*choice, rest, setup);
});
