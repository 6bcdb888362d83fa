//! Authentication: text clients by -Y, binary clients by SASL PLAIN.

mod common;

use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{Answer, Client, Scratch, packet, serve, try_serve, wait_until};
use fabcache_server::bounds::{AUTH_FAILURE_PAUSE, AUTH_FAILURES_MAX};

const UNAUTHENTICATED: &str = "CLIENT_ERROR unauthenticated\r\n";
const FAILURE: &str = "CLIENT_ERROR authentication failure\r\n";

const AUTH_FAILED: u16 = 0x20;
const SASL_LIST: u8 = 0x20;
const SASL_AUTH: u8 = 0x21;
const SASL_STEP: u8 = 0x22;

fn token(user_and_password: &str) -> String {
    format!("set any 0 0 {}\r\n{user_and_password}\r\n", user_and_password.len())
}

#[test]
fn text_clients_authenticate() {
    let scratch = Scratch::new("text");
    let users = scratch.file("users", "ann:secret\nbob:with space\n");
    let server = serve(&format!("-Y {}", users.display()));
    let mut c = server.connect();
    for early in [
        "get a\r\n",
        "version\r\n",
        "stats\r\n",
        "mn\r\n",
        "mg a v\r\n",
        "shutdown\r\n",
        "\r\n",
        "flush_all\r\n",
    ] {
        c.request(early, UNAUTHENTICATED);
    }
    c.request(token("ann wrong"), FAILURE);
    c.request(token("ann secret "), FAILURE);
    c.request(token("ann "), FAILURE);
    c.request(token("eve secret"), FAILURE);
    c.request(token("ann:secret"), "CLIENT_ERROR bad authentication token format\r\n");
    c.request("get a\r\n", UNAUTHENTICATED);
    c.request(token("ann secret"), "STORED\r\n");
    c.request("get any\r\n", "END\r\n");
    c.request("set any 0 0 1\r\nx\r\nget any\r\n", "STORED\r\nVALUE any 0 1\r\nx\r\nEND\r\n");
    assert_eq!((c.count("", "auth_cmds"), c.count("", "auth_errors")), (5, 4));
    assert_eq!(c.stat("settings", "auth_enabled_ascii"), "yes");
    let mut d = server.connect();
    d.request(token("bob with space") + "mn\r\n", "STORED\r\nMN\r\n");
}

#[test]
fn wrong_passwords_are_slow_and_end_the_connection() {
    let scratch = Scratch::new("guesses");
    let users = scratch.file("users", "ann:secret\n");
    let server = serve(&format!("-t 1 -Y {0} -S --sasl-pwdb {0}", users.display()));
    let mut admin = server.connect();
    admin.request(token("ann secret"), "STORED\r\n");
    let turns = admin.count("fabcache", "worker_turns");
    let began = Instant::now();
    let guesses = AUTH_FAILURES_MAX as usize * 3;
    // Both protocols, all guesses at once; the first answers are memcached's.
    let mut text = server.connect();
    text.say(token("ann wrong").repeat(guesses));
    let mut binary = server.connect();
    binary.say(packet(SASL_AUTH, &[], b"PLAIN", b"\0ann\0wrong", 0).repeat(guesses));
    // A client that does not wait for its answer.
    let mut gone = server.connect();
    gone.say(token("ann wrong").repeat(guesses));
    rustix::net::sockopt::set_socket_linger(&gone.stream, Some(Duration::ZERO)).expect("a socket");
    drop(gone);
    text.hear(FAILURE.repeat(AUTH_FAILURES_MAX as usize));
    text.hear_end();
    for _ in 0..AUTH_FAILURES_MAX {
        assert_eq!(binary.hear_packet().status, AUTH_FAILED);
    }
    binary.hear_end();
    assert!(began.elapsed() >= AUTH_FAILURE_PAUSE * AUTH_FAILURES_MAX, "{:?}", began.elapsed());
    // A pause does not keep the worker busy, not even for the broken connection.
    let spent = admin.count("fabcache", "worker_turns") - turns;
    assert!(spent < 2_000, "{spent} turns");
    wait_until("the connections end", || admin.count("", "curr_connections") == 1);
    let failed = admin.count("", "auth_errors");
    assert!((20..30).contains(&failed), "{failed} guesses were answered");
    // Wrong and right ones on one connection.
    let mut honest = server.connect();
    honest
        .request(token("ann wrong") + &token("ann secret") + "mn\r\n", format!("{FAILURE}STORED\r\nMN\r\n"));
}

#[test]
fn invalid_token_is_rejected() {
    let scratch = Scratch::new("tokens");
    let users = scratch.file("users", "ann:secret\n");
    let server = serve(&format!("-Y {}", users.display()));
    let mut c = server.connect();
    c.request("set a 0 0 10\r\nann secret!!", "CLIENT_ERROR bad command line termination\r\n");
    let mut c = server.connect();
    c.say("set a 0 0 16385\r\n");
    c.hear("CLIENT_ERROR auth token too long\r\n");
    c.request(token("ann secret"), "STORED\r\n");
    let mut c = server.connect();
    c.say("set a 0 0 -1\r\nset a 0 0 x\r\nset a\r\n");
    c.hear(UNAUTHENTICATED.repeat(3));
    // An overlong line that would be a valid multiget after authentication.
    let mut c = server.connect();
    let _ = std::io::Write::write_all(&mut c.stream, "get ".to_owned().repeat(5_000).as_bytes());
    c.hear_end();
    // The binary protocol must not bypass authentication.
    let mut c = server.connect();
    c.say(packet(0x00, &[], b"a", &[], 0));
    let answer = c.hear_packet();
    assert_eq!((answer.status, answer.value), (AUTH_FAILED, b"Auth failure.".to_vec()));
    c.hear_end();
    assert_eq!(request(&mut server.connect(), SASL_AUTH, b"PLAIN", b"\0ann\0secret").status, AUTH_FAILED);
    server.connect().request(token("ann secret"), "STORED\r\n");
}

#[test]
fn users_file_is_reloaded() {
    let scratch = Scratch::new("again");
    let users = scratch.file("users", "ann:secret\n");
    let server = serve(&format!("-Y {}", users.display()));
    let shared = server.server().shared();
    let mut before = server.connect();
    before.request(token("ann secret"), "STORED\r\n");
    scratch.file("users", "ann:changed\n");
    shared.reload().expect("the file is valid");
    before.request("mn\r\n", "MN\r\n");
    let mut c = server.connect();
    c.request(token("ann secret"), FAILURE);
    c.request(token("ann changed"), "STORED\r\n");
    scratch.file("users", "no colon\n");
    assert!(format!("{:#}", shared.reload().expect_err("not valid")).contains("line 1"));
    server.connect().request(token("ann changed"), "STORED\r\n");
}

#[test]
fn reload_applies_what_it_can() {
    let scratch = Scratch::new("each");
    let (text, sasl) = (scratch.file("text", "ann:secret\n"), scratch.file("sasl", "ann:secret\n"));
    let server = serve(&format!("-Y {} -S --sasl-pwdb {}", text.display(), sasl.display()));
    scratch.file("text", "no colon\n");
    scratch.file("sasl", "ann:changed\n");
    server.server().shared().reload().expect_err("one is wrong");
    server.connect().request(token("ann secret"), "STORED\r\n");
    assert_eq!(request(&mut server.connect(), SASL_AUTH, b"PLAIN", b"\0ann\0changed").status, 0);
}

#[test]
fn invalid_users_file_is_reported() {
    let scratch = Scratch::new("none");
    let empty = scratch.file("empty", "\n");
    let missing = scratch.path("missing");
    for (file, needle) in [(&empty, "names no user"), (&missing, "cannot read the users")] {
        let error = format!("{:#}", try_serve(&format!("-Y {}", file.display())).err().expect("no users"));
        assert!(error.contains(needle) && error.contains(&file.display().to_string()), "{error}");
    }
}

fn request(c: &mut Client<TcpStream>, opcode: u8, key: &[u8], value: &[u8]) -> Answer {
    c.say(packet(opcode, &[], key, value, 0));
    c.hear_packet()
}

#[test]
fn answers_pin_no_more_than_their_part_while_their_client_is_paused() {
    const CLIENTS: usize = 200;
    const VALUES: usize = 15;
    const WORKERS: u32 = 4;
    let scratch = Scratch::new("paused");
    let users = scratch.file("users", "ann:secret\n");
    let server = serve(&format!("-m 64 -t {WORKERS} -S --sasl-pwdb {}", users.display()));
    let store = &server.server().shared().store;
    let mut c = server.connect();
    assert_eq!(request(&mut c, SASL_AUTH, b"PLAIN", b"\0ann\0secret").status, 0);
    let key = |client: usize, i: usize| format!("v{}", i * CLIENTS + client).into_bytes();
    // Each client's values are in segments of their own.
    for (client, i) in (0..VALUES).flat_map(|i| (0..CLIENTS).map(move |client| (client, i))) {
        c.say(packet(0x01, &[0; 8], &key(client, i), &[b'x'; 17_000], 0));
        assert_eq!(c.hear_packet().status, 0);
    }
    let paused: Vec<_> =
        (0..CLIENTS)
            .map(|client| {
                let mut paused = server.connect();
                let gets = (0..VALUES).map(|i| packet(0x00, &[], &key(client, i), &[], 0));
                let (right, wrong) = (&b"\0ann\0secret"[..], &b"\0ann\0wrong"[..]);
                let sent = [packet(SASL_AUTH, &[], b"PLAIN", right, 0)]
                    .into_iter()
                    .chain(gets)
                    .chain([packet(SASL_AUTH, &[], b"PLAIN", wrong, 0)]);
                paused.say(sent.collect::<Vec<_>>().concat());
                paused
            })
            .collect();
    let mut most = 0;
    wait_until("the last client's answers wait", || {
        most = most.max(store.usage().segments_pinned);
        server.server().shared().sums().auth_errors >= CLIENTS as u64
    });
    let usage = store.usage();
    most = most.max(usage.segments_pinned);
    // One turn of each worker may pin more for a moment.
    assert!(most <= usage.segments / 4 + WORKERS * VALUES as u32, "{most} of {} segments", usage.segments);
    drop(paused);
}

#[test]
fn binary_clients_authenticate_with_sasl_plain() {
    let scratch = Scratch::new("sasl");
    let users = scratch.file("users", "ann:secret\n");
    let server = serve(&format!("-S --sasl-pwdb {}", users.display()));
    let mut c = server.connect();
    assert_eq!(request(&mut c, SASL_LIST, b"", b"").value, b"PLAIN");
    assert_eq!(request(&mut c, 0x0b, b"", b"").value, b"1.6.45", "version needs no authentication");
    for (mechanism, payload) in [
        (&b"PLAIN"[..], &b"\0ann\0wrong"[..]),
        (b"PLAIN", b"\0eve\0secret"),
        (b"PLAIN", b"annsecret"),
        (b"PLAIN", b""),
        (b"PLAIN", b"\0\0"),
        (b"CRAM-MD5", b"\0ann\0secret"),
        (b"plain", b"\0ann\0secret"),
        (b"X", b"\0ann\0secret"),
    ] {
        let answer = request(&mut c, SASL_AUTH, mechanism, payload);
        assert_eq!((answer.status, answer.value), (AUTH_FAILED, b"Auth failure.".to_vec()), "{payload:?}");
    }
    // PLAIN has no second step, so that even the right password is refused in one.
    assert_eq!(request(&mut c, SASL_STEP, b"PLAIN", b"\0ann\0secret").status, AUTH_FAILED);
    let granted = request(&mut c, SASL_AUTH, b"PLAIN", b"\0ann\0secret");
    assert_eq!((granted.status, granted.value), (0, b"Authenticated".to_vec()));
    assert_eq!(request(&mut c, 0x0a, b"", b"").status, 0);
    c.say(packet(0x01, &[0; 8], b"a", b"x", 0));
    assert_eq!(c.hear_packet().status, 0);
    // With an authorization identity, as some clients send it.
    let mut d = server.connect();
    assert_eq!(request(&mut d, SASL_AUTH, b"PLAIN", b"ann\0ann\0secret").status, 0);
    assert_eq!(request(&mut d, 0x00, b"a", b"").value, b"x");
    // A later failure ends the authenticated state.
    assert_eq!(request(&mut d, SASL_AUTH, b"PLAIN", b"\0ann\0wrong").status, AUTH_FAILED);
    assert_eq!(request(&mut d, 0x00, b"a", b"").status, AUTH_FAILED);
    d.hear_end();
}

#[test]
fn sasl_users_may_be_of_this_host() {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let scratch = Scratch::new("sasl-realm");
    let users = scratch.file("users", &format!("ann@{host}:secret\neve@not-{host}:secret\n"));
    let server = serve(&format!("-S --sasl-pwdb {}", users.display()));
    let requested = |user: &str, password: &str| {
        let payload = format!("\0{user}\0{password}");
        request(&mut server.connect(), SASL_AUTH, b"PLAIN", payload.as_bytes()).status
    };
    assert_eq!((requested("ann", "secret"), requested(&format!("ann@{host}"), "secret")), (0, 0));
    assert_eq!((requested("ann", "wrong"), requested("eve", "secret")), (AUTH_FAILED, AUTH_FAILED));
    assert_eq!(
        (requested(&format!("eve@not-{host}"), "secret"), requested("ann@", "secret")),
        (0, AUTH_FAILED)
    );
}

#[test]
fn sasl_is_required_first_and_fails_finally() {
    let scratch = Scratch::new("sasl-first");
    let users = scratch.file("users", "ann:secret\n");
    let server = serve(&format!("-S --sasl-pwdb {}", users.display()));
    for opcode in [0x00, 0x04, 0x0a, 0x0c] {
        let mut c = server.connect();
        assert_eq!(request(&mut c, opcode, if opcode == 0x0a { b"" } else { b"a" }, b"").status, AUTH_FAILED);
        c.hear_end();
    }
    let mut c = server.connect();
    c.say(packet(0x01, &[0; 8], b"a", b"x", 0));
    assert_eq!(c.hear_packet().status, AUTH_FAILED);
    for (mechanism, payload) in [(&b"PLAIN"[..], vec![b'x'; 20_000]), (&[b'M'; 40], b"x".to_vec())] {
        for opcode in [SASL_AUTH, SASL_STEP] {
            let mut c = server.connect();
            let answer = request(&mut c, opcode, mechanism, &payload);
            assert_ne!(answer.status, 0, "{} bytes for {mechanism:?}", payload.len());
        }
    }
    let mut text = server.connect();
    text.say("version\r\n");
    text.hear_end();
    server.server().shared().reload().expect("the file is valid");
    assert_eq!(request(&mut server.connect(), SASL_AUTH, b"PLAIN", b"\0ann\0secret").status, 0);
}

#[test]
fn both_protocols_may_require_authentication() {
    let scratch = Scratch::new("both");
    let users = scratch.file("users", "ann:secret\n");
    let users = users.display();
    // The users of -Y are those of SASL unless it has its own.
    for sasl in ["", &format!("--sasl-pwdb {users}")] {
        let server = serve(&format!("-Y {users} -S {sasl}"));
        server.connect().request("mn\r\n", UNAUTHENTICATED);
        server.connect().request(token("ann secret") + "mn\r\n", "STORED\r\nMN\r\n");
        let mut c = server.connect();
        assert_eq!(request(&mut c, 0x00, b"a", b"").status, AUTH_FAILED);
        let mut c = server.connect();
        assert_eq!(request(&mut c, SASL_AUTH, b"PLAIN", b"\0ann\0secret").status, 0);
        assert_eq!(request(&mut c, 0x00, b"a", b"").status, 1);
    }
}
