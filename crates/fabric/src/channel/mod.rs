//! A link over a fabric: two streams of bytes, as messages and as memory that the server reads and writes.
//!
//! No I/O: a driver reports completions to the ends, and the ends return what to post. [`Terms`] are the agreed
//! parameters.
//!
//! ```text
//!             Data ─────────────────────────────────────────────────────────────> Data
//!   client    Long {at, bytes} ─> server reads staging, in order ─> Taken {total}   server
//!             Lent {place, bytes} ─> server reads there, in order ─> any message: released
//!             Put {at, bytes} <── sent when written <── server writes landing <── Room {total}
//! ```
//! - Few bytes go in messages, many at once ([`LONG_BYTES_MIN`]) through the client's memory: the server reads sent
//!   bytes from its *staging* memory, and writes received bytes to its *landing* memory. Each is a ring in chunks of at
//!   most a quarter of it, none of which wraps. A chunk is returned once all of it was consumed, together with others
//!   that make up a quarter. So there is always room for a chunk when everything that arrived was consumed: less than a
//!   quarter of the ring is unreturned, and less than a quarter is skipped at its end; of the two remaining parts the
//!   longer has at least a quarter.
//! - Bytes may also lie in *lent* memory, anywhere in the client: Lent carries the bytes before them, and their address
//!   and key. The server reads it in order like a Long; once it has consumed everything it releases the memory, which its
//!   next message reports, mostly the answer. So nothing extra is sent, and a client that receives nothing more keeps the
//!   memory unchanged until the link closes.
//! - Messages are numbered, which orders everything. A fabric may complete them in another order: early messages are
//!   kept until they are next.
//! - Each end has granted the other *credits*: the number of messages that may be in flight to it or unconsumed. Each
//!   message returns those earned meanwhile; if many were earned and nothing is sent, a message of its own does
//!   (Credits).
//!
//! Why the link cannot run out of credits for good: Data, Long, Lent and Put leave the last quarter of the credits
//! (the *reserve*) to Taken and Room, which are consumed on arrival, whatever the application does. Credits that make
//! up a reserve are returned at once, in a message that needs no credit: at most [`CREDITS_MESSAGES_MAX`] of these
//! are in flight, because each returns different credits of the same total. So an end without credits has earned more
//! than a reserve, or its peer's application does not consume.
//!
//! First the server verifies that the client receives at the address it named: it answers the first message by ProofRequest
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
//!   then, after arrived          end.let_go(): this many, in the order of lending, are the client's again
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
pub use flow_control::{Draft, SendMode, StagingRange};
pub use message::{
    HEADER_BYTES, LENT_BEFORE_MAX, LENT_HEADER_BYTES, LentMemory, MESSAGE_BYTES, PAYLOAD_BYTES_MAX,
    SHORT_BYTES, token_of,
};
pub use server::{OperationId, Read, ServerEnd};

/// Version of the messages. Both ends reject any other.
pub const CHANNEL_VERSION: u64 = 3;

/// From this many bytes on data goes through memory, if the client has some for it: copying fewer into messages takes
/// less time than the round trip of a read.
pub const LONG_BYTES_MIN: usize = 16 << 10;

/// A chunk of staging or landing memory: long enough to reach a fabric's bandwidth with a few in flight.
pub const PIECE_BYTES_MAX: usize = 256 << 10;

/// Maximum length of one lent memory: no cache needs more.
pub const LENT_BYTES_MAX: u64 = 1 << 30;

/// Maximum number of chunks of one link read at once.
pub const READS_MAX: usize = 4;

/// Credits: one to send with, and one in reserve …
pub const CREDITS_MIN: u16 = 2;
/// … and at most: more than any latency needs.
pub const CREDITS_MAX: u16 = 4096;

/// Messages beyond the credits that an end may be sent at once to return credits.
pub const CREDITS_MESSAGES_MAX: u16 = 4;

/// Minimum length of staging or landing memory, if there is any: less is not worth it …
pub const RING_BYTES_MIN: u64 = 64 << 10;
/// … and the maximum: no cache needs more.
pub const RING_BYTES_MAX: u64 = 1 << 30;

/// The agreed parameters of a link, from the view of one end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The token with which messages to this end begin: a random number.
    pub own_token: u64,
    /// The token with which messages to the peer begin.
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

/// Why terms are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// Too few or too many credits.
    #[error("an end grants from {CREDITS_MIN} to {CREDITS_MAX} credits, not {0}")]
    Credits(u16),
    /// Too little or too much memory.
    #[error(
        "staging and landing memory have none or from {RING_BYTES_MIN} to {RING_BYTES_MAX} bytes, not {0}"
    )]
    Ring(u64),
}

impl Terms {
    /// Checks the bounds above.
    ///
    /// # Errors
    /// The terms are out of bounds.
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

/// Returns the number of receive buffers for the granted credits.
pub fn receives_for(credits: u16) -> usize {
    usize::from(credits) + usize::from(CREDITS_MESSAGES_MAX)
}

/// A violation of the protocol by the other end. The link is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The message's length does not match its kind.
    #[error("the other end of the link sent a message of {0} bytes, which is invalid for its kind")]
    Length(usize),
    /// This end does not accept messages of this kind.
    #[error("the other end of the link sent a message of kind {0}, which is not for this end")]
    Kind(u8),
    /// A message was lost, repeated, or not the first.
    #[error("the other end of the link sent message {came} instead of {expected}")]
    Sequence {
        /// The number of the message.
        came: u32,
        /// The expected number.
        expected: u32,
    },
    /// The peer exceeded its credits.
    #[error("the other end of the link sent more messages than it has credits for")]
    Overrun,
    /// More credits than were spent, or fewer than a message is worth.
    #[error("the other end of the link returned {0} credits, which is impossible")]
    Credits(u16),
    /// The range exceeds the memory, or more is in flight than fits.
    #[error("the other end of the link named {bytes} bytes from {at} on, which exceeds its memory")]
    Range {
        /// The start of the range.
        at: u64,
        /// The length of the range.
        bytes: u64,
    },
    /// Less than before, or more than there was.
    #[error("the other end of the link returned {0} bytes in all, which is impossible")]
    Total(u64),
    /// More memories than were lent.
    #[error("the other end of the link released {0} memories, more than it was lent")]
    LetGo(u8),
    /// The peer returned another number than requested, or was not asked.
    #[error("the other end of the link did not prove that the endpoint it named is its own")]
    Proof,
    /// The peer had sent its last message.
    #[error("the other end of the link sent a message after its last")]
    AfterBye,
}
