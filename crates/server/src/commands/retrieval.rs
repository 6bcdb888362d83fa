//! Reading: get, gets, gat, gats, mg, touch, me, and their binary likes.

use fabcache_protocol::{Encoding, Get, Item, MetaEncoding, Reply, TextEncoding, Touch};
use fabcache_store::{
    Change, Detail, ExistingItem, Expiry, Get as Read, Handle, ItemInfo, Located, Miss, NewValue,
    NotInMemory, OutOfMemory, Payload, Probe, Value, Write,
};

use super::{Context, Flow, ITEM_CLASS, Session, expiry, expiry_at, flash, item, notify_lookup};
use crate::counters::ServerCounters;
use crate::output::OutputPart;
use crate::prefixes::Request;
use crate::worker::inbox::Answer;

/// `get` and its likes: one key.
pub fn get(ctx: &mut Context, session: &mut Session, get: &Get<'_>, encoding: &Encoding<'_>) -> Flow {
    if is_plain(get)
        && let Some(result) = answer_plain(ctx, get, encoding)
    {
        count_read(ctx, session.info.fd, get.key, result);
        return Flow::Next;
    }
    get_now(ctx, session, get, encoding)
}

/// Reads and answers in this thread.
fn get_now(ctx: &mut Context, session: &mut Session, get: &Get<'_>, encoding: &Encoding<'_>) -> Flow {
    // The clock may advance meanwhile; a touch reports the time to live that it set.
    let now = ctx.shared.store.now();
    let touch = get.touch.map(|exptime| expiry_at(ctx, exptime, now));
    // An item that this very request expires is returned before it expires.
    let ends_now = touch.is_some_and(|expiry| expiry != Expiry::NEVER && expiry.second() <= now);
    let start = ctx.out.len();
    // The item is changed in memory.
    let mut failed = ctx.handle.store_fetched(get.key).err();
    loop {
        let mut touched = Touched::default();
        if !is_plain(get) && failed.is_none() {
            touched = prepare(ctx, get, touch, now, ends_now, encoding);
            failed = touched.failed;
        }
        match failed {
            None => {}
            Some(OutOfMemory::OnFlash) => return flash::await_item(ctx, session, get.key),
            Some(why) if flash::makes_room(ctx, why) => return Flow::AwaitMemory,
            Some(_) => {
                count(ctx, session, get, encoding, Err(Miss::Absent), 0);
                encoding.reply(&Reply::OutOfMemory, &mut ctx.out);
                return Flow::Next;
            }
        }
        if let Some(created) = touched.created {
            count(ctx, session, get, encoding, Err(Miss::Absent), 0);
            answer_created(ctx, get, &created, now, encoding);
            return Flow::Next;
        }
        let mut found = read(ctx, get, now, encoding, &mut touched);
        if matches!(found, Read::OnFlash) && ctx.handle.is_absent_on_flash(get.key) {
            // It may have come back to memory in between.
            found = match read(ctx, get, now, encoding, &mut touched) {
                Read::OnFlash => Read::Miss(Miss::Absent),
                found => found,
            };
        }
        if matches!(found, Read::OnFlash) {
            return match is_plain(get) {
                true => flash::defer(ctx, session, get, encoding),
                false => flash::await_item(ctx, session, get.key),
            };
        }
        if ends_now
            && let Read::Hit(info, payload) = &found
            && !remove_read(ctx, get, info, payload)
        {
            // The item was replaced meanwhile: answer with the item that this request ends.
            ctx.out.truncate(start);
            continue;
        }
        finish(ctx, session, get, encoding, found);
        return Flow::Next;
    }
}

/// Answers a read that changes nothing. Returns the length of the value, or the kind of the miss; `None` if the general
/// path must answer.
#[inline]
fn answer_plain(ctx: &mut Context, get: &Get<'_>, encoding: &Encoding<'_>) -> Option<Result<u64, Miss>> {
    match encoding {
        Encoding::Text(text) => {
            let probe = ctx.handle.probe(get.key);
            answer_text(ctx, text, &probe)
        }
        // The value is sent, the read counts as an access, and no flag asks when the one before was.
        Encoding::Meta(meta)
            if get.value && get.compare.is_none() && !get.no_bump && !meta.flags.contains(&b'l') =>
        {
            let probe = ctx.handle.probe(get.key);
            answer_meta_or_binary(ctx, get.key, encoding, &probe)
        }
        Encoding::Binary(_) if get.value => {
            let probe = ctx.handle.probe(get.key);
            answer_meta_or_binary(ctx, get.key, encoding, &probe)
        }
        _ => None,
    }
}

/// Answers a text `get` or `gets` of a short value. Returns as [`answer_plain`] does.
#[inline(always)]
pub(super) fn answer_text(
    ctx: &mut Context,
    text: &TextEncoding<'_>,
    probe: &Probe,
) -> Option<Result<u64, Miss>> {
    match ctx.handle.locate(text.key, probe) {
        Located::Item(found) => {
            let start = ctx.out.len();
            let len = u64::from(found.value_len());
            text.value_head(found.flags(), len, found.cas(), &mut ctx.out);
            if !ctx.handle.append_value(&found, &mut ctx.out) {
                ctx.out.truncate(start);
                return None;
            }
            text.value_tail(&mut ctx.out);
            Some(Ok(len))
        }
        Located::Miss(miss) => {
            text.miss(&mut ctx.out);
            Some(Err(miss))
        }
        Located::OnFlash | Located::Unsettled => None,
    }
}

/// Answers an `mg` of a short value, whose flags need what its slot and header have, or a packet that asks for one.
/// Returns as [`answer_plain`] does.
pub(super) fn answer_meta_or_binary(
    ctx: &mut Context,
    key: &[u8],
    encoding: &Encoding<'_>,
    probe: &Probe,
) -> Option<Result<u64, Miss>> {
    match ctx.handle.locate(key, probe) {
        Located::Item(found) => {
            let info = ctx.handle.info(&found);
            // The first meta reader of a stale item wins the right to recache it, and the others learn of it.
            if (info.stale || info.token_sent) && matches!(encoding, Encoding::Meta(_)) {
                return None;
            }
            let start = ctx.out.len();
            encoding.value_head(&item(&info), &mut ctx.out);
            if !ctx.handle.append_value(&found, &mut ctx.out) {
                ctx.out.truncate(start);
                return None;
            }
            encoding.value_tail(&mut ctx.out);
            Some(Ok(info.len))
        }
        Located::Miss(miss) => {
            encoding.reply(&Reply::Miss, &mut ctx.out);
            Some(Err(miss))
        }
        Located::OnFlash | Located::Unsettled => None,
    }
}

/// Completes the answer for a read item.
#[inline]
fn finish(ctx: &mut Context, session: &mut Session, get: &Get<'_>, encoding: &Encoding<'_>, read: Read) {
    match read {
        Read::Hit(info, payload) => {
            if sends_value(get, &info) {
                if let Payload::Pinned(value) = payload {
                    if value.is_excess() {
                        ctx.shared.want_pins();
                    }
                    session.queue.push_bytes(&mut ctx.out);
                    session.queue.push_value(value);
                }
                encoding.value_tail(&mut ctx.out);
            }
            count(ctx, session, get, encoding, Ok(()), info.len);
        }
        Read::Miss(miss) => {
            count(ctx, session, get, encoding, Err(miss), 0);
            encoding.reply(&Reply::Miss, &mut ctx.out);
        }
        Read::OnFlash => unreachable!("it is read before"),
    }
}

/// Reads a key for a pending answer; `None` if a slot on flash may be its.
pub(super) fn answer_late(ctx: &mut Context, get: &Get<'_>, encoding: &Encoding<'_>) -> Option<Answer> {
    let others = std::mem::take(&mut ctx.out);
    let now = ctx.shared.store.now();
    let read = read(ctx, get, now, encoding, &mut Touched::default());
    let head = std::mem::replace(&mut ctx.out, others);
    let (info, payload) = match read {
        Read::Hit(info, payload) => (info, payload),
        Read::Miss(_) => return Some(flash::miss()),
        Read::OnFlash => return None,
    };
    let (mut value, mut tail) = (OutputPart::Bytes(Vec::new()), Vec::new());
    if sends_value(get, &info) {
        if let Payload::Pinned(pinned) = payload {
            if pinned.is_excess() {
                ctx.shared.want_pins();
            }
            value = OutputPart::Value(pinned);
        }
        encoding.value_tail(&mut tail);
    }
    Some(Answer::Encoded(info.len, Box::new([OutputPart::Bytes(head), value, OutputPart::Bytes(tail)])))
}

/// Removes the item that was read; false if it was removed or replaced.
fn remove_read(ctx: &Context, get: &Get<'_>, seen: &ItemInfo, payload: &Payload) -> bool {
    let done = ctx.handle.mutate(get.key, |existing| {
        let same = existing.info.is_ok_and(|info| looks_same(&info, seen))
            // Without a CAS only the value distinguishes two items.
            && (seen.cas != 0 || !sends_value(get, seen) || has_value(existing, payload, &ctx.out));
        (if same { Change::Remove } else { Change::Keep }, same)
    });
    // One that went to flash meanwhile is read again.
    done.map_or_else(|why| why != OutOfMemory::OnFlash, |(same, _)| same)
}

/// Returns whether an answer about one item holds for the other.
fn looks_same(info: &ItemInfo, seen: &ItemInfo) -> bool {
    (info.cas, info.flags, info.len, info.expiry) == (seen.cas, seen.flags, seen.len, seen.expiry)
        && (info.binary_key, info.stale) == (seen.binary_key, seen.stale)
}

/// Returns whether the value is the one that was read, copied to the end of `out` or pinned. A chunked value is assumed
/// to be.
fn has_value(existing: &mut ExistingItem<'_>, payload: &Payload, out: &[u8]) -> bool {
    let Some(mut value) = existing.value(u32::MAX) else { return true };
    match payload {
        Payload::Copied => out.ends_with(value),
        Payload::Pinned(pinned) => pinned.slices().all(|part| {
            let rest = value.strip_prefix(part);
            value = rest.unwrap_or_default();
            rest.is_some()
        }),
    }
}

/// Returns whether the answer has the value: a client that names the item's CAS value has it.
#[inline]
fn sends_value(get: &Get<'_>, info: &ItemInfo) -> bool {
    get.value && get.compare != Some(info.cas)
}

/// Returns whether a read changes nothing.
pub(super) fn is_plain(get: &Get<'_>) -> bool {
    get.touch.is_none() && get.vivify.is_none() && get.recache.is_none()
}

/// Changes made to the item before it is returned.
#[derive(Default)]
struct Touched {
    /// Whether this client won.
    won: bool,
    /// The previous item.
    before: Option<ItemInfo>,
    /// Whether the item was absent and has been created.
    created: Option<ItemInfo>,
    /// Why nothing was done.
    failed: Option<OutOfMemory>,
}

/// Reads the item and writes its answer, except for a long value and the tail.
fn read(ctx: &mut Context, get: &Get<'_>, now: u32, encoding: &Encoding<'_>, touched: &mut Touched) -> Read {
    let detail = match encoding {
        Encoding::Meta(MetaEncoding { flags, .. }) if flags.contains(&b'l') => Detail::Full,
        _ => Detail::Basic,
    };
    let start = ctx.out.len();
    loop {
        let known = get.value
            && get.compare.is_some()
            && ctx.handle.describe(get.key, Detail::Basic, false).is_ok_and(|info| !sends_value(get, &info));
        let read = if get.value && !known {
            ctx.handle.get(get.key, detail, !get.no_bump, &mut ctx.out, |info, out| {
                encoding.value_head(&shown(get, info, now, touched), out);
            })
        } else {
            match ctx.handle.describe(get.key, detail, !get.no_bump) {
                Ok(info) => {
                    encoding.reply(&Reply::Found(shown(get, &info, now, touched)), &mut ctx.out);
                    Read::Hit(info, Payload::Copied)
                }
                Err(NotInMemory::Miss(miss)) => Read::Miss(miss),
                Err(NotInMemory::OnFlash) => Read::OnFlash,
            }
        };
        if let Read::Hit(info, _) = &read
            && get.value
            && sends_value(get, info) == known
        {
            // Replaced meanwhile: the value is missing, or needless.
            ctx.out.truncate(start);
            continue;
        }
        // The first meta reader of a stale item wins; this must be settled before the answer.
        if let (Read::Hit(info, _), Encoding::Meta(_)) = (&read, encoding)
            && info.stale
            && !info.token_sent
            && !touched.won
            && take_token(&ctx.handle, get.key) == Token::Won
        {
            ctx.out.truncate(start);
            touched.won = true;
            touched.before.get_or_insert(*info);
            continue;
        }
        return read;
    }
}

/// Returns the metadata for the answer; `h`, `l` and `t` describe the item before this access.
fn shown(get: &Get<'_>, info: &ItemInfo, now: u32, touched: &Touched) -> Item {
    let mut shown = item(info);
    if let Some(before) = &touched.before {
        shown.fetched = before.fetched;
        shown.idle = before.idle;
        shown.ttl = if get.ttl_before_touch { before.ttl } else { info.expiry.ttl(now) };
    }
    shown.won = touched.won;
    shown.token_sent = info.token_sent && !touched.won;
    shown
}

/// Who has the right to recache a stale item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// This client.
    Won,
    /// Another client, which may have done so.
    Sent,
    /// Nobody, as there is no memory to note it.
    None,
}

/// Gives the token of a stale item to this client, unless another client has it.
pub(super) fn take_token(handle: &Handle, key: &[u8]) -> Token {
    let taken = handle.mutate(key, |existing| match existing.info {
        Ok(info) if info.stale && !info.token_sent => {
            (Change::Mark { token_sent: true, fetched: false }, Token::Won)
        }
        _ => (Change::Keep, Token::Sent),
    });
    match taken {
        Ok((token, _)) => token,
        // Another one changed it, and it is on flash again.
        Err(OutOfMemory::OnFlash) => Token::Sent,
        Err(_) => Token::None,
    }
}

/// Sets the expiry time, unless that is left for `later`; creates a missing item; takes the token of one about to
/// expire: as the request asks.
fn prepare(
    ctx: &Context,
    get: &Get<'_>,
    touch: Option<Expiry>,
    now: u32,
    later: bool,
    encoding: &Encoding<'_>,
) -> Touched {
    let vivify = get.vivify.map(|exptime| expiry_at(ctx, exptime, now));
    let recache = get.recache.filter(|exptime| exptime.0 > 0).map(|exptime| expiry_at(ctx, exptime, now));
    let may_win = matches!(encoding, Encoding::Meta(_));
    let wins_by_recache = |info: &ItemInfo, touched: Expiry| {
        let due = if get.recache_before_touch { info.expiry } else { touched };
        let wanted = recache.and_then(|recache| recache.ttl(now));
        due.ttl(now).zip(wanted).is_some_and(|(left, wanted)| left < wanted)
    };
    let done = ctx.handle.mutate(get.key, |existing| match existing.info {
        Ok(info) => {
            let expiry = touch.unwrap_or(info.expiry);
            let won = may_win && !info.token_sent && (info.stale || wins_by_recache(&info, expiry));
            let touched = Touched { won, before: Some(info), ..Touched::default() };
            if expiry == info.expiry || later {
                let mark = Change::Mark { token_sent: won, fetched: false };
                return (if won { mark } else { Change::Keep }, touched);
            }
            let write = Write { expiry, token_sent: info.token_sent || won, ..Write::unchanged(&info) };
            (Change::Write(write), touched)
        }
        Err(_) => match vivify {
            Some(expiry) => {
                let info = ItemInfo { expiry, ttl: expiry.ttl(now), ..ItemInfo::EMPTY };
                // A client that is told that it won has, in effect, read the item.
                let write = Write {
                    cas: get.new_cas,
                    token_sent: true,
                    fetched: !get.no_bump,
                    same_item: false,
                    value: NewValue::Is(Value::Bytes(b"")),
                    ..Write::unchanged(&info)
                };
                (Change::Write(write), Touched { created: Some(info), ..Touched::default() })
            }
            None => (Change::Keep, Touched::default()),
        },
    });
    match done {
        Ok((mut touched, written)) => {
            if let Some(created) = &mut touched.created {
                created.cas = written.cas;
            }
            touched
        }
        Err(why) => Touched { failed: Some(why), ..Touched::default() },
    }
}

fn answer_created(ctx: &mut Context, get: &Get<'_>, info: &ItemInfo, now: u32, encoding: &Encoding<'_>) {
    let shown = get.created_ttl.map_or(Expiry::NEVER, |exptime| expiry_at(ctx, exptime, now));
    let created = Item { won: true, ttl: shown.ttl(now), ..item(info) };
    if sends_value(get, info) {
        encoding.value_head(&created, &mut ctx.out);
        encoding.value_tail(&mut ctx.out);
    } else {
        encoding.reply(&Reply::Found(created), &mut ctx.out);
    }
}

fn count(
    ctx: &Context,
    session: &Session,
    get: &Get<'_>,
    encoding: &Encoding<'_>,
    result: Result<(), Miss>,
    len: u64,
) {
    let counters = ctx.counters();
    // As memcached counts: a touch is not a get as well, except for a meta client that finds nothing to touch;
    // creating an item counts as a hit.
    let is_meta = matches!(encoding, Encoding::Meta(_));
    let created = result.is_err() && get.vivify.is_some();
    match result {
        Ok(()) if get.touch.is_some() => {
            counters.cmd_touch.inc();
            counters.touch_hits.inc();
        }
        Err(_) if get.touch.is_some() && !is_meta => {
            counters.cmd_touch.inc();
            counters.touch_misses.inc();
        }
        Err(miss) if !created => count_miss(counters, miss),
        _ => {
            counters.cmd_get.inc();
            counters.get_hits.inc();
        }
    }
    report(ctx, session.info.fd, get.key, result.map(|()| len));
}

/// Counts and reports a plain read of `key` by the client with this descriptor: the length of the value, or the kind of
/// the miss.
pub fn count_read(ctx: &Context, cfd: i32, key: &[u8], found: Result<u64, Miss>) {
    let counters = ctx.counters();
    match found {
        Ok(_) => {
            counters.cmd_get.inc();
            counters.get_hits.inc();
        }
        Err(miss) => count_miss(counters, miss),
    }
    report(ctx, cfd, key, found);
}

fn count_miss(counters: &ServerCounters, miss: Miss) {
    counters.cmd_get.inc();
    counters.get_misses.inc();
    count_reason(counters, miss);
}

fn report(ctx: &Context, cfd: i32, key: &[u8], found: Result<u64, Miss>) {
    ctx.shared.prefixes.count(key, Request::Get(found.is_ok()));
    notify_lookup(ctx, cfd, key, found);
}

/// Counts a missed read whose item had expired or was flushed.
pub(super) fn count_reason(counters: &ServerCounters, miss: Miss) {
    match miss {
        Miss::Absent => {}
        Miss::Expired => counters.get_expired.inc(),
        Miss::Flushed => counters.get_flushed.inc(),
    }
}

/// `touch`, binary Touch.
pub fn touch(ctx: &mut Context, session: &mut Session, touch: &Touch<'_>, encoding: &Encoding<'_>) -> Flow {
    let expiry = expiry(ctx, touch.exptime);
    let mut found = Err(Miss::Absent);
    let done = ctx.handle.mutate(touch.key, |existing| {
        found = existing.info.map(|info| info.len);
        match existing.info {
            Ok(info) if info.expiry == expiry => {
                (Change::Mark { token_sent: false, fetched: true }, Some(info))
            }
            Ok(info) => {
                (Change::Write(Write { expiry, fetched: true, ..Write::unchanged(&info) }), Some(info))
            }
            Err(_) => (Change::Keep, None),
        }
    });
    match &done {
        Err(OutOfMemory::OnFlash) => return flash::await_item(ctx, session, touch.key),
        Err(why) if flash::makes_room(ctx, *why) => return Flow::AwaitMemory,
        _ => {}
    }
    ctx.counters().cmd_touch.inc();
    notify_lookup(ctx, session.info.fd, touch.key, found);
    match done {
        Ok((Some(info), _)) => {
            ctx.counters().touch_hits.inc();
            encoding.reply(&Reply::Found(item(&info)), &mut ctx.out);
        }
        Ok((None, _)) => {
            ctx.counters().touch_misses.inc();
            encoding.reply(&Reply::NotFound, &mut ctx.out);
        }
        Err(_) => encoding.reply(&Reply::OutOfMemory, &mut ctx.out),
    }
    Flow::Next
}

/// `me`: everything there is to say, without counting as an access.
pub fn inspect(ctx: &mut Context, session: &mut Session, key: &[u8], encoding: &Encoding<'_>) -> Flow {
    let found = match ctx
        .handle
        .fetched_info(key)
        .map_or_else(|| ctx.handle.describe(key, Detail::Full, false), Ok)
    {
        Ok(info) => Ok(info),
        Err(NotInMemory::Miss(miss)) => Err(miss),
        Err(NotInMemory::OnFlash) if ctx.handle.is_absent_on_flash(key) => Err(Miss::Absent),
        Err(NotInMemory::OnFlash) => return flash::await_item(ctx, session, key),
    };
    notify_lookup(ctx, session.info.fd, key, found.map(|info| info.len));
    let reply = match found {
        Ok(info) => Reply::Inspected { item: item(&info), size: info.bytes, class: ITEM_CLASS },
        Err(_) => Reply::Miss,
    };
    encoding.reply(&reply, &mut ctx.out);
    Flow::Next
}
