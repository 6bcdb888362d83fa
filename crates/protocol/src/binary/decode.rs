//! Binary packets.

use super::{HEADER, REQUEST, loud, opcode, status};
use crate::bounds::{FABRIC_WORDS_MAX, KEY_MAX, SASL_MECHANISM_MAX, SASL_PAYLOAD_MAX};
use crate::command::{Arithmetic, Command, Delete, Exptime, Get, Request, Store, StoreMode, Touch, Words};
use crate::encoding::{BinaryEncoding, Encoding};
use crate::fabric;
use crate::refusal::Refusal;

/// The header of one packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    opcode: u8,
    extras: usize,
    key: usize,
    body: u64,
    opaque: u32,
    cas: u64,
}

/// The treatment of a packet, by its header.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum PacketAction {
    /// The whole packet is needed: extras, key and, for SASL, a payload.
    Whole,
    /// Extras and key are needed; the value is data.
    Store,
    /// Answer this and drop the packet.
    Swallow(u16),
    /// Answer this and close.
    Close(u16),
}

impl Header {
    /// Parses a header whose first byte was checked.
    #[inline]
    pub(crate) fn parse(bytes: &[u8; HEADER]) -> Header {
        Header {
            opcode: bytes[1],
            extras: usize::from(bytes[4]),
            key: usize::from(u16::from_be_bytes([bytes[2], bytes[3]])),
            body: u64::from(be32(&bytes[8..12])),
            opaque: be32(&bytes[12..16]),
            cas: be64(&bytes[16..24]),
        }
    }

    /// Returns the opcode.
    #[inline]
    pub(crate) fn opcode(&self) -> u8 {
        self.opcode
    }

    /// Bytes up to the value.
    #[inline]
    pub(crate) fn head(&self) -> usize {
        HEADER + self.extras + self.key
    }

    /// Returns the bytes of the value. Not for packets that close the connection.
    #[inline]
    pub(crate) fn value(&self) -> u64 {
        self.body - (self.extras + self.key) as u64
    }

    /// Bytes after the header.
    pub(crate) fn body(&self) -> u64 {
        self.body
    }

    /// Where memcached reads on from the wrong place after it (unknown opcodes, bytes behind the key), the packet
    /// is taken as its header says, or the connection is closed at once.
    #[inline]
    pub(crate) fn shape(&self) -> PacketAction {
        let filled = (self.extras + self.key) as u64;
        if filled > self.body {
            return PacketAction::Close(status::UNKNOWN);
        }
        if self.key > KEY_MAX {
            return PacketAction::Close(status::INVALID);
        }
        let (keyed, no_value) = (self.key > 0, filled == self.body);
        let bare = self.body == 0;
        let (valid, shape) = match loud(self.opcode).code {
            opcode::GET | opcode::GETK | opcode::DELETE => {
                (keyed && self.extras == 0 && no_value, PacketAction::Whole)
            }
            opcode::SET | opcode::ADD | opcode::REPLACE => (keyed && self.extras == 8, PacketAction::Store),
            opcode::APPEND | opcode::PREPEND => (keyed && self.extras == 0, PacketAction::Store),
            opcode::INCREMENT | opcode::DECREMENT => {
                (keyed && self.extras == 20 && no_value, PacketAction::Whole)
            }
            opcode::TOUCH | opcode::GAT | opcode::GATK => {
                (keyed && self.extras == 4 && no_value, PacketAction::Whole)
            }
            opcode::FLUSH => (!keyed && matches!(self.extras, 0 | 4) && no_value, PacketAction::Whole),
            opcode::QUIT | opcode::NOOP | opcode::VERSION | opcode::SASL_LIST => (bare, PacketAction::Whole),
            opcode::STAT => (self.extras == 0 && no_value, PacketAction::Whole),
            opcode::SASL_AUTH | opcode::SASL_STEP => (keyed && self.extras == 0, self.sasl_shape()),
            opcode::SHM_ATTACH => (!keyed && self.extras == 0 && self.value() == 16, PacketAction::Whole),
            opcode::FABRIC_HELLO | opcode::FABRIC_ATTACH => (!keyed && self.extras == 0, self.fabric_shape()),
            _ => (true, PacketAction::Swallow(status::UNKNOWN)),
        };
        if valid { shape } else { PacketAction::Close(status::INVALID) }
    }

    fn sasl_shape(&self) -> PacketAction {
        if self.key > SASL_MECHANISM_MAX {
            PacketAction::Swallow(status::INVALID)
        } else if self.value() > SASL_PAYLOAD_MAX {
            PacketAction::Swallow(status::OUT_OF_MEMORY)
        } else {
            PacketAction::Whole
        }
    }

    fn fabric_shape(&self) -> PacketAction {
        if self.value() > FABRIC_WORDS_MAX {
            PacketAction::Swallow(status::INVALID)
        } else {
            PacketAction::Whole
        }
    }

    pub(crate) fn encoding<'a>(&self, key: &'a [u8]) -> Encoding<'a> {
        Encoding::Binary(BinaryEncoding { opcode: self.opcode, opaque: self.opaque, key })
    }

    /// The request of a packet that is refused.
    pub(crate) fn refused<'a>(&self, status: u16) -> Request<'a> {
        Request { command: Command::Refused(Refusal::Status(status)), encoding: self.encoding(b"") }
    }

    /// The request of a packet whose value is data: `packet` reaches up to it.
    #[inline]
    pub(crate) fn store<'a>(&self, packet: &'a [u8]) -> (Store<'a>, Encoding<'a>) {
        let (extras, key) = packet[HEADER..].split_at(self.extras);
        let compare = (self.cas != 0).then_some(self.cas);
        let mode = match loud(self.opcode).code {
            opcode::APPEND => StoreMode::Append,
            opcode::PREPEND => StoreMode::Prepend,
            // With a CAS they are all a set, as in memcached.
            _ if compare.is_some() => StoreMode::Set,
            opcode::ADD => StoreMode::Add,
            opcode::REPLACE => StoreMode::Replace,
            _ => StoreMode::Set,
        };
        let (flags, exptime) = match extras {
            [] => (0, Exptime::default()),
            extras => (be32(&extras[..4]), exptime(&extras[4..8])),
        };
        (Store { key, mode, flags, exptime, compare, ..Store::default() }, self.encoding(key))
    }

    /// The request of a packet that is all here.
    #[inline]
    pub(crate) fn whole<'a>(&self, packet: &'a [u8]) -> Request<'a> {
        let (extras, rest) = packet[HEADER..].split_at(self.extras);
        let (key, value) = rest.split_at(self.key);
        let compare = (self.cas != 0).then_some(self.cas);
        let command = match loud(self.opcode).code {
            opcode::GET | opcode::GETK => Command::Get(Get { key, value: true, ..Get::default() }),
            opcode::GAT | opcode::GATK => {
                Command::Get(Get { key, value: true, touch: Some(exptime(extras)), ..Get::default() })
            }
            opcode::TOUCH => Command::Touch(Touch { key, exptime: exptime(extras) }),
            opcode::DELETE => Command::Delete(Delete { key, compare, ..Delete::default() }),
            code @ (opcode::INCREMENT | opcode::DECREMENT) => {
                Command::Arithmetic(arithmetic(code, key, extras, compare))
            }
            opcode::FLUSH if extras.is_empty() => Command::Flush(Exptime(0)),
            opcode::FLUSH => Command::Flush(exptime(extras)),
            opcode::QUIT => Command::Quit,
            opcode::NOOP => Command::Noop,
            opcode::VERSION => Command::Version,
            opcode::STAT => Command::Stats(Words::new(key)),
            opcode::SASL_LIST => Command::SaslList,
            opcode::SASL_AUTH => Command::SaslAuth { mechanism: key, payload: value },
            opcode::SASL_STEP => Command::SaslStep { mechanism: key, payload: value },
            opcode::SHM_ATTACH => {
                Command::ShmAttach { channel: be64(&value[..8]), region: be64(&value[8..16]) }
            }
            opcode::FABRIC_HELLO => sound(fabric::hello(Words::new(value))),
            opcode::FABRIC_ATTACH => sound(fabric::attach(Words::new(value))),
            _ => Command::Refused(Refusal::Status(status::UNKNOWN)),
        };
        Request { command, encoding: self.encoding(key) }
    }
}

/// Parses the words of a request, if they are valid.
fn sound(command: Option<Command<'_>>) -> Command<'_> {
    command.unwrap_or(Command::Refused(Refusal::Status(status::INVALID)))
}

/// Returns the key of the packet at the front of `input`, and the bytes behind the packet; `None` for an incomplete
/// or invalid one.
#[inline]
pub(crate) fn key_ahead(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let header = Header::parse(input.first_chunk().filter(|bytes| bytes[0] == REQUEST)?);
    let (packet, behind) = input.split_at_checked(HEADER + usize::try_from(header.body).ok()?)?;
    // A search for keys reads only the bytes that have arrived.
    Some((packet.get(HEADER + header.extras..header.head())?, behind))
}

fn arithmetic<'a>(code: u8, key: &'a [u8], extras: &[u8], compare: Option<u64>) -> Arithmetic<'a> {
    let expires = exptime(&extras[16..20]);
    Arithmetic {
        key,
        decrement: code == opcode::DECREMENT,
        delta: be64(&extras[..8]),
        // All ones: do not create.
        create: (expires.0 != i64::from(u32::MAX)).then(|| (be64(&extras[8..16]), expires)),
        compare,
        ..Arithmetic::default()
    }
}

fn exptime(bytes: &[u8]) -> Exptime {
    Exptime(i64::from(be32(bytes)))
}

fn be32(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn be64(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
