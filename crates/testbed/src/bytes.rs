//! Values whose bytes can be checked.

/// Returns `len` bytes that depend on the seed and on their position, so that neither a foreign nor a shifted value passes.
pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed * 31) as u8).collect()
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
