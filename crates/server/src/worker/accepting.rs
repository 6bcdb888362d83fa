//! Taking new connections, and sharing them out.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use fabcache_transport::{Kind, Link, Peer};

use super::epoll::Poll;
use super::inbox::NewLink;
use crate::bounds::{ACCEPT_PAUSE, ACCEPT_SAID_AGAIN, ACCEPTS_PER_TURN_MAX, DATAGRAMS_PER_TURN_MAX};
use crate::commands::Context;
use crate::settings::AcceptMode;
use crate::shared::Shared;
use crate::worker::listener::ListenerEntry;

/// One worker's share in accepting.
#[derive(Debug)]
pub struct Accepting {
    listeners: Arc<[ListenerEntry]>,
    worker: usize,
    listening: bool,
    /// Accepting rests until then, and why.
    paused: Option<(Instant, Pause)>,
    /// When a failure was last logged.
    said: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    /// The system has no descriptor left.
    NoDescriptor,
    /// The maximum number of connections is reached. The worker that noticed first measures how long.
    Limit(Option<Instant>),
}

impl Accepting {
    pub fn new(listeners: Arc<[ListenerEntry]>, worker: usize, poll: &Poll) -> std::io::Result<Accepting> {
        let mut accepting = Accepting { listeners, worker, listening: false, paused: None, said: None };
        accepting.listen(poll)?;
        Ok(accepting)
    }

    pub fn entry(&self, index: usize) -> &ListenerEntry {
        &self.listeners[index]
    }

    fn ours(&self) -> impl Iterator<Item = (usize, &ListenerEntry)> {
        let worker = self.worker;
        self.listeners
            .iter()
            .enumerate()
            .filter(move |(_, entry)| entry.worker.is_none_or(|only| only == worker))
    }

    fn listen(&mut self, poll: &Poll) -> std::io::Result<()> {
        for (index, entry) in self.ours() {
            poll.add_listener(entry.listener.descriptor(), index)?;
        }
        self.listening = true;
        Ok(())
    }

    /// Stops accepting.
    pub fn stop(&mut self, poll: &Poll) {
        if self.listening || self.paused.is_some() {
            self.unlisten(poll, true);
        }
        self.paused = None;
    }

    fn unlisten(&mut self, poll: &Poll, datagrams_too: bool) {
        self.listening = false;
        for (_, entry) in self.ours() {
            if datagrams_too || !matches!(entry.listener.kind(), Kind::Udp | Kind::OpenShmem) {
                poll.remove_listener(entry.listener.descriptor());
            }
        }
    }

    /// When accepting resumes.
    pub fn resumes_at(&self) -> Option<Instant> {
        self.paused.map(|(until, _)| until)
    }

    fn pause(&mut self, poll: &Poll, now: Instant, why: Pause) {
        // Datagrams do not count as connections.
        self.unlisten(poll, why == Pause::NoDescriptor);
        self.paused = Some((now + ACCEPT_PAUSE, why));
    }

    /// Resumes accepting if the pause is over and there is room.
    pub fn resume(&mut self, shared: &Shared, poll: &Poll, now: Instant) {
        let Some((until, why)) = self.paused else { return };
        if now < until {
            return;
        }
        if let Pause::Limit(since) = why {
            if shared.connections_now.load(Ordering::Relaxed) >= shared.settings.connections_max {
                self.paused = Some((now + ACCEPT_PAUSE, why));
                return;
            }
            if let Some(since) = since {
                let rested = now.saturating_duration_since(since).as_micros() as u64;
                shared.listen_disabled_us.fetch_add(rested, Ordering::Relaxed);
                shared.listen_disabled_now.store(false, Ordering::Relaxed);
            }
        }
        self.stop(poll);
        if let Err(error) = self.listen(poll) {
            tracing::warn!("cannot listen again: {error}");
            self.pause(poll, now, Pause::NoDescriptor);
        }
    }

    /// Accepts new connections; returns the links that this worker keeps.
    pub fn accept(&mut self, ctx: &Context, index: usize, poll: &Poll, now: Instant) -> Vec<Box<dyn Link>> {
        let listeners = Arc::clone(&self.listeners);
        let entry = &listeners[index];
        if entry.listener.kind() == Kind::Udp {
            return self.accept_datagrams(ctx, entry, poll, now);
        }
        let mut kept = Vec::new();
        if !self.listening && entry.listener.kind() != Kind::OpenShmem {
            return kept;
        }
        for _ in 0..ACCEPTS_PER_TURN_MAX {
            // If more connections wait, room is reserved before one is accepted, as other workers accept too.
            // Other PEs of a job are no clients: they are always served.
            let is_client = entry.listener.kind() != Kind::OpenShmem;
            let reserved = is_client && !ctx.shared.settings.refuse_fast;
            if reserved && !self.reserve(&ctx.shared, poll, now) {
                break;
            }
            let accepted = entry.listener.accept();
            if reserved && !matches!(accepted, Ok(Some(_))) {
                ctx.shared.connections_now.fetch_sub(1, Ordering::Relaxed);
            }
            let link = match accepted {
                Ok(Some(link)) => link,
                Ok(None) => break,
                Err(error) => {
                    self.fail(ctx, entry, &error, poll, now);
                    break;
                }
            };
            kept.extend(take(ctx, index, link));
        }
        kept
    }

    /// Receives datagrams; returns those to answer.
    fn accept_datagrams(
        &mut self,
        ctx: &Context,
        entry: &ListenerEntry,
        poll: &Poll,
        now: Instant,
    ) -> Vec<Box<dyn Link>> {
        let mut kept = Vec::new();
        if let Err(error) = entry.listener.accept_many(DATAGRAMS_PER_TURN_MAX, &mut kept) {
            self.fail(ctx, entry, &error, poll, now);
        }
        // An answer to a port of this server would come back as a request.
        kept.retain(|link| !self.is_own_udp_port(&link.peer()));
        kept
    }

    /// Pauses accepting after a failure.
    fn fail(
        &mut self,
        ctx: &Context,
        entry: &ListenerEntry,
        error: &std::io::Error,
        poll: &Poll,
        now: Instant,
    ) {
        self.say(entry, error, now);
        ctx.counters().accept_pauses.inc();
        self.pause(poll, now, Pause::NoDescriptor);
    }

    /// Returns whether this server itself receives datagrams there.
    fn is_own_udp_port(&self, peer: &Peer) -> bool {
        let Peer::Socket(peer) = peer else { return false };
        self.listeners.iter().filter(|entry| entry.listener.kind() == Kind::Udp).any(|entry| {
            let Peer::Socket(local) = entry.listener.local() else { return false };
            // A forged address of this host beyond loopback gets one answer, which is no request and ends there.
            let is_here = local.ip().is_unspecified() && peer.ip().to_canonical().is_loopback();
            local.port() == peer.port() && (local.ip() == peer.ip() || is_here)
        })
    }

    /// Logs why no connection is accepted, but not each time: that could be many times a second.
    fn say(&mut self, entry: &ListenerEntry, error: &std::io::Error, now: Instant) {
        let is_new = self.said.is_none_or(|said| now.saturating_duration_since(said) >= ACCEPT_SAID_AGAIN);
        if is_new {
            self.said = Some(now);
            tracing::warn!(
                "cannot accept at {}: {error}; accepting rests for moments, which `accept_pauses` in `stats fabcache` counts",
                entry.listener.local()
            );
        }
    }

    /// Reserves room for one connection; pauses accepting if the limit is reached.
    fn reserve(&mut self, shared: &Shared, poll: &Poll, now: Instant) -> bool {
        let most = shared.settings.connections_max;
        let room = |connections: u32| (connections < most).then_some(connections + 1);
        if shared.connections_now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok() {
            return true;
        }
        let first = !shared.listen_disabled_now.swap(true, Ordering::Relaxed);
        if first {
            shared.listen_disabled.fetch_add(1, Ordering::Relaxed);
        }
        self.pause(poll, now, Pause::Limit(first.then_some(now)));
        false
    }
}

/// Counts a new connection in or refuses it, and shares it out; returns it if this worker keeps it.
fn take(ctx: &Context, index: usize, mut link: Box<dyn Link>) -> Option<Box<dyn Link>> {
    let shared = &ctx.shared;
    let settings = &shared.settings;
    if link.kind() == Kind::OpenShmem {
        shared.connections_now.fetch_add(1, Ordering::Relaxed);
    } else if settings.refuse_fast
        && shared.connections_now.fetch_add(1, Ordering::Relaxed) >= settings.connections_max
    {
        shared.connections_now.fetch_sub(1, Ordering::Relaxed);
        ctx.counters().rejected_connections.inc();
        // Best effort: the answer fits an empty socket buffer.
        let _ = link.send(&[std::io::IoSlice::new(b"ERROR Too many open connections\r\n")]);
        return None;
    }
    ctx.counters().total_connections.inc();
    let worker = match settings.accept {
        AcceptMode::Local => ctx.worker,
        AcceptMode::Balanced => least_loaded(shared),
    };
    shared.inboxes[worker].count(1);
    if worker == ctx.worker {
        return Some(link);
    }
    shared.inboxes[worker].put(NewLink { link, listener: index });
    None
}

fn least_loaded(shared: &Shared) -> usize {
    let loads = shared.inboxes.iter().map(|inbox| inbox.load());
    loads.enumerate().min_by_key(|(_, load)| *load).map_or(0, |(worker, _)| worker)
}
