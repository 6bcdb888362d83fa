//! Debian's generic kernel, unpacked but not installed, and its initial files.
//!
//! The cloud flavour lacks soft-RoCE. The unpacked kernel stays under the target directory, and is then
//! used without asking Debian.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::archive::Archive;
use crate::process::{self, Interrupt, Scratch};

/// The package that depends on Debian's newest kernel.
const NEWEST: &str = "linux-image-amd64";

/// Time limit of a download of some 70 megabytes.
const FETCH_TIME_MAX: Duration = Duration::from_secs(600);

/// Paths in the package: the kernel, and the folders of the needed modules.
const UNPACKED: &[&str] = &[
    "./boot/vmlinuz-*",
    "*/modules.builtin*",
    "*/modules.order",
    "*/kernel/drivers/virtio/*",
    "*/kernel/drivers/infiniband/core/*",
    "*/kernel/drivers/infiniband/sw/rxe/*",
    "*/kernel/drivers/net/veth.ko*",
    "*/kernel/net/9p/*",
    "*/kernel/net/ipv4/udp_tunnel.ko*",
    "*/kernel/net/ipv6/ip6_udp_tunnel.ko*",
    "*/kernel/fs/9p/*",
    "*/kernel/fs/netfs/*",
    "*/kernel/fs/fscache/*",
    "*/kernel/fs/overlayfs/*",
    "*/kernel/fs/configfs/*",
    "*/kernel/crypto/crc32_generic.ko*",
];

/// The modules to load. Soft-RoCE requests its checksum by name, which the dependency list does not
/// show.
const MODULES: &[&str] = &[
    "virtio_pci",
    "9p",
    "9pnet_virtio",
    "overlay",
    "veth",
    "crc32_generic",
    "ib_uverbs",
    "rdma_rxe",
    "rdma_ucm",
];

/// An unpacked kernel and its modules.
pub struct Kernel {
    folder: PathBuf,
    version: String,
}

impl Kernel {
    /// Returns the cached kernel, or fetches Debian's newest.
    ///
    /// # Errors
    /// The kernel cannot be fetched or unpacked.
    pub fn ready(cache: &Path, interrupt: &Interrupt) -> Result<Self> {
        let folder = cache.join("kernel");
        if !folder.exists() {
            let name = newest(interrupt)?;
            println!("{name} is fetched, not installed");
            // Unpacked in a scratch folder and renamed: complete or absent, also with concurrent runs.
            let scratch = Scratch::create()?;
            let package = download(&name, scratch.path(), interrupt)?;
            let unfinished = cache.join(format!("kernel.{}", std::process::id()));
            fs::create_dir_all(&unfinished)?;
            let unpacked = unpack(&package, &unfinished);
            if unpacked.is_ok() && !folder.exists() {
                fs::rename(&unfinished, &folder)
                    .with_context(|| format!("{} cannot be made", folder.display()))?;
            } else {
                let _ = fs::remove_dir_all(&unfinished);
            }
            unpacked?;
        }
        let version = version(&folder)?;
        Ok(Self { folder, version })
    }

    /// Returns the kernel's version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the kernel's file.
    pub fn image(&self) -> PathBuf {
        self.folder.join(format!("boot/vmlinuz-{}", self.version))
    }

    /// Returns the initial archive: busybox, the modules in loading order, and the first program.
    ///
    /// # Errors
    /// A module or busybox is missing.
    pub fn initial_files(&self, first_program: &str) -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        for folder in ["bin", "proc", "sys", "dev", "modules", "host", "above", "root"] {
            archive.folder(folder);
        }
        let busybox = fs::read("/bin/busybox").context("/bin/busybox cannot be read")?;
        archive.program("bin/busybox", &busybox);
        archive.program("init", first_program.as_bytes());
        let modules = self.folder.join("lib/modules").join(&self.version);
        let dependencies = fs::read_to_string(modules.join("modules.dep"))?;
        let builtin = fs::read_to_string(modules.join("modules.builtin"))?;
        for (i, path) in in_order(&dependencies, &builtin, MODULES)?.into_iter().enumerate() {
            let bytes = fs::read(modules.join(path)).with_context(|| format!("{path} cannot be read"))?;
            let name = path.rsplit('/').next().unwrap_or(path);
            archive.program(&format!("modules/{:02}-{name}", i), &bytes);
        }
        Ok(archive.finish())
    }
}

/// Returns the package of the newest kernel.
fn newest(interrupt: &Interrupt) -> Result<String> {
    let named = || -> Result<Option<String>> {
        let output = Command::new("apt-cache").args(["depends", NEWEST]).stderr(Stdio::null()).output();
        let output = output.context("a kernel cannot be fetched without apt-cache")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let name = text.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
        Ok(name.map(|version| format!("linux-image-{version}")))
    };
    if let Some(name) = named()? {
        return Ok(name);
    }
    update(interrupt)?;
    named()?.with_context(|| format!("apt-cache does not know {NEWEST}: a kernel cannot be fetched"))
}

fn update(interrupt: &Interrupt) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "the lists of packages are absent or old, and only root can renew them (apt-get update)"
    );
    succeed(Command::new("apt-get").args(["update", "--quiet"]), interrupt)
}

fn download(name: &str, folder: &Path, interrupt: &Interrupt) -> Result<PathBuf> {
    let fetch = || {
        // Not as apt's own user, who may not write here.
        let options = ["-o", "APT::Sandbox::User=root", "download", name];
        succeed(Command::new("apt-get").args(options).current_dir(folder), interrupt)
    };
    // The package lists may be outdated.
    fetch().or_else(|error| update(interrupt).map_err(|_| error).and_then(|()| fetch()))?;
    file_of(folder, |name| name.ends_with(".deb"))
        .with_context(|| format!("the kernel {name} cannot be fetched"))
}

fn succeed(command: &mut Command, interrupt: &Interrupt) -> Result<()> {
    let scratch = Scratch::create()?;
    let run = process::run(command, scratch.path(), FETCH_TIME_MAX, interrupt)?;
    match run.failure {
        Some(failure) => bail!("{command:?}: {failure}\n{}", run.stderr),
        None => Ok(()),
    }
}

fn unpack(package: &Path, folder: &Path) -> Result<()> {
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.arg("--fsys-tarfile").arg(package).stdout(Stdio::piped());
    let mut dpkg = dpkg.spawn().context("dpkg-deb cannot be started")?;
    let archive = dpkg.stdout.take().context("it has an output")?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--wildcards", "--directory"]).arg(folder).args(UNPACKED);
    // tar complains about patterns without a match, as for features built into the kernel. Missing files
    // are reported later.
    let _ = tar.stdin(archive).stderr(Stdio::null()).status().context("tar cannot be started")?;
    ensure!(dpkg.wait()?.success(), "{} cannot be unpacked", package.display());
    let version = version(folder)?;
    let usr = folder.join("usr/lib");
    if usr.exists() {
        fs::rename(usr, folder.join("lib"))?;
    }
    let depmod = Command::new("/sbin/depmod").arg("-b").arg(folder).arg(&version).status();
    ensure!(depmod.context("depmod cannot be started")?.success(), "depmod failed");
    Ok(())
}

fn version(folder: &Path) -> Result<String> {
    let kernel = file_of(&folder.join("boot"), |name| name.starts_with("vmlinuz-"));
    let name = kernel.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    let version = name.and_then(|name| name.strip_prefix("vmlinuz-"));
    Ok(version.with_context(|| format!("{} holds no kernel; remove it", folder.display()))?.to_owned())
}

fn file_of(folder: &Path, is_it: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    entries.map(|entry| entry.path()).find(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(&is_it)
    })
}

/// Returns the files of modules and their dependencies, each after its dependencies.
fn in_order<'a>(dependencies: &'a str, builtin: &str, wanted: &[&str]) -> Result<Vec<&'a str>> {
    let mut order: Vec<&str> = Vec::new();
    for module in wanted {
        let of = |line: &'a str| line.split_once(':').filter(|(path, _)| name_of(path) == *module);
        let Some((path, needs)) = dependencies.lines().find_map(of) else {
            ensure!(
                builtin.lines().any(|path| name_of(path) == *module),
                "the kernel has no module {module}; remove its folder to have another one fetched"
            );
            continue;
        };
        // A module's dependencies follow it.
        for file in needs.split_whitespace().rev().chain([path]) {
            if !order.contains(&file) {
                order.push(file);
            }
        }
    }
    Ok(order)
}

/// A module's name, of its file.
fn name_of(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_what_they_need() {
        let dependencies = "kernel/a/one.ko: kernel/a/two-b.ko kernel/c/three.ko\nkernel/a/two-b.ko: kernel/c/three.ko\n\
                            kernel/c/three.ko:\nkernel/d/four.ko.xz:\n";
        let order = |wanted: &[&str]| in_order(dependencies, "kernel/e/five.ko\n", wanted);
        let files = ["kernel/c/three.ko", "kernel/a/two-b.ko", "kernel/a/one.ko", "kernel/d/four.ko.xz"];
        assert_eq!(order(&["two_b", "one", "five", "four"]).unwrap(), files);
        assert_eq!(order(&["one", "four", "three"]).unwrap(), files);
        assert!(order(&["six"]).unwrap_err().to_string().contains("six"));
    }
}
