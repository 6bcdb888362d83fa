//! Meta commands.

use super::{Gen, Make, Recipe, State, TOO_LARGE_LEN};
use crate::request::Request;
use crate::unit::{Shape, Unit, Wire};

/// Returns the recipes, one for each pair of the coverage table; flags are random.
pub(super) fn recipes() -> Vec<Recipe> {
    let all: [(Make, usize); 17] = [
        (found, 6),
        (missed, 5),
        (made_on_miss, 3),
        (won_and_stale, 4),
        (get_refused, 9),
        (set_with_mode, 8),
        (not_set, 6),
        (set_against_cas, 8),
        (set_refused, 9),
        (set_too_large, 1),
        (set_bad_chunk, 1),
        (deleted, 8),
        (deleted_against_cas, 6),
        (delete_refused, 2),
        (counted, 14),
        (count_refused, 5),
        (described, 2),
    ];
    all.into_iter().flat_map(|(make, variants)| Recipe::all(Wire::Ascii, make, variants)).collect()
}

/// A meta command under construction: its flags are in any order, each once.
struct Meta {
    name: &'static str,
    key: usize,
    flags: Vec<(u8, Request)>,
    data: Option<Vec<u8>>,
}

impl Meta {
    fn of(name: &'static str, key: usize) -> Self {
        Self { name, key, flags: Vec::new(), data: None }
    }

    fn has(&self, flag: u8) -> bool {
        self.flags.iter().any(|&(known, _)| known == flag)
    }

    /// Adds a flag and its token, unless the flag is present.
    fn flag(mut self, flag: u8, token: impl ToString) -> Self {
        if !self.has(flag) {
            self.flags.push((flag, Request::of([flag]).put(token.to_string())));
        }
        self
    }

    /// Adds the `C` flag with a CAS value.
    fn cas(mut self, g: &Gen, offset: i64) -> Self {
        self.flags.push((b'C', Request::of("C").cas(g.cas(self.key, offset))));
        self
    }

    /// Adds some of these flags, which have no token.
    fn some(mut self, g: &mut Gen, flags: &[u8], percent: usize) -> Self {
        for &flag in flags {
            if g.rng.percent(percent) {
                self = self.flag(flag, "");
            }
        }
        self
    }

    /// Adds an opaque, and flags that all commands accept and ignore.
    fn dressed(mut self, g: &mut Gen) -> Self {
        if g.rng.percent(45) {
            let len = g.rng.between(0, 31);
            self = self.flag(b'O', String::from_utf8_lossy(&g.rng.letters(len)));
        }
        for flag in [b'P', b'L'] {
            if g.rng.percent(3) {
                self = self.flag(flag, "x1");
            }
        }
        self
    }

    fn send(mut self, g: &mut Gen) {
        let shape = if self.has(b'q') { Shape::UntilSentinel } else { Shape::Meta };
        g.rng.shuffle(&mut self.flags);
        let unit = self.unit(g, shape);
        g.send(unit);
    }

    fn unit(self, g: &mut Gen, shape: Shape) -> Unit {
        let key = g.key(self.key);
        let mut request = Request::of(self.name).put(g.gap());
        request = if self.has(b'b') { request.key64(&key) } else { request.key(&key) };
        let mut big = false;
        if let Some(data) = &self.data {
            request = request.put(g.gap()).put(data.len().to_string());
            big = data.len() > 100_000;
        }
        for (_, token) in &self.flags {
            request = request.put(g.gap()).append(token);
        }
        request = request.put(g.line_end());
        if let Some(data) = &self.data {
            request = request.put(data).put("\r\n");
        }
        let mut unit = Unit::ascii(self.name, request, shape).keyed(&key);
        if self.name == "mg" {
            unit = unit.holding();
        }
        if self.name == "ma" {
            unit.changes = Some(key.id);
        }
        Unit { requested: self.flags.iter().map(|&(flag, _)| flag).collect(), fence: big, ..unit }
    }
}

/// Adds `b`, if the key is short enough for base64.
fn base64(meta: Meta, g: &mut Gen, percent: usize) -> Meta {
    if g.fits_base64(meta.key) && g.rng.percent(percent) { meta.flag(b'b', "") } else { meta }
}

/// Stores for another recipe.
pub(super) fn set(g: &mut Gen, index: usize, state: State) {
    let meta = base64(Meta::of("ms", index), g, 25).some(g, b"ckI", 20).some(g, b"q", 15);
    let value = g.value(state);
    Meta { data: Some(value), ..with_store_flags(meta, g).dressed(g) }.send(g);
}

/// Deletes for another recipe.
pub(super) fn delete(g: &mut Gen, index: usize) {
    base64(Meta::of("md", index), g, 25).some(g, b"kq", 20).dressed(g).send(g);
}

/// Reads the CAS value for another recipe.
pub(super) fn get_cas(g: &mut Gen, index: usize) {
    base64(Meta::of("mg", index).flag(b'c', ""), g, 25).some(g, b"kstfv", 20).send(g);
}

/// Stores an item with this expiry time.
pub(super) fn set_to(g: &mut Gen, index: usize, state: State, exptime: i64) {
    let data = Some(g.value(state));
    Meta { data, ..Meta::of("ms", index).flag(b'T', exptime) }.send(g);
}

/// Changes an item's expiry time.
pub(super) fn touch_to(g: &mut Gen, index: usize, exptime: i64) {
    Meta::of("mg", index).flag(b'T', exptime).some(g, b"v", 50).send(g);
}

/// Reads a key with its remaining time to live.
pub(super) fn get_ttl(g: &mut Gen, index: usize) {
    Meta::of("mg", index).flag(b't', "").some(g, b"vcs", 40).send(g);
}

/// Flags of all commands that only return information.
const TELL: &[u8] = b"cfhklstu";

fn found(g: &mut Gen, variant: usize) {
    let index = g.present();
    let mut meta = base64(Meta::of("mg", index), g, 25).some(g, TELL, 45).dressed(g);
    if variant.is_multiple_of(2) {
        meta = meta.flag(b'v', "");
    }
    if g.rng.percent(25) {
        meta = meta.flag(b'q', "");
    }
    meta = match variant {
        0 | 1 => meta,
        2 | 3 => meta.flag(b'T', g.exptime()).flag(b'R', g.rng.pick(&["30", "100000"])),
        4 => meta.flag(b'N', g.exptime()).flag(b'R', g.rng.pick(&["0", "30"])),
        // Flags of other commands are parsed and ignored.
        _ => meta.flag(b'C', "5").flag(b'F', "7").flag(b'I', "").flag(b'D', "3").flag(b'J', "9"),
    };
    if g.rng.percent(3) && !meta.has(b't') && !meta.has(b'T') {
        // How long ago it expired depends on the start of the server, so the time is not requested.
        meta = meta.flag(b'T', g.rng.pick(&["-1", "1000000000"]));
        g.set_state(index, State::Absent);
    }
    meta.send(g);
}

fn missed(g: &mut Gen, variant: usize) {
    let index = g.absent();
    let mut meta = base64(Meta::of("mg", index), g, 60).some(g, TELL, 45).some(g, b"v", 50).dressed(g);
    if variant >= 3 {
        meta = meta.flag(b'q', "");
    }
    if variant % 2 == 1 {
        meta = meta.flag(b'T', g.exptime()).flag(b'R', "30");
    }
    meta.send(g);
}

/// A miss that creates an empty item for the client to fill.
fn made_on_miss(g: &mut Gen, variant: usize) {
    let index = g.absent();
    let meta = base64(Meta::of("mg", index), g, 25).flag(b'N', g.exptime()).some(g, TELL, 30);
    let meta = if variant == 0 { meta.flag(b'v', "") } else { meta };
    meta.some(g, b"q", 20).dressed(g).send(g);
    g.set_state(index, State::Text);
    // Other clients are told that one has won.
    for _ in 0..variant {
        Meta::of("mg", index).some(g, b"vhtkc", 40).send(g);
    }
}

/// Stale items and items about to expire: the first client wins, and the others are told so.
fn won_and_stale(g: &mut Gen, variant: usize) {
    let index = g.present();
    match variant {
        0 => Meta::of("md", index).flag(b'I', "").some(g, b"kq", 30).send(g),
        1 => Meta::of("md", index).flag(b'I', "").flag(b'T', g.rng.between(100, 1000)).send(g),
        2 => {
            // An older CAS value stores and marks stale.
            g.learn(index);
            let value = g.value(State::Text);
            let meta = Meta::of("ms", index).flag(b'I', "").cas(g, -1).some(g, b"ck", 30);
            Meta { data: Some(value), ..meta }.send(g);
            g.set_state(index, State::Text);
        }
        _ => Meta::of("mg", index).flag(b'T', g.rng.between(100, 1000)).some(g, b"t", 50).send(g),
    }
    let recache = if variant == 3 { "100000" } else { "30" };
    for _ in 0..g.rng.between(2, 3) {
        let meta = Meta::of("mg", index).some(g, b"v", 50).some(g, TELL, 20).some(g, b"q", 15);
        let meta = if variant == 3 || g.rng.percent(20) { meta.flag(b'R', recache) } else { meta };
        base64(meta, g, 20).send(g);
    }
}

fn refused(g: &mut Gen, name: &'static str, key: usize, flags: &[&str], data: Option<&[u8]>) {
    let len = data.map_or(String::new(), |data| format!(" {}", data.len()));
    let mut request = Request::of(name).put(" ").key(&g.key(key)).put(len);
    for flag in flags {
        request = request.put(g.gap()).put(flag);
    }
    request = request.put(g.line_end());
    if let Some(data) = data {
        request = request.put(data).put("\r\n");
    }
    let unit = Unit::ascii(name, request, Shape::Meta);
    g.send(match name {
        "ma" => Unit { changes: Some(key as u16), ..unit },
        "mg" => unit.keyed(&g.key(key)).holding(),
        _ => unit,
    });
}

const NO_FLAG: [&str; 6] = ["z", "y1", "w", "A", "G2", "5"];
const TWICE: [[&str; 2]; 4] = [["s", "s"], ["k", "k"], ["O1", "O2"], ["T0", "T5"]];
const NO_TOKEN: [&str; 9] =
    ["Tx", "T", "Nx", "Rx", "Cx", "C-1", "T99999999999999999999", "C18446744073709551616", "R"];
const LONG_OPAQUE: &str = "O0123456789abcdef0123456789abcdef";
const SHORT_OPAQUE: &str = "O0123456789abcdef0123456789abcde";

fn long_key(g: &mut Gen, name: &'static str) {
    let request = Request::of(name).put(" ").put(g.long_key()).put(" v").put(g.line_end());
    g.send(Unit::ascii(name, request, Shape::Meta));
}

fn get_refused(g: &mut Gen, variant: usize) {
    let index = g.any();
    match variant {
        0 => long_key(g, "mg"),
        1 => {
            let flag = *g.rng.pick(&NO_FLAG);
            refused(g, "mg", index, &["v", flag], None);
        }
        2 => {
            let flags = *g.rng.pick(&TWICE);
            refused(g, "mg", index, &flags, None);
        }
        3 => {
            let flag = *g.rng.pick(&NO_TOKEN);
            refused(g, "mg", index, &[flag, "k"], None);
        }
        4 => {
            // The flags before the opaque take effect first, so only flags without an effect are sent.
            refused(g, "mg", index, &[LONG_OPAQUE, "k"], None);
            refused(g, "mg", index, &[SHORT_OPAQUE, "s"], None);
        }
        5 => {
            let key = *g.rng.pick(&["!!!!", "Zm9", "Zg", "Zm9v=", "a"]);
            let request = Request::of("mg ").put(key).put(" b v").put(g.line_end());
            g.send(Unit::ascii("mg", request, Shape::Meta));
        }
        6 => {
            let flags = [
                "k", "s", "v", "c", "f", "t", "h", "l", "u", "q", "O1", "T0", "N0", "R0", "C1", "F1", "MI",
                "J1", "D1",
            ];
            refused(g, "mg", index, &flags, None);
        }
        7 => refused(g, "mg", index, &["Dx"], None),
        _ => refused(g, "mg", index, &["Jx"], None),
    }
}

fn with_store_flags(meta: Meta, g: &mut Gen) -> Meta {
    let meta = if g.rng.percent(50) { meta.flag(b'F', g.client_flags()) } else { meta };
    if g.rng.percent(50) { meta.flag(b'T', g.exptime()) } else { meta }
}

const MODES: [&str; 5] = ["S", "E", "R", "A", "P"];

fn set_with_mode(g: &mut Gen, variant: usize) {
    let mode = MODES[variant % 5];
    let index = match mode {
        "S" => g.any(),
        "E" => g.absent(),
        "R" => g.present(),
        _ => g.text(),
    };
    let state = if matches!(mode, "A" | "P") || g.rng.percent(60) { State::Text } else { State::Number };
    let value = g.value(state);
    let meta = with_store_flags(Meta::of("ms", index), g).some(g, b"ckI", 35);
    let meta = if mode != "S" || g.rng.percent(50) { meta.flag(b'M', mode) } else { meta };
    let meta = if variant >= 5 { meta.flag(b'q', "") } else { meta };
    // Flags of other commands are parsed and ignored.
    let meta = meta.some(g, b"vfthlu", 3);
    Meta { data: Some(value), ..base64(meta, g, 25).dressed(g) }.send(g);
    g.set_state(index, state);
    if g.rng.percent(30) {
        Meta::of("mg", index).flag(b'v', "").some(g, b"cfstk", 50).send(g);
    }
}

fn not_set(g: &mut Gen, variant: usize) {
    let mode = ["E", "R", "A", "P", "E", "R"][variant];
    let index = if mode == "E" { g.present() } else { g.absent() };
    let value = g.value(State::Text);
    let meta = with_store_flags(Meta::of("ms", index).flag(b'M', mode), g).some(g, b"ckIq", 50);
    Meta { data: Some(value), ..base64(meta, g, 30).dressed(g) }.send(g);
}

fn set_against_cas(g: &mut Gen, variant: usize) {
    let absent = variant < 2;
    let index = if absent { g.absent() } else { g.text() };
    if !absent {
        g.learn(index);
    }
    let offset = match variant {
        0..4 => 0,
        4 | 5 => *g.rng.pick(&[1, 1_000_000]),
        _ => *g.rng.pick(&[-1, -1_000_000, 1]),
    };
    let mut meta = with_store_flags(Meta::of("ms", index).cas(g, offset), g).some(g, b"ckq", 50);
    if g.rng.percent(50) {
        meta = meta.flag(b'I', "");
    }
    if g.rng.percent(50) {
        let modes: &[&str] = if absent { &["S", "R"] } else { &MODES };
        meta = meta.flag(b'M', g.rng.pick(modes));
    }
    let value = g.value(State::Text);
    Meta { data: Some(value), ..base64(meta, g, 60).dressed(g) }.send(g);
    if g.rng.percent(30) {
        Meta::of("mg", index).flag(b'v', "").some(g, b"cfst", 50).send(g);
    }
}

fn set_refused(g: &mut Gen, variant: usize) {
    let index = g.any();
    let value = g.rng.letters(9);
    let data = Some(&value[..]);
    match variant {
        0 => {
            let len = *g.rng.pick(&["", " -1", " 2147483646", " 2147483647", " abc", " 5x"]);
            let request = Request::of("ms ").key(&g.key(index)).put(len).put(g.line_end());
            g.send(Unit::ascii("ms", request, Shape::Meta));
        }
        1 => {
            let flag = *g.rng.pick(&["Fx", "F-1", "F"]);
            refused(g, "ms", index, &[flag], data);
        }
        2 => {
            let flag = *g.rng.pick(&NO_FLAG);
            refused(g, "ms", index, &["c", flag], data);
        }
        3 => {
            let flags = *g.rng.pick(&[["c", "c"], ["k", "k"], ["O1", "O2"], ["T0", "T5"]]);
            refused(g, "ms", index, &flags, data);
        }
        4 => {
            let flag = *g.rng.pick(&NO_TOKEN);
            refused(g, "ms", index, &[flag, "k"], data);
        }
        5 => {
            refused(g, "ms", index, &[LONG_OPAQUE, "k"], data);
            refused(g, "ms", index, &["MS", SHORT_OPAQUE], data);
            g.set_state(index, State::Text);
        }
        6 => {
            let key = *g.rng.pick(&["!!!!", "Zm9", "Zg", "a"]);
            let request = Request::of("ms ").put(key).put(" 9 b").put(g.line_end()).put(&value).put("\r\n");
            g.send(Unit::ascii("ms", request, Shape::Meta));
        }
        _ => {
            let mode = *g.rng.pick(&["MZ", "Me", "M+", "M1"]);
            refused(g, "ms", index, &[mode, "c"], data);
        }
    }
}

fn set_too_large(g: &mut Gen, _: usize) {
    let index = g.any();
    let value = vec![b'x'; TOO_LARGE_LEN + g.rng.below(100)];
    let meta = Meta::of("ms", index).some(g, b"ckq", 30);
    Meta { data: Some(value), ..meta }.send(g);
    g.set_state(index, State::Absent);
    Meta::of("mg", index).flag(b'v', "").send(g);
}

fn set_bad_chunk(g: &mut Gen, _: usize) {
    let (announced, data) = g.bad_data();
    let index = g.any();
    let flags = *g.rng.pick(&["", " q", " c k", " MA"]);
    let request = Request::of("ms ").key(&g.key(index)).put(format!(" {announced}{flags}\r\n")).put(data);
    g.send(Unit::ascii("ms", request, Shape::UntilSentinel));
}

fn deleted(g: &mut Gen, variant: usize) {
    let index = if variant < 5 { g.present() } else { g.absent() };
    let mut meta = base64(Meta::of("md", index), g, 30).some(g, b"k", 40).dressed(g);
    if variant == 0 || variant == 5 {
        meta = meta.flag(b'q', "");
    }
    if variant % 2 == 1 {
        meta = meta.flag(b'T', g.exptime());
    }
    if variant >= 5 {
        meta = meta.some(g, b"Iq", 40);
    } else if variant >= 3 {
        meta = meta.flag(b'I', "").some(g, b"q", 30);
    } else {
        g.set_state(index, State::Absent);
    }
    meta.send(g);
    if g.rng.percent(30) {
        Meta::of("mg", index).some(g, b"vct", 50).send(g);
    }
}

fn deleted_against_cas(g: &mut Gen, variant: usize) {
    let index = if variant == 0 { g.absent() } else { g.present() };
    let matches = matches!(variant, 1..4);
    if variant > 0 {
        g.learn(index);
    }
    let offset = if matches { 0 } else { *g.rng.pick(&[1, -1, 1_000_000]) };
    let meta = base64(Meta::of("md", index).cas(g, offset), g, 50).some(g, b"kqI", 50);
    let meta = if g.rng.percent(40) { meta.flag(b'T', g.exptime()) } else { meta };
    if matches && !meta.has(b'I') {
        g.set_state(index, State::Absent);
    }
    meta.dressed(g).send(g);
}

fn delete_refused(g: &mut Gen, variant: usize) {
    let index = g.any();
    match variant {
        0 => long_key(g, "md"),
        _ => refused(g, "md", index, &[LONG_OPAQUE], None),
    }
}

fn counted(g: &mut Gen, variant: usize) {
    let index = match variant {
        0..4 => g.number(),
        4..8 => g.absent(),
        _ => {
            let index = g.number();
            g.learn(index);
            index
        }
    };
    let mut meta = base64(Meta::of("ma", index), g, 45).some(g, b"ctk", 45).dressed(g);
    let mode = *g.rng.pick(&["I", "+", "D", "-", ""]);
    if !mode.is_empty() {
        meta = meta.flag(b'M', mode);
    }
    // memcached ignores the T of a number that gets longer (see the drift table), so nothing is added with
    // T.
    let touches = g.rng.percent(45);
    if touches {
        meta = meta.flag(b'D', 0);
    } else if g.rng.percent(50) {
        let large = g.rng.percent(10);
        meta = meta.flag(b'D', if large { u64::MAX } else { g.rng.next_u64() % 1000 });
        if large && !matches!(mode, "D" | "-") && g.state(index) == State::Number {
            g.set_state(index, State::Unknown);
        }
    }
    if g.rng.percent(45) {
        meta = meta.flag(b'J', g.rng.next_u64() % 100_000);
    }
    if touches {
        meta = meta.flag(b'T', g.exptime());
    }
    meta = meta.some(g, b"v", 50);
    let offset = *g.rng.pick(&[1, -1, 1_000_000]);
    meta = match variant {
        0 | 1 => meta,
        2 => meta.flag(b'q', ""),
        3 => meta.flag(b'N', g.exptime()).some(g, b"q", 20),
        // 1.6.18 does not hide the success of creating a number, so q is not sent.
        4 => meta.flag(b'N', g.exptime()),
        5 | 6 => meta.some(g, b"q", 50),
        7 => meta.cas(g, offset).some(g, b"q", 50),
        8 | 9 => meta.cas(g, 0),
        10 => meta.cas(g, 0).flag(b'q', ""),
        11 => meta.flag(b'q', "").flag(b'N', g.exptime()),
        12 => meta.cas(g, offset).some(g, b"q", 75),
        _ => meta.cas(g, offset).flag(b'N', g.exptime()).some(g, b"q", 50),
    };
    meta.send(g);
    if variant == 4 {
        g.set_state(index, State::Number);
    }
    if g.rng.percent(30) {
        Meta::of("mg", index).flag(b'v', "").some(g, b"stc", 40).send(g);
    }
}

fn count_refused(g: &mut Gen, variant: usize) {
    match variant {
        0 => {
            let index = g.text();
            const FLAGS: [&[&str]; 3] = [&[], &["q"], &["v", "t"]];
            let flags = *g.rng.pick(&FLAGS);
            refused(g, "ma", index, flags, None);
        }
        1 | 2 => {
            let index = g.any();
            let flag = *g.rng.pick(&["z", "Dx", "Jx", "D-1", "Tx", "N", "Cx", "D"]);
            refused(g, "ma", index, &["v", flag], None);
            let twice = *g.rng.pick(&TWICE);
            refused(g, "ma", index, &twice, None);
        }
        3 => {
            let index = g.any();
            let mode = *g.rng.pick(&["MZ", "Mi", "MA", "M1"]);
            refused(g, "ma", index, &[mode], None);
        }
        // A key that is too long is a known difference.
        _ => {
            // With an item, the number would change nevertheless.
            let index = g.absent();
            refused(g, "ma", index, &[LONG_OPAQUE, "k"], None);
        }
    }
}

/// `me` shows when an item expires: memcached 1.6.18 counts backwards, so only unlimited items are
/// shown.
fn described(g: &mut Gen, variant: usize) {
    let index = g.any();
    if variant == 0 {
        let value = g.value(State::Text);
        let meta = base64(Meta::of("ms", index), g, 30).flag(b'T', 0);
        Meta { data: Some(value), ..meta }.send(g);
        g.set_state(index, State::Text);
    } else {
        g.remove(index);
    }
    let key = g.key(index);
    let request = match g.fits_base64(index) && g.rng.percent(20) {
        true => Request::of("me ").key64(&key).put(" b").put(g.line_end()),
        false => Request::of("me ").key(&key).put(g.line_end()),
    };
    g.send(Unit::ascii("me", request, Shape::Line).keyed(&key).holding());
}
