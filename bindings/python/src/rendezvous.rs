//! Which of many servers has a key, as pymemcache's `HashClient` decides it: the one whose name with the key hashes highest.

use pyo3::prelude::*;

/// MurmurHash3 for 32 bits (A. Appleby) of a text's characters, of each the lowest eight bits.
#[pyfunction]
#[pyo3(signature = (data, seed=0))]
pub fn murmur3_32(data: &str, seed: u32) -> u32 {
    hash(data.chars().map(|character| character as u32 as u8), seed)
}

/// The hash of a server's name, a hyphen and a key.
#[pyfunction]
pub fn rendezvous_score(node: &str, key: &str, seed: u32) -> u32 {
    let characters = node.chars().chain(std::iter::once('-')).chain(key.chars());
    hash(characters.map(|character| character as u32 as u8), seed)
}

fn hash(bytes: impl Iterator<Item = u8>, seed: u32) -> u32 {
    let mixed = |word: u32| word.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    let (mut state, mut word, mut len) = (seed, 0u32, 0u32);
    for byte in bytes {
        word |= u32::from(byte) << (8 * (len % 4));
        len = len.wrapping_add(1);
        if len % 4 == 0 {
            state = (state ^ mixed(word)).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
            word = 0;
        }
    }
    state ^= mixed(word) ^ len;
    state = (state ^ (state >> 16)).wrapping_mul(0x85eb_ca6b);
    state = (state ^ (state >> 13)).wrapping_mul(0xc2b2_ae35);
    state ^ (state >> 16)
}
