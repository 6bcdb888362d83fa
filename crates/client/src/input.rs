//! What a server has sent, taken apart into lines and answers wherever it was cut on its way.
//!
//! Bytes go where they belong as they come: of a value that is longer than what is received at once, all that has not
//! arrived with its line is received into the value itself.

use std::io;

use crate::bounds::{LINE_BYTES_MAX, RECEIVE_BYTES};
use crate::error::Failure;
use crate::meta::{Answer, Flags, Head};
use crate::stream::Stream;

const LINE_END: &[u8] = b"\r\n";

/// Received, and not yet read.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    /// Read up to here.
    at: usize,
    /// No line ends in so many unread bytes.
    looked: usize,
    /// The value that comes next, its line being read: its flags and length.
    value: Option<(Flags, usize)>,
}

/// What there was to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Nothing now.
    Nothing,
    /// Something, and there is no more now.
    All,
    /// As much as was asked for, and there may be more.
    Part,
}

impl Input {
    /// Nothing is there that was not read.
    pub fn is_empty(&self) -> bool {
        self.at == self.bytes.len() && self.value.is_none()
    }

    /// The next line, without its end, if all of it is there.
    ///
    /// # Errors
    /// It has no end, or is no text.
    pub fn line(&mut self) -> Result<Option<&str>, Failure> {
        let unread = &self.bytes[self.at..];
        let Some(end) = memchr::memchr(b'\n', &unread[self.looked..]) else {
            self.looked = unread.len();
            return if self.looked > LINE_BYTES_MAX { Err(protocol(&unread[..64])) } else { Ok(None) };
        };
        let line = &unread[..self.looked + end];
        self.at += line.len() + 1;
        self.looked = 0;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        std::str::from_utf8(line).map(Some).map_err(|_| protocol(line))
    }

    /// The next answer, if all of it is there. Its value, if it has one, replaces what is in `value`; until then that is
    /// to be the same at each call.
    ///
    /// # Errors
    /// The server refuses, or what came is no answer.
    pub fn answer(&mut self, value: &mut Vec<u8>) -> Result<Option<Answer>, Failure> {
        let (flags, len) = match self.value {
            Some(begun) => begun,
            None => {
                let Some(line) = self.line()? else { return Ok(None) };
                match Head::of(line)? {
                    Head::Whole(answer) => return Ok(Some(answer)),
                    Head::Value(flags, len) => {
                        value.clear();
                        let room = value.try_reserve_exact(len + LINE_END.len());
                        room.map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
                        *self.value.insert((flags, len))
                    }
                }
            }
        };
        let unread = &self.bytes[self.at..];
        let here = unread.len().min(len + LINE_END.len() - value.len());
        value.extend_from_slice(&unread[..here]);
        self.at += here;
        if value.len() < len + LINE_END.len() {
            return Ok(None);
        }
        self.value = None;
        if !value.ends_with(LINE_END) {
            return Err(protocol(&value[len..]));
        }
        value.truncate(len);
        Ok(Some(Answer::Value(flags)))
    }

    /// Receives what has arrived: into `value` where that is what comes next. To be called when nothing that is there
    /// is a line or an answer.
    ///
    /// # Errors
    /// The stream is broken, or the server sends no more.
    pub fn receive(&mut self, stream: &mut dyn Stream, value: &mut Vec<u8>) -> Result<Received, Failure> {
        let missing = self.value.map_or(0, |(_, len)| len + LINE_END.len() - value.len());
        if missing <= RECEIVE_BYTES {
            self.make_room();
            return receive(stream, &mut self.bytes);
        }
        debug_assert_eq!(self.at, self.bytes.len(), "the value has what was there");
        let whole = value.len() + missing;
        let received = receive(stream, value)?;
        if value.len() > whole {
            // The buffer had room for more than this value: that is of the next answers.
            self.bytes.extend_from_slice(&value[whole..]);
            value.truncate(whole);
        }
        Ok(received)
    }

    fn make_room(&mut self) {
        if self.at == self.bytes.len() {
            self.bytes.clear();
            self.at = 0;
        }
        if self.bytes.capacity() - self.bytes.len() < RECEIVE_BYTES / 2 {
            self.bytes.drain(..self.at);
            self.at = 0;
            self.bytes.reserve(RECEIVE_BYTES);
        }
    }
}

fn receive(stream: &mut dyn Stream, into: &mut Vec<u8>) -> Result<Received, Failure> {
    match stream.receive(into)? {
        None => Err(Failure::Broken(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the server closed the connection",
        ))),
        Some(0) => Ok(Received::Nothing),
        Some(_) if into.len() == into.capacity() => Ok(Received::Part),
        Some(_) => Ok(Received::All),
    }
}

/// What a server said that is no answer.
pub fn protocol(said: &[u8]) -> Failure {
    Failure::Protocol(String::from_utf8_lossy(said).into_owned())
}
