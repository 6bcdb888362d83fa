//! Classic text commands.

use super::{Gen, Make, Recipe, State, TOO_LARGE_LEN, line};
use crate::request::Request;
use crate::table::{ENDLESS, HTTP, UNKNOWN, fixed};
use crate::unit::{Agreement, Ending, Shape, Unit, Wire};

const SET: usize = 0;
const ADD: usize = 1;
const REPLACE: usize = 2;
const APPEND: usize = 3;
const PREPEND: usize = 4;
const CAS: usize = 5;

/// The storage commands: name, and name with noreply in the coverage table.
const STORES: [(&str, &str); 6] = [
    ("set", "set noreply"),
    ("add", "add noreply"),
    ("replace", "replace noreply"),
    ("append", "append noreply"),
    ("prepend", "prepend noreply"),
    ("cas", "cas noreply"),
];

const GETS: [&str; 4] = ["get", "gets", "gat", "gats"];
const DELTAS: [(&str, &str); 2] = [("incr", "incr noreply"), ("decr", "decr noreply")];

/// Returns the recipes, one for each pair of the coverage table.
pub(super) fn recipes() -> Vec<Recipe> {
    let all: [(Make, usize); 25] = [
        (stored, 6),
        (refused, 6),
        (cas_of_absent, 1),
        (bad_length, 6),
        (bad_chunk, 6),
        (too_large, 6),
        (stored_silently, 6),
        (bad_chunk_silently, 6),
        (hit, 4),
        (miss, 4),
        (hits_and_misses, 4),
        (key_too_long, 4),
        (gat_at_no_time, 2),
        (touch, 4),
        (touch_silently, 1),
        (delta, 8),
        (delta_silently, 2),
        (delta_of_text, 2),
        (deleted, 3),
        (deleted_silently, 1),
        (flush, 3),
        (connection_ends, 4),
        (unknown, 1),
        (stats, 3),
        (expired_at_once, 1),
    ];
    let mut recipes: Vec<Recipe> =
        all.into_iter().flat_map(|(make, variants)| Recipe::all(Wire::Ascii, make, variants)).collect();
    recipes.extend(fixed_lines());
    recipes
}

/// Returns one recipe for each row of the fixed lines.
pub(super) fn fixed_lines() -> Vec<Recipe> {
    Recipe::all(Wire::Ascii, fixed_line, fixed::TABLE.len()).collect()
}

/// A storage command with all its parts.
struct Store {
    verb: usize,
    key: usize,
    exptime: i64,
    len: String,
    data: Vec<u8>,
    cas_offset: i64,
    noreply: bool,
    word: bool,
}

impl Store {
    fn of(g: &mut Gen, verb: usize, key: usize, value: &[u8]) -> Self {
        Self {
            verb,
            key,
            exptime: g.exptime(),
            len: value.len().to_string(),
            data: [value, b"\r\n"].concat(),
            cas_offset: 0,
            noreply: false,
            word: g.rng.percent(2),
        }
    }

    fn send(self, g: &mut Gen, shape: Shape) {
        let (name, silent) = STORES[self.verb];
        let key = g.key(self.key);
        let mut request = Request::of(name).put(g.gap()).key(&key);
        for number in [g.client_flags().to_string(), self.exptime.to_string(), self.len] {
            request = request.put(g.gap()).put(number);
        }
        if self.verb == CAS {
            request = request.put(g.gap()).cas(g.cas(self.key, self.cas_offset));
        }
        if self.noreply {
            request = request.put(" noreply");
        } else if self.word {
            // One more word is allowed, and is not noreply.
            request = request.put(" word");
        }
        let request = request.put(g.line_end()).put(&self.data);
        let command = if self.noreply { silent } else { name };
        let big = self.data.len() > 100_000;
        let unit = Unit::ascii(command, request, shape);
        g.send(Unit { fence: big, ..unit });
    }
}

/// Stores for another recipe.
pub(super) fn set(g: &mut Gen, index: usize, state: State) {
    let value = g.value(state);
    let noreply = g.rng.percent(15);
    let shape = if noreply { Shape::UntilSentinel } else { Shape::Line };
    Store { noreply, ..Store::of(g, SET, index, &value) }.send(g, shape);
}

/// Deletes for another recipe.
pub(super) fn delete(g: &mut Gen, index: usize) {
    let words = if g.rng.percent(20) { " 0" } else { "" };
    let request = Request::of("delete ").key(&g.key(index)).put(words).put(g.line_end());
    g.send(Unit::ascii("delete", request, Shape::Line));
}

/// Reads the CAS value for another recipe.
pub(super) fn gets(g: &mut Gen, index: usize) {
    read(g, 1, &[index], 0);
}

fn read(g: &mut Gen, verb: usize, keys: &[usize], exptime: i64) {
    let mut request = Request::of(GETS[verb]);
    if verb >= 2 {
        request = request.put(g.gap()).put(exptime.to_string());
    }
    let mut unit = Unit::ascii(GETS[verb], Request::default(), Shape::Values);
    for &index in keys {
        let key = g.key(index);
        request = request.put(g.gap()).key(&key);
        unit = unit.keyed(&key);
    }
    unit.request = request.put(g.line_end());
    g.send(unit.holding());
}

/// Stores an item with this expiry time.
pub(super) fn set_to(g: &mut Gen, index: usize, state: State, exptime: i64) {
    let value = g.value(state);
    Store { exptime, ..Store::of(g, SET, index, &value) }.send(g, Shape::Line);
}

/// Changes an item's expiry time.
pub(super) fn touch_to(g: &mut Gen, index: usize, exptime: i64) {
    if g.rng.percent(50) {
        return read(g, 2, &[index], exptime);
    }
    let request = Request::of("touch ").key(&g.key(index)).put(format!(" {exptime}\r\n"));
    g.send(Unit::ascii("touch", request, Shape::Line));
}

/// Stores if there is no item.
pub(super) fn add(g: &mut Gen, index: usize) {
    let value = g.value(State::Text);
    Store::of(g, ADD, index, &value).send(g, Shape::Line);
}

/// Stores if there is an item.
pub(super) fn replace(g: &mut Gen, index: usize) {
    let value = g.value(State::Text);
    Store::of(g, REPLACE, index, &value).send(g, Shape::Line);
}

/// Appends if there is an item.
pub(super) fn append(g: &mut Gen, index: usize) {
    let value = g.value(State::Text);
    Store::of(g, APPEND, index, &value).send(g, Shape::Line);
}

/// Adds one if there is a number.
pub(super) fn count(g: &mut Gen, index: usize) {
    let request = Request::of("incr ").key(&g.key(index)).put(" 1\r\n");
    g.send(Unit { changes: Some(index as u16), ..Unit::ascii("incr", request, Shape::Line) });
}

/// Returns a key in the state in which the command stores.
fn storable(g: &mut Gen, verb: usize) -> usize {
    match verb {
        SET => g.any(),
        ADD => g.absent(),
        CAS => {
            let index = g.present();
            g.learn(index);
            index
        }
        REPLACE => g.present(),
        // Some parsers accept a number with appended text as a number.
        _ => g.text(),
    }
}

fn kind_stored(g: &mut Gen, verb: usize) -> State {
    let appends = matches!(verb, APPEND | PREPEND);
    if !appends && g.rng.percent(35) { State::Number } else { State::Text }
}

fn stored(g: &mut Gen, verb: usize) {
    let index = storable(g, verb);
    let state = kind_stored(g, verb);
    // Occasionally a value near the maximum, which is removed again.
    let large = verb == SET && g.rng.percent(1);
    let value = if large { vec![b'v'; g.rng.between(500_000, 1_047_000)] } else { g.value(state) };
    Store::of(g, verb, index, &value).send(g, Shape::Line);
    g.set_state(index, state);
    if large {
        g.set_state(index, State::Text);
        read(g, 0, &[index], 0);
        g.remove(index);
    }
}

fn refused(g: &mut Gen, verb: usize) {
    let index = match verb {
        // A set is never refused; instead a cas with an outdated CAS value is refused.
        SET | CAS => {
            let index = g.present();
            g.learn(index);
            index
        }
        ADD => g.present(),
        _ => g.absent(),
    };
    let verb = if verb == SET { CAS } else { verb };
    let value = g.value(State::Text);
    let cas_offset = *g.rng.pick(&[1, 1_000_000, -1, -1_000_000]);
    Store { cas_offset, ..Store::of(g, verb, index, &value) }.send(g, Shape::Line);
}

fn cas_of_absent(g: &mut Gen, _: usize) {
    let index = g.absent();
    let value = g.value(State::Text);
    Store::of(g, CAS, index, &value).send(g, Shape::Line);
}

fn bad_length(g: &mut Gen, verb: usize) {
    let len = *g.rng.pick(&[
        "-1",
        "-5",
        "-2147483648",
        "2147483646",
        "2147483647",
        "abc",
        "5x",
        "18446744073709551616",
    ]);
    let index = g.any();
    let store = Store::of(g, verb, index, b"");
    // Without data: a server does not wait for data that was not announced.
    Store { len: len.into(), data: Vec::new(), word: false, ..store }.send(g, Shape::Line);
}

fn bad_chunk(g: &mut Gen, verb: usize) {
    let (announced, data) = g.bad_data();
    let index = g.any();
    let store = Store::of(g, verb, index, b"");
    Store { len: announced.to_string(), data, ..store }.send(g, Shape::UntilSentinel);
}

fn bad_chunk_silently(g: &mut Gen, verb: usize) {
    let (announced, data) = g.bad_data();
    let index = g.any();
    let store = Store::of(g, verb, index, b"");
    Store { len: announced.to_string(), data, noreply: true, ..store }.send(g, Shape::UntilSentinel);
}

fn too_large(g: &mut Gen, verb: usize) {
    let index = if g.rng.percent(50) { g.present() } else { g.any() };
    let len = TOO_LARGE_LEN + g.rng.below(100);
    // Sometimes with noreply.
    let noreply = verb == SET && g.rng.percent(5);
    let shape = if noreply { Shape::UntilSentinel } else { Shape::Line };
    let store = Store::of(g, verb, index, &vec![b'x'; len]);
    Store { noreply, ..store }.send(g, shape);
    if verb == SET {
        // The old value is gone, because the client meant to replace it.
        g.set_state(index, State::Absent);
    }
    read(g, 0, &[index], 0);
}

fn stored_silently(g: &mut Gen, verb: usize) {
    // No answer, whether stored or not.
    let index = if g.rng.percent(75) { storable(g, verb) } else { g.any() };
    let state = kind_stored(g, verb);
    let value = g.value(state);
    let before = g.state(index);
    Store { noreply: true, ..Store::of(g, verb, index, &value) }.send(g, Shape::UntilSentinel);
    let after = match (verb, before) {
        (SET, _) => state,
        (ADD, State::Absent) => state,
        (ADD, _) => before,
        (_, State::Absent) => State::Absent,
        (REPLACE, State::Text | State::Number) => state,
        _ => State::Unknown,
    };
    g.set_state(index, after);
    read(g, 0, &[index], 0);
}

/// Expiry times for gat and touch.
fn some_exptime(g: &mut Gen, keys: &[usize]) -> i64 {
    if g.rng.percent(5) {
        for &index in keys {
            g.set_state(index, State::Absent);
        }
        return *g.rng.pick(&[-1, -2_147_483_648, 2_592_001, 1_000_000_000]);
    }
    g.exptime()
}

fn hit(g: &mut Gen, verb: usize) {
    let mut keys = vec![g.present()];
    while g.rng.percent(25) {
        keys.push(g.present());
    }
    // A preparation could remove what an earlier one prepared, but none deletes.
    let exptime = some_exptime(g, if verb >= 2 { &keys } else { &[] });
    read(g, verb, &keys, exptime);
}

fn miss(g: &mut Gen, verb: usize) {
    let index = g.absent();
    let exptime = g.exptime();
    let many = if g.rng.percent(20) { keys_in_line(g, verb, index) } else { 1 };
    read(g, verb, &vec![index; many], exptime);
}

fn hits_and_misses(g: &mut Gen, verb: usize) {
    let (absent, present) = (g.absent(), g.present());
    let absent = if absent == present { g.absent() } else { absent };
    let mut keys = vec![absent, present];
    let longer = if g.key(absent).len() > g.key(present).len() { absent } else { present };
    let more = if g.rng.percent(10) { keys_in_line(g, verb, longer) } else { g.rng.below(4) };
    keys.extend((0..more).map(|_| *g.rng.pick(&[absent, present])));
    g.rng.shuffle(&mut keys);
    let exptime = g.exptime();
    read(g, verb, &keys, exptime);
}

/// Returns how many keys a line may have. Only lines of get and gets may exceed 2048 bytes, if they
/// arrive in chunks.
fn keys_in_line(g: &mut Gen, verb: usize, index: usize) -> usize {
    let many = g.rng.between(20, 100);
    if verb >= 2 { many.min(1200 / (g.key(index).len() + 3)) } else { many }
}

/// The error discards all answers that are not yet written, so none may be pending.
fn key_too_long(g: &mut Gen, verb: usize) {
    let mut request = Request::of(GETS[verb]);
    if verb >= 2 {
        request = request.put(" 0");
    }
    for _ in 0..g.rng.below(3) {
        // A refused line has read and touched nothing; in memcached the keys before the wrong one are (see the
        // drift table).
        let index = g.absent();
        request = request.put(" ").key(&g.key(index));
    }
    let request = request.put(" ").put(g.long_key()).put(g.line_end());
    g.send(Unit::ascii(GETS[verb], request, Shape::Values).fenced());
}

fn gat_at_no_time(g: &mut Gen, verb: usize) {
    let time = *g.rng.pick(&["x", "5x", "soon", "--1"]);
    let request = Request::of(format!("{} {time} ", GETS[2 + verb])).key(&g.key(0)).put(g.line_end());
    g.send(Unit::ascii(GETS[2 + verb], request, Shape::Values));
}

fn touch(g: &mut Gen, variant: usize) {
    let request = match variant {
        0 => {
            let index = g.present();
            let exptime = some_exptime(g, &[index]);
            Request::of("touch ").key(&g.key(index)).put(format!(" {exptime}"))
        }
        1 => {
            let index = g.absent();
            Request::of("touch ").key(&g.key(index)).put(" 0")
        }
        2 => Request::of("touch ").put(g.long_key()).put(" 0"),
        _ => Request::of("touch ").key(&g.key(0)).put(format!(" {}", g.rng.pick(&["x", "1x", "now"]))),
    };
    let request = request.put(g.line_end());
    g.send(Unit::ascii("touch", request, Shape::Line));
}

fn touch_silently(g: &mut Gen, _: usize) {
    let index = g.any();
    let request = Request::of("touch ").key(&g.key(index)).put(format!(" {} noreply\r\n", g.exptime()));
    g.send(Unit::ascii("touch noreply", request, Shape::UntilSentinel));
}

/// Returns a number to add or subtract, and whether adding it exceeds the generator's limit for
/// numbers.
fn some_delta(g: &mut Gen) -> (String, bool) {
    let delta = match g.rng.below(8) {
        0 => 0,
        1 => u64::MAX,
        2 => g.rng.next_u64(),
        _ => g.rng.next_u64() % 200,
    };
    (delta.to_string(), delta > 200)
}

fn delta(g: &mut Gen, variant: usize) {
    let (name, _) = DELTAS[variant % 2];
    let (word, large) = some_delta(g);
    let mut changes = None;
    let request = match variant / 2 {
        0 => {
            let index = g.number();
            changes = Some(index as u16);
            if large && name == "incr" {
                g.set_state(index, State::Unknown);
            }
            let more = if g.rng.percent(5) { " word" } else { "" };
            Request::of(name).put(g.gap()).key(&g.key(index)).put(g.gap()).put(word).put(more)
        }
        1 => {
            let index = g.absent();
            Request::of(name).put(" ").key(&g.key(index)).put(" ").put(word)
        }
        2 => Request::of(name).put(" ").put(g.long_key()).put(" ").put(word),
        _ => {
            let word = *g.rng.pick(&["x", "-1", "5x", "18446744073709551616", "abc", "1.5"]);
            Request::of(name).put(" ").key(&g.key(0)).put(" ").put(word)
        }
    };
    let request = request.put(g.line_end());
    g.send(Unit { changes, ..Unit::ascii(name, request, Shape::Line) });
    if let Some(index) = changes.filter(|_| g.rng.percent(50)) {
        // The stored value keeps its length, padded with spaces.
        let verb = g.rng.below(2);
        read(g, verb, &[usize::from(index)], 0);
    }
}

fn delta_silently(g: &mut Gen, variant: usize) {
    let (name, silent) = DELTAS[variant];
    let index = g.number();
    let (word, large) = some_delta(g);
    if large && name == "incr" {
        g.set_state(index, State::Unknown);
    }
    let request = Request::of(name).put(" ").key(&g.key(index)).put(format!(" {word} noreply\r\n"));
    let unit = Unit::ascii(silent, request, Shape::UntilSentinel);
    g.send(Unit { changes: Some(index as u16), ..unit });
    read(g, 0, &[index], 0);
}

fn delta_of_text(g: &mut Gen, variant: usize) {
    let (name, _) = DELTAS[variant];
    let index = g.text();
    let request = Request::of(name).put(" ").key(&g.key(index)).put(" 1").put(g.line_end());
    g.send(Unit::ascii(name, request, Shape::Line));
}

fn deleted(g: &mut Gen, variant: usize) {
    let request = match variant {
        0 => {
            let index = g.present();
            g.set_state(index, State::Absent);
            let word = if g.rng.percent(20) { " 0" } else { "" };
            Request::of("delete").put(g.gap()).key(&g.key(index)).put(word)
        }
        1 => {
            let index = g.absent();
            Request::of("delete ").key(&g.key(index))
        }
        // More words are a known difference.
        _ => Request::of("delete ").put(g.long_key()),
    };
    let request = request.put(g.line_end());
    g.send(Unit::ascii("delete", request, Shape::Line));
}

fn deleted_silently(g: &mut Gen, _: usize) {
    let index = g.any();
    let words = *g.rng.pick(&[" noreply\r\n", " 0 noreply\r\n"]);
    g.send(Unit::ascii(
        "delete noreply",
        Request::of("delete ").key(&g.key(index)).put(words),
        Shape::UntilSentinel,
    ));
    g.set_state(index, State::Absent);
    read(g, 0, &[index], 0);
}

fn flush(g: &mut Gen, variant: usize) {
    let index = g.any();
    let sent = match variant {
        0 => {
            // A later flush replaces an earlier one, and in memcached the items that the earlier one hid reappear:
            // so a flush in the future is always followed by an immediate one.
            if g.rng.percent(30) {
                let sent = line(g, "flush_all", &["flush_all 2592000", "flush_all 100000"], Shape::Line);
                g.send(sent);
            }
            line(g, "flush_all", &["flush_all", "flush_all", "flush_all 0", "flush_all -1"], Shape::Line)
        }
        1 => {
            let words = *g.rng.pick(&["flush_all noreply", "flush_all 0 noreply"]);
            Unit::ascii("flush_all noreply", Request::of(words).put("\r\n"), Shape::UntilSentinel)
        }
        _ => {
            let lines = ["flush_all x", "flush_all 5x", "flush_all a b", "flush_all x 5"];
            let sent = line(g, "flush_all", &lines, Shape::Line);
            g.send(sent);
            return;
        }
    };
    g.send(sent);
    g.forget_all();
    read(g, 0, &[index], 0);
}

fn connection_ends(g: &mut Gen, variant: usize) {
    let (command, request) = match variant {
        0 => ("quit", Request::of(*g.rng.pick(&["quit\r\n", "quit now\r\n", "quit\n"]))),
        1 => {
            let method = *g.rng.pick(&["GET /", "POST /x", "HEAD /", "OPTIONS *", "PUT /x y"]);
            (HTTP, Request::of(method).put(*g.rng.pick(&[" HTTP/1.1\r\n", " HTTP/1.0\r\n", " HTTP/\r\n"])))
        }
        2 => {
            // A long gat is a multiget in fabcached, like get; memcached accepts one only in a single chunk.
            let start = *g.rng.pick(&["", "set ", "foo ", "mg ", "getx "]);
            let len = g.rng.between(2049, 4000);
            (ENDLESS, Request::of(start).put(g.rng.letters(len)))
        }
        _ => return quit_after_answers(g),
    };
    g.send(Unit::ascii(command, request, Shape::UntilSentinel).ends(Ending::ServerCloses));
}

/// All requests before a quit are answered.
fn quit_after_answers(g: &mut Gen) {
    let (index, other) = (g.any(), g.any());
    let request =
        Request::of("get ").key(&g.key(index)).put("\r\nmg ").key(&g.key(other)).put(" v\r\nquit\r\n");
    g.send(Unit::ascii("quit after others", request, Shape::UntilSentinel).ends(Ending::ServerCloses));
}

/// Unknown first words; memcached 1.6.45 matches administration commands by their first letters.
fn unknown(g: &mut Gen, _: usize) {
    let start = *g
        .rng
        .pick(&["x", "qq", "GET", "Set", "getss", "sett", "mz", "mgg", "zz", "inc", "deleted", "\x01\x7f"]);
    let mut words = start.to_owned();
    let len = g.rng.between(2, 12);
    words.push_str(&String::from_utf8_lossy(&g.rng.letters(len)));
    for _ in 0..g.rng.below(5) {
        let len = g.rng.between(1, 10);
        words.push(' ');
        words.push_str(&String::from_utf8_lossy(&g.rng.letters(len)));
    }
    let sent = line(g, UNKNOWN, &[&words], Shape::Line);
    g.send(sent);
}

fn stats(g: &mut Gen, variant: usize) {
    let sent = match variant {
        0 => {
            let unit = line(g, "stats", &["stats", "stats settings", "stats conns"], Shape::Stats);
            Unit { agreement: Agreement::Form, ..unit }
        }
        1 => {
            let unit = line(g, "stats", &["stats sizes", "stats slabs", "stats items"], Shape::Stats);
            Unit { command: "stats of items", agreement: Agreement::Form, ..unit }
        }
        _ => line(g, "stats", &["stats nonesuch", "stats 1", "stats x y"], Shape::Stats),
    };
    g.send(sent);
}

/// Stores an item that is expired at once.
fn expired_at_once(g: &mut Gen, _: usize) {
    let index = g.any();
    let value = g.value(State::Text);
    let exptime = *g.rng.pick(&[-1, -100, -2_147_483_648, 2_592_001, 1_000_000_000]);
    Store { exptime, ..Store::of(g, SET, index, &value) }.send(g, Shape::Line);
    g.set_state(index, State::Absent);
    let verb = g.rng.below(2);
    read(g, verb, &[index], 0);
}

fn fixed_line(g: &mut Gen, variant: usize) {
    let fixed = &fixed::TABLE[variant];
    // Watching is refused while any answer is pending.
    let fence = fixed.command == "watch";
    let sent = match fixed.shape() {
        Shape::Line => line(g, fixed.command, fixed.lines, Shape::Line),
        shape => Unit::ascii(fixed.command, Request::of(*g.rng.pick(fixed.lines)).put("\r\n"), shape),
    };
    g.send(Unit { fence, ..sent });
}
