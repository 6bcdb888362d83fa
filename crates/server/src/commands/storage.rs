//! Writing: set, add, replace, append, prepend, cas, ms, and their binary likes.

use fabcache_protocol::{
    Encoding, Item, MetaEncoding, Refusal, Reply, SavedEncoding, Store, StoreMode, TextEncoding,
    Value as Sent,
};
use fabcache_store::{
    Change, ExistingItem, Expiry, ItemInfo, Miss, NewValue, OutOfMemory, Put, Upload, Value, Write,
};

use super::flash::CommandKind;
use super::{
    Context, Flow, ITEM_CLASS, Role, Session, expiry, flash, forward, is_too_large, no_room, notify_lookup,
    refused, saved,
};
use crate::prefixes::Request;
use crate::watch::{encoded, topic};

/// A request whose value is coming in.
#[derive(Debug)]
pub struct Receiving {
    encoding: SavedEncoding,
    key: Vec<u8>,
    /// The request without its key and value.
    store: Store<'static>,
    upload: Upload,
    cfd: i32,
}

impl Receiving {
    /// Returns space for the next bytes of the value, and whether the value ends with it.
    pub fn space(&mut self) -> (&mut [u8], bool) {
        let missing = self.upload.missing();
        let space = self.upload.space();
        let is_last = space.len() as u64 == missing;
        (space, is_last)
    }

    /// Returns what the value is gathered in.
    pub fn upload(&mut self) -> &mut Upload {
        &mut self.upload
    }

    /// Returns whether received bytes wait for memory: [`resume`] is due before more are received.
    pub fn is_blocked(&self) -> bool {
        self.upload.is_blocked()
    }

    /// Frees space that the received bytes do not justify.
    pub fn settle(&mut self) {
        self.upload.settle();
    }
}

/// A request whose value is here, and which waits for an item on flash or for memory.
#[derive(Debug)]
pub struct Completing {
    encoding: SavedEncoding,
    key: Vec<u8>,
    /// The request without its key and value.
    store: Store<'static>,
    upload: Upload,
    cfd: i32,
}

/// How a store ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Stored,
    NotStored,
    Exists,
    NotFound,
    TooLarge,
}

/// How a store ended, and what was stored or sent.
struct StoreResult {
    outcome: Outcome,
    /// The bytes of the value that was stored, or sent.
    len: u64,
}

/// A store whose value is here, or announced.
pub fn store(ctx: &mut Context, session: &mut Session, store: &Store<'_>, encoding: &Encoding<'_>) -> Flow {
    let len = store.value.len();
    if is_too_large(ctx, store.key, store.flags, len) {
        return refuse_too_large(ctx, session, store, encoding);
    }
    match store.value {
        Sent::Inline(bytes) if is_plain(ctx, store, encoding) => {
            write_plain(ctx, session, store, bytes, encoding)
        }
        Sent::Inline(bytes) => write(ctx, session, store.key, store, Value::Bytes(bytes), encoding),
        Sent::Streamed { len } => {
            let mut saved = SavedEncoding::new();
            saved.save(encoding);
            let upload = Upload::begin(&ctx.shared.store, store.key, expiry(ctx, store.exptime), len);
            session.role = Role::Receiving(Box::new(Receiving {
                encoding: saved,
                key: store.key.to_vec(),
                store: Store { key: b"", value: Sent::default(), ..*store },
                upload,
                cfd: session.info.fd,
            }));
            Flow::Next
        }
    }
}

/// Returns whether it is a `set` or an `ms` that stores whatever the existing item, under a key that was sent as it is,
/// and that nobody watches.
#[inline]
fn is_plain(ctx: &Context, store: &Store<'_>, encoding: &Encoding<'_>) -> bool {
    matches!(encoding, Encoding::Text(_) | Encoding::Meta(MetaEncoding { binary_key: false, .. }))
        && store.mode == StoreMode::Set
        && store.compare.is_none()
        && store.new_cas.is_none()
        && !ctx.shared.watchers.wants(topic::FETCHERS | topic::MUTATIONS)
}

/// Stores a value whatever the existing item.
#[inline]
fn write_plain(
    ctx: &mut Context,
    session: &mut Session,
    store: &Store<'_>,
    value: &[u8],
    encoding: &Encoding<'_>,
) -> Flow {
    let probe = ctx.handle.probe_for_write(store.key);
    let len = value.len() as u64;
    let put = Put { key: store.key, value, flags: store.flags, expiry: expiry(ctx, store.exptime) };
    let done = ctx.handle.put(&put, &probe);
    if done == Err(OutOfMemory::OnFlash) {
        return flash::await_item(ctx, session, store.key);
    }
    if let Err(why) = done
        && flash::makes_room(ctx, why)
    {
        return Flow::AwaitMemory;
    }
    ctx.counters().cmd_set.inc();
    ctx.shared.prefixes.count(store.key, Request::Set);
    match done {
        Ok(stored) => {
            let item = Item { cas: stored.cas, len, flags: store.flags, ..Item::default() };
            encoding.reply(&Reply::Stored(item), &mut ctx.out);
        }
        Err(why) => refuse_no_memory(ctx, session.info.fd, store.key, store, len, encoding, why),
    }
    Flow::Next
}

/// A value that can never fit.
fn refuse_too_large(
    ctx: &mut Context,
    session: &mut Session,
    store: &Store<'_>,
    encoding: &Encoding<'_>,
) -> Flow {
    if remove_replaced(ctx, store.key, store, encoding, |_| true) == Err(OutOfMemory::OnFlash) {
        return flash::await_item(ctx, session, store.key);
    }
    ctx.counters().store_too_large.inc();
    notify_watchers(ctx, session.info.fd, store.key, store, "too_large", store.value.len());
    encoding.reply(&Reply::TooLarge, &mut ctx.out);
    Flow::DiscardValue
}

/// A value that memory has no room for.
pub(super) fn refuse_no_memory(
    ctx: &mut Context,
    cfd: i32,
    key: &[u8],
    store: &Store<'_>,
    len: u64,
    encoding: &Encoding<'_>,
    why: OutOfMemory,
) {
    ctx.counters().store_no_memory.inc();
    // Unlike memcached's, a stored value at least as long stays without eviction, which else would lose it for no gain. But
    // a client that does not learn of the refusal must not read the old value as its own.
    let is_told = !matches!(encoding, Encoding::Text(TextEncoding { noreply: true, .. }));
    let stays = !ctx.shared.settings.evict && is_told;
    // One on flash stays, too, where it has to be read first.
    let _ = remove_replaced(ctx, key, store, encoding, |info| !stays || info.len < len);
    notify_watchers(ctx, cfd, key, store, "no_memory", len);
    encoding.reply(&no_room(why), &mut ctx.out);
}

/// If a value cannot be stored, removes the value that it should replace, so that no client reads the old value as
/// current. Items for which `removes` is false stay.
fn remove_replaced(
    ctx: &Context,
    key: &[u8],
    store: &Store<'_>,
    encoding: &Encoding<'_>,
    removes: impl Fn(&ItemInfo) -> bool,
) -> Result<(), OutOfMemory> {
    let replaces =
        store.mode == StoreMode::Set && store.compare.is_none() || matches!(encoding, Encoding::Meta(_));
    if !replaces {
        return Ok(());
    }
    let remove = |existing: &mut ExistingItem<'_>| match &existing.info {
        Ok(info) if !removes(info) => (Change::Keep, ()),
        _ => (Change::Remove, ()),
    };
    ctx.handle.overwrite(key, remove).map(|_| ())
}

/// A part of a value that is coming in.
pub fn receive(ctx: &mut Context, session: &mut Session, bytes: &[u8]) -> Flow {
    if matches!(session.role, Role::Forwarding(_)) {
        forward::receive(session, bytes);
        return Flow::Next;
    }
    let Role::Receiving(receiving) = &mut session.role else { return Flow::DiscardValue };
    let written = receiving.upload.write(&ctx.handle, bytes);
    wait_or_refuse(ctx, session, written)
}

/// A part that was received into [`Receiving::space`].
pub fn receive_in_place(ctx: &mut Context, session: &mut Session, len: usize) -> Flow {
    let Role::Receiving(receiving) = &mut session.role else { return Flow::DiscardValue };
    let written = receiving.upload.fill(&ctx.handle, len);
    wait_or_refuse(ctx, session, written)
}

/// Writes the parts that wait for memory.
pub fn resume(ctx: &mut Context, session: &mut Session) -> Flow {
    let Role::Receiving(receiving) = &mut session.role else { return Flow::Next };
    let written = receiving.upload.resume(&ctx.handle);
    wait_or_refuse(ctx, session, written)
}

/// Refuses a value whose part could not be written, unless writes to flash make room for it.
fn wait_or_refuse(ctx: &mut Context, session: &mut Session, written: Result<(), OutOfMemory>) -> Flow {
    let Err(why) = written else { return Flow::Next };
    if flash::makes_room(ctx, why) {
        return Flow::AwaitMemory;
    }
    let Role::Receiving(receiving) = std::mem::replace(&mut session.role, Role::Serving) else {
        return Flow::Next;
    };
    let Receiving { encoding, key, store, upload, cfd } = *receiving;
    refuse_no_memory(ctx, cfd, &key, &store, upload.len(), &encoding.encoding(), why);
    Flow::DiscardValue
}

/// Ends a received value.
pub fn received(ctx: &mut Context, session: &mut Session, intact: bool) {
    if matches!(session.role, Role::Forwarding(_)) {
        return forward::received(ctx, session, intact);
    }
    let Role::Receiving(receiving) = std::mem::replace(&mut session.role, Role::Serving) else { return };
    let Receiving { encoding, key, store, upload, cfd } = *receiving;
    let encoding = encoding.encoding();
    if !intact {
        encoding.reply(&refused(Refusal::Client("bad data chunk")), &mut ctx.out);
        return;
    }
    let encoding = saved(&encoding);
    session.role = Role::Completing(Box::new(Completing { encoding, key, store, upload, cfd }));
    complete(ctx, session);
}

/// Stores a value that is here. It waits if the item that it changes is on flash, and for memory.
pub fn complete(ctx: &mut Context, session: &mut Session) -> Flow {
    let Role::Completing(mut completing) = std::mem::replace(&mut session.role, Role::Serving) else {
        return Flow::Next;
    };
    let Completing { encoding, key, store, upload, cfd } = &mut *completing;
    let (len, encoding) = (upload.len(), encoding.encoding());
    let waits =
        if ctx.flash.is_some() { flash::before(ctx, session, CommandKind::Write, &encoding) } else { None };
    let flow = waits.unwrap_or_else(|| match upload.complete(&ctx.handle) {
        Ok(value) => write(ctx, session, key, store, Value::CompletedUpload(value), &encoding),
        Err(why) if flash::makes_room(ctx, why) => Flow::AwaitMemory,
        Err(why) => {
            refuse_no_memory(ctx, *cfd, key, store, len, &encoding, why);
            Flow::Next
        }
    });
    if waits.is_none() {
        super::end_execution(ctx, session, flow, &encoding);
    }
    if flow.is_retried() {
        session.role = Role::Completing(completing);
    }
    flow
}

fn write(
    ctx: &mut Context,
    session: &mut Session,
    key: &[u8],
    store: &Store<'_>,
    value: Value<'_>,
    encoding: &Encoding<'_>,
) -> Flow {
    let cfd = session.info.fd;
    let item_bytes_max = ctx.shared.settings.item_bytes_max;
    let expiry = expiry(ctx, store.exptime);
    let vivify = store.vivify.map(|exptime| super::expiry(ctx, exptime));
    let len = value.len();
    // What joining adds to memcached's count of the item, beside the values.
    let overhead = super::counted_bytes(ctx, key, 0, 0);
    let binary_key = matches!(encoding, Encoding::Meta(MetaEncoding { binary_key: true, .. }));
    let mut found = Err(Miss::Absent);
    let decide = |existing: &mut ExistingItem<'_>| {
        found = existing.info.map(|info| info.len);
        let write = Write {
            flags: store.flags,
            expiry,
            cas: store.new_cas,
            binary_key,
            ..Write::plain(NewValue::Is(value))
        };
        decide(store, existing.info, write, vivify, |info| overhead + info.len + len > item_bytes_max, value)
    };
    let done = match store.mode == StoreMode::Set && store.compare.is_none() {
        true => ctx.handle.overwrite(key, decide),
        false => ctx.handle.mutate(key, decide),
    };
    match &done {
        Err(OutOfMemory::OnFlash) => return flash::await_item(ctx, session, key),
        Err(why) if flash::makes_room(ctx, *why) => return Flow::AwaitMemory,
        _ => {}
    }
    ctx.counters().cmd_set.inc();
    ctx.shared.prefixes.count(key, Request::Set);
    notify_lookup(ctx, cfd, key, found);
    let (outcome, final_len, written) = match done {
        Ok((StoreResult { outcome, len: final_len }, written)) => (outcome, final_len, written),
        Err(why) => {
            refuse_no_memory(ctx, cfd, key, store, len, encoding, why);
            return Flow::Next;
        }
    };
    if store.compare.is_some() && store.mode == StoreMode::Set {
        let counters = ctx.counters();
        match outcome {
            Outcome::Stored => counters.cas_hits.inc(),
            Outcome::Exists => counters.cas_badval.inc(),
            Outcome::NotFound => counters.cas_misses.inc(),
            Outcome::NotStored | Outcome::TooLarge => {}
        }
    }
    let (reply, status) = match outcome {
        Outcome::Stored => {
            let stored = Item { cas: written.cas, len: final_len, flags: store.flags, ..Item::default() };
            (Reply::Stored(stored), "stored")
        }
        Outcome::NotStored => (Reply::NotStored, "not_stored"),
        Outcome::Exists => (Reply::Exists, "exists"),
        Outcome::NotFound => (Reply::NotFound, "not_found"),
        Outcome::TooLarge => {
            ctx.counters().store_too_large.inc();
            (Reply::OutOfMemory, "too_large")
        }
    };
    notify_watchers(ctx, cfd, key, store, status, final_len);
    encoding.reply(&reply, &mut ctx.out);
    Flow::Next
}

/// Decides how a store changes the existing item.
fn decide<'a>(
    store: &Store<'_>,
    existing: Result<ItemInfo, Miss>,
    write: Write<'a>,
    vivify: Option<Expiry>,
    joined_is_too_large: impl Fn(&ItemInfo) -> bool,
    value: Value<'a>,
) -> (Change<'a>, StoreResult) {
    let len = value.len();
    let refuse = |outcome| (Change::Keep, StoreResult { outcome, len });
    let joins = matches!(store.mode, StoreMode::Append | StoreMode::Prepend);
    let info = match existing {
        Ok(info) => info,
        Err(_) => {
            return match (store.mode, store.compare, vivify) {
                (StoreMode::Append | StoreMode::Prepend, _, Some(expiry)) => {
                    (Change::Write(Write { expiry, ..write }), StoreResult { outcome: Outcome::Stored, len })
                }
                (StoreMode::Append | StoreMode::Prepend | StoreMode::Replace, ..) => {
                    refuse(Outcome::NotStored)
                }
                (_, Some(_), _) => refuse(Outcome::NotFound),
                _ => (Change::Write(write), StoreResult { outcome: Outcome::Stored, len }),
            };
        }
    };
    if store.mode == StoreMode::Add {
        return refuse(Outcome::NotStored);
    }
    let mut write = write;
    // 0 is no item's CAS value, and older than none.
    if let Some(compare) = store.compare
        && (compare == 0 || compare != info.cas)
    {
        if !store.invalidate || compare == 0 || compare > info.cas || joins {
            return refuse(Outcome::Exists);
        }
        // An older writer than that of the stored value: better than nothing, but not to be trusted.
        write.stale = true;
        write.token_sent = info.token_sent;
        write.expiry = info.expiry;
    }
    if joins {
        if joined_is_too_large(&info) {
            return refuse(Outcome::TooLarge);
        }
        let value = if store.mode == StoreMode::Append {
            NewValue::Appended(value)
        } else {
            NewValue::Prepended(value)
        };
        let write = Write { flags: info.flags, expiry: info.expiry, binary_key: false, value, ..write };
        let len = info.len + len;
        return (Change::Write(write), StoreResult { outcome: Outcome::Stored, len });
    }
    (Change::Write(write), StoreResult { outcome: Outcome::Stored, len })
}

fn notify_watchers(ctx: &Context, cfd: i32, key: &[u8], store: &Store<'_>, status: &str, len: u64) {
    ctx.shared.notify_watchers(topic::MUTATIONS, || {
        let command = match (store.mode, store.compare) {
            (StoreMode::Set, Some(_)) => "cas",
            (StoreMode::Set, None) => "set",
            (StoreMode::Add, _) => "add",
            (StoreMode::Replace, _) => "replace",
            (StoreMode::Append, _) => "append",
            (StoreMode::Prepend, _) => "prepend",
        };
        let ttl = store.exptime.0.max(0);
        let key = encoded(key);
        format!("type=item_store key={key} status={status} cmd={command} ttl={ttl} clsid={ITEM_CLASS} cfd={cfd} size={len}")
    });
}
