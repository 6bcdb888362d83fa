//! The table of an endpoint's links, and the state that they share.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fabcache_fabric::channel::{ServerEnd, Terms, TermsError, token_of};
use fabcache_fabric::{Buffer, Completion, Error, Kind, Peer, RemoteMemory};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use socket2::Socket;

use super::bounds::{
    BLOCKED_TIME_MAX, ENDING_TIME_MAX, FULL_BATCH, HELD_TIME_MAX, LEFT_OVER_MAX, LINGER_TIME_MAX, LINKS_MAX,
    POLLS_PER_TURN, RETRY_MAX, RETRY_MIN, RETRY_PART, STUCK_TIME_MAX,
};
use super::link_state::{Failure, LinkState, operation_of};
use super::resources::Resources;
use crate::source::WaitMode;

/// A client's description of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its endpoint.
    pub name: Vec<u8>,
    /// The token with which messages to it begin.
    pub token: u64,
    /// Its receive buffers for messages.
    pub credits: u16,
    /// The memory that the server reads; 0 bytes if unused.
    pub staging: RemoteMemory,
    /// The memory that the server writes; 0 bytes if unused.
    pub landing: RemoteMemory,
}

/// The server's answer to an accepted client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The token with which its messages begin.
    pub token: u64,
    /// Messages that it may have in flight.
    pub credits: u16,
}

/// Why a client gets no link.
#[derive(Debug)]
pub enum AttachError {
    /// Its terms are invalid.
    TermsError(TermsError),
    /// Its memory exceeds the address space.
    Range,
    /// A client of another host has the same endpoint.
    Taken,
    /// Operations of an earlier link of the same endpoint are still in flight.
    Busy,
    /// The endpoint has its maximum of links.
    Links(usize),
    /// The endpoint is closed.
    Closed,
    /// The provider rejects its endpoint, or memory is exhausted.
    Fabric(Error),
    /// The system cannot provide random numbers.
    Random(getrandom::Error),
}

impl std::fmt::Display for AttachError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AttachError::TermsError(unsound) => unsound.fmt(f),
            AttachError::Range => f.write_str("the client's memory exceeds the address space"),
            AttachError::Taken => f.write_str("a client of another host has the same endpoint"),
            AttachError::Busy => {
                f.write_str("operations of an earlier link of the client's endpoint are still in flight")
            }
            AttachError::Links(most) => {
                write!(f, "the endpoint has its maximum of {most} links")
            }
            AttachError::Closed => f.write_str("the endpoint is closed"),
            AttachError::Fabric(error) => error.fmt(f),
            AttachError::Random(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AttachError {}

/// The links of an endpoint, and the state that they share.
#[derive(Debug)]
pub(super) struct LinkTable {
    pub shared: Resources,
    link_states: Vec<Option<Box<LinkState>>>,
    /// For each index, the operations in flight of an ended link. The index is free when they have completed.
    orphaned: Vec<Option<OrphanedOperations>>,
    /// Indices that have orphaned operations.
    orphans: usize,
    free: Vec<u32>,
    endpoints: Vec<ClientEndpoint>,
    /// Links that the next poll reports.
    listed: Vec<u32>,
    /// Links whose operations the provider rejected for now.
    blocked: Vec<u32>,
    /// Links whose clients have not proved their endpoint yet.
    unproven: Vec<u32>,
    /// Their time limit.
    proof_time: Duration,
    /// Dropped links that stay until their last bytes are sent.
    lingering: Vec<u32>,
    completions: Vec<Completion>,
    /// The last poll took all completions.
    is_drained: bool,
    dropped: u64,
    failed: Option<Error>,
    /// It takes no further link.
    pub is_closed: bool,
}

/// Operations of a closed link.
#[derive(Clone, Copy, Debug)]
struct OrphanedOperations {
    operations: usize,
    peer: Peer,
    since: Instant,
}

/// A client's endpoint, of one or more links.
#[derive(Debug)]
struct ClientEndpoint {
    name: Vec<u8>,
    /// The host of its TCP connections.
    from: IpAddr,
    peer: Peer,
    links: usize,
}

pub(super) fn lock(inner: &Mutex<LinkTable>) -> MutexGuard<'_, LinkTable> {
    inner.lock().expect("no thread panics while it holds an endpoint's links")
}

impl LinkTable {
    pub fn new(shared: Resources, proof_time: Duration) -> LinkTable {
        LinkTable {
            shared,
            link_states: Vec::new(),
            orphaned: Vec::new(),
            orphans: 0,
            free: Vec::new(),
            endpoints: Vec::new(),
            listed: Vec::new(),
            blocked: Vec::new(),
            unproven: Vec::new(),
            proof_time,
            lingering: Vec::new(),
            completions: Vec::new(),
            is_drained: true,
            dropped: 0,
            failed: None,
            is_closed: false,
        }
    }

    /// Appends the tags of the links that became ready, and clears their list.
    pub fn take_ready(&mut self, ready: &mut Vec<u64>) {
        let mut listed = std::mem::take(&mut self.listed);
        for index in listed.drain(..) {
            if let Some(link_state) = self.link_state(index) {
                link_state.is_listed = false;
                if link_state.is_ready() && link_state.lingering.is_none() {
                    ready.push(link_state.tag);
                }
            }
        }
        // Keep its capacity.
        if self.listed.is_empty() {
            self.listed = listed;
        }
    }

    /// Returns the number of messages without a link.
    pub fn dropped_messages(&self) -> u64 {
        self.dropped
    }

    /// Operations in flight of links that have ended.
    pub fn orphaned_operations(&self) -> usize {
        self.orphaned.iter().flatten().map(|orphaned| orphaned.operations).sum()
    }

    pub fn link_state(&mut self, index: u32) -> Option<&mut LinkState> {
        self.link_states.get_mut(index as usize)?.as_deref_mut()
    }

    /// Returns a link and the resources that it shares with others.
    pub fn parts(&mut self, index: u32) -> Option<(&mut LinkState, &mut Resources)> {
        Some((self.link_states.get_mut(index as usize)?.as_deref_mut()?, &mut self.shared))
    }

    // ---- links come and go ----

    pub fn attach(
        &mut self,
        tag: u64,
        client: &Client,
        socket: &Arc<Socket>,
        from: IpAddr,
    ) -> Result<(u32, Grant), AttachError> {
        if self.is_closed {
            return Err(AttachError::Closed);
        }
        let Client { name, token: peer_token, credits: peer_credits, staging, landing } = client;
        let ends = |memory: &RemoteMemory| memory.address.checked_add(memory.bytes);
        if ends(staging).is_none() || ends(landing).is_none() {
            return Err(AttachError::Range);
        }
        let random = getrandom::u64().map_err(AttachError::Random)?;
        let number = getrandom::u64().map_err(AttachError::Random)?;
        let index = self.free.last().copied().unwrap_or(self.link_states.len() as u32);
        let most = self.shared.links_max.min(LINKS_MAX);
        if index as usize >= LINKS_MAX || self.shared.links >= most {
            return Err(AttachError::Links(most));
        }
        let token = random & !(LINKS_MAX as u64 - 1) | u64::from(index);
        let mut terms = Terms {
            own_token: token,
            peer_token: *peer_token,
            own_credits: *peer_credits,
            peer_credits: *peer_credits,
            staging_bytes: staging.bytes,
            landing_bytes: landing.bytes,
        };
        terms.check().map_err(AttachError::TermsError)?;
        let peer = self.connect(name, from)?;
        let credits = match self.shared.grant() {
            Ok(credits) => credits,
            Err(error) => {
                self.disconnect(peer);
                return Err(AttachError::Fabric(error));
            }
        };
        terms.own_credits = credits;
        let mut link_state =
            LinkState::new(index, tag, peer, ServerEnd::new(terms, number), Arc::clone(socket));
        (link_state.token, link_state.credits, link_state.staging, link_state.landing) =
            (token, credits, *staging, *landing);
        if self.free.pop().is_none() {
            self.link_states.push(None);
            self.orphaned.push(None);
        }
        self.link_states[index as usize] = Some(Box::new(link_state));
        Ok((index, Grant { token, credits }))
    }

    /// Connects to an endpoint for one more link.
    fn connect(&mut self, name: &[u8], from: IpAddr) -> Result<Peer, AttachError> {
        if let Some(endpoint) = self.endpoints.iter_mut().find(|endpoint| endpoint.name == name) {
            // An error of one link may break the others of its endpoint, so all must be of one host.
            if endpoint.from != from {
                return Err(AttachError::Taken);
            }
            let (peer, now) = (endpoint.peer, Instant::now());
            let is_stuck =
                |left: &OrphanedOperations| left.peer == peer && now - left.since >= ENDING_TIME_MAX;
            if self.orphaned.iter().flatten().any(is_stuck) {
                return Err(AttachError::Busy);
            }
            endpoint.links += 1;
            return Ok(endpoint.peer);
        }
        let peer = self.shared.endpoint.connect(name).map_err(AttachError::Fabric)?;
        self.endpoints.push(ClientEndpoint { name: name.to_vec(), from, peer, links: 1 });
        Ok(peer)
    }

    fn disconnect(&mut self, peer: Peer) {
        let Some(at) = self.endpoints.iter().position(|endpoint| endpoint.peer == peer) else { return };
        self.endpoints[at].links -= 1;
        if self.endpoints[at].links == 0 {
            self.endpoints.swap_remove(at);
            self.shared.endpoint.disconnect(peer);
            // The removal ends now.
            for left in self.orphaned.iter_mut().flatten().filter(|left| left.peer == peer) {
                left.since = Instant::now();
            }
        }
    }

    /// Ends a link: returns its resources, except those of operations in flight.
    pub fn end(&mut self, index: u32) {
        let Some(mut link_state) = self.link_states.get_mut(index as usize).and_then(Option::take) else {
            return;
        };
        self.disconnect(link_state.peer);
        for buffer in link_state.end.drain() {
            self.shared.repost(buffer);
        }
        self.shared.take_back(link_state.credits);
        self.shared.bounce_queue.retain(|waits| *waits != index);
        self.shared.send_queue.retain(|waits| *waits != index);
        self.blocked.retain(|blocked| *blocked != index);
        self.unproven.retain(|unproven| *unproven != index);
        self.lingering.retain(|lingers| *lingers != index);
        self.listed.retain(|listed| *listed != index);
        match link_state.operations {
            0 => self.free.push(index),
            operations => {
                let left = OrphanedOperations { operations, peer: link_state.peer, since: Instant::now() };
                self.orphaned[index as usize] = Some(left);
                self.orphans += 1;
            }
        }
        drop(link_state);
        self.distribute_buffers();
    }

    /// Keeps a dropped link until its accepted bytes are sent and its client has them.
    pub fn linger(&mut self, index: u32, until: Instant) {
        let Some((link_state, shared)) = self.parts(index) else { return };
        link_state.end.leave();
        link_state.handed = None;
        link_state.lingering = Some(until);
        link_state.settle(shared);
        self.lingering.push(index);
        self.note(index);
    }

    fn finish_lingering(&mut self) {
        if self.lingering.is_empty() {
            return;
        }
        let now = Instant::now();
        for index in self.lingering.clone() {
            let Some((link_state, _)) = self.parts(index) else { continue };
            // The client's bytes have no meaning any more.
            let mut doorbells = [0; 64];
            let heard = rustix::net::recv(&*link_state.socket, &mut doorbells[..], RecvFlags::DONTWAIT);
            let is_there = matches!(heard, Ok((_, 1..)) | Err(Errno::AGAIN | Errno::INTR));
            let is_over = link_state.lingering.is_none_or(|until| now >= until)
                || link_state.end.has_peer_left()
                    && !link_state.is_on_memory()
                    && !link_state.end.has_unsent();
            if is_over || !is_there || link_state.failure.is_some() {
                self.end(index);
            }
        }
    }

    // ---- getting on ----

    /// Polls, and does what needs no application.
    pub fn progress(&mut self) -> Result<(), Error> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        for _ in 0..POLLS_PER_TURN {
            let mut completions = std::mem::take(&mut self.completions);
            let polled = self.shared.endpoint.poll(&mut completions);
            // Another poll would find nothing more, and takes as long as an answer.
            self.is_drained = completions.len() < FULL_BATCH;
            for completion in completions.drain(..) {
                self.complete(completion);
            }
            self.completions = completions;
            if let Err(error) = polled {
                self.fail(&error);
                return Err(error);
            }
            if self.is_drained {
                break;
            }
        }
        self.shared.post_receives();
        self.retry_blocked();
        self.distribute_buffers();
        self.reclaim_idle_buffers();
        self.finish_lingering();
        self.close_unproven();
        self.close_orphaned_peers()
    }

    fn fail(&mut self, error: &Error) {
        self.failed = Some(error.clone());
        for link_state in self.link_states.iter_mut().flatten() {
            link_state.failure.get_or_insert(Failure::Fabric(error.clone()));
        }
    }

    fn complete(&mut self, completion: Completion) {
        let Completion { token, kind, result, buffer } = completion;
        if kind == Kind::Received {
            self.received(result, buffer);
            return;
        }
        let (index, ticket) = operation_of(token);
        let Some((link_state, shared)) = self.parts(index) else {
            drop(buffer);
            let place = &mut self.orphaned[index as usize];
            let Some(left) = place else { return };
            left.operations -= 1;
            if left.operations == 0 {
                *place = None;
                self.orphans -= 1;
                self.free.push(index);
            }
            return;
        };
        link_state.operations -= 1;
        link_state.sends -= usize::from(kind == Kind::Sent);
        if let Err(error) = result {
            link_state.failure.get_or_insert(Failure::Fabric(error));
            drop(buffer);
        } else {
            match kind {
                Kind::Read => link_state.end.read_ended(ticket, buffer),
                Kind::Written => {
                    drop(buffer);
                    link_state.end.put_ended(ticket);
                }
                Kind::Sent | Kind::Received => drop(buffer),
            }
            if kind != Kind::Sent {
                link_state.moved = Instant::now();
                link_state.settle(shared);
            }
        }
        self.note(index);
    }

    fn received(&mut self, result: Result<usize, Error>, buffer: Buffer) {
        let known = result.ok().and_then(|len| {
            let token = token_of(buffer.get(..len)?)?;
            let index = (token & (LINKS_MAX as u64 - 1)) as u32;
            let is_its = self.link_state(index).is_some_and(|link_state| link_state.token == token);
            is_its.then_some((index, len))
        });
        let Some((index, len)) = known else {
            self.dropped += 1;
            self.shared.repost(buffer);
            return;
        };
        let Some((link_state, shared)) = self.parts(index) else { return };
        if let Err(broken) = link_state.end.arrived(buffer, len) {
            link_state.failure.get_or_insert(Failure::Protocol(broken));
            shared.note_dropped();
        }
        link_state.settle(shared);
        self.note(index);
    }

    /// Something has changed with a link.
    pub fn note(&mut self, index: u32) {
        let proof_time = self.proof_time;
        let Some(link_state) = self.link_state(index) else { return };
        link_state.notify();
        let (is_new, is_blocked) = (!link_state.is_listed && link_state.is_ready(), link_state.is_blocked);
        link_state.is_listed |= is_new;
        let lacks_proof = link_state.end.lacks_proof() && link_state.prove_until.is_none();
        if lacks_proof {
            link_state.prove_until = Some(Instant::now() + proof_time);
        }
        if is_new {
            self.listed.push(index);
        }
        if lacks_proof {
            self.unproven.push(index);
        }
        if is_blocked && !self.blocked.contains(&index) {
            self.blocked.push(index);
        }
    }

    /// Retries links whose operations the fabric rejected.
    fn retry_blocked(&mut self) {
        if self.blocked.is_empty() {
            return;
        }
        let now = Instant::now();
        for index in std::mem::take(&mut self.blocked) {
            let Some((link_state, shared)) = self.parts(index) else { continue };
            link_state.is_blocked = false;
            if link_state.blocked_since.is_some_and(|since| now - since >= BLOCKED_TIME_MAX) {
                link_state.failure.get_or_insert(Failure::Stuck);
            }
            link_state.settle(shared);
            self.note(index);
        }
    }

    /// Hands free buffers to links that wait for them.
    pub fn distribute_buffers(&mut self) {
        while let Some(index) = self.shared.bounce_queue.front().copied() {
            let Some(buffer) = self.shared.bounces.take() else { break };
            self.shared.bounce_queue.pop_front();
            let Some((link_state, shared)) = self.parts(index) else { continue };
            (link_state.waits_for_bounce, link_state.is_starved) = (false, false);
            link_state.handed = Some(buffer);
            link_state.moved = Instant::now();
            link_state.settle(shared);
            if link_state.unsent == 0 || link_state.failure.is_some() {
                // The operation it was reserved for has failed, or is in flight.
                link_state.handed = None;
            }
            self.note(index);
        }
        if self.shared.send_queue.is_empty() {
            return;
        }
        let mut free = self.shared.free_sends();
        while free > 0
            && let Some(index) = self.shared.send_queue.pop_front()
        {
            free -= 1;
            let Some((link_state, shared)) = self.parts(index) else { continue };
            link_state.waits_for_send = false;
            link_state.settle(shared);
            self.note(index);
        }
    }

    /// While links wait for bounce buffers, links that hold filled ones without receiving lose them. A link that
    /// waits for long gets a small one of its own.
    fn reclaim_idle_buffers(&mut self) {
        if self.shared.bounce_queue.is_empty() {
            return;
        }
        let now = Instant::now();
        for index in 0..self.link_states.len() as u32 {
            let Some(link_state) = self.link_state(index) else { continue };
            let still = now.saturating_duration_since(link_state.moved);
            if still >= HELD_TIME_MAX {
                link_state.handed = None;
                while let Some(buffer) = link_state.end.unread() {
                    drop(buffer);
                }
            }
            if still >= STUCK_TIME_MAX
                && link_state.end.reads_under_way() + link_state.end.puts_in_flight() > 0
            {
                link_state.failure.get_or_insert(Failure::Stuck);
                self.note(index);
            }
        }
        self.distribute_buffers();
        for index in self.shared.bounce_queue.clone() {
            let Some((link_state, shared)) = self.parts(index) else { continue };
            if !link_state.is_starved
                && now.saturating_duration_since(link_state.waits_since) >= HELD_TIME_MAX
            {
                link_state.is_starved = true;
                link_state.settle(shared);
                self.note(index);
            }
        }
    }

    /// Closes links whose clients did not prove their endpoint in time.
    fn close_unproven(&mut self) {
        if self.unproven.is_empty() {
            return;
        }
        let now = Instant::now();
        for index in std::mem::take(&mut self.unproven) {
            let Some(link_state) = self.link_state(index).filter(|link_state| link_state.end.lacks_proof())
            else {
                continue;
            };
            if link_state.prove_until.is_none_or(|until| now < until) {
                self.unproven.push(index);
            } else {
                link_state.failure.get_or_insert(Failure::Unproven);
                self.note(index);
            }
        }
    }

    /// Operations end with their peer, which exists while it has links: those are closed if another link's operations
    /// do not end.
    fn close_orphaned_peers(&mut self) -> Result<(), Error> {
        if self.orphans == 0 {
            return Ok(());
        }
        let (now, mut lost) = (Instant::now(), 0);
        for at in 0..self.orphaned.len() {
            let left = self.orphaned[at].filter(|left| now - left.since >= STUCK_TIME_MAX);
            let Some(OrphanedOperations { operations, peer, .. }) = left else { continue };
            if !self.endpoints.iter().any(|endpoint| endpoint.peer == peer) {
                lost += operations;
                continue;
            }
            for index in 0..self.link_states.len() as u32 {
                if let Some(link_state) = self.link_state(index).filter(|link_state| link_state.peer == peer)
                {
                    link_state.failure.get_or_insert(Failure::Stuck);
                    self.note(index);
                }
            }
        }
        if lost <= LEFT_OVER_MAX {
            return Ok(());
        }
        let provider = self.shared.endpoint.domain().provider().to_string();
        let why = "does not end operations with disconnected clients";
        let error = Error::Unfit { provider, why };
        self.fail(&error);
        Err(error)
    }

    pub fn arm(&mut self, has_wait_fd: bool) -> WaitMode {
        if !self.listed.is_empty() || self.failed.is_some() {
            return WaitMode::Spin;
        }
        let may = if has_wait_fd {
            self.shared.endpoint.may_wait()
        } else {
            // No event reports unreceived bytes or completions; some operations complete only while polled.
            self.is_drained && self.link_states.iter().flatten().all(|link_state| link_state.operations == 0)
        };
        match self.next_check() {
            _ if !may => WaitMode::Spin,
            Some(time) => WaitMode::SleepFor(time),
            None => WaitMode::Sleep,
        }
    }

    /// Returns the time of the next poll for progress that no descriptor reports.
    fn next_check(&mut self) -> Option<Duration> {
        let queued = (!self.shared.bounce_queue.is_empty()).then_some(RETRY_MAX);
        let orphaned = (self.orphans > 0 || !self.unproven.is_empty()).then_some(ENDING_TIME_MAX);
        if self.blocked.is_empty() && self.lingering.is_empty() {
            return queued.or(orphaned);
        }
        let now = Instant::now();
        let of = |index: &u32| self.link_states.get(*index as usize)?.as_deref();
        let blocked = self.blocked.iter().filter_map(|index| of(index)?.blocked_since);
        let lingering =
            self.lingering.iter().filter_map(|index| of(index)?.lingering?.checked_sub(LINGER_TIME_MAX));
        // The youngest is the most impatient.
        let youngest = blocked.chain(lingering).max().unwrap_or(now);
        let retry = (now.saturating_duration_since(youngest) / RETRY_PART).clamp(RETRY_MIN, RETRY_MAX);
        Some(queued.map_or(retry, |queued| queued.min(retry)))
    }
}
