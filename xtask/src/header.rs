//! `cargo xtask header`: the C header of `libfabcache.so`, made of the functions that it declares.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::workspace;

/// In the order in which C readers meet them.
const SOURCES: &[&str] =
    &["code", "options", "cache", "retrieval", "storage", "change", "servers", "request"];

/// Writes bindings/c/include/fabcache.h.
#[derive(clap::Args)]
pub struct Args {
    /// Write nothing, and fail if it is not what it would be
    #[arg(long)]
    check: bool,
}

/// Makes the header.
///
/// # Errors
/// It cannot be made or written; or it is to be checked, and differs.
pub fn run(args: &Args) -> Result<()> {
    let header = make()?;
    let path = path();
    if !args.check {
        return fs::write(&path, header).with_context(|| format!("{} cannot be written", path.display()));
    }
    let committed =
        fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    if committed != header {
        let same = committed.lines().zip(header.lines()).take_while(|(old, new)| old == new).count();
        bail!(
            "{}, from line {} on, is not what `cargo xtask header` makes of bindings/c/src/native",
            path.display(),
            same + 1
        );
    }
    Ok(())
}

/// Where the header is.
pub fn path() -> PathBuf {
    workspace::folder().join("bindings/c/include/fabcache.h")
}

fn make() -> Result<String> {
    let binding = workspace::folder().join("bindings/c");
    let config = cbindgen::Config::from_file(binding.join("cbindgen.toml")).map_err(anyhow::Error::msg)?;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(binding.join(format!("src/native/{source}.rs")));
    }
    let mut header = Vec::new();
    builder.generate().context("cbindgen makes no header")?.write(&mut header);
    Ok(as_c_has_it(&String::from_utf8(header)?))
}

/// What cbindgen cannot be told: codes are named for the library alone, comments that fit have one line, and C of 1989 has
/// neither a comma behind the last of an enumeration nor comments of `//`.
fn as_c_has_it(header: &str) -> String {
    let header = header.replace("FABCACHE_CODE_", "FABCACHE_").replace(",\n}", "\n}");
    let mut lines: Vec<String> = Vec::new();
    for line in header.lines() {
        let (code, comment) = line.split_once(" // ").map_or((line, None), |(code, said)| (code, Some(said)));
        lines.push(match comment {
            Some(comment) => format!("{} /* {} */", code.trim_end(), comment.trim()),
            None => line.to_owned(),
        });
        if let [.., begin, text, end] = &lines[..]
            && begin.trim() == "/*"
            && end.trim() == "*/"
        {
            let joined = format!("{} {} */", begin, text.trim());
            lines.truncate(lines.len() - 3);
            lines.push(joined);
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::as_c_has_it;

    #[test]
    fn the_header_is_for_old_compilers_too() {
        let made = "typedef enum {\n  /*\n   Done.\n   */\n  FABCACHE_CODE_OK = 0,\n} x;\n/*\n a\n b\n */\n}  // end\n";
        let wanted = "typedef enum {\n  /* Done. */\n  FABCACHE_OK = 0\n} x;\n/*\n a\n b\n */\n} /* end */\n";
        assert_eq!(as_c_has_it(made), wanted);
    }
}
