//! The order of writes, and where records begin.

use super::*;

fn new_log(segments: &FlashSegments) -> Log {
    Log::new(&FlashOptions::of_device(4, 1 << 20), segments, true)
}

/// Appends an item; returns the number of its last write.
fn stage(log: &mut Log, segments: &FlashSegments, hash: u64, len: usize) -> u64 {
    let staged =
        StagedItem { offset: hash, moved_from: None, ..StagedItem::moved(KeyHash(hash << 48), Slot::EMPTY) };
    let write = |write: &mut dyn FnMut(&[u8])| write(&vec![1; len]);
    log.append(segments, staged, (len, 0, 0), write).expect("it has room").0
}

fn append(log: &mut Log, segments: &FlashSegments, hash: u64, len: usize) -> u32 {
    let _ = stage(log, segments, hash, len);
    log.filling.as_ref().and_then(|filling| filling.staged.last()).expect("it was staged").page
}

#[test]
fn page_has_one_record_of_a_key() {
    let segments = FlashSegments::new(1, &[4 << 20], 1 << 20);
    let mut log = new_log(&segments);
    let pages = [7, 8, 7, 9, 8, 8].map(|hash| append(&mut log, &segments, hash, 100));
    let first = pages[0];
    assert_eq!(pages.map(|page| page - first), [0, 0, 1, 1, 1, 2]);
    // One that goes on in the next page does not begin there.
    let pages = [1, 2, 2].map(|hash| append(&mut log, &segments, hash, 3_900) - first);
    assert_eq!(pages, [2, 2, 3]);
}

/// Ends all writes, but for one that fails; returns the items that are written.
fn end_all(log: &mut Log, segments: &FlashSegments, fails: u64) -> Vec<u64> {
    let mut linked = Vec::new();
    while let Some(mut write) = log.take(segments, true, 0) {
        let (buffer, is_written) = (write.take_buffer(), write.number != fails);
        log.end(segments, write, buffer, is_written, 0);
    }
    while let Some(ended) = log.take_ended() {
        let written = ended.staged.iter().filter(|staged| !log.has_failed_since(staged.begins));
        linked.extend(written.map(|staged| staged.offset));
        log.note_published(None, 0);
    }
    linked
}

#[test]
fn failed_write_concerns_items_of_any_length() {
    const PAGES: usize = 16;
    let segment_bytes = (PAGES * PAGE_BYTES) as u64;
    let len = 200 * PAGES * PAYLOAD_BYTES;
    // Each segment takes the number of its write and that of its end.
    for (fails, written) in
        [(0, vec![2, 3]), (2, vec![1, 3]), (200, vec![1, 3]), (400, vec![1, 3]), (402, vec![1, 2])]
    {
        let segments = FlashSegments::new(1, &[1_000 * segment_bytes], segment_bytes);
        let mut log = new_log(&segments);
        assert_eq!(stage(&mut log, &segments, 1, PAYLOAD_BYTES), 0);
        assert_eq!(stage(&mut log, &segments, 2, len), 400);
        assert_eq!(stage(&mut log, &segments, 3, PAYLOAD_BYTES), 402);
        assert_eq!(end_all(&mut log, &segments, fails), written, "write {fails} fails");
    }
}
