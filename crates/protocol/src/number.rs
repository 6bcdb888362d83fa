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
pub fn digits(n: u64, buffer: &mut [u8; DIGITS_MAX]) -> &[u8] {
    let at = digits_before(DIGITS_MAX, n, buffer);
    &buffer[at..]
}

/// Formats `n` in decimal so that its digits end before `at` in `buffer`; returns where they start.
#[inline]
pub(crate) fn digits_before<const N: usize>(mut at: usize, mut n: u64, buffer: &mut [u8; N]) -> usize {
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
    at
}

/// Appends `n` in decimal.
#[inline]
pub fn push_u64(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(digits(n, &mut [0; DIGITS_MAX]));
}

/// Longest number of 32 bits on a line, in bytes, as in memcached: its sign and leading zeros count.
const WORD_32_MAX: usize = 11;

/// Longest number of 64 bits on a line, in bytes, as in memcached.
const WORD_64_MAX: usize = 22;

/// Parses all of `word`, which has digits only.
#[inline]
pub fn parse_u64(word: &[u8]) -> Option<u64> {
    if word.len() <= WORD_64_MAX { parse_digits(word) } else { None }
}

/// Parses all of `word` like [`parse_u64`], into 32 bits.
#[inline]
pub fn parse_u32(word: &[u8]) -> Option<u32> {
    if word.len() <= WORD_32_MAX { parse_digits(word)?.try_into().ok() } else { None }
}

/// Parses all of `word`: digits, with `-` before them if negative. `-` alone is 0, as in memcached.
#[inline]
pub fn parse_i32(word: &[u8]) -> Option<i32> {
    match word {
        _ if word.len() > WORD_32_MAX => None,
        b"-" => Some(0),
        [b'-', digits @ ..] => (-i64::try_from(parse_digits(digits)?).ok()?).try_into().ok(),
        digits => parse_digits(digits)?.try_into().ok(),
    }
}

/// Parses all of `word` as C's `strtoull` does, with memcached's refusal of negative numbers: an optional sign, then
/// digits; `-` is accepted only if the wrapped result does not look negative (`-0`).
#[inline]
pub(crate) fn parse_signed_u64(word: &[u8]) -> Option<u64> {
    match word {
        [b'+', digits @ ..] => parse_digits(digits),
        [b'-', digits @ ..] => parse_digits(digits).map(u64::wrapping_neg).filter(|n| n.cast_signed() >= 0),
        digits => parse_digits(digits),
    }
}

/// Parses all of `word` as C's `strtoll` does: an optional sign, then digits.
#[inline]
pub(crate) fn parse_i64(word: &[u8]) -> Option<i64> {
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
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"0000000000000000000001"), Some(1));
        assert_eq!(parse_u32(b"04294967295"), Some(u32::MAX));
        let long = b"00000000000000000000001";
        for bad in [&b""[..], b"+1", b"-", b"-0", b"x", b"1x", b"1 ", b" 1", b"18446744073709551616", long] {
            assert_eq!(parse_u64(bad), None, "{bad:?}");
        }
        for bad in [&b""[..], b"+1", b"-0", b"4294967296", b"000000000001"] {
            assert_eq!(parse_u32(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn signed_numbers_parse() {
        assert_eq!(parse_i32(b"-1"), Some(-1));
        assert_eq!(parse_i32(b"-"), Some(0));
        assert_eq!(parse_i32(b"2147483647"), Some(i32::MAX));
        assert_eq!(parse_i32(b"-2147483648"), Some(i32::MIN));
        for bad in [&b""[..], b"+1", b"--1", b"2147483648", b"-2147483649", b"000000000001", b"1.5"] {
            assert_eq!(parse_i32(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn numbers_parse_as_in_c() {
        assert_eq!(parse_signed_u64(b"+17"), Some(17));
        assert_eq!(parse_signed_u64(b"-0"), Some(0));
        assert_eq!(parse_signed_u64(b"000000000000000000000000001"), Some(1));
        for bad in [&b""[..], b"+", b"-", b"-1", b"x", b"1x", b"1 ", b" 1", b"+-1", b"18446744073709551616"] {
            assert_eq!(parse_signed_u64(bad), None, "{bad:?}");
        }
        assert_eq!(parse_i64(b"+1"), Some(1));
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
