//! A request as it goes out, in one of two forms.

use crate::command::{Action, Command};
use crate::{meta, packet};

/// What a server takes and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Lines of the meta protocol, which any memcached takes.
    Lines,
    /// Packets, and lines for what these cannot say.
    Packets,
}

/// A request on its way, up to its value. Can be used again without an allocation.
#[derive(Debug, Default)]
pub struct Message {
    bytes: Vec<u8>,
    is_packet: bool,
    stores: bool,
}

impl Message {
    /// Another request takes the place of the last.
    #[inline]
    pub fn write(&mut self, command: &Command<'_>, form: Form) {
        self.bytes.clear();
        self.stores = matches!(command.action, Action::Store { .. });
        // An item remembers that its key came in base64, which a packet does not say.
        let may_be_packet = form == Form::Packets && meta::is_plain(command.key);
        self.is_packet = may_be_packet && packet::write(command, &mut self.bytes);
        if !self.is_packet {
            meta::write(command, &mut self.bytes);
        }
    }

    /// Ends it, without a mark.
    #[inline]
    pub fn end(&mut self) {
        if !self.is_packet {
            self.bytes.extend_from_slice(b"\r\n");
        }
    }

    /// Ends it, with a mark that its answer has as well.
    #[inline]
    pub fn end_with(&mut self, opaque: u32) {
        if self.is_packet {
            packet::mark(&mut self.bytes, opaque);
        } else {
            meta::word(&mut self.bytes, "O", opaque);
            self.end();
        }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What follows its value.
    pub fn value_end(&self) -> &'static [u8] {
        if self.stores && !self.is_packet { b"\r\n" } else { b"" }
    }
}
