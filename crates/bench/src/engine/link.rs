//! One connection of a client, with its outstanding requests in order.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail, ensure};
use fabcache_client::{Address, ServerEndpoint};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::wire::{Answer, AnswerOf, Encoding, shown};
use super::work::Work;
use crate::items::Items;
use crate::target::ANSWER_TIMEOUT;

/// A connection.
#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
    encoding: Encoding,
    /// Bytes to send, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// Whether epoll watches for writability.
    waits_to_send: bool,
    /// The beginning of an incomplete response.
    rest: Vec<u8>,
    requested: VecDeque<SentRequest>,
}

/// A key that was requested or written.
#[derive(Clone, Copy, Debug)]
struct SentRequest {
    number: u64,
    /// The request that the key belongs to.
    slot: u32,
    sets: bool,
    /// Whether the request continues with no further key.
    is_last: bool,
    /// Whether an end marker follows the values of its request.
    ends: bool,
    /// Whether its value was received, but not yet the end marker.
    is_done: bool,
}

/// Counts of received answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Keys read or written.
    pub operations: u64,
    /// Keys that missed.
    pub misses: u64,
    /// Values of which every byte was compared.
    pub verified: u64,
    /// Bytes of values read and written.
    pub value_bytes: u64,
}

/// Context shared by all links: the work, the items, and reused memory.
#[derive(Debug)]
pub struct Scratch<'e> {
    /// The clients' work.
    pub work: &'e Work,
    /// Keys and values.
    pub items: &'e Items,
    key: Vec<u8>,
    value: Vec<u8>,
    keys: Vec<Vec<u8>>,
}

impl<'e> Scratch<'e> {
    /// Returns the context for this work.
    pub fn new(work: &'e Work, items: &'e Items) -> Scratch<'e> {
        let keys = vec![Vec::new(); work.batch];
        Scratch { work, items, key: Vec::new(), value: Vec::new(), keys }
    }

    /// Returns an item's key.
    pub fn key(&mut self, number: u64) -> &[u8] {
        self.items.key(number, &mut self.key);
        &self.key
    }
}

impl Link {
    /// Connects.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn connect(address: &Address, encoding: Encoding) -> Result<Link> {
        let cannot = || format!("cannot connect to {address}");
        let socket: OwnedFd = match &address.place {
            ServerEndpoint::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).with_context(cannot)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                stream.into()
            }
            ServerEndpoint::Fabric { .. } => {
                bail!("{} uses the fabric, which has no sockets", address)
            }
            ServerEndpoint::Unix(path) => {
                let stream = UnixStream::connect(path).with_context(cannot)?;
                stream.set_nonblocking(true)?;
                stream.into()
            }
        };
        Ok(Link {
            socket,
            encoding,
            out: Vec::new(),
            sent: 0,
            waits_to_send: false,
            rest: Vec::new(),
            requested: VecDeque::new(),
        })
    }

    /// Registers with epoll, with this number as its token.
    ///
    /// # Errors
    /// epoll fails.
    pub fn register(&self, epoll: &OwnedFd, number: u64) -> Result<()> {
        epoll::add(epoll, &self.socket, EventData::new_u64(number), EventFlags::IN)?;
        Ok(())
    }

    /// Appends a request for values to the output.
    pub fn get(&mut self, numbers: &[u64], slot: u32, scratch: &mut Scratch<'_>) {
        let Scratch { items, keys, .. } = scratch;
        keys.iter_mut().zip(numbers).for_each(|(key, number)| items.key(*number, key));
        let marked = keys.iter().zip(numbers).map(|(key, number)| (&key[..], *number as u32));
        self.encoding.get(marked, &mut self.out);
        let ends = self.encoding.has_end();
        for (at, number) in numbers.iter().enumerate() {
            let is_last = !ends || at + 1 == numbers.len();
            self.requested.push_back(SentRequest {
                number: *number,
                slot,
                sets: false,
                is_last,
                ends,
                is_done: false,
            });
        }
    }

    /// Appends a storage request to the output.
    pub fn set(&mut self, number: u64, slot: u32, scratch: &mut Scratch<'_>) {
        let Scratch { work, items, key, value, .. } = scratch;
        items.key(number, key);
        items.value(number, work.sizes.value_bytes(number), value);
        self.encoding.set(key, value, number as u32, &mut self.out);
        self.requested.push_back(SentRequest {
            number,
            slot,
            sets: true,
            is_last: true,
            ends: false,
            is_done: false,
        });
    }

    /// Sends as much as the socket accepts.
    ///
    /// # Errors
    /// The connection broke.
    pub fn flush(&mut self, epoll: &OwnedFd, number: u64) -> Result<()> {
        while self.sent < self.out.len() {
            match send(&self.socket, &self.out[self.sent..], SendFlags::NOSIGNAL) {
                Ok(sent) => self.sent += sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error).context("the connection broke"),
            }
        }
        let is_sent = self.sent == self.out.len();
        if is_sent {
            self.out.clear();
            self.sent = 0;
        }
        if self.waits_to_send == is_sent {
            let out = if is_sent { EventFlags::empty() } else { EventFlags::OUT };
            epoll::modify(epoll, &self.socket, EventData::new_u64(number), EventFlags::IN | out)?;
            self.waits_to_send = !is_sent;
        }
        Ok(())
    }

    /// Handles received bytes, and calls `done` with the slot of each completed key. `buffer` is scratch
    /// memory.
    ///
    /// # Errors
    /// An answer is wrong, or the connection broke; names the key.
    pub fn receive(
        &mut self,
        buffer: &mut [u8],
        scratch: &mut Scratch<'_>,
        counts: &mut Counts,
        done: impl FnMut(u32, u64),
    ) -> Result<()> {
        let len = match recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((0, _)) => bail!("the server closed the connection; {}", self.waits_for(scratch)),
            Ok((len, _)) => len,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return Err(error).context(self.waits_for(scratch)),
        };
        let mut rest = std::mem::take(&mut self.rest);
        if rest.is_empty() {
            let taken = self.take_all(&buffer[..len], scratch, counts, done)?;
            rest.extend_from_slice(&buffer[taken..len]);
        } else {
            rest.extend_from_slice(&buffer[..len]);
            let taken = self.take_all(&rest, scratch, counts, done)?;
            rest.drain(..taken);
        }
        self.rest = rest;
        Ok(())
    }

    /// Handles all complete responses; returns the number of consumed bytes.
    fn take_all(
        &mut self,
        input: &[u8],
        scratch: &mut Scratch<'_>,
        counts: &mut Counts,
        mut done: impl FnMut(u32, u64),
    ) -> Result<usize> {
        let mut taken = 0;
        while taken < input.len() {
            let said = self.encoding.decode(&input[taken..]);
            let Some((said, len)) = said.with_context(|| self.waits_for(scratch))? else { break };
            self.take(said, scratch, counts, &mut done)?;
            taken += len;
        }
        Ok(taken)
    }

    fn take(
        &mut self,
        said: Answer<'_>,
        scratch: &mut Scratch<'_>,
        counts: &mut Counts,
        done: &mut impl FnMut(u32, u64),
    ) -> Result<()> {
        let front = *self.requested.front().context("an answer without a request")?;
        let is_others = |of| matches!(of, AnswerOf::Mark(mark) if mark != front.number as u32);
        match said {
            Answer::Value { of, value } if !front.sets => {
                let at = self.position(of, scratch)?;
                check(self.requested[at].number, value, scratch, counts)?;
                if front.ends {
                    self.requested[at].is_done = true;
                    return Ok(());
                }
            }
            Answer::Miss(of) if !front.sets && !front.ends && !is_others(of) => counts.misses += 1,
            Answer::Stored(of) if front.sets && !is_others(of) => {
                counts.value_bytes += scratch.work.sizes.value_bytes(front.number) as u64;
            }
            Answer::End if front.ends => {
                while let Some(requested) = self.requested.pop_front() {
                    counts.misses += u64::from(!requested.is_done);
                    counts.operations += 1;
                    done(requested.slot, requested.number);
                    if requested.is_last {
                        break;
                    }
                }
                return Ok(());
            }
            _ => bail!("a wrong answer, {said:?}; {}", self.waits_for(scratch)),
        }
        self.requested.pop_front();
        counts.operations += 1;
        done(front.slot, front.number);
        Ok(())
    }

    /// Returns the position, in the request at the front, of the key that a value belongs to.
    fn position(&self, of: AnswerOf<'_>, scratch: &mut Scratch<'_>) -> Result<usize> {
        if of == AnswerOf::Next {
            return Ok(0);
        }
        for (at, requested) in self.requested.iter().enumerate() {
            let is_it = match of {
                AnswerOf::Mark(mark) => mark == requested.number as u32,
                AnswerOf::Key(key) => scratch.key(requested.number) == key,
                AnswerOf::Next => true,
            };
            if is_it && !requested.is_done {
                return Ok(at);
            }
            if requested.is_last {
                break;
            }
        }
        let whose = match of {
            AnswerOf::Key(key) => format!("of {}", shown(key)),
            AnswerOf::Mark(mark) => format!("with the mark {mark}"),
            AnswerOf::Next => String::new(),
        };
        bail!("an unexpected value {whose}; {}", self.waits_for(scratch))
    }

    /// Describes the response that the link waits for.
    pub fn waits_for(&self, scratch: &mut Scratch<'_>) -> String {
        match self.requested.iter().find(|requested| !requested.is_done) {
            None => "no request is outstanding".into(),
            Some(requested) => {
                let key = String::from_utf8_lossy(scratch.key(requested.number)).into_owned();
                format!("waiting for the answer to {} {key}", if requested.sets { "set" } else { "get" })
            }
        }
    }

    /// Returns whether a response is outstanding.
    pub fn is_waiting(&self) -> bool {
        !self.requested.is_empty()
    }
}

/// Checks that a value is the item's.
///
/// # Errors
/// It is not.
pub fn check(number: u64, value: &[u8], scratch: &mut Scratch<'_>, counts: &mut Counts) -> Result<()> {
    let len = scratch.work.sizes.value_bytes(number);
    counts.verified += u64::from(scratch.work.verify);
    if !scratch.items.is_right(number, len, value, scratch.work.verify) {
        let key = String::from_utf8_lossy(scratch.key(number)).into_owned();
        ensure!(value.len() == len, "a wrong value under the key {key}: {} bytes, not {len}", value.len());
        bail!("a wrong value under the key {key}: {}", shown(value));
    }
    counts.value_bytes += value.len() as u64;
    Ok(())
}

/// Returns whether a server supports the meta protocol. Old ones answer with an error, and proxies hang
/// up.
///
/// # Errors
/// It cannot be reached, or does not answer.
pub fn takes_meta(address: &Address) -> Result<bool> {
    let mut link = Link::connect(address, Encoding::Meta)?;
    let until = Timespec::try_from(ANSWER_TIMEOUT)?;
    link.out.extend_from_slice(b"mn\r\n");
    let said = || format!("meta protocol detection at {address}");
    send(&link.socket, &link.out, SendFlags::NOSIGNAL).with_context(said)?;
    let ready = poll(&mut [PollFd::new(&link.socket, PollFlags::IN)], Some(&until)).with_context(said)?;
    ensure!(ready > 0, "no answer within {} s: {}", ANSWER_TIMEOUT.as_secs(), said());
    let mut answer = [0; 64];
    // A closed connection yields no bytes, or an error.
    let (len, _) = recv(&link.socket, &mut answer[..], RecvFlags::empty()).unwrap_or_default();
    Ok(answer[..len].starts_with(b"MN"))
}
