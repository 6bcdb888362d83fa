//! Plays a sequence on both servers: batches, sentinels, and the comparison of each answer.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::answer::{
    Answer, Answers, End, HEADER_LEN, SENTINEL_COMMAND, Source, collect, collect_one, collect_to_close,
};
use crate::compare::{CasBook, Comparison};
use crate::coverage::{Coverage, kind};
use crate::link::{Conn, Cutting, Link};
use crate::options::Options;
use crate::request::Prefix;
use crate::unit::{Agreement, Ending, Shape, Step, Unit, Wire};
use fabcache_testbed::random::SplitMix64;

/// Maximum bytes of a batch: its requests fit the socket buffers, so that a server that is busy
/// answering never blocks the writer.
const BATCH_LEN_MAX: usize = 48 << 10;

/// Maximum number of commands in a batch.
const BATCH_UNITS_MAX: usize = 60;

/// The sentinel's opaque, above those of all commands.
const SENTINEL_OPAQUE: u32 = 0xf000_0000;

/// The two servers.
#[derive(Debug, Clone, Copy)]
pub struct Servers {
    /// memcached 1.6.18.
    pub theirs: SocketAddr,
    /// fabcached.
    pub ours: SocketAddr,
}

/// A difference between the answers to one command.
#[derive(Debug, Clone)]
pub struct Difference {
    /// The step of the sequence.
    pub step: usize,
    /// Their answer.
    pub theirs: Answer,
    /// Our answer.
    pub ours: Answer,
    /// The difference.
    pub why: String,
    /// A key that is equal for differences with likely the same cause.
    pub sort: String,
}

/// The result of a sequence.
#[derive(Debug, Default)]
pub struct PlayResult {
    /// Commands whose answers were compared.
    pub commands: u64,
    /// The first difference; nothing was sent after its batch.
    pub difference: Option<Difference>,
    /// The bytes sent to theirs, one entry per command in order, with its step.
    pub transcript: Vec<(usize, Vec<u8>)>,
}

/// Plays sequences.
pub struct Player {
    servers: Servers,
    timeout: Duration,
    twin: bool,
    sharded: bool,
    links: Vec<Option<Link>>,
    sentinels: u32,
    /// Counts of the answers.
    pub coverage: Coverage,
}

struct Batch<'a> {
    units: Vec<(usize, &'a Unit)>,
    theirs: Vec<u8>,
    ours: Vec<u8>,
    their_ends: Vec<usize>,
}

impl Player {
    /// Returns a player without connections.
    pub fn new(options: &Options, timeout: Duration) -> Self {
        let Options { servers, twin, sharded, .. } = *options;
        let coverage = Coverage::default();
        Self { servers, timeout, twin, sharded, links: Vec::new(), sentinels: 0, coverage }
    }

    /// Closes all connections.
    pub fn hang_up(&mut self) {
        self.links.clear();
    }

    /// Plays a sequence until its end or the first difference. Fails if a server cannot be reached.
    pub fn play(&mut self, steps: &[Step], prefix: &Prefix, rng: &mut SplitMix64) -> Result<PlayResult> {
        let mut book = CasBook::new(self.sharded);
        let mut played = PlayResult::default();
        let mut batch = Batch::new();
        let batch_units_max = rng.between(1, BATCH_UNITS_MAX);
        for (place, step) in steps.iter().enumerate() {
            let wait = match step {
                Step::Send(unit) => {
                    if batch.must_flush_before(unit) {
                        self.exchange(&mut batch, &mut book, prefix, rng, &mut played)?;
                    }
                    batch.push(place, unit, prefix, &book);
                    batch.must_flush(batch_units_max).then_some(Duration::ZERO)
                }
                Step::Pause(pause) => Some(*pause),
            };
            if let Some(pause) = wait {
                self.exchange(&mut batch, &mut book, prefix, rng, &mut played)?;
                std::thread::sleep(pause);
            }
            if played.difference.is_some() {
                return Ok(played);
            }
        }
        self.exchange(&mut batch, &mut book, prefix, rng, &mut played)?;
        Ok(played)
    }

    /// Checks that both servers serve a new connection.
    pub fn both_alive(&mut self) -> Result<()> {
        for address in [self.servers.theirs, self.servers.ours] {
            let mut conn = Conn::open(address, self.timeout)?;
            conn.send(SENTINEL_COMMAND, &[]);
            let answer = collect_one(&mut conn, Shape::Line);
            anyhow::ensure!(answer.bytes == crate::answer::SENTINEL, "{address} no longer answers");
        }
        Ok(())
    }

    fn link(&mut self, unit: &Unit) -> Result<&mut Link> {
        while self.links.len() <= unit.conn {
            self.links.push(None);
        }
        let slot = &mut self.links[unit.conn];
        let usable = slot.take().filter(|link| link.wire == unit.wire);
        let link = match usable {
            Some(link) => link,
            None => Link {
                wire: unit.wire,
                theirs: Conn::open(self.servers.theirs, self.timeout)?,
                ours: Conn::open(self.servers.ours, self.timeout)?,
            },
        };
        Ok(slot.insert(link))
    }

    fn exchange(
        &mut self,
        batch: &mut Batch<'_>,
        book: &mut CasBook,
        prefix: &Prefix,
        rng: &mut SplitMix64,
        played: &mut PlayResult,
    ) -> Result<()> {
        let Some(&(_, first)) = batch.units.first() else { return Ok(()) };
        let ending = batch.units.last().map_or(Ending::Open, |(_, unit)| unit.ending);
        self.sentinels = (self.sentinels + 1) % 0x0fff_ffff;
        let sentinel_opaque = SENTINEL_OPAQUE + self.sentinels;
        let whole = batch.units.iter().any(|(_, unit)| unit.whole);
        let cutting = if whole { Cutting::Whole } else { Cutting::random(rng, batch.theirs.len()) };
        let start = Instant::now();
        let link = self.link(first)?;
        for (conn, bytes) in [(&mut link.theirs, &mut batch.theirs), (&mut link.ours, &mut batch.ours)] {
            if ending == Ending::Open {
                bytes.extend(sentinel(first.wire, sentinel_opaque));
            }
            conn.send(bytes, &cutting.cuts(rng, bytes.len()));
            if ending == Ending::HalfOpen {
                conn.finish_sending();
            }
        }
        let units: Vec<&Unit> = batch.units.iter().map(|&(_, unit)| unit).collect();
        let theirs = collect_answers(&mut link.theirs, &units, sentinel_opaque);
        let ours = collect_answers(&mut link.ours, &units, sentinel_opaque);
        let slack_s = 1 + start.elapsed().as_secs();
        let lost = [&theirs, &ours].iter().any(|answers| answers.stray.end != End::Complete);
        if ending != Ending::Open || lost {
            self.links[first.conn] = None;
        }
        let mut comparison = Comparison { book, prefix, slack_s };
        self.compare_batch(batch, &theirs, &ours, &mut comparison, played);
        batch.clear();
        Ok(())
    }

    fn compare_batch(
        &mut self,
        batch: &Batch<'_>,
        theirs: &Answers,
        ours: &Answers,
        comparison: &mut Comparison<'_>,
        played: &mut PlayResult,
    ) {
        // Record all commands sent: whichever closed the connection may have discarded earlier answers.
        let starts = [0].iter().chain(&batch.their_ends);
        for ((&(step, _), &end), &start) in batch.units.iter().zip(&batch.their_ends).zip(starts) {
            played.transcript.push((step, batch.theirs[start..end].to_vec()));
        }
        for (index, &(step, unit)) in batch.units.iter().enumerate() {
            let (their, our) = (&theirs.each[index], &ours.each[index]);
            let mut verdict = match unit.drift {
                Some(drift) => drift.check(&their.bytes, &our.bytes, self.twin),
                None => comparison.compare(unit, their, our),
            };
            if index + 1 == batch.units.len() && verdict.is_ok() {
                verdict = stray(&theirs.stray, &ours.stray);
            }
            if let Err(why) = verdict {
                let with_stray = |answer: &Answer, stray: &Answer| Answer {
                    bytes: [&answer.bytes[..], &stray.bytes].concat(),
                    end: if answer.end == End::Complete { stray.end } else { answer.end },
                };
                let sort = match unit.drift {
                    Some(drift) => drift.sent.to_owned(),
                    None => {
                        let why: String = why.chars().filter(|letter| !letter.is_ascii_digit()).collect();
                        format!("{}: {} / {}: {why}", unit.command, kind(unit, their), kind(unit, our))
                    }
                };
                played.difference = Some(Difference {
                    step,
                    theirs: with_stray(their, &theirs.stray),
                    ours: with_stray(our, &ours.stray),
                    why,
                    sort,
                });
                return;
            }
            if their.end != End::Missing && unit.agreement != Agreement::Survival {
                played.commands += 1;
                self.coverage.count(unit, their);
            }
        }
    }
}

/// Compares extra bytes. A server that closed between two answers also shows in its stray answer.
fn stray(theirs: &Answer, ours: &Answer) -> Result<(), String> {
    match theirs == ours {
        true => Ok(()),
        false => Err("more or less than the answers before the sentinel's".into()),
    }
}

fn sentinel(wire: Wire, opaque: u32) -> Vec<u8> {
    match wire {
        Wire::Ascii => SENTINEL_COMMAND.to_vec(),
        Wire::Binary => {
            let mut noop = vec![0; HEADER_LEN];
            noop[..2].copy_from_slice(&[0x80, 0x0a]);
            noop[12..16].copy_from_slice(&opaque.to_be_bytes());
            noop
        }
    }
}

fn collect_answers(source: &mut impl Source, units: &[&Unit], sentinel_opaque: u32) -> Answers {
    let last = units.last().expect("a batch has commands");
    let alone = match last.ending {
        Ending::Open => return collect(source, units, sentinel_opaque),
        Ending::HangUp => collect_one(source, last.shape),
        Ending::ServerCloses | Ending::HalfOpen => collect_to_close(source),
    };
    assert_eq!(units.len(), 1, "a command that ends the connection is sent alone");
    Answers { each: vec![alone], stray: Answer { bytes: Vec::new(), end: End::Complete } }
}

impl<'a> Batch<'a> {
    fn new() -> Self {
        Self { units: Vec::new(), theirs: Vec::new(), ours: Vec::new(), their_ends: Vec::new() }
    }

    fn clear(&mut self) {
        self.units.clear();
        self.theirs.clear();
        self.ours.clear();
        self.their_ends.clear();
    }

    /// Returns whether all earlier answers must be read before this command.
    fn must_flush_before(&self, unit: &Unit) -> bool {
        let Some(&(_, first)) = self.units.first() else { return false };
        let taught =
            |key| self.units.iter().any(|(_, earlier)| earlier.keys.iter().any(|known| known.id == key));
        let held = |key| self.units.iter().any(|(_, earlier)| earlier.holds.contains(&key));
        unit.fence
            || unit.conn != first.conn
            || unit.wire != first.wire
            || unit.request.cas_keys().any(taught)
            || unit.changes.is_some_and(held)
            || self.theirs.len() > BATCH_LEN_MAX
    }

    fn push(&mut self, step: usize, unit: &'a Unit, prefix: &Prefix, book: &CasBook) {
        unit.request.render(prefix, |key| book.last(key).map(|(theirs, _)| theirs), &mut self.theirs);
        unit.request.render(prefix, |key| book.last(key).map(|(_, ours)| ours), &mut self.ours);
        if unit.shape == Shape::UntilSentinel && unit.ending == Ending::Open {
            self.theirs.extend_from_slice(SENTINEL_COMMAND);
            self.ours.extend_from_slice(SENTINEL_COMMAND);
        }
        self.their_ends.push(self.theirs.len());
        self.units.push((step, unit));
    }

    /// Returns whether the batch must be sent now.
    fn must_flush(&self, batch_units_max: usize) -> bool {
        let ends = self.units.last().is_some_and(|(_, unit)| unit.ending != Ending::Open);
        ends || self.units.len() >= batch_units_max
    }
}
