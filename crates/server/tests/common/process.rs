//! The real binary, in a process of its own.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};

use super::wait_until;

/// A fabcached process that is killed on drop.
pub struct Process {
    pub child: Child,
    log: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

/// Returns the command that starts fabcached with these arguments.
pub fn fabcached(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabcached"));
    command.args(arguments.split_whitespace()).env_remove("RUST_LOG");
    for name in
        ["MEMCACHED_PORT_FILENAME", "MEMCACHED_SASL_PWDB", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID"]
    {
        command.env_remove(name);
    }
    command
}

/// Starts fabcached on a free port of 127.0.0.1, and waits until it serves.
#[track_caller]
pub fn start(arguments: &str) -> Process {
    start_command(fabcached(&format!("-l 127.0.0.1 -p -1 {arguments}")))
}

/// Like [`start`], where libfabric cannot be found.
#[track_caller]
pub fn start_without_libfabric(arguments: &str) -> Process {
    let mut command = fabcached(&format!("-l 127.0.0.1 -p -1 {arguments}"));
    command.env(fabcache_fabric::FILE_VARIABLE, "/none/libfabric.so.1");
    start_command(command)
}

#[track_caller]
pub fn start_command(command: Command) -> Process {
    let mut process = spawn(command);
    wait_until("the server starts", || {
        let ended = process.child.try_wait().expect("our child");
        assert!(ended.is_none(), "the server exited: {}", process.log());
        process.log().contains("ready for memcached clients at")
    });
    process
}

/// Starts a process that may fail to start.
pub fn spawn(mut command: Command) -> Process {
    let mut child =
        command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the binary is built");
    let log = Arc::new(Mutex::new(String::new()));
    let (stderr, into) = (child.stderr.take().expect("stderr is piped"), Arc::clone(&log));
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let mut log = into.lock().expect("no thread panics while it holds the log");
            log.push_str(&line);
            log.push('\n');
        }
    });
    Process { child, log, reader }
}

impl Process {
    /// Returns the log so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("no thread panics while it holds the log").clone()
    }

    /// Returns the addresses that the server listens on.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let log = self.log();
        let places =
            log.lines().find_map(|line| line.split_once("clients at ")).expect("the server listens").1;
        let places = places.split(' ').map(|place| place.trim_end_matches(','));
        places.filter_map(|place| place.parse().ok()).collect()
    }

    pub fn address(&self) -> SocketAddr {
        self.addresses()[0]
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Waits until the process exits and its log is complete.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let mut ended = None;
        wait_until("the process ends", || {
            ended = self.child.try_wait().expect("our child");
            ended.is_some() && self.reader.is_finished()
        });
        ended.expect("the process exited")
    }

    /// Returns the limit of its open files.
    pub fn open_files_max(&self) -> u64 {
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", self.child.id())).expect("it runs");
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("there is one");
        line.split_whitespace().next().and_then(|soft| soft.parse().ok()).expect("a number")
    }

    /// Returns the CPUs of each thread whose name has this prefix, by name.
    pub fn cpus_of_threads(&self, prefix: &str) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("the process runs");
        let mut threads = Vec::new();
        for task in tasks {
            let status =
                std::fs::read_to_string(task.expect("a thread").path().join("status")).unwrap_or_default();
            let field =
                |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
            if field("Name:").starts_with(prefix) {
                threads.push((field("Name:").to_owned(), field("Cpus_allowed_list:").to_owned()));
            }
        }
        threads.sort();
        threads.into_iter().map(|(_, cpus)| cpus).collect()
    }

    /// Returns the resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the field exists");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
