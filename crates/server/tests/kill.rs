//! A server with a memory file is killed at random moments under load, and started again: nothing that was
//! acknowledged as overwritten or deleted comes back, and no value is another one than a client stored.
//!
//! `FABCACHE_KILLS` says how often (`cargo xtask torture --kill N`).

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use common::Scratch;
use common::process::start;
use fabcache_testbed::random::SplitMix64;
use rustix::process::Signal;

const WRITERS: usize = 4;
const KEYS: usize = 2000;
const PIPELINE_MAX: usize = 32;

/// One write of a key: its number among the writer's writes, and the bytes of its value.
type Version = (u64, usize);

/// A client whose keys nobody else writes, and what it knows of them.
struct Writer {
    id: usize,
    random: SplitMix64,
    /// The last acknowledged version of each key; none if it was deleted or lost.
    known: HashMap<usize, Option<Version>>,
    /// Writes without an answer yet, in the order in which they were sent.
    sent: Vec<(usize, Option<Version>)>,
    writes: u64,
    acknowledged: u64,
}

impl Writer {
    fn name(&self, key: usize) -> String {
        format!("w{}k{key}", self.id)
    }

    /// A value that no other write of any key has.
    fn value(&self, key: usize, (number, len): Version) -> Vec<u8> {
        let head = format!("{}:{number}:", self.name(key)).into_bytes();
        head.iter().copied().cycle().take(len.max(head.len())).collect()
    }

    fn len(&mut self) -> usize {
        match self.random.below(100) {
            0 => self.random.between(100_000, 300_000),
            1..6 => self.random.between(4_000, 30_000),
            6..30 => self.random.between(200, 2_000),
            _ => self.random.between(10, 100),
        }
    }

    /// Adds a write to a pipeline, and to those without an answer.
    fn write(&mut self, pipeline: &mut Vec<u8>) {
        // Some keys are written much more often.
        let range = *self.random.pick(&[20, 200, KEYS]);
        let key = self.random.below(range);
        let name = self.name(key);
        if self.random.percent(15) {
            pipeline.extend_from_slice(format!("delete {name}\r\n").as_bytes());
            return self.sent.push((key, None));
        }
        self.writes += 1;
        let version = (self.writes, self.len());
        let value = self.value(key, version);
        let ttl = if self.random.percent(30) { 1000 } else { 0 };
        pipeline.extend_from_slice(format!("set {name} 0 {ttl} {}\r\n", value.len()).as_bytes());
        pipeline.extend_from_slice(&value);
        pipeline.extend_from_slice(b"\r\n");
        self.sent.push((key, Some(version)));
    }

    /// Writes until the server is gone.
    fn run(&mut self, server: SocketAddr) -> std::io::Result<()> {
        let stream = TcpStream::connect(server)?;
        let mut answers = BufReader::new(stream.try_clone()?);
        loop {
            let mut pipeline = Vec::new();
            for _ in 0..*self.random.pick(&[1, 1, 8, PIPELINE_MAX]) {
                self.write(&mut pipeline);
            }
            (&stream).write_all(&pipeline)?;
            while !self.sent.is_empty() {
                let mut line = String::new();
                answers.read_line(&mut line)?;
                if !line.ends_with("\r\n") {
                    return Ok(());
                }
                let (key, version) = self.sent.remove(0);
                match line.trim_end() {
                    "STORED" | "DELETED" | "NOT_FOUND" => drop(self.known.insert(key, version)),
                    // Memory is full: the earlier version is there, or gone.
                    error if error.starts_with("SERVER_ERROR") => {}
                    other => panic!("{other:?}"),
                }
                self.acknowledged += 1;
            }
        }
    }

    /// Reads every key and checks its value, which is the known one from now on. Returns the hits.
    fn check(&mut self, server: SocketAddr) -> u64 {
        let sent = std::mem::take(&mut self.sent);
        let stream = TcpStream::connect(server).expect("the server runs");
        let mut answers = BufReader::new(stream.try_clone().expect("a descriptor"));
        let mut keys: Vec<usize> =
            self.known.keys().copied().chain(sent.iter().map(|(key, _)| *key)).collect();
        keys.sort_unstable();
        keys.dedup();
        let requests: String = keys.iter().map(|key| format!("get {}\r\n", self.name(*key))).collect();
        (&stream).write_all(requests.as_bytes()).expect("the server runs");
        let mut hits = 0;
        for key in keys {
            let mut line = String::new();
            answers.read_line(&mut line).expect("an answer");
            let possible = sent.iter().filter(|(other, _)| *other == key).map(|(_, version)| *version);
            let possible: Vec<Version> =
                possible.chain([self.known.get(&key).copied().flatten()]).flatten().collect();
            let found = (line != "END\r\n").then(|| {
                let len: usize =
                    line.rsplit(' ').next().and_then(|n| n.trim_end().parse().ok()).expect("a length");
                let mut value = vec![0; len + "\r\nEND\r\n".len()];
                answers.read_exact(&mut value).expect("a value");
                value.truncate(len);
                let version = possible.iter().find(|version| value == self.value(key, **version));
                *version.unwrap_or_else(|| {
                    let head = String::from_utf8_lossy(&value[..value.len().min(40)]).into_owned();
                    panic!("{} has {head:?} of {len} bytes, and may have {possible:?}", self.name(key))
                })
            });
            hits += u64::from(found.is_some());
            self.known.insert(key, found);
        }
        hits
    }
}

/// Kills a server with these options so many times.
fn kill_and_check(name: &str, options: &str, kills: u64) {
    let scratch = Scratch::new(&format!("kill-{name}"));
    let arguments = format!("-t 3 {options} -e {}", scratch.path("region").display());
    let mut random =
        SplitMix64::new(Instant::now().elapsed().as_nanos() as u64 ^ u64::from(std::process::id()));
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|id| Writer {
            id,
            random: random.split(),
            known: HashMap::new(),
            sent: Vec::new(),
            writes: 0,
            acknowledged: 0,
        })
        .collect();
    let mut hits = 0;
    let mut server = start(&arguments);
    for number in 0..kills {
        let address = server.address();
        let until = Duration::from_millis(random.between(10, 250) as u64);
        thread::scope(|scope| {
            for writer in &mut writers {
                // The end of the server is the end of the connection, however it shows.
                scope.spawn(move || drop(writer.run(address)));
            }
            thread::sleep(until);
            // Clean stops in between: what a recovered server saves has to be right, too.
            server.signal(if random.percent(15) { Signal::TERM } else { Signal::KILL });
            server.wait();
        });
        server = start(&arguments);
        let found = ["took over", "recovered"].into_iter().any(|word| server.log().contains(word));
        assert!(found, "kill {number}: {}", server.log());
        hits = writers.iter_mut().map(|writer| writer.check(server.address())).sum();
    }
    let acknowledged: u64 = writers.iter().map(|writer| writer.acknowledged).sum();
    println!("{options}: {kills} kills, {acknowledged} acknowledged writes, {hits} items left by the last");
    assert!(hits > 0, "nothing is ever kept");
}

/// The kills of one test.
fn kills() -> u64 {
    std::env::var("FABCACHE_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(6)
}

#[test]
fn killed_server_brings_nothing_back() {
    kill_and_check("evicting", "-m 16", kills());
}

#[test]
fn killed_server_that_never_evicts_brings_nothing_back() {
    kill_and_check("full", "-m 8 -M", kills());
}

#[test]
fn killed_server_with_much_memory_brings_nothing_back() {
    kill_and_check("roomy", "-m 256", kills());
}
