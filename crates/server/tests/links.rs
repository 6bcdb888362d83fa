//! Clients on the fabric, one by one: what they get, and how violations and departures end. `FABCACHE_PROVIDER` names
//! the provider, `FABCACHE_SERVER_INTERFACE` and `FABCACHE_CLIENT_INTERFACE` the interfaces, if these matter.

mod common;

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::process::{Process, fabcached, spawn, start_command};
use common::{Client, REPLY_TIMEOUT, Scratch, connect, connect_unix, wait_until};
use fabcache_fabric::channel::{
    CHANNEL_VERSION, ClientEnd, Incoming, MESSAGE_BYTES, SHORT_BYTES, SendMode, Terms, receives_for,
};
use fabcache_fabric::{
    Buffer, Completion, Domain, Endpoint, EndpointOptions, Kind, Library, LocalUse, Peer, Pool,
    ProviderRequirements, RemoteAddress,
};
use fabcache_layout::format::{FORMAT_VERSION, MAGIC};
use fabcache_testbed::report::not_run;
use fabcache_testbed::wait::amount;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

/// The number of messages that the client accepts.
const CREDITS: u16 = 16;
/// The client's token.
const TOKEN: u64 = 0x1234_5678_9abc_def0;
/// How long a client waits for the server before it rings: the worker may have no descriptor to wait on.
const RINGS_AFTER: Duration = Duration::from_millis(1);

fn provider() -> String {
    std::env::var("FABCACHE_PROVIDER").unwrap_or("tcp;ofi_rxm".into())
}

/// Returns the interface of the server, or of the client.
fn interface(whose: &str) -> Option<String> {
    std::env::var(format!("FABCACHE_{whose}_INTERFACE")).ok().filter(|name| !name.is_empty())
}

/// Starts a server with a fabric.
fn start(more: &str) -> Process {
    start_command(command(fabcached("-l 127.0.0.1 -p -1 -t 2"), more))
}

fn command(mut command: Command, more: &str) -> Command {
    let mut provider = provider();
    if let Some(interface) = interface("SERVER") {
        provider = format!("{provider},{interface}");
    }
    // Hardware has no interface limited to its own host.
    let peers = if provider.starts_with("verbs") { "--fabric-peers 0.0.0.0/0,::/0" } else { "" };
    command.args(["--fabric", &provider]).args(peers.split_whitespace()).args(more.split_whitespace());
    command
}

/// The client's endpoint on the fabric.
struct Reach {
    port: Endpoint,
    pool: Pool,
}

impl Reach {
    fn open(provider: &str) -> Reach {
        let only_this_host = !provider.starts_with("verbs");
        let requirements = ProviderRequirements {
            provider: Some(provider.to_owned()),
            interface: interface("CLIENT"),
            only_this_host,
        };
        let provider =
            Library::open().expect("libfabric is there").pick(&requirements).expect("the server's provider");
        let domain = Domain::open(&provider).expect("the domain opens");
        let port = Endpoint::open(&domain, EndpointOptions { operations: 64, peers: 1, waits: false });
        let pool =
            Pool::new(&domain, LocalUse::ANY, receives_for(CREDITS) + 4, MESSAGE_BYTES).expect("memory");
        let mut reach = Reach { port: port.expect("an endpoint"), pool };
        for _ in 0..receives_for(CREDITS) {
            let buffer = reach.pool.take().expect("a free buffer");
            reach.port.receive(buffer, 0).expect("posted");
        }
        reach
    }
}

/// A client on the fabric.
struct OnFabric {
    tcp: Client<TcpStream>,
    reach: Reach,
    peer: Peer,
    end: ClientEnd<Buffer>,
    heard: VecDeque<u8>,
    /// The server's token, and the region's length, address and key.
    token: u64,
    region: (u64, u64, u64),
}

fn hello(tcp: &mut Client<TcpStream>) -> String {
    tcp.say(format!("fabric hello {CHANNEL_VERSION} {FORMAT_VERSION}\r\n"));
    tcp.hear_until("\r\n")
}

/// Returns the line of `fabric attach`.
fn words(name: &[u8], credits: u16) -> String {
    format!("fabric attach {} {TOKEN:x} {credits} 0 0 0 0 0 0\r\n", STANDARD.encode(name))
}

fn attach(server: SocketAddr) -> OnFabric {
    attach_naming(server, None)
}

/// Attaches a client that gives another endpoint name than its own.
fn attach_naming(server: SocketAddr, name: Option<&[u8]>) -> OnFabric {
    let mut tcp = connect(server);
    let said = hello(&mut tcp);
    let provider = said.split(' ').nth(1).unwrap_or_else(|| panic!("{said}"));
    let mut reach = Reach::open(provider);
    tcp.say(words(name.unwrap_or(reach.port.name()), CREDITS));
    let said = tcp.hear_until("\r\n");
    let words: Vec<&str> = said.split_ascii_whitespace().collect();
    assert_eq!((words.len(), words[0]), (10, "FABRIC"), "{said}");
    let number = |at: usize| words[at].parse::<u64>().expect("a number");
    let peer = reach.port.connect(&STANDARD.decode(words[1]).expect("base64")).expect("a peer");
    let token = u64::from_str_radix(words[2], 16).expect("a token");
    let terms = Terms {
        own_token: TOKEN,
        peer_token: token,
        own_credits: CREDITS,
        peer_credits: u16::try_from(number(3)).expect("credits"),
        staging_bytes: 0,
        landing_bytes: 0,
    };
    assert_eq!(STANDARD.decode(words[8]).expect("base64").len(), 192);
    let region = (number(4), number(6), number(7));
    OnFabric { tcp, reach, peer, end: ClientEnd::new(terms), heard: VecDeque::new(), token, region }
}

impl OnFabric {
    /// Processes arrived messages; returns other completions.
    fn pump(&mut self) -> Vec<Completion> {
        let (mut ended, mut others) = (Vec::new(), Vec::new());
        self.reach.port.poll(&mut ended).expect("it polls");
        for completion in ended {
            if completion.kind != Kind::Received {
                others.push(completion);
                continue;
            }
            let len = completion.result.expect("received");
            self.end.arrived(completion.buffer, len).expect("the server follows the protocol");
            loop {
                let len = match self.end.incoming() {
                    Some(Incoming::Bytes(bytes)) => {
                        self.heard.extend(bytes);
                        bytes.len()
                    }
                    Some(Incoming::Landed(piece)) => panic!("there is no memory for {piece:?}"),
                    None => break,
                };
                self.end.consume(len);
            }
            while let Some(buffer) = self.end.freed() {
                self.reach.port.receive(buffer, 0).expect("posted");
            }
        }
        let mut message = [0; SHORT_BYTES];
        while let Some(draft) = self.end.short(&mut message) {
            self.send(&message[..draft.bytes()]);
            self.end.sent(draft);
        }
        others
    }

    /// Polls, ringing now and then, until `got` returns a value.
    fn until<T>(&mut self, what: &str, mut got: impl FnMut(&mut OnFabric) -> Option<T>) -> T {
        let (end, mut ring) = (Instant::now() + REPLY_TIMEOUT, Instant::now() + RINGS_AFTER);
        loop {
            if let Some(got) = got(self) {
                return got;
            }
            let now = Instant::now();
            assert!(now < end, "timed out until {what}");
            if now >= ring {
                let _ = self.tcp.stream.write(b"!");
                ring = now + RINGS_AFTER;
            }
            std::thread::yield_now();
        }
    }

    /// Sends a message unchanged.
    fn send(&mut self, message: &[u8]) {
        self.until("the fabric takes a message", |this| {
            let mut buffer = this.reach.pool.take()?;
            buffer[..message.len()].copy_from_slice(message);
            match this.reach.port.send(this.peer, buffer, message.len(), 0) {
                Ok(()) => Some(()),
                Err(refused) if refused.error.is_again() => {
                    // Process no arrivals here: the caller may test that.
                    None
                }
                Err(refused) => panic!("{}", refused.error),
            }
        });
    }

    fn say(&mut self, bytes: &[u8]) {
        let mut left = bytes;
        while !left.is_empty() {
            let mut message = [0; MESSAGE_BYTES];
            let len = left.len();
            let draft = self.until("there are credits", |this| {
                this.pump();
                (this.end.next(len) == SendMode::Data).then_some(())?;
                this.end.data(&[IoSlice::new(left)], &mut message)
            });
            self.post(&message[..draft.bytes()]);
            left = &left[draft.taken()..];
            self.end.sent(draft);
        }
    }

    /// Sends a message, polling so that a connection can be established.
    fn post(&mut self, message: &[u8]) {
        self.until("the fabric takes a message", |this| {
            this.pump_sent();
            let mut buffer = this.reach.pool.take()?;
            buffer[..message.len()].copy_from_slice(message);
            match this.reach.port.send(this.peer, buffer, message.len(), 0) {
                Ok(()) => Some(()),
                Err(refused) if refused.error.is_again() => None,
                Err(refused) => panic!("{}", refused.error),
            }
        });
    }

    fn pump_sent(&mut self) {
        for completion in self.pump() {
            completion.result.expect("sent");
        }
    }

    /// Asserts that the server closes the socket, having sent only notifications on it.
    #[track_caller]
    fn is_left(&mut self) {
        self.tcp.stream.set_read_timeout(Some(RINGS_AFTER)).expect("a socket");
        let end = Instant::now() + REPLY_TIMEOUT;
        let mut doorbells = [0; 64];
        loop {
            assert!(Instant::now() < end, "the socket stays open");
            match self.tcp.stream.read(&mut doorbells) {
                Ok(0) => return,
                Ok(len) => {
                    assert!(doorbells[..len].iter().all(|doorbell| *doorbell == b'!'), "{doorbells:?}")
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
                Err(error) => panic!("{error}"),
            }
            let _ = self.tcp.stream.write(b"!");
        }
    }

    #[track_caller]
    fn request(&mut self, request: &str, expected: &str) {
        self.say(request.as_bytes());
        self.until("the answer is there", |this| {
            this.pump_sent();
            (this.heard.len() >= expected.len()).then_some(())
        });
        let heard: Vec<u8> = self.heard.drain(..expected.len()).collect();
        assert_eq!(String::from_utf8_lossy(&heard), expected);
    }
}

fn count(server: SocketAddr, name: &str) -> u64 {
    connect(server).count("fabcache", name)
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn server_without_memlock_reports_it() {
    if !provider().starts_with("verbs") {
        return not_run("server_without_memlock_reports_it", &format!("{} pins no memory", provider()));
    }
    for (limit, items) in [("65536", 16u64 << 20), ("16777216", 64 << 20)] {
        // Root may lock any amount of memory, by a capability.
        let mut limited = Command::new("setpriv");
        limited.args(["--bounding-set", "-ipc_lock", "prlimit", &format!("--memlock={limit}:{limit}")]);
        limited.arg(env!("CARGO_BIN_EXE_fabcached"));
        limited.args("-l 127.0.0.1 -p -1 -t 1".split(' '));
        let mut server = spawn(command(limited, &format!("-m {}", items >> 20)));
        assert!(!server.wait().success());
        let why = server.log();
        for reported in [limit, &items.to_string(), "ulimit -l", "LimitMEMLOCK="] {
            assert!(why.contains(reported), "{reported}: {why}");
        }
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn fabric_requests_work_alongside_other_transports() {
    let scratch = Scratch::new("links-ways");
    let path = scratch.path("socket");
    let process = start(&format!("-I 8m --shm -s {}", path.display()));
    let mut a = attach(process.address());
    let mut b = attach(process.address());
    a.request("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    connect(process.address()).request("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    connect_unix(&path).request("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    b.request("get a\r\nmg a v\r\n", "VALUE a 0 1\r\nx\r\nEND\r\nVA 1\r\nx\r\n");
    // More than messages hold, and more than there are credits for.
    let value = "v".repeat(1 << 20);
    b.request(&format!("set b 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
    a.request("get b\r\n", &format!("VALUE b 0 {}\r\n{value}\r\nEND\r\n", value.len()));
    // Reports reads that the server did not see; there is no reply.
    a.request("shm accessed AQAAAAAAAAAI\r\nmn\r\n", "MN\r\n");
    let mut c = connect(process.address());
    assert_eq!((c.count("fabcache", "fabric_attached"), c.count("fabcache", "fabric_refused")), (2, 0));
    assert_eq!(c.count("fabcache", "fabric_region_bytes"), a.region.0);
    assert!(c.count("fabcache", "fabric_buffer_bytes") >= 2 * 1024 * MESSAGE_BYTES as u64);
    let conns = c.stats("conns");
    let on_fabric = conns.iter().filter(|(name, value)| name.ends_with(":addr") && value.starts_with("fab:"));
    assert_eq!(on_fabric.count(), 2, "{conns:?}");
    assert!(process.log().contains("clients can connect over the fabric"), "{}", process.log());
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn interface_unreachable_from_listed_networks_warns() {
    for (peers, is_warned_of) in [("local,192.0.2.0/24", true), ("local,127.0.0.0/8", false)] {
        let flags = format!("-l * -p -1 -t 1 --fabric tcp;ofi_rxm,lo --fabric-peers {peers}");
        let log = start_command(fabcached(&flags)).log();
        assert!(log.contains("clients can connect over the fabric"), "{log}");
        assert_eq!(log.contains("other hosts do not reach tcp;ofi_rxm"), is_warned_of, "{log}");
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn region_is_readable_by_its_key() {
    let process = start("");
    let mut a = attach(process.address());
    a.request("mn\r\n", "MN\r\n");
    let (_, address, key) = a.region;
    let buffer = a.reach.pool.take().expect("a free buffer");
    let mut waiting = Some(buffer);
    let came = a.until("the region is read", |this| {
        if let Some(buffer) = waiting.take()
            && let Err(refused) =
                this.reach.port.read(this.peer, RemoteAddress { address, key }, buffer, 0..64, 7)
        {
            assert!(refused.error.is_again(), "{}", refused.error);
            waiting = Some(refused.buffer);
        }
        this.pump().into_iter().find(|completion| completion.kind == Kind::Read)
    });
    assert_eq!(came.result.expect("read"), 64);
    assert_eq!(came.buffer.first_chunk().map(|word| u64::from_le_bytes(*word)), Some(MAGIC));
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn unreachable_client_continues_over_tcp() {
    let process = start("");
    let mut c = connect(process.address());
    let name = [2, 0, 0, 80, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    c.request(words(&name, 8), "CLIENT_ERROR fabric hello comes before fabric attach\r\n");
    let versions = format!("messages of version {CHANNEL_VERSION}, and a region of version {FORMAT_VERSION}");
    let why = format!("CLIENT_ERROR this server's fabric has formats of other versions: {versions}\r\n");
    c.request("fabric hello 999 1\r\n", why);
    assert!(hello(&mut c).starts_with(&format!("FABRIC {}", provider())));
    if !provider().starts_with("verbs") {
        let mut foreign = name;
        foreign[4..8].copy_from_slice(&[192, 0, 2, 1]);
        let why = "CLIENT_ERROR the fabric is not for this endpoint's address; see --fabric-peers\r\n";
        c.request(words(&foreign, 8), why);
    }
    let why = "SERVER_ERROR the fabric cannot be used with this client; see the server's log\r\n";
    c.request(words(&[7; 256], 8), why);
    c.request(words(&name, 1), why);
    c.request("mn\r\n", "MN\r\n");
    assert_eq!(c.count("fabcache", "fabric_attached"), 0);
    assert!(c.count("fabcache", "fabric_refused") >= 4);
    wait_until("the log gives the reason", || {
        process.log().contains("cannot attach a client over the fabric")
    });
}

/// The maximum of one worker's clients.
const CLIENTS_MAX: usize = 1024;

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn client_beyond_the_limit_continues_over_tcp() {
    if provider().starts_with("verbs") {
        return not_run(
            "client_beyond_the_limit_continues_over_tcp",
            &"not every host can pin this many buffers",
        );
    }
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .expect("raising the soft limit is allowed");
    let process = start(&format!("-t 1 -c {}", 2 * CLIENTS_MAX));
    // Links of one endpoint, distinguished by their tokens.
    let mut reach = Reach::open(&provider());
    let name = reach.port.name().to_vec();
    let join = |tcp: &mut Client<TcpStream>| {
        let said = hello(tcp);
        assert!(said.starts_with("FABRIC "), "{said}");
        tcp.say(words(&name, CREDITS));
        tcp.hear_until("\r\n")
    };
    let mut taken: Vec<Client<TcpStream>> = (0..CLIENTS_MAX)
        .map(|number| {
            let mut tcp = connect(process.address());
            let said = join(&mut tcp);
            assert!(said.starts_with("FABRIC "), "{number}: {said}");
            tcp
        })
        .collect();
    let mut late = connect(process.address());
    let full = "SERVER_ERROR the fabric has as many clients here as it has buffers for\r\n";
    assert_eq!(join(&mut late), full);
    late.request("set a 0 0 1\r\nx\r\nget a\r\n", "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    assert_eq!(late.count("fabcache", "fabric_attached"), CLIENTS_MAX as u64);
    assert_eq!(late.count("fabcache", "fabric_refused"), 1);
    taken.pop();
    wait_until("a slot is free", || {
        // The server reports closed links by message; receive it here.
        let _ = reach.port.poll(&mut Vec::new());
        let said = join(&mut late);
        assert!(said == full || said.starts_with("FABRIC "), "{said}");
        said != full
    });
    let mut another = connect(process.address());
    assert_eq!(join(&mut another), full);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn protocol_violation_ends_only_its_link() {
    let process = start("-t 1");
    let (mut good, mut bad) = (attach(process.address()), attach(process.address()));
    good.request("mn\r\n", "MN\r\n");
    bad.request("mn\r\n", "MN\r\n");
    let strange = [&0xdead_beef_u64.to_le_bytes()[..], &[0; 8]].concat();
    bad.send(&strange);
    wait_until("the stray message is counted", || {
        good.pump_sent();
        count(process.address(), "fabric_dropped_messages") == 1
    });
    let broken = [&bad.token.to_le_bytes()[..], &[0xee; 8]].concat();
    bad.send(&broken);
    // The socket closes with the link.
    bad.is_left();
    assert_eq!(count(process.address(), "fabric_broken"), 1);
    good.request("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    let mut another = attach(process.address());
    another.request("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn leaving_clients_leak_nothing() {
    let process = start("");
    let mut stays = attach(process.address());
    stays.request("mn\r\n", "MN\r\n");
    let before = count(process.address(), "fabric_buffer_bytes");
    let rounds = amount(20, 6);
    for round in 0..rounds {
        let mut a = attach(process.address());
        a.request("set a 0 0 1\r\nx\r\n", "STORED\r\n");
        if round % 2 == 0 {
            // With a partial request.
            a.say(b"set a 0 0 100\r\nxyz");
        }
        drop(a);
    }
    let mut c = connect(process.address());
    wait_until("the links are closed", || {
        stays.pump_sent();
        let conns = c.stats("conns");
        conns
            .iter()
            .filter(|(_, value)| value.starts_with("fab:"))
            .filter(|(name, _)| name.ends_with(":addr"))
            .count()
            == 1
    });
    stays.request("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    assert_eq!(c.count("fabcache", "fabric_attached"), 1 + rounds as u64);
    assert_eq!(c.count("fabcache", "fabric_buffer_bytes"), before);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn stopping_server_closes_its_links() {
    let mut process = start("");
    let mut clients: Vec<OnFabric> = (0..4).map(|_| attach(process.address())).collect();
    for client in &mut clients {
        client.request("mn\r\n", "MN\r\n");
    }
    process.signal(Signal::TERM);
    for client in &mut clients {
        client.is_left();
    }
    assert!(process.wait().success(), "{}", process.log());
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn idle_server_sleeps_with_any_number_of_clients() {
    let process = start("-t 1");
    // Each client is an endpoint, with the provider's memory for it.
    let crowd = amount(20, 8);
    let mut clients: Vec<OnFabric> = (0..crowd).map(|_| attach(process.address())).collect();
    for client in &mut clients {
        client.request("mn\r\n", "MN\r\n");
    }
    // Until the workers stop spinning.
    wait_until("its workers sleep", || {
        let before = cpu_ns(&process);
        std::thread::sleep(Duration::from_millis(500));
        cpu_ns(&process) - before < 50_000_000
    });
    let before = cpu_ns(&process);
    std::thread::sleep(Duration::from_secs(4));
    let spent = Duration::from_nanos(cpu_ns(&process) - before);
    println!("idle with {crowd} clients: {:?} of CPU a second", spent / 4);
    // A thousand times the normal value on any machine; a worker that never sleeps uses all of it.
    assert!(spent / 4 < Duration::from_millis(100), "{spent:?} in four seconds");
    for client in &mut clients {
        client.request("mn\r\n", "MN\r\n");
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn worker_sleeps_despite_an_unreachable_client() {
    if !provider().starts_with("tcp") {
        return not_run(
            "worker_sleeps_despite_an_unreachable_client",
            &"the format of endpoint names is known for tcp only",
        );
    }
    let process = start("-t 1");
    let mut good = attach(process.address());
    good.request("mn\r\n", "MN\r\n");
    // A listener that accepts connections and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = silent.local_addr().expect("bound").port().to_be_bytes();
    let name = [&[2, 0][..], &port, &[127, 0, 0, 1], &[0; 8]].concat();
    let mut bad = attach_naming(process.address(), Some(&name));
    // From its own endpoint, not the named one.
    bad.say(b"set a 0 0 1\r\nx\r\n");
    good.request("mn\r\n", "MN\r\n");
    std::thread::sleep(Duration::from_millis(500));
    let before = cpu_ns(&process);
    std::thread::sleep(Duration::from_secs(2));
    let spent = Duration::from_nanos(cpu_ns(&process) - before);
    println!("with a client that cannot be reached: {:?} of CPU a second", spent / 2);
    assert!(spent / 2 < Duration::from_millis(200), "{spent:?} in two seconds");
    good.request("mn\r\n", "MN\r\n");
    bad.is_left();
    good.request("mn\r\n", "MN\r\n");
}

/// Returns the CPU time of all threads of the process.
fn cpu_ns(process: &Process) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{}/task", process.child.id())).expect("it runs");
    let of = |thread: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    threads.filter_map(of).sum()
}

#[test]
fn fabric_tests_run_where_libfabric_is_installed() {
    fabcache_testbed::fabric::run_ignored_tests(fabcache_fabric::Library::open().map(|_| ()));
}
