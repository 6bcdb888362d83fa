//! The ring over real sockets. The tests run where this process may use io_uring.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fabcache_testbed::io_uring::is_there_for_sockets;
use fabcache_uring::{BUFFER_BYTES, BUFFERS, BufferId, Completion, Outcome, Ring, TOKEN_MAX};

/// Far longer than any step takes.
const LONG: Duration = Duration::from_secs(60);

/// A ring of this thread; none where io_uring is refused, as in most containers.
fn ring() -> Option<Ring> {
    if !is_there_for_sockets() {
        return None;
    }
    let mut ring = Ring::new().expect("io_uring works");
    ring.enable().expect("it was not enabled");
    Some(ring)
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    (client, listener.accept().expect("a client connects").0)
}

/// The next completion.
fn next(ring: &mut Ring) -> Completion {
    loop {
        if let Some(completion) = ring.next_completion() {
            return completion;
        }
        ring.wait(Some(LONG)).expect("the ring works");
    }
}

/// The next completion, which has bytes.
fn received(ring: &mut Ring, token: u64) -> (BufferId, bool) {
    match next(ring) {
        Completion { token: of, outcome: Outcome::Received(buffer), has_more } if of == token => {
            (buffer, has_more)
        }
        other => panic!("bytes were to come: {other:?}"),
    }
}

#[test]
fn one_request_receives_all_bytes_and_the_end() {
    let Some(mut ring) = ring() else { return };
    for token in [0, TOKEN_MAX] {
        let (mut client, server) = tcp_pair();
        ring.receive(server.as_fd(), token).expect("a request");
        // More rounds than buffers, so each is given back.
        for round in 0..3 * BUFFERS {
            let sent = format!("request {round}");
            client.write_all(sent.as_bytes()).expect("it is open");
            let (buffer, has_more) = received(&mut ring, token);
            assert_eq!((ring.bytes(buffer), has_more), (sent.as_bytes(), true));
            ring.give_back(buffer);
        }
        drop(client);
        assert!(matches!(next(&mut ring), Completion { outcome: Outcome::End, has_more: false, .. }));
    }
}

#[test]
fn without_a_free_buffer_a_receive_ends_and_loses_nothing() {
    let Some(mut ring) = ring() else { return };
    let (mut client, mut server) = UnixStream::pair().expect("a pair");
    let sent: Vec<u8> = (0..(BUFFERS + 2) * BUFFER_BYTES).map(|at| (at / 7 % 251) as u8).collect();
    let bytes = sent.clone();
    let sender = std::thread::spawn(move || {
        client.write_all(&bytes).expect("it is open");
        client
    });
    ring.receive(server.as_fd(), 1).expect("a request");
    let (mut got, mut held) = (Vec::new(), Vec::new());
    loop {
        match next(&mut ring) {
            Completion { outcome: Outcome::Received(buffer), .. } => {
                got.extend_from_slice(ring.bytes(buffer));
                held.push(buffer);
            }
            Completion { outcome: Outcome::NoBuffer, has_more: false, .. } => break,
            other => panic!("unexpected: {other:?}"),
        }
    }
    assert_eq!(held.len(), BUFFERS, "all were used");
    // Bytes without a buffer stay in the socket, for a plain receive or the next request.
    let mut byte = [0];
    server.read_exact(&mut byte).expect("it has bytes");
    got.push(byte[0]);
    held.into_iter().for_each(|buffer| ring.give_back(buffer));
    ring.receive(server.as_fd(), 1).expect("a request");
    while got.len() < sent.len() {
        let (buffer, _) = received(&mut ring, 1);
        got.extend_from_slice(ring.bytes(buffer));
        ring.give_back(buffer);
    }
    assert!(got == sent, "bytes are in order, once each");
    drop(sender.join());
}

#[test]
fn cancelled_receive_leaves_later_bytes_in_the_socket() {
    let Some(mut ring) = ring() else { return };
    let (mut client, mut server) = tcp_pair();
    ring.receive(server.as_fd(), 5).expect("a request");
    client.write_all(b"before").expect("it is open");
    let (buffer, _) = received(&mut ring, 5);
    ring.give_back(buffer);
    ring.cancel(5).expect("a request");
    assert!(matches!(next(&mut ring), Completion { token: 5, outcome: Outcome::Cancelled, has_more: false }));
    client.write_all(b"after").expect("it is open");
    ring.wait(Some(Duration::from_millis(20))).expect("the ring works");
    assert!(ring.next_completion().is_none(), "it was cancelled");
    let mut rest = [0; 5];
    server.read_exact(&mut rest).expect("it has bytes");
    assert_eq!(&rest, b"after");
}

#[test]
fn peer_sees_the_end_of_a_socket_closed_while_the_ring_receives() {
    let Some(mut ring) = ring() else { return };
    for is_ring_dropped in [false, true] {
        let (mut client, server) = tcp_pair();
        client.set_read_timeout(Some(LONG)).expect("a socket");
        ring.receive(server.as_fd(), 9).expect("a request");
        ring.wait(Some(Duration::ZERO)).expect("the ring works");
        if is_ring_dropped {
            drop(server);
            drop(ring);
            assert_eq!(client.read(&mut [0]).expect("the end"), 0);
            return;
        }
        ring.cancel(9).expect("a request");
        ring.submit().expect("the ring works");
        drop(server);
        assert!(matches!(next(&mut ring).outcome, Outcome::Cancelled));
        assert_eq!(client.read(&mut [0]).expect("the end"), 0);
    }
}

#[test]
fn broken_socket_and_wrong_descriptor_are_reported() {
    let Some(mut ring) = ring() else { return };
    let file = std::fs::File::open("/dev/null").expect("it exists");
    ring.receive(file.as_fd(), 3).expect("a request");
    assert!(matches!(next(&mut ring), Completion { token: 3, outcome: Outcome::Failed(_), has_more: false }));
    let (mut client, mut server) = tcp_pair();
    ring.receive(server.as_fd(), 4).expect("a request");
    // A close with unread bytes resets the connection.
    server.write_all(b"unread").expect("it is open");
    client.set_read_timeout(Some(LONG)).expect("a socket");
    client.read_exact(&mut [0]).expect("it has bytes");
    drop(client);
    assert!(matches!(next(&mut ring), Completion { token: 4, outcome: Outcome::Failed(_), has_more: false }));
}

#[test]
fn waits_end_by_a_readable_descriptor_or_time() {
    let Some(mut ring) = ring() else { return };
    let (mut client, server) = UnixStream::pair().expect("a pair");
    ring.wait_readable(server.as_fd(), TOKEN_MAX).expect("a request");
    ring.wait(Some(Duration::from_millis(1))).expect("the ring works");
    assert!(ring.next_completion().is_none(), "nothing happened");
    client.write_all(b"x").expect("it is open");
    let is_readable = |c: Completion| {
        matches!(c, Completion { token: TOKEN_MAX, outcome: Outcome::Readable, has_more: false })
    };
    assert!(is_readable(next(&mut ring)));
    ring.wait(Some(Duration::ZERO)).expect("the ring works");
    assert!(ring.next_completion().is_none(), "it reports once");
    // A descriptor that is readable already is reported at once.
    ring.wait_readable(server.as_fd(), TOKEN_MAX).expect("a request");
    assert!(is_readable(next(&mut ring)));
}

#[test]
fn many_requests_are_submitted_in_parts() {
    let Some(mut ring) = ring() else { return };
    let pairs: Vec<_> = (0..600).map(|_| UnixStream::pair().expect("a pair")).collect();
    for (token, (_, server)) in pairs.iter().enumerate() {
        ring.receive(server.as_fd(), token as u64).expect("a request");
    }
    for (token, (client, _)) in pairs.iter().enumerate() {
        let mut client = client;
        client.write_all(&token.to_le_bytes()).expect("it is open");
        let (buffer, has_more) = received(&mut ring, token as u64);
        assert_eq!((ring.bytes(buffer), has_more), (&token.to_le_bytes()[..], true));
        ring.give_back(buffer);
    }
}

#[test]
fn another_thread_cannot_use_an_enabled_ring() {
    let Some(mut ring) = ring() else { return };
    let (_client, server) = UnixStream::pair().expect("a pair");
    ring.receive(server.as_fd(), 0).expect("a request");
    ring.wait(Some(Duration::ZERO)).expect("the ring works");
    // It cannot end its requests there, and leaks its buffers.
    std::thread::spawn(move || {
        ring.wait(Some(Duration::from_millis(1))).expect_err("it is not this thread's");
    })
    .join()
    .expect("no panic");
}

#[test]
#[should_panic(expected = "the buffer was given back")]
fn buffer_given_back_has_no_bytes() {
    let Some(mut ring) = ring() else { panic!("the buffer was given back") };
    let (mut client, server) = UnixStream::pair().expect("a pair");
    client.write_all(b"x").expect("it is open");
    ring.receive(server.as_fd(), 0).expect("a request");
    let (buffer, _) = received(&mut ring, 0);
    ring.give_back(buffer);
    ring.bytes(buffer);
}
