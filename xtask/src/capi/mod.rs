//! `cargo xtask capi`, `header` and `install`: the C library, its header, man pages and example
//! programs.
//!
//! The checks install the library as users do. The exports must match the header, old and new compilers
//! must accept it, and the man pages must be valid. Examples and tests run over shared memory and TCP,
//! with and without valgrind.

mod header;
pub mod install;
mod pages;
mod servers;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use self::servers::Servers;
use crate::process::{self, Interrupt, Scratch};
use crate::workspace;

pub use self::header::{HeaderArgs, run as header};
pub use self::install::{InstallArgs, LIBRARIES, run as install};

/// Far more than any program takes, even under valgrind.
const PROGRAM_TIME_MAX: Duration = Duration::from_secs(180);

/// Programs of bindings/c to build and run.
const PROGRAMS: &[&str] =
    &["examples/blocking.c", "examples/window.c", "tests/c/calls.c", "tests/c/threads.c"];

/// Compilers and language standards that must accept the header.
const DIALECTS: &[(&str, &str)] =
    &[("cc", "-std=c89"), ("cc", "-std=c11"), ("c++", "-std=c++98"), ("c++", "-std=c++20")];

/// Rejects leaks of any kind, without suppressions. Threads take turns, so that none starves.
const VALGRIND: &[&str] = &[
    "--quiet",
    "--fair-sched=yes",
    "--leak-check=full",
    "--show-leak-kinds=all",
    "--errors-for-leak-kinds=all",
    "--error-exitcode=99",
];

/// Builds, installs, and checks the C library.
#[derive(clap::Args)]
pub struct CapiArgs {
    /// Only what is quick: nothing runs under valgrind
    #[arg(long)]
    quick: bool,
}

/// Runs all checks.
///
/// A check fails, or a tool that it needs is missing.
/// One fails, or a tool is missing that it needs.
pub fn run(args: &CapiArgs) -> Result<()> {
    header::check()?;
    let (scratch, interrupt) = (Scratch::create()?, Interrupt::register()?);
    let prefix = scratch.path().join("prefix");
    install::into(&prefix, &prefix)?;
    check_exports(&prefix)?;
    check_pages(&prefix)?;
    check_dialects(&prefix, scratch.path())?;
    let programs = build(&prefix, scratch.path())?;
    let servers = Servers::start(&workspace::build_server()?, scratch.path(), &interrupt)?;
    for program in &programs {
        for address in servers.addresses() {
            let mut plain = Command::new(program);
            run_program(plain.arg(&address), &prefix, scratch.path(), &interrupt)?;
            if !args.quick {
                let mut watched = Command::new("valgrind");
                watched.args(VALGRIND).arg(program).arg(&address);
                run_program(&mut watched, &prefix, scratch.path(), &interrupt)?;
            }
            let name = program.file_name().unwrap_or_default().display();
            println!("{name} {address}: passed{}", if args.quick { "" } else { ", under valgrind as well" });
        }
    }
    Ok(())
}

/// Checks that the exported functions are those that the header declares.
fn check_exports(prefix: &Path) -> Result<()> {
    let library = prefix.join("lib/libfabcache.so");
    let symbols = output(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(&library))?;
    let exported: BTreeSet<String> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter(|name| name.starts_with("fabcache_"))
        .map(str::to_owned)
        .collect();
    let declared = declared()?;
    let differing: Vec<&String> = exported.symmetric_difference(&declared).collect();
    ensure!(differing.is_empty(), "exported or declared, but not both: {differing:?}");
    let dynamic = output(Command::new("readelf").arg("--dynamic").arg(&library))?;
    let name = format!("[{}]", install::soname());
    ensure!(dynamic.contains(&name), "the library's name for the linker is not {name}");
    for name in LIBRARIES {
        let link = prefix.join("lib/fabcache").join(name);
        let is_it = link.canonicalize().with_context(|| format!("{} leads nowhere", link.display()))?;
        ensure!(is_it == library.canonicalize()?, "{} is another library", link.display());
    }
    println!("{} functions are declared and exported", declared.len());
    Ok(())
}

/// Returns the functions of the header.
fn declared() -> Result<BTreeSet<String>> {
    let header = std::fs::read_to_string(header::path())?;
    Ok(header::functions(&header).into_iter().map(|function| function.name).collect())
}

/// Checks that each function has a page, and that mandoc accepts all pages.
fn check_pages(prefix: &Path) -> Result<()> {
    let mut pages = Vec::new();
    for section in ["man3", "man7"] {
        for entry in std::fs::read_dir(prefix.join("share/man").join(section))? {
            pages.push(entry?.path());
        }
    }
    let named: BTreeSet<String> = pages
        .iter()
        .filter(|page| page.extension().is_some_and(|section| section == "3"))
        .filter_map(|page| Some(page.file_stem()?.to_str()?.to_owned()))
        .collect();
    let declared = declared()?;
    let differing: Vec<&String> = named.symmetric_difference(&declared).collect();
    ensure!(differing.is_empty(), "functions without a page, or pages without a function: {differing:?}");
    pages.retain(|page| !page.is_symlink());
    let mut mandoc = Command::new("mandoc");
    output(mandoc.args(["-T", "lint", "-W", "warning"]).args(&pages))
        .context("the man pages are not sound")?;
    println!("{} man pages are sound", pages.len());
    Ok(())
}

/// Checks that all compilers accept the header.
fn check_dialects(prefix: &Path, scratch: &Path) -> Result<()> {
    let source = scratch.join("include.c");
    std::fs::write(&source, "#include <fabcache.h>\nint main(void) { return FABCACHE_OK; }\n")?;
    for (compiler, dialect) in DIALECTS {
        let mut command = Command::new(compiler);
        command.args([dialect, "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]);
        command.arg(prefix.join("include"));
        // The file's extension says C.
        command.args(["-x", if *compiler == "cc" { "c" } else { "c++" }]).arg(&source);
        output(&mut command)?;
    }
    Ok(())
}

/// Builds the programs as users do.
fn build(prefix: &Path, scratch: &Path) -> Result<Vec<PathBuf>> {
    let mut config = Command::new("pkg-config");
    config.args(["--cflags", "--libs", "fabcache"]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let flags = output(&mut config)?;
    let mut programs = Vec::new();
    for source in PROGRAMS {
        let source = workspace::folder().join("bindings/c").join(source);
        let program = scratch.join(source.file_stem().unwrap_or_default());
        let mut cc = Command::new("cc");
        cc.args(["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-pedantic", "-Wall", "-Wextra", "-Werror"]);
        cc.args(["-O1", "-g", "-pthread", "-o"]).arg(&program).arg(&source).args(flags.split_whitespace());
        output(&mut cc)?;
        programs.push(program);
    }
    Ok(programs)
}

fn run_program(command: &mut Command, prefix: &Path, scratch: &Path, interrupt: &Interrupt) -> Result<()> {
    let text = format!("{command:?}");
    command.env("LD_LIBRARY_PATH", prefix.join("lib"));
    let run = process::run(command, scratch, PROGRAM_TIME_MAX, interrupt)?;
    match run.failure {
        None => Ok(()),
        Some(failure) => bail!("{text}: {failure}\n{}{}", run.stdout, run.stderr),
    }
}

/// Runs a tool that must succeed; returns its output.
fn output(command: &mut Command) -> Result<String> {
    let text = format!("{command:?}");
    let done = command.output().with_context(|| format!("{text} cannot be started; is it installed?"))?;
    let written = String::from_utf8_lossy(&done.stdout).into_owned();
    ensure!(done.status.success(), "{text} fails:\n{written}{}", String::from_utf8_lossy(&done.stderr));
    Ok(written)
}
