//! Long answers, made in parts as the client takes them: lists of keys, connections, prefixes, sizes and flash segments.

use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fabcache_protocol::number::push_u64;
use fabcache_protocol::{Encoding, Refusal, Reply, SavedEncoding};
use fabcache_store::VisitResult;
use fabcache_store::dump::{Cursor, VisitedItem};

use super::stats::{ConnectionList, FlashSegmentList, PrefixList, SizeList};
use super::{Context, ITEM_CLASS, Session, saved};
use crate::bounds::{CACHEDUMP_BYTES_MAX, DUMPED_GROUPS_MAX, GATHERED_BYTES_MAX, GROUP_VISITS_MAX};
use crate::watch::push_encoded;
use crate::worker::flash::ReadPurpose;
use crate::worker::token::ConnectionToken;

/// Which list of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysFormat {
    /// `key=… exp=… la=… cas=… fetch=… cls=… size=… flags=…`
    Metadump,
    /// `mg KEY`
    Mgdump,
    /// `ITEM KEY [LENGTH b; EXPIRY s]`
    Cachedump,
}

/// A list on its way.
#[derive(Debug)]
pub struct Dump {
    encoding: SavedEncoding,
    list: List,
}

/// What is listed, and how far the list is.
#[derive(Debug)]
pub enum List {
    /// `lru_crawler metadump` and `mgdump`, `stats cachedump`.
    Keys(KeyList),
    /// `stats sizes`.
    Sizes(SizeList),
    /// `stats conns`.
    Connections(ConnectionList),
    /// `stats detail dump`.
    Prefixes(PrefixList),
    /// `stats extstore`.
    FlashSegments(FlashSegmentList),
}

impl Dump {
    /// Starts a list, in the form of this request's answer.
    pub fn new(list: List, encoding: &Encoding<'_>) -> Dump {
        Dump { encoding: saved(encoding), list }
    }

    /// Returns whether its next part waits for items on flash.
    pub fn awaits_flash(&self) -> bool {
        matches!(&self.list, List::Keys(keys) if keys.reading > 0)
    }

    /// Returns when the reads of this number began, or the last of them that has ended did, if the next part waits for others.
    pub fn reads_since(&self, number: u64) -> Option<Instant> {
        match &self.list {
            List::Keys(keys) if keys.reading > 0 && keys.wait == number => Some(keys.reads_since),
            _ => None,
        }
    }

    /// The device does not answer: the list ends with an error.
    pub fn time_out(&mut self) {
        if let List::Keys(keys) = &mut self.list {
            (keys.reading, keys.is_timed_out) = (0, true);
        }
    }

    /// Takes the result of a visit to an item on flash; returns whether it was the last.
    pub fn add_visited(&mut self, ctx: &Context, visited: VisitResult, now: Instant) -> bool {
        let List::Keys(keys) = &mut self.list else { return false };
        keys.reads_since = now;
        keys.add_visited(ctx, visited);
        keys.reading == 0
    }

    /// Makes a part of the list, some tens of kilobytes at most; true when it was the last. It is not called while the list
    /// waits for flash.
    pub fn go_on(&mut self, ctx: &mut Context) -> bool {
        let encoding = self.encoding.encoding();
        match &mut self.list {
            List::Keys(keys) => keys.go_on(ctx, &encoding),
            List::Sizes(sizes) => sizes.go_on(ctx, &encoding),
            List::Connections(connections) => connections.go_on(ctx, &encoding),
            List::Prefixes(prefixes) => prefixes.go_on(ctx, &encoding),
            List::FlashSegments(segments) => segments.go_on(ctx, &encoding),
        }
    }
}

/// Visits the next items, for a part of a list at most; returns whether they were the last.
pub(super) fn walk_part(
    cursor: &mut Cursor,
    ctx: &mut Context,
    mut visit: impl FnMut(&VisitedItem<'_>, &mut Vec<u8>),
) -> bool {
    let mut groups = 0;
    while !cursor.is_done() {
        if ctx.out.len() >= GATHERED_BYTES_MAX || groups == DUMPED_GROUPS_MAX {
            return false;
        }
        groups += 1;
        *cursor = ctx.handle.walk(*cursor, |visited| visit(&visited, &mut ctx.out), |_| {});
    }
    true
}

/// Keys, also of items on flash, which are read a group of the index at a time.
#[derive(Debug)]
pub struct KeyList {
    format: KeysFormat,
    /// The group that is being listed, and the one after it.
    group: Cursor,
    next: Cursor,
    /// How often the group was visited.
    visits: u32,
    /// The connection to continue when reads have ended.
    owner: ConnectionToken,
    /// Reads of flash under way, and the number of the wait for them.
    reading: usize,
    wait: u64,
    /// When they began, or the last one ended.
    reads_since: Instant,
    /// The device did not answer.
    is_timed_out: bool,
    /// Whether an item of the group has left flash before it was read.
    has_changed: bool,
    /// The group's lines.
    lines: Vec<u8>,
    limit: ListLimit,
}

/// Lines and bytes that a list may still have.
#[derive(Debug)]
struct ListLimit {
    lines: u64,
    bytes: usize,
}

impl KeyList {
    /// Lists all keys from a cursor, to the connection of this session.
    pub fn new(format: KeysFormat, cursor: Cursor, session: &Session) -> KeyList {
        KeyList {
            format,
            group: cursor,
            next: cursor,
            visits: 0,
            owner: session.place,
            reading: 0,
            wait: 0,
            reads_since: Instant::now(),
            is_timed_out: false,
            has_changed: false,
            lines: Vec::new(),
            limit: ListLimit { lines: u64::MAX, bytes: usize::MAX },
        }
    }

    /// `stats cachedump`: at most so many items, 0 for all, and two megabytes of lines.
    pub fn cachedump(items_max: u64, session: &Session) -> KeyList {
        let lines = if items_max == 0 { u64::MAX } else { items_max };
        let limit = ListLimit { lines, bytes: CACHEDUMP_BYTES_MAX };
        KeyList { limit, ..KeyList::new(KeysFormat::Cachedump, Cursor::START, session) }
    }

    fn go_on(&mut self, ctx: &mut Context, encoding: &Encoding<'_>) -> bool {
        if self.is_timed_out {
            let reply = Reply::Refused(Refusal::Server("the flash device does not answer"));
            encoding.reply(&reply, &mut ctx.out);
            return true;
        }
        let mut groups = 0;
        while self.end_group(&mut ctx.out) {
            if ctx.out.len() >= GATHERED_BYTES_MAX || groups == DUMPED_GROUPS_MAX {
                return false;
            }
            groups += 1;
            self.visit_group(ctx);
            if self.reading > 0 {
                return false;
            }
        }
        ctx.out.extend_from_slice(if self.format == KeysFormat::Mgdump { b"EN\r\n" } else { b"END\r\n" });
        true
    }

    /// Lists the items of the group in memory, and begins to read those on flash.
    fn visit_group(&mut self, ctx: &mut Context) {
        let (format, origin) = (self.format, ctx.shared.store.clock_origin());
        let mut on_flash = Vec::new();
        let line = |visited: VisitedItem<'_>| format.line(&visited, origin, &mut self.lines);
        self.next = ctx.handle.walk_all(self.group, line, |_| {}, |visited| on_flash.push(visited));
        self.visits += 1;
        let Some(flash) = &mut ctx.flash else { return };
        for visited in &on_flash {
            match ctx.handle.read_visited(visited) {
                Some(read) => {
                    if self.reading == 0 {
                        (self.wait, self.reads_since) = flash.begin_dump_wait(self.owner);
                    }
                    flash.read(read, &[], ReadPurpose::Dump { owner: self.owner, number: self.wait });
                    self.reading += 1;
                }
                None => self.has_changed = true,
            }
        }
    }

    fn add_visited(&mut self, ctx: &Context, visited: VisitResult) {
        self.reading -= 1;
        match visited {
            VisitResult::Item(item) if item.is_between(self.group, self.next) => {
                let visited = VisitedItem { key: &item.key, info: item.info };
                self.format.line(&visited, ctx.shared.store.clock_origin(), &mut self.lines);
            }
            VisitResult::Changed => self.has_changed = true,
            VisitResult::Item(_) | VisitResult::Miss(_) | VisitResult::Failed => {}
            VisitResult::More(_) => unreachable!("the read goes on"),
        }
    }

    /// Sends the lines of the visited group; returns whether another group, or this one again, is to be visited.
    fn end_group(&mut self, out: &mut Vec<u8>) -> bool {
        // An item that came back to memory after the visit would be missing.
        if std::mem::take(&mut self.has_changed) && self.visits < GROUP_VISITS_MAX {
            self.lines.clear();
            return true;
        }
        self.limit.append(&mut self.lines, out);
        self.group = self.next;
        self.visits = 0;
        !self.group.is_done() && !self.limit.is_reached()
    }
}

impl ListLimit {
    fn is_reached(&self) -> bool {
        self.lines == 0
    }

    /// Moves lines to the end of `out`, as many as the limit allows.
    fn append(&mut self, lines: &mut Vec<u8>, out: &mut Vec<u8>) {
        if self.lines == u64::MAX && self.bytes == usize::MAX {
            out.append(lines);
            return;
        }
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            if line.len() > self.bytes {
                self.lines = 0;
            }
            if self.is_reached() {
                break;
            }
            (self.lines, self.bytes) = (self.lines - 1, self.bytes - line.len());
            out.extend_from_slice(line);
        }
        lines.clear();
    }
}

impl KeysFormat {
    fn line(self, visited: &VisitedItem<'_>, origin: u64, out: &mut Vec<u8>) {
        match self {
            KeysFormat::Metadump => metadump_line(visited, origin, out),
            KeysFormat::Mgdump => mgdump_line(visited.key, out),
            KeysFormat::Cachedump => cachedump_line(visited, origin, out),
        }
    }
}

fn metadump_line(visited: &VisitedItem<'_>, origin: u64, out: &mut Vec<u8>) {
    let info = &visited.info;
    out.extend_from_slice(b"key=");
    push_encoded(visited.key, out);
    out.extend_from_slice(b" exp=");
    match info.expiry.second() {
        0 => out.extend_from_slice(b"-1"),
        second => push_u64(out, origin + u64::from(second)),
    }
    for (name, value) in [(" la=", origin + u64::from(info.accessed)), (" cas=", info.cas)] {
        out.extend_from_slice(name.as_bytes());
        push_u64(out, value);
    }
    out.extend_from_slice(if info.fetched { b" fetch=yes" } else { b" fetch=no" });
    for (name, value) in
        [(" cls=", u64::from(ITEM_CLASS)), (" size=", info.bytes), (" flags=", u64::from(info.flags))]
    {
        out.extend_from_slice(name.as_bytes());
        push_u64(out, value);
    }
    out.push(b'\n');
}

/// Returns whether no byte of the key would end its word or line.
fn is_plain(key: &[u8]) -> bool {
    key.iter().all(|byte| *byte > b' ' && *byte != 0x7f)
}

/// Appends a line; a key that does not fit a line is encoded in base64.
fn mgdump_line(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"mg ");
    if is_plain(key) {
        out.extend_from_slice(key);
    } else {
        out.extend_from_slice(STANDARD.encode(key).as_bytes());
        out.extend_from_slice(b" b");
    }
    out.extend_from_slice(b"\r\n");
}

fn cachedump_line(visited: &VisitedItem<'_>, origin: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"ITEM ");
    if is_plain(visited.key) {
        out.extend_from_slice(visited.key)
    } else {
        push_encoded(visited.key, out)
    }
    out.extend_from_slice(b" [");
    push_u64(out, visited.info.len);
    out.extend_from_slice(b" b; ");
    match visited.info.expiry.second() {
        0 => out.push(b'0'),
        second => push_u64(out, origin + u64::from(second)),
    }
    out.extend_from_slice(b" s]\r\n");
}
