//! Classic text: every command with every reply, over a real connection.

mod common;

use common::{Client, serve, wait_until};
use fabcache_testbed::bytes::pattern;

#[test]
fn storage_and_retrieval_commands_work() {
    let server = serve("");
    let mut c = server.connect();
    c.request("get a\r\n", "END\r\n");
    c.request("set a 7 0 5\r\nhello\r\n", "STORED\r\n");
    c.request("get a\r\n", "VALUE a 7 5\r\nhello\r\nEND\r\n");
    c.request("gets a b a\r\n", "VALUE a 7 5 1\r\nhello\r\nVALUE a 7 5 1\r\nhello\r\nEND\r\n");
    c.request("add a 0 0 1\r\nx\r\n", "NOT_STORED\r\n");
    c.request("add b 0 0 0\r\n\r\n", "STORED\r\n");
    c.request("get b\r\n", "VALUE b 0 0\r\n\r\nEND\r\n");
    c.request("replace c 0 0 1\r\nx\r\n", "NOT_STORED\r\n");
    c.request("replace b 1 0 1\r\nx\r\n", "STORED\r\n");
    c.request("append b 9 9 2\r\nyz\r\n", "STORED\r\n");
    c.request("prepend b 9 9 1\r\nw\r\n", "STORED\r\n");
    c.request("get b\r\n", "VALUE b 1 4\r\nwxyz\r\nEND\r\n");
    c.request("append c 0 0 1\r\nx\r\n", "NOT_STORED\r\n");
    c.request("prepend c 0 0 1\r\nx\r\n", "NOT_STORED\r\n");
    c.request("cas c 0 0 1 1\r\nx\r\n", "NOT_FOUND\r\n");
    c.request("cas a 0 0 1 99\r\nx\r\n", "EXISTS\r\n");
    c.request("cas a 0 0 1 1\r\nx\r\n", "STORED\r\n");
    c.request("delete a\r\ndelete a\r\ndelete b 0\r\n", "DELETED\r\nNOT_FOUND\r\nDELETED\r\n");
    c.request(
        "set n 0 0 2\r\n10\r\nincr n 5\r\ndecr n 6\r\nget n\r\n",
        "STORED\r\n15\r\n9\r\nVALUE n 0 2\r\n9 \r\nEND\r\n",
    );
    c.request(
        "decr n 100\r\nincr n 18446744073709551615\r\nincr n 1\r\n",
        "0\r\n18446744073709551615\r\n0\r\n",
    );
    c.request("incr missing 1\r\ndecr missing 1\r\n", "NOT_FOUND\r\nNOT_FOUND\r\n");
    c.request("touch n 100\r\ntouch missing 1\r\n", "TOUCHED\r\nNOT_FOUND\r\n");
    c.request("gat 100 n missing\r\n", "VALUE n 0 20\r\n0                   \r\nEND\r\n");
    c.request(
        "set q 0 0 1 noreply\r\nx\r\nappend q 0 0 1 noreply\r\ny\r\nget q\r\n",
        "VALUE q 0 2\r\nxy\r\nEND\r\n",
    );
    c.request("version\r\n", "VERSION 1.6.45\r\n");
    c.request("verbosity 1\r\nflush_all\r\nget q\r\n", "OK\r\nOK\r\nEND\r\n");
    c.say("quit\r\n");
    c.hear_end();
}

#[test]
fn expiry_is_to_the_second() {
    let server = serve("");
    let mut c = server.connect();
    c.request("set gone 0 -1 1\r\nx\r\nget gone\r\n", "STORED\r\nEND\r\n");
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    c.request(format!("set past 0 {} 1\r\nx\r\nget past\r\n", now - 10), "STORED\r\nEND\r\n");
    c.request(
        format!("set future 0 {} 1\r\nx\r\nget future\r\n", now + 105),
        "STORED\r\nVALUE future 0 1\r\nx\r\nEND\r\n",
    );
    c.request("set soon 0 1 1\r\nx\r\nset later 0 4 1\r\nx\r\n", "STORED\r\nSTORED\r\n");
    c.ask_with_seconds("mg later t\r\n", 4, "HD t#\r\n");
    c.ask_with_seconds("mg future t\r\n", 105, "HD t#\r\n");
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    c.request("get soon later\r\n", "VALUE later 0 1\r\nx\r\nEND\r\n");
    c.request("add soon 0 0 1\r\ny\r\nget soon\r\n", "STORED\r\nVALUE soon 0 1\r\ny\r\nEND\r\n");
    c.request("touch later 0\r\n", "TOUCHED\r\n");
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    c.request("get later\r\n", "VALUE later 0 1\r\nx\r\nEND\r\n");
    assert_ne!(c.stat("", "get_expired"), "0");
}

#[test]
fn values_of_every_size_expire_by_touch() {
    for options in ["-I 4m", "-I 4m -C"] {
        let server = serve(options);
        let mut c = server.connect();
        for len in [0, 1, 1_000, 20_000, 300_000, 3 << 20] {
            let value = "x".repeat(len);
            c.request(format!("set k 7 0 {len}\r\n{value}\r\n"), "STORED\r\n");
            c.request(
                "gat -1 k\r\ngat -1 k\r\nget k\r\n",
                format!("VALUE k 7 {len}\r\n{value}\r\nEND\r\nEND\r\nEND\r\n"),
            );
        }
    }
}

#[test]
fn delayed_flushes_replace_each_other() {
    let server = serve("");
    let mut c = server.connect();
    c.request("set a 0 0 1\r\nx\r\nflush_all 2\r\nget a\r\n", "STORED\r\nOK\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    c.request("get a\r\n", "END\r\n");
    c.request("set a 0 0 1\r\nx\r\nflush_all 1\r\nflush_all 100\r\n", "STORED\r\nOK\r\nOK\r\n");
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    c.request("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    c.request(
        "flush_all 0\r\nget a\r\nflush_all noreply\r\nflush_all 0 noreply\r\nmn\r\n",
        "OK\r\nEND\r\nMN\r\n",
    );
    c.request("flush_all x\r\n", "CLIENT_ERROR invalid exptime argument\r\n");
    // A past time flushes now; a time before the server's start is ignored.
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
    c.request(format!("set a 0 0 1\r\nx\r\nflush_all {}\r\nget a\r\n", now - 1), "STORED\r\nOK\r\nEND\r\n");
    let before = format!("flush_all {}\r\nflush_all 1000000000\r\nget a\r\n", now - 100);
    c.request(format!("set a 0 0 1\r\nx\r\n{before}"), "STORED\r\nOK\r\nOK\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    c.request("flush_all 1\r\nflush_all 1000000000\r\n", "OK\r\nOK\r\n");
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    c.request("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    for _ in 0..600 {
        c.request("set a 0 0 1\r\nx\r\nflush_all\r\nget a\r\n", "STORED\r\nOK\r\nEND\r\n");
    }
}

#[test]
fn errors_match_memcached() {
    let server = serve("");
    let mut c = server.connect();
    let long = "k".repeat(251);
    for (sent, answer) in [
        ("nonsense\r\n", "ERROR\r\n"),
        ("GET a\r\n", "ERROR\r\n"),
        ("get\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("set a 0 0\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("set a x 0 1\r\nx\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("set a -1 0 1\r\nx\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("set a 0 x 1\r\nx\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("cas a 0 0 1 x\r\nx\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("set a 0 0 -1\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("set a 0 0 2147483648\r\n", "CLIENT_ERROR bad command line format\r\n"),
        (&format!("get {long}\r\n"), "CLIENT_ERROR bad command line format\r\n"),
        (&format!("set {long} 0 0 1\r\nx\r\n"), "CLIENT_ERROR bad command line format\r\n"),
        (&format!("get a {long} b\r\n"), "CLIENT_ERROR bad command line format\r\n"),
        ("set a 0 0 1\r\nxyz12\r\n", "CLIENT_ERROR bad data chunk\r\nERROR\r\n"),
        ("x\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("set a 0 0 1\r\nx\r\nincr a x\r\n", "STORED\r\nCLIENT_ERROR invalid numeric delta argument\r\n"),
        ("incr a 1\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
        ("touch a x\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
        ("gat x a\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
        ("delete a b c d e\r\n", "DELETED\r\n"),
        ("stats nonsense\r\n", "ERROR\r\n"),
        ("stats detail\r\n", "CLIENT_ERROR usage: stats detail on|off|dump\r\n"),
        ("stats cachedump\r\n", "CLIENT_ERROR bad command line\r\n"),
        ("stats cachedump 64 0\r\n", "CLIENT_ERROR Illegal slab id\r\n"),
        ("slabs reassign 1 1\r\n", "SAME src and dst class are identical\r\n"),
        ("slabs reassign 1 99\r\n", "BADCLASS invalid src or dst class id\r\n"),
        ("slabs automove 1\r\nslabs automove 9\r\n", "OK\r\nERROR\r\n"),
        ("slabs automove window 1\r\n", "CLIENT_ERROR automove window too low or too high\r\n"),
        ("lru_crawler sleep 9999999\r\n", "CLIENT_ERROR sleep must be one second or less\r\n"),
        ("lru_crawler crawl 99\r\n", "BADCLASS invalid class id\r\n"),
        ("lru_crawler crawl 5\r\n", "NOTSTARTED no items to crawl\r\n"),
        ("lru_crawler crawl all\r\nlru mode flat\r\n", "OK\r\nOK\r\n"),
        ("lru_crawler disable\r\n", "OK\r\n"),
        ("lru_crawler metadump all\r\n", "CLIENT_ERROR lru crawler disabled\r\n"),
        ("cache_memlimit 4\r\n", "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n"),
        ("cache_memlimit 2000000000\r\n", "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n"),
        ("cache_memlimit 1000\r\n", "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n"),
        ("shutdown\r\n", "SERVER_ERROR: shutdown not enabled\r\n"),
        ("extstore item_size 1\r\nconfig get cluster\r\n", "OK\r\nERROR\r\n"),
        ("refresh_certs\r\n", "Error TLS not enabled\r\n"),
        ("watch nonsense\r\n", "ERROR\r\n"),
        ("mn\r\n", "MN\r\n"),
    ] {
        c.request(sent, answer);
    }
}

#[test]
fn values_of_every_size_round_trip() {
    let server = serve("-m 64 -I 16m");
    let mut c = server.connect();
    for len in [0usize, 1, 100, 16_383, 16_384, 16_385, 65_536, 131_072, 131_073, 1 << 20, (16 << 20) - 400] {
        let value = pattern(len, len);
        c.say(format!("set v 3 0 {len}\r\n"));
        c.say(&value);
        c.request("\r\n", "STORED\r\n");
        c.say("get v\r\nget v\r\n");
        for _ in 0..2 {
            c.hear(format!("VALUE v 3 {len}\r\n"));
            c.hear(&value);
            c.hear("\r\nEND\r\n");
        }
        c.request("append v 0 0 3\r\nabc\r\n", "STORED\r\n");
        c.say("get v\r\n");
        c.hear(format!("VALUE v 3 {}\r\n", len + 3));
        c.hear(&value);
        c.hear("abc\r\nEND\r\n");
    }
    assert_eq!(c.stat("fabcache", "segments_pinned"), "0");
}

#[test]
fn too_large_value_is_rejected_and_removes_the_old_one() {
    let server = serve("");
    let mut c = server.connect();
    let large = vec![b'x'; 1 << 20];
    for (command, left) in [
        ("set", "END\r\n"),
        ("add", "VALUE k 0 1\r\n1\r\nEND\r\n"),
        ("append", "VALUE k 0 1\r\n1\r\nEND\r\n"),
    ] {
        c.request("set k 0 0 1\r\n1\r\n", "STORED\r\n");
        c.say(format!("{command} k 0 0 {}\r\n", large.len()));
        c.hear("SERVER_ERROR object too large for cache\r\n");
        c.say(&large);
        c.say("\r\n");
        c.request("get k\r\n", left);
    }
    c.say(format!("set k 0 0 {} noreply\r\n", large.len()));
    c.say(&large);
    c.request("\r\nmn\r\n", "MN\r\n");
    assert_eq!(c.stat("", "store_too_large"), "4");
    c.request("set k 0 0 1000000\r\n", "");
    c.say(vec![b'y'; 1_000_000]);
    c.request("\r\n", "STORED\r\n");
    c.say(format!("append k 0 0 100000\r\n{}\r\n", "z".repeat(100_000)));
    c.hear("SERVER_ERROR out of memory storing object\r\n");
}

#[test]
fn without_eviction_memory_runs_out_and_recovers() {
    let server = serve("-m 8 -M");
    let mut c = server.connect();
    let value = "x".repeat(10_000);
    let mut stored = 0;
    loop {
        c.say(format!("set key{stored} 0 0 10000\r\n{value}\r\n"));
        if c.hear_until("\r\n") != "STORED\r\n" {
            break;
        }
        stored += 1;
        assert!(stored < 2_000);
    }
    assert!(stored > 500, "{stored}");
    c.say(format!("set more 0 0 10000\r\n{value}\r\n"));
    c.hear("SERVER_ERROR out of memory storing object\r\n");
    for i in 0..stored {
        c.say(format!("get key{i}\r\n"));
        c.hear(format!("VALUE key{i} 0 10000\r\n{value}\r\nEND\r\n"));
    }
    // A value no longer than the stored one replaces it, or is refused and leaves it.
    let other = "y".repeat(10_000);
    let mut refused = 0;
    for i in 0..stored {
        c.say(format!("set key{i} 0 0 10000\r\n{other}\r\n"));
        let is_stored = c.hear_until("\r\n") == "STORED\r\n";
        refused += u32::from(!is_stored);
        c.say(format!("get key{i}\r\n"));
        let now = if is_stored { &other } else { &value };
        c.hear(format!("VALUE key{i} 0 10000\r\n{now}\r\nEND\r\n"));
    }
    assert!(refused > 0, "no long value was refused");
    assert_eq!(c.stat("", "evictions"), "0");
    for i in 0..100 {
        c.request(format!("delete key{i}\r\n"), "DELETED\r\n");
    }
    for i in 0..50 {
        c.say(format!("set again{i} 0 0 10000\r\n{value}\r\n"));
        c.hear("STORED\r\n");
    }
    // Increment one key again and again on a full server.
    c.request("set n 0 0 1\r\n0\r\n", "STORED\r\n");
    for i in 1..20_000 {
        c.request("incr n 1\r\n", format!("{i}\r\n"));
    }
}

#[test]
fn without_eviction_keys_with_similar_hashes_are_refused() {
    let server = serve("-m 8 -M");
    let store = &server.server().shared().store;
    let mut keys = (0_u64..).map(|n| format!("k{n}")).filter(|key| store.hash(key.as_bytes()).0 >> 54 == 0);
    let mut c = server.connect();
    let full = "SERVER_ERROR out of memory: too many keys have similar hashes\r\n";
    let refused = keys.find(|key| {
        c.say(format!("set {key} 0 0 1\r\nx\r\n"));
        c.hear_until("\r\n") != "STORED\r\n"
    });
    let refused = refused.expect("the group fills up");
    c.request(format!("ms {refused} 1\r\nx\r\n"), full);
    c.request(format!("ma {refused} N0\r\n"), full);
    let other = (0..).map(|n| format!("other{n}")).find(|key| store.hash(key.as_bytes()).0 >> 63 == 1);
    let other = other.expect("half of all keys");
    c.request(format!("set {other} 0 0 1\r\nx\r\n"), "STORED\r\n");
    assert_eq!(c.stat("", "evictions"), "0");
}

#[test]
fn full_server_allows_touch_and_drops_unreplaceable_items() {
    let server = serve("-m 8 -M");
    let mut c = server.connect();
    c.request("set n 0 100 4\r\n1000\r\n", "STORED\r\n");
    let value = "x".repeat(1_000);
    let mut stored = 0;
    loop {
        c.say(format!("set key{stored} 0 100 1000\r\n{value}\r\n"));
        if c.hear_until("\r\n") != "STORED\r\n" {
            break;
        }
        stored += 1;
    }
    for i in (0..stored).step_by(3) {
        c.request(format!("touch key{i} 200\r\n"), "TOUCHED\r\n");
        c.request(format!("gat 300 key{i}\r\n"), format!("VALUE key{i} 0 1000\r\n{value}\r\nEND\r\n"));
        c.request(format!("mg key{i} T400 t\r\n"), "HD t400\r\n");
        c.request(format!("md key{i} I T500\r\n"), "HD\r\n");
        c.request("incr n 3\r\n", format!("{}\r\n", 1_003 + i));
    }
    c.say(format!("set key0 0 100 1000\r\n{}\r\n", "z".repeat(1_000)));
    c.hear("STORED\r\n");
    // A rejected set removes a shorter old value, which must not pass for the new one; commands that would keep it
    // anyway do not.
    let long = "y".repeat(500_000);
    for (command, reply, left) in [
        ("set key1 0 0 500000\r\n", "SERVER_ERROR out of memory storing object\r\n", "END\r\n"),
        ("ms key2 500000\r\n", "SERVER_ERROR out of memory storing object\r\n", "END\r\n"),
        (
            "replace key3 0 0 500000\r\n",
            "SERVER_ERROR out of memory storing object\r\n",
            "VALUE key3 0 1000\r\n",
        ),
        (
            "append key4 0 0 500000\r\n",
            "SERVER_ERROR out of memory storing object\r\n",
            "VALUE key4 0 1000\r\n",
        ),
    ] {
        c.say(format!("{command}{long}\r\n"));
        c.hear(reply);
        let key = command.split(' ').nth(1).expect("a key");
        c.request(format!("get {key}\r\n"), left);
        if left != "END\r\n" {
            c.hear(format!("{value}\r\nEND\r\n"));
        }
    }
    assert_eq!(c.stat("", "evictions"), "0");
}

#[test]
fn dump_lists_each_key_once() {
    let server = serve("-m 64");
    let mut c = server.connect();
    for i in 0..2_000 {
        c.say(format!("set key{i} {i} 0 3 noreply\r\nabc\r\n"));
    }
    c.request("set odd%key 0 3600 1\r\nx\r\nset gone 0 -1 1\r\nx\r\n", "STORED\r\nSTORED\r\n");
    c.say("lru_crawler metadump all\r\n");
    let dump = c.hear_until("END\r\n");
    assert!(dump.starts_with("OK\r\n"));
    let mut keys: Vec<&str> = dump
        .lines()
        .filter_map(|line| line.strip_prefix("key="))
        .map(|l| l.split(' ').next().unwrap_or(""))
        .collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 2_001);
    let line = dump.lines().find(|line| line.starts_with("key=key7 ")).expect("the key is listed");
    assert!(
        line.contains(" exp=-1 la=") && line.contains(" fetch=no cls=1 size=") && line.ends_with(" flags=7"),
        "{line}"
    );
    assert!(dump.contains("key=odd%25key "));
    c.say("lru_crawler mgdump hash\r\n");
    let dump = c.hear_until("EN\r\n");
    assert_eq!(dump.lines().filter(|line| line.starts_with("mg ")).count(), 2_001);
    c.say("stats cachedump 1 10\r\n");
    let dump = c.hear_until("END\r\n");
    assert_eq!(dump.lines().filter(|line| line.starts_with("ITEM ")).count(), 10);
    c.request("stats cachedump 2 10\r\n", "END\r\n");
    c.request("lru_crawler metadump 2\r\n", "OK\r\nEND\r\n");
    c.say("mn\r\nlru_crawler metadump all\r\n");
    c.hear("MN\r\nERROR cannot pipeline other commands before metadump\r\n");
}

#[test]
fn crawl_continues_after_its_reply() {
    let server = serve("-t 1");
    let mut c = server.connect();
    for i in 0..20_000 {
        c.say(format!("set k{i} 0 {} 0 noreply\r\n\r\n", if i % 10 == 0 { 1 } else { 0 }));
    }
    c.request("mn\r\n", "MN\r\n");
    let crawled = |c: &mut Client<_>| {
        wait_until("the crawl ends", || c.stat("", "lru_crawler_running") == "0");
        ["lru_crawler_starts", "crawler_items_checked", "crawler_reclaimed"].map(|name| c.count("", name))
    };
    // The crawl lasts until the next command, unless the server is delayed between them.
    let mut starts = 0;
    wait_until("a crawl runs when the next is requested", || {
        c.say("lru_crawler crawl all\r\nlru_crawler crawl all\r\nmn\r\n");
        let answer = c.hear_until("MN\r\n");
        let is_busy = answer == "OK\r\nBUSY currently processing crawler request\r\nMN\r\n";
        starts += if is_busy { 1 } else { 2 };
        let [started, checked, expired] = crawled(&mut c);
        assert_eq!(started, starts);
        assert!(checked >= 18_000 && expired <= 2_000, "{checked} {expired}");
        is_busy
    });
    c.request("flush_all\r\n", "OK\r\n");
    wait_until("all expired items are removed", || {
        c.request("lru_crawler crawl 1\r\n", "OK\r\n");
        crawled(&mut c);
        c.count("", "curr_items") == 0
    });
}

#[test]
fn unattainable_memory_limit_changes_nothing() {
    let server = serve("-m 32 -M -t 1");
    let mut c = server.connect();
    let value = "x".repeat(10_000);
    let mut keys = 0;
    let store = |c: &mut Client<_>, key: u64| {
        c.say(format!("set key{key} 0 0 10000\r\n{value}\r\n"));
        c.hear_until("\r\n") == "STORED\r\n"
    };
    while store(&mut c, keys) {
        keys += 1;
    }
    let limits = |c: &mut Client<_>| {
        let names = ["memory_limit_bytes", "segments", "items"];
        names.map(|name| c.count("fabcache", name))
    };
    let before = limits(&mut c);
    c.request("cache_memlimit 16\r\n", "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n");
    assert_eq!(limits(&mut c), before);
    assert_eq!(c.count("", "limit_maxbytes"), 32 << 20);
    for key in 0..keys / 2 {
        c.request(format!("delete key{key}\r\n"), "DELETED\r\n");
    }
    let refilled = (0..keys / 2).filter(|key| store(&mut c, *key)).count() as u64;
    assert!(refilled > keys * 4 / 10, "{refilled} of {}", keys / 2);
}

#[test]
fn prefixes_are_counted() {
    let server = serve("-D /");
    let mut c = server.connect();
    c.request(
        "set a/1 0 0 1\r\nx\r\nget a/1 a/2 b/1 none\r\ndelete a/1\r\n",
        "STORED\r\nVALUE a/1 0 1\r\nx\r\nEND\r\nDELETED\r\n",
    );
    c.request(
        "stats detail dump\r\n",
        "PREFIX a get 2 hit 1 set 1 del 1\r\nPREFIX b get 1 hit 0 set 0 del 0\r\nEND\r\n",
    );
    c.request(
        "stats detail off\r\nget a/1\r\nstats reset\r\nstats detail dump\r\n",
        "OK\r\nEND\r\nRESET\r\nEND\r\n",
    );
}

#[test]
fn disabled_commands_are_rejected() {
    let server = serve("-F -X -W -o no_lru_crawler");
    let mut c = server.connect();
    c.request("flush_all\r\n", "CLIENT_ERROR flush_all not allowed\r\n");
    c.request("stats cachedump 1 1\r\n", "CLIENT_ERROR stats cachedump not allowed\r\n");
    c.request("stats detail on\r\n", "CLIENT_ERROR stats detail not allowed\r\n");
    c.request("lru_crawler metadump all\r\n", "ERROR metadump not allowed\r\n");
    c.request("lru_crawler mgdump all\r\n", "ERROR key dump not allowed\r\n");
    c.request("watch\r\n", "CLIENT_ERROR watch commands not allowed\r\n");
    c.request("lru_crawler crawl all\r\n", "CLIENT_ERROR lru crawler disabled\r\n");
}

#[test]
fn without_cas_every_value_has_cas_0() {
    let server = serve("-C");
    let mut c = server.connect();
    c.request("set a 0 0 1\r\nx\r\ngets a\r\n", "STORED\r\nVALUE a 0 1 0\r\nx\r\nEND\r\n");
}

#[test]
fn memory_limit_can_be_changed() {
    let server = serve("-m 32 --memory-max 64");
    let mut c = server.connect();
    let value = "x".repeat(10_000);
    let fill = |c: &mut common::Client<std::net::TcpStream>| {
        for i in 0..10_000 {
            c.say(format!("set key{i} 0 0 10000 noreply\r\n{value}\r\n"));
        }
        c.request("mn\r\n", "MN\r\n");
        c.stat("", "curr_items").parse::<u64>().expect("a number")
    };
    let at_32 = fill(&mut c);
    c.request("cache_memlimit 64\r\n", "OK\r\n");
    assert_eq!(c.stat("", "limit_maxbytes"), (64u64 << 20).to_string());
    let at_64 = fill(&mut c);
    assert!(at_64 > at_32 * 18 / 10, "{at_32} {at_64}");
    c.request("cache_memlimit 16\r\n", "OK\r\n");
    let at_16 = c.stat("", "curr_items").parse::<u64>().expect("a number");
    assert!(at_16 < at_32 * 6 / 10 && at_16 > at_32 / 4, "{at_32} {at_16}");
    let refilled = fill(&mut c);
    assert!(refilled < at_32 * 6 / 10, "{at_32} {refilled}");
}
