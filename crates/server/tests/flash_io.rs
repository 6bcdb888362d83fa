//! Reads and writes of flash devices: with memory files, which can be made to fail, and with files on a disk, whose requests
//! end later.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use fabcache_server::bounds::{FLASH_READ_BYTES_MAX, FLASH_READS_MAX, FLASH_WRITES_MAX};
use fabcache_server::flash::device_header::HEADER_BYTES;
use fabcache_server::flash::{
    DeviceSettings, Devices, FlashReader, HEADER_AREA_BYTES, ReadRequest, ThreadControl, WriteQueue,
    WriteRequest, file_offset, run_writer,
};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::cleanup::Folder;
use fabcache_testbed::io_uring::is_there_for_files;
use fabcache_testbed::random::SplitMix64;
use fabcache_testbed::report::not_run;
use fabcache_testbed::wait::wait_until;
use fabcache_uring::PageBuffer;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, Mode, SealFlags};

const PAGE: usize = 4096;
const SEGMENT: u64 = 1 << 20;
const SEGMENTS: u64 = 8;
const LONG: Duration = Duration::from_secs(60);

/// Devices over memory files, which are accessed through the second; none where io_uring is refused.
fn devices(count: usize) -> Option<(Arc<Devices>, Vec<File>)> {
    if !is_there_for_files() {
        return None;
    }
    let file = |_| {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
        let file: OwnedFd = rustix::fs::memfd_create("device", flags).expect("a memory file");
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).expect("changed");
        File::from(file)
    };
    let files: Vec<File> = (0..count).map(file).collect();
    let paths = files.iter().map(|file| format!("/proc/self/fd/{}", file.as_raw_fd()).into());
    Some((open(paths), files))
}

/// Devices over files in the folder, on the device that has the build's files.
fn devices_on_disk(folder: &Folder, count: usize) -> Option<(Arc<Devices>, Vec<File>)> {
    if !is_there_for_files() {
        return None;
    }
    let paths: Vec<_> = (0..count).map(|number| folder.path().join(number.to_string())).collect();
    let devices = open(paths.iter().cloned());
    let file = |path| File::options().read(true).write(true).open(path).expect("a device");
    Some((devices, paths.iter().map(file).collect()))
}

fn open(paths: impl Iterator<Item = PathBuf>) -> Arc<Devices> {
    let bytes = HEADER_AREA_BYTES + SEGMENTS * SEGMENT;
    let settings: Vec<_> = paths.map(|path| DeviceSettings { path, bytes }).collect();
    Arc::new(Devices::open(&settings, SEGMENT).expect("devices"))
}

fn folder() -> Folder {
    Folder::new_in(Path::new(env!("CARGO_TARGET_TMPDIR")), "flash-io").expect("a folder")
}

fn buffer(bytes: usize) -> PageBuffer {
    PageBuffer::from_iter(PAGE, std::iter::repeat_n(0xee, bytes))
}

// ---- reads ----

#[derive(Debug)]
struct Read {
    device: usize,
    offset: u64,
    /// The buffer's bytes to read, and the buffer's length.
    bytes: Range<usize>,
    buffer_bytes: usize,
}

impl ReadRequest for Read {
    fn device(&self) -> usize {
        self.device
    }

    fn offset(&self) -> u64 {
        self.offset
    }

    fn take_buffer(&mut self) -> (PageBuffer, Range<usize>) {
        (buffer(self.buffer_bytes), self.bytes.clone())
    }
}

fn read(device: usize, offset: u64, pages: usize) -> Read {
    Read { device, offset, bytes: 0..pages * PAGE, buffer_bytes: pages * PAGE }
}

/// Sleeps until reads have ended, as a worker does, and takes one.
fn next<T>(reader: &mut FlashReader<Read, T>) -> (Read, T, PageBuffer, io::Result<usize>) {
    loop {
        if let Some(ended) = reader.take() {
            return ended;
        }
        reader.submit().expect("the ring works");
        let mut watched = [PollFd::from_borrowed_fd(reader.descriptor(), PollFlags::IN)];
        let timeout = Timespec::try_from(LONG).expect("short");
        match rustix::event::poll(&mut watched, Some(&timeout)) {
            Ok(0) => panic!("a read is late"),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Fills the segments of the files with bytes that follow from the file's number.
fn fill(files: &[File]) -> Vec<Vec<u8>> {
    let contents: Vec<_> =
        (0..files.len()).map(|number| pattern(number as u64, (SEGMENTS * SEGMENT) as usize)).collect();
    for (file, bytes) in files.iter().zip(&contents) {
        file.write_all_at(bytes, HEADER_AREA_BYTES).expect("written");
    }
    contents
}

#[test]
fn more_reads_than_the_ring_holds_return_their_own_bytes() {
    let folder = folder();
    for set in [devices(3), devices_on_disk(&folder, 3)] {
        let Some((devices, files)) = set else { return };
        check_random_reads(&devices, &files);
    }
}

fn check_random_reads(devices: &Arc<Devices>, files: &[File]) {
    let contents = fill(files);
    let mut reader = FlashReader::new(devices).expect("a ring");
    let mut random = SplitMix64::new(5);
    let count = 3 * FLASH_READS_MAX as usize;
    for number in 0..count {
        let pages = random.between(1, 8);
        let offset = random.below((SEGMENTS * SEGMENT) as usize / PAGE - pages + 1) * PAGE;
        // Behind pages that were read before.
        let before = random.below(3) * PAGE;
        let bytes = before..before + pages * PAGE;
        let (buffer_bytes, offset) = (bytes.end + PAGE, offset as u64);
        reader.start(Read { device: number % 3, offset, bytes, buffer_bytes }, number);
    }
    let mut ended = vec![false; count];
    while !reader.is_idle() {
        let (read, number, buffer, result) = next(&mut reader);
        assert!(!std::mem::replace(&mut ended[number], true), "each ends once");
        assert_eq!((read.device, result.expect("read")), (number % 3, read.bytes.len()));
        let from = read.offset as usize;
        let expected = &contents[read.device][from..from + read.bytes.len()];
        assert!(buffer[read.bytes.clone()] == *expected);
        assert!(buffer[..read.bytes.start].iter().chain(&buffer[read.bytes.end..]).all(|byte| *byte == 0xee));
    }
    assert!(ended.iter().all(|ended| *ended));
    assert!(reader.take().is_none());
}

#[test]
fn long_reads_let_short_ones_pass() {
    let Some((devices, files)) = devices(1) else { return };
    if devices.is_in_memory(0) {
        let why = "the build's files are in memory, and each read is done at once";
        return not_run("long_reads_let_short_ones_pass", &why);
    }
    let contents = fill(&files);
    let mut reader = FlashReader::new(&devices).expect("a ring");
    let long = 5 * FLASH_READ_BYTES_MAX / PAGE + 1;
    // Now and then a disk that others use answers the short one last.
    let has_passed = (0..20).any(|_| {
        reader.start(read(0, SEGMENT, long), "long");
        reader.start(read(0, 0, 1), "short");
        let ended = [next(&mut reader), next(&mut reader)];
        for (read, with, buffer, result) in &ended {
            let pages = if *with == "long" { long } else { 1 };
            assert_eq!(result.as_ref().expect("read"), &(pages * PAGE));
            let from = read.offset as usize;
            assert!(buffer[..] == contents[0][from..from + pages * PAGE]);
        }
        ended[0].1 == "short"
    });
    assert!(has_passed, "a long read is done at once");
}

#[test]
fn reads_beyond_a_shortened_device_are_short() {
    let Some((devices, files)) = devices(1) else { return };
    let contents = fill(&files);
    files[0].set_len(file_offset(2 * PAGE as u64)).expect("shortened");
    let mut reader = FlashReader::new(&devices).expect("a ring");
    for (page, expected) in [(0, 2 * PAGE), (1, PAGE), (2, 0), (100, 0)] {
        reader.start(read(0, page * PAGE as u64, 4), ());
        let (_, (), buffer, result) = next(&mut reader);
        assert_eq!(result.expect("read"), expected);
        assert!(expected == 0 || buffer[..expected] == contents[0][page as usize * PAGE..][..expected]);
    }
    assert!(reader.is_idle());
}

#[test]
fn reader_with_reads_under_way_may_be_dropped() {
    let folder = folder();
    for set in [devices(1), devices_on_disk(&folder, 1)] {
        let Some((devices, _files)) = set else { return };
        check_drop(&devices);
    }
}

fn check_drop(devices: &Arc<Devices>) {
    let mut reader = FlashReader::new(devices).expect("a ring");
    let kept = Arc::new(());
    for number in 0..2 * u64::from(FLASH_READS_MAX) {
        reader.start(read(0, number * PAGE as u64, 1), Arc::clone(&kept));
    }
    reader.submit().expect("the ring works");
    drop(reader);
    assert_eq!(Arc::strong_count(&kept), 1);
    assert_eq!(Arc::strong_count(devices), 1);
    assert_eq!(Arc::strong_count(devices.file(0)), 1, "no request has the file");
}

// ---- writes ----

struct Write {
    number: usize,
    device: usize,
    offset: u64,
    buffer: Option<PageBuffer>,
    len: usize,
}

impl WriteRequest for Write {
    fn device(&self) -> usize {
        self.device
    }

    fn offset(&self) -> u64 {
        self.offset
    }

    fn byte_len(&self) -> usize {
        self.len
    }

    fn take_buffer(&mut self) -> PageBuffer {
        self.buffer.take().expect("taken once")
    }
}

/// A write of a page more than is written, with bytes that follow from the number.
fn write(number: usize, device: usize, page: usize, pages: usize) -> Write {
    let len = pages * PAGE;
    let buffer = Some(PageBuffer::from_slice(PAGE, &pattern(number as u64, len + PAGE)));
    Write { number, device, offset: (page * PAGE) as u64, buffer, len }
}

/// The store's side of the writer.
#[derive(Default)]
struct Queue {
    writes: Mutex<VecDeque<Write>>,
    results: Mutex<Vec<(usize, bool)>>,
    under_way: AtomicUsize,
    maintained: AtomicUsize,
    /// So many results are awaited within the next maintenance.
    results_in_maintenance: AtomicUsize,
    /// So many times maintenance waits for readers.
    readers: AtomicUsize,
}

impl Queue {
    fn results(&self) -> MutexGuard<'_, Vec<(usize, bool)>> {
        self.results.lock().expect("no panic")
    }

    fn push(&self, write: Write) {
        self.writes.lock().expect("no panic").push_back(write);
    }
}

impl WriteQueue for Queue {
    type Write = Write;

    fn take_write(&self) -> Option<Write> {
        let write = self.writes.lock().expect("no panic").pop_front()?;
        let before = self.under_way.fetch_add(1, Ordering::Relaxed);
        assert!(before < FLASH_WRITES_MAX, "a bounded number is under way");
        Some(write)
    }

    fn finish_write(&self, write: Write, buffer: PageBuffer, is_written: bool) {
        assert!(buffer[..] == pattern(write.number as u64, write.len + PAGE), "the buffer comes back");
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        self.results().push((write.number, is_written));
    }

    fn set_device_lost(&self, _: usize, _: bool) {}

    fn is_maintenance_due(&self) -> bool {
        false
    }

    fn maintain(&self, pause: &mut dyn FnMut()) -> bool {
        let awaited = self.results_in_maintenance.swap(0, Ordering::Relaxed);
        let began = Instant::now();
        while self.results().len() < awaited && began.elapsed() < LONG {
            pause();
        }
        assert!(self.results().len() >= awaited, "writes go on in the pauses");
        self.maintained.fetch_add(1, Ordering::Relaxed);
        self.readers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

/// Runs the writer beside the function.
fn with_writer(devices: &Devices, queue: &Queue, test: impl FnOnce(&ThreadControl)) {
    /// Ends the writer, also when the test panics.
    struct Stop<'c>(&'c ThreadControl);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.stop();
        }
    }
    let control = ThreadControl::new().expect("a descriptor");
    thread::scope(|scope| {
        let stop = Stop(&control);
        let writer = scope.spawn(|| run_writer(devices, queue, &control));
        test(&control);
        drop(stop);
        writer.join().expect("no panic").expect("the ring works");
    });
    assert_eq!(queue.under_way.load(Ordering::Relaxed), 0, "writes under way are finished");
}

fn written(file: &File, write_page: usize, pages: usize) -> Vec<u8> {
    let mut bytes = vec![0; pages * PAGE];
    file.read_exact_at(&mut bytes, file_offset((write_page * PAGE) as u64)).expect("read");
    bytes
}

#[test]
fn writes_reach_their_places() {
    let folder = folder();
    for set in [devices(2), devices_on_disk(&folder, 2)] {
        let Some((devices, files)) = set else { return };
        check_places(&devices, &files);
    }
}

fn check_places(devices: &Arc<Devices>, files: &[File]) {
    const COUNT: usize = 100;
    let queue = Queue::default();
    with_writer(devices, &queue, |control| {
        for number in 0..COUNT {
            queue.push(write(number, number % 2, number * 8, 1 + number % 8));
            if number % 7 == 0 || number == COUNT - 1 {
                control.notify();
                thread::sleep(Duration::from_millis(1));
            }
        }
        wait_until("all are written", || queue.results().len() == COUNT);
    });
    let mut results = queue.results();
    results.sort_unstable();
    assert!(results.iter().copied().eq((0..COUNT).map(|number| (number, true))));
    for number in 0..COUNT {
        let pages = 1 + number % 8;
        let mut expected = pattern(number as u64, pages * PAGE);
        // The page behind the write is not written.
        expected.extend([0; PAGE]);
        assert!(written(&files[number % 2], number * 8, pages + 1) == expected);
    }
}

#[test]
fn failed_writes_are_reported_and_harm_no_other_device() {
    let Some((devices, files)) = devices(2) else { return };
    rustix::fs::fcntl_add_seals(&files[0], SealFlags::WRITE).expect("nobody maps it");
    let queue = Queue::default();
    (0..20).for_each(|number| queue.push(write(number, number % 2, number, 1)));
    with_writer(&devices, &queue, |_| {
        wait_until("all have ended", || queue.results().len() == 20);
    });
    assert!(queue.results().iter().all(|(number, is_written)| *is_written == (number % 2 == 1)));
}

#[test]
fn rest_of_a_short_write_is_written_or_fails() {
    let Some((devices, files)) = devices(1) else { return };
    files[0].set_len(file_offset(2 * PAGE as u64)).expect("shortened");
    rustix::fs::fcntl_add_seals(&files[0], SealFlags::GROW).expect("it takes seals");
    let queue = Queue::default();
    queue.push(write(1, 0, 0, 5));
    with_writer(&devices, &queue, |_| {
        wait_until("it has ended", || queue.results().len() == 1);
    });
    assert_eq!(*queue.results(), [(1, false)]);
    assert!(written(&files[0], 0, 2) == pattern(1, 2 * PAGE), "the first part was written");
}

#[test]
fn swapped_device_gets_no_writes_until_it_is_back() {
    let Some((devices, files)) = devices(2) else { return };
    let mut header = vec![0; HEADER_BYTES];
    files[0].read_exact_at(&mut header, 0).expect("its header");
    files[0].write_all_at(&[7; HEADER_BYTES], 0).expect("written");
    let queue = Queue::default();
    with_writer(&devices, &queue, |control| {
        let refused = || queue.results().iter().any(|(_, is_written)| !is_written);
        wait_until("the change is noticed", || {
            queue.push(write(1, 0, 1, 1));
            control.notify();
            thread::sleep(Duration::from_millis(10));
            refused()
        });
        wait_until("all have ended", || queue.under_way.load(Ordering::Relaxed) == 0);
        queue.results().clear();
        queue.push(write(2, 0, 9, 1));
        queue.push(write(3, 1, 9, 1));
        control.notify();
        wait_until("both have ended", || queue.results().len() == 2);
        queue.results().sort_unstable();
        assert_eq!(*queue.results(), [(2, false), (3, true)]);
        assert!(written(&files[0], 9, 1) == [0; PAGE], "nothing was written to another device");

        files[0].write_all_at(&header, 0).expect("written");
        wait_until("it is back", || {
            queue.push(write(4, 0, 11, 1));
            control.notify();
            thread::sleep(Duration::from_millis(10));
            queue.results().last() == Some(&(4, true))
        });
    });
    assert!(written(&files[0], 11, 1) == pattern(4, PAGE));
}

#[test]
fn maintenance_runs_at_once_each_second_and_after_writes() {
    let Some((devices, _files)) = devices(1) else { return };
    let queue = Queue::default();
    (0..30).for_each(|number| queue.push(write(number, 0, number, 1)));
    queue.results_in_maintenance.store(30, Ordering::Relaxed);
    let began = Instant::now();
    with_writer(&devices, &queue, |control| {
        let maintained = || queue.maintained.load(Ordering::Relaxed);
        wait_until("it is due again", || maintained() == 3);
        assert!(began.elapsed() >= Duration::from_secs(2));
        let before = Instant::now();
        for number in 30..50 {
            let maintained_before = maintained();
            queue.push(write(number, 0, number, 1));
            control.notify();
            wait_until("it is due after the write", || maintained() > maintained_before);
        }
        assert!(before.elapsed() < Duration::from_secs(10));
    });
}

#[test]
fn each_notification_wakes_the_writer() {
    const ROUNDS: usize = 20;
    let Some((devices, _files)) = devices(1) else { return };
    let queue = Queue::default();
    with_writer(&devices, &queue, |control| {
        let began = Instant::now();
        for round in 1..=ROUNDS {
            queue.push(write(round, 0, round, 1));
            control.notify();
            wait_until("it is written", || queue.results().len() == round);
        }
        // Without notifications it looks for writes once a second.
        assert!(began.elapsed() < Duration::from_secs(ROUNDS as u64 / 2));
    });
}

#[test]
fn stopped_writer_takes_no_further_writes() {
    let Some((devices, _files)) = devices(1) else { return };
    let queue = Queue::default();
    let control = ThreadControl::new().expect("a descriptor");
    control.stop();
    queue.push(write(1, 0, 0, 1));
    run_writer(&devices, &queue, &control).expect("the ring works");
    assert_eq!((queue.results().len(), queue.maintained.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn store_is_maintained_often_while_it_waits_for_readers() {
    let Some((devices, _files)) = devices(1) else { return };
    let queue = Queue::default();
    queue.readers.store(30, Ordering::Relaxed);
    let began = Instant::now();
    with_writer(&devices, &queue, |_| {
        wait_until("the readers end", || queue.maintained.load(Ordering::Relaxed) > 30);
        assert!(began.elapsed() < Duration::from_secs(15));
    });
}
