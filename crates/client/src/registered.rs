//! Memory that a caller keeps for values, so that they are read into it without a copy.

use std::fmt;
use std::ops::{Deref, Range};

use fabcache_fabric::{Lasting, Registrations};
use fabcache_layout::header::PUBLISHED_AND_COUNTS_BYTES;
use fabcache_layout::item::HEADER_BYTES_MAX;
use fabcache_layout::size_class;

use crate::bounds::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::fabric::{Desk, Target};

/// Memory for values, made by [`crate::Client::register`] and used again and again: over a fabric they are read into it as they
/// come, without a copy ([`crate::Client::get_registered`], [`crate::Request::iget_registered`]).
///
/// Where a provider needs that, the memory is registered with it when it is first used, and stays so: at most
/// 1024 buffers of a client, of 1 GiB together, of which those that were used longest ago give way, and fewer where the
/// system's limit of locked memory (`ulimit -l`) is lower, which the client's own memory goes before. In a buffer that is not registered values are copied.
///
/// Its bytes are the value found last, or none.
pub struct RegisteredBuffer {
    /// None while a get may use it.
    memory: Option<Lasting>,
    desk: Desk,
    registrations: Registrations,
    room: usize,
    found: Found,
    /// A value that did not come by a read of the server's memory, or was too long for this one.
    other: Vec<u8>,
}

/// Where the value is.
#[derive(Debug)]
pub(crate) enum Found {
    /// There is none.
    Nothing,
    /// In the registered memory.
    Within(Range<usize>),
    /// Beside it.
    Other,
}

impl RegisteredBuffer {
    pub(crate) fn new(room: usize, registrations: &Registrations) -> RegisteredBuffer {
        let room = room.min(VALUE_BYTES_MAX);
        RegisteredBuffer {
            memory: Some(memory(room, registrations)),
            desk: Desk::default(),
            registrations: registrations.clone(),
            room,
            found: Found::Nothing,
            other: Vec::new(),
        }
    }

    /// The value found last; none if none was.
    pub fn value(&self) -> &[u8] {
        match (&self.found, &self.memory) {
            (Found::Within(range), Some(memory)) => memory.get(range.clone()).unwrap_or_default(),
            (Found::Other, _) => &self.other,
            _ => &[],
        }
    }

    /// Longest value that is read into it without a copy.
    pub fn room(&self) -> usize {
        self.room
    }

    /// What a get may use. It is to be taken back.
    pub(crate) fn target(&mut self) -> Target {
        self.found = Found::Nothing;
        self.desk.put(self.memory.take());
        Target::new(std::mem::take(&mut self.other), Some(self.desk.clone()))
    }

    /// A get is over, and has found a value here, or nothing. False if that is not here: then it was none.
    pub(crate) fn take_back(&mut self, other: Vec<u8>, found: Found) -> bool {
        self.other = other;
        let memory = self.desk.take();
        let is_there = memory.is_some();
        self.memory = memory.or_else(|| {
            // A read that was given up has it still; what is read into it late comes to nobody.
            self.desk = Desk::default();
            Some(self::memory(self.room, &self.registrations))
        });
        let is_lost = matches!(found, Found::Within(_)) && !is_there;
        self.found = if is_lost { Found::Nothing } else { found };
        !is_lost
    }

    /// Memory for a value that comes in another way: what is put there is found here.
    pub(crate) fn other(&mut self) -> &mut Vec<u8> {
        self.found = Found::Other;
        &mut self.other
    }

    /// There is no value.
    pub(crate) fn clear(&mut self) {
        self.found = Found::Nothing;
    }
}

/// Memory for an item whose value has so many bytes, as it is fetched where only its size class is known, and what is fetched
/// behind it.
fn memory(room: usize, registrations: &Registrations) -> Lasting {
    let item = (HEADER_BYTES_MAX + KEY_BYTES_MAX + room) as u64;
    let fetched = size_class::bytes_max(size_class::class_of(item)).max(item) as usize;
    Lasting::new(vec![0; fetched + PUBLISHED_AND_COUNTS_BYTES], registrations)
}

impl Deref for RegisteredBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.value()
    }
}

impl fmt::Debug for RegisteredBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RegisteredBuffer { room, found, .. } = self;
        f.debug_struct("RegisteredBuffer").field("room", room).field("found", found).finish_non_exhaustive()
    }
}
