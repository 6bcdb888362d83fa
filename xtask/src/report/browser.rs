//! Headless Chromium: pictures of a page, its console output, and the findings of a script.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process::{self, Interrupt, Scratch};

/// Time limit of one page.
const PAGE_TIME_MAX: Duration = Duration::from_secs(120);

/// The delimiters of the script's findings.
const FOUND: [&str; 2] = ["<pre id=\"found\">", "</pre>"];

/// The script that inspects a page; definitions of `PAGE`, `WIDTHS` and `PICTURES` precede it.
const LOOK: &str = include_str!("look.js");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Theme {
    Light,
    Dark,
}

pub(super) struct Browser<'a> {
    pub(super) interrupt: &'a Interrupt,
    /// The folder for its output.
    pub(super) folder: &'a Path,
}

impl Theme {
    pub(super) const ALL: [Theme; 2] = [Theme::Light, Theme::Dark];

    pub(super) fn name(self) -> &'static str {
        match self {
            Theme::Light => "light",
            Theme::Dark => "dark",
        }
    }

    fn option(self) -> &'static str {
        match self {
            Theme::Dark => "--blink-settings=preferredColorScheme=0",
            Theme::Light => "--blink-settings=preferredColorScheme=1",
        }
    }
}

impl Browser<'_> {
    /// Returns the page's console messages: empty if all is well.
    pub(super) fn console(&self, page: &Path) -> Result<Vec<String>> {
        let (_, log) = self.run(page, &["--enable-logging=stderr", "--dump-dom"])?;
        Ok(log.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect())
    }

    /// Takes a picture of the page.
    pub(super) fn picture(&self, page: &Path, theme: Theme, width: u32, height: u32) -> Result<PathBuf> {
        let path = self.folder.join(format!("{}-{width}.png", theme.name()));
        let screenshot = format!("--screenshot={}", path.display());
        let size = format!("--window-size={width},{height}");
        self.run(page, &[&screenshot, &size, "--hide-scrollbars", theme.option()])?;
        ensure!(path.exists(), "chromium makes no picture of {}", page.display());
        Ok(path)
    }

    /// Prints the page to PDF.
    pub(super) fn print(&self, page: &Path) -> Result<PathBuf> {
        let path = self.folder.join("print.pdf");
        self.run(page, &[&format!("--print-to-pdf={}", path.display()), "--no-pdf-header-footer"])?;
        ensure!(path.exists(), "chromium does not print {}", page.display());
        Ok(path)
    }

    /// Runs the script in the page at these widths, and takes pictures.
    pub(super) fn look(
        &self,
        page: &Path,
        theme: Theme,
        widths: &[u32],
        pictures: &[PathBuf],
    ) -> Result<Value> {
        let text = std::fs::read_to_string(page)?;
        let urls: Vec<String> = pictures.iter().map(|path| format!("file://{}", path.display())).collect();
        // Within a script, no text may look like its end.
        let constant = |value: &dyn Fn() -> serde_json::Result<String>| -> Result<String> {
            Ok(value()?.replace('<', "\\u003c"))
        };
        let html = format!(
            "<!doctype html><meta charset=utf-8><body><script>const PAGE = {}; const WIDTHS = {}; const PICTURES = \
             {};\n{LOOK}</script>",
            constant(&|| serde_json::to_string(&text))?,
            constant(&|| serde_json::to_string(widths))?,
            constant(&|| serde_json::to_string(&urls))?,
        );
        let wrapper = self.folder.join("look.html");
        std::fs::write(&wrapper, html)?;
        let options = [
            "--dump-dom",
            "--virtual-time-budget=60000",
            "--allow-file-access-from-files",
            "--window-size=1600,1200",
            theme.option(),
        ];
        let (dom, log) = self.run(&wrapper, &options)?;
        let found = dom.split_once(FOUND[0]).and_then(|(_, rest)| rest.split_once(FOUND[1]));
        let (json, _) = found.with_context(|| format!("the page was not checked:\n{log}"))?;
        let found: Value = serde_json::from_str(json)?;
        ensure!(found.get("failure").is_none(), "the page cannot be checked: {}", found["failure"]);
        Ok(found)
    }

    /// Returns standard output and error.
    fn run(&self, page: &Path, options: &[&str]) -> Result<(String, String)> {
        let scratch = Scratch::create()?;
        let mut command = Command::new("chromium");
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]);
        command.args(["--disable-background-networking", "--disable-component-update"]);
        command.arg(format!("--user-data-dir={}", scratch.path().join("profile").display()));
        command.args(options).arg(format!("file://{}", page.display()));
        let run = process::run(&mut command, scratch.path(), PAGE_TIME_MAX, self.interrupt)?;
        if let Some(failure) = run.failure {
            anyhow::bail!("chromium {}: {failure}\n{}", options.join(" "), run.stderr);
        }
        Ok((run.stdout, run.stderr))
    }
}
