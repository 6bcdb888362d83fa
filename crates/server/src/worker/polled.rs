//! The connections that a worker polls, and for how long.
//!
//! A notification costs both ends system calls and the client a wait. So after input has arrived a connection is
//! polled for as long as the worker's [`SpinPolicy`] says.

use std::time::{Duration, Instant};

use fabcache_layout::channel::SpinPolicy;

#[derive(Debug)]
struct Entry {
    index: usize,
    /// Input has arrived since the last check.
    came: bool,
    /// Polled until this time.
    until: Instant,
}

/// The polled connections.
#[derive(Debug, Default)]
pub struct PolledConnections {
    entries: Vec<Entry>,
    /// How long a connection is polled without input.
    spin: SpinPolicy,
}

impl PolledConnections {
    /// Creates an empty list.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of connections.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the index of one of the worker's connections.
    pub fn at(&self, at: usize) -> usize {
        self.entries[at].index
    }

    /// Adds a connection that was just served, and that may soon receive more.
    pub fn add(&mut self, index: usize, now: Instant) {
        match self.entry(index) {
            Some(entry) => entry.came = true,
            None => {
                let until = now + self.spin.spin_time().unwrap_or_default();
                self.entries.push(Entry { index, came: false, until });
            }
        }
    }

    /// Returns whether it is polled.
    pub fn contains(&self, index: usize) -> bool {
        self.entries.iter().any(|entry| entry.index == index)
    }

    /// Records that input has arrived for a polled connection.
    pub fn note(&mut self, index: usize) {
        if let Some(entry) = self.entry(index) {
            entry.came = true;
        }
    }

    fn entry(&mut self, index: usize) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.index == index)
    }

    /// Removes an ended connection.
    pub fn remove(&mut self, index: usize) {
        self.entries.retain(|entry| entry.index != index);
    }

    /// Removes connections that have been idle for long; `rest` arms a connection's wakeup and returns whether it can
    /// sleep.
    pub fn retire(&mut self, now: Instant, mut rest: impl FnMut(usize) -> bool) {
        let (mut came, mut in_vain) = (false, false);
        let time = self.spin.spin_time().unwrap_or_default();
        self.entries.retain_mut(|entry| {
            if std::mem::take(&mut entry.came) {
                came = true;
                entry.until = now + time;
                return true;
            }
            if now < entry.until {
                return true;
            }
            let rests = rest(entry.index);
            // Where it does not, something has just come.
            (came, in_vain) = (came || !rests, in_vain || rests);
            !rests
        });
        if came && self.spin.spin_time().is_some() {
            self.spin = self.spin.after_success();
        } else if in_vain {
            self.spin = self.spin.after_sleep(Duration::ZERO);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsuccessful_polling_stops_and_is_retried() {
        let mut polled = PolledConnections::default();
        let longest = SpinPolicy::default().spin_time().expect("it begins with looking");
        let start = Instant::now();
        polled.add(7, start);
        polled.add(7, start);
        assert_eq!(polled.len(), 1);
        polled.retire(start, |_| panic!("its time is not over"));
        let later = start + longest;
        polled.retire(later, |_| false);
        assert_eq!(polled.len(), 1, "something came meanwhile");
        polled.remove(7);
        let mut requested = 0;
        while polled.spin.spin_time().is_some() {
            polled.add(7, later);
            polled.retire(later + longest, |_| {
                requested += 1;
                true
            });
        }
        assert!(requested > 1 && polled.is_empty());
        while polled.spin.spin_time().is_none() {
            polled.add(7, later);
            polled.retire(later, |_| true);
        }
        polled.add(7, later);
        assert!(polled.contains(7) && !polled.contains(8));
        polled.note(7);
        polled.retire(later, |_| panic!("something came"));
        polled.retire(later + longest, |_| true);
        assert_eq!(polled.spin.spin_time(), Some(longest / 2), "it is of use again");
    }
}
