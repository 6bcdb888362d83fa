//! Many clients over sockets, driven by one thread.
//!
//! A client has a connection to each server, and `pipeline` slots, each for a request in flight. A free
//! slot takes the next request: at once in a closed loop, at the due time in an open one. If no slot is
//! free, the request waits; its latency counts from the due time.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fabcache_client::Address;
use fabcache_client::distribution::{Distribution, Mapping};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::link::{Counts, Link, Scratch};
use super::outcome::Outcome;
use super::wire::Encoding;
use super::work::{Choice, Pace, Schedule, Work};
use super::{Round, as_ns, overdue_ns};
use crate::items::Items;

/// Receive buffer size: holds what a fast server sends while other responses are handled.
const RECEIVE_BYTES: usize = 256 << 10;
/// Maximum number of events per epoll call.
const EVENTS: usize = 256;

/// Connected clients of one thread.
#[derive(Debug)]
pub struct Sockets {
    epoll: OwnedFd,
    /// A link for each client and server.
    links: Vec<Link>,
    servers: usize,
    mapping: Mapping,
    clients: usize,
    /// Time limit of a response.
    timeout: Duration,
    buffer: Vec<u8>,
}

/// A slot, with or without a request in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// When the request was made, or due.
    from_ns: u64,
    /// Keys without a response.
    left: u32,
    class: u32,
}

/// A round in progress.
struct ActiveRound<'e> {
    begun: Instant,
    round: &'e Round,
    work: &'e Work,
    choice: Choice,
    /// `None` in a closed loop.
    schedule: Option<Schedule>,
    slots: Vec<Slot>,
    /// Free slots, the least recently used first.
    free: VecDeque<u32>,
    counts: Counts,
    outcome: Outcome,
    /// Connections with unsent bytes.
    unsent: Vec<usize>,
    /// Keys of the request being built, with their servers.
    wanted: Vec<(usize, u64)>,
    numbers: Vec<u64>,
}

impl Sockets {
    /// Connects the clients, each to all servers. `forms` are the encodings for each server.
    ///
    /// # Errors
    /// A server cannot be reached.
    pub fn connect(
        addresses: &[Address],
        forms: &[Encoding],
        clients: usize,
        timeout: Duration,
    ) -> Result<Sockets> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).context("no epoll")?;
        let mut links = Vec::new();
        for _ in 0..clients {
            for (address, encoding) in addresses.iter().zip(forms) {
                let link = Link::connect(address, *encoding)?;
                link.register(&epoll, links.len() as u64)?;
                links.push(link);
            }
        }
        let mapping = Mapping::new(&Distribution::default(), addresses, |_| true);
        let buffer = vec![0; RECEIVE_BYTES];
        Ok(Sockets { epoll, links, servers: addresses.len(), mapping, clients, timeout, buffer })
    }

    /// Runs a round.
    ///
    /// # Errors
    /// A server fails or answers wrongly.
    pub fn run(&mut self, work: &Work, items: &Items, round: &Round, begun: Instant) -> Result<Outcome> {
        let mut scratch = Scratch::new(work, items);
        let slots = self.clients * work.pipeline;
        // Interleaved by client, so that no client has two requests while another has none.
        let in_turn = (0..slots).map(|at| (at % self.clients * work.pipeline + at / self.clients) as u32);
        let mut running = ActiveRound {
            begun,
            round,
            work,
            choice: Choice::new(work, round.seed),
            schedule: round.schedule(),
            slots: vec![Slot::default(); slots],
            free: in_turn.collect(),
            counts: Counts::default(),
            outcome: Outcome::new(work.sizes.classes()),
            unsent: Vec::new(),
            wanted: Vec::new(),
            numbers: Vec::new(),
        };
        if matches!(round.pace, Pace::Open { .. }) {
            // Requests must be sent on time, not up to 50 us later. If the system refuses, only precision suffers.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        }
        let mut events = vec![Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS];
        loop {
            let now_ns = as_ns(begun.elapsed());
            let next_ns = self.make_requests(&mut running, now_ns, &mut scratch);
            self.send(&mut running, &mut scratch)?;
            if next_ns.is_none() && running.free.len() == slots {
                break;
            }
            let wait_ns =
                next_ns.filter(|_| !running.free.is_empty()).map(|next| next.saturating_sub(now_ns));
            let came = self.wait(&mut events, wait_ns)?;
            if came == 0 && wait_ns.is_none() {
                self.has_failed(&mut scratch)?;
            }
            for event in &events[..came] {
                self.handle(*event, &mut running, &mut scratch)?;
            }
        }
        let ActiveRound { counts, outcome, .. } = running;
        let Counts { operations, misses, verified, value_bytes } = counts;
        let elapsed_ns = as_ns(begun.elapsed());
        Ok(Outcome { operations, misses, verified, value_bytes, elapsed_ns, ..outcome })
    }

    /// Makes all due requests for which slots are free; returns when the next is due, `None` after the
    /// last.
    fn make_requests(
        &mut self,
        running: &mut ActiveRound<'_>,
        now_ns: u64,
        scratch: &mut Scratch<'_>,
    ) -> Option<u64> {
        let end_ns = running.round.duration_ns;
        let Some(schedule) = &mut running.schedule else {
            // A round has at least one request, however late it begins.
            if now_ns >= end_ns && running.counts.operations > 0 {
                return None;
            }
            while let Some(slot) = running.free.pop_front() {
                self.make(running, slot, now_ns, scratch);
            }
            return Some(now_ns);
        };
        if now_ns >= overdue_ns(end_ns) {
            running.outcome.unsent += give_up(schedule, end_ns, now_ns, &mut running.outcome.latency[0]);
        }
        loop {
            let next_ns = running.schedule.as_ref().map_or(end_ns, Schedule::next_ns);
            if next_ns >= end_ns {
                return None;
            }
            if next_ns > now_ns {
                return Some(next_ns);
            }
            let Some(slot) = running.free.pop_front() else { return Some(next_ns) };
            self.make(running, slot, next_ns, scratch);
            if let Some(schedule) = &mut running.schedule {
                schedule.advance();
            }
        }
    }

    /// Makes a request.
    fn make(&mut self, running: &mut ActiveRound<'_>, slot: u32, from_ns: u64, scratch: &mut Scratch<'_>) {
        let first_link = slot as usize / running.work.pipeline * self.servers;
        let reads = running.choice.reads();
        let keys = if reads { running.work.batch } else { 1 };
        let ActiveRound { wanted, numbers, choice, .. } = running;
        wanted.clear();
        for _ in 0..keys {
            let number = choice.number();
            let server = match self.servers {
                1 => 0,
                _ => self.mapping.server_of(scratch.key(number)).expect("there are servers"),
            };
            wanted.push((server, number));
        }
        let class = running.work.sizes.class(wanted[0].1) as u32;
        running.slots[slot as usize] = Slot { from_ns, left: keys as u32, class };
        if self.servers > 1 {
            wanted.sort_unstable();
        }
        for of_server in wanted.chunk_by(|one, other| one.0 == other.0) {
            let at = first_link + of_server[0].0;
            numbers.clear();
            numbers.extend(of_server.iter().map(|(_, number)| *number));
            if reads {
                self.links[at].get(numbers, slot, scratch);
            } else {
                self.links[at].set(numbers[0], slot, scratch);
            }
            if running.unsent.last() != Some(&at) {
                running.unsent.push(at);
            }
        }
    }

    fn send(&mut self, running: &mut ActiveRound<'_>, scratch: &mut Scratch<'_>) -> Result<()> {
        for at in running.unsent.drain(..) {
            let link = &mut self.links[at];
            link.flush(&self.epoll, at as u64).with_context(|| link.waits_for(scratch))?;
        }
        Ok(())
    }

    /// Waits for events for at most `wait_ns`, by default the time limit of a response. Returns the number
    /// of connections.
    fn wait(&self, events: &mut [Event], wait_ns: Option<u64>) -> Result<usize> {
        let timeout = Timespec::try_from(self.timeout)?;
        let now = Timespec::default();
        let timeout = match wait_ns {
            None => timeout,
            Some(0) => now,
            Some(ns) => {
                // epoll's timeout has millisecond resolution.
                let until = Timespec::try_from(Duration::from_nanos(ns))?;
                match poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&until)) {
                    Ok(_) | Err(Errno::INTR) => now,
                    Err(error) => return Err(error.into()),
                }
            }
        };
        loop {
            match epoll::wait(&self.epoll, &mut *events, Some(&timeout)) {
                Ok(came) => return Ok(came),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Handles the lack of any response within the time limit.
    fn has_failed(&self, scratch: &mut Scratch<'_>) -> Result<()> {
        match self.links.iter().find(|link| link.is_waiting()) {
            Some(link) => {
                bail!("no answer within {} s: {}", self.timeout.as_secs_f64(), link.waits_for(scratch))
            }
            None => Ok(()),
        }
    }

    fn handle(
        &mut self,
        event: Event,
        running: &mut ActiveRound<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<()> {
        let at = event.data.u64() as usize;
        let link = &mut self.links[at];
        let flags = event.flags;
        if flags.contains(EventFlags::OUT) {
            link.flush(&self.epoll, at as u64).with_context(|| link.waits_for(scratch))?;
        }
        if !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return Ok(());
        }
        let first_free = running.free.len();
        let ActiveRound { begun, slots, free, counts, outcome, .. } = running;
        let mut now_ns = None;
        link.receive(&mut self.buffer, scratch, counts, |number, _| {
            let slot = &mut slots[number as usize];
            slot.left -= 1;
            if slot.left == 0 {
                let now_ns = *now_ns.get_or_insert_with(|| as_ns(begun.elapsed()));
                outcome.latency[slot.class as usize].record(now_ns.saturating_sub(slot.from_ns));
                free.push_back(number);
            }
        })?;
        // A closed loop sends its next request before it handles further responses.
        if running.schedule.is_none() && running.free.len() > first_free {
            let now_ns = as_ns(running.begun.elapsed());
            self.make_requests(running, now_ns, scratch);
            self.send(running, scratch)?;
        }
        Ok(())
    }
}

/// Gives up the requests that are still due; returns their number. Their waiting time counts as
/// latency.
pub fn give_up(
    schedule: &mut Schedule,
    end_ns: u64,
    now_ns: u64,
    latency: &mut crate::histogram::Histogram,
) -> u64 {
    let mut unsent = 0;
    while schedule.next_ns() < end_ns {
        latency.record(now_ns - schedule.next_ns());
        schedule.advance();
        unsent += 1;
    }
    unsent
}
