//! Values longer than a flash segment, which change while they are read.

use std::net::TcpStream;

use fabcache_server::flash::HEADER_AREA_BYTES;
use fabcache_testbed::slow_devices::SlowDevices;

use crate::common::process::Process;
use crate::common::{Client, connect};
use crate::tier::{letters, start_on_slow_device};

const LEN: usize = 20 << 20;

/// A server whose reads of flash wait for the test.
struct LongTier {
    // Dropped before the server, whose end waits for reads.
    device: SlowDevices,
    server: Process,
}

/// Starts a server with the value of `long` on flash, in two segments; none where this user may not mount a file system.
fn long_tier() -> Option<LongTier> {
    let (device, server) = start_on_slow_device("-m 64 -I 32m")?;
    let mut c = connect(server.address());
    c.say(format!("set long 0 0 {LEN}\r\n"));
    c.say(letters(1, LEN));
    c.request("\r\n", "STORED\r\n");
    for round in 0..10 {
        c.fill_with(&format!("fill-{round}"), 40 << 20);
        c.settle();
        let before = c.flash_reads();
        c.request("mg long s u\r\n", format!("HD s{LEN}\r\n"));
        if c.flash_reads() > before {
            device.hold_reads(HEADER_AREA_BYTES);
            return Some(LongTier { device, server });
        }
    }
    panic!("it stays in memory");
}

impl LongTier {
    /// Lets the first of the two reads of a value wait.
    fn request(&self, request: &str) -> Client<TcpStream> {
        let mut c = connect(self.server.address());
        c.say(request);
        self.device.wait_for_held(1);
        c
    }
}

#[test]
fn value_that_is_replaced_while_it_is_read_is_a_hit() {
    let Some(tier) = long_tier() else { return };
    let new = "n".repeat(50_000);
    let mut text = tier.request("get long\r\nmn\r\n");
    let mut other = connect(tier.server.address());
    other.request(format!("set long 7 0 50000\r\n{new}\r\n"), "STORED\r\n");
    tier.device.answer_all();
    text.hear(format!("VALUE long 7 50000\r\n{new}\r\nEND\r\nMN\r\n"));
    assert_eq!(other.count("fabcache", "flash_bad_pages"), 0);
    assert_eq!(other.count("", "get_misses"), 0);
}

#[test]
fn value_that_is_removed_while_it_is_read_is_a_miss() {
    let Some(tier) = long_tier() else { return };
    let mut meta = tier.request("mg long v\r\nmn\r\n");
    let mut other = connect(tier.server.address());
    other.request("set long 0 0 1\r\nx\r\n", "STORED\r\n");
    other.request("delete long\r\n", "DELETED\r\n");
    tier.device.answer_all();
    meta.hear("EN\r\nMN\r\n");
    assert_eq!(other.count("fabcache", "flash_bad_pages"), 0);
}
