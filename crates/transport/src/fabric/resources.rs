//! What all links of an endpoint share: the endpoint itself, and its buffers.

use std::collections::VecDeque;
use std::sync::Arc;

use fabcache_fabric::channel::{MESSAGE_BYTES, PIECE_BYTES_MAX, receives_for};
use fabcache_fabric::{Buffer, Domain, Endpoint, EndpointOptions, Error, LocalUse, Pool};

use super::bounds::{
    BOUNCES, CLIENT_OPERATIONS, CLIENTS_MAX, GRANTED_PART, GROWTH, LEAST_CREDITS, LINK_SENDS_MAX, OWN_BYTES,
    OWN_GROWTH, PEERS, SENDS, USUAL_CREDITS,
};

/// Bounce buffers hold what is read from clients' memory, and what is written to it.
const BOUNCED: LocalUse = LocalUse::READ.and(LocalUse::WRITE);

/// An endpoint and its buffers.
#[derive(Debug)]
pub(super) struct Resources {
    // Declared first: its operations end before their pools are dropped.
    pub endpoint: Endpoint,
    pub inject_bytes: usize,
    receives: Vec<Pool>,
    /// Receive buffers that are not promised to any link.
    ungranted: usize,
    /// Receive buffers that were added.
    grown: usize,
    /// Receive buffers may be free that should be posted.
    is_short: bool,
    sends: Vec<Pool>,
    pub bounces: Pool,
    /// For links that waited for a bounce buffer without success, or find no send buffer and have none in flight: one
    /// each.
    own_bounces: Vec<Pool>,
    own_sends: Vec<Pool>,
    /// Links that wait for a bounce buffer, and for a send buffer.
    pub bounce_queue: VecDeque<u32>,
    pub send_queue: VecDeque<u32>,
    /// The buffer of injected messages.
    pub scratch: Box<[u8; MESSAGE_BYTES]>,
    pub links: usize,
    pub links_max: usize,
}

impl Resources {
    pub fn open(domain: &Arc<Domain>, receives: usize, links_max: usize) -> Result<Resources, Error> {
        let links_max = links_max.clamp(1, CLIENTS_MAX);
        let receives_pool = Pool::new(domain, LocalUse::RECEIVE, receives, MESSAGE_BYTES)?;
        let sends = Pool::new(domain, LocalUse::SEND, SENDS, MESSAGE_BYTES)?;
        let bounces = Pool::new(domain, BOUNCED, BOUNCES, PIECE_BYTES_MAX)?;
        let own = CLIENT_OPERATIONS * links_max + 2 * GROWTH + 2 * OWN_GROWTH;
        let operations = receives + SENDS + BOUNCES + own;
        let endpoint = Endpoint::open(domain, EndpointOptions { operations, peers: PEERS, waits: true })?;
        let mut resources = Resources {
            endpoint,
            inject_bytes: domain.provider().inject_bytes,
            receives: vec![receives_pool],
            ungranted: receives,
            grown: 0,
            is_short: true,
            sends: vec![sends],
            bounces,
            own_bounces: Vec::new(),
            own_sends: Vec::new(),
            bounce_queue: VecDeque::new(),
            send_queue: VecDeque::new(),
            scratch: Box::new([0; MESSAGE_BYTES]),
            links: 0,
            links_max,
        };
        resources.post_receives();
        Ok(resources)
    }

    /// Returns the bytes of all buffers.
    pub fn registered_bytes(&self) -> u64 {
        let own = self.own_bounces.iter().chain(&self.own_sends);
        let pools = self.receives.iter().chain(&self.sends).chain([&self.bounces]).chain(own);
        pools.map(|pool| pool.bytes() as u64).sum()
    }

    // ---- receive buffers ----

    /// Returns the credits for one more link, for which there are buffers.
    pub fn grant(&mut self) -> Result<u16, Error> {
        let domain = Arc::clone(self.endpoint.domain());
        // Buffers that were allocated for many clients are not promised to few.
        let part = self.ungranted.saturating_sub(self.grown) / GRANTED_PART;
        let usual = part.saturating_sub(receives_for(0)).min(USUAL_CREDITS.into());
        let credits = (usual as u16).max(LEAST_CREDITS);
        if self.ungranted < receives_for(credits) {
            let more = Pool::new(&domain, LocalUse::RECEIVE, GROWTH, MESSAGE_BYTES)?;
            self.receives.push(more);
            self.ungranted += GROWTH;
            self.grown += GROWTH;
            self.is_short = true;
            self.post_receives();
        }
        if 2 * (self.links + 1) > self.sends.iter().map(|pool| pool.bytes() / MESSAGE_BYTES).sum() {
            self.sends.push(Pool::new(&domain, LocalUse::SEND, GROWTH, MESSAGE_BYTES)?);
        }
        self.ungranted -= receives_for(credits);
        self.links += 1;
        Ok(credits)
    }

    /// Returns the credits of an ended link.
    pub fn take_back(&mut self, credits: u16) {
        self.ungranted += receives_for(credits);
        self.links -= 1;
    }

    /// A receive buffer is free.
    pub fn repost(&mut self, buffer: Buffer) {
        // If the provider accepts no more now, it returns to its pool.
        self.is_short |= self.endpoint.receive(buffer, 0).is_err();
    }

    /// Receive buffers were dropped that should be posted.
    pub fn note_dropped(&mut self) {
        self.is_short = true;
    }

    /// Posts all receive buffers that are not posted.
    pub fn post_receives(&mut self) {
        while self.is_short {
            let Some(buffer) = self.receives.iter().find_map(Pool::take) else {
                self.is_short = false;
                return;
            };
            if self.endpoint.receive(buffer, 0).is_err() {
                return;
            }
        }
    }

    // ---- send buffers ----

    /// Takes a send buffer for a link that uses `in_flight` already.
    pub fn take_send(&mut self, in_flight: usize) -> Option<Buffer> {
        let whole: usize = self.sends.iter().map(|pool| pool.bytes() / MESSAGE_BYTES).sum();
        let most = (whole / self.links.max(1)).clamp(2, LINK_SENDS_MAX);
        if in_flight >= most {
            return None;
        }
        let buffer = self.sends.iter().find_map(Pool::take);
        if buffer.is_some() || in_flight > 0 {
            return buffer;
        }
        own(&mut self.own_sends, self.endpoint.domain(), LocalUse::SEND, MESSAGE_BYTES, self.links_max)
    }

    pub fn free_sends(&self) -> usize {
        self.sends.iter().map(Pool::free).sum()
    }

    // ---- bounce buffers ----

    /// Takes a small bounce buffer for a link that waited without success and has no other.
    pub fn take_own_bounce(&mut self) -> Option<Buffer> {
        own(&mut self.own_bounces, self.endpoint.domain(), BOUNCED, OWN_BYTES, self.links_max)
    }
}

/// Takes a buffer of pools that grow up to `most`. Without memory for more, the link continues to wait.
fn own(
    pools: &mut Vec<Pool>,
    domain: &Arc<Domain>,
    local_use: LocalUse,
    bytes: usize,
    most: usize,
) -> Option<Buffer> {
    let free = pools.iter().find_map(Pool::take);
    if free.is_some() || pools.len() * OWN_GROWTH >= most {
        return free;
    }
    let pool = Pool::new(domain, local_use, OWN_GROWTH, bytes).ok()?;
    let buffer = pool.take();
    pools.push(pool);
    buffer
}
