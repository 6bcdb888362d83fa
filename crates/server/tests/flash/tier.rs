//! A server with a flash tier on files, in little memory.

use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use fabcache_testbed::bytes::pattern;
use fabcache_testbed::cleanup::Folder;
use fabcache_testbed::io_uring::is_there_for_files;
use fabcache_testbed::slow_devices::SlowDevices;

use crate::common::process::{Process, start};
use crate::common::{Client, TestServer, serve, wait_until};

/// Bytes of a value that pushes others out of memory.
const FILLER_BYTES: usize = 4000;

/// A server, and the folder of its devices.
pub struct Tier {
    pub server: TestServer,
    _folder: Folder,
}

impl Tier {
    /// Starts a server in 8 MB of memory, with a flash tier of 16 segments; none where io_uring is refused, as in most containers.
    pub fn new(flags: &str) -> Option<Tier> {
        Tier::sized(flags, 257)
    }

    /// As [`Tier::new`], with so many megabytes of flash.
    pub fn sized(flags: &str, megabytes: usize) -> Option<Tier> {
        let folder = folder()?;
        let path = folder.path().join("a");
        let server = serve(&format!("-m 8 --flash {}:{megabytes}m {flags}", path.display()));
        Some(Tier { server, _folder: folder })
    }
}

/// Starts a server of one worker on a device whose requests the test holds; none where this user may not mount a file system.
pub fn start_on_slow_device(flags: &str) -> Option<(SlowDevices, Process)> {
    if !is_there_for_files() {
        return None;
    }
    let slow = SlowDevices::for_test(Duration::ZERO)?;
    let flag = device(&slow.path().join("device"));
    let server = start(&format!("-t 1 --eviction lru {flag} {flags}"));
    Some((slow, server))
}

/// A folder on a file system for flash devices; none where io_uring is refused.
pub fn folder() -> Option<Folder> {
    is_there_for_files()
        .then(|| Folder::new_in(Path::new(env!("CARGO_TARGET_TMPDIR")), "flash").expect("a folder"))
}

/// The flag of a device with 16 flash segments.
pub fn device(path: &Path) -> String {
    format!("--flash {}:257m", path.display())
}

/// Runs a test again that failed: now and then an item on flash makes way for another key's, or the device is slow.
pub fn retried(test: impl Fn()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(&test)).is_err() {
        test();
    }
}

/// The value of an item of this number, which no line end or space splits.
pub fn letters(n: usize, len: usize) -> Vec<u8> {
    pattern(n, len).iter().map(|byte| b'a' + byte % 26).collect()
}

impl<S: Read + Write> Client<S> {
    /// Stores so many bytes that all items of before leave an 8 MB memory.
    pub fn fill(&mut self) {
        self.fill_with("fill", 20 << 20);
    }

    /// Stores about so many bytes under keys with this prefix, and waits until that is done.
    pub fn fill_with(&mut self, prefix: &str, bytes: usize) {
        let value = String::from_utf8(letters(1, FILLER_BYTES)).expect("letters");
        for n in 0..bytes / FILLER_BYTES {
            // Items of similar times to live lie together, and leave memory when others have filled their segment.
            let exptime = [0, 0, 0, 20, 100, 300, 400, 500][n % 8];
            self.say(format!("set {prefix}-{n} 0 {exptime} {FILLER_BYTES} noreply\r\n{value}\r\n"));
        }
        self.request("mn\r\n", "MN\r\n");
    }

    /// Returns how many items were read from flash.
    pub fn flash_reads(&mut self) -> u64 {
        self.count("fabcache", "flash_items_read")
    }

    /// Returns how many items the server evicted, for whatever reason.
    pub fn losses(&mut self) -> u64 {
        // A false match on flash counts there, and an item that flash did not take as an eviction.
        self.count("fabcache", "flash_items_evicted") + self.count("", "evictions")
    }

    /// Waits until no write to flash is under way.
    pub fn settle(&mut self) {
        wait_until("writes to flash end", || self.count("fabcache", "flash_requests_in_flight") == 0);
    }
}
