//! Pending answers of one worker: tickets that other threads complete.
//!
//! A command issues a [`Ticket`] and passes it to the thread that does the work. The connection's output queue holds the
//! answer's position. The ticket's slot is in use until the ticket returns, even if its connection has closed or its answer
//! has expired: so completions never outnumber the slots, and no late completion meets another request's answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fabcache_protocol::{Encoding, Refusal, Reply, SavedEncoding};
use smallvec::SmallVec;

use crate::bounds::{FLASH_BUFFER_EXCESS_MAX, TICKET_TIME_MAX, TICKETS_MAX};
use crate::output::OutputPart;
use crate::worker::inbox::{Answer, Inbox, Ticket};
use crate::worker::token::{ConnectionToken, TicketId};

/// A key of a request that waits.
pub type SavedKey = SmallVec<[u8; 64]>;

/// A request that is answered when its ticket returns.
#[derive(Debug)]
pub struct PendingAnswer {
    /// The connection that made the request.
    pub owner: ConnectionToken,
    /// What was requested.
    pub request: PendingRequest,
    encoding: SavedEncoding,
    deadline: Instant,
}

/// The request behind a pending answer.
#[derive(Debug)]
pub enum PendingRequest {
    /// A read, which is a miss if it fails or takes too long.
    Read {
        /// Its key.
        key: SavedKey,
        /// The client's descriptor, for watchers.
        cfd: i32,
    },
    /// A request that another PE of the job answers.
    Forwarded {
        /// The error if it fails or takes too long; none for a read, which then is a miss.
        late: Option<&'static str>,
        /// Its bytes.
        bytes: ForwardedBytes,
    },
    /// A change.
    Write {
        /// The error if it fails or takes too long.
        late: &'static str,
        /// How long it may take.
        time_max: Duration,
    },
}

/// Bytes of a request on its way to another PE, counted in its worker's sum while this lives.
#[derive(Debug)]
pub struct ForwardedBytes {
    sum: Arc<AtomicU64>,
    bytes: u64,
    /// The number of its connection's messages under way, this one among them.
    messages: Option<Arc<AtomicU64>>,
}

impl ForwardedBytes {
    /// Counts no bytes.
    pub fn uncounted(sum: &Arc<AtomicU64>) -> ForwardedBytes {
        ForwardedBytes { sum: Arc::clone(sum), bytes: 0, messages: None }
    }

    /// Counts the bytes in; none if the sum has reached its limit. So a value of any length is begun at some time.
    pub fn count(sum: &Arc<AtomicU64>, bytes: u64, most: u64) -> Option<ForwardedBytes> {
        if sum.load(Ordering::Relaxed) >= most {
            return None;
        }
        sum.fetch_add(bytes, Ordering::Relaxed);
        Some(ForwardedBytes { sum: Arc::clone(sum), bytes, messages: None })
    }

    /// Counts the request among the messages of its connection, while this lives.
    pub fn count_message(&mut self, messages: &Arc<AtomicU64>) {
        messages.fetch_add(1, Ordering::Relaxed);
        self.messages = Some(Arc::clone(messages));
    }
}

impl Drop for ForwardedBytes {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.bytes, Ordering::Relaxed);
        if let Some(messages) = &self.messages {
            messages.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl PendingAnswer {
    /// Returns the answer if the request fails or takes too long.
    pub fn failure(&self) -> Answer {
        Answer::Reply(match self.request {
            PendingRequest::Read { .. } | PendingRequest::Forwarded { late: None, .. } => Reply::Miss,
            PendingRequest::Write { late, .. } | PendingRequest::Forwarded { late: Some(late), .. } => {
                Reply::Refused(Refusal::Server(late))
            }
        })
    }

    /// Encodes the answer: what precedes a long value, the value, and the rest. No bytes if the client requested silence.
    pub fn encode(&self, answer: Answer) -> [OutputPart; 3] {
        let encoding = self.encoding.encoding();
        let (mut head, mut tail) = (Vec::with_capacity(VALUE_HEAD_BYTES), Vec::new());
        let mut value = OutputPart::Bytes(Vec::new());
        match answer {
            Answer::Reply(reply) => encoding.reply(&reply, &mut head),
            Answer::Encoded(_, parts) => return *parts,
            Answer::Forwarded(bytes) => head = bytes,
            Answer::Read(item, bytes) => {
                encoding.value_head(&item, &mut head);
                if bytes.len() > COPIED_VALUE_BYTES_MAX {
                    value = OutputPart::Bytes(bytes);
                    encoding.value_tail(&mut tail);
                } else {
                    head.reserve(bytes.len() + VALUE_TAIL_BYTES);
                    head.extend_from_slice(&bytes);
                    encoding.value_tail(&mut head);
                }
            }
            Answer::Fetched(item, _, false) => encoding.reply(&Reply::Found(item), &mut head),
            Answer::Fetched(item, fetched, true) => {
                encoding.value_head(&item, &mut head);
                let fetched = fetched.into_value();
                if fetched.len().saturating_mul(FLASH_BUFFER_EXCESS_MAX) >= fetched.buffer_bytes() {
                    value = OutputPart::Fetched(fetched);
                    encoding.value_tail(&mut tail);
                } else {
                    head.reserve(fetched.len() + VALUE_TAIL_BYTES);
                    fetched.parts(0).for_each(|part| head.extend_from_slice(part));
                    encoding.value_tail(&mut head);
                }
            }
        }
        [OutputPart::Bytes(head), value, OutputPart::Bytes(tail)]
    }
}

/// Copying a longer value takes longer than sending it in a part of its own.
pub const COPIED_VALUE_BYTES_MAX: usize = 4 << 10;
/// Room for what precedes most values.
const VALUE_HEAD_BYTES: usize = 96;
/// Room for what follows a value.
const VALUE_TAIL_BYTES: usize = 2;

#[derive(Debug)]
enum TicketState {
    Free,
    Pending(Box<PendingAnswer>),
    /// The answer expired; the ticket has not returned.
    Expired,
}

#[derive(Debug)]
struct TicketSlot {
    generation: u32,
    state: TicketState,
}

/// The tickets of one worker that have not returned.
#[derive(Debug)]
pub struct TicketSlab {
    inbox: Arc<Inbox>,
    slots: Vec<TicketSlot>,
    free: Vec<usize>,
    /// No pending answer expires before.
    next_expiry: Option<Instant>,
}

impl TicketSlab {
    /// Creates an empty slab; its tickets return to this inbox.
    pub fn new(inbox: &Arc<Inbox>) -> TicketSlab {
        TicketSlab { inbox: Arc::clone(inbox), slots: Vec::new(), free: Vec::new(), next_expiry: None }
    }

    /// Issues a ticket for an answer of this connection. Returns `None` while [`TICKETS_MAX`] have not returned.
    pub fn issue(
        &mut self,
        owner: ConnectionToken,
        encoding: &Encoding<'_>,
        request: PendingRequest,
    ) -> Option<Ticket> {
        self.has_room().then(|| self.issue_beyond(owner, encoding, request))
    }

    /// Issues a ticket, however many have not returned: for a request that cannot wait any more. There are no more of these
    /// than connections.
    pub fn issue_beyond(
        &mut self,
        owner: ConnectionToken,
        encoding: &Encoding<'_>,
        request: PendingRequest,
    ) -> Ticket {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(TicketSlot { generation: 0, state: TicketState::Free });
            self.slots.len() - 1
        });
        let mut saved = SavedEncoding::new();
        saved.save(encoding);
        let time_max = match request {
            PendingRequest::Read { .. } | PendingRequest::Forwarded { .. } => TICKET_TIME_MAX,
            PendingRequest::Write { time_max, .. } => time_max,
        };
        let deadline = Instant::now() + time_max;
        self.next_expiry = self.next_expiry.into_iter().chain([deadline]).min();
        let slot = &mut self.slots[index];
        slot.state =
            TicketState::Pending(Box::new(PendingAnswer { owner, request, encoding: saved, deadline }));
        Ticket::new(TicketId { index, generation: slot.generation }, &self.inbox)
    }

    /// Returns the encoding of a pending answer; none if its time is over.
    pub fn encoding(&self, id: TicketId) -> Option<&SavedEncoding> {
        match &self.slots.get(id.index).filter(|slot| slot.generation == id.generation)?.state {
            TicketState::Pending(answer) => Some(&answer.encoding),
            TicketState::Free | TicketState::Expired => None,
        }
    }

    /// Returns whether another ticket may be issued.
    pub fn has_room(&self) -> bool {
        self.slots.len() - self.free.len() < TICKETS_MAX
    }

    /// Returns whether no ticket is outstanding.
    pub fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Frees the slot of a returned ticket; returns its answer unless that has expired.
    pub fn take_back(&mut self, id: TicketId) -> Option<Box<PendingAnswer>> {
        let slot = self.slots.get_mut(id.index).filter(|slot| slot.generation == id.generation)?;
        let state = std::mem::replace(&mut slot.state, TicketState::Free);
        if matches!(state, TicketState::Free) {
            return None;
        }
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index);
        if self.is_empty() {
            self.next_expiry = None;
        }
        if let TicketState::Pending(answer) = state { Some(answer) } else { None }
    }

    /// Returns the answers whose time is over at `now`. Their tickets stay outstanding.
    pub fn expire(&mut self, now: Instant) -> Vec<(TicketId, Box<PendingAnswer>)> {
        let mut expired = Vec::new();
        if self.next_expiry.is_none_or(|at| now < at) {
            return expired;
        }
        self.next_expiry = None;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let TicketState::Pending(answer) = &slot.state else { continue };
            if now < answer.deadline {
                self.next_expiry = self.next_expiry.into_iter().chain([answer.deadline]).min();
            } else if let TicketState::Pending(answer) =
                std::mem::replace(&mut slot.state, TicketState::Expired)
            {
                expired.push((TicketId { index, generation: slot.generation }, answer));
            }
        }
        expired
    }

    /// Returns a time at which to call [`TicketSlab::expire`]; none if no answer is pending.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.next_expiry
    }
}

#[cfg(test)]
mod tests {
    use fabcache_protocol::TextEncoding;

    use super::*;

    fn issue_for(slab: &mut TicketSlab, time_max: Duration) -> Option<Ticket> {
        let encoding = Encoding::Text(TextEncoding::default());
        let request = PendingRequest::Write { late: "too late", time_max };
        slab.issue(ConnectionToken::default(), &encoding, request)
    }

    fn issue(slab: &mut TicketSlab) -> Option<Ticket> {
        issue_for(slab, TICKET_TIME_MAX)
    }

    #[test]
    fn answers_expire_each_in_its_time() {
        let inbox = Arc::new(Inbox::new().expect("a descriptor"));
        let mut slab = TicketSlab::new(&inbox);
        let _tickets = [3, 1, 2].map(|times| issue_for(&mut slab, times * TICKET_TIME_MAX));
        let now = Instant::now();
        let expired = [1, 2, 3].map(|times| slab.expire(now + times * TICKET_TIME_MAX));
        assert_eq!(expired.map(|expired| expired[0].0.index), [1, 2, 0]);
        assert_eq!(slab.next_expiry(), None);
    }

    #[test]
    fn slots_are_used_again_only_after_their_tickets_returned() {
        let inbox = Arc::new(Inbox::new().expect("a descriptor"));
        let mut slab = TicketSlab::new(&inbox);
        let mut tickets: Vec<Ticket> = std::iter::from_fn(|| issue(&mut slab)).collect();
        assert_eq!(tickets.len(), TICKETS_MAX);
        assert!(slab.expire(Instant::now()).is_empty());
        let expired = slab.expire(Instant::now() + TICKET_TIME_MAX);
        assert_eq!((expired.len(), slab.next_expiry()), (TICKETS_MAX, None));
        assert!(issue(&mut slab).is_none(), "the tickets have not returned");
        let id = tickets.pop().expect("issued").id();
        assert!(slab.take_back(id).is_none(), "its answer expired");
        let next = issue(&mut slab).expect("one slot is free").id();
        assert_eq!((next.index, next.generation), (id.index, id.generation + 1));
        assert!(slab.take_back(id).is_none(), "an earlier ticket returns twice");
        assert!(slab.take_back(next).is_some());
        assert!(slab.take_back(next).is_none(), "this one returns twice");
        drop(tickets);
        let returned = inbox.take_completions();
        returned.iter().for_each(|completion| _ = slab.take_back(completion.id));
        assert!(slab.is_empty());
        drop(issue(&mut slab));
        assert!(slab.next_expiry().is_some());
        slab.take_back(inbox.take_completions()[0].id).expect("it was issued");
        assert_eq!(slab.next_expiry(), None, "a worker would wake for nothing");
    }

    #[test]
    fn only_a_sleeping_worker_is_woken() {
        let inbox = Arc::new(Inbox::new().expect("a descriptor"));
        let mut slab = TicketSlab::new(&inbox);
        let is_rung = || rustix::io::read(inbox.doorbell(), &mut [0; 8]).is_ok();
        issue(&mut slab).expect("room").complete(Answer::Reply(Reply::Ok));
        assert!(!is_rung() && !inbox.arm_wakeup(), "the worker has a completion to take");
        assert!(matches!(inbox.take_completions()[0].answer, Some(Answer::Reply(Reply::Ok))));
        assert!(inbox.arm_wakeup());
        drop(issue(&mut slab));
        assert!(is_rung());
        drop(issue(&mut slab));
        assert!(!is_rung(), "it was rung before");
        assert_eq!(inbox.take_completions().len(), 2);
    }
}
