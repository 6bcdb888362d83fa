//! A flash device whose reads wait until a test lets them go on: the only file of a FUSE file system that this process serves
//! (`include/uapi/linux/fuse.h`). Its path is the mount's root. The bytes are those of a memory file.
//!
//! Its server must be another process: the kernel does not end a process whose threads wait for answers of that process.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::common::wait_until;

/// Reads of the header never wait: the server checks it while it serves.
const HEADER_AREA_BYTES: u64 = 1 << 20;
/// The longest write, and the longest read, that the kernel passes on at once.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Reads that may be under way: all those of a test.
const REQUESTS_MAX: u16 = 4096;
/// What precedes the bytes of a write.
const WRITE_HEAD_BYTES: usize = 40 + 40;
const MODE: u32 = 0o100_600;

// Opcodes.
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// The device. Dropped, it lets all reads go on.
pub struct SlowDevice {
    path: PathBuf,
    served: Arc<Served>,
}

struct Served {
    /// `/dev/fuse`: requests of the kernel, and their answers.
    fuse: File,
    contents: File,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    holds: bool,
    /// In the order of their arrival.
    reads: Vec<HeldRead>,
}

#[derive(Clone, Copy)]
struct HeldRead {
    unique: u64,
    offset: u64,
    len: usize,
}

impl SlowDevice {
    /// Mounts a device in the folder; none where this user may not.
    pub fn mount(folder: &Path) -> Option<SlowDevice> {
        let path = folder.join("slow");
        File::create(&path).expect("created");
        let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let mounted = fuse.and_then(|fuse| {
            let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
            let options = format!(
                "fd={},rootmode={MODE:o},user_id={},group_id={}",
                fuse.as_raw_fd(),
                user.as_raw(),
                group.as_raw()
            );
            let options = CString::new(options).expect("no NUL");
            mount("slow", &path, "fuse", MountFlags::empty(), &*options)?;
            Ok(fuse)
        });
        let fuse = mounted.inspect_err(|error| eprintln!("no test: FUSE is not available: {error}")).ok()?;
        let contents = rustix::fs::memfd_create("slow", MemfdFlags::CLOEXEC).expect("a memory file");
        let served = Arc::new(Served { fuse, contents: contents.into(), waiting: Mutex::default() });
        // It ends when the file system is unmounted, after the last file is closed.
        std::thread::spawn({
            let served = Arc::clone(&served);
            move || served.serve()
        });
        Some(SlowDevice { path, served })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets reads wait from now on.
    pub fn hold(&self) {
        self.served.waiting().holds = true;
    }

    /// Waits until so many reads wait, and returns their offsets in the order of their arrival.
    #[track_caller]
    pub fn wait_for(&self, count: usize) -> Vec<u64> {
        wait_until("reads wait", || self.served.waiting().reads.len() >= count);
        let offsets: Vec<u64> = self.served.waiting().reads.iter().map(|read| read.offset).collect();
        assert_eq!(offsets.len(), count);
        offsets
    }

    /// Returns how many reads wait.
    pub fn waiting(&self) -> usize {
        self.served.waiting().reads.len()
    }

    /// Returns how many bytes the reads that wait read.
    pub fn waiting_bytes(&self) -> usize {
        self.served.waiting().reads.iter().map(|read| read.len).sum()
    }

    /// Lets the first read at this offset go on.
    #[track_caller]
    pub fn answer(&self, offset: u64) {
        let read = self.take(offset);
        self.served.read(read);
    }

    /// Lets the first read at this offset fail.
    #[track_caller]
    pub fn fail(&self, offset: u64) {
        let read = self.take(offset);
        self.served.reply_error(read.unique, Errno::IO);
    }

    #[track_caller]
    fn take(&self, offset: u64) -> HeldRead {
        let mut waiting = self.served.waiting();
        let at = waiting.reads.iter().position(|read| read.offset == offset).expect("a read waits there");
        waiting.reads.remove(at)
    }

    /// Lets the reads that wait now go on.
    pub fn answer_all(&self) {
        let reads = std::mem::take(&mut self.served.waiting().reads);
        reads.into_iter().for_each(|read| self.served.read(read));
    }

    /// Lets all reads go on, now and later.
    pub fn pass(&self) {
        self.served.waiting().holds = false;
        self.answer_all();
    }
}

impl Drop for SlowDevice {
    fn drop(&mut self) {
        self.pass();
        // The server that has the file goes on with it.
        let _ = unmount(&self.path, UnmountFlags::DETACH);
    }
}

impl Served {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("no thread panics while it holds reads")
    }

    fn serve(&self) {
        let mut buffer = vec![0; REQUEST_BYTES_MAX as usize + 2 * 4096];
        loop {
            match (&self.fuse).read(&mut buffer) {
                Ok(len) => self.handle(&buffer[..len]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The request was withdrawn.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(_) => return,
            }
        }
    }

    fn handle(&self, request: &[u8]) {
        let (opcode, unique) = (u32_at(request, 4), u64_at(request, 8));
        let body = &request[40..];
        match opcode {
            FORGET | BATCH_FORGET | INTERRUPT => {}
            INIT => self.reply(unique, &init(body)),
            SETATTR => {
                const SIZE: u32 = 1 << 3;
                if u32_at(body, 0) & SIZE != 0 {
                    self.contents.set_len(u64_at(body, 16)).expect("a memory file");
                }
                self.reply(unique, &self.attributes());
            }
            GETATTR => self.reply(unique, &self.attributes()),
            OPEN => self.reply(unique, &[0; 16]),
            READ => {
                let read = HeldRead { unique, offset: u64_at(body, 8), len: u32_at(body, 16) as usize };
                let mut waiting = self.waiting();
                if waiting.holds && read.offset >= HEADER_AREA_BYTES {
                    waiting.reads.push(read);
                } else {
                    drop(waiting);
                    self.read(read);
                }
            }
            WRITE => {
                let bytes = &request[WRITE_HEAD_BYTES..];
                self.contents.write_all_at(bytes, u64_at(body, 8)).expect("a memory file");
                let len = bytes.len() as u64;
                self.reply(unique, &len.to_le_bytes());
            }
            // A file system of unknown size.
            STATFS => self.reply(unique, &[0; 80]),
            RELEASE | FLUSH | FSYNC => self.reply(unique, &[]),
            _ => self.reply_error(unique, Errno::NOSYS),
        }
    }

    fn read(&self, read: HeldRead) {
        let mut bytes = vec![0; read.len];
        let mut len = 0;
        while len < bytes.len() {
            match self.contents.read_at(&mut bytes[len..], read.offset + len as u64).expect("a memory file") {
                0 => break,
                some => len += some,
            }
        }
        self.reply(read.unique, &bytes[..len]);
    }

    fn attributes(&self) -> Vec<u8> {
        let size = self.contents.metadata().expect("a memory file").len();
        let mut reply = Vec::new();
        // Valid for no time.
        words(&mut reply, &[0, 0, 0, 0]);
        for field in [1, size, size.div_ceil(512), 0, 0, 0] {
            reply.extend_from_slice(&field.to_le_bytes());
        }
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        words(&mut reply, &[0, 0, 0, MODE, 1, user.as_raw(), group.as_raw(), 0, 4096, 0]);
        reply
    }

    fn reply(&self, unique: u64, body: &[u8]) {
        self.send(unique, 0, body);
    }

    fn reply_error(&self, unique: u64, error: Errno) {
        self.send(unique, -error.raw_os_error(), &[]);
    }

    fn send(&self, unique: u64, error: i32, body: &[u8]) {
        let len = (16 + body.len()) as u32;
        let head = [&len.to_le_bytes()[..], &error.to_le_bytes(), &unique.to_le_bytes()].concat();
        // The request may have been withdrawn.
        let _ = (&self.fuse).write(&[&head[..], body].concat());
    }
}

/// Answers the kernel's first request, which has its version and abilities.
fn init(body: &[u8]) -> Vec<u8> {
    const ASYNC_READ: u32 = 1 << 0;
    const BIG_WRITES: u32 = 1 << 5;
    // A direct read of io_uring keeps no thread of the kernel busy.
    const ASYNC_DIRECT: u32 = 1 << 15;
    const MAX_PAGES: u32 = 1 << 22;
    let flags = u32_at(body, 12) & (ASYNC_READ | BIG_WRITES | ASYNC_DIRECT | MAX_PAGES);
    let mut reply = Vec::new();
    words(&mut reply, &[7, 31, u32_at(body, 8), flags]);
    for short in [REQUESTS_MAX, REQUESTS_MAX] {
        reply.extend_from_slice(&short.to_le_bytes());
    }
    words(&mut reply, &[REQUEST_BYTES_MAX, 1]);
    for short in [(REQUEST_BYTES_MAX / 4096) as u16, 0] {
        reply.extend_from_slice(&short.to_le_bytes());
    }
    words(&mut reply, &[0; 8]);
    reply
}

fn words(into: &mut Vec<u8>, words: &[u32]) {
    words.iter().for_each(|word| into.extend_from_slice(&word.to_le_bytes()));
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
