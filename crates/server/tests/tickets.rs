//! Answers that another thread completes: their order, late and missing completions, and the bounds.

mod common;

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Client, Scratch, TestServer, UdpClient, serve, wait_until};
use fabcache_protocol::Reply;
use fabcache_server::bounds::TICKETS_MAX;
use fabcache_server::housekeeping::Task;
use fabcache_server::worker::inbox::{Answer, Ticket};
use fabcache_testbed::io_uring::engines;

const DONE: Answer = Answer::Reply(Reply::Ok);

/// A server with one worker. The test completes the housekeeper's tasks instead of it.
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
        Completer { server, requests: Vec::new() }
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
    for engine in engines() {
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
fn datagrams_are_answered_when_their_tickets_return() {
    let mut completer = Completer::with("-U -1");
    let udp = UdpClient::new(completer.server.addresses()[1]);
    udp.say(2, "set a 0 0 1\r\n1\r\nflush_all\r\nset b 0 0 1\r\n2\r\nget a b\r\nflush_all noreply\r\n");
    udp.say(3, "flush_all noreply\r\n");
    udp.request(4, "get a b\r\n", "VALUE a 0 1\r\n1\r\nEND\r\n");
    completer.next().complete(DONE);
    completer.next().complete(DONE);
    udp.request(6, "mn\r\n", "MN\r\n");
    completer.next().complete(DONE);
    assert_eq!(udp.hear(2), b"STORED\r\nOK\r\nSTORED\r\nVALUE a 0 1\r\n1\r\nVALUE b 0 1\r\n2\r\nEND\r\n");
    assert_eq!(completer.connections(), 0);
    completer.server.stop();
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
