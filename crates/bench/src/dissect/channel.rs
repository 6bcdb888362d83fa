//! An echo thread at the other end of a private channel: shared memory without a server.

use std::hint::spin_loop;
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fabcache_layout::channel::{Channel, ProtocolError, Shape};

use crate::dummy::{RecordedCall, Responder};
use crate::items::Items;
use crate::process::{Cpus, pin};

/// The server's default shape of channels.
const SHAPE: Shape = Shape { slots: 64, slot_bytes: 1 << 10, staging_bytes: 1 << 20 };
/// How long the thread polls for the next request before it sleeps.
const SPIN_TIME: Duration = Duration::from_millis(1);
/// Sleep interval between checks of the stop flag.
const SLEEP_TIME: Duration = Duration::from_millis(20);
/// Polls between readings of the clock, after which the thread yields the CPU.
const POLLS_PER_CLOCK: u32 = 512;
const BUFFER_BYTES: usize = 256 << 10;

/// How the thread answers.
pub enum AnswerMode {
    /// Answers requests of the first length with responses of the second.
    Echo(usize, usize),
    /// The dummy decodes requests and builds responses.
    Protocol(Box<Responder>),
}

/// The client's end of a channel to an echo thread.
pub struct ChannelClient {
    channel: Channel,
    request: Vec<u8>,
    key_at: usize,
    answer: Vec<u8>,
    timeout: Duration,
    peer: Option<JoinHandle<Result<()>>>,
    thread: Thread,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    sleeps: AtomicBool,
    ends: AtomicBool,
}

impl ChannelClient {
    /// Connects to a new thread on these CPUs.
    ///
    /// # Errors
    /// There is no memory for a channel, or no thread.
    pub fn new(
        call: &RecordedCall,
        key: &[u8],
        answering: AnswerMode,
        cpus: &Cpus,
        timeout: Duration,
    ) -> Result<ChannelClient> {
        let (served, file) = Channel::create(&SHAPE)?;
        let channel = Channel::open(file.as_fd())?;
        let state = Arc::new(State::default());
        let (of_peer, cpus) = (Arc::clone(&state), cpus.clone());
        let peer = std::thread::Builder::new().name("channel".into()).spawn(move || {
            pin(None, &cpus)?;
            answer_all(served, answering, &of_peer)
        })?;
        let at = call.request.windows(key.len()).position(|window| window == key);
        let thread = peer.thread().clone();
        Ok(ChannelClient {
            channel,
            request: call.request.clone(),
            key_at: at.context("the key is not in the request")?,
            answer: vec![0; call.answer.len()],
            timeout,
            peer: Some(peer),
            thread,
            state,
        })
    }

    /// Makes the call for an item; returns its duration.
    ///
    /// # Errors
    /// There is no answer.
    pub fn call(&mut self, items: &Items, number: u64, key: &mut Vec<u8>) -> Result<Duration> {
        items.key(number, key);
        self.request[self.key_at..self.key_at + key.len()].copy_from_slice(key);
        let begun = Instant::now();
        let (mut sent, mut come) = (0, 0);
        let mut polls = 0u32;
        while come < self.answer.len() {
            let mut moved = 0;
            if sent < self.request.len() {
                moved = self.channel.outgoing().send(&[IoSlice::new(&self.request[sent..])])?;
                sent += moved;
            } else if self.channel.has_incoming() {
                moved = self.channel.incoming().receive(&mut self.answer[come..])?;
                come += moved;
            }
            if moved > 0 {
                polls = 0;
                if self.state.sleeps.load(Ordering::Relaxed) {
                    self.thread.unpark();
                }
                continue;
            }
            spin_loop();
            polls += 1;
            if polls.is_multiple_of(POLLS_PER_CLOCK) {
                // Needed where both ends share one CPU.
                self.thread.unpark();
                std::thread::yield_now();
                ensure!(begun.elapsed() < self.timeout, "no answer through a channel");
            }
        }
        Ok(begun.elapsed())
    }
}

impl Drop for ChannelClient {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::Relaxed);
        self.thread.unpark();
        if let Some(peer) = self.peer.take() {
            // The calls have already reported the thread's result.
            drop(peer.join());
        }
    }
}

/// Answers requests until the stop flag is set.
fn answer_all(mut channel: Channel, mut answering: AnswerMode, state: &State) -> Result<()> {
    let (mut buffer, mut answer, mut come) = (vec![0; BUFFER_BYTES], Vec::new(), 0);
    let mut until = Instant::now() + SPIN_TIME;
    let mut polls = 0u32;
    loop {
        if channel.has_incoming() {
            let count = channel.incoming().receive(&mut buffer)?;
            match &mut answering {
                AnswerMode::Echo(requested, answered) => {
                    come += count;
                    answer.clear();
                    while come >= *requested {
                        come -= *requested;
                        answer.resize(answer.len() + *answered, 0);
                    }
                }
                AnswerMode::Protocol(responder) => {
                    if !responder.take(&buffer[..count], &mut answer) {
                        bail!("the dummy received an invalid request");
                    }
                }
            }
            send(&mut channel, &answer, state)?;
            polls = 0;
            continue;
        }
        spin_loop();
        polls += 1;
        if !polls.is_multiple_of(POLLS_PER_CLOCK) {
            continue;
        }
        if state.ends.load(Ordering::Relaxed) {
            return Ok(());
        }
        if polls == POLLS_PER_CLOCK {
            until = Instant::now() + SPIN_TIME;
        } else if Instant::now() > until {
            state.sleeps.store(true, Ordering::Relaxed);
            std::thread::park_timeout(SLEEP_TIME);
            state.sleeps.store(false, Ordering::Relaxed);
        }
        std::thread::yield_now();
    }
}

fn send(channel: &mut Channel, mut rest: &[u8], state: &State) -> Result<(), ProtocolError> {
    while !rest.is_empty() && !state.ends.load(Ordering::Relaxed) {
        let sent = channel.outgoing().send(&[IoSlice::new(rest)])?;
        rest = &rest[sent..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use fabcache_client::{Protocol, Ttl};

    use super::*;
    use crate::dummy::record_call;

    #[test]
    fn calls_go_through_memory() {
        let items = Items::new(20).expect("a length");
        let timeout = Duration::from_secs(20);
        let cpus = Cpus::current().expect("some");
        for len in [1usize, 3_000, 3_000_000] {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            items.key(0, &mut key);
            items.value(0, len, &mut value);
            let heard = record_call(Protocol::Binary, (0, len as u32), |client| {
                Ok(client.set(&key, &value, Ttl::NEVER)?)
            });
            let heard = heard.expect("an answer");
            let echo = AnswerMode::Echo(heard.request.len(), heard.answer.len());
            for answering in [echo, AnswerMode::Protocol(Box::new(Responder::mixed()))] {
                let mut client = ChannelClient::new(&heard, &key, answering, &cpus, timeout).expect("memory");
                for number in 0..20 {
                    client.call(&items, number, &mut Vec::new()).expect("an answer");
                }
                // Long enough that the thread sleeps.
                std::thread::sleep(Duration::from_millis(50));
                client.call(&items, 20, &mut Vec::new()).expect("an answer");
            }
        }
    }
}
