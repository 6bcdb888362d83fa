//! `watch`: sends events to clients as lines of memcached's log format.
//!
//! Before a worker formats an event it checks one word: the union of all watchers' topics. Lines wait in a bounded
//! queue for each watcher; a slow watcher misses lines and is told how many.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::bounds::{WATCHER_BYTES_MAX, WATCHERS_MAX};

/// Topics to watch, as bits.
pub mod topic {
    /// Reads.
    pub const FETCHERS: u32 = 1 << 0;
    /// Stores.
    pub const MUTATIONS: u32 = 1 << 1;
    /// Evictions.
    pub const EVICTIONS: u32 = 1 << 2;
    /// Connections.
    pub const CONNEVENTS: u32 = 1 << 3;
    /// Deletes.
    pub const DELETIONS: u32 = 1 << 4;
    /// Events of the server itself.
    pub const SYSEVENTS: u32 = 1 << 5;

    /// The bit for a word of the `watch` command. The proxy's topics can be watched, and nothing happens there.
    pub fn of(word: &[u8]) -> Option<u32> {
        Some(match word {
            b"fetchers" => FETCHERS,
            b"mutations" => MUTATIONS,
            b"evictions" => EVICTIONS,
            b"connevents" => CONNEVENTS,
            b"deletions" => DELETIONS,
            b"sysevents" => SYSEVENTS,
            b"rawcmds" | b"proxyreqs" | b"proxyevents" | b"proxyuser" => 0,
            _ => return None,
        })
    }
}

#[derive(Debug)]
struct Watcher {
    id: u64,
    topics: u32,
    worker: usize,
    lines: VecDeque<u8>,
    skipped: u64,
}

/// All watchers.
#[derive(Debug, Default)]
pub struct Watchers {
    wanted: AtomicU32,
    next_id: AtomicU64,
    next_line: AtomicU64,
    watchers: Mutex<Vec<Watcher>>,
    /// Lines sent to any watcher.
    written: AtomicU64,
    /// Lines sent.
    sent: AtomicU64,
    /// Lines that a slow watcher missed.
    skipped: AtomicU64,
}

/// Counts of the log, for `stats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchCounts {
    /// Lines made.
    pub written: u64,
    /// Lines queued for watchers.
    pub sent: u64,
    /// Lines that slow watchers missed.
    pub skipped: u64,
    /// Watchers now.
    pub watchers: usize,
}

impl Watchers {
    /// Adds a watcher whose connection is worker `worker`'s; none if there are too many.
    pub fn add(&self, topics: u32, worker: usize) -> Option<u64> {
        let mut watchers = self.lock();
        if watchers.len() >= WATCHERS_MAX {
            return None;
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        watchers.push(Watcher { id, topics, worker, lines: VecDeque::new(), skipped: 0 });
        self.update_wanted(&watchers);
        Some(id)
    }

    /// Removes a watcher.
    pub fn remove(&self, id: u64) {
        let mut watchers = self.lock();
        watchers.retain(|watcher| watcher.id != id);
        self.update_wanted(&watchers);
    }

    fn update_wanted(&self, watchers: &[Watcher]) {
        let wanted = watchers.iter().fold(0, |wanted, watcher| wanted | watcher.topics);
        self.wanted.store(wanted, Ordering::Release);
    }

    /// Returns whether any watcher has this topic.
    #[inline]
    pub fn wants(&self, topic: u32) -> bool {
        self.wanted.load(Ordering::Relaxed) & topic != 0
    }

    /// Sends an event to its watchers. `what` follows time and number on the line. Returns the workers to wake.
    pub fn publish(&self, topic: u32, what: &str) -> Vec<usize> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let number = self.next_line.fetch_add(1, Ordering::Relaxed) + 1;
        let mut line = String::with_capacity(what.len() + 48);
        let _ = writeln!(line, "ts={}.{:06} gid={number} {what}", now.as_secs(), now.subsec_micros());
        self.written.fetch_add(1, Ordering::Relaxed);
        let mut wake = Vec::new();
        for watcher in self.lock().iter_mut().filter(|watcher| watcher.topics & topic != 0) {
            if watcher.lines.len() + line.len() > WATCHER_BYTES_MAX {
                watcher.skipped += 1;
                self.skipped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            if watcher.lines.is_empty() {
                wake.push(watcher.worker);
            }
            if watcher.skipped > 0 {
                watcher.lines.extend(format!("[skipped={}]\n", watcher.skipped).bytes());
                watcher.skipped = 0;
            }
            watcher.lines.extend(line.bytes());
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
        wake
    }

    /// Takes the lines that wait for a watcher.
    pub fn take(&self, id: u64, into: &mut Vec<u8>) {
        if let Some(watcher) = self.lock().iter_mut().find(|watcher| watcher.id == id) {
            into.extend(watcher.lines.drain(..));
        }
    }

    /// Counts.
    pub fn counts(&self) -> WatchCounts {
        WatchCounts {
            written: self.written.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
            skipped: self.skipped.load(Ordering::Relaxed),
            watchers: self.lock().len(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Watcher>> {
        self.watchers.lock().expect("no thread panics while it holds the watchers")
    }
}

/// Percent-encodes a key as memcached's logs and dumps do: letters, digits and `-._~` stay.
pub fn push_encoded(key: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in key {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            out.push(*byte);
        } else {
            out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
}

/// The encoded key as text.
pub fn encoded(key: &[u8]) -> String {
    let mut out = Vec::with_capacity(key.len());
    push_encoded(key, &mut out);
    String::from_utf8(out).expect("encoded keys are ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchers_receive_requested_events() {
        let watchers = Watchers::default();
        assert!(!watchers.wants(topic::FETCHERS));
        let one = watchers.add(topic::FETCHERS, 3).expect("room");
        let two = watchers.add(topic::MUTATIONS | topic::FETCHERS, 1).expect("room");
        assert!(watchers.wants(topic::MUTATIONS) && !watchers.wants(topic::EVICTIONS));
        assert_eq!(watchers.publish(topic::FETCHERS, "type=item_get key=a"), [3, 1]);
        assert!(watchers.publish(topic::FETCHERS, "type=item_get key=b").is_empty(), "they are awake");
        assert_eq!(watchers.publish(topic::MUTATIONS, "type=item_store"), [] as [usize; 0]);
        let mut lines = Vec::new();
        watchers.take(one, &mut lines);
        let text = String::from_utf8(lines).expect("text");
        assert_eq!(text.lines().count(), 2);
        assert!(text.starts_with("ts=") && text.contains(" gid=1 type=item_get key=a\n"), "{text}");
        watchers.remove(two);
        assert!(!watchers.wants(topic::MUTATIONS));
    }

    #[test]
    fn slow_watcher_receives_a_count_of_missed_lines() {
        let watchers = Watchers::default();
        let id = watchers.add(topic::FETCHERS, 0).expect("room");
        let what = "x".repeat(1000);
        for _ in 0..400 {
            watchers.publish(topic::FETCHERS, &what);
        }
        let mut lines = Vec::new();
        watchers.take(id, &mut lines);
        assert!(lines.len() <= WATCHER_BYTES_MAX);
        let skipped = watchers.counts().skipped;
        assert!(skipped > 0);
        watchers.publish(topic::FETCHERS, "again");
        lines.clear();
        watchers.take(id, &mut lines);
        assert!(String::from_utf8(lines).expect("text").starts_with(&format!("[skipped={skipped}]\n")));
    }

    #[test]
    fn watchers_are_limited() {
        let watchers = Watchers::default();
        assert_eq!((0..25).filter_map(|_| watchers.add(1, 0)).count(), WATCHERS_MAX);
    }

    #[test]
    fn keys_are_percent_encoded() {
        assert_eq!(encoded(b"a-b._~9 \xff:"), "a-b._~9%20%FF%3A");
    }
}
