//! `stats` and its subcommands, for text and binary.

mod counts;
mod engine;
mod general;
mod settings;

use std::fmt::Display;

use fabcache_protocol::command::Words;
use fabcache_protocol::{Encoding, Protocol, Refusal, Reply};

use super::{Context, ITEM_CLASS, dump, protocol, refused};

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
pub fn stats(ctx: &mut Context, mut words: Words<'_>, encoding: &Encoding<'_>) {
    let mut out = std::mem::take(&mut ctx.out);
    let report = Report::new(encoding, &mut out);
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
        Some(b"sizes") => {
            engine::sizes(ctx, report);
            None
        }
        Some(b"conns") => {
            counts::connections(ctx, report);
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
        Some(b"detail") => detail(ctx, words, encoding, &mut out),
        Some(b"cachedump") => {
            ctx.out = out;
            let refusal = cachedump(ctx, words, encoding);
            out = std::mem::take(&mut ctx.out);
            refusal
        }
        Some(_) => Some(refused(Refusal::UnknownCommand)),
    };
    if let Some(refusal) = refusal {
        encoding.reply(&refusal, &mut out);
    }
    ctx.out = out;
}

fn detail(
    ctx: &Context,
    mut words: Words<'_>,
    encoding: &Encoding<'_>,
    out: &mut Vec<u8>,
) -> Option<Reply<'static>> {
    if !ctx.shared.settings.dump_enabled {
        return Some(refused(Refusal::Client("stats detail not allowed")));
    }
    match words.next() {
        Some(word @ (b"on" | b"off")) => {
            ctx.shared.prefixes.set(word == b"on");
            Some(Reply::Ok)
        }
        Some(b"dump") => {
            counts::prefixes(ctx, encoding, out);
            None
        }
        _ => Some(refused(Refusal::Client("usage: stats detail on|off|dump"))),
    }
}

fn cachedump(ctx: &mut Context, mut words: Words<'_>, encoding: &Encoding<'_>) -> Option<Reply<'static>> {
    if !ctx.shared.settings.dump_enabled {
        return Some(refused(Refusal::Client("stats cachedump not allowed")));
    }
    let number = |word: Option<&[u8]>| word.map(fabcache_protocol::number::parse_u64);
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
    if class == u64::from(ITEM_CLASS) {
        dump::cachedump(ctx, limit);
    }
    Some(Reply::StatsEnd)
}
