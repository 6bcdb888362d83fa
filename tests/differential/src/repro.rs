//! Formats a difference so that a person can read it and send it again.

use std::fmt::Write as _;

use crate::answer::{Answer, End};
use crate::play::Difference;
use crate::unit::{Step, Unit};

/// Longer commands and answers are shortened.
const SHOWN_LEN_MAX: usize = 600;

/// Minimum number of equal bytes in a row that are written as a count.
const RUN_LEN_MIN: usize = 24;

/// Escapes bytes as in a string literal, with long runs of one byte as `x{1000}`.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    let mut rest = bytes;
    while let Some(&byte) = rest.first() {
        if text.len() > SHOWN_LEN_MAX {
            let _ = write!(text, "\" ... {} bytes more", rest.len());
            return text;
        }
        let run = rest.iter().take_while(|&&other| other == byte).count();
        let shown = byte.escape_ascii();
        if run >= RUN_LEN_MIN {
            let _ = write!(text, "{shown}{{{run}}}");
            rest = &rest[run..];
        } else {
            let _ = write!(text, "{shown}");
            rest = &rest[1..];
        }
    }
    text.push('"');
    text
}

/// Returns the commands in order, then both answers.
pub fn describe(difference: &Difference, transcript: &[(usize, Vec<u8>)], steps: &[Step]) -> String {
    let mut text = String::new();
    let several = steps.iter().filter_map(Step::unit).any(|unit| unit.conn != first_conn(steps));
    for (step, sent) in transcript {
        let here = if *step == difference.step { "->" } else { "  " };
        let _ = write!(text, "  {here} sent");
        if let Some(unit) = steps.get(*step).and_then(Step::unit) {
            if several {
                let _ = write!(text, " on connection {}", unit.conn);
            }
            let _ = write!(text, "{}", note(unit));
        }
        let _ = writeln!(text, ": {}", escape(sent));
    }
    let _ = writeln!(text, "     theirs: {}", answer(&difference.theirs));
    let _ = writeln!(text, "     ours:   {}", answer(&difference.ours));
    let _ = writeln!(text, "     that is: {}", difference.why);
    text
}

fn first_conn(steps: &[Step]) -> usize {
    steps.iter().find_map(Step::unit).map_or(0, |unit| unit.conn)
}

fn note(unit: &Unit) -> String {
    match unit.request.cas_keys().next() {
        Some(_) => format!(" ({}; the CAS value is each server's own)", unit.command),
        None => format!(" ({})", unit.command),
    }
}

fn answer(answer: &Answer) -> String {
    let end = match answer.end {
        End::Complete => "",
        End::Closed => ", then closed",
        End::TimedOut => ", then nothing for too long",
        End::Malformed => ", which is no answer of this kind",
        End::Missing => ", not looked for",
    };
    format!("{}{end}", escape(&answer.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_escaped_and_runs_are_counted() {
        assert_eq!(escape(b"get a\r\n\0\xff"), r#""get a\r\n\x00\xff""#);
        assert_eq!(escape(&[b'x'; 1000]), "\"x{1000}\"");
        assert_eq!(escape(b"xxx"), "\"xxx\"");
        let many: Vec<u8> = (0..10_000u32).map(|n| b'a' + (n % 26) as u8).collect();
        assert!(escape(&many).ends_with("bytes more"));
    }
}
