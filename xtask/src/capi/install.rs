//! Installs the C library.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{header, pages};
use crate::workspace;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Installs lib, include and share/man.
#[derive(clap::Args)]
pub struct InstallArgs {
    /// The folder in which the library is used
    #[arg(long, value_name = "FOLDER", default_value = "/usr/local")]
    prefix: PathBuf,
    /// Write below this folder instead; a packager moves the files to the prefix
    #[arg(long, value_name = "FOLDER")]
    destdir: Option<PathBuf>,
}

/// Builds the library for release and installs it.
/// Builds the library for release and installs it.
/// # Errors
/// The library does not build, or a file cannot be written.
pub fn run(args: &InstallArgs) -> Result<()> {
    let prefix = std::path::absolute(&args.prefix)?;
    let root = match &args.destdir {
        None => prefix.clone(),
        Some(folder) => std::path::absolute(folder)?.join(prefix.strip_prefix("/")?),
    };
    into(&root, &prefix)?;
    println!("libfabcache {VERSION} is in {}", root.display());
    if args.destdir.is_none() {
        let lib = root.join("lib");
        println!("programs find it once ldconfig has seen {0}, or with LD_LIBRARY_PATH={0}", lib.display());
    }
    Ok(())
}

/// The header of RDMA-Memcached's calls, installed with libmemcached's headers.
const REQUESTS: &str = "libmemcached/requests.h";

/// Debian's libraries that libfabcache.so replaces, by soname. They have their own folder, so that only
/// programs that search it get this library.
pub const LIBRARIES: [&str; 3] = ["libmemcached.so.11", "libmemcachedutil.so.2", "libhashkit.so.2"];

/// Returns the soname that linked programs load.
pub fn soname() -> String {
    format!("libfabcache.so.{}", env!("CARGO_PKG_VERSION_MAJOR"))
}

/// Installs into `root` the files that are used in `prefix`.
///
/// # Errors
/// As for [`run`].
pub fn into(root: &Path, prefix: &Path) -> Result<()> {
    let library = workspace::build_library()?;
    let (lib, include) = (root.join("lib"), root.join("include"));
    let full = format!("libfabcache.so.{VERSION}");
    put(&lib.join(&full), &fs::read(&library).with_context(|| unreadable(&library))?)?;
    link(&lib.join(soname()), &full)?;
    link(&lib.join("libfabcache.so"), &soname())?;
    for name in LIBRARIES {
        link(&lib.join("fabcache").join(name), &format!("../{}", soname()))?;
    }
    let text = fs::read_to_string(header::path()).with_context(|| unreadable(&header::path()))?;
    put(&include.join("fabcache.h"), text.as_bytes())?;
    let requests = workspace::folder().join("bindings/c/include").join(REQUESTS);
    put(&include.join(REQUESTS), &fs::read(&requests).with_context(|| unreadable(&requests))?)?;
    let template = workspace::folder().join("bindings/c/fabcache.pc.in");
    let config = fs::read_to_string(&template).with_context(|| unreadable(&template))?;
    let config = config.replace("@prefix@", &prefix.display().to_string()).replace("@version@", VERSION);
    put(&lib.join("pkgconfig/fabcache.pc"), config.as_bytes())?;
    for page in pages::all(&text)? {
        let folder = root.join("share/man").join(format!("man{}", page.section));
        let file = |name: &str| format!("{name}.{}", page.section);
        let [first, others @ ..] = &page.names[..] else { continue };
        put(&folder.join(file(first)), page.text.as_bytes())?;
        for name in others {
            link(&folder.join(file(name)), &file(first))?;
        }
    }
    Ok(())
}

/// Writes a new file, so that programs that use the old one keep it.
fn put(path: &Path, content: &[u8]) -> Result<()> {
    clear(path)?;
    fs::write(path, content).with_context(|| format!("{} cannot be written", path.display()))
}

fn link(path: &Path, to: &str) -> Result<()> {
    clear(path)?;
    symlink(to, path).with_context(|| format!("{} cannot be made", path.display()))
}

/// Creates the file's folder, and removes an existing file.
fn clear(path: &Path) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{} cannot be replaced", path.display()))
        }
        _ => Ok(()),
    }
}

fn unreadable(path: &Path) -> String {
    format!("{} cannot be read", path.display())
}
