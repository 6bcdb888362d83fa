//! Stores what is to be read.

use std::ops::Range;

use anyhow::{Context, Result};
use fabcache_client::{Client, Completed, Request, Ttl};

use crate::items::Items;

/// Requests in flight at most.
const WINDOW: usize = 256;
/// Bytes of values in flight at most.
const WINDOW_BYTES: usize = 16 << 20;

/// Stores the items with these numbers; `value_bytes` tells how long the value of each is.
///
/// # Errors
/// One is not stored.
pub fn fill(
    client: &Client,
    items: &Items,
    numbers: Range<u64>,
    value_bytes: impl Fn(u64) -> usize,
) -> Result<()> {
    let largest = numbers.clone().map(&value_bytes).max().unwrap_or(0).max(1);
    let count = numbers.end.saturating_sub(numbers.start) as usize;
    let window = WINDOW.min(WINDOW_BYTES / largest).max(1).min(count);
    let mut requests: Vec<Request> = (0..window).map(|_| client.request()).collect();
    let wait = |request: &mut Request| {
        let Completed { key, value, result, .. } = request.wait();
        result.with_context(|| format!("cannot store {}", String::from_utf8_lossy(&key)))?;
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
