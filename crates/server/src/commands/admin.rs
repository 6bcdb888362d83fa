//! Administrative commands: flush, limits, switches, stopping, watching.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fabcache_protocol::command::Words;
use fabcache_protocol::number::{parse_i32, parse_u32, parse_u64};
use fabcache_protocol::{Command, Encoding, Exptime, Refusal, Reply};
use fabcache_store::dump::Cursor;
use fabcache_store::info::RELATIVE_SECONDS_MAX;
use fabcache_store::{Expiry, Handle};
use fabcache_transport::Kind;

use super::dump::{Dump, KeyList, KeysFormat, List};
use super::{Context, Flow, ITEM_CLASS, Role, Session, expiry, refused};
use crate::bounds::{LONG_TASK_TIME_MAX, TICKET_TIME_MAX};
use crate::housekeeping::{Task, Work};
use crate::shared::ProcessRequest;
use crate::tickets::PendingRequest;
use crate::watch::topic;
use crate::worker::inbox::Ticket;

/// Megabytes that `cache_memlimit` takes.
const MEMLIMIT_MEGABYTES_MIN: u64 = 8;
const MEMLIMIT_MEGABYTES_MAX: u64 = 1_000_000_000;
/// memcached's clock starts this much earlier than ours.
const MEMCACHED_CLOCK_LEAD_SECONDS: i64 = 60;
/// Slab classes that memcached has names for.
const CLASSES: u32 = 63;
/// Words of a `slabs` command that are parsed.
const SLABS_WORDS_MAX: usize = 5;

/// Carries an order out.
pub fn order(
    ctx: &mut Context,
    session: &mut Session,
    command: Command<'_>,
    encoding: &Encoding<'_>,
) -> Flow {
    let line: &[u8] = match command {
        Command::Flush(delay) => {
            if !ctx.shared.settings.flush_enabled {
                ctx.counters().cmd_flush.inc();
                return answer(ctx, encoding, &refused(Refusal::Client("flush_all not allowed")));
            }
            return flush(ctx, session, flush_time(ctx, delay), encoding);
        }
        Command::Verbosity(level) => {
            // memcached's highest.
            ctx.shared.switches.verbosity.store(level.min(3), Ordering::Relaxed);
            return answer(ctx, encoding, &Reply::Ok);
        }
        Command::CacheMemlimit(megabytes) => return memory_limit(ctx, session, megabytes, encoding),
        Command::Shutdown { mode } => return shutdown(ctx, mode, encoding),
        Command::RefreshCerts if ctx.shared.tls.is_none() => b"Error TLS not enabled",
        Command::RefreshCerts => return refresh_certificates(ctx, session, encoding),
        Command::Lru(words) => lru(words),
        Command::Slabs(words) => slabs(ctx, words),
        Command::Extstore(words) => extstore(ctx, words),
        _ => unreachable!("every other command is dispatched before"),
    };
    answer(ctx, encoding, &Reply::Line(line))
}

fn answer(ctx: &mut Context, encoding: &Encoding<'_>, reply: &Reply<'_>) -> Flow {
    encoding.reply(reply, &mut ctx.out);
    Flow::Next
}

/// Passes work that may take long to the housekeeper. The connection's further requests wait for it; `late` is the
/// error if it takes too long.
fn delegate(
    ctx: &mut Context,
    session: &mut Session,
    encoding: &Encoding<'_>,
    late: &'static str,
    work: Work,
) -> Flow {
    let time_max = if matches!(work, Work::Short(_)) { TICKET_TIME_MAX } else { LONG_TASK_TIME_MAX };
    let Some(ticket) = issue(ctx, session, encoding, late, time_max) else { return Flow::AwaitTicket };
    ctx.shared.housekeeping.execute(Task::new(ticket, work));
    Flow::Next
}

/// Issues a ticket that the connection's further requests wait for.
fn issue(
    ctx: &mut Context,
    session: &mut Session,
    encoding: &Encoding<'_>,
    late: &'static str,
    time_max: Duration,
) -> Option<Ticket> {
    let request = PendingRequest::Write { late, time_max };
    let ticket = ctx.tickets.issue(session.place, encoding, request)?;
    session.queue.push_bytes(&mut ctx.out);
    session.queue.push_barrier(ticket.id());
    Some(ticket)
}

/// Flushes, which may wait for readers' leases.
fn flush(ctx: &mut Context, session: &mut Session, expiry: Expiry, encoding: &Encoding<'_>) -> Flow {
    let Some(ticket) = issue_flush(ctx, session, encoding, "flush_all takes too long") else {
        return Flow::AwaitTicket;
    };
    ctx.shared.housekeeping.execute(flush_task(ticket, expiry, || Reply::Ok));
    Flow::Next
}

/// Issues the ticket of a flush. The connection's further requests wait for it; `late` is the error if it takes too long.
pub fn issue_flush(
    ctx: &mut Context,
    session: &mut Session,
    encoding: &Encoding<'_>,
    late: &'static str,
) -> Option<Ticket> {
    let ticket = issue(ctx, session, encoding, late, TICKET_TIME_MAX)?;
    ctx.counters().cmd_flush.inc();
    Some(ticket)
}

/// Returns the housekeeper's part of a flush.
pub fn flush_task(
    ticket: Ticket,
    expiry: Expiry,
    reply: impl FnOnce() -> Reply<'static> + Send + 'static,
) -> Task {
    let work = move |handle: &Handle| {
        handle.flush(expiry);
        reply()
    };
    Task::new(ticket, Work::Short(Box::new(work)))
}

/// Reads the certificates again, from files that may be slow to read.
fn refresh_certificates(ctx: &mut Context, session: &mut Session, encoding: &Encoding<'_>) -> Flow {
    // The server's state holds the task.
    let shared = Arc::downgrade(&ctx.shared);
    let work = move |_: &Handle| match shared.upgrade().map(|shared| shared.reload_certificates()) {
        Some(Err(error)) => {
            tracing::warn!("refresh_certs: {error:#}");
            refused(Refusal::Server("cannot reload the certificates; see the log"))
        }
        _ => Reply::Ok,
    };
    delegate(ctx, session, encoding, "refresh_certs takes too long", Work::Short(Box::new(work)))
}

/// Returns when everything is invalidated. Unix times before the start of the clock are never, as in memcached.
pub fn flush_time(ctx: &Context, delay: Exptime) -> Expiry {
    let clock_start = ctx.shared.store.clock_origin() as i64 - MEMCACHED_CLOCK_LEAD_SECONDS;
    match delay.0 {
        ..=0 => Expiry::AT_ONCE,
        second if second > RELATIVE_SECONDS_MAX && second <= clock_start => Expiry::NEVER,
        _ => expiry(ctx, delay),
    }
}

/// Sets the memory limit. Lowering it evicts items, and returns memory to the system.
fn memory_limit(ctx: &mut Context, session: &mut Session, megabytes: u64, encoding: &Encoding<'_>) -> Flow {
    if megabytes < MEMLIMIT_MEGABYTES_MIN {
        let line = b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m";
        return answer(ctx, encoding, &Reply::Line(line));
    }
    if megabytes > MEMLIMIT_MEGABYTES_MAX {
        let line = b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes";
        return answer(ctx, encoding, &Reply::Line(line));
    }
    let work = move |handle: &Handle, pause: &mut dyn FnMut()| match handle
        .set_memory_limit_with(megabytes << 20, pause)
    {
        Ok(()) => Reply::Ok,
        Err(error) => {
            tracing::warn!("cache_memlimit {megabytes}: {error}");
            Reply::Line(b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust")
        }
    };
    delegate(ctx, session, encoding, "cache_memlimit takes too long", Work::Long(Box::new(work)))
}

fn shutdown(ctx: &mut Context, mode: Option<&[u8]>, encoding: &Encoding<'_>) -> Flow {
    if !ctx.shared.settings.shutdown_enabled {
        return answer(ctx, encoding, &Reply::Line(b"SERVER_ERROR: shutdown not enabled"));
    }
    let order = match mode {
        None => ProcessRequest::Stop,
        Some(b"graceful") => ProcessRequest::StopGracefully,
        Some(_) => return answer(ctx, encoding, &refused(Refusal::Client("invalid shutdown mode"))),
    };
    ctx.shared.order(order);
    Flow::Close
}

/// `lru tune|mode|temp_ttl`: there are no LRU lists; what makes sense is accepted and changes nothing.
fn lru(mut words: Words<'_>) -> &'static [u8] {
    let number = |word: Option<&[u8]>| word.and_then(parse_u32);
    let fraction = |word: Option<&[u8]>| {
        word.and_then(|word| std::str::from_utf8(word).ok()?.parse::<f64>().ok()).filter(|f| f.is_finite())
    };
    match words.next() {
        Some(b"tune") => {
            let (hot, warm) = (number(words.next()), number(words.next()));
            let (hot_age, warm_age) = (fraction(words.next()), fraction(words.next()));
            let (Some(hot), Some(warm), Some(hot_age), Some(warm_age)) = (hot, warm, hot_age, warm_age)
            else {
                return b"ERROR";
            };
            if hot.saturating_add(warm) > 80 {
                b"ERROR hot and warm pcts must not exceed 80"
            } else if hot_age <= 0.0 || warm_age <= 0.0 {
                b"ERROR hot/warm age factors must be greater than 0"
            } else {
                b"OK"
            }
        }
        Some(b"mode") => match words.next() {
            Some(b"flat" | b"segmented") => b"OK",
            _ => b"ERROR",
        },
        Some(b"temp_ttl") => match words.next().and_then(parse_i32) {
            Some(_) => b"OK",
            None => b"ERROR",
        },
        _ => b"ERROR",
    }
}

/// `slabs reassign|automove`: there is one class, and nothing to move.
fn slabs(ctx: &Context, words: Words<'_>) -> &'static [u8] {
    let words: Vec<&[u8]> = words.take(SLABS_WORDS_MAX).collect();
    let fraction =
        |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<f64>().ok().filter(|f| f.is_finite());
    match *words.as_slice() {
        [b"reassign", source, destination] => reassign(ctx, source, destination),
        [b"automove", b"ratio" | b"freeratio", ratio] if fraction(ratio).is_some() => b"OK",
        [b"automove", b"ratio" | b"freeratio", ..] => b"ERROR",
        [b"automove", b"window", seconds] => match parse_u32(seconds) {
            Some(3..=1800) => b"OK",
            Some(_) => b"CLIENT_ERROR automove window too low or too high",
            None => b"CLIENT_ERROR bad command line format",
        },
        [b"automove", level, ..] => match parse_u32(level) {
            Some(level @ 0..=2) => {
                ctx.shared.switches.automove.store(level, Ordering::Relaxed);
                b"OK"
            }
            Some(_) => b"ERROR",
            None => b"CLIENT_ERROR bad command line format",
        },
        _ => b"ERROR",
    }
}

fn reassign(ctx: &Context, source: &[u8], destination: &[u8]) -> &'static [u8] {
    let (Some(source), Some(destination)) = (parse_i32(source), parse_i32(destination)) else {
        return b"CLIENT_ERROR bad command line format";
    };
    let class = ITEM_CLASS as i32;
    if ctx.shared.settings.extended.no_slab_reassign {
        b"CLIENT_ERROR slab reassignment disabled"
    } else if source == destination {
        b"SAME src and dst class are identical"
    } else if source == class && destination == 0 {
        b"NOSPARE source class has no spare pages"
    } else {
        b"BADCLASS invalid src or dst class id"
    }
}

/// `extstore NAME VALUE`: `item_size` takes effect; the others tune what memcached's flash tier does, and change nothing.
fn extstore(ctx: &Context, words: Words<'_>) -> &'static [u8] {
    let words: Vec<&[u8]> = words.take(SLABS_WORDS_MAX).collect();
    match *words.as_slice() {
        [b"free_memchunks", class, count]
            if parse_u32(class).is_some_and(|class| class <= CLASSES) && parse_u32(count).is_some() =>
        {
            b"OK"
        }
        [b"item_size", bytes] => match parse_u32(bytes) {
            Some(bytes) => {
                ctx.shared.store.set_flash_item_bytes_min(bytes);
                b"OK"
            }
            None => b"ERROR",
        },
        [
            b"item_age" | b"low_ttl" | b"recache_rate" | b"compact_under" | b"drop_under" | b"max_sleep"
            | b"drop_unread",
            value,
        ] if parse_u32(value).is_some() => b"OK",
        [b"max_frag", value] if std::str::from_utf8(value).is_ok_and(|v| v.parse::<f64>().is_ok()) => b"OK",
        _ => b"ERROR",
    }
}

/// `lru_crawler …`: switches, a scan of all items, and the two dumps.
pub fn lru_crawler(ctx: &mut Context, session: &mut Session, mut words: Words<'_>, encoding: &Encoding<'_>) {
    let switches = &ctx.shared.switches;
    let verb = words.next().unwrap_or_default();
    // memcached counts them, `noreply` included.
    let operands = words.clone().count();
    let reply = match (verb, operands) {
        (b"metadump" | b"mgdump", 1) => {
            let format = if verb == b"metadump" { KeysFormat::Metadump } else { KeysFormat::Mgdump };
            return dump(ctx, session, format, words, encoding);
        }
        (b"crawl", 1) => crawl(ctx, words),
        (b"tocrawl" | b"sleep", 1) => match words.next().and_then(parse_u32) {
            Some(us) if verb == b"sleep" && us > 1_000_000 => {
                refused(Refusal::Client("sleep must be one second or less"))
            }
            Some(number) => {
                let switch =
                    if verb == b"sleep" { &switches.crawler_sleep } else { &switches.crawler_tocrawl };
                switch.store(number, Ordering::Relaxed);
                Reply::Ok
            }
            None => refused(Refusal::Client("bad command line format")),
        },
        (b"enable" | b"disable", 0) => {
            switches.crawler.store(verb == b"enable", Ordering::Relaxed);
            Reply::Ok
        }
        _ => refused(Refusal::UnknownCommand),
    };
    encoding.reply(&reply, &mut ctx.out);
}

/// Which classes a crawl or dump means: true if the one that has all items is among them.
fn classes(words: Words<'_>) -> Result<bool, Reply<'static>> {
    let mut words = words;
    match words.next() {
        None => Err(refused(Refusal::UnknownCommand)),
        Some(b"all" | b"hash") => Ok(true),
        Some(list) => {
            let mut found = false;
            for word in list.split(|byte| *byte == b',') {
                match parse_u64(word) {
                    Some(class) if (1..=u64::from(CLASSES)).contains(&class) => {
                        found |= class == u64::from(ITEM_CLASS)
                    }
                    _ => return Err(Reply::Line(b"BADCLASS invalid class id")),
                }
            }
            Ok(found)
        }
    }
}

fn crawl(ctx: &Context, words: Words<'_>) -> Reply<'static> {
    if !ctx.shared.switches.crawler.load(Ordering::Relaxed) {
        return refused(Refusal::Client("lru crawler disabled"));
    }
    match classes(words) {
        Err(reply) => reply,
        Ok(false) => Reply::Line(b"NOTSTARTED no items to crawl"),
        Ok(true) if ctx.shared.housekeeping.start_crawl() => Reply::Ok,
        Ok(true) => Reply::Line(b"BUSY currently processing crawler request"),
    }
}

fn dump(
    ctx: &mut Context,
    session: &mut Session,
    format: KeysFormat,
    words: Words<'_>,
    encoding: &Encoding<'_>,
) {
    let reply = if !ctx.shared.settings.dump_enabled {
        let text =
            if format == KeysFormat::Metadump { "metadump not allowed" } else { "key dump not allowed" };
        refused(Refusal::Error(text))
    } else if session.info.kind == Kind::Udp {
        refused(Refusal::Client("a dump needs a connection"))
    } else if !session.queue.is_empty() || !ctx.out.is_empty() {
        let verb = if format == KeysFormat::Metadump { "metadump" } else { "mgdump" };
        let line = format!("ERROR cannot pipeline other commands before {verb}");
        encoding.reply(&Reply::Line(line.as_bytes()), &mut ctx.out);
        return;
    } else if !ctx.shared.switches.crawler.load(Ordering::Relaxed) {
        refused(Refusal::Client("lru crawler disabled"))
    } else {
        match classes(words) {
            Err(reply) => reply,
            Ok(all) => {
                ctx.out.extend_from_slice(b"OK\r\n");
                let start = if all { Cursor::START } else { Cursor::END };
                let list = List::Keys(KeyList::new(format, start, session));
                session.role = Role::Dumping(Box::new(Dump::new(list, encoding)));
                return;
            }
        }
    };
    encoding.reply(&reply, &mut ctx.out);
}

/// `watch …`: sends log lines to the connection from now on.
pub fn watch(ctx: &mut Context, session: &mut Session, words: Words<'_>, encoding: &Encoding<'_>) {
    let mut topics = 0;
    let mut any = false;
    let mut wrong = false;
    for word in words {
        any = true;
        match topic::of(word) {
            Some(bits) => topics |= bits,
            None => wrong = true,
        }
    }
    let reply = if !ctx.shared.settings.watch_enabled {
        refused(Refusal::Client("watch commands not allowed"))
    } else if session.info.kind == Kind::Udp {
        refused(Refusal::Client("a watcher needs a connection"))
    } else if !session.queue.is_empty() || !ctx.out.is_empty() {
        Reply::Line(b"ERROR cannot pipeline other commands before watch")
    } else if wrong {
        refused(Refusal::UnknownCommand)
    } else {
        let topics = if any { topics } else { topic::FETCHERS };
        match ctx.shared.watchers.add(topics, ctx.worker) {
            Some(id) => {
                session.role = Role::Watching(id);
                Reply::Ok
            }
            None => Reply::Line(b"WATCHER_TOO_MANY log watcher limit reached"),
        }
    };
    encoding.reply(&reply, &mut ctx.out);
}
