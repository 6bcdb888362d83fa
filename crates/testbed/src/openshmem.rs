//! Jobs of servers that Open MPI's `oshrun` starts (`fabcached --fabric openshmem`).
//!
//! Each PE has a Unix socket and a port of 127.0.0.1. All files of a job, Open MPI's own among them, lie in one folder.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::cleanup::Folder;
use crate::ports::free_fixed_port;
use crate::process::{are_all_threads, cpu_time, named_on_command_line};
use crate::server::{START_ATTEMPTS_MAX, ServerProcess, is_port_taken};
use crate::wait::wait_until;

/// Names the server's program; without it, the one that was built with the test's program is used.
pub const SERVER_VARIABLE: &str = "FABCACHE_TEST_SERVER";

/// The launcher, of Debian's openmpi-bin.
const LAUNCHER: &str = "oshrun";
/// There may be more PEs than CPUs, and root may start them.
const LAUNCHER_ARGUMENTS: [&str; 3] = ["--oversubscribe", "--bind-to", "none"];
const LAUNCHER_ENVIRONMENT: [(&str, &str); 2] =
    [("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")];
/// Where Open MPI's shared memory for messages lies. A killed PE leaves it there.
pub const MESSAGES_VARIABLE: &str = "OMPI_MCA_btl_vader_backing_directory";
/// Keys that are written through each PE before a job counts as started. Nearly surely each PE has one.
const FIRST_KEYS: usize = 64;
/// A request is answered sooner, even by an error.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);
/// Processes that were killed have ended sooner.
const KILL_TIME_MAX: Duration = Duration::from_secs(10);
const POLL_PERIOD: Duration = Duration::from_millis(5);

/// The names by which keys are mapped to PEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// The PEs' addresses: clients that have these map keys alike.
    Addresses,
    /// Those that servers choose.
    Default,
    /// The same name for all.
    Same,
}

/// What to start.
#[derive(Clone, Debug)]
pub struct JobOptions {
    pes: usize,
    names: Names,
    launcher: Vec<String>,
    environment: Vec<(String, String)>,
    /// None for [`server_program`].
    program: Option<PathBuf>,
    server: Vec<String>,
    /// For one PE only.
    server_of: Vec<(usize, String)>,
}

impl JobOptions {
    /// A job of so many PEs of one thread each.
    pub fn new(pes: usize) -> Self {
        Self {
            pes,
            names: Names::Addresses,
            launcher: Vec::new(),
            environment: Vec::new(),
            program: None,
            server: Vec::new(),
            server_of: Vec::new(),
        }
    }

    /// Sets how the PEs are named.
    pub fn names(self, names: Names) -> Self {
        Self { names, ..self }
    }

    /// Adds an option of the launcher.
    pub fn launcher(mut self, option: &str) -> Self {
        self.launcher.push(option.to_owned());
        self
    }

    /// Adds a variable of the environment.
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the server's program.
    pub fn program(self, program: &Path) -> Self {
        Self { program: Some(program.to_owned()), ..self }
    }

    /// Adds options of all PEs, separated by spaces.
    pub fn server(mut self, options: &str) -> Self {
        self.server.extend(options.split_whitespace().map(str::to_owned));
        self
    }

    /// Adds options of one PE.
    pub fn server_of(mut self, pe: usize, options: &str) -> Self {
        self.server_of.extend(options.split_whitespace().map(|option| (pe, option.to_owned())));
        self
    }

    /// Starts the job, and waits until each PE answers for the keys of all.
    ///
    /// # Errors
    /// It ends, or does not answer: with the end of its output.
    pub fn start(&self) -> Result<Job> {
        let mut attempt = 1;
        loop {
            let places = Places::new(self.pes)?;
            let is_up = || {
                // Its file is the last thing that a server makes ready.
                (0..self.pes)
                    .all(|pe| places.pid(pe).is_ok() && stores_everywhere(&places.socket(pe)).is_ok())
            };
            match ServerProcess::start("the job", self.command(&places)?, &is_up) {
                Ok(launcher) => {
                    let pids = (0..self.pes).map(|pe| places.pid(pe)).collect::<Result<_>>()?;
                    return Ok(Job { places, launcher, pids });
                }
                Err(error) if attempt < START_ATTEMPTS_MAX && is_port_taken(&error) => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Runs a job that is to end by itself within this time.
    ///
    /// # Errors
    /// It cannot be started, or does not end: with the end of its output.
    pub fn run(&self, within: Duration) -> Result<EndedJob> {
        let places = Places::new(self.pes)?;
        let began = Instant::now();
        let mut launcher = ServerProcess::start("the job", self.command(&places)?, &|| true)?;
        let Some(status) = launcher.wait_for_output(within) else {
            bail!("the job does not end within {within:?}{}", launcher.output_tail());
        };
        let output = launcher.output_tail();
        Ok(EndedJob { status, output, time: began.elapsed(), left: places.processes() })
    }

    fn command(&self, places: &Places) -> Result<Command> {
        let server = self.program.clone().map_or_else(server_program, Ok)?;
        let mut command = launcher(places.folder.path());
        command.args(&self.launcher);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        for (pe, port) in places.ports.iter().enumerate() {
            if pe > 0 {
                command.arg(":");
            }
            command.args(["-np", "1"]).arg(&server);
            command.args(["--fabric", "openshmem", "-t", "1", "-l", "127.0.0.1", "-p", &port.to_string()]);
            command.arg("-s").arg(places.socket(pe)).arg("-P").arg(places.pid_file(pe));
            match self.names {
                Names::Addresses => {
                    command.args(["--openshmem-name", &format!("127.0.0.1:{port}")]);
                }
                Names::Same => {
                    command.args(["--openshmem-name", "everyone"]);
                }
                Names::Default => {}
            }
            command.args(&self.server);
            command.args(self.server_of.iter().filter(|(of, _)| *of == pe).map(|(_, option)| option));
        }
        Ok(command)
    }
}

/// Returns a command of the launcher, for jobs on this host whose files lie in this folder.
pub fn launcher(folder: &Path) -> Command {
    let mut command = Command::new(LAUNCHER);
    command.args(LAUNCHER_ARGUMENTS).envs(LAUNCHER_ENVIRONMENT);
    command.env("TMPDIR", folder).env(MESSAGES_VARIABLE, folder);
    command
}

/// Returns the server's program.
///
/// # Errors
/// It is not built.
pub fn server_program() -> Result<PathBuf> {
    let program = match std::env::var_os(SERVER_VARIABLE) {
        Some(program) => program.into(),
        // A test's program lies in the folder `deps`.
        None => std::env::current_exe()?.ancestors().nth(2).unwrap_or(Path::new("")).join("fabcached"),
    };
    let build = "build it: cargo build -p fabcache-server, or name another in FABCACHE_TEST_SERVER";
    program.canonicalize().with_context(|| format!("there is no server {}; {build}", program.display()))
}

/// Stores items through the PE at this socket, until some other PE does not answer.
fn stores_everywhere(socket: &Path) -> Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
    let requests: String = (0..FIRST_KEYS).map(|key| format!("set first-{key} 0 0 1\r\n1\r\n")).collect();
    stream.write_all(requests.as_bytes())?;
    let mut answers = BufReader::new(stream).lines();
    for _ in 0..FIRST_KEYS {
        let answer = answers.next().context("the server closes the connection")??;
        if answer != "STORED" {
            bail!("{answer}");
        }
    }
    Ok(())
}

/// Where the files and ports of a job are.
#[derive(Debug)]
struct Places {
    ports: Vec<u16>,
    folder: Folder,
}

impl Places {
    fn new(pes: usize) -> Result<Self> {
        // Open MPI takes many of the others while the job starts.
        let ports = (0..pes).map(|_| free_fixed_port().context("no free port")).collect::<Result<_>>()?;
        Ok(Self { ports, folder: Folder::new("fabcache-job")? })
    }

    fn socket(&self, pe: usize) -> PathBuf {
        self.folder.path().join(format!("{pe}.sock"))
    }

    fn pid_file(&self, pe: usize) -> PathBuf {
        self.folder.path().join(format!("{pe}.pid"))
    }

    /// Returns the process of a PE that has started.
    fn pid(&self, pe: usize) -> Result<Pid> {
        let text = std::fs::read_to_string(self.pid_file(pe))?;
        Pid::from_raw(text.trim().parse()?).context("no process has the number 0")
    }

    /// Returns the processes of the job, with the launcher while it runs.
    fn processes(&self) -> Vec<Pid> {
        named_on_command_line(format!("{}/", self.folder.path().display()).as_bytes())
    }
}

impl Drop for Places {
    /// Kills the launcher and the PEs, which lead process groups of their own. All that they leave is in the folder.
    fn drop(&mut self) {
        let deadline = Instant::now() + KILL_TIME_MAX;
        loop {
            let processes = self.processes();
            if processes.is_empty() || Instant::now() > deadline {
                return;
            }
            for process in processes {
                // Fails if it has ended meanwhile.
                let _ = kill_process(process, Signal::KILL);
            }
            std::thread::sleep(POLL_PERIOD);
        }
    }
}

/// A job that ended.
#[derive(Debug)]
pub struct EndedJob {
    /// How the launcher ended.
    pub status: ExitStatus,
    /// The end of the output of the launcher and all PEs.
    pub output: String,
    /// How long it ran.
    pub time: Duration,
    /// Processes that the launcher left.
    pub left: Vec<Pid>,
}

/// A job that runs. Dropping it kills all its processes.
#[derive(Debug)]
pub struct Job {
    // Dropped first, which ends the launcher at once.
    places: Places,
    launcher: ServerProcess,
    pids: Vec<Pid>,
}

impl Job {
    /// Returns the number of PEs.
    pub fn pes(&self) -> usize {
        self.pids.len()
    }

    /// Returns the path of a PE's socket.
    pub fn socket(&self, pe: usize) -> PathBuf {
        self.places.socket(pe)
    }

    /// Returns a PE's TCP address.
    pub fn address(&self, pe: usize) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.places.ports[pe]))
    }

    /// Returns the folder of the job's files.
    pub fn folder(&self) -> &Path {
        self.places.folder.path()
    }

    /// Returns the process of a PE.
    pub fn pid(&self, pe: usize) -> Pid {
        self.pids[pe]
    }

    /// Returns the CPU time of a PE.
    pub fn cpu_time(&self, pe: usize) -> Duration {
        cpu_time(self.pids[pe])
    }

    /// Sends a signal to a PE.
    ///
    /// # Panics
    /// It has ended.
    pub fn signal(&self, pe: usize, signal: Signal) {
        kill_process(self.pids[pe], signal).expect("the PE runs");
    }

    /// Stops a PE, in any state.
    ///
    /// # Panics
    /// It has ended.
    pub fn stop(&self, pe: usize) {
        self.signal(pe, Signal::STOP);
        wait_until("the PE stops", || are_all_threads(self.pids[pe], 'T'));
    }

    /// Resumes a stopped PE.
    ///
    /// # Panics
    /// It has ended.
    pub fn resume(&self, pe: usize) {
        self.signal(pe, Signal::CONT);
    }

    /// Sends SIGTERM to the launcher, which passes it on.
    pub fn terminate(&self) {
        self.launcher.terminate();
    }

    /// Returns how the launcher ended, if it ends within this time and once its output is complete.
    pub fn wait(&mut self, within: Duration) -> Option<ExitStatus> {
        self.launcher.wait_for_output(within)
    }

    /// Returns the end of the output of the launcher and all PEs, as the end of a sentence.
    pub fn output_tail(&self) -> String {
        self.launcher.output_tail()
    }

    /// Returns the processes of the job, with the launcher while it runs.
    pub fn processes(&self) -> Vec<Pid> {
        self.places.processes()
    }
}
