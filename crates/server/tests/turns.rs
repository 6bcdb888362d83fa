//! Turns: how many sends answer a pipeline.

mod common;

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{TestServer, serve, wait_until};
use fabcache_server::bounds::{GATHERED_BYTES_MAX, QUEUED_BYTES_MAX};
use fabcache_server::worker::inbox::NewLink;
use fabcache_transport::memory::{MemoryLink, MemoryPeer, pair};
use fabcache_transport::{Kind, Link, Peer, Received, StreamLink};

/// A link in memory that counts its sends.
struct CountingLink {
    link: MemoryLink,
    sends: Arc<AtomicU64>,
    /// The most bytes that one send was given.
    bytes_max: Arc<AtomicU64>,
}

impl Link for CountingLink {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Received> {
        self.link.receive(into)
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.sends.fetch_add(1, Ordering::Relaxed);
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        self.bytes_max.fetch_max(bytes, Ordering::Relaxed);
        self.link.send(parts)
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.link.flush()
    }

    fn has_unsent(&self) -> bool {
        self.link.has_unsent()
    }

    fn has_unread(&self) -> bool {
        self.link.has_unread()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.link.descriptor()
    }

    fn peer(&self) -> Peer {
        self.link.peer()
    }

    fn kind(&self) -> Kind {
        self.link.kind()
    }

    fn into_stream(self: Box<Self>) -> Result<StreamLink, Box<dyn Link>> {
        Err(self)
    }
}

/// A client that sees all its requests arrive at once.
struct PipelineClient {
    peer: MemoryPeer,
    sends: Arc<AtomicU64>,
    bytes_max: Arc<AtomicU64>,
}

impl PipelineClient {
    fn connect(server: &TestServer) -> PipelineClient {
        let (link, peer) = pair().expect("a descriptor");
        let (sends, bytes_max) = (Arc::default(), Arc::default());
        let shared = server.server().shared();
        // As a listener does.
        shared.connections_now.fetch_add(1, Ordering::Relaxed);
        shared.inboxes[0].count(1);
        let link =
            Box::new(CountingLink { link, sends: Arc::clone(&sends), bytes_max: Arc::clone(&bytes_max) });
        shared.inboxes[0].put(NewLink { link, listener: 0 });
        PipelineClient { peer, sends, bytes_max }
    }

    /// Sends requests, compares the answers, and returns the number of sends that these took.
    fn request(&self, requests: &str, answers: &str) -> u64 {
        let before = self.sends.load(Ordering::Relaxed);
        assert_eq!(self.peer.send(requests.as_bytes()).expect("the server serves"), requests.len());
        let (mut heard, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
        wait_until("the answers arrive", || {
            if let Received::Bytes(len) = self.peer.receive(&mut buffer) {
                heard.extend_from_slice(&buffer[..len]);
            }
            heard.len() >= answers.len()
        });
        assert_eq!(String::from_utf8_lossy(&heard), answers);
        self.sends.load(Ordering::Relaxed) - before
    }
}

fn repeated(count: usize, of: impl Fn(usize) -> String) -> String {
    (0..count).map(of).collect()
}

/// Requests and their answers: sets, gets and a multiget of `count` keys.
fn pipelines(count: usize) -> [(String, String); 3] {
    let value = |i| format!("VALUE key{i} 7 3\r\nabc\r\n");
    [
        (repeated(count, |i| format!("set key{i} 7 0 3\r\nabc\r\n")), "STORED\r\n".repeat(count)),
        (repeated(count, |i| format!("get key{i}\r\n")), repeated(count, |i| value(i) + "END\r\n")),
        (format!("get{}\r\n", repeated(count, |i| format!(" key{i}"))), repeated(count, value) + "END\r\n"),
    ]
}

#[test]
fn one_send_answers_what_one_receive_brought() {
    let server = serve("-t 1");
    let client = PipelineClient::connect(&server);
    for count in [1, 32, 200] {
        for (requests, answers) in pipelines(count) {
            assert_eq!(client.request(&requests, &answers), 1, "{requests}");
        }
    }
    assert_eq!(server.connect().count("", "conn_yields"), 0);
}

#[test]
fn long_answers_are_sent_in_between() {
    let server = serve("-t 1");
    let client = PipelineClient::connect(&server);
    let value = "v".repeat(1 << 10);
    client.request(&format!("set k 0 0 1024\r\n{value}\r\n"), "STORED\r\n");
    let answer = format!("VALUE k 0 1024\r\n{value}\r\nEND\r\n");
    assert_eq!(client.request(&"get k\r\n".repeat(40), &answer.repeat(40)), 2);
    assert_eq!(server.connect().count("", "conn_yields"), 1);
}

#[test]
fn runs_end_when_their_answers_are_long() {
    // A value that is copied, and one that is sent from the region: their runs end at different bounds.
    for len in [16 << 10, 20 << 10] {
        let server = serve("-t 1");
        let client = PipelineClient::connect(&server);
        let value = "v".repeat(len);
        client.request(&format!("set k 0 0 {len}\r\n{value}\r\n"), "STORED\r\n");
        let hit = format!("VALUE k 0 {len}\r\n{value}\r\n");
        let line = format!("get{}\r\n", " k".repeat(40));
        client.request(&line, &(hit.repeat(40) + "END\r\n"));
        client.request(&"get k\r\n".repeat(40), &(hit.clone() + "END\r\n").repeat(40));
        let max = QUEUED_BYTES_MAX + (GATHERED_BYTES_MAX + hit.len()) as u64;
        let waiting = client.bytes_max.load(Ordering::Relaxed);
        assert!(waiting <= max, "{waiting} bytes waited to be sent");
    }
}

#[test]
fn requests_of_a_turn_are_limited_on_request() {
    let server = serve("-t 1 -R 10");
    let client = PipelineClient::connect(&server);
    for (requests, answers) in pipelines(32) {
        assert!(client.request(&requests, &answers) >= 4, "{requests}");
    }
    assert!(server.connect().count("", "conn_yields") >= 9);
}

#[test]
fn commands_about_the_server_take_several_turns() {
    let server = serve("-t 1");
    let client = PipelineClient::connect(&server);
    let sends = client.request(&"flush_all\r\n".repeat(64), &"OK\r\n".repeat(64));
    assert!(sends >= 4, "64 of them took {sends} sends");
}
