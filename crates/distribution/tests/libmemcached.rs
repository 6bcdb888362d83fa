//! Keys are hashed and mapped to servers as in libmemcached, checked key by key against its recorded output.

use fabcache_distribution::{Address, Distribution, Hash, Hashing, Mapping, Names, Placement, Weights};

/// The hashes, with their names in the files.
const HASHES: [(&str, Hash); 10] = [
    ("default", Hash::OneAtATime),
    ("md5", Hash::Md5),
    ("crc", Hash::Crc),
    ("fnv1_64", Hash::Fnv64),
    ("fnv1a_64", Hash::Fnv64a),
    ("fnv1_32", Hash::Fnv32),
    ("fnv1a_32", Hash::Fnv32a),
    ("murmur", Hash::Murmur),
    ("jenkins", Hash::Jenkins),
    ("murmur3", Hash::Murmur3),
];
const NAMESPACE: &str = "space:";

fn hash_of(name: &str) -> Hash {
    HASHES.iter().find(|(known, _)| *known == name).expect(name).1
}

#[test]
fn every_hash_matches_libmemcached() {
    let mut checked = 0;
    for line in include_str!("hashes.txt").lines().filter(|line| !line.starts_with('#')) {
        let (name, expected) = line.split_once(' ').expect("a name and hashes");
        for (i, expected) in expected.split(' ').enumerate() {
            let (length, mask) = (i / 2, if i % 2 == 0 { 0x7f } else { 0xff });
            let bytes: Vec<u8> = (0..length).map(|j| ((length * 37 + j * 151) & mask) as u8).collect();
            assert_eq!(format!("{:08x}", hash_of(name).of(&bytes)), expected, "{name} of {bytes:?}");
            checked += 1;
        }
    }
    assert_eq!(checked, HASHES.len() * 71 * 2);
}

#[test]
fn every_key_maps_as_in_libmemcached() {
    let mut checked = 0;
    let mut servers: Vec<Address> = Vec::new();
    for line in include_str!("servers.txt").lines().filter(|line| !line.starts_with('#')) {
        if let Some(addresses) = line.strip_prefix("servers ") {
            servers = addresses.split(' ').map(|address| address.parse().expect(address)).collect();
            continue;
        }
        let (what, expected) = line.split_once(" | ").expect("a distribution and what keys get");
        let words: Vec<&str> = what.split(' ').collect();
        let distribution = distribution_of(&words, servers.len() as u32);
        let without_first = words[0] == "without-first";
        let mapping = Mapping::new(&distribution, &servers, |server| server > 0 || !without_first);
        let namespace = if what.contains("namespace") { NAMESPACE } else { "" };
        for (i, server) in expected.chars().enumerate() {
            let key = format!("{namespace}key-{}", i * 7919);
            let found = mapping.server_of(key.as_bytes());
            let server = server.to_digit(36).map(|server| server as usize);
            assert_eq!(found, server, "{key} by {what} among {servers:?}");
            checked += 1;
        }
    }
    // Each set of servers with each hash in each of 19 distributions, and with the three usual ones; one of them twice
    // without the first server.
    assert_eq!(checked, (8 * (HASHES.len() * 19 + 3) + 2) * 64);
}

/// Parses the distribution that a line of the file names.
fn distribution_of(words: &[&str], servers: u32) -> Distribution {
    let hash = match words {
        ["usual", "modula"] => return Distribution::Modula,
        ["usual" | "without-first", "ketama"] => return Distribution::Ketama,
        ["usual" | "without-first", "ketama-weighted"] => return Distribution::KetamaWeighted,
        [hash, ..] => hash_of(hash),
        [] => panic!("an empty line"),
    };
    let ring = |names, weights| Placement::Ring { names, weights };
    let placement = match words[1..] {
        ["modula", ..] => Placement::Modula,
        ["consistent" | "consistent-ketama", "behind"] => ring(Names::Ketama, Weights::Never),
        ["consistent" | "consistent-ketama", ..] => ring(Names::Ketama, Weights::Heard),
        ["consistent-weighted", ..] => ring(Names::Ketama, Weights::Always),
        ["spy", "behind"] => ring(Names::Spy, Weights::Never),
        ["spy", "weighted"] => ring(Names::Spy, Weights::Always),
        ["spy"] => ring(Names::Spy, Weights::Heard),
        ["buckets", count, ..] => {
            let count: u32 = count.parse().expect(count);
            Placement::Buckets((0..count).map(|i| i * 5 / 3 % servers).collect())
        }
        _ => panic!("{words:?}"),
    };
    let namespace_bytes = if words.last() == Some(&"namespace") { NAMESPACE.len() } else { 0 };
    let sort_hosts = words.last() == Some(&"sorted");
    Distribution::Custom(Hashing { hash, placement, namespace_bytes, sort_hosts })
}
