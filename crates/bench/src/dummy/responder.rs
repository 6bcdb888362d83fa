//! The dummy's responses for callers without a socket.

use fabcache_protocol::Decoder;

use super::answers::{Answers, Shared, respond};
use super::connection::LIMITS;

/// The dummy's end of one connection, without the connection.
#[derive(Debug)]
pub struct Responder {
    shared: Shared,
    decoder: Decoder,
    answers: Answers,
    /// An incomplete request.
    rest: Vec<u8>,
}

impl Responder {
    /// Returns a responder to requests of all protocols.
    pub fn mixed() -> Responder {
        Responder {
            shared: Shared::new(None, Default::default()),
            decoder: Decoder::mixed(LIMITS),
            answers: Answers::new(),
            rest: Vec::new(),
        }
    }

    /// Handles received bytes and replaces the contents of `answer` by the responses. Returns false at the
    /// end of the connection.
    pub fn take(&mut self, input: &[u8], answer: &mut Vec<u8>) -> bool {
        let Responder { shared, decoder, answers, rest } = self;
        let kept = !rest.is_empty();
        if kept {
            rest.extend_from_slice(input);
        }
        let whole = if kept { &rest[..] } else { input };
        let used = respond(shared, decoder, answers, whole);
        if kept {
            rest.drain(..used);
        } else {
            rest.extend_from_slice(&input[used..]);
        }
        answers.output.take(&shared.items, answer);
        !answers.closing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_requests_are_answered_when_complete() {
        let mut responder = Responder::mixed();
        let mut answer = Vec::new();
        let long = [&b"set long 0 0 3000\r\n"[..], &[b'v'; 3_000], b"\r\nmn\r\n"].concat();
        let mut answered = Vec::new();
        for part in [&b"mn\r\nset key 0"[..], b" 0 2\r", b"\nab\r\n"].into_iter().chain(long.chunks(700)) {
            assert!(responder.take(part, &mut answer));
            answered.extend_from_slice(&answer);
        }
        assert_eq!(answered, b"MN\r\nSTORED\r\nSTORED\r\nMN\r\n");
        assert!(!responder.take(b"quit\r\n", &mut answer) && answer.is_empty());
    }
}
