//! Requests whose items are on flash.
//!
//! A plain read leaves its answer pending, and further reads of its connection go on. Any other request waits in its connection's
//! input until the item was read, and is then executed again with what was read.

use std::time::Instant;

use fabcache_protocol::{Command, Encoding, Get, Refusal, Reply, Request, TextCommand};
use fabcache_store::{Fetched, FetchedItem, Handle, OutOfMemory};

use super::retrieval::Token;
use super::{Context, Flow, Session, item, refused, retrieval};
use crate::bounds::{MEMORY_WAITS_MAX, TICKET_TIME_MAX};
use crate::tickets::PendingRequest;
use crate::worker::flash::{PendingGet, ReadPurpose};
use crate::worker::inbox::Answer;
use crate::worker::token::TicketId;

/// The wait of a connection's next request for flash, or the item that was read for it.
#[derive(Debug, Default)]
pub enum FlashWait {
    /// Nothing.
    #[default]
    None,
    /// A read under this number.
    Reading(u64),
    /// It was read; nothing if the item was lost or is no longer valid.
    Read(Option<Fetched>),
    /// The device did not answer in time.
    TimedOut,
}

/// The kind of a command: it decides whether the command waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandKind {
    /// It changes nothing: it may be executed while answers to earlier requests are pending.
    Read,
    /// It may write an item: it waits while memory is short.
    Write,
    /// Another change.
    Change,
}

impl CommandKind {
    /// Returns the kind of a command.
    pub fn of(command: &Command<'_>) -> CommandKind {
        match command {
            Command::Get(get) if retrieval::is_plain(get) => CommandKind::Read,
            Command::Noop | Command::Version | Command::Refused(_) | Command::ShmAccessed(_) => {
                CommandKind::Read
            }
            Command::Delete(delete) if delete.stale || delete.drop_value => CommandKind::Write,
            Command::Get(_) | Command::Store(_) | Command::Arithmetic(_) | Command::Touch(_) => {
                CommandKind::Write
            }
            _ => CommandKind::Change,
        }
    }
}

/// Prepares the execution of a command: returns what to do instead, if it has to wait or was answered. Else
/// `end_execution` follows the execution.
#[inline]
pub fn before(
    ctx: &mut Context,
    session: &mut Session,
    kind: CommandKind,
    encoding: &Encoding<'_>,
) -> Option<Flow> {
    if session.queue.has_pending() && (kind != CommandKind::Read || shows_accesses(encoding)) {
        return Some(Flow::AwaitTicket);
    }
    if let FlashWait::Reading(_) = session.flash {
        return Some(Flow::AwaitFlash);
    }
    // What was read is kept meanwhile.
    if kind == CommandKind::Write && ctx.shared.store.is_short_of_memory() {
        return Some(Flow::AwaitMemory);
    }
    match std::mem::take(&mut session.flash) {
        FlashWait::None | FlashWait::Reading(_) => {}
        FlashWait::Read(fetched) => fetched.into_iter().for_each(|fetched| ctx.handle.use_fetched(fetched)),
        FlashWait::TimedOut => {
            let reply = refused(Refusal::Server("the flash device does not answer"));
            encoding.reply(&reply, &mut ctx.out);
            end_reads(session, encoding);
            return Some(Flow::Next);
        }
    }
    ctx.handle.wait_for_flash(may_wait(session.memory_waits));
    None
}

/// Returns whether a request that waited so often for memory may wait again.
///
/// Others may take all memory that becomes free, while a long value needs much at once.
fn may_wait(memory_waits: u32) -> bool {
    memory_waits < MEMORY_WAITS_MAX
}

/// Returns how often the next request has waited for memory after this one had waited so often, and was executed: a request that
/// waits is executed again.
pub fn waits_after(memory_waits: u32, flow: Flow) -> u32 {
    if flow == Flow::AwaitMemory { memory_waits + 1 } else { 0 }
}

/// A request has its answer: the reads of the next command have a time limit of their own. Each key of a line is a request.
pub fn end_reads(session: &mut Session, encoding: &Encoding<'_>) {
    let goes_on =
        matches!(encoding, Encoding::Text(text) if text.command == TextCommand::Get && !text.is_last);
    if !goes_on {
        session.flash_until = None;
    }
}

/// Returns whether memory that a write did not get may be free when writes to flash have ended.
#[cold]
pub fn makes_room(ctx: &Context, why: OutOfMemory) -> bool {
    match why {
        OutOfMemory::FlashBusy => true,
        OutOfMemory::Full => !ctx.shared.settings.evict && ctx.shared.store.is_flash_progressing(),
        OutOfMemory::GroupFull | OutOfMemory::OnFlash => false,
    }
}

/// Returns whether the answer depends on earlier reads of the item: it shows whether and when there was one.
fn shows_accesses(encoding: &Encoding<'_>) -> bool {
    matches!(encoding, Encoding::Meta(meta) if meta.flags.iter().any(|flag| matches!(flag, b'h' | b'l')))
}

/// Begins to read the item of a request that waits for it. The request is executed again.
#[cold]
pub fn await_item(ctx: &mut Context, session: &mut Session, key: &[u8]) -> Flow {
    ctx.handle.forget_fetched();
    let (Some(flash), Some(read)) = (&mut ctx.flash, ctx.handle.read_flash(key)) else {
        // It came back to memory meanwhile.
        return Flow::Again;
    };
    let until = *session.flash_until.get_or_insert_with(|| Instant::now() + TICKET_TIME_MAX);
    let number = flash.read_for_request(read, session.place, key, until);
    session.flash = FlashWait::Reading(number);
    Flow::AwaitFlash
}

/// Leaves the answer to a plain read pending that found no item in memory: as `execute` does, without another search there.
/// Returns nothing if the item is not on flash, or the read has to wait.
#[cold]
pub fn defer_at_once(ctx: &mut Context, session: &mut Session, request: &Request<'_>) -> Option<Flow> {
    let Request { command: Command::Get(get), encoding } = request else { return None };
    let waits = session.queue.has_pending() && shows_accesses(encoding);
    if ctx.flash.is_none() || waits || !matches!(session.flash, FlashWait::None) {
        return None;
    }
    let flow = Some(defer(ctx, session, get, encoding)).filter(|flow| !flow.is_retried());
    if flow.is_some() && matches!(encoding, Encoding::Meta(_)) {
        ctx.counters().cmd_meta.inc();
    }
    flow
}

/// Leaves the answer to a plain read pending until its item was read.
#[cold]
pub fn defer(ctx: &mut Context, session: &mut Session, get: &Get<'_>, encoding: &Encoding<'_>) -> Flow {
    if !ctx.tickets.has_room() {
        return Flow::AwaitTicket;
    }
    let (Some(flash), Some(read)) = (&mut ctx.flash, ctx.handle.read_flash(get.key)) else {
        return Flow::Again;
    };
    let request = PendingRequest::Read { key: get.key.into(), cfd: session.info.fd };
    let ticket = ctx.tickets.issue(session.place, encoding, request).expect("there is room for a ticket");
    session.queue.push_bytes(&mut ctx.out);
    session.queue.push_pending(ticket.id(), read.value_bytes_expected());
    let pending = PendingGet {
        ticket,
        sends_value: get.value,
        known_cas: get.compare,
        is_access: !get.no_bump,
        is_meta: matches!(encoding, Encoding::Meta(_)),
    };
    flash.read(read, get.key, ReadPurpose::Answer(pending));
    Flow::Next
}

/// Returns the answer to a plain read of an item that was read from flash.
pub fn answer(
    handle: &Handle,
    now: u32,
    mut fetched: Box<FetchedItem>,
    sends_value: bool,
    is_meta: bool,
) -> Answer {
    let info = fetched.info(now);
    let mut shown = item(&info);
    // The first meta reader of a stale item wins the right to recache it.
    if is_meta && info.stale && !info.token_sent {
        let key = fetched.key().to_vec();
        handle.use_fetched(Fetched::Item(fetched));
        let token = handle.without_waiting(|handle| retrieval::take_token(handle, &key));
        (shown.won, shown.token_sent) = (token == Token::Won, token == Token::Sent);
        fetched = match handle.take_fetched() {
            Some(Fetched::Item(fetched)) => fetched,
            _ => unreachable!("it was given just now"),
        };
    }
    Answer::Fetched(shown, fetched, sends_value)
}

/// Answers a plain read from memory, as the item is no longer on flash; `None` if a slot on flash may be its.
pub fn answer_from_memory(ctx: &mut Context, id: TicketId, get: &Get<'_>) -> Option<Answer> {
    match ctx.tickets.encoding(id).cloned() {
        Some(saved) => retrieval::answer_late(ctx, get, &saved.encoding()),
        // It was answered when its time was over.
        None => Some(miss()),
    }
}

/// The answer to a read whose item was not found.
pub fn miss() -> Answer {
    Answer::Reply(Reply::Miss)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_waits_a_bounded_number_of_times_for_memory() {
        let executions = |first: u32| {
            let waits = std::iter::successors(Some(first), |waits| {
                may_wait(*waits).then(|| waits_after(*waits, Flow::AwaitMemory))
            });
            waits.take(1_000).count()
        };
        assert_eq!(executions(0), MEMORY_WAITS_MAX as usize + 1);
        assert_eq!(waits_after(MEMORY_WAITS_MAX, Flow::Next), 0);
        assert_eq!(executions(waits_after(MEMORY_WAITS_MAX, Flow::Next)), MEMORY_WAITS_MAX as usize + 1);
    }
}
