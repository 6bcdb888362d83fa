//! The encoding of messages, little endian.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0–7 | the token of the receiving end |
//! | 8 | kind |
//! | 9 | lent memories released since the last message; 0 from a client |
//! | 10–11 | credits returned |
//! | 12–15 | number of the message in its direction, from 0, modulo 2^32 |
//! | 16– | Data: bytes of the stream; Long, Put: offset and length, 8 bytes each; Taken, Room: a total of 8 bytes; ProofRequest, Proof: a number of 8 bytes; Lent: address, key, length, 8 bytes each, and bytes of the stream |

use std::ops::Range;

use super::ProtocolError;

/// Maximum bytes of a message.
pub const MESSAGE_BYTES: usize = 8192;
/// Bytes of a message's header.
pub const HEADER_BYTES: usize = 16;
/// Maximum bytes of the stream in a message.
pub const PAYLOAD_BYTES_MAX: usize = MESSAGE_BYTES - HEADER_BYTES;
/// Bytes before those of the stream in a message that lends memory.
pub const LENT_HEADER_BYTES: usize = HEADER_BYTES + 24;
/// Maximum number of bytes of the stream in such a message.
pub const LENT_BEFORE_MAX: usize = MESSAGE_BYTES - LENT_HEADER_BYTES;
/// Maximum bytes of a message without bytes of the stream.
pub const SHORT_BYTES: usize = HEADER_BYTES + 16;

/// Memory of the client's that the server may read until it lets go of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LentMemory {
    /// The address of its first byte, as the provider names it.
    pub address: u64,
    /// What allows to read it.
    pub key: u64,
    /// Its bytes.
    pub bytes: u64,
}

impl std::fmt::Debug for LentMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the key, which would let a reader of the log access the memory.
        write!(f, "LentMemory({} bytes)", self.bytes)
    }
}

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Data = 1,
    Long = 2,
    Taken = 3,
    Put = 4,
    Room = 5,
    Credits = 6,
    Bye = 7,
    ProofRequest = 8,
    Proof = 9,
    LentMemory = 10,
}

const KINDS: [Kind; 10] = [
    Kind::Data,
    Kind::Long,
    Kind::Taken,
    Kind::Put,
    Kind::Room,
    Kind::Credits,
    Kind::Bye,
    Kind::ProofRequest,
    Kind::Proof,
    Kind::LentMemory,
];

/// The contents of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// Bytes of the stream: their range in the message.
    Data(Range<usize>),
    /// Bytes of the stream lie in staging memory.
    Long { at: u64, bytes: u64 },
    /// The total of staged bytes that were consumed.
    Taken(u64),
    /// Bytes of the stream lie in landing memory.
    Put { at: u64, bytes: u64 },
    /// The total of landed bytes that were consumed.
    Room(u64),
    /// Only a header.
    Credits,
    /// The last message.
    Bye,
    /// The client must return this number, which only the receiver at its endpoint knows.
    ProofRequest(u64),
    /// The number.
    Proof(u64),
    /// Bytes of the stream: those at `before` in the message, followed by those in other memory of the client.
    LentMemory { lent: LentMemory, before: Range<usize> },
}

impl Body {
    pub fn kind(&self) -> Kind {
        match self {
            Body::Data(_) => Kind::Data,
            Body::Long { .. } => Kind::Long,
            Body::Taken(_) => Kind::Taken,
            Body::Put { .. } => Kind::Put,
            Body::Room(_) => Kind::Room,
            Body::Credits => Kind::Credits,
            Body::Bye => Kind::Bye,
            Body::ProofRequest(_) => Kind::ProofRequest,
            Body::Proof(_) => Kind::Proof,
            Body::LentMemory { .. } => Kind::LentMemory,
        }
    }
}

/// A message without its token, which is checked earlier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub credits: u16,
    /// Memories lent to the sender that it has released.
    pub let_go: u8,
    pub sequence: u32,
    pub body: Body,
}

/// What every message gives back to its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acknowledgement {
    pub credits: u16,
    /// Memories lent to the sender that it has released.
    pub let_go: u8,
}

/// The token that a message begins with; none if it is too short for one.
pub fn token_of(message: &[u8]) -> Option<u64> {
    word(message, 0)
}

fn word(message: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(message.get(at..at + 8)?.try_into().ok()?))
}

/// Parses a message.
pub(super) fn read(message: &[u8]) -> Result<Message, ProtocolError> {
    let length = ProtocolError::Length(message.len());
    let header: &[u8; HEADER_BYTES] = message.first_chunk().ok_or(length)?;
    if message.len() > MESSAGE_BYTES {
        return Err(length);
    }
    let kind =
        KINDS.into_iter().find(|kind| *kind as u8 == header[8]).ok_or(ProtocolError::Kind(header[8]))?;
    let let_go = header[9];
    let credits = u16::from_le_bytes([header[10], header[11]]);
    let sequence = u32::from_le_bytes([header[12], header[13], header[14], header[15]]);
    let numbers = || [16, 24, 32].map(|at| word(message, at).unwrap_or(0));
    let carried = message.len() - HEADER_BYTES;
    let (body, is_right) = match kind {
        Kind::Data => (Body::Data(HEADER_BYTES..message.len()), carried > 0),
        Kind::Long => {
            let [at, bytes, _] = numbers();
            (Body::Long { at, bytes }, carried == 16)
        }
        Kind::Put => {
            let [at, bytes, _] = numbers();
            (Body::Put { at, bytes }, carried == 16)
        }
        Kind::Taken => (Body::Taken(numbers()[0]), carried == 8),
        Kind::Room => (Body::Room(numbers()[0]), carried == 8),
        Kind::ProofRequest => (Body::ProofRequest(numbers()[0]), carried == 8),
        Kind::Proof => (Body::Proof(numbers()[0]), carried == 8),
        Kind::LentMemory => {
            let [address, key, bytes] = numbers();
            let is_whole = message.len() >= LENT_HEADER_BYTES;
            let lent = LentMemory { address, key, bytes };
            (Body::LentMemory { lent, before: LENT_HEADER_BYTES..message.len() }, is_whole)
        }
        Kind::Credits => (Body::Credits, carried == 0),
        Kind::Bye => (Body::Bye, carried == 0),
    };
    if is_right { Ok(Message { credits, let_go, sequence, body }) } else { Err(length) }
}

/// Writes the header of a message.
pub(super) fn write_header(
    into: &mut [u8],
    token: u64,
    kind: Kind,
    acknowledgement: Acknowledgement,
    sequence: u32,
) {
    let Acknowledgement { credits, let_go } = acknowledgement;
    into[..8].copy_from_slice(&token.to_le_bytes());
    into[8..10].copy_from_slice(&[kind as u8, let_go]);
    into[10..12].copy_from_slice(&credits.to_le_bytes());
    into[12..16].copy_from_slice(&sequence.to_le_bytes());
}

/// Writes the contents of a message without bytes of the stream; returns its end.
pub(super) fn write_body(into: &mut [u8; SHORT_BYTES], body: &Body) -> usize {
    let numbers: &[u64] = match body {
        Body::Long { at, bytes } | Body::Put { at, bytes } => &[*at, *bytes],
        Body::Taken(number) | Body::Room(number) | Body::ProofRequest(number) | Body::Proof(number) => {
            &[*number]
        }
        // Messages with bytes of the stream are written elsewhere.
        Body::Data(_) | Body::LentMemory { .. } | Body::Credits | Body::Bye => &[],
    };
    for (into, number) in into[HEADER_BYTES..].chunks_mut(8).zip(numbers) {
        into.copy_from_slice(&number.to_le_bytes());
    }
    HEADER_BYTES + 8 * numbers.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_messages_round_trip() {
        let bodies = [
            Body::Long { at: 5, bytes: u64::MAX },
            Body::Taken(1 << 40),
            Body::Put { at: u64::MAX, bytes: 1 },
            Body::Room(0),
            Body::ProofRequest(7 << 60),
            Body::Proof(9 << 60),
            Body::Credits,
            Body::Bye,
        ];
        for body in bodies {
            let mut bytes = [0xee; SHORT_BYTES];
            let given_back = Acknowledgement { credits: 300, let_go: 9 };
            write_header(&mut bytes, 0x0102_0304_0506_0708, body.kind(), given_back, 0xfffe_fdfc);
            let len = write_body(&mut bytes, &body);
            assert_eq!(
                bytes[..16],
                [8, 7, 6, 5, 4, 3, 2, 1, body.kind() as u8, 9, 44, 1, 0xfc, 0xfd, 0xfe, 0xff]
            );
            assert_eq!(token_of(&bytes[..len]), Some(0x0102_0304_0506_0708));
            let message = read(&bytes[..len]).expect("a whole message");
            assert_eq!(message, Message { credits: 300, let_go: 9, sequence: 0xfffe_fdfc, body });
            for cut in 0..len {
                assert_eq!(read(&bytes[..cut]), Err(ProtocolError::Length(cut)));
            }
        }
    }

    #[test]
    fn invalid_messages_are_rejected() {
        let mut bytes = vec![0; MESSAGE_BYTES + 1];
        bytes[8] = Kind::Data as u8;
        assert_eq!(read(&bytes[..HEADER_BYTES]), Err(ProtocolError::Length(HEADER_BYTES)));
        assert_eq!(read(&bytes[..17]).map(|message| message.body), Ok(Body::Data(16..17)));
        assert!(read(&bytes[..MESSAGE_BYTES]).is_ok());
        assert_eq!(read(&bytes), Err(ProtocolError::Length(MESSAGE_BYTES + 1)));
        for kind in [0, 11, 255] {
            bytes[8] = kind;
            assert_eq!(read(&bytes[..20]), Err(ProtocolError::Kind(kind)));
        }
    }

    #[test]
    fn lent_memory_follows_stream_bytes() {
        let mut bytes: Vec<u8> = (0..60).collect();
        write_header(&mut bytes, 1, Kind::LentMemory, Acknowledgement { credits: 2, let_go: 0 }, 3);
        for len in 0..LENT_HEADER_BYTES {
            assert_eq!(read(&bytes[..len]), Err(ProtocolError::Length(len)));
        }
        for len in [LENT_HEADER_BYTES, 60] {
            let number = |at: u8| u64::from_le_bytes(std::array::from_fn(|i| at + i as u8));
            let lent = LentMemory { address: number(16), key: number(24), bytes: number(32) };
            let body = Body::LentMemory { lent, before: LENT_HEADER_BYTES..len };
            assert_eq!(read(&bytes[..len]), Ok(Message { credits: 2, let_go: 0, sequence: 3, body }));
        }
    }
}
