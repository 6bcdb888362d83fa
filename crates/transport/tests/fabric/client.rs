//! A small client that drives its side of the channel, and can be told to misbehave.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fabcache_fabric::channel::{
    ClientEnd, Incoming, LentMemory, MESSAGE_BYTES, RING_BYTES_MIN, SHORT_BYTES, SendMode, Terms,
    receives_for, token_of,
};
use fabcache_fabric::{
    Buffer, Completion, Domain, Endpoint, EndpointOptions, Kind, Library, LocalUse, Peer, PeerAccess, Pool,
    ProviderRequirements, RemoteMemory, SharedArea,
};
use fabcache_transport::conformance;
use fabcache_transport::fabric::Grant;

/// Far longer than any step takes.
pub const END: Duration = Duration::from_secs(60);
const RING_BYTES: usize = 1 << 20;
const CREDITS: u16 = 16;
const NAME_BYTES: usize = 256;
/// Bytes of the hello: name, token, credits, two memories.
pub const HELLO_BYTES: usize = 2 + NAME_BYTES + 8 + 2 + 2 * 24;
const ANSWER_BYTES: usize = 2 + NAME_BYTES + 8 + 2;
/// The number of messages that all clients of an endpoint may receive together.
const RECEIVES: usize = 1100;

/// Scales an amount: returns the smaller one where `FABCACHE_EMULATED` says that the machine is emulated.
pub fn amount(usual: usize, emulated: usize) -> usize {
    if std::env::var_os("FABCACHE_EMULATED").is_some() { emulated } else { usual }
}

/// Opens the server's or the client's domain: `FABCACHE_SERVER_INTERFACE`, `FABCACHE_CLIENT_INTERFACE`.
pub fn domain(whose: &str) -> Arc<Domain> {
    let text = std::env::var("FABCACHE_PROVIDER").unwrap_or("tcp;ofi_rxm".into());
    let (provider, interface) = text.split_once(',').map_or((&*text, None), |(name, at)| (name, Some(at)));
    let own = std::env::var(format!("FABCACHE_{whose}_INTERFACE")).ok();
    let interface = own.or(interface.map(str::to_owned));
    let requirements =
        ProviderRequirements { provider: Some(provider.into()), interface, only_this_host: false };
    let library = Library::open().expect("libfabric is there");
    Domain::open(&library.pick(&requirements).expect("a provider")).expect("the domain opens")
}

/// Retries until the attempt returns a value.
pub fn wait_until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + END;
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(Instant::now() < end, "timed out");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// State shared by the clients of one process.
pub struct SharedEndpoint {
    pub inner: Mutex<Inner>,
}

pub struct Inner {
    pub port: Endpoint,
    pub sends: Pool,
    receives: Pool,
    /// Messages of clients that have not polled yet, by token.
    came: Vec<(u64, Buffer, usize)>,
    pub failed: Vec<fabcache_fabric::Error>,
    peer: Option<(Vec<u8>, Peer)>,
}

impl SharedEndpoint {
    pub fn open(domain: &Arc<Domain>) -> Arc<SharedEndpoint> {
        let options = EndpointOptions { operations: RECEIVES + 64, peers: 4, waits: false };
        let port = Endpoint::open(domain, options).expect("an endpoint");
        let receives = Pool::new(domain, LocalUse::ANY, RECEIVES, MESSAGE_BYTES).expect("memory");
        let sends = Pool::new(domain, LocalUse::ANY, 32, MESSAGE_BYTES).expect("memory");
        let mut inner = Inner { port, sends, receives, came: Vec::new(), failed: Vec::new(), peer: None };
        inner.post_receives();
        Arc::new(SharedEndpoint { inner: Mutex::new(inner) })
    }
}

impl Inner {
    fn post_receives(&mut self) {
        while let Some(buffer) = self.receives.take() {
            if self.port.receive(buffer, 0).is_err() {
                return;
            }
        }
    }

    /// Returns the server as a peer.
    pub fn peer(&mut self, name: &[u8]) -> Peer {
        match &self.peer {
            Some((known, peer)) if known == name => *peer,
            _ => {
                let peer = self.port.connect(name).expect("a name");
                self.peer = Some((name.to_vec(), peer));
                peer
            }
        }
    }

    pub fn poll(&mut self) {
        let mut completions = Vec::new();
        self.port.poll(&mut completions).expect("it polls");
        for Completion { kind, result, buffer, .. } in completions {
            match (kind, result) {
                (Kind::Received, Ok(len)) => {
                    self.came.extend(token_of(&buffer[..len]).map(|token| (token, buffer, len)));
                }
                (_, Err(error)) => self.failed.push(error),
                _ => {}
            }
        }
        self.post_receives();
    }

    /// Returns the next message for the client with this token.
    pub fn take(&mut self, token: u64) -> Option<(Buffer, usize)> {
        let at = self.came.iter().position(|(to, ..)| *to == token)?;
        let (_, buffer, len) = self.came.remove(at);
        Some((buffer, len))
    }
}

fn put_memory(into: &mut Vec<u8>, memory: RemoteMemory) {
    for number in [memory.address, memory.key, memory.bytes] {
        into.extend(number.to_le_bytes());
    }
}

fn put_name(into: &mut Vec<u8>, name: &[u8]) {
    into.extend((name.len() as u16).to_le_bytes());
    into.extend_from_slice(name);
    into.resize(2 + NAME_BYTES, 0);
}

fn number<const N: usize>(from: &mut &[u8]) -> u64 {
    let (first, rest) = from.split_at(N);
    *from = rest;
    let mut bytes = [0; 8];
    bytes[..N].copy_from_slice(first);
    u64::from_le_bytes(bytes)
}

fn name(from: &mut &[u8]) -> Vec<u8> {
    let len = number::<2>(from) as usize;
    let (name, rest) = from.split_at(NAME_BYTES);
    *from = rest;
    name[..len].to_vec()
}

/// Parses a client's hello, in place of the server's command.
pub fn read_hello(mut from: &[u8]) -> fabcache_transport::fabric::Client {
    let from = &mut from;
    let name = name(from);
    let (token, credits) = (number::<8>(from), number::<2>(from) as u16);
    let mut memory =
        || RemoteMemory { address: number::<8>(from), key: number::<8>(from), bytes: number::<8>(from) };
    fabcache_transport::fabric::Client { name, token, credits, staging: memory(), landing: memory() }
}

/// Builds the reply to it.
pub fn answer(name: &[u8], granted: Grant) -> Vec<u8> {
    let mut answer = Vec::new();
    put_name(&mut answer, name);
    answer.extend(granted.token.to_le_bytes());
    answer.extend(granted.credits.to_le_bytes());
    answer
}

/// One client, usable once it has [finished](Client::finish) connecting.
pub struct Client {
    pub endpoint: Arc<SharedEndpoint>,
    pub socket: TcpStream,
    pub staging: SharedArea,
    pub landing: SharedArea,
    pub token: u64,
    pub server: Option<Attached>,
    /// Whether the client says goodbye when it closes.
    pub is_polite: bool,
}

/// The state from the server's reply.
pub struct Attached {
    pub end: ClientEnd<Buffer>,
    pub granted: Grant,
    pub peer: Peer,
}

impl Client {
    pub fn connect(to: SocketAddr, endpoint: &Arc<SharedEndpoint>) -> Client {
        let socket = TcpStream::connect(to).expect("it listens");
        Client::over(socket, endpoint, RING_BYTES)
    }

    /// Connects a client with this much memory of either kind, over a new connection.
    pub fn over(socket: TcpStream, endpoint: &Arc<SharedEndpoint>, ring_bytes: usize) -> Client {
        Client::with_key(socket, endpoint, ring_bytes, 0)
    }

    /// Connects a client without stream memory, which grants this many messages.
    pub fn with_credits(socket: TcpStream, endpoint: &Arc<SharedEndpoint>, credits: u16) -> Client {
        Client::with(socket, endpoint, 0, 0, credits)
    }

    /// The same, with keys that differ from the memory's, unless `change` is 0.
    pub fn with_key(
        socket: TcpStream,
        endpoint: &Arc<SharedEndpoint>,
        ring_bytes: usize,
        change: u64,
    ) -> Client {
        Client::with(socket, endpoint, ring_bytes, change, CREDITS)
    }

    fn with(
        mut socket: TcpStream,
        endpoint: &Arc<SharedEndpoint>,
        ring_bytes: usize,
        change: u64,
        credits: u16,
    ) -> Client {
        let area = |peers| {
            let mut inner = endpoint.inner.lock().expect("no panic");
            SharedArea::new(&mut inner.port, ring_bytes, peers).expect("memory")
        };
        let (staging, landing) = (area(PeerAccess::Read), area(PeerAccess::Write));
        static TOKENS: std::sync::atomic::AtomicU64 =
            std::sync::atomic::AtomicU64::new(0x1234_5678_0000_0000);
        let token = TOKENS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut hello = Vec::new();
        put_name(&mut hello, endpoint.inner.lock().expect("no panic").port.name());
        hello.extend(token.to_le_bytes());
        hello.extend(credits.to_le_bytes());
        for memory in [staging.remote(), landing.remote()] {
            let bytes = if ring_bytes == 0 { 0 } else { memory.bytes };
            put_memory(&mut hello, RemoteMemory { key: memory.key ^ change, bytes, ..memory });
        }
        assert_eq!(hello.len(), HELLO_BYTES);
        socket.write_all(&hello).expect("the server is connected");
        Client {
            endpoint: Arc::clone(endpoint),
            socket,
            staging,
            landing,
            token,
            server: None,
            is_polite: true,
        }
    }

    /// Receives the server's reply.
    pub fn finish(mut self) -> Client {
        self.attached();
        self
    }

    pub fn attached(&mut self) -> &mut Attached {
        if self.server.is_none() {
            let mut answer = [0; ANSWER_BYTES];
            self.socket.read_exact(&mut answer).expect("an answer");
            self.socket.set_nonblocking(true).expect("a socket");
            let mut from = &answer[..];
            let name = name(&mut from);
            let granted = Grant { token: number::<8>(&mut from), credits: number::<2>(&mut from) as u16 };
            let ring =
                |area: &SharedArea| if area.len() < RING_BYTES_MIN as usize { 0 } else { area.len() as u64 };
            let end = ClientEnd::new(Terms {
                own_token: self.token,
                peer_token: granted.token,
                own_credits: CREDITS,
                peer_credits: granted.credits,
                staging_bytes: ring(&self.staging),
                landing_bytes: ring(&self.landing),
            });
            assert!(receives_for(CREDITS) <= RECEIVES);
            let peer = self.endpoint.inner.lock().expect("no panic").peer(&name);
            self.server = Some(Attached { end, granted, peer });
        }
        self.server.as_mut().expect("just set")
    }

    /// Processes arrived messages and sends due ones. Returns false if the socket is closed.
    pub fn turn(&mut self) -> io::Result<bool> {
        self.attached();
        let Some(Attached { end, peer, .. }) = &mut self.server else {
            unreachable!("the client is attached")
        };
        let mut inner = self.endpoint.inner.lock().expect("no panic");
        inner.poll();
        if let Some(error) = inner.failed.first() {
            return Err(io::Error::other(error.clone()));
        }
        while let Some((buffer, len)) = inner.take(self.token) {
            end.arrived(buffer, len).map_err(io::Error::other)?;
        }
        while let Some(buffer) = end.freed() {
            // Dropped buffers are posted again with the others.
            drop(buffer);
        }
        inner.post_receives();
        let mut message = [0; SHORT_BYTES];
        while let Some(draft) = end.short(&mut message) {
            let message = &message[..draft.bytes()];
            let posted = if message.len() <= inner.port.domain().provider().inject_bytes {
                inner.port.inject(*peer, message)
            } else {
                let Some(mut buffer) = inner.sends.take() else { break };
                buffer[..message.len()].copy_from_slice(message);
                inner.port.send(*peer, buffer, message.len(), 0).map_err(|refused| refused.error)
            };
            match posted {
                Ok(()) => end.sent(draft),
                Err(error) if error.is_again() => break,
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        drop(inner);
        // Notifications are irrelevant to a client that does not sleep.
        match self.socket.read(&mut [0; 64]) {
            Ok(0) => Ok(false),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Ok(false),
            _ => Ok(true),
        }
    }

    /// Sends the start of the bytes.
    pub fn send_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.attached();
        let Some(Attached { end, peer, .. }) = &mut self.server else {
            unreachable!("the client is attached")
        };
        let mut inner = self.endpoint.inner.lock().expect("no panic");
        match end.next(bytes.len()) {
            SendMode::Later => Ok(0),
            SendMode::Data => {
                let Some(mut buffer) = inner.sends.take() else { return Ok(0) };
                let draft = end.data(&[IoSlice::new(bytes)], &mut buffer).expect("there was room");
                match inner.port.send(*peer, buffer, draft.bytes(), 0) {
                    Ok(()) => {
                        let taken = draft.taken();
                        end.sent(draft);
                        Ok(taken)
                    }
                    Err(refused) if refused.error.is_again() => Ok(0),
                    Err(refused) => Err(io::Error::other(refused.error)),
                }
            }
            SendMode::StagingRange(piece) => {
                self.staging.copy_in(piece.at, &bytes[..piece.bytes]);
                end.staged(piece);
                Ok(piece.bytes)
            }
        }
    }

    /// Lends memory, with `before` sent ahead of it. Returns false if that is not possible now.
    pub fn lend(&mut self, before: &[u8], lent: &LentMemory) -> io::Result<bool> {
        self.attached();
        let Some(Attached { end, peer, .. }) = &mut self.server else {
            unreachable!("the client is attached")
        };
        let mut inner = self.endpoint.inner.lock().expect("no panic");
        if end.next(1) != SendMode::Data {
            return Ok(false);
        }
        let Some(mut buffer) = inner.sends.take() else { return Ok(false) };
        let draft = end.lend(&[IoSlice::new(before)], lent, &mut buffer).expect("there was room");
        match inner.port.send(*peer, buffer, draft.bytes(), 0) {
            Ok(()) => {
                end.sent(draft);
                Ok(true)
            }
            Err(refused) if refused.error.is_again() => Ok(false),
            Err(refused) => Err(io::Error::other(refused.error)),
        }
    }

    /// Returns the received bytes.
    pub fn receive_some(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.attached();
        let Some(Attached { end, .. }) = &mut self.server else { unreachable!("the client is attached") };
        while let Some(incoming) = end.incoming() {
            let len = match incoming {
                Incoming::Bytes(part) => {
                    bytes.extend_from_slice(part);
                    part.len()
                }
                Incoming::Landed(piece) => {
                    self.landing.append_to(piece.at, piece.bytes, &mut bytes);
                    piece.bytes
                }
            };
            end.consume(len);
        }
        bytes
    }

    /// Sends any message, bypassing its endpoint's checks, while the server makes progress.
    pub fn send_raw(&mut self, message: &[u8], mut others: impl FnMut()) {
        let peer = self.attached().peer;
        wait_until(|| {
            others();
            let mut inner = self.endpoint.inner.lock().expect("no panic");
            inner.poll();
            let mut buffer = inner.sends.take()?;
            buffer[..message.len()].copy_from_slice(message);
            inner.port.send(peer, buffer, message.len(), 0).ok()
        });
    }
}

impl conformance::Client for Client {
    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let end = Instant::now() + END;
        while !bytes.is_empty() || self.attached().end.has_unsent() {
            if !self.turn()? {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let sent = if bytes.is_empty() { 0 } else { self.send_some(bytes)? };
            bytes = &bytes[sent..];
            if sent == 0 {
                assert!(Instant::now() < end, "sending stalls");
                std::thread::yield_now();
            }
        }
        self.turn().map(drop)
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        wait_until(|| {
            let turn = self.turn();
            let bytes = self.receive_some();
            let has_left = self.attached().end.has_peer_left();
            match turn {
                _ if !bytes.is_empty() || has_left => Some(Ok(bytes)),
                Ok(true) => None,
                Ok(false) => Some(Ok(bytes)),
                Err(error) => Some(Err(error)),
            }
        })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.server.is_none() || !self.is_polite || std::thread::panicking() {
            return;
        }
        self.attached().end.leave();
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until
            && matches!(self.turn(), Ok(true))
            && !self.attached().end.has_peer_left()
        {
            self.receive_some();
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}
