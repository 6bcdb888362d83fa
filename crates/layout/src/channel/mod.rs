//! A channel: memory that a server shares with one client of its host, for requests and answers.
//!
//! Two rings in one memory file, one for each direction, after SHMemCache (OpenSHMEM 2016): a ring has slots, and
//! longer data is in the staging area beside it. The published protocol has gaps that are closed here: a slot states
//! whether it is full and in which round, so nothing needs clearing; a receiver copies only full slots; and every
//! field has one writer and a stated memory order.
//!
//! | field | written by | read by | order |
//! | --- | --- | --- | --- |
//! | header | server, before it shares the memory | client, once | the handing over |
//! | word of a slot | producer: release, after the bytes | consumer: acquire, before the bytes | |
//! | bytes of a slot, staging | producer | consumer | by the word; and by `consumed` before they are written again |
//! | `consumed` | consumer: release, after it copied | producer: acquire | |
//! | `data wanted` | consumer: 1; producer: 0 | both | fences: see below |
//! | `room wanted` | producer: 1; consumer: 0 | both | fences: see below |
//!
//! An end that is about to sleep sets a word (`data wanted`, `room wanted`), then polls again; an end that changes
//! something checks the word after the change. Both have a sequentially consistent fence between store and load, so
//! at least one of the two sees the other. The end that resets the word to 0 notifies, by means of the transport.
//!
//! Each end keeps its positions in private memory and trusts nothing that the other writes: lengths, offsets and
//! counts out of bounds break the channel, and bytes are copied out before they are interpreted.
//!
//! ```text
//!  0      header: magic, version, slots, bytes of a slot, bytes of staging
//!  128    to the server: consumed | data wanted | room wanted, each 128 bytes from the next
//!  512    to the client: the same
//!  1024   slots to the server, slots to the client, staging to the server, staging to the client
//! ```

mod ring;
mod spin;

#[cfg(all(test, loom))]
mod models;
#[cfg(not(loom))]
mod shared;
#[cfg(all(test, not(loom)))]
mod tests;

pub use ring::{Consumer, Producer, ProtocolError};
#[cfg(not(loom))]
pub use shared::Channel;
pub use spin::SpinPolicy;

use crate::memory::Memory;
use crate::sync::Ordering;

/// "FABCHANL".
const MAGIC: u64 = u64::from_le_bytes(*b"FABCHANL");
/// Version of the channel's format. Either end refuses any other.
pub const CHANNEL_VERSION: u64 = 1;

const MAGIC_AT: u64 = 0;
const VERSION_AT: u64 = 8;
const SLOTS_AT: u64 = 16;
const SLOT_BYTES_AT: u64 = 24;
const STAGING_BYTES_AT: u64 = 32;
const HEADER_BYTES: u64 = 128;
/// Two cache lines: CPUs also prefetch the neighbour.
const APART_BYTES: u64 = 128;
const CONTROL_BYTES: u64 = 3 * APART_BYTES;
const SLOTS_START: u64 = 1024;
const _: () = assert!(HEADER_BYTES + 2 * CONTROL_BYTES <= SLOTS_START);

/// Bytes of a slot before its payload.
const WORD_BYTES: u64 = 8;

/// The fewest slots of a ring …
pub const SLOTS_MIN: u32 = 2;
/// … and at most, a power of two.
pub const SLOTS_MAX: u32 = 1 << 16;
/// Bytes of a slot: at least a cache line …
pub const SLOT_BYTES_MIN: u32 = 64;
/// … and at most, a multiple of it.
pub const SLOT_BYTES_MAX: u32 = 1 << 20;
/// Bytes of staging for each direction: at least a page …
pub const STAGING_BYTES_MIN: u64 = if cfg!(loom) { 32 } else { 4096 };
/// … and at most, a multiple of a cache line.
pub const STAGING_BYTES_MAX: u64 = 1 << 30;

/// The sizes of a channel's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Slots of each ring, a power of two.
    pub slots: u32,
    /// Bytes of a slot, a multiple of 64; 8 of them are its word.
    pub slot_bytes: u32,
    /// Bytes of each staging area, a multiple of 64.
    pub staging_bytes: u64,
}

/// The side of a channel that an end belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The server: it consumes requests and produces answers.
    Server,
    /// The client.
    Client,
}

impl Shape {
    /// Returns whether the shape is within the bounds above.
    pub fn is_sound(&self) -> bool {
        let line = if cfg!(loom) { 8 } else { 64 };
        self.slots.is_power_of_two()
            && (SLOTS_MIN..=SLOTS_MAX).contains(&self.slots)
            && (if cfg!(loom) { 16 } else { SLOT_BYTES_MIN }..=SLOT_BYTES_MAX).contains(&self.slot_bytes)
            && self.slot_bytes.is_multiple_of(line)
            && (STAGING_BYTES_MIN..=STAGING_BYTES_MAX).contains(&self.staging_bytes)
            && self.staging_bytes.is_multiple_of(line.into())
    }

    fn ring_bytes(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.slot_bytes)
    }

    /// Returns the bytes of a channel of this shape.
    pub fn channel_bytes(&self) -> u64 {
        SLOTS_START + 2 * self.ring_bytes() + 2 * self.staging_bytes
    }

    /// Returns the offsets of one direction's parts.
    fn direction(&self, to: Side) -> Direction {
        let index = match to {
            Side::Server => 0,
            Side::Client => 1,
        };
        let control = HEADER_BYTES + index * CONTROL_BYTES;
        Direction {
            consumed: control,
            data_wanted: control + APART_BYTES,
            room_wanted: control + 2 * APART_BYTES,
            slots: SLOTS_START + index * self.ring_bytes(),
            staging: SLOTS_START + 2 * self.ring_bytes() + index * self.staging_bytes,
        }
    }

    /// Writes the header of a new channel in zeroed memory; the magic last.
    pub fn write(&self, memory: &Memory) {
        for (at, value) in [
            (VERSION_AT, CHANNEL_VERSION),
            (SLOTS_AT, self.slots.into()),
            (SLOT_BYTES_AT, self.slot_bytes.into()),
            (STAGING_BYTES_AT, self.staging_bytes),
        ] {
            memory.store(at, value, Ordering::Relaxed);
        }
        memory.store(MAGIC_AT, MAGIC, Ordering::Release);
    }

    /// Reads the header of a channel; `None` if it is not of this version or does not fit the memory.
    pub fn read(memory: &Memory) -> Option<Shape> {
        let word = |at| memory.load(at, Ordering::Acquire);
        if !memory.contains(0, SLOTS_START) || word(MAGIC_AT) != MAGIC || word(VERSION_AT) != CHANNEL_VERSION
        {
            return None;
        }
        let shape = Shape {
            slots: word(SLOTS_AT).try_into().ok()?,
            slot_bytes: word(SLOT_BYTES_AT).try_into().ok()?,
            staging_bytes: word(STAGING_BYTES_AT),
        };
        (shape.is_sound() && shape.channel_bytes() <= memory.len()).then_some(shape)
    }

    /// Returns one side's ends of the rings of a channel in zeroed memory: the consumer and the producer.
    pub fn ends(&self, memory: &Memory, side: Side) -> (Consumer, Producer) {
        let other = match side {
            Side::Server => Side::Client,
            Side::Client => Side::Server,
        };
        (
            Consumer::new(memory.clone(), self, self.direction(side)),
            Producer::new(memory.clone(), self, self.direction(other)),
        )
    }
}

/// The offsets of one direction's parts, from the start of the channel.
#[derive(Clone, Copy, Debug)]
struct Direction {
    /// Slots consumed so far.
    consumed: u64,
    /// The consumer sleeps.
    data_wanted: u64,
    /// The producer sleeps.
    room_wanted: u64,
    slots: u64,
    staging: u64,
}
