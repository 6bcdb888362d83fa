//! A scripted server, over TCP and over the fabric.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fabcache_client::{Client, FabricMode, Options};
use fabcache_fabric::channel::{MESSAGE_BYTES, SHORT_BYTES, SendMode, ServerEnd, Terms, receives_for};
use fabcache_fabric::{
    Buffer, Completion, Domain, Endpoint, EndpointOptions, Kind, Library, LocalUse, Peer, Pool,
    ProviderRequirements,
};
use fabcache_layout::checksum::SECRET_BYTES;

use crate::common::fabric::{options, over, provider};

/// The number of messages that the server accepts.
const CREDITS: u16 = 16;
/// How long a client waits for a reply that never arrives …
pub const SHORT: Duration = Duration::from_millis(400);
/// … and for any other step on a loaded machine.
pub const LONG_ENOUGH: Duration = Duration::from_secs(8);
/// Longer than any step takes.
const STEP_MAX: Duration = Duration::from_secs(20);

/// The words of the reply to `fabric attach` after the first.
#[derive(Clone, Debug)]
pub struct Words(pub Vec<String>);

/// Indexes of the words.
pub const NAME: usize = 0;
pub const TOKEN: usize = 1;
pub const CREDITS_WORD: usize = 2;
pub const REGION_BYTES: usize = 3;
pub const CLOCK_NS: usize = 4;
pub const ADDRESS: usize = 5;
pub const KEY: usize = 6;
pub const SECRET: usize = 7;
pub const GRACE_NS: usize = 8;

impl Words {
    pub fn with(&self, at: usize, word: impl ToString) -> Words {
        let mut words = self.clone();
        words.0[at] = word.to_string();
        words
    }

    pub fn line(&self) -> Vec<u8> {
        format!("FABRIC {}\r\n", self.0.join(" ")).into_bytes()
    }
}

type Answers = Box<dyn FnMut(&Words) -> Vec<u8> + Send>;
type Sends = Box<dyn FnMut(&mut Talk) + Send>;

/// The server's behaviour on successive connections.
pub struct Script {
    /// The reply to `fabric hello`; `None` for the right one.
    pub hello: Option<Vec<u8>>,
    /// The reply to `fabric attach`, given the right words.
    pub attach: Answers,
    /// Sent over the fabric before it serves requests.
    pub sends: Sends,
    /// Whether it then answers requests, with misses.
    pub serves: bool,
}

impl Script {
    /// An honest server without items and without a region.
    pub fn honest() -> Script {
        Script { hello: None, attach: Box::new(Words::line), sends: Box::new(|_| {}), serves: true }
    }
}

pub struct ScriptedServer {
    pub address: String,
    script: Arc<Mutex<Script>>,
    /// The number of answered requests.
    served: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Opens the interface of both endpoints.
pub fn domain() -> Arc<Domain> {
    let interface = std::env::var("FABCACHE_SERVER_INTERFACE").ok();
    let requirements = ProviderRequirements { provider: Some(provider()), interface, only_this_host: false };
    let library = Library::open().expect("libfabric is there");
    Domain::open(&library.pick(&requirements).expect("a provider")).expect("it opens")
}

impl ScriptedServer {
    pub fn start(domain: &Arc<Domain>, script: Script) -> ScriptedServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        listener.set_nonblocking(true).expect("a socket");
        let address = format!("tcp://{}", listener.local_addr().expect("an address"));
        let script = Arc::new(Mutex::new(script));
        let (served, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let run = {
            let (script, served, stop) = (Arc::clone(&script), Arc::clone(&served), Arc::clone(&stop));
            let domain = Arc::clone(domain);
            move || {
                while !stop.load(Ordering::Relaxed) {
                    match listener.accept() {
                        Ok((socket, _)) => {
                            let mut script = script.lock().expect("no script panics");
                            // Ignore how a connection ends: the test examines the client.
                            let _ = connection(&domain, &mut script, socket, &served, &stop);
                        }
                        Err(_) => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
            }
        };
        let thread = Some(std::thread::spawn(run));
        ScriptedServer { address, script, served, stop, thread }
    }

    /// Plays the script from the next connection on; the last connection is closed.
    pub fn plays(&self, script: Script) {
        *self.script.lock().expect("no script panics") = script;
    }

    pub fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Asserts that the client works with an honest server again.
    pub fn comes_to_reason(&self, cache: &Client, what: &str) {
        self.plays(Script::honest());
        let end = Instant::now() + STEP_MAX;
        loop {
            match cache.get(b"key") {
                Ok(None) => return,
                other => assert!(Instant::now() < end, "{what}: {other:?}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A client whose calls take no longer than `timeout`.
    pub fn client(&self, mode: FabricMode, timeout: Duration) -> Client {
        let retry_after = Duration::from_nanos(1);
        let connect_timeout = timeout * 2;
        over(&self.address, Options { timeout, connect_timeout, retry_after, ..options(mode) })
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The server's endpoint on the fabric.
pub struct Talk {
    pub port: Endpoint,
    pub peer: Peer,
    pub pool: Pool,
    /// The tokens that messages from and to the client begin with.
    pub terms: Terms,
    ended: Vec<Completion>,
    sequence: u32,
    socket: TcpStream,
}

/// Message kinds.
pub const DATA: u8 = 1;
pub const LONG: u8 = 2;
pub const TAKEN: u8 = 3;
pub const PUT: u8 = 4;
pub const ROOM: u8 = 5;
pub const CREDITS_KIND: u8 = 6;
pub const BYE: u8 = 7;

impl Talk {
    /// Builds a message with the sequence number of an honest server.
    pub fn message(&mut self, kind: u8, credits: u16, rest: &[u8]) -> Vec<u8> {
        let mut message = self.terms.peer_token.to_le_bytes().to_vec();
        message.extend([kind, 0]);
        message.extend(credits.to_le_bytes());
        message.extend(self.sequence.to_le_bytes());
        message.extend(rest);
        self.sequence = self.sequence.wrapping_add(1);
        message
    }

    pub fn say(&mut self, kind: u8, credits: u16, rest: &[u8]) {
        let message = self.message(kind, credits, rest);
        self.send(&message);
    }

    /// Sends a message if the client is still reachable.
    pub fn send(&mut self, message: &[u8]) {
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end && !self.has_left() {
            if let Some(mut buffer) = self.pool.take() {
                buffer[..message.len()].copy_from_slice(message);
                match self.port.send(self.peer, buffer, message.len(), 0) {
                    Ok(()) => return,
                    Err(refused) if refused.error.is_again() => {}
                    Err(_) => return,
                }
            }
            let mut ended = Vec::new();
            if self.port.poll(&mut ended).is_err() {
                return;
            }
            self.ended.extend(ended.into_iter().filter(|completion| completion.kind == Kind::Received));
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Returns whether the client closed its socket.
    fn has_left(&mut self) -> bool {
        match self.socket.read(&mut [0; 64]) {
            Ok(doorbells) => doorbells == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

fn connection(
    domain: &Arc<Domain>,
    script: &mut Script,
    socket: TcpStream,
    served: &AtomicU64,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(STEP_MAX))?;
    let mut lines = BufReader::new(socket.try_clone()?);
    let mut out = socket.try_clone()?;
    let own = domain.provider();
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["fabric", "hello", ..] => {
                let (protocol, format) = (own.protocol, own.address_format);
                let right = || format!("FABRIC {} {protocol} {format} 0\r\n", own.name).into_bytes();
                out.write_all(&script.hello.clone().unwrap_or_else(right))?;
            }
            ["fabric", "attach", name, token, credits, _, _, staging, _, _, landing] => {
                let number = |word: &str| word.parse::<u64>().expect("the client is honest");
                let terms = Terms {
                    own_token: 0x0123_4567_89ab_cdef,
                    peer_token: u64::from_str_radix(token, 16).expect("the client is honest"),
                    own_credits: CREDITS,
                    peer_credits: number(credits) as u16,
                    staging_bytes: number(staging),
                    landing_bytes: number(landing),
                };
                let name = STANDARD.decode(name).expect("the client is honest");
                return attached(domain, script, &name, terms, socket, served, stop);
            }
            ["mn"] => out.write_all(b"MN\r\n")?,
            _ => out.write_all(b"ERROR\r\n")?,
        }
    }
}

fn attached(
    domain: &Arc<Domain>,
    script: &mut Script,
    name: &[u8],
    terms: Terms,
    mut socket: TcpStream,
    served: &AtomicU64,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    let operations = receives_for(CREDITS) + 64;
    let mut port =
        Endpoint::open(domain, EndpointOptions { operations, peers: 1, waits: false }).expect("an endpoint");
    let pool = Pool::new(domain, LocalUse::ANY, operations, MESSAGE_BYTES).expect("memory");
    for _ in 0..receives_for(CREDITS) {
        let buffer = pool.take().expect("all buffers are free");
        assert!(port.receive(buffer, 0).is_ok(), "the endpoint accepts receives");
    }
    let peer = port.connect(name).expect("the client is honest");
    let words = [
        STANDARD.encode(port.name()),
        format!("{:x}", terms.own_token),
        CREDITS.to_string(),
        "0".into(),
        "0".into(),
        "0".into(),
        "0".into(),
        STANDARD.encode([7; SECRET_BYTES]),
        "0".into(),
    ];
    let answer = (script.attach)(&Words(words.into()));
    socket.write_all(&answer)?;
    socket.set_nonblocking(true)?;
    let mut talk = Talk { port, peer, pool, terms, ended: Vec::new(), sequence: 0, socket };
    (script.sends)(&mut talk);
    if script.serves && talk.sequence == 0 {
        serve(&mut talk, served, stop);
    } else {
        while !talk.has_left() && !stop.load(Ordering::Relaxed) {
            let _ = talk.port.poll(&mut Vec::new());
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    Ok(())
}

/// Answers requests with misses until the client leaves.
fn serve(talk: &mut Talk, served: &AtomicU64, stop: &AtomicBool) {
    let mut end: ServerEnd<Buffer, Buffer> = ServerEnd::new(talk.terms, 1);
    let (mut came, mut answers) = (Vec::new(), Vec::new());
    let mut looks = 0u32;
    while !stop.load(Ordering::Relaxed) && !end.has_peer_left() {
        looks += 1;
        if looks.is_multiple_of(64) {
            if talk.has_left() {
                return;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        let mut ended = std::mem::take(&mut talk.ended);
        if talk.port.poll(&mut ended).is_err() {
            return;
        }
        for Completion { kind, result, buffer, .. } in ended {
            let Ok(len) = result else { continue };
            if kind == Kind::Received {
                end.arrived(buffer, len).expect("the client is honest");
            }
        }
        while let Some(bytes) = end.incoming() {
            let len = bytes.len();
            came.extend_from_slice(bytes);
            end.consume(len);
        }
        served.fetch_add(answer(&mut came, &mut answers), Ordering::Relaxed);
        while let Some(buffer) = end.freed() {
            assert!(talk.port.receive(buffer, 0).is_ok(), "the endpoint accepts receives");
        }
        let mut short = [0; SHORT_BYTES];
        while let Some(draft) = end.short(&mut short) {
            talk.send(&short[..draft.bytes()]);
            end.sent(draft);
        }
        if !answers.is_empty() && end.next(answers.len()) == SendMode::Data {
            let mut message = vec![0; MESSAGE_BYTES];
            if let Some(draft) = end.data(&[std::io::IoSlice::new(&answers)], &mut message) {
                talk.send(&message[..draft.bytes()]);
                answers.drain(..draft.taken());
                end.sent(draft);
            }
        }
    }
}

/// Consumes whole requests and answers them; returns their number.
fn answer(came: &mut Vec<u8>, answers: &mut Vec<u8>) -> u64 {
    const NOOP: u8 = 0x0a;
    const QUIET: [u8; 3] = [0x09, 0x0d, 0x1e];
    let mut count = 0;
    loop {
        let taken = if came.first() == Some(&0x80) {
            let Some(header) = came.first_chunk::<24>() else { return count };
            let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
            if came.len() < 24 + body {
                return count;
            }
            if !QUIET.contains(&header[1]) {
                let mut answer = [0; 24];
                (answer[0], answer[1]) = (0x81, header[1]);
                answer[7] = u8::from(header[1] != NOOP);
                answer[12..16].copy_from_slice(&header[12..16]);
                answers.extend(answer);
            }
            24 + body
        } else {
            let Some(end) = came.iter().position(|byte| *byte == b'\n') else { return count };
            if came.starts_with(b"mn") {
                answers.extend(b"MN\r\n");
            } else if !came.starts_with(b"shm ") {
                answers.extend(b"EN\r\n");
            }
            end + 1
        };
        came.drain(..taken);
        count += 1;
    }
}
