//! Hashes of keys and of servers' names.

use md5::{Digest, Md5};

/// Bob Jenkins's one-at-a-time hash, libmemcached's default.
pub fn one_at_a_time(bytes: &[u8]) -> u32 {
    let mut hash = bytes.iter().fold(0u32, |hash, byte| {
        let hash = hash.wrapping_add(u32::from(*byte));
        let hash = hash.wrapping_add(hash << 10);
        hash ^ hash >> 6
    });
    hash = hash.wrapping_add(hash << 3);
    hash ^= hash >> 11;
    hash.wrapping_add(hash << 15)
}

/// The four little-endian words of the MD5 digest (RFC 1321).
pub fn md5(bytes: &[u8]) -> [u32; 4] {
    let digest: [u8; 16] = Md5::digest(bytes).into();
    let (words, _) = digest.as_chunks::<4>();
    [0, 1, 2, 3].map(|i| u32::from_le_bytes(words[i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_hashes() {
        assert_eq!(one_at_a_time(b"a"), 0xca2e_9442);
        // RFC 1321, A.5.
        assert_eq!(md5(b"abc").map(u32::swap_bytes), [0x9001_5098, 0x3cd2_4fb0, 0xd696_3f7d, 0x28e1_7f72]);
    }
}
