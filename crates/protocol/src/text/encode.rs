//! Answers of the classic text protocol, and lines shared with meta.

use crate::encoding::{TextCommand, TextEncoding};
use crate::number::{DIGITS_MAX, digits_before, push_u64};
use crate::refusal::Refusal;
use crate::reply::{Item, Reply};

/// `VALUE <key> <flags> <bytes>[ <cas>]`
#[inline]
pub(crate) fn value_head(encoding: &TextEncoding<'_>, item: &Item, out: &mut Vec<u8>) {
    encoding.value_head(item.flags, item.len, item.cas, out);
}

impl TextEncoding<'_> {
    /// Appends what precedes the value of a hit, as [`Encoding::value_head`](crate::Encoding::value_head) does.
    #[inline(always)]
    pub fn value_head(&self, flags: u32, len: u64, cas: u64, out: &mut Vec<u8>) {
        /// Room for what follows the key: three numbers, a space before each, and the line end.
        const NUMBERS_MAX: usize = 64;
        const _: () = assert!(3 + 10 + 2 * DIGITS_MAX + 2 <= NUMBERS_MAX);
        // The line is written from its end, and copied with bytes behind it: a fixed length costs less.
        let mut numbers = [0; 2 * NUMBERS_MAX];
        let mut at = NUMBERS_MAX - 2;
        numbers[at..at + 2].copy_from_slice(b"\r\n");
        let mut put = |number| {
            at = digits_before(at, number, &mut numbers) - 1;
            numbers[at] = b' ';
        };
        if self.cas {
            put(cas);
        }
        put(len);
        put(u64::from(flags));
        out.extend_from_slice(b"VALUE ");
        out.extend_from_slice(self.key);
        out.extend_from_slice(&numbers[at..at + NUMBERS_MAX]);
        out.truncate(out.len() - at);
    }

    /// Appends what follows the value of a hit; `END` if the key is the last of its line.
    #[inline]
    pub fn value_tail(&self, out: &mut Vec<u8>) {
        if self.is_last {
            out.extend_from_slice(b"\r\nEND\r\n");
        } else {
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Appends the answer for a key without a value: `END` if it is the last of its line.
    #[inline]
    pub fn miss(&self, out: &mut Vec<u8>) {
        if self.is_last {
            out.extend_from_slice(b"END\r\n");
        }
    }
}

pub(crate) fn reply(encoding: &TextEncoding<'_>, reply: &Reply<'_>, out: &mut Vec<u8>) {
    if encoding.noreply {
        return;
    }
    let word: &[u8] = match *reply {
        Reply::Found(_) => b"TOUCHED",
        Reply::Stored(_) => b"STORED",
        Reply::NotStored => b"NOT_STORED",
        Reply::Exists => b"EXISTS",
        Reply::NotFound => b"NOT_FOUND",
        Reply::Deleted => b"DELETED",
        Reply::OutOfMemory => match encoding.command {
            // An error between values would end the answer, and the client would read the rest as the next answer. A
            // cache may miss.
            TextCommand::Get => return encoding.miss(out),
            TextCommand::Store => b"SERVER_ERROR out of memory storing object",
            TextCommand::Arithmetic | TextCommand::Other => b"SERVER_ERROR out of memory",
        },
        Reply::Miss => return encoding.miss(out),
        Reply::Number(number, _) => {
            push_u64(out, number);
            b""
        }
        _ => return line(reply, out),
    };
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

/// The answers that do not depend on the command, as one line.
pub(crate) fn line(reply: &Reply<'_>, out: &mut Vec<u8>) {
    match *reply {
        Reply::TooLarge => out.extend_from_slice(b"SERVER_ERROR object too large for cache"),
        Reply::NonNumeric => {
            out.extend_from_slice(b"CLIENT_ERROR cannot increment or decrement non-numeric value");
        }
        Reply::Ok => out.extend_from_slice(b"OK"),
        Reply::Noop => out.extend_from_slice(b"MN"),
        Reply::Version(version) => push_all(out, &[b"VERSION ", version.as_bytes()]),
        Reply::StatsEnd => out.extend_from_slice(b"END"),
        Reply::Stat { name, value } => push_all(out, &[b"STAT ", name, b" ", value]),
        Reply::Line(line) | Reply::Sasl(line) | Reply::SaslContinue(line) => out.extend_from_slice(line),
        Reply::AuthFailure => out.extend_from_slice(b"CLIENT_ERROR authentication failure"),
        Reply::Refused(refusal) => push_refusal(out, refusal),
        // The caller writes all other answers; a close needs none.
        _ => return,
    }
    out.extend_from_slice(b"\r\n");
}

fn push_refusal(out: &mut Vec<u8>, refusal: Refusal) {
    match refusal {
        Refusal::UnknownCommand => out.extend_from_slice(b"ERROR"),
        Refusal::Client(text) => push_all(out, &[b"CLIENT_ERROR ", text.as_bytes()]),
        Refusal::Server(text) => push_all(out, &[b"SERVER_ERROR ", text.as_bytes()]),
        Refusal::Error(text) => push_all(out, &[b"ERROR ", text.as_bytes()]),
        Refusal::Status(status) => {
            push_all(out, &[b"SERVER_ERROR ", crate::binary::status::text(status).as_bytes()]);
        }
    }
}

pub(crate) fn push_all(out: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        out.extend_from_slice(part);
    }
}
