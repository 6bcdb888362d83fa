//! `stats` and its subcommands, for text and binary.

mod engine;
mod flash;
mod general;
mod lists;
mod openshmem;
mod settings;

use std::fmt::Display;

use fabcache_protocol::command::Words;
use fabcache_protocol::number::parse_u32;
use fabcache_protocol::{Encoding, Protocol, Refusal, Reply};
use fabcache_transport::Kind;

use super::dump::{Dump, KeyList, List};
use super::{Context, ITEM_CLASS, Role, Session, protocol, refused};
pub use flash::FlashSegmentList;
pub use lists::{ConnectionList, PrefixList, SizeList};

/// Slab classes that memcached has names for.
const CLASSES: u64 = 64;

/// Writes statistics into the answer.
struct Report<'a> {
    encoding: &'a Encoding<'a>,
    out: &'a mut Vec<u8>,
    text: String,
}

impl<'a> Report<'a> {
    fn new(encoding: &'a Encoding<'a>, out: &'a mut Vec<u8>) -> Report<'a> {
        Report { encoding, out, text: String::new() }
    }

    fn stat(&mut self, name: &str, value: impl Display) {
        use std::fmt::Write as _;
        self.text.clear();
        let _ = write!(self.text, "{value}");
        let stat = Reply::Stat { name: name.as_bytes(), value: self.text.as_bytes() };
        self.encoding.reply(&stat, self.out);
    }

    fn yes_no(&mut self, name: &str, value: bool) {
        self.stat(name, if value { "yes" } else { "no" });
    }

    fn end(self) {
        self.encoding.reply(&Reply::StatsEnd, self.out);
    }
}

/// Answers `stats`, plain or with a subcommand.
pub fn stats(ctx: &mut Context, session: &mut Session, mut words: Words<'_>, encoding: &Encoding<'_>) {
    let mut out = std::mem::take(&mut ctx.out);
    let mut report = Report::new(encoding, &mut out);
    let mut list = None;
    let refusal = match words.next() {
        None => {
            general::report(ctx, report);
            None
        }
        Some(b"settings") => {
            settings::report(ctx, report);
            None
        }
        Some(b"items") => {
            engine::items(ctx, report);
            None
        }
        Some(b"slabs") => {
            engine::slabs(ctx, report);
            None
        }
        // It scans all items, and a datagram is answered in one turn.
        Some(b"sizes") if ctx.shared.settings.extended.track_sizes && session.info.kind == Kind::Udp => {
            Some(refused(Refusal::Client("stats sizes needs a connection")))
        }
        Some(b"sizes") => {
            if ctx.shared.settings.extended.track_sizes {
                list = Some(List::Sizes(SizeList::new()));
            } else {
                report.stat("sizes_status", "disabled");
                report.end();
            }
            None
        }
        Some(b"conns") => {
            list = Some(List::Connections(ConnectionList::default()));
            None
        }
        // It lists all flash segments, and a datagram is answered in one turn.
        Some(b"extstore") if ctx.shared.settings.flash.is_some() && session.info.kind == Kind::Udp => {
            Some(refused(Refusal::Client("stats extstore needs a connection")))
        }
        Some(b"extstore") => {
            list = Some(List::FlashSegments(FlashSegmentList::default()));
            None
        }
        Some(b"fabcache") => {
            engine::fabcache(ctx, report);
            None
        }
        Some(b"reset") => {
            ctx.shared.reset_sums();
            encoding.reply(&Reply::Line(b"RESET"), &mut out);
            None
        }
        Some(b"detail") => detail(ctx, words, &mut list),
        Some(b"cachedump") => cachedump(ctx, session, words, encoding, &mut list),
        Some(_) => Some(refused(Refusal::UnknownCommand)),
    };
    if let Some(refusal) = refusal {
        encoding.reply(&refusal, &mut out);
    }
    ctx.out = out;
    if let Some(list) = list {
        session.role = Role::Dumping(Box::new(Dump::new(list, encoding)));
    }
}

fn detail(ctx: &Context, mut words: Words<'_>, list: &mut Option<List>) -> Option<Reply<'static>> {
    if !ctx.shared.settings.dump_enabled {
        return Some(refused(Refusal::Client("stats detail not allowed")));
    }
    match words.next() {
        Some(word @ (b"on" | b"off")) => {
            ctx.shared.prefixes.set(word == b"on");
            Some(Reply::Ok)
        }
        Some(b"dump") => {
            *list = Some(List::Prefixes(PrefixList::default()));
            None
        }
        _ => Some(refused(Refusal::Client("usage: stats detail on|off|dump"))),
    }
}

fn cachedump(
    ctx: &Context,
    session: &Session,
    mut words: Words<'_>,
    encoding: &Encoding<'_>,
    list: &mut Option<List>,
) -> Option<Reply<'static>> {
    if !ctx.shared.settings.dump_enabled {
        return Some(refused(Refusal::Client("stats cachedump not allowed")));
    }
    // It scans items, and a datagram is answered in one turn.
    if session.info.kind == Kind::Udp {
        return Some(refused(Refusal::Client("a dump needs a connection")));
    }
    let number = |word: Option<&[u8]>| word.map(|word| parse_u32(word).map(u64::from));
    let (class, limit) = match (number(words.next()), number(words.next())) {
        (Some(Some(class)), Some(Some(limit))) => (class, limit),
        (None, _) | (_, None) => return Some(refused(Refusal::Client("bad command line"))),
        _ => return Some(refused(Refusal::Client("bad command line format"))),
    };
    if class >= CLASSES {
        return Some(refused(Refusal::Client("Illegal slab id")));
    }
    if protocol(encoding) == Protocol::Binary {
        // The list is text; binary clients get its end.
        return Some(Reply::StatsEnd);
    }
    if class != u64::from(ITEM_CLASS) {
        return Some(Reply::StatsEnd);
    }
    *list = Some(List::Keys(KeyList::cachedump(limit, session)));
    None
}
