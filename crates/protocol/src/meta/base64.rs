//! Base64 as memcached decodes it.

/// Decodes `text` into `out`; false if it is not base64.
///
/// Bytes outside the alphabet do not count, the bits after the last byte are free, and the first block with padding
/// ends the text.
pub(crate) fn decode(text: &[u8], out: &mut Vec<u8>) -> bool {
    out.clear();
    if !text.iter().filter(|byte| sextet(**byte).is_some()).count().is_multiple_of(4) {
        return false;
    }
    let (mut block, mut len, mut padding) = (0u32, 0, 0);
    for byte in text {
        let Some(bits) = sextet(*byte) else { continue };
        block = block << 6 | u32::from(bits);
        len += 1;
        padding += usize::from(*byte == b'=');
        if len == 4 {
            let Some(bytes) = 3usize.checked_sub(padding).filter(|bytes| *bytes > 0) else { return false };
            out.extend_from_slice(&block.to_be_bytes()[1..=bytes]);
            if padding > 0 {
                break;
            }
            (block, len) = (0, 0);
        }
    }
    !out.is_empty()
}

/// The six bits of a character; those of padding are 0.
fn sextet(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        b'=' => Some(0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use ::base64::Engine;
    use ::base64::engine::general_purpose::STANDARD;

    use super::*;

    #[track_caller]
    fn decodes(text: &[u8], expected: Option<&[u8]>) {
        let mut out = b"before".to_vec();
        let decoded = decode(text, &mut out).then_some(&out[..]);
        assert_eq!(decoded, expected, "{}", text.escape_ascii());
    }

    #[test]
    fn encoded_bytes_decode() {
        let bytes: Vec<u8> = (0..=255).collect();
        for len in 1..=bytes.len() {
            decodes(STANDARD.encode(&bytes[..len]).as_bytes(), Some(&bytes[..len]));
        }
    }

    #[test]
    fn text_that_is_not_canonical_decodes() {
        for (text, decoded) in [
            (&b"Zh=="[..], &b"f"[..]),
            (b"Zm9=", b"fo"),
            (b"Z!m9v\xff", b"foo"),
            (b"Zg==Zm9v", b"f"),
            (b"Zm8=ZZZZ", b"fo"),
            (b"Z=9v", b"d\x0f"),
            (b"Z==v", b"d"),
            (b"=m9v", b"\x02o"),
        ] {
            decodes(text, Some(decoded));
        }
        for text in [&b""[..], b"!!!!", b"Zm9", b"Zm9vZg", b"Z===", b"====", b"Zg==Z"] {
            decodes(text, None);
        }
    }
}
