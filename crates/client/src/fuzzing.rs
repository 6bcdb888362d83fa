//! Parses a server's answers cut into pieces, for the fuzz targets.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Instant;

use crate::input::Input;
use crate::message::Encoding;
use crate::stream::{Stream, Until, Waiter};
use crate::text::ExpectedAnswer;

/// The key that is requested.
pub const KEY: &[u8] = b"key";

/// Returns all answers in the pieces, printed, up to the end or an error that breaks a connection. Each byte of
/// `asked` selects the request to a text server; the rest is the answer of a server that uses packets or the meta
/// protocol.
pub fn answers(pieces: impl IntoIterator<Item = Vec<u8>>, requested: &[u8]) -> Vec<String> {
    let (mut stream, mut input) = (Pieces(pieces.into_iter().collect()), Input::default());
    let (mut answers, mut value) = (Vec::new(), Vec::new());
    loop {
        let requested = requested.get(answers.len()).map(|byte| match byte % 4 {
            0 => ExpectedAnswer::Value(KEY),
            1 => ExpectedAnswer::Values,
            2 => ExpectedAnswer::Touch,
            _ => ExpectedAnswer::Change,
        });
        match input.answer(requested, &mut value) {
            Ok(Some(answer)) => {
                let key = input.key().escape_ascii();
                answers.push(format!("{answer:?} {key} {}", value.escape_ascii()));
                value.clear();
            }
            Ok(None) if input.receive(&mut stream, &mut value).is_err() => return answers,
            Ok(None) => {}
            Err(failure) => {
                answers.push(failure.to_string());
                if failure.breaks() {
                    return answers;
                }
            }
        }
    }
}

/// Received bytes, with a pause between two pieces.
#[derive(Debug)]
struct Pieces(VecDeque<Vec<u8>>);

impl Stream for Pieces {
    fn encoding(&self) -> Encoding {
        Encoding::Meta
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(parts.iter().map(|part| part.len()).sum())
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let Some(piece) = self.0.front_mut() else { return Ok(None) };
        let len = piece.len().min(into.capacity() - into.len());
        into.extend(piece.drain(..len));
        if piece.is_empty() {
            self.0.pop_front();
        }
        Ok(Some(len))
    }

    fn wait(&mut self, _: Until, _: Instant) -> io::Result<()> {
        Ok(())
    }

    fn waiter(&self) -> io::Result<Box<dyn Waiter>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
