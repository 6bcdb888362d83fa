//! Requests for other PEs, and what becomes of their answers.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::worker::inbox::{Answer, Ticket};

/// What becomes of the answer to a forwarded request.
#[derive(Debug)]
pub enum Completion {
    /// A client gets it. A ticket that is dropped reports a failure.
    Ticket(Ticket, InFlight),
    /// It is one of several.
    Part(Part),
    /// Nobody waits for it.
    Unawaited,
}

/// One of several requests that have one answer in common. Dropped, it has failed.
#[derive(Debug)]
pub struct Part {
    gathering: Arc<Gathering>,
    has_succeeded: bool,
}

/// Requests to several PEs.
pub struct Gathering {
    left: AtomicUsize,
    failed: AtomicUsize,
    end: Mutex<Option<Box<GatheringEnd>>>,
}

/// Called with the number of requests that failed.
type GatheringEnd = dyn FnOnce(usize) + Send;

impl std::fmt::Debug for Gathering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gathering").field("left", &self.left).finish_non_exhaustive()
    }
}

impl Gathering {
    /// Returns `count` parts, at least one; `end` is called when all have completed.
    pub fn parts(count: usize, end: Box<GatheringEnd>) -> Vec<Part> {
        let gathering = Arc::new(Gathering {
            left: AtomicUsize::new(count),
            failed: AtomicUsize::new(0),
            end: Mutex::new(Some(end)),
        });
        (0..count).map(|_| Part { gathering: Arc::clone(&gathering), has_succeeded: false }).collect()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.has_succeeded {
            self.gathering.failed.fetch_add(1, Ordering::Relaxed);
        }
        if self.gathering.left.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(end) = self.gathering.end.lock().ok().and_then(|mut end| end.take())
        {
            end(self.gathering.failed.load(Ordering::Relaxed));
        }
    }
}

impl Completion {
    /// Returns whether somebody waits for the answer.
    pub fn is_awaited(&self) -> bool {
        !matches!(self, Completion::Unawaited)
    }

    /// Passes on an answer that this PE has made.
    pub fn complete_with(self, answer: Answer) {
        match self {
            Completion::Ticket(ticket, _) => ticket.complete(answer),
            Completion::Part(mut part) => part.has_succeeded = true,
            Completion::Unawaited => {}
        }
    }

    /// Passes the PE's answer on.
    pub fn complete(self, answer: &[u8]) {
        match self {
            Completion::Ticket(ticket, _) => ticket.complete(Answer::Forwarded(answer.to_vec())),
            Completion::Part(mut part) => part.has_succeeded = is_success(answer),
            Completion::Unawaited => {}
        }
    }
}

/// Returns whether an answer to an order is that it was carried out.
fn is_success(answer: &[u8]) -> bool {
    match answer {
        // A quiet one is answered only by errors.
        [] => true,
        // The status of a packet.
        [fabcache_protocol::binary::RESPONSE, _, _, _, _, _, status @ ..] => status.starts_with(&[0, 0]),
        line => line == b"OK\r\n",
    }
}

/// A request under way to a PE, counted while this lives.
#[derive(Debug)]
pub struct InFlight(Arc<AtomicU64>);

impl InFlight {
    /// Counts it in.
    pub fn count(requests: &Arc<AtomicU64>) -> InFlight {
        requests.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(requests))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A GET that needs no more than the item and its value.
#[derive(Debug)]
pub struct DirectGet {
    /// The key.
    pub key: Box<[u8]>,
}

/// A request for another PE.
#[derive(Debug)]
pub struct Operation {
    /// The request, as the client sent it.
    pub request: Vec<u8>,
    /// The key, if the item may be read from the PE's memory instead.
    pub direct: Option<DirectGet>,
    /// The answer's last line, `END`, is not the client's: more keys of the line follow.
    pub strips_end: bool,
    /// What becomes of the answer.
    pub completion: Completion,
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn gathering_ends_with_its_last_part() {
        let (sender, ended) = channel();
        let mut parts = Gathering::parts(4, Box::new(move |failed| sender.send(failed).expect("awaited")));
        for answer in [&b""[..], b"OK\r\n", b"\x81\x08\0\0\0\0\0\0\0\0\0\0"] {
            assert!(ended.try_recv().is_err());
            Completion::Part(parts.pop().expect("four")).complete(answer);
        }
        drop(parts);
        assert_eq!(ended.try_recv(), Ok(1));
        for failure in [&b"SERVER_ERROR no\r\n"[..], b"\x81\x08\0\0\0\0\0\x81\0\0\0\0", b"\x81"] {
            assert!(!is_success(failure), "{}", failure.escape_ascii());
        }
    }
}
