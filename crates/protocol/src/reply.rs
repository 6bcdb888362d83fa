//! Replies, before an [`Encoding`](crate::encoding::Encoding) turns them into bytes.

/// Metadata of an item for replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Item {
    /// Client flags.
    pub flags: u32,
    /// CAS value; 0 with `-C`.
    pub cas: u64,
    /// Bytes of the value.
    pub len: u64,
    /// Seconds until it expires; none for never.
    pub ttl: Option<u32>,
    /// Seconds since the last access.
    pub idle: u32,
    /// Whether it was read since it was stored.
    pub fetched: bool,
    /// Its key was given in base64 when it was stored.
    pub binary_key: bool,
    /// Marked stale.
    pub stale: bool,
    /// Whether this client won the right to recache it.
    pub won: bool,
    /// Another client has won.
    pub token_sent: bool,
}

/// What the server answers to one command. A hit with its value is not here: see
/// [`Encoding::value_head`](crate::encoding::Encoding::value_head).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reply<'a> {
    /// `Get` without the value wanted, found (`HD`); `Touch`, found (`TOUCHED`).
    Found(Item),
    /// `Get`, `Inspect`: not found (in text nothing, or `END` for the last key of a line; `EN` in meta, status 1 in
    /// binary).
    Miss,
    /// `Store`: stored. Text authentication: accepted.
    Stored(Item),
    /// `Store`: the mode's condition does not hold.
    NotStored,
    /// `Store`, `Delete`, `Arithmetic`: the CAS value differs.
    Exists,
    /// `Store` with `compare`, `Delete`, `Arithmetic`, `Touch`: no such key.
    NotFound,
    /// `Delete`: done.
    Deleted,
    /// `Arithmetic`: the new number.
    Number(u64, Item),
    /// `Inspect`: all there is to say of an item.
    Inspected {
        /// Its metadata.
        item: Item,
        /// Bytes it takes in memory.
        size: u64,
        /// Its slab class.
        class: u32,
    },
    /// `Store`: the value can never fit.
    TooLarge,
    /// Memory is full, and eviction is off.
    OutOfMemory,
    /// `Arithmetic`: the value is not a number.
    NonNumeric,
    /// `OK`: flush, verbosity and the other orders.
    Ok,
    /// `Noop`: `MN` in meta.
    Noop,
    /// The version, without the word before it.
    Version(&'a str),
    /// One statistic.
    Stat {
        /// Its name.
        name: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// The end of statistics: `END`, or an empty Stat packet.
    StatsEnd,
    /// A line of administration, without its line end. Binary Stat answers it as [`Reply::StatsEnd`]: what text
    /// confirms with a word (`RESET`, `OK`), binary confirms with the end of an empty list.
    Line(&'a [u8]),
    /// SASL: the mechanisms, or the words of success.
    Sasl(&'a [u8]),
    /// SASL continues, with this challenge.
    SaslContinue(&'a [u8]),
    /// Authentication refused, text or SASL.
    AuthFailure,
    /// The answer to Quit; text says nothing.
    Bye,
    /// The request was refused.
    Refused(crate::refusal::Refusal),
}
