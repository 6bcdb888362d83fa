//! The checksum of an item: keyed, and bound to the place and generation it was written in.
//!
//! xxh3 with the region's secret over everything but the state word and the checksum itself; the segment's
//! generation and the item's offset are mixed in, so that bytes that were an item elsewhere, or earlier, do not pass
//! for one here, and a stored value cannot contain an item that does. The secret is not in the region: it is given
//! to negotiated readers only.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_secret};

/// Bytes of a secret; xxh3 needs at least 136.
pub const SECRET_BYTES: usize = 192;

/// The secret of one region.
#[derive(Clone)]
pub struct Secret(pub [u8; SECRET_BYTES]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Returns the checksum of an item at `offset`, written in `generation` of its segment. `kind` is the half word of
/// options and key length before the checksum, `bytes` everything after it.
#[inline]
pub fn checksum(secret: &Secret, generation: u64, offset: u64, kind: u16, bytes: &[u8]) -> u32 {
    finish(xxh3_64_with_secret(bytes, &secret.0), generation, offset, kind)
}

/// Sums bytes that may lie in two parts.
pub(crate) fn sum_of_parts(secret: &Secret, (first, second): (&[u8], &[u8])) -> u64 {
    let mut sum = Xxh3::with_secret(secret.0);
    sum.update(first);
    sum.update(second);
    sum.digest()
}

/// Combines the sum of the bytes with the rest of the checksum's input.
#[inline]
pub(crate) fn finish(sum: u64, generation: u64, offset: u64, kind: u16) -> u32 {
    // Odd constants of xxh64's finalisation; any odd numbers with mixed bits would do.
    const P1: u64 = 0x9e37_79b1_85eb_ca87;
    const P2: u64 = 0xc2b2_ae3d_27d4_eb4f;
    const P3: u64 = 0x1656_67b1_9e37_79f9;
    let place = generation.wrapping_mul(P1) ^ offset.wrapping_mul(P2) ^ u64::from(kind).wrapping_mul(P3);
    let mut x = sum ^ place;
    x = (x ^ x >> 33).wrapping_mul(P2);
    x = (x ^ x >> 29).wrapping_mul(P3);
    (x >> 32) as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_input_changes_the_checksum() {
        let secret = Secret(std::array::from_fn(|i| (i * 7) as u8));
        let other = Secret(std::array::from_fn(|i| (i * 11) as u8));
        let sum = checksum(&secret, 1, 64, 2, b"value");
        assert_eq!(sum, checksum(&secret, 1, 64, 2, b"value"));
        for different in [
            checksum(&other, 1, 64, 2, b"value"),
            checksum(&secret, 2, 64, 2, b"value"),
            checksum(&secret, 1, 68, 2, b"value"),
            checksum(&secret, 1, 64, 3, b"value"),
            checksum(&secret, 1, 64, 2, b"valuf"),
        ] {
            assert_ne!(sum, different);
        }
    }

    #[test]
    fn incremental_checksum_equals_the_whole() {
        let secret = Secret(std::array::from_fn(|i| (i * 7) as u8));
        let bytes: Vec<u8> = (0..5_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
        for len in (12..300).chain([1_000, 1_036, 5_000]) {
            let whole = checksum(&secret, 3, 128, 5, &bytes[..len]);
            let sum = sum_of_parts(&secret, bytes[..len].split_at(12));
            assert_eq!(finish(sum, 3, 128, 5), whole, "{len}");
        }
    }
}
