//! Servers that are one cache, as the PEs of a job. The PEs are threads here; `cargo xtask openshmem` tests processes.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use common::{Client, Scratch, connect, connect_unix, packet};
use fabcache_server::Server;
use fabcache_shmem::local::{LocalJob, LocalProcess};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::local::LocalServer;
use fabcache_testbed::wait::wait_until;

/// A job whose PEs are in this process.
struct Job {
    servers: Vec<LocalServer>,
    scratch: Scratch,
    /// What its PEs have allocated, in order.
    memory: Vec<LocalJob>,
}

fn socket(scratch: &Scratch, pe: usize) -> PathBuf {
    scratch.path(&format!("{pe}.sock"))
}

impl Job {
    fn start(name: &str, pes: usize, flags: &str) -> Job {
        Job::start_as(LocalProcess::start(pes), name, flags)
    }

    /// Starts jobs that read each other's memory in different ways, one after the other: by loads, by OpenSHMEM, not at all.
    fn of_each_way(name: &str, pes: usize) -> impl Iterator<Item = Job> {
        type Start = fn(usize) -> Vec<LocalProcess>;
        let ways: [(Start, &str); 3] = [
            (LocalProcess::start, ""),
            (LocalProcess::start_apart, "--openshmem-one-sided=true"),
            (LocalProcess::start, "--openshmem-one-sided=false"),
        ];
        ways.into_iter().map(move |(start, flags)| Job::start_as(start(pes), name, flags))
    }

    fn start_as(processes: Vec<LocalProcess>, name: &str, flags: &str) -> Job {
        let scratch = Scratch::new(name);
        let started = start(processes, |pe| {
            let socket = socket(&scratch, pe);
            format!("-l 127.0.0.1 -p -1 -s {} -m 24 -t 2 --openshmem-name pe{pe} {flags}", socket.display())
        });
        let (servers, memory): (Vec<_>, Vec<_>) =
            started.into_iter().map(|(server, memory)| (server.expect("it starts"), memory)).unzip();
        Job { servers, scratch, memory: memory[0].clone() }
    }

    fn client(&self, pe: usize) -> Client<UnixStream> {
        connect_unix(&socket(&self.scratch, pe))
    }

    fn server(&self, pe: usize) -> &Server {
        self.servers[pe].server()
    }

    fn owner(&self, key: &str) -> usize {
        self.server(0).shared().pes.as_ref().expect("a job").owner(key.as_bytes())
    }

    /// Returns a key of this PE.
    fn key_of(&self, pe: usize, prefix: &str) -> String {
        (0..).map(|number| format!("{prefix}{number}")).find(|key| self.owner(key) == pe).expect("endless")
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        stop(self.servers.drain(..));
    }
}

/// Stops servers. Each waits for the others.
fn stop(servers: impl Iterator<Item = LocalServer>) {
    thread::scope(|scope| {
        for server in servers {
            scope.spawn(|| drop(server));
        }
    });
}

/// Starts all PEs of a job. Returns for each what came of it, and the job's memory.
fn start(
    processes: Vec<LocalProcess>,
    flags: impl Fn(usize) -> String,
) -> Vec<(anyhow::Result<LocalServer>, Vec<LocalJob>)> {
    thread::scope(|scope| {
        let starting: Vec<_> = processes
            .into_iter()
            .enumerate()
            .map(|(pe, process)| {
                let flags = format!("--fabric openshmem {}", flags(pe));
                scope.spawn(move || {
                    let server = LocalServer::start_in(&flags, Some(&process));
                    (server, process.allocations())
                })
            })
            .collect();
        starting.into_iter().map(|started| started.join().expect("no panic")).collect()
    })
}

#[test]
fn every_pe_serves_the_keys_of_all() {
    for job in Job::of_each_way("all", 3) {
        for owner in 0..3 {
            let key = job.key_of(owner, "key");
            for pe in 0..3 {
                let mut c = job.client(pe);
                c.request(format!("set {key} 5 0 3\r\nv{owner}{pe}\r\n"), "STORED\r\n");
                for reader in 0..3 {
                    let mut reader = job.client(reader);
                    reader.request(
                        format!("get {key}\r\n"),
                        format!("VALUE {key} 5 3\r\nv{owner}{pe}\r\nEND\r\n"),
                    );
                    reader.request(
                        format!("mg {key} v f s q k O7\r\nmn\r\n"),
                        format!("VA 3 f5 s3 k{key} O7\r\nv{owner}{pe}\r\nMN\r\n"),
                    );
                }
                c.request(
                    format!("set {key} 5 0 3 noreply\r\nnew\r\nappend {key} 0 0 1\r\n!\r\nget {key}\r\n"),
                    format!("STORED\r\nVALUE {key} 5 4\r\nnew!\r\nEND\r\n"),
                );
                c.request(
                    format!("delete {key}\r\nget {key}\r\ntouch {key} 0\r\nincr {key} 1\r\n"),
                    "DELETED\r\nEND\r\nNOT_FOUND\r\nNOT_FOUND\r\n",
                );
                c.request(
                    format!("ms {key} 1 q\r\nx\r\nmg {key} q\r\nmd {key} q\r\nmg {key} q v\r\nmn\r\n"),
                    "HD\r\nMN\r\n",
                );
            }
        }
    }
}

#[test]
fn answers_keep_the_order_of_requests_to_different_pes() {
    for job in Job::of_each_way("order", 3) {
        let mut c = job.client(1);
        let keys: Vec<String> = (0..200).map(|number| format!("key{number}")).collect();
        let (mut requests, mut expected) = (String::new(), String::new());
        for (number, key) in keys.iter().enumerate() {
            requests +=
                &format!("set {key} 0 0 3\r\n{:03}\r\nget {key}\r\nget none{number}\r\nversion\r\n", number);
            expected +=
                &format!("STORED\r\nVALUE {key} 0 3\r\n{:03}\r\nEND\r\nEND\r\nVERSION 1.6.45\r\n", number);
        }
        c.request(requests, expected);
        let found: String = keys
            .iter()
            .enumerate()
            .map(|(number, key)| format!("VALUE {key} 0 3\r\n{number:03}\r\n"))
            .collect();
        c.request(format!("get none {} none2\r\n", keys.join(" ")), format!("{found}END\r\n"));
        c.say(format!("gets {}\r\n", keys.join(" ")));
        let line = c.hear_until("END\r\n");
        assert_eq!(line.matches("VALUE key").count(), 200);
        c.request(
            format!("gat 100 {} none\r\n", keys[..50].join(" ")),
            format!("{}END\r\n", &found[..found.find("VALUE key50 ").expect("there")]),
        );
    }
}

#[test]
fn binary_clients_are_served() {
    for job in Job::of_each_way("binary", 2) {
        for owner in 0..2 {
            let key = job.key_of(owner, "b");
            let mut c = job.client(0);
            // SETQ, GETQ of it, GETQ of another (silent), NOOP.
            c.say(
                [
                    packet(0x11, &[0; 8], key.as_bytes(), b"value", 0),
                    packet(0x09, &[], key.as_bytes(), b"", 0),
                    packet(0x09, &[], format!("{key}none").as_bytes(), b"", 0),
                    packet(0x0a, &[], b"", b"", 0),
                ]
                .concat(),
            );
            let found = c.hear_packet();
            assert_eq!((found.opcode, &found.value[..]), (0x09, &b"value"[..]));
            assert_eq!(c.hear_packet().opcode, 0x0a);
        }
    }
}

#[test]
fn values_of_all_lengths_pass_through() {
    for job in Job::of_each_way("lengths", 2) {
        let (key, mut c, mut other) = (job.key_of(1, "long"), job.client(0), job.client(1));
        for len in [0, 1, 100, 4_000, 4_100, 16_383, 16_384, 16_385, 65_536, 300_000, 1_000_000] {
            let value = pattern(len as u64, len);
            c.say([format!("set {key} 0 0 {len}\r\n").as_bytes(), &value, b"\r\n"].concat());
            c.hear("STORED\r\n");
            let expected = [format!("VALUE {key} 0 {len}\r\n").as_bytes(), &value, b"\r\nEND\r\n"].concat();
            for reader in [&mut c, &mut other] {
                reader.request(format!("get {key}\r\n"), &expected);
            }
        }
        // Refused values remove what they should replace, and are skipped.
        let huge = vec![b'x'; 2_000_000];
        c.say([format!("set {key} 0 0 {}\r\n", huge.len()).as_bytes(), &huge, b"\r\n"].concat());
        c.hear("SERVER_ERROR object too large for cache\r\n");
        c.request(format!("get {key}\r\n"), "END\r\n");
        c.say([format!("set {key} 0 0 20000\r\n").as_bytes(), &huge[..20_000], b"--get none\r\n"].concat());
        c.hear("CLIENT_ERROR bad data chunk\r\n");
        c.hear("END\r\n");
        c.request(format!("get {key}\r\n"), "END\r\n");
    }
}

#[test]
fn increments_are_counted_once() {
    const COUNT: usize = 400;
    let job = Job::start("incr", 3, "");
    let keys: Vec<String> = (0..3).map(|owner| job.key_of(owner, "count")).collect();
    for key in &keys {
        job.client(0).request(format!("set {key} 0 0 1\r\n0\r\n"), "STORED\r\n");
    }
    thread::scope(|scope| {
        for pe in 0..6 {
            let (mut c, keys) = (job.client(pe % 3), &keys);
            scope.spawn(move || {
                for _ in 0..COUNT {
                    c.say(keys.iter().map(|key| format!("ma {key}\r\n")).collect::<String>());
                    c.hear("HD\r\nHD\r\nHD\r\n");
                }
            });
        }
    });
    for (pe, key) in keys.iter().enumerate() {
        job.client((pe + 1) % 3)
            .request(format!("get {key}\r\n"), format!("VALUE {key} 0 4\r\n{}\r\nEND\r\n", 6 * COUNT));
    }
}

#[test]
fn flush_all_of_a_delegator_covers_all_pes() {
    let job = Job::start("flush", 3, "");
    let keys: Vec<String> = (0..3).map(|owner| job.key_of(owner, "key")).collect();
    for request in ["flush_all\r\n", "flush_all 0\r\n", "flush_all noreply\r\n"] {
        let mut c = job.client(2);
        for key in &keys {
            c.request(format!("set {key} 0 0 1\r\nx\r\n"), "STORED\r\n");
        }
        let expected = if request.contains("noreply") { "" } else { "OK\r\n" };
        c.request(format!("{request}get {}\r\n", keys.join(" ")), format!("{expected}END\r\n"));
    }
}

#[test]
fn tcp_clients_get_the_shard_of_their_pe() {
    let job = Job::start("tcp", 2, "");
    let (own, other) = (job.key_of(0, "own"), job.key_of(1, "other"));
    let mut c = connect(job.servers[0].address());
    c.request(
        format!("set {own} 0 0 1\r\nx\r\nget {own}\r\n"),
        format!("STORED\r\nVALUE {own} 0 1\r\nx\r\nEND\r\n"),
    );
    let refused = "SERVER_ERROR this key belongs to another server of the job; map keys with ketama over the servers' names\r\n";
    c.request(format!("set {other} 0 0 1\r\nx\r\nget {other}\r\n"), format!("{refused}{refused}"));
    c.request(
        format!("set {other} 0 0 20000\r\n{}\r\nmn\r\n", "y".repeat(20_000)),
        format!("{refused}MN\r\n"),
    );
    // An error within a line's answer would end it.
    let found = format!("VALUE {own} 0 1\r\nx\r\nEND\r\n");
    c.request(format!("get {other} {own} {other}\r\nget {own} {other}\r\n"), format!("{found}{found}"));
    let mut server = connect(job.servers[1].address());
    server.request(format!("get {other}\r\n"), "END\r\n");
}

#[test]
fn stopped_pe_delays_no_other() {
    stop_a_pe(&Job::start_as(LocalProcess::start_apart(3), "stopped", "--openshmem-timeout 300"));
}

#[test]
fn stopped_pe_delays_no_other_with_mutexes() {
    stop_a_pe(&Job::start_as(
        LocalProcess::start_apart(3),
        "stopped-mutex",
        "--openshmem-timeout 300 --openshmem-mutex",
    ));
}

/// A PE that was stopped at the wrong time holds a mutex.
#[test]
fn held_mutex_delays_no_other_pe() {
    let job = Job::start("mutex", 3, "--openshmem-timeout 300 --openshmem-mutex");
    let keys: Vec<String> = (0..3).map(|owner| job.key_of(owner, "key")).collect();
    let mut c = job.client(0);
    for key in &keys {
        c.request(format!("set {key} 0 0 1\r\n1\r\n"), "STORED\r\n");
    }
    let pes = job.server(0).shared().pes.as_ref().expect("a job");
    let (mut heaps, mutex) =
        (pes.heap.open().expect("access"), pes.plan.requests_mutex(0).expect("it has one"));
    wait_until("nobody holds it", || heaps.compare_swap(2, mutex, 0, 1) == 0);
    let mut blocked = job.client(0);
    blocked.say(format!("incr {} 1\r\n", keys[2]));
    for _ in 0..100 {
        let found = format!("VALUE {} 0 1\r\n1\r\nEND\r\n", keys[1]);
        c.request(format!("set {} 0 0 1\r\n1\r\nget {0}\r\n", keys[1]), format!("STORED\r\n{found}"));
    }
    heaps.atomic_set(2, mutex, 0);
    // The increment may have been given up meanwhile.
    blocked.hear_until("\r\n");
    wait_until("it serves again", || {
        c.say(format!("get {}\r\n", keys[2]));
        c.hear_until("END\r\n") == format!("VALUE {} 0 1\r\n2\r\nEND\r\n", keys[2])
    });
}

fn stop_a_pe(job: &Job) {
    let keys: Vec<String> = (0..3).map(|owner| job.key_of(owner, "key")).collect();
    let mut c = job.client(0);
    for key in &keys {
        c.request(format!("set {key} 0 0 1\r\n1\r\n"), "STORED\r\n");
    }
    let pes = job.server(0).shared().pes.as_ref().expect("a job");
    job.memory.iter().for_each(|memory| memory.stop(2, true));
    // Under way when it stops: the outcome is unknown.
    c.say(format!("incr {} 1\r\n", keys[2]));
    wait_until("the PE is silent", || pes.is_silent(2));
    c.hear("SERVER_ERROR the server of this key does not respond, and whether it was changed is unknown\r\n");
    let began = Instant::now();
    for _ in 0..100 {
        for key in &keys[..2] {
            c.request(format!("get {key}\r\n"), format!("VALUE {key} 0 1\r\n1\r\nEND\r\n"));
        }
        c.request(format!("get {}\r\n", keys[2]), "END\r\n");
        c.request(
            format!("incr {} 1\r\n", keys[2]),
            "SERVER_ERROR the server of this key does not respond; nothing was changed\r\n",
        );
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let found = format!("VALUE {} 0 1\r\n1\r\nEND\r\n", keys[0]);
    for command in ["get", "gat 1000"] {
        c.request(format!("{command} {} {}\r\n", keys[2], keys[0]), &found);
    }
    c.request(
        "flush_all 1000\r\n",
        "SERVER_ERROR not all servers of the job answered: some may not be flushed\r\n",
    );
    job.memory.iter().for_each(|memory| memory.stop(2, false));
    wait_until("the PE responds", || !pes.is_silent(2));
    // The first increment arrived; its late answer is nobody's.
    wait_until("it serves again", || {
        c.say(format!("get {}\r\n", keys[2]));
        c.hear_until("END\r\n") == format!("VALUE {} 0 1\r\n2\r\nEND\r\n", keys[2])
    });
    c.request(format!("incr {} 5\r\n", keys[2]), "7\r\n");
}

/// A stop waits for no PE that does not respond, nor for a thread that waits for its memory.
#[test]
fn stopped_pe_delays_no_stop() {
    let flags = "--openshmem-timeout 300 --openshmem-one-sided=true";
    let mut job = Job::start_as(LocalProcess::start_apart(3), "silent", flags);
    let key = job.key_of(2, "key");
    let mut c = job.client(0);
    c.request(format!("set {key} 0 0 1\r\n1\r\n"), "STORED\r\n");
    job.memory.iter().for_each(|memory| memory.stop(2, true));
    c.request(format!("get {key}\r\n"), "END\r\n");
    for pe in 0..2 {
        let pes = job.server(pe).shared().pes.as_ref().expect("a job");
        wait_until("the PE is silent", || pes.is_silent(2));
    }
    let began = Instant::now();
    stop(job.servers.drain(..2));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    job.memory.iter().for_each(|memory| memory.stop(2, false));
}

/// Heartbeats are too rare here to hide a message that wakes nobody.
#[test]
fn sleeping_threads_are_woken() {
    let soon = |what: &str, call: &mut dyn FnMut()| {
        let began = Instant::now();
        call();
        assert!(began.elapsed() < Duration::from_secs(3), "{what}: {:?}", began.elapsed());
    };
    let mut started = None;
    soon("the start", &mut || {
        let job = Job::start("asleep", 3, "--openshmem-timeout 100000 --openshmem-one-sided=false");
        let mut c = job.client(0);
        for owner in 0..3 {
            c.request(format!("set {} 0 0 1\r\n1\r\n", job.key_of(owner, "key")), "STORED\r\n");
        }
        started = Some(job);
    });
    let job = started.expect("started");
    for round in 0..5 {
        // Long enough for all threads to sleep.
        thread::sleep(Duration::from_millis(100));
        for pe in 0..3 {
            let key = job.key_of((pe + 1) % 3, "key");
            soon("a request", &mut || {
                job.client(pe).request(format!("incr {key} 1\r\n"), format!("{}\r\n", round + 2));
            });
        }
    }
    thread::sleep(Duration::from_millis(100));
    let mut job = Some(job);
    soon("the stop", &mut || drop(job.take()));
}

#[test]
fn clients_that_leave_or_are_slow_harm_no_other() {
    let job = Job::start("leave", 2, "");
    let key = job.key_of(1, "big");
    let value = pattern(7, 900_000);
    let mut c = job.client(0);
    c.say([format!("set {key} 0 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat());
    c.hear("STORED\r\n");
    let mut slow = UnixStream::connect(socket(&job.scratch, 0)).expect("it listens");
    // More than it may have unsent; it never reads.
    for _ in 0..300 {
        if slow.write_all(format!("get {key}\r\n").as_bytes()).is_err() {
            break;
        }
    }
    for round in 0..50 {
        let mut leaving = UnixStream::connect(socket(&job.scratch, 0)).expect("it listens");
        leaving
            .write_all(format!("get {key}\r\nset {key}{round} 0 0 100000\r\nabc").as_bytes())
            .expect("sent");
        drop(leaving);
        c.request(format!("set small{round} 0 0 1\r\nx\r\n"), "STORED\r\n");
    }
    slow.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    let mut first = vec![0; 100_000];
    slow.read_exact(&mut first).expect("it is served");
}

/// Clients that map the heap could forge items if they knew a secret of the checksums.
#[test]
fn heaps_that_clients_map_have_no_secrets() {
    let job = Job::start_as(LocalProcess::start_on_files(3), "secrets", "--shm");
    let is_shared = |pe: usize| job.server(pe).shared().store.region().is_some();
    assert!((0..3).all(is_shared), "clients map each heap");
    let secrets: Vec<_> = (0..3).map(|pe| job.server(pe).shared().store.secret().clone()).collect();
    for (pe, memory) in (0..3).flat_map(|pe| job.memory.iter().map(move |memory| (pe, memory.memory(pe)))) {
        let mut bytes = vec![0; memory.len() as usize];
        memory.copy_out(0, &mut bytes);
        for (of, secret) in secrets.iter().enumerate() {
            let is_there = bytes.chunks_exact(8).any(|word| secret.0.starts_with(word));
            assert!(!is_there, "the heap of PE {pe} has the secret of PE {of}");
        }
    }
    // They were exchanged: a key of another PE is read one-sided.
    let (key, mut c) = (job.key_of(1, "key"), job.client(0));
    c.request(format!("set {key} 0 0 1\r\n1\r\n"), "STORED\r\n");
    c.request(format!("get {key}\r\n"), format!("VALUE {key} 0 1\r\n1\r\nEND\r\n"));
    assert_eq!(c.stat("fabcache", "openshmem_one_sided_reads"), "1");
}

#[test]
fn jobs_that_cannot_work_are_refused_in_all_pes() {
    let scratch = Scratch::new("refused");
    let flags = |pe: usize, rest: &str| format!("-s {} -p 0 {rest}", socket(&scratch, pe).display());
    let pes = || LocalProcess::start(2);
    let unequal = start(pes(), |pe| flags(pe, &format!("--openshmem-name pe{pe} -m {}", 16 + pe)));
    let mutex =
        start(pes(), |pe| flags(pe, &format!("--openshmem-name pe{pe} -m 16 --openshmem-mutex={}", pe == 1)));
    let twice = start(pes(), |pe| flags(pe, "--openshmem-name same -m 16"));
    for (started, expected) in
        [(unequal, "equal options"), (mutex, "--openshmem-mutex=true"), (twice, "both called same")]
    {
        for (server, _) in started {
            let error = server.err().expect("it is refused");
            assert!(format!("{error:#}").contains(expected), "{error:#}");
        }
    }
}
