//! Answers that another thread completes: their order, late and missing completions, and the bounds.

mod common;

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Client, Scratch, TestServer, UdpClient, packet, serve, wait_until};
use fabcache_protocol::{Item, Reply};
use fabcache_server::bounds::{
    CONNECTION_TICKETS_MAX, PENDING_DATAGRAMS_MAX, PINNING_STILL_MAX, TICKETS_MAX,
};
use fabcache_server::deferred_reads::DeferredRead;
use fabcache_server::housekeeping::Task;
use fabcache_server::worker::inbox::{Answer, Ticket};

const DONE: Answer = Answer::Reply(Reply::Ok);

/// A server with one worker. The test completes the housekeeper's tasks instead of it, and reads of keys that begin with
/// `slow` or `huge`.
struct Completer {
    server: TestServer,
    requests: Vec<Ticket>,
}

impl Completer {
    fn start() -> Completer {
        Completer::with("")
    }

    fn with(flags: &str) -> Completer {
        let server = serve(&format!("-t 1 {flags}"));
        server.server().shared().housekeeping.stop();
        server.server().shared().deferred_reads.select(|key| match key {
            [b's', b'l', b'o', b'w', ..] => Some(10),
            [b'h', b'u', b'g', b'e', ..] => Some(1 << 20),
            _ => None,
        });
        let completer = Completer { server, requests: Vec::new() };
        completer.store_long_values();
        completer
    }

    /// Stores what is to be deferred: reads of short values and of none are answered at once.
    fn store_long_values(&self) {
        let mut client = self.server.connect();
        let long = "x".repeat(20_000);
        for key in ["slow1", "slow2", "slow3", "slow4", "huge"] {
            client.request(format!("set {key} 0 0 20000\r\n{long}\r\n"), "STORED\r\n");
        }
        drop(client);
        wait_until("the connection closes", || self.connections() == 0);
    }

    /// Waits for the next task of the housekeeper.
    fn next(&mut self) -> Ticket {
        let housekeeping = &self.server.server().shared().housekeeping;
        wait_until("a task is requested", || {
            self.requests.extend(housekeeping.take_tasks().into_iter().map(Task::into_ticket));
            !self.requests.is_empty()
        });
        self.requests.remove(0)
    }

    /// Connects a client that has stored `a`.
    fn client(&self) -> Client<TcpStream> {
        let mut client = self.server.connect();
        client.request("set a 0 0 1\r\n1\r\n", "STORED\r\n");
        client
    }

    /// Waits for so many reads.
    fn reads(&self, count: usize) -> Vec<DeferredRead> {
        let mut reads = Vec::new();
        wait_until("values are requested", || {
            reads.extend(self.server.server().shared().deferred_reads.take());
            reads.len() >= count
        });
        assert_eq!(reads.len(), count);
        reads
    }

    /// Requests a flush, and breaks the connection before it completes.
    fn orphan(&mut self) -> Ticket {
        let before = self.connections();
        let mut client = self.server.connect();
        client.say("version\r\nflush_all\r\n");
        let request = self.next();
        // The answer arrives, and is never read: the socket's end is a reset.
        client.stream.peek(&mut [0]).expect("a version");
        drop(client);
        wait_until("the connection closes", || self.connections() == before);
        request
    }

    fn connections(&self) -> u32 {
        self.server.server().shared().connections_now.load(Ordering::Relaxed)
    }
}

/// Completes a read with this value.
fn find(read: DeferredRead, value: impl Into<Vec<u8>>) {
    read.ticket.complete(Answer::Value(Item { flags: 7, ..Item::default() }, value.into()));
}

/// Asserts that the client has received nothing, though the worker has served another client since.
fn hears_nothing(client: &mut Client<TcpStream>, server: &TestServer) {
    for _ in 0..2 {
        server.connect().request("get other\r\n", "END\r\n");
    }
    client.stream.set_nonblocking(true).expect("a socket");
    let error = client.stream.read(&mut [0; 64]).expect_err("no answer is due");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    client.stream.set_nonblocking(false).expect("a socket");
}

#[test]
fn pipelined_requests_keep_their_order_around_a_pending_answer() {
    let mut completer = Completer::start();
    let mut client = completer.server.connect();
    client.say("set a 0 0 1\r\n1\r\nget a\r\nflush_all\r\nset a 0 0 1\r\n2\r\nget a\r\nflush_all\r\nmn\r\n");
    client.hear("STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
    let first = completer.next();
    hears_nothing(&mut client, &completer.server);
    // The set waits, as the flush would else remove its item.
    completer.server.connect().request("get a\r\n", "VALUE a 0 1\r\n1\r\nEND\r\n");
    first.complete(DONE);
    client.hear("OK\r\nSTORED\r\nVALUE a 0 1\r\n2\r\nEND\r\n");
    let second = completer.next();
    hears_nothing(&mut client, &completer.server);
    second.complete(DONE);
    client.hear("OK\r\nMN\r\n");
}

#[test]
fn pipelined_flush_removes_items_stored_before_and_none_stored_after() {
    let server = serve("-t 2");
    let mut client = server.connect();
    for _ in 0..100 {
        client.request(
            "set a 0 0 1\r\n1\r\nflush_all\r\nget a\r\nset a 0 0 1\r\n2\r\nflush_all 1000 noreply\r\nget a\r\n",
            "STORED\r\nOK\r\nEND\r\nSTORED\r\nVALUE a 0 1\r\n2\r\nEND\r\n",
        );
    }
}

#[test]
fn request_without_a_reply_holds_its_position() {
    let mut completer = Completer::start();
    let mut client = completer.server.connect();
    client.say("flush_all noreply\r\nget a\r\nflush_all noreply\r\nquit\r\n");
    let first = completer.next();
    hears_nothing(&mut client, &completer.server);
    first.complete(DONE);
    client.hear("END\r\n");
    let second = completer.next();
    second.complete(DONE);
    client.hear_end();
}

#[test]
fn abandoned_request_is_an_error() {
    let mut completer = Completer::start();
    let mut client = completer.server.connect();
    client.say("flush_all\r\nmn\r\n");
    drop(completer.next());
    client.hear("SERVER_ERROR flush_all takes too long\r\nMN\r\n");
}

#[test]
fn expired_request_is_an_error_and_its_late_completion_is_ignored() {
    let mut completer = Completer::start();
    let mut client = completer.server.connect();
    client.say("flush_all\r\nmn\r\nflush_all\r\n");
    let late = completer.next();
    client.hear("SERVER_ERROR flush_all takes too long\r\nMN\r\n");
    let next = completer.next();
    assert_ne!(late.id().index, next.id().index, "the late one has not returned");
    late.complete(DONE);
    hears_nothing(&mut client, &completer.server);
    next.complete(DONE);
    client.hear("OK\r\n");
}

#[test]
fn completion_after_a_close_meets_no_other_connection() {
    let mut completer = Completer::start();
    let orphan = completer.orphan();
    let turns = completer.server.server().shared().sums().turns;
    assert!(turns < 1000, "the reset socket kept the worker busy for {turns} turns");
    let mut client = completer.server.connect();
    client.say("flush_all\r\n");
    let next = completer.next();
    orphan.complete(DONE);
    hears_nothing(&mut client, &completer.server);
    next.complete(DONE);
    client.hear("OK\r\n");
}

#[test]
fn broken_client_is_noticed_while_its_answer_is_pending() {
    let engines: &[&str] = if fabcache_uring::probe().is_ok() { &["epoll", "io_uring"] } else { &["epoll"] };
    for engine in engines {
        let mut completer = Completer::with(&format!("--engine {engine}"));
        let mut client = completer.server.connect();
        client.say("flush_all\r\n");
        let earlier = completer.next();
        let orphan = completer.orphan();
        // It has ended before the earlier request's time was over, so before its own.
        hears_nothing(&mut client, &completer.server);
        earlier.complete(DONE);
        client.hear("OK\r\n");
        drop(orphan);
    }
}

#[test]
fn without_a_ticket_a_request_waits_and_others_are_served() {
    let mut completer = Completer::start();
    let mut orphans: Vec<Ticket> = (0..TICKETS_MAX).map(|_| completer.orphan()).collect();
    let mut client = completer.server.connect();
    client.say("get a\r\nflush_all\r\nmn\r\n");
    client.hear("END\r\n");
    hears_nothing(&mut client, &completer.server);
    assert!(completer.server.server().shared().housekeeping.take_tasks().is_empty());
    orphans.pop();
    let request = completer.next();
    request.complete(DONE);
    client.hear("OK\r\nMN\r\n");
}

#[test]
fn stop_waits_for_pending_answers() {
    let mut completer = Completer::start();
    let orphan = completer.orphan();
    let mut client = completer.server.connect();
    client.say("flush_all\r\n");
    let pending = completer.next();
    let server = completer.server;
    let stopping = std::thread::spawn(move || server.stop());
    std::thread::sleep(Duration::from_millis(50));
    pending.complete(DONE);
    client.hear("OK\r\n");
    client.hear_end();
    stopping.join().expect("stopped");
    orphan.complete(DONE);
}

#[test]
fn keys_that_are_not_ready_hold_their_positions() {
    let completer = Completer::with("-C");
    let mut client = completer.client();
    let long = "y".repeat(100_000);
    client
        .say("get a slow1 a slow2 gone\r\nget a\r\ngets slow2 a slow1\r\nmg slow1 v\r\nget slow1\r\nmn\r\n");
    client.hear("VALUE a 0 1\r\n1\r\n");
    let mut reads = completer.reads(6);
    let keys: Vec<&[u8]> = reads.iter().map(|read| &*read.key).collect();
    assert_eq!(keys, [b"slow1", b"slow2", b"slow2", b"slow1", b"slow1", b"slow1"]);
    hears_nothing(&mut client, &completer.server);
    // In another order than that of the requests.
    drop(reads.pop());
    find(reads.remove(3), "four");
    find(reads.remove(1), "two");
    find(reads.remove(2), long.clone());
    hears_nothing(&mut client, &completer.server);
    find(reads.remove(0), "one");
    client.hear("VALUE slow1 7 3\r\none\r\nVALUE a 0 1\r\n1\r\nVALUE slow2 7 3\r\ntwo\r\nEND\r\n");
    client.hear("VALUE a 0 1\r\n1\r\nEND\r\n");
    hears_nothing(&mut client, &completer.server);
    reads.remove(0).ticket.complete(Answer::Reply(Reply::Miss));
    client.hear("VALUE a 0 1 0\r\n1\r\nVALUE slow1 7 4 0\r\nfour\r\nEND\r\n");
    client.hear(format!("VA 100000\r\n{long}\r\nEND\r\nMN\r\n"));
}

#[test]
fn quiet_requests_are_decided_at_their_completion() {
    let mut completer = Completer::start();
    let mut client = completer.server.connect();
    client.say("mg slow1 v q k O1\r\nmg slow2 v q k O2\r\nmg slow3 v O3\r\nmn\r\n");
    let mut reads = completer.reads(3);
    drop(reads.pop());
    reads.remove(0).ticket.complete(Answer::Reply(Reply::Miss));
    hears_nothing(&mut client, &completer.server);
    find(reads.remove(0), "two");
    client.hear("VA 3 kslow2 O2\r\ntwo\r\nEN O3\r\nMN\r\n");

    let mut client = completer.server.connect();
    // GetQ twice, GetKQ, Get, FlushQ, Noop
    let gets = [(0x09, "slow1"), (0x09, "slow2"), (0x0d, "slow3"), (0x00, "slow4")];
    gets.iter().for_each(|(opcode, key)| client.say(packet(*opcode, &[], key.as_bytes(), &[], 0)));
    client.say([packet(0x18, &[], &[], &[], 0), packet(0x0a, &[], &[], &[], 0)].concat());
    let mut reads = completer.reads(4);
    drop(reads.remove(0));
    find(reads.remove(1), "three");
    find(reads.remove(0), "two");
    let answers = [client.hear_packet(), client.hear_packet()];
    assert_eq!(answers.each_ref().map(|answer| answer.opcode), [0x09, 0x0d]);
    assert_eq!(answers.each_ref().map(|answer| &*answer.key), [&b""[..], b"slow3"]);
    assert_eq!(answers.each_ref().map(|answer| &*answer.value), [&b"two"[..], b"three"]);
    drop(reads);
    let miss = client.hear_packet();
    assert_eq!((miss.opcode, miss.status), (0x00, 1));
    hears_nothing(&mut client, &completer.server);
    completer.next().complete(DONE);
    assert_eq!(client.hear_packet().opcode, 0x0a);
}

#[test]
fn expired_read_is_a_miss_and_its_late_value_reaches_nobody() {
    let completer = Completer::start();
    let mut client = completer.client();
    client.say("get a slow1 a\r\nmg slow2 v\r\nmn\r\n");
    let late = completer.reads(2);
    client.hear("VALUE a 0 1\r\n1\r\nVALUE a 0 1\r\n1\r\nEND\r\nEN\r\nMN\r\n");
    client.say("get slow1\r\n");
    let next = completer.reads(1).remove(0);
    late.into_iter().for_each(|read| find(read, "late"));
    hears_nothing(&mut client, &completer.server);
    find(next, "new");
    client.hear("VALUE slow1 7 3\r\nnew\r\nEND\r\n");
    let counts = ["cmd_get", "get_hits", "get_misses", "cmd_meta"].map(|name| client.count("", name));
    // With those of other clients.
    assert_eq!(counts, [5 + 2, 3, 2 + 2, 1]);
}

#[test]
fn value_that_completes_after_a_close_reaches_nobody() {
    let completer = Completer::start();
    let mut client = completer.server.connect();
    client.say("version\r\nmg slow1 v\r\n");
    let orphan = completer.reads(1).remove(0);
    client.stream.peek(&mut [0]).expect("a version");
    drop(client);
    wait_until("the connection closes", || completer.connections() == 0);
    let mut client = completer.server.connect();
    client.say("mg slow1 v\r\n");
    let next = completer.reads(1).remove(0);
    find(orphan, "orphan");
    hears_nothing(&mut client, &completer.server);
    find(next, "own");
    client.hear("VA 3\r\nown\r\n");
}

#[test]
fn connection_with_too_many_pending_answers_waits() {
    let completer = Completer::start();
    let mut client = completer.client();
    let keys = " slow1".repeat(50);
    client.say(format!("get{keys} a\r\nget{keys} a\r\nmn\r\n"));
    let first = completer.reads(CONNECTION_TICKETS_MAX);
    hears_nothing(&mut client, &completer.server);
    assert!(completer.server.server().shared().deferred_reads.take().is_empty());
    drop(first);
    drop(completer.reads(100 - CONNECTION_TICKETS_MAX));
    client.hear("VALUE a 0 1\r\n1\r\nEND\r\nVALUE a 0 1\r\n1\r\nEND\r\nMN\r\n");
}

#[test]
fn expected_bytes_count_as_queued_until_the_answer_is_there() {
    let completer = Completer::start();
    let mut client = completer.client();
    client.say("get huge huge\r\nget a\r\nmn\r\n");
    for _ in 0..2 {
        let read = completer.reads(1).remove(0);
        hears_nothing(&mut client, &completer.server);
        assert!(completer.server.server().shared().deferred_reads.take().is_empty());
        find(read, "short");
        client.hear("VALUE huge 7 5\r\nshort\r\n");
    }
    client.hear("END\r\nVALUE a 0 1\r\n1\r\nEND\r\nMN\r\n");
}

#[test]
fn without_a_ticket_a_read_waits_within_its_line() {
    let completer = Completer::start();
    let mut client = completer.client();
    let mut greedy: Vec<Client<TcpStream>> =
        (0..TICKETS_MAX / CONNECTION_TICKETS_MAX).map(|_| completer.server.connect()).collect();
    greedy.iter_mut().for_each(|client| client.say("mg slow1 v\r\n".repeat(CONNECTION_TICKETS_MAX)));
    let mut taken = completer.reads(TICKETS_MAX);
    let mut other = completer.server.connect();
    let mut third = completer.server.connect();
    client.say("get a slow1 a\r\nmn\r\n");
    other.say("get slow1 a\r\nmn\r\n");
    third.say("mg slow1 v\r\nmn\r\n");
    client.hear("VALUE a 0 1\r\n1\r\n");
    for waiting in [&mut client, &mut other, &mut third] {
        hears_nothing(waiting, &completer.server);
    }
    assert!(completer.server.server().shared().deferred_reads.take().is_empty());
    taken.truncate(TICKETS_MAX - 1);
    find(completer.reads(1).remove(0), "1");
    // Its ticket is the next one's.
    find(completer.reads(1).remove(0), "1");
    find(completer.reads(1).remove(0), "1");
    client.hear("VALUE slow1 7 1\r\n1\r\nVALUE a 0 1\r\n1\r\nEND\r\nMN\r\n");
    other.hear("VALUE slow1 7 1\r\n1\r\nVALUE a 0 1\r\n1\r\nEND\r\nMN\r\n");
    third.hear("VA 1\r\n1\r\nMN\r\n");
    drop(taken);
    greedy.iter_mut().for_each(|client| client.hear("EN\r\n".repeat(CONNECTION_TICKETS_MAX)));
    assert_eq!(client.count("", "cmd_meta"), TICKETS_MAX as u64 + 1);
}

#[test]
fn client_is_not_punished_while_the_server_is_slow() {
    let completer = Completer::with("--stall-timeout 1 -o idle_timeout=1");
    let mut client = completer.client();
    // The long value behind the pending one stays pinned.
    client.request(format!("set long 0 0 20000\r\n{}\r\n", "z".repeat(20_000)), "STORED\r\n");
    client.say("get slow1\r\nget long\r\n");
    let read = completer.reads(1).remove(0);
    let shared = completer.server.server().shared();
    assert_eq!(shared.store.usage().segments_pinned, 1);
    std::thread::sleep(PINNING_STILL_MAX * 2);
    shared.want_pins();
    std::thread::sleep(Duration::from_millis(2500));
    find(read, "1");
    client.hear("VALUE slow1 7 1\r\n1\r\nEND\r\nVALUE long 0 20000\r\n");
    client.hear(format!("{}\r\nEND\r\n", "z".repeat(20_000)));
    wait_until("then it is idle for too long", || completer.connections() == 0);
}

#[test]
fn stop_ends_though_tickets_never_return() {
    let completer = Completer::start();
    let mut client = completer.server.connect();
    client.say("mg slow1 v\r\n");
    let read = completer.reads(1).remove(0);
    completer.server.stop();
    client.hear("EN\r\n");
    client.hear_end();
    find(read, "late");
}

/// Starts a completer whose server receives datagrams too.
fn with_datagrams() -> (Completer, UdpClient) {
    let completer = Completer::with("-U -1");
    let udp = UdpClient::new(completer.server.addresses()[1]);
    (completer, udp)
}

#[test]
fn datagrams_are_answered_when_their_tickets_return() {
    let (mut completer, udp) = with_datagrams();
    udp.say(1, "mg slow1 v\r\nmg slow2 v q\r\nmn\r\nmg slow3 v\r\n");
    udp.say(2, "set a 0 0 1\r\n1\r\nflush_all\r\nset b 0 0 1\r\n2\r\nget a b\r\nflush_all noreply\r\n");
    udp.say(3, "flush_all noreply\r\n");
    udp.request(4, "get a b\r\n", "VALUE a 0 1\r\n1\r\nEND\r\n");
    let mut reads = completer.reads(3);
    find(reads.pop().expect("three"), "3");
    let long = "y".repeat(5000);
    find(reads.remove(0), long.clone());
    udp.request(5, "mn\r\n", "MN\r\n");
    reads.remove(0).ticket.complete(Answer::Reply(Reply::Miss));
    assert_eq!(udp.hear(1), format!("VA 5000\r\n{long}\r\nMN\r\nVA 1\r\n3\r\n").into_bytes());
    completer.next().complete(DONE);
    completer.next().complete(DONE);
    udp.request(6, "mn\r\n", "MN\r\n");
    completer.next().complete(DONE);
    assert_eq!(udp.hear(2), b"STORED\r\nOK\r\nSTORED\r\nVALUE a 0 1\r\n1\r\nVALUE b 0 1\r\n2\r\nEND\r\n");
    assert_eq!(completer.connections(), 0);
    completer.server.stop();
}

#[test]
fn datagrams_beyond_the_bound_get_no_answer() {
    let (completer, udp) = with_datagrams();
    for id in 0..=PENDING_DATAGRAMS_MAX as u16 {
        udp.say(id, "mg slow1 v\r\n");
    }
    let mut reads = completer.reads(PENDING_DATAGRAMS_MAX + 1);
    find(reads.pop().expect("one of them"), "dropped");
    udp.request(100, "mn\r\n", "MN\r\n");
    reads.into_iter().for_each(|read| find(read, "1"));
    for id in 0..PENDING_DATAGRAMS_MAX as u16 {
        assert_eq!(udp.hear(id), b"VA 1\r\n1\r\n");
    }
    // Then there is room again.
    udp.say(101, "mg slow1 v\r\n");
    find(completer.reads(1).remove(0), "2");
    assert_eq!(udp.hear(101), b"VA 1\r\n2\r\n");
}

#[test]
fn datagrams_expire_and_stop_with_their_tickets() {
    let (completer, udp) = with_datagrams();
    udp.say(1, "mg slow1 v\r\nmn\r\n");
    let late = completer.reads(1).remove(0);
    assert_eq!(udp.hear(1), b"EN\r\nMN\r\n");
    find(late, "late");
    udp.say(2, "mg slow1 v\r\n");
    let pending = completer.reads(1).remove(0);
    let server = completer.server;
    let stopping = std::thread::spawn(move || server.stop());
    std::thread::sleep(Duration::from_millis(50));
    find(pending, "2");
    assert_eq!(udp.hear(2), b"VA 1\r\n2\r\n");
    stopping.join().expect("stopped");
}

#[test]
fn datagram_without_a_ticket_gets_no_answer() {
    let (completer, udp) = with_datagrams();
    let mut greedy: Vec<Client<TcpStream>> =
        (0..TICKETS_MAX / CONNECTION_TICKETS_MAX).map(|_| completer.server.connect()).collect();
    greedy.iter_mut().for_each(|client| client.say("mg slow1 v\r\n".repeat(CONNECTION_TICKETS_MAX)));
    let taken = completer.reads(TICKETS_MAX);
    udp.say(1, "mn\r\nmg slow1 v\r\n");
    udp.request(2, "mn\r\n", "MN\r\n");
    drop(taken);
    greedy.iter_mut().for_each(|client| client.hear("EN\r\n".repeat(CONNECTION_TICKETS_MAX)));
    assert!(completer.server.server().shared().deferred_reads.take().is_empty());
}

#[test]
fn work_that_may_take_long_is_no_workers() {
    let scratch = Scratch::new("tickets");
    let authority = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let chain = scratch.file("chain.pem", &authority.cert.pem());
    let key = scratch.file("key.pem", &authority.signing_key.serialize_pem());
    let tls = format!(
        "-Z -l notls:127.0.0.1,127.0.0.1 -o ssl_chain_cert={},ssl_key={}",
        chain.display(),
        key.display()
    );
    let mut completer = Completer::with(&tls);
    let mut client = completer.server.connect();
    for request in ["flush_all", "cache_memlimit 32", "refresh_certs"] {
        client.say(format!("{request}\r\nmn\r\n"));
        let ticket = completer.next();
        hears_nothing(&mut client, &completer.server);
        ticket.complete(DONE);
        client.hear("OK\r\nMN\r\n");
    }
    // A wrong limit needs no work.
    client.request(
        "cache_memlimit 4\r\nmn\r\n",
        "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\nMN\r\n",
    );
}
