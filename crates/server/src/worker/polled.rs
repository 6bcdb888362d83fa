//! The connections that a worker looks at without being told, and for how long.
//!
//! Looking costs a processor; being told costs both ends system calls and the client a wait. So a connection is looked at
//! for a while after something came. For how long is found out: as long as things come in that time it stays or grows,
//! and where none does, for the client thinks longer or waits for this very processor, it shrinks to nothing. Then it is
//! tried once in a while.

use std::time::{Duration, Instant};

use crate::bounds::{POLLED_TIME_MAX, POLLED_TIME_MIN, RESTS_BEFORE_POLLING_AGAIN};

#[derive(Debug)]
struct Entry {
    index: usize,
    /// Something came since it was last looked through.
    came: bool,
    /// It is looked at until then.
    until: Instant,
}

/// Connections being looked at.
#[derive(Debug)]
pub struct Polled {
    entries: Vec<Entry>,
    /// How long one is looked at for nothing; none: not at all.
    time: Option<Duration>,
    /// Connections that were told to rest at once since looking was of no use.
    rests: u32,
    /// It is being found out whether looking is of use again.
    is_trying: bool,
}

impl Default for Polled {
    fn default() -> Polled {
        Polled { entries: Vec::new(), time: Some(POLLED_TIME_MAX), rests: 0, is_trying: false }
    }
}

impl Polled {
    /// None.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The place of one of the worker's connections.
    pub fn at(&self, at: usize) -> usize {
        self.entries[at].index
    }

    /// One that was just served, and to which more may come soon.
    pub fn add(&mut self, index: usize, now: Instant) {
        match self.entry(index) {
            Some(entry) => entry.came = true,
            None => {
                let until = now + self.time.unwrap_or_default();
                self.entries.push(Entry { index, came: false, until });
            }
        }
    }

    /// It is looked at.
    pub fn contains(&self, index: usize) -> bool {
        self.entries.iter().any(|entry| entry.index == index)
    }

    /// Something came to it, if it is looked at.
    pub fn note(&mut self, index: usize) {
        if let Some(entry) = self.entry(index) {
            entry.came = true;
        }
    }

    fn entry(&mut self, index: usize) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.index == index)
    }

    /// It has ended.
    pub fn remove(&mut self, index: usize) {
        self.entries.retain(|entry| entry.index != index);
    }

    /// Those to which nothing came for long are told to rest; `rest` says whether one does.
    pub fn retire(&mut self, now: Instant, mut rest: impl FnMut(usize) -> bool) {
        let (mut came, mut in_vain) = (false, false);
        let time = self.time.unwrap_or_default();
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
        self.learn(came, in_vain);
    }

    fn learn(&mut self, came: bool, in_vain: bool) {
        if !came && !in_vain {
            return;
        }
        let was_trying = std::mem::take(&mut self.is_trying);
        self.time = match self.time {
            Some(time) if came => Some((time * 2).min(POLLED_TIME_MAX)),
            Some(_) if was_trying => None,
            Some(time) => Some(time / 2).filter(|time| *time >= POLLED_TIME_MIN),
            None if came => None,
            None => {
                self.rests = (self.rests + 1) % RESTS_BEFORE_POLLING_AGAIN;
                self.is_trying = self.rests == 0;
                // For as long as a client that sleeps takes to wake up.
                self.is_trying.then_some(POLLED_TIME_MAX)
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_to_nothing_is_given_up_and_tried_again() {
        let mut polled = Polled::default();
        let start = Instant::now();
        polled.add(7, start);
        polled.add(7, start);
        assert_eq!(polled.len(), 1);
        polled.retire(start, |_| panic!("its time is not over"));
        let later = start + POLLED_TIME_MAX;
        polled.retire(later, |_| false);
        assert_eq!(polled.len(), 1, "something came meanwhile");
        polled.remove(7);
        let mut asked = 0;
        while polled.time.is_some() {
            polled.add(7, later);
            polled.retire(later + POLLED_TIME_MAX, |_| {
                asked += 1;
                true
            });
        }
        assert!(asked > 1 && polled.is_empty());
        let rest = |polled: &mut Polled| {
            for _ in 0..RESTS_BEFORE_POLLING_AGAIN {
                assert_eq!(polled.time, None);
                polled.add(7, later);
                polled.retire(later, |_| true);
            }
            assert_eq!(polled.time, Some(POLLED_TIME_MAX));
            polled.add(7, later);
        };
        rest(&mut polled);
        polled.retire(later + POLLED_TIME_MAX, |_| true);
        assert_eq!(polled.time, None, "it is tried once");
        rest(&mut polled);
        assert!(polled.contains(7) && !polled.contains(8));
        polled.note(7);
        polled.retire(later, |_| panic!("something came"));
        polled.retire(later + POLLED_TIME_MAX, |_| true);
        assert_eq!(polled.time, Some(POLLED_TIME_MAX / 2), "it is of use again");
    }
}
