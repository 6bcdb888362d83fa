//! `stats settings`: memcached's fields, in its order, and our version at the end.

use std::sync::atomic::Ordering;

use fabcache_protocol::Protocol;

use super::{Context, Report, openshmem};
use crate::settings::Settings;

pub fn report(ctx: &Context, mut report: Report<'_>) {
    let settings = &ctx.shared.settings;
    network(ctx, settings, &mut report);
    slabs(ctx, settings, &mut report);
    lru(ctx, settings, &mut report);
    tls(settings, &mut report);
    report.stat("num_napi_ids", 0);
    let file = settings.backing.file.as_ref();
    report.stat("memory_file", file.map_or("(null)".to_owned(), |file| file.display().to_string()));
    report.stat("client_flags_size", 4);
    report.stat("engine", settings.engine.name());
    match (&settings.fabric, &settings.openshmem) {
        (None, None) => report.stat("fabric", "no"),
        (None, Some(job)) => openshmem::settings(job, &mut report),
        (Some(fabric), _) => {
            report.stat("fabric", fabric.requirements());
            report.stat("fabric_peers", &fabric.peers);
            report.stat("fabric_receives", fabric.receives);
        }
    }
    flash(settings, &mut report);
    report.stat("fabcache_version", env!("CARGO_PKG_VERSION"));
    report.end();
}

fn flash(settings: &Settings, report: &mut Report<'_>) {
    let Some(flash) = &settings.flash else {
        report.stat("flash", "no");
        return;
    };
    let devices = flash.devices.iter().map(|device| format!("{}:{}", device.path.display(), device.bytes));
    report.stat("flash", devices.collect::<Vec<_>>().join(","));
    report.stat("flash_segment_bytes", flash.segment_bytes);
    // 0: no limit.
    report.stat("flash_write_bytes_per_second", flash.write_bytes_per_second.unwrap_or(0));
}

/// Returns the argument of `-o`, or memcached's default.
fn given(settings: &Settings, name: &str, default: &str) -> String {
    settings.extended.given.get(name).cloned().unwrap_or_else(|| default.to_owned())
}

/// Returns the argument of `-o`, or memcached's default, both in kilobytes, as bytes.
fn given_kilobytes(settings: &Settings, name: &str, default: u64) -> u64 {
    let given = settings.extended.given.get(name).and_then(|value| value.parse().ok());
    given.unwrap_or(default) * 1024
}

fn network(ctx: &Context, settings: &Settings, report: &mut Report<'_>) {
    report.stat("maxbytes", ctx.shared.store.usage().memory_limit);
    report.stat("maxconns", settings.connections_max);
    report.stat("tcpport", settings.port);
    report.stat("udpport", settings.udp_port);
    report.stat(
        "inter",
        if settings.listen.is_empty() { "127.0.0.1".to_owned() } else { settings.listen.join(",") },
    );
    report.stat("verbosity", ctx.shared.switches.verbosity.load(Ordering::Relaxed));
    report.stat("oldest", 0);
    report.stat("evictions", if settings.evict { "on" } else { "off" });
    let unix = settings.listeners.iter().find_map(|listener| match &listener.place {
        crate::addresses::ListenAddress::Unix(path) => Some((path.display().to_string(), listener.mask)),
        _ => None,
    });
    let mask = unix.as_ref().map_or(0o700, |(_, mask)| *mask);
    report.stat("domain_socket", unix.map_or("NULL".to_owned(), |(path, _)| path));
    report.stat("umask", format!("{mask:o}"));
    report.yes_no("shutdown_command", settings.shutdown_enabled);
    report.stat("growth_factor", format!("{:.2}", settings.slab_growth_factor));
    report.stat("chunk_size", settings.slab_min_size);
    report.stat("num_threads", settings.threads);
    report.stat("num_threads_per_udp", settings.threads);
    report.stat("stat_key_prefix", char::from(settings.prefix_delimiter));
    report.yes_no("detail_enabled", ctx.shared.prefixes.is_on());
    // 0: no limit, which memcached does not have.
    report.stat("reqs_per_event", settings.requests_per_turn.unwrap_or(0));
    report.yes_no("cas_enabled", settings.cas);
    report.stat("tcp_backlog", settings.backlog);
    let protocols = settings.listeners.iter().map(|listener| listener.protocol);
    let binding = match protocols.reduce(|one, other| if one == other { one } else { None }).flatten() {
        None => "auto-negotiate",
        Some(Protocol::Text) => "ascii",
        Some(Protocol::Binary) => "binary",
    };
    report.stat("binding_protocol", binding);
    report.yes_no("auth_enabled_sasl", settings.sasl);
    report.yes_no("auth_enabled_ascii", settings.auth_file.is_some());
    report.stat("item_size_max", settings.item_bytes_max);
    report.yes_no("maxconns_fast", settings.refuse_fast);
    report.stat("hashpower_init", given(settings, "hashpower", "0"));
}

fn slabs(ctx: &Context, settings: &Settings, report: &mut Report<'_>) {
    report.yes_no("slab_reassign", !settings.extended.no_slab_reassign);
    report.stat("slab_automove", ctx.shared.switches.automove.load(Ordering::Relaxed));
    report.stat("slab_automove_ratio", given(settings, "slab_automove_ratio", "0.80"));
    report.stat("slab_automove_window", given(settings, "slab_automove_window", "10"));
    report.stat("slab_chunk_max", given_kilobytes(settings, "slab_chunk_max", 512));
}

fn lru(ctx: &Context, settings: &Settings, report: &mut Report<'_>) {
    let switches = &ctx.shared.switches;
    report.yes_no("lru_crawler", switches.crawler.load(Ordering::Relaxed));
    report.stat("lru_crawler_sleep", switches.crawler_sleep.load(Ordering::Relaxed));
    report.stat("lru_crawler_tocrawl", switches.crawler_tocrawl.load(Ordering::Relaxed));
    report.stat("tail_repair_time", given(settings, "tail_repair_time", "0"));
    report.yes_no("flush_enabled", settings.flush_enabled);
    report.yes_no("dump_enabled", settings.dump_enabled);
    report.stat("hash_algorithm", "xxh3");
    report.yes_no("lru_maintainer_thread", false);
    report.yes_no("lru_segmented", false);
    report.stat("hot_lru_pct", given(settings, "hot_lru_pct", "20"));
    report.stat("warm_lru_pct", given(settings, "warm_lru_pct", "40"));
    report.stat("hot_max_factor", given(settings, "hot_max_factor", "0.20"));
    report.stat("warm_max_factor", given(settings, "warm_max_factor", "2.00"));
    report.yes_no("temp_lru", false);
    report.stat("temporary_ttl", given(settings, "temporary_ttl", "61"));
    report.stat("idle_timeout", settings.idle_timeout.map_or(0, |timeout| timeout.as_secs()));
    report.stat("watcher_logbuf_size", crate::bounds::WATCHER_BYTES_MAX);
    report.stat("worker_logbuf_size", given_kilobytes(settings, "worker_logbuf_size", 64));
    report.stat("read_buf_mem_limit", given(settings, "read_buf_mem_limit", "0"));
    report.yes_no("track_sizes", settings.extended.track_sizes);
    report.yes_no("inline_ascii_response", false);
    report.yes_no("drop_privileges", false);
    extstore(ctx, settings, report);
}

/// memcached's options for flash. `ext_item_size` is what counts here; the others are as given.
fn extstore(ctx: &Context, settings: &Settings, report: &mut Report<'_>) {
    report.stat("ext_item_size", ctx.shared.store.flash_item_bytes_min());
    for (name, default) in
        [("ext_item_age", "4294967295"), ("ext_low_ttl", "0"), ("ext_recache_rate", "2000")]
    {
        report.stat(name, given(settings, name, default));
    }
    // Given in megabytes.
    report.stat("ext_wbuf_size", given_kilobytes(settings, "ext_wbuf_size", 4) << 10);
    for (name, default) in [("ext_compact_under", "0"), ("ext_drop_under", "0"), ("ext_max_sleep", "1000000")]
    {
        report.stat(name, given(settings, name, default));
    }
    let fraction: f64 = given(settings, "ext_max_frag", "0.80").parse().unwrap_or(0.8);
    report.stat("ext_max_frag", format!("{fraction:.2}"));
    report.stat("slab_automove_freeratio", given(settings, "slab_automove_freeratio", "0.010"));
    report.yes_no("ext_drop_unread", settings.extended.given.contains_key("ext_drop_unread"));
}

fn tls(settings: &Settings, report: &mut Report<'_>) {
    let path = |path: Option<&std::path::PathBuf>| {
        path.map_or("(null)".to_owned(), |path| path.display().to_string())
    };
    let tls = settings.tls.as_ref();
    report.yes_no("ssl_enabled", tls.is_some());
    report.stat("ssl_chain_cert", path(tls.map(|tls| &tls.chain)));
    report.stat("ssl_key", path(tls.map(|tls| &tls.key)));
    report.stat("ssl_verify_mode", tls.map_or(0, |tls| tls.verify_mode));
    report.stat("ssl_keyformat", 1);
    report.stat("ssl_ciphers", "NULL");
    let authorities = tls.and_then(|tls| tls.authorities.as_ref());
    report.stat("ssl_ca_cert", authorities.map_or("NULL".to_owned(), |path| path.display().to_string()));
    report.stat("ssl_wbuf_size", given_kilobytes(settings, "ssl_wbuf_size", 16));
    report.yes_no("ssl_session_cache", false);
    report.yes_no("ssl_kernel_tls", false);
    report.stat("ssl_min_version", if tls.is_some_and(|tls| tls.only_1_3) { "tlsv1.3" } else { "tlsv1.2" });
}
