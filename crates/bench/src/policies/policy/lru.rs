//! Least recently used.

use super::lists::Lists;
use super::{Access, Policy};

const ALL: usize = 0;

/// One list in the order of the last accesses.
#[derive(Debug)]
pub struct Lru<'c> {
    budget: u64,
    lists: Lists<'c, 1>,
}

impl<'c> Lru<'c> {
    /// Returns the policy with a budget of so many bytes.
    pub fn new(budget: u64, charges: &'c [u32]) -> Lru<'c> {
        Lru { budget, lists: Lists::new(charges) }
    }
}

impl Policy for Lru<'_> {
    fn touch(&mut self, object: u32, _: Access) -> bool {
        let kept = self.lists.list_of(object).is_some();
        if kept {
            self.lists.move_front(ALL, object);
        }
        kept
    }

    fn insert(&mut self, object: u32, _: Access) {
        let charge = self.lists.charge(object);
        if charge > self.budget {
            return;
        }
        while self.bytes() + charge > self.budget {
            self.lists.pop_back(ALL);
        }
        self.lists.push_front(ALL, object);
    }

    fn remove(&mut self, object: u32) {
        self.lists.remove(object);
    }

    fn bytes(&self) -> u64 {
        self.lists.bytes(ALL)
    }
}
