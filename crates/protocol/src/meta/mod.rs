//! The meta text commands: two letters, a key, flags of one letter with an optional token. Each flag may occur once,
//! and the answer repeats those that have a value in the order of the request.

mod base64;
pub(crate) mod decode;
pub(crate) mod encode;

/// The flags of a line. Most are a letter, which a plain loop finds faster than a search does.
pub(crate) fn flags(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b' ').filter(|flag| !flag.is_empty())
}
