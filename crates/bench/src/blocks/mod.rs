//! OHB's block I/O pattern: pairs of key and value far larger than an item, written in blocks, then read back in
//! order; with blocking calls, and in windows of non-blocking ones.

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use fabcache_client::Client;

use crate::experiment::{Experiment, Rounds};
use crate::fill::fill;
use crate::items::Items;
use crate::limits::Limits;
use crate::nonblocking::calls::{Api, CallKind, Calls, Drain, ItemToCall};
use crate::nonblocking::{both, misses};
use crate::results::{Case, Results, Sample};
use crate::target::Target;

/// OHB's pair size.
const PAIR_BYTES: u64 = 512 << 20;
/// The minimum that OHB writes.
const TOTAL_BYTES: u64 = 5 << 30;
/// Pair size with `quick`: less than memcached's default memory.
const QUICK_PAIR_BYTES: u64 = 8 << 20;
const QUICK_TOTAL_BYTES: u64 = 40 << 20;
/// Calls in flight.
const WINDOW: usize = 32;
/// Upper bound of a server's overhead per item, beside key and value.
const ITEM_OVERHEAD_BYTES: u64 = 256;
/// Maximum memory for blocks in flight …
const BUFFERS_BYTES_MAX: usize = 256 << 20;
/// … which still allows this many.
const WINDOW_MIN: usize = 2;
/// Largest block: the client library's largest value.
const BLOCK_BYTES_MAX: usize = 1 << 30;

/// Maximum number of blocks: the benchmark keeps some memory for each.
const BLOCKS_MAX: u64 = 1 << 22;

/// Names of figures.
const BYTES_PER_S: &str = "bytes_per_s";
const BLOCKING_BYTES_PER_S: &str = "blocking_bytes_per_s";
const BLOCK_BYTES: &str = "block_bytes";
const WINDOW_USED: &str = "window_used";

/// The experiment.
#[derive(Debug)]
pub struct Blocks {
    /// Bytes of a pair's value.
    pub pair_bytes: u64,
    /// Block size in bytes; default: the largest item of the server.
    pub block_bytes: Option<usize>,
    /// Bytes of all pairs together.
    pub total_bytes: u64,
    /// Maximum number of calls in flight.
    pub window: usize,
    /// Whether every byte of every block is compared.
    pub verify: bool,
    /// Keys and values.
    pub items: Items,
}

impl Blocks {
    /// Returns OHB's configuration: 5 GB in pairs of 512 MB.
    ///
    /// # Errors
    /// The key length is invalid.
    pub fn standard(quick: bool, verify: bool, key_bytes: usize) -> Result<Blocks> {
        Ok(Blocks {
            pair_bytes: if quick { QUICK_PAIR_BYTES } else { PAIR_BYTES },
            block_bytes: None,
            total_bytes: if quick { QUICK_TOTAL_BYTES } else { TOTAL_BYTES },
            window: WINDOW,
            verify,
            items: Items::new(key_bytes)?,
        })
    }

    /// Returns the block size: the configured one, or the largest that this target accepts.
    ///
    /// # Errors
    /// The total does not fit the target, or no block does.
    pub fn for_target(self, target: &Target) -> Result<Blocks> {
        let layout = self.layout(target, &target.client()?)?;
        Ok(Blocks { block_bytes: Some(usize::try_from(layout.block_bytes)?), ..self })
    }

    /// Returns the division into blocks for this target.
    fn layout(&self, target: &Target, client: &Client) -> Result<BlockLayout> {
        ensure!(self.window > 0, "a window of 0: at least 1 is in flight");
        ensure!(
            self.pair_bytes > 0 && self.pair_bytes <= self.total_bytes,
            "--pair-bytes {} --total-bytes {}: at least one pair is written",
            self.pair_bytes,
            self.total_bytes
        );
        let limits = Limits::of(client)?;
        let name = &target.name;
        self.ensure_room(name, limits.memory_bytes, target.urls.len() as u64)?;
        let added = ITEM_OVERHEAD_BYTES + self.items.key_bytes() as u64;
        let largest = limits.item_bytes.saturating_sub(added).min(BLOCK_BYTES_MAX as u64);
        ensure!(largest > 0, "{name}: items have at most {} bytes (-I): no block fits", limits.item_bytes);
        let wanted = self.block_bytes.map_or(largest, |bytes| bytes as u64);
        ensure!(
            (1..=largest).contains(&wanted),
            "--block-bytes {wanted}: from 1 to {largest} fit an item of {name}; start it with a larger -I for more"
        );
        let block_bytes = wanted.min(self.pair_bytes);
        let layout = BlockLayout {
            block_bytes,
            pair_bytes: self.pair_bytes,
            pairs: self.total_bytes / self.pair_bytes,
        };
        ensure!(
            layout.blocks() <= BLOCKS_MAX,
            "--block-bytes {block_bytes} makes {} blocks of --total-bytes {}, more than {BLOCKS_MAX}: give larger ones",
            layout.blocks(),
            self.total_bytes
        );
        Ok(layout)
    }

    fn ensure_room(&self, name: &str, memory_bytes: u64, servers: u64) -> Result<()> {
        let total = self.total_bytes;
        // An eighth for per-item overhead, and for memory that holds no whole item.
        let needed = total.saturating_add(total / 8);
        ensure!(
            needed <= memory_bytes,
            "--total-bytes {total} do not fit the {memory_bytes} bytes of memory of {name}: start it with -m {} or more{}, or give \
             --total-bytes {} or less",
            needed.div_ceil(servers.max(1)).div_ceil(1 << 20),
            if servers > 1 { ", each of its servers" } else { "" },
            memory_bytes / 9 * 8
        );
        Ok(())
    }
}

/// Pairs divided into blocks, which are numbered consecutively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockLayout {
    pairs: u64,
    pair_bytes: u64,
    block_bytes: u64,
}

impl BlockLayout {
    fn blocks_of_a_pair(&self) -> u64 {
        self.pair_bytes.div_ceil(self.block_bytes)
    }

    fn blocks(&self) -> u64 {
        self.pairs * self.blocks_of_a_pair()
    }

    /// Returns the size of the block with this number: the last of a pair has the remainder.
    fn bytes_of(&self, number: u64) -> usize {
        let before = number % self.blocks_of_a_pair() * self.block_bytes;
        self.block_bytes.min(self.pair_bytes - before) as usize
    }

    fn wanted(&self) -> impl Iterator<Item = ItemToCall> {
        let layout = *self;
        (0..layout.blocks()).map(move |number| ItemToCall { number, value_bytes: layout.bytes_of(number) })
    }

    /// Returns the number of blocks in flight for a requested window.
    fn window(&self, window: usize) -> usize {
        window.min((BUFFERS_BYTES_MAX / self.block_bytes as usize).max(WINDOW_MIN))
    }
}

impl Experiment for Blocks {
    fn name(&self) -> &'static str {
        "blocks"
    }

    fn method(&self) -> String {
        format!(
            "one thread; {} bytes in pairs of {} are written in blocks, then read back in order: by blocking calls, and by windows of \
             {} non-blocking calls, or fewer if blocks in flight would exceed {BUFFERS_BYTES_MAX} bytes; all blocks are \
             deleted before each writes; wall time without making and comparing blocks; {}",
            self.total_bytes / self.pair_bytes.max(1) * self.pair_bytes,
            self.pair_bytes,
            self.window,
            if self.verify {
                "every byte of every block compared"
            } else {
                "length and number of every block compared"
            }
        )
    }

    fn cases(&self) -> Vec<Case> {
        let case = |operation: &str| {
            let case = Case::new(operation)
                .with("pair_bytes", self.pair_bytes)
                .with("total_bytes", self.total_bytes)
                .with("window", self.window);
            match self.block_bytes {
                Some(bytes) => case.with("block_bytes", bytes),
                None => case,
            }
        };
        vec![case("iset"), case("iget")]
    }

    fn prepare<'e>(&'e self, target: &'e Target, case: &Case) -> Result<Box<dyn Rounds + 'e>> {
        let client = target.client()?;
        let layout = self.layout(target, &client)?;
        // As many blocks as the rounds write, so that no round touches memory for the first time.
        fill(&client, &self.items, 0..layout.blocks(), |number| layout.bytes_of(number))?;
        let window = layout.window(self.window);
        let how = CallKind { sets: case.operation == "iset", api: Api::Issued, drain: Drain::Wait };
        let calls = Calls::new(client.clone(), &self.items, self.verify, window);
        Ok(Box::new(Passes { target, client, items: &self.items, calls, layout, how, window }))
    }
}

/// Passes over all pairs of one target.
struct Passes<'e> {
    target: &'e Target,
    client: Client,
    items: &'e Items,
    calls: Calls<'e>,
    layout: BlockLayout,
    how: CallKind,
    window: usize,
}

impl Rounds for Passes<'_> {
    fn round(&mut self, number: u32) -> Result<Sample> {
        let Passes { client, items, calls, layout, how, .. } = self;
        let wanted: Vec<ItemToCall> = layout.wanted().collect();
        let mut rates = [0.0; 2];
        let before = || if how.sets { delete(client, items, layout.blocks()) } else { Ok(()) };
        let (_, sample) = both(number, self.target, before, |waits| {
            let pass = if waits { calls.blocking(how.sets, &wanted) } else { calls.windows(*how, &wanted) }?;
            rates[usize::from(waits)] = pass.bytes_per_s();
            Ok(pass)
        })?;
        let figures = [
            (BYTES_PER_S, rates[0]),
            (BLOCKING_BYTES_PER_S, rates[1]),
            (BLOCK_BYTES, layout.block_bytes as f64),
            (WINDOW_USED, self.window as f64),
        ];
        let figures = figures.into_iter().map(|(name, figure)| (name.to_owned(), figure)).collect();
        Ok(Sample { figures, ..sample })
    }
}

fn delete(client: &Client, items: &Items, blocks: u64) -> Result<()> {
    let mut key = Vec::new();
    for number in 0..blocks {
        items.key(number, &mut key);
        client.delete(&key)?;
    }
    Ok(())
}

/// Returns a table of the bytes written and read per second.
pub fn table(results: &Results) -> String {
    let mut text = String::new();
    for target in &results.targets {
        for (at, case) in results.cases().into_iter().enumerate() {
            let figure =
                |name: &str| results.median(&target.name, case, |sample| sample.figures.get(name).copied());
            let Some(latency) = results.latency(&target.name, case) else { continue };
            if at == 0 {
                let reported = |name: &str| case.number(name).unwrap_or_default();
                let _ = writeln!(
                    text,
                    "{}: {} bytes in pairs of {}, in blocks of {}, window {}",
                    target.name,
                    reported("total_bytes"),
                    reported("pair_bytes"),
                    figure(BLOCK_BYTES),
                    figure(WINDOW_USED)
                );
                let heads = ["MB/s", "blocking MB/s", "x", "block p50 us", "block p99 us"];
                let heads: String = heads.iter().map(|head| format!(" {head:>13}")).collect();
                let _ = writeln!(text, "{:>8}{heads}", "");
            }
            let gain = |sample: &Sample| {
                Some(sample.figures.get(BYTES_PER_S)? / sample.figures.get(BLOCKING_BYTES_PER_S)?)
            };
            let _ = writeln!(
                text,
                "{:>8} {:>13.1} {:>13.1} {:>13.2} {:>13.0} {:>13.0}",
                if case.operation == "iset" { "written" } else { "read" },
                figure(BYTES_PER_S) / 1e6,
                figure(BLOCKING_BYTES_PER_S) / 1e6,
                results.median(&target.name, case, gain),
                latency.percentile_ns(50.0) / 1e3,
                latency.percentile_ns(99.0) / 1e3
            );
        }
        text.push_str(&misses(results, &target.name));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_the_whole_of_their_pair() {
        for (pair_bytes, block_bytes, blocks) in [(100, 30, 4), (90, 30, 3), (30, 30, 1), (31, 30, 2)] {
            let layout = BlockLayout { pairs: 3, pair_bytes, block_bytes };
            assert_eq!((layout.blocks_of_a_pair(), layout.blocks()), (blocks, 3 * blocks));
            for pair in 0..3 {
                let bytes = |block: u64| layout.bytes_of(pair * blocks + block) as u64;
                assert_eq!((0..blocks).map(bytes).sum::<u64>(), pair_bytes);
                assert!((0..blocks).all(|block| (1..=block_bytes).contains(&bytes(block))));
            }
        }
    }

    #[test]
    fn blocks_in_flight_are_bounded() {
        let window = |block_bytes| BlockLayout { pairs: 1, pair_bytes: 1 << 40, block_bytes }.window(32);
        assert_eq!((window(1 << 20), window(32 << 20), window(1 << 30)), (32, 8, 2));
    }

    #[test]
    fn errors_name_the_needed_memory() {
        let blocks = Blocks::standard(false, false, 20).expect("a length of keys");
        let error = blocks.ensure_room("a", 64 << 20, 1).expect_err("5 GB").to_string();
        assert!(error.contains("-m 5760") && error.contains("--total-bytes 59652320"), "{error}");
        let error = blocks.ensure_room("a", 64 << 20, 3).expect_err("5 GB").to_string();
        assert!(error.contains("-m 1920 or more, each"), "{error}");
        blocks.ensure_room("a", 5760 << 20, 1).expect("it fits");
        let quick = Blocks::standard(true, false, 20).expect("a length of keys");
        quick.ensure_room("a", 64 << 20, 1).expect("memcached's default");
    }
}
