//! A caller's memory for values that are read into it and sent from it without a copy.

use std::fmt;
use std::ops::Deref;

use fabcache_fabric::{RegisteredMemory, RegistrationCache};
use fabcache_layout::format::STATUS_AND_COUNTS_BYTES;
use fabcache_layout::item::HEADER_BYTES_MAX;
use fabcache_layout::size_class;

use crate::bounds::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

use crate::fabric::{CallerMemory, LentBuffer, ReturnSlot, Target, ValuePlacement};

/// Memory for values, made by [`crate::Client::register`] and reused: over a fabric, values are read into it without
/// a copy ([`crate::Client::get_registered`], [`crate::Request::iget_registered`]), and servers read from it the
/// values to store ([`crate::Client::set_registered`], [`crate::Request::iset_registered`]).
///
/// If the provider requires it, the memory is registered on first use and stays registered: at most 1024 buffers of a
/// client, of 1 GiB together, of which the least recently used are deregistered first; fewer if the system's limit of
/// locked memory (`ulimit -l`) is lower, which covers the client's own memory first. Values in an unregistered buffer
/// are copied.
///
/// Its contents are the value found last, or the value [written to it](RegisteredBuffer::resize) to be stored.
///
/// A server that was sent a value from a buffer knows the address of the whole buffer, and could read it, not write
/// it, as long as it stays registered, whatever it then contains. Values are copied instead if the provider would
/// also allow writes (verbs, unless FI_MR_CACHE_MAX_COUNT=0 is in the environment), or binds memory to endpoints
/// (cxi). If a server may still read a value after a set has ended, as after a timeout, the buffer keeps the value,
/// and the next is written to other memory: no server ever reads parts of two values.
pub struct RegisteredBuffer {
    /// `None` while a call uses it.
    memory: Option<CallerMemory>,
    return_slot: ReturnSlot,
    registrations: RegistrationCache,
    room: usize,
    found: ValuePlacement,
    /// A value that did not arrive by a one-sided read, or was too long for the memory.
    other: Vec<u8>,
}

impl RegisteredBuffer {
    pub(crate) fn new(room: usize, registrations: &RegistrationCache) -> RegisteredBuffer {
        let room = room.min(VALUE_BYTES_MAX);
        RegisteredBuffer {
            memory: Some(CallerMemory::Exclusive(memory(room, registrations))),
            return_slot: ReturnSlot::default(),
            registrations: registrations.clone(),
            room,
            found: ValuePlacement::Nowhere,
            other: Vec::new(),
        }
    }

    /// Returns the value that was last found or stored, or an empty slice.
    pub fn value(&self) -> &[u8] {
        match (&self.found, &self.memory) {
            (ValuePlacement::Registered(range), Some(memory)) => {
                memory.get(range.clone()).unwrap_or_default()
            }
            (ValuePlacement::Other, _) => &self.other,
            _ => &[],
        }
    }

    /// Returns the value for modification.
    pub fn value_mut(&mut self) -> &mut [u8] {
        match self.found.clone() {
            ValuePlacement::Nowhere => &mut [],
            ValuePlacement::Registered(range) => self.own().get_mut(range).unwrap_or_default(),
            ValuePlacement::Other => &mut self.other,
        }
    }

    /// Makes room for a value of this many bytes and returns it to be written; its contents are unspecified.
    pub fn resize(&mut self, bytes: usize) -> &mut [u8] {
        if bytes <= self.room {
            self.found = ValuePlacement::Nowhere;
            self.own();
            self.found = ValuePlacement::Registered(0..bytes);
        } else {
            self.found = ValuePlacement::Other;
            self.other.resize(bytes, 0);
        }
        self.value_mut()
    }

    /// Returns whether the value lies in the registered memory: it was not copied, and sending it needs no copy.
    pub fn is_in_place(&self) -> bool {
        matches!(self.found, ValuePlacement::Registered(_))
    }

    /// Returns whether servers may read the memory itself, as for a value that was sent without a copy.
    pub fn is_readable_by_servers(&self) -> bool {
        matches!(self.memory, Some(CallerMemory::Readable(_)))
    }

    /// Returns the length of the longest value that is transferred without a copy.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Takes the memory for a get, which must return it.
    pub(crate) fn target(&mut self) -> Target {
        self.found = ValuePlacement::Nowhere;
        self.own();
        self.return_slot.put(self.memory.take().and_then(|memory| memory.reclaim().ok()));
        Target::new(std::mem::take(&mut self.other), Some(self.return_slot.clone()))
    }

    /// Ends a get that stored a value here, or none. Returns false if there is no value.
    pub(crate) fn take_back(&mut self, other: Vec<u8>, found: ValuePlacement) -> bool {
        self.other = other;
        let memory = self.return_slot.take();
        let is_there = memory.is_some();
        self.memory = memory.map(CallerMemory::Exclusive);
        if !is_there {
            // An abandoned read still owns the memory; late bytes are written there and reach no one.
            self.return_slot = ReturnSlot::default();
        }
        let is_lost = matches!(found, ValuePlacement::Registered(_)) && !is_there;
        self.found = if is_lost { ValuePlacement::Nowhere } else { found };
        !is_lost
    }

    /// Returns memory for a value that arrives over another path; it becomes the buffer's value.
    pub(crate) fn other(&mut self) -> &mut Vec<u8> {
        self.found = ValuePlacement::Other;
        &mut self.other
    }

    /// Clears the value.
    pub(crate) fn clear(&mut self) {
        self.found = ValuePlacement::Nowhere;
    }

    /// Lends the value for sending; [`RegisteredBuffer::end_lending`] returns it.
    pub(crate) fn lend(&mut self) -> LentBuffer {
        match self.found.clone() {
            ValuePlacement::Registered(range) => {
                self.own();
                LentBuffer::new(self.memory.take().map(|memory| (memory, range)), Vec::new())
            }
            ValuePlacement::Other => LentBuffer::new(None, std::mem::take(&mut self.other)),
            ValuePlacement::Nowhere => LentBuffer::new(None, Vec::new()),
        }
    }

    /// Ends lending, after completion or abandonment.
    pub(crate) fn end_lending(&mut self, lent: LentBuffer) {
        let (memory, other) = lent.into_parts();
        match self.found {
            ValuePlacement::Registered(_) => self.memory = memory,
            ValuePlacement::Other => self.other = other,
            ValuePlacement::Nowhere => {}
        }
    }

    /// Returns memory that no server reads, with the value if there is one.
    fn own(&mut self) -> &mut RegisteredMemory {
        let memory = match self.memory.take().map(CallerMemory::reclaim) {
            Some(Ok(memory)) => memory,
            Some(Err(shown)) => {
                let mut own = memory(self.room, &self.registrations);
                if let ValuePlacement::Registered(range) = &self.found {
                    own[range.clone()].copy_from_slice(&shown[range.clone()]);
                }
                own
            }
            None => memory(self.room, &self.registrations),
        };
        match self.memory.insert(CallerMemory::Exclusive(memory)) {
            CallerMemory::Exclusive(memory) => memory,
            CallerMemory::Readable(_) => unreachable!("just set"),
        }
    }
}

/// Returns memory for an item whose value has this many bytes, including rounding and the bytes fetched with it.
fn memory(room: usize, registrations: &RegistrationCache) -> RegisteredMemory {
    let item = (HEADER_BYTES_MAX + KEY_BYTES_MAX + room) as u64;
    let fetched = size_class::bytes_max(size_class::class_of(item)).max(item) as usize;
    RegisteredMemory::new(vec![0; fetched + STATUS_AND_COUNTS_BYTES], registrations)
}

impl Deref for RegisteredBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.value()
    }
}

impl fmt::Debug for RegisteredBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RegisteredBuffer { room, found, memory, .. } = self;
        let mut fields = f.debug_struct("RegisteredBuffer");
        fields.field("room", room).field("found", found).field("memory", memory).finish_non_exhaustive()
    }
}
