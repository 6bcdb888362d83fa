//! `stats` in all its kinds: fields, order, types and values.

mod common;

use std::collections::BTreeMap;
use std::net::TcpStream;

use common::{Client, Scratch, TestServer, packet, serve};

const GENERAL: &str = "pid uptime time version libevent pointer_size rusage_user rusage_system max_connections \
    curr_connections total_connections rejected_connections connection_structures response_obj_oom response_obj_count \
    response_obj_bytes read_buf_count read_buf_bytes read_buf_bytes_free read_buf_oom reserved_fds cmd_get cmd_set \
    cmd_flush cmd_touch cmd_meta get_hits get_misses get_expired get_flushed delete_misses delete_hits incr_misses \
    incr_hits decr_misses decr_hits cas_misses cas_hits cas_badval touch_hits touch_misses store_too_large \
    store_no_memory auth_cmds auth_errors bytes_read bytes_written limit_maxbytes accepting_conns listen_disabled_num \
    time_in_listen_disabled_us threads conn_yields hash_power_level hash_bytes hash_is_expanding \
    slab_reassign_rescues slab_reassign_chunk_rescues slab_reassign_inline_reclaim slab_reassign_busy_items \
    slab_reassign_busy_deletes slab_reassign_busy_nomem slab_reassign_last_busy_status slab_reassign_running \
    slabs_moved lru_crawler_running lru_crawler_starts lru_maintainer_juggles malloc_fails log_worker_dropped \
    log_worker_written log_watcher_skipped log_watcher_sent log_watchers unexpected_napi_ids round_robin_fallback \
    bytes curr_items total_items slab_global_page_pool expired_unfetched evicted_unfetched evicted_active evictions \
    reclaimed crawler_reclaimed crawler_items_checked lrutail_reflocked moves_to_cold moves_to_warm moves_within_lru \
    direct_reclaims lru_bumps_dropped";

/// memcached's fields, and our version.
const SETTINGS: &str = "maxbytes maxconns tcpport udpport inter verbosity oldest evictions domain_socket umask \
    shutdown_command growth_factor chunk_size num_threads num_threads_per_udp stat_key_prefix detail_enabled \
    reqs_per_event cas_enabled tcp_backlog binding_protocol auth_enabled_sasl auth_enabled_ascii item_size_max \
    maxconns_fast hashpower_init slab_reassign slab_automove slab_automove_ratio slab_automove_window slab_chunk_max \
    lru_crawler lru_crawler_sleep lru_crawler_tocrawl tail_repair_time flush_enabled dump_enabled hash_algorithm \
    lru_maintainer_thread lru_segmented hot_lru_pct warm_lru_pct hot_max_factor warm_max_factor temp_lru \
    temporary_ttl idle_timeout watcher_logbuf_size worker_logbuf_size read_buf_mem_limit track_sizes \
    inline_ascii_response drop_privileges ext_item_size ext_item_age ext_low_ttl ext_recache_rate ext_wbuf_size \
    ext_compact_under ext_drop_under ext_max_sleep ext_max_frag slab_automove_freeratio ext_drop_unread ssl_enabled \
    ssl_chain_cert ssl_key ssl_verify_mode ssl_keyformat ssl_ciphers ssl_ca_cert ssl_wbuf_size ssl_session_cache \
    ssl_kernel_tls ssl_min_version num_napi_ids memory_file client_flags_size engine fabric flash fabcache_version";

const ITEMS: &str = "number number_hot number_warm number_cold age_hot age_warm age mem_requested evicted \
    evicted_nonzero evicted_time outofmemory tailrepairs reclaimed expired_unfetched evicted_unfetched evicted_active \
    crawler_reclaimed crawler_items_checked lrutail_reflocked moves_to_cold moves_to_warm moves_within_lru \
    direct_reclaims hits_to_hot hits_to_warm hits_to_cold hits_to_temp";

const SLABS: &str = "chunk_size chunks_per_page total_pages total_chunks used_chunks free_chunks free_chunks_end \
    get_hits cmd_set delete_hits incr_hits decr_hits cas_hits cas_badval touch_hits";

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn names(stats: &[(String, String)]) -> Vec<String> {
    stats.iter().map(|(name, _)| name.clone()).collect()
}

#[track_caller]
fn all_numbers(stats: &[(String, String)], but: &[&str]) {
    for (name, value) in stats.iter().filter(|(name, _)| !but.contains(&name.as_str())) {
        assert!(value.parse::<f64>().is_ok(), "{name} is {value:?}");
    }
}

#[test]
fn general_stats_have_memcacheds_fields() {
    let server = serve("");
    let mut c = server.connect();
    let stats = c.stats("");
    assert_eq!(names(&stats), words(GENERAL));
    all_numbers(&stats, &["version", "libevent", "slab_reassign_last_busy_status"]);
    for (name, value) in [
        ("version", "1.6.45"),
        ("pointer_size", "64"),
        ("max_connections", "1024"),
        ("threads", "4"),
        ("accepting_conns", "1"),
        ("limit_maxbytes", "67108864"),
        ("hash_power_level", "16"),
        ("pid", &std::process::id().to_string()),
    ] {
        assert_eq!(c.stat("", name), value, "{name}");
    }
    assert_eq!(
        serve("-o no_lru_crawler,no_lru_maintainer").connect().stats("").len(),
        84,
        "as memcached's stats.t"
    );
    let kicks = serve("-o idle_timeout=1000").connect().stats("");
    assert_eq!((kicks.len(), kicks.iter().any(|(name, _)| name == "idle_kicks")), (94, true));
}

#[test]
fn stats_settings_reports_the_options() {
    let server = serve("");
    let mut c = server.connect();
    let defaults = c.stats("settings");
    assert_eq!(names(&defaults), words(SETTINGS));
    all_numbers(
        &defaults
            .into_iter()
            .filter(|(name, _)| name.ends_with("factor") || name.ends_with("pct"))
            .collect::<Vec<_>>(),
        &[],
    );
    let flags = "-m 100 -c 77 -t 3 -R 9 -b 55 -I 2m -M -C -F -X -A -B ascii -D / -f 1.5 -n 96 -vv -o no_maxconns_fast,\
                 idle_timeout=300,track_sizes,slab_automove=2,lru_crawler_sleep=500,hot_lru_pct=30,no_slab_reassign,\
                 worker_logbuf_size=32,ssl_wbuf_size=64,slab_chunk_max=256";
    let server = serve(flags);
    let mut c = server.connect();
    let given: BTreeMap<_, _> = c.stats("settings").into_iter().collect();
    for (name, value) in [
        ("maxbytes", "104857600"),
        ("maxconns", "77"),
        ("num_threads", "3"),
        ("reqs_per_event", "9"),
        ("tcp_backlog", "55"),
        ("item_size_max", "2097152"),
        ("evictions", "off"),
        ("cas_enabled", "no"),
        ("flush_enabled", "no"),
        ("dump_enabled", "no"),
        ("shutdown_command", "yes"),
        ("binding_protocol", "ascii"),
        ("stat_key_prefix", "/"),
        ("detail_enabled", "yes"),
        ("growth_factor", "1.50"),
        ("chunk_size", "96"),
        ("maxconns_fast", "no"),
        ("idle_timeout", "300"),
        ("track_sizes", "yes"),
        ("slab_automove", "2"),
        ("slab_reassign", "no"),
        ("lru_crawler_sleep", "500"),
        ("hot_lru_pct", "30"),
        // memcached takes these in kilobytes and shows bytes.
        ("worker_logbuf_size", "32768"),
        ("ssl_wbuf_size", "65536"),
        ("slab_chunk_max", "262144"),
        ("inter", "127.0.0.1"),
    ] {
        assert_eq!(given[name], value, "{name}");
    }
    c.request(
        "slabs automove 0\r\nlru_crawler sleep 7\r\nlru_crawler disable\r\nverbosity 1\r\n",
        "OK\r\nOK\r\nOK\r\nOK\r\n",
    );
    let turned: BTreeMap<_, _> = c.stats("settings").into_iter().collect();
    for (name, value) in
        [("slab_automove", "0"), ("lru_crawler_sleep", "7"), ("lru_crawler", "no"), ("verbosity", "1")]
    {
        assert_eq!(turned[name], value, "{name}");
    }
}

#[test]
fn stats_settings_reports_the_flash_tier() {
    let scratch = Scratch::new("flash_settings");
    let path = scratch.path("flash");
    let path = path.display();
    let flags = "-o ext_page_size=8,ext_wbuf_size=2,ext_item_age=100,ext_low_ttl=60,ext_recache_rate=0,ext_max_frag=0.9,\
                 ext_compact_under=3,ext_drop_under=4,ext_max_sleep=1000,ext_drop_unread";
    let server = serve(&format!("{flags},ext_path={path}:64m,ext_item_size=100 --flash-write-mb-s 5"));
    let mut c = server.connect();
    let given: BTreeMap<_, _> = c.stats("settings").into_iter().collect();
    for (name, value) in [
        ("flash", &*format!("{path}:68157440")),
        ("flash_segment_bytes", "16777216"),
        ("flash_write_bytes_per_second", "5242880"),
        ("ext_item_size", "100"),
        ("ext_item_age", "100"),
        ("ext_low_ttl", "60"),
        ("ext_recache_rate", "0"),
        // memcached takes this in megabytes and shows bytes.
        ("ext_wbuf_size", "2097152"),
        ("ext_compact_under", "3"),
        ("ext_drop_under", "4"),
        ("ext_max_sleep", "1000"),
        ("ext_max_frag", "0.90"),
        ("ext_drop_unread", "yes"),
    ] {
        assert_eq!(given[name], value, "{name}");
    }
    // The others change nothing.
    c.request(
        "extstore item_size 7\r\nextstore item_age 5\r\nextstore item_size x\r\n",
        "OK\r\nOK\r\nERROR\r\n",
    );
    assert_eq!(
        (c.stat("settings", "ext_item_size"), c.stat("settings", "ext_item_age")),
        ("7".into(), "100".into())
    );
    let other = scratch.path("other");
    let server = serve(&format!("--flash {}:65m", other.display()));
    assert_eq!(server.connect().stat("settings", "ext_item_size"), "0", "items of any size move to flash");
}

#[test]
fn without_flash_its_statistics_are_missing() {
    let server = serve("");
    let mut c = server.connect();
    assert_eq!(c.stat("settings", "ext_item_size"), "512", "memcached's default");
    c.request("stats extstore\r\nextstore item_size 7\r\n", "END\r\nOK\r\n");
    assert_eq!(c.stat("settings", "ext_item_size"), "7");
    assert!(c.stats("fabcache").iter().all(|(name, _)| !name.starts_with("flash_")));
}

#[test]
fn no_modern_has_the_settings_of_memcached_1_4() {
    let server = serve("-o no_modern");
    let mut c = server.connect();
    let settings: BTreeMap<_, _> = c.stats("settings").into_iter().collect();
    for (name, value) in
        [("lru_crawler", "no"), ("maxconns_fast", "no"), ("slab_reassign", "no"), ("slab_automove", "0")]
    {
        assert_eq!(settings[name], value, "{name}");
    }
    c.request("lru_crawler crawl all\r\n", "CLIENT_ERROR lru crawler disabled\r\n");
    c.request("lru_crawler enable\r\nlru_crawler crawl all\r\n", "OK\r\nOK\r\n");
}

/// Asserts how a request changes the counters.
#[track_caller]
fn changes(c: &mut Client<TcpStream>, request: &str, answer: &str, expected: &[(&str, i64)]) {
    let kept = |c: &mut Client<TcpStream>| -> BTreeMap<String, i64> {
        let wanted =
            |name: &str| name.contains("_hits") || name.contains("_misses") || name.starts_with("cmd_");
        let others = ["cas_badval", "get_expired", "get_flushed", "store_too_large", "curr_items"];
        let stats =
            c.stats("").into_iter().filter(|(name, _)| wanted(name) || others.contains(&name.as_str()));
        stats.map(|(name, value)| (name, value.parse().expect("a number"))).collect()
    };
    let before = kept(c);
    c.request(request, answer);
    let after = kept(c);
    let changed: BTreeMap<&str, i64> = after
        .iter()
        .map(|(name, value)| (name.as_str(), value - before[name]))
        .filter(|(_, by)| *by != 0)
        .collect();
    assert_eq!(changed, expected.iter().copied().collect(), "{request:?}");
}

#[test]
fn commands_count_as_in_memcached() {
    let server = serve("");
    let mut c = server.connect();
    let c = &mut c;
    changes(c, "set a 0 0 1\r\nx\r\n", "STORED\r\n", &[("cmd_set", 1), ("curr_items", 1)]);
    changes(
        c,
        "get a b a\r\n",
        "VALUE a 0 1\r\nx\r\nVALUE a 0 1\r\nx\r\nEND\r\n",
        &[("cmd_get", 3), ("get_hits", 2), ("get_misses", 1)],
    );
    changes(c, "gat 100 a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n", &[("cmd_touch", 1), ("touch_hits", 1)]);
    changes(c, "gat 100 none\r\n", "END\r\n", &[("cmd_touch", 1), ("touch_misses", 1)]);
    changes(c, "touch a 100\r\n", "TOUCHED\r\n", &[("cmd_touch", 1), ("touch_hits", 1)]);
    changes(c, "touch none 100\r\n", "NOT_FOUND\r\n", &[("cmd_touch", 1), ("touch_misses", 1)]);
    changes(c, "add a 0 0 1\r\nx\r\n", "NOT_STORED\r\n", &[("cmd_set", 1)]);
    changes(c, "replace none 0 0 1\r\nx\r\n", "NOT_STORED\r\n", &[("cmd_set", 1)]);
    changes(c, "append a 0 0 1\r\ny\r\n", "STORED\r\n", &[("cmd_set", 1)]);
    changes(c, "cas a 0 0 1 99999\r\nx\r\n", "EXISTS\r\n", &[("cmd_set", 1), ("cas_badval", 1)]);
    changes(c, "cas none 0 0 1 1\r\nx\r\n", "NOT_FOUND\r\n", &[("cmd_set", 1), ("cas_misses", 1)]);
    arithmetic_and_meta_commands_count(c);
    deletes_count(c);
    binary_commands_count(&server, c);
}

fn arithmetic_and_meta_commands_count(c: &mut Client<TcpStream>) {
    changes(c, "ms a 1 E5\r\n1\r\n", "HD\r\n", &[("cmd_set", 1), ("cmd_meta", 1)]);
    changes(c, "cas a 0 0 1 5\r\n1\r\n", "STORED\r\n", &[("cmd_set", 1), ("cas_hits", 1)]);
    changes(c, "incr a 1\r\n", "2\r\n", &[("incr_hits", 1)]);
    changes(c, "decr a 1\r\n", "1\r\n", &[("decr_hits", 1)]);
    changes(c, "incr none 1\r\n", "NOT_FOUND\r\n", &[("incr_misses", 1)]);
    changes(c, "decr none 1\r\n", "NOT_FOUND\r\n", &[("decr_misses", 1)]);
    changes(c, "ma a\r\n", "HD\r\n", &[("incr_hits", 1), ("cmd_meta", 1)]);
    changes(c, "ma made N0 J1\r\n", "HD\r\n", &[("cmd_meta", 1), ("curr_items", 1)]);
    changes(c, "mg a v\r\n", "VA 1\r\n2\r\n", &[("cmd_meta", 1), ("cmd_get", 1), ("get_hits", 1)]);
    changes(c, "mg none v\r\n", "EN\r\n", &[("cmd_meta", 1), ("cmd_get", 1), ("get_misses", 1)]);
    changes(c, "mg a T100\r\n", "HD\r\n", &[("cmd_meta", 1), ("cmd_touch", 1), ("touch_hits", 1)]);
    changes(c, "mg none T100\r\n", "EN\r\n", &[("cmd_meta", 1), ("cmd_get", 1), ("get_misses", 1)]);
    changes(
        c,
        "mg new N30\r\n",
        "HD W\r\n",
        &[("cmd_meta", 1), ("cmd_get", 1), ("get_hits", 1), ("curr_items", 1)],
    );
}

fn deletes_count(c: &mut Client<TcpStream>) {
    changes(c, "delete new\r\n", "DELETED\r\n", &[("delete_hits", 1), ("curr_items", -1)]);
    changes(c, "delete new\r\n", "NOT_FOUND\r\n", &[("delete_misses", 1)]);
    changes(c, "md new\r\n", "NF\r\n", &[("delete_misses", 1), ("cmd_meta", 1)]);
    changes(c, "delete made\r\n", "DELETED\r\n", &[("delete_hits", 1), ("curr_items", -1)]);
    changes(c, "mn\r\n", "MN\r\n", &[]);
    changes(c, "version\r\nnonsense\r\n", "VERSION 1.6.45\r\nERROR\r\n", &[]);
    let large = format!("set a 0 0 1048576\r\n{}\r\n", "x".repeat(1 << 20));
    changes(
        c,
        &large,
        "SERVER_ERROR object too large for cache\r\n",
        &[("store_too_large", 1), ("curr_items", -1)],
    );
    changes(
        c,
        "set a 0 0 1\r\nx\r\nflush_all\r\nget a\r\n",
        "STORED\r\nOK\r\nEND\r\n",
        &[("cmd_set", 1), ("cmd_flush", 1), ("cmd_get", 1), ("get_misses", 1), ("get_flushed", 1)],
    );
}

fn binary_commands_count(server: &TestServer, c: &mut Client<TcpStream>) {
    let mut binary = server.connect();
    binary.say(
        [
            packet(0x01, &[0; 8], b"a", b"x", 0),
            packet(0x00, &[], b"a", b"", 0),
            packet(0x1d, &[0; 4], b"a", b"", 0),
        ]
        .concat(),
    );
    let answers = [binary.hear_packet(), binary.hear_packet(), binary.hear_packet()];
    assert!(answers.iter().all(|answer| answer.status == 0));
    assert_eq!(
        (c.count("", "cmd_touch"), c.count("slabs", "1:cmd_set"), c.count("", "cmd_flush")),
        (6, 10, 1)
    );
}

#[test]
fn items_and_bytes_are_counted() {
    let server = serve("-m 16");
    let mut c = server.connect();
    assert_eq!((c.count("", "curr_items"), c.count("", "bytes"), c.stats("items").len()), (0, 0, 0));
    let value = "x".repeat(1_000);
    for i in 0..100 {
        c.request(format!("set key{i} 0 0 1000\r\n{value}\r\n"), "STORED\r\n");
    }
    let bytes = c.count("", "bytes");
    assert!((100_000..120_000).contains(&bytes), "{bytes}");
    assert_eq!(
        (c.count("", "curr_items"), c.count("", "total_items"), c.count("items", "items:1:number")),
        (100, 100, 100)
    );
    assert_eq!(c.count("items", "items:1:mem_requested"), bytes);
    for i in 0..100 {
        c.request(format!("delete key{i}\r\n"), "DELETED\r\n");
    }
    assert_eq!((c.count("", "curr_items"), c.count("", "bytes"), c.count("", "total_items")), (0, 0, 100));
    // Far more than fits.
    for i in 0..40_000 {
        c.say(format!("set key{i} 0 0 1000 noreply\r\n{value}\r\n"));
    }
    c.request("mn\r\n", "MN\r\n");
    let (items, evictions) = (c.count("", "curr_items"), c.count("", "evictions"));
    assert_eq!(items + evictions, 40_000);
    assert!(evictions > 20_000 && c.count("", "evicted_unfetched") == evictions);
    assert_eq!(c.count("items", "items:1:evicted"), evictions);
    assert!(c.count("", "bytes") < 16 << 20);
    c.request("set short 0 -1 1\r\nx\r\nget short\r\n", "STORED\r\nEND\r\n");
    let (read, written) = (c.count("", "bytes_read"), c.count("", "bytes_written"));
    assert!(read > 40_000_000 && written > 1_000, "{read} {written}");
}

#[test]
fn stats_items_slabs_and_sizes_are_reported() {
    let server = serve("-o track_sizes");
    let mut c = server.connect();
    assert_eq!(c.stats("items"), []);
    assert_eq!(c.stats("sizes"), []);
    for (key, len) in [("a", 1), ("b", 1), ("c", 1000)] {
        c.request(format!("set {key} 0 0 {len}\r\n{}\r\n", "x".repeat(len)), "STORED\r\n");
    }
    let items = c.stats("items");
    all_numbers(&items, &[]);
    assert_eq!(names(&items), words(ITEMS).iter().map(|name| format!("items:1:{name}")).collect::<Vec<_>>());
    let slabs = c.stats("slabs");
    all_numbers(&slabs, &[]);
    let mut expected: Vec<String> = words(SLABS).iter().map(|name| format!("1:{name}")).collect();
    expected.extend(words("active_slabs total_malloced"));
    assert_eq!(names(&slabs), expected);
    assert_eq!((c.count("slabs", "active_slabs"), c.count("slabs", "1:cmd_set")), (1, 3));
    let sizes = c.stats("sizes");
    all_numbers(&sizes, &[]);
    let counts: Vec<u64> = sizes.iter().map(|(_, count)| count.parse().expect("a number")).collect();
    assert_eq!(
        (counts, sizes.iter().all(|(size, _)| size.parse::<u64>().is_ok_and(|size| size % 32 == 0))),
        (vec![2, 1], true)
    );
    let without = serve("").connect().stats("sizes");
    assert_eq!(without, [("sizes_status".to_owned(), "disabled".to_owned())]);
}

#[test]
fn statistics_of_many_parts_are_whole() {
    const COUNT: usize = 1_500;
    let server = serve("-m 128 -o track_sizes -U -1");
    let mut c = server.connect();
    c.request("stats detail on\r\n", "OK\r\n");
    // Each item has a size and a prefix of its own.
    for i in 0..COUNT {
        c.request(format!("set {i:0>50}:k 0 0 {}\r\n{}\r\n", i * 32, "x".repeat(i * 32)), "STORED\r\n");
    }
    let sizes: Vec<u64> = c
        .stats("sizes")
        .iter()
        .map(|(size, count)| size.parse::<u64>().expect("a size") * u64::from(count == "1"))
        .collect();
    assert_eq!(sizes.len(), COUNT);
    assert!(sizes.is_sorted_by(|one, next| one < next), "{sizes:?}");
    let lines: String =
        (0..COUNT).map(|i| format!("PREFIX {i:0>50} get 0 hit 0 set 1 del 0\r\n")).collect::<String>()
            + "END\r\n";
    c.request("stats detail dump\r\nmn\r\n", lines.clone() + "MN\r\n");
    common::UdpClient::new(server.addresses()[1]).request(
        1,
        "stats detail dump\r\nmn\r\n",
        lines.clone() + "MN\r\n",
    );
    common::UdpClient::new(server.addresses()[1]).request(
        1,
        "stats sizes\r\nmn\r\n",
        "CLIENT_ERROR stats sizes needs a connection\r\nMN\r\n",
    );
    common::UdpClient::new(server.addresses()[1]).request(
        1,
        "stats cachedump 1 0\r\nmn\r\n",
        "CLIENT_ERROR a dump needs a connection\r\nMN\r\n",
    );
    let mut binary = server.connect();
    binary.say(packet(0x10, &[], b"detail dump", &[], 0));
    let mut heard = Vec::new();
    loop {
        let answer = binary.hear_packet();
        if answer.key.is_empty() {
            break;
        }
        assert_eq!(answer.key, b"detailed");
        heard.extend_from_slice(&answer.value);
    }
    assert!(heard == lines.as_bytes(), "{} bytes instead of {}", heard.len(), lines.len());
    c.say("stats cachedump 1 1200\r\n");
    assert_eq!(c.hear_until("END\r\n").lines().filter(|line| line.starts_with("ITEM ")).count(), 1_200);
    let _others: Vec<_> = (0..150)
        .map(|_| {
            let mut other = server.connect();
            other.request("mn\r\n", "MN\r\n");
            other
        })
        .collect();
    let connections =
        c.stats("conns").iter().filter(|(name, _)| name.ends_with(":secs_since_last_cmd")).count();
    // Those of this test, and the listeners.
    assert!(connections >= 152, "{connections}");
}

#[test]
fn connections_are_listed() {
    let scratch = Scratch::new("conns");
    let path = scratch.path("socket");
    let server = serve(&format!("-p -1 -U -1 -l 127.0.0.1,::1 -s {}", path.display()));
    let mut c = server.connect();
    let mut six = common::connect(server.addresses()[2]);
    // The connection is listed by then.
    six.request("mn\r\n", "MN\r\n");
    let mut watcher = server.connect();
    watcher.request("watch\r\n", "OK\r\n");
    let mut half = server.connect();
    half.say("set a 0 0 100000\r\nx");
    // A value so short that it waits for its end in the input; a value that is dropped; a part of a line.
    let (mut short, mut dropped, mut line) = (server.connect(), server.connect(), server.connect());
    short.say("set a 0 0 6\r\n");
    dropped.say("set a x 0 6\r\n");
    line.say("get a");
    common::wait_until("the requests have begun", || {
        let states: Vec<_> = c.stats("conns").into_iter().map(|(_, value)| value).collect();
        let count = |state: &str| states.iter().filter(|value| *value == state).count();
        // The datagram sockets read, too.
        (count("conn_nread"), count("conn_swallow"), count("conn_read")) == (2, 1, 3)
    });
    common::connect_unix(&path).request("mn\r\n", "MN\r\n");
    let mut unix = common::connect_unix(&path);
    unix.request("mn\r\n", "MN\r\n");
    common::wait_until("the closed connection is no longer listed", || c.count("", "curr_connections") == 8);
    let listed = c.stats("conns");
    let mut by_fd: BTreeMap<u32, BTreeMap<String, String>> = BTreeMap::new();
    for (name, value) in listed {
        let (fd, field) = name.split_once(':').expect("a descriptor");
        by_fd.entry(fd.parse().expect("a number")).or_default().insert(field.to_owned(), value);
    }
    assert_eq!(by_fd.len(), 5 + 8);
    let here = server.address();
    let is = |encoding: &str, state: &str, listens: bool| {
        let found = by_fd.values().filter(|fields| {
            fields["addr"].starts_with(encoding)
                && fields["state"] == state
                && fields.contains_key("listen_addr") != listens
                && fields["secs_since_last_cmd"].parse::<u32>().is_ok()
        });
        found.count()
    };
    assert_eq!(is(&format!("tcp:{here}"), "conn_listening", true), 1);
    assert_eq!(is("tcp6:[::1]:", "conn_listening", true), 1);
    assert_eq!((is("udp:127.0.0.1:", "conn_read", true), is("udp6:[::1]:", "conn_read", true)), (1, 1));
    assert_eq!(by_fd.values().filter(|fields| fields.get("UDP").is_some_and(|udp| udp == "UDP")).count(), 2);
    assert_eq!(is(&format!("unix:{}", path.display()), "conn_listening", true), 1);
    assert_eq!(
        (is("tcp:127.0.0.1:", "conn_watch", false), is("tcp:127.0.0.1:", "conn_nread", false)),
        (1, 2)
    );
    assert_eq!((is("tcp6:[::1]:", "conn_waiting", false), is("unix:/", "conn_waiting", false)), (1, 1));
    let ours = c.stream.local_addr().expect("connected");
    let own = by_fd
        .values()
        .find(|fields| fields["addr"] == format!("tcp:{ours}"))
        .expect("this connection is listed");
    assert_eq!(own["listen_addr"], format!("tcp:{here}"));
    assert_eq!(own["state"], "conn_parse_cmd");
}

#[test]
fn stats_detail_counts_by_prefix() {
    let server = serve("");
    let mut c = server.connect();
    c.request("set p:1 0 0 1\r\nx\r\nstats detail dump\r\nstats detail on\r\n", "STORED\r\nEND\r\nOK\r\n");
    assert_eq!(c.stat("settings", "detail_enabled"), "yes");
    c.request(
        "get p:1 p:2 q:1\r\nset q:1 0 0 1\r\nx\r\ndelete p:1\r\n",
        "VALUE p:1 0 1\r\nx\r\nEND\r\nSTORED\r\nDELETED\r\n",
    );
    c.request(
        "stats detail dump\r\nstats detail off\r\nget p:1\r\nstats detail nonsense\r\n",
        "PREFIX p get 2 hit 1 set 0 del 1\r\nPREFIX q get 1 hit 0 set 1 del 0\r\nEND\r\nOK\r\nEND\r\n\
         CLIENT_ERROR usage: stats detail on|off|dump\r\n",
    );
}

#[test]
fn stats_reset_starts_from_zero() {
    let server = serve("");
    let mut c = server.connect();
    c.request(
        "set a 0 0 1\r\nx\r\nget a none\r\nstats reset\r\n",
        "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\nRESET\r\n",
    );
    for name in
        ["cmd_get", "cmd_set", "get_hits", "get_misses", "total_items", "evictions", "total_connections"]
    {
        assert_eq!(c.count("", name), 0, "{name}");
    }
    assert_eq!((c.count("", "curr_items"), c.count("", "curr_connections")), (1, 1), "gauges are not reset");
    assert!(c.count("", "bytes") > 0);
    c.request("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    assert_eq!(c.count("", "get_hits"), 1);
}

#[test]
fn fabcache_statistics_are_separate() {
    let server = serve("-t 2 --eviction lru");
    let mut c = server.connect();
    c.request("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    let own = c.stats("fabcache");
    all_numbers(&own, &["version", "eviction", "region", "region_start"]);
    let own: BTreeMap<_, _> = own.into_iter().collect();
    assert_eq!((own["version"].as_str(), own["items"].as_str()), (env!("CARGO_PKG_VERSION"), "1"));
    assert_eq!((own["eviction"].as_str(), own["small_queue_share_permille"].as_str()), ("lru", "0"));
    assert_eq!(own["region"], "private");
    assert_eq!((own["region_start"].as_str(), own["region_incarnation"].as_str()), ("new", "1"));
    // Without a small queue, and of one key in 16.
    for i in 0..500 {
        c.request(format!("set k{i} 0 0 1\r\nx\r\n"), "STORED\r\n");
        c.request(format!("get k{i}\r\n"), format!("VALUE k{i} 0 1\r\nx\r\nEND\r\n"));
    }
    let main_hits = c.count("fabcache", "main_queue_hits");
    assert!((5..100).contains(&main_hits) && c.count("fabcache", "small_queue_hits") == 0, "{main_hits}");
    let workers =
        own.iter().filter(|(name, _)| name.starts_with("worker:") && name.ends_with(":connections"));
    assert_eq!(workers.map(|(_, load)| load.parse::<u32>().expect("a number")).sum::<u32>(), 1);
}

#[test]
fn stats_time_is_the_hosts() {
    let server = serve("");
    let mut c = server.connect();
    let now =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    let before = now();
    let time = c.count("", "time");
    assert!((before - 2..=now() + 2).contains(&time), "{time} {before}");
    assert!(c.count("", "uptime") >= 1);
}
