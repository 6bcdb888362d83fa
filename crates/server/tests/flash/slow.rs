//! Devices that answer late, in another order, or not at all: what clients hear, and how many reads wait.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use fabcache_server::bounds::{
    CONNECTION_TICKETS_MAX, FLASH_READS_MAX, PENDING_DATAGRAMS_MAX, TICKET_TIME_MAX, TICKETS_MAX,
};
use fabcache_server::flash::HEADER_AREA_BYTES;
use fabcache_testbed::slow_devices::SlowDevices;
use rustix::process::Signal;

use crate::common::process::Process;
use crate::common::{Client, UdpClient, connect, packet, wait_until};
use crate::tier::{letters, start_on_slow_device};

/// Items `on-0` … that are on flash then.
const ITEMS: usize = 8;
/// More than a page, so that no two items begin in the same page.
const LEN: usize = 4100;
/// Short items, one of which is in one page: more reads of it may be pending.
const SHORT: [&str; 6] = ["short-0", "short-1", "short-2", "short-3", "short-4", "short-5"];
const SHORT_LEN: usize = 500;
const PAGE_BYTES: usize = 4096;

/// A server with one worker, whose reads of flash wait for the test.
struct SlowTier {
    // Dropped before the server, whose end waits for reads.
    device: SlowDevices,
    server: Process,
    /// Where the items are on the device.
    offsets: Vec<u64>,
    /// A short item in one page.
    short: &'static str,
}

impl SlowTier {
    /// Starts a server; none where this user may not mount a file system.
    fn new(flags: &str) -> Option<SlowTier> {
        for _ in 0..5 {
            let (device, server) = start_on_slow_device(&format!("-m 8 {flags}"))?;
            let mut tier = SlowTier { device, server, offsets: Vec::new(), short: "" };
            if tier.move_to_flash() {
                tier.find_places();
                return Some(tier);
            }
        }
        panic!("the device is too slow: items are evicted");
    }

    /// Stores the items, and pushes them out of memory. Returns whether none was lost.
    fn move_to_flash(&self) -> bool {
        let mut c = self.connect();
        c.fill_with("first", 9 << 20);
        for n in 0..ITEMS {
            c.request(format!("set on-{n} 0 0 {LEN}\r\n{}\r\n", value(n)), "STORED\r\n");
        }
        for name in SHORT {
            c.request(format!("set {name} 0 0 {SHORT_LEN}\r\n{}\r\n", short()), "STORED\r\n");
        }
        c.request(format!("set huge 0 0 1000000\r\n{}\r\n", huge()), "STORED\r\n");
        for round in 0..12 {
            push_out(&mut c, round);
            let before = c.flash_reads();
            let names = (0..ITEMS).map(|n| format!("on-{n}")).chain(SHORT.map(String::from));
            // It is no access, so the items stay where they are.
            let requests: String = names.map(|name| format!("mg {name} s u\r\n")).collect();
            c.say(format!("{requests}mg huge s u\r\nmn\r\n"));
            if c.hear_until_noop().contains("EN\r\n") {
                return false;
            }
            if c.flash_reads() == before + (ITEMS + SHORT.len() + 1) as u64 {
                c.request("set a 0 0 1\r\n1\r\n", "STORED\r\n");
                return true;
            }
        }
        panic!("items stay in memory");
    }

    /// Lets reads wait, and notes where the items are.
    fn find_places(&mut self) {
        let mut c = self.connect();
        self.device.hold_reads(HEADER_AREA_BYTES);
        for n in 0..ITEMS {
            c.say(format!("mg on-{n} s u\r\n"));
            let offset = self.device.wait_for_held(1)[0];
            self.device.answer(offset);
            c.hear(format!("HD s{LEN}\r\n"));
            assert!(!self.offsets.contains(&offset), "{offset} is another item's");
            self.offsets.push(offset);
        }
        for name in SHORT {
            c.say(format!("mg {name} s u\r\n"));
            self.device.wait_for_held(1);
            if self.device.held_bytes() == PAGE_BYTES {
                self.short = name;
            }
            self.device.answer_all();
            c.hear(format!("HD s{SHORT_LEN}\r\n"));
        }
        assert!(!self.short.is_empty());
        drop(c);
        wait_until("the connection closes", || self.connections() == 0);
    }

    fn address(&self) -> SocketAddr {
        self.server.address()
    }

    fn connect(&self) -> Client<TcpStream> {
        connect(self.address())
    }

    /// Returns the number of connections without the one of this request.
    fn connections(&self) -> u64 {
        self.connect().count("", "curr_connections") - 1
    }

    /// Lets the first read of an item go on.
    #[track_caller]
    fn answer(&self, n: usize) {
        self.device.answer(self.offsets[n]);
    }

    /// Lets the first read of an item fail.
    #[track_caller]
    fn fail(&self, n: usize) {
        self.device.fail(self.offsets[n]);
    }

    fn stop(mut self) {
        self.device.release();
        self.server.signal(Signal::TERM);
        self.wait();
    }

    /// Waits until the stopped server has ended.
    fn wait(&mut self) {
        assert!(self.server.wait().success(), "{}", self.server.log());
        assert!(!self.server.log().contains("panicked"), "{}", self.server.log());
    }
}

/// Stores 12 MB of items, with the time to live of those that are to leave memory.
fn push_out(c: &mut Client<TcpStream>, round: usize) {
    for n in 0..4500 {
        // A segment's last bytes are filled by short ones.
        let len = [4000, 4000, 500][n % 3];
        c.say(format!("set fill-{round}-{n} 0 0 {len} noreply\r\n{}\r\n", "-".repeat(len)));
    }
    c.request("mn\r\n", "MN\r\n");
    c.settle();
}

fn value(n: usize) -> String {
    String::from_utf8(letters(n, LEN)).expect("letters")
}

fn short() -> String {
    String::from_utf8(letters(6, SHORT_LEN)).expect("letters")
}

fn huge() -> String {
    String::from_utf8(letters(7, 1_000_000)).expect("letters")
}

fn found(n: usize) -> String {
    format!("VALUE on-{n} 0 {LEN}\r\n{}\r\n", value(n))
}

/// Asserts that the client has received nothing, though the worker has served another client since.
#[track_caller]
fn hears_nothing(client: &mut Client<TcpStream>, tier: &SlowTier) {
    for _ in 0..2 {
        tier.connect().request("get other\r\n", "END\r\n");
    }
    client.stream.set_nonblocking(true).expect("a socket");
    let error = client.stream.read(&mut [0; 64]).expect_err("no answer is due");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    client.stream.set_nonblocking(false).expect("a socket");
}

#[test]
fn reads_hold_the_positions_of_their_answers() {
    let Some(tier) = SlowTier::new("-C") else { return };
    let mut c = tier.connect();
    c.say("get a on-1 a on-2 gone\r\nget a\r\ngets on-3 a on-4\r\nmg on-5 v\r\nget on-6\r\nmn\r\n");
    c.hear("VALUE a 0 1\r\n1\r\n");
    tier.device.wait_for_held(6);
    hears_nothing(&mut c, &tier);
    // In another order than that of the requests.
    for n in [6, 4, 2] {
        tier.answer(n);
    }
    tier.fail(3);
    hears_nothing(&mut c, &tier);
    tier.answer(1);
    c.hear(format!("{}VALUE a 0 1\r\n1\r\n{}END\r\nVALUE a 0 1\r\n1\r\nEND\r\n", found(1), found(2)));
    let gets = found(4).replacen(&format!(" {LEN}\r\n"), &format!(" {LEN} 0\r\n"), 1);
    c.hear(format!("VALUE a 0 1 0\r\n1\r\n{gets}END\r\n"));
    hears_nothing(&mut c, &tier);
    tier.answer(5);
    c.hear(format!("VA {LEN}\r\n{}\r\n{}END\r\nMN\r\n", value(5), found(6)));
    tier.stop();
}

#[test]
fn quiet_requests_are_decided_when_their_reads_end() {
    let Some(tier) = SlowTier::new("") else { return };
    let mut c = tier.connect();
    c.say("mg on-0 v q k O1\r\nmg on-1 v q k O2\r\nmg on-2 v O3\r\nmn\r\n");
    tier.device.wait_for_held(3);
    tier.fail(2);
    tier.fail(0);
    hears_nothing(&mut c, &tier);
    tier.answer(1);
    c.hear(format!("VA {LEN} kon-1 O2\r\n{}\r\nEN O3\r\nMN\r\n", value(1)));

    let mut c = tier.connect();
    // GetQ twice, GetKQ, Get, Noop
    let gets = [(0x09, 3), (0x09, 4), (0x0d, 5), (0x00, 6)];
    gets.iter().for_each(|(opcode, n)| c.say(packet(*opcode, &[], format!("on-{n}").as_bytes(), &[], 0)));
    c.say(packet(0x0a, &[], &[], &[], 0));
    tier.device.wait_for_held(4);
    tier.fail(3);
    tier.answer(5);
    tier.fail(6);
    hears_nothing(&mut c, &tier);
    tier.answer(4);
    let answers = [c.hear_packet(), c.hear_packet()];
    assert_eq!(answers.each_ref().map(|answer| answer.opcode), [0x09, 0x0d]);
    assert_eq!(answers.each_ref().map(|answer| &*answer.key), [&b""[..], b"on-5"]);
    assert_eq!(
        answers.each_ref().map(|answer| &*answer.value),
        [value(4), value(5)].each_ref().map(|value| value.as_bytes())
    );
    let miss = c.hear_packet();
    assert_eq!((miss.opcode, miss.status), (0x00, 1));
    assert_eq!(c.hear_packet().opcode, 0x0a);
    tier.stop();
}

#[test]
fn late_reads_are_misses_and_reach_nobody() {
    let Some(tier) = SlowTier::new("") else { return };
    let mut c = tier.connect();
    let names = ["cmd_get", "get_hits", "get_misses", "cmd_meta"];
    let before = names.map(|name| c.count("", name));
    c.say("get a on-1 a\r\nmg on-2 v\r\nmn\r\ntouch on-3 0\r\nappend on-4 0 0 1\r\n!\r\nmn\r\n");
    tier.device.wait_for_held(3);
    c.hear("VALUE a 0 1\r\n1\r\nVALUE a 0 1\r\n1\r\nEND\r\nEN\r\nMN\r\n");
    let late = "SERVER_ERROR the flash device does not answer\r\n";
    c.hear(format!("{late}{late}MN\r\n"));
    c.say("get on-1\r\n");
    tier.device.wait_for_held(5);
    let after = names.map(|name| tier.connect().count("", name));
    // The earlier read of the same item.
    tier.answer(1);
    [2, 3, 4].iter().for_each(|n| tier.answer(*n));
    hears_nothing(&mut c, &tier);
    tier.answer(1);
    c.hear(format!("{}END\r\n", found(1)));
    assert_eq!([0, 1, 2, 3].map(|i| after[i] - before[i]), [4, 2, 2, 1]);
    tier.device.release();
    c.request("touch on-3 0\r\n", "TOUCHED\r\n");
    tier.stop();
}

#[test]
fn reads_that_end_after_a_close_reach_nobody() {
    let Some(tier) = SlowTier::new("") else { return };
    for requests in ["mg on-1 v\r\n", "touch on-1 0\r\n", "append on-1 0 0 1\r\n!\r\n"] {
        let mut c = tier.connect();
        c.say(format!("version\r\n{requests}"));
        tier.device.wait_for_held(1);
        c.stream.peek(&mut [0]).expect("a version");
        drop(c);
        wait_until("the connection closes", || tier.connections() == 0);
        let mut c = tier.connect();
        c.say("mg on-2 v u\r\n");
        tier.device.wait_for_held(2);
        tier.answer(1);
        hears_nothing(&mut c, &tier);
        tier.answer(2);
        c.hear(format!("VA {LEN}\r\n{}\r\n", value(2)));
        drop(c);
        wait_until("the connection closes", || tier.connections() == 0);
    }
    // Nothing of theirs was done.
    let mut c = tier.connect();
    c.say("get on-1\r\n");
    tier.device.wait_for_held(1);
    tier.device.answer_all();
    c.hear(format!("{}END\r\n", found(1)));
    tier.stop();
}

#[test]
fn connections_with_too_many_reads_wait() {
    let Some(tier) = SlowTier::new("") else { return };
    let mut c = tier.connect();
    let short_key = tier.short;
    let keys = format!(" {short_key}").repeat(50);
    c.say(format!("get{keys} a\r\nget{keys} a\r\nmn\r\n"));
    tier.device.wait_for_held(CONNECTION_TICKETS_MAX);
    hears_nothing(&mut c, &tier);
    assert_eq!(tier.device.held(), CONNECTION_TICKETS_MAX);
    tier.device.release();
    let found = format!("VALUE {short_key} 0 {SHORT_LEN}\r\n{}\r\n", short());
    let answer = format!("{}VALUE a 0 1\r\n1\r\nEND\r\n", found.repeat(50));
    c.hear(format!("{answer}{answer}MN\r\n"));
    tier.stop();
}

#[test]
fn expected_bytes_count_as_queued() {
    let Some(tier) = SlowTier::new("") else { return };
    let mut c = tier.connect();
    c.say("get huge huge huge huge\r\nget a\r\nmn\r\n");
    wait_until("a read waits", || tier.device.held() > 0);
    hears_nothing(&mut c, &tier);
    // The kernel splits a read whose bytes are not at the start of a page.
    assert!(tier.device.held() <= 2, "{}", tier.device.held());
    tier.device.release();
    let answer = format!("VALUE huge 0 1000000\r\n{}\r\n", huge());
    c.hear(format!("{}END\r\nVALUE a 0 1\r\n1\r\nEND\r\nMN\r\n", answer.repeat(4)));
    tier.stop();
}

/// Clients that request more reads than a worker has tickets for.
fn greedy(tier: &SlowTier) -> Vec<Client<TcpStream>> {
    let mut greedy: Vec<Client<TcpStream>> =
        (0..TICKETS_MAX / CONNECTION_TICKETS_MAX + 4).map(|_| tier.connect()).collect();
    greedy
        .iter_mut()
        .for_each(|c| c.say(format!("mg {} s u\r\n", tier.short).repeat(CONNECTION_TICKETS_MAX)));
    // The others wait in the worker.
    tier.device.wait_for_held(FLASH_READS_MAX as usize);
    // Each has had its turns.
    let mut c = tier.connect();
    (0..100).for_each(|_| c.request("mn\r\n", "MN\r\n"));
    greedy
}

#[test]
fn reads_wait_within_their_line_while_the_worker_has_too_many() {
    let Some(tier) = SlowTier::new("") else { return };
    let mut greedy = greedy(&tier);
    let mut waiting: Vec<_> = (0..3).map(|_| tier.connect()).collect();
    waiting[0].say("get a on-2 a\r\nmn\r\n");
    waiting[1].say("get on-2 a\r\nmn\r\n");
    waiting[2].say("mg on-2 v\r\nmn\r\n");
    waiting[0].hear("VALUE a 0 1\r\n1\r\n");
    waiting.iter_mut().for_each(|c| hears_nothing(c, &tier));
    tier.device.release();
    let rest = format!("{}VALUE a 0 1\r\n1\r\nEND\r\nMN\r\n", found(2));
    waiting[0].hear(&rest);
    waiting[1].hear(&rest);
    waiting[2].hear(format!("VA {LEN}\r\n{}\r\nMN\r\n", value(2)));
    greedy.iter_mut().for_each(|c| c.hear(format!("HD s{SHORT_LEN}\r\n").repeat(CONNECTION_TICKETS_MAX)));
    tier.stop();
}

#[test]
fn clients_are_not_punished_while_the_device_is_slow() {
    let Some(tier) = SlowTier::new("--stall-timeout 1 -o idle_timeout=1") else { return };
    let long = "z".repeat(20_000);
    let mut c = tier.connect();
    // The long value behind the pending one stays pinned.
    c.request(format!("set long 0 0 20000\r\n{long}\r\n"), "STORED\r\n");
    c.say("get on-1\r\nget long\r\n");
    tier.device.wait_for_held(1);
    let mut change = tier.connect();
    change.say("touch on-2 0\r\n");
    tier.device.wait_for_held(2);
    std::thread::sleep(Duration::from_millis(2500));
    tier.device.answer_all();
    c.hear(format!("{}END\r\nVALUE long 0 20000\r\n{long}\r\nEND\r\n", found(1)));
    change.hear("TOUCHED\r\n");
    wait_until("then they are idle for too long", || tier.connections() == 0);
    tier.stop();
}

#[test]
fn stops_answer_what_the_device_does_not() {
    let Some(mut tier) = SlowTier::new("") else { return };
    let mut c = tier.connect();
    c.say("mg on-1 v\r\n");
    tier.device.wait_for_held(1);
    tier.server.signal(Signal::TERM);
    c.hear("EN\r\n");
    c.hear_end();
    tier.device.release();
    tier.wait();
}

#[test]
fn lists_of_keys_end_if_the_device_does_not_answer() {
    let Some(tier) = SlowTier::new("") else { return };
    const ERROR: &str = "SERVER_ERROR the flash device does not answer\r\n";
    let mut lists = ["lru_crawler metadump all\r\n", "lru_crawler mgdump all\r\n", "stats cachedump 1 0\r\n"]
        .map(|request| {
            let mut c = tier.connect();
            c.say(format!("{request}get a\r\n"));
            c
        });
    // One whose client leaves.
    let mut left = tier.connect();
    left.say("lru_crawler mgdump all\r\n");
    wait_until("they read", || tier.device.held() > 0);
    drop(left);
    let began = Instant::now();
    for c in &mut lists {
        let answer = c.hear_until("1\r\nEND\r\n");
        assert!(answer.ends_with(&format!("{ERROR}VALUE a 0 1\r\n1\r\nEND\r\n")), "{answer:?}");
    }
    let took = began.elapsed();
    assert!(took < TICKET_TIME_MAX + Duration::from_secs(3), "{took:?}");
    // Reads that had not begun are dropped, those of the client that left too.
    std::thread::sleep(Duration::from_millis(200));
    assert!(tier.device.held() <= FLASH_READS_MAX as usize);
    tier.device.answer_all();
    wait_until("no further read comes", || tier.device.held() == 0);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(tier.device.held(), 0);
    tier.device.release();
    lists[0].say("lru_crawler mgdump all\r\n");
    assert!(lists[0].hear_until("\nEN\r\n").contains("mg on-1\r\n"));
    tier.stop();
}

#[test]
fn lists_of_keys_wait_while_reads_end() {
    let Some(tier) = SlowTier::new("") else { return };
    let mut c = tier.connect();
    c.say("lru_crawler mgdump all\r\n");
    // Longer than without an answer.
    for _ in 0..3 {
        wait_until("it reads", || tier.device.held() > 0);
        std::thread::sleep(TICKET_TIME_MAX / 2);
        tier.device.answer_first();
    }
    tier.device.release();
    assert!(c.hear_until("\nEN\r\n").contains("mg on-1\r\n"));
    tier.stop();
}

/// A tier whose server receives datagrams too.
fn with_datagrams() -> Option<(SlowTier, UdpClient)> {
    let tier = SlowTier::new("-U -1")?;
    let udp = UdpClient::new(tier.server.addresses()[1]);
    Some((tier, udp))
}

#[test]
fn datagrams_are_answered_when_their_reads_end() {
    let Some((tier, udp)) = with_datagrams() else { return };
    udp.say(1, "mg on-1 v\r\nmg on-2 v q\r\nmn\r\nmg on-3 v\r\n");
    udp.say(2, "set b 0 0 1\r\n2\r\ntouch on-4 0\r\nget a b\r\n");
    tier.device.wait_for_held(4);
    udp.request(4, "get a b\r\n", "VALUE a 0 1\r\n1\r\nVALUE b 0 1\r\n2\r\nEND\r\n");
    tier.answer(3);
    tier.fail(2);
    udp.request(5, "mn\r\n", "MN\r\n");
    tier.answer(1);
    assert_eq!(
        udp.hear(1),
        format!("VA {LEN}\r\n{}\r\nMN\r\nVA {LEN}\r\n{}\r\n", value(1), value(3)).into_bytes()
    );
    udp.request(6, "mn\r\n", "MN\r\n");
    tier.answer(4);
    assert_eq!(udp.hear(2), b"STORED\r\nTOUCHED\r\nVALUE a 0 1\r\n1\r\nVALUE b 0 1\r\n2\r\nEND\r\n");
    wait_until("no connection is left", || tier.connections() == 0);
    tier.stop();
}

#[test]
fn datagrams_beyond_the_bound_get_no_answer() {
    let Some((tier, udp)) = with_datagrams() else { return };
    for id in 0..=PENDING_DATAGRAMS_MAX as u16 {
        udp.say(id, "mg on-1 s u\r\n");
    }
    tier.device.wait_for_held(PENDING_DATAGRAMS_MAX + 1);
    udp.request(100, "mn\r\n", "MN\r\n");
    tier.device.answer_all();
    let mut answered: Vec<u16> = (0..PENDING_DATAGRAMS_MAX).map(|_| udp.hear_next().0).collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..PENDING_DATAGRAMS_MAX as u16).collect::<Vec<_>>());
    // Then there is room again.
    udp.say(101, "mg on-1 s u\r\n");
    tier.device.wait_for_held(1);
    tier.device.answer_all();
    assert_eq!(udp.hear(101), format!("HD s{LEN}\r\n").into_bytes());
    tier.stop();
}

#[test]
fn datagrams_expire_and_stop_with_their_reads() {
    let Some((mut tier, udp)) = with_datagrams() else { return };
    udp.say(1, "mg on-1 v\r\nmn\r\n");
    tier.device.wait_for_held(1);
    assert_eq!(udp.hear(1), b"EN\r\nMN\r\n");
    tier.device.answer_all();
    udp.say(2, "mg on-2 v\r\n");
    tier.device.wait_for_held(1);
    tier.server.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(50));
    tier.device.release();
    assert_eq!(udp.hear(2), format!("VA {LEN}\r\n{}\r\n", value(2)).into_bytes());
    tier.wait();
}

#[test]
fn datagrams_get_no_answer_while_the_worker_has_too_many_reads() {
    let Some((tier, udp)) = with_datagrams() else { return };
    let mut greedy = greedy(&tier);
    udp.say(1, "mn\r\nmg on-2 v\r\n");
    udp.request(2, "mn\r\n", "MN\r\n");
    tier.device.release();
    greedy.iter_mut().for_each(|c| c.hear(format!("HD s{SHORT_LEN}\r\n").repeat(CONNECTION_TICKETS_MAX)));
    udp.request(3, "mn\r\n", "MN\r\n");
    tier.stop();
}

#[test]
fn while_writes_stall_memory_evicts() {
    let Some((slow, mut server)) = start_on_slow_device("-m 8") else { return };
    slow.hold_writes(HEADER_AREA_BYTES);
    let mut c = connect(server.address());
    c.fill_with("before", 20 << 20);
    assert!(slow.held() > 0);
    assert_eq!(c.count("fabcache", "flash_items"), 0);
    assert!(c.count("", "evictions") > 0);
    c.request("set a 0 0 1\r\n1\r\nget a\r\n", "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
    slow.release();
    wait_until("the held writes end", || c.count("fabcache", "flash_items") > 0);
    let items = c.count("fabcache", "flash_items");
    c.fill_with("after", 20 << 20);
    c.settle();
    assert!(c.count("fabcache", "flash_items") > items);
    server.signal(Signal::TERM);
    assert!(server.wait().success(), "{}", server.log());
}

#[test]
fn keys_of_one_command_share_its_time() {
    let Some(tier) = SlowTier::new("") else { return };
    let mut c = tier.connect();
    let began = Instant::now();
    c.say("gat 0 on-0 on-1 on-2\r\nmn\r\n");
    let answer = c.hear_until_noop();
    assert_eq!(answer.matches("SERVER_ERROR the flash device does not answer\r\n").count(), 3, "{answer}");
    assert!((TICKET_TIME_MAX..TICKET_TIME_MAX * 2).contains(&began.elapsed()), "{:?}", began.elapsed());
    // The next command has its own.
    tier.device.release();
    c.request("gat 0 on-3\r\n", found(3) + "END\r\n");
    tier.stop();
}
