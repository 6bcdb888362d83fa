//! memcached's segmented LRU, as in its items.c since 1.5 (doc/new_lru.txt describes the idea).
//!
//! New items enter HOT. The second access of an item, and each later one since its mark was last cleared, marks it
//! active; in COLD it moves the item to the front of WARM instead. From the tails of HOT and WARM active items go to
//! the front of WARM, without the mark; others go to COLD, while the list exceeds its part of all bytes (20% and
//! 40%), or if the item was last bumped longer ago than 0.2 times (HOT) or 2 times (WARM) the age of COLD's tail. The
//! tail of COLD is evicted.
//!
//! Simplified: one set of lists for all sizes instead of one a slab class, so no slab is ever in the wrong class and no
//! chunk larger than its item; and the maintainer thread has always just run. Both are to its advantage.

use super::lists::Lists;
use super::{Access, Policy};

const HOT: usize = 0;
const WARM: usize = 1;
const COLD: usize = 2;

/// `hot_lru_pct`.
const HOT_PERCENT: u64 = 20;
/// `warm_lru_pct`.
const WARM_PERCENT: u64 = 40;
/// `hot_max_factor`.
const HOT_AGE_FACTOR: f64 = 0.2;
/// `warm_max_factor`.
const WARM_AGE_FACTOR: f64 = 2.0;

/// HOT, WARM and COLD.
#[derive(Debug)]
pub struct Segmented<'c> {
    budget: u64,
    lists: Lists<'c, 3>,
    marks: Vec<Marks>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    fetched: bool,
    active: bool,
    /// Second of the last bump.
    bumped: u32,
}

impl<'c> Segmented<'c> {
    /// Returns the policy with a budget of so many bytes.
    pub fn new(budget: u64, charges: &'c [u32]) -> Segmented<'c> {
        Segmented { budget, lists: Lists::new(charges), marks: vec![Marks::default(); charges.len()] }
    }

    /// Examines the tail of HOT or WARM; returns whether it was moved.
    fn pull(&mut self, list: usize, bytes_max: u64, age_max: f64, now: u32) -> bool {
        let Some(tail) = self.lists.back(list) else { return false };
        let over = self.lists.bytes(list) > bytes_max;
        let marks = &mut self.marks[tail as usize];
        if marks.active {
            marks.active = false;
            self.lists.move_front(WARM, tail);
            true
        } else if over || f64::from(now - marks.bumped) > age_max {
            self.lists.move_front(COLD, tail);
            true
        } else {
            false
        }
    }

    /// Runs the LRU maintainer.
    fn maintain(&mut self, now: u32) {
        loop {
            let cold_age = self.lists.back(COLD).map_or(0, |tail| now - self.marks[tail as usize].bumped);
            let part = |percent| self.bytes() * percent / 100;
            let (hot, warm) = (part(HOT_PERCENT), part(WARM_PERCENT));
            let moved = self.pull(HOT, hot, f64::from(cold_age) * HOT_AGE_FACTOR, now)
                | self.pull(WARM, warm, f64::from(cold_age) * WARM_AGE_FACTOR, now);
            if !moved {
                return;
            }
        }
    }

    fn evict(&mut self, now: u32) {
        while self.lists.pop_back(COLD).is_none() {
            if !self.pull(HOT, 0, 0.0, now) {
                self.pull(WARM, 0, 0.0, now);
            }
        }
    }
}

impl Policy for Segmented<'_> {
    fn touch(&mut self, object: u32, access: Access) -> bool {
        let Some(list) = self.lists.list_of(object) else { return false };
        let marks = &mut self.marks[object as usize];
        if !marks.fetched {
            marks.fetched = true;
        } else if !marks.active {
            marks.bumped = access.second;
            if list == COLD {
                self.lists.move_front(WARM, object);
            } else {
                marks.active = true;
            }
        }
        true
    }

    fn insert(&mut self, object: u32, access: Access) {
        let charge = self.lists.charge(object);
        if charge > self.budget {
            return;
        }
        while self.bytes() + charge > self.budget {
            self.evict(access.second);
        }
        self.marks[object as usize] = Marks { bumped: access.second, ..Marks::default() };
        self.lists.push_front(HOT, object);
        self.maintain(access.second);
    }

    fn remove(&mut self, object: u32) {
        self.lists.remove(object);
    }

    fn bytes(&self) -> u64 {
        self.lists.bytes(HOT) + self.lists.bytes(WARM) + self.lists.bytes(COLD)
    }
}
