//! More is stored than memory holds, as fast as clients can.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fabcache_testbed::random::SplitMix64;

use crate::common::{Client, connect};
use crate::tier::{Tier, letters};

const VALUE_BYTES: usize = 1000;
/// One of so many items may be missing: a new key may replace another's item on flash.
const LOST_DIVISOR: usize = 1000;

fn value(n: usize) -> Vec<u8> {
    letters(n, VALUE_BYTES)
}

/// Stores items of these numbers, and returns which were acknowledged.
fn store_all<S: std::io::Read + std::io::Write>(
    c: &mut Client<S>,
    numbers: impl Iterator<Item = usize>,
) -> Vec<usize> {
    let numbers: Vec<usize> = numbers.collect();
    let mut stored = Vec::new();
    for some in numbers.chunks(50) {
        let mut requests = Vec::new();
        for n in some {
            requests.extend_from_slice(format!("set item-{n} 0 0 {VALUE_BYTES}\r\n").as_bytes());
            requests.extend_from_slice(&value(*n));
            requests.extend_from_slice(b"\r\n");
        }
        c.say(requests);
        for n in some {
            match c.hear_until("\r\n").as_str() {
                "STORED\r\n" => stored.push(*n),
                answer => assert_eq!(answer, "SERVER_ERROR out of memory storing object\r\n"),
            }
        }
    }
    stored
}

/// Reads items, and returns which are missing.
fn missing<S: std::io::Read + std::io::Write>(c: &mut Client<S>, numbers: &[usize]) -> Vec<usize> {
    let mut missing = Vec::new();
    for some in numbers.chunks(100) {
        let names: String = some.iter().map(|n| format!(" item-{n}")).collect();
        c.say(format!("get{names}\r\nmn\r\n"));
        let answer = c.hear_until_noop();
        let mut rest = answer.as_bytes();
        for n in some {
            let item =
                [format!("VALUE item-{n} 0 {VALUE_BYTES}\r\n").as_bytes(), &value(*n), b"\r\n"].concat();
            match rest.strip_prefix(&item[..]) {
                Some(after) => rest = after,
                None => missing.push(*n),
            }
        }
        assert_eq!(rest, b"END\r\nMN\r\n", "a value is wrong");
    }
    missing
}

/// Checks that only a few are missing, unless the device was slow.
fn check_missing(c: &mut Client<TcpStream>, missing: &[usize], items: usize) {
    let refused = c.count("fabcache", "flash_items_refused");
    let is_few = missing.len() <= items / LOST_DIVISOR;
    assert!(is_few || refused > 0, "{} of {items} are missing: {missing:?}", missing.len());
}

/// Checks that none are missing, and none were evicted.
fn check_lost(c: &mut Client<TcpStream>, lost: &[usize]) {
    let evicted = c.count("fabcache", "flash_items_evicted");
    assert!(lost.is_empty() && evicted == 0, "{evicted} were evicted, and missing are {lost:?}");
    assert_eq!(c.count("", "evictions"), 0);
}

#[test]
fn ten_times_the_memory_is_kept() {
    const CLIENTS: usize = 4;
    const ITEMS: usize = 80_000;
    let Some(tier) = Tier::new("-t 4") else { return };
    let is_over = AtomicBool::new(false);
    let mut c = tier.server.connect();
    let address = tier.server.address();
    std::thread::scope(|scope| {
        // An item in memory is answered meanwhile.
        let hot = scope.spawn(|| {
            let mut c = connect(address);
            let (mut most, mut count) = (Duration::ZERO, 0);
            while !is_over.load(Ordering::Relaxed) {
                c.request("set hot 0 0 3\r\nhot\r\n", "STORED\r\n");
                for _ in 0..20 {
                    let began = Instant::now();
                    c.request("get hot\r\n", "VALUE hot 0 3\r\nhot\r\nEND\r\n");
                    (most, count) = (most.max(began.elapsed()), count + 1);
                }
            }
            (most, count)
        });
        let store = |client| {
            move || {
                let numbers = (client..ITEMS).step_by(CLIENTS);
                let expected = numbers.clone().count();
                assert_eq!(store_all(&mut connect(address), numbers).len(), expected, "each is stored");
            }
        };
        let clients: Vec<_> = (0..CLIENTS).map(|client| scope.spawn(store(client))).collect();
        clients.into_iter().for_each(|client| client.join().expect("no panic"));
        is_over.store(true, Ordering::Relaxed);
        let (most, count) = hot.join().expect("no panic");
        assert!(most < Duration::from_secs(2), "a read of memory took {most:?}");
        assert!(count > 100, "{count} reads of memory");
    });
    let missing = missing(&mut c, &(0..ITEMS).collect::<Vec<_>>());
    check_missing(&mut c, &missing, ITEMS);
    assert!(c.count("fabcache", "flash_items") > 50_000);
    tier.server.stop();
}

#[test]
fn without_eviction_nothing_is_lost_and_deletes_make_room() {
    let Some(tier) = Tier::sized("-M -t 2", 65) else { return };
    let mut c = tier.server.connect();
    let mut stored = store_all(&mut c, 0..90_000);
    assert!(stored.len() > 45_000, "{} are stored", stored.len());
    assert!(stored.len() < 80_000, "both are full");
    let is_lost = missing(&mut c, &stored);
    check_lost(&mut c, &is_lost);
    // All segments have deleted items, and some no others.
    let rest = stored.split_off(stored.len() / 2);
    for some in stored.chunks(100) {
        some.iter().for_each(|n| c.say(format!("delete item-{n}\r\n")));
        some.iter().for_each(|_| c.hear("DELETED\r\n"));
    }
    let more = store_all(&mut c, 100_000..110_000);
    assert_eq!(more.len(), 10_000, "writes wait for the room of deleted items");
    let is_lost = [missing(&mut c, &more), missing(&mut c, &rest)].concat();
    check_lost(&mut c, &is_lost);
    for round in 2..6 {
        c.request("flush_all\r\n", "OK\r\n");
        let more = store_all(&mut c, round * 100_000..round * 100_000 + 40_000);
        assert_eq!(more.len(), 40_000, "writes wait for the room of flushed items");
    }
    tier.server.stop();
}

/// Commands that write an item of flash to memory wait for memory, too.
#[test]
fn changes_of_items_on_flash_evict_nothing() {
    let Some(tier) = Tier::new("-t 2") else { return };
    let mut c = tier.server.connect();
    let stored = store_all(&mut c, 0..15_000);
    for command in ["touch item-{n} 0", "gat 0 item-{n}", "append item-{n} 0 0 0\r\n", "mg item-{n} T0 v"] {
        for some in stored.chunks(100) {
            let requests: String =
                some.iter().map(|n| command.replace("{n}", &n.to_string()) + "\r\n").collect();
            c.say(requests + "mn\r\n");
            c.hear_until_noop();
        }
        let missing = missing(&mut c, &stored);
        check_missing(&mut c, &missing, stored.len());
    }
    tier.server.stop();
}

/// Sends requests, and returns the answers to them that are not as expected.
fn refusals<S: std::io::Read + std::io::Write>(
    c: &mut Client<S>,
    requests: impl Iterator<Item = Vec<u8>>,
    expected: &str,
) -> Vec<String> {
    let requests: Vec<_> = requests.collect();
    let mut refusals = Vec::new();
    for some in requests.chunks(50) {
        c.say(some.concat());
        let answers = some.iter().map(|_| c.hear_until("\r\n"));
        refusals.extend(answers.filter(|answer| answer != expected));
    }
    refusals
}

/// Lets four clients at once send the requests of so many numbers, and checks that each gets the expected answer.
fn expect_of_clients(
    address: std::net::SocketAddr,
    count: usize,
    request: impl Fn(usize) -> Vec<u8> + Sync,
    expected: &str,
) {
    const CLIENTS: usize = 4;
    let request = &request;
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let requests = (client..count).step_by(CLIENTS).map(request);
                assert_eq!(refusals(&mut connect(address), requests, expected), [""; 0], "{expected}");
            });
        }
    });
}

#[test]
fn long_values_wait_for_memory() {
    check_long_values("-t 2");
}

#[test]
fn without_eviction_long_values_wait_for_memory() {
    check_long_values("-M -t 2");
}

/// Checks that no value is refused, or lost unless the device was slow, while flash has room.
fn check_long_values(flags: &str) {
    const LONG_BYTES: usize = 300_000;
    let Some(tier) = Tier::sized(flags, 257) else { return };
    let set = |n: usize| {
        let value = letters(n, LONG_BYTES + n);
        [format!("set long-{n} 0 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat()
    };
    expect_of_clients(tier.server.address(), 400, set, "STORED\r\n");
    let mut c = tier.server.connect();
    let mut lost = Vec::new();
    for n in 0..400 {
        let value = String::from_utf8(letters(n, LONG_BYTES + n)).expect("letters");
        let answer = format!("VALUE long-{n} 0 {}\r\n{value}\r\nEND\r\n", value.len());
        c.say(format!("get long-{n}\r\n"));
        let heard = c.hear_until("END\r\n");
        assert!(heard == answer || heard == "END\r\n", "value {n} is wrong");
        lost.extend((heard != answer).then_some(n));
    }
    let evicts = !flags.contains("-M");
    if !(evicts && c.count("fabcache", "flash_items_refused") > 0) {
        check_lost(&mut c, &lost);
    }
    tier.server.stop();
}

#[test]
fn without_eviction_changes_wait_for_memory() {
    const ITEMS: usize = 200;
    let Some(tier) = Tier::sized("-M -t 2", 513) else { return };
    let value = String::from_utf8(letters(1, 100_000)).expect("letters");
    for (line, answer) in [
        ("set item-{n} 0 0 100000\r\n{value}\r\n", "STORED\r\n"),
        ("touch item-{n} 10000\r\n", "TOUCHED\r\n"),
        ("append item-{n} 0 0 100000\r\n{value}\r\n", "STORED\r\n"),
        ("mg item-{n} T0\r\n", "HD\r\n"),
        ("md item-{n} I\r\n", "HD\r\n"),
        ("set item-{n} 0 0 1\r\n1\r\n", "STORED\r\n"),
        ("set fill-{n} 0 0 100000\r\n{value}\r\n", "STORED\r\n"),
        ("incr item-{n} 1\r\n", "2\r\n"),
    ] {
        let line = line.replace("{value}", &value);
        let request = |n: usize| line.replace("{n}", &n.to_string()).into_bytes();
        expect_of_clients(tier.server.address(), ITEMS, request, answer);
    }
    check_lost(&mut tier.server.connect(), &[]);
    tier.server.stop();
}

/// Deleted and overwritten items on flash make room for as many others, though each segment has live ones.
#[test]
fn without_eviction_half_dead_flash_makes_room() {
    const CLIENTS: usize = 2;
    let Some(tier) = Tier::sized("-M -t 2", 97) else { return };
    let mut c = tier.server.connect();
    let stored = store_all(&mut c, 0..105_000);
    assert!(stored.len() > 65_000 && stored.len() < 100_000, "{} are stored", stored.len());
    // Of three items one is deleted, one is overwritten by a short value, and one stays.
    let dead: Vec<usize> = stored.iter().copied().filter(|n| n % 3 > 0).collect();
    let delete = |n: &usize| format!("delete item-{n}\r\n").into_bytes();
    let deletes = dead.iter().filter(|n| *n % 3 == 1).map(delete);
    assert_eq!(refusals(&mut c, deletes, "DELETED\r\n"), [""; 0]);
    let set = |n: &usize| format!("set item-{n} 0 0 1\r\n7\r\n").into_bytes();
    let sets = dead.iter().filter(|n| *n % 3 == 2).map(set);
    assert_eq!(refusals(&mut c, sets, "STORED\r\n"), [""; 0]);
    // Not quite as much: some of flash is kept for the items that are moved, and some stays dead.
    let room = dead.len() * 4 / 5;
    let address = tier.server.address();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let numbers = (client..room).step_by(CLIENTS).map(|n| 200_000 + n);
                let expected = numbers.clone().count();
                assert_eq!(store_all(&mut connect(address), numbers).len(), expected, "each is stored");
            });
        }
    });
    let kept: Vec<usize> = stored.iter().copied().filter(|n| n % 3 == 0).collect();
    let more: Vec<usize> = (0..room).map(|n| 200_000 + n).collect();
    let is_lost = [missing(&mut c, &kept), missing(&mut c, &more)].concat();
    check_lost(&mut c, &is_lost);
    for n in dead.iter().filter(|n| *n % 3 == 2).step_by(50) {
        c.request(format!("get item-{n}\r\n"), format!("VALUE item-{n} 0 1\r\n7\r\nEND\r\n"));
    }
    assert!(c.count("fabcache", "flash_items_moved") > 5_000);
    assert!(c.count("fabcache", "flash_segments_compacted") > 2);
    assert_eq!(c.count("fabcache", "flash_items_moved"), c.count("", "extstore_compact_rescues"));
    tier.server.stop();
}

/// Compaction finds memory short, too.
#[test]
fn overwrites_evict_nothing_while_flash_has_room() {
    const KEYS: usize = 1500;
    const CLIENTS: usize = 4;
    let Some(tier) = Tier::sized("-t 2", 1025) else { return };
    let set = |n: usize| {
        let mut random = SplitMix64::new(n as u64);
        let len = *random.pick(&[40, 40, 8000, 8000, 8000]);
        let key = n % CLIENTS * KEYS + random.below(KEYS);
        [format!("set over-{key} 0 0 {len}\r\n").as_bytes(), &letters(n, len), b"\r\n"].concat()
    };
    expect_of_clients(tier.server.address(), 60_000, set, "STORED\r\n");
    let mut c = tier.server.connect();
    let refused = c.count("fabcache", "flash_items_refused");
    assert!(refused > 0 || c.count("", "evictions") == 0, "{} evictions", c.count("", "evictions"));
    tier.server.stop();
}
