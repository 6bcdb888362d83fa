//! The workspace's folders and build products.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Returns the folder of the workspace.
pub fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace")
}

/// Returns cargo's target folder.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        // Relative to the working directory, as cargo interprets it.
        Some(folder) => std::path::absolute(&folder).unwrap_or_else(|_| folder.into()),
        None => folder().join("target"),
    }
}

/// Returns a cargo command in the workspace's folder.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(folder());
    cargo
}

/// Builds the server for release; returns its program.
///
/// # Errors
/// The server does not build.
pub fn build_server() -> Result<PathBuf> {
    // Built as part of the workspace, whose dependencies have more features, to reuse that build.
    Ok(build(&["--workspace", "--bin", "fabcached"])?.join("fabcached"))
}

/// Builds the command-line tool for release; returns its program.
///
/// # Errors
/// The tool does not build.
pub fn build_tool() -> Result<PathBuf> {
    Ok(build(&["--workspace", "--bin", "fabcache"])?.join("fabcache"))
}

/// Builds the C library for release; returns its file.
///
/// # Errors
/// The library does not build.
pub fn build_library() -> Result<PathBuf> {
    Ok(build(&["--package", "fabcache-c"])?.join("libfabcache.so"))
}

/// Builds for release; returns the output folder.
fn build(what: &[&str]) -> Result<PathBuf> {
    let target = target();
    let mut cargo = cargo();
    cargo.args(["build", "--release"]).args(what).arg("--target-dir").arg(&target);
    let status = cargo.status().context("cargo cannot be started")?;
    ensure!(status.success(), "{} does not build", what.join(" "));
    Ok(target.join("release"))
}
