//! Output of results: the standard output, and files.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Prints a text. A reader that closes the pipe, such as `head`, is not a failure.
///
/// # Errors
/// The text cannot be written.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        done => done.context("cannot write to the standard output"),
    }
}

/// Checks before a measurement that the output files, given with their options, can be written.
///
/// Existing contents stay.
///
/// # Errors
/// A file cannot be written, or is named by two options.
pub fn check(files: &[(&str, Option<&Path>)]) -> Result<()> {
    let given = || files.iter().filter_map(|(option, path)| path.map(|path| (option, path)));
    for (number, (option, path)) in given().enumerate() {
        if let Some((other, _)) = given().take(number).find(|(_, other)| *other == path) {
            anyhow::bail!("{other} and {option} are the same file, {}", path.display());
        }
        ensure!(!path.is_dir(), "{option} {} is a folder; give a file", path.display());
        writable(path).with_context(|| format!("{option} {} cannot be written", path.display()))?;
    }
    Ok(())
}

fn writable(path: &Path) -> std::io::Result<()> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => OpenOptions::new().append(true).open(path).map(drop),
        // Opening and closing a pipe would look like its end to the reader.
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            OpenOptions::new().append(true).create_new(true).open(path)?;
            std::fs::remove_file(path)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwritable_files_are_reported() {
        let folder = fabcache_testbed::cleanup::Folder::new("fabcache-output").expect("a folder");
        let (kept, new) = (folder.path().join("kept"), folder.path().join("new"));
        std::fs::write(&kept, "what was there").expect("a file");
        check(&[("--json", Some(&kept)), ("--report", Some(&new)), ("--plot", None)]).expect("both can be");
        assert_eq!(std::fs::read(&kept).expect("it is there"), b"what was there");
        assert!(!new.exists(), "nothing is left of a file that was not there");
        let missing = folder.path().join("missing/file");
        for (files, culprit) in [
            ([("--json", Some(folder.path())), ("--report", None)], "is a folder"),
            ([("--json", None), ("--report", Some(&missing))], "missing/file cannot be written"),
            ([("--json", Some(&kept)), ("--report", Some(&kept))], "--json and --report"),
        ] {
            let error = check(&files).expect_err(culprit).to_string();
            assert!(error.contains(culprit), "{error}");
        }
    }
}
