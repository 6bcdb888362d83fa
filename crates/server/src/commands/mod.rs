//! Executes commands of any transport and protocol.

mod admin;
mod arithmetic;
mod authentication;
pub mod burst;
mod dump;
pub mod fabric;
pub mod flash;
mod forward;
mod removal;
mod retrieval;
pub mod shm;
mod stats;
mod storage;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use fabcache_protocol::{Command, Encoding, Exptime, Item, Protocol, Refusal, Reply, Request, SavedEncoding};
use fabcache_store::{Expiry, Handle, ItemInfo, Miss, OutOfMemory};
use fabcache_transport::Credentials;
use fabcache_transport::fabric::{Client, FabricEndpoint};
use fabcache_transport::shm::NewChannel;

use crate::connections::{ConnectionInfo, State};
use crate::counters::ServerCounters;
use crate::openshmem::MappedReads;
use crate::options::MEMCACHED_VERSION;
use crate::output::OutputQueue;
use crate::shared::Shared;
use crate::tickets::TicketSlab;
use crate::watch::{encoded, topic};
use crate::worker::flash::FlashReads;
use crate::worker::token::ConnectionToken;

pub use dump::Dump;
use flash::CommandKind;
pub use flash::FlashWait;
pub use forward::{Forwarding, route};
pub use retrieval::count_read;
pub use storage::{Completing, Receiving, complete, receive, receive_in_place, received, resume};

/// The slab class of every item: there are no size classes.
pub const ITEM_CLASS: u32 = 1;

/// The state that a worker's commands share.
#[derive(Debug)]
pub struct Context {
    /// The state of all workers.
    pub shared: Arc<Shared>,
    /// This worker's handle of the store.
    pub handle: Handle,
    /// This worker's number.
    pub worker: usize,
    /// This worker's fabric endpoint, if the fabric is on.
    pub port: Option<FabricEndpoint>,
    /// Answers that other threads complete.
    pub tickets: TicketSlab,
    /// This worker's reads of flash, if there is a flash tier.
    pub flash: Option<FlashReads>,
    /// Bytes of long values on their way to other PEs.
    pub forwarded_bytes: Arc<AtomicU64>,
    /// Requests to other PEs that are not answered, by PE.
    pub forwarded_requests: Vec<Arc<AtomicU64>>,
    /// This worker's reads of other PEs' mapped regions.
    pub mapped_reads: MappedReads,
    /// Bytes that an answer of another PE may have, by those of late.
    pub forwarded_answer_bytes: u64,
    /// Bytes of a connection's state, for `stats`.
    pub connection_bytes: usize,
    /// Answers of the connection being served.
    pub out: Vec<u8>,
}

impl Context {
    /// Requests to another PE that are not answered.
    pub fn forwarded_to(&mut self, pe: usize) -> &Arc<AtomicU64> {
        if self.forwarded_requests.len() <= pe {
            self.forwarded_requests.resize_with(pe + 1, Arc::default);
        }
        &self.forwarded_requests[pe]
    }

    /// Notes the length of an answer of another PE.
    pub fn note_forwarded_answer(&mut self, bytes: u64) {
        let before = self.forwarded_answer_bytes;
        self.forwarded_answer_bytes = bytes.max(before - before / 16);
    }

    /// This worker's counters.
    #[inline]
    pub fn counters(&self) -> &ServerCounters {
        &self.shared.counters[self.worker]
    }
}

/// The state of a connection between commands.
#[derive(Debug)]
pub enum Role {
    /// Requests and answers.
    Serving,
    /// A long value is coming in.
    Receiving(Box<Receiving>),
    /// A long value is coming in that another PE of the job stores.
    Forwarding(Box<Forwarding>),
    /// A long value is here, and the item that it changes is read from flash.
    Completing(Box<Completing>),
    /// A long answer is being made, as the client takes it.
    Dumping(Box<Dump>),
    /// It receives log lines, under this number.
    Watching(u64),
}

/// The rights of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Whether the listener requires authentication.
    pub required: bool,
    /// Whether the client has authenticated.
    pub granted: bool,
}

impl Access {
    /// Returns whether all commands are allowed.
    #[inline]
    pub fn is_open(&self) -> bool {
        !self.required || self.granted
    }
}

/// State that the commands of one connection leave.
#[derive(Debug)]
pub struct Session {
    /// The connection's slot in the worker's table.
    pub place: ConnectionToken,
    /// The current state.
    pub role: Role,
    /// Answers not yet sent, before those in the context.
    pub queue: OutputQueue,
    /// The part that other threads may read.
    pub info: Arc<ConnectionInfo>,
    /// The rights.
    pub access: Access,
    /// Wrong passwords so far.
    pub auth_failures: u32,
    /// The client's process, as the system reports it.
    pub credentials: Option<Credentials>,
    /// Its supplementary groups, if `--shm-groups` needs them.
    pub groups: Vec<u32>,
    /// The connection is not encrypted.
    pub is_plain: bool,
    /// Whether the client has sent a valid `fabric hello`.
    pub knows_fabric: bool,
    /// The wait of its next request for flash, or the item that was read for it.
    pub flash: FlashWait,
    /// When the reads of flash for its present command are over.
    pub flash_until: Option<Instant>,
    /// How often the request that waits for memory was executed without getting it.
    pub memory_waits: u32,
    /// Messages to other PEs of a job without an answer; none before the first.
    pub forwarded_messages: Option<Arc<AtomicU64>>,
    /// The transport to switch to when all earlier answers are sent.
    pub offer: Option<UpgradeOffer>,
}

/// The transport that a client requested, ready for the switch.
#[derive(Debug)]
pub struct UpgradeOffer {
    /// The encoding of answers.
    pub encoding: SavedEncoding,
    /// The channel or fabric client.
    pub way: Upgrade,
}

/// The transport that a connection switches to.
#[derive(Debug)]
pub enum Upgrade {
    /// A channel in memory.
    Shm {
        /// The channel.
        channel: Box<NewChannel>,
        /// The client also gets the region, to read it.
        with_region: bool,
    },
    /// The fabric, to the endpoint of this client.
    Fabric(Box<Client>),
}

/// What follows a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The next one.
    Next,
    /// Discard the rest of the value.
    DiscardValue,
    /// The text client has authenticated.
    Admit,
    /// A password was wrong: the answers and further requests wait for [`crate::bounds::AUTH_FAILURE_PAUSE`].
    Pause,
    /// Send the answers, and close the connection.
    Close,
    /// Nothing was done, as the worker has no ticket left, or earlier reads are pending: execute the request again when a
    /// ticket returned.
    AwaitTicket,
    /// Nothing was done, as an item is read from flash: execute the request again then.
    AwaitFlash,
    /// Nothing was done, as memory is short until writes to flash have ended: execute the request again then.
    AwaitMemory,
    /// Nothing was done, as the item came back to memory: execute the request again.
    Again,
}

impl Flow {
    /// Returns whether the request is executed again.
    #[inline]
    pub fn is_retried(self) -> bool {
        matches!(self, Flow::AwaitTicket | Flow::AwaitFlash | Flow::AwaitMemory | Flow::Again)
    }
}

/// Executes a request, and appends the answer to the output.
#[inline]
pub fn execute(ctx: &mut Context, session: &mut Session, request: Request<'_>) -> Flow {
    let Request { command, encoding } = request;
    if !session.access.is_open() && !authentication::is_allowed(&command, &encoding) {
        return authentication::refuse(ctx, &encoding);
    }
    let is_counted =
        matches!(encoding, Encoding::Meta(_)) && !matches!(command, Command::Noop | Command::Refused(_));
    if ctx.flash.is_some()
        && let Some(flow) = flash::before(ctx, session, CommandKind::of(&command), &encoding)
    {
        return flow;
    }
    let flow = dispatch(ctx, session, command, &encoding);
    if ctx.flash.is_some() {
        end_execution(ctx, session, flow, &encoding);
    }
    if is_counted && !flow.is_retried() {
        ctx.counters().cmd_meta.inc();
    }
    flow
}

/// Gives up the item that was read from flash for a command, unless that waits for memory and is executed again with it.
fn end_execution(ctx: &Context, session: &mut Session, flow: Flow, encoding: &Encoding<'_>) {
    ctx.handle.wait_for_flash(true);
    if !flow.is_retried() {
        flash::end_reads(session, encoding);
    }
    session.memory_waits = flash::waits_after(session.memory_waits, flow);
    match flow {
        Flow::AwaitMemory => {
            session.flash_until = None;
            if let Some(fetched) = ctx.handle.take_fetched() {
                session.flash = FlashWait::Read(Some(fetched));
            }
        }
        _ => ctx.handle.forget_fetched(),
    }
}

#[inline]
fn dispatch(ctx: &mut Context, session: &mut Session, command: Command<'_>, encoding: &Encoding<'_>) -> Flow {
    match command {
        Command::Get(get) => return retrieval::get(ctx, session, &get, encoding),
        Command::Store(store) => return storage::store(ctx, session, &store, encoding),
        Command::Delete(delete) => return removal::delete(ctx, session, &delete, encoding),
        Command::Arithmetic(arithmetic) => {
            return arithmetic::arithmetic(ctx, session, &arithmetic, encoding);
        }
        Command::Touch(touch) => return retrieval::touch(ctx, session, &touch, encoding),
        Command::Inspect(key) => return retrieval::inspect(ctx, session, key, encoding),
        Command::Noop => encoding.reply(&Reply::Noop, &mut ctx.out),
        Command::Version => encoding.reply(&Reply::Version(MEMCACHED_VERSION), &mut ctx.out),
        Command::Refused(refusal) => encoding.reply(&Reply::Refused(refusal), &mut ctx.out),
        Command::Quit => {
            encoding.reply(&Reply::Bye, &mut ctx.out);
            return Flow::Close;
        }
        Command::Authenticate { user, password } => {
            return authentication::text(ctx, session, user, password, encoding);
        }
        Command::SaslList => authentication::mechanisms(ctx, encoding),
        Command::SaslAuth { mechanism, payload } => {
            return authentication::sasl(ctx, session, mechanism, payload, encoding);
        }
        Command::SaslStep { .. } => return authentication::step(ctx, session, encoding),
        Command::Stats(words) => {
            session.info.set_state(State::ParseCommand);
            stats::stats(ctx, session, words, encoding);
        }
        Command::Watch(words) => admin::watch(ctx, session, words, encoding),
        Command::ShmAttach { channel, region } => shm::attach(ctx, session, channel, region, encoding),
        Command::ShmAccessed(accesses) => shm::accessed(ctx, session, accesses, encoding),
        Command::FabricHello { channel, region } => fabric::hello(ctx, session, channel, region, encoding),
        Command::FabricAttach(client) => fabric::attach(ctx, session, &client, encoding),
        Command::LruCrawler(words) => admin::lru_crawler(ctx, session, words, encoding),
        order => return admin::order(ctx, session, order, encoding),
    }
    Flow::Next
}

/// Returns the state of a connection for `stats conns`; `serving` is that of one with nothing to send.
pub fn state_of(role: &Role, serving: State, has_output: bool) -> State {
    match role {
        Role::Watching(_) => State::Watch,
        Role::Receiving(_) | Role::Forwarding(_) | Role::Completing(_) => State::Nread,
        Role::Dumping(_) => State::Mwrite,
        Role::Serving if has_output => State::Mwrite,
        Role::Serving => serving,
    }
}

/// Reports to watchers how a command found its key: the length of the value, or the kind of the miss.
#[inline]
fn notify_lookup(ctx: &Context, cfd: i32, key: &[u8], found: Result<u64, Miss>) {
    ctx.shared.notify_watchers(topic::FETCHERS, || {
        let (status, class, size) = match found {
            Ok(len) => ("found", ITEM_CLASS, len),
            Err(Miss::Absent) => ("not_found", 0, 0),
            Err(Miss::Expired) => ("expired", 0, 0),
            Err(Miss::Flushed) => ("flushed", 0, 0),
        };
        format!("type=item_get key={} status={status} clsid={class} cfd={cfd} size={size}", encoded(key))
    });
}

/// What answers say of an item.
fn item(info: &ItemInfo) -> Item {
    Item {
        flags: info.flags,
        cas: info.cas,
        len: info.len,
        ttl: info.ttl,
        idle: info.idle,
        fetched: info.fetched,
        binary_key: info.binary_key,
        stale: info.stale,
        won: false,
        token_sent: info.token_sent,
    }
}

fn expiry(ctx: &Context, exptime: Exptime) -> Expiry {
    expiry_at(ctx, exptime, ctx.shared.store.now())
}

/// Converts a client's expiry time, at second `now`.
fn expiry_at(ctx: &Context, exptime: Exptime, now: u32) -> Expiry {
    Expiry::from_client(exptime.0, now, ctx.shared.store.clock_origin())
}

/// Bytes that memcached would count for an item, which is what `-I` limits: its header of 48, CAS 8, key and NUL,
/// flags if any, value and line end.
fn counted_bytes(ctx: &Context, key: &[u8], flags: u32, value_len: u64) -> u64 {
    let cas = if ctx.shared.settings.cas { 8 } else { 0 };
    let flags = if flags == 0 { 0 } else { 4 };
    48 + cas + key.len() as u64 + 1 + flags + value_len + 2
}

/// Returns whether a value can never be stored.
fn is_too_large(ctx: &Context, key: &[u8], flags: u32, value_len: u64) -> bool {
    counted_bytes(ctx, key, flags, value_len) > ctx.shared.settings.item_bytes_max
}

/// The form, for an answer that is given later.
fn saved(encoding: &Encoding<'_>) -> SavedEncoding {
    let mut saved = SavedEncoding::new();
    saved.save(encoding);
    saved
}

fn refused(refusal: Refusal) -> Reply<'static> {
    Reply::Refused(refusal)
}

/// The answer to a write that found no room.
fn no_room(why: OutOfMemory) -> Reply<'static> {
    match why {
        OutOfMemory::Full | OutOfMemory::OnFlash | OutOfMemory::FlashBusy => Reply::OutOfMemory,
        OutOfMemory::GroupFull => {
            refused(Refusal::Server("out of memory: too many keys have similar hashes"))
        }
    }
}

/// The protocol of a form.
fn protocol(encoding: &Encoding<'_>) -> Protocol {
    match encoding {
        Encoding::Binary(_) => Protocol::Binary,
        Encoding::Text(_) | Encoding::Meta(_) => Protocol::Text,
    }
}
