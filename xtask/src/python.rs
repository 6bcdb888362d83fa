//! `cargo xtask python`: builds the wheel and tests it in a virtual environment, with pymemcache and
//! Django.
//!
//! Needs python3 with venv (Debian: python3-venv), and PyPI for pip. Some tests use the fabric;
//! libfabric is installed if missing.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::clients::install::make_packages_ready;
use crate::process::Interrupt;
use crate::workspace;

/// The oldest Python that supports the wheel's stable ABI.
const PYTHON_MIN: (u32, u32) = (3, 11);

/// Tests the wheel, and measures it.
#[derive(clap::Args)]
pub struct Args {
    /// Only tests whose names match this, as for pytest's -k
    filter: Option<String>,
    /// Seconds of the soak from eight threads, over each transport
    #[arg(long, default_value_t = 3)]
    soak_seconds: u32,
    /// Only build the wheel
    #[arg(long, conflicts_with_all = ["filter", "bench"])]
    build: bool,
    /// Only compare times with pylibmc and pymemcache, also on Debian's memcached
    #[arg(long, conflicts_with = "filter")]
    bench: bool,
}

/// Builds, installs and tests the wheel.
///
/// # Errors
/// A requirement is missing, the wheel does not build, or a check fails.
pub fn run(args: &Args) -> Result<()> {
    let package = package();
    let (environment, wheel) = build()?;
    println!("{}", wheel.display());
    if args.build {
        return Ok(());
    }
    environment.install_wheel(&wheel)?;
    let server = workspace::build_server()?;
    if args.bench {
        environment.install(&["pylibmc==1.6.3"], &package)?;
        let mut compare = environment.program("python");
        compare.arg("bench/compare.py").arg("--fabcached").arg(&server).args(["--memcached", "memcached"]);
        return succeeds(compare.current_dir(&package), "the comparison of times");
    }
    encoding(&package)?;
    types(&environment, &package)?;
    make_packages_ready(&workspace::folder().join("tests/rdma"), &Interrupt::register()?)?;
    let mut tests = environment.program("python");
    tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]);
    if let Some(filter) = &args.filter {
        tests.args(["-k", filter]);
    }
    if Command::new("memcached").arg("-V").output().is_ok_and(|reported| reported.status.success()) {
        tests.env("MEMCACHED", "memcached");
    } else {
        println!("NOT RUN: the tests on memcached, which is not installed");
    }
    tests.env("FABCACHED", &server).env("SOAK_SECONDS", args.soak_seconds.to_string());
    succeeds(tests.current_dir(&package), "the wheel's tests")
}

/// Builds and installs the wheel; returns a command that runs Python with it.
///
/// # Errors
/// A requirement is missing, or the wheel does not build.
pub fn with_wheel() -> Result<Command> {
    let (environment, wheel) = build()?;
    environment.install_wheel(&wheel)?;
    Ok(environment.program("python"))
}

fn package() -> PathBuf {
    workspace::folder().join("bindings/python")
}

/// Builds the wheel, with the environment that it is tested in.
fn build() -> Result<(Environment, PathBuf)> {
    let (package, place) = (package(), workspace::target().join("python"));
    let environment = Environment::new(&place.join("venv"))?;
    environment.install(&["--requirement", "requirements.txt"], &package)?;
    let wheel = environment.build(&package, &place)?;
    Ok((environment, wheel))
}

/// Checks the formatting and lints of the wheel, which is a separate workspace.
fn encoding(package: &Path) -> Result<()> {
    let cargo = |arguments: &[&str]| {
        let mut cargo = workspace::cargo();
        cargo.current_dir(package).args(arguments);
        cargo
    };
    succeeds(&mut cargo(&["fmt", "--check"]), "the formatting of the wheel's Rust code")?;
    let mut clippy = cargo(&["clippy", "--locked", "--quiet", "--all-targets", "--target-dir"]);
    clippy.arg(build_folder(&workspace::target().join("python"))).args(["--", "-D", "warnings"]);
    succeeds(&mut clippy, "clippy on the wheel's Rust code")
}

/// Checks the types and the stubs.
fn types(environment: &Environment, package: &Path) -> Result<()> {
    let mut mypy = environment.program("python");
    mypy.args(["-m", "mypy", "--strict", "python/fabcache"]);
    succeeds(mypy.current_dir(package), "mypy on the package")?;
    let mut stubtest = environment.program("python");
    stubtest.args(["-m", "mypy.stubtest", "fabcache._fabcache", "fabcache.client"]);
    succeeds(stubtest.current_dir(package), "the stubs against the built package")
}

fn build_folder(place: &Path) -> PathBuf {
    place.join("build")
}

/// A virtual environment.
struct Environment {
    folder: PathBuf,
}

impl Environment {
    /// Returns the environment in this folder; creates it if it does not exist.
    fn new(folder: &Path) -> Result<Environment> {
        let environment = Environment { folder: folder.to_owned() };
        if environment
            .program("python")
            .args(["-m", "pip", "--version"])
            .output()
            .is_ok_and(|pip| pip.status.success())
        {
            return Ok(environment);
        }
        let (major, minor) = PYTHON_MIN;
        let is_new = format!("import sys; sys.exit(sys.version_info < ({major}, {minor}))");
        let python = Command::new("python3").args(["-c", &is_new]).status();
        let python = python.context("python3 cannot be started: the wheel's checks need it")?;
        ensure!(python.success(), "python3 is older than {major}.{minor}, which the wheel needs");
        let mut made = Command::new("python3");
        made.args(["-m", "venv", "--clear"]).arg(folder);
        succeeds(&mut made, "a virtual environment")
            .context("python3 makes no virtual environment; on Debian it needs the package python3-venv")?;
        Ok(environment)
    }

    fn program(&self, name: &str) -> Command {
        let mut program = Command::new(self.folder.join("bin").join(name));
        // The caller's variables refer to other Pythons.
        program.env_remove("PYTHONPATH").env_remove("PYTHONHOME").env("VIRTUAL_ENV", &self.folder);
        program
    }

    fn pip(&self, arguments: &[&str], more: Option<&Path>, at: &Path) -> Result<()> {
        let mut pip = self.program("python");
        pip.args(["-m", "pip", "--disable-pip-version-check"]).args(arguments).args(more).current_dir(at);
        succeeds(&mut pip, "pip")
    }

    fn install(&self, what: &[&str], at: &Path) -> Result<()> {
        let arguments: Vec<&str> = ["install", "--quiet"].iter().chain(what).copied().collect();
        self.pip(&arguments, None, at)
            .context("the requirements of the wheel's checks cannot be installed; pip must reach PyPI")
    }

    fn install_wheel(&self, wheel: &Path) -> Result<()> {
        self.pip(&["install", "--quiet", "--force-reinstall", "--no-deps"], Some(wheel), &package())
    }

    /// Builds the wheel.
    fn build(&self, package: &Path, place: &Path) -> Result<PathBuf> {
        let wheels = place.join("wheels");
        if wheels.exists() {
            std::fs::remove_dir_all(&wheels).with_context(|| format!("{} stays", wheels.display()))?;
        }
        let mut maturin = self.program("maturin");
        maturin.args(["build", "--release", "--locked", "--quiet", "--out"]).arg(&wheels);
        maturin.arg("--target-dir").arg(build_folder(place));
        succeeds(maturin.current_dir(package), "the wheel's build")?;
        let built =
            std::fs::read_dir(&wheels).with_context(|| format!("{} does not exist", wheels.display()))?;
        let built: Vec<PathBuf> = built.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
        match &built[..] {
            [wheel] if wheel.extension() == Some(OsStr::new("whl")) => Ok(wheel.clone()),
            other => bail!("maturin built {other:?}, and not one wheel"),
        }
    }
}

fn succeeds(command: &mut Command, what: &str) -> Result<()> {
    let program = command.get_program().to_owned();
    let status = command.status().with_context(|| format!("{} cannot be started", program.display()))?;
    ensure!(status.success(), "{what}: {} failed", program.display());
    Ok(())
}
