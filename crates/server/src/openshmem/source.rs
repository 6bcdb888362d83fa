//! The links to PEs of this host, as a worker drives them: by loads and stores, as nothing else may block a worker.
//!
//! While a worker of this PE is awake, it drives these links, and the progress threads sleep. They take over when all workers sleep.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use anyhow::{Result, bail};
use fabcache_shmem::{MappedHeaps, sleep};
use fabcache_transport::{Kind, Source, WaitMode};

use super::pes::Pes;
use crate::commands::Context;
use crate::shared::Shared;
use crate::worker::source::SourceHooks;

/// Drives the links to PEs of this host, for one worker.
#[derive(Debug)]
pub struct PeSource {
    shared: Arc<Shared>,
    heaps: MappedHeaps,
    /// The PEs of this host.
    near: Box<[usize]>,
    is_polling: bool,
    made_progress: bool,
    is_closed: bool,
}

impl PeSource {
    /// Returns none if no other PE is on this host.
    pub fn new(shared: &Arc<Shared>) -> Option<PeSource> {
        let pes = shared.pes.as_ref()?;
        let near: Box<[usize]> = pes.others().filter(|pe| pes.is_near(*pe)).collect();
        if near.is_empty() {
            return None;
        }
        sleep::begin_polling(pes.polling());
        Some(PeSource {
            shared: Arc::clone(shared),
            heaps: MappedHeaps::new(&*pes.heap),
            near,
            is_polling: true,
            made_progress: false,
            is_closed: false,
        })
    }

    fn pes(&self) -> &Pes {
        self.shared.pes.as_ref().expect("only PEs have a source")
    }

    fn polling(&self) -> &AtomicU32 {
        self.pes().polling()
    }

    fn end_polling(&mut self) {
        if std::mem::take(&mut self.is_polling) {
            sleep::end_polling(self.polling());
        }
    }

    /// Leaves the links to the other workers and the threads.
    fn leave(&mut self) {
        if self.is_polling {
            self.end_polling();
            self.near.iter().for_each(|pe| self.pes().assignment.wake(*pe));
        }
    }
}

impl Source for PeSource {
    fn progress(&mut self, _: &mut Vec<u64>) -> io::Result<()> {
        let pes = self.shared.pes.as_ref().expect("only PEs have a source");
        self.made_progress = false;
        for pe in &self.near {
            if !pes.is_silent(*pe)
                && let Some(mut links) = pes.links_to(*pe)
                && links.has_work(pes)
            {
                self.made_progress |= links.progress(pes, &mut self.heaps);
            }
        }
        Ok(())
    }

    fn made_progress(&self) -> bool {
        self.made_progress
    }

    fn arm(&mut self) -> WaitMode {
        self.end_polling();
        if self.has_events() {
            self.disarm();
            return WaitMode::Spin;
        }
        WaitMode::Sleep
    }

    fn disarm(&mut self) {
        if !self.is_closed && !std::mem::replace(&mut self.is_polling, true) {
            sleep::begin_polling(self.polling());
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn has_events(&self) -> bool {
        self.pes().has_near_work(&self.near)
    }

    fn links(&self) -> usize {
        if self.is_closed { 0 } else { self.near.len() }
    }

    fn kind(&self) -> Kind {
        Kind::OpenShmem
    }

    fn close(&mut self) {
        self.is_closed = true;
        self.leave();
    }
}

impl Drop for PeSource {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The hooks of a [`PeSource`], which never fails.
#[derive(Debug)]
pub struct PeHooks;

impl SourceHooks for PeHooks {
    fn name(&self) -> &'static str {
        "the links to PEs of this host"
    }

    fn reopen(&mut self, _: &mut Context) -> Result<Box<dyn Source>> {
        bail!("the job has ended")
    }

    fn progressed(&mut self, _: &Context) {}

    fn failed(&mut self, _: &mut Context) {}
}
