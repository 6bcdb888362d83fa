//! The start of a job: what its PEs agree on, and the memory that they share.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use fabcache_distribution::{Address, Distribution, Mapping};
use fabcache_fabric::channel::CHANNEL_VERSION;
use fabcache_layout::checksum::Secret;
use fabcache_layout::format::{FORMAT_VERSION, HEADER_BYTES};
use fabcache_layout::header;
use fabcache_layout::reader::region_clock::{RegionClock, precise_monotonic_ns};
use fabcache_shmem::{HeapFile, Process, RemoteHeaps, SymmetricHeap};
use fabcache_store::Store;
use fabcache_store::backing::Given;
use fabcache_transport::openshmem::HeapPlan;

use super::exchange::exchange;
use super::gets::RemoteRegion;
use super::mapped_reads::MappedRegion;
use super::pes::Pes;
use super::settings::{NAME_BYTES_MAX, OpenShmemSettings, check_name};
use super::words;
use crate::addresses::ListenAddress;
use crate::settings::Settings;

/// Bytes of the first card: a name and the options that must be equal.
const FIRST_CARD_BYTES: u64 = 1 << 10;
/// Bytes of the second: how to read the region …
const REGION_CARD_BYTES: u64 = 256;
/// … and whether words arrive whole.
const VERDICT_BYTES: u64 = 64;

/// An error that all PEs of a job have: they can meet before they end.
#[derive(Debug)]
pub struct AgreedError(anyhow::Error);

impl AgreedError {
    fn new(error: impl Into<anyhow::Error>) -> AgreedError {
        AgreedError(error.into())
    }
}

impl Display for AgreedError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl Error for AgreedError {}

/// A job whose PEs agree, and its heap.
#[derive(Debug)]
pub struct StartedJob {
    /// The heap: links, then the region.
    pub heap: Arc<dyn SymmetricHeap>,
    /// Where what lies in it.
    pub plan: HeapPlan,
    /// The names of all PEs.
    pub names: Vec<String>,
    /// Which PE has a key.
    pub mapping: Mapping,
    /// The region's file; none if no client may or can map it.
    file: Option<HeapFile>,
}

fn plan(settings: &Settings, openshmem: &OpenShmemSettings, pes: usize) -> HeapPlan {
    let region_bytes = settings.memory_bytes_max.max(settings.memory_bytes).next_multiple_of(4096);
    HeapPlan::new(pes, openshmem.shape, REGION_CARD_BYTES + VERDICT_BYTES, region_bytes)
}

/// Returns how many bytes of symmetric memory a server needs in a job of so many PEs.
pub fn heap_bytes(settings: &Settings, openshmem: &OpenShmemSettings, pes: usize) -> u64 {
    FIRST_CARD_BYTES * pes as u64 + plan(settings, openshmem, pes).bytes()
}

impl StartedJob {
    /// Agrees with the other PEs of the job, and allocates the heap; collective.
    ///
    /// # Errors
    /// Options differ, names are equal, or the heap is too small: an [`AgreedError`]. Or a PE does not come.
    pub fn agree(
        process: &dyn Process,
        settings: &Settings,
        openshmem: &OpenShmemSettings,
    ) -> Result<StartedJob> {
        let name = name_of(settings, openshmem)?;
        let cards = process.allocate(FIRST_CARD_BYTES * process.pes() as u64).map_err(AgreedError::new)?;
        let place = |pe: usize| pe as u64 * FIRST_CARD_BYTES..(pe as u64 + 1) * FIRST_CARD_BYTES;
        let text = format!("{name}\n{}", equal_options(settings, openshmem));
        let texts = exchange(&mut *cards.open()?, &cards.memory(0, cards.bytes()), place, text.as_bytes())?;
        let (names, addresses) = agreed(&texts).map_err(AgreedError::new)?;
        // A PE that does not respond keeps its keys: others would not know its items.
        let mapping = Mapping::new(&Distribution::Ketama, &addresses, |_| true);
        let plan = plan(settings, openshmem, process.pes());
        let heap = process.allocate(plan.bytes()).map_err(AgreedError::new)?;
        let mut started = StartedJob { heap, plan, names, mapping, file: None };
        if settings.shm.is_some() {
            started.open_file();
        }
        started.report(openshmem);
        Ok(started)
    }

    fn report(&self, openshmem: &OpenShmemSettings) {
        let of_each = openshmem.shape.bytes_for_each_pe();
        tracing::info!(
            pe = self.heap.pe(),
            pes = self.heap.pes(),
            name = self.names[self.heap.pe()],
            heap_bytes = self.plan.bytes(),
            link_bytes = of_each * self.heap.pes() as u64,
            "part of an OpenSHMEM job; links take {of_each} bytes of each PE's memory for every PE"
        );
    }

    /// Opens the file of the region, for clients to map. The server does this before it changes its user.
    fn open_file(&mut self) {
        let region = self.plan.region();
        match self.heap.file(region.start, region.end - region.start) {
            Ok(file) => self.file = Some(file),
            Err(why) => tracing::info!(
                "clients cannot map the symmetric heap (--shm), and read by requests through channels: {why}"
            ),
        }
    }

    /// Returns the memory for the store.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn region(&self) -> Result<Given> {
        let given = self.given();
        let Some(HeapFile { file, offset }) = &self.file else { return Ok(given) };
        let file = file.try_clone().context("cannot open the symmetric heap for clients (--shm)")?;
        Ok(given.with_file(file, *offset))
    }

    fn given(&self) -> Given {
        let region = self.plan.region();
        let owner = Arc::new(Arc::clone(&self.heap));
        // SAFETY: the heap stays allocated until the process ends, and is zero: the search for its file has probed words of the
        // region, and left 0. Besides the store, `Pes`, its threads and the workers access the parts before the region, and other
        // PEs write these parts only; they, and clients of this host, read the region.
        unsafe { Given::new(self.heap.address(region.start), region.end - region.start, owner) }
    }

    /// Tells the other PEs how to read this PE's region, and returns theirs, by PE.
    fn exchange_regions(
        &self,
        heaps: &mut dyn RemoteHeaps,
        store: &Store,
    ) -> Result<Vec<Option<RemoteRegion>>> {
        let cards = self.heap.memory(0, self.plan.card(self.heap.pes() - 1).end);
        let card =
            RegionCard { secret: store.secret().clone(), clock_ns: store.clock_ns(), grace: store.grace() };
        let texts = exchange(heaps, &cards, |pe| self.parts_of_card(pe)[0].clone(), &card.to_bytes())?;
        let arrived_ns = precise_monotonic_ns();
        // Clients that map the heap must not know the secrets.
        for pe in 0..self.heap.pes() {
            let card = self.parts_of_card(pe)[0].clone();
            cards.copy_in(card.start, &vec![0; (card.end - card.start) as usize]);
        }
        let range = self.plan.region();
        let mut region = |pe: usize, text: &[u8]| {
            let RegionCard { secret, clock_ns, grace } = RegionCard::from_bytes(text)?;
            let mut header = [0; HEADER_BYTES as usize];
            heaps.get(pe, range.start, &mut header);
            let birth = header::from_bytes(&header, range.end - range.start).ok()?;
            let clock = RegionClock::answered(clock_ns, arrived_ns);
            Some(RemoteRegion {
                birth,
                secret,
                grace_ns: grace.as_nanos() as u64,
                clock,
                range: range.clone(),
            })
        };
        Ok(texts.iter().enumerate().map(|(pe, text)| region(pe, text)).collect())
    }

    /// Returns the two parts of a PE's card.
    fn parts_of_card(&self, pe: usize) -> [Range<u64>; 2] {
        let card = self.plan.card(pe);
        let middle = card.start + REGION_CARD_BYTES;
        [card.start..middle, middle..card.end]
    }

    /// Tells the other PEs whether words were whole here, and returns whether they were everywhere.
    fn exchange_verdicts(&self, heaps: &mut dyn RemoteHeaps, are_whole: bool) -> Result<bool> {
        let cards = self.heap.memory(0, self.plan.card(self.heap.pes() - 1).end);
        let verdicts = exchange(heaps, &cards, |pe| self.parts_of_card(pe)[1].clone(), &[are_whole.into()])?;
        Ok(verdicts.iter().all(|verdict| *verdict == [1]))
    }
}

/// Joins the job with this store: sets up what leads to other PEs, for the threads to drive.
///
/// # Errors
/// A PE does not come, or the system has no descriptor left.
pub fn join(settings: OpenShmemSettings, job: StartedJob, store: &Store) -> Result<Pes> {
    let mut heaps = job.heap.open()?;
    let mut regions = job.exchange_regions(&mut *heaps, store)?;
    let agree = |heaps: &mut dyn RemoteHeaps, are_whole| job.exchange_verdicts(heaps, are_whole);
    let are_whole = words::arrive_whole(&mut *heaps, &*job.heap, job.plan.words(), agree)?;
    if !are_whole {
        tracing::warn!(
            "words of other hosts' memory do not arrive whole: all requests to them go by messages"
        );
    }
    let mut mapped = vec![None; regions.len()];
    let range = job.plan.region();
    for (pe, region) in regions.iter_mut().enumerate().filter(|(pe, _)| *pe != job.heap.pe()) {
        let Some(found) = region.take() else {
            tracing::warn!(
                pe,
                name = job.names[pe],
                "a PE's memory cannot be read: all requests to it go by messages"
            );
            continue;
        };
        match job.heap.mapped(pe, range.start, range.end - range.start) {
            Some(memory) if settings.one_sided != Some(false) => {
                mapped[pe] = Some(MappedRegion { memory, clock: found.clock });
            }
            _ => *region = Some(found).filter(|_| are_whole && settings.one_sided == Some(true)),
        }
    }
    Pes::new(settings, job, regions, mapped)
}

/// A description of a PE's region for the others.
struct RegionCard {
    secret: Secret,
    clock_ns: u64,
    grace: Duration,
}

impl RegionCard {
    fn to_bytes(&self) -> Vec<u8> {
        let numbers = [self.clock_ns, self.grace.as_nanos() as u64].map(u64::to_le_bytes).concat();
        [&numbers[..], &self.secret.0].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<RegionCard> {
        let (clock_ns, rest) = bytes.split_first_chunk()?;
        let (grace_ns, secret) = rest.split_first_chunk()?;
        let grace = Duration::from_nanos(u64::from_le_bytes(*grace_ns));
        Some(RegionCard {
            secret: Secret(secret.try_into().ok()?),
            clock_ns: u64::from_le_bytes(*clock_ns),
            grace,
        })
    }
}

/// Returns this PE's name: the host's, and the port of the first TCP listener unless it is memcached's.
fn name_of(settings: &Settings, openshmem: &OpenShmemSettings) -> Result<String> {
    if let Some(name) = &openshmem.name {
        return Ok(name.clone());
    }
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy().into_owned();
    let port = settings.listeners.iter().find_map(|listener| match listener.place {
        ListenAddress::Tcp(address) => Some(address.port()),
        _ => None,
    });
    let name = match port {
        Some(port) if port != 0 && port != fabcache_distribution::DEFAULT_PORT => format!("{host}:{port}"),
        _ => host,
    };
    check_name(&name)
        .context("the host's name is of no use to clients; give another with --openshmem-name")?;
    Ok(name)
}

/// Returns the options that must be equal in all PEs, as text.
fn equal_options(settings: &Settings, openshmem: &OpenShmemSettings) -> String {
    let shape = openshmem.shape;
    format!(
        "fabcached {} (region format {FORMAT_VERSION}, messages {CHANNEL_VERSION}) -m {} --memory-max {} --openshmem-slots {} \
         --openshmem-slot-size {} --openshmem-buffer {} --openshmem-mutex={}",
        env!("CARGO_PKG_VERSION"),
        settings.memory_bytes,
        settings.memory_bytes_max,
        shape.slots,
        shape.slot_bytes,
        shape.buffer_bytes,
        shape.has_mutexes,
    )
}

/// Returns the names of all PEs, and what addresses these are, from their cards, which all PEs have.
fn agreed(cards: &[Vec<u8>]) -> Result<(Vec<String>, Vec<Address>)> {
    let (mut names, mut addresses): (Vec<String>, Vec<Address>) = Default::default();
    let mut first = "";
    for (pe, card) in cards.iter().enumerate() {
        let Some((name, options)) = std::str::from_utf8(card).ok().and_then(|card| card.split_once('\n'))
        else {
            bail!("PE {pe} is not a fabcached of this version");
        };
        if pe == 0 {
            first = options;
        }
        ensure!(
            options == first,
            "the PEs of a job need equal options, but PE 0 ({}) has {first}, and PE {pe} ({name}) has {options}",
            names[0]
        );
        let address = check_name(name).with_context(|| format!("PE {pe}"))?;
        if let Some(other) = addresses.iter().position(|other| *other == address) {
            bail!(
                "PE {other} and PE {pe} are both called {name}, by which keys are mapped; give each a name of its own with \
                 --openshmem-name, or other ports (-p)"
            );
        }
        names.push(name.to_owned());
        addresses.push(address);
    }
    Ok((names, addresses))
}

const _: () = assert!(NAME_BYTES_MAX + 512 < FIRST_CARD_BYTES as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pes_that_disagree_are_named() {
        let cards =
            |cards: &[&str]| agreed(&cards.iter().map(|card| card.as_bytes().to_vec()).collect::<Vec<_>>());
        assert_eq!(cards(&["a\n-m 5", "b\n-m 5"]).expect("equal").0, ["a", "b"]);
        let of = |result: Result<_>| format!("{:#}", result.map(|_| ()).expect_err("unequal"));
        let unequal = of(cards(&["a\n-m 5", "b\n-m 5", "c\n-m 6"]));
        assert!(unequal.contains("PE 0 (a) has -m 5") && unequal.contains("PE 2 (c) has -m 6"), "{unequal}");
        let port = of(cards(&["a\n-m 5", "a:11211\n-m 5"]));
        assert!(port.contains("PE 0 and PE 1"), "{port}: it is the default");
        let twice = of(cards(&["a\n-m 5", "b\n-m 5", "a\n-m 5"]));
        assert!(twice.contains("PE 0 and PE 2") && twice.contains("--openshmem-name"), "{twice}");
        assert!(of(cards(&["a\n", "\u{0}"])).contains("PE 1"));
    }
}
