//! Commands about the whole server, while items are on flash.

use std::net::TcpStream;
use std::time::Duration;

use crate::common::{Client, wait_until};
use crate::tier::{Tier, letters};

fn value(n: usize) -> String {
    String::from_utf8(letters(n, 600)).expect("letters")
}

fn store(c: &mut Client<TcpStream>, items: usize, exptime: &str) {
    for n in 0..items {
        c.say(format!("set key-{n} 0 {exptime} 600 noreply\r\n{}\r\n", value(n)));
    }
    c.fill();
}

/// Checks that nearly all items are there.
#[track_caller]
fn check_all(c: &mut Client<TcpStream>, items: usize) {
    let there = count(c, items);
    let losses = c.losses() as usize;
    assert!(there + 2 + losses >= items, "{there} of {items} are there, and {losses} were evicted");
}

/// Returns how many items are there.
fn count(c: &mut Client<TcpStream>, items: usize) -> usize {
    let mut found = 0;
    for n in 0..items {
        c.say(format!("get key-{n}\r\nmn\r\n"));
        match c.hear_until_noop().as_str() {
            "END\r\nMN\r\n" => {}
            answer => {
                assert_eq!(answer, format!("VALUE key-{n} 0 600\r\n{}\r\nEND\r\nMN\r\n", value(n)));
                found += 1;
            }
        }
    }
    found
}

#[test]
fn flush_all_empties_flash() {
    let Some(tier) = Tier::new("-t 2") else { return };
    let mut c = tier.server.connect();
    for round in 0..3 {
        store(&mut c, 500, "0");
        assert!(c.count("fabcache", "flash_items") > 500);
        // Behind reads of one's own, and among those of others.
        let mut other = tier.server.connect();
        other.say((0..50).map(|n| format!("get key-{n}\r\n")).collect::<String>());
        c.say("get key-1\r\nflush_all\r\nget key-1\r\nappend key-2 0 0 1\r\n!\r\nadd key-3 0 0 1\r\nx\r\n");
        let value = value(1);
        c.hear(format!("VALUE key-1 0 600\r\n{value}\r\nEND\r\nOK\r\nEND\r\nNOT_STORED\r\nSTORED\r\n"));
        c.request("delete key-3\r\n", "DELETED\r\n");
        assert_eq!(count(&mut c, 500), 0, "round {round}");
        // Their memory and segments are used again.
        store(&mut c, 500, "0");
        check_all(&mut c, 500);
        c.request("flush_all noreply\r\nmn\r\n", "MN\r\n");
        for n in 0..500 {
            c.request(format!("touch key-{n} 0\r\n"), "NOT_FOUND\r\n");
        }
    }
}

#[test]
fn a_delayed_flush_empties_flash_in_time() {
    let Some(tier) = Tier::new("-t 2") else { return };
    let mut c = tier.server.connect();
    store(&mut c, 300, "0");
    c.request("flush_all 3\r\n", "OK\r\n");
    check_all(&mut c, 300);
    wait_until("items are flushed", || count(&mut c, 300) == 0);
    store(&mut c, 300, "0");
    check_all(&mut c, 300);
}

#[test]
fn items_on_flash_expire() {
    let Some(tier) = Tier::new("-t 2") else { return };
    let mut c = tier.server.connect();
    store(&mut c, 300, "8");
    c.fill_with("short", 2 << 20);
    check_all(&mut c, 300);
    std::thread::sleep(Duration::from_secs(9));
    let before = c.flash_reads();
    assert_eq!(count(&mut c, 300), 0);
    for n in 0..300 {
        c.request(
            format!("append key-{n} 0 0 1\r\n!\r\nadd key-{n} 0 -1 1\r\nx\r\nmg key-{n}\r\n"),
            "NOT_STORED\r\nSTORED\r\nEN\r\n",
        );
    }
    assert!(c.flash_reads() > before, "some were on flash");
}

#[test]
fn the_memory_limit_may_change() {
    let Some(tier) = Tier::new("-t 2 --memory-max 64m") else { return };
    let mut c = tier.server.connect();
    store(&mut c, 500, "0");
    for limit in [32, 9, 16, 10] {
        c.request(format!("cache_memlimit {limit}\r\n"), "OK\r\n");
        c.fill_with(&format!("limit-{limit}"), 12 << 20);
        check_all(&mut c, 500);
    }
}

#[test]
fn statistics_do_not_lie() {
    let Some(tier) = Tier::new("-t 2") else { return };
    let mut c = tier.server.connect();
    store(&mut c, 1000, "0");
    c.settle();
    let total = 1000 + (20 << 20) / 4000;
    let (items, losses) = (c.count("", "curr_items"), c.losses());
    assert!((total - 5 - losses..=total).contains(&items), "{items} items, {total} were stored");
    let on_flash = c.count("fabcache", "flash_items");
    assert_eq!(c.count("", "extstore_objects_used"), on_flash);
    assert!(on_flash + 1 < items);
    for of in ["items", "slabs", "sizes", "settings", "extstore", "conns", "fabcache"] {
        c.stats(of);
    }
    for request in [
        "stats cachedump 1 100\r\n",
        "stats cachedump 1 0\r\n",
        "lru_crawler crawl all\r\n",
        "stats detail dump\r\n",
    ] {
        c.say(request);
        c.say("mn\r\n");
        c.hear_until_noop();
    }
    let [hits, misses] = ["get_hits", "get_misses"].map(|name| c.count("", name));
    let gets = count(&mut c, 1000) as u64;
    c.request("get none none\r\n", "END\r\n");
    assert_eq!(c.count("", "get_hits"), hits + gets);
    assert_eq!(c.count("", "get_misses"), misses + 1000 - gets + 2);
    assert!(c.count("", "get_extstore") > 0);
    c.request("stats reset\r\n", "RESET\r\n");
    assert_eq!((c.count("", "get_extstore"), c.count("", "get_hits")), (0, 0));
    let now = c.count("fabcache", "flash_items");
    assert!(now > 1000, "{now}: no counter, but a state");
    // Every key can be deleted, and then nothing is left.
    for n in 0..1000 {
        c.say(format!("delete key-{n}\r\n"));
        c.hear_until("\r\n");
    }
    assert_eq!(count(&mut c, 1000), 0);
    let left = c.count("", "curr_items");
    assert!(left <= items - gets, "{left} of {items}");
}
