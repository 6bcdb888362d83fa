//! Devices in user space that are as slow as wanted: files of a FUSE mount, in memory.
//!
//! Reads and writes end after a fixed time, or when a test lets them end. They overlap without limit, and bypass the page cache.
//! One thread receives them, another answers them in order, each when its time is over. Their CPU time is not the server's, but on
//! few CPUs they leave less to it.
//!
//! A server that uses them must be another process: the kernel does not end a process whose threads wait for answers of it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Builder;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::MemfdFlags;

use crate::cleanup::Folder;
use crate::report::available;
use crate::wait::wait_until;

/// How long the kernel may keep names and sizes.
const TTL: Duration = Duration::from_secs(1);
/// Bytes of a block: direct requests are multiples of it.
const BLOCK_BYTES: u32 = 4096;
/// Requests that the kernel passes on before an answer comes.
const REQUESTS_MAX: u16 = 4096;

/// A mounted folder whose files are such devices. Dropped, it answers all requests and is unmounted.
#[derive(Debug)]
pub struct SlowDevices {
    // Declared first: it unmounts through fusermount3 where this user may not. The folder unmounts what a server has open.
    _session: BackgroundSession,
    folder: Folder,
    requests: Arc<Requests>,
}

impl SlowDevices {
    /// Mounts a folder in which reads and writes take at least this long.
    ///
    /// # Errors
    /// The system has no FUSE, or does not let this user mount.
    pub fn mount(delay: Duration) -> Result<SlowDevices> {
        let folder = Folder::new("fabcache-slow")?;
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("fabcache-slow".into())];
        let (queue, due) = channel();
        let thread = Builder::new().name("slow-replies".into()).spawn(move || answer_due(&due));
        thread.context("cannot start the thread that answers for slow devices")?;
        let requests = Arc::new(Requests { delay, queue: Mutex::new(queue), held: Mutex::default() });
        let files = Files { requests: Arc::clone(&requests), nodes: Mutex::default() };
        let session = fuser::spawn_mount(files, folder.path(), &config).with_context(|| {
            format!(
                "cannot mount slow devices at {}; they need /dev/fuse, and root or fusermount3",
                folder.path().display()
            )
        })?;
        Ok(SlowDevices { _session: session, folder, requests })
    }

    /// Mounts a folder for a test, as [`SlowDevices::mount`]. Where the system does not, it reports that tests are not run.
    pub fn for_test(delay: Duration) -> Option<SlowDevices> {
        available("the tests that need slow devices", SlowDevices::mount(delay))
    }

    /// Returns how much longer reads and writes take.
    pub fn delay(&self) -> Duration {
        self.requests.delay
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Holds the reads that begin at this byte of a file or behind it, from now on.
    pub fn hold_reads(&self, from: u64) {
        self.requests.held().reads_from = Some(from);
    }

    /// Holds the answers to writes that begin at this byte of a file or behind it, from now on. Their bytes are written.
    pub fn hold_writes(&self, from: u64) {
        self.requests.held().writes_from = Some(from);
    }

    /// Waits until so many requests are held, and returns their offsets in the order of their arrival.
    ///
    /// # Panics
    /// More are held, or fewer for too long.
    #[track_caller]
    pub fn wait_for_held(&self, count: usize) -> Vec<u64> {
        wait_until("requests are held", || self.requests.held().pending.len() >= count);
        let offsets: Vec<u64> = self.requests.held().pending.iter().map(|pending| pending.offset).collect();
        assert_eq!(offsets.len(), count);
        offsets
    }

    /// Returns how many requests are held.
    pub fn held(&self) -> usize {
        self.requests.held().pending.len()
    }

    /// Returns how many bytes the held requests read or write.
    pub fn held_bytes(&self) -> usize {
        self.requests.held().pending.iter().map(|pending| pending.len).sum()
    }

    /// Answers the first held request at this offset.
    ///
    /// # Panics
    /// None is held there.
    #[track_caller]
    pub fn answer(&self, offset: u64) {
        self.take(offset).answer(&mut Vec::new());
    }

    /// Answers the request that is held longest.
    ///
    /// # Panics
    /// None is held.
    #[track_caller]
    pub fn answer_first(&self) {
        let offset = self.requests.held().pending.first().expect("a request is held").offset;
        self.answer(offset);
    }

    /// Lets the first held request at this offset fail with EIO.
    ///
    /// # Panics
    /// None is held there.
    #[track_caller]
    pub fn fail(&self, offset: u64) {
        match self.take(offset).reply {
            Reply::Read(_, reply) => reply.error(Errno::EIO),
            Reply::Write(reply) => reply.error(Errno::EIO),
        }
    }

    #[track_caller]
    fn take(&self, offset: u64) -> Pending {
        let mut held = self.requests.held();
        let at = held.pending.iter().position(|pending| pending.offset == offset);
        held.pending.remove(at.expect("a request is held there"))
    }

    /// Answers the requests that are held now.
    pub fn answer_all(&self) {
        let pending = std::mem::take(&mut self.requests.held().pending);
        let mut buffer = Vec::new();
        pending.into_iter().for_each(|pending| pending.answer(&mut buffer));
    }

    /// Answers all requests, now and later.
    pub fn release(&self) {
        let mut held = self.requests.held();
        (held.reads_from, held.writes_from) = (None, None);
        drop(held);
        self.answer_all();
    }
}

impl Drop for SlowDevices {
    fn drop(&mut self) {
        self.release();
    }
}

/// The requests that have no answer yet.
#[derive(Debug)]
struct Requests {
    delay: Duration,
    /// To the thread that answers.
    queue: Mutex<Sender<(Instant, Pending)>>,
    held: Mutex<Held>,
}

/// The requests that wait for a test.
#[derive(Debug, Default)]
struct Held {
    reads_from: Option<u64>,
    writes_from: Option<u64>,
    /// In the order of their arrival.
    pending: Vec<Pending>,
}

impl Requests {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().expect("no thread panics while it holds the requests")
    }

    /// Answers a request when a test lets it, or when its time is over.
    fn add(&self, pending: Pending) {
        let mut held = self.held();
        let from = match pending.reply {
            Reply::Read(..) => held.reads_from,
            Reply::Write(_) => held.writes_from,
        };
        if from.is_some_and(|from| pending.offset >= from) {
            held.pending.push(pending);
            return;
        }
        drop(held);
        let queue = self.queue.lock().expect("no thread panics while it holds the channel");
        // It fails only if the answering thread has ended: then its requests fail, too.
        let _ = queue.send((Instant::now() + self.delay, pending));
    }
}

/// A request without an answer.
#[derive(Debug)]
struct Pending {
    offset: u64,
    len: usize,
    reply: Reply,
}

#[derive(Debug)]
enum Reply {
    /// Of a read of this file.
    Read(Arc<File>, ReplyData),
    /// Of a write whose bytes are in the file.
    Write(ReplyWrite),
}

impl Pending {
    fn answer(self, buffer: &mut Vec<u8>) {
        match self.reply {
            Reply::Read(file, reply) => {
                buffer.resize(self.len, 0);
                match file.read_at(buffer, self.offset) {
                    Ok(read) => reply.data(&buffer[..read]),
                    Err(error) => reply.error(error.into()),
                }
            }
            Reply::Write(reply) => reply.written(self.len as u32),
        }
    }
}

/// Answers requests in order, until there is no mount any more.
fn answer_due(due: &Receiver<(Instant, Pending)>) {
    // Else each sleep takes 50 us longer.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut buffer = Vec::new();
    for (at, pending) in due {
        let left = at.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            std::thread::sleep(left);
        }
        pending.answer(&mut buffer);
    }
}

/// A file or folder.
struct Node {
    parent: INodeNo,
    name: OsString,
    /// The contents of a file.
    file: Option<Arc<File>>,
}

/// The file system. Node `n` has the inode number `n + 2`; removed ones stay as `None`.
struct Files {
    requests: Arc<Requests>,
    nodes: Mutex<Vec<Option<Node>>>,
}

impl Files {
    fn nodes(&self) -> MutexGuard<'_, Vec<Option<Node>>> {
        self.nodes.lock().expect("no thread panics while it holds the nodes")
    }

    fn file(&self, number: INodeNo) -> Result<Arc<File>, Errno> {
        let nodes = self.nodes();
        let node = number.0.checked_sub(2).and_then(|at| nodes.get(at as usize)?.as_ref());
        node.ok_or(Errno::ENOENT)?.file.clone().ok_or(Errno::EISDIR)
    }

    fn find(&self, parent: INodeNo, name: &OsStr) -> Result<INodeNo, Errno> {
        let is_it = |node: &Option<Node>| {
            node.as_ref().is_some_and(|node| node.parent == parent && node.name == name)
        };
        self.nodes().iter().position(is_it).map(|at| INodeNo(at as u64 + 2)).ok_or(Errno::ENOENT)
    }

    fn add(&self, parent: INodeNo, name: &OsStr, file: Option<Arc<File>>) -> INodeNo {
        let mut nodes = self.nodes();
        nodes.push(Some(Node { parent, name: name.into(), file }));
        INodeNo(nodes.len() as u64 + 1)
    }

    fn remove(&self, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.find(parent, name) {
            Ok(number) => {
                self.nodes()[number.0 as usize - 2] = None;
                reply.ok();
            }
            Err(error) => reply.error(error),
        }
    }

    fn attributes(&self, number: INodeNo) -> Result<FileAttr, Errno> {
        let size = match self.file(number) {
            Ok(file) => Some(file.metadata()?.len()),
            Err(_) if number == INodeNo::ROOT => None,
            Err(error) if error.code() == Errno::EISDIR.code() => None,
            Err(error) => return Err(error),
        };
        Ok(FileAttr {
            ino: number,
            size: size.unwrap_or(0),
            blocks: size.unwrap_or(0).div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if size.is_some() { FileType::RegularFile } else { FileType::Directory },
            perm: if size.is_some() { 0o600 } else { 0o700 },
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: BLOCK_BYTES,
            flags: 0,
        })
    }
}

impl Filesystem for Files {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Else the kernel waits for each direct request before it sends the next.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.set_max_background(REQUESTS_MAX);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(parent, name).and_then(|number| self.attributes(number)) {
            Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(number) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let resized = size.map_or(Ok(()), |size| Ok(self.file(number)?.set_len(size)?));
        match resized.and_then(|()| self.attributes(number)) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let number = self.add(parent, name, None);
        match self.attributes(number) {
            Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, reply);
    }

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        let made = rustix::fs::memfd_create("slow-device", MemfdFlags::CLOEXEC).map_err(std::io::Error::from);
        let added = made
            .map_err(Errno::from)
            .and_then(|file| self.attributes(self.add(parent, name, Some(Arc::new(file.into())))));
        match added {
            Ok(attributes) => {
                reply.created(&TTL, &attributes, Generation(0), FileHandle(0), FopenFlags::FOPEN_DIRECT_IO)
            }
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.file(number) {
            Ok(file) => {
                self.requests.add(Pending { offset, len: size as usize, reply: Reply::Read(file, reply) })
            }
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.file(number).and_then(|file| Ok(file.write_all_at(data, offset)?));
        match written {
            Ok(()) => self.requests.add(Pending { offset, len: data.len(), reply: Reply::Write(reply) }),
            Err(error) => reply.error(error),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        _: i32,
        reply: ReplyEmpty,
    ) {
        let grown = self.file(number).and_then(|file| {
            let len = file.metadata()?.len();
            Ok(file.set_len(len.max(offset + length))?)
        });
        match grown {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: u64, reply: ReplyDirectory) {
        // For removing a folder, it is empty.
        reply.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mounts devices, one of which has 16 blocks; none where FUSE is not available.
    fn mounted(delay: Duration) -> Option<(SlowDevices, File)> {
        let devices = SlowDevices::for_test(delay)?;
        let file = File::create_new(devices.path().join("device")).expect("created");
        let bytes: Vec<u8> = (0..1 << 16).map(|at| (at / 4096) as u8).collect();
        file.write_all_at(&bytes, 0).expect("written");
        Some((devices, file))
    }

    fn read(path: &Path, block: u8) -> std::io::Result<()> {
        let mut found = [0; 4096];
        File::open(path)?.read_exact_at(&mut found, u64::from(block) * 4096)?;
        assert_eq!(found, [block; 4096]);
        Ok(())
    }

    #[test]
    fn reads_overlap_and_take_their_time() {
        let delay = Duration::from_millis(50);
        let Some((devices, _file)) = mounted(delay) else { return };
        let path = devices.path().join("device");
        let began = Instant::now();
        std::thread::scope(|scope| {
            for block in 0..16 {
                let path = &path;
                scope.spawn(move || read(path, block).expect("read"));
            }
        });
        let took = began.elapsed();
        assert!(took >= delay, "{took:?}");
        assert!(took < delay * 8, "16 reads took {took:?}, one after the other");
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn held_requests_end_in_any_order_and_fail() {
        let Some((devices, file)) = mounted(Duration::ZERO) else { return };
        let path = devices.path().join("device");
        devices.hold_reads(4096);
        devices.hold_writes(8192);
        read(&path, 0).expect("it is before the held ones");
        file.write_all_at(&[1; 4096], 4096).expect("it is before the held ones");
        let begin_read = |block| {
            let path = path.clone();
            std::thread::spawn(move || read(&path, block))
        };
        let first = begin_read(1);
        devices.wait_for_held(1);
        let second = begin_read(2);
        devices.wait_for_held(2);
        let write = std::thread::spawn(move || file.write_all_at(&[3; 8192], 12288));
        assert_eq!(devices.wait_for_held(3), [4096, 8192, 12288]);
        assert_eq!((devices.held(), devices.held_bytes()), (3, 16384));
        devices.answer(8192);
        second.join().expect("its bytes are right").expect("it was answered");
        devices.fail(12288);
        let error = write.join().expect("no panic").expect_err("it failed");
        assert_eq!(error.raw_os_error(), Some(Errno::EIO.code()));
        assert!(!first.is_finished());
        devices.answer_first();
        first.join().expect("its bytes are right").expect("it was answered");
        let third = begin_read(3);
        devices.wait_for_held(1);
        devices.release();
        third.join().expect("no panic").expect("it was answered");
        read(&path, 5).expect("no read is held");
    }

    #[test]
    fn devices_in_use_are_unmounted() {
        let Some((devices, file)) = mounted(Duration::ZERO) else { return };
        let folder = devices.path().to_owned();
        drop(devices);
        assert!(!folder.exists());
        file.read_exact_at(&mut [0; 4096], 0).expect("its user goes on");
    }
}
