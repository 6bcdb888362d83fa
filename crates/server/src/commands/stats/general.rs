//! Plain `stats`: memcached's fields, in its order. Counters of mechanisms that do not exist here (slab moves, LRU
//! lists) are 0.

use std::sync::atomic::Ordering;

use nix::sys::resource::{UsageWho, getrusage};

use super::{Context, Report, flash};
use crate::options::MEMCACHED_VERSION;

/// Fields that are always 0, because fabcache has no such events, by their position in memcached's order.
const NO_SLAB_MOVES: [&str; 6] = [
    "slab_reassign_rescues",
    "slab_reassign_chunk_rescues",
    "slab_reassign_inline_reclaim",
    "slab_reassign_busy_items",
    "slab_reassign_busy_deletes",
    "slab_reassign_busy_nomem",
];

pub fn report(ctx: &Context, mut report: Report<'_>) {
    process(ctx, &mut report);
    connections(ctx, &mut report);
    requests(ctx, &mut report);
    memory(ctx, &mut report);
    items(ctx, &mut report);
    report.end();
}

fn process(ctx: &Context, report: &mut Report<'_>) {
    let store = &ctx.shared.store;
    report.stat("pid", std::process::id());
    report.stat("uptime", store.now());
    report.stat("time", store.clock_origin() + u64::from(store.now()));
    report.stat("version", MEMCACHED_VERSION);
    report.stat("libevent", "none");
    report.stat("pointer_size", usize::BITS);
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok();
    let seconds = |time: Option<nix::sys::time::TimeVal>| {
        time.map_or_else(|| "0.000000".to_owned(), |time| format!("{}.{:06}", time.tv_sec(), time.tv_usec()))
    };
    report.stat("rusage_user", seconds(usage.map(|usage| usage.user_time())));
    report.stat("rusage_system", seconds(usage.map(|usage| usage.system_time())));
}

fn connections(ctx: &Context, report: &mut Report<'_>) {
    let shared = &ctx.shared;
    let (sums, _) = shared.sums_since_reset();
    let now = shared.connections_now.load(Ordering::Relaxed);
    report.stat("max_connections", shared.settings.connections_max);
    report.stat("curr_connections", now);
    report.stat("total_connections", sums.total_connections);
    report.stat("rejected_connections", sums.rejected_connections);
    report.stat("connection_structures", shared.connections.count());
    report.stat("response_obj_oom", 0);
    report.stat("response_obj_count", now);
    report.stat("response_obj_bytes", shared.connections.count() * ctx.connection_bytes);
    let workers = shared.inboxes.len();
    report.stat("read_buf_count", workers);
    report.stat("read_buf_bytes", workers * crate::bounds::RECEIVE_BYTES);
    report.stat("read_buf_bytes_free", 0);
    report.stat("read_buf_oom", 0);
    report.stat("reserved_fds", shared.connections.count_listeners() + 2 * workers);
}

fn requests(ctx: &Context, report: &mut Report<'_>) {
    let shared = &ctx.shared;
    let (sums, _) = shared.sums_since_reset();
    for (name, value) in [
        ("cmd_get", sums.cmd_get),
        ("cmd_set", sums.cmd_set),
        ("cmd_flush", sums.cmd_flush),
        ("cmd_touch", sums.cmd_touch),
        ("cmd_meta", sums.cmd_meta),
        ("get_hits", sums.get_hits),
        ("get_misses", sums.get_misses),
        ("get_expired", sums.get_expired),
        ("get_flushed", sums.get_flushed),
    ] {
        report.stat(name, value);
    }
    if let Some((_, sums)) = shared.flash_sums() {
        flash::gets(&sums, report);
    }
    for (name, value) in [
        ("delete_misses", sums.delete_misses),
        ("delete_hits", sums.delete_hits),
        ("incr_misses", sums.incr_misses),
        ("incr_hits", sums.incr_hits),
        ("decr_misses", sums.decr_misses),
        ("decr_hits", sums.decr_hits),
        ("cas_misses", sums.cas_misses),
        ("cas_hits", sums.cas_hits),
        ("cas_badval", sums.cas_badval),
        ("touch_hits", sums.touch_hits),
        ("touch_misses", sums.touch_misses),
        ("store_too_large", sums.store_too_large),
        ("store_no_memory", sums.store_no_memory),
        ("auth_cmds", sums.auth_cmds),
        ("auth_errors", sums.auth_errors),
    ] {
        report.stat(name, value);
    }
    if shared.settings.idle_timeout.is_some() {
        report.stat("idle_kicks", sums.idle_kicks);
    }
    report.stat("bytes_read", sums.bytes_read);
    report.stat("bytes_written", sums.bytes_written);
    report.stat("limit_maxbytes", shared.store.usage().memory_limit);
    report.stat("accepting_conns", u8::from(!shared.listen_disabled_now.load(Ordering::Relaxed)));
    report.stat("listen_disabled_num", shared.listen_disabled.load(Ordering::Relaxed));
    report.stat("time_in_listen_disabled_us", shared.listen_disabled_us.load(Ordering::Relaxed));
    report.stat("threads", shared.inboxes.len());
    report.stat("conn_yields", sums.conn_yields);
}

fn memory(ctx: &Context, report: &mut Report<'_>) {
    let shared = &ctx.shared;
    let usage = shared.store.usage();
    // The index has as many slots as memcached's table has buckets at this power; memcached starts with 16.
    report.stat("hash_power_level", usage.index_slots.max(1).ilog2().max(16));
    report.stat("hash_bytes", usage.index_bytes);
    report.stat("hash_is_expanding", u8::from(usage.index_growing));
    for name in NO_SLAB_MOVES {
        report.stat(name, 0);
    }
    report.stat("slab_reassign_last_busy_status", "none");
    report.stat("slab_reassign_running", 0);
    report.stat("slabs_moved", 0);
    if shared.switches.crawler.load(Ordering::Relaxed) {
        report.stat("lru_crawler_running", u8::from(shared.housekeeping.is_crawling()));
        report.stat("lru_crawler_starts", shared.housekeeping.crawls());
    }
    if has_lru_fields(ctx) {
        report.stat("lru_maintainer_juggles", 0);
    }
    report.stat("malloc_fails", 0);
    let log = shared.watchers.counts();
    report.stat("log_worker_dropped", 0);
    report.stat("log_worker_written", log.written);
    report.stat("log_watcher_skipped", log.skipped);
    report.stat("log_watcher_sent", log.sent);
    report.stat("log_watchers", log.watchers);
    if let Some((sums, _)) = shared.flash_sums() {
        flash::storage(&sums, report);
    }
    if let Some(tls) = &shared.tls {
        let (sums, _) = shared.sums_since_reset();
        report.stat("ssl_handshake_errors", sums.tls_errors);
        report.stat("ssl_proto_errors", 0);
        let read_at = *tls.read_at.lock().expect("no thread panics while it holds a time");
        report.stat("time_since_server_cert_refresh", read_at.elapsed().as_secs());
    }
    report.stat("unexpected_napi_ids", 0);
    report.stat("round_robin_fallback", 0);
}

fn items(ctx: &Context, report: &mut Report<'_>) {
    let shared = &ctx.shared;
    let usage = shared.store.usage();
    let (_, sums) = shared.sums_since_reset();
    report.stat("bytes", usage.item_bytes);
    let on_flash = shared.store.flash_sums().map_or(0, |sums| sums.objects_used);
    report.stat("curr_items", usage.items + on_flash);
    report.stat("total_items", sums.total_items);
    report.stat("slab_global_page_pool", usage.segments_free);
    report.stat("expired_unfetched", sums.expired_unfetched);
    report.stat("evicted_unfetched", sums.evicted_unfetched);
    if has_lru_fields(ctx) {
        report.stat("evicted_active", sums.evicted_active);
    }
    report.stat("evictions", sums.evictions);
    report.stat("reclaimed", sums.reclaimed);
    report.stat("crawler_reclaimed", shared.housekeeping.crawled_expired());
    report.stat("crawler_items_checked", shared.housekeeping.crawled());
    report.stat("lrutail_reflocked", 0);
    if has_lru_fields(ctx) {
        for name in
            ["moves_to_cold", "moves_to_warm", "moves_within_lru", "direct_reclaims", "lru_bumps_dropped"]
        {
            report.stat(name, 0);
        }
    }
}

/// memcached leaves these out where its LRU maintainer is off, and its own tests count the fields.
fn has_lru_fields(ctx: &Context) -> bool {
    let given = &ctx.shared.settings.extended.given;
    !given.contains_key("no_lru_maintainer") && !given.contains_key("no_modern")
}
