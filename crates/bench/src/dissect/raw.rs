//! Requests without a client library: sends bytes and receives the expected number.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fabcache_client::ServerEndpoint;
use fabcache_layout::format::{FORMAT_VERSION, NO_REGION};

use super::channel::ChannelClient;
use crate::dummy::{ECHO, RecordedCall};
use crate::items::Items;
use crate::target::Url;

/// Bytes of a response that are the same for all keys, in each protocol.
const HEAD_BYTES: usize = 2;

/// A bidirectional stream.
trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// A connection that repeats one call with different keys.
pub struct Raw {
    stream: Box<dyn Stream>,
    request: Vec<u8>,
    /// The position of the key in the request.
    key_at: usize,
    /// The first bytes of each response, if known.
    head: Vec<u8>,
    answer: Vec<u8>,
}

impl Raw {
    /// Connects to a peer that answers in the protocol. `key` is the key of the recorded call.
    ///
    /// # Errors
    /// It cannot be reached.
    pub fn to_dummy(url: &Url, call: &RecordedCall, key: &[u8], timeout: Duration) -> Result<Raw> {
        let head = call.answer[..HEAD_BYTES.min(call.answer.len())].to_vec();
        Ok(Raw { head, ..Raw::connect(url, call, key, FORMAT_VERSION, timeout)? })
    }

    /// Connects to a server, as [`Raw::to_dummy`] does. Through shared memory it takes the channel alone.
    ///
    /// # Errors
    /// It cannot be reached.
    pub fn to_server(url: &Url, call: &RecordedCall, key: &[u8], timeout: Duration) -> Result<Raw> {
        let head = call.answer[..HEAD_BYTES.min(call.answer.len())].to_vec();
        Ok(Raw { head, ..Raw::connect(url, call, key, NO_REGION, timeout)? })
    }

    /// Connects to an echo, which returns the right number of bytes without reading the request.
    ///
    /// # Errors
    /// It cannot be reached.
    pub fn to_echo(url: &Url, call: &RecordedCall, key: &[u8], timeout: Duration) -> Result<Raw> {
        let mut raw = Raw::connect(url, call, key, FORMAT_VERSION, timeout)?;
        let lengths = [call.request.len() as u64, call.answer.len() as u64].map(u64::to_le_bytes);
        raw.stream.write_all(&[&[ECHO], &lengths[0][..], &lengths[1][..]].concat())?;
        Ok(raw)
    }

    fn connect(url: &Url, call: &RecordedCall, key: &[u8], region: u64, timeout: Duration) -> Result<Raw> {
        let stream: Box<dyn Stream> = match &url.address.place {
            ServerEndpoint::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port))?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(timeout))?;
                Box::new(stream)
            }
            ServerEndpoint::Fabric { .. } => {
                bail!("{} uses the fabric, which has no sockets", url)
            }
            ServerEndpoint::Unix(path) if url.shared_memory => {
                Box::new(ChannelClient::attach(path, region, timeout)?)
            }
            ServerEndpoint::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(timeout))?;
                Box::new(stream)
            }
        };
        let at = call.request.windows(key.len()).position(|window| window == key);
        let key_at = at.context("the key is not in the request")?;
        let answer = vec![0; call.answer.len()];
        Ok(Raw { stream, request: call.request.clone(), key_at, head: Vec::new(), answer })
    }

    /// Makes the call for an item; returns its duration.
    ///
    /// # Errors
    /// The peer does not answer, or answers wrongly.
    pub fn call(&mut self, items: &Items, number: u64, key: &mut Vec<u8>) -> Result<Duration> {
        items.key(number, key);
        self.request[self.key_at..self.key_at + key.len()].copy_from_slice(key);
        let begun = Instant::now();
        self.stream.write_all(&self.request)?;
        self.stream.read_exact(&mut self.answer)?;
        let taken = begun.elapsed();
        let named = || String::from_utf8_lossy(key);
        ensure!(self.answer.starts_with(&self.head), "a wrong answer to the call for {}", named());
        Ok(taken)
    }
}
