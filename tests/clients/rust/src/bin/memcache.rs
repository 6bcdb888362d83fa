//! memcache: binary and text protocol over TCP, UDP and a Unix socket; meta commands over TCP.

use std::collections::HashMap;
use std::time::Duration;

use clients::{Checks, NEAR_LIMIT, SHORT_TTL_S, Servers, TOO_LARGE, bytes, wait_for_expiry};
use memcache::Client;
use memcache::exp::{Get, Memcache, Meta, Set, Ttl};

fn main() {
    let servers = Servers::from_env();
    let c = Checks::default();
    let mut clients = Vec::new();
    for binary in [true, false] {
        let protocol = if binary { "binary" } else { "ascii" };
        for (transport, url) in [
            ("tcp", format!("memcache://{}?timeout=5&protocol={protocol}", servers.address)),
            ("unix", format!("memcache://{}?protocol={protocol}", servers.socket)),
            ("udp", format!("memcache+udp://{}?protocol={protocol}", servers.address)),
        ] {
            // The text client never flushes most of its commands into a datagram.
            if transport == "udp" && !binary {
                continue;
            }
            let name = format!("{protocol}-{transport}");
            c.within(&name);
            let client = c.ok("connect", memcache::connect(url));
            c.ok("read timeout", client.set_read_timeout(Some(Duration::from_secs(5))));
            c.ok("flush first", client.flush());
            storage(&c, &client, binary);
            // A quiet get is answered in a separate datagram, and the client waits for only one.
            if name != "binary-udp" {
                retrieval(&c, &client);
            }
            counters(&c, &client, binary);
            if transport != "udp" {
                large_values(&c, &client, binary);
            }
            if binary {
                statistics(&c, &client);
            }
            flush(&c, &client);
            clients.push((name, client));
        }
    }
    for (name, client) in &clients {
        c.within(name);
        before_expiry(&c, client, name);
    }
    wait_for_expiry();
    for (name, client) in &clients {
        c.within(name);
        after_expiry(&c, client, name);
    }
    c.within("meta");
    meta(&c, &servers);
    c.finish("memcache");
}

fn storage(c: &Checks, client: &Client, binary: bool) {
    let every = bytes(256);
    for (what, value) in
        [("empty", &b""[..]), ("short", b"value"), ("line ends", b"a\r\nEND\r\nb"), ("binary", &every)]
    {
        c.ok(what, client.set("key", value, 0));
        c.equal(what, c.ok(what, client.get::<Vec<u8>>("key")).as_deref(), Some(value));
    }
    c.equal("get absent", c.ok("get absent", client.get::<String>("absent")), None);

    c.ok("add absent", client.add("added", "1", 0));
    let refused = client.add("added", "2", 0);
    if binary {
        c.fails("add present", "KeyExists", refused);
        c.fails("replace absent", "KeyNotFound", client.replace("absent", "3", 0));
        c.fails("append absent", "Unknown(5)", client.append("absent", "x"));
    } else {
        // The text client treats NOT_STORED as success.
        c.ok("add present", refused);
        c.ok("replace absent", client.replace("absent", "3", 0));
        c.ok("append absent", client.append("absent", "x"));
    }
    c.equal("nothing came of them", text(c, client, "absent"), None);
    c.equal("add left the value", text(c, client, "added").as_deref(), Some("1"));
    c.ok("replace present", client.replace("added", "3", 0));
    c.ok("append", client.append("added", "-end"));
    c.ok("prepend", client.prepend("added", "start-"));

    let (value, _flags, token): (String, u32, Option<u64>) =
        c.ok("gets", client.get("added")).expect("was stored");
    c.equal("append and prepend", value, "start-3-end");
    let token = token.expect("was asked for");
    c.equal("cas", c.ok("cas", client.cas("added", "swapped", 0, token)), true);
    c.equal("cas with an old token", c.ok("cas", client.cas("added", "lost", 0, token)), false);
    c.equal("cas absent", c.ok("cas", client.cas("absent", "lost", 0, token)), false);
    c.equal("cas kept the winner", text(c, client, "added").as_deref(), Some("swapped"));
    c.equal("delete", c.ok("delete", client.delete("added")), true);
    c.equal("delete absent", c.ok("delete", client.delete("added")), false);

    for key in [&"k".repeat(250), "punctuation~!@#$%^&*()", "schlüssel-時間"] {
        c.ok("set an odd key", client.set(key, "odd", 0));
        c.equal("get an odd key", text(c, client, key).as_deref(), Some("odd"));
    }
    c.fails("the client refuses a long key", "KeyTooLong", client.set(&"k".repeat(251), "", 0));
}

fn retrieval(c: &Checks, client: &Client) {
    let keys: Vec<String> = (0..100).map(|n| format!("multi-{n}")).collect();
    for key in &keys {
        c.ok("set", client.set(key, key.as_str(), 0));
    }
    // One datagram holds a UDP request.
    for part in keys.chunks(50) {
        let mut requested: Vec<&str> = part.iter().map(String::as_str).collect();
        requested.push("absent");
        let found: HashMap<String, String> = c.ok("gets", client.gets(&requested));
        c.equal("gets finds", found.len(), part.len());
        c.holds("gets values", found.iter().all(|(key, value)| key == value));
    }
}

fn counters(c: &Checks, client: &Client, binary: bool) {
    c.ok("set", client.set("counter", "10", 0));
    c.equal("increment", c.ok("increment", client.increment("counter", 5)), 15);
    c.equal("decrement", c.ok("decrement", client.decrement("counter", 6)), 9);
    c.equal("decrement pads to the old length", text(c, client, "counter").as_deref(), Some("9 "));
    c.equal("decrement stops at zero", c.ok("decrement", client.decrement("counter", 100)), 0);
    c.ok("set", client.set("counter", "18446744073709551615", 0));
    c.equal("increment wraps", c.ok("increment", client.increment("counter", 1)), 0);
    c.ok("set text", client.set("counter", "abc", 0));
    let message = if binary { "Unknown(6)" } else { "non-numeric value" };
    c.fails("increment text", message, client.increment("counter", 1));
    if binary {
        // The client sends an initial value of zero.
        c.equal("increment absent", c.ok("increment", client.increment("absent", 5)), 0);
        c.equal("delete it", c.ok("delete", client.delete("absent")), true);
    } else {
        c.fails("increment absent", "KeyNotFound", client.increment("absent", 5));
    }
}

fn large_values(c: &Checks, client: &Client, binary: bool) {
    for length in [1_000_000, NEAR_LIMIT] {
        let value = bytes(length);
        c.ok("set large", client.set("key", value.as_slice(), 0));
        let found: Option<Vec<u8>> = c.ok("get large", client.get("key"));
        c.holds("large value", found == Some(value));
    }
    let message = if binary { "ValueTooLarge" } else { "object too large for cache" };
    c.fails("too large", message, client.set("key", bytes(TOO_LARGE).as_slice(), 0));
    c.equal("a refused set removes the old value", text(c, client, "key"), None);
    c.ok("usable after an error", client.set("key", "new", 0));
}

fn statistics(c: &Checks, client: &Client) {
    let versions = c.ok("version", client.version());
    c.holds("version is three numbers", is_release(&versions[0].1));
    let stats = c.ok("stats", client.stats()).remove(0).1;
    c.equal("stats version", stats.get("version"), Some(&versions[0].1));
    for name in ["pid", "uptime", "curr_items", "cmd_get", "limit_maxbytes", "threads"] {
        c.holds(name, stats.get(name).is_some_and(|value| value.parse::<u64>().is_ok()));
    }
}

fn flush(c: &Checks, client: &Client) {
    c.ok("set", client.set("flushed", "1", 0));
    c.ok("flush", client.flush());
    c.equal("flushed", text(c, client, "flushed"), None);
    c.ok("set after flush", client.set("flushed", "2", 0));
    c.equal("get after flush", text(c, client, "flushed").as_deref(), Some("2"));
    c.ok("delayed flush", client.flush_with_delay(100));
    c.equal("delayed flush waits", text(c, client, "flushed").as_deref(), Some("2"));
    c.ok("flush", client.flush());
}

fn before_expiry(c: &Checks, client: &Client, name: &str) {
    c.ok("set lasting", client.set(&format!("lasting-{name}"), "1", 0));
    c.ok("set short", client.set(&format!("short-{name}"), "1", SHORT_TTL_S));
    c.ok("set touched", client.set(&format!("touched-{name}"), "1", SHORT_TTL_S));
    c.equal("before expiry", text(c, client, &format!("short-{name}")).as_deref(), Some("1"));
    c.equal("touch", c.ok("touch", client.touch(&format!("touched-{name}"), 100)), true);
    c.equal("touch absent", c.ok("touch", client.touch("absent", 100)), false);
}

fn after_expiry(c: &Checks, client: &Client, name: &str) {
    c.equal("expired", text(c, client, &format!("short-{name}")), None);
    for kind in ["lasting", "touched"] {
        c.equal(kind, text(c, client, &format!("{kind}-{name}")).as_deref(), Some("1"));
    }
}

/// The client of the crate's `exp` module, which supports only meta commands.
fn meta(c: &Checks, servers: &Servers) {
    let cache = c.ok(
        "connect",
        Memcache::builder().timeout(Duration::from_secs(5)).connect([servers.address.as_str()]),
    );
    let minute = Ttl::secs(60);
    let value = bytes(NEAR_LIMIT);
    c.ok("set", cache.set("meta", value.as_slice(), minute));
    c.holds("get", c.ok("get", cache.get::<Vec<u8>>("meta")) == Some(value));
    c.equal("get absent", c.ok("get", cache.get::<String>("meta-absent")), None);
    c.equal("add present", c.ok("add", cache.add("meta", "x", minute)), false);
    c.equal("replace absent", c.ok("replace", cache.replace("meta-absent", "x", minute)), false);
    c.equal("replace", c.ok("replace", cache.replace("meta", "x", minute)), true);
    c.ok("set by a base64 key", cache.set(b"\x00binary key\r\n", "odd", minute));
    c.equal(
        "get by a base64 key",
        c.ok("get", cache.get::<String>(b"\x00binary key\r\n")).as_deref(),
        Some("odd"),
    );

    let keys: Vec<String> = (0..100).map(|n| format!("meta-{n}")).collect();
    c.ok("set many", cache.set_many(keys.iter().map(|key| (key, key.as_str())), minute));
    let mut requested = keys.clone();
    requested.push("meta-absent".into());
    let found: HashMap<String, String> = c.ok("get many", cache.get_many(requested));
    c.equal("get many finds", found.len(), 100);
    c.holds("get many values", found.iter().all(|(key, value)| key == value));
    c.ok("delete many", cache.delete_many(&keys));
    c.equal("after delete many", c.ok("get", cache.get::<String>("meta-1")), None);

    meta_growth(c, &cache, servers);
    meta_staleness(c, &cache);
    meta_raw(c, &cache);
    c.fails(
        "too large",
        "object too large for cache",
        cache.set("meta", bytes(TOO_LARGE).as_slice(), minute),
    );
}

fn meta_growth(c: &Checks, cache: &Memcache, servers: &Servers) {
    let minute = Ttl::secs(60);
    c.equal("incr creates", c.ok("incr", cache.incr("meta-counter", 5, minute)), 5);
    c.equal("incr", c.ok("incr", cache.incr("meta-counter", 5, minute)), 10);
    c.equal("decr", c.ok("decr", cache.decr("meta-counter", 3, minute)), 7);
    let created = cache.append("meta-log", b"a;", minute);
    // In 1.6.18 an append cannot create an item.
    if servers.behaviour > (1, 6, 18) {
        c.ok("append creates", created);
    } else {
        c.fails("append creates", "Ns", created);
        c.ok("set", cache.set("meta-log", b"a;", minute));
    }
    c.ok("append", cache.append("meta-log", b"b;", minute));
    c.ok("prepend", cache.prepend("meta-log", b"z;", minute));
    c.equal("take", c.ok("take", cache.take::<Vec<u8>>("meta-log")), Some(b"z;a;b;".to_vec()));
    c.equal("take again", c.ok("take", cache.take::<Vec<u8>>("meta-log")), None);
    let grown = cache.update("meta-list", minute, |old: Option<String>| old.unwrap_or_default() + "+");
    c.equal("update creates", c.ok("update", grown), "+");
    let grown = cache.update("meta-list", minute, |old: Option<String>| old.unwrap_or_default() + "+");
    c.equal("update", c.ok("update", grown), "++");

    c.ok("touch", cache.touch("meta-list", Ttl::secs(30)));
    let info = c.ok("inspect", cache.inspect("meta-list")).expect("was stored");
    c.equal("inspect size", info.size, 2);
    let left = info.ttl.expect("has one");
    c.holds("inspect time to live", left >= Duration::from_secs(28) && left <= Duration::from_secs(30));
}

fn meta_staleness(c: &Checks, cache: &Memcache) {
    let minute = Ttl::secs(60);
    let computed = cache.fetch("meta-report", minute, || Ok::<_, std::io::Error>(String::from("report")));
    c.equal("fetch computes", c.ok("fetch", computed), "report");
    let computed = cache.fetch("meta-report", minute, || Ok::<_, std::io::Error>(String::from("again")));
    c.equal("fetch finds", c.ok("fetch", computed), "report");
    c.ok("invalidate", cache.invalidate("meta-report", Duration::from_secs(30)));
    c.equal(
        "a stale value is still read",
        c.ok("get", cache.get::<String>("meta-report")).as_deref(),
        Some("report"),
    );
    let computed = cache.fetch("meta-report", minute, || Ok::<_, std::io::Error>(String::from("newer")));
    c.equal("fetch of a stale value", c.ok("fetch", computed), "newer");
}

/// The low-level interface: one call for each command.
fn meta_raw(c: &Checks, cache: &Memcache) {
    let raw = cache.meta();
    let stored = c.ok("raw set", raw.set("meta-raw", b"payload").return_cas().send());
    let got = c.ok("raw get", raw.get("meta-raw").meta(Meta::NONE.cas().ttl()).send());
    c.equal("raw tokens agree", got.item.cas, stored.cas);
    let batch = raw.run_batch(vec![
        Set::new("meta-a", "1").into(),
        Get::new("meta-absent").into(),
        Get::new("meta-a").into(),
    ]);
    c.equal("raw batch", c.ok("raw batch", batch).len(), 3);
    c.ok("noop", raw.noop());
    let debug = c.ok("debug", raw.debug("meta-raw")).expect("was stored");
    c.holds(
        "debug fields",
        ["exp", "la", "cas", "fetch", "cls", "size"].iter().all(|field| debug.contains_key(*field)),
    );
}

fn text(c: &Checks, client: &Client, key: &str) -> Option<String> {
    c.ok("get", client.get(key))
}

fn is_release(text: &str) -> bool {
    text.split('.').count() == 3 && text.split('.').all(|part| part.parse::<u32>().is_ok())
}
