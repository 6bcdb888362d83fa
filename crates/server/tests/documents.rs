//! The documents' configuration files are valid as printed.

mod common;

use common::Scratch;
use fabcache_server::Settings;
use fabcache_server::options::Options;
use fabcache_testbed::documents;

#[test]
fn configuration_files_of_the_documents_are_accepted() {
    let scratch = Scratch::new("documents");
    let mut files = documents::snippets().expect("the documents");
    files.retain(|block| block.language == "toml");
    assert!(!files.is_empty(), "docs/operating.md shows one");
    for file in files {
        let place = format!("{}:{}", file.document, file.line);
        let path = scratch.file("fabcached.toml", &file.text);
        let options = Options::from_file(&path).unwrap_or_else(|error| panic!("{place}: {error:#}"));
        let settings =
            Settings::new(&options, &|_| None).unwrap_or_else(|error| panic!("{place}: {error:#}"));
        assert!(settings.warnings.is_empty(), "{place}: {:?}", settings.warnings);
    }
}
