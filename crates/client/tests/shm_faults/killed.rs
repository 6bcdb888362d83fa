//! Clients killed at every step of the protocol: other clients are not affected, and no resource leaks.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use fabcache_client::{Client, Ttl};
use fabcache_layout::mapping::Mapping;
use rustix::process::{Signal, getpid, kill_process};

use crate::common::process::{Leftover, Process, Server, again, at, socket_path, stat, wait_until};
use crate::common::raw::{Raw, request};
use crate::workers::{Workers, pattern};

/// The number of killed clients, unless this environment variable sets it.
const KILLS: usize = 120;
const KILLS_VARIABLE: &str = "FABCACHE_KILLS";

const SOCKET: &str = "FABCACHE_TEST_SOCKET";
const STEP: &str = "FABCACHE_TEST_STEP";

const FLAGS: &str = "-t 2 -m 32 --shm-slots 8 --shm-slot-size 256 --shm-staging 8k";

/// A name, and the client's steps up to that point, given the server's path.
type Step = (&'static str, fn(&str));

/// The steps at which a client is killed, in order.
const STEPS: &[Step] = &[
    ("connected", |path| {
        let _socket = connect(path);
        die();
    }),
    ("half of the request for memory", |path| {
        connect(path).write_all(&request().as_bytes()[..7]).expect("sent");
        die();
    }),
    ("asked for memory", |path| {
        connect(path).write_all(request().as_bytes()).expect("sent");
        die();
    }),
    ("answer not read", |path| {
        let mut socket = connect(path);
        socket.write_all(request().as_bytes()).expect("sent");
        wait_for(&socket);
        die();
    }),
    ("attached", |path| {
        let _raw = attach(path);
        die();
    }),
    ("attached twice", |path| {
        let (_raw, mut second) = (attach(path), attach(path));
        second.request("mn\r\n");
        die();
    }),
    ("bytes of a slot without its word", |path| {
        let raw = attach(path);
        let bytes = rustix::fs::fstat(&raw.file).expect("a file").st_size as u64;
        let mapping = Mapping::to_write(std::os::fd::AsFd::as_fd(&raw.file), bytes).expect("mapped");
        // SAFETY: the mapping outlives it, and was mapped for writing.
        let memory = unsafe { mapping.memory() };
        memory.copy_in(1024 + 8, b"mn\r\n");
        die();
    }),
    ("bell without a slot", |path| {
        attach(path).ring();
        die();
    }),
    ("slot without a bell", |path| {
        attach(path).put(b"set killed 0 0 1\r\nx\r\n");
        die();
    }),
    ("slot and bell", |path| {
        let mut raw = attach(path);
        raw.put(b"set killed 0 0 1\r\nx\r\n");
        raw.ring();
        die();
    }),
    ("half a line", |path| {
        let mut raw = attach(path);
        raw.send(b"set kil");
        die();
    }),
    ("half a value, staged", |path| {
        let mut raw = attach(path);
        raw.send(b"set killed 0 0 1000000\r\n");
        raw.send(&pattern(1, 300_000));
        die();
    }),
    ("staging full, waiting for room", |path| {
        let mut raw = attach(path);
        raw.put(b"set killed 0 0 1000000\r\n");
        while raw.put(&pattern(1, 300_000)) > 0 {}
        raw.channel.outgoing().want_room();
        raw.ring();
        die();
    }),
    ("asked, waiting for data", |path| {
        let mut raw = attach(path);
        raw.channel.incoming().want_data();
        raw.put(b"mg filled-1 v\r\n");
        raw.ring();
        die();
    }),
    ("rung for, bell not answered", |path| {
        let mut raw = attach(path);
        raw.channel.incoming().want_data();
        raw.send(b"mn\r\n");
        wait_for(&raw.socket);
        die();
    }),
    ("half an answer", |path| {
        let mut raw = attach(path);
        raw.send(b"mg filled-1 v\r\n");
        while raw.channel.incoming().receive(&mut [0; 10]).expect("sound") == 0 {}
        die();
    }),
    ("answers not taken, the server waiting for room", |path| {
        let mut raw = attach(path);
        for _ in 0..200 {
            raw.put(b"mg filled-1 v\r\n");
            raw.ring();
        }
        die();
    }),
    ("reads counted", |path| {
        let mut raw = attach(path);
        raw.send(b"shm accessed AAAA");
        die();
    }),
    ("half closed", |path| {
        let mut raw = attach(path);
        raw.put(b"mn\r\nmn\r\n");
        raw.socket.shutdown(std::net::Shutdown::Write).expect("shut");
        die();
    }),
];

fn connect(path: &str) -> UnixStream {
    UnixStream::connect(path).expect("a server")
}

fn attach(path: &str) -> Raw {
    Raw::attach(path).expect("it is let in")
}

fn wait_for(socket: &UnixStream) {
    let mut polled = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut polled, None).expect("poll works");
}

fn die() {
    kill_process(getpid(), Signal::KILL).expect("signalling itself is allowed");
    unreachable!("the process was killed");
}

/// A client process: it kills itself at its step, or works until it is killed.
#[test]
#[ignore = "it is a part of others"]
fn client() {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let path = std::env::var(SOCKET).expect("run by another test");
    let step: usize = std::env::var(STEP).expect("run by another test").parse().expect("a number");
    match STEPS.get(step) {
        Some((_, step)) => step(&path),
        None => work(&at(&path)),
    }
}

/// Runs every kind of call, without end.
fn work(cache: &Client) {
    for round in 0.. {
        let value = pattern(round, round * 613 % 30_000);
        cache.set(b"killed", &value, Ttl::NEVER).expect("stored");
        for number in 0..50 {
            cache.get(format!("filled-{number}").as_bytes()).expect("read");
        }
        cache.get_and_touch(b"filled-1", Ttl::NEVER).expect("answered");
        let mut window: Vec<_> =
            (0..20).map(|number| cache.iset(format!("killed-{number}"), value.clone(), Ttl::NEVER)).collect();
        for request in &mut window {
            request.wait().result.expect("stored");
        }
    }
}

fn command(path: &str, step: usize) -> Command {
    let mut command = again("killed::client");
    command.env(SOCKET, path).env(STEP, step.to_string());
    command
}

/// Kills a client: at its step, or at a random moment.
fn kill_one(path: &str, number: usize) {
    let step = number % (STEPS.len() + 4);
    let mut client = Process(command(path, step).spawn().expect("this program starts"));
    if step < STEPS.len() {
        let status = client.0.wait().expect("a child");
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(signal, Some(Signal::KILL.as_raw()), "{:?}: {status}", STEPS[step].0);
    } else {
        // Clients are killed after varying times of work.
        std::thread::sleep(Duration::from_micros((number * 7919 % 40_000) as u64));
        client.kill();
    }
}

/// Writes more than the memory holds, so that every page was touched.
fn fill(cache: &Client) {
    for number in 0..10_000 {
        cache.set(format!("filled-{number}").as_bytes(), &pattern(number, 4000), Ttl::NEVER).expect("stored");
    }
    for number in 0..50 {
        cache.set(format!("filled-{number}").as_bytes(), &pattern(number, 4000), Ttl::NEVER).expect("stored");
    }
}

#[test]
fn killed_clients_disturb_no_other_and_leak_nothing() {
    let kills = std::env::var(KILLS_VARIABLE).ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS);
    let path = socket_path("killing");
    let _leftover = Leftover(path.clone());
    let mut server = Server::started(&path, FLAGS);
    let cache = at(&path);
    fill(&cache);
    let start = Instant::now();
    let measured = |server: &Server| {
        (server.descriptors().len(), server.channels(), stat(&cache, "", "curr_connections"))
    };
    wait_until("all clients are disconnected", || measured(&server).1 == 1);
    let (before, before_kb) = (measured(&server), server.shared_kb());
    let workers = Workers::default();
    std::thread::scope(|scope| {
        let _stop = workers.stop_when_dropped();
        workers.start(scope, &path);
        let killers: Vec<_> = (0..2)
            .map(|killer| {
                let path = &path;
                scope.spawn(move || (killer..kills).step_by(2).for_each(|number| kill_one(path, number)))
            })
            .collect();
        for killer in killers {
            killer.join().expect("clients reach their steps");
        }
    });
    workers.assert_worked();
    assert!(server.is_running(), "the server has crashed");
    wait_until("all resources of the clients are released", || measured(&server) == before);
    // The store may touch another page of the region.
    let after_kb = server.shared_kb();
    assert!(after_kb <= before_kb + 512, "{before_kb} kB of shared memory became {after_kb}");
    println!("{kills} clients killed in {:?}; {before:?}; {before_kb} kB, {after_kb} kB", start.elapsed());
}
