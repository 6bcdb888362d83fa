//! Models of a channel under loom.
//!
//! A sleeping end is notified only with the fences on both sides: `cargo xtask loom` also builds without them, and
//! those models must fail.

use std::io::IoSlice;

use loom::model;
use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::thread;

use super::{APART_BYTES, HEADER_BYTES, SLOTS_START, Shape, Side};
use crate::memory::Memory;
use crate::sync::Ordering;

const SHAPE: Shape = Shape { slots: 2, slot_bytes: 16, staging_bytes: 32 };

/// Only the direction to the server.
fn memory() -> Memory {
    let at = SHAPE.direction(Side::Server);
    let slots = at.slots..at.slots + 32;
    let staging = at.staging..at.staging + 32;
    Memory::sparse(SHAPE.channel_bytes(), move |offset| {
        (HEADER_BYTES..SLOTS_START).contains(&offset) && (offset - HEADER_BYTES).is_multiple_of(APART_BYTES)
            || slots.contains(&offset)
            || staging.contains(&offset)
    })
}

#[test]
fn bytes_arrive_whole_and_only_empty_slots_are_filled() {
    model(|| {
        let memory = memory();
        let (_, mut producer) = SHAPE.ends(&memory, Side::Client);
        let (mut consumer, _) = SHAPE.ends(&memory, Side::Server);
        let sender = thread::spawn(move || {
            let mut sent = 0;
            for number in 1..=3u64 {
                let taken = producer.send(&[IoSlice::new(&[number as u8; 8])]).expect("sound");
                if taken == 0 {
                    break;
                }
                sent = number;
            }
            sent
        });
        let mut received = 0;
        for _ in 0..3 {
            let mut into = [0; 8];
            if consumer.receive(&mut into).expect("sound") == 8 {
                received += 1;
                assert_eq!(into, [received; 8], "whole and in order");
            }
        }
        let sent = sender.join().expect("sent");
        assert!(sent >= 2, "there was room for two");
        let mut rest = Vec::new();
        consumer.append_to(&mut rest, 100).expect("sound");
        assert_eq!(rest.len() as u64, (sent - u64::from(received)) * 8);
        assert!(rest.chunks(8).zip(received + 1..).all(|(bytes, number)| bytes == [number; 8]));
    });
}

#[test]
fn staging_is_reused_only_after_it_was_read() {
    model(|| {
        let memory = memory();
        let (_, mut producer) = SHAPE.ends(&memory, Side::Client);
        let (mut consumer, _) = SHAPE.ends(&memory, Side::Server);
        let long: Vec<u8> = (1..=40).collect();
        let sender = {
            let long = long.clone();
            thread::spawn(move || {
                let first = producer.send(&[IoSlice::new(&long)]).expect("sound");
                first + producer.send(&[IoSlice::new(&long[first..])]).expect("sound")
            })
        };
        let mut received = Vec::new();
        consumer.append_to(&mut received, 100).expect("sound");
        let sent = sender.join().expect("sent");
        while consumer.append_to(&mut received, 100).expect("sound") > 0 {}
        assert_eq!(received, long[..sent]);
    });
}

#[test]
fn without_wake_fence_fails_sleeping_consumer_is_woken() {
    model(|| {
        let memory = memory();
        let (_, mut producer) = SHAPE.ends(&memory, Side::Client);
        let (consumer, _) = SHAPE.ends(&memory, Side::Server);
        let doorbell = Arc::new(AtomicBool::new(false));
        let sender = {
            let doorbell = Arc::clone(&doorbell);
            thread::spawn(move || {
                producer.send(&[IoSlice::new(b"x")]).expect("sound");
                if producer.must_notify() {
                    doorbell.store(true, Ordering::Relaxed);
                }
            })
        };
        consumer.want_data();
        let seen = consumer.is_ready();
        sender.join().expect("sent");
        assert!(seen || doorbell.load(Ordering::Relaxed), "the consumer sleeps and is not rung");
    });
}

#[test]
fn without_wake_fence_fails_sleeping_producer_is_woken() {
    model(|| {
        let memory = memory();
        let (_, mut producer) = SHAPE.ends(&memory, Side::Client);
        let (mut consumer, _) = SHAPE.ends(&memory, Side::Server);
        for _ in 0..2 {
            producer.send(&[IoSlice::new(b"x")]).expect("sound");
        }
        let doorbell = Arc::new(AtomicBool::new(false));
        let receiver = {
            let doorbell = Arc::clone(&doorbell);
            thread::spawn(move || {
                consumer.receive(&mut [0; 1]).expect("sound");
                if consumer.must_notify() {
                    doorbell.store(true, Ordering::Relaxed);
                }
            })
        };
        producer.want_room();
        let seen = producer.has_room().expect("sound");
        receiver.join().expect("received");
        assert!(seen || doorbell.load(Ordering::Relaxed), "the producer sleeps and is not rung");
    });
}

#[test]
fn self_woken_thread_knows_whether_it_was_rung() {
    model(|| {
        let memory = memory();
        let (_, mut producer) = SHAPE.ends(&memory, Side::Client);
        let (consumer, _) = SHAPE.ends(&memory, Side::Server);
        consumer.want_data();
        let sender = thread::spawn(move || {
            producer.send(&[IoSlice::new(b"x")]).expect("sound");
            producer.must_notify()
        });
        let was_rung_for = consumer.unwant_data();
        assert_eq!(sender.join().expect("sent"), was_rung_for, "exactly one of the two resets the word");
    });
}
