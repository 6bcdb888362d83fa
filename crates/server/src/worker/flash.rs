//! A worker's reads of flash: who waits for them, and what follows them.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabcache_protocol::Get;
use fabcache_store::{FalseMatches, Fetched, FlashRead, FlashReadResult, Miss, VisitResult};

use super::Worker;
use super::epoll::Poll;
use super::inbox::Ticket;
use super::token::ConnectionToken;
use crate::bounds::{FLASH_READS_PER_TURN, MEMORY_WAIT_POLL, TICKET_TIME_MAX};
use crate::commands::{Context, FlashWait, Role, flash};
use crate::flash::{Devices, FlashReader};
use crate::tickets::SavedKey;

/// How often a read looks in memory and on flash for an item that moves between both.
const LOOKUPS_MAX: u32 = 3;

/// What follows a read.
#[derive(Debug)]
pub enum ReadPurpose {
    /// The answer to a plain read.
    Answer(PendingGet),
    /// The request at the front of a connection's input is executed again.
    Request {
        /// The connection.
        owner: ConnectionToken,
        /// The number of its wait.
        number: u64,
    },
    /// A line of a connection's list of keys.
    Dump {
        /// The connection.
        owner: ConnectionToken,
        /// The number of the list's wait.
        number: u64,
    },
}

/// A plain read that is answered when its item was read.
#[derive(Debug)]
pub struct PendingGet {
    /// Completed with the answer.
    pub ticket: Ticket,
    /// Whether the value is sent,
    pub sends_value: bool,
    /// unless it has this CAS value: the client has it.
    pub known_cas: Option<u64>,
    /// Whether it counts as an access.
    pub is_access: bool,
    /// The request is a meta command.
    pub is_meta: bool,
}

/// A read and its key.
#[derive(Debug)]
struct PendingRead {
    key: SavedKey,
    purpose: ReadPurpose,
}

/// A wait of a connection for reads.
#[derive(Clone, Copy, Debug)]
struct Wait {
    until: Instant,
    owner: ConnectionToken,
    number: u64,
    /// Whether a list of keys waits, rather than a request.
    is_of_dump: bool,
}

/// The reads of one worker.
#[derive(Debug)]
pub struct FlashReads {
    reader: FlashReader<Box<FlashRead>, PendingRead>,
    next_number: u64,
    /// In the order in which they end.
    waits: VecDeque<Wait>,
    /// The last turn has left reads that have ended to this one.
    has_left: bool,
}

impl FlashReads {
    /// Returns the reads of a worker.
    ///
    /// # Errors
    /// The system refuses the ring.
    pub fn new(devices: &Arc<Devices>) -> io::Result<FlashReads> {
        let reader = FlashReader::new(devices)?;
        Ok(FlashReads { reader, next_number: 1, waits: VecDeque::new(), has_left: false })
    }

    /// Begins a read.
    pub fn read(&mut self, read: Box<FlashRead>, key: &[u8], purpose: ReadPurpose) {
        self.reader.start(read, PendingRead { key: key.into(), purpose });
    }

    /// Begins a read for a request that waits, until `until` at the latest; returns the number of its wait.
    pub fn read_for_request(
        &mut self,
        read: Box<FlashRead>,
        owner: ConnectionToken,
        key: &[u8],
        until: Instant,
    ) -> u64 {
        let number = self.begin_wait(owner, false, until);
        self.read(read, key, ReadPurpose::Request { owner, number });
        number
    }

    /// Begins the wait of a list of keys for several reads; returns its number, and when it began.
    pub fn begin_dump_wait(&mut self, owner: ConnectionToken) -> (u64, Instant) {
        let now = Instant::now();
        (self.begin_wait(owner, true, now + TICKET_TIME_MAX), now)
    }

    fn begin_wait(&mut self, owner: ConnectionToken, is_of_dump: bool, until: Instant) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.add_wait(Wait { until, owner, number, is_of_dump });
        number
    }

    fn add_wait(&mut self, wait: Wait) {
        // At the end, unless a list goes on to wait.
        let at = self.waits.partition_point(|other| other.until <= wait.until);
        self.waits.insert(at, wait);
    }

    /// Ends the first wait, and drops its reads that are still queued.
    fn end_first_wait(&mut self) {
        let Some(wait) = self.waits.pop_front() else { return };
        self.reader.drop_queued(|pending| match pending.purpose {
            ReadPurpose::Dump { number, .. } | ReadPurpose::Request { number, .. } => number == wait.number,
            ReadPurpose::Answer { .. } => false,
        });
    }

    /// Starts the reads that are queued.
    pub(super) fn submit(&mut self) {
        if let Err(error) = self.reader.submit() {
            tracing::warn!("cannot submit reads of flash devices, trying again: {error}");
        }
    }

    /// Adds what becomes readable when a read has ended.
    pub(super) fn add_to(&self, poll: &Poll) -> io::Result<()> {
        poll.add_flash(self.reader.descriptor())
    }

    /// Returns whether reads have ended that nothing reports.
    pub(super) fn has_done(&self) -> bool {
        self.has_left || self.reader.has_done()
    }

    /// Returns when the first wait is over.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.waits.front().map(|wait| wait.until)
    }
}

impl Worker {
    /// Does what follows the reads that have ended, up to as many as one turn takes, and ends waits that took too long.
    pub(super) fn finish_flash_reads(&mut self) {
        let mut left = FLASH_READS_PER_TURN;
        while let Some(flash) = &mut self.ctx.flash {
            flash.has_left = left == 0;
            if flash.has_left {
                break;
            }
            let Some((read, pending, buffer, result)) = flash.reader.take() else { break };
            left -= 1;
            if let ReadPurpose::Dump { owner, number } = pending.purpose {
                match self.ctx.handle.finish_visit(read, buffer, result) {
                    VisitResult::More(read) => flash.reader.start(read, pending),
                    visited => self.add_to_dump(owner, number, visited),
                }
                continue;
            }
            // A request that is executed again counts its access then.
            let is_access = matches!(&pending.purpose, ReadPurpose::Answer(get) if get.is_access);
            match self.ctx.handle.finish_flash_read(read, buffer, result, &pending.key, is_access) {
                FlashReadResult::More(read) => {
                    let flash = self.ctx.flash.as_mut().expect("it made the read");
                    flash.reader.start(read, pending);
                }
                FlashReadResult::Item(item) => self.follow_read(pending, Ok(Fetched::Item(item))),
                FlashReadResult::Others(others) => self.follow_read(pending, Ok(Fetched::Others(others))),
                FlashReadResult::Miss(miss) => self.follow_read(pending, Err(miss)),
            }
        }
        self.expire_waits();
    }

    fn follow_read(&mut self, pending: PendingRead, fetched: Result<Fetched, Miss>) {
        match pending.purpose {
            ReadPurpose::Answer(get) => match fetched {
                Ok(Fetched::Item(item)) => {
                    let now = self.ctx.shared.store.now();
                    let sends_value = get.sends_value && get.known_cas != Some(item.info(now).cas);
                    get.ticket.complete(flash::answer(&self.ctx.handle, now, item, sends_value, get.is_meta));
                }
                Ok(Fetched::Others(others)) => self.look_up_again(get, &pending.key, others),
                Err(_) => get.ticket.complete(flash::miss()),
            },
            ReadPurpose::Dump { .. } => unreachable!("a dump reads no values"),
            ReadPurpose::Request { owner, number } => {
                self.end_wait(owner, number, FlashWait::Read(fetched.ok()))
            }
        }
    }

    /// Answers a plain read that found no item of its key on flash: the item may have left, or come there, meanwhile.
    fn look_up_again(&mut self, pending: PendingGet, key: &[u8], mut others: FalseMatches) {
        let get = Get {
            key,
            value: pending.sends_value,
            compare: pending.known_cas,
            no_bump: !pending.is_access,
            ..Get::default()
        };
        for _ in 0..LOOKUPS_MAX {
            if let Some(answer) = flash::answer_from_memory(&mut self.ctx, pending.ticket.id(), &get) {
                return pending.ticket.complete(answer);
            }
            match self.ctx.handle.read_flash_beyond(others) {
                Ok(read) => {
                    let flash = self.ctx.flash.as_mut().expect("it made the read");
                    return flash.read(read, key, ReadPurpose::Answer(pending));
                }
                Err(found) => others = found,
            }
        }
        pending.ticket.complete(flash::miss());
    }

    /// Adds an item to a connection's list of keys, which goes on after the last one.
    fn add_to_dump(&mut self, owner: ConnectionToken, number: u64, visited: VisitResult) {
        let now = self.now;
        let slot = self.connections.get_mut(owner.index).filter(|slot| slot.generation == owner.generation);
        let is_last = slot.and_then(|slot| slot.connection.as_mut()).is_some_and(|connection| {
            let Role::Dumping(dump) = &mut connection.session.role else { return false };
            if dump.reads_since(number).is_none() {
                return false;
            }
            connection.last_progress = now;
            dump.add_visited(&self.ctx, visited, now)
        });
        if is_last {
            self.queue(owner.index);
        }
    }

    /// Lets a connection execute the request that waited for a read.
    fn end_wait(&mut self, owner: ConnectionToken, number: u64, end: FlashWait) {
        let now = self.now;
        let Some(connection) = self.at(owner) else { return };
        if !matches!(connection.session.flash, FlashWait::Reading(waits) if waits == number) {
            return;
        }
        connection.session.flash = end;
        // Until now the client waited for the server.
        connection.last_progress = now;
        if connection.is_one_shot() {
            self.continue_datagram(owner.index);
        } else {
            self.queue(owner.index);
        }
    }

    fn expire_waits(&mut self) {
        while let Some(flash) = &mut self.ctx.flash
            && let Some(wait) = flash.waits.front().copied()
        {
            let is_over = wait.until <= self.now;
            let began = wait.until - TICKET_TIME_MAX;
            let since = self.at(wait.owner).and_then(|connection| connection.reads_since(wait.number, began));
            if !is_over && since.is_some() {
                return;
            }
            let Some(flash) = &mut self.ctx.flash else { return };
            // A list goes on to wait while some of its reads end.
            let until = since.map(|since| since + TICKET_TIME_MAX);
            if let Some(until) = until.filter(|until| *until > self.now) {
                flash.waits.pop_front();
                flash.add_wait(Wait { until, ..wait });
                continue;
            }
            flash.end_first_wait();
            if is_over && wait.is_of_dump {
                self.end_dump(wait.owner, wait.number);
            } else if is_over {
                self.end_wait(wait.owner, wait.number, FlashWait::TimedOut);
            }
        }
    }

    /// Lets a list of keys end with an error if it still waits for these reads.
    fn end_dump(&mut self, owner: ConnectionToken, number: u64) {
        let now = self.now;
        let Some(connection) = self.at(owner) else { return };
        let Role::Dumping(dump) = &mut connection.session.role else { return };
        if dump.reads_since(number).is_some() {
            dump.time_out();
            connection.last_progress = now;
            self.queue(owner.index);
        }
    }

    /// Queues the connections that wait for memory, once it is there.
    pub(super) fn continue_needing_memory(&mut self) {
        if self.needing_memory.is_empty() || self.ctx.shared.store.is_short_of_memory() {
            return;
        }
        self.inbox().set_awaits_memory(false);
        let now = self.now;
        for place in std::mem::take(&mut self.needing_memory) {
            let Some(connection) = self.at(place) else { continue };
            connection.needs_memory = false;
            connection.last_progress = now;
            if connection.is_one_shot() {
                self.continue_datagram(place.index);
            } else {
                self.queue(place.index);
            }
        }
    }

    /// Returns how long the worker sleeps at most while connections wait for memory.
    pub(super) fn memory_wait(&self) -> Option<Duration> {
        (!self.needing_memory.is_empty()).then_some(MEMORY_WAIT_POLL)
    }

    /// A connection waits for memory.
    pub(super) fn note_needs_memory(&mut self, place: ConnectionToken) {
        if !self.needing_memory.contains(&place) {
            self.needing_memory.push(place);
            self.inbox().set_awaits_memory(true);
        }
    }
}

/// Makes a worker's reads, if there is a flash tier.
pub(super) fn reads_of(ctx: &Context, poll: &Poll) -> io::Result<Option<FlashReads>> {
    let Some(tier) = &ctx.shared.flash else { return Ok(None) };
    let reads = FlashReads::new(&tier.devices)?;
    reads.add_to(poll)?;
    Ok(Some(reads))
}
