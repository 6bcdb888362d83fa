//! Reads many keys of one server on one connection, pipelined.

use crate::answer::Answer;
use crate::bounds::KEYS_IN_FLIGHT_MAX;
use crate::command::{Action, Command};
use crate::connection::Connection;
use crate::error::Failure;
use crate::item::Found;
use crate::message::Encoding;
use crate::text::ExpectedAnswer;
use crate::{meta, packet, text};

/// Requests the first keys.
///
/// # Errors
/// As for [`Connection::send`].
pub fn send<K: AsRef<[u8]>>(
    connection: &mut Connection,
    keys: &[K],
    wanted: &[usize],
) -> Result<(), Failure> {
    let first = wanted.chunks(KEYS_IN_FLIGHT_MAX).next().unwrap_or_default();
    let request = request(connection.encoding(), first, keys);
    connection.send([&request])
}

/// Reads the answers to the first keys, then requests the rest.
///
/// # Errors
/// A key was refused, or the server's protocol cannot carry it, and all others were read; or as for
/// [`Connection::answer`].
pub fn read<K: AsRef<[u8]>>(
    connection: &mut Connection,
    keys: &[K],
    wanted: &[usize],
    mut take: impl FnMut(usize, Found<'_>),
) -> Result<(), Failure> {
    let encoding = connection.encoding();
    let takes = |number: &usize| encoding.takes(keys[*number].as_ref());
    let mut refused = if wanted.iter().all(takes) { Ok(()) } else { Err(Failure::Key) };
    let mut value = Vec::new();
    for (turn, numbers) in wanted.chunks(KEYS_IN_FLIGHT_MAX).enumerate() {
        if turn > 0 {
            connection.send([&request(encoding, numbers, keys)])?;
        }
        let read = if encoding == Encoding::Text {
            read_text(connection, keys, numbers, &mut value, &mut take)
        } else {
            read_marked(connection, numbers, &mut value, &mut take)
        };
        match read {
            // The answers to other keys follow.
            Err(failure) if !failure.breaks() && !connection.is_unsure() => refused = Err(failure),
            read => read?,
        }
    }
    refused
}

/// Requests some of the keys, each marked with its number if possible; misses are not answered, but the end is.
fn request<K: AsRef<[u8]>>(encoding: Encoding, numbers: &[usize], keys: &[K]) -> Vec<u8> {
    let mut request = Vec::new();
    match encoding {
        Encoding::Meta | Encoding::Mixed => {
            for number in numbers {
                let action = Action::Get { touch: None };
                meta::write(&Command { key: keys[*number].as_ref(), action }, &mut request);
                meta::word(&mut request, "O", number);
                request.extend_from_slice(b" q\r\n");
            }
            request.extend_from_slice(b"mn\r\n");
        }
        Encoding::Binary => {
            for number in numbers {
                packet::get_quietly(keys[*number].as_ref(), *number as u32, &mut request);
            }
            packet::no_op(&mut request);
        }
        Encoding::Text => {
            let keys = numbers.iter().map(|number| keys[*number].as_ref()).filter(|key| text::takes(key));
            let mut keys = keys.peekable();
            if keys.peek().is_some() {
                text::write_many(keys, &mut request);
            }
        }
    }
    request
}

fn read_marked(
    connection: &mut Connection,
    numbers: &[usize],
    value: &mut Vec<u8>,
    take: &mut impl FnMut(usize, Found<'_>),
) -> Result<(), Failure> {
    let mut refused = Ok(());
    loop {
        match connection.answer(None, value) {
            Ok(Answer::NoOp) => return refused,
            // The answers to other keys follow.
            Err(Failure::Refused(why)) => refused = Err(Failure::Refused(why)),
            Err(failure) => return Err(failure),
            Ok(Answer::Value(flags)) => {
                let is_its = |number: &&usize| flags.opaque == Some(**number as u32);
                let number = *numbers.iter().find(is_its).ok_or_else(unasked)?;
                take(number, Found { value, flags: flags.flags, cas: flags.cas });
            }
            Ok(other) => return Err(Failure::unexpected(&other)),
        }
    }
}

/// Reads values that carry their keys, in any order.
fn read_text<K: AsRef<[u8]>>(
    connection: &mut Connection,
    keys: &[K],
    numbers: &[usize],
    value: &mut Vec<u8>,
    take: &mut impl FnMut(usize, Found<'_>),
) -> Result<(), Failure> {
    let mut unread: Vec<usize> =
        numbers.iter().copied().filter(|number| text::takes(keys[*number].as_ref())).collect();
    if unread.is_empty() {
        return Ok(());
    }
    loop {
        match connection.answer(Some(ExpectedAnswer::Values), value)? {
            Answer::NoOp => return Ok(()),
            Answer::Value(flags) => {
                let key = connection.key();
                let at = unread.iter().position(|number| keys[*number].as_ref() == key);
                let number = unread.remove(at.ok_or_else(unasked)?);
                take(number, Found { value, flags: flags.flags, cas: flags.cas });
            }
            other => return Err(Failure::unexpected(&other)),
        }
    }
}

fn unasked() -> Failure {
    Failure::protocol(b"a value that was not asked for")
}
