//! Compares decoding the whole stream with decoding its chunks.

use crate::common::{Setup, events};

/// Decodes the stream as a whole, in chunks determined by `seed`, byte by byte, and in runs of plain requests; the
/// results must be equal.
pub fn compare(seed: u8, stream: &[u8], setup: Setup) {
    let whole = events(stream, [], setup);
    let mut state = u32::from(seed);
    let pieces = std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as usize % 40
    });
    let in_runs = Setup { run: usize::from(seed % 40) + 1, ..setup };
    assert_eq!(events(stream, [], in_runs), whole);
    assert_eq!(events(stream, pieces.clone().take(stream.len()), in_runs), whole);
    assert_eq!(events(stream, pieces.take(stream.len()), setup), whole);
    assert_eq!(events(stream, std::iter::repeat_n(1, stream.len()), setup), whole);
}
