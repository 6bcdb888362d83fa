//! Plain libfabric, through the wrapper that the server and the client library use.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fabcache_fabric::{
    Buffer, Completion, Domain, Endpoint, EndpointOptions, Kind, LocalUse, Peer, Pool, Provider,
    RejectedOperation,
};

use super::peer::{OPERATIONS, PeerProcess, STOP, hex, send_blocking};
use super::report::{Figure, Reads, What};
use super::timing::{Times, times};
use super::{Plan, SERVER_CPU, SHORT_BYTES, of_raw};
use crate::target::ANSWER_TIMEOUT;

/// Polls between readings of the clock.
const POLLS: u32 = 1 << 12;
/// Posted receives.
const RECEIVES: usize = 2;

/// An endpoint, and a peer that serves it.
#[derive(Debug)]
pub struct Raw {
    endpoint: Endpoint,
    pool: Pool,
    peer: Peer,
    process: PeerProcess,
    ended: Vec<Completion>,
}

impl Raw {
    /// Opens an endpoint of `own`, and starts a peer at `provider`. Values have at most `bytes` bytes.
    ///
    /// # Errors
    /// The provider cannot be opened, or does not connect.
    pub fn start(
        program: &Path,
        provider: &Provider,
        own: &Provider,
        largest: usize,
        window: usize,
    ) -> Result<Raw> {
        let bytes = largest + SHORT_BYTES;
        let mut process = PeerProcess::start(program, provider, bytes)?;
        process.process().pin(&SERVER_CPU.into())?;
        let domain = Domain::open(own)?;
        let mut endpoint =
            Endpoint::open(&domain, EndpointOptions { operations: OPERATIONS, peers: 1, waits: false })?;
        let pool = Pool::new(&domain, LocalUse::ANY, window + RECEIVES + 2, bytes)?;
        for _ in 0..RECEIVES {
            let buffer = pool.take().context("no free buffer")?;
            endpoint.receive(buffer, 0).map_err(|refused| refused.error)?;
        }
        process.order(&format!("connect {}", hex(endpoint.name())), "connected")?;
        let peer = endpoint.connect(&process.name)?;
        Ok(Raw { endpoint, pool, peer, process, ended: Vec::new() })
    }

    /// Returns whether the peer's CPU serves reads.
    pub fn reads(&self) -> Reads {
        if self.endpoint.is_one_sided() {
            Reads::ByDevice
        } else if self.endpoint.domain().provider().trusts_peers() {
            Reads::BySystem
        } else {
            Reads::ByPeer
        }
    }

    /// Measures messages, reads and writes of values of this size.
    ///
    /// # Errors
    /// The provider fails.
    pub fn latencies(&mut self, bytes: usize, plan: &Plan) -> Result<Vec<Figure>> {
        self.serve()?;
        let mut figures = Vec::new();
        for what in [What::RawGet, What::RawSet, What::Read, What::Write] {
            let times = times(plan.round, |_| match what {
                What::RawGet => self.message(SHORT_BYTES, bytes),
                What::RawSet => self.message(SHORT_BYTES + bytes, SHORT_BYTES),
                What::Read => self.one(bytes, true),
                _ => self.one(bytes, false),
            })?;
            let Times { p50_ns, p99_ns, .. } = times;
            figures.push(Figure { p50_ns, p99_ns, ..of_raw(what, bytes) });
        }
        self.stop_peer()?;
        Ok(figures)
    }

    /// Measures reads and writes per second with this many in flight.
    ///
    /// # Errors
    /// The provider fails.
    pub fn rates(&mut self, bytes: usize, window: usize, plan: &Plan) -> Result<Vec<Figure>> {
        self.serve()?;
        let mut figures = Vec::new();
        for (what, reads) in [(What::Read, true), (What::Write, false)] {
            let per_s = self.rate(bytes, window, reads, plan.round)?;
            figures.push(Figure { per_s, window, ..of_raw(what, bytes) });
        }
        self.stop_peer()?;
        Ok(figures)
    }

    fn serve(&mut self) -> Result<()> {
        self.process.order("serve", "serving")?;
        // The first message establishes the connection.
        self.message(SHORT_BYTES, SHORT_BYTES)
    }

    /// Makes the peer wait for commands, which takes no CPU.
    fn stop_peer(&mut self) -> Result<()> {
        self.request(SHORT_BYTES, STOP)?;
        self.answer(4)
    }

    /// Exchanges a message of `there` bytes and a response of `back` bytes.
    fn message(&mut self, there: usize, back: usize) -> Result<()> {
        self.request(there, u32::try_from(back)?)?;
        self.answer(back)
    }

    fn request(&mut self, bytes: usize, wanted: u32) -> Result<()> {
        let fill = |message: &mut [u8]| message[..4].copy_from_slice(&wanted.to_le_bytes());
        let ended = send_blocking(&mut self.endpoint, &self.pool, self.peer, bytes, fill)?;
        self.ended.extend(ended);
        Ok(())
    }

    fn answer(&mut self, bytes: usize) -> Result<()> {
        let (mut polls, started) = (0u32, Instant::now());
        loop {
            for done in std::mem::take(&mut self.ended) {
                let len = done.result?;
                if done.kind == Kind::Received {
                    ensure!(len == bytes, "an answer has {len} bytes, not {bytes}");
                    self.endpoint.receive(done.buffer, 0).map_err(|refused| refused.error)?;
                    return Ok(());
                }
            }
            self.endpoint.poll(&mut self.ended)?;
            polls += 1;
            ensure!(
                !polls.is_multiple_of(POLLS) || started.elapsed() < ANSWER_TIMEOUT,
                "the peer does not answer"
            );
        }
    }

    fn post(&mut self, buffer: Buffer, bytes: usize, reads: bool) -> Result<(), RejectedOperation> {
        if reads {
            self.endpoint.read(self.peer, self.process.readable, buffer, 0..bytes, 1)
        } else {
            self.endpoint.write(self.peer, self.process.writable, buffer, 0..bytes, 1)
        }
    }

    /// Posts an operation, retrying while the queue is full; keeps completions.
    fn post_blocking(&mut self, mut buffer: Buffer, bytes: usize, reads: bool) -> Result<()> {
        let started = Instant::now();
        while let Err(refused) = self.post(buffer, bytes, reads) {
            ensure!(refused.error.is_again() && started.elapsed() < ANSWER_TIMEOUT, refused.error);
            buffer = refused.buffer;
            self.endpoint.poll(&mut self.ended)?;
        }
        Ok(())
    }

    /// Performs one read or write.
    fn one(&mut self, bytes: usize, reads: bool) -> Result<()> {
        let buffer = self.pool.take().context("no free buffer")?;
        self.post_blocking(buffer, bytes, reads)?;
        let (mut polls, started) = (0u32, Instant::now());
        loop {
            for done in self.ended.drain(..) {
                done.result?;
                if done.kind != Kind::Sent {
                    return Ok(());
                }
            }
            self.endpoint.poll(&mut self.ended)?;
            polls += 1;
            ensure!(
                !polls.is_multiple_of(POLLS) || started.elapsed() < ANSWER_TIMEOUT,
                "no operation completes"
            );
        }
    }

    fn rate(&mut self, bytes: usize, window: usize, reads: bool, round: Duration) -> Result<f64> {
        for _ in 0..window {
            let buffer = self.pool.take().context("no free buffer")?;
            self.post_blocking(buffer, bytes, reads)?;
        }
        // The first quarter of the round is not counted.
        let (mut started, mut count, mut last) = (Instant::now(), 0u64, Instant::now());
        let mut is_counted = false;
        let end = loop {
            self.endpoint.poll(&mut self.ended)?;
            let now = Instant::now();
            for done in std::mem::take(&mut self.ended) {
                done.result?;
                if done.kind == Kind::Sent {
                    continue;
                }
                (count, last) = (count + 1, now);
                self.post_blocking(done.buffer, bytes, reads)?;
            }
            ensure!(now - last < ANSWER_TIMEOUT, "no operation completes");
            if !is_counted && now - started >= round / 4 && count > 0 {
                (is_counted, started, count) = (true, now, 0);
            } else if is_counted && now - started >= round && count > 0 {
                break now;
            }
        };
        while self.endpoint.in_flight() > RECEIVES {
            self.endpoint.poll(&mut self.ended)?;
            ensure!(end.elapsed() < ANSWER_TIMEOUT, "no operation completes");
        }
        self.ended.drain(..).try_for_each(|done| done.result.map(drop))?;
        Ok(count as f64 / (end - started).as_secs_f64())
    }
}
