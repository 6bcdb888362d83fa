//! Runs third-party programs that call libmemcached with `LD_PRELOAD=libfabcache.so`, otherwise
//! unchanged.
//!
//! Each asserts on values and prints `NAME VERSION: N checks passed` at its end. It must have used the
//! transport of its row.
//!
//! PHP loads extensions with `RTLD_DEEPBIND`, so that `LD_PRELOAD` does not reach them: for PHP a
//! folder has the library under the names of Debian's libraries, and `LD_LIBRARY_PATH` is that folder.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::clients::install::make_python_ready;
use crate::clients::{Outcome, last_lines, summary_line};
use crate::process::{self, Interrupt, Scratch};
use crate::workspace;

use super::{LIBRARIES, Subject, folder};
use crate::servers::{Server, Transport};

/// Far more than the slowest program takes, which is a minute.
const PROGRAM_TIME_MAX: Duration = Duration::from_secs(240);

/// Time limit of a download.
const FETCH_TIME_MAX: Duration = Duration::from_secs(300);

/// The package whose tests are in its source distribution.
const PYLIBMC: &str = "pylibmc-1.6.3";

/// The release whose behaviour fabcached has, for programs whose expectations depend on it.
const FABCACHED_BEHAVIOUR: &str = "1.6.45";
const MEMCACHED_BEHAVIOUR: &str = "1.6.18";

/// A program, or several of one package that a script calls.
struct Program {
    name: &'static str,
    kind: Kind,
    /// Whether it supports Unix sockets.
    is_local_too: bool,
}

enum Kind {
    /// A script of tests/clients/tools.
    Tools(&'static str),
    Php,
    Pylibmc,
}

const PROGRAMS: &[Program] = &[
    // They have their own connections, and use the library for server lists, texts and hashes.
    Program { name: "memccapable", kind: Kind::Tools("memccapable.sh"), is_local_too: false },
    Program { name: "memcaslap", kind: Kind::Tools("memcaslap.sh"), is_local_too: false },
    Program { name: "memcslap", kind: Kind::Tools("memcslap.sh"), is_local_too: true },
    Program {
        name: "memcping, memcstat, memccat, memccp, memcrm, memctouch",
        kind: Kind::Tools("memctools.sh"),
        is_local_too: true,
    },
    Program { name: "pylibmc, its own tests", kind: Kind::Pylibmc, is_local_too: true },
    Program { name: "php-memcached", kind: Kind::Php, is_local_too: true },
];

/// The outcome of a program over a transport.
struct Row {
    program: &'static str,
    transport: Transport,
    outcome: Outcome,
    seconds: f64,
}

/// Runs every program over every transport that it supports, with `preloaded`, or with Debian's
/// library.
pub(super) fn run(
    subject: &Subject,
    transports: &[Transport],
    preloaded: Option<&Path>,
    interrupt: &Interrupt,
) -> Result<()> {
    let cache = subject.scratch.join("python");
    make_python_ready(&folder().join("programs"), &cache, interrupt)?;
    fetch_pylibmc(&cache, interrupt)?;
    let mut rows = Vec::new();
    for program in PROGRAMS {
        for &transport in transports.iter().filter(|transport| program.is_local_too || !transport.is_local())
        {
            let started = Instant::now();
            let outcome = run_one(program, subject, transport, &cache, preloaded, interrupt)?;
            let row =
                Row { program: program.name, transport, outcome, seconds: started.elapsed().as_secs_f64() };
            if let Outcome::Failed { report } = &row.outcome {
                println!("FAIL {} over {}:\n{report}", row.program, transport.name());
            }
            rows.push(row);
        }
    }
    show(&rows);
    let failed = rows.iter().filter(|row| matches!(row.outcome, Outcome::Failed { .. })).count();
    ensure!(failed == 0, "{failed} of {} runs of programs failed", rows.len());
    Ok(())
}

/// Downloads the sources, which contain the tests.
fn fetch_pylibmc(cache: &Path, interrupt: &Interrupt) -> Result<()> {
    if cache.join(PYLIBMC).join("tests").is_dir() {
        return Ok(());
    }
    let (name, version) = PYLIBMC.split_once('-').context("a name and a version")?;
    let mut pip = Command::new(cache.join("venv/bin/pip"));
    pip.args([
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-binary",
        ":all:",
        "--dest",
    ])
    .arg(cache)
    .arg(format!("{name}=={version}"));
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(cache.join(format!("{PYLIBMC}.tar.gz"))).arg("-C").arg(cache);
    for step in [&mut pip, &mut tar] {
        let scratch = Scratch::create()?;
        let run = process::run(step, scratch.path(), FETCH_TIME_MAX, interrupt)?;
        if let Some(failure) = run.failure {
            bail!("{step:?}: {failure}\n{}", run.stderr);
        }
    }
    ensure!(cache.join(PYLIBMC).join("tests").is_dir(), "{PYLIBMC} has no tests");
    Ok(())
}

/// Runs a program against a fresh server.
///
/// # Errors
/// The server or the program cannot be started.
fn run_one(
    program: &Program,
    subject: &Subject,
    transport: Transport,
    cache: &Path,
    preloaded: Option<&Path>,
    interrupt: &Interrupt,
) -> Result<Outcome> {
    let scratch = Scratch::create()?;
    let mut server = Server::start(&subject.programs, transport, scratch.path(), 0, interrupt)?;
    let mut command = command(program, cache);
    describe(&mut command, &server, transport, scratch.path());
    match (preloaded, &program.kind) {
        (Some(library), Kind::Php) => {
            let links = scratch.path().join("links");
            link(library, &links)?;
            command.env("LD_LIBRARY_PATH", links);
        }
        (Some(library), _) => {
            command.env("LD_PRELOAD", library);
        }
        (None, _) => {}
    }
    let run = process::run(&mut command, scratch.path(), PROGRAM_TIME_MAX, interrupt)?;
    let report = |fault: String| {
        let text = last_lines(&format!("{}{}", run.stdout, run.stderr));
        if text.is_empty() { fault } else { format!("{fault}\n{text}") }
    };
    if let Some(failure) = &run.failure {
        return Ok(Outcome::Failed { report: report(failure.clone()) });
    }
    if let Some(fault) = server.fault() {
        return Ok(Outcome::Failed { report: report(fault) });
    }
    if transport.is_fabcached() {
        let attached = server.counted("fabcache", "shm_attached")?;
        let broken = server.counted("fabcache", "shm_broken")?;
        let expected = transport == Transport::SharedMemory && preloaded.is_some();
        if expected != (attached > 0) || broken > 0 {
            let fault = format!("{attached} clients were given the memory, {broken} were cut off");
            return Ok(Outcome::Failed { report: report(fault) });
        }
    }
    Ok(match summary_line(&run.stdout) {
        Some((version, checks)) => Outcome::Passed { version, checks },
        None => {
            let fault = "it ended well, but without a line `NAME VERSION: N checks passed`";
            Outcome::Failed { report: report(fault.into()) }
        }
    })
}

fn command(program: &Program, cache: &Path) -> Command {
    let programs = folder().join("programs");
    match program.kind {
        Kind::Tools(script) => {
            let mut bash = Command::new("bash");
            bash.arg(tools().join(script));
            bash
        }
        Kind::Php => {
            let mut php = Command::new("php");
            php.arg(programs.join("memcached.php"));
            php
        }
        Kind::Pylibmc => {
            let mut python = Command::new(cache.join("venv/bin/python"));
            python
                .arg(programs.join("pylibmc_tests.py"))
                .arg(cache.join(PYLIBMC))
                .env("PYTHONDONTWRITEBYTECODE", "1");
            python
        }
    }
}

/// Creates a folder in which the library has the names of those that it replaces.
fn link(library: &Path, links: &Path) -> Result<()> {
    fs::create_dir(links)?;
    for name in LIBRARIES {
        symlink(library, links.join(name))?;
    }
    Ok(())
}

fn tools() -> PathBuf {
    workspace::folder().join("tests/clients/tools")
}

/// Passes the server's address and the expected behaviour to a program.
fn describe(command: &mut Command, server: &Server, transport: Transport, scratch: &Path) {
    let address = server.address();
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !transport.is_local() => (host, port),
        // A dummy address: the socket is used.
        _ => ("127.0.0.1", "1"),
    };
    let (kind, behaviour) = if transport.is_fabcached() {
        ("fabcached", FABCACHED_BEHAVIOUR)
    } else {
        ("memcached", MEMCACHED_BEHAVIOUR)
    };
    command
        .env("SERVER", &address)
        .env("SERVER_ONLY", &address)
        .env("SERVER_HOST", host)
        .env("SERVER_PORT", port)
        .env("SERVER_SOCKET", &address)
        .env("SERVER_IS", kind)
        .env("SERVER_BEHAVIOUR", behaviour)
        .env("SCRATCH_DIR", scratch);
}

fn show(rows: &[Row]) {
    let width = rows.iter().map(|row| row.program.len()).max().unwrap_or_default();
    for row in rows {
        let outcome = match &row.outcome {
            Outcome::Passed { checks, .. } => format!("passed {checks} checks"),
            Outcome::Failed { .. } | Outcome::Skipped { .. } => "FAILED".to_owned(),
        };
        let Row { program, transport, seconds, .. } = row;
        println!("{program:<width$}  {:<24}  {outcome} in {seconds:.1} s", transport.name());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_exists() {
        for program in PROGRAMS {
            if let Kind::Tools(script) = program.kind {
                assert!(tools().join(script).is_file(), "{script} is missing");
            }
        }
        for file in ["memcached.php", "pylibmc_tests.py", "debian.txt", "requirements.txt"] {
            assert!(folder().join("programs").join(file).is_file(), "{file} is missing");
        }
    }

    #[test]
    fn pinned_sources_match_the_installed_library() {
        let pinned = fs::read_to_string(folder().join("programs/requirements.txt")).expect("it is there");
        assert!(pinned.lines().any(|line| line.replace("==", "-") == PYLIBMC));
    }
}
