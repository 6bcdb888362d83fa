//! Executes runs of plain reads and of plain writes as the general path executes each, while the memory misses of their
//! keys overlap. Permissions, watchers and counters are handled once for a run.

use fabcache_protocol::bounds::RUN_MAX;
use fabcache_protocol::{Command, PlainGet, PlainSet, Request};
use fabcache_store::{OutOfMemory, Probe};

use super::{Context, Flow, Role, Session, execute, expiry_at, is_too_large, retrieval, storage};
use crate::watch::topic;

/// Returns whether the connection's plain requests may be executed in runs: the client has the right to them, and
/// nothing is recorded of each.
#[inline]
pub fn is_allowed(ctx: &Context, session: &Session) -> bool {
    matches!(session.role, Role::Serving)
        && session.access.is_open()
        && !ctx.shared.prefixes.is_on()
        && !ctx.shared.watchers.wants(topic::FETCHERS | topic::MUTATIONS)
}

/// Executes a run of reads, up to the one whose answer makes `gathered_max` bytes, or more than may be queued.
/// Returns their number.
pub fn gets(ctx: &mut Context, session: &mut Session, run: &[PlainGet<'_>], gathered_max: usize) -> usize {
    let mut probes = [Probe::NONE; RUN_MAX];
    ctx.handle.probe_many(run.iter().map(|get| get.key), &mut probes);
    let (mut hits, mut misses, mut done) = (0, 0, 0);
    for (get, probe) in run.iter().zip(&probes) {
        done += 1;
        match retrieval::answer_plain(ctx, &get.encoding(), probe) {
            Some(Ok(_)) => hits += 1,
            Some(Err(miss)) => {
                misses += 1;
                retrieval::count_reason(ctx.counters(), miss);
            }
            None => {
                if execute(ctx, session, get.request()) == Flow::AwaitTicket {
                    done -= 1;
                    break;
                }
                if session.queue.is_full() || session.queue.stops_requests() {
                    break;
                }
            }
        }
        if ctx.out.len() >= gathered_max {
            break;
        }
    }
    let counters = ctx.counters();
    counters.cmd_get.add(hits + misses);
    counters.get_hits.add(hits);
    counters.get_misses.add(misses);
    done
}

/// Executes a run of writes.
pub fn sets(ctx: &mut Context, session: &mut Session, run: &[PlainSet<'_>]) {
    let mut probes = [Probe::NONE; RUN_MAX];
    ctx.handle.probe_many(run.iter().map(|set| set.key), &mut probes);
    let now = ctx.shared.store.now();
    let (mut text, mut meta) = (0, 0);
    for (set, probe) in run.iter().zip(&probes) {
        let len = set.value.len() as u64;
        if is_too_large(ctx, set.key, set.flags, len) {
            execute(ctx, session, set.request());
            continue;
        }
        *(if set.is_meta { &mut meta } else { &mut text }) += 1;
        let expiry = expiry_at(ctx, set.exptime, now);
        match ctx.handle.put(set.key, probe, set.flags, expiry, set.value) {
            Ok(_) => set.stored(&mut ctx.out),
            Err(why) => refuse_no_memory(ctx, session, set, why),
        }
    }
    let counters = ctx.counters();
    counters.cmd_set.add(text + meta);
    counters.cmd_meta.add(meta);
}

#[cold]
fn refuse_no_memory(ctx: &mut Context, session: &Session, set: &PlainSet<'_>, why: OutOfMemory) {
    let len = set.value.len() as u64;
    if let Request { command: Command::Store(store), encoding } = set.request() {
        storage::refuse_no_memory(ctx, session.info.fd, set.key, &store, len, &encoding, why);
    }
}
