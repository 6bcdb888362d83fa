//! Compares two answers byte for byte, except for three server-specific things: CAS values, seconds,
//! and the version.
//!
//! CAS values are compared by a one-to-one mapping that is learned within a sequence: the first pair is
//! recorded, and from then on both values must appear together. A server that changes a CAS value where
//! the other does not, or keeps one where the other changes it, is detected, although the numbers
//! differ.

use std::collections::HashMap;

use crate::answer::{Answer, End, lines, packets};
use crate::request::{Key, Prefix};
use crate::unit::{Agreement, Shape, Unit, Wire};

/// A larger number of seconds is a Unix time.
const RELATIVE_MAX_S: u64 = 30 * 24 * 60 * 60;

/// CAS values seen in one sequence.
#[derive(Debug, Default)]
pub struct CasBook {
    /// Ours is several servers: they may give keys of theirs the same values.
    is_sharded: bool,
    ours_of: HashMap<u64, u64>,
    /// By our value, and by the key if ours is several servers.
    theirs_of: HashMap<(Option<u16>, u64), u64>,
    last: HashMap<u16, (u64, u64)>,
}

impl CasBook {
    /// An empty book; `is_sharded` if ours is several servers, each with its keys.
    pub fn new(is_sharded: bool) -> Self {
        Self { is_sharded, ..Self::default() }
    }

    /// Returns the last values that the servers gave for a key: theirs, ours.
    pub fn last(&self, key: u16) -> Option<(u64, u64)> {
        self.last.get(&key).copied()
    }

    fn pair(&mut self, key: Option<&Key>, theirs: u64, ours: u64) -> Result<(), String> {
        // 0 means no CAS value.
        if (theirs, ours) == (0, 0) {
            return Ok(());
        }
        let our_place = (key.filter(|_| self.is_sharded).map(|key| key.id), ours);
        let known = (self.ours_of.get(&theirs).copied(), self.theirs_of.get(&our_place).copied());
        match known {
            (None, None) if theirs != 0 && ours != 0 => {
                self.ours_of.insert(theirs, ours);
                self.theirs_of.insert(our_place, theirs);
            }
            (Some(known_ours), Some(known_theirs)) if known_ours == ours && known_theirs == theirs => {}
            _ => {
                let stood_for = known.0.map_or("none".into(), |known| known.to_string());
                return Err(format!(
                    "CAS value {ours} where theirs is {theirs}, which stood for {stood_for} so far"
                ));
            }
        }
        if let Some(key) = key {
            self.last.insert(key.id, (theirs, ours));
        }
        Ok(())
    }
}

/// The context of a comparison besides the answers.
pub struct Comparison<'a> {
    /// CAS values of the sequence.
    pub book: &'a mut CasBook,
    /// Prefix of the sequence's keys.
    pub prefix: &'a Prefix,
    /// Maximum difference of the two clocks in seconds.
    pub slack_s: u64,
}

impl Comparison<'_> {
    /// Returns an error that describes the difference, if there is one.
    pub fn compare(&mut self, unit: &Unit, theirs: &Answer, ours: &Answer) -> Result<(), String> {
        if unit.agreement == Agreement::Survival {
            return Ok(());
        }
        if theirs.end != ours.end {
            return Err(format!("{} where theirs {}", ended(ours.end), ended(theirs.end)));
        }
        match (unit.wire, unit.agreement) {
            (Wire::Ascii, Agreement::Exact) => self.text(unit, &theirs.bytes, &ours.bytes),
            (Wire::Ascii, _) => statistics(&theirs.bytes, &ours.bytes),
            (Wire::Binary, Agreement::Exact) => self.binary(unit, &theirs.bytes, &ours.bytes),
            (Wire::Binary, _) => packet_statistics(&theirs.bytes, &ours.bytes),
        }
    }

    fn text(&mut self, unit: &Unit, theirs: &[u8], ours: &[u8]) -> Result<(), String> {
        // Values are data: only the lines that introduce an answer are parsed.
        let (mut their_rest, mut our_rest) = (theirs, ours);
        while !their_rest.is_empty() || !our_rest.is_empty() {
            let (their_line, our_line) = (first_line(their_rest), first_line(our_rest));
            self.line(unit, their_line, our_line)?;
            (their_rest, our_rest) = (&their_rest[their_line.len()..], &our_rest[our_line.len()..]);
            let data = data_len(unit.shape, their_line);
            if data > 0 {
                let (their_data, our_data) = (head(their_rest, data), head(our_rest, data));
                if their_data != our_data {
                    return Err("another value".into());
                }
                (their_rest, our_rest) = (&their_rest[their_data.len()..], &our_rest[our_data.len()..]);
            }
        }
        Ok(())
    }

    fn line(&mut self, unit: &Unit, theirs: &[u8], ours: &[u8]) -> Result<(), String> {
        let mut their_words = theirs.split(|&byte| byte == b' ');
        let mut our_words = ours.split(|&byte| byte == b' ');
        let kind = their_words.next().unwrap_or_default();
        if our_words.next().unwrap_or_default() != kind {
            return Err("another line".into());
        }
        let key = match kind {
            b"VALUE" => their_words.clone().next().and_then(|key| named(unit, self.prefix, key)),
            _ => unit.keys.first(),
        };
        for place in 1.. {
            let (their_word, our_word) = match (their_words.next(), our_words.next()) {
                (None, None) => break,
                (Some(their_word), Some(our_word)) => (bare(their_word), bare(our_word)),
                _ => return Err("another number of words".into()),
            };
            self.word(kind, place, key, their_word, our_word)?;
        }
        if theirs.len() - bare(theirs).len() != ours.len() - bare(ours).len() {
            return Err("another line end".into());
        }
        Ok(())
    }

    fn word(
        &mut self,
        kind: &[u8],
        place: usize,
        key: Option<&Key>,
        theirs: &[u8],
        ours: &[u8],
    ) -> Result<(), String> {
        let meta = matches!(kind, b"HD" | b"VA" | b"NS" | b"EX" | b"NF" | b"EN");
        match (theirs, ours) {
            ([b'c', their_cas @ ..], [b'c', our_cas @ ..]) if meta => {
                return self.cas_words(key, their_cas, our_cas);
            }
            ([flag @ (b't' | b'l'), their_s @ ..], [our_flag, our_s @ ..]) if meta && flag == our_flag => {
                return self.seconds(their_s, our_s);
            }
            ([b'l', b'a', b'=', their_s @ ..], [b'l', b'a', b'=', our_s @ ..]) if kind == b"ME" => {
                return self.seconds(their_s, our_s);
            }
            ([b'c', b'a', b's', b'=', their_cas @ ..], [b'c', b'a', b's', b'=', our_cas @ ..])
                if kind == b"ME" =>
            {
                return self.cas_words(key, their_cas, our_cas);
            }
            // Slab class and size in memory are server-specific.
            ([b'c', b'l', b's', b'=', ..], [b'c', b'l', b's', b'=', our_number @ ..])
            | ([b's', b'i', b'z', b'e', b'=', ..], [b's', b'i', b'z', b'e', b'=', our_number @ ..])
                if kind == b"ME" =>
            {
                return number(our_number).map(|_| ());
            }
            _ if kind == b"VALUE" && place == 4 => return self.cas_words(key, theirs, ours),
            _ if kind == b"VERSION" && place == 1 => return version(ours),
            _ => {}
        }
        match (theirs == ours, theirs.first()) {
            (true, _) => Ok(()),
            (false, Some(flag)) if meta => Err(format!("another {} flag", flag.escape_ascii())),
            (false, _) => Err(format!("another word {place}")),
        }
    }

    fn cas_words(&mut self, key: Option<&Key>, theirs: &[u8], ours: &[u8]) -> Result<(), String> {
        self.book.pair(key, number(theirs)?, number(ours)?)
    }

    fn seconds(&mut self, theirs: &[u8], ours: &[u8]) -> Result<(), String> {
        // "-1" is "never", and cannot match a number of seconds.
        if theirs == ours {
            return Ok(());
        }
        let (their_s, our_s) = (number(theirs)?, number(ours)?);
        // A time given as Unix time also differs by the fraction of the server's clock at its start.
        let slack_s = self.slack_s + u64::from(their_s > RELATIVE_MAX_S);
        if their_s.abs_diff(our_s) > slack_s {
            return Err(format!("{our_s} s where theirs is {their_s} s"));
        }
        Ok(())
    }

    fn binary(&mut self, unit: &Unit, theirs: &[u8], ours: &[u8]) -> Result<(), String> {
        let (their_packets, our_packets) = (packets(theirs), packets(ours));
        if their_packets.len() != our_packets.len() {
            return Err(format!("{} packets where theirs are {}", our_packets.len(), their_packets.len()));
        }
        for (their, our) in their_packets.iter().zip(&our_packets) {
            if unit.command == "Version" && their.status == 0 && our.status == 0 {
                version(our.body)?;
                continue;
            }
            if their.status != our.status {
                return Err(format!("status {:#x} where theirs is {:#x}", our.status, their.status));
            }
            if their.head != our.head {
                return Err("another header".into());
            }
            if their.body != our.body {
                return Err("another body".into());
            }
            self.book.pair(unit.keys.first(), their.cas, our.cas)?;
        }
        // Bytes after the last whole packet.
        let rest = |bytes: &[u8], whole: &[crate::answer::PacketView<'_>]| {
            bytes.len()
                - whole.iter().map(|packet| packet.body.len() + crate::answer::HEADER_LEN).sum::<usize>()
        };
        if rest(theirs, &their_packets) != rest(ours, &our_packets) {
            return Err("bytes that are not a packet".into());
        }
        Ok(())
    }
}

fn ended(end: End) -> &'static str {
    match end {
        End::Complete => "answered in full",
        End::Closed => "closed the connection",
        End::TimedOut => "never finished its answer",
        End::Malformed => "sent a malformed answer",
        End::Missing => "was not read",
    }
}

/// Returns a word without the line end.
fn bare(word: &[u8]) -> &[u8] {
    let word = word.strip_suffix(b"\n").unwrap_or(word);
    word.strip_suffix(b"\r").unwrap_or(word)
}

fn head(bytes: &[u8], len: usize) -> &[u8] {
    &bytes[..len.min(bytes.len())]
}

fn first_line(bytes: &[u8]) -> &[u8] {
    bytes.split_inclusive(|&byte| byte == b'\n').next().unwrap_or_default()
}

/// Returns the number of data bytes after a line, line end included.
fn data_len(shape: Shape, line: &[u8]) -> usize {
    let place = match line {
        [b'V', b'A', b' ', ..] if matches!(shape, Shape::Meta | Shape::UntilSentinel) => 1,
        [b'V', b'A', b'L', b'U', b'E', b' ', ..] if matches!(shape, Shape::Values | Shape::UntilSentinel) => {
            3
        }
        _ => return 0,
    };
    let word = line.trim_ascii_end().split(|&byte| byte == b' ').nth(place).unwrap_or_default();
    number(word).map_or(0, |len| len as usize + 2)
}

fn number(word: &[u8]) -> Result<u64, String> {
    let digits = !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    let parsed = digits.then(|| String::from_utf8_lossy(word).parse().ok()).flatten();
    parsed.ok_or_else(|| format!("{:?} is not a number", String::from_utf8_lossy(word)))
}

/// Checks that clients can read the version: three numbers of at most three digits, the first not 0.
fn version(word: &[u8]) -> Result<(), String> {
    let text = String::from_utf8_lossy(word);
    let numbers: Vec<Option<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
    match numbers[..] {
        [Some(major), Some(minor), Some(patch)] if major > 0 && major.max(minor).max(patch) < 256 => Ok(()),
        _ => Err(format!("{text:?} is not a version that clients can read")),
    }
}

fn named<'a>(unit: &'a Unit, prefix: &Prefix, name: &[u8]) -> Option<&'a Key> {
    let tail = name.strip_prefix(&prefix[..])?;
    unit.keys.iter().find(|key| *key.tail == *tail)
}

fn statistics(theirs: &[u8], ours: &[u8]) -> Result<(), String> {
    let last = |bytes| lines(bytes).last().unwrap_or_default().to_vec();
    if last(theirs) != last(ours) {
        return Err("another last line".into());
    }
    let count = lines(ours).count();
    for line in lines(ours).take(count.saturating_sub(1)) {
        let words = line.splitn(3, |&byte| byte == b' ').collect::<Vec<_>>();
        if words.len() < 3 || words[0] != b"STAT" || words[1].is_empty() {
            return Err(format!("{:?} is not a statistic", String::from_utf8_lossy(line)));
        }
    }
    Ok(())
}

fn packet_statistics(theirs: &[u8], ours: &[u8]) -> Result<(), String> {
    let (their_packets, our_packets) = (packets(theirs), packets(ours));
    let (Some(their_last), Some(our_last)) = (their_packets.last(), our_packets.last()) else {
        return Err("no packet".into());
    };
    if their_last != our_last {
        return Err("another last packet".into());
    }
    match our_packets.iter().all(|packet| packet.status == their_last.status) {
        true => Ok(()),
        false => Err("a statistic with an error status".into()),
    }
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
