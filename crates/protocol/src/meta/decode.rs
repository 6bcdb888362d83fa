//! Meta lines. Every command accepts every known flag, and ignores those that do not concern it, as memcached does.

use super::{base64, flags};
use crate::bounds::{KEY_MAX, META_WORDS_MAX, OPAQUE_MAX, VALUE_MAX, WORDS_MAX};
use crate::command::{Arithmetic, Command, Delete, Exptime, Get, Request, Store, StoreMode, Words};
use crate::encoding::{Encoding, MetaCommand, MetaEncoding};
use crate::line::Line;
use crate::number::{parse_i32, parse_u32, parse_u64};
use crate::refusal::{BAD_FORMAT, Refusal};

const BAD_TOKEN: Refusal = Refusal::Client("bad token in command line format");
const DUPLICATE_FLAG: Refusal = Refusal::Client("duplicate flag");
const INVALID_FLAG: Refusal = Refusal::Client("invalid flag");
const TOO_MANY_FLAGS: Refusal = Refusal::Client("options flags are too long");
const OPAQUE_TOO_LONG: Refusal = Refusal::Client("opaque token too long");
const BAD_KEY: Refusal = Refusal::Client("error decoding key");

/// Parses what follows `m<letter>`; none when there is no such command.
pub(crate) fn line<'a>(letter: u8, mut words: Words<'a>, room: &'a mut Vec<u8>) -> Option<Line<'a>> {
    let command = match letter {
        b'g' => MetaCommand::Get,
        b's' => MetaCommand::Set,
        b'd' => MetaCommand::Delete,
        b'a' => MetaCommand::Arithmetic,
        b'n' => MetaCommand::Noop,
        b'e' => MetaCommand::Inspect,
        _ => return None,
    };
    let mut encoding = MetaEncoding::new(command);
    if command == MetaCommand::Noop {
        return Some(request(Command::Noop, encoding));
    }
    encoding.key = words.next().unwrap_or_default();
    if encoding.key.is_empty() {
        return Some(refused(BAD_FORMAT, encoding));
    }
    Some(match command {
        MetaCommand::Inspect => inspect(words, encoding, room),
        MetaCommand::Set => set(words, encoding, room),
        _ => keyed(words, encoding, room),
    })
}

/// `me <key> [b]`. Other flags are ignored.
fn inspect<'a>(mut words: Words<'a>, mut encoding: MetaEncoding<'a>, room: &'a mut Vec<u8>) -> Line<'a> {
    if encoding.key.len() > KEY_MAX || !may_be_flags(words.text(), 2) {
        return refused(BAD_FORMAT, encoding);
    }
    encoding.binary_key = words.next() == Some(b"b");
    match decoded_key(&encoding, room) {
        Some(key) => request(Command::Inspect(key), MetaEncoding { key, ..encoding }),
        None => refused(BAD_FORMAT, encoding),
    }
}

/// `ms <key> <length> <flags>*`
fn set<'a>(mut words: Words<'a>, mut encoding: MetaEncoding<'a>, room: &'a mut Vec<u8>) -> Line<'a> {
    let len = words.next().and_then(parse_i32).and_then(|len| u64::try_from(len).ok());
    let Some(len) = len.filter(|len| *len <= VALUE_MAX) else {
        // Without a length the data block cannot be recognized: the next line is parsed as a command.
        return refused(BAD_FORMAT, encoding);
    };
    encoding.flags = words.text();
    encoding.value_len = len;
    let flags = match Flags::of(encoding.flags, 3) {
        // memcached does not read the length of such a line.
        Err(BAD_FORMAT) => return refused(BAD_FORMAT, encoding),
        flags if encoding.key.len() <= KEY_MAX => flags,
        _ => Err(BAD_FORMAT),
    };
    let flags = match flags {
        Ok(flags) => flags,
        Err(refusal) => return Line::Swallow { refusal, encoding: Encoding::Meta(encoding), len },
    };
    encoding.take(&flags);
    let swallow = |refusal| Line::Swallow { refusal, encoding: Encoding::Meta(encoding), len };
    let key = match flags.key(&encoding, room) {
        Ok(key) => key,
        Err(refusal) => return swallow(refusal),
    };
    let mode = match flags.mode {
        ModeFlag::Absent | ModeFlag::Letter(b'S') => StoreMode::Set,
        ModeFlag::Letter(b'E') => StoreMode::Add,
        ModeFlag::Letter(b'A') => StoreMode::Append,
        ModeFlag::Letter(b'P') => StoreMode::Prepend,
        ModeFlag::Letter(b'R') => StoreMode::Replace,
        ModeFlag::Empty | ModeFlag::Letter(_) => {
            return swallow(Refusal::Client("invalid mode for ms M token"));
        }
    };
    if flags.opaque_too_long {
        return swallow(OPAQUE_TOO_LONG);
    }
    // Replacing an item with a known CAS value is a set; adding has nothing to compare with; 0 means no comparison
    // where memcached stores it with the new item.
    let (mode, compare) = match mode {
        StoreMode::Set | StoreMode::Replace if flags.compare.is_some() => (StoreMode::Set, flags.compare),
        StoreMode::Append | StoreMode::Prepend => (mode, flags.compare.filter(|cas| *cas != 0)),
        _ => (mode, None),
    };
    let pending = matches!(mode, StoreMode::Append | StoreMode::Prepend);
    let store = Store {
        key,
        mode,
        flags: flags.client_flags,
        exptime: flags.touch.unwrap_or_default(),
        compare,
        new_cas: flags.new_cas,
        invalidate: flags.invalidate && compare.is_some() && !pending,
        vivify: flags.vivify.filter(|_| pending),
        ..Store::default()
    };
    Line::Store { store, encoding: Encoding::Meta(MetaEncoding { key, ..encoding }), len }
}

/// `mg`, `md`, `ma`: `<key> <flags>*`
fn keyed<'a>(words: Words<'a>, mut encoding: MetaEncoding<'a>, room: &'a mut Vec<u8>) -> Line<'a> {
    encoding.flags = words.text();
    let arithmetic = encoding.command == MetaCommand::Arithmetic;
    // `ma` does not say what is wrong.
    let worded = |refusal| if arithmetic { Refusal::Client("invalid or duplicate flag") } else { refusal };
    let flags = match Flags::of(encoding.flags, 2) {
        Err(BAD_FORMAT) => return refused(BAD_FORMAT, encoding),
        flags if encoding.key.len() <= KEY_MAX => flags,
        _ => Err(BAD_FORMAT),
    };
    let flags = match flags {
        Ok(flags) => flags,
        Err(refusal) => return refused(worded(refusal), encoding),
    };
    encoding.take(&flags);
    let key = match flags.key(&encoding, room) {
        Ok(key) => key,
        Err(refusal) => return refused(worded(refusal), encoding),
    };
    let decrement = match flags.mode {
        ModeFlag::Absent | ModeFlag::Letter(b'I' | b'+') => false,
        ModeFlag::Letter(b'D' | b'-') => true,
        _ if arithmetic => return refused(Refusal::Client("invalid mode for ma M token"), encoding),
        _ => false,
    };
    if flags.opaque_too_long {
        return refused(OPAQUE_TOO_LONG, encoding);
    }
    encoding.key = key;
    let command = match encoding.command {
        MetaCommand::Get => Command::Get(flags.get(key)),
        MetaCommand::Delete => Command::Delete(flags.delete(key)),
        _ => Command::Arithmetic(flags.arithmetic(key, decrement)),
    };
    request(command, encoding)
}

/// The flag `M`.
#[derive(Clone, Copy, Default)]
enum ModeFlag {
    #[default]
    Absent,
    /// It has no token.
    Empty,
    /// The first byte of its token.
    Letter(u8),
}

/// The flags of one line, parsed.
#[derive(Default)]
struct Flags {
    /// The last token that is wrong. The line is read to its end for worse.
    error: Option<Refusal>,
    /// The same of the tokens before `b`.
    error_before_key: Option<Refusal>,
    /// The token of `F` is wrong, which counts only if nothing else is.
    bad_client_flags: bool,
    opaque_too_long: bool,
    quiet: bool,
    value: bool,
    binary_key: bool,
    no_bump: bool,
    invalidate: bool,
    drop_value: bool,
    touch: Option<Exptime>,
    vivify: Option<Exptime>,
    recache: Option<Exptime>,
    client_flags: u32,
    compare: Option<u64>,
    new_cas: Option<u64>,
    mode: ModeFlag,
    initial: u64,
    delta: Option<u64>,
    ttl: bool,
    ttl_before_touch: bool,
    /// The token of the last `T` or `N` so far, and of that before `t`.
    last_expiry: Option<Exptime>,
    created_ttl: Option<Exptime>,
    recache_before_touch: bool,
    vivify_before_touch: bool,
}

impl Flags {
    /// Parses the flags that follow the `before` first words of a line. [`BAD_FORMAT`] if a word cannot be a flag.
    #[inline]
    fn of(text: &[u8], before: usize) -> Result<Flags, Refusal> {
        Flags::parse(text, before)
            .map_err(|refusal| if may_be_flags(text, before) { refusal } else { BAD_FORMAT })
    }

    #[inline]
    fn parse(text: &[u8], before: usize) -> Result<Flags, Refusal> {
        let mut parsed = Flags::default();
        let most = META_WORDS_MAX - before;
        // With the spaces between them, so many words take more bytes than most lines have.
        if text.len() > 2 * most && flags(text).count() > most {
            return Err(TOO_MANY_FLAGS);
        }
        let mut seen = 0u128;
        for flag in flags(text) {
            let (letter, token) = (flag[0], &flag[1..]);
            if letter >= 127 || seen & (1 << letter) != 0 {
                return Err(DUPLICATE_FLAG);
            }
            seen |= 1 << letter;
            parsed.take(letter, token)?;
        }
        Ok(parsed)
    }

    #[inline]
    fn take(&mut self, letter: u8, token: &[u8]) -> Result<(), Refusal> {
        match letter {
            b'q' => self.quiet = true,
            b'v' => self.value = true,
            b'b' => {
                self.binary_key = true;
                self.error_before_key = self.error.take();
            }
            b'u' => self.no_bump = true,
            b'I' => self.invalidate = true,
            b'x' => self.drop_value = true,
            b't' => {
                self.ttl = true;
                self.created_ttl = self.last_expiry;
            }
            b'O' => self.opaque_too_long = token.len() >= OPAQUE_MAX,
            b'T' => {
                self.touch = self.seconds(token);
                self.last_expiry = self.touch;
                self.ttl_before_touch = self.ttl;
                self.recache_before_touch = self.recache.is_some();
                self.vivify_before_touch = self.vivify.is_some();
            }
            b'N' => {
                self.vivify = self.seconds(token);
                self.last_expiry = self.vivify;
            }
            b'R' => self.recache = self.seconds(token),
            b'C' => self.compare = self.number(token, BAD_TOKEN),
            // 0 is no CAS value: the server picks one.
            b'E' => self.new_cas = self.number(token, BAD_TOKEN).filter(|cas| *cas != 0),
            b'J' => {
                let refusal = Refusal::Client("invalid numeric initial value");
                self.initial = self.number(token, refusal).unwrap_or_default();
            }
            b'D' => self.delta = self.number(token, Refusal::Client("invalid numeric delta value")),
            b'F' => match parse_u32(token) {
                Some(flags) => self.client_flags = flags,
                None => self.bad_client_flags = true,
            },
            b'M' => self.mode = token.first().map_or(ModeFlag::Empty, |letter| ModeFlag::Letter(*letter)),
            b'P' | b'L' | b'k' | b's' | b'c' | b'f' | b'l' | b'h' => {}
            _ => return Err(INVALID_FLAG),
        }
        Ok(())
    }

    fn seconds(&mut self, token: &[u8]) -> Option<Exptime> {
        let seconds = parse_i32(token);
        if seconds.is_none() {
            self.error = Some(BAD_TOKEN);
        }
        seconds.map(|seconds| Exptime(seconds.into()))
    }

    fn number(&mut self, token: &[u8], refusal: Refusal) -> Option<u64> {
        let number = parse_u64(token);
        if number.is_none() {
            self.error = Some(refusal);
        }
        number
    }

    /// Returns the decoded key, or why the line is refused.
    #[inline]
    fn key<'a>(&self, encoding: &MetaEncoding<'a>, room: &'a mut Vec<u8>) -> Result<&'a [u8], Refusal> {
        let key = decoded_key(encoding, room).ok_or(self.error.unwrap_or(BAD_KEY))?;
        let bad_client_flags = self.bad_client_flags.then_some(BAD_FORMAT);
        match self.error.or(self.error_before_key).or(bad_client_flags) {
            Some(refusal) => Err(refusal),
            None => Ok(key),
        }
    }

    /// Returns the expiry time of a created item: that of `N`, unless a later `T` overrides it.
    fn created(&self) -> Option<Exptime> {
        if self.vivify_before_touch { self.touch } else { self.vivify }
    }

    fn get<'a>(&self, key: &'a [u8]) -> Get<'a> {
        Get {
            key,
            value: self.value,
            compare: self.compare,
            touch: self.touch,
            ttl_before_touch: self.ttl_before_touch,
            created_ttl: self.created_ttl,
            vivify: self.created(),
            recache: self.recache,
            recache_before_touch: self.recache_before_touch,
            new_cas: self.new_cas,
            no_bump: self.no_bump,
        }
    }

    fn delete<'a>(&self, key: &'a [u8]) -> Delete<'a> {
        Delete {
            key,
            compare: self.compare,
            new_cas: self.new_cas,
            stale: self.invalidate,
            touch: self.touch,
            drop_value: self.drop_value,
            flags: self.client_flags,
        }
    }

    fn arithmetic<'a>(&self, key: &'a [u8], decrement: bool) -> Arithmetic<'a> {
        Arithmetic {
            key,
            decrement,
            delta: self.delta.unwrap_or(1),
            create: self.created().map(|exptime| (self.initial, exptime)),
            touch: self.touch,
            ttl_before_touch: self.ttl_before_touch,
            created_ttl: self.created_ttl,
            compare: self.compare.filter(|cas| *cas != 0),
            new_cas: self.new_cas,
        }
    }
}

impl<'a> MetaEncoding<'a> {
    fn take(&mut self, flags: &Flags) {
        self.quiet = flags.quiet;
        self.value = flags.value;
        self.binary_key = flags.binary_key;
    }
}

/// Returns whether each word that follows the `before` first ones begins as flags may begin, known or not.
#[cold]
fn may_be_flags(text: &[u8], before: usize) -> bool {
    flags(text).take(WORDS_MAX - before).all(|flag| matches!(flag[0], b'0'..=b'9' | b'A'..=b'z'))
}

/// Returns the decoded key; `None` if it is not base64.
fn decoded_key<'a>(encoding: &MetaEncoding<'a>, room: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    if !encoding.binary_key {
        return Some(encoding.key);
    }
    base64::decode(encoding.key, room).then_some(&room[..])
}

fn request<'a>(command: Command<'a>, encoding: MetaEncoding<'a>) -> Line<'a> {
    Line::Request(Request { command, encoding: Encoding::Meta(encoding) })
}

fn refused<'a>(refusal: Refusal, encoding: MetaEncoding<'a>) -> Line<'a> {
    request(Command::Refused(refusal), encoding)
}
