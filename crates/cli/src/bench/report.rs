//! `fabcache bench report`: results as an HTML page.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use fabcache_bench::html;
use fabcache_bench::results::Results;

/// The results, and the page.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Files written with --json. Files of the same subcommand share figures
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Write the page to this file
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    out: PathBuf,
}

/// Writes the page.
///
/// # Errors
/// A file cannot be read or holds no results, or the page cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    let is_out = |file: &&PathBuf| {
        **file == arguments.out
            || matches!((file.canonicalize(), arguments.out.canonicalize()), (Ok(a), Ok(b)) if a == b)
    };
    if let Some(file) = arguments.files.iter().find(is_out) {
        bail!("{}: --out would overwrite the results; give it another name", file.display());
    }
    let read = |path: &PathBuf| Ok((shown(path), Results::read(path)?));
    let files: Result<Vec<_>> = arguments.files.iter().map(read).collect();
    html::save(files?, &arguments.out)
}

/// Returns the file name.
fn shown(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
