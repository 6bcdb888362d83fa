//! Answers on their way out, in the order of their requests: bytes, long values that lie in the region, and positions of
//! pending answers, at which sending stops.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fabcache_store::{FetchedValue, PinnedValue};
use fabcache_transport::Link;

use crate::bounds::{
    CONNECTION_TICKETS_MAX, IDLE_BUFFER_BYTES_MAX, QUEUED_BYTES_MAX, SEND_PARTS_MAX, UNSENT_BYTES_MAX,
};
use crate::worker::token::TicketId;

/// A part of the answers.
#[derive(Debug)]
pub enum OutputPart {
    /// Bytes.
    Bytes(Vec<u8>),
    /// A value that was read from flash.
    Fetched(FetchedValue),
    /// A value in the region.
    Value(PinnedValue),
    /// A pending answer, and the bytes that are reserved for it.
    Pending(TicketId, u64),
}

impl OutputPart {
    /// Returns its bytes on the heap, and those reserved there.
    fn copied_bytes(&self) -> u64 {
        match self {
            OutputPart::Bytes(bytes) => bytes.len() as u64,
            OutputPart::Fetched(value) => value.len() as u64,
            OutputPart::Value(_) => 0,
            OutputPart::Pending(_, reserved) => *reserved,
        }
    }

    /// Returns its bytes, and those reserved.
    fn bytes(&self) -> u64 {
        match self {
            OutputPart::Value(value) => value.len(),
            _ => self.copied_bytes(),
        }
    }

    /// Adds its bytes, but for the first `skip`, to those of one send. Returns whether there may be further parts.
    fn add_slices<'p>(&'p self, skip: usize, slices: &mut Vec<IoSlice<'p>>) -> bool {
        match self {
            OutputPart::Pending(..) => return false,
            OutputPart::Value(value) if !value.is_pinned() => return false,
            OutputPart::Bytes(bytes) => slices.push(IoSlice::new(&bytes[skip..])),
            OutputPart::Fetched(value) => {
                slices.extend(value.parts(skip).map(IoSlice::new).take(SEND_PARTS_MAX));
            }
            OutputPart::Value(value) => slices.extend(value.slices().map(IoSlice::new).take(SEND_PARTS_MAX)),
        }
        slices.truncate(SEND_PARTS_MAX);
        slices.len() < SEND_PARTS_MAX
    }
}

/// Unsent answers of all connections, long values apart.
#[derive(Debug, Default)]
pub struct UnsentBytes(AtomicU64);

impl UnsentBytes {
    fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    fn remove(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn are_too_many(&self) -> bool {
        self.0.load(Ordering::Relaxed) > UNSENT_BYTES_MAX
    }
}

/// One connection's unsent answers.
#[derive(Debug)]
pub struct OutputQueue {
    of_all: Arc<UnsentBytes>,
    parts: VecDeque<OutputPart>,
    /// Sent bytes of the first part, if it holds bytes; a value releases sent bytes.
    sent: usize,
    bytes: u64,
    /// The number of pending answers.
    pending: usize,
    /// The pending answer whose effect later requests must see.
    barrier: Option<TicketId>,
    /// Whether a part may be a value in excess, which is not pinned between sends.
    has_excess: bool,
    /// Whether the memory of an unsent value was used again.
    is_lost: bool,
}

impl OutputQueue {
    /// Nothing waits; what will is counted among that of all connections.
    pub fn new(of_all: &Arc<UnsentBytes>) -> OutputQueue {
        OutputQueue {
            of_all: Arc::clone(of_all),
            parts: VecDeque::new(),
            sent: 0,
            bytes: 0,
            pending: 0,
            barrier: None,
            has_excess: false,
            is_lost: false,
        }
    }

    /// Returns the number of pending bytes beyond which the connection's requests wait.
    pub fn bytes_max(&self) -> u64 {
        if self.of_all.are_too_many() { 0 } else { QUEUED_BYTES_MAX }
    }

    /// Returns whether more bytes are pending than may be while the connection's requests are executed.
    pub fn is_full(&self) -> bool {
        self.bytes > self.bytes_max()
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns the number of pending bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether any answer is pending.
    pub fn has_pending(&self) -> bool {
        self.pending > 0
    }

    /// Returns whether a pending answer comes next: nothing can be sent before it completes.
    pub fn awaits_ticket(&self) -> bool {
        matches!(self.parts.front(), Some(OutputPart::Pending(..)))
    }

    /// Returns whether further requests wait for pending answers.
    pub fn stops_requests(&self) -> bool {
        self.barrier.is_some() || self.pending >= CONNECTION_TICKETS_MAX
    }

    /// Returns whether any of these pin memory.
    pub fn pins_memory(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, OutputPart::Value(value) if value.is_pinned()))
    }

    /// Returns whether the next value was lost, because its memory was freed between sends: the connection cannot go on.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Adds bytes; `bytes` is empty afterwards.
    pub fn push_bytes(&mut self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        self.bytes += bytes.len() as u64;
        self.of_all.add(bytes.len() as u64);
        match self.parts.back_mut() {
            Some(OutputPart::Bytes(last)) if last.len() < IDLE_BUFFER_BYTES_MAX => last.append(bytes),
            // A copy has no idle capacity.
            _ => {
                self.parts.push_back(OutputPart::Bytes(bytes.clone()));
                bytes.clear();
            }
        }
    }

    /// Adds bytes without a copy.
    pub fn push_long(&mut self, bytes: Vec<u8>) {
        self.bytes += bytes.len() as u64;
        self.of_all.add(bytes.len() as u64);
        self.parts.push_back(OutputPart::Bytes(bytes));
    }

    /// Adds a long value.
    pub fn push_value(&mut self, value: PinnedValue) {
        self.bytes += value.len();
        self.has_excess |= value.is_excess();
        self.parts.push_back(OutputPart::Value(value));
    }

    /// Adds the position of a pending answer, and reserves its expected bytes.
    pub fn push_pending(&mut self, id: TicketId, reserved: u64) {
        self.pending += 1;
        self.bytes += reserved;
        self.of_all.add(reserved);
        self.parts.push_back(OutputPart::Pending(id, reserved));
    }

    /// As [`OutputQueue::push_pending`]; further requests wait until it completes.
    pub fn push_barrier(&mut self, id: TicketId) {
        self.push_pending(id, 0);
        self.barrier = Some(id);
    }

    /// Puts an answer in its position; no bytes for a request that gets none.
    pub fn complete(&mut self, id: TicketId, answer: impl IntoIterator<Item = OutputPart>) {
        let is_it = |part: &OutputPart| matches!(part, OutputPart::Pending(pending, _) if *pending == id);
        let Some(at) = self.parts.iter().position(is_it) else { return };
        let reserved = self.parts.remove(at).map_or(0, |part| part.copied_bytes());
        self.pending -= 1;
        self.bytes -= reserved;
        self.of_all.remove(reserved);
        self.barrier = self.barrier.filter(|barrier| *barrier != id);
        for (at, part) in (at..).zip(answer.into_iter().filter(|part| part.bytes() > 0)) {
            self.bytes += part.bytes();
            self.of_all.add(part.copied_bytes());
            self.has_excess |= matches!(&part, OutputPart::Value(value) if value.is_excess());
            self.parts.insert(at, part);
        }
    }

    /// Sends as much as the peer takes, up to the first pending answer; returns how many bytes that was.
    ///
    /// # Errors
    /// The link is broken, or the memory of the next value was freed between sends.
    pub fn send(&mut self, link: &mut dyn Link) -> io::Result<u64> {
        if self.has_excess {
            // Up to the first that is lost.
            let _all_pinned = self.values().all(PinnedValue::pin);
        }
        let sent = self.send_pinned(link);
        self.unpin_excess();
        sent
    }

    /// Unpins values in excess until the next send.
    pub fn unpin_excess(&mut self) {
        if self.has_excess {
            self.values().filter(|value| value.is_excess()).for_each(PinnedValue::unpin);
            let any_left = self.values().any(|value| !value.is_pinned());
            self.has_excess = any_left;
        }
    }

    fn values(&mut self) -> impl Iterator<Item = &mut PinnedValue> {
        self.parts.iter_mut().filter_map(|part| match part {
            OutputPart::Value(value) => Some(value),
            _ => None,
        })
    }

    fn send_pinned(&mut self, link: &mut dyn Link) -> io::Result<u64> {
        let mut total = 0;
        while !self.parts.is_empty() && !self.awaits_ticket() {
            let sent = {
                let mut slices = Vec::with_capacity(self.parts.len().min(SEND_PARTS_MAX));
                let mut skip = self.sent;
                for part in &self.parts {
                    if !part.add_slices(std::mem::take(&mut skip), &mut slices) {
                        break;
                    }
                }
                if slices.is_empty() {
                    self.is_lost = true;
                    let why = "an answer's memory was freed, as its item was replaced or memory was short";
                    return Err(io::Error::other(why));
                }
                link.send(&slices)? as u64
            };
            if sent == 0 {
                return Ok(total);
            }
            total += sent;
            self.advance(sent);
        }
        Ok(total)
    }

    fn advance(&mut self, mut sent: u64) {
        self.bytes -= sent;
        while let Some(first) = self.parts.front_mut() {
            let left = match first {
                OutputPart::Bytes(bytes) => (bytes.len() - self.sent) as u64,
                OutputPart::Fetched(value) => (value.len() - self.sent) as u64,
                OutputPart::Value(value) => value.len(),
                OutputPart::Pending(..) => return,
            };
            let now = sent.min(left);
            match first {
                OutputPart::Bytes(_) | OutputPart::Fetched(_) => {
                    self.sent += now as usize;
                    self.of_all.remove(now);
                }
                OutputPart::Value(value) => value.advance(now),
                OutputPart::Pending(..) => {}
            }
            if now < left {
                return;
            }
            sent -= now;
            self.sent = 0;
            self.parts.pop_front();
        }
    }
}

impl Drop for OutputQueue {
    fn drop(&mut self) {
        let unsent: u64 = self.parts.iter().map(OutputPart::copied_bytes).sum();
        self.of_all.remove(unsent - self.sent as u64);
    }
}

#[cfg(test)]
mod tests {
    use fabcache_transport::{Received, memory};

    use super::*;

    #[test]
    fn answers_completed_in_any_order_are_sent_in_the_order_of_their_requests() {
        let of_all = Arc::default();
        let mut queue = OutputQueue::new(&of_all);
        let (mut link, peer) = memory::pair().expect("a descriptor");
        let ids: Vec<TicketId> =
            (0..CONNECTION_TICKETS_MAX).map(|index| TicketId { index, generation: 0 }).collect();
        for id in &ids {
            assert!(!queue.stops_requests());
            queue.push_bytes(&mut format!("<{}>", id.index).into_bytes());
            queue.push_pending(*id, 7);
        }
        assert!(queue.stops_requests(), "too many are pending");
        let mut expected = String::new();
        let mut heard = Vec::new();
        // The odd ones complete first, and some requests get no answer.
        let answer = |id: &TicketId| match id.index % 3 {
            0 => String::new(),
            _ => format!("({})", id.index),
        };
        let (even, odd): (Vec<&TicketId>, Vec<&TicketId>) =
            ids.iter().partition(|id| id.index.is_multiple_of(2));
        let odd_first = odd.into_iter().chain(even);
        for id in odd_first {
            queue.send(&mut link).expect("the link is open");
            assert!(queue.awaits_ticket());
            queue.complete(*id, [OutputPart::Bytes(answer(id).into_bytes())]);
            queue.complete(*id, [OutputPart::Bytes(b"twice".to_vec())]);
            assert!(!queue.stops_requests());
        }
        queue.send(&mut link).expect("the link is open");
        let mut buffer = [0; 1 << 10];
        while let Received::Bytes(len) = peer.receive(&mut buffer) {
            heard.extend_from_slice(&buffer[..len]);
        }
        ids.iter().for_each(|id| expected += &format!("<{}>{}", id.index, answer(id)));
        assert_eq!(String::from_utf8_lossy(&heard), expected);
        assert!(queue.is_empty());
        drop(queue);
        assert_eq!(of_all.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn requests_behind_a_barrier_wait() {
        let mut queue = OutputQueue::new(&Arc::default());
        let [read, flush] = [0, 1].map(|index| TicketId { index, generation: 0 });
        queue.push_pending(read, 0);
        assert!(!queue.stops_requests());
        queue.push_barrier(flush);
        queue.complete(read, [OutputPart::Bytes(b"value".to_vec())]);
        assert!(queue.stops_requests() && !queue.awaits_ticket());
        queue.complete(flush, []);
        assert!(!queue.stops_requests());
    }

    #[test]
    fn each_connection_waits_for_its_own_answers_while_all_have_too_many() {
        let of_all = Arc::default();
        let one = OutputQueue::new(&of_all);
        let mut others = Vec::new();
        while one.bytes_max() > 0 {
            let mut other = OutputQueue::new(&of_all);
            other.push_bytes(&mut vec![b'x'; 1 << 20]);
            others.push(other);
        }
        assert_eq!(others.len() as u64, (UNSENT_BYTES_MAX >> 20) + 1);
        others.pop();
        assert_eq!(one.bytes_max(), QUEUED_BYTES_MAX);
    }
}
