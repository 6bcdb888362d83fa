//! Requests and answers of the meta protocol (memcached's doc/protocol.txt).

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::answer::{Answer, Flags, Head};
use crate::bounds::VALUE_BYTES_MAX;
use crate::command::{Action, Command, Initial, Mode};
use crate::error::Failure;

/// Appends the line of a request to `out`, without its end.
pub fn write(command: &Command<'_>, out: &mut Vec<u8>) {
    let name = match command.action {
        Action::Get { .. } | Action::Touch(_) | Action::Look => "mg",
        Action::Store { .. } => "ms",
        Action::Delete => "md",
        Action::Arithmetic { .. } => "ma",
    };
    out.extend_from_slice(name.as_bytes());
    out.push(b' ');
    let is_plain = is_plain(command.key);
    if is_plain {
        out.extend_from_slice(command.key);
    } else {
        let at = out.len();
        out.resize(at + command.key.len().div_ceil(3) * 4, 0);
        STANDARD.encode_slice(command.key, &mut out[at..]).expect("four bytes for each three");
    }
    if let Action::Store { len, .. } = command.action {
        word(out, "", len);
    }
    if !is_plain {
        word(out, "b", "");
    }
    match command.action {
        Action::Get { touch } => {
            if let Some(exptime) = touch {
                word(out, "T", time(exptime));
            }
            out.extend_from_slice(b" v f c");
        }
        Action::Store { mode, exptime, flags, .. } => {
            word(out, "T", time(exptime));
            word(out, "F", flags);
            match mode {
                Mode::Set => word(out, "MS", ""),
                Mode::Add => word(out, "ME", ""),
                Mode::Replace => word(out, "MR", ""),
                Mode::Append => word(out, "MA", ""),
                Mode::Prepend => word(out, "MP", ""),
                Mode::Compare(cas) => word(out, "C", cas),
            }
        }
        Action::Touch(exptime) => word(out, "T", time(exptime)),
        Action::Delete | Action::Look => {}
        Action::Arithmetic { decrement, delta, initial } => {
            word(out, "D", delta);
            if let Some(Initial { number, exptime }) = initial {
                word(out, "N", time(exptime));
                word(out, "J", number);
            }
            word(out, if decrement { "MD" } else { "MI" }, "");
            out.extend_from_slice(b" v");
        }
    }
}

/// Appends a flag and its argument.
pub fn word(out: &mut Vec<u8>, flag: &str, given: impl std::fmt::Display) {
    write!(out, " {flag}{given}").expect("memory takes all");
}

/// Returns the time as text carries it: servers refuse one above 31 bits, or treat it as past.
pub fn time(exptime: u64) -> u64 {
    exptime.min(i32::MAX as u64)
}

/// Returns whether the key can be sent as it is, without base64: no byte could end it.
#[inline]
pub fn is_plain(key: &[u8]) -> bool {
    key.iter().fold(true, |all, byte| all & (0x21..0x7f).contains(byte))
}

/// Reads the line of an answer.
///
/// # Errors
/// The server refuses, or the line is not a valid answer.
pub fn head(line: &str) -> Result<Head, Failure> {
    refusal(line)?;
    let mut words = line.split_ascii_whitespace();
    let answer = match words.next() {
        Some("VA") => {
            let len = words.next().and_then(|len| len.parse().ok()).filter(|len| *len <= VALUE_BYTES_MAX);
            let len = len.ok_or_else(|| Failure::protocol(line.as_bytes()))?;
            return Ok(Head::Value(flags(words), len));
        }
        Some("HD") => Answer::Done(flags(words)),
        Some("EN") => Answer::Miss,
        Some("NS") => Answer::NotStored,
        Some("EX") => Answer::Exists,
        Some("NF") => Answer::NotFound,
        Some("MN") => Answer::NoOp,
        _ => return Err(Failure::protocol(line.as_bytes())),
    };
    Ok(Head::Whole(answer))
}

fn flags<'a>(words: impl Iterator<Item = &'a str>) -> Flags {
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

/// Returns the failure if the line is a refusal.
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
    fn keys_with_separators_are_sent_in_base64() {
        let line = |key, action| {
            let mut line = Vec::new();
            write(&Command { key, action }, &mut line);
            String::from_utf8(line).expect("text")
        };
        let store = Action::Store { mode: Mode::Compare(9), len: 3, exptime: 5, flags: 1 };
        assert_eq!(line(b"key", Action::Delete), "md key");
        assert_eq!(line(b"a b", Action::Get { touch: Some(7) }), "mg YSBi b T7 v f c");
        assert_eq!(line(b"a\n", store), "ms YQo= 3 b T5 F1 C9");
    }

    #[test]
    fn replies_decode_by_kind() {
        let of = |line| head(line).map_err(|failure| failure.to_string());
        let flags = Flags { flags: 7, cas: 99, opaque: Some(3) };
        assert_eq!(of("HD f7 c99 O3"), Ok(Head::Whole(Answer::Done(flags))));
        assert_eq!(of("VA 5 c99 f7 O3"), Ok(Head::Value(flags, 5)));
        assert_eq!(of("EN"), Ok(Head::Whole(Answer::Miss)));
        for (wrong, reported) in [
            ("SERVER_ERROR out of memory", "out of memory"),
            ("CLIENT_ERROR bad", "bad"),
            ("ERROR", "does not know"),
            ("VA", "invalid answer: \"VA\""),
            ("VA 99999999999", "invalid answer: \"VA"),
            ("", "invalid answer: \"\""),
        ] {
            assert!(of(wrong).expect_err(wrong).contains(reported), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_line_decodes_or_fails(line in ".{0,80}") {
            let _ = head(&line);
        }
    }
}
