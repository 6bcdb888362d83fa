//! Every command with every possible answer.
//!
//! The run fails if one of these pairs is seen less than once in a thousand commands, or if a command
//! of the table gives an answer that is not listed. Answers that only the known differences cause are
//! in `drift`.

use std::collections::HashSet;
use std::sync::OnceLock;

pub mod fixed;

/// A counted pair: a command, optionally one of its flags, and an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pair {
    /// The protocol it belongs to.
    pub protocol: Protocol,
    /// The command.
    pub command: &'static str,
    /// A requested flag, or one that the server added (`W`, `X`, `Z`).
    pub flag: Option<u8>,
    /// The answer without its variable parts.
    pub answer: &'static str,
}

impl Pair {
    /// Returns the command and its flag.
    pub fn label(&self) -> String {
        match self.flag {
            Some(flag) => format!("{} {}", self.command, flag as char),
            None => self.command.to_owned(),
        }
    }
}

/// The three protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Classic text.
    Text,
    /// Meta.
    Meta,
    /// Binary.
    Binary,
}

impl Protocol {
    /// All protocols.
    pub const ALL: [Protocol; 3] = [Protocol::Text, Protocol::Meta, Protocol::Binary];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Text => "text",
            Protocol::Meta => "meta",
            Protocol::Binary => "binary",
        }
    }
}

/// No answer; the next command's answer shows it.
pub const NOTHING: &str = "(nothing)";
/// The connection closed without an answer.
pub const CLOSED: &str = "(closed)";
/// A number.
pub const NUMBER: &str = "(number)";
/// All keys found.
pub const HIT: &str = "VALUE ... END";
/// No key found.
pub const MISS: &str = "END";
/// Some keys found, some not.
pub const BOTH: &str = "VALUE ... END, with misses";
/// A line that is not a command.
pub const UNKNOWN: &str = "unknown command";
/// A line without an end.
pub const ENDLESS: &str = "line without an end";
/// An HTTP request.
pub const HTTP: &str = "HTTP request";
/// Binary lengths that contradict each other.
pub const BAD_LEN: &str = "bad lengths";
/// A binary packet that does not start with the magic byte.
pub const BAD_MAGIC: &str = "bad magic";
/// An unknown opcode.
pub const UNKNOWN_OPCODE: &str = "unknown opcode";

const BAD_LINE: &str = "CLIENT_ERROR bad command line format";
const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk + ERROR";
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
const NO_NUMBER: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument";
const BAD_FLAG: &str = "CLIENT_ERROR invalid flag";
const FLAG_TWICE: &str = "CLIENT_ERROR duplicate flag";
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
const BAD_OPAQUE: &str = "CLIENT_ERROR opaque token too long";
const BAD_BASE64: &str = "CLIENT_ERROR error decoding key";

type Row = (&'static str, &'static [&'static str]);

static TEXT: &[Row] = &[
    ("set", &["STORED", BAD_LINE, BAD_CHUNK, TOO_LARGE]),
    ("add", &["STORED", "NOT_STORED", BAD_LINE, BAD_CHUNK, TOO_LARGE]),
    ("replace", &["STORED", "NOT_STORED", BAD_LINE, BAD_CHUNK, TOO_LARGE]),
    ("append", &["STORED", "NOT_STORED", BAD_LINE, BAD_CHUNK, TOO_LARGE]),
    ("prepend", &["STORED", "NOT_STORED", BAD_LINE, BAD_CHUNK, TOO_LARGE]),
    ("cas", &["STORED", "EXISTS", "NOT_FOUND", BAD_LINE, BAD_CHUNK, TOO_LARGE]),
    ("set noreply", &[NOTHING, "ERROR"]),
    ("add noreply", &[NOTHING, "ERROR"]),
    ("replace noreply", &[NOTHING, "ERROR"]),
    ("append noreply", &[NOTHING, "ERROR"]),
    ("prepend noreply", &[NOTHING, "ERROR"]),
    ("cas noreply", &[NOTHING, "ERROR"]),
    ("get", &[HIT, MISS, BOTH, BAD_LINE]),
    ("gets", &[HIT, MISS, BOTH, BAD_LINE]),
    ("gat", &[HIT, MISS, BOTH, BAD_LINE, BAD_EXPTIME]),
    ("gats", &[HIT, MISS, BOTH, BAD_LINE, BAD_EXPTIME]),
    ("touch", &["TOUCHED", "NOT_FOUND", BAD_LINE, BAD_EXPTIME]),
    ("incr", &[NUMBER, "NOT_FOUND", BAD_LINE, BAD_DELTA, NO_NUMBER]),
    ("decr", &[NUMBER, "NOT_FOUND", BAD_LINE, BAD_DELTA, NO_NUMBER]),
    ("delete", &["DELETED", "NOT_FOUND", BAD_LINE]),
    ("flush_all", &["OK", BAD_EXPTIME]),
    ("quit", &[CLOSED]),
    (UNKNOWN, &["ERROR"]),
    (HTTP, &[CLOSED]),
    (ENDLESS, &[CLOSED]),
    ("stats", &["STAT", "ERROR"]),
];

static META: &[Row] = &[
    (
        "mg",
        &[
            "HD",
            "VA",
            "EN",
            NOTHING,
            BAD_LINE,
            BAD_FLAG,
            FLAG_TWICE,
            BAD_TOKEN,
            BAD_OPAQUE,
            BAD_BASE64,
            "CLIENT_ERROR options flags are too long",
            "CLIENT_ERROR invalid numeric delta value",
            "CLIENT_ERROR invalid numeric initial value",
        ],
    ),
    (
        "ms",
        &[
            "HD",
            "NS",
            "EX",
            "NF",
            NOTHING,
            BAD_LINE,
            BAD_CHUNK,
            BAD_FLAG,
            FLAG_TWICE,
            BAD_TOKEN,
            BAD_OPAQUE,
            BAD_BASE64,
            TOO_LARGE,
            "CLIENT_ERROR invalid mode for ms M token",
        ],
    ),
    ("md", &["HD", "NF", "EX", NOTHING, BAD_LINE, BAD_OPAQUE]),
    (
        "ma",
        &[
            "HD",
            "VA",
            "NF",
            "EX",
            NOTHING,
            BAD_OPAQUE,
            NO_NUMBER,
            "CLIENT_ERROR invalid or duplicate flag",
            "CLIENT_ERROR invalid mode for ma M token",
        ],
    ),
    ("me", &["ME", "EN"]),
];

/// Meta commands, an answer, and the flags it is seen with.
static META_FLAGS: &[(&str, &str, &[u8])] = &[
    ("mg", "HD", b"bcfhklOqstuNRTWXZ"),
    ("mg", "VA", b"bcfhklOqstuvNRTWXZ"),
    ("mg", "EN", b"bcfhklOstuvRT"),
    ("mg", NOTHING, b"bcfhklOqstuvRT"),
    ("ms", "HD", b"bcCFIkOTM"),
    ("ms", "NS", b"bckOFIqTM"),
    ("ms", "EX", b"bcCkOFIqTM"),
    ("ms", "NF", b"bcCkOFIqTM"),
    ("ms", NOTHING, b"bcCFIkOqTM"),
    ("md", "HD", b"bCIkOT"),
    ("md", "NF", b"bCIkOqT"),
    ("md", "EX", b"bCIkOqT"),
    ("md", NOTHING, b"bCIkOqT"),
    ("ma", "HD", b"bcCDJkMNOtT"),
    ("ma", "VA", b"bcCDJkMNOtTv"),
    ("ma", "NF", b"bcCDJkMOqtTv"),
    ("ma", "EX", b"bcCDJkMNOqtTv"),
    ("ma", NOTHING, b"bcCDJkMNOqtTv"),
];

const OK: &str = status(0x00);
const NOT_FOUND: &str = status(0x01);
const EXISTS: &str = status(0x02);
const E2BIG: &str = status(0x03);
const INVALID: &str = "4 invalid arguments, closed";
const NOT_STORED: &str = status(0x05);
const NON_NUMERIC: &str = status(0x06);
const NO_COMMAND: &str = status(0x81);

static BINARY: &[Row] = &[
    ("Get", &[OK, NOT_FOUND, INVALID]),
    ("GetQ", &[OK, NOTHING, INVALID]),
    ("GetK", &[OK, NOT_FOUND, INVALID]),
    ("GetKQ", &[OK, NOTHING, INVALID]),
    ("Set", &[OK, NOT_FOUND, EXISTS, E2BIG, INVALID]),
    ("SetQ", &[NOTHING, NOT_FOUND, EXISTS, E2BIG, INVALID]),
    ("Add", &[OK, NOT_FOUND, EXISTS, E2BIG, INVALID]),
    ("AddQ", &[NOTHING, NOT_FOUND, EXISTS, E2BIG, INVALID]),
    ("Replace", &[OK, NOT_FOUND, EXISTS, E2BIG, INVALID]),
    ("ReplaceQ", &[NOTHING, NOT_FOUND, EXISTS, E2BIG, INVALID]),
    ("Append", &[OK, NOT_STORED, EXISTS, E2BIG, INVALID]),
    ("AppendQ", &[NOTHING, NOT_STORED, EXISTS, E2BIG, INVALID]),
    ("Prepend", &[OK, NOT_STORED, EXISTS, E2BIG, INVALID]),
    ("PrependQ", &[NOTHING, NOT_STORED, EXISTS, E2BIG, INVALID]),
    ("Delete", &[OK, NOT_FOUND, EXISTS, INVALID]),
    ("DeleteQ", &[NOTHING, NOT_FOUND, EXISTS, INVALID]),
    ("Increment", &[OK, NOT_FOUND, EXISTS, NON_NUMERIC, INVALID]),
    ("IncrementQ", &[NOTHING, NOT_FOUND, EXISTS, NON_NUMERIC, INVALID]),
    ("Decrement", &[OK, NOT_FOUND, EXISTS, NON_NUMERIC, INVALID]),
    ("DecrementQ", &[NOTHING, NOT_FOUND, EXISTS, NON_NUMERIC, INVALID]),
    ("Touch", &[OK, NOT_FOUND, INVALID]),
    ("GAT", &[OK, NOT_FOUND, INVALID]),
    ("GATQ", &[OK, NOTHING, INVALID]),
    ("GATK", &[OK, NOT_FOUND, INVALID]),
    ("GATKQ", &[OK, NOTHING, INVALID]),
    ("Flush", &[OK, INVALID]),
    ("FlushQ", &[NOTHING, INVALID]),
    ("Noop", &[OK, INVALID]),
    ("Version", &[OK, INVALID]),
    ("Stat", &[OK, NOT_FOUND, INVALID]),
    ("Quit", &["0 ok, closed", INVALID]),
    ("QuitQ", &[CLOSED, INVALID]),
    ("SASL list", &[NO_COMMAND, INVALID]),
    ("SASL auth", &[NO_COMMAND, INVALID]),
    ("SASL step", &[NO_COMMAND, INVALID]),
    (UNKNOWN_OPCODE, &[NO_COMMAND]),
    (BAD_LEN, &["81 unknown command, closed"]),
    (BAD_MAGIC, &[CLOSED]),
];

/// Returns the name of a binary status.
pub const fn status(status: u16) -> &'static str {
    match status {
        0x00 => "0 ok",
        0x01 => "1 not found",
        0x02 => "2 exists",
        0x03 => "3 too large",
        0x04 => "4 invalid arguments",
        0x05 => "5 not stored",
        0x06 => "6 non-numeric",
        0x20 => "20 auth failure",
        0x81 => "81 unknown command",
        0x82 => "82 out of memory",
        _ => "a status that is none",
    }
}

/// Returns whether this is a meta command, whose flags are counted.
pub fn is_meta(command: &str) -> bool {
    matches!(command, "mg" | "ms" | "md" | "ma")
}

/// Returns the table.
pub fn pairs() -> &'static [Pair] {
    static PAIRS: OnceLock<Vec<Pair>> = OnceLock::new();
    PAIRS.get_or_init(|| {
        let plain = |protocol, rows: &'static [Row]| {
            rows.iter().flat_map(move |&(command, answers)| {
                answers.iter().map(move |answer| Pair { protocol, command, flag: None, answer })
            })
        };
        let fixed = |protocol| {
            let rows = fixed::TABLE.iter().filter(move |fixed| fixed.protocol() == protocol);
            rows.map(move |fixed| Pair { protocol, command: fixed.command, flag: None, answer: fixed.answer })
        };
        let flags = META_FLAGS.iter().flat_map(|&(command, answer, flags)| {
            flags.iter().map(move |&flag| Pair {
                protocol: Protocol::Meta,
                command,
                flag: Some(flag),
                answer,
            })
        });
        let mut pairs: Vec<Pair> = plain(Protocol::Text, TEXT).chain(fixed(Protocol::Text)).collect();
        // Rows of one command are adjacent, wherever they come from.
        let mut order: Vec<&str> = Vec::new();
        for pair in &pairs {
            if !order.contains(&pair.command) {
                order.push(pair.command);
            }
        }
        pairs.sort_by_key(|pair| order.iter().position(|command| *command == pair.command));
        pairs.extend(plain(Protocol::Meta, META).chain(fixed(Protocol::Meta)).chain(flags));
        pairs.extend(plain(Protocol::Binary, BINARY));
        pairs
    })
}

/// Returns the names of the commands in the table.
pub fn commands() -> &'static HashSet<&'static str> {
    static COMMANDS: OnceLock<HashSet<&'static str>> = OnceLock::new();
    COMMANDS.get_or_init(|| pairs().iter().map(|pair| pair.command).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pair_is_listed_twice() {
        let all: HashSet<&Pair> = pairs().iter().collect();
        assert_eq!(all.len(), pairs().len());
    }

    #[test]
    fn every_protocol_has_pairs() {
        for protocol in Protocol::ALL {
            assert!(pairs().iter().filter(|pair| pair.protocol == protocol).count() > 50, "{protocol:?}");
        }
    }

    #[test]
    fn a_flag_belongs_to_an_answer_that_the_command_gives() {
        for pair in pairs().iter().filter(|pair| pair.flag.is_some()) {
            let plain = Pair { flag: None, ..*pair };
            assert!(pairs().contains(&plain), "{} -> {}", pair.label(), pair.answer);
        }
    }
}
