//! `cargo xtask report`: checks pages of `fabcache bench report` in a real browser.
//!
//! Results come from a run of `fabcache bench latency` against a server, and from `tests/report`, which has some of
//! every subcommand and some hostile ones. The numbers on the pages are compared with those in the files.

mod browser;
mod numbers;

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::clients::install::make_packages_ready;
use crate::process::{self, Interrupt, Scratch};
use crate::servers::{self, server_command};
use crate::workspace;

use browser::{Browser, Theme};

/// Widths of a phone, a tablet and a screen.
const WIDTHS: [u32; 3] = [360, 768, 1300];

/// Time limit of a measurement with `--quick`, on a loaded machine.
const RUN_TIME_MAX: Duration = Duration::from_secs(120);

/// The host name in the hostile file, which is replaced by a listening host.
const FOREIGN: &str = "http://nowhere.invalid/";

/// Limits of the mean of all pixels, from black to white.
const DARK_MAX: f64 = 0.35;
const LIGHT_MIN: f64 = 0.75;

/// Checks reports of measurements in a browser.
#[derive(clap::Args)]
pub struct Args {
    /// The program `fabcache` [default: the workspace's own, built for release]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// The server [default: the workspace's own, built for release]
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
}

/// The programs under test, and the browser.
struct Subject {
    program: PathBuf,
    server: PathBuf,
    /// The folder for pages and pictures.
    folder: PathBuf,
    interrupt: Interrupt,
}

/// Creates pages and checks them.
///
/// # Errors
/// A requirement is missing and cannot be installed, or a check of a page fails.
pub fn run(args: &Args) -> Result<()> {
    let interrupt = Interrupt::register()?;
    make_packages_ready(&samples_folder(), &interrupt)?;
    let folder = workspace::target().join("report");
    fs::create_dir_all(&folder).with_context(|| format!("{} cannot be created", folder.display()))?;
    let program = args.program.clone().map_or_else(workspace::build_tool, Ok)?;
    let server = args.server.clone().map_or_else(workspace::build_server, Ok)?;
    let subject = Subject { program, server, folder, interrupt };
    let samples = samples(&samples_folder())?;
    subject.check_page("every", &samples)?;
    subject.check_page("measured", &subject.measure()?)?;
    subject.check_nothing_is_fetched()?;
    println!("pages and pictures are in {}", subject.folder.display());
    Ok(())
}

fn samples_folder() -> PathBuf {
    workspace::folder().join("tests/report")
}

fn samples(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries: std::io::Result<Vec<_>> = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect();
    let mut files = entries?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    ensure!(!files.is_empty(), "no results in {}", folder.display());
    Ok(files)
}

impl Subject {
    /// Measures over two transports, and writes the page of the run.
    fn measure(&self) -> Result<Vec<PathBuf>> {
        let scratch = Scratch::create()?;
        let socket = scratch.path().join("s");
        let mut command = server_command(&self.server);
        command.arg("-s").arg(&socket).arg("--shm");
        let is_up = || UnixStream::connect(&socket).is_ok();
        let _server = servers::start("the measured server", command, &is_up, &self.interrupt)?;
        let mut files = Vec::new();
        for transport in ["unix", "shm"] {
            let file = self.folder.join(format!("{transport}.json"));
            let page = self.folder.join(format!("{transport}.html"));
            let server = format!("{transport}://{}", socket.display());
            let mut bench = Command::new(&self.program);
            bench.args(["bench", "latency", "--quick", "--verify", "--server", &server]);
            bench.arg("--json").arg(&file).arg("--report").arg(&page);
            self.succeeds(&mut bench)?;
            ensure!(fs::read_to_string(&page)?.contains("<figure"), "{} shows nothing", page.display());
            files.push(file);
        }
        Ok(files)
    }

    fn succeeds(&self, command: &mut Command) -> Result<()> {
        let scratch = Scratch::create()?;
        let run = process::run(command, scratch.path(), RUN_TIME_MAX, &self.interrupt)?;
        match run.failure {
            Some(failure) => bail!("{command:?}: {failure}\n{}", run.stderr),
            None => Ok(()),
        }
    }

    fn page(&self, name: &str, files: &[PathBuf]) -> Result<PathBuf> {
        let page = self.folder.join(format!("{name}.html"));
        let mut command = Command::new(&self.program);
        self.succeeds(command.args(["bench", "report", "--out"]).arg(&page).args(files))?;
        Ok(page)
    }

    fn check_page(&self, name: &str, files: &[PathBuf]) -> Result<()> {
        let page = self.page(name, files)?;
        let folder = self.folder.join(name);
        fs::create_dir_all(&folder)?;
        let browser = Browser { interrupt: &self.interrupt, folder: &folder };
        let said = browser.console(&page)?;
        ensure!(said.is_empty(), "{name}: the page says on its console:\n{}", said.join("\n"));
        let print = fs::read(browser.print(&page)?)?;
        ensure!(print.starts_with(b"%PDF-"), "{name}: it is not printed");
        let results: Result<Vec<Value>> =
            files.iter().map(|path| Ok(serde_json::from_str(&fs::read_to_string(path)?)?)).collect();
        let expected = numbers::expected(&results?)?;
        for theme in Theme::ALL {
            let pictures =
                [browser.picture(&page, theme, 1300, 3000)?, browser.picture(&page, theme, 500, 3000)?];
            let found = browser.look(&page, theme, &WIDTHS, &pictures)?;
            check(&found, theme).with_context(|| format!("{name}, {}", theme.name()))?;
            numbers::check(&found["read"]["sections"], &expected).with_context(|| name.to_owned())?;
        }
        let figures = numbers::figures(&expected);
        println!("{name}: {} sections, {figures} results, as they are in the files", expected.len());
        Ok(())
    }

    /// Checks that the browser fetches nothing for a hostile file; a page of another origin shows that a
    /// fetch would be noticed.
    fn check_nothing_is_fetched(&self) -> Result<()> {
        let host = Host::listening()?;
        let here = format!("http://{}/", host.address);
        let text = fs::read_to_string(samples_folder().join("hostile.json"))?;
        ensure!(text.contains(FOREIGN), "the hostile file has no host name");
        let file = self.folder.join("hostile.json");
        fs::write(&file, text.replace(FOREIGN, &here))?;
        let page = self.page("hostile", &[file])?;
        let browser = Browser { interrupt: &self.interrupt, folder: &self.folder };
        let said = browser.console(&page)?;
        ensure!(host.requested() == 0, "the page fetches from elsewhere");
        ensure!(said.is_empty(), "hostile: the page says on its console:\n{}", said.join("\n"));
        let careless = self.folder.join("careless.html");
        fs::write(
            &careless,
            format!("<!doctype html><script>console.error('seen')</script><img src={here}x>"),
        )?;
        let said = browser.console(&careless)?;
        ensure!(said.iter().any(|line| line.contains("seen")), "console output is not noticed");
        ensure!(host.requested() > 0, "fetches of a page are not noticed");
        println!("hostile: nothing runs, and nothing is fetched");
        Ok(())
    }
}

/// A host without pages, which counts requests.
struct Host {
    address: SocketAddr,
    requested: Arc<AtomicUsize>,
}

impl Host {
    /// Starts to listen, until this process ends.
    fn listening() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let host = Self { address: listener.local_addr()?, requested: Arc::default() };
        let requested = Arc::clone(&host.requested);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                requested.fetch_add(1, Ordering::Relaxed);
                // A client that has disconnected needs no answer.
                let _ = stream
                    .write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            }
        });
        Ok(host)
    }

    fn requested(&self) -> usize {
        self.requested.load(Ordering::Relaxed)
    }
}

/// Checks the script's findings: no faults, widths that fit, and the right theme.
fn check(found: &Value, theme: Theme) -> Result<()> {
    let faults = found["faults"].as_array().context("faults")?;
    let listed: Vec<&str> = faults.iter().filter_map(Value::as_str).collect();
    ensure!(listed.is_empty(), "{} faults:\n{}", listed.len(), listed.join("\n"));
    let widths = found["widths"].as_array().context("widths")?;
    ensure!(widths.len() == WIDTHS.len(), "not every width was checked");
    for width in widths {
        let number = |name: &str| width[name].as_u64().unwrap_or_default();
        ensure!(number("clientWidth") > 0, "no page: {width}");
        ensure!(number("scrollWidth") <= number("clientWidth"), "the page is wider than {width}");
    }
    let is_right = |light: f64| match theme {
        Theme::Light => light >= LIGHT_MIN,
        Theme::Dark => light <= DARK_MAX,
    };
    let mean = |pixel: &Value| {
        let parts: Vec<f64> = pixel.as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        parts.iter().sum::<f64>() / parts.len() as f64 / 255.0
    };
    ensure!(is_right(mean(&found["read"]["paper"])), "the paper is {}", found["read"]["paper"]);
    let pictures = found["pictures"].as_array().context("pictures")?;
    ensure!(!pictures.is_empty(), "no pictures");
    for picture in pictures {
        let all = picture["mean"].as_f64().unwrap_or(f64::NAN);
        ensure!(
            is_right(all) && is_right(mean(&picture["corner"])),
            "the picture is not {}: {picture}",
            theme.name()
        );
    }
    Ok(())
}
