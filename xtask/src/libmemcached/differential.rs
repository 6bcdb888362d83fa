//! Calls every function of libmemcached in both libraries, with the same arguments and the same
//! servers.
//!
//! `tests/libmemcached/differential` is built once, against Debian's headers and libraries. It prints a line for
//! each call; it runs as it is and with `LD_PRELOAD=libfabcache.so`, and the lines must be the same.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::process::{self, Interrupt, Scratch};

use super::compare::{self, Answer, Difference, Drift};
use super::{LIBRARIES, Subject, folder};
use crate::servers::{Programs, Server, Transport};

/// The number of servers that the program expects.
const SERVERS: usize = 3;

/// Time limit of all scenarios, some of which wait for timeouts.
const RUN_TIME_MAX: Duration = Duration::from_secs(300);

/// Time limit of the compiler.
const BUILD_TIME_MAX: Duration = Duration::from_secs(120);

/// Maximum number of differences shown per function; all are in the report's file.
const SHOWN_MAX: usize = 2;

/// Maximum length of an answer that is shown.
const SHOWN_BYTES_MAX: usize = 300;

/// Compares the libraries over each transport; returns the number of differences that are not listed as
/// drift, including functions that the library lacks.
pub(super) fn run(
    subject: &Subject,
    transports: &[Transport],
    scenarios: &[String],
    seed: u64,
    interrupt: &Interrupt,
) -> Result<usize> {
    let program = build(&subject.scratch, interrupt)?;
    let names = exported()?;
    let foreign = foreign(&program, &subject.library, &names)?;
    if !foreign.is_empty() {
        // Debian's library would work on foreign structures.
        println!("{} functions that are not libfabcache.so's:\n  {}", foreign.len(), foreign.join("\n  "));
    }
    let drift = Drift::parse(&fs::read_to_string(folder().join("drift.txt"))?)?;
    let mut used = BTreeSet::new();
    let mut called = BTreeSet::new();
    let mut left = foreign.len();
    for &transport in transports {
        let mut bench = Bench::start(&subject.programs, transport, &program, seed, interrupt)?;
        let theirs = bench.run(None, scenarios)?;
        let ours = bench.run(Some(&subject.library), scenarios)?;
        let mut found = compare::differences(&theirs, &ours);
        if !found.is_empty() {
            let again = bench.run(None, &scenarios_of(&found))?;
            let concerned: BTreeSet<&str> = again.iter().map(|answer| answer.scenario.as_str()).collect();
            let theirs: Vec<Answer> = theirs
                .iter()
                .filter(|answer| concerned.contains(answer.scenario.as_str()))
                .cloned()
                .collect();
            found = compare::without_varying(found, &theirs, &again);
        }
        let total = found.len();
        let found = drift.unlisted(found, &mut used);
        bench.check_servers()?;
        println!(
            "{}: {} answers compared, {} differ{}",
            transport.name(),
            theirs.len(),
            found.len(),
            if total > found.len() { format!(", {} as listed", total - found.len()) } else { String::new() }
        );
        show(&found, &subject.scratch, transport)?;
        left += found.len();
        called.extend(theirs.into_iter().map(|answer| answer.function));
    }
    if scenarios.is_empty() {
        let uncalled: Vec<&String> = names.iter().filter(|name| !called.contains(*name)).collect();
        ensure!(uncalled.is_empty(), "functions that the program does not call: {uncalled:?}");
        println!("{} functions called, each that {} export", names.len(), LIBRARIES.join(", "));
        if transports == Transport::ALL {
            let unused = drift.unused(&used);
            ensure!(unused.is_empty(), "lines of drift.txt that nothing needs: {unused:?}");
        }
    }
    Ok(left)
}

fn scenarios_of(found: &[Difference]) -> Vec<String> {
    let names: BTreeSet<String> = found.iter().map(|difference| difference.scenario.clone()).collect();
    names.into_iter().collect()
}

/// Compiles the program, independent of libfabcache.so.
fn build(scratch: &Path, interrupt: &Interrupt) -> Result<PathBuf> {
    let sources = folder().join("differential");
    let program = scratch.join("differential");
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    let mut files: Vec<PathBuf> = fs::read_dir(&sources)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .filter(|path| path.extension().is_some_and(|end| end == "c"))
        .collect();
    files.sort();
    command.args(files).args(["-lmemcached", "-lmemcachedutil", "-lhashkit", "-ldl"]);
    compile(&mut command, interrupt)?;
    Ok(program)
}

/// Runs a compiler.
pub(super) fn compile(command: &mut Command, interrupt: &Interrupt) -> Result<()> {
    let scratch = Scratch::create()?;
    let run = process::run(command, scratch.path(), BUILD_TIME_MAX, interrupt).context(
        "cc and libmemcached's headers (Debian: gcc, libmemcached-dev, libhashkit-dev) are needed",
    )?;
    match run.failure {
        Some(failure) => bail!("{command:?}: {failure}\n{}", run.stderr),
        None => Ok(()),
    }
}

/// Returns the functions that Debian's libraries export and their headers declare.
fn exported() -> Result<Vec<String>> {
    let mut names = BTreeSet::new();
    for library in LIBRARIES {
        let path = PathBuf::from("/usr/lib/x86_64-linux-gnu").join(library);
        let output = Command::new("nm").args(["-D", "--defined-only"]).arg(&path).output();
        let output = output.context("nm (Debian: binutils) is needed")?;
        ensure!(output.status.success(), "nm does not read {}", path.display());
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [_, "T", name] = words[..]
                && ["memcached", "libmemcached_", "hashkit_", "libhashkit_"]
                    .iter()
                    .any(|start| name.starts_with(start))
            {
                names.insert(name.to_owned());
            }
        }
    }
    ensure!(!names.is_empty(), "Debian's libmemcached exports nothing");
    Ok(names.into_iter().collect())
}

/// Returns the names that another library defines although this one is loaded first, with that library.
fn foreign(program: &Path, library: &Path, names: &[String]) -> Result<Vec<String>> {
    let mut command = Command::new(program);
    command.arg("--providers").args(names).env("LD_PRELOAD", library);
    let output = command.output().context("the differential program does not start")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let file_name = library.file_name().unwrap_or_default().to_string_lossy();
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.rsplit('/').next().is_none_or(|file| file != file_name))
        .map(|line| line.replace('\t', " from "))
        .collect())
}

/// Servers of one kind, and the program that calls them.
struct Bench<'a> {
    program: &'a Path,
    seed: u64,
    transport: Transport,
    servers: Vec<Server>,
    scratch: Scratch,
    interrupt: &'a Interrupt,
}

impl<'a> Bench<'a> {
    fn start(
        programs: &Programs,
        transport: Transport,
        program: &'a Path,
        seed: u64,
        interrupt: &'a Interrupt,
    ) -> Result<Self> {
        let scratch = Scratch::create()?;
        let servers = (0..SERVERS)
            .map(|number| Server::start(programs, transport, scratch.path(), number, interrupt))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { program, seed, transport, servers, scratch, interrupt })
    }

    /// Returns the answers of Debian's library, or of `library` loaded before it.
    fn run(&self, library: Option<&Path>, scenarios: &[String]) -> Result<Vec<Answer>> {
        let addresses: Vec<String> = self.servers.iter().map(Server::address).collect();
        let mut command = Command::new(self.program);
        command
            .args(scenarios)
            .env("SERVERS", addresses.join(","))
            .env("SCRATCH_DIR", self.scratch.path())
            .env("SEED", self.seed.to_string());
        let attached = self.attached()?;
        if let Some(library) = library {
            command.env("LD_PRELOAD", library);
        }
        let run = process::run(&mut command, self.scratch.path(), RUN_TIME_MAX, self.interrupt)?;
        if let Some(failure) = run.failure {
            bail!("the differential program over {}: {failure}\n{}", self.transport.name(), run.stderr);
        }
        let by_memory = self.attached()?.saturating_sub(attached);
        let expected = library.is_some() && self.transport == Transport::SharedMemory;
        ensure!(
            expected == (by_memory > 0),
            "{by_memory} connections over {} went on by shared memory",
            self.transport.name()
        );
        compare::parse(&run.stdout)
    }

    /// Returns the number of connections that attached to the servers' memory.
    fn attached(&self) -> Result<u64> {
        if !self.transport.is_fabcached() {
            return Ok(0);
        }
        self.servers.iter().map(|server| server.counted("fabcache", "shm_attached")).sum()
    }

    fn check_servers(&mut self) -> Result<()> {
        for server in &mut self.servers {
            if let Some(fault) = server.fault() {
                bail!("over {}: {fault}", self.transport.name());
            }
        }
        Ok(())
    }
}

/// Prints the first differences of each function, and writes all to a file.
fn show(found: &[Difference], scratch: &Path, transport: Transport) -> Result<()> {
    let path = scratch.join(format!("differences-{transport:?}.txt").to_lowercase());
    if found.is_empty() {
        let _ = fs::remove_file(&path);
        return Ok(());
    }
    let mut report = String::new();
    for (function, differences) in compare::by_function(found) {
        println!("  {function}: {} differ", differences.len());
        for (number, difference) in differences.iter().enumerate() {
            let Difference { scenario, call, number: nth, theirs, ours, .. } = difference;
            let text = [theirs, ours].map(|text| text.as_deref().unwrap_or("(no such answer)"));
            report.push_str(&format!(
                "{scenario}: {call} ({nth})\n  libmemcached: {}\n  libfabcache:  {}\n",
                text[0], text[1]
            ));
            if number < SHOWN_MAX {
                println!("    {scenario}: {} ({nth})", shortened(call));
                println!(
                    "      libmemcached: {}\n      libfabcache:  {}",
                    shortened(text[0]),
                    shortened(text[1])
                );
            }
        }
    }
    fs::write(&path, report)?;
    println!("  all of them: {}", path.display());
    Ok(())
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_BYTES_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::read;

    #[test]
    fn the_drift_list_is_well_formed() {
        let text = read(&folder().join("drift.txt"));
        Drift::parse(&text).expect("each line has a scenario, a call and a reason");
    }
}
