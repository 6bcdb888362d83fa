//! Hits in RAM: alone, beside other clients that read RAM, and beside other clients that read the device.

use std::time::Duration;

use anyhow::{Context, Result};

use super::filled::Filled;
use super::servers::Amount;
use super::{FlashTier, KEY_BYTES, connect, figure, run};
use crate::engine::{Engine, Outcome, Work};
use crate::experiment::Rounds;
use crate::fill::fill;
use crate::items::Items;
use crate::results::Sample;
use crate::target::Target;

/// Number of items that are always in RAM.
pub const ITEMS: u64 = 1_000;
/// Bytes of their keys, by which they differ from those that fill the server.
const HOT_KEY_BYTES: usize = KEY_BYTES + 4;
/// The statistic with the gets that read the device.
const DEVICE_READS: &str = "get_extstore";
/// The other clients begin and end so much earlier and later.
const MARGIN: Duration = Duration::from_millis(200);

/// Rounds of one target: three parts in turn.
pub struct RamHits<'e> {
    tier: &'e FlashTier,
    filled: Filled,
    items: Items,
    hot: Engine,
    other_ram: Engine,
    other_flash: Engine,
}

impl<'e> RamHits<'e> {
    /// Connects the clients.
    ///
    /// # Errors
    /// The server does not store, or cannot be reached.
    pub fn new(tier: &'e FlashTier, target: &Target, filled: Filled) -> Result<RamHits<'e>> {
        let Amount { items, value_bytes, .. } = filled.amount;
        let window = tier.window(value_bytes);
        let hot = |pipeline| Work { key_bytes: HOT_KEY_BYTES, ..tier.work(ITEMS, value_bytes, pipeline) };
        Ok(RamHits {
            tier,
            items: Items::new(HOT_KEY_BYTES)?,
            hot: connect(target, &hot(1), 1)?,
            other_ram: connect(target, &hot(window), tier.clients)?,
            other_flash: connect(target, &tier.work(items, value_bytes, window), tier.clients)?,
            filled,
        })
    }

    /// Stores the hot items, and reads them until a server counts them as used again.
    fn warm_up(&mut self, number: u32) -> Result<()> {
        let value_bytes = self.filled.amount.value_bytes;
        fill(&self.filled.client, &self.items, 0..ITEMS, |_| value_bytes)?;
        run(&mut self.other_ram, MARGIN, number).map(drop)
    }

    /// Reads the hot items, beside the other clients if given; returns both results.
    fn beside(&mut self, other: Option<Other>, number: u32) -> Result<(Outcome, Option<Outcome>)> {
        let time = self.tier.time;
        let engine = match other {
            None => return Ok((run(&mut self.hot, time, number)?, None)),
            Some(Other::Ram) => &mut self.other_ram,
            Some(Other::Flash) => &mut self.other_flash,
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(move || run(engine, time + 2 * MARGIN, number));
            std::thread::sleep(MARGIN);
            let hits = run(&mut self.hot, time, number);
            let other = other.join().map_err(|_| anyhow::anyhow!("the other clients' thread panicked"))?;
            Ok((hits?, Some(other.context("the other clients")?)))
        })
    }
}

/// What the other clients read.
#[derive(Clone, Copy)]
enum Other {
    Ram,
    Flash,
}

impl Rounds for RamHits<'_> {
    fn round(&mut self, number: u32) -> Result<Sample> {
        self.warm_up(number)?;
        let mut parts = [(2, Some(Other::Flash)), (1, Some(Other::Ram)), (0, None)];
        if number % 2 == 1 {
            parts.reverse();
        }
        let mut hits: [Outcome; 3] = Default::default();
        let mut figures = Vec::new();
        for (part, other) in parts {
            let before = self.filled.statistic(DEVICE_READS)?;
            let (found, others) = self.beside(other, number)?;
            let device_reads = self.filled.statistic(DEVICE_READS)?.zip(before);
            if let (None, Some((after, before))) = (other, device_reads) {
                let part = after.saturating_sub(before) as f64 / found.operations.max(1) as f64;
                figures.push((figure::ALONE_DEVICE_PART, part));
            }
            let p99_us = found.all_latency().percentile_ns(99.0) / 1e3;
            figures.push((figure::HITS_P99_US[part], p99_us));
            if let Some(others) = others {
                figures.push((figure::OTHER_PER_S[part - 1], others.rate()));
            }
            hits[part] = found;
        }
        let [alone, _, beside] = hits;
        let mut sample = Sample { base_latency: Some(alone.all_latency()), ..beside.into() };
        let success = 1.0 - sample.misses as f64 / sample.operations.max(1) as f64;
        sample.figures.insert(figure::SUCCESS.into(), success);
        sample.figures.extend(self.filled.page_cache()?);
        sample.figures.extend(figures.into_iter().map(|(name, value)| (name.to_owned(), value)));
        Ok(sample)
    }
}
