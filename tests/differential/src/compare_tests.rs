//! Tests of the comparison: real differences are detected, server-specific ones are ignored.

use super::*;
use crate::answer::tests::packet;
use crate::request::{Request, prefix};

struct Bench {
    book: CasBook,
}

impl Bench {
    fn new() -> Self {
        Self { book: CasBook::default() }
    }

    fn compare(&mut self, unit: &Unit, theirs: &[u8], ours: &[u8]) -> Result<(), String> {
        let complete = |bytes: &[u8]| Answer { bytes: bytes.to_vec(), end: End::Complete };
        let mut comparison = Comparison { book: &mut self.book, prefix: &prefix(0), slack_s: 1 };
        comparison.compare(unit, &complete(theirs), &complete(ours))
    }
}

fn key(id: u16, tail: &str) -> Key {
    Key { id, tail: tail.as_bytes().into() }
}

fn values() -> Unit {
    let unit = Unit::ascii("gets", Request::default(), Shape::Values);
    unit.keyed(&key(4, "a")).keyed(&key(5, "b"))
}

fn meta() -> Unit {
    Unit::ascii("mg", Request::default(), Shape::Meta).keyed(&key(4, "a"))
}

#[test]
fn every_byte_is_compared() {
    let line = Unit::ascii("set", Request::default(), Shape::Line);
    let mut bench = Bench::new();
    assert!(bench.compare(&line, b"STORED\r\n", b"STORED\r\n").is_ok());
    for ours in [
        &b"STORED\n"[..],
        b"STORED \r\n",
        b"NOT_STORED\r\n",
        b"STORED\r\n\r\n",
        b"",
        b"STOREd\r\n",
        b"STORED",
    ] {
        assert!(bench.compare(&line, b"STORED\r\n", ours).is_err(), "{ours:?}");
        assert!(bench.compare(&line, ours, b"STORED\r\n").is_err(), "{ours:?}");
    }
    let theirs = b"CLIENT_ERROR bad data chunk\r\n";
    assert!(bench.compare(&line, theirs, b"CLIENT_ERROR  bad data chunk\r\n").is_err());
    assert!(bench.compare(&line, theirs, b"CLIENT_ERROR bad data  chunk\r\n").is_err());
}

#[test]
fn cas_values_are_mapped_one_to_one() {
    let mut bench = Bench::new();
    let answer = |cas: u32| format!("VALUE k00000a 0 1 {cas}\r\nx\r\nEND\r\n").into_bytes();
    assert!(bench.compare(&values(), &answer(7), &answer(9)).is_ok());
    assert_eq!(bench.book.last(4), Some((7, 9)));
    assert!(bench.compare(&values(), &answer(7), &answer(9)).is_ok());
    assert!(bench.compare(&values(), &answer(7), &answer(10)).is_err(), "ours changed alone");
    assert!(bench.compare(&values(), &answer(8), &answer(9)).is_err(), "theirs changed alone");
    assert!(bench.compare(&values(), &answer(8), &answer(12)).is_ok());
    assert!(bench.compare(&meta(), b"HD c8\r\n", b"HD c12\r\n").is_ok());
    assert!(bench.compare(&meta(), b"HD c8\r\n", b"HD c13\r\n").is_err());
    assert!(bench.compare(&meta(), b"HD c8\r\n", b"HD cx\r\n").is_err());
}

#[test]
fn a_cas_value_belongs_to_the_named_key() {
    let mut bench = Bench::new();
    let theirs = b"VALUE k00000b 0 1 7\r\nx\r\nVALUE k00000a 0 1 8\r\ny\r\nEND\r\n";
    let ours = b"VALUE k00000b 0 1 1\r\nx\r\nVALUE k00000a 0 1 2\r\ny\r\nEND\r\n";
    assert!(bench.compare(&values(), theirs, ours).is_ok());
    assert_eq!((bench.book.last(5), bench.book.last(4)), (Some((7, 1)), Some((8, 2))));
}

#[test]
fn values_are_compared_as_data() {
    let mut bench = Bench::new();
    let answer = |data: &str| format!("VALUE k00000a 0 {}\r\n{data}\r\nEND\r\n", data.len()).into_bytes();
    assert!(bench.compare(&values(), &answer("HD c5\r\n"), &answer("HD c5\r\n")).is_ok());
    assert!(bench.compare(&values(), &answer("HD c5\r\n"), &answer("HD c6\r\n")).is_err());
    assert!(bench.compare(&values(), &answer("ab"), &answer("abc")).is_err());
}

#[test]
fn seconds_may_differ_by_the_slack_and_never_may_not() {
    let mut bench = Bench::new();
    assert!(bench.compare(&meta(), b"HD t100 l0\r\n", b"HD t99 l1\r\n").is_ok());
    assert!(bench.compare(&meta(), b"HD t100\r\n", b"HD t98\r\n").is_err());
    assert!(bench.compare(&meta(), b"HD t-1\r\n", b"HD t-1\r\n").is_ok());
    assert!(bench.compare(&meta(), b"HD t-1\r\n", b"HD t0\r\n").is_err());
    // Sizes and hits have no slack.
    assert!(bench.compare(&meta(), b"HD s4\r\n", b"HD s5\r\n").is_err());
    assert!(bench.compare(&meta(), b"HD h0\r\n", b"HD h1\r\n").is_err());
    // The order of the flags is part of the answer.
    assert!(bench.compare(&meta(), b"HD s4 f5\r\n", b"HD f5 s4\r\n").is_err());
    assert!(bench.compare(&meta(), b"HD X W\r\n", b"HD W X\r\n").is_err());
}

#[test]
fn item_descriptions_ignore_only_server_specific_fields() {
    let mut bench = Bench::new();
    let unit = Unit::ascii("me", Request::default(), Shape::Line);
    let theirs = b"ME k00000a exp=-1 la=0 cas=5 fetch=no cls=1 size=67\r\n";
    assert!(bench.compare(&unit, theirs, b"ME k00000a exp=-1 la=1 cas=6 fetch=no cls=4 size=99\r\n").is_ok());
    for ours in ["exp=0 la=0 cas=6 fetch=no cls=1 size=6", "exp=-1 la=0 cas=6 fetch=yes cls=1 size=6"] {
        let ours = format!("ME k00000a {ours}\r\n");
        assert!(bench.compare(&unit, theirs, ours.as_bytes()).is_err());
    }
    let ours = b"ME k00000a exp=-1 la=0 cas=6 fetch=no cls=x size=9\r\n";
    assert!(bench.compare(&unit, theirs, ours).is_err());
}

#[test]
fn versions_must_be_readable_by_clients() {
    let mut bench = Bench::new();
    let unit = Unit::ascii("version", Request::default(), Shape::Line);
    assert!(bench.compare(&unit, b"VERSION 1.6.18\r\n", b"VERSION 1.6.45\r\n").is_ok());
    for ours in ["VERSION 1.6\r\n", "VERSION 0.1.0\r\n", "VERSION 1.6.45-fab\r\n", "VERSION 1.6.300\r\n"] {
        assert!(bench.compare(&unit, b"VERSION 1.6.18\r\n", ours.as_bytes()).is_err(), "{ours}");
    }
}

#[test]
fn ends_must_agree() {
    let unit = Unit::ascii("quit", Request::default(), Shape::Line);
    let mut book = CasBook::default();
    let mut comparison = Comparison { book: &mut book, prefix: &prefix(0), slack_s: 1 };
    let answer = |end| Answer { bytes: Vec::new(), end };
    assert!(comparison.compare(&unit, &answer(End::Closed), &answer(End::Closed)).is_ok());
    for ours in [End::TimedOut, End::Complete, End::Malformed, End::Missing] {
        assert!(comparison.compare(&unit, &answer(End::Closed), &answer(ours)).is_err());
    }
}

#[test]
fn packets_are_compared_field_by_field() {
    let mut bench = Bench::new();
    let unit = Unit::binary("Get", Request::default(), 1).keyed(&key(4, "a"));
    let theirs = packet(0, 0, 1, 70, b"body");
    assert!(bench.compare(&unit, &theirs, &packet(0, 0, 1, 80, b"body")).is_ok());
    assert_eq!(bench.book.last(4), Some((70, 80)));
    let others = [
        packet(0, 0, 1, 81, b"body"),
        packet(0, 0, 1, 0, b"body"),
        packet(0, 1, 1, 80, b"body"),
        packet(9, 0, 1, 80, b"body"),
        packet(0, 0, 1, 80, b"bodY"),
        packet(0, 0, 1, 80, b"bod"),
        Vec::new(),
        [packet(0, 0, 1, 80, b"body"), packet(0, 0, 1, 80, b"body")].concat(),
        [packet(0, 0, 1, 80, b"body"), vec![0x81]].concat(),
    ];
    for ours in others {
        assert!(bench.compare(&unit, &theirs, &ours).is_err(), "{ours:02x?}");
    }
}

#[test]
fn several_servers_may_give_keys_the_same_cas_values() {
    let get = |id, name| Unit::binary("Get", Request::default(), 1).keyed(&key(id, name));
    let same = |is_sharded, second: &Unit| {
        let mut bench = Bench { book: CasBook::new(is_sharded) };
        let first = get(4, "a");
        assert!(bench.compare(&first, &packet(0, 0, 1, 70, b""), &packet(0, 0, 1, 80, b"")).is_ok());
        bench.compare(second, &packet(0, 0, 1, 71, b""), &packet(0, 0, 1, 80, b"")).is_ok()
    };
    assert!(!same(false, &get(5, "b")));
    assert!(same(true, &get(5, "b")));
    assert!(!same(true, &get(4, "a")), "a changed item keeps its value");
}

#[test]
fn statistics_agree_in_form() {
    let mut bench = Bench::new();
    let unit = Unit { agreement: Agreement::Form, ..Unit::ascii("stats", Request::default(), Shape::Stats) };
    assert!(bench.compare(&unit, b"STAT pid 1\r\nEND\r\n", b"STAT pid 2\r\nSTAT x y z\r\nEND\r\n").is_ok());
    assert!(bench.compare(&unit, b"STAT pid 1\r\nEND\r\n", b"STAT pid\r\nEND\r\n").is_err());
    assert!(bench.compare(&unit, b"STAT pid 1\r\nEND\r\n", b"ERROR\r\n").is_err());
    assert!(bench.compare(&unit, b"STAT pid 1\r\nEND\r\n", b"pid 1\r\nEND\r\n").is_err());
}
