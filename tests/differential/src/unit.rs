//! One command as it is sent, and all that is needed to find, compare and count its answer.

use std::time::Duration;

use crate::drift::Drift;
use crate::request::{Key, Request};

/// The two families of bytes; a connection speaks one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wire {
    /// Text and meta.
    Ascii,
    /// Binary packets.
    Binary,
}

/// How the end of an answer is found in the stream.
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

/// What becomes of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It stays.
    Open,
    /// The server closes it.
    ServerCloses,
    /// The client closes its half after sending; the server answers and closes.
    HalfOpen,
    /// The client closes as soon as it has the answer, whatever the server still waits for.
    HangUp,
}

/// How far the two answers must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agreement {
    /// Byte for byte, but for CAS values, seconds and the server's version.
    Exact,
    /// Both answer the same kind of thing: statistics differ in their numbers.
    Form,
    /// No server need give any particular answer, but it must live on.
    Survival,
}

/// One command.
#[derive(Debug, Clone)]
pub struct Unit {
    /// The bytes.
    pub request: Request,
    /// What the connection speaks.
    pub wire: Wire,
    /// How the answer ends.
    pub shape: Shape,
    /// The command's name in the coverage table.
    pub command: &'static str,
    /// Flags of a meta command.
    pub asked: Vec<u8>,
    /// Keys whose CAS values the answer may carry.
    pub keys: Vec<Key>,
    /// Connection of the sequence.
    pub conn: usize,
    /// All earlier answers are read before it is sent.
    pub fence: bool,
    /// Sent in one write.
    pub whole: bool,
    /// Keys of items that the server may hold until the answer is written.
    ///
    /// memcached changes a number in place, padded with spaces, only if nobody holds the item; else it makes
    /// a new one without padding. What is held depends on how the bytes arrived, so arithmetic waits for the
    /// answers.
    pub holds: Vec<u16>,
    /// The number that arithmetic changes.
    pub changes: Option<u16>,
    /// What becomes of the connection.
    pub ending: Ending,
    /// Identifies the answer of a binary command.
    pub opaque: u32,
    /// How far the answers must agree.
    pub agreement: Agreement,
    /// The known difference that this is.
    pub drift: Option<&'static Drift>,
}

impl Unit {
    /// The two commands of a known difference: its setup, and the command whose answers differ.
    pub fn of_drift(drift: &'static Drift) -> [Self; 2] {
        // A dump is answered by another thread, past which nothing may be pipelined.
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

    /// A text or meta command.
    pub fn ascii(command: &'static str, request: Request, shape: Shape) -> Self {
        Self {
            request,
            wire: Wire::Ascii,
            shape,
            command,
            asked: Vec::new(),
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

    /// A binary command.
    pub fn binary(command: &'static str, request: Request, opaque: u32) -> Self {
        Self { wire: Wire::Binary, opaque, ..Self::ascii(command, request, Shape::Packets) }
    }

    /// Sets the keys whose CAS values the answer carries.
    #[must_use]
    pub fn keyed(mut self, key: &Key) -> Self {
        self.keys.push(key.clone());
        self
    }

    /// The server may hold the items of its keys until the answer is written.
    #[must_use]
    pub fn holding(mut self) -> Self {
        self.holds = self.keys.iter().map(|key| key.id).collect();
        self
    }

    /// All earlier answers are read before it is sent.
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.fence = true;
        self
    }

    /// Sets what becomes of the connection. A command that ends it is sent alone: bytes that a server leaves
    /// unread when it closes would turn into a reset, which can overtake answers.
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
    /// The command, if it is one.
    pub fn unit(&self) -> Option<&Unit> {
        match self {
            Step::Send(unit) => Some(unit),
            Step::Pause(_) => None,
        }
    }
}
