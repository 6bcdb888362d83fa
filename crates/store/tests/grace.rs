//! A segment is not overwritten for a grace period after its generation ends, if that is promised.
#![cfg(not(loom))]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::outside::map_all;
use common::set;
use fabcache_layout::segment::{generation, generation_offset};
use fabcache_layout::{Memory, header};
use fabcache_store::{Handle, Store, StoreOptions};

fn bytes(memory: &Memory, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    memory.copy_out(offset, &mut bytes);
    bytes
}

/// Writes until `emptied` segments were emptied; returns how many of them were checked within their grace period.
fn looked_at(grace: Duration, emptied: usize) -> usize {
    let memory_bytes = 2 << 20;
    let options =
        StoreOptions { memory_bytes, memory_bytes_max: memory_bytes, grace, ..StoreOptions::default() };
    let store = Arc::new(Store::open(options).expect("memory for a test"));
    assert_eq!(store.grace(), grace);
    let handle = Handle::new(&store);
    let memory = map_all(store.region().expect("a memory file"));
    let geometry = header::read(&memory).expect("a region").geometry;
    let count = |segment: u32| memory.load(generation_offset(&geometry, segment), Ordering::Acquire);
    let mut generations: Vec<u64> = (0..geometry.segments).map(count).collect();
    // The contents of a segment when its generation ended, and a time before that.
    let mut waiting: Vec<(u32, Instant, Vec<u8>)> = Vec::new();
    let (mut seen, mut looks, mut number) = (0, 0, 0u64);
    let mut before = Instant::now();
    while seen < emptied {
        number += 1;
        set(&handle, format!("key{number}").as_bytes(), &[number as u8; 900]).expect("something is evicted");
        let now = Instant::now();
        for segment in 0..geometry.segments {
            let generation = generation(&memory, &geometry, segment);
            let known = &mut generations[segment as usize];
            if std::mem::replace(known, generation) != generation {
                seen += 1;
                let (at, len) = (geometry.segment_offset(segment), geometry.segment_bytes());
                waiting.push((segment, before, bytes(&memory, at, len)));
            }
        }
        before = now;
        waiting.retain(|(segment, since, old)| {
            let found = bytes(&memory, geometry.segment_offset(*segment), geometry.segment_bytes());
            if since.elapsed() > grace {
                return false;
            }
            assert!(found == *old, "segment {segment} was overwritten too soon");
            looks += 1;
            true
        });
    }
    looks
}

#[test]
fn emptied_segment_is_reused_after_the_grace_period() {
    assert!(looked_at(Duration::from_millis(20), 200) > 100);
}

#[test]
fn without_remote_readers_there_is_no_grace_period() {
    assert_eq!(looked_at(Duration::ZERO, 50), 0);
}
