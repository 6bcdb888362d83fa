//! Binary answers.

use super::{LoudOpcode, RESPONSE, loud, opcode, status};
use crate::encoding::BinaryEncoding;
use crate::refusal::Refusal;
use crate::reply::{Item, Reply};

/// Encodes a hit: the client flags, the key where the opcode requires it, and then the value.
#[inline]
pub(crate) fn value_head(encoding: &BinaryEncoding<'_>, item: &Item, out: &mut Vec<u8>) {
    let key = if repeats_key(encoding.opcode) { encoding.key } else { b"" };
    let flags = item.flags.to_be_bytes();
    let packet = Packet { extras: &flags, key, cas: item.cas, ..Packet::default() };
    packet.push(encoding, item.len, out);
}

pub(crate) fn reply(encoding: &BinaryEncoding<'_>, reply: &Reply<'_>, out: &mut Vec<u8>) {
    let LoudOpcode { code, quiet } = loud(encoding.opcode);
    if quiet && expected(reply) {
        return;
    }
    match *reply {
        Reply::Found(item) => {
            let flags = item.flags.to_be_bytes();
            Packet { extras: &flags, cas: item.cas, ..Packet::default() }.push(encoding, 0, out);
        }
        Reply::Miss if repeats_key(encoding.opcode) => {
            let packet = Packet { status: status::NOT_FOUND, key: encoding.key, ..Packet::default() };
            packet.push(encoding, 0, out);
        }
        Reply::Miss | Reply::NotFound => error(encoding, status::NOT_FOUND, out),
        Reply::NotStored => match code {
            opcode::ADD => error(encoding, status::EXISTS, out),
            opcode::REPLACE => error(encoding, status::NOT_FOUND, out),
            _ => error(encoding, status::NOT_STORED, out),
        },
        Reply::Exists => error(encoding, status::EXISTS, out),
        Reply::TooLarge => error(encoding, status::TOO_LARGE, out),
        Reply::NonNumeric => error(encoding, status::NON_NUMERIC, out),
        Reply::OutOfMemory => {
            let text = match code {
                opcode::INCREMENT | opcode::DECREMENT => "Out of memory incrementing value",
                _ => "Out of memory allocating item",
            };
            worded(encoding, status::OUT_OF_MEMORY, text, out);
        }
        Reply::AuthFailure => error(encoding, status::AUTH, out),
        Reply::Refused(refusal) => refused(encoding, code, refusal, out),
        Reply::Stored(item) => Packet { cas: item.cas, ..Packet::default() }.push(encoding, 0, out),
        Reply::Number(number, item) => {
            let number = number.to_be_bytes();
            Packet { value: &number, cas: item.cas, ..Packet::default() }.push(encoding, 0, out);
        }
        Reply::Stat { name, value } => {
            Packet { key: name, value, ..Packet::default() }.push(encoding, 0, out)
        }
        Reply::Line(_) if code == opcode::STAT => Packet::default().push(encoding, 0, out),
        Reply::Version(version) => {
            Packet { value: version.as_bytes(), ..Packet::default() }.push(encoding, 0, out);
        }
        Reply::Line(value) | Reply::Sasl(value) => {
            Packet { value, ..Packet::default() }.push(encoding, 0, out)
        }
        Reply::SaslContinue(value) => {
            let status = status::AUTH_CONTINUE;
            Packet { status, value, ..Packet::default() }.push(encoding, 0, out);
        }
        Reply::Deleted | Reply::Ok | Reply::Noop | Reply::StatsEnd | Reply::Bye => {
            Packet::default().push(encoding, 0, out);
        }
        // Only text requests these.
        Reply::Inspected { .. } => {}
    }
}

/// Returns whether a quiet opcode suppresses the reply: a read its miss, a change its success. Only reads can miss this
/// way.
fn expected(reply: &Reply<'_>) -> bool {
    matches!(
        reply,
        Reply::Miss | Reply::Stored(_) | Reply::Deleted | Reply::Number(..) | Reply::Ok | Reply::Bye
    )
}

fn repeats_key(code: u8) -> bool {
    matches!(loud(code).code, opcode::GETK | opcode::GATK)
}

fn refused(encoding: &BinaryEncoding<'_>, code: u8, refusal: Refusal, out: &mut Vec<u8>) {
    match refusal {
        Refusal::Status(status) => error(encoding, status, out),
        Refusal::UnknownCommand if code == opcode::STAT => error(encoding, status::NOT_FOUND, out),
        Refusal::UnknownCommand => error(encoding, status::UNKNOWN, out),
        // The only client error of a flush is that it is not allowed.
        Refusal::Client(_) if code == opcode::FLUSH => error(encoding, status::AUTH, out),
        Refusal::Client(_) if code == opcode::STAT => error(encoding, status::NOT_FOUND, out),
        // memcached has no words for these.
        Refusal::Client(text) if matches!(code, opcode::FABRIC_HELLO | opcode::FABRIC_ATTACH) => {
            worded(encoding, status::INVALID, text, out);
        }
        Refusal::Client(_) | Refusal::Error(_) => error(encoding, status::INVALID, out),
        Refusal::Server(text) => worded(encoding, status::OUT_OF_MEMORY, text, out),
    }
}

fn error(encoding: &BinaryEncoding<'_>, status: u16, out: &mut Vec<u8>) {
    worded(encoding, status, status::text(status), out);
}

fn worded(encoding: &BinaryEncoding<'_>, status: u16, text: &str, out: &mut Vec<u8>) {
    Packet { status, value: text.as_bytes(), ..Packet::default() }.push(encoding, 0, out);
}

#[derive(Default)]
struct Packet<'a> {
    status: u16,
    extras: &'a [u8],
    key: &'a [u8],
    value: &'a [u8],
    cas: u64,
}

impl Packet<'_> {
    /// Appends the packet; `more` bytes of value are still to be appended by the caller.
    #[inline]
    fn push(&self, encoding: &BinaryEncoding<'_>, more: u64, out: &mut Vec<u8>) {
        let body = (self.extras.len() + self.key.len() + self.value.len()) as u64 + more;
        let mut header = [0; super::HEADER];
        header[0] = RESPONSE;
        header[1] = encoding.opcode;
        header[2..4].copy_from_slice(&(self.key.len() as u16).to_be_bytes());
        header[4] = self.extras.len() as u8;
        header[6..8].copy_from_slice(&self.status.to_be_bytes());
        header[8..12].copy_from_slice(&(body as u32).to_be_bytes());
        header[12..16].copy_from_slice(&encoding.opaque.to_be_bytes());
        header[16..24].copy_from_slice(&self.cas.to_be_bytes());
        for part in [&header, self.extras, self.key, self.value] {
            out.extend_from_slice(part);
        }
    }
}
