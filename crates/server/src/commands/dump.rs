//! Long answers, made in parts as the client takes them: lists of keys, connections, prefixes, sizes and flash segments.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fabcache_protocol::number::push_u64;
use fabcache_protocol::{Encoding, Reply, SavedEncoding};
use fabcache_store::FetchedItem;
use fabcache_store::dump::{Cursor, VisitedItem};

use super::stats::{ConnectionList, FlashSegmentList, PrefixList, SizeList};
use super::{Context, ITEM_CLASS, Session, saved};
use crate::bounds::{CACHEDUMP_BYTES_MAX, DUMPED_GROUPS_MAX, GATHERED_BYTES_MAX};
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
    /// `lru_crawler metadump` and `mgdump`.
    Keys(KeyList),
    /// `stats cachedump`.
    Items(ItemList),
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

    /// Takes the result of a read of an item on flash; returns whether it was the last.
    pub fn add_fetched(&mut self, ctx: &Context, fetched: Option<&FetchedItem>) -> bool {
        let List::Keys(keys) = &mut self.list else { return false };
        keys.add_fetched(ctx, fetched);
        keys.reading == 0
    }

    /// Makes a part of the list, some tens of kilobytes at most; true when it was the last. It is not called while the list
    /// waits for flash.
    pub fn go_on(&mut self, ctx: &mut Context) -> bool {
        let encoding = self.encoding.encoding();
        match &mut self.list {
            List::Keys(keys) => keys.go_on(ctx),
            List::Items(items) => items.go_on(ctx, &encoding),
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

/// All keys, also of items on flash, which are read a few groups of the index at a time.
#[derive(Debug)]
pub struct KeyList {
    format: KeysFormat,
    cursor: Cursor,
    /// The connection to continue when reads have ended.
    owner: ConnectionToken,
    /// Reads of flash under way.
    reading: usize,
    /// Lines of items that were read.
    lines: Vec<u8>,
}

impl KeyList {
    /// Lists all keys from a cursor, to the connection of this session.
    pub fn new(format: KeysFormat, cursor: Cursor, session: &Session) -> KeyList {
        KeyList { format, cursor, owner: session.place, reading: 0, lines: Vec::new() }
    }

    fn go_on(&mut self, ctx: &mut Context) -> bool {
        ctx.out.append(&mut self.lines);
        let (format, origin) = (self.format, ctx.shared.store.clock_origin());
        let mut groups = 0;
        while !self.cursor.is_done() {
            if ctx.out.len() >= GATHERED_BYTES_MAX || groups == DUMPED_GROUPS_MAX || self.reading > 0 {
                return false;
            }
            groups += 1;
            let mut on_flash = Vec::new();
            let line = |visited: VisitedItem<'_>| format.line(&visited, origin, &mut ctx.out);
            self.cursor = ctx.handle.walk_all(self.cursor, line, |_| {}, |visited| on_flash.push(visited));
            let Some(flash) = &mut ctx.flash else { continue };
            for read in on_flash.iter().filter_map(|visited| ctx.handle.read_visited(visited)) {
                flash.read(read, &[], ReadPurpose::Dump { owner: self.owner });
                self.reading += 1;
            }
        }
        if self.reading > 0 {
            return false;
        }
        ctx.out.extend_from_slice(if format == KeysFormat::Metadump { b"END\r\n" } else { b"EN\r\n" });
        true
    }

    fn add_fetched(&mut self, ctx: &Context, fetched: Option<&FetchedItem>) {
        self.reading -= 1;
        if let Some(fetched) = fetched {
            let store = &ctx.shared.store;
            let visited = VisitedItem { key: fetched.key(), info: fetched.info(store.now()) };
            self.format.line(&visited, store.clock_origin(), &mut self.lines);
        }
    }
}

impl KeysFormat {
    fn line(self, visited: &VisitedItem<'_>, origin: u64, out: &mut Vec<u8>) {
        match self {
            KeysFormat::Metadump => metadump_line(visited, origin, out),
            KeysFormat::Mgdump => mgdump_line(visited.key, out),
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

/// `stats cachedump`: a limited number of items, and at most two megabytes of them.
#[derive(Debug)]
pub struct ItemList {
    cursor: Cursor,
    items_left: u64,
    bytes: usize,
}

impl ItemList {
    /// Lists at most `limit` items, 0 for all.
    pub fn new(limit: u64) -> ItemList {
        let items_left = if limit == 0 { u64::MAX } else { limit };
        ItemList { cursor: Cursor::START, items_left, bytes: 0 }
    }

    fn go_on(&mut self, ctx: &mut Context, encoding: &Encoding<'_>) -> bool {
        let origin = ctx.shared.store.clock_origin();
        let ItemList { cursor, items_left, bytes } = self;
        let is_last = walk_part(cursor, ctx, |visited, out| {
            if *items_left == 0 || *bytes > CACHEDUMP_BYTES_MAX {
                *items_left = 0;
                return;
            }
            *items_left -= 1;
            let start = out.len();
            cachedump_line(visited, origin, out);
            *bytes += out.len() - start;
        });
        if !is_last && self.items_left > 0 {
            return false;
        }
        encoding.reply(&Reply::StatsEnd, &mut ctx.out);
        true
    }
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
