//! A clean stop keeps the items in the memory file (`-e`), and the next server has them.

mod common;

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::process::{Process, fabcached, spawn, start, start_command};
use common::{Client, Scratch, connect, connect_unix, wait_until};
use fabcache_testbed::report::not_run;
use rustix::process::{Pid, Signal, kill_process};

/// Requests that are sent before their answers are read: far below what the buffers of a socket hold.
const PIPELINE: u64 = 1024;

/// A memory file, and the servers that use it one after another.
struct MemoryFile {
    scratch: Scratch,
}

impl MemoryFile {
    fn new(name: &str) -> MemoryFile {
        MemoryFile { scratch: Scratch::new(&format!("restart-{name}")) }
    }

    fn path(&self) -> PathBuf {
        self.scratch.path("region")
    }

    fn arguments(&self, more: &str) -> String {
        format!("-o relaxed_privileges -e {} {more}", self.path().display())
    }

    /// Starts a server that finds no memory file.
    #[track_caller]
    fn start_new(&self, arguments: &str) -> Process {
        let process = start(&self.arguments(arguments));
        assert!(process.log().contains("is new"), "{}", process.log());
        process
    }

    /// Starts a server, which takes over this many items.
    #[track_caller]
    fn start_again(&self, arguments: &str, items: u64) -> Process {
        let process = start(&self.arguments(arguments));
        self.check_takeover(&process, items);
        process
    }

    #[track_caller]
    fn check_takeover(&self, process: &Process, items: u64) {
        let line = format!("took over the memory file {} with {items} items", self.path().display());
        assert!(process.log().contains(&line), "no {line:?} in {}", process.log());
    }

    /// Stops a server by a signal; returns how many items it keeps.
    #[track_caller]
    fn stop(&self, process: Process, signal: Signal) -> u64 {
        process.signal(signal);
        self.wait(process)
    }

    /// Waits for the end of a server; returns how many items it keeps.
    #[track_caller]
    fn wait(&self, mut process: Process) -> u64 {
        assert_eq!(process.wait().code(), Some(0), "{}", process.log());
        let (log, end) = (process.log(), format!(" items in the memory file {}", self.path().display()));
        let kept = log.lines().find_map(|line| line.split_once("kept ")?.1.split_once(&end)?.0.parse().ok());
        kept.unwrap_or_else(|| panic!("no items are kept: {log}"))
    }

    /// Returns how many bytes of the file system the region takes.
    fn allocated_bytes(&self) -> u64 {
        std::fs::metadata(self.path()).expect("a server uses it").blocks() * 512
    }

    /// Returns the bytes of the region and of the saved state.
    fn bytes(&self) -> [Vec<u8>; 2] {
        ["region", "region.meta"]
            .map(|name| std::fs::read(self.scratch.path(name)).expect("a server kept it"))
    }

    /// Flips a bit of this value in the region.
    fn damage(&self, value: &[u8]) {
        let [mut region, _] = self.bytes();
        let at = region.windows(value.len()).position(|bytes| bytes == value).expect("the value is there");
        region[at + value.len() / 2] ^= 1;
        std::fs::write(self.path(), region).expect("our file");
    }
}

type Tcp = Client<TcpStream>;

/// Returns a value that no other key has, of this many bytes.
fn value(key: &str, bytes: usize) -> Vec<u8> {
    let mut value = format!("{key} ").repeat(bytes.div_ceil(key.len() + 1)).into_bytes();
    value.truncate(bytes);
    value
}

fn set(client: &mut Tcp, key: &str, value: &[u8]) {
    client.say([format!("set {key} 0 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat());
    client.hear("STORED\r\n");
}

fn check(client: &mut Tcp, key: &str, value: &[u8]) {
    client.say(format!("get {key}\r\n"));
    client.hear([format!("VALUE {key} 0 {}\r\n", value.len()).as_bytes(), value, b"\r\nEND\r\n"].concat());
}

/// Returns an item's flags, value and CAS.
fn gets(client: &mut Tcp, key: &str) -> (u32, String, u64) {
    client.say(format!("gets {key}\r\n"));
    let answer = client.hear_until("END\r\n");
    let (head, value) = answer.split_once("\r\n").expect("lines end so");
    let words: Vec<&str> = head.split(' ').collect();
    let ["VALUE", name, flags, _, cas] = words[..] else { panic!("{answer:?}") };
    assert_eq!(name, key);
    let value = value.strip_suffix("\r\nEND\r\n").expect("a value");
    (flags.parse().expect("flags"), value.to_owned(), cas.parse().expect("a number"))
}

/// Returns a number from the answer to a meta get with one flag that returns it.
fn meta_number(client: &mut Tcp, key: &str, flag: char) -> u64 {
    client.say(format!("mg {key} {flag}\r\n"));
    let answer = client.hear_until("\r\n");
    let number = answer.strip_prefix(&format!("HD {flag}")).and_then(|text| text.trim_end().parse().ok());
    number.unwrap_or_else(|| panic!("{answer:?}"))
}

/// Sends a request for each number, many at a time, and expects the same answer to each.
fn repeat(client: &mut Tcp, numbers: std::ops::Range<u64>, request: impl Fn(u64) -> String, answer: &str) {
    for first in numbers.clone().step_by(PIPELINE as usize) {
        let end = numbers.end.min(first + PIPELINE);
        client.say((first..end).map(&request).collect::<String>());
        client.hear(answer.repeat((end - first) as usize));
    }
}

#[test]
fn values_of_all_lengths_are_kept() {
    let file = MemoryFile::new("lengths");
    let server = file.start_new("-m 128 -I 2m");
    let mut client = connect(server.address());
    let mut kept: Vec<(String, Vec<u8>)> = (1..=20)
        .flat_map(|power| [1 << power, (1 << power) + 1])
        .map(|bytes| (format!("length{bytes}"), bytes))
        // Chains of chunks whose last one has few bytes and many.
        .chain((0..16).map(|step| (format!("chain{step}"), 768_000 + 4096 * step + step)))
        .map(|(key, bytes)| (key.clone(), value(&key, bytes)))
        .collect();
    for (key, value) in &kept {
        set(&mut client, key, value);
    }
    client.request("set nothing 0 0 0\r\n\r\n", "STORED\r\n");
    let (deleted, _) = kept.pop().expect("there are many");
    client.request(format!("delete {deleted}\r\n"), "DELETED\r\n");

    let items = file.stop(server, Signal::TERM);
    assert_eq!(items, kept.len() as u64 + 1);
    let server = file.start_again("-m 128 -I 2m", items);
    let mut client = connect(server.address());
    assert_eq!(client.count("", "curr_items"), items);
    for (key, value) in &kept {
        check(&mut client, key, value);
    }
    client.request("get nothing\r\n", "VALUE nothing 0 0\r\n\r\nEND\r\n");
    client.request(format!("get {deleted}\r\n"), "END\r\n");
    // The chunks of a kept chain are free when it is overwritten or deleted.
    for (key, _) in &kept {
        let other = value("other", 700_000);
        set(&mut client, key, &other);
        check(&mut client, key, &other);
        client.request(format!("delete {key}\r\n"), "DELETED\r\n");
    }
    assert_eq!(client.count("", "curr_items"), 1);
}

#[test]
fn index_keeps_its_size_without_items() {
    const ITEMS: u64 = 1 << 17;
    let file = MemoryFile::new("index");
    let server = file.start_new("-m 64");
    let mut client = connect(server.address());
    assert_eq!(client.count("", "hash_power_level"), 16);
    repeat(&mut client, 0..ITEMS, |number| format!("set n{number} 0 0 0\r\n\r\n"), "STORED\r\n");
    wait_until("the index has grown", || client.count("", "hash_is_expanding") == 0);
    assert_eq!(client.count("", "hash_power_level"), 17);
    repeat(&mut client, 0..ITEMS, |number| format!("delete n{number}\r\n"), "DELETED\r\n");
    set(&mut client, "last", b"value");

    assert_eq!(file.stop(server, Signal::USR1), 1);
    let server = file.start_again("-m 64", 1);
    let mut client = connect(server.address());
    assert_eq!(client.count("", "hash_power_level"), 17);
    check(&mut client, "last", b"value");
    repeat(&mut client, 0..1000, |number| format!("get n{number}\r\n"), "END\r\n");
    repeat(&mut client, 0..1000, |number| format!("set n{number} 0 0 1\r\nx\r\n"), "STORED\r\n");
    assert_eq!(client.count("", "curr_items"), 1001);
}

#[test]
fn time_passes_while_no_server_runs() {
    let file = MemoryFile::new("time");
    let server = file.start_new("-m 16");
    let mut client = connect(server.address());
    client.request("set short 0 3 1\r\nx\r\nset long 0 300 1\r\ny\r\n", "STORED\r\nSTORED\r\n");
    client.request("set endless 0 0 1\r\nz\r\n", "STORED\r\n");
    file.stop(server, Signal::TERM);

    std::thread::sleep(Duration::from_secs(4));
    let server = start(&file.arguments("-m 16"));
    let mut client = connect(server.address());
    client.request("get short\r\n", "END\r\n");
    client.request("get long endless\r\n", "VALUE long 0 1\r\ny\r\nVALUE endless 0 1\r\nz\r\nEND\r\n");
    let left = meta_number(&mut client, "long", 't');
    // The lower limit is for a slow machine.
    assert!((200..=296).contains(&left), "{left} of 300 seconds are left after 4");
    client.request("mg endless t\r\n", "HD t-1\r\n");
}

#[test]
fn delayed_flush_happens_while_no_server_runs() {
    let file = MemoryFile::new("flush");
    let server = file.start_new("-m 16");
    let mut client = connect(server.address());
    repeat(&mut client, 0..1000, |number| format!("set n{number} 0 0 1\r\nx\r\n"), "STORED\r\n");
    client.request("flush_all 3\r\nget n1\r\n", "OK\r\nVALUE n1 0 1\r\nx\r\nEND\r\n");
    file.stop(server, Signal::INT);

    std::thread::sleep(Duration::from_secs(4));
    let server = start(&file.arguments("-m 16"));
    let mut client = connect(server.address());
    repeat(&mut client, 0..1000, |number| format!("get n{number}\r\n"), "END\r\n");
    set(&mut client, "later", b"stays");
    assert_eq!(file.stop(server, Signal::TERM), 1);
    let server = file.start_again("-m 16", 1);
    check(&mut connect(server.address()), "later", b"stays");
}

#[test]
fn delayed_flush_happens_in_a_later_server() {
    let file = MemoryFile::new("later-flush");
    let server = file.start_new("-m 16");
    // A minute is longer than the restart takes, so the items are there.
    connect(server.address()).request("set a 0 0 1\r\nx\r\nflush_all 60\r\n", "STORED\r\nOK\r\n");
    let items = file.stop(server, Signal::TERM);
    let server = file.start_again("-m 16", items);
    let mut client = connect(server.address());
    client.request(
        "get a\r\nflush_all 2\r\nget a\r\n",
        "VALUE a 0 1\r\nx\r\nEND\r\nOK\r\nVALUE a 0 1\r\nx\r\nEND\r\n",
    );
    let items = file.stop(server, Signal::TERM);
    let server = file.start_again("-m 16", items);
    let mut client = connect(server.address());
    wait_until("the flush happens", || {
        client.say("get a\r\n");
        client.hear_until("END\r\n") == "END\r\n"
    });
}

#[test]
fn watchers_do_not_hinder_a_graceful_stop() {
    let file = MemoryFile::new("watcher");
    let server = file.start_new("-m 16");
    let mut watcher = connect(server.address());
    watcher.request("watch fetchers mutations evictions\r\n", "OK\r\n");
    let mut client = connect(server.address());
    set(&mut client, "seen", b"value");
    check(&mut client, "seen", b"value");
    watcher.hear_until("key=seen");
    assert_eq!(file.stop(server, Signal::USR1), 1);
    let server = file.start_again("-m 16", 1);
    check(&mut connect(server.address()), "seen", b"value");
}

#[test]
fn flags_and_cas_values_are_kept_and_later_ones_are_greater() {
    let file = MemoryFile::new("cas");
    let server = file.start_new("-m 16");
    let mut client = connect(server.address());
    for (number, flags) in [0, 1, 0xffff, u32::MAX].into_iter().enumerate() {
        client.request(format!("set f{number} {flags} 0 1\r\n{number}\r\n"), "STORED\r\n");
    }
    let before: Vec<_> = (0..4).map(|number| gets(&mut client, &format!("f{number}"))).collect();
    assert_eq!(before.iter().map(|item| item.0).collect::<Vec<_>>(), [0, 1, 0xffff, u32::MAX]);
    // The greatest value is that of an item which is not kept.
    set(&mut client, "gone", b"x");
    let greatest = gets(&mut client, "gone").2;
    assert!(before.iter().all(|item| item.2 < greatest));
    client.request("delete gone\r\n", "DELETED\r\n");
    file.stop(server, Signal::TERM);

    let server = file.start_again("-m 16", 4);
    let mut client = connect(server.address());
    let after: Vec<_> = (0..4).map(|number| gets(&mut client, &format!("f{number}"))).collect();
    assert_eq!(after, before);
    set(&mut client, "new", b"x");
    let new = gets(&mut client, "new").2;
    assert!(new > greatest, "{new} is not above {greatest}");
    // A client that read before the restart may replace what it read, but only once.
    let cas = before[2].2;
    client.request(format!("cas f2 7 0 1 {cas}\r\nn\r\n"), "STORED\r\n");
    client.request(format!("cas f2 8 0 1 {cas}\r\nm\r\n"), "EXISTS\r\n");
    let (flags, value, cas) = gets(&mut client, "f2");
    assert_eq!((flags, value.as_str()), (7, "n"));
    assert!(cas > new, "{cas} is not above {new}");
}

#[test]
fn server_populates_page_tables_after_a_takeover_only() {
    let file = MemoryFile::new("populates");
    let server = file.start_new("-m 16 -vv");
    let mut client = connect(server.address());
    set(&mut client, "key", b"value");
    let populated = |server: &Process| server.log().contains("populated the page tables");
    assert!(!populated(&server), "{}", server.log());
    let items = file.stop(server, Signal::TERM);
    let mut server = file.start_again("-m 16 -vv", items);
    wait_until("the page tables are populated", || populated(&server));
    server.child.kill().expect("it runs");
    server.wait();
    let server = start(&file.arguments("-m 16 -vv"));
    wait_until("the page tables are populated", || populated(&server));
    check(&mut connect(server.address()), "key", b"value");
    file.stop(server, Signal::TERM);
}

/// Returns the kilobytes of a process's locked memory.
fn locked_kb(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.child.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).expect("on Linux");
    line.trim().strip_suffix(" kB").and_then(|kb| kb.parse().ok()).expect("a number")
}

#[test]
fn kept_memory_is_locked_and_touched_in_the_background() {
    const LOCKED: &str = "bytes of memory are touched and locked";
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
    if limit.current.is_some_and(|bytes| bytes < 8 << 20) && !rustix::process::geteuid().is_root() {
        let why = format!("the limit of locked memory is {:?} bytes", limit.current);
        return not_run("kept_memory_is_locked_and_touched_in_the_background", &why);
    }
    let file = MemoryFile::new("locked");
    let server = file.start_new("-m 8");
    set(&mut connect(server.address()), "key", b"value");
    let (locked, allocated) = (locked_kb(&server), file.allocated_bytes());
    assert!(locked == 0 && allocated < 6 << 20, "{locked} kB locked, {allocated} bytes allocated");
    let items = file.stop(server, Signal::TERM);
    let server = file.start_again("-m 8 -k", items);
    assert!(server.log().contains("memory is locked as it is touched"), "{}", server.log());
    assert!(locked_kb(&server) >= 8 << 10);
    wait_until("all memory is touched", || server.log().contains(LOCKED));
    let allocated = file.allocated_bytes();
    assert!(allocated > 7 << 20, "{allocated} bytes allocated");
    check(&mut connect(server.address()), "key", b"value");
    file.stop(server, Signal::TERM);
}

#[test]
fn server_that_may_not_lock_kept_memory_is_refused() {
    let file = MemoryFile::new("unlocked");
    let server = file.start_new("-m 8");
    set(&mut connect(server.address()), "key", b"value");
    let items = file.stop(server, Signal::TERM);
    let mut limited = Command::new("prlimit");
    limited.arg("--memlock=65536:65536");
    if rustix::process::geteuid().is_root() {
        limited.args(["setpriv", "--bounding-set=-ipc_lock"]);
    }
    let server = fabcached(&format!("-l 127.0.0.1 -p -1 {}", file.arguments("-m 8 -k")));
    limited.arg(server.get_program()).args(server.get_args());
    let mut refused = spawn(limited);
    assert!(!refused.wait().success(), "{}", refused.log());
    assert!(
        refused.log().contains("cannot lock the memory (-k); raise the memlock limit"),
        "{}",
        refused.log()
    );
    let server = start(&file.arguments("-m 8"));
    assert!(server.log().contains(&format!("with {items} items")), "{}", server.log());
}

#[test]
fn server_with_less_memory_evicts_until_the_items_fit() {
    const ITEMS: u64 = 40;
    let key = |number| format!("big{number}");
    let file = MemoryFile::new("less");
    let server = file.start_new("-m 64");
    let mut client = connect(server.address());
    for number in 0..ITEMS {
        set(&mut client, &key(number), &value(&key(number), 1_000_000));
    }
    assert_eq!(client.count("", "curr_items"), ITEMS);
    let items = file.stop(server, Signal::TERM);

    let server = file.start_again("-m 16", items);
    let mut client = connect(server.address());
    assert_eq!(client.count("", "limit_maxbytes"), 16 << 20);
    wait_until("the items fit", || client.count("", "bytes") <= 16 << 20);
    let mut found = 0;
    for number in 0..ITEMS {
        client.say(format!("get {}\r\n", key(number)));
        // Eviction may go on meanwhile.
        if client.hear_until("\r\n") != "END\r\n" {
            client.hear([&value(&key(number), 1_000_000)[..], b"\r\nEND\r\n"].concat());
            found += 1;
        }
    }
    assert!((1..=16).contains(&found), "{found} items of 1 MB in 16 MiB: {}", server.log());
    for number in ITEMS..2 * ITEMS {
        set(&mut client, &key(number), &value(&key(number), 1_000_000));
        let bytes = client.count("", "bytes");
        assert!(bytes <= 16 << 20, "{bytes} bytes of items");
    }
    wait_until("the file takes no more than the limit", || file.allocated_bytes() <= 17 << 20);
    let items = file.stop(server, Signal::TERM);
    // The file still has room for as much as at first.
    let server = file.start_again("-m 64", items);
    let mut client = connect(server.address());
    for number in 0..ITEMS {
        set(&mut client, &format!("more{number}"), &value("more", 1_000_000));
    }
    let left = client.count("", "curr_items");
    assert!(left >= ITEMS, "{left} items are left");
}

#[test]
fn server_with_more_memory_grows_the_file() {
    let file = MemoryFile::new("grows");
    let server = file.start_new("-m 16");
    let mut client = connect(server.address());
    repeat(&mut client, 0..1000, |number| format!("set n{number} 0 0 1\r\nx\r\n"), "STORED\r\n");
    let items = file.stop(server, Signal::TERM);
    let fill = |server: &Process, mebibytes: u64, values: u64| {
        let mut client = connect(server.address());
        assert_eq!(client.count("", "limit_maxbytes"), mebibytes << 20);
        (0..values).for_each(|number| set(&mut client, &format!("long{number}"), &value("long", 800_000)));
        assert_eq!(client.count("", "evictions"), 0, "{mebibytes} MiB have room for {values} values");
        repeat(&mut client, 0..1000, |number| format!("mg n{number} v\r\n"), "VA 1\r\nx\r\n");
    };
    let mut server = file.start_again("-m 32", items);
    fill(&server, 32, 28);
    server.child.kill().expect("it runs");
    server.wait();
    let server = start(&file.arguments("-m 60"));
    wait_until("the recovery is finished", || server.log().contains("recovered 10"));
    fill(&server, 60, 55);
}

#[test]
fn server_with_too_much_or_too_little_memory_is_refused() {
    const ITEMS: u64 = 60_000;
    let file = MemoryFile::new("refused");
    let server = file.start_new("-m 16");
    let mut client = connect(server.address());
    repeat(&mut client, 0..ITEMS, |number| format!("set n{number} 0 0 1\r\nx\r\n"), "STORED\r\n");
    let items = file.stop(server, Signal::TERM);
    assert_eq!(items, ITEMS);
    let before = file.bytes();
    let too_much = "MiB, and -m or --memory-max asks for 100; ask for less";
    let too_little =
        "its index and its least number of segments take more than -m asks for; ask for at least ";
    let cases = [
        ("-m 100", too_much),
        ("-m 16 --memory-max 100", too_much),
        ("-m 1 -I 128k", too_little),
        ("-m 1 --memory-max 32 -I 128k", too_little),
    ];
    for (arguments, why) in cases {
        let mut refused = spawn(fabcached(&format!("-l 127.0.0.1 -p -1 {}", file.arguments(arguments))));
        assert!(!refused.wait().success(), "{}", refused.log());
        let (log, path) = (refused.log(), file.path());
        for words in [path.to_str().expect("it is text"), why] {
            assert!(log.contains(words), "no {words:?} in {log}");
        }
        assert!(before == file.bytes(), "the refused server changed the file");
    }
    let server = file.start_again("-m 16", items);
    let mut client = connect(server.address());
    repeat(&mut client, 0..ITEMS, |number| format!("mg n{number} v\r\n"), "VA 1\r\nx\r\n");
}

#[test]
fn every_clean_stop_keeps_the_items_and_restarts_repeat() {
    let file = MemoryFile::new("stops");
    let by_signal = [Signal::TERM, Signal::INT, Signal::USR1].map(Ok);
    let by_command = ["shutdown\r\n", "shutdown graceful\r\n"].map(Err);
    let mut server = file.start_new("-m 16 -A");
    for (number, stop) in by_signal.into_iter().chain(by_command).enumerate() {
        let mut client = connect(server.address());
        assert_eq!(client.count("", "curr_items"), number as u64, "before {stop:?}");
        set(&mut client, &format!("item{number}"), b"stays");
        client.request("set gone 0 0 1\r\nx\r\ndelete gone\r\n", "STORED\r\nDELETED\r\n");
        match stop {
            Ok(signal) => server.signal(signal),
            Err(command) => client.say(command),
        }
        let items = file.wait(server);
        assert_eq!(items, number as u64 + 1, "after {stop:?}");
        server = file.start_again("-m 16 -A", items);
        let mut client = connect(server.address());
        (0..=number).for_each(|earlier| check(&mut client, &format!("item{earlier}"), b"stays"));
        client.request("get gone\r\n", "END\r\n");
    }
}

#[test]
fn one_of_two_servers_that_start_at_once_has_the_items() {
    let file = MemoryFile::new("two");
    let server = file.start_new("-m 16");
    let mut client = connect(server.address());
    repeat(&mut client, 0..1000, |number| format!("set n{number} 0 0 1\r\nx\r\n"), "STORED\r\n");
    file.stop(server, Signal::TERM);

    for _ in 0..5 {
        let mut both =
            [(); 2].map(|()| spawn(fabcached(&format!("-l 127.0.0.1 -p -1 {}", file.arguments("-m 16")))));
        let is_up = |server: &Process| server.log().contains("ready for memcached clients at");
        let has_ended = |server: &mut Process| server.child.try_wait().expect("our child").is_some();
        wait_until("one server serves and the other one has ended", || {
            both.iter().any(is_up) && both.iter_mut().any(has_ended)
        });
        let [first, second] = both;
        let (server, mut refused) = if is_up(&first) { (first, second) } else { (second, first) };
        assert!(!refused.wait().success() && !is_up(&refused), "{}", refused.log());
        assert!(refused.log().contains("another server uses it"), "{}", refused.log());
        file.check_takeover(&server, 1000);
        let mut client = connect(server.address());
        repeat(&mut client, 0..1000, |number| format!("mg n{number} v\r\n"), "VA 1\r\nx\r\n");
        assert_eq!(file.stop(server, Signal::TERM), 1000);
    }
}

#[test]
fn damaged_items_are_misses_that_the_server_reports() {
    let file = MemoryFile::new("damaged");
    let server = file.start_new("-m 16");
    let mut client = connect(server.address());
    for number in 0..100 {
        let key = format!("n{number}");
        set(&mut client, &key, &value(&key, 1000));
    }
    let items = file.stop(server, Signal::TERM);
    file.damage(&value("n7", 1000));
    let server = file.start_again("-m 16", items);
    let mut client = connect(server.address());
    client.request("get n7\r\n", "END\r\n");
    for number in (0..100).filter(|number| *number != 7) {
        let key = format!("n{number}");
        check(&mut client, &key, &value(&key, 1000));
    }
    wait_until("all is verified", || server.log().contains("dropped 1 items: the memory file was damaged"));
    let scrubbed = client.count("fabcache", "region_scrub_segments_done");
    assert!(scrubbed > 0 && scrubbed == client.count("fabcache", "region_scrub_segments"));
    assert_eq!(client.count("fabcache", "region_items_corrupt"), 1);
    assert_eq!(client.count("fabcache", "region_items_kept"), items);
    assert!(client.count("fabcache", "recovery_groups") > 0);
    set(&mut client, "n7", &value("n8", 1000));
    assert_eq!(file.stop(server, Signal::TERM), items);
    file.start_again("-m 16", items);
}

#[test]
fn damage_is_reported_by_a_server_that_stops_before_all_is_verified() {
    let file = MemoryFile::new("damaged-unverified");
    let server = file.start_new("-m 64");
    let mut client = connect(server.address());
    let damaged = value("damaged", 1000);
    set(&mut client, "damaged", &damaged);
    (0..60).for_each(|number| set(&mut client, &format!("n{number}"), &value("other", 800_000)));
    let items = file.stop(server, Signal::TERM);
    file.damage(&damaged);
    let mut server = file.start_again("-m 64", items);
    connect(server.address()).request("get damaged\r\n", "END\r\n");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    // A fast machine may have verified all by then, and reports it with other words before.
    let line = ", and dropped 1 items: the memory file was damaged";
    let is_warning = |logged: &str| logged.contains("WARN") && logged.contains(line);
    assert!(server.log().lines().any(is_warning), "{}", server.log());
}

#[test]
fn signal_right_after_the_first_connection_stops_cleanly() {
    let file = MemoryFile::new("early");
    let socket = file.scratch.path("socket");
    let flags = file.arguments(&format!("-m 16 -s {}", socket.display()));
    for round in 0..20 {
        let mut server = spawn(fabcached(&flags));
        wait_until("the server listens", || UnixStream::connect(&socket).is_ok());
        server.signal(if round % 2 == 0 { Signal::TERM } else { Signal::INT });
        assert_eq!(server.wait().code(), Some(0), "{round}: {}", server.log());
        assert!(server.log().contains("kept 0 items"), "{round}: {}", server.log());
    }
    // Others wait for their turn, too: the reload, and the graceful stop behind it.
    let server = spawn(fabcached(&flags));
    wait_until("the server listens", || UnixStream::connect(&socket).is_ok());
    server.signal(Signal::HUP);
    wait_until("the users are reloaded", || server.log().contains("were reloaded"));
    server.signal(Signal::USR1);
    assert_eq!(file.wait(server), 0);
}

#[test]
fn start_that_fails_after_the_takeover_keeps_the_items() {
    let file = MemoryFile::new("fails");
    let server = file.start_new("-m 16");
    set(&mut connect(server.address()), "key", b"value");
    assert_eq!(file.stop(server, Signal::TERM), 1);
    let none = file.scratch.path("none/run.pid");
    let flags = file.arguments(&format!("-l 127.0.0.1 -p -1 -m 16 -P {}", none.display()));
    let mut refused = spawn(fabcached(&flags));
    assert!(!refused.wait().success());
    let log = refused.log();
    assert!(log.contains("fabcached: cannot write the pid file") && log.contains("kept 1 items"), "{log}");
    let server = file.start_again("-m 16", 1);
    check(&mut connect(server.address()), "key", b"value");
}

#[test]
fn start_without_enough_threads_keeps_the_items() {
    const TEST: &str = "start_without_enough_threads_keeps_the_items";
    if !rustix::process::geteuid().is_root() {
        let why = "the limit of processes counts those of a user, and only root becomes another one";
        return not_run(TEST, &why);
    }
    let file = MemoryFile::new("threads");
    // No process has this user.
    let user = 1_234_567_890;
    std::os::unix::fs::chown(file.scratch.path(""), Some(user), Some(user)).expect("root may");
    let other_user = || {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".to_owned()]);
        command
    };
    let binary = env!("CARGO_BIN_EXE_fabcached");
    let may_run = other_user().args(["test", "-x", binary]).status().expect("setpriv is there").success();
    if !may_run {
        return not_run(TEST, &format!("another user may not execute {binary}"));
    }
    let limited = |processes: u32| {
        let mut limited = other_user();
        limited.args(["prlimit".to_owned(), format!("--nproc={processes}")]);
        let server = fabcached(&format!("-l 127.0.0.1 -p -1 -t 4 {}", file.arguments("-m 16")));
        limited.arg(server.get_program()).args(server.get_args());
        limited
    };
    let server = start_command(limited(100));
    set(&mut connect(server.address()), "key", b"value");
    assert_eq!(file.stop(server, Signal::TERM), 1);
    // Needed: the first thread, that of the signals, four workers, the housekeeper, and one that finishes the restart.
    // The one that populates page tables may find that one's place free again.
    for processes in 2..8 {
        let mut refused = spawn(limited(processes));
        assert!(!refused.wait().success(), "{processes}: {}", refused.log());
        let log = refused.log();
        let is_kept = log.contains("fabcached: cannot start") && log.contains("kept 1 items");
        assert!(is_kept, "{processes}: {log}");
    }
    let server = start_command(limited(9));
    file.check_takeover(&server, 1);
    check(&mut connect(server.address()), "key", b"value");
    assert_eq!(file.stop(server, Signal::TERM), 1);
}

/// Kills the process on drop.
struct Unlogged(Child);

impl Drop for Unlogged {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn server_whose_log_has_no_reader_reloads_and_keeps_its_items() {
    let file = MemoryFile::new("unlogged");
    for format in ["text", "json"] {
        let socket = file.scratch.path("socket");
        let flags = file.arguments(&format!("-m 16 --log-format {format} -s {}", socket.display()));
        let child = fabcached(&flags).stderr(Stdio::piped()).spawn().expect("the binary is built");
        let mut server = Unlogged(child);
        let log = BufReader::new(server.0.stderr.take().expect("stderr is piped"));
        let mut lines = log.lines().map(|line| line.expect("text"));
        assert!(lines.any(|line| line.contains("ready for memcached clients at")));
        drop(lines);
        let mut client = connect_unix(&socket);
        client.request(format!("set {format} 0 0 1\r\nx\r\n"), "STORED\r\n");
        let pid = Pid::from_child(&server.0);
        kill_process(pid, Signal::HUP).expect("it runs");
        client.request("mn\r\n", "MN\r\n");
        kill_process(pid, Signal::TERM).expect("it runs");
        client.hear_end();
        assert_eq!(server.0.wait().expect("our child").code(), Some(0), "{format}");
    }
    file.start_again("-m 16", 2);
}
