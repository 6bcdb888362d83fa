//! Links over a real provider: `FABCACHE_PROVIDER` names it, optionally followed by a comma and its interface.

#[path = "fabric/client.rs"]
mod client;
#[path = "fabric/hostile.rs"]
mod hostile;

use std::io::{self, IoSlice, Write};
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use client::{Client, END, SharedEndpoint, amount, domain, wait_until};
use fabcache_fabric::Domain;
use fabcache_fabric::channel::{MESSAGE_BYTES, PIECE_BYTES_MAX, RING_BYTES_MIN, receives_for};
use fabcache_testbed::report::not_run;
use fabcache_transport::conformance::pattern;
use fabcache_transport::conformance::{self, SourceUnderTest, TransportUnderTest, run, run_source};
use fabcache_transport::fabric::bounds::{
    BOUNCES, ENDING_TIME_MAX, GROWTH, LEAST_CREDITS, OWN_BYTES, OWN_GROWTH, RETRY_MAX, SENDS,
};
use fabcache_transport::fabric::{AttachError, FabricEndpoint, FabricLink, FabricOptions};
use fabcache_transport::tcp::{TcpListener, TcpOptions};
use fabcache_transport::{Kind, Link, Listener, Peer, PolledLink, Received, Source, WaitMode};

/// An endpoint, and the listener of its clients.
struct Server {
    domain: Arc<Domain>,
    /// The domain of the clients' endpoints.
    clients: Arc<Domain>,
    listener: TcpListener,
    port: Mutex<FabricEndpoint>,
}

impl Server {
    fn start(receives: u32) -> Server {
        Server::with(&FabricOptions { receives, ..FabricOptions::default() })
    }

    fn with(port: &FabricOptions) -> Server {
        let domain = domain("SERVER");
        let [here, there] = ["FABCACHE_SERVER_INTERFACE", "FABCACHE_CLIENT_INTERFACE"].map(std::env::var_os);
        let clients = if here == there { Arc::clone(&domain) } else { self::domain("CLIENT") };
        let options = TcpOptions { backlog: 256, share_address: false, cpu: None };
        Server {
            listener: TcpListener::bind("127.0.0.1:0".parse().expect("an address"), &options)
                .expect("loopback"),
            port: Mutex::new(FabricEndpoint::open(&domain, port).expect("a port")),
            domain,
            clients,
        }
    }

    fn port(&self) -> std::sync::MutexGuard<'_, FabricEndpoint> {
        self.port.lock().expect("no test panics while it holds the port")
    }

    fn progress(&self) -> Vec<u64> {
        let mut ready = Vec::new();
        self.port().progress(&mut ready).expect("the endpoint works");
        ready
    }

    /// Turns a TCP client that sends its hello into a link.
    fn accept(&self, tag: u64) -> io::Result<Option<FabricLink>> {
        let Some(link) = self.listener.accept()? else { return Ok(None) };
        let Ok(mut tcp) = link.into_stream() else { panic!("a TCP client") };
        let mut said = Vec::new();
        let end = Instant::now() + END;
        while said.len() < client::HELLO_BYTES {
            assert!(Instant::now() < end, "a client sends nothing");
            let mut buffer = [0; client::HELLO_BYTES];
            match tcp.receive(&mut buffer)? {
                Received::Bytes(len) => said.extend_from_slice(&buffer[..len]),
                Received::Nothing => std::thread::sleep(Duration::from_micros(100)),
                Received::End => return Ok(None),
            }
        }
        let attached = self.port().attach(tcp, tag, &client::read_hello(&said));
        let (mut link, granted) = attached.map_err(|(_, error)| io::Error::other(error))?;
        link.answer(&client::answer(self.port().name(), granted))?;
        Ok(Some(link))
    }

    /// Connects a client and accepts its link.
    fn pair(&self, endpoint: &Arc<SharedEndpoint>) -> (Client, FabricLink) {
        let client = Client::connect(self.listener.address(), endpoint);
        let link = wait_until(|| self.accept(0).expect("accepting works"));
        (client.finish(), link)
    }

    fn endpoint(&self) -> Arc<SharedEndpoint> {
        SharedEndpoint::open(&self.clients)
    }
}

impl Listener for Server {
    fn accept(&self) -> io::Result<Option<Box<dyn Link>>> {
        // Advances dropped links as well.
        self.progress();
        Ok(Server::accept(self, 0)?.map(|link| Box::new(link) as _))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.descriptor()
    }

    fn local(&self) -> Peer {
        self.listener.local()
    }

    fn kind(&self) -> Kind {
        Kind::Fabric
    }
}

/// The clients of the suite, which drive themselves.
struct Suite {
    server: Server,
    endpoint: Arc<SharedEndpoint>,
}

impl TransportUnderTest for Suite {
    fn listener(&self) -> &dyn Listener {
        &self.server
    }

    fn connect(&self) -> io::Result<Box<dyn conformance::Client>> {
        let client = Client::connect(self.server.listener.address(), &self.endpoint);
        Ok(Box::new(client))
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn fabric_conforms() {
    let server = Server::start(64);
    let endpoint = server.endpoint();
    // An endpoint becomes useless to a worker's endpoint when its last link there closes; this link stays open. Within
    // one process shm fails on sends to a closed endpoint, so this client does not say goodbye.
    let (mut client, link) = server.pair(&endpoint);
    client.is_polite = false;
    let suite = Suite { server, endpoint };
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                suite.server.progress();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&suite)));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Err(panic) = ran {
            std::panic::resume_unwind(panic);
        }
    });
    drop(link);
    until_no_links(&suite.server);
}

/// Echoes the client's bytes through the link.
fn echo(server: &Server, client: &mut Client, link: &mut FabricLink, len: usize) {
    let whole = pattern(len);
    let (mut sent, mut received) = (0, Vec::new());
    let (mut answered, mut answer) = (0, Vec::new());
    let mut buffer = vec![0; 64 << 10];
    wait_until(|| {
        server.progress();
        assert!(client.turn().expect("the server keeps the protocol"), "the server closed");
        // As much as fits: a client has nothing to wait for.
        loop {
            let more = client.send_some(&whole[sent..]).expect("it sends");
            sent += more;
            if more == 0 {
                break;
            }
        }
        while let Received::Bytes(more) = link.receive(&mut buffer).expect("it receives") {
            received.extend_from_slice(&buffer[..more]);
        }
        answered += link.send(&[IoSlice::new(&received[answered..])]).expect("it sends");
        answer.extend(client.receive_some());
        (answer.len() == len && link.flush().expect("it sends")).then_some(())
    });
    assert!(received == whole && answer == whole, "bytes changed in transit");
}

/// Receives until the link breaks or closes.
fn until_end(server: &Server, link: &mut FabricLink) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    wait_until(|| {
        server.progress();
        match link.receive(&mut buffer) {
            Ok(Received::End) => Some(Ok(())),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        }
    })
}

fn until_no_links(server: &Server) {
    wait_until(|| {
        server.progress();
        (server.port().links() == 0).then_some(())
    });
}

// ---- many ----

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn many_links_use_no_more_memory_than_documented() {
    let (receives, clients) = (256, amount(200, 60));
    let server = Server::start(receives);
    let least = receives_for(LEAST_CREDITS) * clients;
    let messages = receives as usize + least.next_multiple_of(GROWTH) + SENDS.max(2 * clients + GROWTH);
    let most = messages * MESSAGE_BYTES + BOUNCES * PIECE_BYTES_MAX;
    let mut before = 0;
    for round in 0..2 {
        let endpoints: Vec<_> = (0..4).map(|_| server.endpoint()).collect();
        let mut pairs: Vec<_> = (0..clients)
            .map(|i| {
                let socket = TcpStream::connect(server.listener.address()).expect("it listens");
                let client = Client::over(socket, &endpoints[i % endpoints.len()], RING_BYTES_MIN as usize);
                let link = wait_until(|| server.accept(i as u64).expect("accepting works"));
                (client.finish(), link)
            })
            .collect();
        for len in [1, 100, 50_000] {
            for (client, link) in &mut pairs {
                echo(&server, client, link, len);
            }
        }
        let registered = server.port().registered_bytes() as usize;
        println!("{clients} links: {registered} bytes registered, at most {most}");
        assert!(registered <= most);
        assert!(round == 0 || registered == before, "released memory is reused");
        before = registered;
        for (client, _) in &mut pairs {
            client.is_polite = false;
        }
        drop(pairs);
        until_no_links(&server);
    }
    assert_eq!(server.port().dropped_messages(), 0);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn stalled_receiver_takes_no_buffers_from_others() {
    let server = Server::start(256);
    let endpoint = server.endpoint();
    let mut idle: Vec<_> = (0..6).map(|_| server.pair(&endpoint)).collect();
    let block = pattern(1 << 20);
    for (client, _) in &mut idle {
        let mut sent = 0;
        wait_until(|| {
            server.progress();
            client.turn().expect("the server keeps the protocol");
            sent += client.send_some(&block[sent..]).expect("it sends");
            (sent == block.len() && !client.attached().end.has_unsent()).then_some(())
        });
    }
    let (mut client, mut link) = server.pair(&endpoint);
    echo(&server, &mut client, &mut link, amount(3_000_000, 500_000));
    // Bytes accepted from them still arrive.
    for (client, link) in &mut idle {
        let (mut received, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
        wait_until(|| {
            server.progress();
            client.turn().expect("the server keeps the protocol");
            while let Received::Bytes(more) = link.receive(&mut buffer).expect("it receives") {
                received.extend_from_slice(&buffer[..more]);
            }
            (received.len() == block.len()).then_some(())
        });
        assert!(received == block, "bytes changed in transit");
    }
}

/// Returns whether operations complete through an unpolled endpoint.
fn is_served_unasked(server: &Server) -> bool {
    let is_it = server.domain.provider().name == "shm" || server.domain.provider().is_one_sided;
    if is_it {
        not_run("the tests of clients that do not poll", &"this provider reads and writes their memory");
    }
    is_it
}

/// Returns links of one endpoint that is no longer polled; each has a MiB in flight to be read.
fn stuck(server: &Server, silent: &Arc<SharedEndpoint>, links: usize) -> Vec<(Client, FabricLink)> {
    let mut stuck: Vec<_> = (0..links).map(|_| server.pair(silent)).collect();
    // Their endpoint is proven.
    for (client, link) in &mut stuck {
        echo(server, client, link, 10);
    }
    let block = pattern(1 << 20);
    for (client, _) in &mut stuck {
        client.is_polite = false;
        let mut sent = 0;
        wait_until(|| {
            sent += client.send_some(&block[sent..]).expect("it sends");
            client.turn().expect("the server keeps the protocol");
            (sent == block.len() && !client.attached().end.has_unsent()).then_some(())
        });
    }
    for _ in 0..100 {
        server.progress();
        std::thread::sleep(Duration::from_millis(1));
    }
    stuck
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn stalled_reads_take_no_buffers_from_others() {
    let server = Server::start(256);
    if is_served_unasked(&server) {
        return;
    }
    assert_eq!(std::env::var(CLEANUP).as_deref(), Ok("1"), "the variable that servers set");
    let (silent, endpoint) = (server.endpoint(), server.endpoint());
    let (idle, mut idles_link) = server.pair(&silent);
    let mut stuck = stuck(&server, &silent, 5);
    let (mut client, mut link) = server.pair(&endpoint);
    echo(&server, &mut client, &mut link, 2_000_000);
    let own = OWN_GROWTH * OWN_BYTES;
    let most = (256 + SENDS + OWN_GROWTH) * MESSAGE_BYTES + BOUNCES * PIECE_BYTES_MAX + own;
    assert!(server.port().registered_bytes() as usize <= most, "a stalled link has a small buffer");
    // Closed links keep their reads as long as the endpoint knows the peer.
    stuck.clear();
    wait_until(|| {
        server.progress();
        (server.port().links() == 2).then_some(())
    });
    assert!(server.port().orphaned() > 0);
    let until = Instant::now() + ENDING_TIME_MAX;
    while Instant::now() < until {
        server.progress();
    }
    let another = Client::connect(server.listener.address(), &silent);
    let error = server.accept(0).expect_err("it would stall as well").to_string();
    assert_eq!(error, AttachError::Busy.to_string());
    drop(another);
    let error = wait_until(|| {
        server.progress();
        idles_link.flush().err()
    });
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    drop((idle, idles_link));
    wait_until(|| {
        server.progress();
        (server.port().orphaned() == 0).then_some(())
    });
    echo(&server, &mut client, &mut link, 2_000_000);
}

/// Makes libfabric cancel operations with a removed peer.
const CLEANUP: &str = "FI_AV_REMOVE_CLEANUP";

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn endpoint_that_cannot_drop_its_clients_fails() {
    if std::env::var_os(CLEANUP).is_some() {
        // libfabric reads the environment when it is opened.
        let run = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "endpoint_that_cannot_drop_its_clients_fails", "--ignored", "--nocapture"])
            .env_remove(CLEANUP)
            .status();
        assert!(run.expect("it starts").success());
        return;
    }
    let server = Server::start(256);
    if is_served_unasked(&server) {
        return;
    }
    let (silent, endpoint) = (server.endpoint(), server.endpoint());
    let mut stuck = stuck(&server, &silent, 3);
    let (mut client, mut link) = server.pair(&endpoint);
    echo(&server, &mut client, &mut link, 10);
    client.is_polite = false;
    stuck.clear();
    let error = wait_until(|| server.port().progress(&mut Vec::new()).err());
    assert!(error.to_string().contains("does not end operations"), "{error}");
    assert!(link.flush().is_err(), "its links are broken");
    // Another endpoint can replace it.
    drop((link, client));
    let options = FabricOptions { receives: 256, ..FabricOptions::default() };
    let other = FabricEndpoint::open(&server.domain, &options).expect("a port");
    drop(std::mem::replace(&mut *server.port(), other));
    let (mut client, mut link) = server.pair(&server.endpoint());
    echo(&server, &mut client, &mut link, 2_000_000);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn clients_beyond_the_buffers_are_refused() {
    let server = Server::with(&FabricOptions { receives: 16, clients: 40, ..FabricOptions::default() });
    let endpoint = server.endpoint();
    let attach = || {
        let socket = TcpStream::connect(server.listener.address()).expect("it listens");
        let client = Client::over(socket, &endpoint, RING_BYTES_MIN as usize);
        let link = server.accept(0).map(|link| link.expect("the client connected"));
        (client, link)
    };
    let mut pairs: Vec<_> = (0..40)
        .map(|_| {
            let (client, link) = attach();
            (client.finish(), link.expect("there is room"))
        })
        .collect();
    let (refused, error) = attach();
    assert_eq!(
        error.expect_err("one client too many").to_string(),
        "the endpoint has its maximum of 40 links"
    );
    drop(refused);
    for (client, link) in &mut pairs {
        echo(&server, client, link, 50_000);
        client.is_polite = false;
    }
    pairs.pop();
    wait_until(|| {
        server.progress();
        (server.port().links() == 39).then_some(())
    });
    let (client, link) = attach();
    let (mut client, mut link) = (client.finish(), link.expect("there is room again"));
    echo(&server, &mut client, &mut link, 50_000);
    client.is_polite = false;
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn client_taking_no_messages_takes_no_buffers_from_others() {
    let server = Server::start(1024);
    if is_served_unasked(&server) {
        return;
    }
    let (silent, endpoint) = (server.endpoint(), server.endpoint());
    let (mut client, mut link) = server.pair(&endpoint);
    echo(&server, &mut client, &mut link, 10_000);
    let mut greedy: Vec<_> = (0..20)
        .map(|_| {
            let socket = TcpStream::connect(server.listener.address()).expect("it listens");
            let client = Client::with_credits(socket, &silent, 4096);
            let link = wait_until(|| server.accept(0).expect("accepting works"));
            let mut client = client.finish();
            client.is_polite = false;
            (client, link)
        })
        .collect();
    // The clients connect, and stop polling.
    for (client, link) in &mut greedy {
        wait_until(|| {
            server.progress();
            client.turn().expect("the server keeps the protocol");
            link.send(&[IoSlice::new(b"x")]).is_ok_and(|sent| sent > 0).then_some(())
        });
    }
    let block = pattern(1 << 20);
    let until = Instant::now() + Duration::from_millis(500);
    while Instant::now() < until {
        server.progress();
        for (_, link) in &mut greedy {
            let _ = link.send(&[IoSlice::new(&block)]);
        }
    }
    for _ in 0..20 {
        echo(&server, &mut client, &mut link, 10_000);
    }
    // Nor do they keep a worker from sleeping.
    if server.port().wait_fd().is_some() {
        wait_until(|| {
            server.progress();
            let sleep = server.port().arm();
            (sleep != WaitMode::Spin).then_some(sleep)
        });
    }
    client.is_polite = false;
    drop(link);
    wait_until(|| {
        server.progress();
        assert!(server.port().links() > greedy.len(), "the link stays for its last bytes");
        matches!(server.port().arm(), WaitMode::SleepFor(time) if time <= RETRY_MAX).then_some(())
    });
}

// ---- killed clients ----

/// Set to the server's address in a client process that will be killed.
const CHILD: &str = "FABCACHE_FABRIC_CHILD";

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn child() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let (kind, address) = what.split_once(' ').expect("two words");
    let endpoint = SharedEndpoint::open(&domain("CLIENT"));
    let mut client = Client::connect(address.parse().expect("an address"), &endpoint).finish();
    let block = pattern(1 << 20);
    let mut sent = 0;
    loop {
        client.turn().expect("the server keeps the protocol");
        let most = if kind == "sends" { block.len() } else { 1 };
        if sent < most || kind == "sends" {
            sent = (sent + client.send_some(&block[sent % block.len()..most]).expect("it sends")) % (1 << 30);
        }
        client.receive_some();
    }
}

fn a_client_is_killed(kind: &str) {
    let server = Server::start(128);
    let endpoint = server.endpoint();
    let (mut other, mut others_link) = server.pair(&endpoint);
    // Often enough to exhaust the bounce buffers if any leaked; fewer times in emulation.
    for _ in 0..amount(5, 2) {
        let mut process = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "child", "--ignored"])
            .env(CHILD, format!("{kind} {}", server.listener.address()))
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("it starts");
        let mut link = wait_until(|| server.accept(7).expect("accepting works"));
        let block = pattern(1 << 20);
        let (mut moved, mut buffer) = (0, vec![0; 64 << 10]);
        wait_until(|| {
            server.progress();
            if let Received::Bytes(len) = link.receive(&mut buffer).expect("the link works") {
                moved += len;
            }
            if kind == "receives" {
                moved += link.send(&[IoSlice::new(&block)]).expect("the link works");
            }
            (moved > amount(5_000_000, 1_200_000)).then_some(())
        });
        // A stopped client keeps its buffers, and no other link waits for it.
        let pid = rustix::process::Pid::from_child(&process);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("it runs");
        if kind == "receives" {
            while link.send(&[IoSlice::new(&block)]).expect("the link works") > 0 {}
        }
        echo(&server, &mut other, &mut others_link, amount(2_000_000, 300_000));
        process.kill().expect("it runs");
        process.wait().expect("it was killed");
        if kind == "receives" {
            wait_until(|| {
                server.progress();
                link.drain_wakeup();
                link.send(&[IoSlice::new(&block)]).is_err().then_some(())
            });
        } else {
            let _ = until_end(&server, &mut link);
        }
        drop(link);
        wait_until(|| {
            server.progress();
            (server.port().links() == 1).then_some(())
        });
        echo(&server, &mut other, &mut others_link, amount(2_000_000, 300_000));
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn client_killed_while_it_is_read_ends_its_link() {
    a_client_is_killed("sends");
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn client_killed_while_it_is_written_ends_its_link() {
    a_client_is_killed("receives");
}

// ---- sleeping ----

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut descriptors = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("poll works") > 0
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn flush_completion_is_reported_once() {
    let server = Server::start(128);
    let (mut client, mut link) = server.pair(&server.endpoint());
    let answer = pattern(100_000);
    let (mut sent, mut waits, mut received) = (0, false, Vec::new());
    wait_until(|| {
        server.progress();
        client.turn().expect("the server keeps the protocol");
        if sent < answer.len() {
            sent += link.send(&[IoSlice::new(&answer[sent..])]).expect("it sends");
            waits = sent == answer.len() && !link.flush().expect("it sends");
        }
        received.extend(client.receive_some());
        (sent == answer.len() && !link.has_unsent()).then_some(())
    });
    if !waits {
        not_run(
            "flush_completion_is_reported_once for a late flush",
            &"the provider wrote the last chunk at once",
        );
    }
    wait_until(|| {
        client.turn().expect("the server keeps the protocol");
        received.extend(client.receive_some());
        (received.len() == answer.len()).then_some(())
    });
    assert!(received == answer, "bytes changed in transit");
    // The link has nothing to receive and no longer waits: no link is reported any more.
    wait_until(|| {
        matches!(link.receive(&mut [0; 64]).expect("the link works"), Received::Nothing).then_some(())
    });
    assert!(wait_until(|| link.arm_wakeup().then_some(true)));
    assert!(!link.has_unread() && server.progress().is_empty());
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn arrivals_wake_a_sleeping_worker() {
    let server = Server::start(128);
    let (mut client, mut link) = server.pair(&server.endpoint());
    link.start_polling();
    echo(&server, &mut client, &mut link, 100_000);
    for round in 0..amount(20, 5) {
        assert!(wait_until(|| link.arm_wakeup().then_some(true)));
        wait_until(|| {
            assert_eq!(server.progress(), [], "nothing arrived");
            (server.port().arm() == WaitMode::Sleep).then_some(())
        });
        let fd = server.port().wait_fd().map(|fd| fd.try_clone_to_owned().expect("a descriptor"));
        let reported = || match &fd {
            Some(fd) => is_readable(std::os::fd::AsFd::as_fd(fd)),
            None => is_readable(link.descriptor().expect("a descriptor")),
        };
        assert!(!reported(), "round {round}: nothing arrived");
        wait_until(|| {
            client.turn().expect("the server keeps the protocol");
            (client.send_some(b"awake?").expect("it sends") > 0).then_some(())
        });
        if fd.is_none() {
            client.socket.write_all(b"!").expect("the server is connected");
        }
        wait_until(|| {
            client.turn().expect("the server keeps the protocol");
            reported().then_some(())
        });
        if fd.is_none() {
            link.drain_wakeup();
        }
        // A waiting link is reported by its tag, or can receive at once.
        wait_until(|| (!server.progress().is_empty() || link.has_unread()).then_some(()));
        assert_eq!(link.receive(&mut [0; 64]).expect("it came"), Received::Bytes(6));
        assert_eq!(link.send(&[IoSlice::new(b"yes")]).expect("it sends"), 3);
        if fd.is_none() {
            wait_until(|| client.socket.peek(&mut [0; 1]).is_ok_and(|len| len > 0).then_some(()));
        }
        wait_until(|| {
            server.progress();
            client.turn().expect("the server keeps the protocol");
            (client.receive_some() == b"yes").then_some(())
        });
    }
}

/// An endpoint under the suite of sources, with one link.
struct EndpointUnderTest {
    source: FabricEndpoint,
    link: Option<FabricLink>,
    client: Arc<Mutex<Client>>,
}

impl SourceUnderTest for EndpointUnderTest {
    fn source(&mut self) -> &mut dyn Source {
        &mut self.source
    }

    fn tag(&self) -> u64 {
        0
    }

    fn notifier(&mut self) -> Box<dyn FnMut() + Send> {
        let client = Arc::clone(&self.client);
        Box::new(move || {
            wait_until(|| {
                let mut client = client.lock().expect("no panic");
                client.turn().expect("the server keeps the protocol");
                (client.send_some(b"!").expect("it sends") > 0).then_some(())
            });
        })
    }

    fn serve(&mut self) {
        let link = self.link.as_mut().expect("it is not dropped yet");
        assert_eq!(link.receive(&mut [0; 64]).expect("the link works"), Received::Bytes(1));
    }

    fn drop_link(&mut self) {
        self.link = None;
    }

    fn races(&self) -> u32 {
        amount(500, 20) as u32
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn endpoint_conforms_as_a_source() {
    let server = Server::start(128);
    let endpoint = server.endpoint();
    let (mut client, mut link) = server.pair(&endpoint);
    let source = server.port().clone();
    if source.wait_fd().is_none() {
        return not_run("endpoint_conforms_as_a_source", &"the provider has no descriptor");
    }
    link.start_polling();
    // Connects the endpoints, which needs both.
    echo(&server, &mut client, &mut link, 10_000);
    let client = Arc::new(Mutex::new(client));
    run_source(&mut EndpointUnderTest { source, link: Some(link), client: Arc::clone(&client) });
    client.lock().expect("no panic").is_polite = false;
    let _refused = Client::connect(server.listener.address(), &endpoint);
    let error = wait_until(|| server.accept(1).err());
    assert_eq!(error.to_string(), AttachError::Closed.to_string());
}

#[test]
fn fabric_tests_run_where_libfabric_is_installed() {
    fabcache_testbed::fabric::run_ignored_tests(fabcache_fabric::Library::open().map(|_| ()));
}
