//! Messages on the fabric that break the protocol.

use std::time::{Duration, Instant};

use fabcache_client::{Client, Error, FabricMode};
use fabcache_fabric::channel::MESSAGE_BYTES;

use crate::scripted::{
    BYE, CREDITS_KIND, DATA, LONG, LONG_ENOUGH, PUT, ROOM, SHORT, Script, ScriptedServer, TAKEN, Talk, domain,
};

const CALL_MAX: Duration = Duration::from_secs(25);

fn pair(at: u64, bytes: u64) -> Vec<u8> {
    [at.to_le_bytes(), bytes.to_le_bytes()].concat()
}

/// Asserts that the call fails in time, and returns the error.
fn fails(
    server: &ScriptedServer,
    cache: &Client,
    what: &str,
    sends: impl FnMut(&mut Talk) + Send + 'static,
) -> String {
    server.plays(Script { sends: Box::new(sends), serves: false, ..Script::honest() });
    let began = Instant::now();
    let error = cache.get(b"key").expect_err(what);
    assert!(matches!(error, Error::Server { .. }), "{what}: {error:?}");
    assert!(began.elapsed() < CALL_MAX, "{what}: {:?}", began.elapsed());
    error.to_string()
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn protocol_violations_end_the_link() {
    let server = ScriptedServer::start(&domain(), Script::honest());
    let cache = server.client(FabricMode::Request, LONG_ENOUGH);
    type Sends = fn(&mut Talk);
    let all: [(&str, &str, Sends); 14] = [
        ("no kind", "kind 0", |talk| talk.say(0, 0, b"")),
        ("another kind", "kind 200", |talk| talk.say(200, 0, b"0123")),
        ("a server-only kind", "kind 2", |talk| talk.say(LONG, 0, &pair(0, 4096))),
        ("a client-only kind", "kind 5", |talk| talk.say(ROOM, 0, &[0; 8])),
        ("empty data", "16 bytes", |talk| talk.say(DATA, 0, b"")),
        ("half a put", "24 bytes", |talk| talk.say(PUT, 0, &[0; 8])),
        ("a put beyond everything", "bytes from", |talk| talk.say(PUT, 0, &pair(0, u64::MAX))),
        ("a put past the end", "bytes from", |talk| {
            let end = talk.terms.landing_bytes;
            talk.say(PUT, 0, &pair(end, 1));
        }),
        ("a put that wraps", "bytes from", |talk| talk.say(PUT, 0, &pair(u64::MAX - 10, 100))),
        ("taken bytes that were never staged", "bytes in all", |talk| {
            talk.say(TAKEN, 0, &1u64.to_le_bytes())
        }),
        ("all bytes taken", "bytes in all", |talk| talk.say(TAKEN, 0, &u64::MAX.to_le_bytes())),
        ("credits", "credits", |talk| talk.say(CREDITS_KIND, u16::MAX, b"")),
        ("a gap", "message", |talk| {
            let message = talk.message(CREDITS_KIND, 0, b"");
            let mut late = message.clone();
            late[12..16].copy_from_slice(&1_000_000u32.to_le_bytes());
            talk.send(&late);
        }),
        ("a repeated message", "message", |talk| {
            let message = talk.message(DATA, 0, b"V");
            talk.send(&message);
            talk.send(&message);
        }),
    ];
    for (what, expected, sends) in all {
        let reported = fails(&server, &cache, what, sends);
        assert!(reported.contains(expected), "{what}: {reported}");
    }
    server.comes_to_reason(&cache, "after all that");
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn invalid_streams_fail_the_call() {
    let server = ScriptedServer::start(&domain(), Script::honest());
    let cache = server.client(FabricMode::Request, SHORT);
    type Sends = fn(&mut Talk);
    let all: [(&str, Sends); 11] = [
        ("noise", |talk| talk.say(DATA, 0, &[0xee; 500])),
        ("half a packet", |talk| talk.say(DATA, 0, &[0x81, 0, 0, 0])),
        ("a packet of 4 GiB", |talk| {
            let mut packet = [0; 24];
            packet[0] = 0x81;
            packet[8..12].fill(0xff);
            talk.say(DATA, 0, &packet);
        }),
        ("a key longer than its packet", |talk| {
            let mut packet = [0; 24];
            packet[0] = 0x81;
            packet[2..4].fill(0xff);
            packet[4] = 0xff;
            talk.say(DATA, 0, &packet);
        }),
        ("a line without an end", |talk| {
            for _ in 0..20 {
                talk.say(DATA, 0, &[b'V'; MESSAGE_BYTES - 16]);
            }
        }),
        ("messages without end", |talk| {
            for _ in 0..120 {
                talk.say(DATA, 0, b"V");
            }
        }),
        ("messages with another token", |talk| {
            for number in 0..60u64 {
                talk.send(&number.to_le_bytes().repeat(1 + number as usize));
                talk.send(&[1; 3]);
            }
        }),
        ("a put at another offset", |talk| talk.say(PUT, 0, &pair(777, 100))),
        ("more puts than there is memory", |talk| {
            let bytes = talk.terms.landing_bytes / 4;
            (0..5).for_each(|piece| talk.say(PUT, 0, &pair(piece * bytes, bytes)));
        }),
        ("bytes after the last reply", |talk| {
            talk.say(BYE, 0, b"");
            talk.say(DATA, 0, b"MN\r\n");
        }),
        ("memory that nothing was written to", |talk| talk.say(PUT, 0, &pair(0, 4096))),
    ];
    for (what, sends) in all {
        fails(&server, &cache, what, sends);
    }
    server.comes_to_reason(&cache, "after all that");
}

/// The right token, followed by random bytes.
#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn random_messages_fail_the_call() {
    let server = ScriptedServer::start(&domain(), Script::honest());
    let cache = server.client(FabricMode::Request, SHORT);
    for seed in 1..9u64 {
        let mut state = seed;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let sends = move |talk: &mut Talk| {
            for _ in 0..30 {
                let kind = random() as u8 % 9;
                let credits = if random() % 8 == 0 { random() as u16 } else { 0 };
                let numbers = [0, 1, 4096, 1 << 18, 1 << 20, u64::MAX, random()];
                let len = [8, 16, random() as usize % 600][random() as usize % 3];
                let mut rest: Vec<u8> =
                    (0..len / 8 + 1).flat_map(|_| numbers[random() as usize % 7].to_le_bytes()).collect();
                rest.truncate(len);
                // Random bytes that form a valid reply are not a fault.
                if kind == DATA {
                    rest.insert(0, 0xee);
                }
                talk.say(kind, credits, &rest);
            }
        };
        fails(&server, &cache, &format!("seed {seed}"), sends);
    }
    server.comes_to_reason(&cache, "after all that");
}
