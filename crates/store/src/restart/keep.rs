//! A clean stop: the region stays in its file, and the server saves its own state in PATH.meta.

use fabcache_layout::header;
use fabcache_layout::succession::{self, StateRecord};
use fabcache_layout::sync::Ordering;

use super::saved_state::SavedState;
use super::tables_sum::tables_sum;
use crate::backing::Meta;
use crate::error::CreateError;
use crate::segments::restore::StillInUse;
use crate::store::Store;

/// Why the items are not kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// A thread that ended left something half done.
    #[error(transparent)]
    StillInUse(#[from] StillInUse),
    /// PATH was removed, or is another file than the server opened. The items end with the process.
    #[error("the file was removed or replaced while the server used it")]
    Replaced,
    /// PATH.meta could not be written.
    #[error(transparent)]
    Meta(#[from] CreateError),
    /// The region could not be written to its device.
    #[error("cannot write the memory file to its device")]
    Sync(#[from] std::io::Error),
}

impl Store {
    /// Saves the store for the next server, if its region is in a file; returns the number of items kept in memory. All
    /// threads that used it have ended, those that read and write flash devices too, and none uses it again.
    ///
    /// # Errors
    /// The items stay in the file, and the next server finds them as after a kill.
    pub fn keep(&self) -> Result<Option<u64>, KeepError> {
        let Some(sidecar) = self.backing.sidecar() else { return Ok(None) };
        self.finish_recovery(self.counters(0), &mut || true);
        if self.index.recovery_progress().groups_damaged > 0 {
            self.index.recount();
        }
        // Only tests stop without the last tick.
        self.tick();
        // Before the checksum of the header is saved.
        succession::end_cas(&self.memory, self.last_cas());
        succession::set_swept_epoch(&self.memory, self.swept_epoch.load(Ordering::Relaxed));
        succession::set_flush_at(&self.memory, self.flush_at.load(Ordering::Relaxed));
        let state = self.save()?.encode();
        let region_id = header::region_id(&self.memory);
        let record = StateRecord::of(&state, region_id);
        let meta = Meta { region_id, is_creating: false, secret: self.secret.clone(), state };
        let prepared = sidecar.prepare(&meta)?;
        // Another server may use these names by now: its PATH.meta stays.
        if !self.backing.is_in_place() {
            return Err(KeepError::Replaced);
        }
        prepared.put_in_place()?;
        self.backing.sync()?;
        succession::mark_clean(&self.memory, record);
        self.backing.sync()?;
        Ok(Some(self.index.items().saturating_sub(self.items_on_flash())))
    }

    fn save(&self) -> Result<SavedState, StillInUse> {
        let mut reclaim = self.reclaim.lock().expect("no thread panics while it reclaims");
        for id in reclaim.take_waiting() {
            if !self.segments.free_unpinned(id) {
                return Err(StillInUse::Sent(id));
            }
        }
        Ok(SavedState {
            region_id: header::region_id(&self.memory),
            incarnation: header::incarnation(&self.memory),
            header_sum: succession::lasting_sum(&self.memory),
            segments: self.segments.save()?,
            tables_sum: tables_sum(&self.memory, &self.geometry, self.geometry.segments),
            index: self.index.save(),
            reclaim: reclaim.save(),
            stored_epoch: self.stored_epoch.load(Ordering::Relaxed),
            flushed_order: self.flushed_order.load(Ordering::Relaxed),
            expired_epoch: self.expirer.lock().expect("no thread panics while it walks").epoch(),
            flash: self.flash.as_ref().map(|flash| flash.save()),
        })
    }
}
