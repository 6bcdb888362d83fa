//! Counts the answers seen for each command.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use crate::answer::{Answer, End, lines, packets};
use crate::table::{self, Pair, Protocol};
use crate::unit::{Shape, Unit, Wire};

/// Each pair must be seen once in this many commands.
const COMMANDS_PER_PAIR: u64 = 1000;

/// Runs of this size and above must meet that; smaller ones have a tolerance for chance.
const FULL_RUN: u64 = 1_000_000;

/// No flag: the command itself.
const PLAIN: u8 = 0;

/// Counts of (command, flag, answer).
#[derive(Debug, Default, Clone)]
pub struct Coverage {
    counts: HashMap<(&'static str, u8), HashMap<String, u64>>,
    drifts: HashMap<&'static str, u64>,
}

impl Coverage {
    /// Counts an answer of theirs.
    pub fn count(&mut self, unit: &Unit, answer: &Answer) {
        if let Some(drift) = unit.drift {
            *self.drifts.entry(drift.sent).or_default() += 1;
            return;
        }
        let kind = kind(unit, answer);
        for &flag in &unit.requested {
            self.add(unit.command, flag, &kind);
        }
        // The flags that a server adds on its own.
        if table::is_meta(unit.command) {
            for word in lines(&answer.bytes).next().unwrap_or_default().split(|&byte| byte == b' ').skip(1) {
                if let [flag @ (b'W' | b'X' | b'Z')] = *word {
                    self.add(unit.command, flag, &kind);
                }
            }
        }
        self.add(unit.command, PLAIN, &kind);
    }

    fn add(&mut self, command: &'static str, flag: u8, kind: &str) {
        let answers = self.counts.entry((command, flag)).or_default();
        match answers.get_mut(kind) {
            Some(count) => *count += 1,
            None => {
                answers.insert(kind.to_owned(), 1);
            }
        }
    }

    /// Returns how often this answer was seen.
    pub fn seen(&self, pair: &Pair) -> u64 {
        let answers = self.counts.get(&(pair.command, pair.flag.unwrap_or(PLAIN)));
        answers.and_then(|answers| answers.get(pair.answer)).copied().unwrap_or(0)
    }

    /// Returns how often this known difference was seen.
    pub fn drifted(&self, sent: &str) -> u64 {
        self.drifts.get(sent).copied().unwrap_or(0)
    }

    /// Returns the answers that the table lacks.
    pub fn unlisted(&self) -> Vec<String> {
        let mut unlisted = BTreeMap::new();
        for (&(command, flag), answers) in &self.counts {
            // The corpus and the setups have other names; flags are counted only where the table lists them.
            if flag != PLAIN || !table::commands().contains(command) {
                continue;
            }
            for (answer, &count) in answers {
                let listed = table::pairs()
                    .iter()
                    .any(|p| p.command == command && p.flag.is_none() && p.answer == answer);
                if !listed {
                    unlisted.insert(format!("{command} -> {answer}"), count);
                }
            }
        }
        unlisted.into_iter().map(|(pair, count)| format!("{pair} ({count})")).collect()
    }

    /// Returns the table with its counts, and the pairs of these protocols that were seen too rarely.
    pub fn report(&self, protocols: &[Protocol], commands: u64) -> (String, Vec<String>) {
        let need = needed(commands);
        let mut text = String::new();
        let mut short = Vec::new();
        let mut last = None;
        for pair in table::pairs().iter().filter(|pair| protocols.contains(&pair.protocol)) {
            let seen = self.seen(pair);
            if last != Some((pair.command, pair.flag)) {
                let _ = write!(text, "{}{:<7} {}", newline(&text), pair.protocol.name(), pair.label());
            }
            last = Some((pair.command, pair.flag));
            let mark = if seen < need { "  TOO FEW" } else { "" };
            let _ = write!(text, "\n{seen:>10}  {}{mark}", pair.answer);
            if seen < need {
                short.push(format!("{} -> {}: {seen} of {need}", pair.label(), pair.answer));
            }
        }
        text.push('\n');
        (text, short)
    }
}

/// Returns how often each pair must be seen: in a small run its share less three standard deviations.
fn needed(commands: u64) -> u64 {
    let share = commands / COMMANDS_PER_PAIR;
    if commands >= FULL_RUN { share } else { share.saturating_sub(3 * share.isqrt()) }
}

fn newline(text: &str) -> &'static str {
    if text.is_empty() { "" } else { "\n" }
}

/// Returns the answer without its variable parts.
pub fn kind(unit: &Unit, answer: &Answer) -> String {
    let closed = answer.end == End::Closed;
    let kind = match (unit.wire, unit.shape) {
        (Wire::Binary, _) => packet_kind(&answer.bytes),
        (_, Shape::Values) => values_kind(unit, &answer.bytes),
        (_, Shape::Stats) => stats_kind(&answer.bytes),
        _ if table::is_meta(unit.command) => meta_kind(&answer.bytes),
        _ => lines(&answer.bytes).map(line_kind).collect::<Vec<_>>().join(" + "),
    };
    match (kind.is_empty(), closed) {
        (true, false) => table::NOTHING.to_owned(),
        (true, true) => table::CLOSED.to_owned(),
        (false, true) => format!("{kind}, closed"),
        (false, false) => kind,
    }
}

fn line_kind(line: &[u8]) -> String {
    match line {
        [b'0'..=b'9', ..] if line.iter().all(u8::is_ascii_digit) => table::NUMBER.to_owned(),
        [b'V', b'E', b'R', b'S', b'I', b'O', b'N', b' ', ..] => "VERSION".to_owned(),
        [b'M', b'E', b' ', ..] => "ME".to_owned(),
        _ => String::from_utf8_lossy(line).into_owned(),
    }
}

fn values_kind(unit: &Unit, bytes: &[u8]) -> String {
    // Values may contain anything, so only the last line tells whether there are values.
    let last = lines(bytes).last().unwrap_or_default();
    if last != b"END" {
        return line_kind(last);
    }
    let hits = value_lines(bytes);
    match hits {
        0 => table::MISS.to_owned(),
        _ if hits < unit.keys.len() => table::BOTH.to_owned(),
        _ => table::HIT.to_owned(),
    }
}

fn value_lines(mut bytes: &[u8]) -> usize {
    let mut hits = 0;
    while bytes.starts_with(b"VALUE ") {
        hits += 1;
        let line = lines(bytes).next().unwrap_or_default();
        let len = line.split(|&byte| byte == b' ').nth(3).unwrap_or_default();
        let len: usize = String::from_utf8_lossy(len).parse().unwrap_or(0);
        bytes = bytes.get(line.len() + 2 + len + 2..).unwrap_or_default();
    }
    hits
}

fn stats_kind(bytes: &[u8]) -> String {
    match lines(bytes).next().unwrap_or_default() {
        [b'S', b'T', b'A', b'T', b' ', ..] => "STAT".to_owned(),
        line => line_kind(line),
    }
}

fn meta_kind(bytes: &[u8]) -> String {
    let first = lines(bytes).next().unwrap_or_default();
    match first.split(|&byte| byte == b' ').next().unwrap_or_default() {
        code @ (b"HD" | b"VA" | b"EN" | b"NF" | b"NS" | b"EX" | b"MN") => {
            String::from_utf8_lossy(code).into_owned()
        }
        // After a bad data chunk the rest of the data is parsed as commands.
        _ => lines(bytes).map(line_kind).collect::<Vec<_>>().join(" + "),
    }
}

fn packet_kind(bytes: &[u8]) -> String {
    packets(bytes).first().map(|packet| table::status(packet.status).to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::tests::packet;
    use crate::request::{Key, Request};

    fn reported(unit: &Unit, bytes: &[u8], end: End) -> String {
        kind(unit, &Answer { bytes: bytes.to_vec(), end })
    }

    fn text(command: &'static str, shape: Shape) -> Unit {
        Unit::ascii(command, Request::default(), shape)
    }

    #[test]
    fn text_answers_lose_their_variable_parts() {
        let line = text("incr", Shape::Line);
        assert_eq!(reported(&line, b"18\r\n", End::Complete), table::NUMBER);
        assert_eq!(reported(&line, b"VERSION 1.6.18\r\n", End::Complete), "VERSION");
        assert_eq!(reported(&line, b"", End::Closed), table::CLOSED);
        let silent = text("set noreply", Shape::UntilSentinel);
        assert_eq!(reported(&silent, b"", End::Complete), table::NOTHING);
        let two = reported(&silent, b"CLIENT_ERROR bad data chunk\r\nERROR\r\n", End::Complete);
        assert_eq!(two, "CLIENT_ERROR bad data chunk + ERROR");
    }

    #[test]
    fn hits_are_counted_past_values_that_look_like_answers() {
        let key = |id| Key { id, tail: [].into() };
        let get = text("get", Shape::Values).keyed(&key(0)).keyed(&key(1));
        assert_eq!(reported(&get, b"END\r\n", End::Complete), table::MISS);
        let one = b"VALUE a 0 14\r\nVALUE b 0 1\r\nx\r\nEND\r\n";
        assert_eq!(reported(&get, one, End::Complete), table::BOTH);
        let two = b"VALUE a 0 1\r\nx\r\nVALUE b 0 1\r\nx\r\nEND\r\n";
        assert_eq!(reported(&get, two, End::Complete), table::HIT);
        assert_eq!(reported(&get, b"CLIENT_ERROR x\r\n", End::Complete), "CLIENT_ERROR x");
    }

    #[test]
    fn meta_answers_are_codes_and_flags() {
        let mut coverage = Coverage::default();
        let unit = Unit { requested: b"tk".to_vec(), ..text("mg", Shape::Meta) };
        let answer = Answer { bytes: b"HD t-1 kx W\r\n".to_vec(), end: End::Complete };
        coverage.count(&unit, &answer);
        for flag in [None, Some(b't'), Some(b'k'), Some(b'W')] {
            let pair = Pair { protocol: Protocol::Meta, command: "mg", flag, answer: "HD" };
            assert_eq!(coverage.seen(&pair), 1, "{flag:?}");
        }
        assert_eq!(reported(&unit, b"VA 2 s2\r\nxy\r\n", End::Complete), "VA");
        assert_eq!(reported(&unit, b"EN\r\n", End::Complete), "EN");
        assert_eq!(reported(&unit, b"EN k\r\n", End::Complete), "EN");
        assert_eq!(
            reported(&unit, b"CLIENT_ERROR invalid flag\r\n", End::Complete),
            "CLIENT_ERROR invalid flag"
        );
    }

    #[test]
    fn packets_are_counted_by_status() {
        let unit = Unit::binary("Get", Request::default(), 1);
        assert_eq!(reported(&unit, &packet(0, 1, 1, 0, b"x"), End::Complete), table::status(1));
        assert_eq!(reported(&unit, b"", End::Complete), table::NOTHING);
        let closed = format!("{}, closed", table::status(4));
        assert_eq!(reported(&unit, &packet(0, 4, 1, 0, b"x"), End::Closed), closed);
    }

    #[test]
    fn a_rare_pair_fails_the_report() {
        let coverage = Coverage::default();
        let (text, short) = coverage.report(&[Protocol::Binary], 2_000_000);
        assert!(text.contains("TOO FEW"));
        assert!(short.iter().any(|line| line.ends_with("0 of 2000")));
        assert_eq!(short.len(), table::pairs().iter().filter(|p| p.protocol == Protocol::Binary).count());
    }

    #[test]
    fn small_runs_need_less() {
        assert_eq!(needed(1_000_000), 1000);
        assert_eq!(needed(100_000), 70);
        assert_eq!(needed(5_000), 0);
    }

    #[test]
    fn an_unlisted_answer_is_reported() {
        let mut coverage = Coverage::default();
        let answer = Answer { bytes: b"SURPRISE\r\n".to_vec(), end: End::Complete };
        coverage.count(&text("set", Shape::Line), &answer);
        coverage.count(&text("drift setup", Shape::Line), &answer);
        assert_eq!(coverage.unlisted(), ["set -> SURPRISE (1)"]);
    }
}
