//! Answers that another thread completes: their order, late and missing completions, and the bounds.

mod common;

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Client, TestServer, serve, wait_until};
use fabcache_protocol::Reply;
use fabcache_server::bounds::TICKETS_MAX;
use fabcache_server::housekeeping::FlushRequest;

/// A server with one worker, whose flushes the test completes instead of the housekeeper.
struct Completer {
    server: TestServer,
    requests: Vec<FlushRequest>,
}

impl Completer {
    fn start() -> Completer {
        let server = serve("-t 1");
        server.server().shared().housekeeping.stop();
        Completer { server, requests: Vec::new() }
    }

    /// Waits for the next flush.
    fn next(&mut self) -> FlushRequest {
        let housekeeping = &self.server.server().shared().housekeeping;
        wait_until("a flush is requested", || {
            self.requests.extend(housekeeping.take_flushes());
            !self.requests.is_empty()
        });
        self.requests.remove(0)
    }

    /// Requests a flush, and breaks the connection before it completes.
    fn orphan(&mut self) -> FlushRequest {
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
    first.ticket.complete(Reply::Ok);
    client.hear("OK\r\nSTORED\r\nVALUE a 0 1\r\n2\r\nEND\r\n");
    let second = completer.next();
    hears_nothing(&mut client, &completer.server);
    second.ticket.complete(Reply::Ok);
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
    first.ticket.complete(Reply::Ok);
    client.hear("END\r\n");
    let second = completer.next();
    second.ticket.complete(Reply::Ok);
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
    assert_ne!(late.ticket.id().index, next.ticket.id().index, "the late one has not returned");
    late.ticket.complete(Reply::Ok);
    hears_nothing(&mut client, &completer.server);
    next.ticket.complete(Reply::Ok);
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
    orphan.ticket.complete(Reply::Ok);
    hears_nothing(&mut client, &completer.server);
    next.ticket.complete(Reply::Ok);
    client.hear("OK\r\n");
}

#[test]
fn without_a_ticket_a_request_waits_and_others_are_served() {
    let mut completer = Completer::start();
    let mut orphans: Vec<FlushRequest> = (0..TICKETS_MAX).map(|_| completer.orphan()).collect();
    let mut client = completer.server.connect();
    client.say("get a\r\nflush_all\r\nmn\r\n");
    client.hear("END\r\n");
    hears_nothing(&mut client, &completer.server);
    assert!(completer.server.server().shared().housekeeping.take_flushes().is_empty());
    orphans.pop();
    let request = completer.next();
    request.ticket.complete(Reply::Ok);
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
    pending.ticket.complete(Reply::Ok);
    client.hear("OK\r\n");
    client.hear_end();
    stopping.join().expect("stopped");
    orphan.ticket.complete(Reply::Ok);
}
