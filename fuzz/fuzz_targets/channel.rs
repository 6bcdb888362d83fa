//! Arbitrary words that the other end writes to a channel: they break the channel, or are bytes, but
//! never more than exist.
#![no_main]

use std::io::IoSlice;
use std::os::fd::AsFd;

use fabcache_layout::channel::{Channel, Shape};
use fabcache_layout::mapping::Mapping;
use fabcache_layout::sync::Ordering;
use libfuzzer_sys::fuzz_target;

const SHAPE: Shape = Shape { slots: 4, slot_bytes: 64, staging_bytes: 4096 };

fuzz_target!(|steps: Vec<(u16, u64, u8)>| {
    let (mut server, file) = Channel::create(&SHAPE).expect("memory");
    let mapping = Mapping::to_write(file.as_fd(), SHAPE.channel_bytes()).expect("mapped");
    // SAFETY: the mapping outlives it and is writable.
    let memory = unsafe { mapping.memory() };
    let mut client = Channel::open(file.as_fd()).expect("just made");
    let bytes = [7; 3000];
    let mut into = [0; 2000];
    for (at, word, what) in steps {
        let len = usize::from(at) % into.len();
        match what % 6 {
            0 | 1 => memory.store(u64::from(at) * 8 % SHAPE.channel_bytes(), word, Ordering::Relaxed),
            // A word that could be that of a slot's next round.
            2 => memory.store(1024 + u64::from(at % 4) * 64, word & !0xff | u64::from(what >> 4), Ordering::Relaxed),
            3 => drop(client.outgoing().send(&[IoSlice::new(&bytes[..len])])),
            4 => drop(server.outgoing().send(&[IoSlice::new(&bytes[..len]), IoSlice::new(&bytes)])),
            _ => {
                if let Ok(received) = server.incoming().receive(&mut into[..len]) {
                    assert!(received <= len);
                }
                let _ = (server.incoming().must_notify(), server.outgoing().has_room());
            }
        }
    }
});
