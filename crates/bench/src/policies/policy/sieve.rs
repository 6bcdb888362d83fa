//! SIEVE (Zhang et al., "SIEVE is simpler than LRU", NSDI 2024).
//!
//! One queue in the order of insertion. A hand moves from old to new, clears the marks of hit objects,
//! and evicts the first object without a mark.

use super::lists::Lists;
use super::{Access, Policy};

const ALL: usize = 0;

/// A queue with a hand.
#[derive(Debug)]
pub struct Sieve<'c> {
    budget: u64,
    lists: Lists<'c, 1>,
    hit: Vec<bool>,
    /// The hand's position; `None` for the oldest object.
    hand: Option<u32>,
}

impl<'c> Sieve<'c> {
    /// Returns the policy with a budget of so many bytes.
    pub fn new(budget: u64, charges: &'c [u32]) -> Sieve<'c> {
        Sieve { budget, lists: Lists::new(charges), hit: vec![false; charges.len()], hand: None }
    }

    fn evict(&mut self) {
        while let Some(object) = self.hand.or_else(|| self.lists.back(ALL)) {
            self.hand = self.lists.newer(object);
            if !std::mem::take(&mut self.hit[object as usize]) {
                self.lists.remove(object);
                return;
            }
        }
    }
}

impl Policy for Sieve<'_> {
    fn touch(&mut self, object: u32, _: Access) -> bool {
        let kept = self.lists.list_of(object).is_some();
        self.hit[object as usize] |= kept;
        kept
    }

    fn insert(&mut self, object: u32, _: Access) {
        let charge = self.lists.charge(object);
        if charge > self.budget {
            return;
        }
        while self.bytes() + charge > self.budget {
            self.evict();
        }
        self.hit[object as usize] = false;
        self.lists.push_front(ALL, object);
    }

    fn remove(&mut self, object: u32) {
        if self.hand == Some(object) {
            self.hand = self.lists.newer(object);
        }
        self.lists.remove(object);
    }

    fn bytes(&self) -> u64 {
        self.lists.bytes(ALL)
    }
}
