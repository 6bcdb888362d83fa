//! A request as it is sent, in one of four encodings.

use std::ops::Range;

use crate::command::{Action, Command};
use crate::text::ExpectedAnswer;
use crate::{meta, packet, text};

/// The encoding of a server's requests and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Lines of the meta protocol.
    Meta,
    /// Lines of the classic text protocol.
    Text,
    /// Packets only.
    Binary,
    /// Packets, and meta protocol lines for requests that packets cannot express: through memory.
    Mixed,
}

impl Encoding {
    /// Returns whether the encoding can carry the key.
    #[inline]
    pub fn takes(self, key: &[u8]) -> bool {
        self != Encoding::Text || text::takes(key)
    }
}

/// A request to send, up to its value. Reusable without an allocation.
#[derive(Debug, Default)]
pub struct Message {
    bytes: Vec<u8>,
    is_packet: bool,
    stores: bool,
    /// The answer that the text protocol expects, and the key's range.
    text: Option<(Action, Range<usize>)>,
}

impl Message {
    /// Replaces the last request. The encoding must support its key.
    #[inline]
    pub fn write(&mut self, command: &Command<'_>, encoding: Encoding) {
        self.bytes.clear();
        self.stores = matches!(command.action, Action::Store { .. });
        self.text = None;
        self.is_packet = match encoding {
            Encoding::Meta => false,
            // An item remembers that its key was sent in base64, which a packet does not say.
            Encoding::Mixed => meta::is_plain(command.key) && packet::write(command, &mut self.bytes),
            Encoding::Binary => {
                packet::write_any(command, &mut self.bytes);
                true
            }
            Encoding::Text => {
                self.text = Some((command.action, text::write(command, &mut self.bytes)));
                return self.is_packet = false;
            }
        };
        if !self.is_packet {
            meta::write(command, &mut self.bytes);
        }
    }

    /// Completes the request without a mark.
    #[inline]
    pub fn end(&mut self) {
        if !self.is_packet {
            self.bytes.extend_from_slice(b"\r\n");
        }
    }

    /// Completes the request with a mark that its answer repeats, if the encoding has marks.
    #[inline]
    pub fn end_with(&mut self, opaque: u32) {
        if self.is_packet {
            return packet::mark(&mut self.bytes, opaque);
        }
        if self.text.is_none() {
            meta::word(&mut self.bytes, "O", opaque);
        }
        self.end();
    }

    /// Returns the encoded bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes that follow its value.
    pub fn value_end(&self) -> &'static [u8] {
        if self.stores && !self.is_packet { b"\r\n" } else { b"" }
    }

    /// Returns what its answer replies to, where the answer does not identify itself.
    #[inline]
    pub fn requested(&self) -> Option<ExpectedAnswer<'_>> {
        let (action, key) = self.text.as_ref()?;
        Some(text::requested(*action, &self.bytes[key.clone()]))
    }
}
