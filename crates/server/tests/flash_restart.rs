//! A clean stop keeps the items in the memory file (`-e`) and those on the flash devices (`--flash`), if the next server has both.

mod common;

use std::path::PathBuf;

use common::process::{Process, fabcached, spawn, start};
use common::{Scratch, connect};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::io_uring::is_there_for_files;
use rustix::process::Signal;

const ITEMS: u64 = 3_000;
const VALUE_BYTES: usize = 4_000;
/// Requests that are sent before their answers are read.
const PIPELINE: u64 = 64;
/// A new key may replace another one's item on flash, unread: once in about a hundred thousand.
const LOST_MAX: u64 = 3;

/// A memory file and flash devices.
struct Place {
    scratch: Scratch,
}

impl Place {
    /// `None` where io_uring is refused, as in most containers.
    fn new(name: &str) -> Option<Place> {
        is_there_for_files().then(|| Place { scratch: Scratch::new(&format!("flash-restart-{name}")) })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path(name)
    }

    /// Arguments with so many megabytes on each of these devices.
    fn arguments(&self, devices: &[(&str, u64)]) -> String {
        let flash = devices
            .iter()
            .map(|(name, megabytes)| format!(" --flash {}:{megabytes}m", self.path(name).display()));
        format!(
            "-o relaxed_privileges -m 8 -e {}{}",
            self.path("region").display(),
            flash.collect::<String>()
        )
    }

    fn start(&self, devices: &[(&str, u64)]) -> Process {
        start(&self.arguments(devices))
    }
}

/// Twelve segments of 16 MiB: each pass over the items may write some again.
const DEVICES: [(&str, u64); 2] = [("a", 97), ("b", 97)];

fn stop(mut server: Process) -> String {
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    server.log()
}

fn value(number: u64) -> Vec<u8> {
    let bytes = pattern(number, VALUE_BYTES / 2);
    bytes.iter().flat_map(|byte| [b'a' + byte % 16, b'a' + byte / 16]).collect()
}

fn fill(server: &Process) {
    let mut client = connect(server.address());
    for first in (0..ITEMS).step_by(PIPELINE as usize) {
        let numbers = first..ITEMS.min(first + PIPELINE);
        let stored = "STORED\r\n".repeat((numbers.end - first) as usize);
        let set = |number| {
            [format!("set key{number} 0 0 {VALUE_BYTES}\r\n").into_bytes(), value(number), b"\r\n".to_vec()]
                .concat()
        };
        client.request(numbers.flat_map(set).collect::<Vec<u8>>(), stored);
    }
    let on_flash = client.count("fabcache", "flash_items");
    assert!(on_flash > ITEMS / 4, "{on_flash} items are on flash");
}

/// Returns how many items are there; each has its value.
fn found(server: &Process) -> u64 {
    let mut client = connect(server.address());
    let mut found = 0;
    for number in 0..ITEMS {
        client.say(format!("get key{number}\r\n"));
        let answer = client.hear_until("END\r\n");
        if answer != "END\r\n" {
            let value = String::from_utf8(value(number)).expect("letters");
            assert_eq!(answer, format!("VALUE key{number} 0 {VALUE_BYTES}\r\n{value}\r\nEND\r\n"));
            found += 1;
        }
    }
    found
}

/// Returns how many items this server may have dropped: on a busy machine the devices are too slow for some.
fn dropped(server: &Process) -> u64 {
    let mut client = connect(server.address());
    LOST_MAX + client.count("fabcache", "flash_items_refused")
}

/// Returns the number in front of these words of a log.
#[track_caller]
fn number_before(log: &str, words: &str) -> u64 {
    let line =
        log.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("no {words:?} in {log}"));
    let before = line.split(words).next().expect("a line has a part before them");
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

#[test]
fn clean_stop_keeps_items_on_flash() {
    let Some(place) = Place::new("kept") else { return };
    let server = place.start(&DEVICES);
    fill(&server);
    let mut left = found(&server);
    assert!(left + dropped(&server) >= ITEMS, "{left}");
    let log = stop(server);
    let in_memory = number_before(&log, " items in the memory file");
    for _ in 0..2 {
        let server = place.start(&DEVICES);
        let on_flash = number_before(&server.log(), " items on flash are kept");
        assert!(in_memory > 500 && on_flash > ITEMS / 4, "{}", server.log());
        let found = found(&server);
        assert!(found <= left && found + dropped(&server) >= left, "{found} of {left}: {}", server.log());
        left = found;
        stop(server);
    }
    // A start that fails behind the check of the devices leaves the set as it was.
    let arguments = place.arguments(&DEVICES).replace("-m 8", "-m 64");
    let mut server = spawn(fabcached(&format!("-l 127.0.0.1 -p -1 {arguments}")));
    assert_ne!(server.wait().code(), Some(0), "{}", server.log());
    assert!(
        server.log().contains("flash device") && server.log().contains("can grow to"),
        "{}",
        server.log()
    );
    let server = place.start(&DEVICES);
    let found = found(&server);
    assert!(found <= left && found + dropped(&server) >= left, "{found} of {left}: {}", server.log());
}

#[test]
fn other_devices_lose_the_items_on_flash_only() {
    let Some(place) = Place::new("others") else { return };
    let swap = |place: &Place| {
        // A device of another server takes the place of one.
        let other = format!("-o relaxed_privileges -m 8 --flash {}:65m", place.path("c").display());
        stop(start(&other));
        std::fs::rename(place.path("c"), place.path("b")).expect("our files");
    };
    let remove = |place: &Place| std::fs::remove_file(place.path("b")).expect("our file");
    let nothing = |_: &Place| {};
    // The devices of the second server, what happens in between, and what it logs.
    type Case<'a> = (&'a [(&'a str, u64)], &'a dyn Fn(&Place), &'a str);
    let [a, b] = DEVICES;
    let cases: [Case<'_>; 6] = [
        (&[], &nothing, "the server has no flash devices now"),
        (&[("a", 65)], &nothing, "flash device {a} was number 1 of 2 devices"),
        (&[a, ("b", 49)], &nothing, "flash device {b} had 101711872 bytes, in segments of 16777216"),
        (&[b, a], &nothing, "flash device {b} was number 2 of 2 devices"),
        (&DEVICES, &swap, "flash devices {a} and {b} were last used in different sets"),
        (&DEVICES, &remove, "flash device {b} is new"),
    ];
    for (devices, between, why) in cases {
        let server = place.start(&DEVICES);
        fill(&server);
        let log = stop(server);
        let in_memory = number_before(&log, " items in the memory file");
        between(&place);
        let server = place.start(devices);
        let log = server.log();
        assert!(number_before(&log, " items on flash are lost") > ITEMS / 4, "{log}");
        let [a, b] = ["a", "b"].map(|name| place.path(name).display().to_string());
        let why = why.replace("{a}", &a).replace("{b}", &b);
        assert!(log.contains(&why), "no {why:?} in {log}");
        let left = found(&server);
        assert!(left > 500 && left <= in_memory, "{left} of {in_memory} items");
        let mut client = connect(server.address());
        client.request(
            "set another 0 0 1\r\nx\r\nget another\r\n",
            "STORED\r\nVALUE another 0 1\r\nx\r\nEND\r\n",
        );
        stop(server);
    }
}

#[test]
fn kill_loses_the_items_on_flash() {
    let Some(place) = Place::new("killed") else { return };
    let server = place.start(&DEVICES);
    fill(&server);
    stop(server);
    let mut server = place.start(&DEVICES);
    fill(&server);
    server.child.kill().expect("it runs");
    server.wait();
    let server = place.start(&DEVICES);
    let lost = "the items on flash are lost, because the last server did not stop cleanly";
    assert!(server.log().contains(lost), "{}", server.log());
    let left = found(&server);
    assert!((500..ITEMS * 4 / 5).contains(&left), "{left} items");
    fill(&server);
    let found = found(&server);
    assert!(found + dropped(&server) >= ITEMS, "{found} items");
}
