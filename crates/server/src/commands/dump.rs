//! Long lists of keys: metadump, mgdump. They are made as the client takes them, a group of buckets at a time.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fabcache_protocol::number::push_u64;
use fabcache_store::dump::{Cursor, VisitedItem};

use super::{Context, ITEM_CLASS};
use crate::bounds::{CACHEDUMP_BYTES_MAX, DUMPED_GROUPS_MAX, GATHERED_BYTES_MAX};
use crate::watch::push_encoded;

/// Which list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpKind {
    /// `key=… exp=… la=… cas=… fetch=… cls=… size=… flags=…`
    Metadump,
    /// `mg KEY`
    Mgdump,
}

/// A list on its way.
#[derive(Debug)]
pub struct Dump {
    kind: DumpKind,
    cursor: Option<Cursor>,
}

impl Dump {
    /// Starts a list; of nothing if `all` is false.
    pub fn new(kind: DumpKind, all: bool) -> Dump {
        Dump { kind, cursor: all.then_some(Cursor::START) }
    }

    /// Makes a part of the list, some tens of kilobytes at most; true when it was the last.
    pub fn go_on(&mut self, ctx: &mut Context) -> bool {
        let mut groups = 0;
        while let Some(cursor) = self.cursor.filter(|cursor| !cursor.is_done()) {
            if ctx.out.len() >= GATHERED_BYTES_MAX || groups == DUMPED_GROUPS_MAX {
                return false;
            }
            groups += 1;
            let (kind, origin) = (self.kind, ctx.shared.store.clock_origin());
            let out = &mut ctx.out;
            let visit = |visited: VisitedItem<'_>| match kind {
                DumpKind::Metadump => metadump_line(&visited, origin, out),
                DumpKind::Mgdump => mgdump_line(visited.key, out),
            };
            self.cursor = Some(ctx.handle.walk(cursor, visit, |_| {}));
        }
        ctx.out.extend_from_slice(if self.kind == DumpKind::Metadump { b"END\r\n" } else { b"EN\r\n" });
        true
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

/// `stats cachedump`: at most `limit` items (0 for all), and at most two megabytes of them.
pub fn cachedump(ctx: &mut Context, limit: u64) {
    let origin = ctx.shared.store.clock_origin();
    let start = ctx.out.len();
    let mut left = if limit == 0 { u64::MAX } else { limit };
    let mut cursor = Cursor::START;
    while !cursor.is_done() && left > 0 {
        let out = &mut ctx.out;
        let visit = |visited: VisitedItem<'_>| {
            if left == 0 || out.len() - start > CACHEDUMP_BYTES_MAX {
                left = 0;
                return;
            }
            left -= 1;
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
        };
        cursor = ctx.handle.walk(cursor, visit, |_| {});
    }
}
