//! Shared helpers: a server in this process, and clients that send and receive bytes.
#![allow(dead_code, reason = "each test uses a part")]

pub mod process;

pub use fabcache_testbed::wait::wait_until;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fabcache_server::Server;
use fabcache_testbed::local::LocalServer;
use fabcache_transport::Peer;

/// A server that stops when dropped.
pub struct TestServer(LocalServer);

/// Starts a server with these flags; by default on a free port of 127.0.0.1.
pub fn serve(flags: &str) -> TestServer {
    try_serve(flags).unwrap_or_else(|error| panic!("{flags}: {error:#}"))
}

pub fn try_serve(flags: &str) -> anyhow::Result<TestServer> {
    let place = if flags.contains("-s ") || flags.contains("-l ") { "" } else { "-l 127.0.0.1 " };
    let port = if flags.contains("-s ") || flags.contains("-p ") { "" } else { "-p -1 " };
    Ok(TestServer(LocalServer::start(&format!("{place}{port}{flags}"))?))
}

impl TestServer {
    pub fn of(server: Server) -> TestServer {
        TestServer(LocalServer::of(server))
    }

    pub fn server(&self) -> &Server {
        self.0.server()
    }

    pub fn address(&self) -> SocketAddr {
        self.addresses()[0]
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        let socket = |peer: &Peer| if let Peer::Socket(address) = peer { Some(*address) } else { None };
        self.server().local().iter().filter_map(socket).collect()
    }

    pub fn connect(&self) -> Client<TcpStream> {
        connect(self.address())
    }

    pub fn stop(self) {
        self.0.stop().expect("no thread failed");
    }
}

/// Checks that the answers to a long pipeline, sent while they are read, come in the order of its requests.
pub fn check_pipelines(server: &TestServer) {
    let c = server.connect();
    let mut writer = c.stream.try_clone().expect("a socket");
    let mut reader = Client::new(c.stream);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for i in 0..10_000 {
                let value = "v".repeat(i % 300);
                let requests =
                    format!("set k{} 0 0 {}\r\n{value}\r\nget k{}\r\nmg none\r\n", i % 7, value.len(), i % 7);
                writer.write_all(requests.as_bytes()).expect("the server listens");
            }
        });
        for i in 0..10_000 {
            let value = "v".repeat(i % 300);
            let answers = format!("STORED\r\nVALUE k{} 0 {}\r\n{value}\r\nEND\r\nEN\r\n", i % 7, value.len());
            reader.hear(answers);
        }
    });
}

/// Far longer than any step of a test takes on any machine.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// A client over any stream.
pub struct Client<S> {
    pub stream: S,
    heard: Vec<u8>,
}

pub fn connect(address: SocketAddr) -> Client<TcpStream> {
    let stream = TcpStream::connect(address).expect("the server listens");
    stream.set_nodelay(true).expect("a socket");
    stream.set_read_timeout(Some(REPLY_TIMEOUT)).expect("a socket");
    Client::new(stream)
}

pub fn connect_unix(path: &Path) -> Client<UnixStream> {
    let stream = UnixStream::connect(path).expect("the server listens");
    stream.set_read_timeout(Some(REPLY_TIMEOUT)).expect("a socket");
    Client::new(stream)
}

impl<S: Read + Write> Client<S> {
    pub fn new(stream: S) -> Client<S> {
        Client { stream, heard: Vec::new() }
    }

    pub fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the server listens");
    }

    /// Receives exactly as many bytes as `expected` has, and compares.
    #[track_caller]
    pub fn hear(&mut self, expected: impl AsRef<[u8]>) {
        let expected = expected.as_ref();
        while self.heard.len() < expected.len() {
            if !self.more() {
                break;
            }
        }
        let shown = self.heard.len().min(expected.len());
        let got: Vec<u8> = self.heard.drain(..shown).collect();
        if got != expected {
            panic!("received {:?} instead of {:?}", show(&got), show(expected));
        }
    }

    /// Sends a request, then receives and compares the reply.
    #[track_caller]
    pub fn request(&mut self, bytes: impl AsRef<[u8]>, expected: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.say(bytes);
        let expected = expected.as_ref();
        let before = show(bytes);
        let got = self.hear_some(expected.len());
        if got != expected {
            panic!("to {before:?} received {:?} instead of {:?}", show(&got), show(expected));
        }
    }

    /// Like `ask`, for a reply in which `#` stands for remaining seconds: all of them, or one less if a second passed.
    /// The number of digits must not change.
    #[track_caller]
    pub fn ask_with_seconds(&mut self, bytes: impl AsRef<[u8]>, seconds: u32, expected: &str) {
        self.say(&bytes);
        let [all, one_less] = [seconds, seconds - 1].map(|left| expected.replace('#', &left.to_string()));
        let got = self.hear_some(all.len());
        assert!(
            got == all.as_bytes() || got == one_less.as_bytes(),
            "to {:?} received {:?} instead of {all:?}",
            show(bytes.as_ref()),
            show(&got)
        );
    }

    fn hear_some(&mut self, len: usize) -> Vec<u8> {
        while self.heard.len() < len && self.more() {}
        let shown = self.heard.len().min(len);
        self.heard.drain(..shown).collect()
    }

    /// Receives until `end`.
    #[track_caller]
    pub fn hear_until(&mut self, end: &str) -> String {
        loop {
            let at = self.heard.windows(end.len()).position(|window| window == end.as_bytes());
            if let Some(at) = at {
                let got: Vec<u8> = self.heard.drain(..at + end.len()).collect();
                return String::from_utf8_lossy(&got).into_owned();
            }
            assert!(self.more(), "the connection ended before {end:?}: {:?}", show(&self.heard));
        }
    }

    /// Receives the answers to requests of which the last one is `mn`; no value ends with its answer.
    #[track_caller]
    pub fn hear_until_noop(&mut self) -> String {
        while !self.heard.ends_with(b"MN\r\n") {
            assert!(self.more(), "the connection ended: {:?}", show(&self.heard));
        }
        String::from_utf8_lossy(&std::mem::take(&mut self.heard)).into_owned()
    }

    /// Asserts that the server closes the connection without further bytes.
    #[track_caller]
    pub fn hear_end(&mut self) {
        while self.more() {}
        assert!(self.heard.is_empty(), "received {:?} before the end", show(&self.heard));
    }

    /// Returns all statistics of a kind, in order.
    #[track_caller]
    pub fn stats(&mut self, of: &str) -> Vec<(String, String)> {
        self.say(if of.is_empty() { "stats\r\n".to_owned() } else { format!("stats {of}\r\n") });
        let all = self.hear_until("END\r\n");
        let stat = |line: &str| {
            let (name, value) = line.strip_prefix("STAT ")?.split_once(' ')?;
            Some((name.to_owned(), value.to_owned()))
        };
        let lines = all.lines().filter(|line| *line != "END");
        lines.map(|line| stat(line).unwrap_or_else(|| panic!("{line:?} is not a statistic"))).collect()
    }

    /// Returns one statistic.
    #[track_caller]
    pub fn stat(&mut self, of: &str, name: &str) -> String {
        let all = self.stats(of);
        let found = all.iter().find(|(known, _)| known == name);
        found.unwrap_or_else(|| panic!("no {name} in {all:?}")).1.clone()
    }

    /// Returns one statistic as a number.
    #[track_caller]
    pub fn count(&mut self, of: &str, name: &str) -> u64 {
        let value = self.stat(of, name);
        value.parse().unwrap_or_else(|_| panic!("{name} is {value:?}"))
    }

    fn more(&mut self) -> bool {
        let mut buffer = [0; 64 << 10];
        match self.stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(len) => {
                self.heard.extend_from_slice(&buffer[..len]);
                true
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => false,
            // A stopped and resumed process gets EINTR from a receive with a timeout: see signal(7).
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => true,
            Err(error) => panic!("nothing arrives: {error}; received so far {:?}", show(&self.heard)),
        }
    }
}

fn show(bytes: &[u8]) -> String {
    let text = bytes.escape_ascii().to_string();
    if text.len() > 600 { format!("{}… ({} bytes)", &text[..600], bytes.len()) } else { text }
}

/// A client over UDP.
pub struct UdpClient(pub UdpSocket);

impl UdpClient {
    pub fn new(server: SocketAddr) -> UdpClient {
        let here = if server.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
        let socket = UdpSocket::bind(here).expect("loopback");
        socket.connect(server).expect("loopback");
        socket.set_read_timeout(Some(REPLY_TIMEOUT)).expect("a socket");
        UdpClient(socket)
    }

    /// Sends a request in one datagram.
    pub fn say(&self, id: u16, request: impl AsRef<[u8]>) {
        let datagram = [&id.to_be_bytes()[..], &[0, 0, 0, 1, 0, 0], request.as_ref()].concat();
        self.0.send(&datagram).expect("loopback");
    }

    /// Receives all datagrams of a reply in order; checks and removes their headers.
    pub fn hear_datagrams(&self, id: u16) -> Vec<Vec<u8>> {
        let mut parts = std::collections::BTreeMap::new();
        let mut buffer = [0; 2048];
        loop {
            let len = self.0.recv(&mut buffer).expect("a reply");
            assert!((9..=1400).contains(&len), "{len}");
            let field = |at: usize| u16::from_be_bytes([buffer[at], buffer[at + 1]]);
            assert_eq!((field(0), field(6)), (id, 0));
            let (number, total) = (field(2), field(4));
            assert!(number < total);
            assert!(parts.insert(number, buffer[8..len].to_vec()).is_none(), "each datagram arrives once");
            if parts.len() == usize::from(total) {
                return parts.into_values().collect();
            }
        }
    }

    /// Receives the next reply of one datagram, and the id of its request.
    pub fn hear_next(&self) -> (u16, Vec<u8>) {
        let mut buffer = [0; 2048];
        let len = self.0.recv(&mut buffer).expect("a reply");
        assert_eq!(buffer[2..8], [0, 0, 0, 1, 0, 0]);
        (u16::from_be_bytes([buffer[0], buffer[1]]), buffer[8..len].to_vec())
    }

    /// Receives a whole reply.
    pub fn hear(&self, id: u16) -> Vec<u8> {
        self.hear_datagrams(id).concat()
    }

    #[track_caller]
    pub fn request(&self, id: u16, request: impl AsRef<[u8]>, expected: impl AsRef<[u8]>) {
        self.say(id, request);
        let (got, expected) = (self.hear(id), expected.as_ref());
        assert!(got == expected, "received {:?} instead of {:?}", show(&got), show(expected));
    }
}

/// A test's own directory, removed with its contents on drop.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("fabcached-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary directory can be written");
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes or overwrites a file.
    pub fn file(&self, name: &str, content: &str) -> PathBuf {
        std::fs::write(self.path(name), content).expect("the temporary directory can be written");
        self.path(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Encodes a binary request.
pub fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8], cas: u64) -> Vec<u8> {
    let body = extras.len() + key.len() + value.len();
    let mut packet = vec![0x80, opcode];
    packet.extend_from_slice(&(key.len() as u16).to_be_bytes());
    packet.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    packet.extend_from_slice(&(body as u32).to_be_bytes());
    packet.extend_from_slice(&0xdead_beefu32.to_be_bytes());
    packet.extend_from_slice(&cas.to_be_bytes());
    [&packet[..], extras, key, value].concat()
}

/// A binary reply: opcode, status, CAS, extras, key, value.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub opcode: u8,
    pub status: u16,
    pub cas: u64,
    pub extras: Vec<u8>,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

impl<S: Read + Write> Client<S> {
    /// Receives one binary reply.
    #[track_caller]
    pub fn hear_packet(&mut self) -> Answer {
        let head = self.hear_some(24);
        assert_eq!(head.len(), 24, "a whole header");
        assert_eq!(head[0], 0x81);
        assert_eq!(&head[12..16], 0xdead_beefu32.to_be_bytes());
        let key_len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let extras_len = usize::from(head[4]);
        let body_len = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let body = self.hear_some(body_len);
        let (extras, rest) = body.split_at(extras_len);
        let (key, value) = rest.split_at(key_len);
        Answer {
            opcode: head[1],
            status: u16::from_be_bytes([head[6], head[7]]),
            cas: u64::from_be_bytes(head[16..24].try_into().expect("eight bytes")),
            extras: extras.to_vec(),
            key: key.to_vec(),
            value: value.to_vec(),
        }
    }
}
