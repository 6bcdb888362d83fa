//! The stages of a get through shared memory: the client's own read of a region, without a request.
//!
//! A stage visits items of its own: it would find those of another stage in the CPU's caches.

use std::cell::RefCell;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fabcache_client::Client;
use fabcache_layout::Memory;
use fabcache_layout::item::{ChunkEntry, Item};
use fabcache_layout::mapping::Mapping;
use fabcache_layout::reader::{Mapped, Protection, ReadOutcome, Region, Validation};

use super::{Buffers, Call, Dissect, add_hops, in_turn, store};
use crate::dummy::SharedMemoryDummy;
use crate::experiment::Rounds;
use crate::fill::fill;
use crate::results::Sample;
use crate::target::Target;

/// The increase of each stage, in order.
const HOPS: [&str; 4] = ["copy_ns", "lookup_ns", "client_ns", "server_ns"];
/// Stages that read the dummy's region.
const STAGES_OF_DUMMY: u64 = 3;
/// How often each item is read through the client before: it reports reads of an item until there are a few.
const READS_BEFORE: u64 = 16;

/// A get at all stages.
struct Stages<'e> {
    call: Call<'e>,
    iterations: u64,
    keys: u64,
    raw: RawReader,
    to_dummy: Client,
    to_server: Client,
    // Declared last, so that it is dropped after its readers.
    _dummy: SharedMemoryDummy,
}

/// Prepares the stages.
///
/// # Errors
/// The server does not store, or there is no memory.
pub fn prepare<'e>(dissect: &'e Dissect, call: Call<'e>, target: &'e Target) -> Result<Box<dyn Rounds + 'e>> {
    // Both regions have as many items, and a stage visits a part of them.
    let keys = (dissect.keys(call.value_bytes) / STAGES_OF_DUMMY).max(1);
    let items = keys * STAGES_OF_DUMMY;
    let to_server = target.client()?;
    fill(&to_server, call.items, 0..items, |_| call.value_bytes)?;
    let handle = store::shared(&call, &to_server, items)?;
    let dummy = SharedMemoryDummy::start(handle, dissect.cpus())?;
    let stand_in = Target::new("the dummy", &[dummy.url().parse()?], target.protocol)?;
    let raw = RawReader::new(&dummy, &call, keys)?;
    let to_dummy = stand_in.client()?;
    let mut stages =
        Stages { call, iterations: dissect.iterations, keys, raw, to_dummy, to_server, _dummy: dummy };
    stages.warm_up()?;
    Ok(Box::new(stages))
}

impl Stages<'_> {
    /// Reads all items at all stages, so that their pages are mapped.
    fn warm_up(&mut self) -> Result<()> {
        let Stages { call, keys, raw, to_dummy, to_server, .. } = self;
        let (mut buffers, mut sample) = (Buffers::default(), Sample::default());
        for number in (0..*keys).cycle().take((*keys * READS_BEFORE) as usize) {
            raw.copy(call, number)?;
            raw.look_up(call, *keys + number)?;
            call.make(to_dummy, 2 * *keys + number, &mut buffers, &mut sample).context("with the dummy")?;
            call.make(to_server, number, &mut buffers, &mut sample)?;
        }
        Ok(())
    }
}

impl Rounds for Stages<'_> {
    fn round(&mut self, _number: u32) -> Result<Sample> {
        let Stages { call, keys, raw, to_dummy, to_server, .. } = self;
        let raw = RefCell::new(raw);
        let (mut buffers, mut other_buffers) = (Buffers::default(), Buffers::default());
        let mut copy = |number: u64, _: &mut Sample| raw.borrow_mut().copy(call, number);
        let mut lookup = |number: u64, _: &mut Sample| raw.borrow_mut().look_up(call, *keys + number);
        let mut dummy = |number: u64, sample: &mut Sample| {
            call.make(to_dummy, 2 * *keys + number, &mut buffers, sample).context("with the dummy")
        };
        let mut server =
            |number: u64, sample: &mut Sample| call.make(to_server, number, &mut other_buffers, sample);
        let stages: &mut [super::Stage<'_>] = &mut [&mut copy, &mut lookup, &mut dummy, &mut server];
        let (mut sample, times) = in_turn(stages, self.iterations, *keys)?;
        add_hops(&mut sample, &HOPS, &times);
        Ok(sample)
    }
}

/// Reads the dummy's region without the client library.
struct RawReader {
    /// Where the values of the items are: offset and length of each part.
    parts: Vec<Vec<(u64, usize)>>,
    mapped: Mapped,
    // Declared before the mapping that it uses.
    memory: Memory,
    _mapping: Mapping,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl RawReader {
    /// Maps the region, and finds the values of so many items.
    ///
    /// # Errors
    /// There is no memory, or the region does not have the items.
    fn new(dummy: &SharedMemoryDummy, call: &Call<'_>, items: u64) -> Result<RawReader> {
        let (file, bytes) = dummy.region()?;
        let region = Arc::new(Region::map(file, bytes, Protection::Sealed)?);
        let mapped = Mapped::over(&region, Validation::SameHost);
        let mapped = mapped.ok().context("the dummy's memory is not a region")?;
        let mapping = Mapping::to_read(file, bytes)?;
        // SAFETY: it is dropped with the mapping, below, and nothing here writes.
        let memory = unsafe { mapping.memory() };
        let (parts, key) = (Vec::new(), Vec::new());
        let mut reader = RawReader { parts, mapped, memory, _mapping: mapping, key, value: Vec::new() };
        reader.begin()?;
        for number in 0..items {
            let parts = reader.parts(call, number)?;
            reader.parts.push(parts);
        }
        Ok(reader)
    }

    /// Begins a read as the format requires.
    fn begin(&mut self) -> Result<()> {
        let second = self.mapped.region_second();
        ensure!(self.mapped.begin(second), "nothing keeps the dummy's region");
        Ok(())
    }

    /// Finds the value of an item.
    fn parts(&mut self, call: &Call<'_>, number: u64) -> Result<Vec<(u64, usize)>> {
        call.items.key(number, &mut self.key);
        let outside = "the item is outside the region";
        let (ReadOutcome::Hit(hit), _) = self.mapped.get(&self.key) else {
            bail!("the dummy's region has no item {number}");
        };
        let at = hit.location.offset;
        let item = Item::read(&self.memory, at).context(outside)?;
        let payload = at + item.payload_at();
        if !item.is_chained() {
            return Ok(vec![(payload, item.value_len as usize)]);
        }
        let mut table = vec![0; item.payload_len() as usize];
        self.memory.copy_out(payload, &mut table);
        let chunks = table.as_chunks().0.iter().map(ChunkEntry::from_bytes);
        let parts = chunks.map(|chunk| {
            let header = Item::read(&self.memory, chunk.offset).context(outside)?;
            Ok((chunk.offset + header.payload_at(), chunk.len as usize))
        });
        parts.collect()
    }

    /// Copies the value of an item; returns the duration.
    fn copy(&mut self, call: &Call<'_>, number: u64) -> Result<Duration> {
        // The list of parts is no part of the copy.
        let parts = black_box(&self.parts[number as usize][..]);
        black_box(parts.first());
        let begun = Instant::now();
        self.value.clear();
        for (offset, len) in parts {
            self.memory.append_to(*offset, *len, &mut self.value);
        }
        let taken = begun.elapsed();
        self.check(call, number)?;
        Ok(taken)
    }

    /// Reads an item by its key; returns the duration.
    fn look_up(&mut self, call: &Call<'_>, number: u64) -> Result<Duration> {
        call.items.key(number, &mut self.key);
        let begun = Instant::now();
        self.begin()?;
        let outcome = self.mapped.get_into(&self.key, &mut self.value);
        let taken = begun.elapsed();
        ensure!(
            matches!(outcome, ReadOutcome::Hit(_)),
            "the dummy's region has no item {number}: {outcome:?}"
        );
        self.check(call, number)?;
        Ok(taken)
    }

    fn check(&self, call: &Call<'_>, number: u64) -> Result<()> {
        let is_right = call.items.is_right(number, call.value_bytes, &self.value, call.verify);
        ensure!(is_right, "a wrong value of item {number} in the dummy's region");
        Ok(())
    }
}
