//! Size classes of slots: how many bytes a one-sided reader fetches to have the whole item.
//!
//! Four classes to a power of two, from 64 bytes: class `4e + m` holds up to `64 * 2^e * (1 + m/4)` bytes, so that a
//! fetch reads at most a quarter more than the item.

/// Bytes of the smallest class.
pub const SMALLEST_BYTES: u64 = 64;
/// The number of classes.
pub const CLASSES: u8 = 64;

/// Returns the smallest class for `bytes` bytes. Lengths beyond the largest class get the largest.
#[inline]
pub fn class_of(bytes: u64) -> u8 {
    if bytes <= SMALLEST_BYTES {
        return 0;
    }
    // bytes - 1 so that the bound itself belongs to its class.
    let below = bytes - 1;
    let exponent = 63 - below.leading_zeros() - SMALLEST_BYTES.trailing_zeros();
    let quarter = below >> (exponent + SMALLEST_BYTES.trailing_zeros() - 2) & 3;
    (exponent * 4 + quarter as u32 + 1).min(u32::from(CLASSES) - 1) as u8
}

/// Returns the most bytes of an item of `class`.
#[inline]
pub fn bytes_max(class: u8) -> u64 {
    let (exponent, quarter) = (class / 4, u64::from(class % 4));
    (SMALLEST_BYTES << exponent) / 4 * (4 + quarter)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn size_classes_bound_items_tightly() {
        for bytes in 1..100_000u64 {
            let class = class_of(bytes);
            assert!(bytes <= bytes_max(class), "{bytes} in class {class}");
            assert!(class == 0 || bytes > bytes_max(class - 1), "{bytes} in class {class}");
        }
        assert_eq!(class_of(u64::MAX), CLASSES - 1);
        assert!(bytes_max(CLASSES - 1) >= 3 << 20);
    }
}
