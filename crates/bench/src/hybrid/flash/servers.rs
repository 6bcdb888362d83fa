//! The servers: fabcached with a flash tier and memcached with extstore, each also with the same memory alone.

use std::cell::RefCell;
use std::fs::OpenOptions;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use fabcache_testbed::cleanup::Folder;
use rustix::fs::FsWord;

use super::cgroup::MemoryGroup;
use crate::experiment::MeasuredTarget;
use crate::server::{MeasuredProgram, Server};
use crate::target::Target;

/// Added to the name of a server with RAM only.
pub const RAM_ONLY: &str = " RAM";
/// Memory of a server beside `-m` and a byte count for each item, while it is filled.
const SPARE_BYTES: u64 = 256 << 20;
/// Upper bound of an item's part of a hash table beside `-m`, also while memcached doubles it.
const HASH_BYTES: u64 = 24;
/// memcached's default `ext_item_size`: shorter items stay in RAM.
const EXT_ITEM_BYTES: usize = 512;
/// Bytes of extstore's pages, by the least size of the device with such pages.
const EXT_PAGES: [(u64, u32); 2] = [(4 << 30, 64), (0, 16)];
/// `slab_automove_freeratio` by the least value size, and `slab_automove_window`. With the defaults (0.01 and 30), memcached
/// evicts items on the device while the slab class of their headers waits for pages.
const SLAB_FREE_RATIOS: [(usize, f64); 2] = [(64 << 10, 0.1), (0, 0.05)];
const SLAB_WINDOW: u32 = 3;
/// tmpfs in `statfs`.
const TMPFS: FsWord = 0x0102_1994;
/// Names of other file systems in `statfs`.
const FILE_SYSTEMS: [(FsWord, &str); 5] = [
    (TMPFS, "tmpfs (memory, no device)"),
    (0xEF53, "ext4"),
    (0x5846_5342, "XFS"),
    (0x9123_683E, "btrfs"),
    (0x794C_7630, "overlayfs"),
];

/// Whose flags a program takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `--flash`.
    Fabcached,
    /// The same, for clients of its shared memory.
    FabcachedShm,
    /// `-o ext_path`.
    Memcached,
}

/// Flags that do not depend on the case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags {
    /// Worker threads of each server.
    pub threads: usize,
    /// extstore's threads for reads.
    pub ext_threads: usize,
    /// Reads that such a thread takes at once.
    pub ext_io_depth: usize,
}

/// The memory and the items of a case.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// `-m`, in bytes.
    pub memory_bytes: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Number of items.
    pub items: u64,
    /// Bytes of the device.
    pub device_bytes: u64,
}

/// The servers, in the order of the table; the baseline is the last.
#[derive(Debug)]
pub struct Servers {
    servers: Vec<TierServer>,
    // Declared last: the servers stop before their sockets are removed.
    _folder: Folder,
}

/// A server that is started anew for each case.
#[derive(Debug)]
pub struct TierServer {
    program: MeasuredProgram,
    kind: Kind,
    has_flash: bool,
    flags: Flags,
    socket: PathBuf,
    target: Target,
    /// A process without items that describes the target, until the first case.
    idle: RefCell<Option<Server>>,
}

/// A server of a case.
#[derive(Debug)]
pub struct StartedServer {
    /// The process.
    pub server: Server,
    /// Its memory cgroup, if one could be made.
    pub group: Option<MemoryGroup>,
    /// Its device, if it has one.
    pub device: Option<Device>,
}

/// The file of a flash tier. It is removed when dropped.
#[derive(Debug)]
pub struct Device {
    path: PathBuf,
    bytes: u64,
    _folder: Folder,
}

impl Flags {
    /// Returns the flags of a server with so much memory, and a device if given.
    ///
    /// `ext_item_size` lets extstore write shorter values than by default.
    fn of(self, kind: Kind, amount: &Amount, device: Option<(&str, u64)>) -> Vec<String> {
        let megabytes = (amount.memory_bytes >> 20).to_string();
        let mut flags = vec!["-m".to_owned(), megabytes, "-t".into(), self.threads.to_string()];
        let Some((path, bytes)) = device else { return flags };
        match kind {
            Kind::Fabcached | Kind::FabcachedShm => {
                flags.extend(["--flash".into(), format!("{path}:{}m", bytes >> 20)])
            }
            // memcached wants the page size before the path.
            Kind::Memcached => flags.extend([
                "-o".into(),
                format!(
                    "ext_page_size={},ext_path={path}:{}m,ext_item_size={},ext_threads={},ext_io_depth={},\
                     slab_automove_freeratio={},slab_automove_window={SLAB_WINDOW}",
                    of_least(&EXT_PAGES, bytes),
                    bytes >> 20,
                    EXT_ITEM_BYTES.min(amount.value_bytes),
                    self.ext_threads,
                    self.ext_io_depth,
                    of_least(&SLAB_FREE_RATIOS, amount.value_bytes),
                ),
            ]),
        }
        flags
    }

    /// Describes the flags of all cases.
    fn described(self, kind: Kind, has_flash: bool) -> String {
        let base = format!("-m MEGABYTES -t {}", self.threads);
        match (kind, has_flash) {
            (_, false) => base,
            (Kind::Fabcached | Kind::FabcachedShm, true) => format!("{base} --flash FILE:SIZE"),
            (Kind::Memcached, true) => format!(
                "{base} -o ext_page_size=16 (64 from 4 GB),ext_path=FILE:SIZE,ext_item_size={EXT_ITEM_BYTES} (at most the value's size),\
                 ext_threads={},ext_io_depth={},slab_automove_freeratio=0.05 (0.1 from values of 64 KB),\
                 slab_automove_window={SLAB_WINDOW}",
                self.ext_threads, self.ext_io_depth
            ),
        }
    }
}

/// Returns the value of the first entry whose least number is not above `number`; the last entry's is 0.
fn of_least<N: PartialOrd + Copy, V: Copy>(entries: &[(N, V)], number: N) -> V {
    let entry = entries.iter().find(|(least, _)| number >= *least);
    entry.or(entries.last()).expect("a table has entries").1
}

impl Servers {
    /// Starts each program without items: with a flash tier, and with RAM only, in the order of the table.
    ///
    /// # Errors
    /// A program does not start, or does not speak memcached's protocol.
    pub fn start(programs: &[(MeasuredProgram, Kind)], with_flash: &[bool], flags: Flags) -> Result<Servers> {
        let folder = Folder::new("fabcache-flash")?;
        let mut servers = Vec::new();
        for (program, kind) in programs {
            for has_flash in with_flash {
                let socket = folder.path().join(servers.len().to_string());
                let name = format!("{}{}", program.name, if *has_flash { "" } else { RAM_ONLY });
                let program = MeasuredProgram { name, ..program.clone() };
                servers.push(TierServer::idle(program, *kind, *has_flash, flags, socket)?);
            }
        }
        Ok(Servers { servers, _folder: folder })
    }

    /// Returns the targets of an experiment, each with its command.
    pub fn targets(&self) -> Vec<MeasuredTarget<'_>> {
        let command = |server: &TierServer| {
            let program = server.program.program.file_name().unwrap_or_default();
            format!("{} {}", program.to_string_lossy(), server.flags.described(server.kind, server.has_flash))
        };
        self.servers.iter().map(|server| (&server.target, Some(command(server)))).collect()
    }

    /// Returns a target's server.
    ///
    /// # Errors
    /// The target is not one of [`Servers::targets`].
    pub fn of(&self, target: &Target) -> Result<&TierServer> {
        let server = self.servers.iter().find(|server| server.target.urls == target.urls);
        server.with_context(|| format!("{} was not started by this benchmark", target.name))
    }
}

impl TierServer {
    fn idle(
        program: MeasuredProgram,
        kind: Kind,
        has_flash: bool,
        flags: Flags,
        socket: PathBuf,
    ) -> Result<TierServer> {
        let scheme = if kind == Kind::FabcachedShm { "shm" } else { "unix" };
        let (server, target) = Target::start_idle(&program, &socket, scheme)?;
        Ok(TierServer { program, kind, has_flash, flags, socket, target, idle: RefCell::new(Some(server)) })
    }

    /// Starts the server for a case, with a file in `directory` if it has a flash tier, and in a memory cgroup if
    /// `is_limited`.
    ///
    /// # Errors
    /// The server does not start; the error has the end of its output.
    pub fn start(&self, amount: &Amount, directory: &Path, is_limited: bool) -> Result<StartedServer> {
        self.idle.take();
        let device = if self.has_flash { Some(Device::new(directory, amount.device_bytes)?) } else { None };
        let named = match &device {
            Some(device) => {
                let path = device.path.to_str();
                Some((path.with_context(|| format!("{} is not text", device.path.display()))?, device.bytes))
            }
            None => None,
        };
        let flags = self.flags.of(self.kind, amount, named);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let socket = self.socket.to_str().context("the socket's path is not text")?;
        let mut command = self.program.command(&["-s", socket], &flags);
        let group = match is_limited {
            true => Some(MemoryGroup::new(amount.memory_bytes + amount.items * HASH_BYTES + SPARE_BYTES)?),
            false => None,
        };
        if let Some(group) = &group {
            command = group.command(&command);
        }
        let is_up = || UnixStream::connect(&self.socket).is_ok();
        let server = Server::launch(&self.program.name, command, &is_up)?;
        Ok(StartedServer { server, group, device })
    }
}

impl Device {
    fn new(directory: &Path, bytes: u64) -> Result<Device> {
        let folder = Folder::new_in(directory, "fabcache-flash")?;
        Ok(Device { path: folder.path().join("device"), bytes, _folder: folder })
    }

    /// Writes the page cache's pages of the file to the device.
    ///
    /// # Errors
    /// The system reports an error of the device.
    pub fn sync(&self) -> Result<()> {
        let synced = match OpenOptions::new().write(true).open(&self.path) {
            // The server keeps its items elsewhere.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            file => file.and_then(|file| file.sync_data()),
        };
        synced.with_context(|| format!("cannot write {} to its device", self.path.display()))
    }
}

/// Returns whether a directory is on tmpfs.
pub fn is_tmpfs(directory: &Path) -> bool {
    rustix::fs::statfs(directory).is_ok_and(|found| found.f_type == TMPFS)
}

/// Returns the name of a directory's file system.
///
/// # Errors
/// There is no such directory.
pub fn file_system(directory: &Path) -> Result<String> {
    let found = rustix::fs::statfs(directory);
    let found =
        found.with_context(|| format!("cannot use {}; give another --flash-dir", directory.display()))?;
    ensure!(directory.is_dir(), "{} is not a directory; give another --flash-dir", directory.display());
    let magic = found.f_type;
    let known = FILE_SYSTEMS.iter().find(|(known, _)| *known == magic);
    Ok(known.map_or_else(|| format!("a file system of type {magic:#x}"), |(_, name)| (*name).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_select_the_tier() {
        let flags = Flags { threads: 2, ext_threads: 4, ext_io_depth: 8 };
        let amount = Amount { memory_bytes: 64 << 20, value_bytes: 100, items: 1, device_bytes: 0 };
        let of = |kind, amount: &Amount, device| flags.of(kind, amount, device).join(" ");
        for kind in [Kind::Fabcached, Kind::Memcached] {
            assert_eq!(of(kind, &amount, None), "-m 64 -t 2");
        }
        assert_eq!(of(Kind::Fabcached, &amount, Some(("/d", 256 << 20))), "-m 64 -t 2 --flash /d:256m");
        let small = of(Kind::Memcached, &amount, Some(("/d", 256 << 20)));
        let tail = "ext_threads=4,ext_io_depth=8,slab_automove_freeratio";
        let begin = "-m 64 -t 2 -o ext_page_size=16,ext_path=/d:256m,ext_item_size=100,";
        assert_eq!(small, format!("{begin}{tail}=0.05,slab_automove_window=3"));
        let large = Amount { value_bytes: 64 << 10, ..amount };
        let large = of(Kind::Memcached, &large, Some(("/d", 4 << 30)));
        let begin = "-m 64 -t 2 -o ext_page_size=64,ext_path=/d:4096m,ext_item_size=512,";
        assert_eq!(large, format!("{begin}{tail}=0.1,slab_automove_window=3"));
    }

    #[test]
    fn file_systems_are_named() {
        assert!(
            file_system(Path::new("/nowhere/at/all")).expect_err("none").to_string().contains("--flash-dir")
        );
        assert!(file_system(Path::new("/proc")).expect("one").contains("0x"));
        assert!(!is_tmpfs(Path::new("/proc")));
    }
}
