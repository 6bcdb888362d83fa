//! One command, and how to find, compare and count its answer.

use std::time::Duration;

use crate::drift::Drift;
use crate::request::{Key, Request};

/// The two protocol families; a connection uses one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wire {
    /// Text and meta.
    Ascii,
    /// Binary packets.
    Binary,
}

/// How the end of an answer is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One line.
    Line,
    /// `VALUE` lines with their data, up to `END` or an error line.
    Values,
    /// One line, and the data that a `VA` line announces.
    Meta,
    /// Any lines, or none, up to the answer of an `mn` that is sent right after the command.
    UntilSentinel,
    /// `STAT` lines up to `END`, or any other single line.
    Stats,
    /// Dump lines up to `END` or an error line.
    Dump,
    /// Binary packets with the command's opaque.
    Packets,
}

/// What happens to the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It stays open.
    Open,
    /// The server closes it.
    ServerCloses,
    /// The client closes its half after sending; the server answers and closes.
    HalfOpen,
    /// The client closes after the answer, even if the server waits for more.
    HangUp,
}

/// How far the two answers must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agreement {
    /// Byte for byte, but for CAS values, seconds and the server's version.
    Exact,
    /// The same kind of answer: statistics differ in their numbers.
    Form,
    /// Any answer, but the server must stay up.
    Survival,
}

/// One command.
#[derive(Debug, Clone)]
pub struct Unit {
    /// The bytes.
    pub request: Request,
    /// The protocol family of the connection.
    pub wire: Wire,
    /// The shape of the answer.
    pub shape: Shape,
    /// The command's name in the coverage table.
    pub command: &'static str,
    /// Flags of a meta command.
    pub requested: Vec<u8>,
    /// Keys whose CAS values the answer may carry.
    pub keys: Vec<Key>,
    /// Connection of the sequence.
    pub conn: usize,
    /// Whether all earlier answers are read before it is sent.
    pub fence: bool,
    /// Whether it is sent in one write.
    pub whole: bool,
    /// Keys of items that the server may hold until the answer is written.
    ///
    /// memcached changes a number in place, padded with spaces, only if no thread holds the item; otherwise
    /// it creates a new one without padding. Which items are held depends on how the bytes arrived, so
    /// arithmetic waits for the answers.
    pub holds: Vec<u16>,
    /// The number that arithmetic changes.
    pub changes: Option<u16>,
    /// What happens to the connection.
    pub ending: Ending,
    /// Identifies the answer of a binary command.
    pub opaque: u32,
    /// How far the answers must agree.
    pub agreement: Agreement,
    /// The known difference that this command tests.
    pub drift: Option<&'static Drift>,
}

impl Unit {
    /// Returns the two commands of a known difference: its setup, and the command whose answers differ.
    pub fn of_drift(drift: &'static Drift) -> [Self; 2] {
        // Another thread answers a dump, so no command may be pipelined after it.
        let dumps = drift.sent.starts_with("lru_crawler metadump");
        let setup = Self::ascii("drift setup", Request::of(drift.setup), Shape::UntilSentinel);
        let shape = if dumps { Shape::Dump } else { Shape::UntilSentinel };
        let sent = Self::ascii("drift", Request::of(drift.sent), shape);
        let sent = if dumps { sent.ends(Ending::HangUp) } else { sent };
        [
            Self { agreement: Agreement::Survival, ..setup },
            Self { drift: Some(drift), whole: true, ..sent.fenced() },
        ]
    }

    /// Returns a text or meta command.
    pub fn ascii(command: &'static str, request: Request, shape: Shape) -> Self {
        Self {
            request,
            wire: Wire::Ascii,
            shape,
            command,
            requested: Vec::new(),
            keys: Vec::new(),
            conn: 0,
            fence: false,
            whole: false,
            holds: Vec::new(),
            changes: None,
            ending: Ending::Open,
            opaque: 0,
            agreement: Agreement::Exact,
            drift: None,
        }
    }

    /// Returns a binary command.
    pub fn binary(command: &'static str, request: Request, opaque: u32) -> Self {
        Self { wire: Wire::Binary, opaque, ..Self::ascii(command, request, Shape::Packets) }
    }

    /// Sets the keys whose CAS values the answer carries.
    #[must_use]
    pub fn keyed(mut self, key: &Key) -> Self {
        self.keys.push(key.clone());
        self
    }

    /// Marks the items of its keys as held by the server until the answer is written.
    #[must_use]
    pub fn holding(mut self) -> Self {
        self.holds = self.keys.iter().map(|key| key.id).collect();
        self
    }

    /// Requires all earlier answers to be read before it is sent.
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.fence = true;
        self
    }

    /// Sets what happens to the connection. A command that ends it is sent alone: bytes that a server
    /// leaves unread when it closes would cause a reset, which can overtake answers.
    #[must_use]
    pub fn ends(mut self, ending: Ending) -> Self {
        self.ending = ending;
        self.fence = true;
        self.whole = true;
        self
    }
}

/// A step of a sequence.
#[derive(Debug, Clone)]
pub enum Step {
    /// Send a command.
    Send(Unit),
    /// Read all answers, then let time pass.
    Pause(Duration),
}

impl Step {
    /// Returns the command, if the step is one.
    pub fn unit(&self) -> Option<&Unit> {
        match self {
            Step::Send(unit) => Some(unit),
            Step::Pause(_) => None,
        }
    }
}
