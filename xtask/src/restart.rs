//! `cargo xtask restart`: runs memcached's own test of a restart (t/restart.t) with fabcached in memcached's place.
//!
//! The test comes from a built source folder of memcached. It runs in a folder of links, so the source folder does not
//! change.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::process::{self, Interrupt, Scratch};
use crate::workspace;

/// The test, in a source folder of memcached.
const TEST: &str = "t/restart.t";

/// The program that starts the test's servers, which memcached's `make` builds.
const STARTER: &str = "timedrun";

/// The name under which the test starts its servers.
const SERVER: &str = "memcached-debug";

/// The test sleeps for 13 seconds, and stores 2^17 items one by one.
const TIME_MAX: Duration = Duration::from_secs(300);

/// Starts of the names of the test's memory file and sockets; the number of its process follows.
const NAMES: [&str; 2] = ["/tmp/mc_restart.", "/tmp/memcachetest."];

/// Characters shown of a line: a failed comparison prints the whole value.
const LINE_CHARS_MAX: usize = 200;

/// Variables that make the test use another server, or start it in another way.
const FOREIGN_VARIABLES: &[&str] = &[
    "T_MEMD_EXTERNAL",
    "T_MEMD_USE_DAEMON",
    "VALGRIND_TEST",
    "SSL_TEST",
    "RUST_LOG",
    "PERL5OPT",
    "HARNESS_OPTIONS",
];

/// Runs memcached's own test of a restart, t/restart.t, with fabcached in memcached's place.
#[derive(clap::Args)]
pub struct Args {
    /// A source folder of memcached in which it was built; without one, nothing is checked
    #[arg(long, value_name = "DIR")]
    memcached: Option<PathBuf>,
    /// The server to test [default: the workspace's own, built for release]
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
}

/// Runs the test.
///
/// # Errors
/// No built source folder is named, the test cannot run, or it fails.
pub fn run(args: &Args) -> Result<()> {
    let Some(source) = &args.memcached else {
        bail!(
            "nothing was checked: the test is memcached's; unpack a source archive of \
             https://memcached.org/downloads, build it as its README says, and name its folder with --memcached"
        );
    };
    let source = source.canonicalize().with_context(|| format!("{} cannot be used", source.display()))?;
    for name in [TEST, STARTER] {
        ensure!(
            source.join(name).is_file(),
            "nothing was checked: {} has no {name}; --memcached needs a source folder of memcached in which it was \
             built",
            source.display(),
        );
    }
    let server = match &args.server {
        Some(server) => server.clone(),
        None => workspace::build_server()?,
    };
    let server = server.canonicalize().with_context(|| format!("{} cannot be used", server.display()))?;
    let prove = Command::new("prove").arg("--version").output();
    prove.context("nothing was checked: prove (Debian: perl) cannot be started")?;
    let interrupt = Interrupt::register()?;
    let folder = Scratch::create()?;
    for (target, name) in [(source.join("t"), "t"), (source.join(STARTER), STARTER), (server, SERVER)] {
        symlink(target, folder.path().join(name)).context("the test's folder cannot be made")?;
    }
    test(folder.path(), &interrupt)
}

/// Runs the test in a folder.
fn test(folder: &Path, interrupt: &Interrupt) -> Result<()> {
    let mut prove = Command::new("prove");
    prove.arg("--norc").arg(TEST).current_dir(folder);
    for variable in FOREIGN_VARIABLES {
        prove.env_remove(variable);
    }
    let _remains = Remains { folder };
    let run = process::run(&mut prove, folder, TIME_MAX, interrupt)?;
    let output = || cut(&run.stderr) + &cut(&run.stdout);
    if let Some(failure) = &run.failure {
        bail!("{}{TEST} failed: {failure}", output());
    }
    let is_ours = run.stderr.contains("took over the memory file");
    ensure!(is_ours, "{}{TEST} passed, but no fabcached took over a memory file", output());
    print!("{}", run.stdout);
    Ok(())
}

/// Returns the text with long lines cut.
fn cut(text: &str) -> String {
    text.lines().flat_map(|line| line.chars().take(LINE_CHARS_MAX).chain(['\n'])).collect()
}

/// The files in /tmp that the test and its servers leave; removed on drop, after their processes have ended.
struct Remains<'a> {
    /// The folder with the output of the test and its servers.
    folder: &'a Path,
}

impl Drop for Remains<'_> {
    fn drop(&mut self) {
        for file in files_of_the_test(&process::read(&self.folder.join("stderr"))) {
            for suffix in ["", ".lock", ".meta", ".meta.tmp"] {
                // Most do not exist.
                let _ = fs::remove_file(format!("{file}{suffix}"));
            }
        }
    }
}

/// Returns the test's files that the logs of its servers name.
fn files_of_the_test(log: &str) -> impl Iterator<Item = &str> {
    let is_number = |rest: &str| rest.chars().all(|char| char.is_ascii_digit() || char == '.');
    let words = log.split([' ', '\n', ',', ':']);
    words.filter(move |word| NAMES.iter().any(|name| word.strip_prefix(name).is_some_and(is_number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_test_are_removed() {
        let log = "# restart basic stats\n\
            2026-01-01T00:00:00Z  INFO the memory file /tmp/mc_restart.12 is new\n\
            2026-01-01T00:00:00Z  INFO ready for memcached clients at /tmp/memcachetest.12.0\n\
            2026-01-01T00:00:00Z ERROR cannot use the memory file /tmp/mc_restart.14: it holds something else\n\
            2026-01-01T00:00:00Z  INFO the memory file /dev/shm/fabcache is new\n\
            2026-01-01T00:00:00Z  INFO the memory file /tmp/mc_restart.15/../region is new\n";
        let files: Vec<&str> = files_of_the_test(log).collect();
        assert_eq!(files, ["/tmp/mc_restart.12", "/tmp/memcachetest.12.0", "/tmp/mc_restart.14"]);
    }
}
