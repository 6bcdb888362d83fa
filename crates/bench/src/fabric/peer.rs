//! The remote end of plain libfabric: a process that exposes its memory, and answers messages with as
//! many bytes as they request.
//!
//! It reads commands from its input, one per line, and answers on its output: first `NAME READ-ADDRESS
//! READ-KEY WRITE-ADDRESS WRITE-KEY` (the name in hexadecimal); after `connect NAME`, `connected`;
//! after `serve`, `serving`, and then it polls without a pause until a message tells it to stop. It
//! exits at the end of its input.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use fabcache_fabric::{
    Completion, Domain, Endpoint, EndpointOptions, Kind, Library, LocalUse, Peer, PeerAccess, Pool, Provider,
    RemoteAddress, SharedArea,
};
use fabcache_testbed::cleanup;

use crate::process::Process;
use crate::target::ANSWER_TIMEOUT;

/// A message that requests this many bytes stops the peer after its answer.
pub const STOP: u32 = u32::MAX;
/// Posted receives.
const RECEIVES: usize = 4;
/// Maximum number of operations in flight.
pub const OPERATIONS: usize = 128;
/// Polls between readings of the clock.
const POLLS: u32 = 1 << 12;

/// Formats bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses hexadecimal digits.
///
/// # Errors
/// The text is not hexadecimal.
pub fn unhex(text: &str) -> Result<Vec<u8>> {
    let pair = |at| text.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(pair).collect();
    bytes.with_context(|| format!("{text:?} is not hexadecimal"))
}

/// Runs the peer until its input ends.
///
/// # Errors
/// The provider cannot be opened, or fails; a command is invalid.
pub fn run(identity: &str, bytes: usize, input: &mut dyn BufRead, output: &mut dyn Write) -> Result<()> {
    let provider = Library::open()?.find(identity)?;
    let provider = provider.with_context(|| format!("the provider {identity} no longer exists"))?;
    let mut served = PeerMemory::open(&provider, bytes)?;
    writeln!(output, "{}", served.introduction())?;
    output.flush()?;
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        let said = match line.trim_end().split_once(' ') {
            Some(("connect", name)) => {
                served.client = Some(served.endpoint.connect(&unhex(name)?)?);
                "connected"
            }
            None if line.trim_end() == "serve" => "serving",
            _ => bail!("unknown command {line:?}"),
        };
        writeln!(output, "{said}")?;
        output.flush()?;
        if said == "serving" {
            served.serve()?;
        }
        line.clear();
    }
    Ok(())
}

/// The exposed memory and the endpoint.
struct PeerMemory {
    endpoint: Endpoint,
    /// Buffers for messages and responses.
    pool: Pool,
    readable: SharedArea,
    writable: SharedArea,
    client: Option<Peer>,
}

impl PeerMemory {
    fn open(provider: &Provider, bytes: usize) -> Result<PeerMemory> {
        let domain = Domain::open(provider)?;
        let mut endpoint =
            Endpoint::open(&domain, EndpointOptions { operations: OPERATIONS, peers: 1, waits: false })?;
        let pool = Pool::new(&domain, LocalUse::ANY, 2 * RECEIVES, bytes)?;
        for token in 0..RECEIVES {
            let buffer = pool.take().context("buffers are as many as receives")?;
            endpoint.receive(buffer, token as u64).map_err(|refused| refused.error)?;
        }
        let readable = SharedArea::new(&mut endpoint, bytes, PeerAccess::Read)?;
        let writable = SharedArea::new(&mut endpoint, bytes, PeerAccess::Write)?;
        Ok(PeerMemory { endpoint, pool, readable, writable, client: None })
    }

    fn introduction(&self) -> String {
        let (read, write) = (self.readable.remote(), self.writable.remote());
        let name = hex(self.endpoint.name());
        format!("{name} {} {} {} {}", read.address, read.key, write.address, write.key)
    }

    /// Answers messages until one tells it to stop.
    fn serve(&mut self) -> Result<()> {
        let mut ended: Vec<Completion> = Vec::new();
        let (mut polls, mut last) = (0u32, Instant::now());
        loop {
            self.endpoint.poll(&mut ended)?;
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(POLLS) {
                ensure!(
                    last.elapsed() < 6 * ANSWER_TIMEOUT,
                    "no request within {:?}; check that the client is running",
                    6 * ANSWER_TIMEOUT
                );
            }
            for done in ended.drain(..) {
                let bytes = done.result?;
                if done.kind != Kind::Received {
                    continue;
                }
                last = Instant::now();
                ensure!(bytes >= 4, "a message has {bytes} bytes; at least 4 are needed");
                let wanted = u32::from_le_bytes(done.buffer[..4].try_into().expect("four bytes"));
                self.endpoint.receive(done.buffer, done.token).map_err(|refused| refused.error)?;
                let answer = if wanted == STOP { 4 } else { wanted as usize };
                let client = self.client.context("no client is connected")?;
                let _sent = send_blocking(&mut self.endpoint, &self.pool, client, answer, |_| {})?;
                if wanted == STOP {
                    self.settle()?;
                    return Ok(());
                }
            }
        }
    }

    /// Waits until the last response is sent: nothing polls afterwards.
    fn settle(&mut self) -> Result<()> {
        let until = Instant::now() + ANSWER_TIMEOUT;
        while self.endpoint.in_flight() > RECEIVES {
            ensure!(Instant::now() < until, "an answer cannot be sent");
            self.endpoint.poll(&mut Vec::new())?;
        }
        Ok(())
    }
}

/// Sends a message, retrying until it is accepted; injects short ones.
///
/// Only sends may be in flight: other completions would be lost.
///
/// # Errors
/// The message is not sent within the time limit.
pub fn send_blocking(
    endpoint: &mut Endpoint,
    pool: &Pool,
    peer: Peer,
    bytes: usize,
    fill: impl Fn(&mut [u8]),
) -> Result<Vec<Completion>> {
    let mut ended = Vec::new();
    let until = Instant::now() + ANSWER_TIMEOUT;
    if bytes <= endpoint.domain().provider().inject_bytes {
        let mut message = [0; 1 << 14];
        let message = message.get_mut(..bytes).context("a short message is too long")?;
        fill(message);
        while let Err(error) = endpoint.inject(peer, message) {
            ensure!(error.is_again() && Instant::now() < until, error);
            endpoint.poll(&mut ended)?;
        }
        return Ok(ended);
    }
    let mut buffer = loop {
        // Completions of earlier responses return their buffers.
        match pool.take() {
            Some(buffer) => break buffer,
            None => endpoint.poll(&mut Vec::new())?,
        }
        ensure!(Instant::now() < until, "no buffer becomes free");
    };
    fill(&mut buffer);
    while let Err(refused) = endpoint.send(peer, buffer, bytes, 0) {
        ensure!(refused.error.is_again() && Instant::now() < until, refused.error);
        buffer = refused.buffer;
        endpoint.poll(&mut ended)?;
    }
    Ok(ended)
}

/// The peer process, seen from its client. It exits when dropped.
#[derive(Debug)]
pub struct PeerProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The name of its endpoint.
    pub name: Vec<u8>,
    /// Readable memory.
    pub readable: RemoteAddress,
    /// Writable memory.
    pub writable: RemoteAddress,
}

impl PeerProcess {
    /// Starts the peer.
    ///
    /// # Errors
    /// The peer does not start.
    pub fn start(program: &Path, provider: &Provider, bytes: usize) -> Result<PeerProcess> {
        let mut command = Command::new(program);
        command.args(["bench", "fabric-peer", &provider.identity(), &bytes.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = cleanup::start_server(&mut command)
            .with_context(|| format!("cannot start {}", program.display()))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("its output is a pipe")?);
        let none = RemoteAddress { address: 0, key: 0 };
        let mut peer = PeerProcess { child, input, output, name: Vec::new(), readable: none, writable: none };
        let line = peer.read_reply()?;
        let mut words = line.split(' ');
        peer.name = unhex(words.next().unwrap_or_default())?;
        let mut number =
            || -> Result<u64> { Ok(words.next().context("an incomplete introduction")?.parse()?) };
        peer.readable = RemoteAddress { address: number()?, key: number()? };
        peer.writable = RemoteAddress { address: number()?, key: number()? };
        Ok(peer)
    }

    /// Returns its process.
    pub fn process(&self) -> Process {
        Process(self.child.id())
    }

    /// Sends a command, and waits for the expected reply.
    ///
    /// # Errors
    /// The peer has ended.
    pub fn order(&mut self, order: &str, expected: &str) -> Result<()> {
        let input = self.input.as_mut().context("it is there until it is dropped")?;
        writeln!(input, "{order}").and_then(|()| input.flush()).context("the peer has ended")?;
        let said = self.read_reply()?;
        ensure!(said == expected, "the peer answers {said:?}, not {expected:?}");
        Ok(())
    }

    fn read_reply(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line).context("cannot read from the peer")?;
        ensure!(line.ends_with('\n'), "the peer has ended");
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        let id = rustix::process::Pid::from_child(&self.child);
        drop(self.input.take());
        // A polling peer does not notice the end of its input.
        let _ = self.child.kill();
        let _ = self.child.wait();
        cleanup::forget_server(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_as_digits_and_read() {
        assert_eq!(hex(&[0, 0xab, 7]), "00ab07");
        assert_eq!(unhex("00ab07").expect("digits"), [0, 0xab, 7]);
        for text in ["0", "0g", "é"] {
            assert!(unhex(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_provider_that_is_not_there_is_an_error() {
        let error =
            run("no,such,provider,", 64, &mut &b""[..], &mut Vec::new()).expect_err("an unknown provider");
        let text = format!("{error:#}");
        assert!(text.contains("no,such,provider") || text.contains("libfabric"), "{text}");
    }
}
