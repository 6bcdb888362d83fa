//! A client that writes arbitrary bytes to its channel at arbitrary times. It may end its own link, and nothing else.

use fabcache_testbed::random::SplitMix64;
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fabcache_layout::channel::Shape;
use fabcache_layout::mapping::Mapping;
use fabcache_layout::memory::Memory;
use rustix::fs::FallocateFlags;
use rustix::net::{SendFlags, send};

use crate::common::process::{Leftover, Server, at, socket_path, stat, wait_until};
use crate::common::raw::Raw;
use crate::workers::{Workers, pattern};

/// The number of hostile clients, unless this environment variable sets it.
const ROUNDS: u64 = 120;
const ROUNDS_VARIABLE: &str = "FABCACHE_HOSTILE_ROUNDS";

const SHAPE: Shape = Shape { slots: 8, slot_bytes: 128, staging_bytes: 8192 };
const FLAGS: &str = "-t 1 -m 64 --shm-slots 8 --shm-slot-size 128 --shm-staging 8k";

/// Constants as in `layout::channel`.
const SLOTS_START: u64 = 1024;

/// A client's random numbers.
struct Random(SplitMix64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns a number as protocols have them: small, at a limit, or any.
    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(20),
            1 => [0, 120, 121, 128, 8191, 8192, 8193, 1 << 31, 1 << 32, u64::MAX][self.below(10) as usize],
            2 => self.below(16384),
            _ => self.next(),
        }
    }
}

/// A client's channel, writable at any offset.
struct Scribbler {
    raw: Raw,
    memory: Memory,
    random: Random,
    _mapping: Mapping,
}

impl Scribbler {
    fn attach(path: &str, seed: u64) -> Scribbler {
        let raw = Raw::attach(path).expect("it is let in");
        let mapping = Mapping::to_write(raw.file.as_fd(), SHAPE.channel_bytes());
        let mapping = mapping.expect("mapped");
        // SAFETY: the mapping lives as long as this, and was mapped for writing.
        let memory = unsafe { mapping.memory() };
        Scribbler { raw, memory, random: Random(SplitMix64::new(seed)), _mapping: mapping }
    }

    fn store(&self, at: u64, word: u64) {
        self.memory.store(at / 8 * 8, word, Ordering::Relaxed);
    }

    /// Sends like an honest client, as long as that works.
    fn put(&mut self, bytes: &[u8]) {
        let _ = self.raw.channel.outgoing().send(&[IoSlice::new(bytes)]);
        self.raw.ring();
    }

    fn ring(&mut self) {
        if self.random.below(3) == 0 {
            self.raw.ring();
        }
    }

    /// Writes random words at random offsets.
    fn noise(&mut self) {
        for _ in 0..200 {
            let end = if self.random.below(2) == 0 { SLOTS_START } else { SHAPE.channel_bytes() };
            let (at, word) = (self.random.below(end), self.random.number());
            self.store(at, word);
            self.ring();
        }
    }

    /// Writes slots that pass for the next ones: with impossible lengths and offsets, or random bytes.
    fn slots(&mut self) {
        for round in 1..20u64 {
            for slot in 0..8 {
                let at = SLOTS_START + slot * 128;
                for word in 1..16 {
                    let bytes = self.random.next();
                    self.store(at + word * 8, bytes);
                }
                let offset = self.random.number();
                self.store(at + 8, offset);
                let sound = self.random.below(8) > 0;
                let len = if sound { 1 + self.random.below(120) } else { self.random.number() & 0x7fff_ffff };
                let staged = u64::from(!sound) * self.random.below(2);
                self.store(at, round | len << 32 | staged << 63);
                self.ring();
            }
            std::thread::yield_now();
        }
    }

    /// Toggles a slot between full and empty as fast as it can.
    fn flicker(&mut self) {
        let end = Instant::now() + Duration::from_millis(20);
        self.raw.ring();
        while Instant::now() < end {
            for _ in 0..50 {
                self.store(SLOTS_START, 1 | 1 << 32);
                self.store(SLOTS_START, 0);
            }
            self.raw.ring();
        }
    }

    /// Sends requests, and lies about how many replies were consumed.
    fn lies(&mut self) {
        for _ in 0..20 {
            self.put(b"mn\r\nmn\r\nmn\r\n");
            let consumed = 512;
            let word = self.random.number();
            self.store(consumed, word);
            std::thread::yield_now();
        }
    }

    /// Sends requests without end, and never consumes the replies.
    fn glut(&mut self) {
        let end = Instant::now() + Duration::from_millis(20);
        while Instant::now() < end {
            self.put(b"mg big v\r\nmg big v\r\n");
        }
    }

    /// Sends packets whose lengths are right, nearly right or random, among lines; some values never end.
    fn packets(&mut self) {
        for _ in 0..40 {
            let mut packet = vec![0; 24 + self.random.below(300) as usize];
            for byte in &mut packet {
                *byte = self.random.next() as u8;
            }
            // Exclude opcodes that would harm other clients.
            let harmless = [0x00, 0x01, 0x02, 0x0a, 0x0e, 0x10, 0x1d, 0x20, 0x21, 0x24, 0x90, 0xa0, 0xff];
            packet[0] = 0x80;
            packet[1] = harmless[self.random.below(harmless.len() as u64) as usize];
            let extras = if self.random.below(4) == 0 { self.random.below(256) } else { 8 };
            let key = if self.random.below(4) == 0 { self.random.number() } else { 10 };
            let body = match self.random.below(8) {
                0 => self.random.number(),
                1 => packet.len() as u64,
                _ => packet.len() as u64 - 24,
            };
            packet[2..4].copy_from_slice(&(key as u16).to_be_bytes());
            packet[4] = extras as u8;
            packet[8..12].copy_from_slice(&(body as u32).to_be_bytes());
            if self.random.below(4) == 0 {
                packet.extend_from_slice(b"mn\r\nms hostile 3\r\n\x80\x80\x80\r\n");
            }
            self.put(&packet);
        }
    }

    /// Sends as many notifications as the socket takes.
    fn doorbells(&mut self) {
        let end = Instant::now() + Duration::from_millis(20);
        while Instant::now() < end {
            let _ = send(&self.raw.socket, &[b'!'; 32768][..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// Sets all waiting words at once.
    fn waits(&mut self) {
        for control in [128, 512] {
            self.store(control + 128, 1);
            self.store(control + 256, 1);
        }
        self.raw.ring();
        self.put(b"mn\r\n");
        let word = self.random.next();
        self.store(512 + 128, word);
    }

    /// Punches holes into the channel's file.
    fn holes(&mut self) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for _ in 0..20 {
            self.put(&pattern(3, 4000));
            let _ = rustix::fs::fallocate(&self.raw.file, flags, 0, SHAPE.channel_bytes());
        }
    }

    fn misbehave(&mut self) {
        for _ in 0..3 {
            match self.random.below(9) {
                0 => self.noise(),
                1 => self.slots(),
                2 => self.flicker(),
                3 => self.lies(),
                4 => self.glut(),
                5 => self.doorbells(),
                6 => self.waits(),
                7 => self.packets(),
                _ => self.holes(),
            }
        }
    }
}

#[test]
fn hostile_client_harms_only_itself() {
    let rounds = std::env::var(ROUNDS_VARIABLE).ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS);
    let path = socket_path("hostile");
    let _leftover = Leftover(path.clone());
    let mut server = Server::started(&path, FLAGS);
    let cache = at(&path);
    cache.set(b"big", &pattern(1, 5000), fabcache_client::Ttl::NEVER).expect("stored");
    let workers = Workers::default();
    std::thread::scope(|scope| {
        let _stop = workers.stop_when_dropped();
        workers.start(scope, &path);
        for seed in 0..2 {
            let path = &path;
            let hostile = move || {
                // Two at a time, as a server polls several.
                let mut last: Option<Scribbler> = None;
                for round in 0..rounds / 2 {
                    let mut scribbler = Scribbler::attach(path, round << 8 | seed);
                    scribbler.misbehave();
                    if let Some(last) = &mut last {
                        last.misbehave();
                    }
                    last = Some(scribbler);
                }
            };
            let hostile = scope.spawn(hostile);
            if seed == 1 {
                hostile.join().expect("each attach is accepted");
            }
        }
    });
    workers.assert_worked();
    assert!(server.is_running(), "the server has crashed");
    wait_until("links of hostile clients are left", || server.channels() <= 1);
    assert!(stat(&cache, "fabcache", "shm_broken") > 0, "broken channels are counted");
}

#[test]
fn broken_channel_ends_its_link() {
    let path = socket_path("broken");
    let _leftover = Leftover(path.clone());
    let mut server = Server::started(&path, FLAGS);
    let cache = at(&path);
    for word in [1, 1 | 121 << 32, 1 | 5 << 32 | 1 << 63] {
        // Several links at once, all of which the server polls when they break.
        let mut all: Vec<Scribbler> = (0..6).map(|seed| Scribbler::attach(&path, seed)).collect();
        for one in &mut all {
            assert_eq!(one.raw.request("mn\r\n"), "MN\r\n");
        }
        for one in &all {
            one.store(SLOTS_START + 128 + 8, u64::MAX);
            one.store(SLOTS_START + 128, word);
            one.raw.ring();
        }
        for one in &all {
            wait_until("the link closes", || one.raw.is_ended());
        }
    }
    assert_eq!(stat(&cache, "fabcache", "shm_broken"), 18);
    assert!(server.is_running());
}

#[test]
fn clients_may_leave_while_the_server_polls_them() {
    let path = socket_path("leave");
    let _leftover = Leftover(path.clone());
    let _server = Server::started(&path, FLAGS);
    for _ in 0..60 {
        let mut all: Vec<Raw> = (0..6).map(|_| Raw::attach(&path).expect("the worker lives")).collect();
        // Looks for growth over repetitions.
        for number in 0..50 {
            for one in &mut all {
                one.put(if number < 49 { b"mn\r\n" } else { b"quit\r\n" });
                if one.channel.outgoing().must_notify() {
                    one.ring();
                }
            }
            for one in all.iter_mut().filter(|_| number < 49) {
                one.receive("MN\r\n");
            }
        }
        for one in &all {
            wait_until("the link closes", || one.is_ended());
        }
    }
}

#[test]
fn client_taking_no_replies_does_not_keep_a_worker_busy() {
    let path = socket_path("glut");
    let _leftover = Leftover(path.clone());
    let _server = Server::started(&path, FLAGS);
    let cache = at(&path);
    cache.set(b"big", &pattern(1, 5000), fabcache_client::Ttl::NEVER).expect("stored");
    let mut raw = Raw::attach(&path).expect("it is let in");
    // More requests than the server answers in advance, then as many as the ring has room for.
    let mut quiet = Instant::now();
    while quiet.elapsed() < Duration::from_millis(100) {
        if raw.put(b"mg big v\r\n") > 0 {
            quiet = Instant::now();
        }
        if raw.channel.outgoing().must_notify() {
            raw.ring();
        }
    }
    let turns = || stat(&cache, "fabcache", "worker_turns");
    let before = turns();
    std::thread::sleep(Duration::from_millis(300));
    let turned = turns() - before;
    assert!(turned < 100, "the worker woke {turned} times for a stalled client");
    // The connection continues where it stopped.
    let answer = raw.receive("\r\n");
    assert!(answer.starts_with("VA 5000"));
    assert!(raw.request("mn\r\n").ends_with("MN\r\n"));
}

#[test]
fn endless_notifications_end_the_link() {
    let path = socket_path("bells");
    let _leftover = Leftover(path.clone());
    let _server = Server::started(&path, FLAGS);
    let cache = at(&path);
    for doorbells in [32 << 10, 100_000] {
        let raw = Raw::attach(&path).expect("it is let in");
        wait_until("the link closes", || {
            let _ = send(&raw.socket, &vec![b'!'; doorbells], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            raw.is_ended()
        });
    }
    assert_eq!(stat(&cache, "fabcache", "shm_broken"), 2);
    let mut raw = Raw::attach(&path).expect("it is let in");
    for _ in 0..1000 {
        raw.ring();
        assert_eq!(raw.request("mn\r\n"), "MN\r\n", "some extra notifications are harmless");
    }
}
