//! One connection: its input, its output, and its turns.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Instant;

use fabcache_protocol::{Command, Decoded, Decoder, Limits, PlainGets, PlainSets};
use fabcache_transport::{Kind, Link, Received};

use super::input::Input;
use super::listener::ListenerEntry;
use super::ring::ReceiveState;
use super::token::{ConnectionToken, Interest, TicketId};
use super::turn_budget::{TurnBudget, is_about_items};
use super::visibility::{event, info_of};
use crate::bounds::{
    AUTH_FAILURE_PAUSE, AUTH_FAILURES_MAX, DATAGRAM_ANSWER_BYTES_MAX, GATHERED_BYTES_MAX,
    GATHERED_IN_MEMORY_BYTES_MAX, INLINE_VALUE_BYTES_MAX, JOINED_BYTES_MAX,
};
use crate::commands::{self, Access, Context, FlashWait, Flow, Role, Session, burst};
use crate::connections::State;
use crate::output::{OutputPart, OutputQueue};
use crate::watch::topic;

/// The decoders' limits, for every protocol.
pub(super) const LIMITS: Limits = Limits { inline_value_max: INLINE_VALUE_BYTES_MAX };

/// What follows a connection's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It waits for events.
    Wait,
    /// It has more work, after others had their turn.
    Yield,
    /// It does nothing, whatever happens, until then.
    Pause(Instant),
    /// It has ended.
    End(EndReason),
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The client closed the connection, or requested that.
    Normal,
    /// The link broke, or the client broke the protocol.
    Error,
    /// It was idle for too long.
    Idle,
    /// It stalled within a request for too long, or while others needed the memory of its answer.
    Slow,
    /// The server stops.
    Shutdown,
}

/// One connection.
pub struct Connection {
    pub(super) link: Box<dyn Link>,
    pub(super) decoder: Decoder,
    pub(super) session: Session,
    /// Received and not yet consumed.
    pub(super) input: Input,
    /// Answers to earlier requests have been put in their positions since its last turn.
    has_late_answers: bool,
    /// The input holds no whole request: more must come first.
    pub(super) starved: bool,
    /// Its next request needs a ticket, and the worker has none left.
    pub(super) needs_ticket: bool,
    /// Its next request waits for memory.
    pub(super) needs_memory: bool,
    /// Whether the client sends no more.
    pub(super) client_done: bool,
    /// After the answers are sent it ends.
    pub(super) closing: Option<EndReason>,
    /// It neither receives nor sends until it is resumed, then.
    paused_until: Option<Instant>,
    pub(super) waited_for: Interest,
    pub(super) receive_state: ReceiveState,
    /// Whether it has received or sent something since the spin policy was last updated.
    pub(super) is_active: bool,
    /// When bytes last moved in either direction.
    pub(super) last_progress: Instant,
}

impl Connection {
    /// A connection that came in at a listener.
    pub fn new(ctx: &Context, link: Box<dyn Link>, entry: &ListenerEntry, now: Instant) -> Connection {
        let shared = &ctx.shared;
        let required = entry.auth && (shared.users.is_some() || shared.sasl_users.is_some());
        let mut decoder = match link.kind() {
            Kind::Udp => Decoder::datagram(entry.protocol, LIMITS),
            // Requests of any client of another PE.
            Kind::OpenShmem => Decoder::mixed(LIMITS),
            _ => Decoder::new(entry.protocol, LIMITS),
        };
        decoder.require_auth(entry.auth && shared.users.is_some());
        let credentials = link.credentials();
        let groups = shared.settings.shm.as_ref().map(|shm| shm.groups_of(&*link)).unwrap_or_default();
        let info = info_of(ctx, &*link, Some(entry.listener.local().to_string()));
        if link.kind() != Kind::Udp {
            shared.connections.add(&info);
            shared.notify_watchers(topic::CONNEVENTS, || event("conn_new", &info, None));
        }
        let access = Access { required, granted: false };
        let is_plain = !link.is_encrypted();
        Connection {
            link,
            decoder,
            session: Session {
                place: ConnectionToken::default(),
                role: Role::Serving,
                queue: OutputQueue::new(&shared.unsent),
                info,
                access,
                auth_failures: 0,
                credentials,
                groups,
                is_plain,
                knows_fabric: false,
                flash: FlashWait::None,
                flash_until: None,
                memory_waits: 0,
                forwarded_messages: None,
                offer: None,
            },
            input: Input::default(),
            has_late_answers: false,
            starved: false,
            needs_ticket: false,
            needs_memory: false,
            client_done: false,
            closing: None,
            paused_until: None,
            waited_for: Interest { receive: true, send: false },
            receive_state: ReceiveState::ByEpoll,
            is_active: false,
            last_progress: now,
        }
    }

    /// Its slot in the worker's table.
    pub fn place(&self) -> ConnectionToken {
        self.session.place
    }

    /// Assigns its slot in the worker's table.
    pub fn set_place(&mut self, place: ConnectionToken) {
        self.session.place = place;
    }

    /// Returns whether it is a datagram: all it will ever receive is here.
    pub fn is_one_shot(&self) -> bool {
        self.kind() == Kind::Udp
    }

    /// The descriptor to poll.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.link.descriptor()
    }

    /// The transport of its link.
    pub fn kind(&self) -> Kind {
        self.link.kind()
    }

    /// The readiness that epoll was last configured for.
    pub fn interest(&self) -> Interest {
        self.waited_for
    }

    /// Returns the readiness to request from epoll, if that has changed.
    pub fn changed_interest(&mut self) -> Option<Interest> {
        let wanted = if self.link.is_polled() {
            // Any notification makes the descriptor readable.
            Interest { receive: true, send: false }
        } else {
            Interest { receive: self.takes_input(), send: self.can_send() || self.link.has_unsent() }
        };
        (wanted != self.waited_for).then(|| {
            self.waited_for = wanted;
            wanted
        })
    }

    /// Returns whether new input can be seen without a system call.
    pub fn can_be_polled(&self) -> bool {
        self.link.is_polled()
    }

    /// Returns whether more input is likely soon: since the last call the client has sent a request or received
    /// answers, or it is in the middle of a request. A client that only reports reads keeps reading and does not
    /// count.
    pub fn expects_more(&mut self) -> bool {
        std::mem::take(&mut self.is_active) || !self.input.is_empty() || self.decoder.is_in_value()
    }

    /// Returns whether a polled connection has input to be served.
    #[inline]
    pub fn has_unread(&self) -> bool {
        self.link.has_unread() && self.takes_input()
    }

    /// Consumes notifications after the descriptor became ready.
    pub fn drain_wakeup(&mut self) {
        if let Some(link) = self.link.as_polled() {
            link.drain_wakeup();
        }
    }

    /// Disarms the wakeup: the worker polls [`Connection::has_unread`] from now on.
    pub fn start_polling(&mut self) {
        if let Some(link) = self.link.as_polled() {
            link.start_polling();
        }
    }

    /// Arms the wakeup: from now on the descriptor reports input. Returns false if input arrived meanwhile that the
    /// connection must be served for.
    pub fn arm_wakeup(&mut self) -> bool {
        self.link.as_polled().is_none_or(|link| link.arm_wakeup()) || !self.takes_input()
    }

    /// Returns whether input is received now, rather than after answers were sent.
    pub(super) fn takes_input(&self) -> bool {
        !self.client_done
            && self.closing.is_none()
            && self.paused_until.is_none()
            && !self.needs_ticket
            && !self.needs_memory
            && !self.awaits_flash()
            && !self.is_backlogged()
    }

    /// Returns whether its next request, or the rest of a list, waits for items on flash.
    pub(super) fn awaits_flash(&self) -> bool {
        matches!(self.session.flash, FlashWait::Reading(_)) || self.is_dumping() && !self.can_dump()
    }

    /// Returns since when it waits for the reads of this number, which began at this time; `None` if it does not.
    pub(super) fn reads_since(&self, number: u64, began: Instant) -> Option<Instant> {
        match (&self.session.flash, &self.session.role) {
            (FlashWait::Reading(waits), _) if *waits == number => Some(began),
            (_, Role::Dumping(dump)) => dump.reads_since(number),
            _ => None,
        }
    }

    /// Returns whether an answer is ready to be sent.
    pub(super) fn can_send(&self) -> bool {
        !self.session.queue.is_empty() && !self.session.queue.awaits_ticket()
    }

    /// Returns whether nothing but a ticket moves it: it receives nothing, and has nothing to send.
    pub fn awaits_only_tickets(&self) -> bool {
        let is_waiting = self.needs_ticket
            || self.needs_memory
            || self.awaits_flash()
            || self.session.queue.awaits_ticket();
        is_waiting && !self.takes_input() && !self.can_send()
    }

    /// Puts the answer to an earlier request in its position.
    pub fn complete(&mut self, id: TicketId, answer: [OutputPart; 3], now: Instant) {
        self.session.queue.complete(id, answer);
        self.has_late_answers = true;
        self.last_progress = now;
    }

    /// Returns whether it is paused.
    pub fn is_paused(&self) -> bool {
        self.paused_until.is_some()
    }

    /// Ends its pause.
    pub fn resume(&mut self) {
        self.paused_until = None;
    }

    /// Returns whether it watches events.
    pub fn is_watching(&self) -> bool {
        matches!(self.session.role, Role::Watching(_))
    }

    /// Returns whether its unsent answers pin memory until the client takes them.
    pub fn pins_memory(&self) -> bool {
        self.session.queue.pins_memory() && !self.session.queue.awaits_ticket()
    }

    pub(super) fn is_backlogged(&self) -> bool {
        self.is_full() || self.session.queue.stops_requests()
    }

    /// Returns whether more bytes are pending than may be while its requests are executed.
    pub(super) fn is_full(&self) -> bool {
        let queue = &self.session.queue;
        if self.is_one_shot() { queue.bytes() > DATAGRAM_ANSWER_BYTES_MAX } else { queue.is_full() }
    }

    /// Returns whether a part of a list can be made.
    fn can_dump(&self) -> bool {
        matches!(&self.session.role, Role::Dumping(dump) if !dump.awaits_flash())
    }

    pub(super) fn is_dumping(&self) -> bool {
        matches!(self.session.role, Role::Dumping(_))
    }

    // ---- serving ----

    /// Runs one turn: the requests of one receive, up to [`GATHERED_BYTES_MAX`] of answers, and one send. Where sending
    /// needs no system call, each few answers are sent. At most as many requests as `-R` says; without it, at most
    /// [`crate::bounds::STEPS_PER_TURN_MAX`] commands about the server, parts of long values, or buffers without a request.
    /// Takes the bytes that the ring has received if it receives.
    pub fn serve(
        &mut self,
        ctx: &mut Context,
        buffer: &mut [u8],
        from_ring: &mut Option<&[u8]>,
        now: Instant,
    ) -> Turn {
        let mut budget = TurnBudget::new(ctx.shared.settings.requests_per_turn);
        // Such a turn is not due to input, which would be reported.
        let has_input = from_ring.is_some() || self.has_work() || self.link.has_unread();
        budget.has_served = std::mem::take(&mut self.has_late_answers) && !has_input;
        (self.needs_ticket, self.needs_memory) = (false, false);
        let turn = loop {
            if let Some(until) = self.paused_until {
                self.session.queue.push_bytes(&mut ctx.out);
                self.session.queue.unpin_excess();
                break Turn::Pause(until);
            }
            if let Err(ended) = self.send(ctx, now) {
                return Turn::End(ended);
            }
            if self.is_backlogged() || self.needs_ticket || self.needs_memory || self.awaits_flash() {
                break Turn::Wait;
            }
            if self.session.offer.is_some() {
                if self.has_output() || self.is_in_ring() {
                    break Turn::Wait;
                }
                if let Err(ended) = self.attach(ctx) {
                    return Turn::End(ended);
                }
                // Bytes that have arrived on the new link are not reported again.
                budget.has_served = false;
                continue;
            }
            if let Some(ended) = self.closing {
                break if self.has_output() { Turn::Wait } else { Turn::End(ended) };
            }
            self.notify_watcher(ctx);
            if self.is_turn_over(&budget) {
                ctx.counters().conn_yields.inc();
                break Turn::Yield;
            }
            if self.has_work() {
                self.work_on_input(ctx, &mut budget);
                if self.is_dumping() {
                    // A part may be empty; while the client does not read, none is made.
                    self.last_progress = now;
                }
                continue;
            }
            if budget.has_served && !self.client_done {
                break Turn::Wait;
            }
            match self.receive(ctx, buffer, from_ring, &mut budget, now) {
                Ok(goes_on) if goes_on || self.paused_until.is_some() => {}
                Ok(_) => {
                    if let Err(ended) = self.send(ctx, now) {
                        return Turn::End(ended);
                    }
                    match self.closing {
                        Some(ended) if !self.has_output() => return Turn::End(ended),
                        _ => break Turn::Wait,
                    }
                }
                Err(ended) => return Turn::End(ended),
            }
        };
        self.input.settle();
        self.settle_value();
        self.note_state();
        turn
    }

    /// Returns whether other connections are served before this one continues.
    fn is_turn_over(&self, budget: &TurnBudget) -> bool {
        let may_go_on = if self.has_work() {
            // After a few short answers rather than after the input.
            self.link.kind() == Kind::Shm
        } else {
            !budget.has_more && !self.link.has_unread()
        };
        budget.left == 0 || budget.has_served && !may_go_on
    }

    /// Records what `stats conns` states.
    fn note_state(&mut self) {
        let serving = if self.decoder.is_in_value() {
            State::Swallow
        } else if self.decoder.awaits_body() {
            State::Nread
        } else if self.input.is_empty() {
            State::Waiting
        } else {
            State::Read
        };
        let state = commands::state_of(&self.session.role, serving, !self.session.queue.is_empty());
        self.session.info.set_state(state);
    }

    fn has_output(&self) -> bool {
        !self.session.queue.is_empty() || self.link.has_unsent()
    }

    /// There is something to do without receiving more.
    pub(super) fn has_work(&self) -> bool {
        let has_input = !self.input.is_empty() || self.decoder.is_at_value_end();
        has_input && !self.starved && !self.is_dumping()
            || self.can_dump()
            || matches!(self.session.role, Role::Completing(_))
            || self.has_blocked_value()
    }

    /// Receives once and processes the input; false if nothing is available now.
    fn receive(
        &mut self,
        ctx: &mut Context,
        buffer: &mut [u8],
        from_ring: &mut Option<&[u8]>,
        budget: &mut TurnBudget,
        now: Instant,
    ) -> Result<bool, EndReason> {
        if self.client_done {
            self.closing = Some(EndReason::Normal);
            return Ok(false);
        }
        match from_ring.take() {
            Some(bytes) => return Ok(self.work_on_received(ctx, bytes, budget, now)),
            None if self.is_in_ring() => return Ok(false),
            None => {}
        }
        // All input is received into the worker's buffer: a short incomplete request is placed before it, and to a
        // long one the new bytes are appended.
        let waiting = self.input.waiting();
        let joined = if waiting.len() <= JOINED_BYTES_MAX { waiting.len() } else { 0 };
        buffer[..joined].copy_from_slice(&waiting[..joined]);
        let (received, space) = self.receive_bytes(ctx, buffer, joined);
        let len = match received {
            Ok(Received::Bytes(len)) => len,
            Ok(Received::Nothing) => return Ok(false),
            Ok(Received::End) => {
                self.client_done = true;
                return Ok(true);
            }
            Err(error) => {
                self.log_broken(ctx, &error);
                if error.kind() == std::io::ErrorKind::InvalidData && self.link.is_encrypted() {
                    ctx.counters().tls_errors.inc();
                }
                return Err(EndReason::Error);
            }
        };
        self.note_received(ctx, len, now);
        // A short read emptied the socket: asking again would only say so.
        budget.has_more = len == space.in_value + space.in_buffer || self.link.has_unread();
        let before = budget.left;
        let of_value = len.min(space.in_value);
        if of_value > 0 {
            self.take_part(ctx, of_value, space.is_direct, budget);
        }
        let end = joined + len - of_value;
        if joined == 0 && !self.input.is_empty() {
            self.input.append(&buffer[..end]);
            self.work_on_input(ctx, budget);
        } else {
            let used = self.work(ctx, &buffer[..end], budget);
            self.input.consume(used.min(joined));
            self.input.append(&buffer[used.max(joined)..end]);
        }
        if budget.left == before && !budget.has_served {
            // Input that completes no request takes time as well.
            budget.left -= 1;
        }
        Ok(budget.has_more || self.session.offer.is_some() || self.has_work())
    }

    fn work_on_input(&mut self, ctx: &mut Context, budget: &mut TurnBudget) {
        let mut input = std::mem::take(&mut self.input);
        let used = self.work(ctx, input.waiting(), budget);
        input.consume(used);
        self.input = input;
    }

    /// Decodes and executes; how much of the input was consumed.
    pub(super) fn work(&mut self, ctx: &mut Context, input: &[u8], budget: &mut TurnBudget) -> usize {
        let mut used = 0;
        let mut prefetched = 0usize;
        let gathered_max = match self.link.kind() {
            Kind::Shm => GATHERED_IN_MEMORY_BYTES_MAX,
            _ => GATHERED_BYTES_MAX,
        };
        while self.closing.is_none()
            && self.paused_until.is_none()
            && self.session.offer.is_none()
            && budget.left > 0
            && ctx.out.len() < gathered_max
            && !self.is_backlogged()
            && !self.awaits_flash()
        {
            if let Role::Dumping(dump) = &mut self.session.role {
                if dump.awaits_flash() {
                    break;
                }
                if dump.go_on(ctx) {
                    self.session.role = Role::Serving;
                    continue;
                }
                // A part of a list is a turn: others get their turns in between, however fast its client reads.
                budget.left = 0;
                break;
            }
            if matches!(self.session.role, Role::Completing(_)) {
                let flow = commands::complete(ctx, &mut self.session);
                self.needs_ticket |= flow == Flow::AwaitTicket;
                self.needs_memory |= flow == Flow::AwaitMemory;
                if flow.is_retried() && flow != Flow::Again {
                    break;
                }
                continue;
            }
            if matches!(self.session.role, Role::Receiving(_)) && !self.may_receive_value(ctx) {
                break;
            }
            if self.is_watching() {
                // A watcher says nothing more that matters.
                return input.len();
            }
            let of_run = self.work_on_run(ctx, &input[used..], budget, gathered_max);
            if of_run > 0 {
                used += of_run;
                continue;
            }
            let (consumed, flow) = match self.decoder.decode(&input[used..]) {
                Decoded::Incomplete { .. } => {
                    self.starved = true;
                    break;
                }
                Decoded::Request { consumed, request } => {
                    budget.count_request();
                    if !is_about_items(&request.command) {
                        budget.count_step();
                    }
                    self.is_active |= !matches!(request.command, Command::ShmAccessed(_));
                    let raw = &input[used..used + consumed];
                    let flow = commands::route(ctx, &mut self.session, request, raw);
                    if flow.is_retried() {
                        // The request stays in the input, and is decoded again.
                        self.decoder.undo();
                        self.needs_ticket |= flow == Flow::AwaitTicket;
                        self.needs_memory |= flow == Flow::AwaitMemory;
                        if flow == Flow::Again {
                            continue;
                        }
                        break;
                    }
                    (consumed, flow)
                }
                Decoded::Value { consumed, bytes } => {
                    // A long value shares its worker as long pipelines do.
                    budget.left -= 1;
                    (consumed, commands::receive(ctx, &mut self.session, bytes))
                }
                Decoded::ValueEnd { consumed, intact } => {
                    commands::received(ctx, &mut self.session, intact);
                    (consumed, Flow::Next)
                }
                Decoded::Skipped { consumed } => {
                    budget.left -= 1;
                    (consumed, Flow::Next)
                }
                Decoded::Fatal => {
                    self.closing = Some(EndReason::Error);
                    break;
                }
            };
            used += consumed;
            prefetched = prefetched.saturating_sub(1);
            if prefetched == 0 && used < input.len() {
                prefetched = ctx.handle.prefetch(self.decoder.pipelined_keys(&input[used..]));
            }
            self.follow(flow);
        }
        used
    }

    /// Does what follows a command.
    #[inline]
    pub(super) fn follow(&mut self, flow: Flow) {
        match flow {
            Flow::Next | Flow::AwaitTicket | Flow::AwaitFlash | Flow::Again => {}
            Flow::AwaitMemory => self.needs_memory = true,
            Flow::DiscardValue => self.decoder.discard_value(),
            Flow::Admit => self.decoder.require_auth(false),
            Flow::Pause => self.slow_down(),
            Flow::Close => self.closing = Some(EndReason::Normal),
        }
    }

    /// Executes the run of plain requests at the front of the input; returns how many bytes they take. As everywhere,
    /// none is executed once so many bytes are gathered, or more wait than may be queued.
    #[inline]
    fn work_on_run(
        &mut self,
        ctx: &mut Context,
        input: &[u8],
        budget: &mut TurnBudget,
        gathered_max: usize,
    ) -> usize {
        // Clients of shared memory and of the fabric send packets as well.
        let sends_packets = matches!(self.link.kind(), Kind::Shm | Kind::Fabric | Kind::OpenShmem);
        if sends_packets || !burst::is_allowed(ctx, &self.session) {
            return 0;
        }
        let (session, max) = (&mut self.session, budget.run_max());
        let (used, requests) = match input {
            // The rest of a line begins with the space before its next key.
            [b'g', b'e', b't', ..]
            | [b'm', b'g', ..]
            | [b' ', ..]
            | [0x80, 0x00 | 0x09 | 0x0c | 0x0d, ..] => {
                let mut run = PlainGets::new(max);
                let mut used = self.decoder.plain_gets(input, &mut run);
                let executed = burst::gets(ctx, session, run.requests(), gathered_max);
                if executed < run.requests().len() {
                    used = self.decoder.shorten_gets(input, &mut run, executed);
                }
                (used, executed)
            }
            [b's', b'e', b't', ..] | [b'm', b's', ..] | [0x80, 0x01 | 0x11, ..]
                if burst::may_write(ctx, session) =>
            {
                let mut run = PlainSets::new(max);
                let mut used = self.decoder.plain_sets(input, &mut run);
                let executed = burst::sets(ctx, session, run.requests());
                if executed < run.requests().len() {
                    used = self.decoder.shorten_sets(input, &mut run, executed);
                }
                (used, executed)
            }
            _ => return 0,
        };
        if requests > 0 {
            budget.count_requests(requests);
            self.is_active = true;
        }
        used
    }

    /// Pauses after a wrong password; ends after too many.
    fn slow_down(&mut self) {
        self.paused_until = Some(Instant::now() + AUTH_FAILURE_PAUSE);
        if self.session.auth_failures >= AUTH_FAILURES_MAX {
            self.closing = Some(EndReason::Error);
        }
    }

    /// Sends pending output, as far as the client accepts it.
    fn send(&mut self, ctx: &mut Context, now: Instant) -> Result<(), EndReason> {
        let sent = self.try_send(ctx);
        match sent {
            Ok(0) => Ok(()),
            Ok(bytes) => {
                ctx.counters().bytes_written.add(bytes);
                self.is_active = true;
                self.last_progress = now;
                Ok(())
            }
            Err(error) => {
                ctx.out.clear();
                self.log_broken(ctx, &error);
                if self.session.queue.is_lost() {
                    ctx.counters().pinning_kicks.inc();
                    return Err(EndReason::Slow);
                }
                Err(EndReason::Error)
            }
        }
    }

    pub(super) fn log_broken(&self, ctx: &Context, error: &std::io::Error) {
        let peer = &self.session.info.address;
        let is_protocol = error.kind() == std::io::ErrorKind::InvalidData;
        match self.link.kind() {
            Kind::Shm if is_protocol => {
                ctx.counters().shm_broken.inc();
                let user = self.session.credentials.map(|who| who.user);
                tracing::warn!(%peer, user, "a client that shares memory is cut off: {error}");
            }
            Kind::OpenShmem => tracing::warn!(%peer, "the link of another PE broke: {error}"),
            Kind::Fabric if is_protocol => {
                ctx.counters().fabric_broken.inc();
                tracing::warn!(%peer, "a client on the fabric is cut off: {error}");
            }
            _ => tracing::debug!(%peer, "connection broke: {error}"),
        }
    }

    fn try_send(&mut self, ctx: &mut Context) -> std::io::Result<u64> {
        let mut total = 0;
        if self.session.queue.is_empty() {
            if !ctx.out.is_empty() {
                // The usual case: everything is sent at once, and nothing is kept.
                let sent = self.link.send(&[IoSlice::new(&ctx.out)])?;
                total += sent as u64;
                if sent == ctx.out.len() {
                    ctx.out.clear();
                } else {
                    let mut rest = ctx.out.split_off(sent);
                    ctx.out.clear();
                    self.session.queue.push_bytes(&mut rest);
                }
            }
        } else {
            self.session.queue.push_bytes(&mut ctx.out);
            let sent = self.session.queue.send(&mut *self.link)?;
            total += sent;
        }
        if self.link.has_unsent() {
            self.link.flush()?;
        }
        Ok(total)
    }

    fn notify_watcher(&mut self, ctx: &Context) {
        if let Role::Watching(id) = self.session.role {
            let mut lines = Vec::new();
            ctx.shared.watchers.take(id, &mut lines);
            self.session.queue.push_bytes(&mut lines);
        }
    }

    /// Ends it.
    pub fn close(mut self, ctx: &Context, ended: EndReason) {
        if self.is_one_shot() {
            return;
        }
        // Send whatever is still possible.
        let _ = self.session.queue.send(&mut *self.link);
        let shared = &ctx.shared;
        if let Role::Watching(id) = self.session.role {
            shared.watchers.remove(id);
        }
        shared.connections.remove(&self.session.info);
        shared.notify_watchers(topic::CONNEVENTS, || event("conn_close", &self.session.info, Some(ended)));
        shared.inboxes[ctx.worker].count(-1);
        shared.connections_now.fetch_sub(1, Ordering::Relaxed);
    }
}
