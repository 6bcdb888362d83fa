//! A reader of a region with arbitrary contents: it ends, never leaves the region, and finds no item.
#![no_main]

#[path = "../../crates/layout/tests/common/mod.rs"]
mod common;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    common::run(data);
});
