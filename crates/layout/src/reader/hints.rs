//! Of which reads the server is told, so that what is read outside is not evicted as if it were not.
//!
//! Eviction asks above all whether an item was read once or twice since it was last passed over, and the slot that a
//! reader has just fetched says how often it was. So the first two reads are always told of, later ones by sampling, and
//! none once the count is full: the more an item is read, the less there is to tell.

use crate::bounds::TOLD_ONE_IN;
use crate::slot::FREQUENCY_MAX;

use super::Hit;

/// How many reads the server is to be told of with this one; 0 if it need not be told. `random` is any number drawn
/// for this.
pub fn reads_to_tell(hit: &Hit, random: u32) -> u8 {
    let is_drawn = random.is_multiple_of(TOLD_ONE_IN.into());
    match hit.frequency {
        Some(0 | 1) => 1,
        Some(FREQUENCY_MAX) => 0,
        _ if is_drawn => TOLD_ONE_IN,
        _ => 0,
    }
}
