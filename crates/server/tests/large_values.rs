//! Values that arrive in parts: cut anywhere, stalled, broken off, refused.

mod common;

use std::net::TcpStream;
use std::time::Duration;

use common::{Client, serve, wait_until};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::random::SplitMix64;

/// Longer than a receive, and than the part of a value that is gathered before it is written.
const LEN: usize = 300_000;

/// Lets the server receive what was sent, in most runs: the outcome is the same in all.
fn pause() {
    std::thread::sleep(Duration::from_millis(2));
}

/// Receives an answer that ends with this value, whose line is the last of `head`.
#[track_caller]
fn hear_value(client: &mut Client<TcpStream>, head: &str, value: &[u8]) {
    client.hear([head.as_bytes(), b"\r\n", value, b"\r\nEND\r\n"].concat());
}

#[test]
fn parts_cut_anywhere_make_the_value() {
    let server = serve("-t 1");
    let mut c = server.connect();
    let mut random = SplitMix64::new(24);
    for round in 0..40 {
        let len = random.between(17_000, LEN);
        let value = pattern(round as u64, len);
        let next = "set n 0 0 1\r\n1\r\nget k\r\n";
        let bytes = [format!("set k 5 0 {len}\r\n").as_bytes(), &value, b"\r\n", next.as_bytes()].concat();
        let mut sent = 0;
        while sent < bytes.len() {
            let left = bytes.len() - sent;
            let part = if random.percent(30) { random.between(1, 3) } else { random.between(1, 150_000) };
            c.say(&bytes[sent..sent + part.min(left)]);
            sent += part.min(left);
            if random.percent(50) {
                pause();
            }
        }
        hear_value(&mut c, &format!("STORED\r\nSTORED\r\nVALUE k 5 {len}"), &value);
    }
}

#[test]
fn values_of_about_whole_chunks_are_stored_as_sent() {
    for options in ["-t 1 -m 8", "-t 1 -m 64", "-t 1 -m 1024"] {
        let server = serve(options);
        let mut c = server.connect();
        for chunk in [16 << 10, 64 << 10, 128 << 10] {
            for len in [chunk - 1, chunk, chunk + 1, 2 * chunk - 1, 2 * chunk, 3 * chunk + 1] {
                let value = pattern(len as u64, len);
                let request = [format!("set k 0 0 {len}\r\n").as_bytes(), &value, b"\r\nmn\r\n"].concat();
                // Once at once, and once so that all that follows the first part is available together.
                for first in [request.len(), 20] {
                    c.say(&request[..first]);
                    pause();
                    c.say(&request[first..]);
                    c.request("", "STORED\r\nMN\r\n");
                    c.say("get k\r\n");
                    hear_value(&mut c, &format!("VALUE k 0 {len}"), &value);
                }
            }
        }
    }
}

#[test]
fn stalled_upload_leaves_others_served_and_goes_on() {
    let server = serve("-t 1 -m 8");
    let mut slow = server.connect();
    let value = pattern(1, LEN);
    slow.say(format!("set slow 0 0 {LEN}\r\n"));
    slow.say(&value[..100_000]);
    let mut c = server.connect();
    // More than memory holds, so that every segment is written anew meanwhile.
    for round in 0..100 {
        c.say(format!("set k{round} 0 0 {LEN}\r\n"));
        c.say(pattern(round as u64, LEN));
        c.request("\r\n", "STORED\r\n");
    }
    slow.say(&value[100_000..]);
    slow.request("\r\n", "STORED\r\n");
    slow.say("get slow\r\n");
    hear_value(&mut slow, &format!("VALUE slow 0 {LEN}"), &value);
}

#[test]
fn closed_connection_stores_nothing() {
    let server = serve("-t 1");
    let mut c = server.connect();
    c.request("set k 0 0 3\r\nold\r\n", "STORED\r\n");
    for part in [1, 70_000, 200_000, LEN - 1, LEN] {
        let mut left = server.connect();
        left.say(format!("set k 0 0 {LEN}\r\n"));
        left.say(&pattern(2, LEN)[..part]);
        pause();
    }
    wait_until("the others are closed", || c.count("", "curr_connections") == 1);
    c.request("get k\r\n", "VALUE k 0 3\r\nold\r\nEND\r\n");
}

#[test]
fn bad_line_end_and_noreply_keep_the_stream_in_step() {
    let server = serve("-t 1");
    let mut c = server.connect();
    let value = pattern(3, LEN);
    c.say(format!("set k 0 0 {LEN}\r\n"));
    c.say(&value);
    c.request("xxmn\r\n", "CLIENT_ERROR bad data chunk\r\nMN\r\n");
    c.request("get k\r\n", "END\r\n");
    c.say(format!("set k 0 0 {LEN} noreply\r\n"));
    c.say(&value);
    c.say("\r\nget k\r\n");
    hear_value(&mut c, &format!("VALUE k 0 {LEN}"), &value);
}

#[test]
fn memory_that_runs_out_within_a_value_refuses_it() {
    let server = serve("-t 1 -m 8 -M");
    let mut c = server.connect();
    let mut stored = 0;
    loop {
        c.say(format!("set k{stored} 0 0 {LEN}\r\n"));
        c.say(pattern(stored as u64, LEN));
        c.say("\r\n");
        let answer = c.hear_until("\r\n");
        if answer != "STORED\r\n" {
            assert_eq!(answer, "SERVER_ERROR out of memory storing object\r\n");
            break;
        }
        stored += 1;
        assert!(stored < 100, "-m 8 -M holds no more than 8 MiB");
    }
    c.request(format!("get k{stored}\r\n"), "END\r\n");
    c.say(format!("get k{}\r\n", stored - 1));
    hear_value(&mut c, &format!("VALUE k{} 0 {LEN}", stored - 1), &pattern(stored as u64 - 1, LEN));
}
