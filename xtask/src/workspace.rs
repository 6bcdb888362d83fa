//! The workspace's own folders, and what is built of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The folder that the workspace is.
pub fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace")
}

/// Where cargo puts what it builds.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        // As cargo reads it: relative to where the command was given.
        Some(folder) => std::path::absolute(&folder).unwrap_or_else(|_| folder.into()),
        None => folder().join("target"),
    }
}

/// The cargo that runs this, in the workspace's folder.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(folder());
    cargo
}

/// Builds the server for release; its program.
///
/// # Errors
/// It does not build.
pub fn build_server() -> Result<PathBuf> {
    // As a part of all: what a build of the workspace left is used, whose dependencies have more features.
    Ok(build(&["--workspace", "--bin", "fabcached"])?.join("fabcached"))
}

/// Builds the command-line tool for release; its program.
///
/// # Errors
/// It does not build.
pub fn build_tool() -> Result<PathBuf> {
    Ok(build(&["--workspace", "--bin", "fabcache"])?.join("fabcache"))
}

/// Builds the library for C for release; its file.
///
/// # Errors
/// It does not build.
pub fn build_library() -> Result<PathBuf> {
    Ok(build(&["--package", "fabcache-c"])?.join("libfabcache.so"))
}

/// Builds something for release; the folder that it goes to.
fn build(what: &[&str]) -> Result<PathBuf> {
    let target = target();
    let mut cargo = cargo();
    cargo.args(["build", "--release"]).args(what).arg("--target-dir").arg(&target);
    let status = cargo.status().context("cargo cannot be started")?;
    ensure!(status.success(), "{} does not build", what.join(" "));
    Ok(target.join("release"))
}
