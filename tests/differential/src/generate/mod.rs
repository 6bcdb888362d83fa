//! The generator: sequences of commands that provoke every answer, and others for interactions.
//!
//! A sequence works on a few keys, of which the generator keeps a model: absent, text, or a number. A
//! recipe targets one pair of the coverage table; it brings a key into the state it needs, then sends
//! the command. Recipes are dealt from a shuffled deck, so that all are sent equally often. The
//! comparison does not depend on the model; a wrong model would lower the coverage.
//!
//! Known differences are not generated here: see `drift` for the excluded inputs.

mod binary;
mod chaos;
mod deck;
mod meta;
mod slow;
mod text;

use std::rc::Rc;
use std::time::Duration;

pub use deck::{Generator, Sequence};

use crate::request::{CasRef, CasWire, Key, PREFIX_LEN, Request};
use crate::table::Protocol;
use crate::unit::{Shape, Step, Unit, Wire};
use fabcache_testbed::random::SplitMix64;

/// The generated protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// Classic text.
    Text,
    /// Meta, on connections that speak text as well.
    Meta,
    /// Binary.
    Binary,
    /// All three, also on several connections at once.
    All,
}

impl Selection {
    /// Returns the protocols whose part of the coverage table must be filled.
    pub fn protocols(self) -> &'static [Protocol] {
        match self {
            Selection::Text => &[Protocol::Text],
            Selection::Meta => &[Protocol::Meta],
            Selection::Binary => &[Protocol::Binary],
            Selection::All => &Protocol::ALL,
        }
    }

    /// Returns whether text and meta are sent, which the known differences use.
    pub fn drifts(self) -> bool {
        self != Selection::Binary
    }

    /// Returns whether binary is sent.
    pub fn binary(self) -> bool {
        matches!(self, Selection::Binary | Selection::All)
    }
}

/// Keys of a sequence.
const KEYS: usize = 10;

/// The longest key.
const KEY_LEN_MAX: usize = 250;

/// The longest key whose base64 is within that limit.
const KEY64_LEN_MAX: usize = 186;

/// Length of a value that exceeds an item of 1 MiB with its header and key.
const TOO_LARGE_LEN: usize = 1 << 20;

/// Numbers stay below this; the generator treats larger ones as text. From 2^63 on memcached 1.6.18
/// looks for a minus sign, and reads on through the memory after the item.
const NUMBER_MAX: u64 = 1 << 62;

/// The generator's model of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// No such item.
    Absent,
    /// A value that is not a number.
    Text,
    /// A decimal number of less than 2^63.
    Number,
    /// Anything, after a command whose result the generator does not model.
    Unknown,
}

/// Sends the commands of a recipe's variant into a sequence.
pub(crate) type Make = fn(&mut Gen, usize);

/// A function, and one of its variants.
#[derive(Clone, Copy)]
pub(crate) struct Recipe {
    /// The protocol family of its connection.
    pub(crate) wire: Wire,
    /// Sends the commands.
    pub(crate) make: Make,
    /// The variant.
    pub(crate) variant: usize,
}

impl Recipe {
    pub(crate) fn all(
        wire: Wire,
        make: fn(&mut Gen, usize),
        variants: usize,
    ) -> impl Iterator<Item = Recipe> {
        (0..variants).map(move |variant| Recipe { wire, make, variant })
    }
}

/// A sequence under construction.
pub(crate) struct Gen {
    pub(crate) rng: SplitMix64,
    keys: Vec<Key>,
    states: Vec<State>,
    steps: Vec<Step>,
    wire: Wire,
    conn: usize,
    opaque: u32,
}

impl Gen {
    pub(crate) fn new(mut rng: SplitMix64) -> Self {
        let keys = (0..KEYS).map(|id| Key { id: id as u16, tail: tail(&mut rng, id) }).collect();
        let opaque = (rng.next_u64() as u32) & 0x7fff_ffff;
        Self {
            rng,
            keys,
            states: vec![State::Absent; KEYS],
            steps: Vec::new(),
            wire: Wire::Ascii,
            conn: 0,
            opaque,
        }
    }

    /// Selects a connection.
    pub(crate) fn turn_to(&mut self, conn: usize, wire: Wire) {
        self.conn = conn;
        self.wire = wire;
    }

    pub(crate) fn send(&mut self, mut unit: Unit) {
        unit.conn = self.conn;
        debug_assert_eq!(unit.wire, self.wire);
        self.steps.push(Step::Send(unit));
    }

    pub(crate) fn pause(&mut self, pause: Duration) {
        self.steps.push(Step::Pause(pause));
    }

    pub(crate) fn into_steps(self) -> Vec<Step> {
        self.steps
    }

    /// Adds a key to the sequence.
    pub(crate) fn add_key(&mut self, tail: Vec<u8>) -> usize {
        let id = self.keys.len() as u16;
        self.keys.push(Key { id, tail: tail.into() });
        self.states.push(State::Absent);
        self.keys.len() - 1
    }

    pub(crate) fn key(&self, index: usize) -> Key {
        self.keys[index].clone()
    }

    pub(crate) fn state(&self, index: usize) -> State {
        self.states[index]
    }

    pub(crate) fn set_state(&mut self, index: usize, state: State) {
        self.states[index] = state;
    }

    /// Marks all keys as absent.
    pub(crate) fn forget_all(&mut self) {
        self.states.fill(State::Absent);
    }

    /// Returns the opaque of the next binary command.
    pub(crate) fn next_opaque(&mut self) -> u32 {
        self.opaque = (self.opaque + 1) & 0x7fff_ffff;
        self.opaque
    }

    /// Returns any key.
    pub(crate) fn any(&mut self) -> usize {
        self.rng.below(KEYS)
    }

    /// Returns whether the key's base64 is within the key limit.
    pub(crate) fn fits_base64(&self, index: usize) -> bool {
        self.keys[index].len() <= KEY64_LEN_MAX
    }

    /// Returns a key without an item.
    pub(crate) fn absent(&mut self) -> usize {
        if let Some(index) = self.find(|state| state == State::Absent) {
            return index;
        }
        let index = self.any();
        self.remove(index);
        index
    }

    /// Returns a key with an item of either kind.
    pub(crate) fn present(&mut self) -> usize {
        match self.find(|state| matches!(state, State::Text | State::Number)) {
            Some(index) if self.rng.percent(80) => index,
            _ => {
                let index = self.any();
                let state = if self.rng.percent(70) { State::Text } else { State::Number };
                self.store(index, state);
                index
            }
        }
    }

    /// Returns a key with an item that is not a number.
    pub(crate) fn text(&mut self) -> usize {
        self.of(State::Text)
    }

    /// Returns a key with a number.
    pub(crate) fn number(&mut self) -> usize {
        self.of(State::Number)
    }

    fn of(&mut self, state: State) -> usize {
        match self.find(|known| known == state) {
            Some(index) if self.rng.percent(85) => index,
            _ => {
                let index = self.any();
                self.store(index, state);
                index
            }
        }
    }

    fn find(&mut self, wanted: impl Fn(State) -> bool) -> Option<usize> {
        let start = self.any();
        (0..KEYS).map(|step| (start + step) % KEYS).find(|&index| wanted(self.states[index]))
    }

    /// Stores an item of this kind, by any command that always succeeds.
    pub(crate) fn store(&mut self, index: usize, state: State) {
        match self.wire {
            Wire::Ascii if self.rng.percent(60) => text::set(self, index, state),
            Wire::Ascii => meta::set(self, index, state),
            Wire::Binary => binary::set(self, index, state),
        }
        self.states[index] = state;
    }

    /// Removes an item, by any command that always succeeds.
    pub(crate) fn remove(&mut self, index: usize) {
        match self.wire {
            Wire::Ascii if self.rng.percent(60) => text::delete(self, index),
            Wire::Ascii => meta::delete(self, index),
            Wire::Binary => binary::delete(self, index),
        }
        self.states[index] = State::Absent;
    }

    /// Reads a key with its CAS value, so that the next command can use it.
    pub(crate) fn learn(&mut self, index: usize) {
        match self.wire {
            Wire::Ascii if self.rng.percent(60) => text::gets(self, index),
            Wire::Ascii => meta::get_cas(self, index),
            Wire::Binary => binary::get(self, index),
        }
    }

    /// Returns the CAS value last seen, changed by `offset`.
    pub(crate) fn cas(&self, index: usize, offset: i64) -> CasRef {
        let wire = match self.wire {
            Wire::Ascii => CasWire::Decimal,
            Wire::Binary => CasWire::BigEndian,
        };
        CasRef { key: self.keys[index].id, offset, wire }
    }

    /// Returns a value that is clearly a number or clearly not, even to a lenient parser.
    pub(crate) fn value(&mut self, state: State) -> Vec<u8> {
        match state {
            State::Number => self.digits(),
            _ => self.words(),
        }
    }

    fn digits(&mut self) -> Vec<u8> {
        let number = match self.rng.below(8) {
            0 => 0,
            1 => *self.rng.pick(&[9, 10, 99, 100, 999, 1000]),
            2 => self.rng.next_u64() % NUMBER_MAX,
            _ => self.rng.next_u64() % 100_000,
        };
        number.to_string().into_bytes()
    }

    fn words(&mut self) -> Vec<u8> {
        let len = match self.rng.below(100) {
            0..3 => 0,
            3..80 => self.rng.between(1, 40),
            80..97 => self.rng.between(41, 2000),
            _ => self.rng.between(2001, 20_000),
        };
        let mut value: Vec<u8> = match self.rng.below(4) {
            0 => b"END\r\nVALUE a 0 1\r\nMN\r\n\0HD c5".iter().copied().cycle().take(len).collect(),
            1 => (0..len).map(|_| self.rng.next_u64() as u8).collect(),
            _ => self.rng.letters(len),
        };
        // Letters at both ends: numbers may have spaces around them, and values are appended to others.
        for end in [0, len.saturating_sub(1)] {
            if let Some(byte) = value.get_mut(end) {
                *byte = b'v';
            }
        }
        value
    }

    /// Returns an expiry time beyond the end of every sequence.
    pub(crate) fn exptime(&mut self) -> i64 {
        match self.rng.below(20) {
            0..14 => 0,
            14 => 2_592_000,
            15 => 2_000_000_000,
            _ => self.rng.between(100, 10_000) as i64,
        }
    }

    /// Returns client flags.
    pub(crate) fn client_flags(&mut self) -> u32 {
        *self.rng.pick(&[0, 0, 0, 1, 5, 65_535, u32::MAX, 1 << 31])
    }

    /// Returns a line end, sometimes a bare line feed.
    pub(crate) fn line_end(&mut self) -> &'static str {
        match self.rng.below(20) {
            0 => "\n",
            1 => " \r\n",
            _ => "\r\n",
        }
    }

    /// Returns a separator of two words.
    pub(crate) fn gap(&mut self) -> &'static str {
        if self.rng.percent(3) { "   " } else { " " }
    }

    /// Returns data longer than its announced length; the remainder is an unknown command.
    pub(crate) fn bad_data(&mut self) -> (usize, Vec<u8>) {
        let announced = self.rng.between(1, 30);
        let rest = self.rng.between(4, 20);
        let data = match self.rng.percent(50) {
            true => [self.rng.letters(announced + 2), vec![b'z'; rest]].concat(),
            false => {
                // The data ends early, so the announced bytes run into the next line.
                let early = self.rng.below(announced);
                let fill = announced - early;
                [self.rng.letters(early), b"\r\n".to_vec(), vec![b'z'; fill + rest]].concat()
            }
        };
        (announced, [data, b"\r\n".to_vec()].concat())
    }

    /// Returns a key over the length limit.
    pub(crate) fn long_key(&mut self) -> Vec<u8> {
        let len = *self.rng.pick(&[251, 252, 255, 256, 300, 1000]);
        self.rng.letters(len)
    }
}

/// Returns the end of a key: any bytes but space, NUL and line ends, of any allowed length.
fn tail(rng: &mut SplitMix64, id: usize) -> Rc<[u8]> {
    let len = match rng.below(20) {
        0 => KEY_LEN_MAX - PREFIX_LEN,
        1 => rng.between(100, KEY_LEN_MAX - PREFIX_LEN),
        _ => rng.between(1, 20),
    };
    let mut tail = match rng.below(8) {
        0 => (0..len).map(|_| *rng.pick(b"\x01\t\x0b\x1b\x7f\x80\xc3\xa4\xff!/=+\"\\")).collect(),
        _ => rng.letters(len),
    };
    // Keys of one sequence differ, even short ones.
    tail[0] = b'a' + id as u8;
    tail.into()
}

/// Returns one of these lines of a command, with a random line end.
pub(crate) fn line(g: &mut Gen, command: &'static str, lines: &[&str], shape: Shape) -> Unit {
    let words = *g.rng.pick(lines);
    // A line of three bytes or less is a known difference.
    let end = if words.len() < 3 { "\r\n" } else { g.line_end() };
    Unit::ascii(command, Request::of(words).put(end), shape)
}
