//! Whether words of another PE's memory arrive whole, as readers of its region require.
//!
//! OpenSHMEM promises it of no get: transports copy as they like. A torn word would at worst be a miss, as items have a
//! checksum, but every read would be in doubt. So each PE changes the words of a page while others read it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use fabcache_layout::Memory;
use fabcache_shmem::{RemoteHeaps, SymmetricHeap};

/// Other PEs that are read, if they are on other hosts: the next ones, which may be on the same node, and as many far from this one, which are on others.
const NEXT_PES: usize = 4;
const FAR_PES: usize = 4;
/// Lengths of reads, which transports copy in different ways.
const LENGTHS: [usize; 6] = [8, 64, 128, 256, 1024, 4096];
/// How long a PE is read.
const TIME: Duration = Duration::from_millis(10);
/// Values whose bytes all differ.
const VALUES: [u64; 2] = [0x0123_4567_89ab_cdef, !0x0123_4567_89ab_cdef];

/// Reads the page of words of other PEs, which do the same. Returns what `agree` does with whether all words were whole: it
/// tells the other PEs, and until they have told, the words here change.
///
/// # Errors
/// That of `agree`.
pub fn arrive_whole(
    heaps: &mut dyn RemoteHeaps,
    heap: &dyn SymmetricHeap,
    page: Range<u64>,
    agree: impl FnOnce(&mut dyn RemoteHeaps, bool) -> Result<bool>,
) -> Result<bool> {
    let own = heap.memory(page.start, page.end - page.start);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| change(&own, &is_over));
        let (pe, pes) = (heaps.pe(), heaps.pes());
        // Mapped memory is read by loads of this process, which are whole.
        let mut far = others(pe, pes).into_iter().filter(|other| !heap.is_mapped(*other));
        let are_whole = far.all(|other| are_whole_of(heaps, other, page.start));
        let agreed = agree(heaps, are_whole);
        is_over.store(true, Ordering::Relaxed);
        agreed
    })
}

/// Returns the PEs that this one reads.
fn others(pe: usize, pes: usize) -> BTreeSet<usize> {
    let far = (1..=FAR_PES).map(|part| pes * part / (FAR_PES + 1));
    (1..=NEXT_PES).chain(far).map(|distance| (pe + distance) % pes).filter(|other| *other != pe).collect()
}

/// Changes all words, back and forth.
fn change(page: &Memory, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        for value in VALUES {
            for word in (0..page.len()).step_by(8) {
                page.store(word, value, Ordering::Relaxed);
            }
        }
        // With as many PEs as CPUs, others need to run as well.
        std::thread::yield_now();
    }
}

fn are_whole_of(heaps: &mut dyn RemoteHeaps, pe: usize, start: u64) -> bool {
    let end = Instant::now() + TIME;
    let mut bytes = [0; 4096];
    loop {
        for len in LENGTHS {
            heaps.get(pe, start, &mut bytes[..len]);
            if !bytes[..len].as_chunks().0.iter().all(|word| is_whole(u64::from_ne_bytes(*word))) {
                return false;
            }
        }
        if Instant::now() > end {
            return true;
        }
    }
}

/// Returns whether a word was stored as it is. It is 0 before the first change.
fn is_whole(word: u64) -> bool {
    word == 0 || VALUES.contains(&word)
}

#[cfg(test)]
mod tests {
    use fabcache_shmem::local::LocalJob;

    use super::*;

    #[test]
    fn torn_words_are_noticed() {
        let job = LocalJob::apart(2, 4096);
        let heap = job.of(0);
        let whole =
            || arrive_whole(&mut job.of(0), &heap, 0..4096, |_, are_whole| Ok(are_whole)).expect("agreed");
        assert!(whole());
        let torn = (VALUES[0] & 0xffff_ffff) | (VALUES[1] & !0xffff_ffff);
        job.memory(1).store(8 * 77, torn, Ordering::Relaxed);
        assert!(!whole());
    }

    #[test]
    fn near_and_far_pes_are_read() {
        assert_eq!(others(1, 2), BTreeSet::from([0]));
        assert_eq!(others(0, 1), BTreeSet::new());
        assert_eq!(others(10, 100), BTreeSet::from([11, 12, 13, 14, 30, 50, 70, 90]));
    }
}
