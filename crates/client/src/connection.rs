//! One connection to one server, used by one blocking call at a time.

use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use crate::answer::Answer;
use crate::bounds::TRUSTED_IDLE;
use crate::command::Command;
use crate::error::Failure;
use crate::fabric::LentBuffer;
use crate::input::{Input, Received};
use crate::message::{Encoding, Message};
use crate::stream::{Lending, Stream, Until};
use crate::text::ExpectedAnswer;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    stream: Box<dyn Stream>,
    input: Input,
    /// The last request, whose memory is reused.
    message: Message,
    /// When its last call began, and the deadline of that call.
    began: Instant,
    deadline: Instant,
    /// More may have arrived than was received.
    has_more: bool,
    /// The current call has waited.
    has_waited: bool,
    /// The end of the last answer is uncertain: the connection is not reused.
    is_unsure: bool,
}

/// Returns whether the server has neither closed the stream nor sent anything unrequested, which would go to
/// `unasked`.
pub fn is_quiet(stream: &mut dyn Stream, unasked: &mut Vec<u8>) -> bool {
    unasked.reserve(1);
    matches!(stream.receive(unasked), Ok(Some(0)))
}

impl Connection {
    /// Returns a connection over a stream on which nothing was sent yet.
    pub fn new(stream: Box<dyn Stream>) -> Connection {
        let now = Instant::now();
        Connection {
            stream,
            input: Input::default(),
            message: Message::default(),
            began: now,
            deadline: now,
            has_more: false,
            has_waited: false,
            is_unsure: false,
        }
    }

    /// Returns the encoding that the server accepts.
    pub fn encoding(&self) -> Encoding {
        self.stream.encoding()
    }

    /// Returns whether the end of the last answer is uncertain.
    pub fn is_unsure(&self) -> bool {
        self.is_unsure
    }

    /// Returns the time since the last call began.
    pub fn idle_time(&self) -> Duration {
        self.began.elapsed()
    }

    /// Backdates the start of its last call.
    #[cfg(test)]
    pub fn age(&mut self, time: Duration) {
        self.began -= time;
    }

    /// Starts a call that must end within `timeout`. Returns false if the server has closed the connection or sent
    /// something unrequested. Consecutive calls skip this check.
    pub fn begin(&mut self, timeout: Duration) -> bool {
        let now = Instant::now();
        let is_trusted = now.saturating_duration_since(self.began) < TRUSTED_IDLE;
        self.began = now;
        self.deadline = now + timeout;
        self.has_waited = false;
        self.input.is_empty() && (is_trusted || is_quiet(&mut *self.stream, &mut Vec::new()))
    }

    /// Sends one request, with the value to be stored if there is one. A value found replaces the contents of
    /// `found`.
    ///
    /// The server's protocol cannot carry the key, or as for [`Connection::send`] and [`Connection::answer`].
    pub fn request(
        &mut self,
        command: &Command<'_>,
        value: &[u8],
        found: &mut Vec<u8>,
    ) -> Result<Answer, Failure> {
        self.ask_sending(command, found, |connection, message| {
            connection.send([message.as_bytes(), value, message.value_end()])
        })
    }

    /// Stores a value in registered memory, which the server reads from there if it can.
    ///
    /// # Errors
    /// As for [`Connection::ask`].
    pub fn ask_lending(&mut self, command: &Command<'_>, value: &mut LentBuffer) -> Result<Answer, Failure> {
        self.ask_sending(command, &mut Vec::new(), |connection, message| {
            if connection.lend(message.as_bytes(), value)? {
                connection.send([message.value_end()])
            } else {
                connection.send([message.as_bytes(), value.bytes(), message.value_end()])
            }
        })
    }

    fn ask_sending(
        &mut self,
        command: &Command<'_>,
        found: &mut Vec<u8>,
        send: impl FnOnce(&mut Connection, &Message) -> Result<(), Failure>,
    ) -> Result<Answer, Failure> {
        let encoding = self.encoding();
        if !encoding.takes(command.key) {
            return Err(Failure::Key);
        }
        let mut message = std::mem::take(&mut self.message);
        message.write(command, encoding);
        message.end();
        let sent = send(self, &message);
        let answered = sent.and_then(|()| self.answer(message.requested(), found));
        self.message = message;
        answered
    }

    /// Sends all parts.
    ///
    /// # Errors
    /// The connection breaks, or it takes too long.
    pub fn send<const PARTS: usize>(&mut self, parts: [&[u8]; PARTS]) -> Result<(), Failure> {
        let mut parts = parts.map(IoSlice::new);
        let mut left = &mut parts[..];
        let mut unsent: usize = left.iter().map(|part| part.len()).sum();
        while unsent > 0 {
            let sent = self.stream.send(left)?;
            unsent -= sent;
            if unsent > 0 {
                IoSlice::advance_slices(&mut left, sent);
            }
            if sent == 0 {
                self.wait_to_send()?;
            }
        }
        self.has_more = false;
        Ok(())
    }

    /// Sends all of `before`, and lends a value. Returns false if nothing was sent and the value must be sent normally.
    fn lend(&mut self, before: &[u8], value: &mut LentBuffer) -> Result<bool, Failure> {
        loop {
            match self.stream.lend(before, value)? {
                Lending::Sent => break,
                Lending::Later => self.wait_to_send()?,
                Lending::Never => return Ok(false),
            }
        }
        self.has_more = false;
        Ok(true)
    }

    fn wait_to_send(&mut self) -> Result<(), Failure> {
        self.wait(Until::Either)?;
        // A server whose answers are not read may stop reading requests.
        self.input.receive(&mut *self.stream, &mut Vec::new())?;
        Ok(())
    }

    /// Returns the next line, without its end.
    ///
    /// # Errors
    /// The connection breaks, it takes too long, or the line has no end.
    pub fn line(&mut self) -> Result<String, Failure> {
        loop {
            if let Some(line) = self.input.line()? {
                return Ok(line.into());
            }
            self.receive(&mut Vec::new())?;
        }
    }

    /// Returns the next line as raw bytes, without its end.
    ///
    /// # Errors
    /// As for [`Connection::line`].
    pub fn line_bytes(&mut self) -> Result<Vec<u8>, Failure> {
        loop {
            if let Some(line) = self.input.line_bytes()? {
                return Ok(line.to_vec());
            }
            self.receive(&mut Vec::new())?;
        }
    }

    /// Returns the next answer to a request without a key, in a packet: its key field and its value.
    ///
    /// # Errors
    /// The server refuses, the answer is invalid, the connection breaks, or it takes too long.
    pub fn packet(&mut self) -> Result<(Vec<u8>, Vec<u8>), Failure> {
        loop {
            if let Some(said) = self.input.packet()? {
                return Ok((said.key.into(), said.value.into()));
            }
            self.receive(&mut Vec::new())?;
        }
    }

    /// Returns the next answer; its value, if any, replaces the contents of `value`. `asked` is required in protocols
    /// whose answers do not identify themselves.
    ///
    /// # Errors
    /// The server refuses, the answer is invalid, the connection breaks, or it takes too long.
    pub fn answer(
        &mut self,
        requested: Option<ExpectedAnswer<'_>>,
        value: &mut Vec<u8>,
    ) -> Result<Answer, Failure> {
        loop {
            match self.input.answer(requested, value) {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => self.receive(value)?,
                Err(failure) => {
                    // An END may follow, as after values, or not.
                    self.is_unsure |= requested == Some(ExpectedAnswer::Values);
                    return Err(failure);
                }
            }
        }
    }

    /// Returns the key that came with the last value, if any.
    pub fn key(&self) -> &[u8] {
        self.input.key()
    }

    fn receive(&mut self, value: &mut Vec<u8>) -> Result<(), Failure> {
        loop {
            // The answer to the request just sent cannot have arrived: receiving now would waste a system call.
            if !self.has_more {
                self.wait(Until::Arrived)?;
            }
            let received = self.input.receive(&mut *self.stream, value)?;
            self.has_more = received == Received::Part;
            if received != Received::Nothing {
                return Ok(());
            }
        }
    }

    fn wait(&mut self, until: Until) -> Result<(), Failure> {
        // The first wait of a call ends at the deadline itself: no need to read the clock before it.
        if std::mem::replace(&mut self.has_waited, true) && Instant::now() >= self.deadline {
            return Err(Failure::Broken(io::ErrorKind::TimedOut.into()));
        }
        Ok(self.stream.wait(until, self.deadline)?)
    }
}
