//! Removing: delete, md, binary Delete.

use fabcache_protocol::{Delete, Encoding, Reply};
use fabcache_store::{Change, ItemInfo, Miss, NewValue, OutOfMemory, Value, Write};

use super::{Context, Flow, ITEM_CLASS, Session, expiry, flash, notify_lookup};
use crate::prefixes::Request;
use crate::watch::{encoded, topic};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Deleted,
    Exists,
    NotFound,
}

/// Removes a key, marks it stale, or takes its value away.
pub fn delete(
    ctx: &mut Context,
    session: &mut Session,
    delete: &Delete<'_>,
    encoding: &Encoding<'_>,
) -> Flow {
    let touch = delete.touch.map(|exptime| expiry(ctx, exptime));
    let mut found = Err(Miss::Absent);
    let done = ctx.handle.mutate(delete.key, |existing| {
        found = existing.info.map(|info| info.len);
        let Ok(info) = existing.info else { return (Change::Keep, (Outcome::NotFound, 0)) };
        if delete.compare.is_some_and(|compare| compare != info.cas) {
            return (Change::Keep, (Outcome::Exists, 0));
        }
        if !delete.stale && !delete.drop_value {
            return (Change::Remove, (Outcome::Deleted, info.len));
        }
        // Without its value an item is a new one.
        let info = if delete.drop_value {
            ItemInfo { cas: info.cas, binary_key: info.binary_key, ..ItemInfo::EMPTY }
        } else {
            info
        };
        let write = Write {
            flags: if delete.drop_value { delete.flags } else { info.flags },
            expiry: touch.unwrap_or(info.expiry),
            // Marking an item stale changes it, so that writers with the old CAS fail.
            cas: delete.new_cas.or((!delete.stale).then_some(info.cas)),
            stale: delete.stale || info.stale,
            token_sent: info.token_sent && !delete.stale,
            same_item: !delete.drop_value,
            ..Write::unchanged(&info)
        };
        let write = Write {
            value: if delete.drop_value { NewValue::Is(Value::Bytes(b"")) } else { NewValue::Same },
            ..write
        };
        (Change::Write(write), (Outcome::Deleted, info.len))
    });
    match &done {
        Err(OutOfMemory::OnFlash) => return flash::await_item(ctx, session, delete.key),
        Err(why) if flash::makes_room(ctx, *why) => return Flow::AwaitMemory,
        _ => {}
    }
    ctx.shared.prefixes.count(delete.key, Request::Delete);
    notify_lookup(ctx, session.info.fd, delete.key, found);
    let counters = ctx.counters();
    let reply = match done {
        // Marking an item stale is no delete.
        Ok(((Outcome::Deleted, _), _)) if delete.stale => Reply::Deleted,
        Ok(((Outcome::Deleted, len), _)) => {
            counters.delete_hits.inc();
            ctx.shared.notify_watchers(topic::DELETIONS, || {
                let command = if matches!(encoding, Encoding::Meta(_)) { "md" } else { "delete" };
                format!(
                    "type=deleted key={} cmd={command} clsid={ITEM_CLASS} size={len}",
                    encoded(delete.key)
                )
            });
            Reply::Deleted
        }
        Ok(((Outcome::Exists, _), _)) => Reply::Exists,
        Ok(((Outcome::NotFound, _), _)) => {
            counters.delete_misses.inc();
            Reply::NotFound
        }
        Err(_) => Reply::OutOfMemory,
    };
    encoding.reply(&reply, &mut ctx.out);
    Flow::Next
}
