//! Pipelines of random requests, whose answers a map foretells.

use std::collections::HashMap;
use std::io::{Read, Write};

use fabcache_testbed::random::SplitMix64;

use crate::common::Client;
use crate::tier::letters;

/// Keys of a model.
const KEYS: usize = 300;

/// One request about one key.
#[derive(Clone, Debug)]
enum Op {
    Get,
    /// `mg k v`, and whether it is quiet.
    MetaGet(bool),
    Gat,
    Touch,
    /// A storage command of text, and whether it is quiet.
    Store(&'static str, Vec<u8>, bool),
    /// `ms` with a mode, and whether it is quiet.
    MetaSet(char, Vec<u8>, bool),
    Delete(bool),
    MetaDelete(bool),
    Add(u64),
}

/// A request line: its steps' answers, and what follows them.
struct Line {
    bytes: Vec<u8>,
    steps: Vec<(usize, Op)>,
    end: &'static str,
}

/// What the server should hold under keys with a prefix.
pub struct Model {
    prefix: String,
    values: HashMap<usize, Vec<u8>>,
    random: SplitMix64,
    value_bytes_max: usize,
    /// Items that were missing.
    pub lost: u64,
}

impl Model {
    pub fn new(prefix: &str, seed: u64, value_bytes_max: usize) -> Model {
        let (values, random) = (HashMap::new(), SplitMix64::new(seed));
        Model { prefix: prefix.to_owned(), values, random, value_bytes_max, lost: 0 }
    }

    fn key(&self, key: usize) -> String {
        format!("{}-{key}", self.prefix)
    }

    fn value(&mut self) -> Vec<u8> {
        let len = self.random.below(self.value_bytes_max);
        let seed = self.random.below(1 << 30);
        if self.random.percent(30) { (seed % 100_000).to_string().into_bytes() } else { letters(seed, len) }
    }

    /// Stores every key.
    pub fn store_all<S: Read + Write>(&mut self, client: &mut Client<S>) {
        for key in 0..KEYS {
            let value = self.value();
            client.say(
                [
                    format!("set {} 0 0 {} noreply\r\n", self.key(key), value.len()).as_bytes(),
                    &value,
                    b"\r\n",
                ]
                .concat(),
            );
            self.values.insert(key, value);
        }
        client.request("mn\r\n", "MN\r\n");
    }

    /// Returns requests, and remembers what they ask.
    fn lines(&mut self, count: usize) -> Vec<Line> {
        (0..count).map(|_| self.line()).collect()
    }

    fn line(&mut self) -> Line {
        if self.random.percent(10) {
            let keys: Vec<usize> = (0..1 + self.random.below(100)).map(|_| self.random.below(KEYS)).collect();
            let names: String = keys.iter().map(|key| format!(" {}", self.key(*key))).collect();
            let steps = keys.into_iter().map(|key| (key, Op::Get)).collect();
            return Line { bytes: format!("get{names}\r\n").into_bytes(), steps, end: "END\r\n" };
        }
        let key = self.random.below(KEYS);
        let (name, quiet) = (self.key(key), self.random.percent(30));
        let value = self.value();
        let [noreply, q] = if quiet { [" noreply", " q"] } else { ["", ""] };
        let stored = |head: String| [head.as_bytes(), &value, b"\r\n"].concat();
        let (bytes, op) = match self.random.below(100) {
            0..30 => (format!("get {name}\r\n").into_bytes(), Op::Get),
            30..45 => (format!("mg {name} v{q}\r\n").into_bytes(), Op::MetaGet(quiet)),
            45..48 => (format!("gat 0 {name}\r\n").into_bytes(), Op::Gat),
            48..51 => (format!("touch {name} 0\r\n").into_bytes(), Op::Touch),
            51..70 => {
                let command =
                    *self.random.pick(&["set", "set", "set", "add", "replace", "append", "prepend"]);
                let head = format!("{command} {name} 0 0 {}{noreply}\r\n", value.len());
                (stored(head), Op::Store(command, value, quiet))
            }
            70..84 => {
                let mode = *self.random.pick(&['S', 'S', 'E', 'A', 'P', 'R']);
                (stored(format!("ms {name} {} M{mode}{q}\r\n", value.len())), Op::MetaSet(mode, value, quiet))
            }
            84..90 => (format!("delete {name}{noreply}\r\n").into_bytes(), Op::Delete(quiet)),
            90..94 => (format!("md {name}{q}\r\n").into_bytes(), Op::MetaDelete(quiet)),
            _ => (format!("incr {name} 3\r\n").into_bytes(), Op::Add(3)),
        };
        let end = if matches!(op, Op::Get | Op::Gat) { "END\r\n" } else { "" };
        Line { bytes, steps: vec![(key, op)], end }
    }

    /// Compares the answers; an item that is missing counts as lost.
    #[track_caller]
    fn check(&mut self, lines: &[Line], answers: &[u8]) {
        let mut rest = answers;
        for line in lines {
            for (key, op) in &line.steps {
                let name = self.key(*key);
                let (answer, value) = step(op, &name, self.values.get(key));
                let (answer, value) = match rest.starts_with(&answer) {
                    true => (answer, value),
                    false => {
                        self.lost += 1;
                        step(op, &name, None)
                    }
                };
                let text = |bytes: &[u8]| bytes[..bytes.len().min(200)].escape_ascii().to_string();
                assert!(
                    rest.starts_with(&answer),
                    "to {} received {} instead of {}",
                    text(&line.bytes),
                    text(rest),
                    text(&answer)
                );
                rest = &rest[answer.len()..];
                match value {
                    Some(value) => _ = self.values.insert(*key, value),
                    None => _ = self.values.remove(key),
                }
            }
            let at = &rest[..rest.len().min(100)];
            let is_end = rest.starts_with(line.end.as_bytes());
            assert!(
                is_end,
                "the answer to {} goes on with {}",
                line.bytes[..line.bytes.len().min(100)].escape_ascii(),
                at.escape_ascii()
            );
            rest = &rest[line.end.len()..];
        }
        assert!(rest.is_empty(), "more answers than requests");
    }

    /// Sends a pipeline, and checks the answers.
    #[track_caller]
    pub fn run<S: Read + Write>(&mut self, client: &mut Client<S>, count: usize) {
        let lines = self.lines(count);
        let bytes: Vec<u8> = lines.iter().flat_map(|line| line.bytes.clone()).collect();
        client.say(bytes);
        client.say("mn\r\n");
        let answers = client.hear_until_noop();
        self.check(&lines, answers.strip_suffix("MN\r\n").expect("it ends so").as_bytes());
    }

    /// As [`Model::run`], one byte at a time.
    #[track_caller]
    pub fn run_slowly<S: Read + Write>(&mut self, client: &mut Client<S>, count: usize) {
        let lines = self.lines(count);
        let bytes: Vec<u8> = lines.iter().flat_map(|line| line.bytes.clone()).chain(*b"mn\r\n").collect();
        bytes.iter().for_each(|byte| client.say([*byte]));
        let answers = client.hear_until_noop();
        self.check(&lines, answers.strip_suffix("MN\r\n").expect("it ends so").as_bytes());
    }
}

/// Returns the answer, and the value afterwards.
fn step(op: &Op, name: &str, value: Option<&Vec<u8>>) -> (Vec<u8>, Option<Vec<u8>>) {
    let text =
        |value: &[u8]| [format!("VALUE {name} 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat();
    let same = value.cloned();
    let joined = |first: &[u8], second: &[u8]| Some([first, second].concat());
    match op {
        Op::Get | Op::Gat => (value.map(|value| text(value)).unwrap_or_default(), same),
        Op::MetaGet(quiet) => {
            let miss: &[u8] = if *quiet { b"" } else { b"EN\r\n" };
            let hit =
                |value: &Vec<u8>| [format!("VA {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat();
            (value.map_or(miss.to_vec(), hit), same)
        }
        Op::Touch => {
            (if value.is_some() { b"TOUCHED\r\n".to_vec() } else { b"NOT_FOUND\r\n".to_vec() }, same)
        }
        Op::Store(command, new, quiet) => {
            let stored = match (*command, value) {
                ("set", _) | ("add", None) | ("replace", Some(_)) => Some(new.clone()),
                ("append", Some(old)) => joined(old, new),
                ("prepend", Some(old)) => joined(new, old),
                _ => None,
            };
            let answer: &[u8] = if *quiet {
                b""
            } else if stored.is_some() {
                b"STORED\r\n"
            } else {
                b"NOT_STORED\r\n"
            };
            (answer.to_vec(), stored.or(same))
        }
        Op::MetaSet(mode, new, quiet) => {
            let stored = match (mode, value) {
                ('S', _) | ('E', None) | ('R', Some(_)) => Some(new.clone()),
                ('A', Some(old)) => joined(old, new),
                ('P', Some(old)) => joined(new, old),
                _ => None,
            };
            let answer: &[u8] = match (&stored, quiet) {
                (Some(_), true) => b"",
                (Some(_), false) => b"HD\r\n",
                (None, _) => b"NS\r\n",
            };
            (answer.to_vec(), stored.or(same))
        }
        Op::Delete(quiet) => {
            let answer: &[u8] = if *quiet {
                b""
            } else if value.is_some() {
                b"DELETED\r\n"
            } else {
                b"NOT_FOUND\r\n"
            };
            (answer.to_vec(), None)
        }
        Op::MetaDelete(quiet) => {
            let answer: &[u8] = match (value, quiet) {
                (None, _) => b"NF\r\n",
                (Some(_), false) => b"HD\r\n",
                (Some(_), true) => b"",
            };
            (answer.to_vec(), None)
        }
        Op::Add(delta) => match value {
            None => (b"NOT_FOUND\r\n".to_vec(), None),
            Some(value) => match std::str::from_utf8(value)
                .ok()
                .and_then(|text| text.trim_end().parse::<u64>().ok())
            {
                None => (b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n".to_vec(), same),
                Some(number) => {
                    let sum = number.wrapping_add(*delta).to_string().into_bytes();
                    let answer = [&sum[..], b"\r\n"].concat();
                    let padded = [&sum[..], &b" ".repeat(value.len().saturating_sub(sum.len()))].concat();
                    (answer, Some(padded))
                }
            },
        },
    }
}
