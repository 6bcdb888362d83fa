//! The stages of a request to a PE of an OpenSHMEM job, for a key of another PE.
//!
//! The requests are binary packets: all answers to one call have the same length. So the server can be measured without the
//! client library, which is the last stage: through shared memory it would read the PE's own items without a request.

use std::time::Duration;

use anyhow::{Context, Result};
use fabcache_client::distribution::Mapping;
use fabcache_client::{Address, Client, Distribution, Protocol, Ttl};

use super::raw::Raw;
use super::requests::{Peer, recorded, stand_in};
use super::{Buffers, Call, Dissect, ONE_SIDED, add_hops, in_turn, split_store, store};
use crate::experiment::Rounds;
use crate::results::Sample;
use crate::target::Target;

/// The increase of each stage, in order.
const HOPS: [&str; 5] = ["transport_ns", "protocol_ns", "server_ns", "forward_ns", "client_ns"];

/// A job, as one of its PEs reports it.
pub struct Job {
    /// The PE.
    pe: usize,
    mapping: Mapping,
    /// The number of PEs.
    pes: usize,
}

/// Returns the statistics of the server, if it has these.
fn statistics(client: &Client) -> Option<Vec<(String, String)>> {
    client.stats("fabcache").pop()?.ok()
}

impl Job {
    /// Returns the job of a target that is one PE's Unix socket or shared memory; `None` for other servers.
    ///
    /// # Errors
    /// The PE cannot be reached, or has no names that clients can use.
    pub fn of(target: &Target) -> Result<Option<Job>> {
        if target.urls.len() != 1 || !matches!(target.urls[0].transport(), "unix" | "shm") {
            return Ok(None);
        }
        let Some(statistics) = statistics(&target.client()?) else { return Ok(None) };
        let value = |name: &str| statistics.iter().find(|(stat, _)| stat == name).map(|(_, value)| value);
        let number = |name: &str| value(name).and_then(|value| value.parse::<usize>().ok());
        let (Some(pe), Some(pes @ 2..)) = (number("openshmem_pe"), number("openshmem_pes")) else {
            return Ok(None);
        };
        let name = |pe| value(&format!("openshmem_pe:{pe}:name")).context("a PE without a name");
        let names: Vec<Address> =
            (0..pes).map(|pe| Ok(name(pe)?.parse::<Address>()?)).collect::<Result<_>>()?;
        Ok(Some(Job { pe, mapping: Mapping::new(&Distribution::Ketama, &names, |_| true), pes }))
    }

    /// Returns the first items of a PE.
    fn items_of(&self, pe: usize, call: &Call<'_>, count: u64) -> Vec<u64> {
        let mut key = Vec::new();
        let is_there = |number: &u64| {
            call.items.key(*number, &mut key);
            self.mapping.server_of(&key) == Some(pe)
        };
        (0..).filter(is_there).take(count as usize).collect()
    }
}

/// A call at all stages.
struct Stages<'e> {
    call: Call<'e>,
    iterations: u64,
    /// Items of the PE, and of another one.
    own: Vec<u64>,
    others: Vec<u64>,
    store_ns: f64,
    echo: Raw,
    to_dummy: Raw,
    to_own: Raw,
    to_other: Raw,
    client: Client,
    // Declared last, so that it is dropped after the connections to it.
    _dummy: Peer,
}

/// Prepares the stages.
///
/// # Errors
/// The dummy does not come up, or a server does not store.
pub fn prepare<'e>(
    dissect: &'e Dissect,
    call: Call<'e>,
    target: &Target,
    job: &Job,
) -> Result<Box<dyn Rounds + 'e>> {
    let keys = dissect.keys(call.value_bytes);
    let own = job.items_of(job.pe, &call, keys);
    let others = job.items_of((job.pe + 1) % job.pes, &call, keys);
    let target = Target::new(&target.name, &target.urls, Protocol::Binary)?;
    let client = target.client()?;
    let (dummy, url) = stand_in(dissect, &call, &target, &client, keys)?;
    let for_dummy = Target::new("the dummy", std::slice::from_ref(&url), Protocol::Binary)?.client()?;
    fill(&for_dummy, &call, &others)?;
    for numbers in [&own, &others] {
        fill(&client, &call, numbers)?;
    }
    let (heard, key) = recorded(&call, Protocol::Binary)?;
    let place = &target.urls[0];
    let mut stages = Stages {
        call,
        iterations: dissect.iterations,
        store_ns: store::measure(&call, &client, keys)?,
        echo: Raw::to_echo(&url, &heard, &key, target.timeout)?,
        to_dummy: Raw::to_dummy(&url, &heard, &key, target.timeout)?,
        to_own: Raw::to_server(place, &heard, &key, target.timeout)?,
        to_other: Raw::to_server(place, &heard, &key, target.timeout)?,
        own,
        others,
        client,
        _dummy: dummy,
    };
    stages.warm_up()?;
    Ok(Box::new(stages))
}

impl Stages<'_> {
    /// Makes the call for each item at all stages, so that the memory of channels is mapped.
    fn warm_up(&mut self) -> Result<()> {
        let Stages { call, own, others, echo, to_dummy, to_own, to_other, client, .. } = self;
        let (mut key, mut buffers, mut sample) = (Vec::new(), Buffers::default(), Sample::default());
        for (own, other) in own.iter().zip(&*others) {
            echo.call(call.items, *other, &mut key).context("with an echo")?;
            to_dummy.call(call.items, *other, &mut key).context("with the dummy")?;
            to_own.call(call.items, *own, &mut key).context("of the PE's own key")?;
            to_other.call(call.items, *other, &mut key).context("of another PE's key")?;
            call.make(client, *other, &mut buffers, &mut sample)?;
        }
        Ok(())
    }
}

/// Stores the items with these numbers.
fn fill(client: &Client, call: &Call<'_>, numbers: &[u64]) -> Result<()> {
    let (mut key, mut value) = (Vec::new(), Vec::new());
    numbers.iter().try_for_each(|number| {
        call.items.key(*number, &mut key);
        call.items.value(*number, call.value_bytes, &mut value);
        client.set(&key, &value, Ttl::NEVER).context("cannot store an item")
    })
}

/// Returns how many of the PE's requests went to other PEs, and how many of these were reads of their memory.
fn forwarded(client: &Client) -> Option<[f64; 2]> {
    let statistics = statistics(client)?;
    let number = |name: &str| statistics.iter().find(|(stat, _)| stat == name)?.1.parse().ok();
    Some([number("openshmem_requests")?, number("openshmem_one_sided_reads")?])
}

impl Rounds for Stages<'_> {
    fn round(&mut self, _number: u32) -> Result<Sample> {
        let Stages { call, own, others, echo, to_dummy, to_own, to_other, client, .. } = self;
        let before = forwarded(client).context("the PE reports nothing")?;
        let mut keys: [Vec<u8>; 4] = Default::default();
        let [first, second, third, fourth] = &mut keys;
        let mut buffers = Buffers::default();
        let other = |at: u64| others[at as usize];
        let mut echo = |at: u64, _: &mut Sample| -> Result<Duration> {
            echo.call(call.items, other(at), first).context("with an echo")
        };
        let mut dummy = |at: u64, _: &mut Sample| -> Result<Duration> {
            to_dummy.call(call.items, other(at), second).context("with the dummy")
        };
        let mut own_key = |at: u64, _: &mut Sample| -> Result<Duration> {
            to_own.call(call.items, own[at as usize], third).context("of the PE's own key")
        };
        let mut other_key = |at: u64, _: &mut Sample| -> Result<Duration> {
            to_other.call(call.items, other(at), fourth).context("of another PE's key")
        };
        let mut whole = |at: u64, sample: &mut Sample| call.make(client, other(at), &mut buffers, sample);
        let stages: &mut [super::Stage<'_>] =
            &mut [&mut echo, &mut dummy, &mut own_key, &mut other_key, &mut whole];
        let (mut sample, times) = in_turn(stages, self.iterations, others.len() as u64)?;
        add_hops(&mut sample, &HOPS, &times);
        split_store(&mut sample, Some(self.store_ns));
        let after = forwarded(&self.client).context("the PE reports nothing")?;
        let [requests, reads] = [0, 1].map(|which| after[which] - before[which]);
        sample.figures.insert(ONE_SIDED.to_owned(), reads / requests.max(1.0));
        Ok(sample)
    }
}
