//! Installs the clients' requirements: Debian packages, then each language's packages, in pinned
//! versions.
//!
//! Everything goes under the target directory (and into the package managers' caches), never into the
//! source tree. A stamp file marks a complete installation.
//!
//! A failed download depends on the machine: the client *cannot run*. A failed compilation depends on
//! the source tree: the client *failed*.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Client, Language, last_lines};
use crate::process::{self, Interrupt, Scratch};

/// Time limit of the slowest step, which downloads or compiles.
const STEP_TIME_MAX: Duration = Duration::from_secs(900);

/// Why a client cannot start.
#[derive(Clone, Debug)]
pub(super) enum NotReady {
    /// It cannot run on this machine.
    Unavailable(String),
    /// Its program does not compile.
    Broken(String),
    /// This process received a signal to stop.
    Interrupted,
}

/// Installs each language once, before the first of its clients runs.
pub(super) struct Installer<'a> {
    /// `tests/clients`.
    sources: PathBuf,
    /// The folder of all installations, with one folder per language.
    cache: PathBuf,
    interrupt: &'a Interrupt,
    done: HashMap<&'static str, Result<(), NotReady>>,
}

impl<'a> Installer<'a> {
    pub(super) fn new(sources: &Path, cache: &Path, interrupt: &'a Interrupt) -> Self {
        Self { sources: sources.to_owned(), cache: cache.to_owned(), interrupt, done: HashMap::new() }
    }

    /// Returns the command that runs a client; installs its language if needed.
    pub(super) fn command(&mut self, client: &Client) -> Result<Command, NotReady> {
        let folder = client.language.folder();
        if !self.done.contains_key(folder) {
            let started = Instant::now();
            let result = Site::new(self, folder).and_then(|site| site.install(client.language));
            if result.is_ok() {
                println!("      {folder} made ready in {:.1} s", started.elapsed().as_secs_f64());
            }
            self.done.insert(folder, result);
        }
        self.done[folder].clone()?;
        Ok(Site::new(self, folder)?.command(client))
    }
}

/// Installs what another folder of programs lists: the packages of its `debian.txt`, and a virtual
/// environment of its `requirements.txt` in `cache`.
///
/// # Errors
/// Something cannot be installed on this machine.
pub(crate) fn make_python_ready(sources: &Path, cache: &Path, interrupt: &Interrupt) -> anyhow::Result<()> {
    fs::create_dir_all(cache)?;
    let site = Site { sources: sources.to_owned(), cache: cache.to_owned(), interrupt };
    site.install_debian_packages().and_then(|()| site.install_python()).map_err(to_error)
}

/// Installs the packages that a folder's `debian.txt` lists.
///
/// # Errors
/// Something cannot be installed on this machine.
pub(crate) fn make_packages_ready(sources: &Path, interrupt: &Interrupt) -> anyhow::Result<()> {
    let site = Site { sources: sources.to_owned(), cache: sources.to_owned(), interrupt };
    site.install_debian_packages().map_err(to_error)
}

fn to_error(fault: NotReady) -> anyhow::Error {
    match fault {
        NotReady::Unavailable(reason) | NotReady::Broken(reason) => anyhow::anyhow!("{reason}"),
        NotReady::Interrupted => anyhow::anyhow!("interrupted"),
    }
}

/// A language's folders, and its installation steps.
struct Site<'a> {
    sources: PathBuf,
    cache: PathBuf,
    interrupt: &'a Interrupt,
}

impl<'a> Site<'a> {
    fn new(installer: &Installer<'a>, folder: &str) -> Result<Self, NotReady> {
        let cache = installer.cache.join(folder);
        fs::create_dir_all(&cache).map_err(|error| unavailable(&cache, &error))?;
        Ok(Self { sources: installer.sources.join(folder), cache, interrupt: installer.interrupt })
    }

    fn install(&self, language: Language) -> Result<(), NotReady> {
        self.install_debian_packages()?;
        match language {
            Language::Python => self.install_python()?,
            Language::Go => self.install_go()?,
            Language::Java => self.install_java()?,
            Language::Node => self.install_node()?,
            Language::Rust => self.install_rust()?,
            Language::C => self.compile(command("cc").args(["-O2", "-Wall", "-Wextra", "-o"]).args([
                &self.cache.join("libmemcached"),
                &self.sources.join("libmemcached.c"),
                Path::new("-lmemcached"),
            ]))?,
            // These need only Debian's packages.
            Language::Ruby | Language::Tools => {}
        }
        Ok(())
    }

    fn command(&self, client: &Client) -> Command {
        let program = self.sources.join(client.program);
        let stem = program.file_stem().unwrap_or_default();
        match client.language {
            Language::Python => {
                let mut python = command(self.cache.join("venv/bin/python"));
                python.arg(&program).env("PYTHONDONTWRITEBYTECODE", "1");
                python
            }
            Language::Java => {
                let mut java = command("java");
                java.arg("-cp").arg(self.class_path()).arg(stem);
                java
            }
            Language::Node => {
                let mut node = command("node");
                node.arg(&program).env("NODE_PATH", self.cache.join("node_modules"));
                node
            }
            Language::Go | Language::C => command(self.cache.join(stem)),
            Language::Rust => command(self.cache.join("release").join(stem)),
            Language::Ruby => {
                // Debian's own interpreter, which alone finds Debian's libraries.
                let mut ruby = command("/usr/bin/ruby");
                ruby.arg(&program);
                ruby
            }
            Language::Tools => {
                let mut bash = command("bash");
                bash.arg(&program);
                bash
            }
        }
    }

    fn install_python(&self) -> Result<(), NotReady> {
        self.once(&["requirements.txt"], |site| {
            site.fetch(command("python3").args(["-m", "venv", "--clear"]).arg(site.cache.join("venv")))?;
            let pip = site.cache.join("venv/bin/pip");
            // Without resolving: everything is listed, which the check then confirms.
            let options = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--requirement"];
            site.fetch(command(&pip).args(options).arg(site.sources.join("requirements.txt")))?;
            site.fetch(command(&pip).args(["check", "--disable-pip-version-check"]))
        })
    }

    fn install_go(&self) -> Result<(), NotReady> {
        self.fetch(command("go").args(["mod", "download"]).current_dir(&self.sources))?;
        let binary = self.cache.join("gomemcache");
        self.compile(command("go").args(["build", "-o"]).arg(binary).arg(".").current_dir(&self.sources))
    }

    fn install_java(&self) -> Result<(), NotReady> {
        self.once(&["pom.xml"], |site| {
            let output = format!("-DoutputDirectory={}", site.cache.join("jars").display());
            let goal = ["--batch-mode", "--quiet", "dependency:copy-dependencies", &output, "--file"];
            site.fetch(command("mvn").args(goal).arg(site.sources.join("pom.xml")))
        })?;
        let mut javac = command("javac");
        javac
            .args(["-encoding", "UTF-8", "-d"])
            .arg(self.cache.join("classes"))
            .arg("-cp")
            .arg(self.class_path());
        for source in ["Checks.java", "Spymemcached.java", "Xmemcached.java"] {
            javac.arg(self.sources.join(source));
        }
        self.compile(&mut javac)
    }

    fn class_path(&self) -> String {
        format!("{}:{}/*", self.cache.join("classes").display(), self.cache.join("jars").display())
    }

    fn install_node(&self) -> Result<(), NotReady> {
        self.once(&["package.json", "package-lock.json"], |site| {
            for file in ["package.json", "package-lock.json"] {
                fs::copy(site.sources.join(file), site.cache.join(file))
                    .map_err(|error| unavailable(&site.cache, &error))?;
            }
            let options = ["ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"];
            site.fetch(command("npm").args(options).current_dir(&site.cache))
        })
    }

    fn install_rust(&self) -> Result<(), NotReady> {
        let cargo = || command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let manifest = self.sources.join("Cargo.toml");
        self.fetch(cargo().args(["fetch", "--quiet", "--locked", "--manifest-path"]).arg(&manifest))?;
        let options = ["build", "--quiet", "--release", "--locked", "--offline", "--target-dir"];
        self.compile(cargo().args(options).arg(&self.cache).arg("--manifest-path").arg(&manifest))
    }

    /// Installs the missing packages of `debian.txt`.
    fn install_debian_packages(&self) -> Result<(), NotReady> {
        let list = process::read(&self.sources.join("debian.txt"));
        let wanted: Vec<Package<'_>> =
            list.lines().filter_map(Package::parse).filter(Package::is_needed).collect();
        let missing: Vec<&str> = wanted
            .iter()
            .filter(|package| package.installed().is_none())
            .map(|package| package.name)
            .collect();
        if !missing.is_empty() {
            self.apt_get(&missing)?;
        }
        for package in &wanted {
            match (package.installed(), package.version) {
                (None, _) => return Err(NotReady::Unavailable(format!("{} is not installed", package.name))),
                (Some(found), Some(version)) if !is_upstream(&found, version) => {
                    let reason = format!("{} is {found} here, {version} is wanted", package.name);
                    return Err(NotReady::Unavailable(reason));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn apt_get(&self, packages: &[&str]) -> Result<(), NotReady> {
        let names = packages.join(" ");
        if !on_path("apt-get") {
            return Err(NotReady::Unavailable(format!("without apt-get, these are missing: {names}")));
        }
        if !rustix::process::geteuid().is_root() {
            return Err(NotReady::Unavailable(format!(
                "only root can install the missing packages: {names}"
            )));
        }
        let install = || {
            let mut apt = command("apt-get");
            apt.args(["install", "--yes", "--quiet", "--no-install-recommends"]).args(packages);
            apt.env("DEBIAN_FRONTEND", "noninteractive");
            apt
        };
        // The package lists may be absent or old.
        self.fetch(&mut install()).or_else(|error| match error {
            NotReady::Interrupted => Err(error),
            _ => self
                .fetch(command("apt-get").args(["update", "--quiet"]))
                .and_then(|()| self.fetch(&mut install())),
        })
    }

    /// Runs the steps unless they have been run with the same files.
    fn once(
        &self,
        files: &[&str],
        steps: impl FnOnce(&Self) -> Result<(), NotReady>,
    ) -> Result<(), NotReady> {
        let stamp = self.cache.join("stamp");
        let wanted: String = files.iter().map(|file| process::read(&self.sources.join(file))).collect();
        if process::read(&stamp) == wanted {
            return Ok(());
        }
        // Start from scratch, so that an installation never depends on an earlier one.
        fs::remove_dir_all(&self.cache)
            .and_then(|()| fs::create_dir_all(&self.cache))
            .map_err(|error| unavailable(&self.cache, &error))?;
        steps(self)?;
        fs::write(&stamp, wanted).map_err(|error| unavailable(&stamp, &error))
    }

    fn fetch(&self, step: &mut Command) -> Result<(), NotReady> {
        self.step(step, NotReady::Unavailable)
    }

    fn compile(&self, step: &mut Command) -> Result<(), NotReady> {
        self.step(step, NotReady::Broken)
    }

    fn step(&self, step: &mut Command, fault: fn(String) -> NotReady) -> Result<(), NotReady> {
        let text = format!("{step:?}");
        let program = step.get_program();
        if !on_path(program) {
            return Err(NotReady::Unavailable(format!("{} is not installed", program.display())));
        }
        let outcome = Scratch::create()
            .and_then(|scratch| process::run(step, scratch.path(), STEP_TIME_MAX, self.interrupt));
        match outcome {
            _ if self.interrupt.is_set() => Err(NotReady::Interrupted),
            Ok(run) => match run.failure {
                None => Ok(()),
                Some(failure) => Err(fault(format!(
                    "{text}: {failure}\n{}",
                    last_lines(&format!("{}{}", run.stdout, run.stderr))
                ))),
            },
            Err(error) => Err(NotReady::Unavailable(format!("{text}: {error:#}"))),
        }
    }
}

/// A line of `debian.txt`: `PACKAGE [UPSTREAM VERSION] [unless COMMAND]`.
#[derive(Debug, PartialEq, Eq)]
struct Package<'a> {
    name: &'a str,
    version: Option<&'a str>,
    /// A command that makes the package unnecessary.
    unless: Option<&'a str>,
}

impl<'a> Package<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split('#').next()?.split_whitespace();
        let name = words.next()?;
        let mut package = Self { name, version: None, unless: None };
        while let Some(word) = words.next() {
            match word {
                "unless" => package.unless = words.next(),
                version => package.version = Some(version),
            }
        }
        Some(package)
    }

    fn is_needed(&self) -> bool {
        self.unless.is_none_or(|program| !on_path(program))
    }

    /// Returns the installed version.
    fn installed(&self) -> Option<String> {
        let output =
            command("dpkg-query").args(["-W", "-f=${Status} ${Version}", self.name]).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        text.strip_prefix("install ok installed ").map(str::to_owned)
    }
}

/// Returns whether a Debian version, `[EPOCH:]UPSTREAM[-REVISION]`, is of this upstream version, which
/// Debian may have repacked (`+dfsg`).
fn is_upstream(debian: &str, upstream: &str) -> bool {
    let without_epoch = debian.split_once(':').map_or(debian, |(_, rest)| rest);
    let without_revision = without_epoch.rsplit_once('-').map_or(without_epoch, |(rest, _)| rest);
    without_revision.split('+').next() == Some(upstream)
}

fn on_path(program: impl AsRef<OsStr>) -> bool {
    let program = Path::new(program.as_ref());
    // A path with a separator is used as is, as in `execvp`.
    if program.components().count() > 1 {
        return program.is_file();
    }
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

fn command(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

fn unavailable(path: &Path, error: &std::io::Error) -> NotReady {
    NotReady::Unavailable(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_parsed() {
        let package = |name, version, unless| Some(Package { name, version, unless });
        assert_eq!(Package::parse("zlib1g-dev"), package("zlib1g-dev", None, None));
        assert_eq!(Package::parse("nutcracker 0.5.0"), package("nutcracker", Some("0.5.0"), None));
        assert_eq!(Package::parse("gcc unless cc # why"), package("gcc", None, Some("cc")));
        assert_eq!(Package::parse("# only a comment"), None);
        assert_eq!(Package::parse(""), None);
    }

    #[test]
    fn debian_versions_are_compared() {
        assert!(is_upstream("1.1.4-1", "1.1.4"));
        assert!(is_upstream("0.5.0+dfsg-2", "0.5.0"));
        assert!(is_upstream("1:1.2.13.dfsg-1", "1.2.13.dfsg"));
        assert!(!is_upstream("1.1.40-1", "1.1.4"));
    }
}
