//! Text lines: classic commands; `m?` lines are passed to `meta`.

use memchr::memchr;

use crate::bounds::{AUTH_TOKEN_MAX, KEY_MAX, VALUE_MAX, WORDS_MAX};
use crate::command::{
    Accesses, Arithmetic, Command, Delete, Exptime, Request, Store, StoreMode, Touch, Words,
};
use crate::encoding::{Encoding, TextCommand, TextEncoding};
use crate::fabric;
use crate::line::{Line, Multiget};
use crate::meta;
use crate::number::{parse_i32, parse_i64, parse_signed_u64, parse_u32, parse_u64};
use crate::refusal::{BAD_EXPTIME, BAD_FORMAT, Refusal};

/// Parses a line, which is without its line end; `key` is room for a decoded meta key.
#[inline]
pub(crate) fn line<'a>(line: &'a [u8], key: &'a mut Vec<u8>) -> Line<'a> {
    let mut words = Words::new(line);
    let command = words.next().unwrap_or_default();
    // As in memcached, only some administrative commands may follow spaces.
    if line.first() == Some(&b' ') {
        return administration(command, words, line);
    }
    match command {
        b"get" => multiget(line, words, false, false),
        b"gets" => multiget(line, words, true, false),
        [b'm', letter] => meta::decode::line(*letter, words, key).unwrap_or_else(|| unknown(line)),
        b"set" => store(StoreMode::Set, false, words),
        b"add" => store(StoreMode::Add, false, words),
        b"replace" => store(StoreMode::Replace, false, words),
        b"append" => store(StoreMode::Append, false, words),
        b"prepend" => store(StoreMode::Prepend, false, words),
        b"cas" => store(StoreMode::Set, true, words),
        b"delete" => delete(words),
        b"incr" => arithmetic(false, words),
        b"decr" => arithmetic(true, words),
        b"touch" => touch(words),
        b"gat" => multiget(line, words, false, true),
        b"gats" => multiget(line, words, true, true),
        b"version" => request(Command::Version, TextEncoding::default()),
        b"quit" => request(Command::Quit, TextEncoding::default()),
        b"stats" => request(Command::Stats(words.bounded()), TextEncoding::default()),
        b"watch" => request(Command::Watch(words.bounded()), TextEncoding::default()),
        b"shm" => shm(words, line),
        b"fabric" => by_fabric(words, line),
        _ => administration(command, words, line),
    }
}

/// Parses a line of an unauthenticated connection: only `set <any> <any> <any> <length>`.
pub(crate) fn auth_line(line: &[u8]) -> Line<'_> {
    let set = line.starts_with(b"set ");
    match Words::new(line).nth(4).and_then(parse_u32).map(u64::from) {
        Some(len) if set && len <= AUTH_TOKEN_MAX => Line::Token { len },
        // The block is not consumed: its lines are refused like any others.
        Some(_) if set => refused(Refusal::Client("auth token too long"), TextEncoding::default()),
        _ => refused(Refusal::Client("unauthenticated"), TextEncoding::default()),
    }
}

/// Parses the data block of [`Line::Token`].
pub(crate) fn token(token: &[u8], intact: bool) -> Request<'_> {
    let command = match memchr(b' ', token) {
        _ if !intact => Command::Refused(Refusal::Client("bad command line termination")),
        Some(at) => Command::Authenticate { user: &token[..at], password: &token[at + 1..] },
        None => Command::Refused(Refusal::Client("bad authentication token format")),
    };
    let encoding = TextEncoding { command: TextCommand::Store, ..TextEncoding::default() };
    Request { command, encoding: Encoding::Text(encoding) }
}

/// The words after a command: a few by their place, their number, and whether the last says `noreply`.
struct Arguments<'a> {
    first: [&'a [u8]; 5],
    count: usize,
    last: &'a [u8],
}

impl<'a> Arguments<'a> {
    #[inline]
    fn of(words: Words<'a>) -> Arguments<'a> {
        let mut arguments = Arguments { first: [b""; 5], count: 0, last: b"" };
        for word in words.take(WORDS_MAX - 1) {
            if let Some(place) = arguments.first.get_mut(arguments.count) {
                *place = word;
            }
            arguments.count += 1;
            arguments.last = word;
        }
        arguments
    }

    /// Returns whether the last word is `noreply` and not one of the first `taken`. It may take the place of a
    /// missing argument: the error is silent then.
    fn noreply(&self, taken: usize) -> bool {
        self.count > taken && self.last == b"noreply"
    }
}

fn multiget<'a>(line: &'a [u8], mut words: Words<'a>, cas: bool, touch: bool) -> Line<'a> {
    let encoding = TextEncoding { command: TextCommand::Get, cas, ..TextEncoding::default() };
    let touch = if touch { words.next() } else { None };
    let keys = line.len() - words.len();
    let Some(first) = words.next() else { return refused(BAD_FORMAT, encoding) };
    let exptime = match touch.map(parse_i32) {
        None => None,
        Some(Some(seconds)) => Some(Exptime(seconds.into())),
        Some(None) => return refused(BAD_EXPTIME, encoding),
    };
    if first.len() > KEY_MAX || words.any(|key| key.len() > KEY_MAX) {
        return refused(BAD_FORMAT, encoding);
    }
    Line::Keys { keys, multiget: Multiget { cas, touch: exptime } }
}

fn store<'a>(mode: StoreMode, compare: bool, words: Words<'a>) -> Line<'a> {
    let arguments = Arguments::of(words);
    let [key, flags, exptime, len, cas] = arguments.first;
    let encoding = TextEncoding {
        command: TextCommand::Store,
        key,
        noreply: arguments.noreply(if compare { 4 } else { 3 }),
        ..TextEncoding::default()
    };
    let Some(len) = parse_i32(len).and_then(|len| u64::try_from(len).ok()).filter(|len| *len <= VALUE_MAX)
    else {
        // Without a length the data block cannot be recognized: the next line is parsed as a command.
        return refused(BAD_FORMAT, encoding);
    };
    let compare = if compare { Some(parse_u64(cas)) } else { None };
    match (parse_signed_u64(flags), parse_i64(exptime), compare) {
        (Some(flags), Some(exptime), None | Some(Some(_))) if key.len() <= KEY_MAX => Line::Store {
            store: Store {
                key,
                mode,
                // More than 32 bits are cut off, as in memcached: exptimes from 2^31 on are negative.
                flags: flags as u32,
                exptime: Exptime((exptime as i32).into()),
                compare: compare.flatten(),
                ..Store::default()
            },
            encoding: Encoding::Text(encoding),
            len,
        },
        _ => Line::Swallow { refusal: BAD_FORMAT, encoding: Encoding::Text(encoding), len },
    }
}

/// `delete <key> [noreply]`. Other words are ignored, as in memcached: what old clients send there is a delay of 0 or
/// more seconds, and they want the key to be gone.
fn delete<'a>(words: Words<'a>) -> Line<'a> {
    let arguments = Arguments::of(words);
    let [key, ..] = arguments.first;
    let encoding = TextEncoding { key, noreply: arguments.noreply(0), ..TextEncoding::default() };
    if arguments.count == 0 || key.len() > KEY_MAX {
        return refused(BAD_FORMAT, encoding);
    }
    request(Command::Delete(Delete { key, ..Delete::default() }), encoding)
}

fn arithmetic<'a>(decrement: bool, words: Words<'a>) -> Line<'a> {
    let arguments = Arguments::of(words);
    let [key, delta, ..] = arguments.first;
    let encoding = TextEncoding {
        command: TextCommand::Arithmetic,
        key,
        noreply: arguments.noreply(1),
        ..TextEncoding::default()
    };
    if arguments.count < 2 || key.len() > KEY_MAX {
        return refused(BAD_FORMAT, encoding);
    }
    match parse_u64(delta) {
        Some(delta) => request(
            Command::Arithmetic(Arithmetic { key, decrement, delta, ..Arithmetic::default() }),
            encoding,
        ),
        None => refused(Refusal::Client("invalid numeric delta argument"), encoding),
    }
}

fn touch<'a>(words: Words<'a>) -> Line<'a> {
    let arguments = Arguments::of(words);
    let [key, exptime, ..] = arguments.first;
    let encoding = TextEncoding { key, noreply: arguments.noreply(1), ..TextEncoding::default() };
    if arguments.count < 2 || key.len() > KEY_MAX {
        return refused(BAD_FORMAT, encoding);
    }
    match parse_i32(exptime) {
        Some(exptime) => request(Command::Touch(Touch { key, exptime: Exptime(exptime.into()) }), encoding),
        None => refused(BAD_EXPTIME, encoding),
    }
}

#[cold]
fn administration<'a>(command: &'a [u8], words: Words<'a>, line: &'a [u8]) -> Line<'a> {
    let silent = TextEncoding { noreply: Arguments::of(words.clone()).noreply(0), ..TextEncoding::default() };
    match command {
        b"flush_all" => flush(words, silent),
        b"verbosity" => verbosity(words, silent),
        b"cache_memlimit" => match words.clone().next().and_then(parse_u32) {
            Some(megabytes) => request(Command::CacheMemlimit(megabytes.into()), silent),
            None => refused(Refusal::UnknownCommand, silent),
        },
        b"shutdown" => {
            let mode = Some(words.text()).filter(|mode| !mode.is_empty());
            request(Command::Shutdown { mode }, TextEncoding::default())
        }
        b"refresh_certs" => request(Command::RefreshCerts, silent),
        b"lru_crawler" => request(Command::LruCrawler(words.bounded()), silent),
        b"lru" => request(Command::Lru(without_noreply(words)), silent),
        b"slabs" => request(Command::Slabs(without_noreply(words)), silent),
        b"extstore" => request(Command::Extstore(without_noreply(words)), silent),
        _ => unknown(line),
    }
}

/// `shm attach <channel version> <region version>` or `shm accessed <reads>`: fabcache's own, from a client of its host.
fn shm<'a>(mut words: Words<'a>, line: &'a [u8]) -> Line<'a> {
    let (verb, first, second) = (words.next(), words.next(), words.next());
    let number = |word: Option<&[u8]>| word.and_then(parse_u64);
    let command = match (verb, number(first), number(second), first.and_then(Accesses::new)) {
        (Some(b"attach"), Some(channel), Some(region), _) => Command::ShmAttach { channel, region },
        (Some(b"accessed"), _, _, Some(accesses)) => Command::ShmAccessed(accesses),
        (Some(b"attach" | b"accessed"), ..) => return refused(BAD_FORMAT, TextEncoding::default()),
        _ => return unknown(line),
    };
    request(command, TextEncoding::default())
}

/// `fabric hello …` or `fabric attach …`: fabcache's own.
fn by_fabric<'a>(mut words: Words<'a>, line: &'a [u8]) -> Line<'a> {
    let command = match words.next() {
        Some(b"hello") => fabric::hello(words),
        Some(b"attach") => fabric::attach(words),
        _ => return unknown(line),
    };
    match command {
        Some(command) => request(command, TextEncoding::default()),
        None => refused(BAD_FORMAT, TextEncoding::default()),
    }
}

fn flush<'a>(words: Words<'a>, encoding: TextEncoding<'a>) -> Line<'a> {
    match without_noreply(words).next().map(parse_i32) {
        None => request(Command::Flush(Exptime(0)), encoding),
        Some(Some(delay)) => request(Command::Flush(Exptime(delay.into())), encoding),
        Some(None) => refused(BAD_EXPTIME, encoding),
    }
}

fn verbosity<'a>(mut words: Words<'a>, encoding: TextEncoding<'a>) -> Line<'a> {
    match words.next().and_then(parse_u32) {
        Some(level) => request(Command::Verbosity(level), encoding),
        None => refused(BAD_FORMAT, encoding),
    }
}

/// An unknown command. A browser (or an attack through one) gets no answer.
fn unknown(line: &[u8]) -> Line<'_> {
    let mut words = Words::new(line);
    words.next();
    let arguments = Arguments::of(words);
    if arguments.last.starts_with(b"HTTP/") {
        return Line::Close;
    }
    let noreply = arguments.noreply(0);
    refused(Refusal::UnknownCommand, TextEncoding { noreply, ..TextEncoding::default() })
}

fn without_noreply(words: Words<'_>) -> Words<'_> {
    let words = words.bounded();
    let text = words.text();
    match text.strip_suffix(b"noreply") {
        Some(rest) if rest.is_empty() || rest.ends_with(b" ") => Words::new(rest),
        _ => words,
    }
}

fn request<'a>(command: Command<'a>, encoding: TextEncoding<'a>) -> Line<'a> {
    Line::Request(Request { command, encoding: Encoding::Text(encoding) })
}

fn refused<'a>(refusal: Refusal, encoding: TextEncoding<'a>) -> Line<'a> {
    request(Command::Refused(refusal), encoding)
}
