//! The stages through shared memory.
//!
//! A set goes through a channel: first its bytes to an echo in a thread of this process, then to one that decodes
//! them, then the client library's call to the server. The server's share includes the library's, as the dummy has no
//! items that it could share.
//!
//! A get is the client's own read of the server's memory. The machine's floor for that is measured by itself: two
//! dependent loads from as much memory, the bucket's line and the item's, and the copy of the value. The remainder is
//! the client's: hash, checks, and memory for the value. The processor prefetches loads of consecutive keys better
//! than those of the floor, so the remainder can be negative.

use std::time::Duration;

use anyhow::{Context, Result};
use fabcache_client::{Client, Protocol, Ttl};

use super::channel::{AnswerMode, ChannelClient};
use super::{Buffers, Call, Dissect, TOTAL, add_hops, in_turn, medians, split_store, store};
use crate::dummy::{Responder, record_call};
use crate::experiment::Rounds;
use crate::fill::fill;
use crate::results::Sample;
use crate::shm::{self, floors};
use crate::target::Target;

/// How long each floor is measured.
const FLOOR_ROUND: Duration = Duration::from_millis(20);
/// Loads of a get that depend on each other: the bucket's line, the item's.
const LOADS: f64 = 2.0;

/// Prepares the stages.
///
/// # Errors
/// The server does not store, or there is no memory.
pub fn prepare<'e>(dissect: &'e Dissect, call: Call<'e>, target: &'e Target) -> Result<Box<dyn Rounds + 'e>> {
    let keys = dissect.keys(call.value_bytes);
    let client = target.client()?;
    fill(&client, call.items, 0..keys, |_| call.value_bytes)?;
    let iterations = dissect.iterations;
    if !call.sets {
        return Ok(Box::new(Gets { call, client, iterations, keys }));
    }
    let (mut key, mut value) = (Vec::new(), Vec::new());
    call.items.key(0, &mut key);
    call.items.value(0, call.value_bytes, &mut value);
    // Requests through shared memory are binary packets.
    let heard = record_call(Protocol::Binary, (0, call.value_bytes as u32), |client| {
        Ok(client.set(&key, &value, Ttl::NEVER)?)
    })?;
    let connect = |answering| ChannelClient::new(&heard, &key, answering, dissect.cpus(), target.timeout);
    Ok(Box::new(Sets {
        call,
        iterations,
        keys,
        store_ns: store::measure(&call, &client, keys)?,
        echo: connect(AnswerMode::Echo(heard.request.len(), heard.answer.len()))?,
        protocol: connect(AnswerMode::Protocol(Box::new(Responder::mixed())))?,
        client,
    }))
}

struct Sets<'e> {
    call: Call<'e>,
    iterations: u64,
    keys: u64,
    store_ns: f64,
    echo: ChannelClient,
    protocol: ChannelClient,
    client: Client,
}

impl Rounds for Sets<'_> {
    fn round(&mut self, _number: u32) -> Result<Sample> {
        let Sets { call, echo, protocol, client, .. } = self;
        let (mut key, mut other_key, mut buffers) = (Vec::new(), Vec::new(), Buffers::default());
        let mut echo =
            |number: u64, _: &mut Sample| echo.call(call.items, number, &mut key).context("with an echo");
        let mut protocol = |number: u64, _: &mut Sample| {
            protocol.call(call.items, number, &mut other_key).context("with the dummy")
        };
        let mut whole = |number: u64, sample: &mut Sample| call.make(client, number, &mut buffers, sample);
        let stages: &mut [super::Stage<'_>] = &mut [&mut echo, &mut protocol, &mut whole];
        let (mut sample, times) = in_turn(stages, self.iterations, self.keys)?;
        add_hops(&mut sample, &["transport_ns", "protocol_ns", "server_ns"], &medians(&times));
        split_store(&mut sample, Some(self.store_ns));
        Ok(sample)
    }
}

struct Gets<'e> {
    call: Call<'e>,
    client: Client,
    iterations: u64,
    keys: u64,
}

impl Rounds for Gets<'_> {
    fn round(&mut self, _number: u32) -> Result<Sample> {
        let Gets { call, client, .. } = self;
        let mut buffers = Buffers::default();
        let mut whole = |number: u64, sample: &mut Sample| call.make(client, number, &mut buffers, sample);
        let (mut sample, times) = in_turn(&mut [&mut whole], self.iterations, self.keys)?;
        let floors = floors(self.keys, call.value_bytes)?;
        let total_ns = medians(&times)[0];
        let loads_ns = LOADS * floors.dependent_load_ns;
        let figures = [
            ("client_ns", total_ns - loads_ns - floors.copy_cold_ns),
            ("loads_ns", loads_ns),
            ("copy_ns", floors.copy_cold_ns),
            (TOTAL, total_ns),
        ];
        sample.figures = figures.into_iter().map(|(name, ns)| (name.to_owned(), ns)).collect();
        Ok(sample)
    }
}

fn floors(items: u64, value_bytes: usize) -> Result<floors::Floors> {
    let plan = shm::Plan {
        items: vec![items],
        value_bytes: vec![value_bytes],
        resident_bytes_max: u64::MAX,
        small_value_bytes: value_bytes,
        rounds: 1,
        round: FLOOR_ROUND,
        huge_pages: false,
        idle_clients: 0,
        idle: Duration::ZERO,
    };
    floors::measure(items, value_bytes.max(1), &plan)
}
