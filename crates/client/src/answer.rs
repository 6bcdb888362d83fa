//! What a server answers, whatever form it has.

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A value, which is kept apart.
    Value(Flags),
    /// It was done, or is there.
    Done(Flags),
    /// A number, which was changed to this.
    Number(u64),
    /// A miss.
    Miss,
    /// Not stored.
    NotStored,
    /// Another client has changed the item.
    Exists,
    /// Not found.
    NotFound,
    /// All before was answered.
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

/// How an answer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// That is all.
    Whole(Answer),
    /// A value of this many bytes follows.
    Value(Flags, usize),
}
