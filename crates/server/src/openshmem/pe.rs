//! One other PE, as the driver of its links uses it: the link to its shard, and the link from it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::Result;
use fabcache_shmem::{RemoteHeaps, SymmetricHeap};
use fabcache_transport::openshmem::{ClientLink, HeapPlan, Progress, ServerLink, Wake};

use super::answers::{Answers, push_end};
use super::gets::OneSidedGets;
use super::operation::{Completion, Operation};
use super::pes::{JobPhase, Pes};

/// Bytes of requests beyond which no more are taken from the queue, until some are sent.
const UNSENT_BYTES_MAX: usize = 256 << 10;

/// Requests taken from the queue at once: others are served, and heartbeats sent, between them.
const OPERATIONS_MAX: usize = 64;

/// A request that was sent, or is about to be.
#[derive(Debug)]
struct Pending {
    /// None if it was given up: its answer is discarded.
    completion: Option<Completion>,
    strips_end: bool,
}

impl Pending {
    /// Returns whether somebody waits for the answer.
    fn is_awaited(&self) -> bool {
        self.completion.as_ref().is_some_and(Completion::is_awaited)
    }
}

/// One other PE.
#[derive(Debug)]
pub struct Pe {
    number: usize,
    client: ClientLink,
    server: ServerLink,
    /// Whether the link from it was opened.
    is_serving: bool,
    /// Requests in the link's stream, of which `sent` bytes were sent.
    unsent: Vec<u8>,
    sent: usize,
    /// Requests without an answer, in the stream's order.
    pending: VecDeque<Pending>,
    /// The number of the first of them.
    first: u32,
    answers: Answers,
    /// GETs from its region; none if it cannot be read.
    gets: Option<OneSidedGets>,
    /// It was said that the link from it cannot be opened.
    has_reported: bool,
}

impl Pe {
    /// Sets up both links.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new(
        number: usize,
        plan: &HeapPlan,
        heap: &dyn SymmetricHeap,
        wake: Arc<dyn Wake>,
        gets: Option<OneSidedGets>,
    ) -> std::io::Result<Pe> {
        let own = heap.pe();
        Ok(Pe {
            number,
            client: ClientLink::new(plan, own, number, |at, len| heap.memory(at, len)),
            server: ServerLink::new(plan, number, own, |at, len| heap.memory(at, len), wake)?,
            is_serving: false,
            unsent: Vec::new(),
            sent: 0,
            pending: VecDeque::new(),
            first: 0,
            answers: Answers::default(),
            gets,
            has_reported: false,
        })
    }

    /// Returns whether there is something to do: it has written something, or there is something to send.
    #[inline]
    pub fn has_work(&self, pes: &Pes) -> bool {
        self.server.has_work()
            || self.client.has_come()
            || pes.queues[self.number].has_any() && self.takes_requests()
            || self.must_open(pes) && !self.has_reported
    }

    /// Returns whether the link from it must be opened.
    fn must_open(&self, pes: &Pes) -> bool {
        (!self.is_serving || self.server.has_ended()) && pes.phase() == JobPhase::Running
    }

    /// Sends and receives what is there, both ways. Returns whether there was anything.
    pub fn progress(&mut self, pes: &Pes, heaps: &mut dyn RemoteHeaps) -> bool {
        self.try_progress(pes, heaps).unwrap_or_else(|error| {
            // Answers may have been sent before.
            pes.wake_threads_of(self.number);
            pes.lost[self.number].store(true, Ordering::Relaxed);
            tracing::error!(
                pe = self.number,
                name = pes.names()[self.number],
                "another PE broke the rules, and its keys are unreachable from now on: {error:#}"
            );
            self.give_up(pes)
        })
    }

    fn try_progress(&mut self, pes: &Pes, heaps: &mut dyn RemoteHeaps) -> Result<bool> {
        let mut any = self.server.progress(heaps)?;
        if self.must_open(pes) {
            any |= self.open(pes, heaps);
        }
        let progress = self.client.progress(heaps, &mut self.answers.received)?;
        any |= progress != Progress::Nothing;
        if progress != Progress::Nothing {
            self.deliver()?;
        }
        if progress == Progress::Restarted {
            // Requests under way on the last link are lost.
            let lost = self.pending.iter().filter(|pending| pending.is_awaited()).count();
            pes.unanswered.fetch_add(lost as u64, Ordering::Relaxed);
            self.first = self.first.wrapping_add(self.pending.len() as u32);
            self.pending.clear();
            self.answers.clear();
            self.unsent.clear();
            self.sent = 0;
        }
        any |= self.send(pes, heaps);
        if any {
            pes.wake_threads_of(self.number);
        }
        Ok(any)
    }

    /// Opens the link from it. Returns whether that succeeded.
    fn open(&mut self, pes: &Pes, heaps: &mut dyn RemoteHeaps) -> bool {
        match self.server.open(heaps) {
            Ok(link) => {
                pes.listener.add(link);
                (self.is_serving, self.has_reported) = (true, false);
                return true;
            }
            // Tried again with the next progress.
            Err(error) if !std::mem::replace(&mut self.has_reported, true) => {
                tracing::warn!(pe = self.number, "cannot serve another PE for now: {error}");
            }
            Err(_) => {}
        }
        false
    }

    /// Returns whether requests for it are taken from the queue.
    fn takes_requests(&self) -> bool {
        self.client.is_open() && self.unsent.len() - self.sent < UNSENT_BYTES_MAX
    }

    /// Passes complete answers to those who wait for them.
    fn deliver(&mut self) -> Result<()> {
        while let Some(pending) = self.pending.front_mut() {
            let Some(answer) = self.answers.next(self.first)? else { break };
            if let Some(completion) = pending.completion.take() {
                completion.complete(match pending.strips_end {
                    // An error would end the line's answer: the key is a miss.
                    true => answer.strip_suffix(b"END\r\n").unwrap_or_default(),
                    false => answer,
                });
            }
            self.pending.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        self.answers.settle(!self.pending.is_empty());
        Ok(())
    }

    /// Takes requests from the queue, and sends them.
    fn send(&mut self, pes: &Pes, heaps: &mut dyn RemoteHeaps) -> bool {
        let queue = &pes.queues[self.number];
        let mut any = false;
        if queue.has_any() && self.takes_requests() {
            for operation in queue.take(OPERATIONS_MAX, UNSENT_BYTES_MAX) {
                self.execute(operation, pes, heaps);
            }
            self.run_gets(pes, heaps);
            while let Some(line) = self.gets.as_mut().and_then(OneSidedGets::report) {
                self.push(line, false, Completion::Unawaited);
            }
            any = true;
        }
        if self.sent < self.unsent.len() {
            let sent = self.client.send(heaps, &self.unsent[self.sent..]);
            self.sent += sent;
            any |= sent > 0;
        }
        if self.sent == self.unsent.len() {
            self.unsent.clear();
            self.unsent.shrink_to(UNSENT_BYTES_MAX);
            self.sent = 0;
        } else if self.sent >= UNSENT_BYTES_MAX {
            // While more requests come than are sent, it would never be empty.
            self.unsent.drain(..self.sent);
            self.sent = 0;
        }
        any
    }

    /// Begins a GET from the PE's memory, or sends the request behind those before it.
    fn execute(&mut self, operation: Operation, pes: &Pes, heaps: &mut dyn RemoteHeaps) {
        match (&mut self.gets, &operation.direct) {
            (Some(gets), Some(get)) => {
                let key = get.key.clone();
                if !gets.has_room() {
                    self.run_gets(pes, heaps);
                }
                match self.gets.as_mut().filter(|gets| gets.has_room()) {
                    Some(gets) => gets.begin(&key, operation),
                    None => self.push_operation(operation),
                }
            }
            _ => {
                // What was read before a change must not show it.
                self.run_gets(pes, heaps);
                self.push_operation(operation);
            }
        }
    }

    /// Executes the GETs that have begun.
    fn run_gets(&mut self, pes: &Pes, heaps: &mut dyn RemoteHeaps) {
        let Some(gets) = self.gets.as_mut().filter(|gets| gets.has_started()) else { return };
        let mut asked = Vec::new();
        let answered = gets.run(heaps, &mut asked);
        pes.direct_reads.fetch_add(answered, Ordering::Relaxed);
        for operation in asked {
            self.push_operation(operation);
        }
    }

    fn push_operation(&mut self, operation: Operation) {
        let Operation { request, strips_end, completion, .. } = operation;
        self.push(request, strips_end, completion);
    }

    fn push(&mut self, request: Vec<u8>, strips_end: bool, completion: Completion) {
        self.unsent.extend_from_slice(&request);
        push_end(self.first.wrapping_add(self.pending.len() as u32), &mut self.unsent);
        self.pending.push_back(Pending { completion: Some(completion), strips_end });
    }

    /// Gives up all requests to it: their outcome is unknown. Answers that come later are discarded.
    pub fn give_up(&mut self, pes: &Pes) -> bool {
        if pes.lost[self.number].load(Ordering::Relaxed) {
            // The worker that serves it sees the end.
            self.server.give_up();
        }
        let mut count = 0;
        for pending in &mut self.pending {
            count += u64::from(pending.is_awaited());
            pending.completion = None;
        }
        let queue = &pes.queues[self.number];
        if queue.has_any() {
            let taken = queue.take(usize::MAX, usize::MAX);
            count += taken.iter().filter(|operation| operation.completion.is_awaited()).count() as u64;
        }
        pes.unanswered.fetch_add(count, Ordering::Relaxed);
        count > 0
    }
}
