//! A server's answer, whatever its encoding.

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A value, which is stored separately.
    Value(Flags),
    /// The operation succeeded, or the key exists.
    Done(Flags),
    /// The new number.
    Number(u64),
    /// A miss.
    Miss,
    /// Not stored.
    NotStored,
    /// Another client has changed the item.
    Exists,
    /// Not found.
    NotFound,
    /// All earlier requests were answered.
    NoOp,
}

impl Answer {
    /// Returns whether this can be the answer to the request with this mark. A miss or a failed store carries no mark
    /// in its answer.
    pub fn is_of(&self, opaque: u32) -> bool {
        match self {
            Answer::Value(flags) | Answer::Done(flags) => flags.opaque == Some(opaque),
            Answer::NoOp => false,
            Answer::Number(_) | Answer::Miss | Answer::NotStored | Answer::Exists | Answer::NotFound => true,
        }
    }
}

/// The metadata of an item in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Client flags.
    pub flags: u32,
    /// CAS.
    pub cas: u64,
    /// The mark of the request.
    pub opaque: Option<u32>,
}

/// The head of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// A complete answer.
    Whole(Answer),
    /// A value of this many bytes follows.
    Value(Flags, usize),
}
