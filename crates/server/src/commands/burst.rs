//! Executes runs of plain reads and of plain writes as the general path executes each, while the memory misses of their
//! keys overlap. Permissions, watchers and counters are handled once for a run.

use fabcache_protocol::bounds::RUN_MAX;
use fabcache_protocol::{Command, Encoding, PlainGet, PlainSet, Request};
use fabcache_store::{OutOfMemory, Probe, Put, StoredItem};

use super::{Context, FlashWait, Role, Session, execute, expiry_at, flash, is_too_large, retrieval, storage};
use crate::watch::topic;

/// Returns whether the connection's plain requests may be executed in runs: the client has the right to them, and
/// nothing is recorded of each.
#[inline]
pub fn is_allowed(ctx: &Context, session: &Session) -> bool {
    ctx.shared.pes.is_none()
        && matches!(session.role, Role::Serving)
        && session.access.is_open()
        && !ctx.shared.prefixes.is_on()
        && !ctx.shared.watchers.wants(topic::FETCHERS | topic::MUTATIONS)
}

/// Executes a run of reads, up to the one whose answer makes `gathered_max` bytes, or more than may be queued.
/// Returns their number.
pub fn gets(ctx: &mut Context, session: &mut Session, run: &[PlainGet<'_>], gathered_max: usize) -> usize {
    let mut probes = [Probe::NONE; RUN_MAX];
    ctx.handle.probe_many(run.iter().map(|get| get.key), &mut probes);
    let (mut hits, mut misses, mut meta, mut done) = (0, 0, 0, 0);
    for (get, probe) in run.iter().zip(&probes) {
        done += 1;
        let answered = match get.meta_or_binary() {
            None => retrieval::answer_text(ctx, &get.text(), probe),
            Some(encoding) => {
                let answered = retrieval::answer_meta_or_binary(ctx, get.key, &encoding, probe);
                meta += u64::from(answered.is_some() && matches!(encoding, Encoding::Meta(_)));
                answered
            }
        };
        match answered {
            Some(Ok(_)) => hits += 1,
            Some(Err(miss)) => {
                misses += 1;
                retrieval::count_reason(ctx.counters(), miss);
            }
            None => {
                let request = get.request();
                let flow = match flash::defer_at_once(ctx, session, &request) {
                    Some(flow) => flow,
                    None => execute(ctx, session, request),
                };
                if flow.is_retried() {
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
    counters.cmd_meta.add(meta);
    done
}

/// Returns whether writes may be executed in runs: none has to read flash, as without eviction any may.
#[inline]
pub fn may_write(ctx: &Context, session: &Session) -> bool {
    ctx.flash.is_none()
        || ctx.shared.settings.evict
            && !session.queue.has_pending()
            && matches!(session.flash, FlashWait::None)
            && !ctx.shared.store.is_short_of_memory()
}

/// Executes a run of writes, up to one that waits for memory. Returns how many it executed.
pub fn sets(ctx: &mut Context, session: &mut Session, run: &[PlainSet<'_>]) -> usize {
    let mut probes = [Probe::NONE; RUN_MAX];
    ctx.handle.probe_many(run.iter().map(|set| set.key), &mut probes);
    let now = ctx.shared.store.now();
    let mut puts = [Put::default(); RUN_MAX];
    for (put, set) in puts.iter_mut().zip(run) {
        let expiry = expiry_at(ctx, set.exptime, now);
        *put = Put { key: set.key, value: set.value, flags: set.flags, expiry };
    }
    let mut done = 0;
    while done < run.len() {
        let is_refused = |set: &PlainSet<'_>| is_too_large(ctx, set.key, set.flags, set.value.len() as u64);
        let len = run[done..].iter().position(is_refused).unwrap_or(run.len() - done);
        if len == 0 {
            if execute(ctx, session, run[done].request()).is_retried() {
                break;
            }
            done += 1;
            continue;
        }
        let sets = &run[done..done + len];
        let (handle, out) = (&ctx.handle, &mut ctx.out);
        let stored = |i: usize, item: StoredItem| sets[i].stored(item.cas, out);
        let failed = handle.put_many(&puts[done..done + len], &probes[done..], stored).err();
        let stored = failed.map_or(len, |failed| failed.stored);
        let waits = failed.is_some_and(|failed| flash::makes_room(ctx, failed.why));
        let tried = &sets[..len.min(stored + usize::from(!waits))];
        count(ctx, tried);
        done += tried.len();
        if waits {
            break;
        }
        if let Some(failed) = failed {
            refuse_no_memory(ctx, session, &sets[stored], failed.why);
        }
    }
    done
}

fn count(ctx: &Context, sets: &[PlainSet<'_>]) {
    let meta = sets.iter().filter(|set| set.is_meta).count() as u64;
    let counters = ctx.counters();
    counters.cmd_set.add(sets.len() as u64);
    counters.cmd_meta.add(meta);
}

#[cold]
fn refuse_no_memory(ctx: &mut Context, session: &Session, set: &PlainSet<'_>, why: OutOfMemory) {
    let len = set.value.len() as u64;
    if let Request { command: Command::Store(store), encoding } = set.request() {
        storage::refuse_no_memory(ctx, session.info.fd, set.key, &store, len, &encoding, why);
    }
}
