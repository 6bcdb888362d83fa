//! memcached over UDP: each datagram is a request of its own.
//!
//! A datagram becomes a link that has received all its input. Datagrams are received in batches (`received.rs`). Answers
//! are kept until `flush` and go back to the sender in datagrams that fit a packet; those of a batch leave together
//! (`outbox.rs`). The eight bytes before each (request id, sequence number, number of
//! datagrams, reserved) are those of memcached's protocol.txt, "UDP protocol"; the caller encodes them (`Framing`),
//! because this crate knows no protocol.

mod link;
mod listener;
mod outbox;
mod received;

pub use link::UdpLink;
pub use listener::{UdpListener, UdpOptions};

/// How requests are extracted from datagrams, and answers framed.
#[derive(Clone, Copy, Debug)]
pub struct Framing {
    /// The request's id and where its bytes start; none if the datagram is not one to answer.
    pub open: fn(&[u8]) -> Option<(u16, usize)>,
    /// Splits the answer to a request's id into datagrams, each given to the function.
    pub seal: fn(u16, &[u8], Send<'_>),
}

/// Sends one datagram.
pub type Send<'s> = &'s mut dyn FnMut(&[u8]);
