//! Replays a trace through a server, over a Unix socket, and compares every hit with the stored value.
//!
//! GETs are sent in batches, then the SETs of those that missed, then the next GETs. To keep the
//! trace's order, an object requested again in the batch of its miss is requested again after its SET.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::trace::Trace;
use crate::trace::content::Content;
use crate::trace::tally::Tally;

/// How long a server may leave a request unanswered before it counts as failed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// GETs sent before their responses are read: they fit the socket's buffer, so that neither side
/// blocks.
const PIPELINE: usize = 64;

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayResult {
    /// Requests that missed.
    pub misses: Tally,
    /// SETs that the server refused.
    pub refused: u64,
    /// The greatest lag behind the trace, if the replay was paced.
    pub late: Duration,
}

/// A connection.
#[derive(Debug)]
pub struct Client<'c> {
    stream: BufReader<UnixStream>,
    content: &'c Content,
    line: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl<'c> Client<'c> {
    /// Connects.
    ///
    /// # Errors
    /// The connection fails.
    pub fn connect(socket: &Path, content: &'c Content) -> Result<Client<'c>> {
        let stream =
            UnixStream::connect(socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let stream = BufReader::with_capacity(256 << 10, stream);
        Ok(Client { stream, content, line: Vec::new(), key: Vec::new(), value: Vec::new() })
    }

    /// Replays a trace; `paced` keeps to its timestamps. `progress` receives the number of requests since its last
    /// call.
    ///
    /// # Errors
    /// A hit differs from the stored value, or the server does not answer.
    pub fn replay(&mut self, trace: &Trace, paced: bool, progress: &dyn Fn(u64)) -> Result<ReplayResult> {
        let mut done = ReplayResult { misses: Tally::new(trace), ..ReplayResult::default() };
        let start = Instant::now();
        let (mut requested, mut missed, mut again) = (Vec::new(), Vec::new(), Vec::new());
        let mut out = Vec::new();
        let mut at = 0;
        while at < trace.requests.len() || !again.is_empty() || !missed.is_empty() {
            out.clear();
            for object in missed.drain(..) {
                self.write_set(trace, object, &mut out);
                requested.push(SentRequest::Set);
            }
            let room = PIPELINE.saturating_sub(again.len());
            let mut rest = trace.requests[at..]
                .iter()
                .take(room)
                .take_while(|request| !paced || request.second == trace.requests[at].second);
            if paced && at < trace.requests.len() {
                let due = Duration::from_secs(trace.requests[at].second.into());
                std::thread::sleep(due.saturating_sub(start.elapsed()));
                done.late = done.late.max(start.elapsed().saturating_sub(due + Duration::from_secs(1)));
            }
            let before = at;
            at += rest.by_ref().count();
            for request in again.drain(..).chain(before..at) {
                self.write_get(trace, trace.requests[request].object, &mut out);
                requested.push(SentRequest::Get(request));
            }
            self.stream.get_mut().write_all(&out).context("the server does not read")?;
            for requested in requested.drain(..) {
                match requested {
                    SentRequest::Set => done.refused += u64::from(!self.read_stored()?),
                    SentRequest::Get(request) => {
                        let object = trace.requests[request].object;
                        if self.read_hit(trace, object)? {
                            continue;
                        }
                        if missed.contains(&object) {
                            again.push(request);
                        } else {
                            done.misses.count(trace, request);
                            missed.push(object);
                        }
                    }
                }
            }
            progress((at - before) as u64);
        }
        Ok(done)
    }

    /// Returns a number from `stats` or `stats ARGUMENT`.
    ///
    /// # Errors
    /// The server does not report it.
    pub fn stat(&mut self, command: &str, name: &str) -> Result<u64> {
        self.stream.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        let mut found = None;
        loop {
            self.read_line()?;
            let line = std::str::from_utf8(&self.line).context("statistics are text")?;
            if line == "END\r\n" {
                return found.with_context(|| format!("no number {name} in {command}"));
            }
            ensure!(line.starts_with("STAT "), "{command} was answered {line:?}");
            if let Some(value) = line.strip_prefix("STAT ").and_then(|line| line.strip_prefix(name)) {
                found = found.or(value.trim().parse().ok());
            }
        }
    }

    fn write_get(&mut self, trace: &Trace, object: u32, out: &mut Vec<u8>) {
        self.content.key(object, &trace.objects[object as usize], &mut self.key);
        out.extend_from_slice(b"get ");
        out.extend_from_slice(&self.key);
        out.extend_from_slice(b"\r\n");
    }

    fn write_set(&mut self, trace: &Trace, number: u32, out: &mut Vec<u8>) {
        let object = &trace.objects[number as usize];
        self.content.key(number, object, &mut self.key);
        self.content.value(number, object, &mut self.value);
        out.extend_from_slice(b"set ");
        out.extend_from_slice(&self.key);
        out.extend_from_slice(format!(" 0 {} {}\r\n", object.ttl_s, object.value_bytes).as_bytes());
        out.extend_from_slice(&self.value);
        out.extend_from_slice(b"\r\n");
    }

    fn read_line(&mut self) -> Result<()> {
        self.line.clear();
        self.stream.read_until(b'\n', &mut self.line).context("no answer")?;
        ensure!(self.line.ends_with(b"\r\n"), "the server closed the connection");
        Ok(())
    }

    fn read_stored(&mut self) -> Result<bool> {
        self.read_line()?;
        match &self.line[..] {
            b"STORED\r\n" => Ok(true),
            line if line.starts_with(b"SERVER_ERROR") => Ok(false),
            line => bail!("a SET was answered {:?}", String::from_utf8_lossy(line)),
        }
    }

    fn read_hit(&mut self, trace: &Trace, number: u32) -> Result<bool> {
        let object = &trace.objects[number as usize];
        self.read_line()?;
        if self.line == b"END\r\n" {
            return Ok(false);
        }
        self.content.key(number, object, &mut self.key);
        let head = [b"VALUE ", &self.key[..], format!(" 0 {}\r\n", object.value_bytes).as_bytes()].concat();
        ensure!(self.line == head, "a GET was answered {:?}", String::from_utf8_lossy(&self.line));
        self.value.resize(object.value_bytes as usize, 0);
        self.stream.read_exact(&mut self.value).context("an incomplete value")?;
        let is_right = self.content.is_value(number, object, [&self.value[..]].into_iter());
        ensure!(is_right, "the server returned a wrong value for object {number}");
        let mut end = [0; 7];
        self.stream.read_exact(&mut end).context("an incomplete answer")?;
        ensure!(&end == b"\r\nEND\r\n", "{:?} after a value", String::from_utf8_lossy(&end));
        Ok(true)
    }
}

/// A sent request.
enum SentRequest {
    /// The GET of this request of the trace.
    Get(usize),
    Set,
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::trace::generate::{Kind, Shape};

    /// Faults of the fake server.
    #[derive(Clone, Copy, PartialEq)]
    enum Fault {
        None,
        /// Drops every hundredth SET.
        Forgets,
        /// Flips a bit.
        Wrong,
    }

    /// A minimal server for one connection; returns its requests, in order, when the client disconnects.
    fn serve(listener: &UnixListener, fault: Fault) -> Vec<String> {
        let (stream, _) = listener.accept().expect("a client");
        let mut writer = stream.try_clone().expect("a descriptor");
        let mut reader = BufReader::new(stream);
        let (mut values, mut requested, mut line) = (HashMap::new(), Vec::new(), String::new());
        while reader.read_line(&mut line).is_ok_and(|len| len > 0) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let key = words[1].to_owned();
            let answer = if words[0] == "set" {
                let mut value = vec![0; words[4].parse::<usize>().expect("a length") + 2];
                if reader.read_exact(&mut value).is_err() {
                    break;
                }
                value[0] ^= u8::from(fault == Fault::Wrong);
                if fault != Fault::Forgets || !requested.len().is_multiple_of(100) {
                    values.insert(key.clone(), value);
                }
                b"STORED\r\n".to_vec()
            } else if let Some(value) = values.get(&key) {
                let head = format!("VALUE {key} 0 {}\r\n", value.len() - 2);
                [head.as_bytes(), value, b"END\r\n"].concat()
            } else {
                b"END\r\n".to_vec()
            };
            if writer.write_all(&answer).is_err() {
                break;
            }
            requested.push(format!("{} {key}", words[0]));
            line.clear();
        }
        requested
    }

    fn replay(trace: &Trace, fault: Fault, name: &str) -> (Result<ReplayResult>, Vec<String>) {
        let path = std::env::temp_dir().join(format!("fabcache-trace-{}-{name}", std::process::id()));
        let listener = UnixListener::bind(&path).expect("a socket");
        let content = Content::default();
        let done = std::thread::scope(|scope| {
            let server = scope.spawn(|| serve(&listener, fault));
            let replayed = {
                let mut client = Client::connect(&path, &content).expect("a server");
                client.replay(trace, false, &|_| ())
            };
            (replayed, server.join().expect("the server does not panic"))
        });
        std::fs::remove_file(&path).expect("the socket is there");
        done
    }

    #[test]
    fn a_replay_is_cache_aside_in_order() {
        let mut trace = Shape { scale: 0.0005, seed: 1, speed: 1 }.generate(Kind::Zipf12, 1.0);
        trace.warm_up = 500;
        let (replayed, requested) = replay(&trace, Fault::None, "order");
        let replayed = replayed.expect("right answers");
        assert_eq!((replayed.misses.all, replayed.refused), (trace.objects.len() as u64, 0));
        let warming: HashSet<u32> = trace.requests[..500].iter().map(|request| request.object).collect();
        assert_eq!(replayed.misses.warm, (trace.objects.len() - warming.len()) as u64);
        let sets = requested.iter().filter(|text| text.starts_with("set ")).count();
        assert_eq!(sets, trace.objects.len());
        // Each request is one GET, and another if it was sent before the SET of its object.
        let gets: Vec<&str> = requested.iter().filter_map(|text| text.strip_prefix("get ")).collect();
        assert!(gets.len() >= trace.requests.len() && gets.len() < trace.requests.len() * 11 / 10);
        let first = |key: &str| gets.iter().position(|other| *other == key);
        let (content, mut key, mut last) = (Content::default(), Vec::new(), 0);
        for (number, object) in trace.objects.iter().enumerate() {
            content.key(number as u32, object, &mut key);
            let at = first(std::str::from_utf8(&key).expect("text")).expect("it was asked for");
            assert!(at >= last, "first requests are in the order of the objects");
            last = at;
        }
    }

    #[test]
    fn lost_and_changed_values_are_detected() {
        let trace = Shape { scale: 0.0005, seed: 1, speed: 1 }.generate(Kind::Zipf12, 1.0);
        let forgotten = replay(&trace, Fault::Forgets, "forgets").0.expect("right answers");
        assert!(forgotten.misses.all > trace.objects.len() as u64);
        let error = replay(&trace, Fault::Wrong, "wrong").0.expect_err("wrong values");
        assert!(error.to_string().contains("wrong value"), "{error}");
    }
}
