//! Meta answers: a code of two letters, then the requested flags, in their order.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::flags;
use crate::encoding::{MetaCommand, MetaEncoding};
use crate::number::{DIGITS_MAX, digits, push_u64};
use crate::reply::{Item, Reply};
use crate::text::encode::{line, push_all};

/// `VA <bytes> <flags>*`
#[inline]
pub(crate) fn value_head(encoding: &MetaEncoding<'_>, item: &Item, out: &mut Vec<u8>) {
    out.extend_from_slice(b"VA ");
    push_u64(out, item.len);
    push_flags(encoding, Some(item), out);
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn reply(encoding: &MetaEncoding<'_>, reply: &Reply<'_>, out: &mut Vec<u8>) {
    if encoding.quiet && expected(encoding.command, reply) {
        return;
    }
    match *reply {
        Reply::Found(item) | Reply::Stored(item) => coded(encoding, b"HD", Some(&item), out),
        Reply::Deleted => coded(encoding, b"HD", None, out),
        Reply::Miss => coded(encoding, b"EN", None, out),
        Reply::NotStored => coded(encoding, b"NS", None, out),
        Reply::Exists => coded(encoding, b"EX", None, out),
        Reply::NotFound => coded(encoding, b"NF", None, out),
        Reply::Number(number, item) if encoding.value => {
            let mut buffer = [0; DIGITS_MAX];
            let number = digits(number, &mut buffer);
            value_head(encoding, &Item { len: number.len() as u64, ..item }, out);
            push_all(out, &[number, b"\r\n"]);
        }
        Reply::Number(_, item) => coded(encoding, b"HD", Some(&item), out),
        Reply::Inspected { item, size, class } => inspected(encoding, &item, size, class, out),
        Reply::OutOfMemory if encoding.command == MetaCommand::Set => {
            out.extend_from_slice(b"SERVER_ERROR out of memory storing object\r\n");
        }
        Reply::OutOfMemory => out.extend_from_slice(b"SERVER_ERROR out of memory\r\n"),
        _ => line(reply, out),
    }
}

/// Returns whether `q` suppresses the answer: a miss of a read, the success of a change.
fn expected(command: MetaCommand, reply: &Reply<'_>) -> bool {
    matches!(
        (command, reply),
        (MetaCommand::Get, Reply::Miss)
            | (MetaCommand::Set, Reply::Stored(_))
            | (MetaCommand::Delete, Reply::Deleted)
            | (MetaCommand::Arithmetic, Reply::Number(..))
    )
}

fn coded(encoding: &MetaEncoding<'_>, code: &[u8; 2], item: Option<&Item>, out: &mut Vec<u8>) {
    out.extend_from_slice(code);
    if encoding.command != MetaCommand::Inspect {
        push_flags(encoding, item, out);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends the answers to the flags: of the item if there is one, else of the request alone.
fn push_flags(encoding: &MetaEncoding<'_>, item: Option<&Item>, out: &mut Vec<u8>) {
    for flag in flags(encoding.flags) {
        match flag[0] {
            b'O' => push_all(out, &[b" ", flag]),
            b'k' => {
                out.extend_from_slice(b" k");
                if push_key(encoding, item, out) {
                    out.extend_from_slice(b" b");
                }
            }
            letter => push_flag(encoding, letter, item, out),
        }
    }
    if let (MetaCommand::Get, Some(item)) = (encoding.command, item) {
        push_stale(item, out);
    }
}

/// Appends the key, encoded as in the request, or of a hit as stored; returns whether it is in base64.
fn push_key(encoding: &MetaEncoding<'_>, item: Option<&Item>, out: &mut Vec<u8>) -> bool {
    let stored = match encoding.command {
        MetaCommand::Get | MetaCommand::Inspect => item.map(|item| item.binary_key),
        _ => None,
    };
    // Whatever the item says: such a key would end its word or the line.
    let breaks_line = encoding.key.iter().any(|byte| matches!(byte, b' ' | b'\n'));
    let encoded = stored.unwrap_or(encoding.binary_key) || breaks_line;
    if encoded {
        out.extend_from_slice(STANDARD.encode(encoding.key).as_bytes());
    } else {
        out.extend_from_slice(encoding.key);
    }
    encoded
}

#[inline]
fn push_flag(encoding: &MetaEncoding<'_>, letter: u8, item: Option<&Item>, out: &mut Vec<u8>) {
    let number = match (encoding.command, letter, item) {
        (MetaCommand::Get | MetaCommand::Arithmetic, b't', Some(Item { ttl: None, .. })) => {
            return out.extend_from_slice(b" t-1");
        }
        (MetaCommand::Get | MetaCommand::Arithmetic, b't', Some(Item { ttl: Some(ttl), .. })) => {
            u64::from(*ttl)
        }
        (MetaCommand::Get | MetaCommand::Arithmetic, b'c', Some(item)) => item.cas,
        // An item that was not stored has no CAS value, but a size.
        (MetaCommand::Set, b'c', item) => item.map_or(0, |item| item.cas),
        (MetaCommand::Set, b's', item) => item.map_or(encoding.value_len, |item| item.len),
        (MetaCommand::Get, b's', Some(item)) => item.len,
        (MetaCommand::Get, b'f', Some(item)) => u64::from(item.flags),
        (MetaCommand::Get, b'l', Some(item)) => u64::from(item.idle),
        (MetaCommand::Get, b'h', Some(item)) => u64::from(item.fetched),
        _ => return,
    };
    out.extend_from_slice(&[b' ', letter]);
    push_u64(out, number);
}

fn push_stale(item: &Item, out: &mut Vec<u8>) {
    for (set, flag) in [(item.token_sent, b" Z"), (item.stale, b" X"), (item.won, b" W")] {
        if set {
            out.extend_from_slice(flag);
        }
    }
}

fn inspected(encoding: &MetaEncoding<'_>, item: &Item, size: u64, class: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(b"ME ");
    push_key(encoding, Some(item), out);
    out.extend_from_slice(b" exp=");
    match item.ttl {
        Some(ttl) => push_u64(out, u64::from(ttl)),
        None => out.extend_from_slice(b"-1"),
    }
    out.extend_from_slice(b" la=");
    push_u64(out, u64::from(item.idle));
    out.extend_from_slice(b" cas=");
    push_u64(out, item.cas);
    push_all(out, &[b" fetch=", if item.fetched { b"yes" } else { b"no" }, b" cls="]);
    push_u64(out, u64::from(class));
    out.extend_from_slice(b" size=");
    push_u64(out, size);
    out.extend_from_slice(b"\r\n");
}
