//! Opens a provider in a child process, because a provider may be slow, hang or end the process.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fabcache_fabric::{
    Domain, Endpoint, EndpointOptions, Library, PeerAccess, Provider, SharedArea, name_text,
};
use serde::{Deserialize, Serialize};

/// Maximum number of child processes at a time: an endpoint can take a hundred megabytes.
const AT_ONCE: usize = 4;
/// Poll interval for the exit of a child.
const STEP: Duration = Duration::from_millis(5);
/// Operations of the endpoint, as many as a client has.
const OPERATIONS: usize = 64;

/// The properties of an opened endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The endpoint's name.
    pub name: String,
    /// A descriptor signals completions, so a thread can sleep.
    pub waits: bool,
    /// Its reads need no CPU of the peer.
    pub one_sided: bool,
    /// Growth of the process, in KiB.
    pub memory_kib: u64,
}

/// The opened endpoint, or why it cannot be opened.
pub type Trial = std::result::Result<Opened, String>;

/// Opens the provider with this identity in this process; returns the trial as JSON for [`all`].
///
/// # Errors
/// It cannot be serialized.
pub fn open(library: &'static Library, identity: &str) -> Result<String> {
    let found = library.find(identity).map_err(|error| error.to_string());
    let trial = found.and_then(|found| try_open(&found.ok_or("the provider is no longer there")?));
    Ok(serde_json::to_string(&trial)?)
}

fn try_open(provider: &Provider) -> Trial {
    let text = |error: fabcache_fabric::Error| error.to_string();
    let before = resident_kib();
    let domain = Domain::open(provider).map_err(text)?;
    let options = EndpointOptions { operations: OPERATIONS, peers: 1, waits: true };
    let mut endpoint = Endpoint::open(&domain, options).map_err(text)?;
    let memory_kib = resident_kib().saturating_sub(before);
    // As a server does to share its items.
    let area = SharedArea::new(&mut endpoint, 4096, PeerAccess::Read).map_err(text)?;
    area.copy_in(0, &[1]);
    endpoint.poll(&mut Vec::new()).map_err(text)?;
    let (waits, one_sided) = (endpoint.wait_fd().is_some(), endpoint.is_one_sided());
    Ok(Opened { name: name_text(endpoint.name()), waits, one_sided, memory_kib })
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0)
}

/// Opens each provider in a child process that runs `program`, which is this one.
pub fn all(program: &Path, providers: &[Provider], time_limit: Duration) -> Vec<Trial> {
    let mut trials = Vec::new();
    for some in providers.chunks(AT_ONCE) {
        let end = Instant::now() + time_limit;
        let started: Vec<_> = some.iter().map(|provider| start(program, provider)).collect();
        for child in started {
            trials.push(
                child.map_err(|error| format!("{error:#}")).and_then(|child| child.finish(end, time_limit)),
            );
        }
    }
    trials
}

/// A child process that opens a provider; killed on drop.
struct RunningTrial(Child);

fn start(program: &Path, provider: &Provider) -> Result<RunningTrial> {
    let mut command = Command::new(program);
    command.args(["fabric", "--open", &provider.identity()]).stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().map(RunningTrial).with_context(|| format!("cannot start {}", program.display()))
}

impl RunningTrial {
    fn finish(mut self, end: Instant, time_limit: Duration) -> Trial {
        let status = loop {
            match self.0.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < end => std::thread::sleep(STEP),
                Ok(None) => {
                    return Err(format!("did not open within {} s (--patience)", time_limit.as_secs()));
                }
                Err(error) => return Err(error.to_string()),
            }
        };
        let mut line = String::new();
        // The child has ended, and its one line fits the pipe.
        let read = self.0.stdout.take().map(|mut output| output.read_to_string(&mut line));
        match serde_json::from_str(&line) {
            Ok(trial) if status.success() && read.is_some() => trial,
            _ => Err(format!("the process that opened it ended with {status}")),
        }
    }
}

impl Drop for RunningTrial {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
