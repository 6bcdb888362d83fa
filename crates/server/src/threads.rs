//! The threads of a server.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use anyhow::{Context as _, Result};
use fabcache_store::Handle;
use fabcache_transport::fabric::FabricEndpoint;

use crate::shared::Shared;
use crate::worker::{ListenerEntry, Worker};
use crate::{flash, openshmem, populating, process, restart};

/// The threads that were started.
#[derive(Debug, Default)]
pub struct Threads {
    workers: Vec<JoinHandle<()>>,
    background: BackgroundThreads,
}

/// The threads that no client waits for. They end after the workers.
#[derive(Debug, Default)]
pub struct BackgroundThreads {
    threads: Vec<JoinHandle<()>>,
    has_worker_failed: bool,
}

impl Threads {
    /// Starts a worker for each fabric endpoint, or without endpoints if the fabric is off; then the threads in the
    /// background.
    ///
    /// # Errors
    /// A thread cannot be set up or started. Those before it run.
    pub fn start(
        &mut self,
        shared: &Arc<Shared>,
        listeners: &Arc<[ListenerEntry]>,
        ports: Vec<FabricEndpoint>,
    ) -> Result<()> {
        let mut ports = ports.into_iter();
        for index in 0..shared.settings.threads {
            let worker = Worker::new(Arc::clone(shared), index, Arc::clone(listeners), ports.next())
                .with_context(|| format!("cannot set up worker {index}"))?;
            self.workers.push(start_worker(worker, index, shared.settings.worker_cpu(index))?);
        }
        let background = &mut self.background.threads;
        background.push(start_housekeeper(shared)?);
        // Finishes a recovery and verifies the items.
        background.extend(restart::start(shared)?);
        background.extend(populating::start(shared)?);
        background.extend(flash::start_writer(shared)?);
        if let Some(pes) = &shared.pes {
            // Not among those that a stop joins: an access to a stopped PE's memory may block one.
            openshmem::start(pes)?;
        }
        Ok(())
    }

    /// Waits for the end of the workers, which drain.
    pub fn join_workers(self) -> BackgroundThreads {
        let has_worker_failed = !join(self.workers);
        BackgroundThreads { has_worker_failed, ..self.background }
    }
}

impl BackgroundThreads {
    /// Waits for the end of the threads, which were asked to stop. Returns whether no thread of the server failed.
    pub fn join(self) -> bool {
        join(self.threads) && !self.has_worker_failed
    }
}

/// Waits for all threads; returns whether none failed.
fn join(threads: Vec<JoinHandle<()>>) -> bool {
    threads.into_iter().map(JoinHandle::join).filter(Result::is_err).count() == 0
}

fn start_worker(worker: Worker, index: usize, cpu: Option<usize>) -> Result<JoinHandle<()>> {
    let run = move || {
        if let Some(cpu) = cpu
            && let Err(error) = process::cpus::pin(cpu)
        {
            tracing::warn!("cannot pin worker {index} to CPU {cpu}: {error:#}");
        }
        worker.run();
    };
    let thread = Builder::new().name(format!("worker-{index}")).spawn(run);
    thread.with_context(|| format!("cannot start worker {index}"))
}

fn start_housekeeper(shared: &Arc<Shared>) -> Result<JoinHandle<()>> {
    let (shared, handle) = (Arc::clone(shared), Handle::new(&shared.store));
    let run = move || shared.housekeeping.run(&handle);
    Builder::new().name("housekeeper".into()).spawn(run).context("cannot start the housekeeper")
}
