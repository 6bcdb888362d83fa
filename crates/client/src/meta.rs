//! Requests and answers of the meta protocol (memcached's doc/protocol.txt).

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::bounds::VALUE_BYTES_MAX;
use crate::error::Failure;
use crate::input::protocol;

/// A request as it goes out.
#[derive(Debug, Default)]
pub struct Command(Vec<u8>);

impl Command {
    /// Begins with a command and its key, in base64 where it could be taken for the end of one.
    pub fn of(command: &str, key: &[u8]) -> Command {
        let mut line = Command::default();
        line.next(command, key);
        line
    }

    /// Forgets what is in it, but not the memory for it.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds another command behind those that are there.
    pub fn next(&mut self, command: &str, key: &[u8]) {
        let is_plain = key.iter().all(|byte| (0x21..0x7f).contains(byte));
        self.0.extend_from_slice(command.as_bytes());
        self.0.push(b' ');
        if is_plain {
            self.0.extend_from_slice(key);
        } else {
            let at = self.0.len();
            self.0.resize(at + key.len().div_ceil(3) * 4, 0);
            STANDARD.encode_slice(key, &mut self.0[at..]).expect("four bytes for each three");
        }
        if !is_plain {
            // Of a command with a length the flags come behind it.
            self.0.extend_from_slice(if command == "ms" { b"" } else { b" b" });
        }
    }

    /// Adds the length of a value, behind the key of `ms`.
    pub fn length(&mut self, len: usize, key: &[u8]) {
        let is_plain = key.iter().all(|byte| (0x21..0x7f).contains(byte));
        self.flag("", len);
        if !is_plain {
            self.flag("b", "");
        }
    }

    /// Adds a flag and what it is given.
    pub fn flag(&mut self, flag: &str, given: impl std::fmt::Display) {
        write!(self.0, " {flag}{given}").expect("memory takes all");
    }

    /// Adds a line that is complete.
    pub fn line(&mut self, line: &str) {
        self.0.extend_from_slice(line.as_bytes());
        self.end();
    }

    /// Ends the line.
    pub fn end(&mut self) {
        self.0.extend_from_slice(b"\r\n");
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `VA`: a value, which is kept apart.
    Value(Flags),
    /// `HD`: it was done, or is there.
    Done(Flags),
    /// `EN`: a miss.
    Miss,
    /// `NS`: not stored.
    NotStored,
    /// `EX`: another has changed it.
    Exists,
    /// `NF`: not found.
    NotFound,
    /// `MN`: all before was answered.
    NoOp,
}

impl Answer {
    /// It may be that of the request with this mark. Where nothing is found or stored there is none in it.
    pub fn is_of(&self, opaque: usize) -> bool {
        match self {
            Answer::Value(flags) | Answer::Done(flags) => flags.opaque == Some(opaque),
            Answer::NoOp => false,
            Answer::Miss | Answer::NotStored | Answer::Exists | Answer::NotFound => true,
        }
    }
}

/// The flags of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `f`: client flags.
    pub flags: u32,
    /// `c`: CAS.
    pub cas: u64,
    /// `O`: what the request was marked with.
    pub opaque: Option<usize>,
}

/// What the line of an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// That is all.
    Whole(Answer),
    /// A value of so many bytes follows.
    Value(Flags, usize),
}

impl Head {
    /// Reads a line.
    ///
    /// # Errors
    /// The server refuses, or this is no answer.
    pub fn of(line: &str) -> Result<Head, Failure> {
        refusal(line)?;
        let mut words = line.split_ascii_whitespace();
        let answer = match words.next() {
            Some("VA") => {
                let len = words.next().and_then(|len| len.parse().ok()).filter(|len| *len <= VALUE_BYTES_MAX);
                let len = len.ok_or_else(|| protocol(line.as_bytes()))?;
                return Ok(Head::Value(Flags::of(words), len));
            }
            Some("HD") => Answer::Done(Flags::of(words)),
            Some("EN") => Answer::Miss,
            Some("NS") => Answer::NotStored,
            Some("EX") => Answer::Exists,
            Some("NF") => Answer::NotFound,
            Some("MN") => Answer::NoOp,
            _ => return Err(protocol(line.as_bytes())),
        };
        Ok(Head::Whole(answer))
    }
}

impl Flags {
    fn of<'a>(words: impl Iterator<Item = &'a str>) -> Flags {
        let mut flags = Flags::default();
        for word in words {
            let (flag, given) = word.split_at_checked(1).unwrap_or((word, ""));
            match flag {
                "f" => flags.flags = given.parse().unwrap_or_default(),
                "c" => flags.cas = given.parse().unwrap_or_default(),
                "O" => flags.opaque = given.parse().ok(),
                _ => {}
            }
        }
        flags
    }
}

/// Whether a line says that the server refuses.
pub fn refusal(line: &str) -> Result<(), Failure> {
    let said = line.strip_prefix("CLIENT_ERROR ").or(line.strip_prefix("SERVER_ERROR "));
    match said {
        Some(said) => Err(Failure::Refused(said.into())),
        None if line == "ERROR" => Err(Failure::Refused("it does not know the command".into())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_that_could_end_a_word_go_in_base64() {
        let request = |command, key: &[u8]| String::from_utf8(Command::of(command, key).0).expect("text");
        assert_eq!(request("mg", b"key"), "mg key");
        assert_eq!(request("mg", b"a b"), "mg YSBi b");
        let mut store = Command::of("ms", b"a\n");
        store.length(3, b"a\n");
        store.flag("T", 5);
        store.end();
        assert_eq!(store.0, b"ms YQo= 3 b T5\r\n");
    }

    #[test]
    fn answers_are_told_apart() {
        let of = |line| Head::of(line).map_err(|failure| failure.to_string());
        let flags = Flags { flags: 7, cas: 99, opaque: Some(3) };
        assert_eq!(of("HD f7 c99 O3"), Ok(Head::Whole(Answer::Done(flags))));
        assert_eq!(of("VA 5 c99 f7 O3"), Ok(Head::Value(flags, 5)));
        assert_eq!(of("EN"), Ok(Head::Whole(Answer::Miss)));
        for (wrong, told) in [
            ("SERVER_ERROR out of memory", "out of memory"),
            ("CLIENT_ERROR bad", "bad"),
            ("ERROR", "does not know"),
            ("VA", "VA"),
            ("VA 99999999999", "VA"),
            ("", "none"),
        ] {
            assert!(of(wrong).expect_err(wrong).contains(told), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_line_is_too_odd(line in ".{0,80}") {
            let _ = Head::of(&line);
        }
    }
}
