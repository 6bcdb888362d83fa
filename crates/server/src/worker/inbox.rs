//! A worker's inbox: new links and completed answers from other threads, and a doorbell.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use fabcache_protocol::{Item, Reply};
use fabcache_store::FetchedItem;
use fabcache_transport::Link;
use rustix::event::EventfdFlags;

use super::token::TicketId;
use crate::output::OutputPart;

/// A link that a worker is to serve.
pub struct NewLink {
    /// The link.
    pub link: Box<dyn Link>,
    /// Which listener took it.
    pub listener: usize,
}

/// The duty to complete one pending answer, in any thread. A ticket that is dropped reports a failure.
#[derive(Debug)]
pub struct Ticket {
    id: TicketId,
    inbox: Arc<Inbox>,
    answer: Option<Answer>,
}

/// The outcome of a request that was completed by its ticket.
#[derive(Debug)]
pub enum Answer {
    /// A reply.
    Reply(Reply<'static>),
    /// An item that was found on flash, and whether its value is sent.
    Fetched(Item, Box<FetchedItem>, bool),
    /// The encoded answer for an item in memory, and the length of its value.
    Encoded(u64, Box<[OutputPart; 3]>),
    /// An item that was read from another PE's memory, and its value.
    Read(Item, Vec<u8>),
    /// The answer of another PE of the job, encoded for the client.
    Forwarded(Vec<u8>),
}

impl Answer {
    /// Returns the length of the item's value; none if it was not found.
    pub fn found(&self) -> Option<u64> {
        match self {
            Answer::Fetched(item, ..) | Answer::Read(item, _) => Some(item.len),
            Answer::Encoded(len, _) => Some(*len),
            Answer::Reply(Reply::Found(item)) => Some(item.len),
            Answer::Reply(_) | Answer::Forwarded(_) => None,
        }
    }
}

impl Ticket {
    /// Creates the ticket for the answer that the worker of this inbox knows by `id`.
    pub fn new(id: TicketId, inbox: &Arc<Inbox>) -> Ticket {
        Ticket { id, inbox: Arc::clone(inbox), answer: None }
    }

    /// The pending answer's name.
    pub fn id(&self) -> TicketId {
        self.id
    }

    /// Passes the answer to the worker. Its encoding decides there whether a quiet request is answered.
    pub fn complete(mut self, answer: Answer) {
        self.answer = Some(answer);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.inbox.complete(Completion { id: self.id, answer: self.answer.take() });
    }
}

/// A ticket that returned to its worker.
#[derive(Debug)]
pub struct Completion {
    /// The pending answer.
    pub id: TicketId,
    /// The answer; none if the request failed.
    pub answer: Option<Answer>,
}

/// Completions that the worker has not yet taken. One lock orders them and the sleep of the worker.
#[derive(Debug, Default)]
struct Completions {
    /// At most one for each ticket of the worker.
    returned: Vec<Completion>,
    /// Whether the worker sleeps, or is about to.
    is_armed: bool,
}

/// One worker's inbox.
pub struct Inbox {
    links: Mutex<Vec<NewLink>>,
    completions: Mutex<Completions>,
    doorbell: OwnedFd,
    /// Connections of the worker, including those in the inbox.
    load: AtomicU32,
    /// Connections wait for memory, and are to be continued when some is free.
    awaits_memory: AtomicBool,
}

impl Inbox {
    /// An empty inbox.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> std::io::Result<Inbox> {
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Inbox {
            links: Mutex::default(),
            completions: Mutex::default(),
            doorbell,
            load: AtomicU32::new(0),
            awaits_memory: AtomicBool::new(false),
        })
    }

    /// Hands a link over, and wakes the worker.
    pub fn put(&self, link: NewLink) {
        self.links.lock().expect("no thread panics while it holds an inbox").push(link);
        self.wake();
    }

    /// Takes the new links.
    pub fn take(&self) -> Vec<NewLink> {
        // Before the links are taken: a later doorbell then concerns later links.
        let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
        std::mem::take(&mut self.links.lock().expect("no thread panics while it holds an inbox"))
    }

    /// Hands a completion over, and wakes the worker if it sleeps.
    fn complete(&self, completion: Completion) {
        let mut completions = self.completions();
        completions.returned.push(completion);
        let wakes = std::mem::take(&mut completions.is_armed);
        drop(completions);
        if wakes {
            self.wake();
        }
    }

    /// Takes the completions, and disarms the wakeup.
    pub fn take_completions(&self) -> Vec<Completion> {
        let mut completions = self.completions();
        completions.is_armed = false;
        std::mem::take(&mut completions.returned)
    }

    /// Arms the wakeup: the next completion rings the doorbell. Returns false if there are completions to take.
    pub fn arm_wakeup(&self) -> bool {
        let mut completions = self.completions();
        completions.is_armed = completions.returned.is_empty();
        completions.is_armed
    }

    fn completions(&self) -> MutexGuard<'_, Completions> {
        self.completions.lock().expect("no thread panics while it holds completions")
    }

    /// Wakes the worker.
    pub fn wake(&self) {
        // A full counter wakes the worker as well.
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    /// Sets whether connections wait for memory.
    pub fn set_awaits_memory(&self, awaits: bool) {
        self.awaits_memory.store(awaits, Ordering::Relaxed);
    }

    /// Wakes the worker if connections wait for memory. It looks again after a while in any case.
    pub fn wake_for_memory(&self) {
        if self.awaits_memory.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Readable when the worker was woken.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// Connections of the worker.
    pub fn load(&self) -> u32 {
        self.load.load(Ordering::Relaxed)
    }

    /// Counts a connection in or out.
    pub fn count(&self, change: i32) {
        if change > 0 {
            self.load.fetch_add(1, Ordering::Relaxed);
        } else {
            self.load.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("load", &self.load()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worker's next step.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Take,
        Arm,
        Sleep,
    }

    /// Each step holds the lock once, so the order of steps is all that threads can change. Bit n of `schedule` lets a
    /// ticket return in place of the worker's step n. Returns the completions that the worker takes before it sleeps for good.
    fn taken(schedule: u32, tickets: usize) -> Vec<usize> {
        let inbox = Arc::new(Inbox::new().expect("a descriptor"));
        let ticket = |index| Ticket::new(TicketId { index, generation: 0 }, &inbox);
        let mut returning = (0..tickets).map(ticket);
        let (mut step, mut taken) = (Step::Take, Vec::new());
        for turn in 0.. {
            if turn < u32::BITS && schedule >> turn & 1 == 1 {
                drop(returning.next());
                continue;
            }
            step = match step {
                Step::Take => {
                    taken.extend(inbox.take_completions().iter().map(|completion| completion.id.index));
                    Step::Arm
                }
                Step::Arm if inbox.arm_wakeup() => Step::Sleep,
                Step::Sleep if rustix::io::read(&inbox.doorbell, &mut [0; 8]).is_err() => {
                    // Only a ticket can wake it.
                    if returning.next().is_none() {
                        break;
                    }
                    Step::Sleep
                }
                Step::Arm | Step::Sleep => Step::Take,
            };
        }
        taken
    }

    #[test]
    fn no_order_of_steps_loses_a_wakeup() {
        for schedule in 0..1 << 12 {
            assert_eq!(taken(schedule, 4), [0, 1, 2, 3], "schedule {schedule:b}");
        }
    }
}
