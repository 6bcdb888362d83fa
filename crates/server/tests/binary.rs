//! The binary protocol over a real connection.

mod common;

use common::{packet, serve};

const OK: u16 = 0;
const NOT_FOUND: u16 = 1;
const EXISTS: u16 = 2;
const TOO_LARGE: u16 = 3;
const INVALID: u16 = 4;
const NOT_STORED: u16 = 5;
const NON_NUMERIC: u16 = 6;
const UNKNOWN: u16 = 0x81;

/// Flags 5, expiry 0.
const SET_EXTRAS: [u8; 8] = [0, 0, 0, 5, 0, 0, 0, 0];

fn counter_extras(delta: u64, initial: u64, expiry: u32) -> Vec<u8> {
    [&delta.to_be_bytes()[..], &initial.to_be_bytes(), &expiry.to_be_bytes()].concat()
}

#[test]
fn every_opcode_replies() {
    let server = serve("");
    let mut c = server.connect();
    let mut request = |packet: Vec<u8>| {
        c.say(packet);
        c.hear_packet()
    };
    assert_eq!(request(packet(0x00, &[], b"a", &[], 0)).status, NOT_FOUND);
    let set = request(packet(0x01, &SET_EXTRAS, b"a", b"hello", 0));
    assert_eq!((set.status, set.cas), (OK, 1));
    let get = request(packet(0x00, &[], b"a", &[], 0));
    assert_eq!(
        (get.status, get.cas, get.extras, get.key, get.value),
        (OK, 1, vec![0, 0, 0, 5], vec![], b"hello".to_vec())
    );
    let getk = request(packet(0x0c, &[], b"a", &[], 0));
    assert_eq!((getk.key, getk.value), (b"a".to_vec(), b"hello".to_vec()));
    assert_eq!(request(packet(0x01, &SET_EXTRAS, b"a", b"x", 99)).status, EXISTS);
    assert_eq!(request(packet(0x02, &SET_EXTRAS, b"a", b"x", 0)).status, EXISTS);
    assert_eq!(request(packet(0x02, &SET_EXTRAS, b"b", b"x", 0)).status, OK);
    assert_eq!(request(packet(0x03, &SET_EXTRAS, b"zz", b"x", 0)).status, NOT_FOUND);
    assert_eq!(request(packet(0x03, &SET_EXTRAS, b"b", b"y", 0)).status, OK);
    assert_eq!(request(packet(0x0e, &[], b"b", b"z", 0)).status, OK);
    assert_eq!(request(packet(0x0f, &[], b"b", b"x", 0)).status, OK);
    assert_eq!(request(packet(0x00, &[], b"b", &[], 0)).value, b"xyz");
    assert_eq!(request(packet(0x0e, &[], b"zz", b"z", 0)).status, NOT_STORED);
    let missing = request(packet(0x05, &counter_extras(1, 0, u32::MAX), b"n", &[], 0));
    assert_eq!((missing.status, missing.value), (NOT_FOUND, b"Not found".to_vec()));
    assert_eq!(request(packet(0x05, &counter_extras(1, 10, 0), b"n", &[], 0)).value, 10u64.to_be_bytes());
    assert_eq!(request(packet(0x05, &counter_extras(5, 10, 0), b"n", &[], 0)).value, 15u64.to_be_bytes());
    assert_eq!(request(packet(0x06, &counter_extras(20, 10, 0), b"n", &[], 0)).value, 0u64.to_be_bytes());
    assert_eq!(request(packet(0x05, &counter_extras(5, 10, 0), b"b", &[], 0)).status, NON_NUMERIC);
    assert_eq!(request(packet(0x1c, &100u32.to_be_bytes(), b"n", &[], 0)).status, OK);
    assert_eq!(request(packet(0x1d, &100u32.to_be_bytes(), b"a", &[], 0)).value, b"hello");
    assert_eq!(request(packet(0x1c, &100u32.to_be_bytes(), b"zz", &[], 0)).status, NOT_FOUND);
    assert_eq!(request(packet(0x04, &[], b"a", &[], 77)).status, EXISTS);
    assert_eq!(request(packet(0x04, &[], b"a", &[], 0)).status, OK);
    assert_eq!(request(packet(0x04, &[], b"a", &[], 0)).status, NOT_FOUND);
    assert_eq!(request(packet(0x0a, &[], &[], &[], 0)).status, OK);
    assert_eq!(request(packet(0x0b, &[], &[], &[], 0)).value, b"1.6.45");
    assert_eq!(request(packet(0x20, &[], &[], &[], 0)).status, UNKNOWN, "SASL is off");
    assert_eq!(request(packet(0x1b, &[], &[], b"junk", 0)).status, UNKNOWN);
    assert_eq!(request(packet(0x01, &SET_EXTRAS, b"a", &vec![b'x'; 1 << 20], 0)).status, TOO_LARGE);
    assert_eq!(request(packet(0x08, &[], &[], &[], 0)).status, OK);
    assert_eq!(request(packet(0x00, &[], b"b", &[], 0)).status, NOT_FOUND);
    assert_eq!(request(packet(0x00, &[1], b"b", &[], 0)).status, INVALID);
}

#[test]
fn quiet_opcodes_reply_only_to_the_unexpected() {
    let server = serve("");
    let mut c = server.connect();
    let quiet = [
        packet(0x11, &SET_EXTRAS, b"a", b"1", 0),
        packet(0x12, &SET_EXTRAS, b"a", b"1", 0),
        packet(0x13, &SET_EXTRAS, b"zz", b"1", 0),
        packet(0x09, &[], b"zz", &[], 0),
        packet(0x09, &[], b"a", &[], 0),
        packet(0x0d, &[], b"a", &[], 0),
        packet(0x19, &[], b"a", b"2", 0),
        packet(0x15, &counter_extras(1, 0, 0), b"a", &[], 0),
        packet(0x14, &[], b"zz", &[], 0),
        packet(0x14, &[], b"a", &[], 0),
        packet(0x0a, &[], &[], &[], 0),
    ];
    c.say(quiet.concat());
    let mut heard = Vec::new();
    loop {
        let answer = c.hear_packet();
        heard.push((answer.opcode, answer.status));
        if answer.opcode == 0x0a {
            break;
        }
    }
    assert_eq!(
        heard,
        [(0x12, EXISTS), (0x13, NOT_FOUND), (0x09, OK), (0x0d, OK), (0x14, NOT_FOUND), (0x0a, OK)]
    );
    c.say(packet(0x17, &[], &[], &[], 0));
    c.hear_end();
}

#[test]
fn statistics_end_with_an_empty_packet() {
    let server = serve("");
    let mut c = server.connect();
    c.say(packet(0x10, &[], &[], &[], 0));
    let mut count = 0;
    loop {
        let stat = c.hear_packet();
        assert_eq!((stat.opcode, stat.status), (0x10, OK));
        if stat.key.is_empty() {
            break;
        }
        count += 1;
    }
    assert!(count >= 84, "{count}");
    c.say(packet(0x10, &[], b"nonsense", &[], 0));
    assert_eq!(c.hear_packet().status, NOT_FOUND);
    c.say(packet(0x10, &[], b"reset", &[], 0));
    assert_eq!(c.hear_packet().key, b"");
}

#[test]
fn broken_header_ends_the_connection() {
    let server = serve("");
    for broken in
        [[vec![0x80], vec![0xff; 30]].concat(), [&packet(0x00, &[], b"a", &[], 0)[..], &[0x42; 24]].concat()]
    {
        let mut c = server.connect();
        c.say(broken);
        let _ = c.stream.shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        let _ = std::io::Read::read_to_end(&mut c.stream, &mut rest);
    }
    server.connect().request("mn\r\n", "MN\r\n");
}

#[test]
fn long_value_ends_at_its_last_byte_at_any_turn_boundary() {
    for requests in 1..6 {
        let server = serve(&format!("-t 1 -R {requests}"));
        let mut c = server.connect();
        let value = vec![b'v'; 200_000];
        c.say(packet(0x01, &SET_EXTRAS, b"long", &value, 0));
        assert_eq!(c.hear_packet().status, OK, "-R {requests}");
        c.say(packet(0x00, &[], b"long", &[], 0));
        assert!(c.hear_packet().value == value);
    }
}
