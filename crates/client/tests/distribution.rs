//! Keys are mapped to servers as libmemcached maps them: key by key, by what it printed.

use fabcache_client::{Address, Distribution, distribution::Mapping};

#[test]
fn every_key_is_where_libmemcached_looks_for_it() {
    let mut checked = 0;
    for line in include_str!("distribution.txt").lines().filter(|line| !line.starts_with('#')) {
        let (what, expected) = line.split_once(" | ").expect("servers and what they get");
        let mut words = what.split(' ');
        let distribution = match words.next() {
            Some("modula") => Distribution::Modula,
            Some("ketama") => Distribution::Ketama,
            Some("ketama-weighted") => Distribution::KetamaWeighted,
            other => panic!("{other:?}"),
        };
        let servers: Vec<Address> = words.map(|address| address.parse().expect(address)).collect();
        let mapping = Mapping::new(&distribution, &servers, |_| true);
        for (i, server) in expected.split(' ').enumerate() {
            let key = format!("key-{}", i * 7919);
            let found = mapping.server_of(key.as_bytes()).expect("there are servers");
            assert_eq!(found.to_string(), server, "{key} in {what}");
            checked += 1;
        }
    }
    assert!(checked > 4_000, "{checked}");
}
