//! The ledger: the contents that each key may have, after the acknowledged operations and the one that a kill interrupts.

use std::collections::BTreeMap;

/// An item's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    pub value: Vec<u8>,
    pub flags: u32,
    /// The second from which it is expired; 0 for never.
    pub expiry: u32,
}

/// What a store holds.
pub type Found = BTreeMap<Vec<u8>, Contents>;

/// Which items may be missing, although nobody removed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayLose {
    /// None.
    Nothing,
    /// Any: memory is full.
    Anything,
}

/// A delayed flush that is to come.
pub type PendingFlush = Option<u32>;

/// The contents that each key may have. A key that was never written is not in it.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// The states that are possible; exactly one, unless an operation is under way. None is a miss.
    keys: BTreeMap<Vec<u8>, Vec<Option<Contents>>>,
    pub may_lose: MayLose,
    /// The greatest CAS value that a client got.
    pub last_cas: u64,
    /// The delayed flushes that are possible; one, unless an operation is under way.
    pub flushes: Vec<PendingFlush>,
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger { keys: BTreeMap::new(), may_lose: MayLose::Nothing, last_cas: 0, flushes: vec![None] }
    }
}

impl Ledger {
    /// Returns what the key holds while no operation is under way.
    pub fn contents(&self, key: &[u8]) -> Option<&Contents> {
        let states = self.keys.get(key)?;
        assert_eq!(states.len(), 1, "an operation on the key is under way");
        states[0].as_ref()
    }

    /// Returns the keys that hold an item.
    pub fn present(&self) -> Vec<Vec<u8>> {
        let is_present = |states: &[Option<Contents>]| states.iter().any(Option::is_some);
        self.keys.iter().filter(|(_, states)| is_present(states)).map(|(key, _)| key.clone()).collect()
    }

    /// An operation begins that gives the key these contents. Until it is acknowledged the key holds the old ones, the new
    /// ones, or nothing. If operations change the key one after the other, any of their results.
    pub fn begin(&mut self, key: &[u8], new: Option<Contents>) {
        let states = self.keys.entry(key.to_vec()).or_insert_with(|| vec![None]);
        for state in [None, new] {
            if !states.contains(&state) {
                states.push(state);
            }
        }
    }

    /// The operation was acknowledged.
    pub fn acknowledge(&mut self, key: &[u8], new: Option<Contents>) {
        self.keys.insert(key.to_vec(), vec![new]);
    }

    /// Time passes: items are gone that expire until `now`, and all if a flush is due. The clock does so, whether or not a
    /// server runs.
    pub fn pass_time(&mut self, now: u32) {
        let is_flushed = self.flushes.iter().all(|flush| flush.is_some_and(|at| at <= now));
        if is_flushed {
            self.flushes = vec![None];
            return self.flush();
        }
        for state in self.keys.values_mut().flatten() {
            let is_expired = |contents: &Contents| contents.expiry != 0 && contents.expiry <= now;
            *state = state.take().filter(|contents| !is_expired(contents));
        }
    }

    /// Everything was removed.
    pub fn flush(&mut self) {
        self.keys.values_mut().for_each(|states| *states = vec![None]);
    }

    /// Asserts that a store may hold these items.
    pub fn admits(&self, found: &Found) {
        for (key, contents) in found {
            let name = String::from_utf8_lossy(key);
            let states = self.keys.get(key).unwrap_or_else(|| panic!("nobody ever wrote {name}"));
            let is_known = states.iter().flatten().any(|state| state == contents);
            assert!(is_known, "{name} holds another item: {}", describe(Some(contents), states));
        }
        for (key, states) in &self.keys {
            let may_be_lost =
                |state: &Option<Contents>| state.is_none() || self.may_lose == MayLose::Anything;
            let name = String::from_utf8_lossy(key);
            let is_known = found.contains_key(key) || states.iter().any(may_be_lost);
            assert!(is_known, "{name} is lost: {}", describe(None, states));
        }
    }
}

fn describe(found: Option<&Contents>, states: &[Option<Contents>]) -> String {
    let short = |contents: &Contents| {
        let start = &contents.value[..contents.value.len().min(8)];
        let Contents { value, flags, expiry } = contents;
        format!("{} bytes from {start:?}, flags {flags}, expiry {expiry}", value.len())
    };
    let states: Vec<_> = states.iter().map(|state| state.as_ref().map(short)).collect();
    format!("found {:?}, possible {states:?}", found.map(short))
}
