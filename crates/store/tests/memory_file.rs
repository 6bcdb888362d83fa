//! A store in a file: which files are refused, and that refusing leaves every byte as it was.
#![cfg(not(loom))]

mod common;

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{get, set};
use fabcache_layout::format::HEADER_BYTES;
use fabcache_store::backing::{BackingOptions, Meta, Sharing, Sidecar};
use fabcache_store::error::{MetaError, UntrustedFile, Unusable};
use fabcache_store::restart::{KeepError, NotKept, Unclean};
use fabcache_store::{CreateError, DiscardReason, Handle, Opening, Store, StoreOptions};
use fabcache_testbed::cleanup::Folder;
use fabcache_testbed::report::not_run;
use rustix::fs::{FlockOperation, Mode};

/// Offsets in the header, as in docs/region.md.
const VERSION_AT: u64 = 8;
const REGION_ID_AT: u64 = 72;
const BOOT_ID_AT: u64 = 512;

/// A memory file in a folder of its own.
struct Place(Folder);

/// What is in a folder: names, inodes, modes and bytes.
type Snapshot = Vec<(PathBuf, u64, u32, Vec<u8>)>;

impl Place {
    fn new() -> Place {
        Place(Folder::new("fabcache-memory-file").expect("a folder"))
    }

    /// A place in which an earlier server left a region with one item.
    fn with_region() -> Place {
        let place = Place::new();
        let (handle, opening) = place.open(false).expect("a new file");
        assert_eq!(opening, Opening::New);
        set(&handle, b"key", b"value").expect("there is room");
        place
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("region")
    }

    fn meta(&self) -> PathBuf {
        self.0.path().join("region.meta")
    }

    fn lock(&self) -> PathBuf {
        self.0.path().join("region.lock")
    }

    fn open(&self, discard: bool) -> Result<(Handle, Opening), CreateError> {
        open(&self.file(), discard)
    }

    /// Everything in the folder but PATH.lock, which a refused server may create.
    fn snapshot(&self) -> Snapshot {
        let mut found: Snapshot = fs::read_dir(self.0.path())
            .expect("the folder is there")
            .map(|entry| entry.expect("the folder can be read").path())
            .filter(|path| *path != self.lock())
            .map(|path| {
                let stat = fs::symlink_metadata(&path).expect("nothing else uses it");
                let bytes = if stat.is_file() { fs::read(&path).expect("a file") } else { Vec::new() };
                (path, stat.ino(), stat.mode(), bytes)
            })
            .collect();
        found.sort();
        found
    }

    /// Asserts that a server refuses the file and changes nothing; returns the error.
    fn refused(&self, discard: bool) -> CreateError {
        let before = self.snapshot();
        let error = self.open(discard).map(|(_, opening)| opening).expect_err("refused");
        assert!(self.snapshot() == before, "a file changed: {error}");
        error
    }

    /// Asserts that the file is not trusted, whatever the options.
    #[track_caller]
    fn is_untrusted(&self, wanted_file: &Path, wanted: UntrustedFile) {
        for discard in [false, true] {
            let error = self.refused(discard);
            let CreateError::Untrusted { file, why } = &error else { panic!("{error}") };
            assert_eq!((file.as_path(), *why), (wanted_file, wanted));
            assert!(error.to_string().contains(wanted_file.to_str().expect("text")), "{error}");
        }
    }

    /// Asserts that only a server that may discard the contents uses the file.
    #[track_caller]
    fn is_unusable(&self, wanted: Unusable) {
        let error = self.refused(false);
        let CreateError::Unusable { file, why } = &error else { panic!("{error}") };
        assert_eq!((file, *why), (&self.file(), wanted));
        let text = error.to_string();
        assert!(text.contains(self.file().to_str().expect("text")) && text.contains("--discard"), "{text}");
        let (handle, opening) = self.open(true).expect("it may be discarded");
        assert_eq!(opening, Opening::Discarded(wanted.into()));
        works(&handle);
        drop(handle);
        let (_, opening) = self.open(false).expect("a region of ours");
        assert!(matches!(opening, Opening::Recovered { .. }), "{opening:?}");
    }

    fn change_meta(&self, change: impl FnOnce(&mut Meta)) {
        let sidecar = Sidecar::lock(&self.file()).expect("no server runs");
        let mut meta = sidecar.read().expect("valid").expect("there");
        change(&mut meta);
        sidecar.write(&meta).expect("written");
    }
}

fn open(file: &Path, discard: bool) -> Result<(Handle, Opening), CreateError> {
    open_with(file, discard, 8 << 20, 8 << 20)
}

fn open_with(
    file: &Path,
    discard: bool,
    memory_bytes: u64,
    memory_bytes_max: u64,
) -> Result<(Handle, Opening), CreateError> {
    let backing = BackingOptions { file: Some(file.into()), discard, ..BackingOptions::default() };
    let options = StoreOptions { memory_bytes, memory_bytes_max, backing, ..StoreOptions::default() };
    let store = Store::open(options)?;
    let (opening, _) = store.opening();
    Ok((Handle::new(&Arc::new(store)), opening))
}

/// Asserts that the store is empty, and takes an item.
fn works(handle: &Handle) {
    assert!(get(handle, b"key").is_none());
    set(handle, b"key", b"another").expect("there is room");
    assert_eq!(get(handle, b"key").expect("just set").1, b"another");
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("our file");
}

fn write_at(path: &Path, bytes: &[u8], at: u64) {
    let file = OpenOptions::new().write(true).open(path).expect("our file");
    file.write_all_at(bytes, at).expect("our file");
}

#[test]
fn new_files_are_for_this_user_only() {
    let place = Place::with_region();
    for file in [place.file(), place.meta(), place.lock()] {
        assert_eq!(fs::metadata(&file).expect("created").mode() & 0o7777, 0o600, "{}", file.display());
    }
    assert_eq!(place.snapshot().len(), 2, "no temporary file is left");
    assert!(fs::read(place.lock()).expect("ours").is_empty());
}

#[test]
fn secret_and_region_id_are_beside_the_region() {
    let place = Place::new();
    let (handle, _) = place.open(false).expect("a new file");
    let meta = Meta::decode(&fs::read(place.meta()).expect("created")).expect("valid");
    assert!(!meta.is_creating && meta.state.is_empty());
    assert_eq!(meta.secret.0, handle.store().secret().0);
    let region = fs::read(place.file()).expect("created");
    let id = region[REGION_ID_AT as usize..].first_chunk().expect("a header");
    assert_eq!(u64::from_le_bytes(*id), meta.region_id);
    assert!(!region.windows(64).any(|bytes| bytes == &meta.secret.0[..64]), "the region holds no secret");
    drop(handle);
    let identity = |discard| {
        drop(place.open(discard).expect("a region of ours"));
        let next = Meta::decode(&fs::read(place.meta()).expect("created")).expect("valid");
        (next.region_id, next.secret.0)
    };
    assert_eq!(identity(false), (meta.region_id, meta.secret.0));
    assert_ne!(identity(true), (meta.region_id, meta.secret.0));
}

#[test]
fn file_in_use_is_refused_untouched() {
    let place = Place::new();
    let (handle, _) = place.open(false).expect("a new file");
    set(&handle, b"key", b"value").expect("there is room");
    for discard in [false, true] {
        let error = place.refused(discard);
        assert!(matches!(error, CreateError::FileInUse { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(place.file().to_str().expect("text")) && text.contains("-e"), "{text}");
    }
    assert_eq!(get(&handle, b"key").expect("it was left alone").1, b"value");
    drop(handle);
    let (handle, opening) = place.open(false).expect("the file is free again");
    assert!(matches!(opening, Opening::Recovered { .. }), "{opening:?}");
    assert_eq!(get(&handle, b"key").expect("it is kept").1, b"value");
    let found = handle.store().recovery_progress().expect("its server was killed");
    assert_eq!((found.kept, found.dropped), (1, 0));
}

#[test]
fn client_that_locks_its_descriptor_locks_nobody_out() {
    let place = Place::new();
    let (handle, _) = place.open(false).expect("a new file");
    assert!(handle.store().region().is_none(), "no descriptor for readers yet");
    assert_eq!(handle.store().share_region().expect("/proc"), Some(Sharing::ReadOnly));
    let region = handle.store().region().expect("shared").try_clone_to_owned().expect("a descriptor");
    let written = rustix::io::write(&region, b"x");
    assert_eq!(written, Err(rustix::io::Errno::BADF), "the descriptor is read-only");
    let named = File::open(place.file()).expect("our file");
    for file in [region.into(), named] {
        let how = FlockOperation::NonBlockingLockShared;
        rustix::fs::flock(Box::leak(Box::<File>::new(file)), how).expect("nobody holds a lock on it");
    }
    drop(handle);
    place.open(false).expect("the client's lock does not count");
}

#[test]
fn file_with_another_way_to_it_is_untrusted() {
    let place = Place::with_region();
    let other = place.0.path().join("other");
    fs::hard_link(place.file(), &other).expect("the same folder");
    place.is_untrusted(&place.file(), UntrustedFile::Names(2));
    fs::rename(&other, place.0.path().join("moved")).expect("the same folder");
    fs::remove_file(place.file()).expect("our file");
    std::os::unix::fs::symlink("moved", place.file()).expect("the same folder");
    place.is_untrusted(&place.file(), UntrustedFile::SymbolicLink);
    std::os::unix::fs::symlink("nothing", &other).expect("the same folder");
    assert!(matches!(
        open(&other, true).map(drop),
        Err(CreateError::Untrusted { why: UntrustedFile::SymbolicLink, .. })
    ));
    assert!(!place.0.path().join("nothing").exists() && !place.0.path().join("other.lock").exists());
}

#[test]
fn anything_but_a_regular_file_is_untrusted() {
    let place = Place::new();
    fs::create_dir(place.file()).expect("nothing is there");
    place.is_untrusted(&place.file(), UntrustedFile::NotRegular);
    fs::remove_dir(place.file()).expect("empty");
    let pipe = place.file();
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
        .expect("nothing is there");
    place.is_untrusted(&pipe, UntrustedFile::NotRegular);
    assert!(!place.lock().exists());
    for path in ["/", "/dev/full", "..", ""] {
        let error = open(Path::new(path), true).map(drop).expect_err(path);
        let why = UntrustedFile::NotRegular;
        assert!(matches!(&error, CreateError::Untrusted { why: found, .. } if *found == why), "{error}");
    }
}

#[test]
fn file_that_others_may_write_is_untrusted() {
    for mode in [0o620, 0o602, 0o666, 0o722] {
        let place = Place::with_region();
        set_mode(&place.file(), mode);
        let why = UntrustedFile::Mode { mode };
        place.is_untrusted(&place.file(), why);
        assert!(why.to_string().contains("write it"), "{why}");
        set_mode(&place.file(), 0o600);
        place.open(false).expect("only this user may write it");
    }
    for mode in [0o620, 0o640, 0o604] {
        let place = Place::with_region();
        set_mode(&place.meta(), mode);
        place.is_untrusted(&place.meta(), UntrustedFile::Mode { mode });
        set_mode(&place.meta(), 0o600);
        set_mode(&place.lock(), mode);
        place.is_untrusted(&place.lock(), UntrustedFile::Mode { mode });
        set_mode(&place.lock(), 0o600);
        place.open(false).expect("only this user may open them");
    }
}

#[test]
fn file_of_another_user_is_untrusted() {
    let user = rustix::process::geteuid().as_raw();
    if user != 0 {
        return not_run("file_of_another_user_is_untrusted", &"only root can give a file away");
    }
    for file in [Place::file, Place::meta, Place::lock] {
        let place = Place::with_region();
        let file = file(&place);
        std::os::unix::fs::chown(&file, Some(1), None).expect("root");
        place.is_untrusted(&file, UntrustedFile::Owner { owner: 1, user });
        std::os::unix::fs::chown(&file, Some(0), None).expect("root");
        place.open(false).expect("ours again");
    }
}

#[test]
fn links_beside_the_file_are_not_followed() {
    for file in [Place::meta, Place::lock] {
        let place = Place::with_region();
        let (file, target) = (file(&place), place.0.path().join("target"));
        fs::rename(&file, &target).expect("the same folder");
        std::os::unix::fs::symlink(&target, &file).expect("the same folder");
        for discard in [false, true] {
            let error = place.refused(discard).to_string();
            assert!(error.contains(place.file().to_str().expect("text")), "{error}");
        }
    }
}

#[test]
fn foreign_files_are_unusable() {
    for bytes in [&b"x"[..], &[7; 4096], &[0; 4096], &[0; 1 << 20]] {
        let place = Place::new();
        fs::write(place.file(), bytes).expect("a new file");
        set_mode(&place.file(), 0o600);
        place.is_unusable(Unusable::Foreign);
    }
}

#[test]
fn other_regions_are_unusable() {
    let place = Place::with_region();
    write_at(&place.file(), &4_u64.to_le_bytes(), VERSION_AT);
    place.is_unusable(Unusable::Version(4));

    let place = Place::with_region();
    let file = OpenOptions::new().write(true).open(place.file()).expect("our file");
    file.set_len((8 << 20) - 1).expect("our file");
    place.is_unusable(Unusable::Damaged);

    let place = Place::with_region();
    let file = OpenOptions::new().write(true).open(place.file()).expect("our file");
    file.set_len(HEADER_BYTES - 1).expect("our file");
    place.is_unusable(Unusable::Foreign);

    let place = Place::with_region();
    fs::remove_file(place.meta()).expect("it was there");
    let text = place.refused(false).to_string();
    assert!(text.contains(&format!("restore {}, or", place.meta().display())), "{text}");
    place.is_unusable(Unusable::NoMeta);

    let (place, other) = (Place::with_region(), Place::with_region());
    fs::copy(other.meta(), place.meta()).expect("both are there");
    place.is_unusable(Unusable::OtherRegion);
}

#[test]
fn invalid_meta_is_unusable_with_and_without_its_region() {
    type Damage = fn(&Place);
    let damaged: [(Damage, MetaError); 4] = [
        (|place| fs::write(place.meta(), b"").expect("ours"), MetaError::Empty),
        (|place| write_at(&place.meta(), b"X", 0), MetaError::Foreign),
        (|place| write_at(&place.meta(), &[9], 8), MetaError::Version(9)),
        (|place| write_at(&place.meta(), b"secret", 100), MetaError::Damaged),
    ];
    for (damage, why) in damaged {
        for has_region in [true, false] {
            let place = Place::with_region();
            damage(&place);
            if !has_region {
                fs::remove_file(place.file()).expect("it was there");
            }
            place.is_unusable(Unusable::Meta(why));
        }
    }
}

#[test]
fn empty_meta_in_an_empty_folder_is_refused() {
    let place = Place::new();
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(place.meta());
    drop(new.expect("nothing is there"));
    let error = place.refused(false);
    assert!(matches!(error, CreateError::Unusable { why: Unusable::Meta(MetaError::Empty), .. }), "{error}");
    fs::remove_file(place.meta()).expect("it was there");
    assert_eq!(place.open(false).expect("nothing is there").1, Opening::New);
}

#[test]
fn region_whose_creation_was_interrupted_is_created_again() {
    let place = Place::with_region();
    place.change_meta(|meta| meta.is_creating = true);
    fs::write(place.0.path().join("region.meta.tmp"), b"half").expect("a new file");
    let (handle, opening) = place.open(false).expect("it may be created again");
    assert_eq!(opening, Opening::Discarded(DiscardReason::Unfinished));
    works(&handle);
    drop(handle);
    assert_eq!(place.snapshot().len(), 2, "no temporary file is left");
    let opening = place.open(false).expect("finished").1;
    assert!(matches!(opening, Opening::Recovered { .. }), "{opening:?}");
}

#[test]
fn creation_may_end_at_any_step() {
    let creating = |place: &Place| place.change_meta(|meta| meta.is_creating = true);
    let without_magic = |place: &Place| write_at(&place.file(), &[0; 8], 0);
    let removed = |place: &Place| fs::remove_file(place.file()).expect("it was there");
    let emptied = |place: &Place| fs::write(place.file(), b"").expect("ours");
    type Step<'s> = &'s dyn Fn(&Place);
    let steps: [(&[Step<'_>], Opening); 5] = [
        (&[&removed], Opening::New),
        (&[&creating, &removed], Opening::New),
        (&[&creating, &emptied], Opening::New),
        (&[&creating, &without_magic], Opening::Discarded(DiscardReason::Unfinished)),
        (&[&creating], Opening::Discarded(DiscardReason::Unfinished)),
    ];
    for (number, (steps, wanted)) in steps.into_iter().enumerate() {
        let place = Place::with_region();
        steps.iter().for_each(|step| step(&place));
        let (handle, opening) = place.open(false).expect("nothing of others");
        assert_eq!(opening, wanted, "{number}");
        works(&handle);
        drop(handle);
        let opening = place.open(false).expect("a region of ours").1;
        assert!(matches!(opening, Opening::Recovered { .. }), "{opening:?}");
    }
}

#[test]
fn file_that_replaces_an_unfinished_region_is_unusable() {
    let place = Place::with_region();
    place.change_meta(|meta| meta.is_creating = true);
    write_at(&place.file(), b"elsewise", 0);
    write_at(&place.file(), b"elsewise", REGION_ID_AT);
    place.is_unusable(Unusable::Foreign);
}

#[test]
fn start_with_too_little_memory_does_not_grow_the_file() {
    const MEMORY_BYTES: u64 = 512 << 10;
    for is_killed in [false, true] {
        let place = Place::new();
        let (handle, _) = place.open(false).expect("a new file");
        for number in 0..40_000 {
            set(&handle, format!("key{number}").as_bytes(), b"value").expect("there is room");
        }
        if !is_killed {
            handle.store().keep().expect("no thread uses it");
        }
        drop(handle);
        let before = place.snapshot();
        for memory_bytes_max in [8 << 20, 16 << 20] {
            let error = open_with(&place.file(), false, MEMORY_BYTES, memory_bytes_max).map(drop);
            let error = error.expect_err("the index takes more");
            let CreateError::Unusable { why: Unusable::IndexTooLarge { needed }, .. } = error else {
                panic!("{error}")
            };
            assert!(needed > MEMORY_BYTES);
            assert!(place.snapshot() == before, "a file changed: {memory_bytes_max} bytes at most");
        }
        let (handle, opening) = open_with(&place.file(), false, 16 << 20, 16 << 20).expect("enough");
        assert!(opening.is_takeover(), "{opening:?}");
        assert!(handle.finish_restart(&mut || true));
        assert_eq!(handle.store().usage().items, 40_000);
        assert_eq!(fs::metadata(place.file()).expect("ours").len(), 16 << 20);
        assert_eq!(get(&handle, b"key7").expect("kept").1, b"value");
    }
}

#[test]
fn region_of_a_killed_server_and_another_boot_is_discarded_with_the_reason() {
    let cases = [
        ([1; 16], NotKept::OtherBoot(Unclean::NotStopped), "the system was started again"),
        ([0; 16], NotKept::UnknownBoot(Unclean::NotStopped), "/proc/sys/kernel/random/boot_id"),
    ];
    for (boot_id, why, words) in cases {
        let place = Place::with_region();
        write_at(&place.file(), &boot_id, BOOT_ID_AT);
        let (handle, opening) = place.open(false).expect("a region in its place");
        assert_eq!(opening, Opening::Discarded(why.into()));
        assert!(why.to_string().contains(words), "{why}");
        works(&handle);
    }
}

#[test]
fn missing_and_empty_files_are_new() {
    let place = Place::with_region();
    fs::remove_file(place.file()).expect("it was there");
    assert_eq!(place.open(false).expect("a new file").1, Opening::New);
    drop(OpenOptions::new().write(true).truncate(true).open(place.file()).expect("ours"));
    let inode = || fs::metadata(place.file()).expect("ours").ino();
    let before = inode();
    let (handle, opening) = place.open(false).expect("an empty file");
    assert_eq!((opening, inode()), (Opening::New, before));
    works(&handle);
}

#[test]
fn discarding_gives_up_a_region_and_leaves_its_readers_theirs() {
    let place = Place::with_region();
    let old = File::open(place.file()).expect("ours");
    let (handle, opening) = place.open(true).expect("it may be discarded");
    assert_eq!(opening, Opening::Discarded(DiscardReason::Requested));
    works(&handle);
    assert_eq!(old.metadata().expect("open").len(), 8 << 20, "a truncated file would kill a reader");
    assert_ne!(old.metadata().expect("open").ino(), fs::metadata(place.file()).expect("created").ino());
}

#[test]
fn state_is_kept_beside_the_secret() {
    let place = Place::with_region();
    let state: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
    place.change_meta(|meta| meta.state = state.clone());
    place.change_meta(|meta| assert!(meta.state == state));
    assert_eq!(fs::metadata(place.meta()).expect("ours").mode() & 0o7777, 0o600);
}

#[test]
fn server_whose_files_were_replaced_leaves_its_successors_alone() {
    let place = Place::new();
    let (earlier, _) = place.open(false).expect("a new file");
    for file in [place.file(), place.lock(), place.meta()] {
        fs::remove_file(file).expect("it was there");
    }
    let (later, opening) = place.open(false).expect("nothing is there");
    assert_eq!(opening, Opening::New);
    set(&later, b"key", b"value").expect("there is room");
    assert_eq!(later.store().keep().expect("nothing is in use"), Some(1));
    let error = earlier.store().keep().expect_err("its file is gone");
    assert!(matches!(error, KeepError::Replaced), "{error}");
    drop((earlier, later));
    let (handle, opening) = place.open(false).expect("a region of ours");
    assert!(matches!(opening, Opening::Kept { items: 1, .. }), "{opening:?}");
    assert_eq!(get(&handle, b"key").expect("it is kept").1, b"value");
}

#[test]
fn renamed_file_in_use_is_refused() {
    let place = Place::new();
    let (handle, _) = place.open(false).expect("a new file");
    let renamed = place.0.path().join("other");
    fs::rename(place.file(), &renamed).expect("it was there");
    fs::rename(place.meta(), place.0.path().join("other.meta")).expect("it was there");
    let error = open(&renamed, false).map(drop).expect_err("its lock file has another name");
    assert!(matches!(error, CreateError::FileInUse { .. }), "{error}");
    drop(handle);
    let (_, opening) = open(&renamed, false).expect("no server uses it");
    assert!(matches!(opening, Opening::Recovered { .. }), "{opening:?}");
}

#[test]
fn name_of_the_temporary_file_that_is_taken_hinders_nothing() {
    let place = Place::new();
    fs::create_dir(place.0.path().join("region.meta.tmp")).expect("an empty folder");
    let (handle, _) = place.open(false).expect("a new file");
    set(&handle, b"key", b"value").expect("there is room");
    handle.store().keep().expect("nothing is in use");
    drop(handle);
    let opening = place.open(false).expect("a region of ours").1;
    assert!(matches!(opening, Opening::Kept { items: 1, .. }), "{opening:?}");
    assert_eq!(place.snapshot().len(), 3, "no temporary file is left beside the folder");
}
