//! The measured target: one cache of one or more servers, and the transport to it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fabcache_client::{Address, Client, Options, Protocol, ServerEndpoint, SharedMemory, Transport};
use serde::{Deserialize, Serialize};

use crate::process::{Cpus, Process};
use crate::server::{MeasuredProgram, Server};

/// How long a server may leave a request unanswered before it counts as failed.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// memcached's uptime begins two seconds before its start, and both are in whole seconds.
const UPTIME_SLACK_S: u64 = 4;

/// The address of a server and the transport to it.
///
/// Written `tcp://HOST:PORT`, `unix:///PATH` (a Unix socket), `shm:///PATH` (the shared memory of the
/// server on this Unix socket), or `fab://HOST:PORT` (the fabric of the server on this TCP port).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// The socket.
    pub address: Address,
    /// Whether to read items from shared memory, and send requests through it.
    pub shared_memory: bool,
}

/// One cache: its servers, all reached over one transport.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its name in tables.
    pub name: String,
    /// Its servers.
    pub urls: Vec<Url>,
    /// The protocol over sockets.
    pub protocol: Protocol,
    /// The time limit of a response: [`ANSWER_TIMEOUT`] by default.
    pub timeout: Duration,
    /// The servers' processes on this host, whose CPU time is measured; servers that report no process are not
    /// included.
    processes: Vec<Process>,
}

/// A target as results describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetDescription {
    /// See [`Target::name`].
    pub name: String,
    /// URLs of its servers.
    pub urls: Vec<String>,
    /// `tcp`, `unix`, `shm` or `fab`.
    pub transport: String,
    /// `meta`, `text`, `binary`, or `auto`.
    pub protocol: String,
    /// Each server's answer to `version`.
    pub versions: Vec<String>,
    /// The command line, if the benchmark started the servers.
    pub command: Option<String>,
    /// The output of the program's `-V`, if the benchmark started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Entries of `stats settings` that affect speed and memory, by their names there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Its baseline; default: the last target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
}

/// Settings that affect speed and memory.
const SETTINGS: [&str; 15] = [
    "maxbytes",
    "maxconns",
    "num_threads",
    "reqs_per_event",
    "cas_enabled",
    "evictions",
    "item_size_max",
    "growth_factor",
    "chunk_size",
    "hash_algorithm",
    "hashpower_init",
    "lru_segmented",
    "lru_crawler",
    "lru_maintainer_thread",
    "slab_automove",
];

impl FromStr for Url {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Url> {
        const SHARED: &str = "shm://";
        let (shared_memory, written) = match text.split_at_checked(SHARED.len()) {
            Some((scheme, path)) if scheme.eq_ignore_ascii_case(SHARED) => (true, format!("unix://{path}")),
            _ => (false, text.to_owned()),
        };
        let address: Address = written.parse().map_err(|error| {
            anyhow::anyhow!(
                "{error}; a server is tcp://HOST:PORT, fab://HOST:PORT, unix:///PATH, or shm:///PATH"
            )
        })?;
        Ok(Url { address, shared_memory })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = self.address.to_string();
        match written.strip_prefix("unix://").filter(|_| self.shared_memory) {
            Some(path) => write!(f, "shm://{path}"),
            None => f.write_str(&written),
        }
    }
}

impl Url {
    /// Returns `tcp`, `unix`, `shm` or `fab`.
    pub fn transport(&self) -> &'static str {
        match self.address.place {
            ServerEndpoint::Tcp { .. } => "tcp",
            ServerEndpoint::Fabric { .. } => "fab",
            ServerEndpoint::Unix(_) if self.shared_memory => "shm",
            ServerEndpoint::Unix(_) => "unix",
        }
    }
}

/// Returns the protocol of this name.
///
/// # Errors
/// The name is unknown.
pub fn protocol(name: &str) -> Result<Protocol> {
    Ok(match name {
        "auto" => Protocol::Auto,
        "meta" => Protocol::Meta,
        "text" => Protocol::Text,
        "binary" => Protocol::Binary,
        _ => bail!("unknown protocol {name:?}; use auto, meta, text or binary"),
    })
}

/// Returns the protocol's name.
pub fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Auto => "auto",
        Protocol::Meta => "meta",
        Protocol::Text => "text",
        Protocol::Binary => "binary",
    }
}

impl Target {
    /// Returns a target of running servers.
    ///
    /// # Errors
    /// A server cannot be reached, or only over another transport; servers are reached over different transports.
    pub fn new(name: &str, urls: &[Url], protocol: Protocol) -> Result<Target> {
        let first = urls.first().context("no server")?;
        let alike = urls.iter().all(|url| url.transport() == first.transport());
        ensure!(alike, "{name}: all servers of one cache must use the same transport");
        let mut target = Target {
            name: name.to_owned(),
            urls: urls.to_vec(),
            protocol,
            timeout: ANSWER_TIMEOUT,
            processes: Vec::new(),
        };
        let client = target.client()?;
        target.processes = processes(&client);
        Ok(target)
    }

    /// Starts a program without items on a Unix socket, and returns the process and its target, which has no processes: each case
    /// has its own. The scheme is `unix` or `shm`.
    ///
    /// # Errors
    /// The program does not start, or does not speak memcached's protocol.
    pub fn start_idle(program: &MeasuredProgram, socket: &Path, scheme: &str) -> Result<(Server, Target)> {
        let server = Server::start_unix(program, socket, &[])?;
        let url: Url = format!("{scheme}://{}", socket.display()).parse()?;
        Ok((server, Target::new(&program.name, &[url], Protocol::Auto)?.of_processes(Vec::new())))
    }

    /// Sets the processes of the servers, if the caller knows them.
    pub fn of_processes(self, processes: Vec<Process>) -> Target {
        Target { processes, ..self }
    }

    /// Returns a connected client with its own connections.
    ///
    /// # Errors
    /// A server cannot be reached, or not over this transport.
    pub fn client(&self) -> Result<Client> {
        let shares = self.shares_memory();
        let shared_memory = if shares { SharedMemory::Required } else { SharedMemory::Never };
        let options =
            Options { shared_memory, protocol: self.protocol, timeout: self.timeout, ..Options::default() };
        let addresses = self.urls.iter().map(|url| url.address.to_string());
        let client = Client::new(addresses, options)?;
        for (version, url) in client.versions().into_iter().zip(&self.urls) {
            version.with_context(|| format!("{} at {url} cannot be reached", self.name))?;
        }
        let transports = client.transports();
        let through = transports.iter().all(|transport| *transport == Some(Transport::SharedMemory));
        ensure!(through == shares, "{}: memory is not shared", self.name);
        let by_fabric =
            transports.iter().all(|transport| matches!(transport, Some(Transport::Fabric { .. })));
        ensure!(by_fabric == (self.urls[0].transport() == "fab"), "{}: not over the fabric", self.name);
        Ok(client)
    }

    /// Returns whether items are read from shared memory.
    pub fn shares_memory(&self) -> bool {
        self.urls.iter().any(|url| url.shared_memory)
    }

    /// Returns the target's description for the results.
    ///
    /// # Errors
    /// A server cannot be reached.
    pub fn described(&self, command: Option<String>) -> Result<TargetDescription> {
        let client = self.client()?;
        let versions: Result<Vec<_>, _> = client.versions().into_iter().collect();
        // Some servers do not report their settings.
        let settings = client.stats("settings").into_iter().next().and_then(Result::ok).unwrap_or_default();
        let settings = settings.into_iter().filter(|(name, _)| SETTINGS.contains(&name.as_str()));
        Ok(TargetDescription {
            name: self.name.clone(),
            urls: self.urls.iter().map(Url::to_string).collect(),
            transport: self.urls[0].transport().to_owned(),
            protocol: protocol_name(self.protocol).to_owned(),
            versions: versions?,
            command,
            settings: settings.collect(),
            ..TargetDescription::default()
        })
    }

    /// Returns the known processes of its servers on this host.
    pub fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// Returns the CPU time of the servers. `None` if one is on another host, or does not report its
    /// process.
    pub fn cpu_time(&self) -> Option<Duration> {
        if self.processes.len() != self.urls.len() {
            return None;
        }
        self.processes.iter().map(|process| process.cpu_time().ok()).sum()
    }

    /// Pins all threads of the servers to CPUs, as far as they are on this host.
    ///
    /// # Errors
    /// The system refuses.
    pub fn pin(&self, cpus: &Cpus) -> Result<()> {
        self.processes.iter().try_for_each(|process| process.pin(cpus))
    }
}

/// Returns the processes that the servers report, if they exist on this host under such a name.
fn processes(client: &Client) -> Vec<Process> {
    let reported = client.stats("").into_iter().filter_map(|stats| {
        let stats = stats.ok()?;
        let number = |name: &str| stats.iter().find(|(known, _)| known == name)?.1.parse::<u64>().ok();
        Some((Process(u32::try_from(number("pid")?).ok()?), number("uptime")?))
    });
    // Another host's process ID may exist here, but then rarely with the same age.
    let is_here = |process: &Process, uptime_s: u64| {
        process.age().is_ok_and(|age| age.as_secs().abs_diff(uptime_s) <= UPTIME_SLACK_S)
    };
    reported.filter(|(process, uptime_s)| is_here(process, *uptime_s)).map(|(process, _)| process).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_written() {
        for (text, transport) in [
            ("tcp://h:1", "tcp"),
            ("unix:///tmp/s", "unix"),
            ("shm:///tmp/s", "shm"),
            ("tcp://[::1]:2", "tcp"),
            ("fab://h:3", "fab"),
        ] {
            let url: Url = text.parse().expect(text);
            assert_eq!((url.to_string().as_str(), url.transport()), (text, transport));
            let (scheme, place) = text.split_once(':').expect("it has a scheme");
            let loud: Url = format!("{}:{place}", scheme.to_uppercase()).parse().expect(text);
            assert_eq!(loud.to_string(), text);
        }
        for (text, culprit) in [("fab:///s", "fab:///s"), ("http://h", "http://h"), ("shm://s", "absolute")] {
            let error = text.parse::<Url>().expect_err(text).to_string();
            assert!(error.contains(culprit), "{error}");
        }
    }

    #[test]
    fn an_unreachable_server_is_named() {
        let url = "unix:///nowhere/at/all".parse().expect("a URL");
        let error = Target::new("t", &[url], Protocol::Auto).expect_err("no server");
        assert!(format!("{error:#}").contains("unix:///nowhere/at/all"), "{error:#}");
    }
}
