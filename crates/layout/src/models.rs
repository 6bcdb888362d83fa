//! Models of the layout's own words under loom: the header, the state word of an item, the status line.

use std::time::Duration;

use loom::sync::Arc;
use loom::{model, thread};

use crate::format::{LIVENESS_AT, PARTITION_BYTES, RECYCLED_AT, STATUS_AT};
use crate::header::{self, Birth, HeaderError, StatusLine};
use crate::item::{self, State};
use crate::sync::{AtomicU32, Ordering, fence};
use crate::{Geometry, Memory, segment, succession};

#[test]
fn header_is_read_whole_or_not_at_all() {
    model(|| {
        let segment_table = crate::format::USED_BYTES + 2 * PARTITION_BYTES;
        let geometry = Geometry {
            region_bytes: crate::format::HEADER_BYTES,
            partition_bits: 1,
            block_shift: 2,
            segment_shift: 9,
            segments: 3,
            directory: crate::format::USED_BYTES,
            segment_table,
            first_segment: segment_table + 512,
        };
        let birth = Birth { geometry, hash_seed: 7, clock_origin: 9, region_id: 0, incarnation: 1 };
        let memory = Memory::sparse(crate::format::HEADER_BYTES, |offset| offset < 192);
        let server = {
            let memory = memory.clone();
            thread::spawn(move || header::write(&memory, &birth))
        };
        match header::read(&memory) {
            Ok(read) => {
                assert_eq!((read.geometry, read.hash_seed, read.clock_origin), (geometry, 7, 9));
            }
            Err(error) => assert_eq!(error, HeaderError::NotARegion),
        }
        server.join().expect("written");
        assert!(header::read(&memory).is_ok());
    });
}

#[test]
fn concurrent_state_bits_are_all_kept() {
    model(|| {
        let memory = Memory::zeroed(8);
        memory.store(0, u64::from(State::live(3).0), Ordering::Relaxed);
        let reader = {
            let memory = memory.clone();
            thread::spawn(move || item::set_window(&memory, 0, 5))
        };
        let before = item::set_state(&memory, 0, State::DEAD);
        assert!(!before.has(State::DEAD), "it is marked dead once");
        reader.join().expect("noted");
        let state = item::load_state(&memory, 0);
        assert!(state.has(State::DEAD) && state.window() == 5 && state.in_epoch(3), "{state:?}");
    });
}

#[test]
fn status_line_never_goes_back() {
    model(|| {
        let memory = Memory::sparse(192, |offset| offset >= 128);
        let server = {
            let memory = memory.clone();
            thread::spawn(move || {
                header::advance_flush_epoch(&memory);
                header::publish_clock(&memory, 5);
            })
        };
        let seen = [header::flush_epoch(&memory), header::flush_epoch(&memory)];
        assert!(seen[0] <= seen[1], "epochs never go back");
        let clock = [header::clock(&memory), header::clock(&memory)];
        assert!(clock[0] <= clock[1], "nor does the clock");
        server.join().expect("flushed");
        assert_eq!((header::flush_epoch(&memory), header::clock(&memory)), (1, 5));
    });
}

/// A remote reader knows a segment's counter from before it fetched the generation, and finds it unchanged after the
/// item: the item was not overwritten.
#[test]
fn unchanged_counter_shows_that_the_item_was_not_overwritten() {
    model(|| {
        let (segment_table, first_segment) = (crate::format::USED_BYTES, 512);
        let geometry = Geometry {
            region_bytes: 2 * first_segment,
            partition_bits: 0,
            block_shift: 0,
            segment_shift: 9,
            segments: 1,
            directory: segment_table,
            segment_table,
            first_segment,
        };
        let used = [RECYCLED_AT, segment::generation_offset(&geometry, 0), first_segment];
        let memory = Memory::sparse(geometry.region_bytes, move |offset| used.contains(&offset));
        let server = {
            let memory = memory.clone();
            thread::spawn(move || {
                segment::advance_generation(&memory, &geometry, 0);
                // As the next writer there does.
                fence(Ordering::Release);
                memory.store(first_segment, 1, Ordering::Relaxed);
            })
        };
        let known = memory.load(RECYCLED_AT, Ordering::Acquire);
        let generation = segment::generation(&memory, &geometry, 0);
        let item = memory.load(first_segment, Ordering::Relaxed);
        fence(Ordering::Acquire);
        if memory.load(RECYCLED_AT, Ordering::Relaxed) == known && generation == 0 {
            assert_eq!(item, 0, "it is the item of that generation");
        }
        server.join().expect("overwritten");
    });
}

/// A reader that has read a status line with a lease may use it later. A flush waits for such readers; the model
/// counts them, where the real code waits for a time.
#[test]
fn leased_status_line_is_no_older_than_a_flush() {
    model(|| {
        let memory = Memory::sparse(crate::format::USED_BYTES, |offset| offset >= crate::format::STATUS_AT);
        header::grant_leases(&memory, Duration::from_millis(1));
        let going_by = Arc::new(AtomicU32::new(0));
        let answered = Arc::new(AtomicU32::new(0));
        let server = {
            let (memory, going_by, answered) = (memory.clone(), Arc::clone(&going_by), Arc::clone(&answered));
            thread::spawn(move || {
                header::end_leases(&memory);
                fence(Ordering::SeqCst);
                while going_by.load(Ordering::SeqCst) != 0 {
                    thread::yield_now();
                }
                header::advance_flush_epoch(&memory);
                header::grant_leases(&memory, Duration::from_millis(1));
                answered.store(1, Ordering::Release);
            })
        };
        going_by.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let mut line = [0; crate::format::STATUS_AND_COUNTS_BYTES];
        memory.copy_out(crate::format::STATUS_AT, &mut line);
        let published =
            line.first_chunk().map(StatusLine::from_bytes).expect("the line is the first of these bytes");
        let has_begun_after = answered.load(Ordering::Acquire) == 1;
        if !header::lease_of(&line).is_zero() {
            assert!(
                published.flush_epoch == 1 || !has_begun_after,
                "a GET that began after the flush trusts the line"
            );
        }
        going_by.store(0, Ordering::SeqCst);
        server.join().expect("flushed");
    });
}

/// A successor takes the region over, recovers it (the word before the status line), and holds the liveness word.
#[test]
fn reader_of_an_incarnation_sees_its_recovery() {
    model(|| {
        const RECOVERED_AT: u64 = STATUS_AT - 8;
        let is_used = |offset| (RECOVERED_AT..crate::format::USED_BYTES).contains(&offset);
        let memory = Memory::sparse(crate::format::USED_BYTES, is_used);
        assert_eq!(succession::begin_incarnation(&memory), 1);
        header::hold_liveness(&memory, 7);
        // The first server is killed, and the kernel clears its word.
        memory.store_u32(LIVENESS_AT, 0, Ordering::SeqCst);
        let server = {
            let memory = memory.clone();
            thread::spawn(move || {
                let incarnation = succession::begin_incarnation(&memory);
                memory.store(RECOVERED_AT, 1, Ordering::Relaxed);
                header::hold_liveness(&memory, 7);
                incarnation
            })
        };
        assert!(!header::is_alive(&memory, 1), "a reader of the first incarnation trusts the second");
        if header::is_alive(&memory, 2) {
            assert_eq!(
                memory.load(RECOVERED_AT, Ordering::Relaxed),
                1,
                "a reader sees the region before recovery"
            );
        }
        assert_eq!(server.join().expect("taken over"), 2);
    });
}
