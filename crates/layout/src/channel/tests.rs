//! Both ends of a channel, in one process and over its memory file.

use std::io::IoSlice;
use std::os::fd::AsFd;

use proptest::prelude::*;

use super::{Channel, ProtocolError, SLOTS_START, STAGING_BYTES_MIN, Shape};
use crate::mapping::Mapping;
use crate::sync::Ordering;

const SMALL: Shape = Shape { slots: 4, slot_bytes: 64, staging_bytes: STAGING_BYTES_MIN };

fn pair(shape: &Shape) -> (Channel, Channel) {
    let (server, file) = Channel::create(shape).expect("memory");
    let client = Channel::open(file.as_fd()).expect("just made");
    (server, client)
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + seed * 7) as u8).collect()
}

proptest! {
    #[test]
    fn bytes_round_trip(
        messages in prop::collection::vec((0usize..9000, 1usize..9000), 1..60),
        slots in prop::sample::select(vec![2u32, 4, 64]),
    ) {
        let (mut server, mut client) = pair(&Shape { slots, ..SMALL });
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        let mut waiting: Vec<u8> = Vec::new();
        for (seed, (send, receive)) in messages.into_iter().enumerate() {
            waiting.extend(bytes(seed, send));
            let middle = waiting.len() / 3;
            let parts = [IoSlice::new(&waiting[..middle]), IoSlice::new(&waiting[middle..])];
            let taken = client.outgoing().send(&parts).expect("sound");
            sent.extend(waiting.drain(..taken));
            let mut into = vec![0; receive];
            let got = server.incoming().receive(&mut into).expect("sound");
            received.extend_from_slice(&into[..got]);
        }
        while server.incoming().is_ready() {
            server.incoming().append_to(&mut received, 100).expect("sound");
        }
        prop_assert!(received == sent);
        prop_assert!(client.outgoing().is_drained().expect("sound"));
        let more = client.outgoing().send(&[IoSlice::new(b"more")]).expect("sound");
        prop_assert_eq!(more, 4);
    }

    #[test]
    fn any_channel_content_is_handled(
        noise in prop::collection::vec((0u64..SLOTS_START / 8 + 200, any::<u64>()), 1..200),
        words in prop::collection::vec((0u64..8, any::<u32>(), any::<bool>()), 1..50),
    ) {
        let (mut server, file) = Channel::create(&SMALL).expect("memory");
        let mapping = Mapping::to_write(file.as_fd(), SMALL.channel_bytes()).expect("mapped");
        // SAFETY: the mapping outlives it, and was mapped for writing.
        let memory = unsafe { mapping.memory() };
        let mut into = [0; 300];
        for (at, word) in noise {
            memory.store(at * 8, word, Ordering::Relaxed);
            let _ = server.incoming().receive(&mut into);
            let _ = server.outgoing().send(&[IoSlice::new(&into)]);
        }
        for (slot, len, staged) in words {
            // Words that pass for the next ones.
            for round in 1..4u64 {
                let at = SLOTS_START + slot % 4 * 64;
                memory.store(at, round | u64::from(len) << 32 | u64::from(staged) << 63, Ordering::Relaxed);
                let _ = server.incoming().receive(&mut into);
            }
        }
    }
}

#[test]
fn full_ring_accepts_nothing_until_a_receive() {
    let (mut server, mut client) = pair(&SMALL);
    let send = |client: &mut Channel, len: usize| client.outgoing().send(&[IoSlice::new(&bytes(1, len))]);
    for _ in 0..SMALL.slots {
        assert_eq!(send(&mut client, 56), Ok(56));
    }
    assert_eq!(send(&mut client, 1), Ok(0));
    client.outgoing().want_room();
    assert_eq!(client.outgoing().has_room(), Ok(false));
    let mut into = [0; 56];
    assert_eq!(server.incoming().receive(&mut into), Ok(56));
    assert!(server.incoming().must_notify(), "the client sleeps");
    assert!(!server.incoming().must_notify(), "it is rung once");
    assert_eq!(client.outgoing().has_room(), Ok(true));
    assert_eq!(send(&mut client, 56), Ok(56));
}

#[test]
fn sleeping_side_is_rung() {
    let (mut server, mut client) = pair(&SMALL);
    client.outgoing().send(&[IoSlice::new(b"a")]).expect("sound");
    assert!(!client.outgoing().must_notify(), "no end sleeps");
    server.incoming().receive(&mut [0; 8]).expect("sound");
    server.incoming().want_data();
    assert!(!server.incoming().is_ready());
    client.outgoing().send(&[IoSlice::new(b"b")]).expect("sound");
    assert!(client.outgoing().must_notify());
    assert!(server.incoming().unwant_data(), "the client was rung");
    server.incoming().want_data();
    assert!(!server.incoming().unwant_data(), "the client was not rung");
}

#[test]
fn false_consumption_counts_are_detected() {
    let (mut server, file) = Channel::create(&SMALL).expect("memory");
    let mapping = Mapping::to_write(file.as_fd(), SMALL.channel_bytes()).expect("mapped");
    // SAFETY: the mapping outlives it, and was mapped for writing.
    let memory = unsafe { mapping.memory() };
    for _ in 0..SMALL.slots {
        server.outgoing().send(&[IoSlice::new(b"x")]).expect("sound");
    }
    let consumed = SMALL.direction(super::Side::Client).consumed;
    memory.store(consumed, 5, Ordering::Relaxed);
    assert_eq!(server.outgoing().send(&[IoSlice::new(b"x")]), Err(ProtocolError), "more than was sent");
    memory.store(consumed, 2, Ordering::Relaxed);
    assert_eq!(server.outgoing().send(&[IoSlice::new(b"xy")]), Ok(2));
    memory.store(consumed, 1, Ordering::Relaxed);
    assert_eq!(server.outgoing().is_drained(), Err(ProtocolError), "the count goes back");
}

#[test]
fn invalid_channels_are_rejected() {
    let open = |seals: bool, word: Option<u64>| {
        let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("test", flags).expect("memory");
        rustix::fs::ftruncate(&file, SMALL.channel_bytes()).expect("memory");
        if let Some(slots) = word {
            let mapping = Mapping::to_write(file.as_fd(), SMALL.channel_bytes()).expect("mapped");
            // SAFETY: the mapping outlives it, and was mapped for writing.
            let memory = unsafe { mapping.memory() };
            SMALL.write(&memory);
            memory.store(super::SLOTS_AT, slots, Ordering::Relaxed);
        }
        if seals {
            rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK).expect("sealed");
        }
        Channel::open(file.as_fd()).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(open(true, Some(4)), Ok(()));
    assert!(open(false, Some(4)).expect_err("the file may shrink").contains("sealed"));
    for word in [None, Some(3), Some(0), Some(1 << 20), Some(8), Some(u64::MAX)] {
        assert!(open(true, word).expect_err("none").contains("not a channel"), "{word:?}");
    }
}

#[test]
fn ring_works_past_counter_wraparound() {
    let (mut server, mut client) = pair(&SMALL);
    let last_rounds = (u64::from(u32::MAX) - 1000) * u64::from(SMALL.slots);
    client.outgoing().skip_to(last_rounds);
    server.incoming().skip_to(last_rounds);
    for number in 0..10_000u32 {
        client.outgoing().send(&[IoSlice::new(&number.to_le_bytes())]).expect("sound");
        let mut into = [0; 4];
        assert_eq!(server.incoming().receive(&mut into), Ok(4));
        assert_eq!(u32::from_le_bytes(into), number);
        assert_eq!(server.incoming().receive(&mut into), Ok(0), "bytes are received once");
    }
}
