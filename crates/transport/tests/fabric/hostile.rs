//! Clients that violate the protocol, or lie.

use std::io::{self, IoSlice, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use fabcache_fabric::channel::{LentMemory, MESSAGE_BYTES};
use fabcache_fabric::{RegisteredMemory, RegistrationCache, RemoteMemory};
use fabcache_testbed::report::not_run;
use fabcache_transport::fabric::{AttachError, FabricOptions};
use fabcache_transport::{Link, Received, Source, WaitMode};
use socket2::{Domain, SockAddr, Socket, Type};

use super::client::{Client, SharedEndpoint, amount, wait_until};
use super::{Server, echo, pattern, until_end, until_no_links};

const DATA: u8 = 1;
const LONG: u8 = 2;
const PROOF: u8 = 9;
const LENT: u8 = 10;

/// The messages that a client with this token sends.
type Messages = fn(u64) -> Vec<Vec<u8>>;

fn header(token: u64, kind: u8, credits: u16, sequence: u32, numbers: &[u64]) -> Vec<u8> {
    let mut message = token.to_le_bytes().to_vec();
    message.extend([kind, 0]);
    message.extend(credits.to_le_bytes());
    message.extend(sequence.to_le_bytes());
    message.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    message
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn protocol_violation_ends_only_its_link() {
    let server = Server::start(128);
    let endpoint = server.endpoint();
    let (mut other, mut others_link) = server.pair(&endpoint);
    let hostile: [(&str, Messages); 10] = [
        ("no kind", |token| vec![header(token, 99, 0, 0, &[])]),
        ("a gap", |token| vec![header(token, 1, 0, 5_000, &[1])]),
        ("twice the same", |token| vec![header(token, 1, 0, 0, &[1]), header(token, 1, 0, 0, &[1])]),
        ("credits of nothing", |token| vec![header(token, 1, 9, 0, &[1])]),
        ("beyond its memory", |token| vec![header(token, 2, 0, 0, &[1 << 20, 4096])]),
        ("beyond all memory", |token| vec![header(token, 2, 0, 0, &[u64::MAX - 5, 4096])]),
        ("an empty loan", |token| vec![header(token, LENT, 0, 0, &[0, 7, 0])]),
        ("a loan beyond all memory", |token| vec![header(token, LENT, 0, 0, &[u64::MAX - 5, 7, 4096])]),
        ("a loan longer than any value", |token| vec![header(token, LENT, 0, 0, &[0, 7, (1 << 30) + 1])]),
        ("more messages than credits", |token| {
            (0..200).map(|number| header(token, 1, 0, number, &[1])).collect()
        }),
    ];
    for (what, messages) in hostile {
        let (mut client, mut link) = server.pair(&endpoint);
        client.is_polite = false;
        let token = client.attached().granted.token;
        for message in messages(token) {
            client.send_raw(&message, || drop(server.progress()));
        }
        let error = wait_until(|| {
            server.progress();
            // Earlier messages stay unpolled and keep their credits.
            client.endpoint.inner.lock().expect("no panic").poll();
            link.has_unread().then(|| link.flush().err()).flatten()
        });
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{what}: {error}");
        assert!(link.receive(&mut [0; 64]).is_err() && link.send(&[IoSlice::new(b"x")]).is_err(), "{what}");
        drop(link);
        echo(&server, &mut other, &mut others_link, 100_000);
    }
    assert_eq!(server.port().links(), 1, "their slots are free");
}

/// Sends a message through an endpoint, for any link.
fn post_from(endpoint: &SharedEndpoint, name: &[u8], server: &Server, message: &[u8]) {
    wait_until(|| {
        server.progress();
        let mut inner = endpoint.inner.lock().expect("no panic");
        inner.poll();
        let peer = inner.peer(name);
        let mut buffer = inner.sends.take()?;
        buffer[..message.len()].copy_from_slice(message);
        inner.port.send(peer, buffer, message.len(), 0).ok()
    });
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn foreign_endpoint_name_causes_one_challenge_only() {
    let server = Server::start(128);
    let (own, foreign) = (server.endpoint(), server.endpoint());
    // The name is a known endpoint, but not the client's.
    let (mut owner, mut owners_link) = server.pair(&foreign);
    echo(&server, &mut owner, &mut owners_link, 100_000);
    let (mut thief, mut link) = server.pair(&foreign);
    thief.is_polite = false;
    let (name, token) = (server.port().name().to_vec(), thief.attached().granted.token);
    // The client has another endpoint, through which it can send anything.
    let post = |message: &[u8]| post_from(&own, &name, &server, message);
    post(&header(token, LONG, 0, 0, &[0, 100_000]));
    let until = Instant::now() + Duration::from_millis(500);
    while Instant::now() < until {
        server.progress();
        foreign.inner.lock().expect("no panic").poll();
        assert_eq!(link.receive(&mut [0; 64]).expect("the link works"), Received::Nothing, "nothing is read");
        assert_eq!(
            link.send(&[IoSlice::new(&pattern(100_000))]).expect("the link works"),
            0,
            "nothing is sent"
        );
    }
    let mut came = 0;
    while foreign.inner.lock().expect("no panic").take(thief.token).is_some() {
        came += 1;
    }
    assert_eq!(came, 1, "one challenge is sent");
    post(&header(token, PROOF, 1, 1, &[0x1234]));
    let error = wait_until(|| {
        server.progress();
        link.flush().err().or_else(|| link.receive(&mut [0; 64]).err())
    });
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    drop(link);
    echo(&server, &mut owner, &mut owners_link, 100_000);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn messages_without_a_link_are_dropped_and_counted() {
    let server = Server::start(128);
    let endpoint = server.endpoint();
    let (mut client, mut link) = server.pair(&endpoint);
    let token = client.attached().granted.token;
    let messages = [
        header(token ^ 1 << 40, 1, 0, 0, &[1]),
        header(token + 1, 1, 0, 0, &[1]),
        vec![7; 5],
        vec![0xff; MESSAGE_BYTES],
    ];
    for round in 1..=amount(100, 20) {
        for message in &messages {
            client.send_raw(message, || drop(server.progress()));
        }
        wait_until(|| {
            server.progress();
            client.turn().expect("the server keeps the protocol");
            (server.port().dropped_messages() == (round * messages.len()) as u64).then_some(())
        });
    }
    echo(&server, &mut client, &mut link, 100_000);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn lending_foreign_memory_breaks_the_link() {
    let server = Server::start(128);
    if server.domain.provider().name == "shm" {
        return not_run(
            "lending_foreign_memory_breaks_the_link",
            &"shm checks process permissions, not keys",
        );
    }
    let kept = server.endpoint();
    let (mut other, mut others_link) = server.pair(&kept);
    for is_read in [true, false] {
        let endpoint = server.endpoint();
        let socket = TcpStream::connect(server.listener.address()).expect("it listens");
        let mut client = Client::with_key(socket, &endpoint, 1 << 20, 0x5555);
        let mut link = wait_until(|| server.accept(0).expect("accepting works"));
        client = client.finish();
        client.is_polite = false;
        let block = pattern(100_000);
        let error = wait_until(|| {
            server.progress();
            let _ = client.turn();
            if is_read {
                let _ = client.send_some(&block);
            }
            let sent = if is_read { Ok(0) } else { link.send(&[IoSlice::new(&block)]) };
            sent.err().or(link.receive(&mut [0; 64]).err())
        });
        println!("{error}");
        drop(link);
        echo(&server, &mut other, &mut others_link, amount(1_000_000, 300_000));
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn lent_memory_is_read_by_key_in_order() {
    let server = Server::start(128);
    let (mut other, mut others_link) = server.pair(&server.endpoint());
    let (mut client, mut link) = server.pair(&server.endpoint());
    let registrations = RegistrationCache::new(4, 4 << 20);
    let whole = pattern(amount(2_000_000, 600_000));
    let lend = |bytes: &[u8]| {
        let memory =
            RegisteredMemory::new(bytes.to_vec(), &registrations).show(&server.clients).expect("registered");
        let RemoteMemory { address, key, bytes } = memory.remote();
        (memory, LentMemory { address, key, bytes })
    };
    // Bytes in messages, lent ones with some before them, staged ones, and lent ones alone.
    let cuts = [0, 100, 107, whole.len() / 2, whole.len() / 2 + 90_000, whole.len() - 10, whole.len()];
    let memories = [lend(&whole[cuts[2]..cuts[3]]), lend(&whole[cuts[4]..cuts[5]])];
    let (mut sent, mut received, mut buffer) = (0, Vec::new(), vec![0; 64 << 10]);
    let mut answered = 0;
    let mut let_go = 0;
    wait_until(|| {
        server.progress();
        assert!(client.turn().expect("the server keeps the protocol"), "the server closed");
        let part = cuts.iter().rposition(|cut| *cut <= sent).expect("the first is 0");
        sent += match part {
            1 if client.lend(&whole[cuts[1]..cuts[2]], &memories[0].1).expect("it sends") => {
                cuts[3] - cuts[1]
            }
            4 if client.lend(b"", &memories[1].1).expect("it sends") => cuts[5] - cuts[4],
            0 | 3 | 5 => client.send_some(&whole[sent..cuts[part + 1]]).expect("it sends"),
            _ => 0,
        };
        while let Received::Bytes(more) = link.receive(&mut buffer).expect("it receives") {
            received.extend_from_slice(&buffer[..more]);
        }
        let_go += client.attached().end.let_go();
        if received.len() == whole.len() && answered == 0 {
            answered = link.send(&[IoSlice::new(b"x")]).expect("it sends");
        }
        client.receive_some();
        assert!(let_go == 0 || received.len() >= cuts[3], "reading continues");
        (let_go == memories.len()).then_some(())
    });
    assert!(received == whole, "bytes changed in transit");
    echo(&server, &mut client, &mut link, 100_000);
    // A key of no memory, or of other memory than stated, ends its link.
    if server.domain.provider().name != "shm" {
        let LentMemory { address, key, bytes } = memories[0].1;
        client.is_polite = false;
        wait_until(|| {
            server.progress();
            let _ = client.turn();
            client
                .lend(b"", &LentMemory { address, key: key ^ 0x5555, bytes })
                .expect("it sends")
                .then_some(())
        });
        let error = wait_until(|| {
            server.progress();
            let _ = client.turn();
            link.receive(&mut [0; 64]).err()
        });
        println!("{error}");
    }
    drop(link);
    echo(&server, &mut other, &mut others_link, 100_000);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn endless_notifications_end_the_link() {
    let server = Server::start(128);
    let (mut client, mut link) = server.pair(&server.endpoint());
    client.is_polite = false;
    client.socket.write_all(&[b'!'; 100]).expect("the server is connected");
    echo(&server, &mut client, &mut link, 10);
    while client.socket.write(&[b'!'; 4096]).is_ok() {}
    let error = until_end(&server, &mut link).expect_err("endless notifications");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn unproven_endpoint_is_cut_off_in_time() {
    let proof_time = Duration::from_millis(400);
    let server = Server::with(&FabricOptions { receives: 128, clients: 2, proof_time });
    let (own, foreign) = (server.endpoint(), server.endpoint());
    let (mut owner, mut owners_link) = server.pair(&foreign);
    echo(&server, &mut owner, &mut owners_link, 100_000);
    for round in 0..2 {
        let (mut thief, mut link) = server.pair(&foreign);
        thief.is_polite = false;
        let (name, token) = (server.port().name().to_vec(), thief.attached().granted.token);
        let refused = Client::connect(server.listener.address(), &foreign);
        let error = server.accept(0).expect_err("the link keeps its slot").to_string();
        assert_eq!(error, AttachError::Links(2).to_string());
        drop(refused);
        // A silent client is not challenged.
        let until = Instant::now() + 2 * proof_time;
        while Instant::now() < until {
            server.progress();
            link.flush().expect("the link may stay");
        }
        let requested = Instant::now();
        post_from(&own, &name, &server, &header(token, DATA, 0, 0, &[1]));
        let mut has_slept = false;
        let error = wait_until(|| {
            server.progress();
            has_slept |=
                matches!(server.port().arm(), WaitMode::SleepFor(time) if time <= Duration::from_secs(1));
            foreign.inner.lock().expect("no panic").poll();
            link.flush().err()
        });
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert!(error.to_string().contains("not proven"), "round {round}: {error}");
        assert!(requested.elapsed() >= proof_time);
        assert!(has_slept, "the worker sleeps meanwhile, with a timeout");
        drop(link);
        wait_until(|| {
            server.progress();
            (server.port().links() == 1).then_some(())
        });
    }
    // Its slot is reused.
    let (mut client, mut link) = server.pair(&own);
    echo(&server, &mut client, &mut link, 100_000);
    echo(&server, &mut owner, &mut owners_link, 100_000);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn client_cannot_name_an_endpoint_at_another_address() {
    let server = Server::start(128);
    let endpoint = server.endpoint();
    let (mut owner, mut owners_link) = server.pair(&endpoint);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket
        .bind(&SockAddr::from(std::net::SocketAddr::from(([127, 0, 0, 2], 0))))
        .expect("127.0.0.0/8 is local");
    socket.connect(&SockAddr::from(server.listener.address())).expect("it listens");
    let thief = Client::over(TcpStream::from(socket), &endpoint, 1 << 20);
    let error = server.accept(0).expect_err("an endpoint of another address").to_string();
    assert_eq!(error, AttachError::Taken.to_string());
    drop(thief);
    echo(&server, &mut owner, &mut owners_link, 100_000);
    owner.is_polite = false;
    drop((owner, owners_link));
    until_no_links(&server);
}
