//! The memory into which a GET's value is read: the caller's if possible, without a copy.
//!
//! ```text
//!   RegisteredBuffer ──> ReturnSlot ──lend──> Buffer ──> a read ──> BufferGuard ──(dropped)──> ReturnSlot
//! ```
//! A read in flight owns the memory. An abandoned read keeps it until the provider has released it; the caller gets other
//! memory, so that late bytes are written to no memory in use.

use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex};

use fabcache_fabric::{Buffer, Domain, RegisteredMemory, SplitBuffer};

use crate::bounds::{COPIED_BYTES_MAX, VALUE_BYTES_MAX};

/// Holds the caller's registered memory during a GET, except while a read owns it.
#[derive(Clone, Debug, Default)]
pub struct ReturnSlot(Arc<Mutex<Option<RegisteredMemory>>>);

impl ReturnSlot {
    /// Takes the memory.
    pub fn take(&self) -> Option<RegisteredMemory> {
        self.0.lock().expect(NO_PANIC).take()
    }

    /// Returns the memory.
    pub fn put(&self, memory: Option<RegisteredMemory>) {
        *self.0.lock().expect(NO_PANIC) = memory;
    }

    /// Lends the memory to a read, if it has enough bytes.
    fn lend(&self, domain: &Arc<Domain>, bytes: usize) -> Option<Buffer> {
        let mut return_slot = self.0.lock().expect(NO_PANIC);
        let memory = return_slot.take_if(|memory| memory.len() >= bytes)?;
        match memory.lend(domain) {
            Ok(buffer) => Some(buffer),
            Err((memory, _)) => {
                // The value is then read into another buffer and copied.
                *return_slot = Some(memory);
                None
            }
        }
    }
}

const NO_PANIC: &str = "no thread panics while it moves memory";

/// A buffer with read bytes. The caller's memory returns to its slot on drop.
#[derive(Debug)]
pub struct BufferGuard {
    buffer: Option<Buffer>,
    return_slot: Option<ReturnSlot>,
}

impl BufferGuard {
    /// Returns a guard; `return_slot` is set if the buffer is the caller's memory.
    pub fn new(buffer: Buffer, return_slot: Option<ReturnSlot>) -> BufferGuard {
        BufferGuard { buffer: Some(buffer), return_slot }
    }

    /// Takes the buffer for another operation.
    pub fn take(mut self) -> Buffer {
        self.buffer.take().expect(PRESENT)
    }

    /// Returns whether the buffer is the caller's memory.
    pub fn is_callers(&self) -> bool {
        self.return_slot.is_some()
    }
}

const PRESENT: &str = "the buffer is present until this is taken or dropped";

impl Deref for BufferGuard {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_ref().expect(PRESENT)
    }
}

impl Drop for BufferGuard {
    fn drop(&mut self) {
        if let (Some(return_slot), Some(buffer)) = (&self.return_slot, self.buffer.take()) {
            return_slot.put(buffer.into_registered());
        }
    }
}

/// The memory for a GET's value.
#[derive(Debug, Default)]
pub struct Target {
    /// Reused memory; its content is unspecified until the GET completes.
    pub value: Vec<u8>,
    /// Registered memory, for values that fit.
    pub return_slot: Option<ReturnSlot>,
    assembly: Option<Assembly>,
}

/// A long value that is read in parts.
#[derive(Debug)]
struct Assembly {
    whole: usize,
    /// The value's memory, if its parts are read directly into it: all of them, or none.
    room: Option<TargetSpace>,
}

#[derive(Debug)]
struct TargetSpace {
    parts: SplitBuffer,
    /// Whether the memory is the caller's registered memory.
    is_lent: bool,
}

/// Where a value that was read is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValuePlacement {
    /// There is no value, or a read still owns its memory.
    Nowhere,
    /// In the registered memory.
    Registered(Range<usize>),
    /// In other memory: [`Target::value`].
    Other,
}

impl Target {
    /// Returns a target with memory to reuse.
    pub fn new(value: Vec<u8>, return_slot: Option<ReturnSlot>) -> Target {
        Target { value, return_slot, assembly: None }
    }

    /// Lends registered memory for an item of this many bytes, including what is fetched with it.
    pub fn whole(&self, domain: &Arc<Domain>, bytes: usize) -> Option<BufferGuard> {
        let return_slot = self.return_slot.as_ref().filter(|_| bytes > COPIED_BYTES_MAX)?;
        Some(BufferGuard::new(return_slot.lend(domain, bytes)?, Some(return_slot.clone())))
    }

    /// Returns whether the parts of a value of `whole` bytes are read directly into it.
    pub fn reads_in_place(&mut self, domain: &Arc<Domain>, whole: usize) -> bool {
        self.reads_in(whole, |target, whole| target.room(domain, whole))
    }

    fn reads_in(
        &mut self,
        whole: usize,
        room: impl FnOnce(&mut Target, usize) -> Option<(Buffer, bool)>,
    ) -> bool {
        if whole > VALUE_BYTES_MAX {
            return false;
        }
        let is_same = |assembly: &Assembly| assembly.whole == whole;
        if !self.assembly.as_ref().is_some_and(is_same) {
            self.collect();
            // Decided once: the first parts are already elsewhere if memory becomes available later.
            let room = room(self, whole)
                .map(|(buffer, is_lent)| TargetSpace { parts: SplitBuffer::new(buffer), is_lent });
            self.assembly = Some(Assembly { whole, room });
        }
        self.is_read_in_place(whole)
    }

    /// Returns whether the parts of a value of `whole` bytes are being read directly into it.
    pub fn is_read_in_place(&self, whole: usize) -> bool {
        self.assembly.as_ref().is_some_and(|assembly| assembly.whole == whole && assembly.room.is_some())
    }

    /// Copies a value that was read elsewhere, if there is one.
    pub fn copy(&mut self, value: Option<&[u8]>) -> ValuePlacement {
        // Chunks of a value that was replaced meanwhile may be there.
        self.value.clear();
        let Some(value) = value else { return ValuePlacement::Nowhere };
        self.value.extend_from_slice(value);
        ValuePlacement::Other
    }

    /// Returns the memory for a part.
    pub fn part(&self, range: Range<usize>) -> Option<Buffer> {
        self.assembly.as_ref()?.room.as_ref()?.parts.take(range)
    }

    /// Returns the range for a part that was read elsewhere and must be copied.
    pub fn place(&mut self, range: Range<usize>, whole: usize) -> Option<&mut [u8]> {
        if self.value.len() != whole {
            self.value = vec![0; whole];
        }
        self.value.get_mut(range)
    }

    fn room(&mut self, domain: &Arc<Domain>, whole: usize) -> Option<(Buffer, bool)> {
        if let Some(buffer) =
            self.return_slot.as_ref().and_then(|return_slot| return_slot.lend(domain, whole))
        {
            return Some((buffer, true));
        }
        if domain.provider().pins_memory {
            // Pinning memory for one value takes longer than copying it.
            return None;
        }
        let mut value = std::mem::take(&mut self.value);
        if value.capacity() < whole {
            // Zeroed by the system.
            value = vec![0; whole];
        }
        value.resize(whole, 0);
        match Buffer::own(domain, value) {
            Ok(buffer) => Some((buffer, false)),
            Err((value, _)) => {
                self.value = value;
                None
            }
        }
    }

    /// Ends reading in parts, and returns where the value is. A read that still owns memory keeps it.
    pub fn collect(&mut self) -> ValuePlacement {
        let Some(Assembly { whole, room }) = self.assembly.take() else { return ValuePlacement::Nowhere };
        let in_value = |value: &[u8]| match value.len() == whole {
            true => ValuePlacement::Other,
            false => ValuePlacement::Nowhere,
        };
        let Some(TargetSpace { parts, is_lent }) = room else { return in_value(&self.value) };
        match parts.join() {
            Ok(buffer) if is_lent => {
                drop(BufferGuard::new(buffer, self.return_slot.clone()));
                ValuePlacement::Registered(0..whole)
            }
            Ok(buffer) => {
                self.value = buffer.into_own().unwrap_or_default();
                in_value(&self.value)
            }
            Err(_) => ValuePlacement::Nowhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_all_read_in_place_or_all_copied() {
        const WHOLE: usize = 100;
        let mut target = Target::new(b"of another".to_vec(), None);
        assert!(!target.reads_in(WHOLE, |_, _| None), "no registered memory");
        target.place(0..60, WHOLE).expect("within it").fill(1);
        // Memory is available by now, but a part is elsewhere.
        assert!(!target.reads_in(WHOLE, |_, _| unreachable!("the decision holds for all parts")));
        assert!(target.part(60..100).is_none());
        target.place(60..100, WHOLE).expect("within it").fill(2);
        assert_eq!(target.collect(), ValuePlacement::Other);
        assert_eq!(target.value, [&[1; 60][..], &[2; 40]].concat());
        // Another value may use the memory.
        let mut is_requested = false;
        assert!(!target.reads_in(WHOLE + 1, |_, _| {
            is_requested = true;
            None
        }));
        assert!(is_requested);
    }

    #[test]
    fn incomplete_value_has_no_location() {
        let mut target = Target::new(b"of another".to_vec(), None);
        assert_eq!(target.collect(), ValuePlacement::Nowhere, "the value has no parts");
        assert!(!target.reads_in(3, |_, _| None));
        assert_eq!(target.collect(), ValuePlacement::Nowhere, "no part was read");
    }
}
