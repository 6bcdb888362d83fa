//! The words of a command line that have a grammar of their own: what precedes an address, and `-o`.
#![no_main]

use fabcache_server::addresses;
use fabcache_server::extended::Extended;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &str| {
    for line in data.lines() {
        if let Ok((_, rest)) = addresses::prefixes(line) {
            assert!(line.ends_with(rest));
        }
        let _ = addresses::mask(line);
    }
    let words: Vec<String> = data.lines().map(str::to_owned).collect();
    let _ = Extended::parse(&words);
});
