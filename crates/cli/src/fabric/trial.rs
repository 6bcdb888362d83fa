//! A provider opened for a try: a provider may take its time, wait for ever or end the process, so another process does.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fabcache_fabric::{
    Domain, Endpoint, EndpointOptions, Library, PeerAccess, Provider, SharedArea, name_text,
};
use serde::{Deserialize, Serialize};

/// Processes at once: an endpoint can take a hundred megabytes.
const AT_ONCE: usize = 4;
/// How often it is looked at whether they have ended.
const STEP: Duration = Duration::from_millis(5);
/// Operations of the endpoint that is tried, as many as those of a client.
const OPERATIONS: usize = 64;

/// What an endpoint turned out to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The endpoint's name.
    pub name: String,
    /// Completions are signalled by a descriptor, so no thread need poll.
    pub waits: bool,
    /// Its reads take nothing of the peer's process.
    pub one_sided: bool,
    /// What the process grew by.
    pub memory_kib: u64,
}

/// How it went, or why not.
pub type Trial = std::result::Result<Opened, String>;

/// Opens the provider with this identity, in this process; what is printed is read by [`all`].
///
/// # Errors
/// What has it cannot be written.
pub fn open(library: &'static Library, identity: &str) -> Result<String> {
    let found = library.find(identity).map_err(|error| error.to_string());
    let trial = found.and_then(|found| try_open(&found.ok_or("it is gone")?));
    Ok(serde_json::to_string(&trial)?)
}

fn try_open(provider: &Provider) -> Trial {
    let told = |error: fabcache_fabric::Error| error.to_string();
    let before = resident_kib();
    let domain = Domain::open(provider).map_err(told)?;
    let options = EndpointOptions { operations: OPERATIONS, peers: 1, waits: true };
    let mut port = Endpoint::open(&domain, options).map_err(told)?;
    let memory_kib = resident_kib().saturating_sub(before);
    // The first step of a server that shares its items.
    let area = SharedArea::new(&mut port, 4096, PeerAccess::Read).map_err(told)?;
    area.copy_in(0, &[1]);
    port.poll(&mut Vec::new()).map_err(told)?;
    let (waits, one_sided) = (port.wait_fd().is_some(), port.is_one_sided());
    Ok(Opened { name: name_text(port.name()), waits, one_sided, memory_kib })
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0)
}

/// Tries each of them by `program`, which is this one.
pub fn all(program: &Path, providers: &[Provider], patience: Duration) -> Vec<Trial> {
    let mut trials = Vec::new();
    for some in providers.chunks(AT_ONCE) {
        let end = Instant::now() + patience;
        let started: Vec<_> = some.iter().map(|provider| start(program, provider)).collect();
        for child in started {
            trials.push(
                child.map_err(|error| format!("{error:#}")).and_then(|child| child.finish(end, patience)),
            );
        }
    }
    trials
}

/// A process that tries; killed if it is not waited for.
struct Trying(Child);

fn start(program: &Path, provider: &Provider) -> Result<Trying> {
    let mut command = Command::new(program);
    command.args(["fabric", "--open", &provider.identity()]).stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().map(Trying).with_context(|| format!("cannot start {}", program.display()))
}

impl Trying {
    fn finish(mut self, end: Instant, patience: Duration) -> Trial {
        let status = loop {
            match self.0.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < end => std::thread::sleep(STEP),
                Ok(None) => {
                    return Err(format!("does not open within {} s (--patience)", patience.as_secs()));
                }
                Err(error) => return Err(error.to_string()),
            }
        };
        let mut told = String::new();
        // It has ended, and a pipe holds more than the line that it wrote.
        let read = self.0.stdout.take().map(|mut output| output.read_to_string(&mut told));
        match serde_json::from_str(&told) {
            Ok(trial) if status.success() && read.is_some() => trial,
            _ => Err(format!("the process that opens it ends with {status}")),
        }
    }
}

impl Drop for Trying {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
