//! What all links of a port share: the port itself, and its buffers.

use std::collections::VecDeque;
use std::sync::Arc;

use fabcache_fabric::channel::{MESSAGE_BYTES, PIECE_BYTES_MAX, receives_for};
use fabcache_fabric::{Buffer, Domain, Error, Pool, Port, PortOptions};

use super::bounds::{
    BOUNCES, GRANTED_PART, GROWTH, LEAST_CREDITS, LINK_SENDS_MAX, MORE_OPERATIONS, PEERS, SENDS,
    USUAL_CREDITS,
};

/// A port and its buffers.
#[derive(Debug)]
pub(super) struct Resources {
    // First: its operations end before their pools are gone.
    pub port: Port,
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
    /// Links that wait for a bounce buffer, and for a send buffer.
    pub bounce_queue: VecDeque<u32>,
    pub send_queue: VecDeque<u32>,
    /// Where messages are made that are injected.
    pub scratch: Box<[u8; MESSAGE_BYTES]>,
    pub links: usize,
}

impl Resources {
    pub fn open(domain: &Arc<Domain>, receives: usize) -> Result<Resources, Error> {
        let receives_pool = Pool::new(domain, receives, MESSAGE_BYTES)?;
        let sends = Pool::new(domain, SENDS, MESSAGE_BYTES)?;
        let bounces = Pool::new(domain, BOUNCES, PIECE_BYTES_MAX)?;
        let operations = receives + SENDS + BOUNCES + MORE_OPERATIONS;
        let port = Port::open(domain, PortOptions { operations, peers: PEERS, waits: true })?;
        let mut resources = Resources {
            port,
            inject_bytes: domain.provider().inject_bytes,
            receives: vec![receives_pool],
            ungranted: receives,
            grown: 0,
            is_short: true,
            sends: vec![sends],
            bounces,
            bounce_queue: VecDeque::new(),
            send_queue: VecDeque::new(),
            scratch: Box::new([0; MESSAGE_BYTES]),
            links: 0,
        };
        resources.post_receives();
        Ok(resources)
    }

    /// Bytes of all buffers.
    pub fn registered_bytes(&self) -> u64 {
        let pools = self.receives.iter().chain(&self.sends).chain([&self.bounces]);
        pools.map(|pool| pool.bytes() as u64).sum()
    }

    // ---- receive buffers ----

    /// Credits for one more link, for which there are buffers then.
    pub fn grant(&mut self) -> Result<u16, Error> {
        let domain = Arc::clone(self.port.domain());
        // What was made for many is not for few again.
        let part = self.ungranted.saturating_sub(self.grown) / GRANTED_PART;
        let usual = part.saturating_sub(receives_for(0)).min(USUAL_CREDITS.into());
        let credits = (usual as u16).max(LEAST_CREDITS);
        if self.ungranted < receives_for(credits) {
            let more = Pool::new(&domain, GROWTH, MESSAGE_BYTES)?;
            self.receives.push(more);
            self.ungranted += GROWTH;
            self.grown += GROWTH;
            self.is_short = true;
            self.post_receives();
        }
        if 2 * (self.links + 1) > self.sends.iter().map(|pool| pool.bytes() / MESSAGE_BYTES).sum() {
            self.sends.push(Pool::new(&domain, GROWTH, MESSAGE_BYTES)?);
        }
        self.ungranted -= receives_for(credits);
        self.links += 1;
        Ok(credits)
    }

    /// A link with so many credits has ended.
    pub fn take_back(&mut self, credits: u16) {
        self.ungranted += receives_for(credits);
        self.links -= 1;
    }

    /// A receive buffer is free.
    pub fn repost(&mut self, buffer: Buffer) {
        // If the provider takes no more now, it goes back to its pool.
        self.is_short |= self.port.receive(buffer, 0).is_err();
    }

    /// Receive buffers were dropped that should be posted.
    pub fn note_dropped(&mut self) {
        self.is_short = true;
    }

    /// Posts what is not.
    pub fn post_receives(&mut self) {
        while self.is_short {
            let Some(buffer) = self.receives.iter().find_map(Pool::take) else {
                self.is_short = false;
                return;
            };
            if self.port.receive(buffer, 0).is_err() {
                return;
            }
        }
    }

    // ---- send buffers ----

    /// A send buffer, for a link that has so many under way.
    pub fn take_send(&self, under_way: usize) -> Option<Buffer> {
        let whole: usize = self.sends.iter().map(|pool| pool.bytes() / MESSAGE_BYTES).sum();
        let most = (whole / self.links.max(1)).clamp(2, LINK_SENDS_MAX);
        if under_way >= most { None } else { self.sends.iter().find_map(Pool::take) }
    }

    pub fn free_sends(&self) -> usize {
        self.sends.iter().map(Pool::free).sum()
    }
}
