//! The table of libmemcached's functions in docs/libmemcached.md: generated from, and checked against,
//! the symbols of libfabcache.so and of Debian's three libraries.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace;

use super::LIBRARIES;

/// Additional functions of RDMA-Memcached.
const REQUESTS: &[&str] = &[
    "memcached_bget",
    "memcached_bset",
    "memcached_iget",
    "memcached_iset",
    "memcached_request_create",
    "memcached_request_free",
    "memcached_test",
    "memcached_wait",
];

/// Functions that exist but refuse every call, and why: linked programs load, and get an error.
const REFUSING: &[(&str, &str)] = &[
    ("hashkit_decrypt", "no encryption: returns null"),
    ("hashkit_encrypt", "no encryption: returns null"),
    ("hashkit_key", "no encryption: returns false"),
    ("hashkit_string_c_str", "no encryption: returns null"),
    ("hashkit_string_free", "no encryption: does nothing"),
    ("hashkit_string_length", "no encryption: returns 0"),
    ("libhashkit_hsieh", "returns 0, as Debian's does"),
    ("memcached_set_encoding_key", "no encryption: returns `MEMCACHED_NOT_SUPPORTED`"),
];

/// The lines around the table.
const BEGIN: &str = "<!-- cargo xtask libmemcached --record writes this -->";
const END: &str = "<!-- to here -->";

/// Checks the table against the symbols, or writes it.
///
/// # Errors
/// `nm` or a library is missing, or the table differs from the symbols.
pub fn run(library: &Path, record: bool) -> Result<()> {
    let ours = symbols(library)?;
    let page = workspace::folder().join("docs/libmemcached.md");
    let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let marked = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let Some((before, after)) = marked else { bail!("docs/libmemcached.md has no place for the table") };
    let table = table(&ours)?;
    let expected = format!("{before}{BEGIN}\n\n{table}\n{END}{after}");
    if record {
        fs::write(&page, &expected).with_context(|| format!("{} cannot be written", page.display()))?;
    } else {
        ensure!(
            text == expected,
            "docs/libmemcached.md is not what the symbols say: cargo xtask libmemcached --record"
        );
    }
    println!("docs/libmemcached.md: as the symbols say");
    Ok(())
}

fn table(ours: &BTreeSet<String>) -> Result<String> {
    let mut text = String::new();
    for name in LIBRARIES {
        let theirs = symbols(&find(name)?)?;
        section(&mut text, name, theirs.iter().map(String::as_str), ours)?;
    }
    section(&mut text, "RDMA-Memcached", REQUESTS.iter().copied(), ours)?;
    Ok(text)
}

fn section<'a>(
    text: &mut String,
    name: &str,
    functions: impl Iterator<Item = &'a str>,
    ours: &BTreeSet<String>,
) -> Result<()> {
    let mut rows = String::new();
    let (mut done, mut all) = (0, 0);
    for function in functions {
        let refusing = REFUSING.iter().find(|(name, _)| *name == function).map(|(_, why)| *why);
        let (mark, remark) = match (ours.contains(function), refusing) {
            (true, None) => ("done", ""),
            (true, Some(why)) => ("not", why),
            (false, _) => ("not", "does not link"),
        };
        all += 1;
        done += usize::from(mark == "done");
        writeln!(rows, "| `{function}` | {mark} | {remark} |")?;
    }
    writeln!(
        text,
        "### {name}\n\n{done} of {all} are done.\n\n| function | | |\n| --- | --- | --- |\n{rows}"
    )?;
    Ok(())
}

/// Returns the path of a library that the loader finds.
fn find(name: &str) -> Result<std::path::PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let found = folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
    found.with_context(|| format!("{name} is missing: install libmemcached-dev and libhashkit-dev"))
}

/// Returns the functions that a library exports.
fn symbols(library: &Path) -> Result<BTreeSet<String>> {
    let mut nm = Command::new("nm");
    nm.args(["--dynamic", "--defined-only", "--format=posix"]).arg(library);
    let output = nm.output().context("nm cannot be started: install binutils")?;
    ensure!(output.status.success(), "nm cannot read {}", library.display());
    let text = String::from_utf8(output.stdout).context("what nm prints is no text")?;
    let functions = text.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (name, kind) = (words.next()?, words.next()?);
        (kind == "T").then(|| name.to_owned())
    });
    Ok(functions.collect())
}
