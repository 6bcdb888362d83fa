//! The flash tier over a restart.
//!
//! A clean stop saves which flash segments hold items, and the next server continues there.
//!
//! Slots on flash are in the region, as those of items in memory, and a clean stop saves the checksum of each group. What only
//! the server knows is saved in PATH.meta: the use of each segment, the order of the free ones, and where the log goes on.
//!
//! **At the stop** no write is begun. An item whose write has not ended is still in memory, and its slot leads there. Pages that
//! were handed to a device are not used again before their segment is, whether their write has ended or not.
//!
//! **No slot leads to a flash segment that was used again.** The saved state is used once: the start replaces PATH.meta on the
//! device before anything else changes, and after a kill or a power failure recovery clears every slot on flash. If an
//! administrator restores old copies of PATH and PATH.meta, the device headers reveal it: each opening writes a new random id
//! into all headers before the first segment is written, and the saved state names the id of its own opening. If one header has
//! another id, as that of a swapped device, no item on flash is kept.
//!
//! **No segment seems to have fewer items than slots lead to it.** Counts of live items are not saved. Each group counts its slots
//! when it is checked, and the further segments of long items, before any request uses it. Until all are checked no segment is
//! retired. A damaged group loses its slots without being counted. A slot without a counted item of a kept segment is cleared in
//! the same check, and so are all slots if the tier is not kept.
//!
//! **Bytes that a device lost** in a power failure, or replaced by older ones, are a miss: the checksum of each page covers the
//! tier's id, and the sequence of its segment, which goes on from server to server.
//!
//! Where promoted items are on flash is not saved: they are written again.

use std::collections::HashSet;

use super::log::Log;
use super::segments::{FlashSegments, Kind};
use super::{Flash, FlashOptions};
use crate::restart::Unclean;
use crate::restart::saved_state::{SavedFlash, SavedFlashLog, SavedFlashSegment, StateError};
use crate::store::Store;

/// What became of the items on flash that the last server left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashOpening {
    /// There were none.
    New,
    /// They are still there.
    Kept {
        /// The number of items.
        items: u64,
    },
    /// They are lost.
    Lost {
        /// The number of items; after a kill it is unknown.
        items: Option<u64>,
        /// The reason.
        why: FlashLoss,
    },
}

/// Why items on flash are lost at a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlashLoss {
    /// Only a clean stop saves the state of the flash tier.
    #[error("the last server did not stop cleanly")]
    Unclean,
    /// The state that the last server saved cannot be used.
    #[error(transparent)]
    UnusableState(#[from] StateError),
    /// The options have no flash tier.
    #[error("the server has no flash devices now")]
    NoDevices,
    /// The tier's shape is another one.
    #[error("the number or size of the flash devices or the size of a flash segment has changed")]
    Shape,
    /// A device was replaced or written by another server, or the memory file is an older copy.
    #[error("the flash devices are not the set that the last server of the memory file used")]
    OtherSet,
    /// The saved numbers contradict each other.
    #[error("the saved state of the flash tier is inconsistent")]
    Inconsistent,
}

impl FlashLoss {
    /// Returns the reason for which a server that recovers items loses those on flash.
    pub(crate) fn at_recovery(why: Unclean, has_devices: bool) -> FlashLoss {
        match why {
            _ if !has_devices => FlashLoss::NoDevices,
            Unclean::NotStopped => FlashLoss::Unclean,
            Unclean::State(why) => FlashLoss::UnusableState(why),
        }
    }
}

impl Flash {
    /// Returns what the next server needs to continue.
    ///
    /// No thread uses the tier meanwhile.
    pub(crate) fn save(&self) -> SavedFlash {
        let mut log = self.log().save(&self.segments);
        let open = log.open.as_ref().map(|open| open.id);
        let (mut segments, mut items) = (Vec::new(), 0);
        for segment in self.segments.uses().filter(|segment| segment.kind != Kind::Free) {
            // Without items a segment has pages of promoted ones at most.
            if segment.live == 0 && open != Some(segment.id) {
                log.free.push(segment.id);
                continue;
            }
            items += u64::from(segment.live);
            segments.push(SavedFlashSegment {
                id: segment.id,
                sequence: segment.sequence,
                epoch: segment.epoch,
                items: segment.items,
                bytes: segment.bytes,
                last_expiry: segment.last_expiry,
            });
        }
        let (device_segments, segment_pages) = self.segments.shape();
        SavedFlash {
            set_id: self.set_id,
            tier: self.segments.tier(),
            device_segments,
            segment_pages,
            segments,
            log,
            spans: self.spans.save(),
            items: items.saturating_sub(self.spans.further_parts()),
        }
    }

    /// Continues an empty tier with what the last server saved.
    fn restore(&mut self, saved: &SavedFlash) -> Result<(), FlashLoss> {
        if !is_consistent(saved, &self.segments) {
            return Err(FlashLoss::Inconsistent);
        }
        self.segments.set_tier(saved.tier);
        let open = saved.log.open.as_ref().map(|open| open.id);
        for segment in &saved.segments {
            self.segments.restore(segment, open == Some(segment.id));
        }
        let log: &mut Log = self.log.get_mut().expect("no thread panics while it holds the log");
        log.restore(&saved.log, &self.segments);
        self.spans.restore(&saved.spans);
        self.first_sequence = saved.log.next_sequence;
        Ok(())
    }
}

/// Returns whether the saved state is consistent.
///
/// Then each segment of this tier is used or free, and the log continues behind what was written.
fn is_consistent(saved: &SavedFlash, segments: &FlashSegments) -> bool {
    let SavedFlashLog { free, fresh, next_sequence, open } = &saved.log;
    let mut listed: Vec<u32> =
        saved.segments.iter().map(|segment| segment.id).chain(free.iter().copied()).collect();
    listed.sort_unstable();
    let used: HashSet<u32> = saved.segments.iter().map(|segment| segment.id).collect();
    let is_used = |id: u32| used.contains(&id);
    listed.iter().copied().eq(0..segments.len() as u32)
        && saved.segments.iter().all(|segment| (1..*next_sequence).contains(&segment.sequence))
        && saved.spans.iter().all(|(page, spanned)| {
            segments.segment_of(*page).is_some_and(is_used) && spanned.iter().copied().all(is_used)
        })
        && *next_sequence > 0
        && *fresh as usize <= free.len()
        && open.as_ref().is_none_or(|open| is_used(open.id) && open.next_page <= segments.segment_pages())
}

/// Continues a new tier with what the last server saved, if the devices are the same.
///
/// Reads and writes no slot.
pub(crate) fn restore_flash(
    flash: Option<&mut Flash>,
    options: Option<&FlashOptions>,
    saved: Option<&SavedFlash>,
) -> FlashOpening {
    let Some(saved) = saved else { return FlashOpening::New };
    let restored = match (flash, options) {
        (Some(flash), Some(options)) => {
            if flash.segments.shape() != (saved.device_segments.clone(), saved.segment_pages) {
                Err(FlashLoss::Shape)
            } else if options.previous_set_id != Some(saved.set_id) {
                Err(FlashLoss::OtherSet)
            } else {
                flash.restore(saved)
            }
        }
        _ => Err(FlashLoss::NoDevices),
    };
    match restored {
        Ok(()) => FlashOpening::Kept { items: saved.items },
        Err(_) if saved.items == 0 => FlashOpening::New,
        Err(why) => FlashOpening::Lost { items: Some(saved.items), why },
    }
}

impl Store {
    /// Returns the number of slots that lead to flash and are counted.
    pub(crate) fn items_on_flash(&self) -> u64 {
        self.flash.as_ref().map_or(0, |flash| {
            let parts: u64 = flash.segments.uses().map(|segment| u64::from(segment.live)).sum();
            parts.saturating_sub(flash.spans.further_parts())
        })
    }
}
