//! Decimal numbers, as memcached reads and writes them.

const PAIRS: [u8; 200] = {
    let mut pairs = [0; 200];
    let mut n = 0;
    while n < 100 {
        pairs[2 * n] = b'0' + (n / 10) as u8;
        pairs[2 * n + 1] = b'0' + (n % 10) as u8;
        n += 1;
    }
    pairs
};

/// Most digits of a `u64`.
pub const DIGITS_MAX: usize = 20;

/// Formats `n` in decimal at the end of `buffer`; returns the digits.
#[inline]
pub fn digits(mut n: u64, buffer: &mut [u8; DIGITS_MAX]) -> &[u8] {
    let mut at = DIGITS_MAX;
    while n >= 100 {
        let pair = 2 * (n % 100) as usize;
        n /= 100;
        at -= 2;
        buffer[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    }
    if n >= 10 {
        let pair = 2 * n as usize;
        at -= 2;
        buffer[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    } else {
        at -= 1;
        buffer[at] = b'0' + n as u8;
    }
    &buffer[at..]
}

/// Appends `n` in decimal.
#[inline]
pub fn push_u64(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(digits(n, &mut [0; DIGITS_MAX]));
}

/// Parses all of `word` as C's `strtoull` does, with memcached's refusal of negative numbers: an optional sign, then
/// digits; `-` is accepted only if the wrapped result does not look negative (`-0`).
#[inline]
pub fn parse_u64(word: &[u8]) -> Option<u64> {
    match word {
        [b'+', digits @ ..] => parse_digits(digits),
        [b'-', digits @ ..] => parse_digits(digits).map(u64::wrapping_neg).filter(|n| n.cast_signed() >= 0),
        digits => parse_digits(digits),
    }
}

/// Reads all of `word` as C's `strtoll` does: an optional sign, then digits.
#[inline]
pub fn parse_i64(word: &[u8]) -> Option<i64> {
    match word {
        [b'+', digits @ ..] => parse_digits(digits)?.try_into().ok(),
        [b'-', digits @ ..] => 0i64.checked_sub_unsigned(parse_digits(digits)?),
        digits => parse_digits(digits)?.try_into().ok(),
    }
}

/// Reads all of `word`, which has digits only.
#[inline]
pub(crate) fn parse_digits(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let mut n = 0u64;
    // Up to 19 digits cannot overflow, so the common case skips the checks.
    let (safe, rest) = digits.split_at(digits.len().min(DIGITS_MAX - 1));
    for byte in safe {
        n = n * 10 + digit(*byte)?;
    }
    for byte in rest {
        n = n.checked_mul(10)?.checked_add(digit(*byte)?)?;
    }
    Some(n)
}

#[inline]
fn digit(byte: u8) -> Option<u64> {
    let digit = byte.wrapping_sub(b'0');
    (digit < 10).then_some(u64::from(digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsigned_numbers_parse() {
        assert_eq!(parse_u64(b"0"), Some(0));
        assert_eq!(parse_u64(b"+17"), Some(17));
        assert_eq!(parse_u64(b"-0"), Some(0));
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"000000000000000000000000001"), Some(1));
        for bad in [&b""[..], b"+", b"-", b"-1", b"x", b"1x", b"1 ", b" 1", b"+-1", b"18446744073709551616"] {
            assert_eq!(parse_u64(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn signed_numbers_parse() {
        assert_eq!(parse_i64(b"-1"), Some(-1));
        assert_eq!(parse_i64(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
        for bad in [&b""[..], b"-", b"--1", b"9223372036854775808", b"-9223372036854775809", b"1.5"] {
            assert_eq!(parse_i64(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        for n in [0, 9, 10, 99, 100, 101, 12345, 999_999, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            push_u64(&mut out, n);
            assert_eq!(out, n.to_string().as_bytes());
        }
    }
}
