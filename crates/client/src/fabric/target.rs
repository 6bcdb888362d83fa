//! Where the values of GETs go: memory of the caller's, if that can be, without a copy.
//!
//! ```text
//!   Registered ──desk──> Lasting ──lend──> Buffer ──> a read ──> Held ──(dropped)──> desk ──> Registered
//! ```
//! While a read is under way it has the memory. One that is given up keeps it until the provider has let go of it, and the
//! caller has other memory by then: what comes late is written to nobody's.

use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex};

use fabcache_fabric::{Buffer, Domain, RegisteredMemory, SplitBuffer};

use crate::bounds::{COPIED_BYTES_MAX, VALUE_BYTES_MAX};

/// Where a caller's registered memory lies while a GET may use it, but for when a read has it.
#[derive(Clone, Debug, Default)]
pub struct ReturnSlot(Arc<Mutex<Option<RegisteredMemory>>>);

impl ReturnSlot {
    /// Takes what lies there.
    pub fn take(&self) -> Option<RegisteredMemory> {
        self.0.lock().expect(NO_PANIC).take()
    }

    /// Puts it there.
    pub fn put(&self, memory: Option<RegisteredMemory>) {
        *self.0.lock().expect(NO_PANIC) = memory;
    }

    /// What lies there, for a read of so many bytes.
    fn lend(&self, domain: &Arc<Domain>, bytes: usize) -> Option<Buffer> {
        let mut return_slot = self.0.lock().expect(NO_PANIC);
        let memory = return_slot.take_if(|memory| memory.len() >= bytes)?;
        match memory.lend(domain) {
            Ok(buffer) => Some(buffer),
            Err((memory, _)) => {
                // Then it is read elsewhere, and copied.
                *return_slot = Some(memory);
                None
            }
        }
    }
}

const NO_PANIC: &str = "no thread panics while it moves memory";

/// What was read into; a caller's memory goes back to where it came from.
#[derive(Debug)]
pub struct BufferGuard {
    buffer: Option<Buffer>,
    return_slot: Option<ReturnSlot>,
}

impl BufferGuard {
    /// A buffer, and whence it is if it is a caller's.
    pub fn new(buffer: Buffer, return_slot: Option<ReturnSlot>) -> BufferGuard {
        BufferGuard { buffer: Some(buffer), return_slot }
    }

    /// For an operation.
    pub fn take(mut self) -> (Buffer, Option<ReturnSlot>) {
        (self.buffer.take().expect(THERE), self.return_slot.take())
    }

    /// It is a caller's.
    pub fn is_callers(&self) -> bool {
        self.return_slot.is_some()
    }
}

const THERE: &str = "it is there until this is taken or dropped";

impl Deref for BufferGuard {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_ref().expect(THERE)
    }
}

impl Drop for BufferGuard {
    fn drop(&mut self) {
        if let (Some(return_slot), Some(buffer)) = (&self.return_slot, self.buffer.take()) {
            return_slot.put(buffer.into_registered());
        }
    }
}

/// What a GET may put its value into.
#[derive(Debug, Default)]
pub struct Target {
    /// Its memory is used again. What is in it, until the GET is over, is of no use.
    pub value: Vec<u8>,
    /// Memory that is registered, for those that fit.
    pub return_slot: Option<ReturnSlot>,
    assembly: Option<Assembly>,
}

/// A long value, which is read in parts.
#[derive(Debug)]
struct Assembly {
    whole: usize,
    /// Where it belongs, if its parts are read there: all of them, or none.
    room: Option<TargetSpace>,
}

#[derive(Debug)]
struct TargetSpace {
    parts: SplitBuffer,
    /// In what lay on the desk.
    is_lent: bool,
}

/// Where a value is that was read in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueLocation {
    /// There was none, or a read still has its memory.
    Nowhere,
    /// In [`Target::value`].
    InValue,
    /// At the front of what lies on the desk: so many bytes.
    OnDesk(usize),
}

impl Target {
    /// With memory that is to be used again.
    pub fn new(value: Vec<u8>, return_slot: Option<ReturnSlot>) -> Target {
        Target { value, return_slot, assembly: None }
    }

    /// Registered memory for an item of so many bytes with what is fetched behind it.
    pub fn whole(&self, domain: &Arc<Domain>, bytes: usize) -> Option<BufferGuard> {
        let return_slot = self.return_slot.as_ref().filter(|_| bytes > COPIED_BYTES_MAX)?;
        Some(BufferGuard::new(return_slot.lend(domain, bytes)?, Some(return_slot.clone())))
    }

    /// Whether the parts of a value of so many bytes are read where they belong.
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
            // Asked for once: if there is memory only later, the first parts are elsewhere.
            let room = room(self, whole)
                .map(|(buffer, is_lent)| TargetSpace { parts: SplitBuffer::new(buffer), is_lent });
            self.assembly = Some(Assembly { whole, room });
        }
        self.assembly.as_ref().is_some_and(|assembly| assembly.room.is_some())
    }

    /// Memory for such a part.
    pub fn part(&self, range: Range<usize>) -> Option<Buffer> {
        self.assembly.as_ref()?.room.as_ref()?.parts.take(range)
    }

    /// A place for a part that was read elsewhere.
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
            // To pin memory for one value takes longer than to copy it.
            return None;
        }
        let mut value = std::mem::take(&mut self.value);
        if value.capacity() < whole {
            // From the system, which has it zeroed.
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

    /// Nothing is read in parts any more. Where what was is. Memory that a read still has is left to it.
    pub fn collect(&mut self) -> ValueLocation {
        let Some(Assembly { whole, room }) = self.assembly.take() else { return ValueLocation::Nowhere };
        let in_value = |value: &[u8]| match value.len() == whole {
            true => ValueLocation::InValue,
            false => ValueLocation::Nowhere,
        };
        let Some(TargetSpace { parts, is_lent }) = room else { return in_value(&self.value) };
        match parts.join() {
            Ok(buffer) if is_lent => {
                drop(BufferGuard::new(buffer, self.return_slot.clone()));
                ValueLocation::OnDesk(whole)
            }
            Ok(buffer) => {
                self.value = buffer.into_own().unwrap_or_default();
                in_value(&self.value)
            }
            Err(_) => ValueLocation::Nowhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_of_a_value_are_read_where_it_belongs_or_none() {
        const WHOLE: usize = 100;
        let mut target = Target::new(b"of another".to_vec(), None);
        assert!(!target.reads_in(WHOLE, |_, _| None), "there is no memory");
        target.place(0..60, WHOLE).expect("within it").fill(1);
        // Somebody has given memory back meanwhile, but a part is elsewhere.
        assert!(!target.reads_in(WHOLE, |_, _| unreachable!("what was said holds for all parts")));
        assert!(target.part(60..100).is_none());
        target.place(60..100, WHOLE).expect("within it").fill(2);
        assert_eq!(target.collect(), ValueLocation::InValue);
        assert_eq!(target.value, [&[1; 60][..], &[2; 40]].concat());
        // Another value may find some.
        let mut is_asked = false;
        assert!(!target.reads_in(WHOLE + 1, |_, _| {
            is_asked = true;
            None
        }));
        assert!(is_asked);
    }

    #[test]
    fn a_value_that_was_not_read_is_nowhere() {
        let mut target = Target::new(b"of another".to_vec(), None);
        assert_eq!(target.collect(), ValueLocation::Nowhere, "it has no parts");
        assert!(!target.reads_in(3, |_, _| None));
        assert_eq!(target.collect(), ValueLocation::Nowhere, "none has come");
    }
}
