//! Models of a store over the region of a killed server, whose groups are checked while requests use them.

use std::sync::Arc;

use fabcache_layout::header;
use fabcache_layout::segment::Kind;
use loom::thread;

use super::{check, get, options, set, store};
use crate::clock::Clock;
use crate::index::Index;
use crate::restart::recovery::{ItemChecks, Recovery};
use crate::segments::Segments;
use crate::store::Parts;
use crate::{Change, Expiry, Handle, Store};

/// Returns a store over the region of one that is not used any more, none of whose groups is checked.
pub(super) fn recovering(before: Arc<Store>) -> Arc<Store> {
    let (memory, geometry) = (before.memory.clone(), before.geometry);
    let mut options = options(before.evicts());
    let segments =
        Segments::recover(memory.clone(), geometry, !options.evict, options.threads, options.grace)
            .expect("a server stored the table");
    let recovery = Recovery::new(header::flush_epoch(&memory), 1, segments.of_kind(Kind::Open));
    let checks = ItemChecks {
        memory: &memory,
        segments: &segments,
        hash_seed: before.hash_seed,
        recovery: &recovery,
        flash: None,
    };
    let is_index = |id| segments.kind(id) == Kind::Index;
    let index = Index::recovering(memory.clone(), geometry, options.group_locks(), is_index, &checks)
        .expect("a server stored the directory");
    let parts = Parts {
        flash: None,
        last_cas: before.last_cas(),
        hash_seed: before.hash_seed,
        secret: before.secret.clone(),
        clock: Clock::start(options.take_time()),
        recovery: Some(recovery),
        memory,
        geometry,
        index,
        segments,
    };
    Arc::new(Store::of_parts(&options, parts))
}

/// Returns a store over the region of a killed one that stored `a` in a sealed segment.
fn recovering_with_a() -> Arc<Store> {
    let (store, _) = store();
    set(&Handle::new(&store), b"a", b"1", Expiry::NEVER);
    store.segments.seal_open(|_| true);
    recovering(store)
}

fn check_all_groups(store: &Arc<Store>) -> thread::JoinHandle<()> {
    let store = Arc::clone(store);
    thread::spawn(move || {
        store.check_all_groups(&mut || true);
    })
}

/// A slot that recovery clears is not read without a lock by a thread that finds its group checked.
#[test]
fn dropped_item_is_not_read_after_its_group_is_checked() {
    check(2, || {
        let (before, _) = store();
        set(&Handle::new(&before), b"a", b"1", Expiry::NEVER);
        before.segments.seal_open(|_| true);
        // A slot of another size class than its item's: no server leaves one.
        let hash = before.hash(b"a");
        {
            let group = before.index.lock(hash);
            let at = group.find(hash, |_| true).expect("the key exists");
            let slot = at.slot;
            let other = fabcache_layout::Slot::item(hash.tag(), slot.offset(), slot.class() + 1, 0);
            group.replace(at.at, other);
        }
        let store = recovering(before);
        let sweep = check_all_groups(&store);
        assert_eq!(get(&Handle::new(&store), b"a"), None);
        sweep.join().expect("checked");
        let found = store.recovery_progress().expect("recovered");
        assert_eq!((found.kept, found.dropped), (0, 1));
    });
}

/// A request and the sweep check a group once: each item counts once.
#[test]
fn group_is_checked_once_before_it_is_written() {
    check(2, || {
        let store = recovering_with_a();
        let sweep = check_all_groups(&store);
        let handle = Handle::new(&store);
        set(&handle, b"a", b"2", Expiry::NEVER);
        assert_eq!(get(&handle, b"a").as_deref(), Some(&b"2"[..]));
        sweep.join().expect("checked");
        assert_eq!((store.usage().items, store.index.items()), (1, 1));
        handle.mutate(b"a", |_| (Change::Remove, ())).expect("no memory is needed");
        assert_eq!((store.usage().items, store.usage().item_bytes, store.index.items()), (0, 0, 0));
    });
}

/// Recovery is over only when every group is checked: until then a segment may hold more than is counted.
#[test]
fn recovery_ends_after_its_last_group() {
    check(2, || {
        let store = recovering_with_a();
        let sweep = check_all_groups(&store);
        store.check_all_groups(&mut || true);
        assert_eq!(store.usage().items, 1);
        assert_eq!(get(&Handle::new(&store), b"a").as_deref(), Some(&b"1"[..]));
        sweep.join().expect("checked");
    });
}

/// An item of a segment that was open is moved, or replaced by a writer, and its segment is free in the end.
#[test]
fn open_segment_is_emptied_beside_a_writer() {
    check(2, || {
        let (before, _) = store();
        set(&Handle::new(&before), b"a", b"1", Expiry::NEVER);
        let store = recovering(before);
        let main = Handle::new(&store);
        let writer = {
            let store = Arc::clone(&store);
            thread::spawn(move || set(&Handle::new(&store), b"a", b"2", Expiry::NEVER))
        };
        assert!(main.finish_restart(&mut || true));
        writer.join().expect("written");
        assert_eq!(get(&main, b"a").as_deref(), Some(&b"2"[..]));
        assert_eq!(store.usage().items, 1);
        let open = store.segments.of_kind(Kind::Open);
        assert!(open.len() <= 2, "the segments of moved and of new items: {open:?}");
    });
}
