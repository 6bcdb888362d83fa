//! Watchers of a server with items on flash: one line for each lookup and change, as for an item in memory.

use std::net::TcpStream;

use crate::common::Client;
use crate::tier::{Tier, letters};

const ITEMS: usize = 60;
const LEN: usize = 500;

fn value(n: usize) -> String {
    String::from_utf8(letters(n, LEN)).expect("letters")
}

/// Stores items `PREFIX-N`, and pushes them out of memory.
fn store(c: &mut Client<TcpStream>, prefix: &str) {
    for n in 0..ITEMS {
        c.request(format!("set {prefix}-{n} 0 0 {LEN}\r\n{}\r\n", value(n)), "STORED\r\n");
    }
    c.fill();
    c.settle();
}

fn watcher(tier: &Tier, topics: &str) -> Client<TcpStream> {
    let mut watcher = tier.server.connect();
    watcher.request(format!("watch {topics}\r\n"), "OK\r\n");
    watcher
}

/// Returns the lines up to one about the key `last`, without times, numbers and descriptors.
fn lines_until(watcher: &mut Client<TcpStream>, last: &str) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        let line = watcher.hear_until("\n");
        let words = line.trim_end().split(' ').skip(2).filter(|word| !word.starts_with("cfd="));
        let words = words.collect::<Vec<_>>().join(" ");
        if words.contains(&format!(" key={last} ")) {
            return lines;
        }
        lines.push(words);
    }
}

fn found(key: &str, len: usize) -> String {
    format!("type=item_get key={key} status=found clsid=1 size={len}")
}

fn absent(key: &str) -> String {
    format!("type=item_get key={key} status=not_found clsid=0 size=0")
}

fn stored(key: &str, command: &str, len: usize) -> String {
    format!("type=item_store key={key} status=stored cmd={command} ttl=0 clsid=1 size={len}")
}

#[test]
fn fetchers_see_each_lookup_once() {
    let Some(tier) = Tier::new("-t 2") else { return };
    let mut c = tier.server.connect();
    store(&mut c, "key");
    let reads = c.flash_reads();
    let mut w = watcher(&tier, "fetchers");
    let requests = [
        "get {k}\r\n",
        "gets {k}\r\n",
        "mg {k} v\r\n",
        "mg {k} s\r\n",
        "mg {k} T0 v\r\n",
        "touch {k} 0\r\n",
        "gat 0 {k}\r\n",
        "me {k}\r\n",
        "incr {k} 1\r\n",
        "append {k} 0 0 1\r\n!\r\n",
        "add {k} 0 0 1\r\n!\r\n",
        "delete {k}\r\n",
    ];
    let mut expected = Vec::new();
    for n in 0..ITEMS {
        let key = format!("key-{n}");
        c.say(requests[n % requests.len()].replace("{k}", &key) + "mn\r\n");
        let answer = c.hear_until_noop();
        let is_lost = ["END\r\n", "EN\r\n", "NOT_", "NF\r\n"].iter().any(|miss| answer.starts_with(miss));
        let is_add = requests[n % requests.len()].starts_with("add");
        expected.push(if is_lost != is_add { absent(&key) } else { found(&key, LEN) });
    }
    c.request("get last\r\n", "END\r\n");
    assert_eq!(lines_until(&mut w, "last"), expected);
    assert!(c.flash_reads() >= reads + ITEMS as u64 / 2, "items on flash were read");
    tier.server.stop();
}

#[test]
fn mutations_and_deletions_are_seen_once() {
    let Some(tier) = Tier::new("-t 2") else { return };
    let mut c = tier.server.connect();
    store(&mut c, "key");
    let reads = c.flash_reads();
    let mut w = watcher(&tier, "mutations deletions");
    let mut expected = Vec::new();
    for n in 0..ITEMS {
        let key = format!("key-{n}");
        let (request, command, len) = match n % 4 {
            0 => (format!("append {key} 0 0 2\r\nxy\r\n"), "append", LEN + 2),
            1 => (format!("replace {key} 0 0 2\r\nxy\r\n"), "replace", 2),
            2 => (format!("set {key} 0 0 3\r\nnew\r\n"), "set", 3),
            _ => (format!("delete {key}\r\n"), "delete", LEN),
        };
        c.say(request);
        let answer = c.hear_until("\r\n");
        match answer.as_str() {
            "STORED\r\n" => expected.push(stored(&key, command, len)),
            "DELETED\r\n" => expected.push(format!("type=deleted key={key} cmd=delete clsid=1 size={len}")),
            "NOT_STORED\r\n" => {
                let asked = "xy".len();
                expected.push(stored(&key, command, asked).replace("=stored", "=not_stored"));
            }
            answer => assert_eq!(answer, "NOT_FOUND\r\n"),
        }
    }
    c.request("set last 0 0 1\r\nx\r\n", "STORED\r\n");
    assert_eq!(lines_until(&mut w, "last"), expected);
    assert!(c.flash_reads() > reads, "items on flash were read");
    tier.server.stop();
}

/// An item that goes to flash is no eviction; with flash that takes no short items, each item that leaves is one.
#[test]
fn evictions_are_items_that_flash_did_not_take() {
    for (flags, are_evicted) in [("-t 1", false), ("-t 1 --flash-item-size 2000", true)] {
        let Some(tier) = Tier::new(flags) else { return };
        let mut w = watcher(&tier, "evictions");
        let mut c = tier.server.connect();
        store(&mut c, "key");
        let evictions = c.count("", "evictions");
        assert!(c.count("fabcache", "flash_items_demoted") > 1000);
        // The lines are sent before the counter shows them.
        let lines: Vec<String> = (0..evictions).map(|_| w.hear_until("\n")).collect();
        let ours = lines.iter().filter(|line| line.contains("type=eviction key=key-")).count();
        if are_evicted {
            assert!(ours > ITEMS / 2, "{ours} of {ITEMS} are evicted");
            let line = lines.iter().find(|line| line.contains(" key=key-")).expect("there are");
            for field in [" fetch=no", " ttl=", " la=", " clsid=1", &format!(" size={LEN}")] {
                assert!(line.contains(field), "{line}");
            }
        } else {
            let refused = c.count("fabcache", "flash_items_refused");
            assert!(evictions <= refused, "{evictions} evictions, and flash refused {refused}");
        }
        tier.server.stop();
    }
}
