//! `stats sizes`: how many items there are of each size, in steps of 32 bytes, with `-o track_sizes`.

use std::collections::BTreeMap;

use fabcache_store::Handle;
use fabcache_store::dump::Cursor;

/// Items are counted in steps of this.
const STEP_BYTES: u64 = 32;

/// The histogram is computed on request by a scan of all items, so that it costs other requests nothing.
#[derive(Debug, Default)]
pub struct Sizes;

impl Sizes {
    /// Upper bound of each step that has items, and how many.
    pub fn histogram(&self, handle: &Handle) -> BTreeMap<u64, u64> {
        let mut found = BTreeMap::new();
        let mut cursor = Cursor::START;
        while !cursor.is_done() {
            let visit = |visited: fabcache_store::dump::VisitedItem<'_>| {
                *found.entry(visited.info.bytes.div_ceil(STEP_BYTES) * STEP_BYTES).or_default() += 1;
            };
            cursor = handle.walk(cursor, visit, |_| {});
        }
        found
    }
}
