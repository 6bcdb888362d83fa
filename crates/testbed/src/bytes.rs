//! Values whose bytes can be checked.

use crate::random::SplitMix64;

/// Returns the first `len` bytes of a random sequence that follows from the seed, so that neither a foreign nor a shifted
/// value passes.
///
/// # Panics
/// The seed is negative.
pub fn pattern<S: TryInto<u64>>(seed: S, len: usize) -> Vec<u8> {
    let Ok(seed) = seed.try_into() else { panic!("a seed is not negative") };
    let mut random = SplitMix64::new(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_differ_by_seed_and_by_position() {
        assert_ne!(pattern(1, 100), pattern(2, 100));
        assert_ne!(
            pattern(1, 600)[..251],
            pattern(1, 600)[251..502],
            "shifted by the period of the last byte"
        );
        assert_eq!(pattern(3, 50), pattern(3, 90)[..50]);
    }
}
