//! The checksum of the index, the directory and the segment table. A clean stop saves it, so that a bit that flips in the
//! file meanwhile leads no search astray: the next server then checks each slot, as after a kill.

use std::sync::atomic::{AtomicUsize, Ordering};

use fabcache_layout::segment::{self, Kind};
use fabcache_layout::{Geometry, Memory};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Bytes copied at a time.
const STEP_BYTES: usize = 64 << 10;

/// Returns the checksum of the index of a region with so many segments, computed by so many threads. No thread writes
/// meanwhile.
pub(super) fn index_sum(memory: &Memory, geometry: &Geometry, segments: u32, threads: usize) -> u64 {
    let is_index = |id: &u32| {
        segment::load_use(memory, geometry, *id).is_some_and(|segment_use| segment_use.kind == Kind::Index)
    };
    let table_end = segment::table_end(geometry, segments);
    let mut parts = vec![geometry.directory..geometry.segment_table, geometry.segment_table..table_end];
    parts.extend((0..segments).filter(is_index).map(|id| {
        let start = geometry.segment_offset(id);
        start..start + geometry.segment_bytes()
    }));
    let next = AtomicUsize::new(0);
    let work = || {
        let mut sums = Vec::new();
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            sums.push((part.start, sum(memory, part.start, part.end)));
        }
        sums
    };
    let mut sums = std::thread::scope(|scope| {
        let workers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut sums = work();
        for worker in workers {
            sums.extend(worker.join().expect("a thread that only reads"));
        }
        sums
    });
    sums.sort_unstable();
    let bytes: Vec<u8> = sums.into_iter().flat_map(|(_, sum)| sum.to_le_bytes()).collect();
    xxh3_64(&bytes)
}

fn sum(memory: &Memory, start: u64, end: u64) -> u64 {
    let (mut sum, mut bytes) = (Xxh3::new(), vec![0; STEP_BYTES]);
    for at in (start..end).step_by(STEP_BYTES) {
        let step = &mut bytes[..STEP_BYTES.min((end - at) as usize)];
        memory.copy_out(at, step);
        sum.update(step);
    }
    sum.digest()
}
