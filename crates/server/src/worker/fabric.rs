//! A worker's end of the fabric, among the other things that it waits for.
//!
//! Only who asks the fabric learns what has come, and some fabrics go on only while they are asked. So a worker that has
//! clients there asks in every turn, and all the time while it looks at its connections. It sleeps where a descriptor of
//! the fabric will tell; where there is none, clients that wait ring by their sockets.

use std::time::Instant;

use super::Worker;
use super::connection::Ended;
use super::polling::Place;
use crate::bounds::{FABRIC_DRAIN_PAUSE, FABRIC_DRAIN_TIME_MAX};

/// What a worker knows of its end.
#[derive(Debug, Default)]
pub struct OnFabric {
    /// Its descriptor became ready, and nobody has seen yet that there is nothing more.
    pub is_stirred: bool,
    /// Connections to be served; kept for its room.
    ready: Vec<u64>,
    /// Messages of nobody that are counted already.
    dropped: u64,
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
        let may = port.may_sleep();
        self.fabric.is_stirred &= !may;
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
