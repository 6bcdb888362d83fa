//! The fetches of one-sided GETs: what the driver posts, what it passes in, and what each is for.

use std::ops::Deref;

use super::lines::SequenceNumber;

/// A fetch to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Identifies the fetch when its bytes arrive.
    pub id: u32,
    /// Offset in the region.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
    /// Its destination.
    pub to: To,
}

/// Identifies a GET until it completes; a later GET has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GetId {
    pub(super) at: u32,
    pub(super) serial: u32,
}

/// The destination of fetched bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// The buffer that is passed in on arrival.
    Buffer,
    /// Such a buffer, for an item of this GET. A hit's value stays in it.
    Item(GetId),
    /// Any memory, for instance after other bytes: they are read on arrival, and not again. So one operation may fetch
    /// them with the bytes requested before.
    Probe,
    /// Offset `at` of the value of this GET, which has `whole` bytes. If a different length was stated before, the value
    /// is reallocated: no fetch into it is in flight then. Other parts are fetched concurrently.
    Value {
        /// The GET.
        get: GetId,
        /// The offset in the value.
        at: usize,
        /// Bytes of the whole value.
        whole: usize,
    },
}

/// The result of a fetch.
#[derive(Debug)]
pub enum Arrival<'a, B> {
    /// The bytes, at the front of a buffer: for [`To::Buffer`] and [`To::Item`], and for [`To::Probe`] if that is
    /// simpler.
    Buffer(B),
    /// The bytes, in place or in flight there: for [`To::Probe`] and [`To::Value`].
    Placed(&'a [u8]),
    /// No bytes.
    Failed,
}

impl<B: Deref<Target = [u8]>> Arrival<'_, B> {
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Arrival::Buffer(bytes) => Some(bytes),
            Arrival::Placed(bytes) => Some(bytes),
            Arrival::Failed => None,
        }
    }

    pub(super) fn word(&self) -> Option<u64> {
        self.bytes()?.first_chunk().map(|word| u64::from_le_bytes(*word))
    }
}

/// A fetch that is queued or in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct FetchRequest {
    pub(super) purpose: FetchPurpose,
    pub(super) offset: u64,
    pub(super) len: usize,
    pub(super) to: To,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum FetchPurpose {
    /// The status line, requested at this moment and time.
    Line(SequenceNumber, u64),
    /// The request of a GET's step.
    Step(Owner),
    /// The generation after its item.
    Behind(Owner),
    /// A chunk of its value.
    Chunk(Owner, usize),
    /// The generation of such a chunk, whose bytes have this sum.
    ChunkGeneration(Owner, usize, u64),
}

/// One attempt of a GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) at: usize,
    pub(super) serial: u32,
}
