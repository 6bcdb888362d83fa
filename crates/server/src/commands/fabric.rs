//! Attaches clients over the fabric.

use std::net::SocketAddr;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fabcache_fabric::channel::CHANNEL_VERSION;
use fabcache_fabric::{RemoteMemory, ip_of};
use fabcache_layout::format::FORMAT_VERSION;
use fabcache_protocol::{Encoding, FabricAttach, FabricMemory, Refusal, Reply};
use fabcache_transport::Kind;
use fabcache_transport::fabric::{Client, FabricEndpoint, Grant};

use super::{Context, Session, Upgrade, UpgradeOffer, refused, saved};
use crate::fabric::{Fabric, FabricSettings, OpenFabric};
use crate::shared::Shared;

/// The log has the reason: a name or numbers that do not match, or a provider that cannot connect.
pub const NOT_CONNECTED: Refusal =
    Refusal::Server("the fabric cannot be used with this client; see the server's log");

/// The worker's end failed.
pub const BETWEEN: Refusal = Refusal::Server(
    "the fabric has failed and is being opened again; try in a while, or on another connection",
);

/// All slots are in use.
pub const FULL: Refusal = Refusal::Server("the fabric has as many clients here as it has buffers for");

static OTHER_VERSIONS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "this server's fabric has formats of other versions: messages of version {CHANNEL_VERSION}, and a region of version \
         {FORMAT_VERSION}"
    )
});

/// Returns the fabric's address, if the client may use it and supports these versions.
pub fn hello(ctx: &mut Context, session: &mut Session, channel: u64, region: u64, encoding: &Encoding<'_>) {
    let versions = (channel, region);
    let reported = match open_to(ctx, session) {
        Ok(_) if versions != (CHANNEL_VERSION, FORMAT_VERSION) => Err(Refusal::Client(&OTHER_VERSIONS)),
        Ok((fabric, _)) => {
            let provider = fabric.provider();
            let (protocol, format) = (provider.protocol, provider.address_format);
            let one_sided = u8::from(fabric.is_one_sided());
            Ok(format!("FABRIC {} {protocol} {format} {one_sided}", provider.name))
        }
        Err(refusal) => Err(refusal),
    };
    match reported {
        Ok(line) => {
            session.knows_fabric = true;
            encoding.reply(&Reply::Line(line.as_bytes()), &mut ctx.out);
        }
        Err(refusal) => refuse(ctx, refusal, encoding),
    }
}

/// Attaches the client over the fabric.
pub fn attach(ctx: &mut Context, session: &mut Session, attach: &FabricAttach<'_>, encoding: &Encoding<'_>) {
    let name = attach.name();
    let refusal = match open_to(ctx, session) {
        Err(refusal) => refusal,
        Ok(_) if !session.knows_fabric => Refusal::Client("fabric hello comes before fabric attach"),
        // Otherwise a client could make the server send to an address of its choice.
        Ok((_, settings)) if !ip_of(&name).is_none_or(|address| settings.peers.admit(address)) => {
            Refusal::Client("the fabric is not for this endpoint's address; see --fabric-peers")
        }
        Ok(_) => {
            let memory =
                |FabricMemory { address, key, bytes }: FabricMemory| RemoteMemory { address, key, bytes };
            let client = Client {
                name,
                token: attach.token,
                credits: attach.credits,
                staging: memory(attach.staging),
                landing: memory(attach.landing),
            };
            session.offer =
                Some(UpgradeOffer { encoding: saved(encoding), way: Upgrade::Fabric(Box::new(client)) });
            return;
        }
    };
    refuse(ctx, refusal, encoding);
}

/// Returns the answer to `fabric attach`: the worker's endpoint, and how to read the items.
pub fn attached(shared: &Shared, port: &FabricEndpoint, region: &RemoteMemory, granted: &Grant) -> String {
    let store = &shared.store;
    format!(
        "FABRIC {} {:x} {} {} {} {} {} {} {}",
        STANDARD.encode(port.name()),
        granted.token,
        granted.credits,
        store.region_bytes(),
        store.clock_ns(),
        region.address,
        region.key,
        STANDARD.encode(store.secret().0),
        store.grace().as_nanos(),
    )
}

/// The fabric, if it is for this client.
fn open_to<'c>(ctx: &'c Context, session: &Session) -> Result<(&'c OpenFabric, &'c FabricSettings), Refusal> {
    let address = session.info.address.parse::<SocketAddr>();
    match (&ctx.shared.settings.fabric, &ctx.shared.fabric) {
        (None, _) | (_, Fabric::Off) => {
            Err(Refusal::Client("the fabric is off; start the server with --fabric"))
        }
        _ if session.info.kind == Kind::Fabric => {
            Err(Refusal::Client("this connection goes over the fabric already"))
        }
        _ if session.info.kind != Kind::Tcp => {
            Err(Refusal::Client("the fabric is for clients that come by TCP only"))
        }
        _ if !session.is_plain => Err(Refusal::Client(
            "the fabric is not for clients that come by TLS, as nothing is encrypted on it",
        )),
        (Some(settings), _) if !address.is_ok_and(|address| settings.peers.admit(address.ip())) => {
            Err(Refusal::Client("the fabric is not for this address; see --fabric-peers"))
        }
        (_, Fabric::Failed(why)) => Err(Refusal::Server(why)),
        (_, Fabric::Open(_)) if ctx.port.is_none() => Err(BETWEEN),
        (Some(settings), Fabric::Open(fabric)) => Ok((fabric, settings)),
    }
}

fn refuse(ctx: &mut Context, refusal: Refusal, encoding: &Encoding<'_>) {
    ctx.counters().fabric_refused.inc();
    encoding.reply(&refused(refusal), &mut ctx.out);
}
