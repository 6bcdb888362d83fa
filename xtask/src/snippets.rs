//! `cargo xtask snippets`: the code blocks of the documents and man pages, run as printed.
//!
//! | language | how it is checked |
//! | --- | --- |
//! | `sh` | `cargo xtask` and `fabcache` lines: their arguments are parsed. `fabcached` and `cargo run` lines start a server. `cc` and `cargo add` lines run |
//! | `console` | the session of a telnet client, each line compared |
//! | `c` | built against the installed library; programs run |
//! | `python` | all blocks of a page, in order; values in comments are compared |
//! | `toml` | a server starts with it; `cargo test -p fabcache-server --test documents` also parses those in [`NOT_RUN`] |
//! | `rust` | documentation tests of the client library |
//! | `text` | figures and grammars: nothing to run |
//!
//! Blocks name usual places. The runner puts folders of its own in place of /run, /tmp, /etc, /dev/shm and
//! /usr/local, and a free port in place of 11211.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use fabcache_testbed::documents::{self, Snippet};
use fabcache_testbed::ports;
use fabcache_testbed::server::{START_ATTEMPTS_MAX, ServerProcess, is_port_taken};

use crate::process::{self, Interrupt, Scratch};
use crate::servers::{self, server_command};
use crate::{capi, python, workspace};

/// What cannot run here: the document, how the line or the block begins, and why.
const NOT_RUN: &[(&str, &str, &str)] = &[
    ("README.md", "cargo test --workspace", ".ci/run runs it"),
    ("README.md", "ldconfig", "needs root, and a library in the system's folders"),
    ("README.md", "pip install", "builds the wheel again, which this runner installs"),
    ("docs/benchmark-reference.md", "cargo build --release", ".ci/run runs it"),
    ("docs/benchmark-reference.md", "oshrun", "needs Open MPI, and two nodes"),
    ("docs/benchmarks.md", "cargo build --release", ".ci/run runs it"),
    (
        "docs/fabric.md",
        "fabcached -l 10.0.0.5 --fabric",
        "needs a fabric: cargo xtask rdma starts such servers",
    ),
    ("docs/libmemcached.md", "LD_PRELOAD=", "cargo xtask libmemcached runs such programs"),
    ("docs/libmemcached.md", "cc program.c", "cargo xtask libmemcached builds such programs"),
    ("docs/openshmem.md", "oshrun", "needs Open MPI, and a file with the names of nodes"),
    ("docs/openshmem.md", "#!/bin/sh", "is a file that oshrun starts"),
    ("docs/openshmem.md", "fabric =", "needs oshrun: crates/server/tests/openshmem.rs starts such servers"),
    ("docs/operating.md", "[Unit]", "systemd reads it: crates/server/tests/systemd.rs checks it"),
    ("docs/operating.md", "auth-file", "needs certificates: crates/server/tests/tls.rs starts such servers"),
    ("docs/operating.md", "fabric =", "needs a fabric: cargo xtask rdma starts such servers"),
];

/// Far more than any snippet takes.
const TIME_MAX: Duration = Duration::from_secs(120);
/// Time limit for a line of a session.
const LINE_TIME_MAX: Duration = Duration::from_secs(10);
/// The client library's file that includes documents as documentation tests.
const DOCUMENTATION_TESTS: &str = "crates/client/src/lib.rs";
/// Runs the Python blocks of a page; its standard input has the blocks.
const RUN_PYTHON: &str = include_str!("snippets.py");

/// Runs the code blocks of the documents.
#[derive(clap::Args)]
pub struct Args {
    /// Only documents whose path contains this
    filter: Option<String>,
    /// Only blocks of this language
    #[arg(long)]
    language: Option<String>,
    /// fabcached and fabcache are in this folder; otherwise they are built
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
}

/// Runs the code blocks.
///
/// # Errors
/// A block fails, is of an unknown language, or a tool is missing.
pub fn run(args: &Args) -> Result<()> {
    let mut pages: BTreeMap<String, Vec<Snippet>> = BTreeMap::new();
    for snippet in documents::snippets()? {
        pages.entry(snippet.document.clone()).or_default().push(snippet);
    }
    check_list(&pages)?;
    let (scratch, interrupt) = (Scratch::create()?, Interrupt::register()?);
    let programs = match &args.programs {
        Some(folder) => std::path::absolute(folder)?,
        None => {
            workspace::build_server()?;
            workspace::build_tool()?.parent().context("a program is in a folder")?.to_owned()
        }
    };
    let mut runner = Runner { programs, scratch, interrupt, is_installed: false, ran: 0 };
    for (document, snippets) in &pages {
        if args.filter.as_ref().is_some_and(|part| !document.contains(part.as_str())) {
            continue;
        }
        let wanted = |snippet: &&Snippet| args.language.as_ref().is_none_or(|only| *only == snippet.language);
        let snippets: Vec<&Snippet> = snippets.iter().filter(wanted).collect();
        let mut attempts = 1;
        while let Err(error) = runner.run_page(document, &snippets) {
            if !is_port_taken(&error) || attempts == START_ATTEMPTS_MAX {
                return Err(error);
            }
            attempts += 1;
        }
    }
    println!("{} blocks and commands passed", runner.ran);
    Ok(())
}

/// Checks that each entry of [`NOT_RUN`] still concerns something.
fn check_list(pages: &BTreeMap<String, Vec<Snippet>>) -> Result<()> {
    for (document, start, _) in NOT_RUN {
        let blocks = pages.get(*document).map(Vec::as_slice).unwrap_or_default();
        let mut lines =
            blocks.iter().flat_map(|block| block.text.lines()).flat_map(|line| line.split(" && "));
        ensure!(
            lines.any(|line| line.starts_with(start)),
            "{document} has no line that begins with {start:?}"
        );
    }
    Ok(())
}

/// Reports why a block or command does not run, if it is in [`NOT_RUN`].
fn is_not_run(snippet: &Snippet, text: &str) -> bool {
    let entry = NOT_RUN.iter().find(|(page, start, _)| *page == snippet.document && text.starts_with(start));
    if let Some((document, start, why)) = entry {
        println!("NOT RUN: {document}:{}: {start} …: {why}", snippet.line);
    }
    entry.is_some()
}

struct Runner {
    programs: PathBuf,
    scratch: Scratch,
    interrupt: Interrupt,
    /// Whether the C library is in the scratch folder.
    is_installed: bool,
    ran: u32,
}

/// One document's place: its folders, port and server.
struct Place {
    folder: PathBuf,
    port: u16,
    server: Option<ServerProcess>,
}

impl Place {
    /// Puts the runner's folders and port in place of those that a block names.
    fn adapt(&self, text: &str) -> String {
        let local = format!("127.0.0.1:{}", self.port);
        let mut text = text.replace("10.0.1.1:11211", &local).replace("11211", &self.port.to_string());
        // In two steps, as the folder's own path may contain these.
        for name in ["/run/", "/tmp/", "/etc/", "/dev/shm/", "/usr/local"] {
            text = text.replace(name, &format!("\0{name}"));
        }
        text.replace('\0', &self.folder.to_string_lossy())
    }

    /// Starts a server with these flags, instead of the former one.
    fn serve(&mut self, programs: &Path, flags: &str, interrupt: &Interrupt) -> Result<()> {
        self.server = None;
        let mut command = server_command(&programs.join("fabcached"));
        command.args(flags.split_whitespace()).current_dir(&self.folder);
        let socket = flags.split_whitespace().skip_while(|word| *word != "-s").nth(1).map(PathBuf::from);
        if socket.is_none() && !flags.contains(&self.port.to_string()) && !flags.contains("--config") {
            command.args(["-p", &self.port.to_string()]);
        }
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let is_up = || match &socket {
            Some(path) => UnixStream::connect(path).is_ok(),
            None => TcpStream::connect(address).is_ok(),
        };
        self.server = Some(servers::start(&format!("fabcached {flags}"), command, &is_up, interrupt)?);
        Ok(())
    }
}

impl Runner {
    fn run_page(&mut self, document: &str, snippets: &[&Snippet]) -> Result<()> {
        let folder = self.scratch.path().join("page");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        // systemd makes /run/fabcached, by the unit's RuntimeDirectory.
        for name in ["run/fabcached", "tmp", "etc", "dev/shm"] {
            fs::create_dir_all(folder.join(name))?;
        }
        let mut place = Place { folder, port: ports::free_port()?, server: None };
        for snippet in snippets {
            self.run_block(snippet, &mut place).with_context(|| format!("{document}:{}", snippet.line))?;
        }
        let python: Vec<&&Snippet> = snippets.iter().filter(|snippet| snippet.language == "python").collect();
        if !python.is_empty() {
            self.run_python(document, &python, &mut place)?;
        }
        Ok(())
    }

    fn run_block(&mut self, snippet: &Snippet, place: &mut Place) -> Result<()> {
        if is_not_run(snippet, &snippet.text) {
            return Ok(());
        }
        self.ran += 1;
        match &*snippet.language {
            "sh" => {
                let commands = snippet.text.lines().flat_map(|line| line.split(" && "));
                commands.filter(|line| !line.is_empty()).try_for_each(|line| {
                    self.run_command(snippet, line, place).with_context(|| line.to_owned())
                })
            }
            "console" => session(&place.adapt(&snippet.text), self.served(place)?),
            "toml" => {
                let file = place.folder.join("etc/fabcached.toml");
                fs::write(&file, place.adapt(&snippet.text))?;
                place.serve(&self.programs, &format!("--config {}", file.display()), &self.interrupt)
            }
            "c" => self.run_c(snippet, place),
            "rust" => {
                let included = format!("{}\")]", snippet.document);
                let file = fs::read_to_string(workspace::folder().join(DOCUMENTATION_TESTS))?;
                ensure!(
                    file.contains(&included),
                    "{DOCUMENTATION_TESTS} does not include {}",
                    snippet.document
                );
                Ok(())
            }
            // Run together, in order.
            "python" | "text" => Ok(()),
            other => bail!("nothing checks blocks of the language {other:?}; see xtask/src/snippets.rs"),
        }
    }

    fn run_command(&mut self, snippet: &Snippet, line: &str, place: &mut Place) -> Result<()> {
        if is_not_run(snippet, line) {
            return Ok(());
        }
        let line = line.split("  #").next().unwrap_or_default().trim();
        self.ran += 1;
        if let Some(words) = line.strip_prefix("cargo xtask ") {
            let words = ["xtask"].into_iter().chain(words.split_whitespace());
            return crate::Cli::try_parse_from(words).map(drop).context("cargo xtask refuses it");
        }
        if let Some(flags) = line.strip_prefix("cargo run --release") {
            let flags = place.adapt(flags.trim_start().strip_prefix("-- ").unwrap_or_default());
            return place.serve(&self.programs, &flags, &self.interrupt);
        }
        if let Some(flags) = line.strip_prefix("fabcached ") {
            let flags = place.adapt(flags);
            return place.serve(&self.programs, &flags, &self.interrupt);
        }
        let last = line.rsplit(" | ").next().unwrap_or_default().replace("target/release/", "");
        if last.starts_with("fabcache ") {
            // Parses what stands before it, and then only prints.
            return self.shell(&format!("{last} --help"), place);
        }
        if line.starts_with("cc ") {
            self.install(place)?;
            return self.shell(line, place);
        }
        if let Some(words) = line.strip_prefix("cargo add ") {
            return add_dependency(&place.folder, words);
        }
        bail!("nothing checks this command; see xtask/src/snippets.rs")
    }

    /// Runs a line in the page's folder.
    fn shell(&self, line: &str, place: &Place) -> Result<()> {
        let prefix = self.scratch.path().join("prefix");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("bash");
        command.args(["-c", line]).current_dir(&place.folder);
        command.env("PATH", format!("{}:{path}", self.programs.display()));
        command
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
            .env("LD_LIBRARY_PATH", prefix.join("lib"));
        self.succeeds(&mut command).map(drop)
    }

    fn succeeds(&self, command: &mut Command) -> Result<String> {
        let run = process::run(command, self.scratch.path(), TIME_MAX, &self.interrupt)?;
        match run.failure {
            None => Ok(run.stdout),
            Some(failure) => bail!("{failure}\n{}{}", run.stdout, run.stderr),
        }
    }

    /// Installs the C library once, and makes it the page's /usr/local.
    fn install(&mut self, place: &Place) -> Result<()> {
        let prefix = self.scratch.path().join("prefix");
        if !self.is_installed {
            capi::install::into(&prefix, &prefix)?;
            self.is_installed = true;
        }
        let local = place.folder.join("usr/local");
        if !local.exists() {
            fs::create_dir_all(place.folder.join("usr"))?;
            symlink(&prefix, &local)?;
            // A command that comes before the program it names.
            fs::write(place.folder.join("program.c"), "int main(void) { return 0; }\n")?;
        }
        Ok(())
    }

    /// Builds a program and runs it; a part of one is only compiled, in a function.
    fn run_c(&mut self, snippet: &Snippet, place: &mut Place) -> Result<()> {
        self.install(place)?;
        let is_program = snippet.text.contains("int main(");
        let text = match is_program {
            true => place.adapt(&snippet.text),
            false => format!(
                "#include <fabcache.h>\n#include <stdio.h>\n#include <string.h>\nvoid snippet(fabcache *cache) {{\n{}}}\n",
                snippet.text
            ),
        };
        fs::write(place.folder.join("program.c"), text)?;
        let strict = "cc -Wall -Wextra -Werror program.c $(pkg-config --cflags --libs fabcache)";
        if !is_program {
            return self.shell(&format!("{strict} -c -o part.o"), place);
        }
        self.served(place)?;
        self.shell(&format!("{strict} -o program && ./program"), place)
    }

    /// Runs the Python blocks of a page in one interpreter.
    fn run_python(&self, document: &str, snippets: &[&&Snippet], place: &mut Place) -> Result<()> {
        self.served(place)?;
        let blocks: Vec<(usize, String)> =
            snippets.iter().map(|snippet| (snippet.line, place.adapt(&snippet.text))).collect();
        let (script, input) = (place.folder.join("run.py"), place.folder.join("blocks.json"));
        fs::write(&script, RUN_PYTHON)?;
        fs::write(&input, serde_json::to_string(&blocks)?)?;
        let mut command = python::with_wheel()?;
        command.arg(&script).arg(document).arg(&input).current_dir(&place.folder);
        print!("{}", self.succeeds(&mut command)?);
        Ok(())
    }

    /// Starts a server at the usual places if the page has not started one; returns its TCP address.
    fn served(&self, place: &mut Place) -> Result<SocketAddr> {
        if place.server.is_none() {
            let flags = place.adapt("-s /run/fabcached.sock --shm -p 11211");
            place.serve(&self.programs, &flags, &self.interrupt)?;
        }
        Ok(SocketAddr::from(([127, 0, 0, 1], place.port)))
    }
}

/// Runs `cargo add` in a new package, beside this repository as `../fabcache`.
fn add_dependency(folder: &Path, words: &str) -> Result<()> {
    let package = folder.join("program");
    fs::create_dir_all(package.join("src"))?;
    fs::write(package.join("src/main.rs"), "fn main() {}\n")?;
    fs::write(
        package.join("Cargo.toml"),
        "[package]\nname = \"program\"\nedition = \"2024\"\n\n[workspace]\n",
    )?;
    symlink(workspace::folder(), folder.join("fabcache"))?;
    let mut cargo = workspace::cargo();
    cargo.current_dir(&package).args(["add", "--offline", "--quiet"]).args(words.split_whitespace());
    ensure!(cargo.status()?.success(), "cargo add fails");
    Ok(())
}

/// Repeats a session of a telnet client, whose first line starts the client.
fn session(text: &str, server: SocketAddr) -> Result<()> {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    ensure!(
        first == format!("$ telnet {} {}", server.ip(), server.port()),
        "{first}: not a session of telnet"
    );
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(LINE_TIME_MAX))?;
    let mut answers = BufReader::new(stream.try_clone()?);
    while let Some(line) = lines.next() {
        let mut words = line.split(' ');
        let command = words.next().unwrap_or_default();
        let mut request = format!("{line}\r\n");
        if command == "set" {
            request += &format!("{}\r\n", lines.next().context("a set has a value")?);
        }
        stream.write_all(request.as_bytes())?;
        // A client that quits gets no answer; the lines of the others end with one of these, or are the only one.
        let mut is_over = command == "quit";
        while !is_over {
            let expected = lines.next().with_context(|| format!("the answer to {line:?} is missing"))?;
            let mut answer = String::new();
            answers.read_line(&mut answer)?;
            ensure!(answer.trim_end() == expected, "{line}: the server answers {answer:?}, not {expected:?}");
            is_over = match command {
                "get" => expected == "END",
                "mg" => !expected.starts_with("VA "),
                _ => true,
            };
        }
    }
    Ok(())
}
