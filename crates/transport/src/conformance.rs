//! The suite that every way in passes: what `contract.rs` promises, seen from both ends.
//!
//! A test passes a [`TransportUnderTest`] to [`run`]: its listener, and how a client connects.

use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use crate::contract::{Link, Listener, Received};

/// Far longer than any step of the suite takes.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// The client's end of a link. It may block.
pub trait Client: Send {
    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// The server's end is closed.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Receives the next bytes; empty at the end.
    ///
    /// # Errors
    /// The link is broken.
    fn receive(&mut self) -> io::Result<Vec<u8>>;
}

/// A way in, under test.
pub trait TransportUnderTest: Sync {
    /// The listener.
    fn listener(&self) -> &dyn Listener;

    /// A client that connects. It may wait for the server to accept.
    ///
    /// # Errors
    /// The client cannot connect.
    fn connect(&self) -> io::Result<Box<dyn Client>>;

    /// A link carries one request and one answer, and neither is larger than a packet or two.
    fn is_one_shot(&self) -> bool {
        false
    }
}

/// Runs the suite.
///
/// # Panics
/// The transport violates the contract.
pub fn run(way: &dyn TransportUnderTest) {
    answers_come_back(way);
    links_do_not_mix(way);
    a_client_that_leaves_ends_its_link(way);
    if !way.is_one_shot() {
        long_streams_arrive_whole(way);
        a_client_that_does_not_read_is_told_by_zero(way);
        dropping_a_link_is_seen_after_its_last_bytes(way);
    }
}

/// Accepts, waiting for it.
fn accept(way: &dyn TransportUnderTest) -> Box<dyn Link> {
    let end = Instant::now() + TIME_LIMIT;
    while Instant::now() < end {
        if let Some(link) = way.listener().accept().expect("accepting works") {
            return link;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("no link arrived");
}

/// Waits for the next bytes; `None` at the end.
fn receive(link: &mut dyn Link) -> io::Result<Option<Vec<u8>>> {
    let end = Instant::now() + TIME_LIMIT;
    let mut buffer = vec![0; 10_000];
    while Instant::now() < end {
        match link.receive(&mut buffer)? {
            Received::Bytes(len) => {
                assert!(len > 0 && len <= buffer.len(), "bytes received are at least one and fit");
                return Ok(Some(buffer[..len].to_vec()));
            }
            Received::End => return Ok(None),
            Received::Nothing => std::thread::sleep(Duration::from_micros(200)),
        }
    }
    panic!("nothing arrived");
}

/// Sends all, waiting for it.
fn send_all(link: &mut dyn Link, mut bytes: &[u8]) {
    let end = Instant::now() + TIME_LIMIT;
    while !bytes.is_empty() {
        assert!(Instant::now() < end, "sending does not get on");
        let (first, second) = bytes.split_at(bytes.len() / 2);
        let sent = link.send(&[IoSlice::new(first), IoSlice::new(second)]).expect("sending works");
        assert!(sent <= bytes.len(), "at most the given bytes are sent");
        bytes = &bytes[sent..];
        if sent == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    while !link.flush().expect("flushing works") {
        assert!(Instant::now() < end, "flushing does not get on");
        std::thread::sleep(Duration::from_micros(200));
    }
    assert!(!link.has_unsent(), "nothing is left after flush");
}

/// Runs a client beside the server's part.
fn with_client<R: Send>(
    way: &dyn TransportUnderTest,
    client: impl FnOnce(Box<dyn Client>) -> R + Send,
    server: impl FnOnce(),
) -> R {
    std::thread::scope(|scope| {
        let client = scope.spawn(|| client(way.connect().expect("connecting works")));
        server();
        client.join().expect("the client found nothing wrong")
    })
}

fn answers_come_back(way: &dyn TransportUnderTest) {
    let client = |mut client: Box<dyn Client>| {
        client.send(b"get a\r\n").expect("sending works");
        let mut answer = Vec::new();
        while answer.len() < 9 {
            answer.extend(client.receive().expect("receiving works"));
        }
        assert_eq!(answer, b"the value");
    };
    with_client(way, client, || {
        let mut link = accept(way);
        assert_eq!(link.kind(), way.listener().kind());
        let mut request = Vec::new();
        while request.len() < 7 {
            request.extend(receive(&mut *link).expect("receiving works").expect("the client stays"));
        }
        assert_eq!(request, b"get a\r\n");
        send_all(&mut *link, b"the value");
    });
}

fn links_do_not_mix(way: &dyn TransportUnderTest) {
    let count = 20;
    let client = |_first: Box<dyn Client>| {
        std::thread::scope(|scope| {
            for i in 0..count {
                scope.spawn(move || {
                    let mut client = way.connect().expect("connecting works");
                    let name = [b'a' + i; 3];
                    client.send(&name).expect("sending works");
                    let mut answer = Vec::new();
                    while answer.len() < 3 {
                        answer.extend(client.receive().expect("receiving works"));
                    }
                    assert_eq!(answer, name);
                });
            }
        });
    };
    let serve = || {
        let mut served = 0;
        let mut links: Vec<(Box<dyn Link>, Vec<u8>)> = Vec::new();
        let end = Instant::now() + TIME_LIMIT;
        while served < count {
            assert!(Instant::now() < end, "not all links are served");
            let mut accepted = Vec::new();
            way.listener().accept_many(7, &mut accepted).expect("accepting works");
            assert!(accepted.len() <= 7, "at most the wanted number is accepted");
            links.extend(accepted.into_iter().map(|link| (link, Vec::new())));
            for (link, request) in &mut links {
                let mut buffer = [0; 64];
                if let Ok(Received::Bytes(len)) = link.receive(&mut buffer) {
                    request.extend_from_slice(&buffer[..len]);
                    if request.len() == 3 {
                        send_all(&mut **link, &request.clone());
                        served += 1;
                    }
                }
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    };
    with_client(way, client, serve);
}

fn a_client_that_leaves_ends_its_link(way: &dyn TransportUnderTest) {
    let client = |mut client: Box<dyn Client>| client.send(b"bye").expect("sending works");
    with_client(way, client, || {
        let mut link = accept(way);
        let mut got = Vec::new();
        // An error is an end as well, but not before everything sent has arrived.
        while let Ok(Some(bytes)) = receive(&mut *link) {
            got.extend(bytes);
        }
        assert_eq!(got, b"bye");
        assert!(!matches!(link.receive(&mut [0; 8]), Ok(Received::Bytes(_))), "nothing follows the end");
    });
}

/// Returns bytes that depend on their position.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn long_streams_arrive_whole(way: &dyn TransportUnderTest) {
    let len = 3_000_000;
    let client = |mut client: Box<dyn Client>| {
        client.send(&pattern(len)).expect("sending works");
        let mut answer = Vec::new();
        while answer.len() < len {
            let bytes = client.receive().expect("receiving works");
            assert!(!bytes.is_empty(), "the link ended after {} bytes", answer.len());
            answer.extend(bytes);
        }
        assert!(answer == pattern(len), "the answer arrived as it was sent");
    };
    with_client(way, client, || {
        let mut link = accept(way);
        let mut got = Vec::new();
        while got.len() < len {
            got.extend(receive(&mut *link).expect("receiving works").expect("the client stays"));
        }
        assert!(got == pattern(len), "the request arrived as it was sent");
        send_all(&mut *link, &got);
    });
}

fn a_client_that_does_not_read_is_told_by_zero(way: &dyn TransportUnderTest) {
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let client = move |mut client: Box<dyn Client>| {
        client.send(b"x").expect("sending works");
        // Holds the link open, reading nothing.
        let _ = stopped.recv_timeout(TIME_LIMIT);
    };
    with_client(way, client, move || {
        let mut link = accept(way);
        while receive(&mut *link).expect("receiving works").is_none() {}
        let block = vec![b'y'; 1 << 20];
        let mut taken = 0u64;
        loop {
            let sent = link.send(&[IoSlice::new(&block)]).expect("a slow client is no error");
            taken += sent as u64;
            assert!(taken < 1 << 30, "a link accepts endless unread bytes");
            if sent == 0 && !(link.has_unsent() && link.flush().is_ok_and(|done| done)) {
                break;
            }
        }
        drop(stop);
    });
}

fn dropping_a_link_is_seen_after_its_last_bytes(way: &dyn TransportUnderTest) {
    let client = |mut client: Box<dyn Client>| {
        client.send(b"x").expect("sending works");
        let mut answer = Vec::new();
        loop {
            let bytes = client.receive().expect("the end is not an error");
            if bytes.is_empty() {
                break;
            }
            answer.extend(bytes);
        }
        assert_eq!(answer, b"last words");
    };
    with_client(way, client, || {
        let mut link = accept(way);
        assert_eq!(receive(&mut *link).expect("receiving works"), Some(b"x".to_vec()));
        send_all(&mut *link, b"last words");
    });
}
