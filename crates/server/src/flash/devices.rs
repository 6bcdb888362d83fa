//! The files and block devices of the flash tier.
//!
//! A device begins with a header area of 1 MiB, whose first page is the header; segments follow. A device is used only
//! if it has a header, or nothing: an empty file, or a block device that begins with zeros. Not one byte of another changes.
//!
//! The server locks each device (flock(2)), and opens block devices exclusively (O_EXCL), so the kernel refuses mounted
//! ones. Nobody gets these descriptors, so a lock on the device itself does.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use fabcache_uring::PageBuffer;
use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use rustix::io::Errno;

use super::device_header::{DeviceHeader, HEADER_BYTES, HeaderError};
use super::{DeviceSettings, HEADER_AREA_BYTES, SEGMENTS_MIN};

/// Mode bits that let other users write a file.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// How long to try a device that is in use, and how often.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// The open devices. They are locked until this and all their files are dropped.
#[derive(Debug)]
pub struct Devices {
    devices: Vec<Device>,
    set_id: u128,
    /// The id of the set at the opening before, or why these devices did not form one.
    previous_set: Result<u128, String>,
}

#[derive(Debug)]
struct Device {
    path: PathBuf,
    file: Arc<File>,
    header: DeviceHeader,
    segments: u64,
    is_in_memory: bool,
    /// Why it is no longer the device that was opened, since the last check.
    lost: Mutex<Option<String>>,
    /// Whether its last write has failed.
    is_failing: AtomicBool,
}

impl Device {
    fn lost(&self) -> MutexGuard<'_, Option<String>> {
        self.lost.lock().expect("no thread panics while it holds a device's state")
    }
}

/// The reason why a device is not the one that was opened.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The device fails.
    #[error("cannot read its header: {0}")]
    Unreadable(#[source] io::Error),
    /// Something overwrote the header.
    #[error("{0}")]
    Header(#[from] HeaderError),
    /// The header is another one.
    #[error("it is another device, or another server uses it")]
    Other,
    /// The path leads to another file or device, or to none.
    #[error("its path does not lead to it any more")]
    Replaced,
}

/// Returns the offset in a device's file of a byte of its segments.
pub const fn file_offset(segments_offset: u64) -> u64 {
    HEADER_AREA_BYTES + segments_offset
}

/// Returns whether a file is in memory.
fn is_in_memory(file: &File) -> bool {
    // tmpfs and ramfs, by statfs(2).
    const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];
    rustix::fs::fstatfs(file).is_ok_and(|found| IN_MEMORY.contains(&found.f_type))
}

impl Devices {
    /// Opens, locks and checks all devices, and writes their headers: [`Devices::prepare`], then [`Devices::begin`].
    ///
    /// # Errors
    /// As these.
    ///
    /// # Panics
    /// As [`Devices::prepare`].
    pub fn open(settings: &[DeviceSettings], segment_bytes: u64) -> Result<Devices> {
        let mut devices = Devices::prepare(settings, segment_bytes)?;
        devices.begin()?;
        Ok(devices)
    }

    /// Opens, locks and checks all devices. A file that does not exist is created, and removed again if this fails. A device
    /// with a header keeps it until [`Devices::begin`]: a server that fails to start leaves the set as it was.
    ///
    /// # Errors
    /// A device cannot be used; the error names it, and says what to do.
    ///
    /// # Panics
    /// `segment_bytes` is not a power of two, or shorter than a page.
    pub fn prepare(settings: &[DeviceSettings], segment_bytes: u64) -> Result<Devices> {
        assert!(segment_bytes.is_power_of_two() && segment_bytes >= HEADER_BYTES as u64);
        let segments = segments_of(settings, segment_bytes)?;
        let set_id = random_id()?;
        let mut candidates: Vec<Candidate> = Vec::with_capacity(settings.len());
        for device in settings {
            let candidate = Candidate::open(device, &candidates)?;
            candidates.push(candidate);
        }
        let previous_set = previous_set(&candidates, segment_bytes);
        let count = settings.len() as u32;
        let mut devices = Vec::with_capacity(settings.len());
        for (number, (candidate, segments)) in candidates.iter().zip(segments).enumerate() {
            let header = DeviceHeader {
                number: number as u32,
                count,
                device_id: candidate.header.map_or_else(random_id, |header| Ok(header.device_id))?,
                set_id,
                bytes: candidate.bytes,
                segment_bytes,
            };
            candidate.prepare(&header)?;
            let (path, file) = (candidate.path.clone(), Arc::clone(&candidate.file));
            let is_in_memory = is_in_memory(&file);
            devices.push(Device {
                path,
                file,
                header,
                segments,
                is_in_memory,
                lost: Mutex::default(),
                is_failing: AtomicBool::new(false),
            });
        }
        for (candidate, device) in candidates.iter_mut().zip(&devices) {
            candidate.is_removed_on_drop = false;
            let (path, segments) = (device.path.display(), device.segments);
            tracing::info!("flash device {path} has {segments} segments of {segment_bytes} bytes");
        }
        Ok(Devices { devices, set_id, previous_set })
    }

    /// Writes the headers: from now on the devices form this opening's set. Before anything is written to their segments.
    ///
    /// # Errors
    /// A device cannot be written, or does not return what was written.
    pub fn begin(&mut self) -> Result<()> {
        self.devices.iter().try_for_each(|device| write_header(&device.path, &device.file, &device.header))
    }

    /// Returns the file of a device.
    pub fn file(&self, device: usize) -> &Arc<File> {
        &self.devices[device].file
    }

    /// Returns whether a device is a file in memory (tmpfs, ramfs): a read of it never waits.
    pub fn is_in_memory(&self, device: usize) -> bool {
        self.devices[device].is_in_memory
    }

    /// Returns the absolute path of a device.
    pub fn path(&self, device: usize) -> &Path {
        &self.devices[device].path
    }

    /// Returns the bytes of each device's segments.
    pub fn device_bytes(&self) -> Vec<u64> {
        self.devices.iter().map(|device| device.segments * device.header.segment_bytes).collect()
    }

    /// Returns the number of devices.
    pub fn count(&self) -> usize {
        self.devices.len()
    }

    /// Returns the id of the set, which is new with each opening.
    pub fn set_id(&self) -> u128 {
        self.set_id
    }

    /// Returns the id of the set at the opening before, if the same devices formed it, in this order and with these sizes. It is not
    /// the id of an older opening: each replaces it.
    pub fn previous_set_id(&self) -> Option<u128> {
        self.previous_set.as_ref().ok().copied()
    }

    /// Returns why these devices did not form a set at the opening before, if they did not.
    pub fn why_new_set(&self) -> Option<&str> {
        self.previous_set.as_ref().err().map(String::as_str)
    }

    /// Checks that a device is still the one that was opened, by the bytes at the start of its file now: a swapped device has
    /// another id.
    ///
    /// # Errors
    /// It is not.
    pub fn check_identity(&self, device: usize, start: &[u8]) -> Result<(), IdentityError> {
        let Device { path, file, header, .. } = &self.devices[device];
        if decode(start)? != *header {
            return Err(IdentityError::Other);
        }
        let opened = file.metadata().map_err(IdentityError::Unreadable)?;
        let is_there = std::fs::metadata(path).is_ok_and(|found| identity(&found) == identity(&opened));
        if is_there { Ok(()) } else { Err(IdentityError::Replaced) }
    }

    /// Keeps the result of a check of a device, for [`Devices::is_lost`] and [`Devices::lost`]. Returns whether the device was lost or
    /// is back since the last one.
    pub fn note_identity(&self, device: usize, found: &Result<(), IdentityError>) -> bool {
        let mut lost = self.devices[device].lost();
        let was_lost = lost.is_some();
        *lost = found.as_ref().err().map(ToString::to_string);
        was_lost != found.is_err()
    }

    /// Returns whether the last check found another device in its place: a write would destroy that one's contents.
    pub fn is_lost(&self, device: usize) -> bool {
        self.devices[device].lost().is_some()
    }

    /// Records whether the last write to a device has failed, and returns what was recorded before.
    pub fn set_failing(&self, device: usize, is_failing: bool) -> bool {
        self.devices[device].is_failing.swap(is_failing, Ordering::Relaxed)
    }

    /// Returns the devices whose last write has failed and that are not lost, as `PATH: writes fail`.
    pub fn failing(&self) -> Vec<String> {
        let fails = |device: &&Device| device.is_failing.load(Ordering::Relaxed) && device.lost().is_none();
        let failing = self.devices.iter().filter(fails);
        failing.map(|device| format!("{}: writes fail", device.path.display())).collect()
    }

    /// Returns the lost devices, as `PATH: REASON`.
    pub fn lost(&self) -> Vec<String> {
        let described = |device: &Device| {
            let why = device.lost().clone()?;
            Some(format!("{}: {why}", device.path.display()))
        };
        self.devices.iter().filter_map(described).collect()
    }
}

/// A device that is open and locked, and not yet the server's.
struct Candidate {
    path: PathBuf,
    file: Arc<File>,
    bytes: u64,
    is_block_device: bool,
    /// Its header, if it has one.
    header: Option<DeviceHeader>,
    is_removed_on_drop: bool,
}

impl Candidate {
    /// Opens a device and changes no byte of it; creates a file if nothing is there.
    fn open(settings: &DeviceSettings, others: &[Candidate]) -> Result<Candidate> {
        // The server may change its directory later.
        let path = std::path::absolute(&settings.path)
            .map_err(|error| refused(&settings.path, format_args!("its path is wrong: {error}")))?;
        let found = match std::fs::metadata(&path) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(unavailable(&path, &error)),
        };
        if let Some(found) = &found {
            // Before it is opened, which has an effect on a terminal or a pipe.
            check_kind(&path, found)?;
            let is_same = |other: &&Candidate| {
                other.file.metadata().is_ok_and(|other| identity(&other) == identity(found))
            };
            if let Some(other) = others.iter().find(is_same) {
                let other = other.path.display();
                return Err(refused(&path, format_args!("it is the same as {other}; give each device once")));
            }
        }
        if found.is_none() {
            check_creation(&path)?;
        }
        let is_block_device = found.as_ref().is_some_and(|found| found.file_type().is_block_device());
        let file = open_file(&path, found.is_none(), is_block_device)?;
        lock(&path, &file)?;
        let mut candidate = Candidate {
            path,
            file: Arc::new(file),
            bytes: settings.bytes,
            is_block_device,
            header: None,
            is_removed_on_drop: found.is_none(),
        };
        candidate.examine()?;
        Ok(candidate)
    }

    /// Checks that the device may be used.
    fn examine(&mut self) -> Result<()> {
        let opened = self.file.metadata().map_err(|error| unavailable(&self.path, &error))?;
        let found = std::fs::metadata(&self.path);
        if !found.is_ok_and(|found| identity(&found) == identity(&opened)) {
            return Err(refused(&self.path, "it was replaced meanwhile; try again"));
        }
        if self.is_block_device {
            self.check_size()?;
        } else {
            check_access(&self.path, &opened)?;
        }
        let (page, len) = self.read_start(HEADER_BYTES)?;
        match decode(&page[..len]) {
            Ok(header) => self.header = Some(header),
            Err(HeaderError::Foreign) if self.is_empty(&opened)? => {}
            Err(error) => {
                let path = self.path.display();
                let advice = if self.is_block_device {
                    format!("zero its first MiB (blkdiscard -z -l 1048576 {path})")
                } else {
                    "remove it".into()
                };
                let why = format!("{error}; give another path, or {advice} if its contents are not needed");
                return Err(refused(&self.path, why));
            }
        }
        Ok(())
    }

    fn check_size(&self) -> Result<()> {
        let size = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))
            .map_err(|error| unavailable(&self.path, &error.into()))?;
        if size < self.bytes {
            let asked = self.bytes;
            let why =
                format!("it has {size} bytes, fewer than the requested {asked}; request at most {size}");
            return Err(refused(&self.path, why));
        }
        Ok(())
    }

    /// Returns whether it has no contents: other systems have their marks at various places of the first MiB.
    fn is_empty(&self, opened: &Metadata) -> Result<bool> {
        if !self.is_block_device {
            return Ok(opened.len() == 0);
        }
        let (start, len) = self.read_start(HEADER_AREA_BYTES as usize)?;
        Ok(start[..len].iter().all(|byte| *byte == 0))
    }

    /// Reads the first bytes, as many as there are, with direct I/O if the file system has it.
    fn read_start(&self, bytes: usize) -> Result<(PageBuffer, usize)> {
        let read = read_start(&self.file, bytes).or_else(|error| {
            let flags = rustix::fs::fcntl_getfl(&self.file)?;
            // Some file systems accept the flag, and no read under it.
            if Errno::from_io_error(&error) != Some(Errno::INVAL) || !flags.contains(OFlags::DIRECT) {
                return Err(error);
            }
            rustix::fs::fcntl_setfl(&self.file, flags - OFlags::DIRECT)?;
            warn_cached(&self.path);
            read_start(&self.file, bytes)
        });
        read.map_err(|error| refused(&self.path, format_args!("cannot read it: {error}")))
    }

    /// Prepares the device for the server: allocates a file's bytes, and writes the header of a device that has none.
    fn prepare(&self, header: &DeviceHeader) -> Result<()> {
        if !self.is_block_device {
            self.check_room()?;
        }
        // First, so that the next server recognises a file whose creation was interrupted.
        if self.header.is_none() {
            write_header(&self.path, &self.file, header)?;
        }
        if !self.is_block_device {
            self.allocate().map_err(|error| match error.kind() {
                io::ErrorKind::StorageFull => self.full(None),
                _ => refused(&self.path, format_args!("cannot write it: {error}")),
            })?;
        }
        Ok(())
    }

    /// Checks that the file system has room for the file: an unsuccessful allocation would fill it for a while.
    fn check_room(&self) -> Result<()> {
        let cannot = |error: io::Error| unavailable(&self.path, &error);
        let allocated = self.file.metadata().map_err(cannot)?.blocks().saturating_mul(512);
        let found = rustix::fs::fstatvfs(&self.file).map_err(|error| cannot(error.into()))?;
        if found.f_blocks == 0 {
            // It does not report its size, as tmpfs without a limit.
            return Ok(());
        }
        let room = found.f_bavail.saturating_mul(found.f_frsize).saturating_add(allocated);
        if room < self.bytes { Err(self.full(Some(room))) } else { Ok(()) }
    }

    fn full(&self, room: Option<u64>) -> anyhow::Error {
        let bytes = self.bytes;
        let room = room.map_or(String::new(), |room| format!(", only for {room}"));
        refused(
            &self.path,
            format_args!("its file system has no room for {bytes} bytes{room}; request fewer, or free some"),
        )
    }

    fn allocate(&self) -> io::Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, self.bytes) {
            Err(Errno::OPNOTSUPP) => {
                tracing::warn!(
                    "the file system of the flash device {} cannot reserve its {} bytes: writes fail if others use them up",
                    self.path.display(),
                    self.bytes
                );
                let len = self.file.metadata()?.len().max(self.bytes);
                self.file.set_len(len)
            }
            allocated => Ok(allocated?),
        }
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        if self.is_removed_on_drop {
            // It is locked, so nobody else uses it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns the number of segments of each device.
fn segments_of(settings: &[DeviceSettings], segment_bytes: u64) -> Result<Vec<u64>> {
    let segments: Vec<u64> = settings
        .iter()
        .map(|device| device.bytes.saturating_sub(HEADER_AREA_BYTES) / segment_bytes)
        .collect();
    for (device, segments) in settings.iter().zip(&segments) {
        let bytes = device.bytes;
        if *segments == 0 {
            let why = format!(
                "{bytes} bytes have no room for a header of {HEADER_AREA_BYTES} and a segment of {segment_bytes}; request more"
            );
            return Err(refused(&device.path, why));
        }
    }
    let all: u64 = segments.iter().sum();
    ensure!(
        all >= SEGMENTS_MIN,
        "the flash devices have room for {all} segments of {segment_bytes} bytes, fewer than {SEGMENTS_MIN}; request more"
    );
    Ok(segments)
}

/// Returns the id of the set that these devices formed before, or why they did not.
fn previous_set(candidates: &[Candidate], segment_bytes: u64) -> Result<u128, String> {
    let mut first = None;
    for (number, candidate) in candidates.iter().enumerate() {
        let (path, bytes) = (candidate.path.display(), candidate.bytes);
        let Some(header) = candidate.header else { return Err(format!("flash device {path} is new")) };
        let (set_id, first) = &*first.get_or_insert_with(|| (header.set_id, path.to_string()));
        if header.set_id != *set_id {
            return Err(format!("flash devices {first} and {path} were last used in different sets"));
        }
        if (header.number as usize, header.count as usize) != (number, candidates.len()) {
            let (was, count) = (u64::from(header.number) + 1, header.count);
            return Err(format!("flash device {path} was number {was} of {count} devices"));
        }
        if (header.bytes, header.segment_bytes) != (bytes, segment_bytes) {
            let (bytes, segment_bytes) = (header.bytes, header.segment_bytes);
            return Err(format!("flash device {path} had {bytes} bytes, in segments of {segment_bytes}"));
        }
    }
    first.map(|(set_id, _)| set_id).ok_or_else(|| "there is no device".into())
}

/// Writes a header, and reads it back.
fn write_header(path: &Path, file: &File, header: &DeviceHeader) -> Result<()> {
    let page = PageBuffer::from_slice(HEADER_BYTES, &header.encode());
    file.write_all_at(&page, 0)
        .map_err(|error| refused(path, format_args!("cannot write its header: {error}; replace it")))?;
    let (page, len) = read_start(file, HEADER_BYTES)
        .map_err(|error| refused(path, format_args!("cannot read it: {error}")))?;
    if decode(&page[..len]) != Ok(*header) {
        return Err(refused(path, "it does not return the header that was written; replace it"));
    }
    Ok(())
}

fn check_kind(path: &Path, found: &Metadata) -> Result<()> {
    let kind = found.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(());
    }
    let why = if kind.is_dir() {
        "it is a directory; give the path of a file in it"
    } else {
        "it is neither a file nor a block device; give the path of one"
    };
    Err(refused(path, why))
}

/// Checks that a file may be created at a path where nothing is.
fn check_creation(path: &Path) -> Result<()> {
    if let Ok(target) = std::fs::read_link(path) {
        let why = format_args!(
            "it is a symbolic link to {}, which does not exist; create that, or give another path",
            target.display()
        );
        return Err(refused(path, why));
    }
    // The folder may have another name.
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    if folder.is_some_and(|folder| folder.starts_with("/dev") && !folder.starts_with("/dev/shm")) {
        let why = "there is no such device, and the server creates no file under /dev; check the device's name, or give \
             a path elsewhere";
        return Err(refused(path, why));
    }
    Ok(())
}

/// Checks that only this process's user can write the file.
fn check_access(path: &Path, opened: &Metadata) -> Result<()> {
    let (owner, user) = (opened.uid(), rustix::process::geteuid().as_raw());
    if owner != user {
        let why = format_args!("it belongs to user {owner}, and the server is user {user}; change the owner");
        return Err(refused(path, why));
    }
    let mode = opened.permissions().mode() & 0o7777;
    if mode & WRITABLE_BY_OTHERS != 0 {
        return Err(refused(path, format_args!("other users may write it (mode {mode:o}); set mode 600")));
    }
    Ok(())
}

/// Opens or creates a device's file, with direct I/O if the file system has it.
fn open_file(path: &Path, is_new: bool, is_block_device: bool) -> Result<File> {
    // Without NONBLOCK a pipe that was put there meanwhile would stall the server.
    let mut flags = OFlags::NONBLOCK;
    if is_block_device {
        flags |= OFlags::EXCL;
    }
    let mut options = File::options();
    options.read(true).write(true).create_new(is_new).mode(0o600).custom_flags(flags.bits() as i32);
    let file = retry_while_busy(|| options.open(path)).map_err(|error| unavailable(path, &error))?;
    // Under NONBLOCK requests of io_uring fail instead of waiting. DIRECT is set here because an open that fails for it may
    // have created the file.
    let set = match rustix::fs::fcntl_setfl(&file, OFlags::DIRECT) {
        Err(Errno::INVAL) => {
            warn_cached(path);
            rustix::fs::fcntl_setfl(&file, OFlags::empty())
        }
        set => set,
    };
    set.map_err(|error| unavailable(path, &error.into()))?;
    Ok(file)
}

fn lock(path: &Path, file: &File) -> Result<()> {
    let locked = retry_while_busy(|| Ok(rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)?));
    locked.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => {
            refused(path, "another server uses it; stop that one, or give another path")
        }
        _ => refused(path, format_args!("cannot lock it: {error}")),
    })
}

/// Tries again for a while: the kernel may still be ending the requests of a killed server, which keep its files open.
fn retry_while_busy<T>(attempt: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let until = Instant::now() + BUSY_TIMEOUT;
    loop {
        match attempt() {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy)
                    && Instant::now() < until =>
            {
                std::thread::sleep(BUSY_PAUSE);
            }
            result => return result,
        }
    }
}

/// Reads the first bytes, as many as there are. Returns a buffer that begins with so many.
fn read_start(file: &File, bytes: usize) -> io::Result<(PageBuffer, usize)> {
    let mut buffer = PageBuffer::from_iter(HEADER_BYTES, std::iter::repeat_n(0, bytes));
    let mut len = 0;
    while len < bytes {
        match file.read_at(&mut buffer[len..], len as u64) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        // Direct reads go on at pages only; the end of the file lies elsewhere.
        if len % HEADER_BYTES != 0 {
            break;
        }
    }
    Ok((buffer, len))
}

fn decode(page: &[u8]) -> Result<DeviceHeader, HeaderError> {
    DeviceHeader::decode(page.first_chunk().ok_or(HeaderError::Foreign)?)
}

/// Returns what tells one file or device from all others.
fn identity(metadata: &Metadata) -> (u64, u64) {
    // A block device may have several names with inodes of their own.
    let is_block_device = metadata.file_type().is_block_device();
    if is_block_device { (metadata.rdev(), u64::MAX) } else { (metadata.dev(), metadata.ino()) }
}

fn random_id() -> Result<u128> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| anyhow!("{error}"))
        .context("cannot get random bytes for an id")?;
    Ok(u128::from_le_bytes(bytes))
}

fn warn_cached(path: &Path) {
    tracing::warn!(
        "the file system of the flash device {} refuses direct I/O: the page cache takes memory, too",
        path.display()
    );
}

/// Returns the system's error of an attempt to open a device, with what to do.
fn unavailable(path: &Path, error: &io::Error) -> anyhow::Error {
    let advice = match error.kind() {
        io::ErrorKind::NotFound => "; create its directory",
        io::ErrorKind::AlreadyExists => "; it was just created: try again",
        io::ErrorKind::PermissionDenied => "; let the server's user read and write it",
        io::ErrorKind::ResourceBusy => "; unmount it, stop the program that uses it, or give another path",
        io::ErrorKind::ReadOnlyFilesystem => "; give a path on another file system",
        _ => "",
    };
    refused(path, format_args!("{error}{advice}"))
}

fn refused(path: &Path, why: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot open flash device {}: {why}", path.display())
}
