//! Faults of a broken server, to test that the benchmark detects them.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

/// A fault of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A byte in the middle of a value is wrong: only a comparison of all bytes detects it.
    Wrong,
    /// The value of another key, of the right length.
    Foreign,
    /// The first half of a value, announced as the whole.
    Truncated,
    /// No response.
    Dropped,
    /// The response follows the next one.
    Swapped,
    /// Half of the response, then the connection is closed.
    Closed,
}

/// A fault in one of every so many responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of fault.
    pub kind: Kind,
    /// The fault affects responses to sets, not to gets.
    pub of_sets: bool,
    /// The last of this many responses has the fault.
    pub every: u64,
}

/// The prefix of faults in responses to sets.
const OF_SETS: &str = "set-";

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 6] =
        [Kind::Wrong, Kind::Foreign, Kind::Truncated, Kind::Dropped, Kind::Swapped, Kind::Closed];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Wrong => "wrong",
            Kind::Foreign => "foreign",
            Kind::Truncated => "truncated",
            Kind::Dropped => "dropped",
            Kind::Swapped => "swapped",
            Kind::Closed => "closed",
        }
    }

    /// Returns whether the value is wrong, rather than the response as a whole.
    pub fn is_of_values(self) -> bool {
        matches!(self, Kind::Wrong | Kind::Foreign | Kind::Truncated)
    }
}

impl FromStr for Fault {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Fault> {
        let encoding = "a fault is KIND@EVERY, as in wrong@100";
        let (name, every) = text.split_once('@').with_context(|| format!("{text:?}: {encoding}"))?;
        let every = every.parse().ok().filter(|every| *every > 0);
        let every = every.with_context(|| format!("{text:?}: {encoding}, EVERY at least 1"))?;
        let (of_sets, plain) = name.strip_prefix(OF_SETS).map_or((false, name), |plain| (true, plain));
        let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.name() == plain) else {
            let names = Kind::ALL.map(Kind::name).join(", ");
            bail!(
                "unknown fault {name:?}; the faults are {names}, and the last three with the prefix {OF_SETS}"
            );
        };
        ensure!(!of_sets || !kind.is_of_values(), "{text:?}: an answer to a set has no value");
        Ok(Fault { kind, of_sets, every })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.of_sets { OF_SETS } else { "" };
        write!(f, "{prefix}{}@{}", self.kind.name(), self.every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_written() {
        for text in ["wrong@1", "foreign@20", "truncated@3", "dropped@7", "set-swapped@100", "set-closed@2"] {
            assert_eq!(text.parse::<Fault>().expect(text).to_string(), text);
        }
        for (text, culprit) in [
            ("wrong", "KIND@EVERY"),
            ("wrong@0", "at least 1"),
            ("odd@1", "foreign, truncated"),
            ("set-wrong@1", "no value"),
        ] {
            let error = text.parse::<Fault>().expect_err(text).to_string();
            assert!(
                error.contains(culprit) && error.contains(text.split('@').next().unwrap_or(text)),
                "{error}"
            );
        }
    }
}
