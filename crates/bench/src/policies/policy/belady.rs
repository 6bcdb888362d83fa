//! Belady's optimum (1966): evicts the object needed latest, or does not admit it.
//!
//! For objects of one size no policy has fewer misses. For mixed sizes the true optimum is NP-hard to
//! compute and somewhat lower; this is then a good clairvoyant policy, not a bound.

use std::collections::BinaryHeap;

use super::{Access, NEVER, Policy};

/// Belady's policy.
#[derive(Debug)]
pub struct Belady<'c> {
    budget: u64,
    charges: &'c [u32],
    bytes: u64,
    /// The next use of each kept object.
    next: Vec<Option<u32>>,
    /// The next use of objects; stale entries are ignored.
    order: BinaryHeap<(u32, u32)>,
}

impl<'c> Belady<'c> {
    /// Returns the policy with a budget of so many bytes.
    pub fn new(budget: u64, charges: &'c [u32]) -> Belady<'c> {
        Belady { budget, charges, bytes: 0, next: vec![None; charges.len()], order: BinaryHeap::new() }
    }

    fn charge(&self, object: u32) -> u64 {
        self.charges[object as usize].into()
    }
}

impl Policy for Belady<'_> {
    fn touch(&mut self, object: u32, access: Access) -> bool {
        if self.next[object as usize].is_none() {
            return false;
        }
        if access.next == NEVER {
            self.remove(object);
        } else {
            self.next[object as usize] = Some(access.next);
            self.order.push((access.next, object));
        }
        true
    }

    fn insert(&mut self, object: u32, access: Access) {
        if access.next == NEVER {
            return;
        }
        self.next[object as usize] = Some(access.next);
        self.order.push((access.next, object));
        self.bytes += self.charge(object);
        while self.bytes > self.budget {
            let (next, last) = self.order.pop().expect("what is kept has an entry");
            if self.next[last as usize] == Some(next) {
                self.remove(last);
            }
        }
    }

    fn remove(&mut self, object: u32) {
        if self.next[object as usize].take().is_some() {
            self.bytes -= self.charge(object);
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}
