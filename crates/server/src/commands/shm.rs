//! Sharing memory with clients of this host.

use std::sync::LazyLock;

use fabcache_layout::KeyHash;
use fabcache_layout::channel::CHANNEL_VERSION;
use fabcache_layout::format::{FORMAT_VERSION, NO_REGION};
use fabcache_protocol::Accesses;
use fabcache_protocol::{Encoding, Refusal};
use fabcache_store::hints::Access;
use fabcache_transport::Kind;
use fabcache_transport::shm::NewChannel;

use super::{Context, Session, Upgrade, UpgradeOffer, refused, saved};

/// Usually other processes of the server's user have sent descriptors to processes that do not receive them.
pub const NOT_HANDED_OVER: Refusal =
    Refusal::Server("memory cannot be handed over now; too many descriptors may be on their way");

/// Why clients get no region.
const NO_FILE: &str = "the server's memory is not a file that clients could map";

static OTHER_VERSIONS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "this server's memory has formats of other versions: channels of version {CHANNEL_VERSION}, and a region of version \
         {FORMAT_VERSION}"
    )
});

/// Shares memory with the client, if it may use it and supports these versions of its format. Without a file for the
/// region, the answer is that the client may request a channel alone. That is a line in any protocol, as the answer
/// with descriptors is.
pub fn attach(ctx: &mut Context, session: &mut Session, channel: u64, region: u64, encoding: &Encoding<'_>) {
    let refuse = |why| {
        let user = session.credentials.map(|who| who.user);
        ctx.shared.shm_refusals.log(why, user);
        Refusal::Client(why)
    };
    let refusal = match &ctx.shared.settings.shm {
        None => refuse("shared memory is off; start the server with --shm"),
        Some(_) if session.info.kind != Kind::Unix => {
            refuse("memory is shared with clients that come by a Unix socket only")
        }
        Some(_) if channel != CHANNEL_VERSION || !matches!(region, FORMAT_VERSION | NO_REGION) => {
            refuse(&OTHER_VERSIONS)
        }
        Some(shm) => {
            let with_region = region != NO_REGION;
            match shm.check(session.credentials, &session.groups) {
                Err(why) => refuse(why),
                Ok(()) if with_region && ctx.shared.store.region().is_none() => {
                    ctx.out.extend_from_slice(format!("CHANNEL {NO_FILE}\r\n").as_bytes());
                    return;
                }
                Ok(()) => match NewChannel::create(&shm.shape) {
                    Ok(channel) => {
                        let way = Upgrade::Shm { channel: Box::new(channel), with_region };
                        session.offer = Some(UpgradeOffer { encoding: saved(encoding), way });
                        return;
                    }
                    Err(error) => {
                        tracing::warn!("cannot share memory with a client: {error}");
                        Refusal::Server("no memory or descriptor is left for a channel")
                    }
                },
            }
        }
    };
    ctx.counters().shm_refused.inc();
    encoding.reply(&refused(refusal), &mut ctx.out);
}

/// The line that goes with the descriptors: bytes of the region, the nanoseconds of its clock, and `kept` if the region
/// is a file without seals. With the channel alone, the region has 0 bytes.
pub fn attached(ctx: &Context, with_region: bool) -> String {
    let store = &ctx.shared.store;
    if !with_region {
        return format!("SHM 0 {}\r\n", store.clock_ns());
    }
    let is_kept = ctx.shared.settings.shm.as_ref().is_some_and(|shm| shm.is_kept);
    let kept = if is_kept { " kept" } else { "" };
    format!("SHM {} {}{kept}\r\n", store.region_bytes(), store.clock_ns())
}

/// Counts reads that the server did not see as if it had served them.
pub fn accessed(ctx: &mut Context, session: &Session, accesses: Accesses<'_>, encoding: &Encoding<'_>) {
    if !matches!(session.info.kind, Kind::Shm | Kind::Fabric | Kind::OpenShmem) {
        encoding.reply(
            &refused(Refusal::Client("only clients over shared memory or a fabric report reads")),
            &mut ctx.out,
        );
        return;
    }
    let accesses = accesses.iter().map(|(hash, reads)| Access { hash: KeyHash(hash), reads });
    ctx.handle.note_accesses(accesses);
}
