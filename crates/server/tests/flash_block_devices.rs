//! The block devices of the flash tier: which are used, which are refused, and what changes in them. The tests run where
//! this user may attach loop devices.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use fabcache_server::flash::device_header::{DeviceHeader, HEADER_BYTES};
use fabcache_server::flash::{DeviceSettings, Devices, HEADER_AREA_BYTES};
use fabcache_testbed::cleanup::Folder;
use fabcache_testbed::report::not_run;
use fabcache_uring::PageBuffer;

const SEGMENT: u64 = 1 << 20;
const BYTES: u64 = HEADER_AREA_BYTES + 5 * SEGMENT;

fn device(path: impl Into<PathBuf>) -> DeviceSettings {
    DeviceSettings { path: path.into(), bytes: BYTES }
}

fn open(path: &Path) -> anyhow::Result<Devices> {
    Devices::open(&[device(path)], SEGMENT)
}

fn refusal(path: &Path) -> String {
    open(path).expect_err("it is refused").to_string()
}

fn header(path: &Path) -> DeviceHeader {
    let mut page = [0; HEADER_BYTES];
    File::open(path).expect("it exists").read_exact_at(&mut page, 0).expect("it has a header");
    DeviceHeader::decode(&page).expect("it has a header")
}

/// A file as a block device.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn new(file: &Path) -> Option<LoopDevice> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        match output {
            Ok(output) if output.status.success() => {
                let path = String::from_utf8(output.stdout).expect("a path");
                Some(LoopDevice(path.trim_end().into()))
            }
            other => {
                not_run("the tests that need a loop device", &format!("{other:?}"));
                None
            }
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn block_devices_are_used_if_they_begin_with_zeros() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = Folder::new_in(target, "flash").expect("a folder");
    let path = folder.path().join("disk");
    let file = File::create(&path).expect("a file");
    file.set_len(BYTES).expect("room");
    let Some(disk) = LoopDevice::new(&path) else { return };
    let devices = open(&disk.0).expect("an empty device");
    assert_eq!(devices.device_bytes(), [5 * SEGMENT]);
    let mut page = PageBuffer::from_slice(HEADER_BYTES, &[0; HEADER_BYTES]);
    devices.file(0).read_exact_at(&mut page, 0).expect("read");
    devices.check_identity(0, &page).expect("it is the device");
    // Under another name, too.
    let name = folder.path().join("name");
    let number = disk.0.metadata().expect("it exists").rdev();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &name, rustix::fs::FileType::BlockDevice, mode, number)
        .expect("a node");
    // Where it lies, device nodes may be without effect.
    if File::open(&name).is_ok() {
        assert!(refusal(&name).contains("busy"));
    }
    assert!(refusal(&disk.0).contains("busy"));
    let id = header(&disk.0).device_id;
    drop(devices);
    let devices = open(&disk.0).expect("our device");
    assert_eq!(header(&disk.0).device_id, id);
    drop(devices);
    let twice = Devices::open(&[&disk.0, &name].map(device), SEGMENT).expect_err("twice the same");
    assert!(twice.to_string().contains("give each device once"), "{twice}");
    let larger = DeviceSettings { path: disk.0.clone(), bytes: BYTES + 4096 };
    let error = Devices::open(&[larger], SEGMENT).expect_err("it is shorter").to_string();
    assert!(error.contains(&format!("request at most {BYTES}")), "{error}");
    // A mark of another system, as LVM has it, then one at the end of the header area.
    for at in [512, HEADER_AREA_BYTES - 1] {
        let raw = File::options().read(true).write(true).open(&disk.0).expect("it exists");
        raw.write_all_at(&vec![0; HEADER_AREA_BYTES as usize], 0).expect("written");
        raw.write_all_at(&[1], at).expect("written");
        let mut before = vec![0; BYTES as usize];
        raw.read_exact_at(&mut before, 0).expect("read");
        assert!(refusal(&disk.0).contains("blkdiscard"));
        let mut after = vec![0; BYTES as usize];
        raw.read_exact_at(&mut after, 0).expect("read");
        assert!(before == after, "not one byte changed");
    }
}
