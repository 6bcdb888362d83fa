//! One connection's decoder: bytes in, requests out.
//!
//! The protocol is picked by the first byte of the connection unless it is fixed: 0x80 is binary, anything else
//! text (classic and meta share it). The decoder holds no copy of the input: it says how much it consumed, and the
//! caller keeps what is left. Feeding the same bytes in any split gives the same requests.

use crate::command::Request;
use crate::refusal::Refusal;

/// Which protocol a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Classic and meta text.
    Text,
    /// Binary.
    Binary,
}

/// What a decoder accepts.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Values up to this many bytes wait until all of it is in the input buffer and come as `Value::Inline`;
    /// longer ones are streamed.
    pub inline_value_max: usize,
}

/// What came out of the input.
#[derive(Debug, PartialEq)]
pub enum Decoded<'a> {
    /// Nothing yet: at least `more` further bytes are needed (1 when not known better).
    Incomplete {
        /// Bytes missing.
        more: usize,
    },
    /// A request, which took `consumed` bytes of the input.
    Request {
        /// Bytes of the input that belong to it.
        consumed: usize,
        /// The request.
        request: Request<'a>,
    },
    /// A part of a streamed value.
    Value {
        /// Bytes of the input that belong to it.
        consumed: usize,
        /// The part.
        bytes: &'a [u8],
    },
    /// The end of a streamed value.
    ValueEnd {
        /// Bytes of the input that belong to it.
        consumed: usize,
        /// The terminator was right; if not the value must not be stored and the client is told.
        intact: bool,
    },
    /// Bytes that mean nothing to the caller (a refused value being swallowed, say).
    Skipped {
        /// Bytes of the input to drop.
        consumed: usize,
    },
    /// The connection cannot go on: answer, if there is an answer, and close.
    Fatal(Option<Refusal>),
}

/// One connection's decoder.
#[derive(Debug)]
pub struct Decoder {
    #[allow(dead_code)]
    limits: Limits,
    #[allow(dead_code)]
    protocol: Option<Protocol>,
}

impl Decoder {
    /// A decoder for a new connection; `protocol` none picks it by the first byte.
    pub fn new(protocol: Option<Protocol>, limits: Limits) -> Decoder {
        Decoder { limits, protocol }
    }

    /// The protocol, once known.
    pub fn protocol(&self) -> Option<Protocol> {
        self.protocol
    }

    /// Decodes one thing from the front of `input`.
    pub fn decode<'a>(&mut self, _input: &'a [u8]) -> Decoded<'a> {
        unimplemented!()
    }

    /// Drops what is still to come of the streamed value that the last request announced.
    pub fn discard_value(&mut self) {
        unimplemented!()
    }
}
