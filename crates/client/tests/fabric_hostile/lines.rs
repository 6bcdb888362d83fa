//! Invalid and impossible replies over TCP.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fabcache_client::{Client, Error, FabricMode};

use crate::scripted::{
    ADDRESS, CREDITS_WORD, GRACE_NS, KEY, NAME, REGION_BYTES, SECRET, SHORT, Script, ScriptedServer, TOKEN,
    Words, domain,
};

/// Far longer than calls of such a client may take.
const CALL_MAX: Duration = Duration::from_secs(25);

/// Asserts that the client's call fails in time.
fn fails(cache: &Client, what: &str) {
    let began = Instant::now();
    let error = cache.get(b"key").expect_err(what);
    assert!(matches!(error, Error::Server { .. }), "{what}: {error:?}");
    assert!(began.elapsed() < CALL_MAX, "{what}: {:?}", began.elapsed());
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn invalid_hello_replies_fail_the_call() {
    let domain = domain();
    let server = ScriptedServer::start(&domain, Script::honest());
    let cache = server.client(FabricMode::Auto, SHORT);
    let name = domain.provider().name.clone();
    let endless = vec![b'F'; 200 << 10];
    let hellos: [&[u8]; 12] = [
        b"\r\n",
        b"FABRIC\r\n",
        b"FABRIC tcp;ofi_rxm\r\n",
        b"FABRIC nobodys 1 2 0\r\n",
        b"FABRIC tcp;ofi_rxm -1 -2 -3\r\n",
        b"FABRIC tcp;ofi_rxm 99999999999999999999999 2 0\r\n",
        b"FABRIC tcp;ofi_rxm 0 0 0\r\n",
        b"FABRIC \xff\xfe\0 1 2 0\r\n",
        b"SERVER_ERROR no\r\n",
        b"FABRIC tcp;ofi_rxm\0\0 1 2 1\r\n",
        &format!("FABRIC {} 4294967295 4294967295 1\r\n", name).into_bytes(),
        &endless,
    ];
    for hello in hellos {
        let what = String::from_utf8_lossy(&hello[..hello.len().min(60)]).into_owned();
        server.plays(Script { hello: Some(hello.to_vec()), ..Script::honest() });
        fails(&cache, &what);
    }
    server.comes_to_reason(&cache, "after all that");
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn invalid_attach_replies_fail_the_call() {
    let server = ScriptedServer::start(&domain(), Script::honest());
    let cache = server.client(FabricMode::OneSided, SHORT);
    type Wrong = fn(&Words) -> Vec<u8>;
    let wrongs: [(&str, Wrong); 14] = [
        ("nothing", |_| Vec::new()),
        ("half of it", |right| right.line()[..20].to_vec()),
        ("a word less", |right| Words(right.0[..GRACE_NS].to_vec()).line()),
        ("no name", |right| right.with(NAME, "====").line()),
        ("an empty name", |right| right.with(NAME, "").line()),
        ("a name too long", |right| right.with(NAME, STANDARD.encode([2; 4000])).line()),
        ("no token", |right| right.with(TOKEN, "0x").line()),
        ("no credits", |right| right.with(CREDITS_WORD, 0).line()),
        ("one credit", |right| right.with(CREDITS_WORD, 1).line()),
        ("credits without end", |right| right.with(CREDITS_WORD, 65_535).line()),
        ("a region beyond all addresses", |right| {
            right.with(ADDRESS, u64::MAX).with(REGION_BYTES, u64::MAX).line()
        }),
        ("no key", |right| right.with(KEY, "-1").line()),
        ("a short secret", |right| right.with(SECRET, "AAAA").line()),
        ("other bytes", |_| (0..=255).chain(0..=255).collect()),
    ];
    for (what, wrong) in wrongs {
        server.plays(Script { attach: Box::new(wrong), ..Script::honest() });
        fails(&cache, what);
    }
    server.comes_to_reason(&cache, "after all that");
}

/// Endpoint names that no endpoint has.
#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn nonexistent_endpoints_fail_the_call() {
    let server = ScriptedServer::start(&domain(), Script::honest());
    let cache = server.client(FabricMode::OneSided, SHORT);
    for seed in 0u8..12 {
        let attach = move |right: &Words| {
            let mut name = STANDARD.decode(&right.0[NAME]).expect("base64");
            match seed {
                0 => name.fill(0),
                1 => name.fill(0xff),
                2 => name.truncate(name.len() / 2),
                3 => name.resize(256, 1),
                // The port of an IP address.
                4 => name[2..4].fill(0),
                5 => name[3] ^= 0x55,
                // The host part: the unspecified address, the broadcast address, and another name of this host.
                6 => name[4..8].copy_from_slice(&[192, 0, 2, 1]),
                7 => name[4..8].copy_from_slice(&[255; 4]),
                8 => name[4..8].copy_from_slice(&[224, 0, 0, 1]),
                9 => name[4..8].fill(0),
                10 => name[0] ^= 0xff,
                _ => name = vec![seed; 1],
            }
            right.with(NAME, STANDARD.encode(name)).line()
        };
        server.plays(Script { attach: Box::new(attach), ..Script::honest() });
        fails(&cache, &format!("name {seed}"));
    }
    server.comes_to_reason(&cache, "after all that");
}
