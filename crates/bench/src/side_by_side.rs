//! Several servers side by side: each workload in interleaved rounds, the server on one CPU and the client on another.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::client::Client;
use crate::process::pin;
use crate::server::{Candidate, Server};
use crate::workload::{Kind, Workload};

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Rounds of every workload on every server.
    pub rounds: usize,
    /// How long a round lasts.
    pub round: Duration,
    /// Keys that are resident.
    pub keys: u32,
    /// Bytes of a value.
    pub value_bytes: usize,
}

/// One round.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Round {
    /// Operations a second.
    pub operations_per_s: f64,
    /// CPU time of the server for an operation, in nanoseconds.
    pub server_cpu_ns: f64,
}

/// A workload on a server.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The server.
    pub server: String,
    /// The workload.
    pub workload: Workload,
    /// All rounds, in order.
    pub rounds: Vec<Round>,
}

/// How many items fit.
#[derive(Clone, Debug, Serialize)]
pub struct Capacity {
    /// The server.
    pub server: String,
    /// Memory limit in megabytes.
    pub megabytes: u32,
    /// Bytes of each value; keys have 20.
    pub value_bytes: usize,
    /// Items resident after many more were stored.
    pub items: u64,
    /// Resident memory of the process then, in bytes.
    pub resident_bytes: u64,
}

/// Runs every workload on every server, one worker thread each.
///
/// # Errors
/// A server does not come up, or answers wrongly.
pub fn throughput(
    servers: &[Candidate],
    plan: &Plan,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Measured>> {
    let kinds = [
        Kind::Get { pipeline: 1 },
        Kind::Get { pipeline: 32 },
        Kind::Multiget { keys: 48 },
        Kind::Set { pipeline: 1 },
        Kind::Set { pipeline: 32 },
    ];
    let mut running = Vec::new();
    for candidate in servers {
        let (server, address) = Server::start(candidate, &["-m", "256", "-t", "1"])?;
        server.pin(&0.into())?;
        let mut client = Client::connect(address)?;
        client.fill(&Workload { kind: kinds[0], keys: plan.keys, value_bytes: plan.value_bytes })?;
        running.push((candidate, server, client));
    }
    pin(None, &1.into()).context("the client needs a CPU of its own")?;
    let mut measured = Vec::new();
    for kind in kinds {
        let workload = Workload { kind, keys: plan.keys, value_bytes: plan.value_bytes };
        let mut rounds = vec![Vec::new(); running.len()];
        for round in 0..plan.rounds {
            // There and back, so that none always comes first.
            let turn = |step: usize| if round % 2 == 0 { step } else { servers.len() - 1 - step };
            for index in (0..servers.len()).map(turn) {
                let (candidate, server, client) = &mut running[index];
                progress(&format!(
                    "{}: {}, round {} of {}",
                    workload.name(),
                    candidate.name,
                    round + 1,
                    plan.rounds
                ));
                let before = server.cpu_time()?;
                let run = client.run(&workload, plan.round, round as u64 * 1_000 + 17)?;
                let cpu = server.cpu_time()? - before;
                rounds[index].push(Round {
                    operations_per_s: run.operations as f64 / run.elapsed.as_secs_f64(),
                    server_cpu_ns: cpu.as_nanos() as f64 / run.operations as f64,
                });
            }
        }
        for ((candidate, ..), rounds) in running.iter().zip(rounds) {
            measured.push(Measured { server: candidate.name.clone(), workload, rounds });
        }
    }
    Ok(measured)
}

/// Stores far more items than fit in 64 MB, and counts those that are there.
///
/// # Errors
/// As for [`throughput`].
pub fn capacity(
    servers: &[Candidate],
    value_bytes: usize,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Capacity>> {
    let megabytes = 64;
    let mut found = Vec::new();
    for candidate in servers {
        progress(&format!("items that fit: {}", candidate.name));
        let (server, address) = Server::start(candidate, &["-m", &megabytes.to_string(), "-t", "1"])?;
        let mut client = Client::connect(address)?;
        let keys = (megabytes << 20) / (value_bytes as u32 + 20) * 2;
        client.fill(&Workload { kind: Kind::Set { pipeline: 64 }, keys, value_bytes })?;
        // memcached makes room in the background.
        std::thread::sleep(Duration::from_secs(1));
        let items = client.stat("curr_items")?;
        found.push(Capacity {
            server: candidate.name.clone(),
            megabytes,
            value_bytes,
            items,
            resident_bytes: server.resident_bytes()?,
        });
    }
    Ok(found)
}
