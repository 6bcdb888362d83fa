//! Sequences that let time pass: items that expire, and a flush that becomes due.
//!
//! An item with a time to live of `SHORT_S` is only read right after its store, or after `WAIT`: never
//! within a second of its end, because neither server has a finer clock.

use std::time::Duration;

use super::{Gen, State, binary, line, meta, text};
use crate::generate::Selection;
use crate::unit::{Shape, Wire};
use fabcache_testbed::random::SplitMix64;

/// Time to live, in seconds, of items that expire.
const SHORT_S: i64 = 3;

/// Long enough for these items to expire on any clock.
const WAIT: Duration = Duration::from_millis(4500);

/// Keys that are read after one wait.
const KEYS_PER_WAIT: usize = 1200;

/// Returns the sequences for a selection.
pub(super) fn all(rng: &mut SplitMix64, selection: Selection) -> Vec<Gen> {
    vec![expiry(rng.split(), selection), delayed_flush(rng.split(), selection)]
}

fn wire_for(selection: Selection, index: usize) -> Wire {
    match selection {
        Selection::Text | Selection::Meta => Wire::Ascii,
        Selection::Binary => Wire::Binary,
        Selection::All if index.is_multiple_of(3) => Wire::Binary,
        Selection::All => Wire::Ascii,
    }
}

fn turn(g: &mut Gen, selection: Selection, index: usize) {
    let wire = wire_for(selection, index);
    g.turn_to(if wire == Wire::Binary { 1 } else { 0 }, wire);
}

/// Groups keys by connection, so that batches are long.
fn grouped(selection: Selection, keys: &[usize]) -> Vec<usize> {
    let mut keys = keys.to_vec();
    keys.sort_by_key(|&key| wire_for(selection, key) == Wire::Binary);
    keys
}

fn expiry(rng: SplitMix64, selection: Selection) -> Gen {
    let mut g = Gen::new(rng);
    let keys: Vec<usize> = (0..KEYS_PER_WAIT).map(|n| g.add_key(format!("x{n}").into_bytes())).collect();
    let keys = grouped(selection, &keys);
    for &index in &keys {
        turn(&mut g, selection, index);
        dying(&mut g, index);
    }
    for &index in &keys {
        turn(&mut g, selection, index);
        look(&mut g, index);
    }
    g.pause(WAIT);
    for &index in &keys {
        turn(&mut g, selection, index);
        after(&mut g, index);
    }
    g
}

/// Stores an item with a short or long life, by one of many commands.
fn dying(g: &mut Gen, index: usize) {
    let state = if index.is_multiple_of(4) { State::Number } else { State::Text };
    // The last request decides: a long or short life at first, then changed.
    let (first_s, last_s) =
        *g.rng.pick(&[(SHORT_S, None), (0, Some(SHORT_S)), (SHORT_S, Some(1000)), (1000, None), (0, None)]);
    for exptime in [Some(first_s), last_s].into_iter().flatten() {
        let touches = exptime != first_s && g.rng.percent(60);
        match (g.wire, touches) {
            (Wire::Ascii, true) if g.rng.percent(50) => text::touch_to(g, index, exptime),
            (Wire::Ascii, true) => meta::touch_to(g, index, exptime),
            (Wire::Binary, true) => binary::touch_to(g, index, exptime),
            (Wire::Ascii, false) if g.rng.percent(50) => text::set_to(g, index, state, exptime),
            (Wire::Ascii, false) => meta::set_to(g, index, state, exptime),
            (Wire::Binary, false) => binary::set_to(g, index, state, exptime),
        }
    }
    // Neither arithmetic nor appending changes when an item expires.
    if g.rng.percent(30) {
        match (g.wire, state) {
            (Wire::Ascii, State::Number) => text::count(g, index),
            (Wire::Ascii, _) => text::append(g, index),
            (Wire::Binary, State::Number) => binary::count_up(g, index),
            (Wire::Binary, _) => binary::append(g, index),
        }
    }
}

fn look(g: &mut Gen, index: usize) {
    match g.wire {
        Wire::Ascii if g.rng.percent(50) => text::gets(g, index),
        Wire::Ascii => meta::get_ttl(g, index),
        Wire::Binary => binary::get(g, index),
    }
}

/// Sends commands to an item which has expired or not.
fn after(g: &mut Gen, index: usize) {
    match (g.wire, g.rng.below(10)) {
        (Wire::Ascii, 0) => text::add(g, index),
        (Wire::Ascii, 1) => text::replace(g, index),
        (Wire::Ascii, 2) => text::append(g, index),
        (Wire::Ascii, 3) => text::count(g, index),
        (Wire::Ascii, 4) => text::delete(g, index),
        (Wire::Ascii, 5) => text::touch_to(g, index, 1000),
        (Wire::Ascii, 6) => meta::delete(g, index),
        (Wire::Binary, 0) => binary::add(g, index),
        (Wire::Binary, 1) => binary::append(g, index),
        (Wire::Binary, 2) => binary::count_up(g, index),
        (Wire::Binary, 3) => binary::delete(g, index),
        (Wire::Binary, 4) => binary::touch_to(g, index, 1000),
        _ => look(g, index),
    }
    look(g, index);
}

/// A flush that is due in two seconds: items live until then, and later ones are not affected.
fn delayed_flush(rng: SplitMix64, selection: Selection) -> Gen {
    let mut g = Gen::new(rng);
    let keys: Vec<usize> = (0..200).map(|n| g.add_key(format!("f{n}").into_bytes())).collect();
    let keys = grouped(selection, &keys);
    let (before, later) = keys.split_at(100);
    let (before, later) = (grouped(selection, before), grouped(selection, later));
    for &index in &before {
        turn(&mut g, selection, index);
        g.store(index, State::Text);
    }
    turn(&mut g, selection, before[0]);
    match g.wire {
        Wire::Ascii => {
            let sent = line(&mut g, "flush_all", &["flush_all 3"], Shape::Line);
            g.send(sent);
        }
        Wire::Binary => binary::flush_in(&mut g, 3),
    }
    for &index in &before {
        turn(&mut g, selection, index);
        look(&mut g, index);
    }
    g.pause(WAIT);
    for &index in before.iter().chain(&later) {
        turn(&mut g, selection, index);
        look(&mut g, index);
    }
    for &index in before.iter().chain(&later) {
        turn(&mut g, selection, index);
        g.store(index, State::Text);
        look(&mut g, index);
    }
    g
}
