//! Devices to which nothing is written for a time: a write has failed, or the device is lost.

/// After a failed write, nothing is written to its device for so long.
const FAILED_NS: u64 = 10_000_000_000;
/// The end of a lost device's pause.
const LOST: u64 = u64::MAX;

/// When the pause of each device ends; 0 if its last write has succeeded.
#[derive(Debug)]
pub(super) struct DevicePauses(Vec<u64>);

impl DevicePauses {
    /// Returns the pauses of so many devices that work.
    pub(super) fn new(devices: usize) -> DevicePauses {
        DevicePauses(vec![0; devices])
    }

    /// Records the result of a write.
    pub(super) fn note_write(&mut self, device: usize, is_written: bool, now_ns: u64) {
        let until_ns = &mut self.0[device];
        // A write to a device that was lost since may have reached it.
        if *until_ns != LOST {
            *until_ns = if is_written { 0 } else { now_ns + FAILED_NS };
        }
    }

    /// Records that a device is lost, or back.
    pub(super) fn set_lost(&mut self, device: usize, is_lost: bool) {
        self.0[device] = if is_lost { LOST } else { 0 };
    }

    /// Returns whether nothing is written to a device now.
    pub(super) fn is_paused(&self, device: usize, now_ns: u64) -> bool {
        self.0[device] > now_ns
    }

    /// Returns whether nothing is written to any device now.
    pub(super) fn are_all_paused(&self, now_ns: u64) -> bool {
        self.0.iter().all(|until_ns| *until_ns > now_ns)
    }

    /// Returns whether the last write to each device has succeeded.
    pub(super) fn is_none_failing(&self) -> bool {
        self.0.iter().all(|until_ns| *until_ns == 0)
    }

    /// Returns whether the last write to each device has failed.
    pub(super) fn are_all_failing(&self) -> bool {
        self.0.iter().all(|until_ns| *until_ns > 0)
    }
}
