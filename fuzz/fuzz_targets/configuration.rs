//! Configuration strings under libmemcached's names.
#![no_main]

use fabcache::libmemcached::configuration::Settings;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let read: Vec<_> = Settings::new(data).collect();
    assert!(read.len() <= data.len() + 1, "a setting of no bytes");
    assert!(read.iter().rev().skip(1).all(Result::is_ok), "a setting after an error");
    if let Some(Err(error)) = read.last() {
        assert!(error.to_string().ends_with(')'));
    }
});
