//! One connection, which stores many items and reads some back.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// How long a server may leave a request unanswered before it counts as failed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Receive size if the length of a response is unknown.
const RECEIVE_BYTES: usize = 64 << 10;

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// The connection fails.
    pub fn connect(address: SocketAddr) -> Result<Client> {
        let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Client { stream, buffer: Vec::new() })
    }

    /// Sends `count` storage requests and reads their responses; returns how many items were stored.
    ///
    /// # Errors
    /// The connection breaks, or a response is not one to a storage request.
    pub fn store(&mut self, requests: &[u8], count: u64) -> Result<u64> {
        self.stream.write_all(requests)?;
        let mut stored = 0;
        let mut answered = 0;
        self.buffer.clear();
        while answered < count {
            self.receive()?;
            let mut taken = 0;
            while let Some(len) = self.buffer[taken..].iter().position(|byte| *byte == b'\n') {
                let line = &self.buffer[taken..taken + len];
                ensure!(
                    line == b"STORED\r" || line.starts_with(b"SERVER_ERROR"),
                    "a wrong answer: {:?}",
                    String::from_utf8_lossy(line)
                );
                stored += u64::from(line == b"STORED\r");
                answered += 1;
                taken += len + 1;
            }
            self.buffer.drain(..taken);
        }
        ensure!(self.buffer.is_empty(), "more answers than requests");
        Ok(stored)
    }

    /// Returns the value of a key; `None` if it is absent.
    ///
    /// # Errors
    /// The connection breaks, or the response is not one to `get`.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<&[u8]>> {
        self.stream.write_all(&[b"get ", key, b"\r\n"].concat())?;
        self.buffer.clear();
        while !self.buffer.ends_with(b"END\r\n") {
            self.receive()?;
        }
        if self.buffer == b"END\r\n" {
            return Ok(None);
        }
        let line = self.buffer.iter().position(|byte| *byte == b'\n').context("an answer has lines")?;
        let head = String::from_utf8_lossy(&self.buffer[..line]);
        let len: usize =
            head.split_whitespace().nth(3).and_then(|len| len.parse().ok()).context("no length")?;
        let end = line + 1 + len;
        ensure!(self.buffer.get(end..) == Some(b"\r\nEND\r\n"), "a wrong answer to get: {head:?}");
        Ok(Some(&self.buffer[line + 1..end]))
    }

    /// Returns a number from `stats`.
    ///
    /// # Errors
    /// The server does not report it.
    pub fn stat(&mut self, name: &str) -> Result<u64> {
        let all = self.stats("stats")?;
        let value = all.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        value.and_then(|value| value.parse().ok()).with_context(|| format!("no number {name} in stats"))
    }

    /// Returns the server's statistics on a topic, as names and values.
    ///
    /// # Errors
    /// The server does not answer with statistics.
    pub fn stats(&mut self, request: &str) -> Result<Vec<(String, String)>> {
        self.stream.write_all(format!("{request}\r\n").as_bytes())?;
        self.buffer.clear();
        while !self.buffer.ends_with(b"END\r\n") {
            self.receive()?;
            let refused = self.buffer.ends_with(b"\r\n") && !self.buffer.starts_with(b"STAT ");
            ensure!(!refused || self.buffer == b"END\r\n", "no statistics for {request:?}");
        }
        let text = String::from_utf8_lossy(&self.buffer);
        let stat = |line: &str| {
            let (name, value) = line.strip_prefix("STAT ")?.split_once(' ')?;
            Some((name.to_owned(), value.to_owned()))
        };
        Ok(text.lines().filter_map(stat).collect())
    }

    fn receive(&mut self) -> Result<()> {
        let start = self.buffer.len();
        self.buffer.resize(start + RECEIVE_BYTES, 0);
        let len = self.stream.read(&mut self.buffer[start..]).context("an incomplete answer")?;
        self.buffer.truncate(start + len);
        ensure!(len > 0, "the server closed the connection");
        Ok(())
    }
}
