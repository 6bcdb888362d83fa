//! Switches a connection to another transport: shared memory with its client, or the fabric.
//!
//! The switch happens when all earlier answers are sent and no further bytes have arrived; bytes that the client sent
//! after its request are an error. The socket stays open as the sign of life of the other end.

use std::sync::Arc;

use fabcache_protocol::{Decoder, Refusal, Reply, SavedEncoding};
use fabcache_transport::fabric::{Client, FabricEndpoint};
use fabcache_transport::shm::{AttachError, NewChannel, ShmLink};
use fabcache_transport::{Kind, Link, StreamLink, memory};

use super::connection::{Connection, EndReason, LIMITS};
use super::token::ConnectionToken;
use super::visibility::info_of;
use crate::commands::fabric;
use crate::commands::{Context, Upgrade, UpgradeOffer, shm};

/// Why a connection does not switch.
enum UpgradeFailure {
    /// The connection continues unchanged, with this answer.
    Refused(Box<dyn Link>, Refusal),
    /// A part of the answer was sent: the connection cannot continue.
    Torn,
}

impl Connection {
    /// Takes up the offer, or answers why not.
    pub(super) fn attach(&mut self, ctx: &mut Context) -> Result<(), EndReason> {
        // A placeholder until the new link exists; it is closed, so the connection ends if that fails.
        let link = std::mem::replace(&mut self.link, Box::new(memory::ended()));
        let (Some(UpgradeOffer { encoding, way }), Ok(stream), true) =
            (self.session.offer.take(), link.into_stream(), self.input.is_empty())
        else {
            return Err(EndReason::Error);
        };
        let attached = match (way, stream.kind()) {
            (Upgrade::Shm { channel, with_region }, Kind::Unix) => share(ctx, stream, *channel, with_region),
            (Upgrade::Fabric(client), Kind::Tcp) => connect(ctx, stream, &client, self.place(), &encoding),
            _ => return Err(EndReason::Error),
        };
        match attached {
            Ok(link) => self.go_on(ctx, link),
            Err(UpgradeFailure::Torn) => return Err(EndReason::Error),
            Err(UpgradeFailure::Refused(link, refusal)) => {
                self.link = link;
                encoding.encoding().reply(&Reply::Refused(refusal), &mut ctx.out);
            }
        }
        Ok(())
    }

    fn go_on(&mut self, ctx: &Context, link: Box<dyn Link>) {
        let former = &self.session.info;
        let info = info_of(ctx, &*link, former.listener.clone());
        ctx.shared.connections.remove(former);
        ctx.shared.connections.add(&info);
        self.session.info = info;
        self.session.access.granted = true;
        // Packets for fast requests, lines for all others.
        self.decoder = Decoder::mixed(LIMITS);
        self.link = link;
        self.starved = true;
        self.is_active = true;
    }
}

/// Hands a channel over, and the region with it unless the client wants the channel alone.
fn share(
    ctx: &Context,
    unix: StreamLink,
    channel: NewChannel,
    with_region: bool,
) -> Result<Box<dyn Link>, UpgradeFailure> {
    let answer = shm::attached(ctx, with_region);
    let region = with_region.then(|| ctx.shared.store.region().expect("the request was checked"));
    match ShmLink::attach(unix, channel, region, answer.as_bytes()) {
        Ok(link) => {
            ctx.counters().shm_attached.inc();
            if !with_region {
                ctx.counters().shm_channel_only.inc();
            }
            Ok(Box::new(link))
        }
        Err(error) => {
            tracing::warn!("cannot share memory with a client: {error}");
            ctx.counters().shm_refused.inc();
            match error {
                AttachError::Unsent(unix, _) => {
                    Err(UpgradeFailure::Refused(Box::new(unix), shm::NOT_HANDED_OVER))
                }
                AttachError::Torn => Err(UpgradeFailure::Torn),
            }
        }
    }
}

/// Connects a client to the worker's fabric endpoint.
fn connect(
    ctx: &mut Context,
    tcp: StreamLink,
    client: &Client,
    place: ConnectionToken,
    encoding: &SavedEncoding,
) -> Result<Box<dyn Link>, UpgradeFailure> {
    let shared = Arc::clone(&ctx.shared);
    let region = ctx.port.as_ref().and_then(FabricEndpoint::region);
    let (Some(opened), Some(port), Some(region)) = (shared.fabric.opened(), &mut ctx.port, region) else {
        // It has failed, or the server is about to stop.
        ctx.counters().fabric_refused.inc();
        return Err(UpgradeFailure::Refused(Box::new(tcp), fabric::BETWEEN));
    };
    let attached = port.attach(tcp, place.token(), client);
    opened.set_buffer_bytes(ctx.worker, port.registered_bytes());
    let (mut link, granted) = match attached {
        Ok(attached) => attached,
        Err((tcp, error)) => {
            tracing::warn!(peer = %tcp.peer(), "cannot attach a client over the fabric: {error}");
            ctx.counters().fabric_refused.inc();
            let refusal = match error {
                fabcache_transport::fabric::AttachError::Links(_) => fabric::FULL,
                _ => fabric::NOT_CONNECTED,
            };
            return Err(UpgradeFailure::Refused(Box::new(tcp), refusal));
        }
    };
    let line = fabric::attached(&shared, port, &region, &granted);
    let mut answer = Vec::new();
    encoding.encoding().reply(&Reply::Line(line.as_bytes()), &mut answer);
    if let Err(error) = link.answer(&answer) {
        tracing::debug!(peer = %link.peer(), "a client left while it was given the fabric: {error}");
        return Err(UpgradeFailure::Torn);
    }
    ctx.counters().fabric_attached.inc();
    Ok(Box::new(link))
}
