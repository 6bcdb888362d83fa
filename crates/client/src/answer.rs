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
    /// Another has changed it.
    Exists,
    /// Not found.
    NotFound,
    /// All before was answered.
    NoOp,
}

impl Answer {
    /// It may be that of the request with this mark. Where nothing is found or stored there is none in it.
    pub fn is_of(&self, opaque: u32) -> bool {
        match self {
            Answer::Value(flags) | Answer::Done(flags) => flags.opaque == Some(opaque),
            Answer::NoOp => false,
            Answer::Number(_) | Answer::Miss | Answer::NotStored | Answer::Exists | Answer::NotFound => true,
        }
    }
}

/// What an answer says of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Client flags.
    pub flags: u32,
    /// CAS.
    pub cas: u64,
    /// What the request was marked with.
    pub opaque: Option<u32>,
}

/// How an answer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// That is all.
    Whole(Answer),
    /// A value of so many bytes follows.
    Value(Flags, usize),
}
