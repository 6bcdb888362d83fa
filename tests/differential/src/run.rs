//! A whole run: corpus and known differences first, then random sequences, then the report.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::answer::collect_one;
use crate::corpus;
use crate::drift;
use crate::generate::{Generator, Sequence};
use crate::link::Conn;
use crate::minimise::{Budget, minimise};
use crate::options::Options;
use crate::play::{Difference, PlayResult, Player};
use crate::repro;
use crate::request::prefix;
use crate::unit::{Shape, Step, Wire};
use fabcache_testbed::random::SplitMix64;

/// Limits of minimising a difference.
const MINIMISING_BUDGET: Budget = Budget { attempts: 600, time: Duration::from_secs(30) };

/// Time limit of an answer while minimising.
const MINIMISING_TIMEOUT: Duration = Duration::from_millis(1500);

/// Disables a thread of memcached. Normally it passes an item that is read twice to another thread,
/// which holds it for a moment; and a number that is held is changed differently (see
/// [`Unit::holds`](crate::unit::Unit)). With one list for all items memcached agrees with itself.
const DISABLE_THREAD: &[u8] = b"lru mode flat\r\n";

/// Maximum number of commands shown of a sequence that could not be minimised.
const UNMINIMISED_SHOWN_MAX: usize = 12;

/// First prefix number of replayed sequences.
const REPLAYS: u64 = 1 << 24;

/// The result of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// Commands whose answers were compared.
    pub commands: u64,
    /// Duration.
    pub elapsed: Duration,
    /// The seed.
    pub seed: u64,
    /// Each difference, formatted.
    pub differences: Vec<String>,
    /// The coverage table with its counts.
    pub table: String,
    /// Pairs that were seen too rarely.
    pub rare: Vec<String>,
    /// Answers that the table does not list.
    pub unlisted: Vec<String>,
    /// Known differences that did not occur.
    pub unmet: Vec<String>,
    /// How often each known difference occurred.
    pub drifts: Vec<(&'static str, u64)>,
}

impl Report {
    /// Returns whether the run found nothing wrong.
    pub fn passed(&self) -> bool {
        let complaints = [&self.differences, &self.rare, &self.unlisted, &self.unmet];
        complaints.iter().all(|complaints| complaints.is_empty())
    }

    /// Returns the report as text.
    pub fn text(&self) -> String {
        let mut text = format!("Answers by command:\n\n{}", self.table);
        if !self.drifts.is_empty() {
            text.push_str("\nKnown differences, and how often they were met:\n\n");
        }
        for (sent, count) in &self.drifts {
            let _ = writeln!(text, "{count:>10}  {}", repro::escape(sent.as_bytes()));
        }
        let complaints = [
            ("Too rare", &self.rare),
            ("Not in the table", &self.unlisted),
            ("Known differences never met", &self.unmet),
            ("Differences", &self.differences),
        ];
        for (title, complaints) in complaints.iter().filter(|(_, complaints)| !complaints.is_empty()) {
            let _ = writeln!(text, "\n{title}:");
            for complaint in *complaints {
                let _ = writeln!(text, "  {complaint}");
            }
        }
        let seconds = self.elapsed.as_secs_f64();
        let verdict = if self.passed() { "passed" } else { "FAILED" };
        let found = self.differences.len();
        let _ = writeln!(
            text,
            "\n{verdict}: {} commands with seed {} in {seconds:.1} s, {found} unexplained differences",
            self.commands, self.seed,
        );
        text
    }
}

/// Runs the comparison. Fails only if a server cannot be reached; findings are in the report.
pub fn run(options: &Options) -> Result<Report> {
    let start = Instant::now();
    let mut run = Run {
        options,
        start,
        player: Player::new(options, options.timeout),
        rng: SplitMix64::new(options.seed ^ 0x5eed),
        commands: 0,
        replays: 0,
        found: Vec::new(),
        shown: start,
    };
    let mut generator = Generator::new(options.seed, options.selection);
    tell_both(options, DISABLE_THREAD)?;
    // A server that exits is a finding, too, and earlier findings must not be lost.
    if let Err(error) = run.all(&mut generator) {
        let text = format!("a server exited: {error:#}");
        run.found.push(Found { sort: String::new(), text, more: 0 });
    }
    Ok(run.report())
}

struct Run<'a> {
    options: &'a Options,
    start: Instant,
    player: Player,
    rng: SplitMix64,
    commands: u64,
    replays: u64,
    found: Vec<Found>,
    shown: Instant,
}

/// A difference, and the number of similar ones.
struct Found {
    sort: String,
    text: String,
    more: u64,
}

impl Found {
    fn reported(self) -> String {
        match self.more {
            0 => self.text,
            more => format!("{}     and {more} more of this sort\n", self.text),
        }
    }
}

impl Run<'_> {
    fn all(&mut self, generator: &mut Generator) -> Result<()> {
        self.openings(generator)?;
        let mut slow = if self.options.slow { generator.slow_sequences() } else { Vec::new() };
        while self.goes_on() {
            // Time passes once, in the middle of the run, when many items exist.
            let sequence = match self.commands * 2 >= self.options.commands {
                true => slow.pop().unwrap_or_else(|| generator.next_sequence()),
                false => generator.next_sequence(),
            };
            self.one(&sequence)?;
        }
        self.player.both_alive()
    }

    fn goes_on(&self) -> bool {
        let in_time = self.options.time_limit.is_none_or(|limit| self.start.elapsed() < limit);
        in_time
            && self.commands < self.options.commands
            && self.found.len() < self.options.differences_max
            && !self.options.stop.load(Ordering::Relaxed)
    }

    /// Plays what every run sends: the corpus, and each known difference once.
    fn openings(&mut self, generator: &mut Generator) -> Result<()> {
        let (ascii, binary) = (self.options.selection.drifts(), self.options.selection.binary());
        // One sequence per entry, so that a difference does not hide the others.
        for mut unit in corpus::units() {
            unit.conn = usize::from(unit.wire == Wire::Binary);
            let wanted = if unit.wire == Wire::Binary { binary } else { ascii };
            if wanted && self.goes_on() {
                self.one(&Sequence { number: 0, steps: vec![Step::Send(unit)] })?;
            }
        }
        self.player.both_alive()?;
        for sequence in generator.drift_sequences() {
            if ascii && self.goes_on() {
                self.one(&sequence)?;
            }
        }
        Ok(())
    }

    fn one(&mut self, sequence: &Sequence) -> Result<()> {
        let rng = self.rng.split();
        let played = self.player.play(&sequence.steps, &prefix(sequence.number), &mut rng.clone())?;
        self.commands += played.commands;
        if let Some(difference) = &played.difference {
            match self.found.iter_mut().find(|found| found.sort == difference.sort) {
                Some(found) => found.more += 1,
                None => {
                    let text = self.explain(sequence, difference, &played, &rng);
                    self.found.push(Found { sort: difference.sort.clone(), text, more: 0 });
                }
            }
            self.player.hang_up();
        }
        // Occasionally on new connections, which must make no difference.
        if self.rng.percent(10) {
            self.player.hang_up();
        }
        self.show();
        Ok(())
    }

    /// Replays the sequence with fewer and fewer commands.
    fn explain(
        &mut self,
        sequence: &Sequence,
        difference: &Difference,
        played: &PlayResult,
        rng: &SplitMix64,
    ) -> String {
        // A later command of the batch may have affected the differing one.
        let last_sent = played.transcript.last().map_or(difference.step, |(step, _)| *step);
        let upto = &sequence.steps[..=last_sent];
        let waits = upto.iter().any(|step| matches!(step, Step::Pause(_)));
        let mut last = None;
        let mut reached = true;
        let (options, replays) = (self.options, &mut self.replays);
        let mut replay = |steps: &[Step]| match play_again(options, replays, steps, rng) {
            Ok(replayed) => {
                // Accept only the same kind of difference: without its first commands a sequence may run into a known
                // difference, or into another fault.
                let sort = replayed.difference.as_ref().map(|difference| difference.sort.clone());
                let wanted = last.as_ref().map_or(&sort, |(_, _, wanted)| wanted);
                let differs = sort.is_some() && sort == *wanted;
                if differs {
                    last = Some((replayed, steps.to_vec(), sort));
                }
                differs
            }
            Err(_) => {
                reached = false;
                false
            }
        };
        // A sequence that waits takes too long to minimise.
        let tried = self.options.shrink && !waits;
        if tried && replay(upto) {
            minimise(upto, MINIMISING_BUDGET, &mut replay);
        }
        let head = format!("sequence {} of seed {}", sequence.number, self.options.seed);
        match last {
            Some((PlayResult { difference: Some(difference), transcript, .. }, steps, _)) => format!(
                "{head}, shrunk to {} commands:\n{}",
                steps.len(),
                repro::describe(&difference, &transcript, &steps),
            ),
            _ => format!(
                "{head}, {}; the last of {} commands:\n{}",
                match (tried, reached) {
                    (false, _) => "not shrunk",
                    (true, true) => "which did not differ when replayed",
                    (true, false) => "which cannot be replayed: a server exited",
                },
                played.transcript.len(),
                repro::describe(difference, tail(&played.transcript, UNMINIMISED_SHOWN_MAX), &sequence.steps),
            ),
        }
    }

    fn show(&mut self) {
        let due = self.shown.elapsed() > Duration::from_millis(300);
        if self.options.progress && due {
            self.shown = Instant::now();
            let percent = self.commands * 100 / self.options.commands.max(1);
            eprint!("\r{:>10} commands, {percent}%, {} differences", self.commands, self.found.len());
        }
    }

    fn report(self) -> Report {
        if self.options.progress {
            eprintln!();
        }
        let coverage = &self.player.coverage;
        let wanted = self.options.coverage;
        let (table, rare) = coverage.report(self.options.selection.protocols(), self.commands);
        let met = |drift: &drift::Drift| (drift.sent, coverage.drifted(drift.sent));
        let drifts: Vec<_> = match self.options.selection.drifts() {
            true => drift::TABLE.iter().map(met).collect(),
            false => Vec::new(),
        };
        let unmet =
            drifts.iter().filter(|(_, count)| *count == 0).map(|(sent, _)| repro::escape(sent.as_bytes()));
        Report {
            commands: self.commands,
            elapsed: self.start.elapsed(),
            seed: self.options.seed,
            differences: self.found.into_iter().map(Found::reported).collect(),
            table,
            rare: if wanted { rare } else { Vec::new() },
            unlisted: coverage.unlisted(),
            unmet: if wanted { unmet.collect() } else { Vec::new() },
            drifts,
        }
    }
}

/// Plays on fresh keys and new connections, after a flush.
fn play_again(options: &Options, replays: &mut u64, steps: &[Step], rng: &SplitMix64) -> Result<PlayResult> {
    tell_both(options, b"flush_all\r\n")?;
    *replays += 1;
    let mut player = Player::new(options, MINIMISING_TIMEOUT);
    player.play(steps, &prefix(REPLAYS + *replays), &mut rng.clone())
}

/// Sends a line to both servers and ignores the answers.
fn tell_both(options: &Options, line: &[u8]) -> Result<()> {
    for address in [options.servers.theirs, options.servers.ours] {
        let mut conn = Conn::open(address, MINIMISING_TIMEOUT)?;
        conn.send(line, &[]);
        collect_one(&mut conn, Shape::Line);
    }
    Ok(())
}

fn tail<T>(items: &[T], len: usize) -> &[T] {
    &items[items.len().saturating_sub(len)..]
}

/// Runs, prints the report, and fails unless the run passed.
pub fn run_and_print(options: &Options) -> Result<()> {
    let report = run(options)?;
    print!("{}", report.text());
    ensure!(report.passed(), "the servers differ, or the run did not reach all that it should");
    Ok(())
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
