//! The workspace's folders and build products.

use std::fs;
use std::os::unix::fs::PermissionsExt;
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

/// Lets cargo build this workspace's crates without some guards (`--cfg fabcache_without="X"`). Unlike RUSTFLAGS, this leaves other
/// crates as they are, so all such builds share them.
///
/// # Errors
/// The compiler's wrapper cannot be written.
pub fn leave_out(cargo: &mut Command, guards: &[&str]) -> Result<()> {
    let folder = target().join("without");
    let wrapper = folder.join(guards.join("-"));
    let flags: String = guards.iter().map(|guard| format!(" --cfg 'fabcache_without=\"{guard}\"'")).collect();
    let written = fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&wrapper, format!("#!/bin/sh\nexec \"$@\"{flags}\n")))
        .and_then(|()| fs::set_permissions(&wrapper, PermissionsExt::from_mode(0o755)));
    written.with_context(|| format!("{} cannot be written", wrapper.display()))?;
    cargo.env("RUSTC_WORKSPACE_WRAPPER", wrapper);
    Ok(())
}

/// Builds the server for release; returns its program.
///
/// # Errors
/// The workspace does not build.
pub fn build_server() -> Result<PathBuf> {
    Ok(build()?.join("fabcached"))
}

/// Builds the server for release without some guards, and returns its program. It lies where nothing else looks for a server.
///
/// # Errors
/// The server does not build.
pub fn build_server_without(guards: &[&str]) -> Result<PathBuf> {
    let target = target().join("without/server");
    let mut cargo = cargo();
    cargo.args(["build", "--release", "--package", "fabcache-server", "--bin", "fabcached", "--target-dir"]);
    // Linking takes longer with it than what the program is for.
    cargo.arg(&target).env("CARGO_PROFILE_RELEASE_LTO", "off");
    leave_out(&mut cargo, guards)?;
    let status = cargo.status().context("cargo cannot be started")?;
    ensure!(status.success(), "the server does not build without {}", guards.join(", "));
    Ok(target.join("release/fabcached"))
}

/// Builds the command-line tool for release; returns its program.
///
/// # Errors
/// The workspace does not build.
pub fn build_tool() -> Result<PathBuf> {
    Ok(build()?.join("fabcache"))
}

/// Builds the C library for release; returns its file.
///
/// # Errors
/// The workspace does not build.
pub fn build_library() -> Result<PathBuf> {
    Ok(build()?.join("libfabcache.so"))
}

/// Builds the workspace for release; returns the output folder.
///
/// All of it: for link-time optimisation cargo builds the dependencies of one program otherwise, and so anew.
fn build() -> Result<PathBuf> {
    let target = target();
    let mut cargo = cargo();
    cargo.args(["build", "--release", "--workspace", "--target-dir"]).arg(&target);
    let status = cargo.status().context("cargo cannot be started")?;
    ensure!(status.success(), "the workspace does not build");
    Ok(target.join("release"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns the version and date of the newest release in a changelog.
    fn newest(changelog: &str) -> Option<(&str, &str)> {
        let mut heads = changelog.lines().filter_map(|line| line.strip_prefix("## ["));
        let (_, release) = (heads.next().filter(|head| *head == "Unreleased]")?, heads.next()?);
        release.split_once("] - ")
    }

    #[test]
    fn version_is_the_changelogs_newest() {
        let read = |name: &str| fs::read_to_string(folder().join(name)).expect("a file of the repository");
        let changelog = read("CHANGELOG.md");
        let (version, date) = newest(&changelog).expect("[Unreleased], and below it [X.Y.Z] - YYYY-MM-DD");
        assert_eq!(version, env!("CARGO_PKG_VERSION"), "CHANGELOG.md and Cargo.toml");
        let numbers: Vec<&str> = date.split('-').collect();
        assert!(numbers.iter().map(|number| number.len()).eq([4, 2, 2]), "{date}: not YYYY-MM-DD");
        assert!(numbers.iter().all(|number| number.parse::<u16>().is_ok()), "{date}: not YYYY-MM-DD");
        let wheel = read("bindings/python/Cargo.toml");
        let line = wheel.lines().find(|line| line.starts_with("version = ")).expect("a version");
        assert_eq!(line, format!("version = \"{version}\""), "bindings/python/Cargo.toml");
    }
}
