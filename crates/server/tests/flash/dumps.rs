//! Lists of keys, of which some are in memory and some on flash.

use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::common::{Client, connect};
use crate::tier::{Tier, letters};

const ITEMS: usize = 1000;
const DUMPS: usize = 8;

/// The length of an item's value: of one page or two, or of more pages.
fn value_len(n: usize) -> usize {
    if n.is_multiple_of(100) { 20_000 } else { 300 + n }
}

/// An item's time to live: half of the items have none.
fn ttl(n: usize) -> u64 {
    if n.is_multiple_of(2) { 0 } else { 1000 + n as u64 }
}

fn value(n: usize) -> String {
    String::from_utf8(letters(n, value_len(n))).expect("letters")
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// A server with items in memory and on flash, a client, and when the items were stored.
fn halves(flags: &str) -> Option<(Tier, Client<TcpStream>, u64)> {
    let tier = Tier::new(flags)?;
    let mut c = tier.server.connect();
    let began = now();
    let store = |c: &mut Client<TcpStream>, numbers: std::ops::Range<usize>| {
        for n in numbers {
            c.request(
                format!("set key-{n} {n} {} {}\r\n{}\r\n", ttl(n), value_len(n), value(n)),
                "STORED\r\n",
            );
        }
    };
    store(&mut c, 0..ITEMS / 2);
    c.fill();
    store(&mut c, ITEMS / 2..ITEMS);
    c.settle();
    Some((tier, c, began))
}

/// Lets other clients write, and read the listed items, until the work is done.
fn beside_others<T>(tier: &Tier, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    let address = tier.server.address();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut c, mut n) = (connect(address), 0);
            // More would push the listed items off flash.
            while !is_over.load(Ordering::Relaxed) && n < 30_000 {
                n += 1;
                c.request(format!("set other-{n} 0 0 2000\r\n{}\r\n", "o".repeat(2000)), "STORED\r\n");
            }
        });
        scope.spawn(|| {
            let (mut c, mut n) = (connect(address), 0);
            while !is_over.load(Ordering::Relaxed) {
                // Two reads bring an item to memory.
                n = (n + 7) % ITEMS;
                c.say(format!("get key-{n}\r\nmn\r\nget key-{n}\r\nmn\r\n"));
                c.hear_until("MN\r\n");
                c.hear_until("MN\r\n");
            }
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

/// Returns the numbers of the items that are there; they were there before, too.
fn survivors(c: &mut Client<TcpStream>) -> Vec<usize> {
    let is_there = |n: &usize| {
        c.say(format!("mg key-{n}\r\n"));
        c.hear_until("\r\n") == "HD\r\n"
    };
    let found: Vec<usize> = (0..ITEMS).filter(is_there).collect();
    assert!(found.len() > ITEMS * 9 / 10, "{} are left", found.len());
    found
}

/// Returns the lines of the items by their numbers. No key is listed twice.
fn by_number<'l>(lines: impl Iterator<Item = &'l str>, prefix: &str, end: &str) -> HashMap<usize, &'l str> {
    let mut listed = HashMap::new();
    for line in lines {
        let Some(rest) = line.strip_prefix(prefix) else { continue };
        let name = rest.split(end).next().expect("a word");
        let n = name.parse().unwrap_or_else(|_| panic!("{line:?}"));
        assert!(listed.insert(n, rest).is_none(), "{line:?} is listed twice");
    }
    listed
}

/// Checks the fields after the key of a line of metadump.
fn check_fields(n: usize, line: &str, began: u64) {
    let fields: HashMap<&str, &str> =
        line.split(' ').skip(1).map(|word| word.split_once('=').expect(line)).collect();
    let number = |name: &str| fields[name].parse::<u64>().expect(line);
    match ttl(n) {
        0 => assert_eq!(fields["exp"], "-1", "{line}"),
        ttl => assert!((began + ttl - 1..=now() + ttl).contains(&number("exp")), "{line}"),
    }
    // The last access is known to a few seconds.
    assert!((began - 10..=now() + 1).contains(&number("la")), "{line}");
    assert!(number("cas") > 0 && ["yes", "no"].contains(&fields["fetch"]), "{line}");
    assert_eq!((number("cls"), number("flags")), (1, n as u64), "{line}");
    let bytes = value_len(n) as u64;
    // Chunks of a long value have headers.
    assert!((bytes..bytes + 200 + bytes / 20).contains(&number("size")), "{line}");
}

#[test]
fn metadump_lists_each_key_once() {
    let Some((tier, mut c, began)) = halves("-t 3") else { return };
    let reads = c.flash_reads();
    let dumps: Vec<String> = beside_others(&tier, || {
        let dump = |_| {
            c.say("lru_crawler metadump all\r\n");
            c.hear_until("\nEND\r\n")
        };
        (0..DUMPS).map(dump).collect()
    });
    assert!(c.flash_reads() > reads + ITEMS as u64, "items on flash were read");
    let survivors = survivors(&mut c);
    for dump in dumps {
        let lines = dump.strip_prefix("OK\r\n").expect("it begins").lines();
        let listed = by_number(lines, "key=key-", " ");
        for n in &survivors {
            let line = listed.get(n).unwrap_or_else(|| panic!("key-{n} is not listed"));
            check_fields(*n, line, began);
        }
    }
    tier.server.stop();
}

#[test]
fn mgdump_lists_each_key_once() {
    let Some((tier, mut c, _)) = halves("-t 3") else { return };
    let dumps: Vec<String> = beside_others(&tier, || {
        let dump = |_| {
            c.say("lru_crawler mgdump all\r\n");
            c.hear_until("\nEN\r\n")
        };
        (0..DUMPS).map(dump).collect()
    });
    let survivors = survivors(&mut c);
    for dump in dumps {
        let listed = by_number(dump.lines(), "mg key-", " ");
        survivors.iter().for_each(|n| assert!(listed.contains_key(n), "key-{n} is not listed"));
    }
    tier.server.stop();
}

#[test]
fn cachedump_lists_items_on_flash() {
    let Some((tier, mut c, began)) = halves("-t 1") else { return };
    let survivors = survivors(&mut c);
    c.say("stats cachedump 1 0\r\n");
    let dump = c.hear_until("\nEND\r\n");
    let listed = by_number(dump.lines(), "ITEM key-", " ");
    for n in survivors {
        let line = listed.get(&n).unwrap_or_else(|| panic!("key-{n} is not listed"));
        let (len, expiry) = line.split_once(" b; ").expect(line);
        assert_eq!(len, format!("{n} [{}", value_len(n)));
        let second: u64 = expiry.strip_suffix(" s]").and_then(|second| second.parse().ok()).expect(line);
        assert!(if ttl(n) == 0 { second == 0 } else { second >= began + ttl(n) - 1 }, "{line}");
    }
    for limit in [1, 10, 300] {
        c.say(format!("stats cachedump 1 {limit}\r\nmn\r\n"));
        assert_eq!(c.hear_until_noop().matches("ITEM ").count(), limit);
    }
    tier.server.stop();
}
