//! The files of the flash tier: which are used, which are refused, and what changes in them. `flash_block_devices.rs` has the
//! block devices, because a process that it starts may hold these tests' locks until it runs its program.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fabcache_server::flash::device_header::{DeviceHeader, HEADER_BYTES, HeaderError};
use fabcache_server::flash::{DeviceSettings, Devices, HEADER_AREA_BYTES, IdentityError, file_offset};
use fabcache_testbed::cleanup::Folder;
use fabcache_uring::PageBuffer;
use rustix::fs::OFlags;

const SEGMENT: u64 = 1 << 20;
/// Five segments, and some bytes too few for a sixth.
const BYTES: u64 = HEADER_AREA_BYTES + 5 * SEGMENT + SEGMENT / 2;

/// A folder on the device that has the build's files: the system's temporary folder is often memory.
fn folder() -> Folder {
    Folder::new_in(Path::new(env!("CARGO_TARGET_TMPDIR")), "flash").expect("a folder")
}

fn device(path: impl Into<PathBuf>) -> DeviceSettings {
    DeviceSettings { path: path.into(), bytes: BYTES }
}

fn open(path: &Path) -> anyhow::Result<Devices> {
    Devices::open(&[device(path)], SEGMENT)
}

/// The error of opening one device.
fn refusal(path: &Path) -> String {
    let error = open(path).expect_err("it is refused").to_string();
    assert!(error.starts_with(&format!("cannot open flash device {}: ", path.display())), "{error}");
    assert!(error.contains("; "), "an error says what to do: {error}");
    error
}

fn header(path: &Path) -> DeviceHeader {
    let mut page = [0; HEADER_BYTES];
    File::open(path).expect("it exists").read_exact_at(&mut page, 0).expect("it has a header");
    DeviceHeader::decode(&page).expect("it has a header")
}

fn check_identity(devices: &Devices, number: usize) -> Result<(), IdentityError> {
    let mut page = PageBuffer::from_slice(HEADER_BYTES, &[0; HEADER_BYTES]);
    let len = devices.file(number).read_at(&mut page, 0).expect("read");
    devices.check_identity(number, &page[..len])
}

#[test]
fn new_file_is_allocated_and_kept() {
    let folder = folder();
    let path = folder.path().join("a");
    let devices = open(&path).expect("a new device");
    assert_eq!((devices.count(), devices.device_bytes(), devices.path(0)), (1, vec![5 * SEGMENT], &*path));
    let metadata = path.metadata().expect("it exists");
    assert_eq!((metadata.len(), metadata.permissions().mode() & 0o7777), (BYTES, 0o600));
    assert!(metadata.blocks() * 512 >= BYTES, "its bytes are allocated");
    let first = header(&path);
    assert_eq!((first.number, first.count, first.bytes, first.segment_bytes), (0, 1, BYTES, SEGMENT));
    check_identity(&devices, 0).expect("it is the device");
    // The last page of the last segment, with the alignment that direct I/O needs.
    let page = PageBuffer::from_slice(HEADER_BYTES, &[7; HEADER_BYTES]);
    let last = file_offset(5 * SEGMENT) - HEADER_BYTES as u64;
    devices.file(0).write_all_at(&page, last).expect("written");
    drop(devices);

    // With more bytes.
    let larger = DeviceSettings { path: path.clone(), bytes: BYTES + SEGMENT };
    let devices = Devices::open(&[larger], SEGMENT).expect("our device");
    assert_eq!(devices.device_bytes(), [6 * SEGMENT]);
    let second = header(&path);
    assert_eq!(second.device_id, first.device_id, "a device keeps its id");
    assert_ne!(second.set_id, first.set_id, "each opening has an id");
    assert_ne!(first.device_id, first.set_id);
    let mut byte = [0];
    File::open(&path).expect("it exists").read_exact_at(&mut byte, last).expect("its bytes");
    assert_eq!(byte, [7], "the segments' bytes stay");
    assert_eq!(path.metadata().expect("it exists").len(), BYTES + SEGMENT);
    drop(devices);
    // With fewer bytes the file keeps its length.
    open(&path).expect("our device");
    assert_eq!(path.metadata().expect("it exists").len(), BYTES + SEGMENT);
}

#[test]
fn files_are_ready_for_io_uring() {
    let folder = folder();
    let devices = open(&folder.path().join("a")).expect("a new device");
    let flags = rustix::fs::fcntl_getfl(devices.file(0)).expect("it is open");
    assert!(!flags.contains(OFlags::NONBLOCK), "requests wait for the device");
    let is_direct_possible = File::options()
        .read(true)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(folder.path().join("a"))
        .is_ok();
    assert_eq!(flags.contains(OFlags::DIRECT), is_direct_possible);
}

#[test]
fn several_devices_form_a_set() {
    let folder = folder();
    let paths = ["a", "b", "c"].map(|name| folder.path().join(name));
    File::options().write(true).create_new(true).mode(0o600).open(&paths[1]).expect("an empty file");
    let devices = Devices::open(&paths.clone().map(device), SEGMENT).expect("three devices");
    assert_eq!(devices.device_bytes(), [5 * SEGMENT; 3]);
    let headers = paths.each_ref().map(|path| header(path));
    for (number, header) in headers.iter().enumerate() {
        assert_eq!((header.number, header.count), (number as u32, 3));
        assert_eq!(header.set_id, headers[0].set_id);
        check_identity(&devices, number).expect("it is the device");
    }
    assert_ne!(headers[0].device_id, headers[1].device_id);
}

#[test]
fn devices_keep_their_set_until_the_next_begins() {
    let folder = folder();
    let [a, b, c] = ["a", "b", "c"].map(|name| device(folder.path().join(name)));
    let set = [a.clone(), b.clone()];
    let first = Devices::open(&set, SEGMENT).expect("new devices").set_id();
    // Starts that fail, with these devices, and with another order and a new one.
    for (settings, why) in [
        (vec![a.clone(), b.clone()], None),
        (vec![b.clone(), a.clone()], Some("was number 2 of 2 devices")),
        (vec![a.clone(), b.clone(), c.clone()], Some("was number 1 of 2 devices")),
        (vec![c.clone(), b.clone()], Some("was number 3 of 3 devices")),
    ] {
        let devices = Devices::prepare(&settings, SEGMENT).expect("devices");
        assert_eq!(devices.previous_set_id(), why.is_none().then_some(first));
        let found = devices.why_new_set().unwrap_or_default();
        assert!(why.is_none_or(|why| found.contains(why)), "{found}");
        assert_eq!((header(&a.path).set_id, header(&b.path).set_id), (first, first));
    }
    let mut devices = Devices::prepare(&set, SEGMENT).expect("our devices");
    check_identity(&devices, 0).expect_err("it is not this opening's yet");
    devices.begin().expect("the devices work");
    assert_eq!(header(&b.path).set_id, devices.set_id());
    check_identity(&devices, 0).expect("it is the device");
    drop(devices);
    let third = Devices::open(&[a, c], SEGMENT).expect("devices");
    let why = third.why_new_set().expect("they were of different sets");
    assert!(why.contains("were last used in different sets"), "{why}");
}

#[test]
fn same_devices_have_a_previous_set() {
    let folder = folder();
    let [a, b, c] = ["a", "b", "c"].map(|name| device(folder.path().join(name)));
    // Opens the devices; returns the ids of the set before and of this one.
    let open = |settings: &[&DeviceSettings], segment_bytes| {
        let settings: Vec<_> = settings.iter().copied().cloned().collect();
        let devices = Devices::open(&settings, segment_bytes).expect("devices");
        (devices.previous_set_id(), devices.set_id())
    };
    let (previous, first) = open(&[&a, &b], SEGMENT);
    assert_eq!((previous, header(&a.path).set_id), (None, first));
    let (previous, second) = open(&[&a, &b], SEGMENT);
    assert_eq!(previous, Some(first));
    assert_ne!(second, first);
    let larger = DeviceSettings { bytes: BYTES + SEGMENT, ..b.clone() };
    let others: [(&[&DeviceSettings], u64); 5] = [
        (&[&b, &a], SEGMENT),
        (&[&a], SEGMENT),
        (&[&a, &b, &c], SEGMENT),
        (&[&a, &b], SEGMENT / 2),
        (&[&a, &larger], SEGMENT),
    ];
    for (settings, segment_bytes) in others {
        open(&[&a, &b], SEGMENT);
        assert_eq!(open(settings, segment_bytes).0, None);
    }
    // Each was a device of the same number in a set of two, but of another set.
    open(&[&a, &b], SEGMENT);
    open(&[&c, &b], SEGMENT);
    assert_eq!(open(&[&a, &b], SEGMENT).0, None);
}

#[test]
fn foreign_contents_are_refused_and_stay() {
    let folder = folder();
    let path = folder.path().join("a");
    drop(open(&path).expect("a new device"));
    let ours = fs::read(&path).expect("it exists");
    let changed = |at: usize, byte| {
        let mut bytes = ours.clone();
        bytes[at] = byte;
        bytes
    };
    let cases = [
        (b"my thesis".to_vec(), "does not begin with"),
        (vec![0; 3 << 20], "does not begin with"),
        (changed(3, b'F'), "does not begin with"),
        (ours[..HEADER_BYTES - 1].to_vec(), "does not begin with"),
        (changed(8, 2), "version 2"),
        (changed(60, 9), "damaged"),
    ];
    for (contents, expected) in cases {
        fs::write(&path, &contents).expect("written");
        let error = refusal(&path);
        assert!(error.contains(expected) && error.contains("remove it"), "{error}");
        assert!(fs::read(&path).expect("it exists") == contents, "not one byte changed");
    }
}

#[test]
fn other_kinds_of_files_are_refused() {
    let folder = folder();
    let fifo = folder.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
    assert!(refusal(folder.path()).contains("is a directory"));
    for path in [&fifo, Path::new("/dev/null")] {
        assert!(refusal(path).contains("neither a file nor a block device"));
    }
    assert!(refusal(&folder.path().join("none/a")).contains("create its directory"));
    let dangling = folder.path().join("dangling");
    let nothing = folder.path().join("nothing");
    symlink(&nothing, &dangling).expect("a name");
    let expected = format!("it is a symbolic link to {}, which does not exist; ", nothing.display());
    assert!(refusal(&dangling).contains(&expected));
    assert!(!nothing.exists());
    let open_to_all = folder.path().join("a");
    fs::write(&open_to_all, "").expect("written");
    fs::set_permissions(&open_to_all, fs::Permissions::from_mode(0o622)).expect("changed");
    assert!(refusal(&open_to_all).contains("set mode 600"));
    if rustix::process::geteuid().is_root() {
        fs::set_permissions(&open_to_all, fs::Permissions::from_mode(0o600)).expect("changed");
        std::os::unix::fs::chown(&open_to_all, Some(1), None).expect("changed");
        assert!(refusal(&open_to_all).contains("belongs to user 1"));
    } else {
        fs::set_permissions(&open_to_all, fs::Permissions::from_mode(0o400)).expect("changed");
        assert!(refusal(&open_to_all).contains("let the server's user"));
    }
    assert_eq!(open_to_all.metadata().expect("it exists").len(), 0);
}

#[test]
fn no_file_is_created_under_dev() {
    let folder = folder();
    let name = format!("fabcached-no-device-{}", std::process::id());
    symlink("/dev", folder.path().join("devices")).expect("a name");
    for path in [Path::new("/dev").join(&name), folder.path().join("devices").join(&name)] {
        let error = refusal(&path);
        assert!(!path.exists(), "nothing is created");
        assert!(
            error.contains("there is no such device, and the server creates no file under /dev"),
            "{error}"
        );
    }
    // Not a folder of devices: a file system in memory.
    let in_memory = Path::new("/dev/shm").join(&name);
    if Path::new("/dev/shm").is_dir() {
        let opened = open(&in_memory);
        let _ = fs::remove_file(&in_memory);
        let error = opened.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(!error.contains("under /dev"), "{error}");
    }
}

#[test]
fn sizes_without_room_are_refused() {
    let folder = folder();
    let (new, empty) = (folder.path().join("new"), folder.path().join("empty"));
    File::options().write(true).create_new(true).mode(0o600).open(&empty).expect("an empty file");
    for path in [&new, &empty] {
        let huge = DeviceSettings { path: path.clone(), bytes: 1 << 50 };
        let error = Devices::open(&[huge], SEGMENT).expect_err("no disk has that much").to_string();
        assert!(error.contains("no room for 1125899906842624 bytes, only for "), "{error}");
        // Less than a segment, and too few segments.
        let settings = |bytes| DeviceSettings { path: path.clone(), bytes };
        let error =
            Devices::open(&[settings(HEADER_AREA_BYTES + SEGMENT - 1)], SEGMENT).expect_err("too short");
        assert!(error.to_string().contains("have no room for a header"), "{error}");
        let error =
            Devices::open(&[settings(HEADER_AREA_BYTES + 3 * SEGMENT)], SEGMENT).expect_err("too few");
        assert!(error.to_string().contains("3 segments"), "{error}");
    }
    assert!(!new.exists(), "a file that is not used is removed");
    assert_eq!(empty.metadata().expect("it exists").len(), 0, "an existing one is not");
}

#[test]
fn created_files_are_removed_if_another_device_is_refused() {
    let folder = folder();
    let (old, new, foreign) =
        (folder.path().join("old"), folder.path().join("new"), folder.path().join("foreign"));
    drop(open(&old).expect("a new device"));
    let before = header(&old);
    fs::write(&foreign, "something").expect("written");
    Devices::open(&[&old, &new, &foreign].map(device), SEGMENT).expect_err("one is foreign");
    assert!(!new.exists());
    assert_eq!(header(&old), before);
    open(&old).expect("nothing holds its lock");
}

#[test]
fn device_has_one_server() {
    let folder = folder();
    let path = folder.path().join("a");
    let devices = open(&path).expect("a new device");
    assert!(refusal(&path).contains("another server uses it"));
    let file = Arc::clone(devices.file(0));
    drop(devices);
    assert!(refusal(&path).contains("another server uses it"), "a request in flight may still write");
    drop(file);
    open(&path).expect("our device");
}

#[test]
fn device_is_named_once() {
    let folder = folder();
    let names = ["a", "symbolic", "hard", "./a"].map(|name| folder.path().join(name));
    drop(open(&names[0]).expect("a new device"));
    symlink(&names[0], &names[1]).expect("a name");
    fs::hard_link(&names[0], &names[2]).expect("a name");
    for name in &names {
        let error = Devices::open(&[&names[0], name].map(device), SEGMENT).expect_err("twice the same");
        assert!(error.to_string().contains("give each device once"), "{error}");
    }
    let new = folder.path().join("new");
    let error = Devices::open(&[&new, &new].map(device), SEGMENT).expect_err("twice the same");
    assert!(error.to_string().contains("give each device once"), "{error}");
    assert!(!new.exists());
}

#[test]
fn swapped_devices_are_noticed() {
    let folder = folder();
    let (path, other) = (folder.path().join("a"), folder.path().join("b"));
    drop(open(&other).expect("a new device"));
    let devices = open(&path).expect("a new device");
    let mut page = [0; HEADER_BYTES];
    File::open(&path).expect("it exists").read_exact_at(&mut page, 0).expect("its header");
    let overwrite = |bytes: &[u8]| {
        let file = File::options().write(true).open(&path).expect("it exists");
        file.write_all_at(bytes, 0).expect("written");
        check_identity(&devices, 0)
    };
    let others = fs::read(&other).expect("it exists");
    assert!(matches!(overwrite(&others[..HEADER_BYTES]), Err(IdentityError::Other)));
    let foreign = overwrite(&[9; HEADER_BYTES]);
    assert!(matches!(foreign, Err(IdentityError::Header(HeaderError::Foreign))));
    overwrite(&page).expect("it is the device again");

    let moved = folder.path().join("moved");
    fs::rename(&path, &moved).expect("moved");
    assert!(matches!(check_identity(&devices, 0), Err(IdentityError::Replaced)));
    fs::rename(&other, &path).expect("moved");
    assert!(matches!(check_identity(&devices, 0), Err(IdentityError::Replaced)));
    fs::rename(&moved, &path).expect("moved");
    check_identity(&devices, 0).expect("it is the device again");
    File::options().write(true).open(&path).expect("it exists").set_len(0).expect("shortened");
    assert!(matches!(check_identity(&devices, 0), Err(IdentityError::Header(HeaderError::Foreign))));
}
