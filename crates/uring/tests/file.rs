//! The ring for files over real files, with direct I/O where their file system has it. The tests run where this process may
//! use io_uring.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabcache_testbed::bytes::pattern;
use fabcache_testbed::cleanup::Folder;
use fabcache_testbed::io_uring::is_there_for_files;
use fabcache_testbed::random::SplitMix64;
use fabcache_uring::{FileCompletion, FileRing, PageBuffer, Ring, Unqueued};
use rustix::event::epoll;
use rustix::fs::OFlags;

const PAGE: usize = 4096;
/// Far longer than any step takes.
const LONG: Duration = Duration::from_secs(60);
/// Longer than a request takes that nothing keeps waiting.
const SHORT: Duration = Duration::from_millis(20);

/// A ring of this thread; none where io_uring is refused, as in most containers.
fn ring(entries: u32) -> Option<FileRing> {
    is_there_for_files().then(|| FileRing::new(entries).expect("io_uring works"))
}

/// A folder on the device that has the build's files: the system's temporary folder is often memory.
fn folder() -> Folder {
    Folder::new_in(Path::new(env!("CARGO_TARGET_TMPDIR")), "files").expect("a folder")
}

/// A file for direct I/O, or for I/O through the page cache where direct I/O is refused.
fn direct(folder: &Folder, name: &str) -> Arc<File> {
    let path: PathBuf = folder.path().join(name);
    let mut options = File::options();
    options.read(true).write(true).create(true);
    let opened = options.clone().custom_flags(OFlags::DIRECT.bits() as i32).open(&path);
    Arc::new(opened.or_else(|_| options.open(&path)).expect("a file"))
}

fn buffer(pages: usize, byte: u8) -> PageBuffer {
    PageBuffer::from_iter(PAGE, std::iter::repeat_n(byte, pages * PAGE))
}

/// The next completion.
fn next(ring: &mut FileRing) -> FileCompletion {
    let began = Instant::now();
    loop {
        if let Some(completion) = ring.next_completion() {
            return completion;
        }
        assert!(began.elapsed() < LONG, "a completion is late");
        ring.wait(Some(LONG)).expect("the ring works");
    }
}

/// A file whose reads wait until the other end writes.
fn pipe() -> (Arc<File>, File) {
    let (reader, writer) = io::pipe().expect("a pipe");
    (Arc::new(File::from(OwnedFd::from(reader))), File::from(OwnedFd::from(writer)))
}

#[test]
fn written_bytes_are_read() {
    let Some(mut ring) = ring(4) else { return };
    let folder = folder();
    let file = direct(&folder, "a");
    let expected = pattern(1, 4 * PAGE);
    let written = PageBuffer::from_slice(PAGE, &expected);
    // Pages 1 to 3 of the buffer to pages 5 to 7 of the file.
    ring.write(&file, 5 * PAGE as u64, written, PAGE..4 * PAGE, 7).expect("room");
    let end = next(&mut ring);
    assert_eq!((end.token, end.result.expect("written")), (7, 3 * PAGE));
    assert!(end.buffer.to_vec() == expected, "the buffer comes back");
    ring.read(&file, 4 * PAGE as u64, buffer(4, 1), 0..3 * PAGE, u64::MAX).expect("room");
    let end = next(&mut ring);
    assert_eq!((end.token, end.result.expect("read")), (u64::MAX, 3 * PAGE));
    assert!(end.buffer[..PAGE].iter().all(|byte| *byte == 0), "the hole before them");
    assert!(end.buffer[PAGE..3 * PAGE] == expected[PAGE..3 * PAGE]);
    assert!(end.buffer[3 * PAGE..].iter().all(|byte| *byte == 1), "bytes behind the range stay");
    assert_eq!(ring.in_flight(), 0);
}

#[test]
fn many_requests_in_flight_complete_once_each() {
    const FILES: usize = 3;
    const PAGES: u64 = 64;
    let Some(mut ring) = ring(16) else { return };
    assert_eq!(ring.capacity(), 16);
    let folder = folder();
    let files: Vec<_> = (0..FILES).map(|n| direct(&folder, &n.to_string())).collect();
    let place = |token: u64| (&files[token as usize % FILES], token / FILES as u64 * PAGE as u64);
    let mut random = SplitMix64::new(2);
    for is_write in [true, false] {
        let mut left: Vec<u64> = (0..PAGES * FILES as u64).collect();
        let mut ended = vec![false; left.len()];
        while ended.contains(&false) {
            while ring.in_flight() < ring.capacity() && !left.is_empty() {
                let token = left.swap_remove(random.below(left.len()));
                let (file, offset) = place(token);
                let bytes = buffer(1, if is_write { token as u8 } else { 0xff });
                let start = if is_write { FileRing::write } else { FileRing::read };
                start(&mut ring, file, offset, bytes, 0..PAGE, token).expect("room");
            }
            let end = next(&mut ring);
            assert_eq!(end.result.expect("done"), PAGE);
            assert!(end.buffer.iter().all(|byte| *byte == end.token as u8), "its own bytes");
            assert!(!std::mem::replace(&mut ended[end.token as usize], true), "once");
        }
    }
    // Another reader finds them, too.
    let mut bytes = buffer(1, 0);
    files[1].read_exact_at(&mut bytes, 20 * PAGE as u64).expect("written");
    assert!(bytes.iter().all(|byte| *byte == 61));
}

#[test]
fn full_ring_returns_the_buffer() {
    let Some(mut ring) = ring(2) else { return };
    let (reader, mut writer) = pipe();
    for token in 0..2 {
        ring.read(&reader, 0, buffer(1, 0), 0..2, token).expect("room");
    }
    let Unqueued { buffer: returned, error } =
        ring.read(&reader, 0, buffer(2, 9), 0..1, 2).expect_err("two are in flight");
    assert_eq!((error.kind(), returned.len(), returned[0]), (io::ErrorKind::ResourceBusy, 2 * PAGE, 9));
    writer.write_all(b"abcd").expect("it is open");
    let (one, other) = (next(&mut ring), next(&mut ring));
    let mut read = [&one.buffer[..2], &other.buffer[..2]];
    read.sort_unstable();
    assert_eq!(read, [b"ab", b"cd"]);
    ring.read(&reader, 0, returned, 0..1, 2).expect("room");
}

#[test]
fn reads_at_the_end_are_short() {
    let Some(mut ring) = ring(4) else { return };
    let folder = folder();
    let file = direct(&folder, "a");
    file.write_all_at(&buffer(2, 3), 0).expect("written");
    for (page, read) in [(0, 2 * PAGE), (1, PAGE), (2, 0), (1 << 20, 0)] {
        ring.read(&file, page * PAGE as u64, buffer(4, 0), 0..4 * PAGE, page).expect("room");
        assert_eq!(next(&mut ring).result.expect("read"), read, "page {page}");
    }
}

#[test]
fn errors_return_the_buffer() {
    let Some(mut ring) = ring(4) else { return };
    let folder = folder();
    direct(&folder, "a").write_all_at(&buffer(1, 3), 0).expect("written");
    let path = folder.path().join("a");
    let read_only = Arc::new(File::open(&path).expect("it exists"));
    let write_only = Arc::new(File::options().write(true).open(&path).expect("it exists"));
    let full = Arc::new(File::options().write(true).open("/dev/full").expect("it exists"));
    let directory = Arc::new(File::open(folder.path()).expect("it exists"));
    ring.write(&read_only, 0, buffer(1, 4), 0..PAGE, 0).expect("room");
    ring.read(&write_only, 0, buffer(1, 4), 0..PAGE, 1).expect("room");
    ring.write(&full, 0, buffer(1, 4), 0..PAGE, 2).expect("room");
    ring.read(&directory, 0, buffer(1, 4), 0..PAGE, 3).expect("room");
    let mut ends: Vec<_> = (0..4).map(|_| next(&mut ring)).collect();
    ends.sort_by_key(|end| end.token);
    let errors: Vec<_> = ends.iter().map(|end| end.result.as_ref().expect_err("refused").kind()).collect();
    let bad_descriptor = io::Error::from(rustix::io::Errno::BADF).kind();
    assert_eq!(
        errors,
        [bad_descriptor, bad_descriptor, io::ErrorKind::StorageFull, io::ErrorKind::IsADirectory]
    );
    assert!(ends.iter().all(|end| end.buffer.iter().all(|byte| *byte == 4)));
}

#[test]
fn file_stays_open_until_the_completion() {
    let Some(mut ring) = ring(1) else { return };
    let (reader, mut writer) = pipe();
    ring.read(&reader, 0, buffer(1, 0), 0..PAGE, 0).expect("room");
    drop(reader);
    // Also a request that the kernel has.
    ring.submit().expect("the ring works");
    writer.write_all(b"late").expect("the reader is open");
    let end = next(&mut ring);
    assert_eq!((&end.buffer[..4], end.result.expect("read")), (&b"late"[..], 4));
    assert_eq!(writer.write_all(b"x").expect_err("no reader").kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn drop_ends_requests_in_flight() {
    let folder = folder();
    for is_submitted in [false, true] {
        let Some(mut ring) = ring(8) else { return };
        let (reader, mut writer) = pipe();
        let file = direct(&folder, "a");
        for token in 0..4 {
            ring.read(&reader, 0, buffer(1, 0), 0..PAGE, token).expect("room");
            ring.write(&file, token * PAGE as u64, buffer(1, 5), 0..PAGE, token).expect("room");
        }
        if is_submitted {
            ring.submit().expect("the ring works");
        }
        drop((reader, ring));
        assert_eq!(writer.write_all(b"x").expect_err("no reader").kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(Arc::strong_count(&file), 1);
    }
}

#[test]
fn thread_with_requests_in_flight_may_end() {
    let (reader, mut writer) = pipe();
    let run = move || {
        let mut ring = ring(1)?;
        ring.read(&reader, 0, buffer(1, 6), 0..PAGE, 3).expect("room");
        ring.submit().expect("the ring works");
        Some(ring)
    };
    let Some(mut ring) = std::thread::spawn(run).join().expect("no panic") else { return };
    // The kernel cancels it, or a thread of its own has it.
    let _ = writer.write_all(b"x");
    let end = next(&mut ring);
    assert_eq!((end.token, ring.in_flight()), (3, 0));
    assert!(end.buffer[1..].iter().all(|byte| *byte == 6));
}

#[test]
fn waits_end_by_time_or_at_once_without_requests() {
    let Some(mut ring) = ring(2) else { return };
    ring.wait(None).expect("nothing is in flight");
    let (reader, mut writer) = pipe();
    ring.read(&reader, 0, buffer(1, 0), 0..PAGE, 0).expect("room");
    let began = Instant::now();
    ring.wait(Some(SHORT)).expect("the ring works");
    assert!(began.elapsed() >= SHORT && ring.next_completion().is_none());
    ring.wait(Some(Duration::ZERO)).expect("the ring works");
    assert!(ring.next_completion().is_none());
    writer.write_all(b"x").expect("it is open");
    ring.wait(None).expect("the ring works");
    assert_eq!(ring.next_completion().expect("it ended").result.expect("read"), 1);
}

/// What watches a ring's descriptor while this thread sleeps.
trait Watch {
    /// Waits until the descriptor is readable; returns whether it is.
    fn sleep(&mut self, ring: &FileRing, timeout: Duration) -> bool;
}

type NewWatch = fn(&FileRing) -> Box<dyn Watch>;

struct Epoll(OwnedFd);

impl Epoll {
    fn new(ring: &FileRing) -> Epoll {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("a descriptor");
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, ring.descriptor(), data, epoll::EventFlags::IN).expect("it can be watched");
        Epoll(epoll)
    }
}

impl Watch for Epoll {
    fn sleep(&mut self, _: &FileRing, timeout: Duration) -> bool {
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
        let timeout = rustix::event::Timespec::try_from(timeout).expect("short");
        loop {
            // A request that completes while the thread sleeps may interrupt it.
            match epoll::wait(&self.0, &mut events, Some(&timeout)) {
                Err(rustix::io::Errno::INTR) => {}
                count => return count.expect("it works") == 1,
            }
        }
    }
}

/// A worker's ring, which polls the ring itself, or an epoll set that has it.
struct OtherRing(Ring, Option<Epoll>);

impl OtherRing {
    fn new(epoll: Option<Epoll>) -> OtherRing {
        let mut ring = Ring::new().expect("io_uring works");
        ring.enable().expect("it was not enabled");
        OtherRing(ring, epoll)
    }
}

impl Watch for OtherRing {
    fn sleep(&mut self, ring: &FileRing, timeout: Duration) -> bool {
        let watched = self.1.as_ref().map_or(ring.descriptor(), |epoll| epoll.0.as_fd());
        self.0.wait_readable(watched, 0).expect("a request");
        self.0.wait(Some(timeout)).expect("the ring works");
        self.0.next_completion().is_some()
    }
}

#[test]
fn descriptor_is_readable_while_completions_wait() {
    let folder = folder();
    let file = direct(&folder, "a");
    file.write_all_at(&buffer(64, 3), 0).expect("written");
    let watches: [NewWatch; 3] = [
        |ring| Box::new(Epoll::new(ring)),
        |_| Box::new(OtherRing::new(None)),
        |ring| Box::new(OtherRing::new(Some(Epoll::new(ring)))),
    ];
    for watch in watches {
        let Some(mut ring) = ring(8) else { return };
        let mut watch = watch(&ring);
        let (reader, mut writer) = pipe();
        ring.read(&reader, 0, buffer(1, 0), 0..PAGE, 1).expect("room");
        ring.submit().expect("the ring works");
        // Another thread, so this one sleeps when the request completes.
        let late = std::thread::spawn(move || {
            std::thread::sleep(SHORT);
            writer.write_all(b"x").expect("it is open");
            writer
        });
        assert!(watch.sleep(&ring, LONG), "a read of a pipe wakes the thread");
        assert_eq!(ring.next_completion().expect("it waits").token, 1);
        drop(late.join());
        for round in 0..64 {
            ring.read(&file, round * PAGE as u64, buffer(1, 0), 0..PAGE, round).expect("room");
            ring.submit().expect("the ring works");
            assert!(watch.sleep(&ring, LONG), "a read of a file wakes the thread");
            // Until it is taken.
            assert!(watch.sleep(&ring, LONG));
            let end = ring.next_completion().expect("it waits");
            assert_eq!((end.token, end.result.expect("read"), end.buffer[PAGE - 1]), (round, PAGE, 3));
        }
        assert!(!watch.sleep(&ring, SHORT), "all were taken");
    }
}
