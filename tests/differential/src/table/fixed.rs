//! Commands whose answer depends only on the line: administration, and invalid arguments.

use crate::table::Protocol;
use crate::unit::Shape;

/// Lines of one command that have the same answer.
#[derive(Debug)]
pub struct Fixed {
    /// The command, as the coverage table names it.
    pub command: &'static str,
    /// The answer to each line.
    pub answer: &'static str,
    /// The lines, without their end.
    pub lines: &'static [&'static str],
}

impl Fixed {
    /// Returns the command's protocol.
    pub fn protocol(&self) -> Protocol {
        if matches!(self.command, "mn" | "me") { Protocol::Meta } else { Protocol::Text }
    }

    /// Returns the shape of the answer.
    pub fn shape(&self) -> Shape {
        if self.command.ends_with("noreply") { Shape::UntilSentinel } else { Shape::Line }
    }
}

const fn fixed(command: &'static str, answer: &'static str, lines: &'static [&'static str]) -> Fixed {
    Fixed { command, answer, lines }
}

const BAD_LINE: &str = "CLIENT_ERROR bad command line format";

/// All fixed lines. Settings are set to their defaults, or to values that change no other answer.
pub static TABLE: &[Fixed] = &[
    fixed("verbosity", "OK", &["verbosity 0", "verbosity 1", "verbosity 0 word", "verbosity 1 "]),
    fixed("verbosity", BAD_LINE, &["verbosity x", "verbosity -1", "verbosity 1x"]),
    fixed("stats reset", "RESET", &["stats reset"]),
    fixed("stats detail", "OK", &["stats detail off", "stats detail on"]),
    fixed(
        "stats detail",
        "CLIENT_ERROR usage: stats detail on|off|dump",
        &["stats detail", "stats detail maybe", "stats detail 1"],
    ),
    fixed("stats detail dump", "END", &["stats detail dump"]),
    fixed("stats extstore", "END", &["stats extstore"]),
    fixed("stats cachedump", "END", &["stats cachedump 60 1", "stats cachedump 62 0"]),
    fixed("stats cachedump", "CLIENT_ERROR bad command line", &["stats cachedump", "stats cachedump 1"]),
    fixed(
        "stats cachedump",
        BAD_LINE,
        &["stats cachedump a b", "stats cachedump 1 b", "stats cachedump -1 1"],
    ),
    fixed(
        "stats cachedump",
        "CLIENT_ERROR Illegal slab id",
        &["stats cachedump 64 1", "stats cachedump 200 1"],
    ),
    fixed("cache_memlimit", "OK", &["cache_memlimit 256"]),
    fixed("cache_memlimit", "ERROR", &["cache_memlimit", "cache_memlimit x", "cache_memlimit -1"]),
    fixed(
        "cache_memlimit",
        "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m",
        &["cache_memlimit 0", "cache_memlimit 7"],
    ),
    fixed(
        "cache_memlimit",
        "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes",
        &["cache_memlimit 1000000001", "cache_memlimit 4000000000"],
    ),
    fixed(
        "slabs",
        "ERROR",
        &[
            "slabs",
            "slabs nonesuch",
            "slabs automove",
            "slabs reassign 1",
            "slabs automove 3",
            "slabs automove ratio x",
        ],
    ),
    fixed("slabs", "OK", &["slabs automove 1", "slabs automove ratio 0.8"]),
    fixed(
        "slabs",
        BAD_LINE,
        &["slabs automove x", "slabs automove -1", "slabs reassign a b", "slabs reassign 1 b"],
    ),
    fixed("slabs", "SAME src and dst class are identical", &["slabs reassign 1 1", "slabs reassign 7 7"]),
    fixed(
        "slabs",
        "BADCLASS invalid src or dst class id",
        &["slabs reassign 1 999", "slabs reassign 999 1", "slabs reassign 1 -5"],
    ),
    fixed(
        "lru",
        "ERROR",
        &["lru nonesuch", "lru mode nonesuch", "lru temp_ttl x", "lru tune 20", "lru tune a b c d"],
    ),
    fixed("lru", "OK", &["lru mode flat", "lru temp_ttl -1", "lru tune 20 40 0.2 2.0"]),
    fixed(
        "lru",
        "ERROR hot and warm pcts must not exceed 80",
        &["lru tune 50 40 0.2 2.0", "lru tune 81 0 0.2 2.0"],
    ),
    fixed(
        "lru",
        "ERROR hot/warm age factors must be greater than 0",
        &["lru tune 20 40 0 2.0", "lru tune 20 40 0.2 0", "lru tune 20 40 -1 2.0"],
    ),
    fixed("lru_crawler", "ERROR", &["lru_crawler", "lru_crawler nonesuch", "lru_crawler nonesuch 1"]),
    fixed("lru_crawler", "OK", &["lru_crawler sleep 100", "lru_crawler tocrawl 0"]),
    fixed("lru_crawler", BAD_LINE, &["lru_crawler sleep x", "lru_crawler tocrawl x", "lru_crawler sleep -1"]),
    fixed("lru_crawler", "CLIENT_ERROR sleep must be one second or less", &["lru_crawler sleep 1000001"]),
    fixed("lru_crawler", "BADCLASS invalid class id", &["lru_crawler crawl 300", "lru_crawler crawl x"]),
    fixed("watch", "ERROR", &["watch nonesuch", "watch fetchers nonesuch"]),
    fixed(
        "extstore",
        "ERROR",
        &[
            "extstore",
            "extstore nonesuch",
            "extstore nonesuch 5",
            "extstore item_age x",
            "extstore item_size x",
        ],
    ),
    fixed(
        "extstore",
        "OK",
        &[
            "extstore item_age 5",
            "extstore item_size 512",
            "extstore free_memchunks 1 5",
            "extstore max_frag 0.8",
        ],
    ),
    fixed("refresh_certs", "Error TLS not enabled", &["refresh_certs"]),
    fixed(
        "delete noreply",
        "(nothing)",
        &["delete nonesuch 10 noreply", "delete nonesuch a noreply", "delete nonesuch noreply noreply"],
    ),
    fixed("incr noreply", "(nothing)", &["incr nonesuch x noreply", "incr nonesuch 1 noreply"]),
    fixed("decr noreply", "(nothing)", &["decr nonesuch x noreply", "decr nonesuch 1 noreply"]),
    fixed("touch noreply", "(nothing)", &["touch nonesuch x noreply", "touch nonesuch 0 noreply"]),
    fixed("flush_all noreply", "(nothing)", &["flush_all x noreply"]),
    fixed("verbosity noreply", "(nothing)", &["verbosity 0 noreply", "verbosity x noreply"]),
    fixed("mn", "MN", &["mn", "mn a b c", "mn  "]),
    fixed("version", "VERSION", &["version", "version a", "version 1 2 3"]),
    fixed("me", BAD_LINE, &["me"]),
];
