//! One connection of the dummy.

use std::io;

use fabcache_protocol::{Decoder, Limits};
use fabcache_transport::{Link, PolledLink, Received};

use super::answers::{Answers, Shared, respond};

/// Values up to this many bytes are buffered whole; longer ones are discarded as they arrive.
pub const LIMITS: Limits = Limits { inline_value_max: 2 << 10 };
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
    /// Returns a connection over a link, in the protocol of its first request.
    pub fn new(link: Box<dyn Link>) -> Connection {
        Connection::with(link, Decoder::new(None, LIMITS))
    }

    /// Returns a connection over a link, each request in any protocol.
    pub fn mixed(link: Box<dyn Link>) -> Connection {
        Connection::with(link, Decoder::mixed(LIMITS))
    }

    fn with(link: Box<dyn Link>, decoder: Decoder) -> Connection {
        let (speaks, answers) = (ConnectionProtocol::Nothing, Answers::new());
        Connection { link, speaks, decoder, answers, rest: Vec::new() }
    }

    /// Returns whether responses are unsent because the client does not read them.
    pub fn waits_for_room(&self) -> bool {
        !self.answers.output.is_empty()
    }

    /// Returns the link.
    pub fn link(&self) -> &dyn Link {
        &*self.link
    }

    /// Returns the operations of a link that can be polled.
    pub fn as_polled(&mut self) -> Option<&mut dyn PolledLink> {
        self.link.as_polled()
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

#[cfg(test)]
mod tests {
    use fabcache_transport::memory::pair;

    use super::*;

    #[test]
    fn partial_requests_are_answered_when_complete() {
        let (link, peer) = pair().expect("a descriptor");
        let mut connection = Connection::mixed(Box::new(link));
        let shared = Shared::new(None, Default::default());
        let (mut buffer, mut answered) = (Vec::new(), Vec::new());
        let long = [&b"set long 0 0 3000\r\n"[..], &[b'v'; 3_000], b"\r\nmn\r\n"].concat();
        for part in [&b"mn\r\nset key 0"[..], b" 0 2\r", b"\nab\r\n"].into_iter().chain(long.chunks(700)) {
            assert_eq!(peer.send(part).expect("room"), part.len());
            assert_eq!(connection.serve(&shared, &mut buffer), Interest::Requests);
            let mut answer = [0; 64];
            if let Received::Bytes(count) = peer.receive(&mut answer) {
                answered.extend_from_slice(&answer[..count]);
            }
        }
        assert_eq!(answered, b"MN\r\nSTORED\r\nSTORED\r\nMN\r\n");
        peer.send(b"shm accessed AAAAAAAAAAAB\r\nquit\r\n").expect("room");
        assert_eq!(connection.serve(&shared, &mut buffer), Interest::End);
        assert_eq!(peer.receive(&mut [0; 64]), Received::Nothing, "reads are reported without an answer");
    }
}
