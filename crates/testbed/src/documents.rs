//! The code blocks of the documents and man pages.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Folders whose documents count, beside those at the top.
const FOLDERS: &[&str] = &["bindings", "crates", "docs", "tests"];
/// Folders of build products.
const BUILT: &[&str] = &["target", "node_modules"];

/// A code block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snippet {
    /// The document, relative to the repository.
    pub document: String,
    /// The number of its first line.
    pub line: usize,
    /// Its language: the first word after the fence. That of a man page's block is `c`.
    pub language: String,
    /// Its lines.
    pub text: String,
}

/// Returns the repository's folder.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the code blocks of all documents, sorted by document.
///
/// # Errors
/// A document cannot be read, or a block has no language.
pub fn snippets() -> Result<Vec<Snippet>> {
    let mut found = Vec::new();
    for path in documents()? {
        let name = path.strip_prefix(repository())?.to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {name}"))?;
        found.extend(if name.ends_with(".md") {
            of_markdown(&name, &text)?
        } else {
            of_man_page(&name, &text)
        });
    }
    Ok(found)
}

fn documents() -> Result<Vec<PathBuf>> {
    let top = repository();
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(|folder| top.join(folder)).collect();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&top)? {
        files.push(entry?.path());
    }
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            match entry.file_type()?.is_dir() {
                true if BUILT.contains(&&*name) || name.starts_with('.') => {}
                true => folders.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    let ends = ["md", "3", "7"];
    files.retain(|file| file.extension().is_some_and(|end| ends.iter().any(|other| end == *other)));
    files.sort();
    Ok(files)
}

fn of_markdown(document: &str, text: &str) -> Result<Vec<Snippet>> {
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate();
    let mut is_after_blank = true;
    while let Some((at, line)) = lines.next() {
        let place = format!("{document}:{}", at + 1);
        ensure!(!(is_after_blank && line.starts_with("    ")), "{place}: indented; put the block in a fence");
        is_after_blank = line.is_empty();
        let Some(info) = line.strip_prefix("```") else { continue };
        let language = info.split([',', ' ']).next().unwrap_or_default().to_owned();
        ensure!(!language.is_empty(), "{place}: the block has no language; name it after the fence");
        let block: Vec<&str> =
            lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
        found.push(Snippet {
            document: document.into(),
            line: at + 2,
            language,
            text: block.join("\n") + "\n",
        });
    }
    Ok(found)
}

fn of_man_page(document: &str, text: &str) -> Vec<Snippet> {
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((at, _)) = lines.by_ref().find(|(_, line)| *line == ".Bd -literal") {
        let block: Vec<&str> =
            lines.by_ref().map(|(_, line)| line).take_while(|line| *line != ".Ed").collect();
        let text = block.join("\n").replace("\\e", "\\") + "\n";
        found.push(Snippet { document: document.into(), line: at + 2, language: "c".into(), text });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_a_language_and_a_fence() {
        let found =
            of_markdown("a.md", "text\n\n```rust,no_run\nfn main() {}\n```\n\n```sh\nls\n\n    pwd\n```\n")
                .expect("blocks");
        let reported: Vec<(usize, &str, &str)> =
            found.iter().map(|block| (block.line, &*block.language, &*block.text)).collect();
        assert_eq!(reported, [(4, "rust", "fn main() {}\n"), (8, "sh", "ls\n\n    pwd\n")]);
        for wrong in ["text\n\n    ls\n", "```\nls\n```\n"] {
            assert!(of_markdown("a.md", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn literal_blocks_of_man_pages_are_unescaped() {
        let page = ".Dd x\n.Bd -literal\nputs(\"a\\en\");\n.Ed\n.Sh SEE ALSO\n";
        let found = of_man_page("a.3", page);
        assert_eq!((found.len(), &*found[0].text, found[0].line), (1, "puts(\"a\\n\");\n", 3));
    }

    #[test]
    fn documents_have_blocks() {
        let found = snippets().expect("the documents");
        for (document, language) in
            [("README.md", "console"), ("docs/operating.md", "toml"), ("bindings/c/man/libfabcache.7", "c")]
        {
            assert!(
                found.iter().any(|block| (&*block.document, &*block.language) == (document, language)),
                "{document}"
            );
        }
    }
}
