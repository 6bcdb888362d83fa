//! Devices that fail, are damaged or unfit: no wrong value, no crash, and memory serves on.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use fabcache_testbed::bytes::pattern;
use fabcache_testbed::report::not_run;
use rustix::process::Signal;

use crate::common::process::{Process, fabcached, spawn, start};
use crate::common::{Client, connect, serve, wait_until};
use crate::tier::{device, folder, letters};

const ITEMS: usize = 2000;
const AREA: u64 = 1 << 20;
/// A set of a new key may remove another item's slot on flash, about one in 20,000 here: more than so many of 7000 sets never do.
const FALSE_MATCHES_MAX: usize = 5;

fn value(n: usize) -> Vec<u8> {
    letters(n, 700 + n % 5 * 1500)
}

/// Stores items of which most are on flash then.
fn store(c: &mut Client<std::net::TcpStream>) {
    for n in 0..ITEMS {
        let value = value(n);
        c.say([format!("set key-{n} 0 0 {} noreply\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat());
    }
    c.fill();
    c.settle();
    c.request("set hot 0 0 3\r\nhot\r\n", "STORED\r\n");
}

/// Reads all items, and returns how many are missing; no value is wrong. No read is an access, so no item comes back to memory and
/// pushes others out.
fn missing(c: &mut Client<std::net::TcpStream>) -> usize {
    let mut missing = 0;
    for first in (0..ITEMS).step_by(50) {
        let requests: String = (first..first + 50).map(|n| format!("mg key-{n} v u\r\n")).collect();
        c.say(format!("{requests}get hot\r\nmn\r\n"));
        let answer = c.hear_until_noop();
        let mut rest = answer.as_bytes();
        for n in first..first + 50 {
            let value = value(n);
            let item = [format!("VA {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
            match rest.strip_prefix(&item[..]) {
                Some(after) => rest = after,
                None => {
                    rest = rest
                        .strip_prefix(b"EN\r\n")
                        .unwrap_or_else(|| panic!("the value of key-{n} is wrong"));
                    missing += 1;
                }
            }
        }
        let rest = String::from_utf8_lossy(rest).into_owned();
        assert_eq!(rest, "VALUE hot 0 3\r\nhot\r\nEND\r\nMN\r\n", "memory is not served");
    }
    missing
}

/// Changes to items, some of which are lost, are answered.
fn change_all(c: &mut Client<std::net::TcpStream>) {
    for n in 0..ITEMS {
        let line = match n % 5 {
            0 => format!("touch key-{n} 0\r\n"),
            1 => format!("append key-{n} 0 0 1\r\n!\r\n"),
            2 => format!("gat 0 key-{n}\r\n"),
            3 => format!("delete key-{n}\r\n"),
            _ => format!("set key-{n} 0 0 1\r\n1\r\n"),
        };
        c.say(line);
    }
    c.say("mn\r\n");
    assert!(!c.hear_until_noop().contains("SERVER_ERROR"));
}

/// Starts a server, stores items, damages the device, and checks what clients see.
fn damaged(damage: impl FnOnce(&Path)) -> Option<(Process, Client<std::net::TcpStream>, usize)> {
    let folder = folder()?;
    let path = folder.path().join("a");
    let process = start(&format!("-m 8 -t 2 {}", device(&path)));
    let mut c = connect(process.address());
    store(&mut c);
    let (lost, losses) = (missing(&mut c), c.losses() as usize);
    assert!(lost <= losses + FALSE_MATCHES_MAX, "{lost} are missing before, and {losses} were evicted");
    damage(&path);
    let lost = missing(&mut c) - lost;
    change_all(&mut c);
    for round in 0..2 {
        c.fill_with(&format!("after-{round}"), 20 << 20);
    }
    c.request("set more 0 0 2\r\nok\r\nget more\r\n", "STORED\r\nVALUE more 0 2\r\nok\r\nEND\r\n");
    Some((process, c, lost))
}

/// Stops the server; its log has this line so many times.
#[track_caller]
fn stop(mut process: Process, text: &str, times: usize) {
    process.signal(Signal::TERM);
    assert!(process.wait().success(), "{}", process.log());
    let log = process.log();
    assert!(!log.contains("panicked"), "{log}");
    assert_eq!(log.matches(text).count(), times, "{log}");
}

/// Damages bytes of the device's segments, of which so many at least were lost with this many pages.
#[track_caller]
fn check_damaged_pages(damage: impl FnOnce(&File), lost_least: usize, pages_least: u64) {
    let change = |path: &Path| {
        let file = OpenOptions::new().read(true).write(true).open(path).expect("the device");
        damage(&file);
        file.sync_all().expect("written");
    };
    let Some((process, mut c, lost)) = damaged(change) else { return };
    assert!(lost > lost_least, "{lost} are missing");
    assert!(c.count("fabcache", "flash_bad_pages") > pages_least);
    stop(process, "panicked", 0);
}

#[test]
fn a_truncated_file_loses_items_only() {
    let Some((process, mut c, lost)) = damaged(|path| {
        File::options().write(true).open(path).expect("the device").set_len(AREA).expect("shortened");
    }) else {
        return;
    };
    assert!(lost > 500, "{lost} are missing");
    assert!(c.count("fabcache", "flash_read_errors") > 0);
    stop(process, "panicked", 0);
}

#[test]
fn an_emptied_file_gets_no_writes() {
    let Some((process, _c, lost)) = damaged(|path| {
        File::options().write(true).open(path).expect("the device").set_len(0).expect("shortened");
        std::thread::sleep(Duration::from_millis(2500));
    }) else {
        return;
    };
    assert!(lost > 500, "{lost} are missing");
    stop(process, "stopped writing to flash device", 1);
}

#[test]
fn a_removed_file_is_used_on() {
    let Some((process, _c, lost)) = damaged(|path| std::fs::remove_file(path).expect("removed")) else {
        return;
    };
    assert_eq!(lost, 0);
    stop(process, "panicked", 0);
}

#[test]
fn another_file_of_the_same_name_stays_untouched() {
    let other = pattern(5, 3 << 20);
    let Some(folder) = folder() else { return };
    let copy = folder.path().join("other");
    let Some((process, _c, lost)) = damaged(|path| {
        std::fs::write(&copy, &other).expect("written");
        std::fs::rename(&copy, path).expect("renamed");
        // The open file is still the device.
        std::fs::hard_link(path, &copy).expect("linked");
        std::thread::sleep(Duration::from_millis(1500));
    }) else {
        return;
    };
    assert_eq!(lost, 0);
    assert!(std::fs::read(&copy).expect("read") == other, "no byte of another file changes");
    stop(process, "panicked", 0);
}

/// Waits until the server reports this state, which takes a few seconds at most.
#[track_caller]
fn wait_for_state(c: &mut Client<std::net::TcpStream>, expected: &str) {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let state = c.stat("fabcache", "flash_state");
        if state == expected {
            return;
        }
        assert!(Instant::now() < until, "the state is {state:?} instead of {expected:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn lost_devices_are_reported_though_nothing_is_written() {
    let Some(folder) = folder() else { return };
    let [a, b, moved] = ["a", "b", "moved"].map(|name| folder.path().join(name));
    let server = serve(&format!("-m 8 {} {}", device(&a), device(&b)));
    let mut c = server.connect();
    wait_for_state(&mut c, "working");
    let a_is_lost = format!("{}: its path does not lead to it any more", a.display());
    std::fs::rename(&a, &moved).expect("moved");
    wait_for_state(&mut c, &format!("degraded: {a_is_lost}"));
    // Another file in its place.
    std::fs::copy(&moved, &a).expect("copied");
    let file = File::options().read(true).write(true).open(&b).expect("the device");
    let mut header = [0; 4096];
    file.read_exact_at(&mut header, 0).expect("read");
    file.write_all_at(&[0; 4096], 0).expect("written");
    let b_is_lost = format!("{}: it does not begin with the header of a flash device", b.display());
    wait_for_state(&mut c, &format!("memory_only: {a_is_lost}; {b_is_lost}"));
    std::fs::rename(&moved, &a).expect("moved");
    wait_for_state(&mut c, &format!("degraded: {b_is_lost}"));
    file.write_all_at(&header, 0).expect("written");
    wait_for_state(&mut c, "working");
    assert_eq!(c.count("fabcache", "flash_device_bytes_written"), 0);
}

#[test]
fn zeros_and_random_bytes_are_misses() {
    for bytes in [vec![0; 48 << 20], pattern(3, 48 << 20)] {
        check_damaged_pages(|file| file.write_all_at(&bytes, AREA).expect("written"), 500, 100);
    }
}

#[test]
fn flipped_bits_lose_single_items() {
    let flip = |file: &File| {
        // One in each eighth page.
        for page in (0..6000u64).step_by(8) {
            let at = AREA + page * 4096 + page * 37 % 4096;
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).expect("read");
            file.write_all_at(&[byte[0] ^ 1 << (page / 8 % 8)], at).expect("written");
        }
    };
    check_damaged_pages(flip, 10, 10);
}

/// Pages that lie at each other's place have valid checksums, but not for there.
#[test]
fn exchanged_pages_are_misses() {
    let rotate = |file: &File| {
        let mut bytes = vec![0; 24 << 20];
        file.read_exact_at(&mut bytes, AREA).expect("read");
        bytes.rotate_left(4096);
        file.write_all_at(&bytes, AREA).expect("written");
    };
    check_damaged_pages(rotate, 500, 100);
}

/// What cannot be a device ends the start, and the error names it.
#[test]
fn unfit_paths_are_refused() {
    let Some(folder) = folder() else { return };
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("directory")).expect("created");
    let fifo = Command::new("mkfifo").arg(path("fifo")).status().expect("mkfifo");
    assert!(fifo.success());
    let _listener = std::os::unix::net::UnixListener::bind(path("socket")).expect("bound");
    std::fs::write(path("foreign"), b"someone's data").expect("written");
    let mut unfit = vec![path("directory"), path("fifo"), path("socket"), path("foreign"), path("none/file")];
    unfit.extend(["/dev/full", "/dev/null", "/proc/self/mem"].map(Into::into));
    if !rustix::process::geteuid().is_root() {
        std::fs::write(path("read-only"), b"").expect("written");
        std::fs::set_permissions(path("read-only"), PermissionsExt::from_mode(0o400)).expect("changed");
        unfit.push(path("read-only"));
    }
    for path in unfit {
        let mut process = spawn(fabcached(&format!("-l 127.0.0.1 -p -1 -m 8 {}", device(&path))));
        assert!(!process.wait().success(), "{} is refused", path.display());
        let log = process.log();
        assert!(
            log.contains(&path.display().to_string()) && !log.contains("panicked"),
            "{}: {log}",
            path.display()
        );
    }
    assert_eq!(std::fs::read(path("foreign")).expect("read"), b"someone's data");
}

/// A file system of its own, of this many megabytes; none where this user may not mount.
struct Mounted(std::path::PathBuf);

impl Mounted {
    fn new(folder: &Path, megabytes: u64) -> Option<Mounted> {
        let (image, at) = (folder.join("image"), folder.join("mounted"));
        File::create(&image).and_then(|file| file.set_len(megabytes << 20)).expect("an image");
        std::fs::create_dir(&at).expect("created");
        let run = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
        let is_mounted = run(Command::new("mkfs.ext4").arg("-q").arg(&image))
            && run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at));
        if !is_mounted {
            not_run("a_full_file_system_is_reported", &"this user may not mount a file system");
            return None;
        }
        Some(Mounted(at))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_full_file_system_is_reported() {
    let Some(folder) = folder() else { return };
    let Some(mounted) = Mounted::new(folder.path(), 80) else { return };
    let path = mounted.0.join("a");
    let mut process = spawn(fabcached(&format!("-l 127.0.0.1 -p -1 -m 8 {}", device(&path))));
    wait_until("it ends or serves", || {
        process.child.try_wait().expect("our child").is_some()
            || process.log().contains("ready for memcached clients")
    });
    if process.child.try_wait().expect("our child").is_some() {
        // Its log is complete then.
        assert!(!process.wait().success());
        let log = process.log();
        assert!(log.contains(&path.display().to_string()) && !log.contains("panicked"), "{log}");
        return;
    }
    // The file has holes: the server goes on when there is no room for one.
    let mut c = connect(process.address());
    for round in 0..10 {
        c.fill_with(&format!("round-{round}"), 20 << 20);
        c.request("set hot 0 0 3\r\nhot\r\nget hot\r\n", "STORED\r\nVALUE hot 0 3\r\nhot\r\nEND\r\n");
    }
    assert!(c.count("fabcache", "flash_write_errors") > 0);
    stop(process, "cannot write to flash device", 1);
}
