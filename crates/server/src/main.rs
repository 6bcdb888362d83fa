//! fabcached: the process.

use std::io::{IsTerminal, Write as _};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::channel;

use anyhow::{Context, Result};
use clap::Parser;
use fabcache_server::options::{CommandLine, MEMCACHED_VERSION, Options};
use fabcache_server::process::background::{self, Foreground};
use fabcache_server::process::pidfile::PidFile;
use fabcache_server::process::{environment, file_signals, heap, limits, privileges, signals};
use fabcache_server::{Server, Settings, openshmem};
use fabcache_shmem::environment as shmem;
use fabcache_shmem::{Job, Process};
use sd_notify::NotifyState;

const LICENSE: &str = include_str!("../../../LICENSE");

fn main() -> ExitCode {
    let line = CommandLine::parse();
    if line.license {
        print!("{LICENSE}");
        return ExitCode::SUCCESS;
    }
    let (mut foreground, mut job) = (None, None);
    let status = match run(line, &mut foreground, &mut job) {
        Ok(()) => 0,
        Err(error) => {
            if let Some(membership) = &mut job {
                membership.ends_with_all |= error.is::<openshmem::AgreedError>();
            }
            match foreground {
                Some(foreground) => Foreground::failed(foreground, &error),
                // In one piece, as other processes of a job may write at the same time. Without a reader of stderr, the exit
                // status is all that is left.
                None => {
                    let _ = std::io::stderr().write_all(format!("fabcached: {error:#}\n").as_bytes());
                }
            }
            1
        }
    };
    if let Some(membership) = job {
        membership.end(status);
    }
    ExitCode::from(status)
}

/// This process's part of an OpenSHMEM job.
struct Membership {
    job: Job,
    /// The other PEs end as well, by [`Job::finish`].
    ends_with_all: bool,
}

impl Membership {
    /// Ends the process, as the job requires it.
    fn end(self, status: u8) -> ! {
        if self.ends_with_all { self.job.finish(status.into()) } else { self.job.leave(status.into()) }
    }
}

fn run(
    line: CommandLine,
    foreground: &mut Option<Foreground>,
    membership: &mut Option<Membership>,
) -> Result<()> {
    // SAFETY: threads are started below.
    unsafe { heap::return_freed_memory() };
    let mut settings = settings(line)?;
    if settings.fabric.is_some() {
        // SAFETY: threads are started below.
        settings.warnings.extend(unsafe { environment::prepare_for_fabric() });
    }
    if let Some(openshmem) = &settings.openshmem {
        let (pes, _) = shmem::place_in_job().ok_or(fabcache_shmem::Error::NoJob)?;
        // SAFETY: threads are started below.
        unsafe { shmem::prepare(openshmem::heap_bytes(&settings, openshmem, pes)) };
    }
    if settings.daemon {
        settings.make_paths_absolute()?;
        *foreground = Some(background::enter()?);
    }
    start_log(&settings)?;
    file_signals::report()?;
    apply_limits(&mut settings)?;
    let pidfile = settings.pidfile.clone();
    let inherited = inherited()?;
    // Before the signals: it replaces their handlers.
    let job = settings.openshmem.is_some().then(Job::start).transpose()?;
    *membership = job.map(|job| Membership { job, ends_with_all: false });
    let (order_sender, orders) = channel();
    // Before the start, which takes the items over and may serve a client: a signal from then on stops cleanly.
    signals::become_orders(order_sender.clone())?;
    let process = job.as_ref().map(|job| job as &dyn Process);
    let server = Server::start_with_orders(settings, inherited, process, (order_sender, orders))?;
    let _pidfile = match report_ready(&server, pidfile.as_deref(), foreground) {
        Ok(pidfile) => pidfile,
        Err(error) => {
            server.give_up();
            return Err(error);
        }
    };
    let reloading = |now| {
        let state = if now { NotifyState::Reloading } else { NotifyState::Ready };
        let _ = sd_notify::notify(&[state]);
    };
    let stopping = || {
        tracing::info!("stopping");
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
    };
    let pes = server.shared().pes.clone();
    let stopped = server.run_until_stopped(reloading, stopping);
    if let (Some(membership), Some(pes)) = (membership, pes) {
        membership.ends_with_all = pes.have_all_left();
    }
    stopped
}

/// Raises the process's limits as the settings need, and logs the warnings.
fn apply_limits(settings: &mut Settings) -> Result<()> {
    if settings.core_dumps {
        limits::allow_core_dumps()?;
    }
    let has_fabric = settings.fabric.is_some();
    let too_few = limits::allow_connections(settings.connections_max, settings.threads, has_fabric)?;
    settings.warnings.extend(too_few);
    let beyond = match &settings.backing.file {
        Some(file) => limits::memory_beyond_file_system(file, settings.memory_bytes_max),
        None => limits::memory_beyond_machine(settings.memory_bytes),
    };
    settings.warnings.extend(beyond);
    if privileges::is_needlessly_root(settings.user.as_deref()) {
        tracing::warn!("running as root; give -u USER to become another user");
    }
    for note in settings.without_effect.iter().chain(&settings.warnings) {
        tracing::warn!("{note}");
    }
    Ok(())
}

/// Reports that the server is ready: to the log, to the foreground process and to the service manager.
fn report_ready(
    server: &Server,
    pidfile: Option<&Path>,
    foreground: &mut Option<Foreground>,
) -> Result<Option<PidFile>> {
    let pidfile = pidfile.map(PidFile::write).transpose()?;
    announce(server);
    if let Some(foreground) = foreground.take() {
        foreground.is_ready()?;
    }
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    Ok(pidfile)
}

fn settings(line: CommandLine) -> Result<Settings> {
    let verbosity = (line.verbose > 0).then_some(line.verbose);
    let given = Options { verbosity, ..line.options };
    let mut replaced = 0;
    let options = match &line.config {
        Some(path) => {
            let file = Options::from_file(path)?;
            replaced = if given.name_addresses() { file.listener.len() } else { 0 };
            given.or(file)
        }
        None => given,
    };
    let mut settings = Settings::new(&options, &|name| std::env::var(name).ok())?;
    if replaced > 0 {
        settings.warnings.push(format!(
            "the addresses on the command line (-p, -U, -l, -s) replace the {replaced} [[listener]] of the file"
        ));
    }
    Ok(settings)
}

fn start_log(settings: &Settings) -> Result<()> {
    let level = match settings.verbosity {
        0 => tracing::Level::INFO,
        1 => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    };
    // A line that cannot be written is lost: the subscriber would report it to the same stderr, and panic.
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .log_internal_errors(false);
    let started = if settings.log_json {
        tracing::subscriber::set_global_default(log.json().finish())
    } else {
        tracing::subscriber::set_global_default(log.with_ansi(std::io::stderr().is_terminal()).finish())
    };
    started.context("cannot start the log")
}

/// Listening sockets that systemd opened.
fn inherited() -> Result<Vec<OwnedFd>> {
    let sockets = sd_notify::listen_fds().context("cannot read what the service manager handed over")?;
    // SAFETY: by its protocol (sd_listen_fds(3)) the manager opened these for us, and nothing else here owns them.
    Ok(sockets.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect())
}

fn announce(server: &Server) {
    let settings = &server.shared().settings;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        memcached = MEMCACHED_VERSION,
        memory_bytes = settings.memory_bytes,
        threads = settings.threads,
        engine = settings.engine.name(),
        "ready for memcached clients at {}",
        server.places().join(", ")
    );
}
