//! Watchers of a server with items on flash: one line for each lookup and change, as for an item in memory.

use std::io::Read;
use std::net::TcpStream;
use std::thread::JoinHandle;

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

/// Collects the lines about items `key-N`, without times and numbers, until the server stops.
fn watched(tier: &Tier) -> JoinHandle<Vec<String>> {
    let mut watcher = watcher(tier, "evictions");
    std::thread::spawn(move || {
        let mut lines = String::new();
        watcher.stream.read_to_string(&mut lines).expect("lines until the end");
        assert!(!lines.contains("[skipped"), "the watcher is fast enough");
        let ours = lines.lines().filter(|line| line.contains(" key=key-"));
        ours.map(|line| line.split(' ').skip(2).collect::<Vec<_>>().join(" ")).collect()
    })
}

/// Returns whether this is the line of an item of [`store`] that leaves memory: its first and last words, and `fetch=…`.
fn is_line(line: &str, kind: &str, n: usize, fetch: &str, last: &str) -> bool {
    let (before, after) =
        (format!("type={kind} key=key-{n} fetch={fetch} ttl=-1 la="), format!(" clsid=1 {last}"));
    let idle = line.strip_prefix(&before).and_then(|rest| rest.strip_suffix(&after));
    idle.is_some_and(|idle| idle.parse::<u32>().is_ok())
}

#[test]
fn items_that_go_to_flash_are_seen_each_time() {
    let Some(tier) = Tier::new("-t 1 --eviction lru") else { return };
    let lines = watched(&tier);
    let mut c = tier.server.connect();
    store(&mut c, "key");
    // The second read brings it to memory.
    for n in (0..ITEMS).flat_map(|n| [n, n]) {
        c.say(format!("get key-{n}\r\nmn\r\n"));
        c.hear_until_noop();
    }
    c.fill_with("more", 20 << 20);
    c.settle();
    assert!(c.count("fabcache", "flash_items_demoted_unwritten") > 0);
    tier.server.stop();
    let lines = lines.join().expect("no panic");
    let count = |fetch: &str| {
        let is_seen = |n: &usize| {
            let about: Vec<_> =
                lines.iter().filter(|line| line.contains(&format!(" key=key-{n} "))).collect();
            assert!(about.len() <= 2, "{about:?}");
            about.iter().any(|line| is_line(line, "extwrite", *n, fetch, "bucket=0"))
        };
        (0..ITEMS).filter(is_seen).count()
    };
    assert!(count("no") > ITEMS / 2, "{lines:?}");
    assert!(count("yes") > ITEMS / 2, "{lines:?}");
}

#[test]
fn items_that_flash_does_not_take_are_seen_as_evictions() {
    let Some(tier) = Tier::new("-t 1 --flash-item-size 2000") else { return };
    let lines = watched(&tier);
    let mut c = tier.server.connect();
    store(&mut c, "key");
    assert!(c.count("fabcache", "flash_items_demoted") > 1000);
    tier.server.stop();
    let lines = lines.join().expect("no panic");
    let size = format!("size={LEN}");
    let is_seen = |n: &usize| lines.iter().any(|line| is_line(line, "eviction", *n, "no", &size));
    let seen = (0..ITEMS).filter(is_seen).count();
    assert!(seen > ITEMS / 2, "{seen} of {ITEMS} are evicted");
    assert_eq!(lines.len(), seen, "{lines:?}");
}
