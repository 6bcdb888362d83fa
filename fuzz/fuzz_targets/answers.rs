//! A server's answers, in any protocol, decode to the same result as a whole, in chunks and byte by byte.
#![no_main]

use fabcache_client::fuzzing::answers;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((seed, rest)) = data.split_first() else { return };
    let Some((count, rest)) = rest.split_first() else { return };
    let (requested, said) = rest.split_at(rest.len().min(usize::from(count % 16)));
    let whole = answers([said.to_vec()], requested);
    let mut state = u32::from(*seed);
    let mut left = said;
    let pieces = std::iter::from_fn(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (piece, rest) = left.split_at(left.len().min(1 + (state >> 24) as usize % 40));
        left = rest;
        (!piece.is_empty()).then(|| piece.to_vec())
    });
    assert_eq!(answers(pieces, requested), whole);
    assert_eq!(answers(said.iter().map(|byte| vec![*byte]), requested), whole);
});
