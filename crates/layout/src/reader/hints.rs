//! Chooses the reads to report to the server, so that items read from outside are not evicted as unread.
//!
//! Eviction mainly needs to know whether an item was read once or twice since the last scan, and the slot that a
//! reader has just fetched contains that count. So the first two reads are always reported, later ones by sampling,
//! and none when the count is saturated: the more an item is read, the less is reported.

use crate::bounds::REPORTED_ONE_IN;
use crate::slot::FREQUENCY_MAX;

use super::Hit;

/// Returns how many reads to report to the server for this one; 0 for none. `random` is any number drawn for this.
pub fn reads_to_report(hit: &Hit, random: u32) -> u8 {
    let is_drawn = random.is_multiple_of(REPORTED_ONE_IN.into());
    match hit.frequency {
        Some(0 | 1) => 1,
        Some(FREQUENCY_MAX) => 0,
        _ if is_drawn => REPORTED_ONE_IN,
        _ => 0,
    }
}

/// Returns the next number of xorshift32 (Marsaglia, 2003): cheap, and good enough for sampling.
pub fn next_random(random: &mut u32) -> u32 {
    *random ^= *random << 13;
    *random ^= *random >> 17;
    *random ^= *random << 5;
    *random
}
