//! The frame of UDP datagrams: 8 bytes before any protocol's own.
//!
//! ```text
//! 0 request id (2)   2 number of this datagram (2)   4 datagrams in all (2)   6 zero (2)
//! ```
//!
//! A request is one datagram; its first byte selects the protocol, as on a new connection. A reply consists of as
//! many datagrams as needed, each with the id of its request.

use crate::bounds::DATAGRAM_MAX;

/// Bytes of the frame.
pub const FRAME: usize = 8;

/// Bytes of a reply that fit one datagram.
pub const PAYLOAD_MAX: usize = DATAGRAM_MAX - FRAME;

/// A request datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The request id, repeated in the reply.
    pub id: u16,
    /// The request.
    pub payload: &'a [u8],
}

/// Takes a request datagram apart; none when it is too short, or a part of a request of several, which memcached
/// does not take either.
pub fn parse(datagram: &[u8]) -> Option<Frame<'_>> {
    let (frame, payload) = datagram.split_first_chunk::<FRAME>()?;
    let total = u16::from_be_bytes([frame[4], frame[5]]);
    (total == 1 && !payload.is_empty())
        .then_some(Frame { id: u16::from_be_bytes([frame[0], frame[1]]), payload })
}

/// Cuts a reply into datagrams, each a frame and a part of the reply, to be sent one after the other; none when
/// there are more than the frame can count. An empty reply has no datagrams.
pub fn split(id: u16, reply: &[u8]) -> Option<Datagrams<'_>> {
    let total = u16::try_from(reply.len().div_ceil(PAYLOAD_MAX)).ok()?;
    Some(Datagrams { id, next: 0, total, rest: reply })
}

/// The datagrams of one reply.
#[derive(Debug, Clone)]
pub struct Datagrams<'a> {
    id: u16,
    next: u16,
    total: u16,
    rest: &'a [u8],
}

impl<'a> Iterator for Datagrams<'a> {
    type Item = ([u8; FRAME], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.total {
            return None;
        }
        let mut frame = [0; FRAME];
        frame[0..2].copy_from_slice(&self.id.to_be_bytes());
        frame[2..4].copy_from_slice(&self.next.to_be_bytes());
        frame[4..6].copy_from_slice(&self.total.to_be_bytes());
        let (payload, rest) = self.rest.split_at(self.rest.len().min(PAYLOAD_MAX));
        self.next += 1;
        self.rest = rest;
        Some((frame, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_headers_parse() {
        let frame = Frame { id: 0x0102, payload: b"version\r\n" };
        assert_eq!(parse(b"\x01\x02\0\0\0\x01\0\0version\r\n"), Some(frame));
        assert_eq!(parse(b"\x01\x02\0\x07\0\x01\0\x05version\r\n"), Some(frame), "memcached looks no closer");
        for dropped in [&b""[..], b"\0\0\0\0\0\x01\0", b"\0\0\0\0\0\x01\0\0", b"\0\0\0\0\0\x02\0\0get a\r\n"]
        {
            assert_eq!(parse(dropped), None, "{dropped:?}");
        }
    }

    #[test]
    fn reply_headers_encode() {
        assert_eq!(split(1, b"").map(Iterator::count), Some(0));
        let reply = [7; PAYLOAD_MAX + 1];
        let datagrams: Vec<_> = split(0x0a0b, &reply).expect("two fit").collect();
        assert_eq!(datagrams[0], ([0x0a, 0x0b, 0, 0, 0, 2, 0, 0], &reply[1..]));
        assert_eq!(datagrams[1], ([0x0a, 0x0b, 0, 1, 0, 2, 0, 0], &reply[..1]));
        assert_eq!(datagrams.len(), 2);
        assert!(split(1, &vec![0; PAYLOAD_MAX * usize::from(u16::MAX)]).is_some());
        assert!(split(1, &vec![0; PAYLOAD_MAX * usize::from(u16::MAX) + 1]).is_none());
    }
}
