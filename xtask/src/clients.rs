//! `cargo xtask clients`: the real client libraries and tools of `tests/clients`, each against fresh
//! servers.
//!
//! A client is a program that asserts on values, prints one line `NAME VERSION: N checks passed` and exits 0. Its
//! dependencies are installed under the target directory, in exactly the versions that its folder names. Clients run
//! one at a time, since several of them flush, count and time.
//!
//! Every process started here dies with this one, however it ends.

pub(crate) mod install;
mod server;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::workspace;

use self::install::{Installer, NotReady};
use self::server::{Fixture, Subject};
use crate::process::{self, Interrupt, Scratch};

/// Well above the slowest client, which takes seconds.
const CLIENT_TIME_MAX: Duration = Duration::from_secs(120);

/// Maximum number of lines shown of the output of a failed client and of its servers.
const SHOWN_LINES_MAX: usize = 100;

/// The clients, in the order of their runs.
const CLIENTS: &[Client] = &[
    Client::new("pymemcache", Language::Python, "check_pymemcache.py"),
    Client::new("pylibmc", Language::Python, "check_pylibmc.py"),
    Client::new("python-memcached", Language::Python, "check_python_memcached.py"),
    Client::new("aiomcache", Language::Python, "check_aiomcache.py"),
    Client::new("bmemcached", Language::Python, "check_bmemcached.py"),
    Client::new("meta-memcache", Language::Python, "check_meta_memcache.py"),
    Client::new("twemproxy", Language::Python, "check_twemproxy.py"),
    Client::new("gomemcache", Language::Go, "gomemcache.go"),
    Client::new("spymemcached", Language::Java, "Spymemcached.java"),
    Client::new("xmemcached", Language::Java, "Xmemcached.java"),
    Client::new("memjs", Language::Node, "memjs.js"),
    Client::new("node-memcached", Language::Node, "memcached.js"),
    Client::new("rust-memcache", Language::Rust, "src/bin/memcache.rs"),
    Client::new("async-memcached", Language::Rust, "src/bin/async_memcached.rs"),
    Client::new("libmemcached", Language::C, "libmemcached.c"),
    Client::new("dalli", Language::Ruby, "dalli.rb"),
    Client::new("memccapable", Language::Tools, "memccapable.sh"),
    Client::new("memcslap", Language::Tools, "memcslap.sh"),
    Client::new("memcaslap", Language::Tools, "memcaslap.sh"),
    Client::new("memctools", Language::Tools, "memctools.sh"),
];

/// Runs real memcached clients and checks every value they get.
#[derive(clap::Args)]
pub struct Args {
    /// The server to test [default: the workspace's own, built for release]
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
    /// Only these clients
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Succeed although some clients cannot run here; they are listed
    #[arg(long)]
    allow_skips: bool,
    /// Print the clients and stop
    #[arg(long)]
    list: bool,
}

/// One program of `tests/clients`.
#[derive(Debug)]
struct Client {
    name: &'static str,
    language: Language,
    /// The program's path in the language's folder.
    program: &'static str,
}

impl Client {
    const fn new(name: &'static str, language: Language, program: &'static str) -> Self {
        Self { name, language, program }
    }
}

/// A folder of `tests/clients`: how its programs are installed and started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Python,
    Go,
    Java,
    Node,
    Rust,
    C,
    Ruby,
    Tools,
}

impl Language {
    fn folder(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Go => "go",
            Self::Java => "java",
            Self::Node => "node",
            Self::Rust => "rust",
            Self::C => "c",
            Self::Ruby => "ruby",
            Self::Tools => "tools",
        }
    }
}

/// The outcome of a client's run.
pub(crate) enum Outcome {
    Passed { version: String, checks: u32 },
    Failed { report: String },
    Skipped { reason: String },
}

/// Installs what is missing, runs the clients, prints a line for each and a table of all.
pub fn run(args: &Args) -> Result<()> {
    if args.list {
        for client in CLIENTS {
            println!("{:<18}tests/clients/{}/{}", client.name, client.language.folder(), client.program);
        }
        return Ok(());
    }
    let selected = select(&args.only)?;
    let interrupt = Interrupt::register()?;
    let target = workspace::target();
    let subject = match &args.server {
        Some(path) => Subject::at(path)?,
        None => Subject::at(&workspace::build_server()?)?,
    };
    println!("server: {subject}");

    let mut installer =
        Installer::new(&workspace::folder().join("tests/clients"), &target.join("clients"), &interrupt);
    let mut results = Vec::new();
    for client in selected {
        let ready = installer.command(client);
        let started = Instant::now();
        let outcome = match ready {
            Ok(command) => run_client(command, &subject, &interrupt)?,
            Err(NotReady::Unavailable(reason)) => Outcome::Skipped { reason },
            Err(NotReady::Broken(report)) => Outcome::Failed { report },
            Err(NotReady::Interrupted) => bail!("interrupted"),
        };
        let result = ClientResult { name: client.name, outcome, seconds: started.elapsed().as_secs_f64() };
        result.print();
        results.push(result);
    }
    summarize(&results, args.allow_skips)
}

fn select(only: &[String]) -> Result<Vec<&'static Client>> {
    for name in only {
        ensure!(CLIENTS.iter().any(|client| client.name == name), "no client is named {name} (see --list)");
    }
    Ok(CLIENTS
        .iter()
        .filter(|client| only.is_empty() || only.iter().any(|name| name == client.name))
        .collect())
}

/// Runs one client against servers of its own. An error is the runner's, not the client's.
fn run_client(mut command: Command, subject: &Subject, interrupt: &Interrupt) -> Result<Outcome> {
    let scratch = Scratch::create()?;
    let mut fixture = match Fixture::start(subject, scratch.path(), interrupt) {
        Ok(fixture) => fixture,
        Err(error) if interrupt.is_set() => return Err(error),
        Err(error) => return Ok(Outcome::Failed { report: format!("{error:#}") }),
    };
    fixture.describe_to(&mut command);
    command.env("SCRATCH_DIR", scratch.path());

    let run = process::run(&mut command, scratch.path(), CLIENT_TIME_MAX, interrupt)?;
    let mut report = Vec::new();
    let mut summary = None;
    match &run.failure {
        Some(failure) => report.push(failure.clone()),
        None => match summary_line(&run.stdout) {
            Some(parsed) => summary = Some(parsed),
            None => report.push("it ended well, but without a line `NAME VERSION: N checks passed`".into()),
        },
    }
    // Even after a failed client: how its servers ended may explain it.
    report.extend(fixture.stop());
    match summary {
        Some((version, checks)) if report.is_empty() => Ok(Outcome::Passed { version, checks }),
        _ => {
            for (what, text) in
                [("output", &run.stdout), ("errors", &run.stderr), ("servers' errors", &fixture.log())]
            {
                if !text.trim().is_empty() {
                    report.push(format!("{what}:\n{}", last_lines(text)));
                }
            }
            Ok(Outcome::Failed { report: report.join("\n") })
        }
    }
}

/// The version and the count in `NAME VERSION: N checks passed`, the last line that is printed.
pub(crate) fn summary_line(stdout: &str) -> Option<(String, u32)> {
    let line = stdout.lines().rfind(|line| !line.trim().is_empty())?;
    let (subject, rest) = line.rsplit_once(": ")?;
    let (_, version) = subject.split_once(' ')?;
    let checks = rest.strip_suffix(" checks passed")?.parse().ok()?;
    (checks > 0).then(|| (version.to_owned(), checks))
}

pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let shown = &lines[lines.len().saturating_sub(SHOWN_LINES_MAX)..];
    shown.iter().map(|line| format!("  | {line}")).collect::<Vec<_>>().join("\n")
}

/// A completed client.
struct ClientResult {
    name: &'static str,
    outcome: Outcome,
    seconds: f64,
}

impl ClientResult {
    fn print(&self) {
        let Self { name, outcome, seconds } = self;
        match outcome {
            Outcome::Passed { version, checks } => {
                println!("ok    {name} {version}: {checks} checks in {seconds:.1} s");
            }
            Outcome::Failed { report } => println!("FAIL  {name} after {seconds:.1} s\n{report}"),
            Outcome::Skipped { reason } => println!("skip  {name}: {reason}"),
        }
    }

    fn row(&self) -> [String; 5] {
        let (result, version, checks) = match &self.outcome {
            Outcome::Passed { version, checks } => ("ok", version.clone(), checks.to_string()),
            Outcome::Failed { .. } => ("FAIL", String::new(), String::new()),
            Outcome::Skipped { .. } => ("skip", String::new(), String::new()),
        };
        [result.into(), self.name.into(), version, checks, format!("{:.1}", self.seconds)]
    }
}

fn summarize(results: &[ClientResult], allow_skips: bool) -> Result<()> {
    let heads = ["", "client", "version", "checks", "seconds"].map(String::from);
    let rows: Vec<[String; 5]> =
        std::iter::once(heads).chain(results.iter().map(ClientResult::row)).collect();
    let widths: [usize; 5] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or_default());
    println!();
    for row in &rows {
        let [result, name, version, checks, seconds] = row;
        let [a, b, c, d, e] = widths;
        println!("{result:<a$}  {name:<b$}  {version:<c$}  {checks:>d$}  {seconds:>e$}");
    }

    let count =
        |wanted: fn(&Outcome) -> bool| results.iter().filter(|result| wanted(&result.outcome)).count();
    let failed = count(|outcome| matches!(outcome, Outcome::Failed { .. }));
    let skipped = count(|outcome| matches!(outcome, Outcome::Skipped { .. }));
    let checks: u32 = results
        .iter()
        .map(|result| match result.outcome {
            Outcome::Passed { checks, .. } => checks,
            _ => 0,
        })
        .sum();
    println!(
        "\n{} clients passed {checks} checks, {failed} failed, {skipped} skipped",
        results.len() - failed - skipped
    );
    ensure!(failed == 0, "{failed} of {} clients failed", results.len());
    ensure!(
        allow_skips || skipped == 0,
        "{skipped} of {} clients cannot run here (see --allow-skips)",
        results.len()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_line_is_the_last_line() {
        let text = "noise\npylibmc 1.6.3 (libmemcached 1.1.4): 384 checks passed\n\n";
        assert_eq!(summary_line(text), Some(("1.6.3 (libmemcached 1.1.4)".into(), 384)));
        assert_eq!(summary_line("memjs 1.3.2: 0 checks passed"), None);
        assert_eq!(summary_line("memjs 1.3.2: 7 checks passed\nmore"), None);
        assert_eq!(summary_line(""), None);
    }

    #[test]
    fn every_client_has_a_program() {
        for client in CLIENTS {
            let path =
                workspace::folder().join("tests/clients").join(client.language.folder()).join(client.program);
            assert!(path.is_file(), "{} is missing", path.display());
        }
    }

    #[test]
    fn names_are_checked() {
        assert_eq!(select(&[]).expect("all of them").len(), CLIENTS.len());
        assert_eq!(select(&["dalli".into()]).expect("it is listed").len(), 1);
        select(&["nobody".into()]).expect_err("it is not listed");
    }
}
