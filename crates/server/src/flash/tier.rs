//! What the server keeps of the flash tier.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use anyhow::{Context as _, Result};
use fabcache_store::{FlashLoss, FlashOpening, FlashOptions, FlashState, Handle, Store};

use super::{Devices, StoreWrites, ThreadControl, run_maintenance_reads, run_writer};
use crate::settings::FlashSettings;
use crate::shared::Shared;

/// The flash tier of a server.
#[derive(Debug)]
pub struct FlashTier {
    /// The open devices.
    pub devices: Arc<Devices>,
    /// Wakes and stops the thread that writes.
    pub writer_control: ThreadControl,
    /// Wakes and stops the thread that reads for the store.
    pub maintenance_control: ThreadControl,
}

impl FlashTier {
    /// Opens the devices, and leaves the headers as they are.
    ///
    /// # Errors
    /// One cannot be used, or io_uring is not available.
    pub fn open(settings: &FlashSettings) -> Result<FlashTier> {
        fabcache_uring::probe_files().context(
            "the flash tier (--flash) needs io_uring, which this system refuses; allow it (sysctl kernel.io_uring_disabled, the \
             container's seccomp profile), or leave --flash out",
        )?;
        let devices = Arc::new(Devices::prepare(&settings.devices, settings.segment_bytes)?);
        let control = || ThreadControl::new().context("cannot make the doorbell of a flash thread");
        Ok(FlashTier { devices, writer_control: control()?, maintenance_control: control()? })
    }

    /// Returns the store's options.
    pub fn options(&self, settings: &FlashSettings) -> FlashOptions {
        FlashOptions {
            device_bytes: self.devices.device_bytes(),
            segment_bytes: settings.segment_bytes,
            item_bytes_min: settings.item_bytes_min,
            write_bytes_per_second: settings.write_bytes_per_second,
            set_id: self.devices.set_id(),
            previous_set_id: self.devices.previous_set_id(),
        }
    }

    /// Makes the devices this server's, once its store has begun.
    ///
    /// What the store saves from now on names this set.
    ///
    /// # Errors
    /// A header cannot be written.
    pub fn begin(&mut self) -> Result<()> {
        Arc::get_mut(&mut self.devices).expect("no thread uses the devices yet").begin()
    }

    /// Returns the tier's state as `stats` shows it, given the state of the store's writes.
    pub fn state(&self, writes: &FlashState) -> String {
        let mut lost = self.devices.lost();
        if *writes == FlashState::Working {
            lost.extend(self.devices.failing());
        }
        state_text(writes, &lost, self.devices.count())
    }
}

/// Returns the state of a tier with so many devices, of which some are lost.
fn state_text(writes: &FlashState, lost: &[String], devices: usize) -> String {
    if lost.is_empty() {
        return writes.to_string();
    }
    let is_none_left = lost.len() == devices;
    let lost = lost.join("; ");
    match writes {
        // Before a write fails, too.
        _ if is_none_left => format!("memory_only: {lost}"),
        FlashState::Failing => format!("{writes}; {lost}"),
        FlashState::Working => format!("degraded: {lost}"),
    }
}

/// Logs what became of the items on flash that the last server left.
pub fn log_opening(store: &Store, flash: Option<&FlashTier>) {
    match store.flash_opening() {
        FlashOpening::New => {}
        FlashOpening::Kept { items } => {
            tracing::info!("{items} items on flash are kept");
            if !store.evicts()
                && store.flash_segments(0, usize::MAX).iter().all(|segment| segment.sequence != 0)
            {
                tracing::warn!(
                    "no flash segment is free, so the server cannot compact flash (-M), and refuses writes until all items of a \
                     segment are deleted or expire; start once without -M, so that it evicts a segment"
                );
            }
        }
        FlashOpening::Lost { items, why } => {
            let items = items.map_or("the".into(), |items| items.to_string());
            let is_by_devices = matches!(why, FlashLoss::Shape | FlashLoss::OtherSet);
            let device = flash.filter(|_| is_by_devices).and_then(|flash| flash.devices.why_new_set());
            let device = device.map_or(String::new(), |device| format!(": {device}"));
            tracing::warn!("{items} items on flash are lost, because {why}{device}");
        }
    }
}

/// Starts the writer, and from its thread the one that reads for the store, if there is a flash tier.
///
/// Both end when the writer is stopped.
///
/// # Errors
/// The system starts no thread.
pub fn start_writer(shared: &Arc<Shared>) -> Result<Option<JoinHandle<()>>> {
    if shared.flash.is_none() {
        return Ok(None);
    }
    let shared = Arc::clone(shared);
    let [writing, reading] = std::array::from_fn(|_| Handle::new(&shared.store));
    let run = move || {
        let flash = shared.flash.as_ref().expect("there is a flash tier");
        let read = move || {
            if let Err(error) = run_maintenance_reads(&flash.devices, &reading, &flash.maintenance_control) {
                tracing::error!(
                    "the index does not grow any more, as the thread that reads for it failed: {error}"
                );
            }
        };
        let memory_is_free = || shared.inboxes.iter().for_each(|inbox| inbox.wake_for_memory());
        let writes = StoreWrites { handle: writing, memory_is_free };
        std::thread::scope(|scope| {
            if let Err(error) = Builder::new().name("flash-reads".into()).spawn_scoped(scope, read) {
                tracing::error!("cannot start the thread that reads for the index: {error}");
            }
            if let Err(error) = run_writer(&flash.devices, &writes, &flash.writer_control) {
                tracing::error!("nothing is written to flash any more, as its thread has failed: {error}");
            }
            flash.maintenance_control.stop();
        });
    };
    let thread = Builder::new().name("flash".into()).spawn(run);
    thread.context("cannot start the thread that writes to flash").map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_names_lost_devices() {
        let lost = |count: usize| -> Vec<String> { (0..count).map(|n| format!("/{n}: why")).collect() };
        for (writes, count, expected) in [
            (FlashState::Working, 0, "working"),
            (FlashState::Failing, 0, "memory_only: writes fail"),
            (FlashState::Working, 1, "degraded: /0: why"),
            (FlashState::Failing, 1, "memory_only: writes fail; /0: why"),
            (FlashState::Working, 2, "memory_only: /0: why; /1: why"),
            (FlashState::Failing, 2, "memory_only: /0: why; /1: why"),
        ] {
            assert_eq!(state_text(&writes, &lost(count), 2), expected);
        }
    }
}
