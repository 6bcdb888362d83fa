//! Requests and answers of the classic text protocol (memcached's doc/protocol.txt): for servers older than the meta
//! protocol, and proxies that do not know it.
//!
//! Its lines neither name nor mark their request: that follows from the request and the order. Values are requested
//! with `gets` and `gats`, whose answers carry CAS and key; the key is checked.

use std::io::Write;
use std::ops::Range;

use crate::answer::{Answer, Flags};
use crate::bounds::VALUE_BYTES_MAX;
use crate::command::{Action, Command, Mode};
use crate::error::Failure;
use crate::meta::{refusal, time, word};

/// The answer that a request expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedAnswer<'a> {
    /// The value of this key.
    Value(&'a [u8]),
    /// The values of many keys, followed by an end.
    Values,
    /// The result of a change of expiration.
    Touch,
    /// The result of another change.
    Change,
}

/// A line of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A complete answer.
    Whole(Answer),
    /// A value follows.
    Value {
        /// The key that it is stored under.
        key: &'a [u8],
        /// Its other properties.
        flags: Flags,
        /// Its bytes.
        len: usize,
    },
}

/// Returns whether a line can carry the key: no byte of it ends a word.
pub fn takes(key: &[u8]) -> bool {
    key.iter().all(|byte| *byte > b' ' && *byte != 0x7f)
}

/// Appends a request's line to `out`, without its end; returns the key's range. This protocol has no initial numbers,
/// which callers emulate in steps.
pub fn write(command: &Command<'_>, out: &mut Vec<u8>) -> Range<usize> {
    let name = match command.action {
        Action::Get { touch: None } | Action::Look => "gets",
        Action::Get { touch: Some(_) } => "gats",
        Action::Store { mode, .. } => match mode {
            Mode::Set => "set",
            Mode::Add => "add",
            Mode::Replace => "replace",
            Mode::Append => "append",
            Mode::Prepend => "prepend",
            Mode::Compare(_) => "cas",
        },
        Action::Touch(_) => "touch",
        Action::Delete => "delete",
        Action::Arithmetic { decrement: false, .. } => "incr",
        Action::Arithmetic { decrement: true, .. } => "decr",
    };
    out.extend_from_slice(name.as_bytes());
    if let Action::Get { touch: Some(exptime) } = command.action {
        word(out, "", time(exptime));
    }
    out.push(b' ');
    let key = out.len()..out.len() + command.key.len();
    out.extend_from_slice(command.key);
    match command.action {
        Action::Store { mode, len, exptime, flags } => {
            write!(out, " {flags} {} {len}", time(exptime)).expect("memory takes all");
            if let Mode::Compare(cas) = mode {
                word(out, "", cas);
            }
        }
        Action::Touch(exptime) => word(out, "", time(exptime)),
        Action::Arithmetic { delta, .. } => word(out, "", delta),
        Action::Get { .. } | Action::Delete | Action::Look => {}
    }
    key
}

/// Returns the form of the request with this action.
pub fn requested(action: Action, key: &[u8]) -> ExpectedAnswer<'_> {
    match action {
        Action::Get { .. } | Action::Look => ExpectedAnswer::Value(key),
        Action::Touch(_) => ExpectedAnswer::Touch,
        Action::Store { .. } | Action::Delete | Action::Arithmetic { .. } => ExpectedAnswer::Change,
    }
}

/// Appends the line that requests the values of many keys.
pub fn write_many<'k>(keys: impl Iterator<Item = &'k [u8]>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"gets");
    for key in keys {
        out.push(b' ');
        out.extend_from_slice(key);
    }
    out.extend_from_slice(b"\r\n");
}

/// Parses a line of the answer to a request.
///
/// # Errors
/// The server refuses, or the line does not answer the request.
pub fn line<'a>(line: &'a [u8], requested: ExpectedAnswer<'_>) -> Result<Line<'a>, Failure> {
    let wrong = || Failure::protocol(line);
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let first = words.next().unwrap_or_default();
    let answer = match (first, requested) {
        (b"VALUE", ExpectedAnswer::Value(_) | ExpectedAnswer::Values) => {
            let key = words.next().ok_or_else(wrong)?;
            let flags = words.next().and_then(number).and_then(|flags| flags.try_into().ok());
            let len = words.next().and_then(number).and_then(|len| usize::try_from(len).ok());
            let cas = words.next().map_or(Some(0), number);
            let (Some(flags), Some(len), Some(cas)) = (flags, len, cas) else { return Err(wrong()) };
            let is_other = matches!(requested, ExpectedAnswer::Value(requested) if requested != key);
            if len > VALUE_BYTES_MAX || is_other || words.next().is_some() {
                return Err(wrong());
            }
            return Ok(Line::Value { key, flags: Flags { flags, cas, opaque: None }, len });
        }
        (b"END", ExpectedAnswer::Value(_)) | (b"NOT_FOUND", ExpectedAnswer::Touch) => Answer::Miss,
        (b"END", ExpectedAnswer::Values) => Answer::NoOp,
        (b"TOUCHED", ExpectedAnswer::Touch) | (b"STORED" | b"DELETED", ExpectedAnswer::Change) => {
            Answer::Done(Flags::default())
        }
        (b"NOT_STORED", ExpectedAnswer::Change) => Answer::NotStored,
        (b"EXISTS", ExpectedAnswer::Change) => Answer::Exists,
        (b"NOT_FOUND", ExpectedAnswer::Change) => Answer::NotFound,
        (digits, ExpectedAnswer::Change) if number(digits).is_some() => {
            Answer::Number(number(digits).expect("just read"))
        }
        _ => {
            refusal(&String::from_utf8_lossy(line))?;
            return Err(wrong());
        }
    };
    if words.next().is_some() {
        return Err(wrong());
    }
    Ok(Line::Whole(answer))
}

fn number(word: &[u8]) -> Option<u64> {
    // Rust also parses a sign, which the protocol does not have.
    let is_one = word.first().is_some_and(u8::is_ascii_digit);
    std::str::from_utf8(word).ok().filter(|_| is_one)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use fabcache_protocol::{Decoded, Decoder, Limits};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::meta;

    /// Returns what a server decodes a request as, printed.
    fn decoded(request: &[u8]) -> String {
        match Decoder::mixed(Limits { inline_value_max: 1 << 20 }).decode(request) {
            Decoded::Request { consumed, request: decoded } => {
                assert_eq!(consumed, request.len());
                format!("{:?}", decoded.command)
            }
            other => panic!("{other:?}"),
        }
    }

    fn modes() -> impl Strategy<Value = Mode> {
        use Mode::{Add, Append, Compare, Prepend, Replace, Set};
        let compare = any::<u64>().prop_map(Compare);
        prop_oneof![Just(Set), Just(Add), Just(Replace), Just(Append), Just(Prepend), compare]
    }

    fn asked_of() -> impl Strategy<Value = ExpectedAnswer<'static>> {
        prop::sample::select(vec![
            ExpectedAnswer::Value(b"key"),
            ExpectedAnswer::Values,
            ExpectedAnswer::Touch,
            ExpectedAnswer::Change,
        ])
    }

    proptest! {
        #[test]
        fn text_and_meta_change_values_alike(
            value in vec(any::<u8>(), 0..40),
            (mode, exptime, flags) in (modes(), 0..1u64 << 31, any::<u32>()),
            key in vec(prop_oneof![0x21..0x7fu8, 0x80..=0xffu8], 1..186),
        ) {
            let store = Action::Store { mode, len: value.len(), exptime, flags };
            for action in [store, Action::Delete] {
                let command = Command { key: &key, action };
                let (mut text, mut line) = (Vec::new(), Vec::new());
                let key_at = write(&command, &mut text);
                prop_assert_eq!(&text[key_at], &key[..]);
                meta::write(&command, &mut line);
                for request in [&mut text, &mut line] {
                    request.extend_from_slice(b"\r\n");
                    if action == store {
                        request.extend_from_slice(&value);
                        request.extend_from_slice(b"\r\n");
                    }
                }
                prop_assert_eq!(decoded(&text), decoded(&line));
            }
        }

        #[test]
        fn any_line_decodes_or_fails(odd in vec(any::<u8>(), 0..80), requested in asked_of()) {
            let _ = line(&odd, requested);
        }
    }

    #[test]
    fn requests_encode_as_lines() {
        let text = |action| {
            let mut text = Vec::new();
            write(&Command { key: b"key", action }, &mut text);
            String::from_utf8(text).expect("text")
        };
        let incr = Action::Arithmetic { decrement: false, delta: u64::MAX, initial: None };
        let decr = Action::Arithmetic { decrement: true, delta: 7, initial: None };
        let cas = Action::Store { mode: Mode::Compare(9), len: 3, exptime: 5, flags: 1 };
        for (action, line) in [
            (Action::Get { touch: None }, "gets key"),
            (Action::Look, "gets key"),
            (Action::Get { touch: Some(1 << 40) }, "gats 2147483647 key"),
            (Action::Touch(60), "touch key 60"),
            (Action::Delete, "delete key"),
            (incr, "incr key 18446744073709551615"),
            (decr, "decr key 7"),
            (cas, "cas key 1 5 3 9"),
        ] {
            assert_eq!(text(action), line);
        }
        let mut many = Vec::new();
        write_many([&b"a"[..], b"b"].into_iter(), &mut many);
        assert_eq!(many, b"gets a b\r\n");
    }

    #[test]
    fn keys_with_separators_are_rejected() {
        assert!(takes(b"!~") && takes("schl\u{fc}ssel".as_bytes()));
        for key in [&b"a b"[..], b"a\n", b"\0", b"\x7f", b"\t"] {
            assert!(!takes(key), "{key:?}");
        }
    }

    #[test]
    fn line_answers_only_its_own_request() {
        use ExpectedAnswer::{Change, Touch, Value, Values};
        let of =
            |said: &'static [u8], requested| line(said, requested).map_err(|failure| failure.to_string());
        let value = |cas| Line::Value { key: b"key", flags: Flags { flags: 7, cas, opaque: None }, len: 5 };
        let whole = |answer| Ok(Line::Whole(answer));
        assert_eq!(of(b"VALUE key 7 5 99", Value(b"key")), Ok(value(99)));
        assert_eq!(of(b"VALUE key 7 5", Values), Ok(value(0)));
        assert_eq!(of(b"END", Value(b"key")), whole(Answer::Miss));
        assert_eq!(of(b"END", Values), whole(Answer::NoOp));
        assert_eq!(of(b"NOT_FOUND", Touch), whole(Answer::Miss));
        assert_eq!(of(b"NOT_FOUND", Change), whole(Answer::NotFound));
        assert_eq!(of(b"TOUCHED", Touch), whole(Answer::Done(Flags::default())));
        assert_eq!(of(b"STORED", Change), whole(Answer::Done(Flags::default())));
        // Some servers decrement a number in place, which leaves trailing spaces.
        assert_eq!(of(b"18446744073709551615  ", Change), whole(Answer::Number(u64::MAX)));
        for (said, requested, reported) in [
            (&b"SERVER_ERROR out of memory"[..], Value(b"key"), "refused: out of memory"),
            (b"CLIENT_ERROR bad", Change, "refused: bad"),
            (b"ERROR", Touch, "does not know"),
            (b"VALUE other 7 5 99", Value(b"key"), "invalid answer: "),
            (b"VALUE key 7 5 99", Change, "invalid answer: "),
            (b"VALUE key 7 5 99 1", Values, "invalid answer: "),
            (b"VALUE key 7 99999999999", Values, "invalid answer: "),
            (b"VALUE key -1 5", Values, "invalid answer: "),
            (b"VALUE key", Values, "invalid answer: "),
            (b"STORED", Value(b"key"), "invalid answer: "),
            (b"STORED twice", Change, "invalid answer: "),
            (b"18446744073709551616", Change, "invalid answer: "),
            (b"+5", Change, "invalid answer: "),
            (b"5", Touch, "invalid answer: "),
            (b"END", Change, "invalid answer: "),
            (b"HD", Change, "invalid answer: "),
            (b"", Change, "invalid answer: "),
        ] {
            let failure = of(said, requested).expect_err("no answer");
            assert!(failure.contains(reported), "{said:?}: {failure}");
        }
    }
}
