//! The flash tier in memcached's fields (`stats`, `stats extstore`), where a page is a flash segment, and in ours
//! (`stats fabcache`).

use fabcache_protocol::Encoding;
use fabcache_store::{FlashSegmentSums, FlashSums};

use super::{Context, Report};
use crate::bounds::LISTED_FLASH_SEGMENTS_MAX;

/// Reads of items on flash, in memcached's order. `sums` are those since `stats reset`.
pub fn gets(sums: &FlashSums, report: &mut Report<'_>) {
    for (name, value) in [
        ("get_extstore", sums.objects_read),
        // A read completes also if its client left, and waits for its buffer.
        ("get_aborted_extstore", 0),
        ("get_oom_extstore", 0),
        ("recache_from_extstore", sums.recached),
        ("miss_from_extstore", sums.read_errors + sums.bad_pages),
        ("badcrc_from_extstore", sums.bad_pages),
    ] {
        report.stat(name, value);
    }
}

/// The devices' use, in memcached's order. `sums` are those since the start, which `stats reset` leaves.
pub fn storage(sums: &FlashSums, report: &mut Report<'_>) {
    report.stat("extstore_memory_pressure", "0.00");
    for (name, value) in [
        // Compaction loses and skips no item, and knows no cold and old ones.
        ("extstore_compact_lost", 0),
        ("extstore_compact_rescues", sums.moved),
        ("extstore_compact_resc_cold", 0),
        ("extstore_compact_resc_old", 0),
        ("extstore_compact_skipped", 0),
        ("extstore_page_allocs", sums.pages_allocated),
        ("extstore_page_evictions", sums.pages_evicted),
        ("extstore_page_reclaims", sums.pages_reclaimed),
        ("extstore_pages_free", sums.pages_free),
        ("extstore_pages_used", sums.pages_used),
        ("extstore_objects_evicted", sums.objects_evicted),
        ("extstore_objects_read", sums.objects_read),
        ("extstore_objects_written", sums.objects_written),
        ("extstore_objects_used", sums.objects_used),
        ("extstore_bytes_evicted", sums.bytes_evicted),
        ("extstore_bytes_written", sums.bytes_written),
        ("extstore_bytes_read", sums.bytes_read),
        ("extstore_bytes_used", sums.bytes_used),
        ("extstore_bytes_fragmented", sums.bytes_fragmented),
        ("extstore_limit_maxbytes", sums.limit_maxbytes),
        ("extstore_io_queue", sums.io_queue),
    ] {
        report.stat(name, value);
    }
}

/// The fields of `stats fabcache`. `sums` are those since `stats reset`.
pub fn own(sums: &FlashSums, state: &str, segment_bytes: u64, report: &mut Report<'_>) {
    report.stat("flash_state", state);
    for (name, value) in [
        ("flash_limit_bytes", sums.limit_maxbytes),
        ("flash_segment_bytes", segment_bytes),
        ("flash_segments_free", sums.pages_free),
        ("flash_segments_used", sums.pages_used),
        ("flash_items", sums.objects_used),
        ("flash_item_bytes", sums.bytes_used),
        ("flash_dead_bytes", sums.bytes_fragmented),
        ("flash_items_demoted", sums.objects_written),
        ("flash_bytes_demoted", sums.bytes_written),
        ("flash_device_bytes_written", sums.device_bytes_written),
        ("flash_items_demoted_unwritten", sums.returned),
        ("flash_items_refused", sums.refused),
        ("flash_items_read", sums.objects_read),
        ("flash_bytes_read", sums.bytes_read),
        ("flash_items_promoted", sums.recached),
        ("flash_items_moved", sums.moved),
        ("flash_bytes_moved", sums.bytes_moved),
        ("flash_segments_compacted", sums.compacted),
        ("flash_segments_opened", sums.pages_allocated),
        ("flash_segments_freed", sums.pages_reclaimed),
        ("flash_segments_evicted", sums.pages_evicted),
        ("flash_items_evicted", sums.objects_evicted),
        ("flash_bytes_evicted", sums.bytes_evicted),
        ("flash_mismatches", sums.mismatches),
        ("flash_bad_pages", sums.bad_pages),
        ("flash_read_errors", sums.read_errors),
        ("flash_write_errors", sums.write_errors),
        ("flash_requests_in_flight", sums.io_queue),
    ] {
        report.stat(name, value);
    }
}

/// `stats extstore`, up to a flash segment.
#[derive(Debug, Default)]
pub struct FlashSegmentList(usize);

impl FlashSegmentList {
    /// Lists the next flash segments; true when they were the last.
    pub fn go_on(&mut self, ctx: &mut Context, encoding: &Encoding<'_>) -> bool {
        let part = ctx.shared.store.flash_segments(self.0, LISTED_FLASH_SEGMENTS_MAX);
        let mut report = Report::new(encoding, &mut ctx.out);
        segments(self.0, &part, &mut report);
        self.0 += part.len();
        let is_last = part.len() < LISTED_FLASH_SEGMENTS_MAX;
        if is_last {
            report.end();
        }
        is_last
    }
}

/// Lists flash segments, the first of which has this number.
fn segments(first: usize, part: &[FlashSegmentSums], report: &mut Report<'_>) {
    for (number, segment) in (first..).zip(part) {
        // Every item is in memcached's default bucket.
        for (name, value) in
            [("version", segment.sequence), ("bytes", segment.bytes), ("bucket", 0), ("free_bucket", 0)]
        {
            report.stat(&format!("{number}:{name}"), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabcache_protocol::TextEncoding;
    use fabcache_store::FlashState;

    /// Each field has another value, so that a mix-up shows.
    fn made_up() -> FlashSums {
        FlashSums {
            pages_allocated: 1,
            pages_evicted: 2,
            pages_reclaimed: 3,
            pages_free: 4,
            pages_used: 5,
            objects_evicted: 6,
            objects_read: 7,
            objects_written: 8,
            objects_used: 9,
            bytes_evicted: 10,
            bytes_written: 11,
            bytes_read: 12,
            bytes_used: 13,
            bytes_fragmented: 14,
            limit_maxbytes: 15,
            io_queue: 16,
            returned: 17,
            refused: 18,
            bad_pages: 19,
            read_errors: 20,
            write_errors: 21,
            recached: 22,
            moved: 25,
            bytes_moved: 26,
            compacted: 27,
            device_bytes_written: 23,
            mismatches: 24,
            state: FlashState::Failing,
        }
    }

    fn rendered(render: impl FnOnce(&mut Report<'_>)) -> String {
        let encoding = Encoding::Text(TextEncoding::default());
        let mut out = Vec::new();
        render(&mut Report::new(&encoding, &mut out));
        String::from_utf8(out).expect("text").replace("STAT ", "").replace("\r\n", "\n")
    }

    #[test]
    fn fields_and_their_order_are_memcacheds() {
        let expected = "get_extstore 7\nget_aborted_extstore 0\nget_oom_extstore 0\nrecache_from_extstore 22\n\
             miss_from_extstore 39\nbadcrc_from_extstore 19\n";
        assert_eq!(rendered(|report| gets(&made_up(), report)), expected);
        let expected = "extstore_memory_pressure 0.00\nextstore_compact_lost 0\nextstore_compact_rescues 25\n\
             extstore_compact_resc_cold 0\nextstore_compact_resc_old 0\nextstore_compact_skipped 0\n\
             extstore_page_allocs 1\nextstore_page_evictions 2\nextstore_page_reclaims 3\nextstore_pages_free 4\n\
             extstore_pages_used 5\nextstore_objects_evicted 6\nextstore_objects_read 7\nextstore_objects_written 8\n\
             extstore_objects_used 9\nextstore_bytes_evicted 10\nextstore_bytes_written 11\nextstore_bytes_read 12\n\
             extstore_bytes_used 13\nextstore_bytes_fragmented 14\nextstore_limit_maxbytes 15\nextstore_io_queue 16\n";
        assert_eq!(rendered(|report| storage(&made_up(), report)), expected);
    }

    #[test]
    fn own_fields_show_every_counter() {
        let text = rendered(|report| own(&made_up(), "memory_only: why", 99, report));
        assert!(text.starts_with("flash_state memory_only: why\n"), "{text}");
        let mut values: Vec<u64> = text
            .lines()
            .skip(1)
            .map(|line| line.rsplit(' ').next().unwrap_or("").parse().expect(line))
            .collect();
        values.sort_unstable();
        assert_eq!(values, (1..=27).chain([99]).collect::<Vec<u64>>());
        assert!(text.lines().all(|line| line.starts_with("flash_")), "{text}");
    }

    #[test]
    fn segments_are_listed_as_memcacheds_pages() {
        let part = [FlashSegmentSums { sequence: 5, bytes: 6 }, FlashSegmentSums::default()];
        let expected = "7:version 5\n7:bytes 6\n7:bucket 0\n7:free_bucket 0\n\
             8:version 0\n8:bytes 0\n8:bucket 0\n8:free_bucket 0\n";
        assert_eq!(rendered(|report| segments(7, &part, report)), expected);
    }

    #[test]
    fn reset_leaves_what_the_tier_holds() {
        let now = made_up();
        let rest = now.since(&now);
        assert_eq!((rest.objects_read, rest.device_bytes_written, rest.bad_pages), (0, 0, 0));
        assert_eq!((rest.pages_free, rest.bytes_used, rest.io_queue), (4, 13, 16));
        assert_eq!(rest.state, now.state);
    }
}
