//! The state of the expiry walk, which the store keeps under a lock.

/// The state of the expiry walk.
#[derive(Debug, Default)]
pub struct Expirer {
    /// The flush epoch that all segments were walked for, or are due to be.
    pub(super) epoch: u64,
    /// The second in which the TTL buckets were last adapted.
    pub(super) balanced_at: u32,
}

#[cfg(not(loom))]
impl Expirer {
    /// Returns the state of a walk that went so far.
    pub(crate) fn of_epoch(epoch: u64) -> Expirer {
        Expirer { epoch, ..Expirer::default() }
    }

    /// Returns the flush epoch that all segments were walked for, or are due to be.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }
}
