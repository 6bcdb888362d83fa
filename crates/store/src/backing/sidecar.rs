//! The files beside a region's file PATH. They are never in the region, and no client gets them.
//!
//! - `PATH.lock` is empty. A server locks it (flock(2)) before it opens PATH or PATH.meta, and holds the lock until its
//!   process ends. It is never removed or replaced: two servers would lock one file each. A lock on PATH itself would not
//!   do, because a client can lock the read-only descriptor that it received.
//! - `PATH.meta` holds the secret and, after a clean stop, the state of the server: see [`Meta`]. It is replaced by
//!   renaming `PATH.meta.tmp`, with a random number behind it if that name is taken.
//!
//! All belong to the server's user and have mode 0600.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use fabcache_layout::checksum::SECRET_BYTES;
use fabcache_layout::{Geometry, Secret, segment};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::file_system::FileSystem;
use super::mapping::Mapping;
use crate::error::{CreateError, MetaError, UntrustedFile, Unusable};

/// Mode bits that let other users write a file.
pub(super) const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Mode bits that let other users open a file: to lock it, or to read the secret.
const OPEN_TO_OTHERS: u32 = 0o077;
/// The longest PATH.meta that is read.
const META_BYTES_MAX: u64 = 1 << 30;

const META_MAGIC: u64 = u64::from_le_bytes(*b"FABCMETA");
const META_VERSION: u64 = 1;
const CREATING: u64 = 1;
/// Offset of the secret: behind magic, version, region id, flags and the length of the state.
const SECRET_AT: usize = 5 * 8;
const HASH_AT: usize = SECRET_AT + SECRET_BYTES;
/// Bytes before the state.
const HEAD_BYTES: usize = HASH_AT + 8;

/// The contents of PATH.meta. Numbers are little endian:
///
/// | at | bytes | meaning |
/// | --- | --- | --- |
/// | 0 | 8 | "FABCMETA" |
/// | 8 | 8 | version: 1 |
/// | 16 | 8 | region id, as in the region's header |
/// | 24 | 8 | flags; bit 0: the region is being created |
/// | 32 | 8 | bytes of the state |
/// | 40 | 192 | secret of the items' checksums |
/// | 232 | 8 | xxh3 (64 bits) of the 232 bytes before |
/// | 240 | | state, then zeros up to the end of the file |
#[derive(Clone, Debug)]
pub struct Meta {
    /// Id of the region: its header has the same one.
    pub region_id: u64,
    /// The region is being created: it was never served.
    pub is_creating: bool,
    /// The secret of the items' checksums.
    pub secret: Secret,
    /// State that the server saved at a clean stop; empty while it runs. Its hash is in the region's header.
    pub state: Vec<u8>,
}

impl Meta {
    /// Returns the contents of the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.state.len());
        let flags = if self.is_creating { CREATING } else { 0 };
        for word in [META_MAGIC, META_VERSION, self.region_id, flags, self.state.len() as u64] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&self.secret.0);
        let hash = xxh3_64(&bytes);
        bytes.extend_from_slice(&hash.to_le_bytes());
        bytes.extend_from_slice(&self.state);
        bytes
    }

    /// Decodes the contents of the file.
    ///
    /// # Errors
    /// They are not those of a PATH.meta of this version.
    pub fn decode(bytes: &[u8]) -> Result<Meta, MetaError> {
        if bytes.is_empty() {
            return Err(MetaError::Empty);
        }
        let word =
            |at: usize| bytes.get(at..).and_then(<[u8]>::first_chunk).map(|word| u64::from_le_bytes(*word));
        if word(0) != Some(META_MAGIC) {
            return Err(MetaError::Foreign);
        }
        let [version, region_id, flags, state_bytes] = [8, 16, 24, 32].map(word);
        match version {
            Some(META_VERSION) => {}
            Some(version) => return Err(MetaError::Version(version)),
            None => return Err(MetaError::Damaged),
        }
        let secret = bytes.get(SECRET_AT..).and_then(<[u8]>::first_chunk);
        let (Some(region_id), Some(flags), Some(state_bytes), Some(secret), Some(hash)) =
            (region_id, flags, state_bytes, secret, word(HASH_AT))
        else {
            return Err(MetaError::Damaged);
        };
        let rest = &bytes[HEAD_BYTES..];
        let state = usize::try_from(state_bytes).ok().and_then(|len| rest.split_at_checked(len));
        match state {
            Some((state, padding))
                if hash == xxh3_64(&bytes[..HASH_AT])
                    && flags & !CREATING == 0
                    && padding.iter().all(|byte| *byte == 0) =>
            {
                let (secret, state) = (Secret(*secret), state.to_vec());
                Ok(Meta { region_id, is_creating: flags & CREATING != 0, secret, state })
            }
            _ => Err(MetaError::Damaged),
        }
    }
}

/// The files beside a region's file. The lock is held until this is dropped.
#[derive(Debug)]
pub struct Sidecar {
    path: PathBuf,
    /// The last part of the path.
    name: OsString,
    /// The file's directory: the files keep their names in it, wherever it is moved.
    directory: OwnedFd,
    file_system: FileSystem,
    lock: OwnedFd,
}

impl Sidecar {
    /// Locks PATH.lock, and creates it if needed. Writes nothing else, and does not open PATH.
    ///
    /// # Errors
    /// Another server holds the lock, something about PATH or PATH.lock lets others interfere, or the system cannot
    /// open one.
    pub fn lock(path: &Path) -> Result<Sidecar, CreateError> {
        let cannot = |what| cannot(what, path);
        let Some(name) = path.file_name() else {
            return Err(CreateError::Untrusted { file: path.into(), why: UntrustedFile::NotRegular });
        };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(parent.unwrap_or(Path::new(".")), flags, Mode::empty())
            .map_err(cannot("open the directory of"))?;
        // A path that cannot be a region's gets no lock file.
        match rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => check(path, &stat, WRITABLE_BY_OTHERS)?,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(cannot("find")(error)),
        }
        let file = with_suffix(path, ".lock");
        let lock_name = with_suffix(Path::new(name), ".lock");
        let lock = match open(&directory, &lock_name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL) {
            Err(Errno::EXIST) => open(&directory, &lock_name, OFlags::RDWR),
            created => created,
        };
        let lock = lock.map_err(self::cannot("open the lock file of", path))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(CreateError::FileInUse { file: path.into() }),
            locked => locked.map_err(cannot("lock"))?,
        }
        let stat = rustix::fs::fstat(&lock).map_err(cannot("lock"))?;
        check(&file, &stat, OPEN_TO_OTHERS)?;
        let file_system = FileSystem::of(&lock).map_err(cannot("find the file system of"))?;
        Ok(Sidecar { path: path.into(), name: name.into(), directory, file_system, lock })
    }

    /// Returns PATH.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of PATH.meta.
    fn meta_path(&self) -> PathBuf {
        with_suffix(&self.path, ".meta")
    }

    /// Reads PATH.meta, if it exists.
    ///
    /// # Errors
    /// [`CreateError::Untrusted`] if others may write or read it, [`CreateError::Unusable`] if its contents are not
    /// valid, and the system's errors.
    pub fn read(&self) -> Result<Option<Meta>, CreateError> {
        let file = self.meta_path();
        let Some(meta) = self.open(".meta", OFlags::RDONLY, OPEN_TO_OTHERS)? else { return Ok(None) };
        let cannot = |source| CreateError::System { what: format!("cannot read {}", file.display()), source };
        let mut bytes = Vec::new();
        File::from(meta).take(META_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
        let is_too_long = bytes.len() as u64 > META_BYTES_MAX;
        let meta = if is_too_long { Err(MetaError::Damaged) } else { Meta::decode(&bytes) };
        meta.map(Some)
            .map_err(|error| CreateError::Unusable { file: self.path.clone(), why: Unusable::Meta(error) })
    }

    /// Replaces PATH.meta at once: a reader finds the old contents or the new ones, also after a power failure.
    ///
    /// # Errors
    /// The system's; the old contents stay, unless only the directory's names could not be written to the device.
    pub fn write(&self, meta: &Meta) -> Result<(), CreateError> {
        self.prepare(meta)?.put_in_place()
    }

    /// Writes new contents for PATH.meta beside it.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn prepare(&self, meta: &Meta) -> Result<PreparedMeta<'_>, CreateError> {
        let cannot = |errno| cannot("write the secret beside", &self.path)(errno);
        let mut name = self.name_with(".meta.tmp");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        // A server that was killed may have left it.
        let opened = self.unlink(&name).and_then(|()| open(&self.directory, &name, flags));
        let file = match opened {
            Ok(file) => file,
            // Something of that name that may not be removed, such as another user's file in /tmp.
            Err(Errno::PERM | Errno::ACCESS | Errno::EXIST | Errno::ISDIR) => {
                let mut random = [0; 8];
                getrandom::fill(&mut random).map_err(|error| CreateError::System {
                    what: "cannot get random bytes for a file's name".into(),
                    source: std::io::Error::other(error.to_string()),
                })?;
                name = self.name_with(&format!(".meta.tmp{:016x}", u64::from_le_bytes(random)));
                open(&self.directory, &name, flags).map_err(cannot)?
            }
            Err(error) => return Err(cannot(error)),
        };
        let prepared = PreparedMeta { sidecar: self, name, is_in_place: false };
        self.fill(file, &meta.encode())?;
        Ok(prepared)
    }

    /// Returns whether PATH is this file.
    pub(super) fn has_region(&self, file: impl AsFd) -> bool {
        self.has(Path::new(&self.name), file)
    }

    /// Returns whether PATH.lock is the file that is locked.
    pub(super) fn has_lock(&self) -> bool {
        self.has(&self.name_with(".lock"), &self.lock)
    }

    fn has(&self, name: &Path, file: impl AsFd) -> bool {
        let identity = |stat: Stat| (stat.st_dev, stat.st_ino);
        let named = rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW);
        named.ok().map(identity) == rustix::fs::fstat(file).ok().map(identity)
    }

    /// Allocates the pages of the region's header and tables: with too little room for them no server could use PATH.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn allocate_tables(&self, mapping: &Mapping, geometry: &Geometry) -> Result<(), CreateError> {
        let bytes = segment::table_end(geometry, geometry.segments);
        mapping.allocate(bytes).map_err(|source| CreateError::System {
            what: format!(
                "cannot allocate {bytes} bytes for the tables of the memory file {}",
                self.path.display()
            ),
            source,
        })
    }

    /// Writes a new file.
    fn fill(&self, file: OwnedFd, bytes: &[u8]) -> Result<(), CreateError> {
        if let FileSystem::Hugetlbfs(page_bytes) = self.file_system {
            let mapping = Mapping::create(file, bytes.len() as u64, page_bytes)?;
            // SAFETY: the mapping has at least as many bytes, is new, and nothing else refers to it.
            unsafe { mapping.base().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            return Ok(());
        }
        let mut file = File::from(file);
        let synced = |file: &File| if self.file_system.is_device() { file.sync_all() } else { Ok(()) };
        file.write_all(bytes).and_then(|()| synced(&file)).map_err(|source| CreateError::System {
            what: format!("cannot write {}", self.meta_path().display()),
            source,
        })
    }

    /// Makes the names in the directory outlive a power failure.
    pub(super) fn sync_names(&self) -> Result<(), Errno> {
        if !self.file_system.is_device() {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&self.directory, ".", flags, Mode::empty())?;
        rustix::fs::fsync(directory)
    }

    /// Opens PATH with this suffix, if it exists, and checks who may access it: the mode must have none of the bits
    /// `forbidden`.
    pub(super) fn open(
        &self,
        suffix: &str,
        flags: OFlags,
        forbidden: u32,
    ) -> Result<Option<OwnedFd>, CreateError> {
        let path = with_suffix(&self.path, suffix);
        let name = self.name_with(suffix);
        let stat = match rustix::fs::statat(&self.directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            stat => stat.map_err(cannot("find", &path))?,
        };
        // Opening a device or a pipe would have an effect.
        check(&path, &stat, forbidden)?;
        let file = open(&self.directory, &name, flags).map_err(cannot("open", &path))?;
        let stat = rustix::fs::fstat(&file).map_err(cannot("find", &path))?;
        check(&path, &stat, forbidden)?;
        Ok(Some(file))
    }

    /// Removes PATH, if it exists. A process that has it open keeps its bytes.
    pub(super) fn remove(&self) -> Result<(), CreateError> {
        self.unlink(Path::new(&self.name)).map_err(cannot("remove", &self.path))
    }

    /// Removes a name of the directory, if it exists.
    fn unlink(&self, name: &Path) -> Result<(), Errno> {
        match rustix::fs::unlinkat(&self.directory, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed,
        }
    }

    /// Creates PATH, which does not exist.
    pub(super) fn create(&self) -> Result<OwnedFd, CreateError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        open(&self.directory, Path::new(&self.name), flags).map_err(cannot("create", &self.path))
    }

    /// The file system of PATH and the files beside it.
    pub(super) fn file_system(&self) -> FileSystem {
        self.file_system
    }

    fn name_with(&self, suffix: &str) -> PathBuf {
        with_suffix(Path::new(&self.name), suffix)
    }
}

/// New contents of PATH.meta in a file of their own, which is removed if they do not get in place.
#[derive(Debug)]
pub(crate) struct PreparedMeta<'a> {
    sidecar: &'a Sidecar,
    name: PathBuf,
    is_in_place: bool,
}

impl PreparedMeta<'_> {
    /// Replaces PATH.meta.
    ///
    /// # Errors
    /// The system's.
    pub fn put_in_place(mut self) -> Result<(), CreateError> {
        let Sidecar { directory, path, .. } = self.sidecar;
        let meta_name = self.sidecar.name_with(".meta");
        let cannot = cannot("write the secret beside", path);
        rustix::fs::renameat(directory, &self.name, directory, &meta_name).map_err(&cannot)?;
        self.is_in_place = true;
        self.sidecar.sync_names().map_err(cannot)
    }
}

impl Drop for PreparedMeta<'_> {
    fn drop(&mut self) {
        if !self.is_in_place {
            let _ = self.sidecar.unlink(&self.name);
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// Opens a file of the directory. A new one has mode 0600, whatever the umask is.
fn open(directory: impl AsFd, name: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    // Without NONBLOCK a pipe that was put there meanwhile would stall the server.
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mode = Mode::RUSR | Mode::WUSR;
    let file = rustix::fs::openat(directory, name, flags, mode)?;
    if flags.contains(OFlags::EXCL) {
        rustix::fs::fchmod(&file, mode)?;
    }
    Ok(file)
}

/// Checks that only this process's user can write the file, through this one name.
fn check(path: &Path, stat: &Stat, forbidden: u32) -> Result<(), CreateError> {
    let user = rustix::process::geteuid().as_raw();
    let mode = stat.st_mode & 0o7777;
    let why = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => UntrustedFile::SymbolicLink,
        FileType::RegularFile if stat.st_nlink != 1 => UntrustedFile::Names(stat.st_nlink),
        FileType::RegularFile if stat.st_uid != user => UntrustedFile::Owner { owner: stat.st_uid, user },
        FileType::RegularFile if mode & forbidden != 0 => UntrustedFile::Mode { mode },
        FileType::RegularFile => return Ok(()),
        _ => UntrustedFile::NotRegular,
    };
    Err(CreateError::Untrusted { file: path.into(), why })
}

/// Returns a function that turns the system's error of an action on the memory file into ours.
fn cannot(what: &str, path: &Path) -> impl Fn(Errno) -> CreateError {
    move |errno| CreateError::System {
        what: format!("cannot {what} the memory file {}", path.display()),
        source: errno.into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn meta(region_id: u64, is_creating: bool, state: Vec<u8>) -> Meta {
        Meta { region_id, is_creating, secret: Secret(std::array::from_fn(|i| (i * 7) as u8)), state }
    }

    fn parts(meta: &Meta) -> (u64, bool, &[u8], &[u8]) {
        (meta.region_id, meta.is_creating, &meta.secret.0, &meta.state)
    }

    #[test]
    fn each_error_has_its_cause() {
        let bytes = meta(7, false, vec![]).encode();
        let changed = |at: usize| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 2;
            Meta::decode(&bytes).map(drop)
        };
        assert_eq!(Meta::decode(&[]).map(drop), Err(MetaError::Empty));
        assert_eq!(changed(0), Err(MetaError::Foreign));
        assert_eq!(changed(8), Err(MetaError::Version(3)));
        assert_eq!(changed(24), Err(MetaError::Damaged), "an unknown flag");
        assert_eq!(changed(HASH_AT), Err(MetaError::Damaged));
    }

    #[test]
    fn unknown_flag_is_damage_even_under_a_valid_hash() {
        let mut bytes = meta(7, false, vec![]).encode();
        bytes[24] = 2;
        let hash = xxh3_64(&bytes[..HASH_AT]);
        bytes[HASH_AT..].copy_from_slice(&hash.to_le_bytes());
        assert_eq!(Meta::decode(&bytes).map(drop), Err(MetaError::Damaged));
    }

    proptest! {
        #[test]
        fn decoding_inverts_encoding(
            region_id: u64,
            is_creating: bool,
            state in prop::collection::vec(any::<u8>(), 0..300),
            padding in 0..100_usize,
        ) {
            let meta = meta(region_id, is_creating, state);
            let mut bytes = meta.encode();
            bytes.resize(bytes.len() + padding, 0);
            let decoded = Meta::decode(&bytes).expect("valid");
            prop_assert_eq!(parts(&decoded), parts(&meta));
        }

        #[test]
        fn no_other_bytes_before_the_state_are_accepted(
            state in prop::collection::vec(any::<u8>(), 0..20),
            at in 0..HEAD_BYTES,
            flip in 1..=u8::MAX,
        ) {
            let mut bytes = meta(7, false, state).encode();
            bytes[at] ^= flip;
            prop_assert!(Meta::decode(&bytes).is_err());
        }

        #[test]
        fn every_length_but_the_right_one_is_refused(
            state in prop::collection::vec(any::<u8>(), 0..300),
            cut: prop::sample::Index,
            extra in prop::collection::vec(any::<u8>(), 0..20),
            last in 1..=u8::MAX,
        ) {
            let bytes = meta(7, true, state).encode();
            prop_assert!(Meta::decode(&bytes[..cut.index(bytes.len())]).is_err());
            let longer = [&bytes[..], &extra, &[last]].concat();
            prop_assert!(Meta::decode(&longer).is_err());
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            has_magic: bool,
        ) {
            let head = if has_magic { &meta(7, false, vec![]).encode()[..16] } else { &[] };
            prop_assert!(Meta::decode(&[head, &bytes].concat()).is_err());
        }
    }
}
