//! A worker's end of the fabric, among the other things that it waits for.
//!
//! Only who asks the fabric learns what has come, and some fabrics go on only while they are asked: with reads of the
//! region, too, of which nobody is told. So a worker that has clients there asks in every turn. It sleeps where a
//! descriptor of the fabric will tell; where there is none, clients that wait ring by their sockets. After the descriptor
//! has told of something the worker looks for more, as long as its [`Patience`] says.

use std::time::{Duration, Instant};

use fabcache_layout::channel::Patience;

use super::Worker;
use super::connection::Ended;
use super::polling::Place;
use crate::bounds::{FABRIC_DRAIN_PAUSE, FABRIC_DRAIN_TIME_MAX};

/// What a worker knows of its end.
#[derive(Debug, Default)]
pub struct OnFabric {
    /// Its descriptor became ready, and nobody has seen yet that there is nothing more.
    pub is_stirred: bool,
    patience: Patience,
    /// It looks until then, instead of sleeping.
    looks_until: Option<Instant>,
    /// Something came while it did.
    has_come: bool,
    /// When it went to sleep.
    slept_at: Option<Instant>,
    /// Connections to be served; kept for its room.
    ready: Vec<u64>,
    /// Messages of nobody that are counted already.
    dropped: u64,
}

impl OnFabric {
    /// The descriptor has told, at `now`.
    pub fn stir(&mut self, now: Instant) {
        self.is_stirred = true;
        if self.looks_until.is_some() {
            self.has_come = true;
            return;
        }
        if self.patience.look().is_none() {
            let slept = self.slept_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
            self.patience = self.patience.after_sleep(slept);
        }
        self.looks_until = self.patience.look().map(|time| now + time);
    }

    /// Whether it goes on looking, at `now`.
    fn looks_on(&mut self, now: Instant) -> bool {
        let Some(until) = self.looks_until else { return false };
        if std::mem::take(&mut self.has_come) {
            self.patience = self.patience.after_success();
            self.looks_until = self.patience.look().map(|time| now + time);
            return true;
        }
        if now < until {
            return true;
        }
        self.patience = self.patience.after_sleep(Duration::ZERO);
        self.looks_until = None;
        false
    }
}

impl Worker {
    /// Takes in what has come over the fabric, and serves whom it is for; whether it was for anybody.
    pub(super) fn serve_fabric(&mut self) -> bool {
        let Some(port) = &mut self.ctx.port else { return false };
        if port.links() == 0 && !self.fabric.is_stirred {
            return false;
        }
        let mut ready = std::mem::take(&mut self.fabric.ready);
        let progress = port.progress(&mut ready);
        let dropped = port.dropped_messages();
        let more = dropped - std::mem::replace(&mut self.fabric.dropped, dropped);
        if more > 0 {
            self.ctx.counters().fabric_dropped_messages.add(more);
        }
        let is_for_some = !ready.is_empty();
        for token in ready.drain(..) {
            let place = Place::of(token);
            if self.at(place).is_some() {
                self.serve_unless_queued(place.index);
            }
        }
        self.fabric.ready = ready;
        if let Err(error) = progress {
            tracing::error!(
                worker = self.ctx.worker,
                "the fabric failed, and its clients are cut off: {error}"
            );
            self.leave_fabric();
        }
        is_for_some
    }

    /// Whether what comes over the fabric makes a descriptor ready from now on, or need not be waited for.
    pub(super) fn fabric_may_sleep(&mut self) -> bool {
        let Some(port) = &mut self.ctx.port else { return true };
        if port.links() == 0 && !self.fabric.is_stirred {
            return true;
        }
        let now = Instant::now();
        let looks_on = self.fabric.looks_on(now);
        if looks_on && !self.fabric.is_stirred {
            return false;
        }
        // Also, the descriptor that has told falls silent by that.
        let may = port.may_sleep();
        self.fabric.is_stirred &= !may;
        let may = may && !looks_on;
        self.fabric.slept_at = may.then_some(now);
        may
    }

    /// Lets the last bytes of links that were closed arrive, while their clients are there to take them.
    pub(super) fn drain_fabric(&mut self) {
        let Some(port) = &mut self.ctx.port else { return };
        let until = Instant::now() + FABRIC_DRAIN_TIME_MAX;
        while port.links() > 0 && Instant::now() < until {
            if let Err(error) = port.progress(&mut self.fabric.ready) {
                tracing::debug!(worker = self.ctx.worker, "the fabric failed at the end: {error}");
                return;
            }
            self.fabric.ready.clear();
            std::thread::sleep(FABRIC_DRAIN_PAUSE);
        }
    }

    fn leave_fabric(&mut self) {
        for index in 0..self.connections.len() {
            let slot = &mut self.connections[index].connection;
            if let Some(connection) = slot.take_if(|connection| connection.is_on_fabric()) {
                self.close(index, connection, Ended::Error);
            }
        }
        self.ctx.port = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_as_long_as_that_is_of_use() {
        let mut fabric = OnFabric::default();
        let mut now = Instant::now();
        assert!(!fabric.looks_on(now), "nothing has told");
        fabric.stir(now);
        for _ in 0..100 {
            assert!(fabric.looks_on(now));
            now += Duration::from_micros(100);
            fabric.stir(now);
        }
        // Nothing comes while it looks, however soon it is woken.
        let mut looks = 0;
        for _ in 0..1000 {
            fabric.slept_at = Some(now);
            now += Duration::from_micros(20);
            fabric.stir(now);
            fabric.has_come = false;
            while fabric.looks_on(now) {
                now += Duration::from_micros(10);
                looks += 1;
            }
        }
        assert!(looks < 1000, "{looks} in vain");
    }
}
