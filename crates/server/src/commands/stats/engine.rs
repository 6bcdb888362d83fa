//! `stats items`, `stats slabs`: the store in memcached's terms, all of it class 1. `stats fabcache`:
//! the store in its own.

use fabcache_store::Opening;

use super::{Context, ITEM_CLASS, Report, flash, openshmem};
use crate::shared::Shared;

/// What memcached calls a chunk: the unit in which space is given out.
const CHUNK_BYTES: u64 = 4;

pub fn items(ctx: &Context, mut report: Report<'_>) {
    let shared = &ctx.shared;
    let usage = shared.store.usage();
    let (_, sums) = shared.sums_since_reset();
    if usage.items > 0 || sums.total_items > 0 {
        let ages = shared.store.ages();
        for (name, value) in [
            ("number", usage.items),
            ("number_hot", 0),
            ("number_warm", 0),
            ("number_cold", usage.items),
            ("age_hot", 0),
            ("age_warm", 0),
            ("age", u64::from(ages.oldest_seconds)),
            ("mem_requested", usage.item_bytes),
            ("evicted", sums.evictions),
            ("evicted_nonzero", sums.evicted_nonzero),
            ("evicted_time", u64::from(ages.evicted_seconds)),
            ("outofmemory", sums.out_of_memory),
            ("tailrepairs", 0),
            ("reclaimed", sums.reclaimed),
            ("expired_unfetched", sums.expired_unfetched),
            ("evicted_unfetched", sums.evicted_unfetched),
            ("evicted_active", sums.evicted_active),
            ("crawler_reclaimed", shared.housekeeping.crawled_expired()),
            ("crawler_items_checked", shared.housekeeping.crawled()),
            ("lrutail_reflocked", 0),
            ("moves_to_cold", 0),
            ("moves_to_warm", 0),
            ("moves_within_lru", 0),
            ("direct_reclaims", 0),
            ("hits_to_hot", 0),
            ("hits_to_warm", 0),
            ("hits_to_cold", shared.sums_since_reset().0.get_hits),
            ("hits_to_temp", 0),
        ] {
            report.stat(&format!("items:{ITEM_CLASS}:{name}"), value);
        }
    }
    report.end();
}

pub fn slabs(ctx: &Context, mut report: Report<'_>) {
    let shared = &ctx.shared;
    let usage = shared.store.usage();
    let (sums, _) = shared.sums_since_reset();
    // The three are read one after the other while segments change hands.
    let pages = usage.segments.saturating_sub(usage.segments_free).saturating_sub(usage.segments_index);
    let pages = u64::from(pages);
    let chunks_per_page = usage.segment_bytes / CHUNK_BYTES;
    let used = usage.item_bytes.div_ceil(CHUNK_BYTES);
    if pages > 0 {
        for (name, value) in [
            ("chunk_size", CHUNK_BYTES),
            ("chunks_per_page", chunks_per_page),
            ("total_pages", pages),
            ("total_chunks", pages * chunks_per_page),
            ("used_chunks", used),
            ("free_chunks", (pages * chunks_per_page).saturating_sub(used)),
            ("free_chunks_end", 0),
            ("get_hits", sums.get_hits),
            ("cmd_set", sums.cmd_set),
            ("delete_hits", sums.delete_hits),
            ("incr_hits", sums.incr_hits),
            ("decr_hits", sums.decr_hits),
            ("cas_hits", sums.cas_hits),
            ("cas_badval", sums.cas_badval),
            ("touch_hits", sums.touch_hits),
        ] {
            report.stat(&format!("{ITEM_CLASS}:{name}"), value);
        }
    }
    report.stat("active_slabs", u8::from(pages > 0));
    report.stat("total_malloced", pages * usage.segment_bytes);
    report.end();
}

/// Returns the name of the region's protection against clients of this host.
fn protection(shared: &Shared) -> &'static str {
    match &shared.settings.shm {
        None => "private",
        Some(_) if shared.store.region().is_none() => "unshared",
        Some(shm) => shm.protection(),
    }
}

pub fn fabcache(ctx: &Context, mut report: Report<'_>) {
    let shared = &ctx.shared;
    let usage = shared.store.usage();
    let balance = shared.store.eviction_balance();
    let (sums, store) = shared.sums_since_reset();
    report.stat("version", env!("CARGO_PKG_VERSION"));
    report.stat("eviction", if shared.settings.evict { shared.settings.eviction.name() } else { "off" });
    report.stat("region", protection(shared));
    let (opening, opened_in) = shared.store.opening();
    let recovery = shared.store.recovery_progress().unwrap_or_default();
    let items_kept = if let Opening::Kept { items, .. } = opening { items } else { recovery.kept };
    let (scrubbed, taken_over) = shared.store.scrubbed();
    report.stat("region_start", opening.name());
    for (name, value) in [
        ("region_start_us", opened_in.as_micros() as u64),
        ("region_incarnation", shared.store.incarnation().into()),
        ("region_items_kept", items_kept),
        ("region_items_dropped", recovery.dropped),
        ("recovery_groups", recovery.groups.into()),
        ("recovery_groups_checked", recovery.groups_checked.into()),
        ("region_items_corrupt", shared.store.items_corrupt()),
        ("region_scrub_segments", taken_over.into()),
        ("region_scrub_segments_done", scrubbed.into()),
        ("memory_limit_bytes", usage.memory_limit),
        ("segment_bytes", usage.segment_bytes),
        ("segments", u64::from(usage.segments)),
        ("segments_free", u64::from(usage.segments_free)),
        ("segments_index", u64::from(usage.segments_index)),
        ("segments_pinned", u64::from(usage.segments_pinned)),
        ("items", usage.items),
        ("item_bytes", usage.item_bytes),
        ("index_bytes", usage.index_bytes),
        ("index_slots", usage.index_slots),
        ("index_chain_buckets", usage.index_chain_buckets),
        ("index_growing", u64::from(usage.index_growing)),
        ("tables_resized", store.tables_resized),
        ("groups_moved", store.groups_moved),
        ("reclaim_items_checked", store.reclaim_items_checked),
        ("items_moved", store.items_moved),
        ("bytes_moved", store.bytes_moved),
        ("evicted_bytes", store.evicted_bytes),
        ("small_queue_share_permille", (balance.small_share * 1e3).round() as u64),
        ("simulated_requests", balance.simulation.requests),
        ("simulated_hits_large_share", balance.simulation.hits_large),
        ("simulated_hits_small_share", balance.simulation.hits_small),
        ("small_queue_share_changes", balance.simulation.changes),
        ("small_queue_hits", store.small_queue_hits),
        ("main_queue_hits", store.main_queue_hits),
        ("segments_compacted", store.segments_compacted),
        ("segments_evicted", store.segments_evicted),
        ("segments_expired", store.segments_expired),
        ("read_retries", store.read_retries),
        ("locked_reads", store.locked_reads),
        ("overflow_reads", store.overflow_reads),
        ("accesses_outside", store.accesses_outside),
        ("values_pinned", store.pins),
        ("values_pin_refused", store.pins_refused),
        ("stalled_kicks", sums.stalled_kicks),
        ("pinning_kicks", sums.pinning_kicks),
        ("accept_pauses", sums.accept_pauses),
        ("worker_turns", sums.turns),
        ("shm_attached", sums.shm_attached),
        ("shm_channel_only", sums.shm_channel_only),
        ("shm_refused", sums.shm_refused),
        ("shm_broken", sums.shm_broken),
        ("fabric_attached", sums.fabric_attached),
        ("fabric_refused", sums.fabric_refused),
        ("fabric_broken", sums.fabric_broken),
        ("fabric_dropped_messages", sums.fabric_dropped_messages),
        ("fabric_ports", shared.fabric.ports()),
        ("fabric_failures", sums.fabric_failures),
        ("fabric_region_bytes", shared.fabric.region_bytes()),
        ("fabric_buffer_bytes", shared.fabric.buffer_bytes()),
    ] {
        report.stat(name, value);
    }
    if let (Some(settings), Some(tier), Some((_, sums))) =
        (&shared.settings.flash, &shared.flash, shared.flash_sums())
    {
        flash::own(&sums, &tier.state(&sums.state), settings.segment_bytes, &mut report);
    }
    if let Some(pes) = &shared.pes {
        openshmem::own(pes, sums.mapped_reads, &mut report);
    }
    for (worker, inbox) in shared.inboxes.iter().enumerate() {
        report.stat(&format!("worker:{worker}:connections"), inbox.load());
    }
    report.end();
}
