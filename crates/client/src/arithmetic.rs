//! Changing a number on one connection.

use crate::answer::Answer;
use crate::bounds::COUNTER_TRIES_MAX;
use crate::command::{Action, Command, Initial, Mode};
use crate::connection::Connection;
use crate::error::Failure;
use crate::message::Encoding;

/// Adds `delta` to a number or subtracts it. Returns the new number, or None if the key is not stored and no initial
/// number is given.
///
/// The text protocol has no initial values: if the key is absent the number is added, and everything is retried if
/// another client was faster.
///
/// # Errors
/// As [`Connection::ask`], or the value is not a number.
pub fn count(
    connection: &mut Connection,
    key: &[u8],
    decrement: bool,
    delta: u64,
    initial: Option<Initial>,
) -> Result<Option<u64>, Failure> {
    let action = Action::Arithmetic { decrement, delta, initial };
    let mut value = Vec::new();
    for _ in 0..COUNTER_TRIES_MAX {
        match (connection.request(&Command { key, action }, b"", &mut value)?, initial) {
            (Answer::Number(number), _) => return Ok(Some(number)),
            (Answer::Value(_), _) => {
                let number =
                    std::str::from_utf8(&value).ok().and_then(|number| number.trim_end().parse().ok());
                return number.map(Some).ok_or_else(|| Failure::protocol(&value));
            }
            (Answer::NotFound, None) => return Ok(None),
            (Answer::NotFound, Some(initial)) if connection.encoding() == Encoding::Text => {
                if add(connection, key, initial)? {
                    return Ok(Some(initial.number));
                }
            }
            (other, _) => return Err(Failure::unexpected(&other)),
        }
    }
    Err(Failure::Refused("other clients keep storing and removing the number".into()))
}

/// Stores a number if the key is absent. Returns whether it was stored.
fn add(connection: &mut Connection, key: &[u8], initial: Initial) -> Result<bool, Failure> {
    let number = initial.number.to_string();
    let action = Action::Store { mode: Mode::Add, len: number.len(), exptime: initial.exptime, flags: 0 };
    match connection.request(&Command { key, action }, number.as_bytes(), &mut Vec::new())? {
        Answer::Done(_) => Ok(true),
        Answer::NotStored => Ok(false),
        other => Err(Failure::unexpected(&other)),
    }
}
