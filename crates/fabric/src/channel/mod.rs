//! A link over a fabric: two streams of bytes, as messages and as memory that the server reads and writes.
//!
//! No I/O: a driver reports completions to the ends, and the ends say what to post. [`Terms`] are the agreed
//! parameters.
//!
//! ```text
//!             Data ─────────────────────────────────────────────────────────────> Data
//!   client    Long {at, bytes} ─> server reads staging, in order ─> Taken {total}   server
//!             Lent {place, bytes} ─> server reads there, in order ─> any message: let go
//!             Put {at, bytes} <── sent when written <── server writes landing <── Room {total}
//! ```
//! - Bytes go in messages, but many at once ([`LONG_BYTES_MIN`]) through the client's memory: what it sends lies in its
//!   *staging* memory, which the server reads, and what it receives is written by the server to its *landing* memory.
//!   Either is a ring in pieces of at most a quarter of it, none of which wraps; a piece is given back when all of it was
//!   consumed, with others, as soon as they are a quarter together. So there is always room for a piece when all that came
//!   was consumed: of the ring less than a quarter is not given back, and less than a quarter is skipped at its end; of
//!   the two parts that are left the longer is a quarter at least.
//! - Bytes may also lie in *lent* memory, anywhere in the client: Lent carries the bytes before them, and names its place with
//!   its key. The server reads it in its turn like a Long; when all was consumed it lets go, which its next message says,
//!   whichever that is: mostly the answer. So nothing is sent for that, and a client that hears nothing more keeps its memory
//!   as it is until the link has ended.
//! - The order of all is that of the messages, which are numbered. A fabric may complete them in another order: what
//!   comes early is kept until its turn.
//! - Each end has given the other *credits*: so many messages may be on their way to it, or be unconsumed. Each message
//!   gives back those that were earned meanwhile; where many were and nothing goes, a message of its own does (Credits).
//!
//! Why the link cannot run out of credits for good: Data, Long, Lent and Put leave the last quarter of the credits
//! (the *reserve*) to Taken and Room, which are consumed on arrival, whatever the application does. Credits that make
//! up a reserve are returned at once, in a message that needs no credit: at most [`CREDITS_MESSAGES_MAX`] of these
//! are in flight, because each returns different credits of the same total. So an end without credits has earned more
//! than a reserve, or its peer's application does not consume.
//!
//! First the server verifies that the client receives at the address it named: it answers the first message by Ask
//! with a number, which must come back as Proof. Until then it sends nothing else, and neither reads nor writes the
//! client's memory. A client that has sent something leaves only after the proof.
//!
//! Nothing that a peer sends is trusted: any violation of these rules ends the link ([`ProtocolError`]).
//!
//! # Driving an end
//! The driver owns the fabric: it posts receives and reports completions. `B` is its buffer with a message.
//! ```text
//!   a message came               end.arrived(buffer, len)?
//!   then, and after consuming    while let Some(buffer) = end.freed()      post it as a receive again, before anything is sent
//!   then, and after sending      while let Some(draft) = end.short(&mut m) send m[..draft.bytes()], if accepted: end.sent(draft)
//!   to receive, client           end.incoming(): bytes, or a part of landing memory; end.consume(len)
//!   to receive, server           end.next_read(..), end.read_begun(..), end.read_ended(..); end.incoming(), end.consume(len)
//!   to send                      match end.next(waiting) {
//!                                    Later  => not now
//!                                    Data   => draft = end.data(parts, message); send it, if accepted: end.sent(draft)
//!                                    Piece  => client: copy to staging memory; end.staged(piece), then end.short()
//!                                              server: write to landing memory; end.put_begun(piece), and when it is
//!                                              written end.put_ended(ticket), then end.short()
//!                                }
//!   to lend, client              draft = end.lend(before, lent, message); send it, if accepted: end.sent(draft)
//!   then, after arrived          end.let_go(): so many, in the order of lending, are the client's again
//!   to leave                     end.leave(), and end.short() until end.has_said_bye()
//! ```

mod client;
pub mod doorbell;
mod flow_control;
mod message;
mod ring;
mod server;
#[cfg(test)]
mod tests;

pub use client::{ClientEnd, Incoming};
pub use flow_control::{Draft, LentMemory, SendMode, StagingRange};
pub use message::{
    HEADER_BYTES, LENT_BEFORE_MAX, LENT_HEADER_BYTES, MESSAGE_BYTES, PAYLOAD_BYTES_MAX, SHORT_BYTES, token_of,
};
pub use server::{OperationId, Read, ServerEnd};

/// Version of the messages. Either end refuses any other.
pub const CHANNEL_VERSION: u64 = 3;

/// From this many bytes on data goes through memory, if the client has some for it: for fewer, copying them into
/// messages takes less time than the round trip of a read.
pub const LONG_BYTES_MIN: usize = 16 << 10;

/// A chunk of staging or landing memory: long enough to reach a fabric's bandwidth with a few in flight.
pub const PIECE_BYTES_MAX: usize = 256 << 10;

/// Maximum length of one lent memory: no cache needs more.
pub const LENT_BYTES_MAX: u64 = 1 << 30;

/// Pieces of one link that are read at once.
pub const READS_MAX: usize = 4;

/// Credits: one to send with, and one in reserve …
pub const CREDITS_MIN: u16 = 2;
/// … up to more than any latency takes.
pub const CREDITS_MAX: u16 = 4096;

/// Messages beyond the credits that an end may be sent at once to return credits.
pub const CREDITS_MESSAGES_MAX: u16 = 4;

/// Staging or landing memory, where there is any: less is not worth it …
pub const RING_BYTES_MIN: u64 = 64 << 10;
/// … and the maximum: no cache needs more.
pub const RING_BYTES_MAX: u64 = 1 << 30;

/// The agreed parameters of a link, from the view of one end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The token with which messages to this end begin: a random number.
    pub own_token: u64,
    /// What messages to the peer begin with.
    pub peer_token: u64,
    /// Messages that the peer may have sent and this end not consumed.
    pub own_credits: u16,
    /// Messages that this end may have sent and the peer not consumed.
    pub peer_credits: u16,
    /// The length of the client's memory that the server reads; 0 if all bytes go in messages.
    pub staging_bytes: u64,
    /// The length of the client's memory that the server writes; 0 if unused.
    pub landing_bytes: u64,
}

impl std::fmt::Debug for Terms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the tokens, which would let their reader impersonate either end.
        let Terms { own_credits, peer_credits, staging_bytes, landing_bytes, .. } = self;
        write!(f, "Terms(credits {own_credits}, {peer_credits}; bytes {staging_bytes}, {landing_bytes})")
    }
}

/// Why terms cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// Too few or too many.
    #[error("an end grants from {CREDITS_MIN} to {CREDITS_MAX} credits, not {0}")]
    Credits(u16),
    /// Too little or too much.
    #[error(
        "staging and landing memory have none or from {RING_BYTES_MIN} to {RING_BYTES_MAX} bytes, not {0}"
    )]
    Ring(u64),
}

impl Terms {
    /// They keep to the bounds above.
    ///
    /// # Errors
    /// They do not.
    pub fn check(&self) -> Result<(), TermsError> {
        for credits in [self.own_credits, self.peer_credits] {
            if !(CREDITS_MIN..=CREDITS_MAX).contains(&credits) {
                return Err(TermsError::Credits(credits));
            }
        }
        for bytes in [self.staging_bytes, self.landing_bytes] {
            if bytes != 0 && !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes) {
                return Err(TermsError::Ring(bytes));
            }
        }
        Ok(())
    }
}

/// Receive buffers that an end needs for the credits that it grants.
pub fn receives_for(credits: u16) -> usize {
    usize::from(credits) + usize::from(CREDITS_MESSAGES_MAX)
}

/// A violation of the protocol by the other end. The link is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Its length is not that of a message of its kind.
    #[error("the other end of the link sent a message of {0} bytes, which none of its kind has")]
    Length(usize),
    /// Not a kind of message that this end takes.
    #[error("the other end of the link sent a message of kind {0}, which is not for this end")]
    Kind(u8),
    /// Lost, repeated, or not the first.
    #[error("the other end of the link sent message {came} where {expected} was to come")]
    Sequence {
        /// The number it came with.
        came: u32,
        /// The next one's.
        expected: u32,
    },
    /// It was given fewer.
    #[error("the other end of the link sent more messages than it has credits for")]
    Overrun,
    /// More than were spent, or fewer than a message is worth.
    #[error("the other end of the link gave back {0} credits, which cannot be")]
    Credits(u16),
    /// The range exceeds the memory, or more is in flight than fits.
    #[error("the other end of the link named {bytes} bytes from {at} on, which its memory cannot have")]
    Range {
        /// Where they are said to begin.
        at: u64,
        /// How many.
        bytes: u64,
    },
    /// Less than before, or more than there was.
    #[error("the other end of the link gave back {0} bytes in all, which cannot be")]
    Total(u64),
    /// More than it was lent.
    #[error("the other end of the link let go of {0} memories, and was not lent as many")]
    LetGo(u8),
    /// It returned another number than requested, or was not asked.
    #[error("the other end of the link did not prove that the endpoint it named is its own")]
    Proof,
    /// It had said that it leaves.
    #[error("the other end of the link sent a message behind its last")]
    AfterBye,
}
