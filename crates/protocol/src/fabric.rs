//! fabcache's own commands for clients that connect through the fabric: `fabric hello` and `fabric attach`. Their
//! arguments are the same in a text line and in a packet.

use crate::command::{Command, Words};
use crate::fabric_attach::{FabricAttach, FabricMemory};
use crate::number::parse_digits;

/// `<channel version> <region version>`: later versions may add arguments, and are told that their version differs.
pub(crate) fn hello<'a>(mut words: Words<'a>) -> Option<Command<'a>> {
    let (channel, region) = (number(words.next())?, number(words.next())?);
    Some(Command::FabricHello { channel, region })
}

/// `<name> <token> <credits> <staging: address key bytes> <landing: address key bytes>`: the name in base64, the token
/// in hexadecimal digits.
pub(crate) fn attach<'a>(mut words: Words<'a>) -> Option<Command<'a>> {
    let name = words.next()?;
    let token = hexadecimal(words.next()?)?;
    let credits = u16::try_from(number(words.next())?).ok()?;
    let staging = memory(&mut words)?;
    let landing = memory(&mut words)?;
    FabricAttach::new(name, token, credits, staging, landing).map(Command::FabricAttach)
}

fn memory(words: &mut Words<'_>) -> Option<FabricMemory> {
    let mut next = || number(words.next());
    Some(FabricMemory { address: next()?, key: next()?, bytes: next()? })
}

fn number(word: Option<&[u8]>) -> Option<u64> {
    parse_digits(word?)
}

/// 1 to 16 digits.
fn hexadecimal(word: &[u8]) -> Option<u64> {
    if word.is_empty() || word.len() > 16 {
        return None;
    }
    word.iter().try_fold(0, |number, digit| {
        let digit = char::from(*digit).to_digit(16)?;
        Some(number << 4 | u64::from(digit))
    })
}
