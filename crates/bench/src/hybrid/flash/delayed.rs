//! Devices in user space, whose reads and writes end after a fixed time: files of a FUSE mount, in memory.
//!
//! Requests overlap without limit, and bypass the page cache. One thread receives them, another answers them in order, each when
//! its time is over. Their CPU time is not the server's, but on few CPUs they leave less to it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Builder;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use fabcache_testbed::cleanup::Folder;
use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::MemfdFlags;

/// How long the kernel may keep names and sizes.
const TTL: Duration = Duration::from_secs(1);
/// Bytes of a block: direct requests are multiples of it.
const BLOCK_BYTES: u32 = 4096;

/// A mounted folder whose files are such devices. It is unmounted when dropped.
#[derive(Debug)]
pub struct DelayedFiles {
    // Declared first: the folder is removed once nothing is mounted there.
    _session: BackgroundSession,
    folder: Folder,
    delay: Duration,
}

impl DelayedFiles {
    /// Mounts a folder in which reads and writes take at least this long.
    ///
    /// # Errors
    /// The system has no FUSE, or does not let this user mount.
    pub fn mount(delay: Duration) -> Result<DelayedFiles> {
        let folder = Folder::new("fabcache-delayed")?;
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("fabcache-delayed".into())];
        let (replies, due) = channel();
        let thread = Builder::new().name("delayed-replies".into()).spawn(move || answer(&due));
        thread.context("cannot start the thread that answers for a delayed device")?;
        let files = Files { delay, replies: Mutex::new(replies), nodes: Mutex::default() };
        let session = fuser::spawn_mount(files, folder.path(), &config).with_context(|| {
            format!(
                "cannot mount a delayed device at {}; it needs /dev/fuse, and root or fusermount3",
                folder.path().display()
            )
        })?;
        Ok(DelayedFiles { _session: session, folder, delay })
    }

    /// Returns how much longer reads and writes take.
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A request that is answered when its time is over.
enum Pending {
    Read { file: Arc<File>, offset: u64, len: usize, reply: ReplyData },
    Written { len: u32, reply: ReplyWrite },
}

/// Answers requests in order, until there is no mount any more.
fn answer(due: &Receiver<(Instant, Pending)>) {
    // Else each sleep takes 50 us longer.
    let _ = nix::sys::prctl::set_timerslack(1);
    let mut buffer = Vec::new();
    for (at, pending) in due {
        let left = at.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            std::thread::sleep(left);
        }
        match pending {
            Pending::Read { file, offset, len, reply } => {
                buffer.resize(len, 0);
                match file.read_at(&mut buffer, offset) {
                    Ok(read) => reply.data(&buffer[..read]),
                    Err(error) => reply.error(error.into()),
                }
            }
            Pending::Written { len, reply } => reply.written(len),
        }
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
    delay: Duration,
    replies: Mutex<Sender<(Instant, Pending)>>,
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

    fn answer_later(&self, pending: Pending) {
        let replies = self.replies.lock().expect("no thread panics while it holds the channel");
        // It fails only if the answering thread has ended: then its requests fail, too.
        let _ = replies.send((Instant::now() + self.delay, pending));
    }
}

impl Filesystem for Files {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Else the kernel waits for each direct request before it sends the next.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.set_max_background(1024);
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
        let made = rustix::fs::memfd_create("delayed", MemfdFlags::CLOEXEC).map_err(std::io::Error::from);
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
            Ok(file) => self.answer_later(Pending::Read { file, offset, len: size as usize, reply }),
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
            Ok(()) => self.answer_later(Pending::Written { len: data.len() as u32, reply }),
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

    #[test]
    fn reads_overlap_and_take_their_time() {
        let delay = Duration::from_millis(50);
        let files = match DelayedFiles::mount(delay) {
            Ok(files) => files,
            Err(error) => return eprintln!("no test: {error:#}"),
        };
        let file = File::create_new(files.path().join("device")).expect("created");
        let bytes: Vec<u8> = (0..1 << 16).map(|at| (at / 4096) as u8).collect();
        file.write_all_at(&bytes, 0).expect("written");
        let began = Instant::now();
        std::thread::scope(|scope| {
            for at in 0..16u64 {
                let path = files.path().join("device");
                scope.spawn(move || {
                    let (file, mut found) = (File::open(path).expect("there"), [0; 4096]);
                    file.read_exact_at(&mut found, at * 4096).expect("read");
                    assert_eq!(found, [at as u8; 4096]);
                });
            }
        });
        let took = began.elapsed();
        assert!(took >= delay, "{took:?}");
        assert!(took < delay * 8, "16 reads took {took:?}, one after the other");
        std::fs::remove_file(files.path().join("device")).expect("removed");
    }
}
