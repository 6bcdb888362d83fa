//! Calls with registered memory.

use crate::answer::Flags;
use crate::client::Client;
use crate::command::{Command, Mode};
use crate::error::Error;
use crate::item::{Outcome, Stored, Ttl, checked, stored, storing};
use crate::read_result::ReadResult;
use crate::registered::RegisteredBuffer;

impl Client {
    /// Returns a buffer for values of up to this many bytes, for the calls whose names end in `_registered`.
    pub fn register(&self, bytes: usize) -> RegisteredBuffer {
        RegisteredBuffer::new(bytes, self.registrations())
    }

    /// Like [`Client::get`] into reusable memory, without a copy where the server's memory is read over a fabric.
    /// Replaces the buffer's contents; a miss or a failure empties it.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub fn get_registered(&self, key: &[u8], buffer: &mut RegisteredBuffer) -> Result<Outcome, Error> {
        buffer.clear();
        let server = self.server_of(checked(key)?)?;
        let sample = match server.read_registered(key, buffer) {
            ReadResult::Hit { flags, cas } => return Ok(Outcome::Found { flags, cas }),
            ReadResult::Miss => {
                buffer.clear();
                return Ok(Outcome::NotFound);
            }
            ReadResult::Fallback(fallback) => fallback.sample,
            ReadResult::Gone => None,
        };
        let requested = server.get(key, None, sample, buffer.other());
        match requested {
            Ok(Some(Flags { flags, cas, .. })) => Ok(Outcome::Found { flags, cas }),
            other => {
                buffer.clear();
                other.map(|_| Outcome::NotFound)
            }
        }
    }

    /// Like [`Client::set_with_flags`] with a buffer's value, which a fabric server reads in place, without a copy, if
    /// it has at least 16 KiB. The buffer keeps its value whatever the result.
    ///
    /// # Errors
    /// As for [`Client::set`].
    pub fn set_registered(
        &self,
        key: &[u8],
        buffer: &mut RegisteredBuffer,
        ttl: Ttl,
        flags: u32,
    ) -> Result<(), Error> {
        self.store_registered(key, buffer, Mode::Set, ttl, flags).map(|_| ())
    }

    /// Like [`Client::store`], from registered memory.
    ///
    /// # Errors
    /// As for [`Client::set`].
    pub fn store_registered(
        &self,
        key: &[u8],
        buffer: &mut RegisteredBuffer,
        mode: Mode,
        ttl: Ttl,
        flags: u32,
    ) -> Result<Stored, Error> {
        let server = self.server_of(checked(key)?)?;
        let command = Command { key, action: storing(mode, buffer.value().len(), ttl, flags)? };
        let mut lent = buffer.lend();
        let done = server.call(|connection| stored(connection.ask_lending(&command, &mut lent)?));
        buffer.end_lending(lent);
        done
    }
}
