//! Keys that are absent, while slots on flash could be theirs: about one in twenty thousand here. Such a slot's item is read, and has
//! another key.

use crate::common::Client;
use crate::tier::Tier;
use std::net::TcpStream;

/// Requests for so many absent keys at a time.
const BATCH: usize = 1000;

/// Sends each request for many absent keys, and checks that all answers are those of a miss.
fn check(c: &mut Client<TcpStream>, request: &str, answer: &str, prefix: usize) {
    let keys = 0..BATCH;
    let line = |n: usize| request.replace("{k}", &format!("absent-{prefix}-{n}"));
    c.say(keys.clone().map(line).collect::<String>() + "mn\r\n");
    let answers = c.hear_until_noop();
    assert_eq!(answers, answer.repeat(BATCH) + "MN\r\n", "to {request}");
}

#[test]
fn requests_for_absent_keys_end() {
    // Small items: many slots, and so many false matches.
    let Some(tier) = Tier::new("-t 1") else { return };
    let mut c = tier.server.connect();
    for n in 0..200_000 {
        c.say(format!("set item-{n} 0 0 100 noreply\r\n{n:0100}\r\n"));
    }
    c.request("mn\r\n", "MN\r\n");
    let requests = [
        ("get {k}\r\n", "END\r\n"),
        ("gat 10 {k}\r\n", "END\r\n"),
        ("mg {k} v\r\n", "EN\r\n"),
        ("mg {k} T30 v\r\n", "EN\r\n"),
        ("mg {k} R30 v\r\n", "EN\r\n"),
        ("mg {k} C5 v\r\n", "EN\r\n"),
        ("me {k}\r\n", "EN\r\n"),
        ("touch {k} 10\r\n", "NOT_FOUND\r\n"),
        ("incr {k} 1\r\n", "NOT_FOUND\r\n"),
        ("delete {k}\r\n", "NOT_FOUND\r\n"),
        ("md {k} I\r\n", "NF\r\n"),
        ("ma {k}\r\n", "NF\r\n"),
        ("append {k} 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("replace {k} 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("cas {k} 0 0 1 5\r\nx\r\n", "NOT_FOUND\r\n"),
    ];
    for prefix in 0..20 {
        for (i, (request, answer)) in requests.into_iter().enumerate() {
            check(&mut c, request, answer, prefix * requests.len() + i);
        }
    }
    let matches = c.count("fabcache", "flash_mismatches");
    assert!(matches > 3, "{matches} false matches");
}
