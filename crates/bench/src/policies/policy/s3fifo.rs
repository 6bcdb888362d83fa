//! S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023), with the parameters and the
//! filling phase of its authors' reference simulator (libCacheSim, `S3FIFO.c`).
//!
//! SMALL has a tenth of the budget, MAIN the rest, GHOST the names of as many bytes of objects as MAIN's part. A new
//! object enters SMALL, or MAIN if it is in GHOST, or if nothing was evicted yet and SMALL is full. From SMALL an
//! object that was hit at least twice goes to MAIN with its count reset; others are evicted to GHOST. From MAIN an
//! object that was hit returns to the front with its count (of at most 3) reduced by one; others are evicted.
//! Eviction is from MAIN while it exceeds its part. Objects as large as SMALL's part are not admitted to it.

use super::lists::Lists;
use super::{Access, Policy};

const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOST: usize = 2;

/// SMALL's part of the budget (1/n).
const SMALL_DIVISOR: u64 = 10;
/// Hits that promote an object from SMALL to MAIN.
const PROMOTION_HITS: u8 = 2;
/// Hits are counted in two bits.
const HITS_MAX: u8 = 3;

/// SMALL, MAIN and GHOST.
#[derive(Debug)]
pub struct S3Fifo<'c> {
    budget: u64,
    small_budget: u64,
    lists: Lists<'c, 3>,
    hits: Vec<u8>,
    has_evicted: bool,
}

impl<'c> S3Fifo<'c> {
    /// Returns the policy with a budget of so many bytes.
    pub fn new(budget: u64, charges: &'c [u32]) -> S3Fifo<'c> {
        S3Fifo {
            budget,
            small_budget: budget / SMALL_DIVISOR,
            lists: Lists::new(charges),
            hits: vec![0; charges.len()],
            has_evicted: false,
        }
    }

    fn main_budget(&self) -> u64 {
        self.budget - self.small_budget
    }

    fn evict(&mut self) {
        self.has_evicted = true;
        if self.lists.bytes(MAIN) > self.main_budget() || self.lists.bytes(SMALL) == 0 {
            self.evict_main();
        } else {
            self.evict_small();
        }
    }

    /// Evicts one object, unless all of SMALL is promoted to MAIN.
    fn evict_small(&mut self) {
        while let Some(object) = self.lists.pop_back(SMALL) {
            if self.hits[object as usize] < PROMOTION_HITS {
                self.remember(object);
                return;
            }
            self.hits[object as usize] = 0;
            self.lists.push_front(MAIN, object);
        }
    }

    fn evict_main(&mut self) {
        while let Some(object) = self.lists.pop_back(MAIN) {
            let hits = &mut self.hits[object as usize];
            if *hits == 0 {
                return;
            }
            *hits -= 1;
            self.lists.push_front(MAIN, object);
        }
    }

    fn remember(&mut self, object: u32) {
        let charge = self.lists.charge(object);
        if charge > self.main_budget() {
            return;
        }
        while self.lists.bytes(GHOST) + charge > self.main_budget() {
            self.lists.pop_back(GHOST);
        }
        self.lists.push_front(GHOST, object);
    }
}

impl Policy for S3Fifo<'_> {
    fn touch(&mut self, object: u32, _: Access) -> bool {
        let kept = matches!(self.lists.list_of(object), Some(SMALL | MAIN));
        if kept {
            let hits = &mut self.hits[object as usize];
            *hits = HITS_MAX.min(*hits + 1);
        }
        kept
    }

    fn insert(&mut self, object: u32, _: Access) {
        let charge = self.lists.charge(object);
        let remembered = self.lists.remove(object).is_some();
        if charge > self.budget || (!remembered && charge >= self.small_budget) {
            return;
        }
        while self.bytes() + charge > self.budget {
            self.evict();
        }
        let small_is_full = self.lists.bytes(SMALL) >= self.small_budget;
        let list = if remembered || (!self.has_evicted && small_is_full) { MAIN } else { SMALL };
        self.hits[object as usize] = 0;
        self.lists.push_front(list, object);
    }

    fn remove(&mut self, object: u32) {
        if self.lists.list_of(object) != Some(GHOST) {
            self.lists.remove(object);
        }
    }

    fn bytes(&self) -> u64 {
        self.lists.bytes(SMALL) + self.lists.bytes(MAIN)
    }
}
