//! Sharing memory with clients of this host.

use std::sync::LazyLock;

use fabcache_layout::KeyHash;
use fabcache_layout::channel::CHANNEL_VERSION;
use fabcache_layout::format::{FORMAT_VERSION, NO_REGION, SHARD_REGION};
use fabcache_protocol::Accesses;
use fabcache_protocol::{Encoding, Refusal};
use fabcache_store::hints::Access;
use fabcache_transport::Kind;
use fabcache_transport::shm::NewChannel;

use super::{Context, Session, Upgrade, UpgradeOffer, refused, saved};
use crate::shm::{SharedMemory, ShmSettings};

/// Usually other processes of the server's user have sent descriptors to processes that do not receive them.
pub const NOT_HANDED_OVER: Refusal =
    Refusal::Server("memory cannot be handed over now; too many descriptors may be on their way");

/// The answers to clients that request the region and get something else if they request it.
const CHANNEL_ONLY: &str = "CHANNEL the server's memory is not a file that clients could map\r\n";
const SHARD_ONLY: &str = "SHARD the server's memory has a part of the keys that it answers for\r\n";

static OTHER_VERSIONS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "this server's memory has formats of other versions: channels of version {CHANNEL_VERSION}, and a region of version \
         {FORMAT_VERSION}"
    )
});

/// Shares memory with the client, if it may use it and supports these versions of its format. Without a file for the
/// region, the answer is that the client may request a channel alone; in a job, that it may request a shard. That is a
/// line in any protocol, as the answer with descriptors is.
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
        Some(shm) if channel != CHANNEL_VERSION || !is_offered(shm, region) => refuse(&OTHER_VERSIONS),
        Some(shm) => {
            let with_region = region != NO_REGION;
            match shm.check(session.credentials, &session.groups) {
                Err(why) => refuse(why),
                Ok(()) if with_region && ctx.shared.store.region().is_none() => {
                    ctx.out.extend_from_slice(CHANNEL_ONLY.as_bytes());
                    return;
                }
                Ok(()) if region == FORMAT_VERSION && shm.memory == SharedMemory::Symmetric => {
                    ctx.out.extend_from_slice(SHARD_ONLY.as_bytes());
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

/// Returns whether clients may request what has this version.
fn is_offered(shm: &ShmSettings, region: u64) -> bool {
    matches!(region, FORMAT_VERSION | NO_REGION)
        || region == SHARD_REGION && shm.memory == SharedMemory::Symmetric
}

/// The line that goes with the descriptors: bytes of the region, the nanoseconds of its clock, and `kept` if the region
/// is a file without seals, or `shard` and where the region begins in the file. With the channel alone, the region has 0
/// bytes.
pub fn attached(ctx: &Context, with_region: bool) -> String {
    let store = &ctx.shared.store;
    if !with_region {
        return format!("SHM 0 {}\r\n", store.clock_ns());
    }
    let more = match ctx.shared.settings.shm.as_ref().map(|shm| shm.memory) {
        Some(SharedMemory::Kept) => " kept".to_owned(),
        Some(SharedMemory::Symmetric) => format!(" shard {}", store.region_offset()),
        Some(SharedMemory::Sealed) | None => String::new(),
    };
    format!("SHM {} {}{more}\r\n", store.region_bytes(), store.clock_ns())
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
