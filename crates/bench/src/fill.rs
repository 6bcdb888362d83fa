//! Stores the items to be read.

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use fabcache_client::{Client, CompletedRequest, Error, Failure, Request, Ttl};

use crate::items::Items;

/// Maximum number of requests in flight.
const WINDOW: usize = 256;
/// Maximum bytes of values in flight.
const WINDOW_BYTES: usize = 16 << 20;
/// Maximum length of a value: the client library's; servers accept less by default.
const VALUE_BYTES_MAX: usize = 1 << 30;

/// Stores the items with these numbers; `value_bytes` returns the length of each value. The last one is read back,
/// because a server that acknowledges and stores nothing cannot be measured.
///
/// # Errors
/// An item is not stored, or the last one is absent.
pub fn fill(
    client: &Client,
    items: &Items,
    numbers: Range<u64>,
    value_bytes: impl Fn(u64) -> usize,
) -> Result<()> {
    store(client, items, numbers.clone(), &value_bytes, |error| Err(error.into()))?;
    let Some(last) = numbers.last() else { return Ok(()) };
    let mut key = Vec::new();
    items.key(last, &mut key);
    let named = || format!("the key {}, stored just now", String::from_utf8_lossy(&key));
    let found = client.get(&key).with_context(named)?;
    let found = found.with_context(|| format!("no value under {}", named()))?;
    let is_right = items.may_be_value(last, value_bytes(last), &found.value);
    ensure!(is_right, "a wrong value is under {}", named());
    Ok(())
}

/// Stores items as [`fill`] does, and tolerates refusals, as of a full memcached; returns their number.
///
/// # Errors
/// A server fails.
pub fn fill_with_refusals(
    client: &Client,
    items: &Items,
    numbers: Range<u64>,
    value_bytes: impl Fn(u64) -> usize,
) -> Result<u64> {
    let mut refused = 0;
    store(client, items, numbers, value_bytes, |error| {
        if !is_refusal(&error) {
            return Err(error.into());
        }
        refused += 1;
        Ok(())
    })?;
    Ok(refused)
}

/// Returns whether a server received a request and refused it.
pub fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Server { failure: Failure::Refused(_), .. })
}

fn store(
    client: &Client,
    items: &Items,
    numbers: Range<u64>,
    value_bytes: impl Fn(u64) -> usize,
    mut failed: impl FnMut(Error) -> Result<()>,
) -> Result<()> {
    let largest = numbers.clone().map(&value_bytes).max().unwrap_or(0).max(1);
    ensure!(largest <= VALUE_BYTES_MAX, "values of {largest} bytes: give at most {VALUE_BYTES_MAX}");
    let count = numbers.end.saturating_sub(numbers.start) as usize;
    let window = WINDOW.min(WINDOW_BYTES / largest).max(1).min(count);
    let mut requests: Vec<Request> = (0..window).map(|_| client.request()).collect();
    let mut wait = |request: &mut Request| {
        let CompletedRequest { key, value, result, .. } = request.wait();
        let done = result.map(drop).or_else(&mut failed);
        done.with_context(|| format!("cannot store {}", String::from_utf8_lossy(&key)))?;
        anyhow::Ok((key, value))
    };
    let begin = numbers.start;
    for number in numbers {
        let at = (number - begin) as usize;
        let request = &mut requests[at % window];
        let (mut key, mut value) = if at < window { Default::default() } else { wait(request)? };
        items.key(number, &mut key);
        items.value(number, value_bytes(number), &mut value);
        request.iset(key, value, Ttl::NEVER);
    }
    requests.iter_mut().try_for_each(|request| wait(request).map(drop))
}
