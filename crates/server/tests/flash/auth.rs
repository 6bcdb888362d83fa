//! Clients that authenticate, and items on flash.

use std::net::TcpStream;

use crate::common::{Client, packet};
use crate::tier::{Tier, folder, letters};

const SASL_AUTH: u8 = 0x21;
const AUTH_FAILED: u16 = 0x20;
const ITEMS: usize = 100;

fn value(n: usize) -> String {
    String::from_utf8(letters(n, 500)).expect("letters")
}

fn token(user_and_password: &str) -> String {
    format!("set any 0 0 {}\r\n{user_and_password}\r\n", user_and_password.len())
}

/// A server whose clients authenticate, one of them, and the numbers of items on flash.
fn start() -> Option<(Tier, Client<TcpStream>, Vec<usize>)> {
    let users = folder()?;
    let path = users.path().join("users");
    std::fs::write(&path, "ann:secret\n").expect("written");
    let tier = Tier::new(&format!("-t 2 -Y {0} -S --sasl-pwdb {0}", path.display()))?;
    let mut c = tier.server.connect();
    c.request(token("ann secret"), "STORED\r\n");
    for n in 0..ITEMS {
        c.request(format!("set key-{n} 0 0 500\r\n{}\r\n", value(n)), "STORED\r\n");
    }
    c.fill();
    c.settle();
    let mut on_flash = Vec::new();
    for n in 0..ITEMS {
        let before = c.flash_reads();
        c.say(format!("mg key-{n}\r\n"));
        let is_there = c.hear_until("\r\n") == "HD\r\n";
        if is_there && c.flash_reads() > before {
            on_flash.push(n);
        }
    }
    assert!(on_flash.len() > ITEMS / 2, "{} items are on flash", on_flash.len());
    Some((tier, c, on_flash))
}

#[test]
fn flash_is_not_read_for_strangers() {
    let Some((tier, mut c, on_flash)) = start() else { return };
    let reads = c.flash_reads();
    for n in &on_flash {
        let mut text = tier.server.connect();
        for request in ["get {k}\r\n", "mg {k} v\r\n", "touch {k} 0\r\n", "delete {k}\r\n", "incr {k} 1\r\n"]
        {
            text.request(request.replace("{k}", &format!("key-{n}")), "CLIENT_ERROR unauthenticated\r\n");
        }
        let mut binary = tier.server.connect();
        binary.say(packet(0x00, &[], format!("key-{n}").as_bytes(), &[], 0));
        assert_eq!(binary.hear_packet().status, AUTH_FAILED);
        binary.hear_end();
    }
    assert_eq!(c.flash_reads(), reads);
    tier.server.stop();
}

#[test]
fn text_clients_read_flash_once_they_are_admitted() {
    let Some((tier, _c, on_flash)) = start() else { return };
    for n in &on_flash {
        let mut text = tier.server.connect();
        let (value, token) = (value(*n), token("ann secret"));
        text.request(
            format!("{token}get key-{n}\r\ntouch key-{n} 0\r\nget key-{n}\r\n"),
            format!("STORED\r\nVALUE key-{n} 0 500\r\n{value}\r\nEND\r\nTOUCHED\r\nVALUE key-{n} 0 500\r\n{value}\r\nEND\r\n"),
        );
    }
    tier.server.stop();
}

/// A wrong password ends the rights of a binary client behind the reads that it requested before.
#[test]
fn binary_clients_lose_flash_with_their_rights() {
    let Some((tier, _c, on_flash)) = start() else { return };
    let auth = |password: &str| packet(SASL_AUTH, &[], b"PLAIN", format!("\0ann\0{password}").as_bytes(), 0);
    // Each answer to a wrong password is delayed.
    for n in &on_flash[..5] {
        let get = packet(0x00, &[], format!("key-{n}").as_bytes(), &[], 0);
        let mut binary = tier.server.connect();
        binary.say([auth("secret"), get.clone(), auth("wrong"), get].concat());
        assert_eq!(binary.hear_packet().status, 0);
        let answer = binary.hear_packet();
        assert_eq!((answer.status, answer.value), (0, value(*n).into_bytes()));
        assert_eq!(binary.hear_packet().status, AUTH_FAILED);
        assert_eq!(binary.hear_packet().status, AUTH_FAILED);
        binary.hear_end();
    }
    tier.server.stop();
}
