//! Binary packets.

use super::{Gen, Make, NUMBER_MAX, Recipe, State, TOO_LARGE_LEN};
use crate::request::{CasRef, Key, Request};
use crate::table::{BAD_LEN, BAD_MAGIC, UNKNOWN_OPCODE};
use crate::unit::{Agreement, Ending, Unit, Wire};

/// Opcodes and their names in the coverage table. A quiet command follows its normal form.
const STORES: [(u8, &str); 6] =
    [(0x01, "Set"), (0x11, "SetQ"), (0x02, "Add"), (0x12, "AddQ"), (0x03, "Replace"), (0x13, "ReplaceQ")];
const JOINS: [(u8, &str); 4] = [(0x0e, "Append"), (0x19, "AppendQ"), (0x0f, "Prepend"), (0x1a, "PrependQ")];
const GETS: [(u8, &str); 4] = [(0x00, "Get"), (0x09, "GetQ"), (0x0c, "GetK"), (0x0d, "GetKQ")];
const TOUCHES: [(u8, &str); 5] =
    [(0x1c, "Touch"), (0x1d, "GAT"), (0x1e, "GATQ"), (0x23, "GATK"), (0x24, "GATKQ")];
const DELETES: [(u8, &str); 2] = [(0x04, "Delete"), (0x14, "DeleteQ")];
const DELTAS: [(u8, &str); 4] =
    [(0x05, "Increment"), (0x15, "IncrementQ"), (0x06, "Decrement"), (0x16, "DecrementQ")];
const OTHERS: [(u8, &str); 9] = [
    (0x08, "Flush"),
    (0x18, "FlushQ"),
    (0x0a, "Noop"),
    (0x0b, "Version"),
    (0x10, "Stat"),
    (0x07, "Quit"),
    (0x17, "QuitQ"),
    (0x20, "SASL list"),
    (0x21, "SASL auth"),
];
const SASL_STEP: (u8, &str) = (0x22, "SASL step");

const SET: usize = 0;
const ADD: usize = 2;

/// Returns the recipes, one for each pair of the coverage table.
pub(super) fn recipes() -> Vec<Recipe> {
    let all: [(Make, usize); 25] = [
        (stored, 6),
        (store_refused, 6),
        (stored_against_cas, 6),
        (store_of_absent_with_cas, 6),
        (store_too_large, 6),
        (joined, 4),
        (join_of_absent, 4),
        (join_against_cas, 4),
        (join_too_large, 4),
        (hit, 4),
        (miss, 4),
        (touched, 5),
        (touch_of_absent, 5),
        (deleted, 2),
        (delete_of_absent, 2),
        (delete_against_cas, 2),
        (counted, 4),
        (counted_from_nothing, 4),
        (count_of_absent, 4),
        (count_against_cas, 4),
        (count_of_text, 4),
        (flushed, 2),
        (other, 8),
        (connection_ends, 4),
        (expired_at_once, 1),
    ];
    let mut recipes: Vec<Recipe> =
        all.into_iter().flat_map(|(make, variants)| Recipe::all(Wire::Binary, make, variants)).collect();
    recipes.extend(Recipe::all(Wire::Binary, invalid, all_commands().len()));
    recipes
}

/// Returns every command that can be sent with wrong lengths.
fn all_commands() -> Vec<(u8, &'static str)> {
    [&STORES[..], &JOINS, &GETS, &TOUCHES, &DELETES, &DELTAS, &OTHERS, &[SASL_STEP]].concat()
}

/// The parts of a packet.
#[derive(Default)]
struct Packet {
    extras: Vec<u8>,
    key: Option<Key>,
    /// Sent instead of a key of the sequence.
    words: Vec<u8>,
    value: Vec<u8>,
    cas: Option<CasRef>,
}

impl Packet {
    fn of(key: &Key) -> Self {
        Self { key: Some(key.clone()), ..Self::default() }
    }

    fn request(&self, opcode: u8, opaque: u32) -> Request {
        let key_len = self.key.as_ref().map_or(self.words.len(), Key::len);
        let body_len = self.extras.len() + key_len + self.value.len();
        let mut head = vec![0x80, opcode];
        head.extend((key_len as u16).to_be_bytes());
        head.extend([self.extras.len() as u8, 0, 0, 0]);
        head.extend((body_len as u32).to_be_bytes());
        head.extend(opaque.to_be_bytes());
        let request = Request::of(head);
        let request = match self.cas {
            Some(cas) => request.cas(cas),
            None => request.put([0; 8]),
        };
        let request = request.put(&self.extras);
        let request = match &self.key {
            Some(key) => request.key(key),
            None => request.put(&self.words),
        };
        request.put(&self.value)
    }

    fn unit(&self, g: &mut Gen, (opcode, name): (u8, &'static str)) -> Unit {
        let opaque = g.next_opaque();
        let mut unit = Unit::binary(name, self.request(opcode, opaque), opaque);
        if let Some(key) = &self.key {
            unit = unit.keyed(key);
        }
        Unit { fence: self.value.len() > 100_000, ..unit }
    }

    fn send(self, g: &mut Gen, command: (u8, &'static str)) {
        let unit = self.unit(g, command);
        g.send(unit);
    }
}

fn store_extras(g: &mut Gen, exptime: i64) -> Vec<u8> {
    [g.client_flags().to_be_bytes(), (exptime as u32).to_be_bytes()].concat()
}

fn store(g: &mut Gen, command: (u8, &'static str), index: usize, value: Vec<u8>, cas: Option<CasRef>) {
    let exptime = g.exptime();
    let extras = store_extras(g, exptime);
    Packet { extras, value, cas, ..Packet::of(&g.key(index)) }.send(g, command);
}

/// Stores for another recipe.
pub(super) fn set(g: &mut Gen, index: usize, state: State) {
    let value = g.value(state);
    let command = STORES[g.rng.below(2)];
    store(g, command, index, value, None);
}

/// Deletes for another recipe.
pub(super) fn delete(g: &mut Gen, index: usize) {
    Packet::of(&g.key(index)).send(g, DELETES[0]);
}

/// Reads a key with its CAS value for another recipe.
pub(super) fn get(g: &mut Gen, index: usize) {
    let command = *g.rng.pick(&GETS);
    read(g, command, index);
}

/// Stores an item with this expiry time.
pub(super) fn set_to(g: &mut Gen, index: usize, state: State, exptime: i64) {
    let value = g.value(state);
    let extras = store_extras(g, exptime);
    Packet { extras, value, ..Packet::of(&g.key(index)) }.send(g, STORES[SET]);
}

/// Changes an item's expiry time.
pub(super) fn touch_to(g: &mut Gen, index: usize, exptime: i64) {
    let verb = g.rng.below(TOUCHES.len());
    touch(g, verb, index, exptime);
}

/// Stores if there is no item.
pub(super) fn add(g: &mut Gen, index: usize) {
    let value = g.value(State::Text);
    store(g, STORES[ADD], index, value, None);
}

/// Appends if there is an item.
pub(super) fn append(g: &mut Gen, index: usize) {
    let value = g.value(State::Text);
    join(g, 0, index, value, None);
}

/// Adds to a number, or creates one.
pub(super) fn count_up(g: &mut Gen, index: usize) {
    count(g, 0, index, 0, None);
}

/// Flushes after this many seconds.
pub(super) fn flush_in(g: &mut Gen, delay_s: u32) {
    let extras = delay_s.to_be_bytes().to_vec();
    Packet { extras, ..Packet::default() }.send(g, OTHERS[0]);
}

fn read(g: &mut Gen, command: (u8, &'static str), index: usize) {
    let unit = Packet::of(&g.key(index)).unit(g, command);
    g.send(unit.holding());
}

fn wrong_cas(g: &mut Gen, index: usize) -> CasRef {
    let offset = *g.rng.pick(&[1, 1_000_000]);
    g.cas(index, offset)
}

fn storable(g: &mut Gen, verb: usize) -> usize {
    match verb & !1 {
        SET => g.any(),
        ADD => g.absent(),
        _ => g.present(),
    }
}

fn stored(g: &mut Gen, verb: usize) {
    let index = storable(g, verb);
    let state = if g.rng.percent(40) { State::Number } else { State::Text };
    let large = verb == SET && g.rng.percent(1);
    let value = if large { vec![b'v'; g.rng.between(500_000, 1_047_000)] } else { g.value(state) };
    store(g, STORES[verb], index, value, None);
    g.set_state(index, if large { State::Text } else { state });
    if large {
        read(g, GETS[0], index);
        g.remove(index);
    } else if verb % 2 == 1 {
        get(g, index);
    }
}

fn store_refused(g: &mut Gen, verb: usize) {
    let value = g.value(State::Text);
    match verb & !1 {
        SET => {
            let index = g.present();
            g.learn(index);
            let cas = wrong_cas(g, index);
            store(g, STORES[verb], index, value, Some(cas));
        }
        ADD => {
            let index = g.present();
            store(g, STORES[verb], index, value, None);
        }
        _ => {
            // Both reasons: an absent item, and a changed one.
            let index = g.absent();
            store(g, STORES[verb], index, value.clone(), None);
            let index = g.present();
            g.learn(index);
            let cas = wrong_cas(g, index);
            store(g, STORES[verb], index, value, Some(cas));
        }
    }
}

fn stored_against_cas(g: &mut Gen, verb: usize) {
    let index = g.present();
    g.learn(index);
    let state = if g.rng.percent(40) { State::Number } else { State::Text };
    let value = g.value(state);
    let cas = g.cas(index, 0);
    store(g, STORES[verb], index, value, Some(cas));
    g.set_state(index, state);
}

/// With a CAS value, even an add is a cas.
fn store_of_absent_with_cas(g: &mut Gen, verb: usize) {
    let index = g.absent();
    let value = g.value(State::Text);
    let cas = g.cas(index, 5);
    store(g, STORES[verb], index, value, Some(cas));
}

fn store_too_large(g: &mut Gen, verb: usize) {
    let index = if g.rng.percent(50) { g.present() } else { g.any() };
    let value = vec![b'x'; TOO_LARGE_LEN + g.rng.below(100)];
    store(g, STORES[verb], index, value, None);
    if verb & !1 == SET {
        g.set_state(index, State::Absent);
    }
    get(g, index);
}

fn join(g: &mut Gen, verb: usize, index: usize, value: Vec<u8>, cas: Option<CasRef>) {
    Packet { value, cas, ..Packet::of(&g.key(index)) }.send(g, JOINS[verb]);
}

fn joined(g: &mut Gen, verb: usize) {
    let index = g.text();
    let value = g.value(State::Text);
    let cas = if g.rng.percent(30) {
        g.learn(index);
        Some(g.cas(index, 0))
    } else {
        None
    };
    join(g, verb, index, value, cas);
    if g.rng.percent(40) {
        get(g, index);
    }
}

fn join_of_absent(g: &mut Gen, verb: usize) {
    let index = g.absent();
    let value = g.value(State::Text);
    join(g, verb, index, value, None);
}

fn join_against_cas(g: &mut Gen, verb: usize) {
    let index = g.text();
    g.learn(index);
    let value = g.value(State::Text);
    let cas = wrong_cas(g, index);
    join(g, verb, index, value, Some(cas));
}

fn join_too_large(g: &mut Gen, verb: usize) {
    let index = g.any();
    let value = vec![b'x'; TOO_LARGE_LEN + g.rng.below(100)];
    join(g, verb, index, value, None);
    if g.rng.percent(20) {
        get(g, index);
    }
}

fn hit(g: &mut Gen, verb: usize) {
    let index = g.present();
    read(g, GETS[verb], index);
}

fn miss(g: &mut Gen, verb: usize) {
    let index = g.absent();
    read(g, GETS[verb], index);
}

fn touch(g: &mut Gen, verb: usize, index: usize, exptime: i64) {
    let extras = (exptime as u32).to_be_bytes().to_vec();
    let unit = Packet { extras, ..Packet::of(&g.key(index)) }.unit(g, TOUCHES[verb]);
    g.send(unit.holding());
}

fn touched(g: &mut Gen, verb: usize) {
    let index = g.present();
    let exptime = g.exptime();
    touch(g, verb, index, exptime);
}

fn touch_of_absent(g: &mut Gen, verb: usize) {
    let index = g.absent();
    let exptime = g.exptime();
    touch(g, verb, index, exptime);
}

fn deleted(g: &mut Gen, verb: usize) {
    let index = g.present();
    let cas = if g.rng.percent(40) {
        g.learn(index);
        Some(g.cas(index, 0))
    } else {
        None
    };
    Packet { cas, ..Packet::of(&g.key(index)) }.send(g, DELETES[verb]);
    g.set_state(index, State::Absent);
    if g.rng.percent(30) {
        get(g, index);
    }
}

fn delete_of_absent(g: &mut Gen, verb: usize) {
    let index = g.absent();
    Packet::of(&g.key(index)).send(g, DELETES[verb]);
}

fn delete_against_cas(g: &mut Gen, verb: usize) {
    let index = g.present();
    g.learn(index);
    let cas = Some(wrong_cas(g, index));
    Packet { cas, ..Packet::of(&g.key(index)) }.send(g, DELETES[verb]);
}

/// The expiry time that prevents creation.
const NO_CREATE: u32 = u32::MAX;

fn count(g: &mut Gen, verb: usize, index: usize, exptime: u32, cas: Option<CasRef>) {
    let delta = match g.rng.below(8) {
        0 => 0,
        1 => g.rng.next_u64(),
        _ => g.rng.next_u64() % 200,
    };
    let initial = if g.rng.percent(20) { g.rng.next_u64() % NUMBER_MAX } else { g.rng.next_u64() % 1000 };
    if delta > 200 && verb < 2 && g.state(index) == State::Number {
        g.set_state(index, State::Unknown);
    }
    let extras = [&delta.to_be_bytes()[..], &initial.to_be_bytes(), &exptime.to_be_bytes()].concat();
    let unit = Packet { extras, cas, ..Packet::of(&g.key(index)) }.unit(g, DELTAS[verb]);
    g.send(Unit { changes: Some(index as u16), ..unit });
}

fn count_exptime(g: &mut Gen) -> u32 {
    if g.rng.percent(40) { NO_CREATE } else { g.exptime() as u32 }
}

fn counted(g: &mut Gen, verb: usize) {
    let index = g.number();
    let exptime = count_exptime(g);
    let cas = if g.rng.percent(30) {
        g.learn(index);
        Some(g.cas(index, 0))
    } else {
        None
    };
    count(g, verb, index, exptime, cas);
    if g.rng.percent(40) {
        get(g, index);
    }
}

fn counted_from_nothing(g: &mut Gen, verb: usize) {
    let index = g.absent();
    let exptime = g.exptime() as u32;
    // A CAS value has no effect on an absent item.
    let cas = if g.rng.percent(20) { Some(g.cas(index, 7)) } else { None };
    count(g, verb, index, exptime, cas);
    g.set_state(index, State::Number);
    if g.rng.percent(60) {
        get(g, index);
    }
}

fn count_of_absent(g: &mut Gen, verb: usize) {
    let index = g.absent();
    count(g, verb, index, NO_CREATE, None);
}

fn count_against_cas(g: &mut Gen, verb: usize) {
    let index = g.number();
    g.learn(index);
    let cas = wrong_cas(g, index);
    let exptime = count_exptime(g);
    count(g, verb, index, exptime, Some(cas));
}

fn count_of_text(g: &mut Gen, verb: usize) {
    let index = g.text();
    let exptime = count_exptime(g);
    count(g, verb, index, exptime, None);
}

fn flushed(g: &mut Gen, verb: usize) {
    // A flush in the future is always followed by an immediate one: see the text flush.
    if g.rng.percent(25) {
        let extras = 2_592_000u32.to_be_bytes().to_vec();
        Packet { extras, ..Packet::default() }.send(g, OTHERS[verb]);
    }
    let extras = if g.rng.percent(30) { vec![0; 4] } else { Vec::new() };
    Packet { extras, ..Packet::default() }.send(g, OTHERS[verb]);
    g.forget_all();
    let index = g.any();
    get(g, index);
}

fn other(g: &mut Gen, variant: usize) {
    let (command, words, value): ((u8, &'static str), &[u8], &[u8]) = match variant {
        0 => (OTHERS[2], b"", b""),
        1 => (OTHERS[3], b"", b""),
        2 => {
            (OTHERS[4], *g.rng.pick(&[&b"reset"[..], b"detail on", b"detail off", b"detail dump", b""]), b"")
        }
        3 => (OTHERS[4], *g.rng.pick(&[&b"nonesuch"[..], b"detail", b"detail maybe", b"x"]), b""),
        4 => (OTHERS[7], b"", b""),
        5 => (OTHERS[8], b"PLAIN", b"\0user\0password"),
        6 => (SASL_STEP, b"PLAIN", b"\0user\0password"),
        _ => return unknown_opcode(g),
    };
    let unit = Packet { words: words.to_vec(), value: value.to_vec(), ..Packet::default() }.unit(g, command);
    let all_statistics = variant == 2 && words.is_empty();
    let agreement = if all_statistics { Agreement::Form } else { Agreement::Exact };
    g.send(Unit { agreement, ..unit });
}

/// At most with a value: memcached skips key and extras of an unknown command twice, and then loses its
/// position in the stream.
fn unknown_opcode(g: &mut Gen) {
    let opcode = *g.rng.pick(&[0x1b, 0x25, 0x30, 0x3c, 0x40, 0x45, 0x50, 0x7f, 0x80, 0xfe, 0xff]);
    let len = if g.rng.percent(50) { 0 } else { g.rng.between(1, 300) };
    let value = (0..len).map(|_| g.rng.next_u64() as u8).collect();
    Packet { value, ..Packet::default() }.send(g, (opcode, UNKNOWN_OPCODE));
}

fn connection_ends(g: &mut Gen, variant: usize) {
    let unit = match variant {
        0 => Packet::default().unit(g, OTHERS[5]),
        1 => Packet::default().unit(g, OTHERS[6]),
        2 => bad_len(g),
        _ => {
            // The first byte of a connection selects the protocol; later packets must start with the magic byte.
            Packet::default().send(g, OTHERS[2]);
            let opaque = g.next_opaque();
            let first = *g.rng.pick(&[0x00, 0x81, b'g', 0x7f, 0xff]);
            Unit::binary(BAD_MAGIC, Request::of([first]).put([0; 23]), opaque)
        }
    };
    g.send(unit.ends(Ending::ServerCloses));
}

/// Returns a packet whose body is shorter than the announced key and extras.
fn bad_len(g: &mut Gen) -> Unit {
    let (opcode, _) = *g.rng.pick(&all_commands());
    let opaque = g.next_opaque();
    let (key_len, extras_len) = (g.rng.between(1, 20), g.rng.below(9));
    let body_len = g.rng.below(key_len + extras_len);
    let mut bytes = vec![0x80, opcode, 0, key_len as u8, extras_len as u8, 0, 0, 0];
    bytes.extend((body_len as u32).to_be_bytes());
    bytes.extend(opaque.to_be_bytes());
    bytes.extend([0; 8]);
    bytes.extend(vec![b'k'; key_len + extras_len]);
    Unit::binary(BAD_LEN, Request::of(bytes), opaque)
}

/// Sends lengths that are invalid for the command: the server reports that and closes.
fn invalid(g: &mut Gen, variant: usize) {
    let command = all_commands()[variant];
    let index = g.any();
    let key = Packet::of(&g.key(index));
    let keyless = Packet::default();
    let long = Packet { words: g.long_key(), ..Packet::default() };
    let some = |len: usize| vec![1; len];
    let choice = g.rng.below(4);
    let packet = match (command.0, choice) {
        // Too long a key is invalid for every command.
        (_, 0) if !matches!(command.0, 0x20) => {
            let extras = match command.0 {
                0x01..=0x03 | 0x11..=0x13 => some(8),
                0x05 | 0x06 | 0x15 | 0x16 => some(20),
                0x1c..=0x1e | 0x23 | 0x24 => some(4),
                _ => Vec::new(),
            };
            Packet { extras, ..long }
        }
        (0x01..=0x03 | 0x11..=0x13, 1) => Packet { extras: some(8), value: some(3), ..keyless },
        (0x01..=0x03 | 0x11..=0x13, _) => Packet { extras: some(*g.rng.pick(&[0, 4, 7, 9, 20])), ..key },
        (0x05 | 0x06 | 0x15 | 0x16, 1) => Packet { extras: some(20), ..keyless },
        (0x05 | 0x06 | 0x15 | 0x16, 2) => Packet { extras: some(20), value: some(1), ..key },
        (0x05 | 0x06 | 0x15 | 0x16, _) => Packet { extras: some(*g.rng.pick(&[0, 8, 19, 21])), ..key },
        (0x0e | 0x0f | 0x19 | 0x1a, 1) => Packet { value: some(3), ..keyless },
        (0x0e | 0x0f | 0x19 | 0x1a, _) => {
            Packet { extras: some(*g.rng.pick(&[1, 4, 8])), value: some(3), ..key }
        }
        (0x1c..=0x1e | 0x23 | 0x24, 1) => Packet { extras: some(4), ..keyless },
        (0x1c..=0x1e | 0x23 | 0x24, _) => Packet { extras: some(*g.rng.pick(&[0, 3, 5, 8])), ..key },
        (0x08 | 0x18, 1) => Packet { extras: some(*g.rng.pick(&[1, 3, 5, 8])), ..keyless },
        (0x07 | 0x08 | 0x0a | 0x0b | 0x17 | 0x18 | 0x20, _) => key,
        (0x10, _) => Packet { extras: some(4), ..key },
        (0x21 | 0x22, 1) => keyless,
        (0x21 | 0x22, _) => Packet { extras: some(2), ..key },
        // Get and Delete.
        (_, 1) => keyless,
        (_, 2) => Packet { extras: some(4), ..key },
        _ => Packet { value: some(2), ..key },
    };
    let unit = packet.unit(g, command);
    g.send(unit.ends(Ending::ServerCloses));
}

/// Stores an item that is expired at once.
fn expired_at_once(g: &mut Gen, _: usize) {
    let index = g.any();
    let value = g.value(State::Text);
    let exptime = *g.rng.pick(&[2_592_001, 1_000_000_000]);
    let extras = store_extras(g, exptime);
    Packet { extras, value, ..Packet::of(&g.key(index)) }.send(g, STORES[SET]);
    g.set_state(index, State::Absent);
    get(g, index);
}
