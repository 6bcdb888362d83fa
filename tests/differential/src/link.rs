//! Connections to the two servers, and writes in chunks.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::answer::{Fill, Source};
use crate::unit::Wire;
use fabcache_testbed::random::SplitMix64;

/// One connection.
#[derive(Debug)]
pub struct Conn {
    stream: TcpStream,
    received: Vec<u8>,
    used: usize,
    chunk: Box<[u8; CHUNK_LEN]>,
}

const CHUNK_LEN: usize = 64 << 10;

impl Conn {
    /// Connects. A read or write that exceeds `timeout` counts as failed.
    pub fn open(address: SocketAddr, timeout: Duration) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self { stream, received: Vec::new(), used: 0, chunk: Box::new([0; CHUNK_LEN]) })
    }

    /// Writes the bytes in chunks that end at `cuts`. A failed write is no error here: the answers of a
    /// server that has closed or no longer reads show it.
    pub fn send(&mut self, bytes: &[u8], cuts: &[usize]) {
        let mut from = 0;
        for &to in cuts.iter().chain([&bytes.len()]) {
            let to = to.clamp(from, bytes.len());
            if to > from && self.stream.write_all(&bytes[from..to]).is_err() {
                return;
            }
            from = to;
        }
    }

    /// Closes the sending half.
    pub fn finish_sending(&mut self) {
        // The peer may have closed already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

impl Source for Conn {
    fn unread(&self) -> &[u8] {
        &self.received[self.used..]
    }

    fn consume(&mut self, len: usize) {
        self.used += len;
        if self.used == self.received.len() {
            self.received.clear();
            self.used = 0;
        }
    }

    fn fill(&mut self) -> Fill {
        loop {
            return match self.stream.read(&mut self.chunk[..]) {
                Ok(0) => Fill::Closed,
                Ok(len) => {
                    self.received.extend_from_slice(&self.chunk[..len]);
                    Fill::Data
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => continue,
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => Fill::TimedOut,
                    // A reset is a close with unread bytes.
                    _ => Fill::Closed,
                },
            };
        }
    }
}

/// A connection to each of the servers, for the same bytes.
#[derive(Debug)]
pub struct Link {
    /// The protocol family.
    pub wire: Wire,
    /// The connection to memcached.
    pub theirs: Conn,
    /// The connection to fabcached.
    pub ours: Conn,
}

/// How a batch is divided into writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cutting {
    /// One write.
    Whole,
    /// A few writes of random lengths.
    Pieces(usize),
    /// One write per byte.
    Bytes,
}

impl Cutting {
    /// Chooses at random: mostly one write, because errors show in pipelines.
    pub fn random(rng: &mut SplitMix64, len: usize) -> Self {
        match rng.below(100) {
            0..75 => Cutting::Whole,
            75..97 => Cutting::Pieces(rng.between(1, 5)),
            _ if len <= 150 => Cutting::Bytes,
            _ => Cutting::Pieces(rng.between(5, 30)),
        }
    }

    /// Returns where to divide `len` bytes.
    pub fn cuts(self, rng: &mut SplitMix64, len: usize) -> Vec<usize> {
        match self {
            _ if len < 2 => Vec::new(),
            Cutting::Whole => Vec::new(),
            Cutting::Pieces(count) => {
                let mut cuts: Vec<usize> = (0..count).map(|_| rng.between(1, len - 1)).collect();
                cuts.sort_unstable();
                cuts
            }
            Cutting::Bytes => (1..len).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_lie_within_and_in_order() {
        let mut rng = SplitMix64::new(5);
        for len in [0, 1, 2, 3, 100, 10_000] {
            for _ in 0..200 {
                let cutting = Cutting::random(&mut rng, len);
                let cuts = cutting.cuts(&mut rng, len);
                assert!(cuts.is_sorted());
                assert!(cuts.iter().all(|&cut| cut > 0 && cut < len));
            }
        }
        assert_eq!(Cutting::Bytes.cuts(&mut rng, 4), [1, 2, 3]);
    }
}
