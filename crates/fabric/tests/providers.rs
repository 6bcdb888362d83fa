//! Endpoints over a real provider: `FABCACHE_PROVIDER` names it, optionally followed by a comma and its interface;
//! `FABCACHE_CLIENT_INTERFACE` and `FABCACHE_SERVER_INTERFACE` name the interfaces where they differ.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use fabcache_fabric::{
    Buffer, Completion, Domain, Endpoint, EndpointOptions, Error, ExposedMemory, Kind, Library, LocalUse,
    Peer, PeerAccess, Pool, ProviderRequirements, RegisteredMemory, RegistrationCache, RemoteAddress,
    RemoteMemory, SharedArea, SplitBuffer,
};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::report::not_run;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal, kill_process};

/// Far longer than any step takes.
const TIME_LIMIT: Duration = Duration::from_secs(60);

fn requirements() -> ProviderRequirements {
    let text = std::env::var("FABCACHE_PROVIDER").unwrap_or("tcp;ofi_rxm".into());
    let (provider, interface) = text.split_once(',').map_or((&*text, None), |(name, at)| (name, Some(at)));
    ProviderRequirements {
        provider: Some(provider.into()),
        interface: interface.map(str::to_owned),
        only_this_host: false,
    }
}

/// Opens the domains of both endpoints; the first is the client's.
fn domains() -> [Arc<Domain>; 2] {
    let [client, server] = ["FABCACHE_CLIENT_INTERFACE", "FABCACHE_SERVER_INTERFACE"]
        .map(|name| std::env::var(name).ok().or_else(|| requirements().interface));
    let library = Library::open().expect("libfabric is there");
    let open = |interface: &Option<String>| {
        let requirements = ProviderRequirements { interface: interface.clone(), ..requirements() };
        Domain::open(&library.pick(&requirements).expect("a provider")).expect("the domain opens")
    };
    let a = open(&client);
    let b = if client == server { Arc::clone(&a) } else { open(&server) };
    [a, b]
}

fn domain() -> Arc<Domain> {
    let [a, _] = domains();
    a
}

fn port(domain: &Arc<Domain>) -> Endpoint {
    Endpoint::open(domain, EndpointOptions { operations: 64, peers: 4, waits: true }).expect("an endpoint")
}

/// Polls both endpoints until each has that many completions.
fn poll_until(ports: [&mut Endpoint; 2], counts: [usize; 2]) -> [Vec<Completion>; 2] {
    let end = Instant::now() + TIME_LIMIT;
    let mut ended = [Vec::new(), Vec::new()];
    while ended[0].len() < counts[0] || ended[1].len() < counts[1] {
        assert!(Instant::now() < end, "operations do not complete: {ended:?}");
        poll(ports[0], &mut ended[0]);
        poll(ports[1], &mut ended[1]);
    }
    ended
}

/// The token of operations whose completion no test awaits.
const SAID: u64 = u64::MAX;

fn poll(port: &mut Endpoint, into: &mut Vec<Completion>) {
    port.poll(into).expect("it polls");
    into.retain(|completion| completion.token != SAID);
}

/// Sends a short message, in the buffer if the provider needs one.
fn say(port: &mut Endpoint, to: Peer, text: &[u8], buffer: &mut Option<Buffer>) -> Result<(), Error> {
    if text.len() <= port.domain().provider().inject_bytes {
        return port.inject(to, text);
    }
    let mut message = buffer.take().expect("given back");
    message[..text.len()].copy_from_slice(text);
    port.send(to, message, text.len(), SAID).map_err(|refused| {
        *buffer = Some(refused.buffer);
        refused.error
    })
}

/// Retries until the operation is posted, while both endpoints make progress.
fn insist<T>(
    a: &mut Endpoint,
    b: &mut Endpoint,
    mut post: impl FnMut(&mut Endpoint) -> Result<T, Error>,
) -> T {
    let end = Instant::now() + TIME_LIMIT;
    loop {
        match post(a) {
            Ok(done) => return done,
            Err(error) if error.is_again() => assert!(Instant::now() < end, "{error}"),
            Err(error) => panic!("{error}"),
        }
        let mut none = Vec::new();
        poll(a, &mut none);
        poll(b, &mut none);
        assert!(none.is_empty(), "no operation is in flight");
    }
}

/// Retries until the operation is posted; another thread drives the other endpoint.
fn alone(a: &mut Endpoint, post: &mut dyn FnMut(&mut Endpoint) -> Result<(), Error>) {
    let end = Instant::now() + TIME_LIMIT;
    while let Err(error) = post(a) {
        assert!(error.is_again() && Instant::now() < end, "{error}");
        a.poll(&mut Vec::new()).expect("it polls");
        // The other endpoint may need this CPU.
        std::thread::yield_now();
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn messages_arrive_and_memory_is_read_and_written() {
    let [here, there] = domains();
    let (mut a, mut b) = (port(&here), port(&there));
    let (pool_a, pool_b) = (
        Pool::new(&here, LocalUse::ANY, 8, 4096).expect("a pool"),
        Pool::new(&there, LocalUse::ANY, 8, 4096).expect("a pool"),
    );
    let to_b = a.connect(b.name()).expect("a name");
    let _to_a = b.connect(a.name()).expect("a name");

    b.receive(pool_b.take().expect("free"), 1).expect("posted");
    b.receive(pool_b.take().expect("free"), 2).expect("posted");
    let mut message = pool_a.take();
    insist(&mut a, &mut b, |a| say(a, to_b, b"short", &mut message));
    let [_, mut received] = poll_until([&mut a, &mut b], [0, 1]);
    let first = received.remove(0);
    assert_eq!((first.token, first.kind, first.result), (1, Kind::Received, Ok(5)));
    assert_eq!(&first.buffer[..5], b"short");
    drop(message);

    let mut message = pool_a.take().expect("free");
    message[..3000].fill(7);
    a.send(to_b, message, 3000, 9).expect("posted");
    let [sent, received] = poll_until([&mut a, &mut b], [1, 1]);
    assert_eq!((sent[0].token, sent[0].kind), (9, Kind::Sent));
    assert_eq!((received[0].token, &received[0].result), (2, &Ok(3000)));
    assert!(received[0].buffer[..3000].iter().all(|byte| *byte == 7));
    drop((sent, received, first.buffer));
    assert_eq!((pool_a.free(), pool_b.free()), (8, 8), "buffers are returned");

    let readable = SharedArea::new(&mut b, 10_000, PeerAccess::Read).expect("memory");
    readable.copy_in(100, b"to be read");
    let at = |area: &SharedArea, offset: u64| {
        let remote = area.remote();
        RemoteAddress { address: remote.address + offset, key: remote.key }
    };
    a.read(to_b, at(&readable, 100), pool_a.take().expect("free"), 10..20, 3).expect("posted");
    let [read, _] = poll_until([&mut a, &mut b], [1, 0]);
    assert_eq!((read[0].token, read[0].kind, &read[0].result), (3, Kind::Read, &Ok(10)));
    assert_eq!(&read[0].buffer[10..20], b"to be read");

    let writable = SharedArea::new(&mut b, 10_000, PeerAccess::Write).expect("memory");
    let mut buffer = pool_a.take().expect("free");
    buffer[..7].copy_from_slice(b"written");
    a.write(to_b, at(&writable, 5000), buffer, 0..7, 4).expect("posted");
    let [written, _] = poll_until([&mut a, &mut b], [1, 0]);
    assert_eq!((written[0].kind, &written[0].result), (Kind::Written, &Ok(7)));
    let mut seen = [0; 7];
    writable.copy_out(5000, &mut seen);
    assert_eq!(&seen, b"written");
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn one_operation_reads_several_remote_ranges() {
    let [here, there] = domains();
    let (mut a, mut b) = (port(&here), port(&there));
    let to_b = a.connect(b.name()).expect("a name");
    let pool = Pool::new(&here, LocalUse::ANY, 2, 4096).expect("a pool");
    let readable = SharedArea::new(&mut b, 10_000, PeerAccess::Read).expect("memory");
    readable.copy_in(9_000, b"behind, ");
    readable.copy_in(100, b"before");
    let remote = readable.remote();
    let place = |offset: u64| RemoteAddress { address: remote.address + offset, key: remote.key };
    let most = here.provider().places_at_once;
    let places = [(place(9_000), 8), (place(100), 6), (place(9_000), 6)];
    let wanted = most.min(places.len());
    let mut buffer = pool.take();
    insist(&mut a, &mut b, |a| {
        let taken = buffer.take().expect("given back");
        a.read_places(to_b, &places[..wanted], taken, 5).map_err(|refused| {
            buffer = Some(refused.buffer);
            refused.error
        })
    });
    let [read, _] = poll_until([&mut a, &mut b], [1, 0]);
    let text = &b"behind, beforebehind"[..[8, 14, 20][wanted - 1]];
    assert_eq!((read[0].token, read[0].kind, &read[0].result), (5, Kind::Read, &Ok(text.len())));
    assert_eq!(&read[0].buffer[..text.len()], text);
    drop(read);

    for (count, len) in [(0, 1), (most + 1, 1), (1, 4097), (most, usize::MAX)] {
        let places = vec![(place(0), len); count];
        let refused = a.read_places(to_b, &places, pool.take().expect("free"), 6).expect_err("too much");
        assert!(!refused.error.is_again(), "{count} of {len}: {}", refused.error);
    }
    assert_eq!((a.in_flight(), pool.free()), (0, 2));
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn reads_fill_and_return_caller_buffers() {
    let [here, there] = domains();
    let (mut a, mut b) = (port(&here), port(&there));
    let to_b = a.connect(b.name()).expect("a name");
    let area = SharedArea::new(&mut b, 1 << 20, PeerAccess::Read).expect("memory");
    let bytes = pattern(0, 1 << 20);
    area.copy_in(0, &bytes);
    let place = RemoteAddress { address: area.remote().address, key: area.remote().key };
    let mut own = Some(Buffer::own(&here, vec![0; 1 << 20]).map_err(|(_, error)| error).expect("registered"));
    insist(&mut a, &mut b, |a| {
        a.read(to_b, place, own.take().expect("given back"), 0..1 << 20, 1).map_err(|refused| {
            own = Some(refused.buffer);
            refused.error
        })
    });
    let [mut read, _] = poll_until([&mut a, &mut b], [1, 0]);
    let Completion { result, buffer, .. } = read.remove(0);
    assert_eq!(result, Ok(1 << 20));
    assert!(buffer.into_own().expect("the caller's memory") == bytes);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn accessing_forbidden_memory_fails() {
    let [here, there] = domains();
    if here.provider().name == "shm" {
        return not_run("accessing_forbidden_memory_fails", &"shm checks process permissions, not keys");
    }
    let pool = Pool::new(&here, LocalUse::ANY, 8, 4096).expect("a pool");
    let mut owner = port(&there);
    let readable = SharedArea::new(&mut owner, 8192, PeerAccess::Read).expect("memory");
    readable.copy_in(0, &[1; 8192]);
    let remote = readable.remote();
    for (place, what) in [
        (RemoteAddress { address: remote.address, key: remote.key ^ 0x5555 }, "with another key"),
        (RemoteAddress { address: remote.address + 8000, key: remote.key }, "beyond its end"),
    ] {
        let (mut a, mut b) = (port(&here), port(&there));
        let to_b = a.connect(b.name()).expect("a name");
        let mut buffer = pool.take();
        insist(&mut a, &mut b, |a| {
            a.read(to_b, place, buffer.take().expect("given back"), 0..1000, 1).map_err(|refused| {
                buffer = Some(refused.buffer);
                refused.error
            })
        });
        let [read, _] = poll_until([&mut a, &mut b], [1, 0]);
        assert!(read[0].result.is_err(), "memory is read {what}");
    }

    let mut seen = [0; 8];
    is_not_written(&here, &there, remote);
    readable.copy_out(0, &mut seen);
    assert_eq!(seen, [1; 8]);

    let bytes: Arc<Vec<AtomicU8>> = Arc::new((0..8192).map(|_| AtomicU8::new(1)).collect());
    let base = NonNull::new(bytes.as_ptr().cast_mut().cast::<u8>()).expect("a non-null pointer");
    // SAFETY: the vector has this many bytes, is kept alive by its count and never grows; atomics may be written
    // through shared references.
    let exposed = unsafe { ExposedMemory::new(&there, base, bytes.len(), Arc::clone(&bytes) as Arc<_>) };
    let exposed = exposed.expect("registered memory");
    is_not_written(&here, &there, exposed.by(&mut owner).expect("the same memory"));
    assert!(bytes.iter().all(|byte| byte.load(Ordering::Relaxed) == 1));
}

/// Asserts that a peer's write fails. A failed connection is unusable, so each write has its own.
fn is_not_written(here: &Arc<Domain>, there: &Arc<Domain>, remote: RemoteMemory) {
    let pool = Pool::new(here, LocalUse::ANY, 1, 4096).expect("a pool");
    let (mut a, mut b) = (port(here), port(there));
    let to_b = a.connect(b.name()).expect("a name");
    let place = RemoteAddress { address: remote.address, key: remote.key };
    let mut buffer = pool.take();
    insist(&mut a, &mut b, |a| {
        a.write(to_b, place, buffer.take().expect("given back"), 0..8, 1).map_err(|refused| {
            buffer = Some(refused.buffer);
            refused.error
        })
    });
    let [written, _] = poll_until([&mut a, &mut b], [1, 0]);
    assert!(written[0].result.is_err(), "read-only memory is not written");
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn dropped_endpoint_returns_its_operations_buffers() {
    let domain = domain();
    let pool = Pool::new(&domain, LocalUse::ANY, 8, 4096).expect("a pool");
    let mut a = port(&domain);
    for token in 0..8 {
        a.receive(pool.take().expect("free"), token).expect("posted");
    }
    assert_eq!((pool.free(), a.in_flight()), (0, 8));
    drop(a);
    assert_eq!(pool.free(), 8);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn files_left_by_a_killed_process_do_not_block_its_successor() {
    let domain = domain();
    if domain.provider().name != "shm" {
        return;
    }
    // A stale file as a killed process leaves it: an endpoint's file with this process's id in its name.
    let first = port(&domain);
    let own = format!("{}:", std::process::id());
    let files = || std::fs::read_dir("/dev/shm").expect("the directory exists").flatten();
    let is_own =
        |file: &std::fs::DirEntry| file.file_name().to_str().is_some_and(|name| name.starts_with(&own));
    let file = files().find(is_own).expect("the endpoint's file");
    let name = file.file_name().into_string().expect("a name");
    let (before, last) = name.rsplit_once(':').expect("of three words");
    let last: usize = last.parse().expect("a number");
    for next in 1..100 {
        let left = format!("/dev/shm/{before}:{}", last + next);
        if !std::path::Path::new(&left).exists() {
            std::fs::copy(file.path(), left).expect("copied");
        }
    }
    let second = port(&domain);
    let count = files().filter(is_own).count();
    assert!(count < 100, "all stale files are removed: {count}");
    drop((first, second));
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn excess_operations_unknown_peers_and_long_messages_are_rejected() {
    let domain = domain();
    let pool = Pool::new(&domain, LocalUse::ANY, 8, 4096).expect("a pool");
    let mut a = Endpoint::open(&domain, EndpointOptions { operations: 2, peers: 1, waits: false })
        .expect("an endpoint");
    let name = a.name().to_vec();
    let to_self = a.connect(&name).expect("a name");
    for token in 0..2 {
        a.receive(pool.take().expect("free"), token).expect("posted");
    }
    let refused = a.receive(pool.take().expect("free"), 2).expect_err("only two operations are allowed");
    assert!(refused.error.is_again());
    assert_eq!(
        a.inject(to_self, &vec![0; 1 << 20]),
        Err(Error::Size("a message is too long to be injected"))
    );
    let refused = a.send(to_self, refused.buffer, 5000, 1).expect_err("the buffer has 4096 bytes");
    assert!(!refused.error.is_again());
    a.disconnect(to_self);
    assert_eq!(a.inject(to_self, b""), Err(Error::NoPeer));
    assert!(a.connect(b"").is_err() || domain.provider().address_format == 9);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn invalid_endpoint_names_do_not_block_valid_ones() {
    let [here, there] = domains();
    let (mut a, mut b) = (port(&here), port(&there));
    if fabcache_fabric::ip_of(a.name()).is_none() {
        return not_run(
            "invalid_endpoint_names_do_not_block_valid_ones",
            &"names of this provider cannot be checked in advance",
        );
    }
    let len = a.name().len();
    let mut names = [vec![0; len], vec![0xff; len], a.name().to_vec(), a.name().to_vec(), a.name().to_vec()];
    // No port, no address, another family.
    names[2][2..4].fill(0);
    names[3][4..].fill(0);
    names[4][..2].copy_from_slice(&27u16.to_ne_bytes());
    for name in &names {
        assert!(matches!(a.connect(name), Err(Error::Size(_))), "{name:?}");
    }
    let pool = Pool::new(&there, LocalUse::ANY, 1, 4096).expect("a pool");
    b.receive(pool.take().expect("free"), 1).expect("posted");
    let to_b = a.connect(b.name()).expect("a name");
    let mut message = Pool::new(&here, LocalUse::ANY, 1, 4096).expect("a pool").take();
    insist(&mut a, &mut b, |a| say(a, to_b, b"short", &mut message));
    let [_, received] = poll_until([&mut a, &mut b], [0, 1]);
    assert_eq!(received[0].result, Ok(5));
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn missing_providers_are_named_in_the_error() {
    let library = Library::open().expect("libfabric is there");
    let error = library
        .pick(&ProviderRequirements { provider: Some("no such".into()), ..ProviderRequirements::default() })
        .expect_err("none");
    assert!(error.to_string().contains("no such"), "{error}");
    let error = library
        .pick(&ProviderRequirements { interface: Some("nowhere0".into()), ..requirements() })
        .expect_err("no such interface");
    assert!(error.to_string().contains("nowhere0"), "{error}");
    assert!(!library.survey().expect("a list").providers.is_empty());
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn new_peers_messages_and_reads_wake_the_descriptor() {
    let [here, there] = domains();
    let (mut a, mut b) = (port(&here), port(&there));
    if b.wait_fd().is_none() {
        return not_run(
            "new_peers_messages_and_reads_wake_the_descriptor",
            &format!("{} has no descriptor to wait on", there.provider()),
        );
    }
    let pool = Pool::new(&here, LocalUse::ANY, 8, 4096).expect("a pool");
    let area = SharedArea::new(&mut b, 4096, PeerAccess::Read).expect("memory");
    let name = b.name().to_vec();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let receive = Pool::new(&there, LocalUse::ANY, 1, 4096).expect("a pool").take().expect("free");
    let sleeper = std::thread::spawn(move || {
        b.receive(receive, 1).expect("posted");
        let (mut ended, mut sleeps) = (Vec::new(), 0);
        while stopped.try_recv().is_err() {
            b.poll(&mut ended).expect("it polls");
            if b.may_wait() {
                let fd = b.wait_fd().expect("a descriptor");
                let mut fds = [PollFd::new(&fd, PollFlags::IN)];
                let time_limit = Timespec { tv_sec: TIME_LIMIT.as_secs() as i64, tv_nsec: 0 };
                let woken = rustix::event::poll(&mut fds, Some(&time_limit)).expect("poll works");
                assert_eq!(woken, 1, "the descriptor was not woken");
                sleeps += 1;
            }
        }
        (ended, sleeps)
    });
    let to_b = a.connect(&name).expect("a name");
    let mut message = pool.take();
    alone(&mut a, &mut |a| say(a, to_b, b"wake up", &mut message));
    // The sleeper sleeps again by then.
    std::thread::sleep(Duration::from_millis(300));
    let place = RemoteAddress { address: area.remote().address, key: area.remote().key };
    let mut buffer = pool.take();
    alone(&mut a, &mut |a| {
        a.read(to_b, place, buffer.take().expect("given back"), 0..100, 2).map_err(|refused| {
            buffer = Some(refused.buffer);
            refused.error
        })
    });
    let end = Instant::now() + TIME_LIMIT;
    let mut read = Vec::new();
    while read.is_empty() {
        assert!(Instant::now() < end, "the read does not complete");
        poll(&mut a, &mut read);
    }
    assert_eq!(read[0].result, Ok(100));
    stop.send(()).expect("it listens");
    let mut message = pool.take();
    alone(&mut a, &mut |a| say(a, to_b, b"the end", &mut message));
    let end = Instant::now() + TIME_LIMIT;
    while !sleeper.is_finished() {
        assert!(Instant::now() < end, "the sleeper is not woken");
        a.poll(&mut Vec::new()).expect("it polls");
    }
    let (ended, sleeps) = sleeper.join().expect("no panic");
    assert_eq!(ended[0].result, Ok(7));
    assert!(sleeps > 0, "the sleeper slept");
}

/// Names the file in which the target process publishes its memory.
const WHERE: &str = "FABCACHE_TEST_WHERE";

/// The process that [`memory_is_read_while_its_process_is_stopped`] starts; does nothing on its own.
#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn target_process() {
    let Ok(file) = std::env::var(WHERE) else { return };
    let [_, there] = domains();
    let mut b = port(&there);
    let area = SharedArea::new(&mut b, 4096, PeerAccess::Read).expect("memory");
    area.copy_in(0, &[7; 4096]);
    let name: String = b.name().iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("{name} {} {}", area.remote().address, area.remote().key);
    let unfinished = format!("{file}.unfinished");
    std::fs::write(&unfinished, text).expect("written");
    std::fs::rename(unfinished, file).expect("renamed");
    let end = Instant::now() + TIME_LIMIT;
    while Instant::now() < end {
        b.poll(&mut Vec::new()).expect("it polls");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A child process that is killed on drop.
struct Other(Child, PathBuf);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_file(&self.1);
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn memory_is_read_while_its_process_is_stopped() {
    let [here, _] = domains();
    if !here.provider().is_one_sided {
        return not_run(
            "memory_is_read_while_its_process_is_stopped",
            &format!("{} needs the process whose memory is read", here.provider()),
        );
    }
    let file = std::env::temp_dir().join(format!("fabcache-providers-{}", std::process::id()));
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--ignored", "--exact", "target_process"]).env(WHERE, &file);
    let other = Other(command.stdout(Stdio::null()).spawn().expect("it starts"), file.clone());
    let end = Instant::now() + TIME_LIMIT;
    let text = loop {
        match std::fs::read_to_string(&file) {
            Ok(text) => break text,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let words: Vec<&str> = text.split(' ').collect();
    let byte = |i: usize| u8::from_str_radix(&words[0][i..i + 2], 16).expect("a byte");
    let name: Vec<u8> = (0..words[0].len()).step_by(2).map(byte).collect();
    let place = RemoteAddress {
        address: words[1].parse().expect("a number"),
        key: words[2].parse().expect("a number"),
    };

    let mut a = port(&here);
    let to_b = a.connect(&name).expect("a name");
    let pool = Pool::new(&here, LocalUse::ANY, 1, 4096).expect("a pool");
    let mut read = |len: usize| {
        let mut buffer = pool.take();
        buffer.as_mut().expect("free").fill(0);
        alone(&mut a, &mut |a| {
            a.read(to_b, place, buffer.take().expect("given back"), 0..len, 1).map_err(|refused| {
                buffer = Some(refused.buffer);
                refused.error
            })
        });
        let end = Instant::now() + TIME_LIMIT;
        let mut ended = Vec::new();
        while ended.is_empty() {
            assert!(Instant::now() < end, "the read does not complete");
            a.poll(&mut ended).expect("it polls");
        }
        assert_eq!(ended[0].result, Ok(len));
        assert!(ended[0].buffer[..len].iter().all(|byte| *byte == 7));
    };
    read(64);
    let id = Pid::from_child(&other.0);
    kill_process(id, Signal::STOP).expect("our child");
    let is_stopped = || {
        let status =
            std::fs::read_to_string(format!("/proc/{}/stat", other.0.id())).expect("the process runs");
        status.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    };
    while !is_stopped() {
        std::thread::sleep(Duration::from_millis(1));
    }
    for _ in 0..100 {
        read(64);
        read(4096);
    }
    assert!(is_stopped());
}

/// Reads some of a peer's memory into a buffer.
fn read_into(
    [a, b]: [&mut Endpoint; 2],
    peer: Peer,
    from: RemoteAddress,
    (mut buffer, len): (Option<Buffer>, usize),
) -> Buffer {
    insist(a, b, |a| {
        a.read(peer, from, buffer.take().expect("given back"), 0..len, 1).map_err(|refused| {
            buffer = Some(refused.buffer);
            refused.error
        })
    });
    let [mut read, _] = poll_until([a, b], [1, 0]);
    let Completion { result, buffer, .. } = read.remove(0);
    assert_eq!(result, Ok(len));
    buffer
}

/// Memory that a peer can read, and its contents.
fn readable_pattern(port: &mut Endpoint, bytes: usize) -> (SharedArea, Vec<u8>) {
    let readable = SharedArea::new(port, bytes, PeerAccess::Read).expect("memory");
    let pattern = pattern(0, bytes);
    readable.copy_in(0, &pattern);
    (readable, pattern)
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn caller_memory_stays_registered_while_there_is_room() {
    const BYTES: usize = 50_000;
    let [here, there] = domains();
    let (mut a, mut b) = (port(&here), port(&there));
    let (readable, pattern) = readable_pattern(&mut b, BYTES);
    let remote = readable.remote();
    let from = RemoteAddress { address: remote.address, key: remote.key };
    let to_b = a.connect(b.name()).expect("a name");

    let registrations = RegistrationCache::new(2, 3 * BYTES);
    let mut all: Vec<RegisteredMemory> =
        (0..3).map(|_| RegisteredMemory::new(vec![0; BYTES], &registrations)).collect();
    assert_eq!(registrations.sum(), (0, 0), "nothing is registered before use");
    for turn in 0..3 {
        for number in 0..3 {
            let mut memory = all.remove(0);
            memory.fill(0);
            let place = memory.as_ptr();
            let buffer = memory.lend(&here).expect("registered");
            let buffer = read_into([&mut a, &mut b], to_b, from, (Some(buffer), BYTES));
            let memory = buffer.into_registered().expect("it was lent");
            assert!(memory[..] == pattern && memory.as_ptr() == place, "{turn} {number}");
            all.push(memory);
            let count = (turn * 3 + number + 1).min(2);
            assert_eq!(
                registrations.sum(),
                (count, count * BYTES),
                "less recently used registrations are evicted"
            );
        }
    }
    // Registrations that are in use are not evicted.
    let lent: Vec<Buffer> = all.drain(..2).map(|memory| memory.lend(&here).expect("registered")).collect();
    let (third, error) = all.remove(0).lend(&here).expect_err("the limit is two");
    assert!(matches!(error, Error::Size(_)), "{error}");
    drop(lent);
    assert_eq!(registrations.sum(), (0, 0), "dropped memory is deregistered");
    drop(third.lend(&here).expect("there is room again"));
    let (long, _) = RegisteredMemory::new(vec![0; 4 * BYTES], &registrations)
        .lend(&here)
        .expect_err("longer than the limit");
    assert_eq!(long.len(), 4 * BYTES);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn exposed_memory_is_readable_by_peers_and_stays_registered() {
    const BYTES: usize = 50_000;
    let [here, there] = domains();
    let (mut a, mut b) = (port(&here), port(&there));
    let registrations = RegistrationCache::new(2, 3 * BYTES);
    let pattern = pattern(0, BYTES);
    let mut memory = RegisteredMemory::new(pattern.clone(), &registrations);
    let to_b = a.connect(b.name()).expect("a name");
    let (mut first, base) = (None, memory.as_ptr());
    for turn in 0..3 {
        memory[turn] = 9;
        let shown = memory.show(&there).expect("registered");
        let remote = shown.remote();
        assert_eq!((*first.get_or_insert(remote), remote.bytes), (remote, BYTES as u64), "registered once");
        let from = RemoteAddress { address: remote.address.wrapping_add(1), key: remote.key };
        let buffer = Buffer::own(&here, vec![0; BYTES]).expect("registered");
        let buffer = read_into([&mut a, &mut b], to_b, from, (Some(buffer), BYTES - 1));
        assert!(buffer[..BYTES - 1] == shown[1..] && shown[turn] == 9 && shown[3..] == pattern[3..]);
        assert_eq!(registrations.sum(), (1, BYTES));
        memory = shown.into_registered();
        assert_eq!(memory.as_ptr(), base);
    }
    // For this endpoint's own operations it is registered differently.
    let memory = memory.lend(&there).expect("registered").into_registered().expect("it was lent");
    assert_eq!(registrations.sum(), (2, 2 * BYTES));
    // Exposed memory is never evicted.
    let other = RegisteredMemory::new(vec![0; BYTES], &registrations);
    let shown = [memory.show(&there).expect("registered"), other.show(&there).expect("there is room again")];
    let (third, error) =
        RegisteredMemory::new(vec![0; 10], &registrations).show(&there).expect_err("the limit is two");
    assert!(matches!(error, Error::Size(_)), "{error}");
    drop(shown);
    assert_eq!(registrations.sum(), (0, 0), "dropped memory is deregistered");
    drop(third.show(&there).expect("there is room again"));
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn concurrent_reads_fill_parts_of_one_buffer() {
    const BYTES: usize = 100_000;
    let [here, there] = domains();
    let (mut a, mut b) = (port(&here), port(&there));
    let (readable, pattern) = readable_pattern(&mut b, BYTES);
    let remote = readable.remote();
    let to_b = a.connect(b.name()).expect("a name");
    // The endpoints are connected then.
    let first = RemoteAddress { address: remote.address, key: remote.key };
    let buffer = Buffer::own(&here, vec![0; 8]).expect("registered");
    drop(read_into([&mut a, &mut b], to_b, first, (Some(buffer), 8)));

    let parts = SplitBuffer::new(Buffer::own(&here, vec![0; BYTES]).expect("registered"));
    assert_eq!(parts.bytes(), BYTES);
    for none in [BYTES - 1..BYTES + 1, 5..5, BYTES..BYTES] {
        assert!(parts.take(none.clone()).is_none(), "{none:?}");
    }
    let cuts = [0, 1, 40_000, 40_001, 99_999, BYTES];
    for range in cuts.windows(2).map(|cut| cut[0]..cut[1]) {
        let part = parts.take(range.clone()).expect("a free part");
        assert!(parts.take(range.start..range.start + 1).is_none(), "one at a time");
        let from =
            RemoteAddress { address: remote.address.wrapping_add(range.start as u64), key: remote.key };
        a.read(to_b, from, part, 0..range.len(), range.start as u64).expect("posted");
    }
    let parts = parts.join().expect_err("a part is in use");
    let [read, _] = poll_until([&mut a, &mut b], [cuts.len() - 1, 0]);
    for Completion { token, result, buffer, .. } in &read {
        let (at, len) = (*token as usize, *result.as_ref().expect("read"));
        assert!(buffer[..] == pattern[at..at + len]);
    }
    drop(read);
    let whole = parts.join().expect("all parts are free").into_own().expect("the caller's memory");
    assert!(whole == pattern);
}

#[test]
fn fabric_tests_run_where_libfabric_is_installed() {
    fabcache_testbed::fabric::run_ignored_tests(fabcache_fabric::Library::open().map(|_| ()));
}
