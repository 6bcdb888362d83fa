//! Page tables after a takeover. The pages of a kept region are allocated, but the new process has mapped none of them, so
//! its first access to each would fault.

use fabcache_layout::segment::Kind;

use crate::store::Store;

impl Store {
    /// Maps the pages of the index, and then those of the items, the segments sealed last first. Allocates no page. Calls
    /// `go_on` before each segment, and ends when it returns false, or where the system cannot populate pages.
    ///
    /// The kernel's lock of the address space is held for a segment at a time, which has 2 MiB at most.
    pub fn populate(&self, go_on: &mut dyn FnMut() -> bool) {
        let segments = &self.segments;
        let index =
            segments.of_kind(Kind::Index).into_iter().map(|id| (id, segments.geometry().segment_bytes()));
        let mut sealed: Vec<_> = segments.sealed(0..self.geometry.segments).collect();
        sealed.sort_unstable_by_key(|segment| std::cmp::Reverse(segment.order));
        let items = sealed.into_iter().map(|segment| (segment.id, u64::from(segment.used)));
        for (id, bytes) in index.chain(items).filter(|(_, bytes)| *bytes > 0) {
            if !go_on() || !self.populate_segment(id, bytes) {
                return;
            }
        }
    }

    /// Allocates and maps the pages of all segments but those that the memory limit keeps out of use. Calls `go_on` before
    /// each segment, and ends when it returns false. Returns false if the system has too little memory, or cannot populate
    /// pages.
    pub fn touch_all(&self, go_on: &mut dyn FnMut() -> bool) -> bool {
        (0..self.geometry.segments).take_while(|_| go_on()).all(|id| {
            // While the limit is lowered, the segment may be retired, and its pages returned to the system.
            let _steady = self.limit_moving.lock().expect("no thread panics while it moves the limit");
            let offset = self.geometry.segment_offset(id);
            if self.segments.kind(id) == Kind::Retired {
                return true;
            }
            let is_touched = self.backing.touch(offset, self.geometry.segment_bytes());
            // Retired meanwhile, as more are in use than the limit allows.
            if self.segments.kind(id) == Kind::Retired {
                self.backing.release(offset, self.geometry.segment_bytes());
            }
            is_touched
        })
    }

    /// Maps the first `bytes` of a segment that is in use, else nothing. Returns false if the system cannot do that.
    fn populate_segment(&self, id: u32, bytes: u64) -> bool {
        let segments = &self.segments;
        let populate = || self.backing.populate(self.geometry.segment_offset(id), bytes);
        // The index keeps its segments for good.
        if segments.kind(id) == Kind::Index {
            return populate();
        }
        // Its pages are not released while it is pinned: mapping released ones would allocate them.
        if !segments.pin(id, segments.generation(id)) {
            return true;
        }
        // Checked after pinning: a segment freed without regard to the pin is no longer sealed.
        let is_done = segments.kind(id) != Kind::Sealed || populate();
        segments.unpin(id);
        is_done
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::path::Path;
    use std::sync::Arc;

    use fabcache_testbed::cleanup::Folder;

    use super::*;
    use crate::backing::BackingOptions;
    use crate::{Change, Handle, NewValue, StoreOptions, Value, Write};

    const MEMORY_BYTES: u64 = 16 << 20;
    const MEMORY_BYTES_MAX: u64 = 32 << 20;

    fn open(file: &Path) -> Arc<Store> {
        let backing = BackingOptions { file: Some(file.into()), ..BackingOptions::default() };
        let (memory_bytes, memory_bytes_max) = (MEMORY_BYTES, MEMORY_BYTES_MAX);
        let options = StoreOptions { backing, memory_bytes, memory_bytes_max, ..StoreOptions::default() };
        Arc::new(Store::open(options).expect("memory for a test"))
    }

    /// Returns the segments of a kind whose first page is mapped, and how many there are of the kind.
    fn mapped(store: &Store, kind: Kind) -> (Vec<u32>, usize) {
        let page_bytes = rustix::param::page_size() as u64;
        let entries = std::fs::File::open("/proc/self/pagemap").expect("/proc");
        let is_mapped = |id: &u32| {
            let page =
                (store.region_base().as_ptr() as u64 + store.geometry.segment_offset(*id)) / page_bytes;
            let mut entry = [0; 8];
            entries.read_exact_at(&mut entry, page * 8).expect("a mapped page");
            u64::from_le_bytes(entry) >> 63 == 1
        };
        let ids = store.segments.of_kind(kind);
        (ids.iter().copied().filter(is_mapped).collect(), ids.len())
    }

    #[test]
    fn segments_in_use_are_mapped_and_nothing_is_allocated() {
        let folder = Folder::new("fabcache-populating").expect("a folder");
        let file = folder.path().join("region");
        let handle = Handle::new(&open(&file));
        for number in 0..2_000 {
            let write = || Write::plain(NewValue::Is(Value::Bytes(&[7; 2_000])));
            let key = format!("key{number}");
            handle.mutate(key.as_bytes(), |_| (Change::Write(write()), ())).expect("there is room");
        }
        handle.store().keep().expect("no thread uses it").expect("it has a file");
        drop(handle);
        let store = open(&file);
        let blocks = || std::fs::metadata(&file).expect("ours").blocks();
        let allocated = blocks();
        let sealed = store.segments.of_kind(Kind::Sealed).len();
        assert!(sealed > 20, "{sealed} segments");
        let mut wanted = 0..sealed / 2 + store.segments.of_kind(Kind::Index).len();
        store.populate(&mut || wanted.next().is_some());
        let (first, all) = mapped(&store, Kind::Sealed);
        assert!(first.len() >= all / 2 && first.len() < all, "{first:?} of {all}");
        let order = |id: &u32| fabcache_layout::segment::load_order(&store.memory, &store.geometry, *id);
        let newest = store.segments.of_kind(Kind::Sealed).into_iter().max_by_key(order);
        assert!(newest.is_some_and(|id| first.contains(&id)), "the segment sealed last comes first");
        store.populate(&mut || true);
        for kind in [Kind::Index, Kind::Sealed] {
            let (mapped, all) = mapped(&store, kind);
            assert_eq!(mapped.len(), all, "{kind:?}");
        }
        // Where the file system reads ahead, a page of a free segment may be mapped beside one of another.
        assert_eq!((blocks(), store.segments.pinned()), (allocated, 0));
        assert!(store.touch_all(&mut || true));
        let (touched, free) = mapped(&store, Kind::Free);
        assert_eq!(touched.len(), free);
        let segment_blocks = store.geometry.segment_bytes() / 512;
        let free_blocks = free as u64 * segment_blocks;
        assert!(store.segments.of_kind(Kind::Retired).len() > 8, "segments beyond -m");
        // A file system may allocate some blocks for its own use.
        let touched_blocks = blocks() - allocated;
        assert!(
            (free_blocks..free_blocks + 4 * segment_blocks).contains(&touched_blocks),
            "{touched_blocks}"
        );
    }
}
