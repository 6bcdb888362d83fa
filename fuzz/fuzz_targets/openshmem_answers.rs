//! The answers of another PE are divided in the same way as a whole, in chunks and byte by byte.
#![no_main]

use fabcache_server::openshmem::fuzzing::answers;
use libfuzzer_sys::fuzz_target;

/// A no-op's answer, up to the number of its request.
const END: [u8; 12] = [0x81, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fuzz_target!(|data: (u8, Vec<Vec<u8>>)| {
    let (seed, said) = data;
    // Most answers end as they should.
    let mut stream = Vec::new();
    for (number, answer) in said.iter().enumerate() {
        stream.extend_from_slice(answer);
        if answer.last().is_none_or(|last| last % 8 != 1) {
            stream.extend_from_slice(&END);
            stream.extend_from_slice(&(number as u32).to_be_bytes());
            stream.extend_from_slice(&[0; 8]);
        }
    }
    let whole = answers([stream.clone()]);
    let mut state = u32::from(seed);
    let mut left = &stream[..];
    let pieces = std::iter::from_fn(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (piece, rest) = left.split_at(left.len().min(1 + (state >> 24) as usize % 40));
        left = rest;
        (!piece.is_empty()).then(|| piece.to_vec())
    });
    assert_eq!(answers(pieces), whole);
    assert_eq!(answers(stream.iter().map(|byte| vec![*byte])), whole);
});
