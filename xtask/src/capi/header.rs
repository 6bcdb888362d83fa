//! `cargo xtask header`: generates the C header of `libfabcache.so` from the functions that it
//! declares.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::workspace;

/// Source files, in the order of the header.
const SOURCES: &[&str] = &[
    "code",
    "options",
    "buffer",
    "cache",
    "retrieval",
    "storage",
    "change",
    "servers",
    "request",
    "registered",
];

/// Writes bindings/c/include/fabcache.h.
#[derive(clap::Args)]
pub struct HeaderArgs {
    /// Write nothing, and fail if it is not what it would be
    #[arg(long)]
    check: bool,
}

/// Generates the header.
///
/// # Errors
/// The header cannot be generated or written; with `check`, it is not up to date.
pub fn run(args: &HeaderArgs) -> Result<()> {
    if args.check {
        return check();
    }
    let path = path();
    fs::write(&path, make()?).with_context(|| format!("{} cannot be written", path.display()))
}

/// Checks that the header is up to date.
///
/// # Errors
/// The header is not up to date, or cannot be generated or read.
pub fn check() -> Result<()> {
    let (header, path) = (make()?, path());
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

/// Returns the path of the header.
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
    Ok(to_c89(&String::from_utf8(header)?))
}

/// Makes the changes that cbindgen does not support: code names without a prefix, short comments on one
/// line, and C89: no comma after the last enumerator, no `//` comments.
fn to_c89(header: &str) -> String {
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

/// A function that the header declares.
pub struct Function {
    pub name: String,
    /// The return type.
    pub result: String,
    /// The arguments with their types.
    pub arguments: Vec<String>,
    /// The comment, one string per paragraph.
    pub comment: Vec<String>,
}

/// A code and its comment.
pub struct Code {
    pub name: String,
    pub number: u32,
    pub comment: String,
}

/// Parses the functions that a header declares, in order.
pub fn functions(header: &str) -> Vec<Function> {
    let mut functions = Vec::new();
    let mut comment = Vec::new();
    let mut lines = header.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("/*") {
            comment = paragraphs(line, &mut lines);
        } else if line.contains(" fabcache_") || line.contains(" *fabcache_") {
            let mut prototype = line.to_owned();
            while !prototype.ends_with(';') {
                let Some(line) = lines.next() else { break };
                prototype.push_str(line);
            }
            functions.extend(function(&prototype, std::mem::take(&mut comment)));
        }
    }
    functions
}

/// Parses the codes of a header.
pub fn codes(header: &str) -> Vec<Code> {
    let mut codes = Vec::new();
    let mut comment = Vec::new();
    let enumeration = header.split_once("typedef enum {").map_or("", |(_, rest)| rest);
    let mut lines = enumeration.lines().map(str::trim).take_while(|line| !line.starts_with('}'));
    while let Some(line) = lines.next() {
        if line.starts_with("/*") {
            comment = paragraphs(line, &mut lines);
        } else if let Some((name, number)) = line.split_once(" = ")
            && let Ok(number) = number.trim_end_matches(',').parse()
        {
            codes.push(Code { name: name.into(), number, comment: comment.join(" ") });
        }
    }
    codes
}

/// Parses a comment that begins with this line.
fn paragraphs<'a>(first: &'a str, lines: &mut impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut text = first.to_owned();
    while !text.contains("*/") {
        let Some(line) = lines.next() else { break };
        text.push('\n');
        text.push_str(line);
    }
    let inner = text.trim_start_matches("/*").split("*/").next().unwrap_or_default();
    let words = |paragraph: &str| paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    inner.split("\n\n").map(words).filter(|paragraph| !paragraph.is_empty()).collect()
}

/// Parses `TYPE NAME(ARGUMENTS);`; `None` for anything else.
fn function(prototype: &str, comment: Vec<String>) -> Option<Function> {
    let (before, after) = prototype.split_once('(')?;
    let inner = after.strip_suffix(");")?;
    let at = before.rfind("fabcache_")?;
    let (result, name) = before.split_at(at);
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') || inner.contains('(') {
        return None;
    }
    let words = |argument: &str| argument.split_whitespace().collect::<Vec<_>>().join(" ");
    let arguments = inner.split(',').map(words).filter(|argument| argument != "void").collect();
    Some(Function { name: name.into(), result: result.trim().into(), arguments, comment })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_parsed() {
        let header = "/* Of it. */\ntypedef enum {\n  /* Done. */\n  A = 0,\n  /*\n   Not\n   done.\n   */\n  B = 16\n} x;\n\n\
            typedef void (*fabcache_told)(void *context,\n   int number);\n\n\
            /*\n One\n two.\n\n Three.\n */\nconst char *fabcache_f(const x *a,\n    size_t b);\n\n\
            /* None. */\nvoid fabcache_g(void);\n";
        let codes = codes(header);
        let codes: Vec<_> =
            codes.iter().map(|code| (&code.name[..], code.number, &code.comment[..])).collect();
        assert_eq!(codes, [("A", 0, "Done."), ("B", 16, "Not done.")]);
        let functions = functions(header);
        assert_eq!(functions.len(), 2);
        assert_eq!((&functions[0].result[..], &functions[0].name[..]), ("const char *", "fabcache_f"));
        assert_eq!(functions[0].arguments, ["const x *a", "size_t b"]);
        assert_eq!(functions[0].comment, ["One two.", "Three."]);
        assert!(functions[1].arguments.is_empty() && functions[1].result == "void");
    }

    #[test]
    fn the_header_suits_old_compilers() {
        let made = "typedef enum {\n  /*\n   Done.\n   */\n  FABCACHE_CODE_OK = 0,\n} x;\n/*\n a\n b\n */\n}  // end\n";
        let wanted = "typedef enum {\n  /* Done. */\n  FABCACHE_OK = 0\n} x;\n/*\n a\n b\n */\n} /* end */\n";
        assert_eq!(to_c89(made), wanted);
    }
}
