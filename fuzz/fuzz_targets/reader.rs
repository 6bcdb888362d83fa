//! A reader of a region that answers with any bytes: it ends, never leaves the region, and takes nothing for an item.
#![no_main]

#[path = "../../crates/layout/tests/common/mod.rs"]
mod common;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    common::run(data);
});
