//! Command-line values with their own grammar: prefixes of addresses, networks, and `-o`.
#![no_main]

use fabcache_server::addresses;
use fabcache_server::extended_options::ExtendedOptions;
use fabcache_server::networks::Network;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &str| {
    for line in data.lines() {
        if let Ok((_, rest)) = addresses::prefixes(line) {
            assert!(line.ends_with(rest));
        }
        let _ = addresses::mask(line);
        if let Ok(network) = line.parse::<Network>() {
            assert_eq!(network.to_string().parse::<Network>().expect("it is one"), network);
        }
    }
    let words: Vec<String> = data.lines().map(str::to_owned).collect();
    let _ = ExtendedOptions::parse(&words);
});
