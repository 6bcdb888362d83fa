//! Requests in an OpenSHMEM job: those for keys of other PEs are forwarded to them.
//!
//! Clients that come by Unix socket or shared memory get the items of all PEs. Clients of other transports, and other PEs, get
//! this PE's shard only: a key of another PE is refused, for a client that maps keys otherwise would store what nobody finds.

use std::sync::atomic::Ordering;

use fabcache_protocol::{
    Command, Encoding, Exptime, Get, Refusal, Reply, Request, SavedEncoding, Store, StoreMode, TextCommand,
    TextEncoding, Value, binary,
};
use fabcache_transport::Kind;

use super::{Context, Flow, Role, Session, admin, execute, is_too_large, refused, retrieval, saved};
use crate::bounds::{FORWARDED_BYTES_MAX, FORWARDED_TO_PE_MAX};
use crate::openshmem::{Completion, DirectGet, Gathering, InFlight, MappedRead, Operation, Pes};
use crate::tickets::{COPIED_VALUE_BYTES_MAX, ForwardedBytes, PendingRequest};
use crate::worker::inbox::{Answer, Ticket};

/// The other PE did not answer, or was lost with the request under way.
const UNKNOWN_OUTCOME: &str =
    "the server of this key does not respond, and whether it was changed is unknown";
/// Nothing was sent.
const NOT_SENT: Refusal = Refusal::Server("the server of this key does not respond; nothing was changed");
/// The key is another PE's.
const ELSEWHERE: Refusal = Refusal::Server(
    "this key belongs to another server of the job; map keys with ketama over the servers' names",
);
const NO_MEMORY: Refusal =
    Refusal::Server("out of memory for a value on its way to another server of the job");

/// A request with a long value that is coming in, for another PE.
#[derive(Debug)]
pub struct Forwarding {
    pe: usize,
    encoding: SavedEncoding,
    /// The request, as far as it has come.
    request: Vec<u8>,
    bytes: ForwardedBytes,
    is_text: bool,
}

/// Executes a request of a job's client: here, or at the PE that has its key. `raw` are the bytes that it was decoded from.
pub fn route(ctx: &mut Context, session: &mut Session, request: Request<'_>, raw: &[u8]) -> Flow {
    let Some(pes) = &ctx.shared.pes else { return execute(ctx, session, request) };
    let is_delegated = matches!(session.info.kind, Kind::Unix | Kind::Shm);
    if !session.access.is_open() {
        return execute(ctx, session, request);
    }
    if let Command::Flush(delay) = request.command
        && is_delegated
        && ctx.shared.settings.flush_enabled
    {
        return flush(ctx, session, delay, raw, &request.encoding);
    }
    let Some(key) = key_of(&request.command) else { return execute(ctx, session, request) };
    let pe = pes.owner(key);
    if pe == pes.own() {
        return execute(ctx, session, request);
    }
    if !is_delegated {
        return refuse(ctx, &request, ELSEWHERE, is_whole_line(raw, &request.encoding));
    }
    forward(ctx, session, &request, raw, pe)
}

/// Returns the key that a command is about.
fn key_of<'k>(command: &Command<'k>) -> Option<&'k [u8]> {
    match command {
        Command::Get(get) => Some(get.key),
        Command::Store(store) => Some(store.key),
        Command::Delete(delete) => Some(delete.key),
        Command::Arithmetic(arithmetic) => Some(arithmetic.key),
        Command::Touch(touch) => Some(touch.key),
        Command::Inspect(key) => Some(key),
        _ => None,
    }
}

/// Returns whether a request is a line of its own: not one of the keys of a text multiget.
fn is_whole_line(raw: &[u8], encoding: &Encoding<'_>) -> bool {
    match encoding {
        Encoding::Text(text) if text.command == TextCommand::Get => text.is_last && raw.starts_with(b"g"),
        _ => true,
    }
}

/// Refuses a request, whose long value is then skipped. An error between the values of a line would end its answer, and the
/// client would read the rest as the next one: such a key is a miss.
fn refuse(ctx: &mut Context, request: &Request<'_>, refusal: Refusal, is_line: bool) -> Flow {
    let reply = if is_line { refused(refusal) } else { Reply::Miss };
    request.encoding.reply(&reply, &mut ctx.out);
    match &request.command {
        Command::Store(store) if matches!(store.value, Value::Streamed { .. }) => Flow::DiscardValue,
        _ => Flow::Next,
    }
}

/// Returns whether a command changes nothing: if it fails, that is a miss.
fn is_read(command: &Command<'_>) -> bool {
    match command {
        Command::Get(get) => retrieval::is_plain(get),
        Command::Inspect(_) => true,
        _ => false,
    }
}

fn forward(ctx: &mut Context, session: &mut Session, request: &Request<'_>, raw: &[u8], pe: usize) -> Flow {
    let Some(pes) = &ctx.shared.pes else { unreachable!("only in a job") };
    let is_line = is_whole_line(raw, &request.encoding);
    let is_read = is_read(&request.command) || !is_line;
    if pes.is_silent(pe) {
        if is_read {
            request.encoding.reply(&Reply::Miss, &mut ctx.out);
            return Flow::Next;
        }
        return refuse(ctx, request, NOT_SENT, is_line);
    }
    // A connection reads what it wrote, and nothing older than what it reads by messages: behind one, a GET goes the same way.
    let has_messages =
        session.forwarded_messages.as_ref().is_some_and(|messages| messages.load(Ordering::Relaxed) > 0);
    let direct = match &request.command {
        Command::Get(get) if get.value && !has_messages && needs_only_item(get, &request.encoding) => {
            Some(get.key)
        }
        _ => None,
    };
    let direct = match direct {
        Some(key) if pes.mapped[pe].is_some() => {
            if read_mapped(ctx, session, key, &request.encoding, pe) {
                return Flow::Next;
            }
            // It goes by a message, behind which later ones go as well.
            None
        }
        direct => direct,
    };
    let value_bytes = match &request.command {
        Command::Store(store) if is_too_large(ctx, store.key, store.flags, store.value.len()) => {
            return refuse_too_large(ctx, session, request, store, pe);
        }
        Command::Store(store) => match store.value {
            Value::Streamed { len } => len,
            Value::Inline(_) => 0,
        },
        _ => 0,
    };
    if value_bytes > 0 {
        let Some(bytes) = ForwardedBytes::count(&ctx.forwarded_bytes, value_bytes, FORWARDED_BYTES_MAX)
        else {
            return Flow::AwaitMemory;
        };
        let mut copy = Vec::new();
        if copy.try_reserve_exact(raw.len() + value_bytes as usize + 2).is_err() {
            return refuse(ctx, request, NO_MEMORY, is_line);
        }
        copy.extend_from_slice(raw);
        let encoding = saved(&request.encoding);
        let is_text = !matches!(request.encoding, Encoding::Binary(_));
        session.role = Role::Forwarding(Box::new(Forwarding { pe, encoding, request: copy, bytes, is_text }));
        return Flow::Next;
    }
    if !has_room(ctx, pe) {
        return Flow::AwaitTicket;
    }
    let bytes = ForwardedBytes::uncounted(&ctx.forwarded_bytes);
    let (copy, strips_end) = match (&request.command, &request.encoding) {
        // A line may have several keys.
        (Command::Get(get), Encoding::Text(encoding)) => (text_get(get, encoding), !encoding.is_last),
        _ => (raw.to_vec(), false),
    };
    let late = if is_read { None } else { Some(UNKNOWN_OUTCOME) };
    let direct = direct.map(|key| DirectGet { key: key.into() });
    let operation = Forwarded { request: copy, direct, strips_end, late };
    submit(ctx, session, &request.encoding, pe, operation, bytes);
    Flow::Next
}

/// Answers a GET from the PE's region, if that is mapped here. Returns false if the PE must be asked.
fn read_mapped(
    ctx: &mut Context,
    session: &mut Session,
    key: &[u8],
    encoding: &Encoding<'_>,
    pe: usize,
) -> bool {
    let Some(pes) = &ctx.shared.pes else { return false };
    let result = match ctx.mapped_reads.get(pes, pe, key) {
        MappedRead::Hit(item) => {
            encoding.value_head(&item, &mut ctx.out);
            if item.len > COPIED_VALUE_BYTES_MAX as u64 {
                session.queue.push_bytes(&mut ctx.out);
                session.queue.push_long(std::mem::take(&mut ctx.mapped_reads.value));
            } else {
                ctx.out.extend_from_slice(&ctx.mapped_reads.value);
            }
            encoding.value_tail(&mut ctx.out);
            Ok(item.len)
        }
        MappedRead::Miss(miss) => {
            encoding.reply(&Reply::Miss, &mut ctx.out);
            Err(miss)
        }
        MappedRead::AskPe => return false,
    };
    ctx.counters().mapped_reads.inc();
    retrieval::count_read(ctx, session.info.fd, key, result);
    true
}

/// Returns whether the answer consists of what a reader of the PE's memory finds in the item.
fn needs_only_item(get: &Get<'_>, encoding: &Encoding<'_>) -> bool {
    const FLAGS: &[u8] = b"vfcskqbO";
    let has_flags = |flags: &[u8]| {
        flags.split(|byte| *byte == b' ').all(|word| word.first().is_none_or(|flag| FLAGS.contains(flag)))
    };
    retrieval::is_plain(get)
        && get.compare.is_none()
        && match encoding {
            Encoding::Text(_) | Encoding::Binary(_) => true,
            Encoding::Meta(meta) => has_flags(meta.flags),
        }
}

/// Returns whether another request may go to a PE. Tickets are left for other PEs, while this one may not respond.
fn has_room(ctx: &mut Context, pe: usize) -> bool {
    ctx.tickets.has_room() && ctx.forwarded_to(pe).load(Ordering::Relaxed) < FORWARDED_TO_PE_MAX
}

/// A request on its way, and its answer's form.
struct Forwarded {
    request: Vec<u8>,
    direct: Option<DirectGet>,
    strips_end: bool,
    /// The error if the PE does not answer; none for a read.
    late: Option<&'static str>,
}

/// Returns the request for one key of a line.
fn text_get(get: &Get<'_>, encoding: &TextEncoding<'_>) -> Vec<u8> {
    let mut line = Vec::with_capacity(get.key.len() + 40);
    let name: &[u8] = match (get.touch.is_some(), encoding.cas) {
        (false, false) => b"get ",
        (false, true) => b"gets ",
        (true, false) => b"gat ",
        (true, true) => b"gats ",
    };
    line.extend_from_slice(name);
    if let Some(Exptime(seconds)) = get.touch {
        line.extend_from_slice(format!("{seconds} ").as_bytes());
    }
    line.extend_from_slice(get.key);
    line.extend_from_slice(b"\r\n");
    debug_assert_eq!(encoding.command, TextCommand::Get);
    line
}

/// Forwards a request.
fn submit(
    ctx: &mut Context,
    session: &mut Session,
    encoding: &Encoding<'_>,
    pe: usize,
    forwarded: Forwarded,
    mut bytes: ForwardedBytes,
) {
    let Forwarded { request, direct, strips_end, late } = forwarded;
    if direct.is_none() {
        bytes.count_message(session.forwarded_messages.get_or_insert_default());
    }
    let ticket = issue(ctx, session, encoding, late, bytes);
    let completion = Completion::Ticket(ticket, InFlight::count(ctx.forwarded_to(pe)));
    pes(ctx).submit(pe, Operation { request, direct, strips_end, completion });
}

/// Issues the ticket of an answer, which takes its place in the connection's order.
fn issue(
    ctx: &mut Context,
    session: &mut Session,
    encoding: &Encoding<'_>,
    late: Option<&'static str>,
    bytes: ForwardedBytes,
) -> Ticket {
    let reserved = if late.is_some() { 0 } else { ctx.forwarded_answer_bytes };
    let pending = PendingRequest::Forwarded { late, bytes };
    let ticket = ctx.tickets.issue_beyond(session.place, encoding, pending);
    session.queue.push_bytes(&mut ctx.out);
    session.queue.push_pending(ticket.id(), reserved);
    ticket
}

fn pes(ctx: &Context) -> &Pes {
    ctx.shared.pes.as_ref().expect("only the PEs of a job forward requests")
}

/// Refuses a value that no PE stores, once its owner has deleted the item that it should have replaced: no client reads the old
/// value after the refusal.
fn refuse_too_large(
    ctx: &mut Context,
    session: &mut Session,
    request: &Request<'_>,
    store: &Store<'_>,
    pe: usize,
) -> Flow {
    let is_plain = store.mode == StoreMode::Set && store.compare.is_none();
    if is_plain || matches!(request.encoding, Encoding::Meta(_)) {
        if !has_room(ctx, pe) {
            return Flow::AwaitTicket;
        }
        let delete = quiet_delete(store.key);
        let mut bytes = ForwardedBytes::uncounted(&ctx.forwarded_bytes);
        bytes.count_message(session.forwarded_messages.get_or_insert_default());
        let ticket = issue(ctx, session, &request.encoding, Some(UNKNOWN_OUTCOME), bytes);
        let in_flight = InFlight::count(ctx.forwarded_to(pe));
        let refuse = move |_| {
            drop(in_flight);
            ticket.complete(Answer::Reply(Reply::TooLarge));
        };
        let completion = Completion::Part(Gathering::parts(1, Box::new(refuse)).pop().expect("one"));
        pes(ctx).submit(pe, Operation { request: delete, direct: None, strips_end: false, completion });
    } else {
        request.encoding.reply(&Reply::TooLarge, &mut ctx.out);
    }
    ctx.counters().store_too_large.inc();
    match store.value {
        Value::Streamed { .. } => Flow::DiscardValue,
        Value::Inline(_) => Flow::Next,
    }
}

/// Returns the packet that deletes a key (memcached's doc/protocol-binary.xml).
fn quiet_delete(key: &[u8]) -> Vec<u8> {
    const HEADER_BYTES: usize = 24;
    const DELETEQ: u8 = 0x14;
    let mut packet = vec![0; HEADER_BYTES];
    (packet[0], packet[1]) = (binary::REQUEST, DELETEQ);
    packet[2..4].copy_from_slice(&(key.len() as u16).to_be_bytes());
    packet[8..12].copy_from_slice(&(key.len() as u32).to_be_bytes());
    packet.extend_from_slice(key);
    packet
}

/// Takes a part of a long value.
pub fn receive(session: &mut Session, bytes: &[u8]) {
    if let Role::Forwarding(forwarding) = &mut session.role {
        forwarding.request.extend_from_slice(bytes);
    }
}

/// Forwards a request whose long value is here.
pub fn received(ctx: &mut Context, session: &mut Session, intact: bool) {
    let Role::Forwarding(forwarding) = std::mem::replace(&mut session.role, Role::Serving) else { return };
    let Forwarding { pe, encoding, mut request, bytes, is_text } = *forwarding;
    let encoding = encoding.encoding();
    if !intact {
        return encoding.reply(&refused(Refusal::Client("bad data chunk")), &mut ctx.out);
    }
    if pes(ctx).is_silent(pe) {
        return encoding.reply(&refused(NOT_SENT), &mut ctx.out);
    }
    if is_text {
        request.extend_from_slice(b"\r\n");
    }
    let forwarded = Forwarded { request, direct: None, strips_end: false, late: Some(UNKNOWN_OUTCOME) };
    submit(ctx, session, &encoding, pe, forwarded, bytes);
}

/// Flushes all PEs. The client learns if one did not answer.
fn flush(
    ctx: &mut Context,
    session: &mut Session,
    delay: Exptime,
    raw: &[u8],
    encoding: &Encoding<'_>,
) -> Flow {
    const LATE: &str = "flush_all takes too long; whether all servers of the job are flushed is unknown";
    const FAILED: Refusal = Refusal::Server("not all servers of the job answered: some may not be flushed");
    let Some(ticket) = admin::issue_flush(ctx, session, encoding, LATE) else { return Flow::AwaitTicket };
    let expiry = admin::flush_time(ctx, delay);
    // The server's state holds the queues, which hold this.
    let shared = std::sync::Arc::downgrade(&ctx.shared);
    let end = move |failed: usize| {
        let Some(shared) = shared.upgrade() else { return };
        shared.housekeeping.execute(admin::flush_task(ticket, expiry, move || match failed {
            0 => Reply::Ok,
            _ => refused(FAILED),
        }));
    };
    let pes = pes(ctx);
    let others: Vec<usize> = pes.others().collect();
    if others.is_empty() {
        end(0);
        return Flow::Next;
    }
    let parts = Gathering::parts(others.len(), Box::new(end));
    for (pe, part) in others.into_iter().zip(parts) {
        if pes.is_silent(pe) {
            // Dropped, it has failed.
            continue;
        }
        let completion = Completion::Part(part);
        pes.submit(pe, Operation { request: raw.to_vec(), direct: None, strips_end: false, completion });
    }
    Flow::Next
}
