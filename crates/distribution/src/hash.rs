//! Hashes of keys and of servers' names.
//!
//! Each is the published hash except for how libmemcached seeds or truncates it, or handles bytes beyond ASCII.

use md5::{Digest, Md5};

/// The hash of keys, and of server names on a ring: `MEMCACHED_BEHAVIOR_HASH`.
///
/// libmemcached has two more, which Debian's package refuses: `MEMCACHED_HASH_HSIEH`, compiled only on request, and
/// `MEMCACHED_HASH_CUSTOM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Hash {
    /// Bob Jenkins's one at a time, `MEMCACHED_HASH_DEFAULT`.
    #[default]
    OneAtATime,
    /// The digest's first word, `MEMCACHED_HASH_MD5` (RFC 1321).
    Md5,
    /// 15 bits of the CRC of Ethernet and gzip, `MEMCACHED_HASH_CRC`.
    Crc,
    /// FNV-1, the lower half of its 64 bits: `MEMCACHED_HASH_FNV1_64` (draft-eastlake-fnv).
    Fnv64,
    /// FNV-1a, the lower half of its 64 bits: `MEMCACHED_HASH_FNV1A_64`.
    Fnv64a,
    /// FNV-1 of 32 bits, `MEMCACHED_HASH_FNV1_32`.
    Fnv32,
    /// FNV-1a of 32 bits, `MEMCACHED_HASH_FNV1A_32`.
    Fnv32a,
    /// Austin Appleby's `MurmurHash2`, `MEMCACHED_HASH_MURMUR`.
    Murmur,
    /// Bob Jenkins's lookup3, `MEMCACHED_HASH_JENKINS`.
    Jenkins,
    /// Austin Appleby's `MurmurHash3_x86_32`, `MEMCACHED_HASH_MURMUR3`.
    Murmur3,
}

impl Hash {
    /// Returns libmemcached's `memcached_generate_hash_value` where C's `char` is signed, as on `x86_64`.
    pub fn of(self, bytes: &[u8]) -> u32 {
        match self {
            Hash::OneAtATime => one_at_a_time(bytes),
            Hash::Md5 => md5(bytes)[0],
            Hash::Crc => !crc(bytes) >> 16 & 0x7fff,
            Hash::Fnv64 => fnv1(bytes, FNV_64),
            Hash::Fnv64a => fnv1a(bytes, FNV_64),
            Hash::Fnv32 => fnv1(bytes, FNV_32),
            Hash::Fnv32a => fnv1a(bytes, FNV_32),
            Hash::Murmur => murmur2(bytes),
            Hash::Jenkins => lookup3(bytes),
            Hash::Murmur3 => murmur3(bytes),
        }
    }
}

/// Widens a byte as C's signed `char`.
fn signed(byte: &u8) -> u32 {
    i32::from(byte.cast_signed()).cast_unsigned()
}

fn word(bytes: [u8; 4]) -> u32 {
    u32::from_le_bytes(bytes)
}

/// Returns up to four bytes as a word, padded with zeros.
fn part(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn one_at_a_time(bytes: &[u8]) -> u32 {
    let mut hash = bytes.iter().fold(0u32, |hash, byte| {
        let hash = hash.wrapping_add(signed(byte));
        let hash = hash.wrapping_add(hash << 10);
        hash ^ hash >> 6
    });
    hash = hash.wrapping_add(hash << 3);
    hash ^= hash >> 11;
    hash.wrapping_add(hash << 15)
}

/// Returns the four little-endian words of the MD5 digest (RFC 1321).
pub(super) fn md5(bytes: &[u8]) -> [u32; 4] {
    let digest: [u8; 16] = Md5::digest(bytes).into();
    let (words, _) = digest.as_chunks::<4>();
    [0, 1, 2, 3].map(|i| word(words[i]))
}

/// The remainders of all bytes, by the reflected polynomial.
const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut rest = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            rest = if rest & 1 == 0 { rest >> 1 } else { rest >> 1 ^ 0xedb8_8320 };
            bit += 1;
        }
        table[byte] = rest;
        byte += 1;
    }
    table
};

/// Returns the CRC before its final inversion.
fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(u32::MAX, |crc, byte| {
        let [low, ..] = crc.to_le_bytes();
        crc >> 8 ^ CRC_TABLE[usize::from(low ^ byte)]
    })
}

/// Offset basis and prime. For 64-bit hashes the lower halves suffice.
struct Fnv {
    basis: u32,
    prime: u32,
}

const FNV_64: Fnv = Fnv { basis: 0x8422_2325, prime: 0x0000_01b3 };
const FNV_32: Fnv = Fnv { basis: 0x811c_9dc5, prime: 0x0100_0193 };

fn fnv1(bytes: &[u8], Fnv { basis, prime }: Fnv) -> u32 {
    bytes.iter().fold(basis, |hash, byte| hash.wrapping_mul(prime) ^ signed(byte))
}

fn fnv1a(bytes: &[u8], Fnv { basis, prime }: Fnv) -> u32 {
    bytes.iter().fold(basis, |hash, byte| (hash ^ signed(byte)).wrapping_mul(prime))
}

/// libmemcached's seed of both murmur hashes.
fn murmur_seed(bytes: &[u8]) -> u32 {
    0xdead_beef_u32.wrapping_mul(bytes.len() as u32)
}

fn murmur2(bytes: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let (words, rest) = bytes.as_chunks::<4>();
    let mut hash = murmur_seed(bytes) ^ bytes.len() as u32;
    for bytes in words {
        let mut k = word(*bytes).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        hash = (hash ^ part(rest)).wrapping_mul(M);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(M);
    hash ^ hash >> 15
}

fn murmur3(bytes: &[u8]) -> u32 {
    let scrambled = |k: u32| k.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    let (words, rest) = bytes.as_chunks::<4>();
    let mut hash = murmur_seed(bytes);
    for bytes in words {
        hash = (hash ^ scrambled(word(*bytes))).rotate_left(13);
        hash = hash.wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    // Zeros, if there is no remainder, change nothing.
    hash ^= scrambled(part(rest)) ^ bytes.len() as u32;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

/// Bob Jenkins's `hashlittle` (lookup3.c).
fn lookup3(bytes: &[u8]) -> u32 {
    /// libmemcached's seed.
    const START: u32 = 13;
    const BLOCK: usize = 12;
    let start = 0xdead_beef_u32.wrapping_add(bytes.len() as u32).wrapping_add(START);
    let (mut a, mut b, mut c) = (start, start, start);
    // The last block, whole or not, is mixed differently.
    let last = bytes.len().saturating_sub(1) / BLOCK * BLOCK;
    let (before, rest) = bytes.split_at(last);
    let add = |[a, b, c]: [&mut u32; 3], block: &[u8]| {
        for (into, bytes) in [a, b, c].into_iter().zip(block.chunks(4)) {
            *into = into.wrapping_add(part(bytes));
        }
    };
    for block in before.chunks(BLOCK) {
        add([&mut a, &mut b, &mut c], block);
        for round in [[4, 6, 8], [16, 19, 4]] {
            a = a.wrapping_sub(c) ^ c.rotate_left(round[0]);
            c = c.wrapping_add(b);
            b = b.wrapping_sub(a) ^ a.rotate_left(round[1]);
            a = a.wrapping_add(c);
            c = c.wrapping_sub(b) ^ b.rotate_left(round[2]);
            b = b.wrapping_add(a);
        }
    }
    if rest.is_empty() {
        return c;
    }
    add([&mut a, &mut b, &mut c], rest);
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (c ^ b).wrapping_sub(b.rotate_left(24))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_match_published_vectors() {
        assert_eq!(one_at_a_time(b"a"), 0xca2e_9442);
        // RFC 1321, A.5.
        assert_eq!(md5(b"abc").map(u32::swap_bytes), [0x9001_5098, 0x3cd2_4fb0, 0xd696_3f7d, 0x28e1_7f72]);
        // The check value of CRC-32 in catalogues of such codes.
        assert_eq!(!crc(b"123456789"), 0xcbf4_3926);
        // draft-eastlake-fnv, test vectors of FNV-1a.
        assert_eq!(fnv1a(b"foobar", FNV_32), 0xbf9c_f968);
        assert_eq!(fnv1a(b"foobar", FNV_64), 0xf739_67e8);
    }
}
