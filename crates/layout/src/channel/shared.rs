//! A channel over a memory file.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};

use crate::mapping::Mapping;

use super::{Consumer, Producer, Shape, Side};

/// One side of a channel, mapped.
#[derive(Debug)]
pub struct Channel {
    // Declared before the mapping that they use.
    incoming: Consumer,
    outgoing: Producer,
    _mapping: Mapping,
}

impl Channel {
    /// Creates a channel, seen from the server, and the file to hand to its client. The file's size is sealed.
    ///
    /// # Errors
    /// The system fails.
    ///
    /// # Panics
    /// The shape is not sound.
    pub fn create(shape: &Shape) -> io::Result<(Channel, OwnedFd)> {
        assert!(shape.is_sound(), "a shape within its bounds");
        let file =
            rustix::fs::memfd_create("fabcache-channel", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, shape.channel_bytes())?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::to_write(file.as_fd(), shape.channel_bytes())?;
        // SAFETY: the ends are dropped with the mapping, below, which was mapped for writing.
        let memory = unsafe { mapping.memory() };
        shape.write(&memory);
        let (incoming, outgoing) = shape.ends(&memory, Side::Server);
        Ok((Channel { incoming, outgoing, _mapping: mapping }, file))
    }

    /// Maps the client's end of a new channel from a file descriptor that a server handed over.
    ///
    /// # Errors
    /// It is not a channel, or the system fails.
    pub fn open(file: BorrowedFd<'_>) -> io::Result<Channel> {
        // A file that can still shrink could crash this process.
        if !rustix::fs::fcntl_get_seals(file)?.contains(SealFlags::SHRINK) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the channel's memory is not sealed"));
        }
        let len = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
        let mapping = Mapping::to_write(file, len)?;
        // SAFETY: as in `create`.
        let memory = unsafe { mapping.memory() };
        let none =
            || io::Error::new(io::ErrorKind::InvalidData, "the memory is not a channel of this version");
        let shape = Shape::read(&memory).ok_or_else(none)?;
        let (incoming, outgoing) = shape.ends(&memory, Side::Client);
        Ok(Channel { incoming, outgoing, _mapping: mapping })
    }

    /// Returns whether data has arrived.
    #[inline]
    pub fn has_incoming(&self) -> bool {
        self.incoming.is_ready()
    }

    /// Returns the receiving end.
    pub fn incoming(&mut self) -> &mut Consumer {
        &mut self.incoming
    }

    /// Returns the sending end.
    pub fn outgoing(&mut self) -> &mut Producer {
        &mut self.outgoing
    }
}
