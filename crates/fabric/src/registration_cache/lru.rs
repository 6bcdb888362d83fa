//! The LRU list of registrations: bounded; the least recently lent ends first. It registers nothing itself.

use std::collections::{HashMap, HashSet};

/// A registration with a domain.
pub(super) trait Ends {
    /// Ends it. Returns whether the provider has released the memory.
    fn end(self) -> bool;
}

/// A registration's memory, domain and purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RegistrationKey {
    pub(super) memory: u64,
    pub(super) domain: usize,
    /// Whether peers read it.
    pub(super) is_shown: bool,
}

#[derive(Debug)]
struct Entry<R> {
    registration: R,
    bytes: usize,
    /// When it was last lent.
    at: u64,
    /// Whether an operation uses the memory.
    is_lent: bool,
}

/// The registrations of all memory.
#[derive(Debug)]
pub(super) struct LruList<R> {
    entries: HashMap<RegistrationKey, Entry<R>>,
    count_max: usize,
    bytes_max: usize,
    /// All entries, including those being made.
    count: usize,
    bytes: usize,
    clock: u64,
    /// Memory that a provider has not released.
    stuck: HashSet<u64>,
}

impl<R: Ends> LruList<R> {
    pub(super) fn new(count_max: usize, bytes_max: usize) -> LruList<R> {
        let (entries, stuck) = (HashMap::new(), HashSet::new());
        LruList { entries, count_max, bytes_max, count: 0, bytes: 0, clock: 0, stuck }
    }

    /// Returns the number of registrations, and their total bytes.
    pub(super) fn sum(&self) -> (usize, usize) {
        (self.count, self.bytes)
    }

    /// Returns the registration, if there is one; it stays until it is returned.
    pub(super) fn lend(&mut self, of: RegistrationKey) -> Option<&R> {
        self.clock += 1;
        let entry = self.entries.get_mut(&of)?;
        (entry.is_lent, entry.at) = (true, self.clock);
        Some(&entry.registration)
    }

    /// Marks memory as unused.
    pub(super) fn give_back(&mut self, of: RegistrationKey) {
        if let Some(entry) = self.entries.get_mut(&of) {
            entry.is_lent = false;
        }
    }

    /// Evicts idle registrations to make room for a new one. Returns false if the rest are in use, or the new one is
    /// too long.
    pub(super) fn reserve(&mut self, bytes: usize) -> bool {
        if bytes > self.bytes_max || self.count_max == 0 {
            return false;
        }
        while self.count >= self.count_max || self.bytes > self.bytes_max - bytes {
            let idle = self.entries.iter().filter(|(_, entry)| !entry.is_lent);
            let Some((of, _)) = idle.min_by_key(|(_, entry)| entry.at) else { return false };
            let of = *of;
            self.end(of);
        }
        (self.count, self.bytes) = (self.count + 1, self.bytes + bytes);
        true
    }

    /// Notes that a registration failed.
    pub(super) fn cancel(&mut self, bytes: usize) {
        (self.count, self.bytes) = (self.count - 1, self.bytes - bytes);
    }

    /// Notes that a provider will not release some memory.
    pub(super) fn keep(&mut self, memory: u64) {
        self.stuck.insert(memory);
    }

    /// Adds a registration, which is lent.
    pub(super) fn put(&mut self, of: RegistrationKey, bytes: usize, registration: R) {
        self.clock += 1;
        let entry = Entry { registration, bytes, at: self.clock, is_lent: true };
        let former = self.entries.insert(of, entry);
        debug_assert!(former.is_none(), "memory is registered once with a domain");
    }

    /// Ends all idle registrations. Returns whether there were any.
    pub(super) fn end_idle(&mut self) -> bool {
        let idle = self.entries.iter().filter(|(_, entry)| !entry.is_lent);
        let idle: Vec<RegistrationKey> = idle.map(|(of, _)| *of).collect();
        idle.iter().for_each(|of| self.end(*of));
        !idle.is_empty()
    }

    /// Ends all registrations of some memory. Returns false if a provider has not released it, so it must never be
    /// freed.
    pub(super) fn end_all_of(&mut self, memory: u64) -> bool {
        let its: Vec<RegistrationKey> =
            self.entries.keys().filter(|of| of.memory == memory).copied().collect();
        its.iter().for_each(|of| self.end(*of));
        !self.stuck.remove(&memory)
    }

    /// Abandons all entries: they belong to another process.
    pub(super) fn leave_all(&mut self) {
        self.entries.drain().for_each(|(_, entry)| std::mem::forget(entry));
        self.stuck.clear();
        (self.count, self.bytes) = (0, 0);
    }

    fn end(&mut self, of: RegistrationKey) {
        let Some(Entry { registration, bytes, .. }) = self.entries.remove(&of) else { return };
        self.cancel(bytes);
        if !registration.end() {
            self.stuck.insert(of.memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    /// The current registrations.
    type Registered = Rc<RefCell<Vec<RegistrationKey>>>;

    struct Registration {
        of: RegistrationKey,
        registered: Registered,
        sticks: bool,
    }

    impl Ends for Registration {
        fn end(self) -> bool {
            self.registered.borrow_mut().retain(|of| *of != self.of);
            !self.sticks
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Lend(u64, usize),
        GiveBack(usize),
        End(u64),
        EndIdle,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..6u64, 0..2usize).prop_map(|(memory, domain)| Step::Lend(memory, domain)),
            3 => (0..8usize).prop_map(Step::GiveBack),
            1 => (0..6u64).prop_map(Step::End),
            1 => Just(Step::EndIdle),
        ];
        prop::collection::vec(step, 1..60)
    }

    /// The length of each memory is its own.
    fn bytes_of(memory: u64) -> usize {
        10 * (memory as usize + 1)
    }

    proptest! {
        #[test]
        fn lent_registrations_stay_and_totals_are_kept(steps in steps(), sticks in any::<bool>()) {
            const COUNT: usize = 4;
            const BYTES: usize = 110;
            let registered = Registered::default();
            let mut lru = LruList::new(COUNT, BYTES);
            let mut lent: Vec<RegistrationKey> = Vec::new();
            for step in steps {
                match step {
                    // One operation at a time uses a memory.
                    Step::Lend(memory, domain) if lent.iter().all(|of| of.memory != memory) => {
                        let (of, bytes) = (RegistrationKey { memory, domain, is_shown: memory % 2 == 1 }, bytes_of(memory));
                        let was_registered = registered.borrow().contains(&of);
                        prop_assert_eq!(lru.lend(of).is_some(), was_registered);
                        if !was_registered && lru.reserve(bytes) {
                            registered.borrow_mut().push(of);
                            lru.put(of, bytes, Registration { of, registered: Rc::clone(&registered), sticks });
                        }
                        if registered.borrow().contains(&of) {
                            lent.push(of);
                        } else {
                            let lent_bytes: usize = lent.iter().map(|of| bytes_of(of.memory)).sum();
                            prop_assert!(lent.len() == COUNT || lent_bytes + bytes > BYTES, "there was room");
                        }
                    }
                    Step::GiveBack(at) if at < lent.len() => lru.give_back(lent.swap_remove(at)),
                    Step::End(memory) if lent.iter().all(|of| of.memory != memory) => {
                        lru.end_all_of(memory);
                        prop_assert!(registered.borrow().iter().all(|of| of.memory != memory));
                    }
                    Step::EndIdle => {
                        lru.end_idle();
                        prop_assert_eq!(registered.borrow().len(), lent.len());
                    }
                    _ => {}
                }
                let registered = registered.borrow();
                prop_assert!(lent.iter().all(|of| registered.contains(of)), "lent registrations stay");
                let bytes = registered.iter().map(|of| bytes_of(of.memory)).sum::<usize>();
                prop_assert_eq!(lru.sum(), (registered.len(), bytes));
                prop_assert!(registered.len() <= COUNT && bytes <= BYTES);
            }
        }
    }

    #[test]
    fn least_recently_lent_registration_is_evicted_first() {
        let registered = Registered::default();
        let mut lru = LruList::new(2, 1000);
        let of = |memory| RegistrationKey { memory, domain: 0, is_shown: false };
        let make = |lru: &mut LruList<Registration>, memory| {
            assert!(lru.reserve(1));
            registered.borrow_mut().push(of(memory));
            let registered = Rc::clone(&registered);
            lru.put(of(memory), 1, Registration { of: of(memory), registered, sticks: false });
            lru.give_back(of(memory));
        };
        make(&mut lru, 1);
        make(&mut lru, 2);
        assert!(lru.lend(of(1)).is_some());
        lru.give_back(of(1));
        make(&mut lru, 3);
        assert_eq!(*registered.borrow(), [of(1), of(3)]);
    }

    #[test]
    fn memory_kept_by_a_provider_is_reported() {
        let registered = Registered::default();
        let mut lru = LruList::new(1, 1000);
        let put = |lru: &mut LruList<Registration>, memory, sticks| {
            let of = RegistrationKey { memory, domain: 0, is_shown: true };
            assert!(lru.reserve(1));
            lru.put(of, 1, Registration { of, registered: Rc::clone(&registered), sticks });
            lru.give_back(of);
        };
        put(&mut lru, 1, true);
        put(&mut lru, 2, false);
        assert!(!lru.end_all_of(1), "it was evicted");
        assert!(lru.end_all_of(2) && lru.end_all_of(1), "reported once");
    }
}
