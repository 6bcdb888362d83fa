//! `fabcache bench blocks`: large values written in blocks, then read back in order.

use anyhow::{Context, Result, ensure};
use clap::Args;
use fabcache_bench::blocks::{Blocks, table};

use super::common::Common;

/// Rounds of a full run.
const ROUNDS: u32 = 3;

/// The amount of data and the block size.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Bytes of a pair's value, as all sizes here optionally with k, m or g [default: 512m, with --quick
    /// 8m]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pair_bytes: Option<u64>,
    /// Bytes of a block, which is one item [default: the server's largest item (-I)]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    block_bytes: Option<u64>,
    /// Bytes of all pairs together, which must fit the server's memory (-m) [default: 5g, with --quick 40m]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    total_bytes: Option<u64>,
    /// Calls in flight, from 1 to 1024
    #[arg(long, short, value_name = "NUMBER", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    window: u32,
}

/// Parses a number of bytes with an optional unit: 1k is 1024, 1m is 1024k, 1g is 1024m.
fn bytes(text: &str) -> Result<u64> {
    let unit = |last: char| "kmg".find(last.to_ascii_lowercase()).map(|at| 10 * (at as u32 + 1));
    let (digits, shift) = match text.chars().last().and_then(unit) {
        Some(shift) => (&text[..text.len() - 1], shift),
        None => (text, 0),
    };
    let number: u64 =
        digits.parse().ok().with_context(|| format!("{text:?} is no size such as 1000, 8m or 5g"))?;
    ensure!(number > 0, "a size of 0: there is nothing to write");
    number.checked_mul(1 << shift).with_context(|| format!("{text} is too much"))
}

/// Runs the benchmark, and prints bytes per second.
///
/// # Errors
/// A server fails or answers wrongly, or has too little memory; or the results cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    let common = &arguments.common;
    let standard = Blocks::standard(common.quick, common.verify, common.key_bytes)?;
    let total_bytes = arguments.total_bytes.unwrap_or(standard.total_bytes);
    let experiment = Blocks {
        // A total smaller than a pair is one pair.
        pair_bytes: arguments.pair_bytes.unwrap_or(standard.pair_bytes.min(total_bytes)),
        block_bytes: arguments.block_bytes.map(usize::try_from).transpose()?,
        total_bytes,
        window: arguments.window as usize,
        ..standard
    };
    let experiment = experiment.for_target(&common.target()?)?;
    common.measure(&experiment, ROUNDS, table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, expected) in [("1", 1), ("3k", 3 << 10), ("512M", 512 << 20), ("5g", 5 << 30)] {
            assert_eq!(bytes(text).expect(text), expected);
        }
        for text in ["", "k", "0", "1.5g", "-1", "1t", "99999999999999999g", "1é"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
