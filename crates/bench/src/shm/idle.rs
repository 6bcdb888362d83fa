//! The cost of many idle clients.

use anyhow::Result;
use fabcache_client::SharedMemory;
use serde::Serialize;

use super::Plan;
use super::servers::RunningServer;
use crate::server::MeasuredProgram;

const MEGABYTES: u64 = 64;

/// CPU time of an idle server.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Idle {
    /// Clients attached.
    pub clients: usize,
    /// Milliseconds of CPU time per second with the clients.
    pub cpu_ms_per_s: f64,
    /// Milliseconds of CPU time per second without clients.
    pub alone_cpu_ms_per_s: f64,
}

/// Measures a fresh server.
///
/// # Errors
/// The server does not start, or does not accept so many clients.
pub fn measure(ours: &MeasuredProgram, plan: &Plan) -> Result<Idle> {
    let running = RunningServer::sharing(ours, MEGABYTES, plan)?;
    let cpu_ms_per_s = || {
        // Let pending work finish.
        std::thread::sleep(plan.idle / 4);
        let before = running.server.cpu_time()?;
        std::thread::sleep(plan.idle);
        let cpu = running.server.cpu_time()? - before;
        anyhow::Ok(cpu.as_secs_f64() * 1e3 / plan.idle.as_secs_f64())
    };
    let alone_cpu_ms_per_s = cpu_ms_per_s()?;
    let clients: Result<Vec<_>> =
        (0..plan.idle_clients).map(|_| running.client(SharedMemory::Required)).collect();
    let clients = clients?;
    let cpu_ms_per_s = cpu_ms_per_s()?;
    Ok(Idle { clients: clients.len(), cpu_ms_per_s, alone_cpu_ms_per_s })
}
