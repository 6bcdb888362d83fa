//! One connection that sends batches and checks every byte of the answers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::random::Random;
use crate::workload::{Batch, Kind, Workload};

/// A server that does not answer for so long has failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// Batches made before the clock starts, and sent in turn: making them is not to be measured.
const BATCHES: usize = 512;

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Operations done.
    pub operations: u64,
    /// How long it took.
    pub elapsed: Duration,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// The system's.
    pub fn connect(address: SocketAddr) -> Result<Client> {
        let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Client { stream, buffer: Vec::new() })
    }

    /// Sends a batch and reads its answer, which must be right.
    ///
    /// # Errors
    /// The answer is another, or none came.
    pub fn exchange(&mut self, batch: &Batch) -> Result<()> {
        self.stream.write_all(&batch.request)?;
        self.buffer.resize(batch.answer.len(), 0);
        let answer = &mut self.buffer[..batch.answer.len()];
        self.stream.read_exact(answer).context("no whole answer came")?;
        if *answer != *batch.answer {
            let at = answer.iter().zip(&batch.answer).position(|(a, b)| a != b).unwrap_or(0);
            let shown = String::from_utf8_lossy(&answer[at..(at + 60).min(answer.len())]).into_owned();
            bail!("a wrong answer, from byte {at} on: {shown:?}");
        }
        Ok(())
    }

    /// Stores all keys of a workload.
    ///
    /// # Errors
    /// As for [`Client::exchange`].
    pub fn fill(&mut self, workload: &Workload) -> Result<()> {
        let sets = Workload { kind: Kind::Set { pipeline: 64 }, ..*workload };
        let all: Vec<u32> = (0..workload.keys).collect();
        all.chunks(64).try_for_each(|keys| self.exchange(&sets.batch(keys)))
    }

    /// Sends batches for `duration`, one after the other.
    ///
    /// # Errors
    /// As for [`Client::exchange`].
    pub fn run(&mut self, workload: &Workload, duration: Duration, seed: u64) -> Result<Run> {
        let mut random = Random::new(seed);
        let mut batch = || {
            let keys: Vec<u32> = (0..workload.batch_keys()).map(|_| random.below(workload.keys)).collect();
            workload.batch(&keys)
        };
        let batches: Vec<Batch> = (0..BATCHES).map(|_| batch()).collect();
        let start = Instant::now();
        let mut operations = 0;
        loop {
            for batch in &batches {
                self.exchange(batch)?;
                operations += batch.operations;
            }
            let elapsed = start.elapsed();
            if elapsed >= duration {
                return Ok(Run { operations, elapsed });
            }
        }
    }

    /// One statistic of `stats`.
    ///
    /// # Errors
    /// The server does not tell.
    pub fn stat(&mut self, name: &str) -> Result<u64> {
        self.stream.write_all(b"stats\r\n")?;
        let mut text = Vec::new();
        let mut part = [0; 4096];
        while !text.ends_with(b"END\r\n") {
            let len = self.stream.read(&mut part).context("no statistics came")?;
            ensure!(len > 0, "the server closed the connection");
            text.extend_from_slice(&part[..len]);
        }
        let text = String::from_utf8_lossy(&text);
        let wanted = format!("STAT {name} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&wanted));
        value.and_then(|value| value.parse().ok()).with_context(|| format!("no number {name} in stats"))
    }
}
