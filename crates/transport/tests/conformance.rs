//! Every transport passes the conformance suite.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fabcache_layout::channel::{Channel, Shape};
use fabcache_layout::mapping::Mapping;
use fabcache_layout::sync::Ordering;
use fabcache_testbed::report::not_run;
use fabcache_transport::conformance::{Client, SourceUnderTest, TransportUnderTest, run, run_source};
use fabcache_transport::memory::{MemoryListener, MemoryPeer, MemorySource, MemorySourceLink};
use fabcache_transport::shm::{NewChannel, ShmLink};
use fabcache_transport::tcp::{TcpListener, TcpOptions};
use fabcache_transport::tls::{TlsContext, TlsListener};
use fabcache_transport::udp::{Framing, UdpListener, UdpOptions};
use fabcache_transport::unix::UnixListener;
use fabcache_transport::{Kind, Link, Listener, Peer, Received, Source, WaitMode};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

const LOOPBACK_V4: &str = "127.0.0.1:0";
const LOOPBACK_V6: &str = "[::1]:0";
const OPTIONS: TcpOptions = TcpOptions { backlog: 128, share_address: false, cpu: None };

/// A client over any std stream.
struct Stream<S>(S);

impl<S: Read + Write + Send> Client for Stream<S> {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)?;
        self.0.flush()
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; 16 << 10];
        let len = self.0.read(&mut buffer)?;
        buffer.truncate(len);
        Ok(buffer)
    }
}

struct Tcp(TcpListener);

impl TransportUnderTest for Tcp {
    fn listener(&self) -> &dyn Listener {
        &self.0
    }

    fn connect(&self) -> io::Result<Box<dyn Client>> {
        Ok(Box::new(Stream(TcpStream::connect(self.0.address())?)))
    }
}

#[test]
fn tcp_v4_conforms() {
    run(&Tcp(TcpListener::bind(LOOPBACK_V4.parse().expect("an address"), &OPTIONS).expect("loopback")));
}

#[test]
fn tcp_v6_conforms() {
    match TcpListener::bind(LOOPBACK_V6.parse().expect("an address"), &OPTIONS) {
        Ok(listener) => run(&Tcp(listener)),
        Err(error) => not_run("tcp_v6_conforms, which needs an IPv6 loopback", &error),
    }
}

struct Unix(UnixListener);

impl TransportUnderTest for Unix {
    fn listener(&self) -> &dyn Listener {
        &self.0
    }

    fn connect(&self) -> io::Result<Box<dyn Client>> {
        Ok(Box::new(Stream(UnixStream::connect(self.0.path())?)))
    }
}

fn socket_path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("fabcache-{name}-{}.sock", std::process::id()))
}

#[test]
fn unix_conforms() {
    let path = socket_path("unix");
    run(&Unix(UnixListener::bind(&path, 0o700, 128).expect("a socket in the temporary directory")));
    assert!(!path.exists(), "the socket's file goes with the listener");
}

/// Memory shared with each client as soon as it connects.
struct Shm(UnixListener);

const SHAPE: Shape = Shape { slots: 8, slot_bytes: 256, staging_bytes: 64 << 10 };

impl Listener for Shm {
    fn accept(&self) -> io::Result<Option<Box<dyn Link>>> {
        let Some(link) = self.0.accept()? else { return Ok(None) };
        let Ok(unix) = link.into_stream() else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let region = std::fs::File::open("/dev/null")?;
        let link = ShmLink::attach(unix, NewChannel::create(&SHAPE)?, Some(region.as_fd()), b"SHM\r\n");
        Ok(Some(Box::new(link.map_err(io::Error::other)?)))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }

    fn local(&self) -> Peer {
        self.0.local()
    }

    fn kind(&self) -> Kind {
        Kind::Shm
    }
}

impl TransportUnderTest for Shm {
    fn listener(&self) -> &dyn Listener {
        self
    }

    fn connect(&self) -> io::Result<Box<dyn Client>> {
        Ok(Box::new(ShmClient { socket: UnixStream::connect(self.0.path())?, channel: None, file: None }))
    }
}

struct ShmClient {
    socket: UnixStream,
    /// Available once the server has replied.
    channel: Option<Channel>,
    file: Option<OwnedFd>,
}

impl ShmClient {
    fn channel(&mut self) -> io::Result<&mut Channel> {
        if self.channel.is_none() {
            let mut answer = [0; 5];
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut ancillary = rustix::net::RecvAncillaryBuffer::new(&mut space);
            let mut parts = [io::IoSliceMut::new(&mut answer)];
            rustix::net::recvmsg(&self.socket, &mut parts, &mut ancillary, rustix::net::RecvFlags::empty())?;
            let mut descriptors: Vec<OwnedFd> = ancillary
                .drain()
                .flat_map(|message| match message {
                    rustix::net::RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
                    _ => Vec::new(),
                })
                .collect();
            assert_eq!((&answer, descriptors.len()), (b"SHM\r\n", 2));
            self.file = descriptors.pop();
            let file = self.file.as_ref().expect("two descriptors");
            self.channel = Some(Channel::open(file.as_fd())?);
        }
        Ok(self.channel.as_mut().expect("just opened"))
    }

    /// Waits until the server rings; returns false if it closed the socket.
    fn wait(&mut self) -> io::Result<bool> {
        match self.socket.read(&mut [0; 64]) {
            // The server closed with notifications unread.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(false),
            read => Ok(read? > 0),
        }
    }
}

impl Client for ShmClient {
    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let outgoing = self.channel()?.outgoing();
            let sent = outgoing.send(&[io::IoSlice::new(bytes)]).map_err(io::Error::other)?;
            let must_notify = outgoing.must_notify();
            bytes = &bytes[sent..];
            if must_notify {
                self.socket.write_all(b"!")?;
            }
            if !bytes.is_empty() {
                let outgoing = self.channel()?.outgoing();
                outgoing.want_room();
                if !outgoing.has_room().map_err(io::Error::other)? && !self.wait()? {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut left = false;
        loop {
            let mut bytes = Vec::new();
            self.channel()?.incoming().append_to(&mut bytes, 16 << 10).map_err(io::Error::other)?;
            if self.channel()?.incoming().must_notify() {
                // A server that left needs no notification.
                let _ = self.socket.write_all(b"!");
            }
            if !bytes.is_empty() || left {
                return Ok(bytes);
            }
            self.channel()?.incoming().want_data();
            if !self.channel()?.has_incoming() {
                left = !self.wait()?;
            }
        }
    }
}

#[test]
fn shm_conforms() {
    let path = socket_path("shm");
    run(&Shm(UnixListener::bind(&path, 0o700, 128).expect("a socket in the temporary directory")));
}

/// Connects a client with its channel, and accepts the server's link.
fn shm_pair(name: &str) -> (ShmClient, Box<dyn Link>) {
    let way = Shm(UnixListener::bind(&socket_path(name), 0o700, 8).expect("a free path"));
    let mut client = ShmClient {
        socket: UnixStream::connect(way.0.path()).expect("it listens"),
        channel: None,
        file: None,
    };
    let link = way.accept().expect("accepting works").expect("a client has come");
    client.channel().expect("the channel was passed");
    (client, link)
}

fn is_readable(link: &dyn Link) -> bool {
    is_signalled(link.descriptor().expect("a descriptor"))
}

fn is_signalled(fd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut descriptors = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("poll works") > 0
}

#[test]
fn only_a_sleeping_link_is_rung() {
    let (mut client, mut link) = shm_pair("polled");
    let mut buffer = [0; 64];
    link.as_polled().expect("polled").start_polling();
    client.send(b"unheard").expect("there is room");
    assert!(link.has_unread() && !is_readable(&*link), "the client did not ring");
    assert!(!link.as_polled().expect("polled").arm_wakeup(), "bytes were ready already");
    assert_eq!(link.receive(&mut buffer).expect("it came"), Received::Bytes(7));
    assert!(link.as_polled().expect("polled").arm_wakeup() && !is_readable(&*link));
    client.send(b"heard").expect("there is room");
    assert!(is_readable(&*link), "the client rang");
    link.as_polled().expect("polled").drain_wakeup();
    assert!(!is_readable(&*link), "a notification is consumed");
    assert_eq!(link.receive(&mut buffer).expect("it came"), Received::Bytes(5));
    drop(client);
    assert!(is_readable(&*link), "the client closed");
    link.as_polled().expect("polled").drain_wakeup();
    assert_eq!(link.receive(&mut buffer).expect("no error"), Received::End);
    assert!(link.send(&[io::IoSlice::new(b"x")]).is_err());
}

#[test]
fn full_link_is_rung_when_room_appears() {
    let (mut client, mut link) = shm_pair("room");
    link.as_polled().expect("polled").start_polling();
    while link.send(&[io::IoSlice::new(&[b'y'; 100_000])]).expect("the client is connected") > 0 {}
    assert!(!is_readable(&*link));
    client.receive().expect("bytes to receive");
    assert!(is_readable(&*link), "the client rang although the link is polled");
    link.as_polled().expect("polled").drain_wakeup();
}

#[test]
fn invalid_bytes_end_only_their_link() {
    let (mut client, mut link) = shm_pair("nonsense");
    let (mut other, mut others_link) = shm_pair("sense");
    client.send(b"sense").expect("there is room");
    assert_eq!(link.receive(&mut [0; 64]).expect("it came"), Received::Bytes(5));
    let file = client.file.as_ref().expect("the channel was passed");
    let mapping = Mapping::to_write(file.as_fd(), SHAPE.channel_bytes()).expect("mapped");
    // SAFETY: the mapping outlives it, and was mapped for writing.
    let memory = unsafe { mapping.memory() };
    for word in (0..SHAPE.channel_bytes()).step_by(8) {
        // The first round, with a length that no slot has.
        memory.store(word, 1 | 0x7fff_ffff << 32, Ordering::Relaxed);
    }
    for _ in 0..2 {
        let error = link.receive(&mut [0; 64]).expect_err("an invalid slot");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(link.send(&[io::IoSlice::new(b"x")]).is_err(), "the link is broken");
    }
    other.send(b"still here").expect("there is room");
    assert_eq!(others_link.receive(&mut [0; 64]).expect("it came"), Received::Bytes(10));
}

#[test]
fn unix_socket_replaces_only_a_stale_one() {
    let path = socket_path("taken");
    let first = UnixListener::bind(&path, 0o700, 8).expect("a free path");
    let second = UnixListener::bind(&path, 0o700, 8).expect_err("the first listener runs");
    assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
    drop(first);
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a free path"));
    drop(UnixListener::bind(&path, 0o700, 8).expect("the socket file is stale"));
    std::fs::write(&path, "precious").expect("a free path");
    UnixListener::bind(&path, 0o700, 8).expect_err("a file is not a socket");
    assert_eq!(std::fs::read(&path).expect("still there"), b"precious");
    std::fs::remove_file(&path).expect("still there");
}

#[test]
fn busy_unix_socket_is_not_awaited() {
    let path = socket_path("busy");
    let busy = UnixListener::bind(&path, 0o700, 1).expect("a free path");
    let address = socket2::SockAddr::unix(&path).expect("a path");
    let mut waiting = Vec::new();
    loop {
        let socket =
            socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).expect("a socket");
        socket.set_nonblocking(true).expect("a socket");
        match socket.connect(&address) {
            Ok(()) => waiting.push(socket),
            Err(error) => break assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }
    let second = UnixListener::bind(&path, 0o700, 8).expect_err("the first listener runs");
    assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
    drop(busy);
}

struct Memory(MemoryListener);

struct MemoryClient(MemoryPeer);

impl Client for MemoryClient {
    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            bytes = &bytes[self.0.send(bytes)?..];
            std::thread::yield_now();
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; 4096];
        loop {
            match self.0.receive(&mut buffer) {
                Received::Bytes(len) => return Ok(buffer[..len].to_vec()),
                Received::End => return Ok(Vec::new()),
                Received::Nothing => std::thread::yield_now(),
            }
        }
    }
}

impl TransportUnderTest for Memory {
    fn listener(&self) -> &dyn Listener {
        &self.0
    }

    fn connect(&self) -> io::Result<Box<dyn Client>> {
        Ok(Box::new(MemoryClient(self.0.connect()?)))
    }
}

#[test]
fn memory_conforms() {
    run(&Memory(MemoryListener::new().expect("a descriptor")));
}

struct Udp(UdpListener);

struct UdpClient(UdpSocket);

/// Two bytes of id in front, as minimal framing.
const FRAMING: Framing = Framing {
    open: |datagram| Some((u16::from_be_bytes(datagram.get(..2)?.try_into().ok()?), 2)),
    seal: |id, answer, send| send(&[&id.to_be_bytes(), answer].concat()),
};

impl Client for UdpClient {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.send(&[b"id", bytes].concat()).map(drop)
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; 2048];
        let len = self.0.recv(&mut buffer)?;
        assert_eq!(&buffer[..2], b"id");
        Ok(buffer[2..len].to_vec())
    }
}

impl TransportUnderTest for Udp {
    fn listener(&self) -> &dyn Listener {
        &self.0
    }

    fn connect(&self) -> io::Result<Box<dyn Client>> {
        let socket = UdpSocket::bind(LOOPBACK_V4)?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        socket.connect(self.0.address())?;
        Ok(Box::new(UdpClient(socket)))
    }

    fn is_one_shot(&self) -> bool {
        true
    }
}

fn udp_listener() -> UdpListener {
    let address = LOOPBACK_V4.parse().expect("an address");
    UdpListener::bind(address, FRAMING, &UdpOptions::default()).expect("loopback")
}

#[test]
fn udp_conforms() {
    run(&Udp(udp_listener()));
}

#[test]
fn listeners_of_one_address_prefer_their_cpus() {
    let cpu_of = |cpu| {
        let options = TcpOptions { backlog: 1, share_address: true, cpu };
        let listener =
            TcpListener::bind(LOOPBACK_V4.parse().expect("an address"), &options).expect("loopback");
        socket2::SockRef::from(&listener.descriptor()).cpu_affinity().ok()
    };
    assert_eq!(cpu_of(Some(0)), Some(0));
    assert_ne!(cpu_of(None), Some(0));
}

#[test]
fn datagrams_received_together_are_answered_together() {
    let listener = udp_listener();
    let connect = || {
        let socket = UdpSocket::bind(LOOPBACK_V4).expect("loopback");
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
        socket.connect(listener.address()).expect("loopback");
        socket
    };
    let clients: Vec<UdpSocket> = (0..100).map(|_| connect()).collect();
    for (at, client) in clients.iter().enumerate() {
        client.send(format!("id{at}").as_bytes()).expect("loopback");
    }
    let mut links = Vec::new();
    listener.accept_many(100, &mut links).expect("receiving works");
    assert_eq!(links.len(), 100);
    let (left, clients): (Vec<_>, Vec<_>) = clients.into_iter().enumerate().partition(|(at, _)| at % 10 == 3);
    drop(left);
    let mut early = 0;
    for mut link in links {
        let mut buffer = [0; 8];
        let Ok(Received::Bytes(len)) = link.receive(&mut buffer) else { panic!("a datagram has bytes") };
        assert_eq!(link.send(&[io::IoSlice::new(&buffer[..len])]).expect("sending works"), len);
        early += usize::from(link.flush().expect("flushing works"));
    }
    // Batches of 32, and the rest of 4: the last of each sends all.
    assert_eq!(early, 4);
    for (at, client) in clients {
        let mut buffer = [0; 16];
        let len = client.recv(&mut buffer).expect("an answer");
        assert_eq!(buffer[..len], *format!("id{at}").as_bytes());
    }
}

struct Tls {
    listener: TlsListener,
    address: SocketAddr,
    client: Arc<rustls::ClientConfig>,
}

impl TransportUnderTest for Tls {
    fn listener(&self) -> &dyn Listener {
        &self.listener
    }

    fn connect(&self) -> io::Result<Box<dyn Client>> {
        let name = ServerName::try_from("localhost").expect("a name");
        let tls = rustls::ClientConnection::new(Arc::clone(&self.client), name).map_err(io::Error::other)?;
        let stream = rustls::StreamOwned::new(tls, TcpStream::connect(self.address)?);
        Ok(Box::new(TlsClient(stream)))
    }
}

/// Sends close_notify when it closes, as TLS requires.
struct TlsClient(rustls::StreamOwned<rustls::ClientConnection, TcpStream>);

impl Client for TlsClient {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)?;
        self.0.flush()
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; 16 << 10];
        let len = self.0.read(&mut buffer)?;
        buffer.truncate(len);
        Ok(buffer)
    }
}

impl Drop for TlsClient {
    fn drop(&mut self) {
        self.0.conn.send_close_notify();
        let _ = self.0.conn.complete_io(&mut self.0.sock);
    }
}

fn tls_way() -> Tls {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let certificate = CertificateDer::from(made.cert.der().to_vec());
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let server = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .expect("a fitting pair");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).expect("a certificate");
    let client = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let tcp = TcpListener::bind(LOOPBACK_V4.parse().expect("an address"), &OPTIONS).expect("loopback");
    let address = tcp.address();
    let context = Arc::new(TlsContext::new(Arc::new(server)));
    Tls { listener: TlsListener::new(Box::new(tcp), context), address, client: Arc::new(client) }
}

#[test]
fn tls_conforms() {
    run(&tls_way());
}

#[test]
fn client_without_tls_ends_only_its_link() {
    let way = tls_way();
    let mut plain = TcpStream::connect(way.address).expect("loopback");
    plain.write_all(b"get a\r\n").expect("sending works");
    let mut link = loop {
        if let Some(link) = way.listener.accept().expect("accepting works") {
            break link;
        }
    };
    let error = loop {
        match link.receive(&mut [0; 64]) {
            Ok(Received::Nothing) => std::thread::yield_now(),
            Ok(other) => panic!("plain bytes are not TLS: {other:?}"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    run(&way);
}

/// A source in memory and its link, which the suite's threads share.
struct InMemory {
    source: MemorySource,
    link: Arc<MemorySourceLink>,
}

impl SourceUnderTest for InMemory {
    fn source(&mut self) -> &mut dyn Source {
        &mut self.source
    }

    fn tag(&self) -> u64 {
        7
    }

    fn notifier(&mut self) -> Box<dyn FnMut() + Send> {
        let link = Arc::clone(&self.link);
        Box::new(move || link.notify())
    }

    fn drop_link(&mut self) {
        let other = MemorySource::new().expect("a descriptor").link(0).expect("it is open");
        self.link = Arc::new(other);
        assert!(self.source.link(8).is_none(), "a closed source takes no further link");
    }
}

#[test]
fn source_in_memory_conforms() {
    let source = MemorySource::new().expect("a descriptor");
    let link = Arc::new(source.link(7).expect("it is open"));
    run_source(&mut InMemory { source, link });
}

#[test]
fn source_in_memory_rings_only_while_armed_and_stays_broken() {
    let mut source = MemorySource::new().expect("a descriptor");
    let link = source.link(7).expect("it is open");
    let is_rung = |source: &MemorySource| is_signalled(source.wait_fd().expect("a descriptor"));
    assert_eq!(source.arm(), WaitMode::Sleep);
    source.disarm();
    link.notify();
    assert!(!is_rung(&source), "a worker that does not sleep needs no doorbell");
    source.progress(&mut Vec::new()).expect("it works");
    assert_eq!(source.arm(), WaitMode::Sleep);
    link.fail();
    assert!(is_rung(&source), "a failure wakes the worker");
    for _ in 0..2 {
        assert!(source.progress(&mut Vec::new()).is_err());
        assert_eq!(source.arm(), WaitMode::Spin);
    }
}
