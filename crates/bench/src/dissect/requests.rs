//! The stages of a request: over sockets, and of a set through a channel in shared memory.

use std::time::Duration;

use anyhow::{Context, Result};
use fabcache_client::{Client, Protocol, Ttl};

use super::raw::Raw;
use super::{Buffers, Call, Dissect, add_hops, in_turn, split_store, store};
use crate::dummy::{Child, Dummy, Listen, RecordedCall, Settings, SharedMemoryDummy, record_call};
use crate::experiment::Rounds;
use crate::fill::fill;
use crate::limits::Limits;
use crate::results::Sample;
use crate::target::{Target, Url};

/// The increase of each stage, in order.
const HOPS: [&str; 4] = ["transport_ns", "protocol_ns", "client_ns", "server_ns"];

/// A call at all stages.
struct Stages<'e> {
    call: Call<'e>,
    iterations: u64,
    keys: u64,
    store_ns: Option<f64>,
    echo: Raw,
    raw: Raw,
    to_dummy: Client,
    to_server: Client,
    // Declared last, so that it is dropped after the connections to it.
    _dummy: Peer,
}

/// The dummy: a child process or a thread.
pub enum Peer {
    Process(#[allow(dead_code, reason = "it ends when dropped")] Child),
    Thread(#[allow(dead_code, reason = "it ends when dropped")] Dummy),
    Sharing(#[allow(dead_code, reason = "it ends when dropped")] SharedMemoryDummy),
}

/// Prepares the stages.
///
/// # Errors
/// The dummy does not come up, or the server does not store.
pub fn prepare<'e>(dissect: &'e Dissect, call: Call<'e>, target: &'e Target) -> Result<Box<dyn Rounds + 'e>> {
    let keys = dissect.keys(call.value_bytes);
    let to_server = target.client()?;
    let (dummy, url) = stand_in(dissect, &call, target, &to_server, keys)?;
    let stand_in = Target::new("the dummy", std::slice::from_ref(&url), target.protocol)?;
    let to_dummy = stand_in.client()?;
    for client in [&to_dummy, &to_server] {
        fill(client, call.items, 0..keys, |_| call.value_bytes)?;
    }
    // Requests through shared memory are binary packets.
    let protocol = if target.shares_memory() { Protocol::Binary } else { target.protocol };
    let (heard, mut key) = recorded(&call, protocol)?;
    let store_ns = store::is_ours(&to_server).then(|| store::measure(&call, &to_server, keys)).transpose()?;
    let mut echo = Raw::to_echo(&url, &heard, &key, target.timeout)?;
    let mut raw = Raw::to_dummy(&url, &heard, &key, target.timeout)?;
    let (mut buffers, mut sample) = (Buffers::default(), Sample::default());
    // A channel's memory is mapped by its first calls.
    for number in 0..keys {
        echo.call(call.items, number, &mut key).context("with an echo")?;
        raw.call(call.items, number, &mut key).context("with the dummy")?;
        for client in [&to_dummy, &to_server] {
            call.make(client, number, &mut buffers, &mut sample)?;
        }
    }
    Ok(Box::new(Stages {
        call,
        iterations: dissect.iterations,
        keys,
        store_ns,
        echo,
        raw,
        to_dummy,
        to_server,
        _dummy: dummy,
    }))
}

/// Returns the bytes of the call for item 0, and the key.
///
/// # Errors
/// The client library fails.
pub fn recorded(call: &Call<'_>, protocol: Protocol) -> Result<(RecordedCall, Vec<u8>)> {
    let (mut key, mut value) = (Vec::new(), Vec::new());
    call.items.key(0, &mut key);
    call.items.value(0, call.value_bytes, &mut value);
    let heard = record_call(protocol, (0, call.value_bytes as u32), |client| {
        if call.sets {
            client.set(&key, &value, Ttl::NEVER)?;
        } else {
            client.get(&key)?;
        }
        Ok(())
    })?;
    Ok((heard, key))
}

/// Starts a dummy in place of the target; one that shares memory has a store with as many items as the server.
///
/// # Errors
/// It does not come up.
pub fn stand_in(
    dissect: &Dissect,
    call: &Call<'_>,
    target: &Target,
    to_server: &Client,
    keys: u64,
) -> Result<(Peer, Url)> {
    if !target.shares_memory() {
        return start(dissect, target).context("the dummy");
    }
    let dummy = SharedMemoryDummy::start(store::shared(call, to_server, keys)?, dissect.cpus())?;
    let url = dummy.url().parse()?;
    Ok((Peer::Sharing(dummy), url))
}

/// Starts a dummy that is reached over the target's transport.
fn start(dissect: &Dissect, target: &Target) -> Result<(Peer, Url)> {
    let place = match target.urls[0].transport() {
        "tcp" => Listen::Tcp(([127, 0, 0, 1], 0).into()),
        _ => Listen::private_socket(),
    };
    let (dummy, url) = match &dissect.program {
        Some(program) => {
            let child = Child::start(program, &[place], Limits::default(), 1)?;
            child.process().pin(dissect.cpus())?;
            let url = child.urls()[0].parse()?;
            (Peer::Process(child), url)
        }
        None => {
            let dummy = Dummy::start(&Settings::new(vec![place]))?;
            let url = dummy.urls()[0].parse()?;
            (Peer::Thread(dummy), url)
        }
    };
    Ok((dummy, url))
}

impl Rounds for Stages<'_> {
    fn round(&mut self, _number: u32) -> Result<Sample> {
        let Stages { call, echo, raw, to_dummy, to_server, .. } = self;
        let (mut key, mut other_key) = (Vec::new(), Vec::new());
        let (mut buffers, mut other_buffers) = (Buffers::default(), Buffers::default());
        let mut echo = |number: u64, _: &mut Sample| -> Result<Duration> {
            echo.call(call.items, number, &mut key).context("with an echo")
        };
        let mut raw = |number: u64, _: &mut Sample| -> Result<Duration> {
            raw.call(call.items, number, &mut other_key).context("with the dummy")
        };
        let mut dummy = |number: u64, sample: &mut Sample| {
            call.make(to_dummy, number, &mut buffers, sample).context("with the dummy")
        };
        let mut server =
            |number: u64, sample: &mut Sample| call.make(to_server, number, &mut other_buffers, sample);
        let stages: &mut [super::Stage<'_>] = &mut [&mut echo, &mut raw, &mut dummy, &mut server];
        let (mut sample, times) = in_turn(stages, self.iterations, self.keys)?;
        add_hops(&mut sample, &HOPS, &times);
        split_store(&mut sample, self.store_ns);
        Ok(sample)
    }
}
