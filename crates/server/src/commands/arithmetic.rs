//! Numbers: incr, decr, ma, binary Increment and Decrement.

use fabcache_protocol::{Arithmetic, Encoding, Item, Reply};
use fabcache_store::{Change, Expiry, ItemInfo, Miss, NewValue, OutOfMemory, Write};

use super::{Context, Flow, Session, expiry_at, flash, item, no_room, notify_lookup};

/// The longest value that is parsed as a number: beyond twenty digits only zeros can precede them.
const NUMBER_BYTES_MAX: u32 = 4096;

enum Outcome {
    /// The new number, and the previous item, unless it was created.
    Done(u64, Option<ItemInfo>, Expiry),
    Exists,
    NotFound,
    NonNumeric,
}

/// Adds to or subtracts from a number.
pub fn arithmetic(
    ctx: &mut Context,
    session: &mut Session,
    arithmetic: &Arithmetic<'_>,
    encoding: &Encoding<'_>,
) -> Flow {
    // The clock may advance meanwhile; a request that sets an expiry reports the time to live that it set.
    let now = ctx.shared.store.now();
    let touch = arithmetic.touch.map(|exptime| expiry_at(ctx, exptime, now));
    let create = arithmetic.create.map(|(number, exptime)| (number, expiry_at(ctx, exptime, now)));
    let mut found = Err(Miss::Absent);
    let done = ctx.handle.mutate(arithmetic.key, |existing| {
        found = existing.info.map(|info| info.len);
        let Ok(info) = existing.info else {
            let Some((number, expiry)) = create else { return (Change::Keep, Outcome::NotFound) };
            let change = write(arithmetic, &ItemInfo::EMPTY, number, expiry);
            return (change, Outcome::Done(number, None, expiry));
        };
        if info.len == 0 {
            return (Change::Keep, Outcome::NonNumeric);
        }
        if arithmetic.compare.is_some_and(|compare| compare != info.cas) {
            return (Change::Keep, Outcome::Exists);
        }
        let Some(old) = existing.value(NUMBER_BYTES_MAX).and_then(parse) else {
            return (Change::Keep, Outcome::NonNumeric);
        };
        let number = match arithmetic.decrement {
            true => old.saturating_sub(arithmetic.delta),
            false => old.wrapping_add(arithmetic.delta),
        };
        let expiry = touch.unwrap_or(info.expiry);
        (write(arithmetic, &info, number, expiry), Outcome::Done(number, Some(info), expiry))
    });
    match &done {
        Err(OutOfMemory::OnFlash) => return flash::await_item(ctx, session, arithmetic.key),
        Err(why) if flash::makes_room(ctx, *why) => return Flow::AwaitMemory,
        _ => {}
    }
    notify_lookup(ctx, session.info.fd, arithmetic.key, found);
    let counters = ctx.counters();
    let (hits, misses) = match arithmetic.decrement {
        true => (&counters.decr_hits, &counters.decr_misses),
        false => (&counters.incr_hits, &counters.incr_misses),
    };
    let reply = match done {
        Ok((Outcome::Done(number, before, expiry), written)) => {
            // memcached counts a created number as neither a hit nor a miss.
            if before.is_some() {
                hits.inc();
            }
            let shown = match (&before, arithmetic.ttl_before_touch) {
                (None, _) => {
                    arithmetic.created_ttl.map_or(Expiry::NEVER, |exptime| expiry_at(ctx, exptime, now))
                }
                (Some(before), true) => before.expiry,
                (Some(_), false) => expiry,
            };
            let before = before.unwrap_or(ItemInfo::EMPTY);
            Reply::Number(number, Item { cas: written.cas, ttl: shown.ttl(now), ..item(&before) })
        }
        Ok((Outcome::NotFound, _)) => {
            misses.inc();
            Reply::NotFound
        }
        Ok((Outcome::Exists, _)) => Reply::Exists,
        Ok((Outcome::NonNumeric, _)) => Reply::NonNumeric,
        Err(why) => no_room(why),
    };
    encoding.reply(&reply, &mut ctx.out);
    Flow::Next
}

fn write(arithmetic: &Arithmetic<'_>, before: &ItemInfo, number: u64, expiry: Expiry) -> Change<'static> {
    let width = before.len as usize;
    let write = Write {
        expiry,
        cas: arithmetic.new_cas,
        // Like memcached, which writes in place: a shorter number is padded with spaces.
        value: NewValue::Number { number, width },
        ..Write::unchanged(before)
    };
    if number.checked_ilog10().map_or(1, |log| log as usize + 1) <= width {
        return Change::Write(write);
    }
    // A longer number is a new item to memcached, without the marks of the old one.
    Change::Write(Write {
        same_item: false,
        binary_key: false,
        stale: false,
        token_sent: false,
        fetched: false,
        ..write
    })
}

/// Parses a value like memcached: spaces, a sign, digits, and white space or the end after them.
fn parse(value: &[u8]) -> Option<u64> {
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
    let start = value.iter().position(|byte| !is_space(byte))?;
    let rest = &value[start..];
    let rest = rest.strip_prefix(b"+").unwrap_or(rest);
    let end = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    if end == 0 || rest.get(end).is_some_and(|byte| !is_space(byte)) {
        return None;
    }
    rest[..end]
        .iter()
        .try_fold(0u64, |number, digit| number.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn numbers_parse_as_in_memcached() {
        for (text, number) in [
            ("10", Some(10)),
            ("9 ", Some(9)),
            (" 7", Some(7)),
            ("1 2", Some(1)),
            ("+5", Some(5)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("000000000000000000000000000012", Some(12)),
            ("", None),
            (" ", None),
            ("-1", None),
            ("12a", None),
            ("a", None),
        ] {
            assert_eq!(parse(text.as_bytes()), number, "{text:?}");
        }
    }
}
