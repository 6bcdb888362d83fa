//! One connection of the dummy.

use std::io;

use fabcache_protocol::{Decoder, Limits};
use fabcache_transport::{Link, Received};

use super::answers::{Answers, Shared};
use super::responder::respond;

/// Values up to this many bytes are buffered whole; longer ones are discarded as they arrive.
const INLINE_BYTES_MAX: usize = 2 << 10;
/// Bytes received at once.
const RECEIVED_BYTES_MAX: usize = 64 << 10;

/// The first byte of an echo connection. Two little-endian numbers of eight bytes follow: the lengths
/// of a request and of its response.
pub const ECHO: u8 = 0;
/// Length of that header.
pub const ECHO_BYTES: usize = 17;

/// The protocol of a connection.
enum ConnectionProtocol {
    /// Not yet known.
    Nothing,
    /// A memcached protocol.
    Protocol,
    /// An echo: answers each request by its length alone.
    Echo {
        /// Bytes of a request.
        requested: usize,
        /// Bytes of an answer.
        answered: usize,
        /// Bytes received of the next request.
        come: usize,
    },
}

/// One connection.
pub struct Connection {
    link: Box<dyn Link>,
    speaks: ConnectionProtocol,
    decoder: Decoder,
    answers: Answers,
    /// Received bytes that are not yet a whole request.
    rest: Vec<u8>,
}

/// The readiness that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Readable: for more requests.
    Requests,
    /// Writable: for unsent responses.
    Room,
    /// None: the connection has ended.
    End,
}

impl Connection {
    /// Returns a connection over a link.
    pub fn new(link: Box<dyn Link>) -> Connection {
        let limits = Limits { inline_value_max: INLINE_BYTES_MAX };
        Connection {
            link,
            speaks: ConnectionProtocol::Nothing,
            decoder: Decoder::new(None, limits),
            answers: Answers::new(),
            rest: Vec::new(),
        }
    }

    /// Returns whether responses are unsent because the client does not read them.
    pub fn waits_for_room(&self) -> bool {
        !self.answers.output.is_empty()
    }

    /// Returns the link.
    pub fn link(&self) -> &dyn Link {
        &*self.link
    }

    /// Answers received requests. All connections share `buffer`.
    pub fn serve(&mut self, shared: &Shared, buffer: &mut Vec<u8>) -> Interest {
        self.try_serve(shared, buffer).unwrap_or(Interest::End)
    }

    fn try_serve(&mut self, shared: &Shared, buffer: &mut Vec<u8>) -> io::Result<Interest> {
        if !self.answers.output.is_empty() && !self.answers.output.send(&shared.items, &mut *self.link)? {
            return Ok(Interest::Room);
        }
        let kept = self.rest.len();
        if buffer.len() < kept + RECEIVED_BYTES_MAX {
            buffer.resize(kept + RECEIVED_BYTES_MAX, 0);
        }
        buffer[..kept].copy_from_slice(&self.rest);
        let came = match self.link.receive(&mut buffer[kept..])? {
            Received::Bytes(count) => kept + count,
            Received::Nothing => return Ok(Interest::Requests),
            Received::End => return Ok(Interest::End),
        };
        self.rest.clear();
        let used = self.answer(shared, &buffer[..came]);
        self.rest.extend_from_slice(&buffer[used..came]);
        let sent = self.answers.output.send(&shared.items, &mut *self.link)?;
        Ok(match (self.answers.closing, sent) {
            (true, _) => Interest::End,
            (false, true) => Interest::Requests,
            (false, false) => Interest::Room,
        })
    }

    /// Answers complete requests; returns the number of consumed bytes.
    fn answer(&mut self, shared: &Shared, input: &[u8]) -> usize {
        match &mut self.speaks {
            ConnectionProtocol::Protocol => self.decode(shared, input),
            ConnectionProtocol::Echo { requested, answered, come } => {
                *come += input.len();
                while *come >= *requested {
                    *come -= *requested;
                    self.answers.output.value(&shared.items, 0, *answered);
                }
                input.len()
            }
            ConnectionProtocol::Nothing if input[0] != ECHO => {
                self.speaks = ConnectionProtocol::Protocol;
                self.decode(shared, input)
            }
            ConnectionProtocol::Nothing => {
                let Some((head, rest)) = input.split_at_checked(ECHO_BYTES) else { return 0 };
                let number = |at: usize| {
                    let bytes = head[at..].first_chunk().copied().unwrap_or_default();
                    usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX)
                };
                self.speaks =
                    ConnectionProtocol::Echo { requested: number(1).max(1), answered: number(9), come: 0 };
                ECHO_BYTES + self.answer(shared, rest)
            }
        }
    }

    fn decode(&mut self, shared: &Shared, input: &[u8]) -> usize {
        respond(shared, &mut self.decoder, &mut self.answers, input)
    }
}
