//! Models of the layout's own words under loom: the header, the state of an item, the published line.

use loom::model;
use loom::thread;

use crate::directory::PARTITION_BYTES;
use crate::header::{self, Birth, HeaderError};
use crate::item::{self, State};
use crate::sync::Ordering;
use crate::{Geometry, Memory};

#[test]
fn a_header_is_read_whole_or_not_at_all() {
    model(|| {
        let geometry = Geometry {
            region_bytes: header::HEADER_BYTES,
            partition_bits: 1,
            block_shift: 2,
            segment_shift: 9,
            segments: 3,
            directory: header::USED_BYTES,
            segment_table: header::USED_BYTES + 2 * PARTITION_BYTES,
            first_segment: 512,
        };
        let birth = Birth { geometry, hash_seed: 7, clock_origin: 9 };
        let memory = Memory::sparse(header::HEADER_BYTES, |offset| offset < 192);
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
fn bits_of_a_state_word_do_not_overwrite_each_other() {
    model(|| {
        let memory = Memory::zeroed(8);
        memory.store(0, u64::from(State::live(3).0), Ordering::Relaxed);
        let reader = {
            let memory = memory.clone();
            thread::spawn(move || item::set_window(&memory, 0, 5))
        };
        let before = item::set_state(&memory, 0, State::DEAD);
        assert!(!before.has(State::DEAD), "it dies once");
        reader.join().expect("noted");
        let state = item::load_state(&memory, 0);
        assert!(state.has(State::DEAD) && state.window() == 5 && state.in_epoch(3), "{state:?}");
    });
}

#[test]
fn the_published_line_never_goes_back() {
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
