//! `stats conns`, `stats detail dump` and `stats sizes`: made in parts, for their length has no other bound.

use std::collections::BTreeMap;
use std::io::Write as _;

use fabcache_protocol::{Encoding, Protocol, Reply};
use fabcache_store::dump::{Cursor, VisitedItem};
use fabcache_transport::Kind;

use super::super::dump::walk_part;
use super::super::protocol;
use super::{Context, Report};
use crate::bounds::{GATHERED_BYTES_MAX, LISTED_CONNECTIONS_MAX, SIZES_MAX};
use crate::connections::Position;

/// `stats conns`, up to a connection.
#[derive(Debug, Default)]
pub struct ConnectionList(Option<Position>);

impl ConnectionList {
    /// Lists the next connections; true when they were the last.
    pub fn go_on(&mut self, ctx: &mut Context, encoding: &Encoding<'_>) -> bool {
        let now = ctx.shared.store.now();
        let part = ctx.shared.connections.after(self.0, LISTED_CONNECTIONS_MAX);
        self.0 = part.last().map(Position::of);
        let mut report = Report::new(encoding, &mut ctx.out);
        for info in &part {
            let prefix = match info.kind {
                Kind::Tcp if info.address.starts_with('[') => "tcp6",
                Kind::Tcp => "tcp",
                Kind::Udp if info.address.starts_with('[') => "udp6",
                Kind::Udp => "udp",
                Kind::Unix => "unix",
                Kind::Shm => "shm",
                Kind::Fabric => "fab",
                Kind::OpenShmem => "openshmem",
                Kind::Memory => "memory",
            };
            let fd = info.fd;
            if info.kind == Kind::Udp {
                report.stat(&format!("{fd}:UDP"), "UDP");
            }
            report.stat(&format!("{fd}:addr"), format_args!("{prefix}:{}", info.address));
            if let Some(listener) = &info.listener {
                report.stat(&format!("{fd}:listen_addr"), format_args!("{prefix}:{listener}"));
            }
            report.stat(&format!("{fd}:state"), info.state_name());
            report.stat(&format!("{fd}:secs_since_last_cmd"), now.saturating_sub(info.last_command()));
        }
        let is_last = part.len() < LISTED_CONNECTIONS_MAX;
        if is_last {
            report.end();
        }
        is_last
    }
}

/// `stats detail dump`, up to a prefix.
#[derive(Debug, Default)]
pub struct PrefixList(Option<Vec<u8>>);

impl PrefixList {
    /// Lists the next prefixes; true when they were the last. Text gets the lines as they are, binary those of each
    /// part in a packet.
    pub fn go_on(&mut self, ctx: &mut Context, encoding: &Encoding<'_>) -> bool {
        let is_text = protocol(encoding) == Protocol::Text;
        let mut lines = if is_text { std::mem::take(&mut ctx.out) } else { Vec::new() };
        let mut last = None;
        let is_last = ctx.shared.prefixes.visit_after(self.0.as_deref(), |prefix, counts| {
            if lines.len() >= GATHERED_BYTES_MAX {
                return false;
            }
            lines.extend_from_slice(b"PREFIX ");
            lines.extend_from_slice(prefix);
            let (gets, hits) = (counts.gets, counts.hits);
            let _ = write!(lines, " get {gets} hit {hits} set {} del {}\r\n", counts.sets, counts.deletes);
            last.get_or_insert_with(Vec::new).clear();
            last.get_or_insert_with(Vec::new).extend_from_slice(prefix);
            true
        });
        self.0 = last.or(self.0.take());
        if is_text {
            ctx.out = lines;
        } else {
            if is_last {
                lines.extend_from_slice(b"END\r\n");
            }
            encoding.reply(&Reply::Stat { name: b"detailed", value: &lines }, &mut ctx.out);
        }
        if is_last {
            encoding.reply(&Reply::StatsEnd, &mut ctx.out);
        }
        is_last
    }
}

/// `stats sizes`: how many items there are of each size, in steps of 32 bytes, with `-o track_sizes`.
///
/// All items are scanned for the shortest sizes not yet listed, and again if there are too many to keep.
#[derive(Debug)]
pub struct SizeList {
    cursor: Cursor,
    /// The shortest size that is not listed yet.
    from: u64,
    /// Upper bounds of steps that have items, and how many.
    found: BTreeMap<u64, u64>,
    has_longer: bool,
}

impl SizeList {
    /// Nothing is scanned.
    pub fn new() -> SizeList {
        SizeList::from(0)
    }

    fn from(from: u64) -> SizeList {
        SizeList { cursor: Cursor::START, from, found: BTreeMap::new(), has_longer: false }
    }

    /// Scans some items, or lists the next sizes; true when they were the last.
    pub fn go_on(&mut self, ctx: &mut Context, encoding: &Encoding<'_>) -> bool {
        let mut cursor = self.cursor;
        let is_scanned = walk_part(&mut cursor, ctx, |visited, _| self.note(visited));
        self.cursor = cursor;
        if !is_scanned {
            return false;
        }
        let mut report = Report::new(encoding, &mut ctx.out);
        while let Some((bytes, items)) = self.found.pop_first() {
            report.stat(&bytes.to_string(), items);
            self.from = bytes + 1;
            if report.out.len() >= GATHERED_BYTES_MAX {
                return false;
            }
        }
        if self.has_longer {
            *self = SizeList::from(self.from);
            return false;
        }
        report.end();
        true
    }

    fn note(&mut self, visited: &VisitedItem<'_>) {
        /// Items are counted in steps of this.
        const STEP_BYTES: u64 = 32;
        let bytes = visited.info.bytes.div_ceil(STEP_BYTES) * STEP_BYTES;
        if bytes < self.from {
            return;
        }
        *self.found.entry(bytes).or_default() += 1;
        if self.found.len() > SIZES_MAX {
            // Once dropped, a size is longer than all that are kept, and is dropped each time.
            self.found.pop_last();
            self.has_longer = true;
        }
    }
}
