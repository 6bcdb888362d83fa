//! Keys are hashed as libmemcached hashes them: by what it printed.

use fabcache_client::distribution::Hash;

#[test]
fn every_hash_is_libmemcacheds() {
    let mut checked = 0;
    for line in include_str!("hashes.txt").lines().filter(|line| !line.starts_with('#')) {
        let (name, expected) = line.split_once(' ').expect("a name and hashes");
        let hash = hash_of(name);
        for (i, expected) in expected.split(' ').enumerate() {
            let (length, mask) = (i / 2, if i % 2 == 0 { 0x7f } else { 0xff });
            let bytes: Vec<u8> = (0..length).map(|j| ((length * 37 + j * 151) & mask) as u8).collect();
            assert_eq!(format!("{:08x}", hash.of(&bytes)), expected, "{name} of {bytes:?}");
            checked += 1;
        }
    }
    assert_eq!(checked, 10 * 71 * 2);
}

fn hash_of(name: &str) -> Hash {
    match name {
        "default" => Hash::OneAtATime,
        "md5" => Hash::Md5,
        "crc" => Hash::Crc,
        "fnv1_64" => Hash::Fnv64,
        "fnv1a_64" => Hash::Fnv64a,
        "fnv1_32" => Hash::Fnv32,
        "fnv1a_32" => Hash::Fnv32a,
        "murmur" => Hash::Murmur,
        "jenkins" => Hash::Jenkins,
        "murmur3" => Hash::Murmur3,
        other => panic!("{other:?}"),
    }
}
