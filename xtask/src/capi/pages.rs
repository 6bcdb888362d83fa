//! Man pages: the texts of bindings/c/man with the comments of the header.
//!
//! A page is mdoc(7) with placeholder lines: `@SYNOPSIS@` for the declarations of the functions in its
//! NAME section, `@FUNCTIONS@` for their comments, and `@CODES@` for all codes with their comments. So
//! each function is documented once, in its source.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result, bail};

use super::header::{self, Function};
use crate::workspace;

/// A page to install.
pub struct Page {
    /// Its names; the first is the file's.
    pub names: Vec<String>,
    pub section: String,
    pub text: String,
}

/// Returns all pages, with the placeholders filled in from the header.
///
/// # Errors
/// A page cannot be read, or names an unknown function.
pub fn all(header: &str) -> Result<Vec<Page>> {
    let folder = workspace::folder().join("bindings/c/man");
    let mut pages = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("{} cannot be read", folder.display()))? {
        let path = entry?.path();
        let source =
            fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
        let section = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        pages.push(page(&source, section, header).with_context(|| path.display().to_string())?);
    }
    Ok(pages)
}

fn page(source: &str, section: String, header: &str) -> Result<Page> {
    let names = names(source);
    let functions = header::functions(header);
    let find = |name: &String| {
        let known = functions.iter().find(|function| function.name == *name);
        known.with_context(|| format!("the header has no {name}"))
    };
    let named: Vec<&Function> =
        if section == "3" { names.iter().map(find).collect::<Result<_>>()? } else { Vec::new() };
    let mut text = String::new();
    for line in source.lines() {
        match line {
            "@SYNOPSIS@" => synopsis(&named, &mut text),
            "@FUNCTIONS@" => described(&named, &mut text),
            "@CODES@" => codes(header, &mut text),
            _ if line.starts_with('@') => bail!("{line} stands for nothing"),
            _ => text.extend([line, "\n"]),
        }
    }
    Ok(Page { names, section, text })
}

/// Returns each `.Nm NAME` of the NAME section.
fn names(source: &str) -> Vec<String> {
    let section =
        source.lines().skip_while(|line| *line != ".Sh NAME").take_while(|line| !line.starts_with(".Nd"));
    let names = section.filter_map(|line| line.strip_prefix(".Nm ")?.split_whitespace().next());
    names.map(str::to_owned).collect()
}

fn synopsis(functions: &[&Function], out: &mut String) {
    out.push_str(".Sh SYNOPSIS\n.In fabcache.h\n");
    for function in functions {
        let _ = writeln!(out, ".Ft {}\n.Fo {}", quoted(&function.result), function.name);
        for argument in &function.arguments {
            let _ = writeln!(out, ".Fa {}", quoted(argument));
        }
        if function.arguments.is_empty() {
            out.push_str(".Fa void\n");
        }
        out.push_str(".Fc\n");
    }
}

fn quoted(words: &str) -> String {
    if words.contains(' ') { format!("\"{words}\"") } else { words.into() }
}

fn described(functions: &[&Function], out: &mut String) {
    out.push_str(".Bl -tag -width Ds\n");
    for function in functions {
        let _ = writeln!(out, ".It Fn {}", function.name);
        for (number, paragraph) in function.comment.iter().enumerate() {
            if number > 0 {
                out.push_str(".Pp\n");
            }
            prose(paragraph, out);
        }
    }
    out.push_str(".El\n");
}

fn codes(header: &str, out: &mut String) {
    out.push_str(".Bl -tag -width Ds\n");
    for code in header::codes(header) {
        let _ = writeln!(out, ".It Dv {} Pq {}", code.name, code.number);
        prose(&code.comment, out);
    }
    out.push_str(".El\n");
}

/// Writes a text with functions and constants marked, and each sentence on its own line.
fn prose(text: &str, out: &mut String) {
    let mut is_line_begun = false;
    for word in text.split(' ') {
        if let Some(line) = marked(word) {
            out.push_str(if is_line_begun { "\n" } else { "" });
            out.push_str(&line);
            out.push('\n');
            is_line_begun = false;
            continue;
        }
        out.push_str(if is_line_begun { " " } else { "" });
        let escaped = word.replace('\\', "\\e").replace("->", "\\->");
        // A line with this beginning would be a request.
        if !is_line_begun && escaped.starts_with(['.', '\'']) {
            out.push_str("\\&");
        }
        out.push_str(&escaped);
        is_line_begun = true;
        if word.trim_end_matches([')', '"']).ends_with(['.', '!', '?']) {
            out.push('\n');
            is_line_begun = false;
        }
    }
    if is_line_begun {
        out.push('\n');
    }
}

/// Returns the marked line for a function or a constant; `None` for other words.
fn marked(word: &str) -> Option<String> {
    let is_name = |byte: char| byte.is_ascii_alphanumeric() || byte == '_';
    let inner = word.trim_start_matches('(');
    let opening = &word[..word.len() - inner.len()];
    let end = inner.find(|byte| !is_name(byte)).unwrap_or(inner.len());
    let (name, rest) = inner.split_at(end);
    let (kind, closing) = match rest.strip_prefix("()") {
        Some(closing) if name.starts_with("fabcache_") => ("Fn", closing),
        _ if name.starts_with("FABCACHE_") || name == "NULL" => ("Dv", rest),
        _ => return None,
    };
    if opening.len() > 1 || !closing.chars().all(|mark| "),.:;?!".contains(mark)) {
        return None;
    }
    // mdoc's punctuation marks are separate words.
    let marks: String = closing.chars().flat_map(|mark| [' ', mark]).collect();
    Some(if opening.is_empty() {
        format!(".{kind} {name}{marks}")
    } else {
        format!(".{kind} ( {name}{marks}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_filled_in() {
        let header = "/* Reads a->b (see fabcache_set()). NULL is FABCACHE_OK, '.profile' too.\n\n More. */\n\
            int fabcache_get(const char *key);\n\n/* Sets. */\nvoid fabcache_set(void);\n";
        let source =
            ".Sh NAME\n.Nm fabcache_get ,\n.Nm fabcache_set\n.Nd of\n@SYNOPSIS@\n.Sh D\n@FUNCTIONS@\n";
        let page = page(source, "3".into(), header).expect("a page");
        assert_eq!(page.names, ["fabcache_get", "fabcache_set"]);
        let wanted = ".Sh NAME\n.Nm fabcache_get ,\n.Nm fabcache_set\n.Nd of\n.Sh SYNOPSIS\n.In fabcache.h\n\
            .Ft int\n.Fo fabcache_get\n.Fa \"const char *key\"\n.Fc\n.Ft void\n.Fo fabcache_set\n.Fa void\n.Fc\n\
            .Sh D\n.Bl -tag -width Ds\n.It Fn fabcache_get\nReads a\\->b (see\n.Fn fabcache_set ) .\n.Dv NULL\nis\n\
            .Dv FABCACHE_OK ,\n\\&'.profile' too.\n.Pp\nMore.\n.It Fn fabcache_set\nSets.\n.El\n";
        assert_eq!(page.text, wanted);
        assert!(super::page(".Sh NAME\n.Nm fabcache_none\n.Nd of\n", "3".into(), header).is_err());
    }
}
