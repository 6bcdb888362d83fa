//! Models of a store over the region of a killed server, in which a bit flipped: its items are verified while they are read.

use std::sync::Arc;

use fabcache_layout::Item;
use loom::thread;

use super::recovery::recovering;
use super::{check, get, set, store};
use crate::{Expiry, Handle, Store};

/// Returns a store over the region of a killed one, whose groups are checked and in which the value of `a` is damaged, and
/// the segment of `a`.
fn with_damaged_a() -> (Arc<Store>, u32) {
    let (before, _) = store();
    set(&Handle::new(&before), b"a", b"1", Expiry::NEVER);
    before.segments.seal_open(|_| true);
    let hash = before.hash(b"a");
    let at = before.index.lock(hash).find(hash, |_| true).expect("the key exists").slot.offset();
    let item = Item::read(&before.memory, at).expect("in the region");
    before.memory.copy_in(at + item.payload_at(), b"9");
    let segment = before.geometry.segment_of(at).expect("a slot points into a segment");
    let mut store = recovering(before);
    Arc::get_mut(&mut store).expect("no other thread has it").segments.mark_unverified();
    store.check_all_groups(&mut || true);
    (store, segment)
}

/// A reader that finds the segments verified reads no item that was dropped before.
#[test]
fn damaged_item_is_not_read_though_its_segment_is_verified() {
    check(2, || {
        let (store, segment) = with_damaged_a();
        let scrub = {
            let store = Arc::clone(&store);
            thread::spawn(move || assert!(store.verify_segment(segment, &mut || true)))
        };
        assert_eq!(get(&Handle::new(&store), b"a"), None);
        scrub.join().expect("verified");
        assert!(!store.segments.has_unverified());
        assert_eq!((store.items_corrupt(), store.usage().items, store.usage().item_bytes), (1, 0, 0));
    });
}
