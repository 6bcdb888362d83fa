//! Models of a ring of slots, and of a thread's sleep, under loom.
//!
//! `cargo xtask loom` also leaves out the writer's fence, the reader's acquire, the order of copy and credit, and the fences of
//! either side of a sleep. With a mutex: its acquire, and the fence of its release. The models that need it must fail.

use fabcache_layout::Memory;
use fabcache_layout::sync::{AtomicU32, Ordering, fence, in_order};
use loom::sync::Arc;
use loom::{model, thread};

use crate::remote_heaps::RemoteHeaps;
use crate::sleep::{end_polling, end_sleep, is_polled, may_sleep, must_wake};
use crate::slots::{RingShape, SlotReader, SlotWriter};

const MESSAGE_BYTES: usize = 16;
const SLOT_BYTES: u32 = 8 + MESSAGE_BYTES as u32;
/// The most reads that find nothing, in a row.
const READS_MAX: usize = 2;

/// The heaps of both PEs.
#[derive(Clone)]
struct Heaps([Memory; 2], usize);

impl Heaps {
    fn new(bytes: [u64; 2]) -> Heaps {
        Heaps(bytes.map(Memory::zeroed), 0)
    }

    /// Returns the access of a PE.
    fn of(&self, pe: usize) -> Heaps {
        Heaps(self.0.clone(), pe)
    }
}

impl RemoteHeaps for Heaps {
    fn pe(&self) -> usize {
        self.1
    }

    fn pes(&self) -> usize {
        2
    }

    fn get(&mut self, pe: usize, offset: u64, into: &mut [u8]) {
        self.0[pe].copy_out(offset, into);
    }

    fn put(&mut self, pe: usize, offset: u64, from: &[u8]) {
        self.0[pe].copy_in(offset, from);
    }

    fn put_word(&mut self, pe: usize, offset: u64, word: u64) {
        self.0[pe].store(offset, word, Ordering::Relaxed);
    }

    fn compare_swap(&mut self, pe: usize, offset: u64, expected: u64, new: u64) -> u64 {
        let order = Ordering::Relaxed;
        self.0[pe].compare_exchange(offset, expected, new, order, order).unwrap_or_else(|word| word)
    }

    fn atomic_set(&mut self, pe: usize, offset: u64, word: u64) {
        self.0[pe].store(offset, word, Ordering::Relaxed);
    }

    fn fence(&mut self) {
        fence(Ordering::Release);
    }

    fn progress(&mut self) {}
}

/// Returns the next message, if it comes soon.
fn read(heaps: &mut Heaps, reader: &mut SlotReader) -> Option<Vec<u8>> {
    let mut message = Vec::new();
    for _ in 0..READS_MAX {
        if reader.read(heaps, &mut message).expect("valid flags").is_some() {
            return Some(message);
        }
        thread::yield_now();
    }
    None
}

/// Where the mutex of a ring lies, if it has one.
fn mutex(shape: RingShape, has_mutex: bool) -> Option<u64> {
    has_mutex.then(|| shape.bytes())
}

#[test]
fn messages_arrive_whole_and_in_order() {
    model(|| {
        let shape = RingShape { slots: 2, slot_bytes: SLOT_BYTES };
        let mut heaps = Heaps::new([0, shape.bytes()]);
        let (mut own, mut reader) = (heaps.of(1), SlotReader::new(heaps.0[1].clone(), shape));
        let client = thread::spawn(move || {
            let mut writer = SlotWriter::new(1, 0, shape);
            for number in 1..=2 {
                writer.write(&mut heaps, &[number; MESSAGE_BYTES]);
            }
        });
        for number in 1..=2 {
            let Some(message) = read(&mut own, &mut reader) else { break };
            assert_eq!(message, [number; MESSAGE_BYTES]);
        }
        client.join().expect("written");
    });
}

fn data_and_message(has_mutex: bool) {
    let shape = RingShape { slots: 1, slot_bytes: SLOT_BYTES };
    let (at, mutex) = (shape.bytes() + 8, mutex(shape, has_mutex));
    let mut heaps = Heaps::new([0, at + 8]);
    let (mut own, memory) = (heaps.of(1), heaps.0[1].clone());
    let mut reader = SlotReader::new(memory.clone(), shape).with_mutex(mutex);
    let client = thread::spawn(move || {
        heaps.put(1, at, &[7; 8]);
        SlotWriter::new(1, 0, shape).with_mutex(mutex).write(&mut heaps, &[8]);
    });
    if let Some(message) = read(&mut own, &mut reader) {
        assert_eq!((&message[..], memory.read(at)), (&[8][..], [7; 8]));
    }
    client.join().expect("written");
}

#[test]
fn data_is_seen_with_the_message_about_it() {
    model(|| data_and_message(false));
}

#[test]
fn mutex_orders_a_message_and_the_data_that_it_is_about() {
    model(|| data_and_message(true));
}

fn two_messages_through_one_slot(has_mutex: bool) {
    // One slot each way: for messages, and for what returns their credits.
    let shape = RingShape { slots: 1, slot_bytes: SLOT_BYTES };
    let (heaps, mutex) = (Heaps::new([shape.bytes() + 8; 2]), mutex(shape, has_mutex));
    let [mut own, mut sender] = [heaps.of(1), heaps.of(0)];
    let mut reader = SlotReader::new(heaps.0[1].clone(), shape).with_mutex(mutex);
    let mut credits = SlotWriter::new(0, 0, shape).with_mutex(mutex);
    let client = thread::spawn(move || {
        let mut returned = SlotReader::new(sender.0[0].clone(), shape).with_mutex(mutex);
        let mut writer = SlotWriter::new(1, 0, shape).with_mutex(mutex);
        writer.write(&mut sender, &[1; MESSAGE_BYTES]);
        if read(&mut sender, &mut returned).is_some() {
            writer.write(&mut sender, &[2; MESSAGE_BYTES]);
        }
    });
    if reader.has_come() {
        let (mut message, mut heaps) = (None, own.clone());
        let copy = || message = read(&mut own, &mut reader);
        in_order("slot_copy_first", copy, || credits.write(&mut heaps, &[]));
        assert_eq!(message.as_deref(), Some(&[1; MESSAGE_BYTES][..]));
    }
    client.join().expect("written");
}

#[test]
fn slot_is_written_again_only_after_its_message_was_copied() {
    model(|| two_messages_through_one_slot(false));
}

#[test]
fn mutex_orders_a_copy_and_the_message_that_follows_in_its_slot() {
    model(|| two_messages_through_one_slot(true));
}

/// Work is made while one thread goes to sleep, and another stops to poll.
#[test]
fn work_is_seen_or_wakes_a_thread() {
    model(|| {
        // Asleep, polling, work.
        let shared = Arc::new((AtomicU32::new(0), AtomicU32::new(1), AtomicU32::new(0)));
        let maker = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (word, polling, work) = &*shared;
                work.store(1, Ordering::Relaxed);
                must_wake(Some(polling)) && end_sleep(word)
            })
        };
        let poller = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (_, polling, work) = &*shared;
                end_polling(polling);
                work.load(Ordering::Relaxed) == 1
            })
        };
        let (word, polling, work) = &*shared;
        let sleeps = may_sleep(word, &mut || !is_polled(polling) && work.load(Ordering::Relaxed) == 1);
        let is_woken = maker.join().expect("it wakes");
        let is_seen = poller.join().expect("it looks");
        assert!(!sleeps || is_woken || is_seen, "all threads miss the work");
    });
}

/// Work is made while two threads stop to poll, and look for it under a lock that only one of them gets.
#[test]
fn work_behind_a_lock_is_seen_or_wakes_a_thread() {
    model(|| {
        // Asleep, polling, work, and the lock that a look at the work takes.
        let shared =
            Arc::new((AtomicU32::new(1), AtomicU32::new(2), AtomicU32::new(0), loom::sync::Mutex::new(())));
        let look = |shared: &(AtomicU32, AtomicU32, AtomicU32, loom::sync::Mutex<()>)| {
            let (_, polling, work, lock) = shared;
            end_polling(polling);
            match lock.try_lock() {
                Ok(_lock) => work.load(Ordering::Relaxed) == 1,
                Err(_) => !fabcache_layout::sync::without("lock_is_work"),
            }
        };
        let maker = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (word, polling, work, _) = &*shared;
                work.store(1, Ordering::Relaxed);
                must_wake(Some(polling)) && end_sleep(word)
            })
        };
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || look(&shared))
        };
        let is_seen = look(&shared);
        let is_woken = maker.join().expect("it wakes");
        let is_seen_by_other = other.join().expect("it looks");
        assert!(is_woken || is_seen || is_seen_by_other, "all threads miss the work");
    });
}
