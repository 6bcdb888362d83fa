//! Checks the output of tests/libmemcached's programs with Debian's headers and library against the
//! recorded texts in bindings/c/tests/libmemcached, which the tests of fabcache-c use. Then runs the
//! same programs with LD_PRELOAD=libfabcache.so.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace;

/// A program with recorded output.
struct Program {
    name: &'static str,
    /// It reads what is recorded: what it is asked for stands there.
    reads_recorded: bool,
    /// Whether it calls the library, rather than only printing the headers' contents.
    calls: bool,
}

const PROGRAMS: &[Program] = &[
    Program { name: "shapes", reads_recorded: false, calls: false },
    Program { name: "texts", reads_recorded: false, calls: true },
    Program { name: "hashkit", reads_recorded: false, calls: true },
    Program { name: "configuration", reads_recorded: true, calls: true },
];

/// Maximum number of differences shown per program.
const DIFFERENCES_MAX: usize = 20;

/// Compares the output of all programs, or records it.
///
/// # Errors
/// The compiler or libmemcached is missing, or there is a difference.
pub fn run(library: &Path, record: bool) -> Result<()> {
    for program in PROGRAMS {
        let built = build(program.name, &["-lmemcached", "-lhashkit"].map(OsStr::new))?;
        let recorded = folder().join(format!("tests/libmemcached/{}.txt", program.name));
        let theirs = output(program, &built, &recorded, None)?;
        if record {
            fs::write(&recorded, &theirs)
                .with_context(|| format!("{} cannot be written", recorded.display()))?;
        }
        let expected = fs::read_to_string(&recorded).with_context(|| recorded.display().to_string())?;
        compare(program.name, "the recorded text", &expected, "Debian's", &theirs)?;
        if program.calls {
            let ours = output(program, &built, &recorded, Some(library))?;
            compare(program.name, "Debian's", &theirs, "libfabcache.so", &ours)?;
        }
        println!("{}: {} lines are the same", program.name, theirs.lines().count());
    }
    Ok(())
}

/// Returns the folder of the crate that has the texts. The programs run there; their paths are relative
/// to it.
fn folder() -> PathBuf {
    workspace::folder().join("bindings/c")
}

/// Builds a program of tests/libmemcached with Debian's headers and additional compiler arguments.
pub fn build(name: &str, words: &[&OsStr]) -> Result<PathBuf> {
    let to = workspace::target().join("libmemcached");
    fs::create_dir_all(&to).with_context(|| format!("{} cannot be made", to.display()))?;
    let program = to.join(name);
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o"]).arg(&program);
    cc.arg(workspace::folder().join(format!("tests/libmemcached/{name}.c"))).args(words);
    let status = cc.status().context("cc cannot be started: install build-essential")?;
    ensure!(status.success(), "{name}.c does not build: install libmemcached-dev and libhashkit-dev");
    Ok(program)
}

fn output(program: &Program, built: &Path, recorded: &Path, preload: Option<&Path>) -> Result<String> {
    let mut command = Command::new(built);
    command.current_dir(folder()).env_remove("LD_PRELOAD").env_remove("LIBMEMCACHED");
    if program.reads_recorded {
        command.arg(recorded);
    }
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    let output = command.output().with_context(|| format!("{} cannot be started", built.display()))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}\n{errors}", program.name, output.status);
    // The loader's message if it cannot load the library.
    ensure!(!errors.contains("LD_PRELOAD"), "{errors}");
    String::from_utf8(output.stdout).with_context(|| format!("what {} prints is no text", program.name))
}

fn compare(name: &str, first: &str, expected: &str, second: &str, found: &str) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    let (mut expected, mut found) = (expected.lines(), found.lines());
    let (mut shown, mut requested) = (0, "");
    loop {
        let lines = (expected.next(), found.next());
        requested = lines.0.filter(|line| line.starts_with("> ")).unwrap_or(requested);
        match lines {
            (None, None) => break,
            (one, other) if one != other => {
                let show = |line: Option<&str>| line.unwrap_or("nothing more").to_owned();
                eprintln!("{requested}\n  {first}: {}\n  {second}: {}", show(one), show(other));
                shown += 1;
                if shown == DIFFERENCES_MAX {
                    break;
                }
            }
            _ => {}
        }
    }
    bail!("{name}: {second} and {first} differ")
}
