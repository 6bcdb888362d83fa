//! Servers side by side: each case of a set of experiments on all of them in interleaved rounds, pinned, and ratios.
//!
//! A server is started for each transport, fresh for each set, and stays up through the set; idle servers sleep.
//! Disturbances of a machine last longer than a round, so servers are compared within a round, and the spread of
//! these ratios shows their reliability.
//!
//! - `words.rs`: splits a command line. `server_under_test.rs`: starts and finds a server. `sets.rs`: what is
//!   measured.
//! - `table.rs`: the results as a table.

mod server_under_test;
mod sets;
mod table;
mod words;

use anyhow::{Result, ensure};
use fabcache_client::Protocol;
use fabcache_testbed::cleanup::Folder;

pub use server_under_test::{Route, ServerUnderTest};
pub use sets::{Set, SetOptions};
pub use table::table;
pub use words::words;

use server_under_test::RunningServer;

use crate::experiment::{self, Plan, Progress};
use crate::process::pin;
use crate::results::Results;

/// The compared servers and their transports.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The servers. The last is the baseline.
    pub servers: Vec<ServerUnderTest>,
    /// The measured transports, where a server supports them.
    pub over: Vec<Route>,
    /// Flags for each started program, beside its own.
    pub common_flags: Vec<String>,
    /// The protocol over sockets.
    pub protocol: Protocol,
}

impl Comparison {
    /// Returns each server with the requested transports that it supports.
    ///
    /// # Errors
    /// Two servers have the same name; a server supports none of these transports; flags select a listener.
    pub fn routes(&self) -> Result<Vec<(&ServerUnderTest, Vec<Route>)>> {
        let mut all: Vec<(&ServerUnderTest, Vec<Route>)> = Vec::new();
        for server_under_test in &self.servers {
            let name = &server_under_test.name;
            ensure!(all.iter().all(|(known, _)| known.name != *name), "two servers have the name {name}");
            let known = server_under_test.routes(&self.common_flags)?;
            let taken: Vec<Route> = known.iter().copied().filter(|route| self.over.contains(route)).collect();
            ensure!(!taken.is_empty(), "{name} can be reached over {} only", names(&known));
            all.push((server_under_test, taken));
        }
        Ok(all)
    }

    /// Returns whether all servers are started for each set, so that their contents may be discarded.
    pub fn starts_all(&self) -> bool {
        self.servers.iter().all(ServerUnderTest::is_started)
    }

    /// Returns the requested transports that a server lacks, in words.
    ///
    /// # Errors
    /// As for [`Comparison::routes`].
    pub fn left_out(&self) -> Result<Option<String>> {
        let mut all = Vec::new();
        for (server_under_test, routes) in self.routes()? {
            let missing: Vec<Route> =
                self.over.iter().copied().filter(|route| !routes.contains(route)).collect();
            if !missing.is_empty() {
                all.push(format!("{} over {}", server_under_test.name, names(&missing)));
            }
        }
        Ok((!all.is_empty())
            .then(|| format!("not measured, because the server lacks the transport: {}", all.join("; "))))
    }

    /// Starts the servers, measures a set on all of them, and stops them.
    ///
    /// # Errors
    /// A server does not start, exits, or answers wrongly; the error contains its stderr tail.
    pub fn run(&self, set: &Set, plan: &Plan, progress: &dyn Progress) -> Result<Results> {
        let folder = Folder::new("fabcache-compare")?;
        let mut running = self.start(plan, &folder)?;
        let measured: Vec<_> = running.iter().map(|one| (&one.target, one.command.clone())).collect();
        let results = experiment::run(set, &measured, plan, progress);
        let mut results = results.map_err(|error| with_stderr_tail(error, &mut running))?;
        for (described, one) in results.targets.iter_mut().zip(&running) {
            described.program.clone_from(&one.program);
            described.base = base(one, &running).map(|base| base.target.name.clone());
        }
        results.method = self.method(&results.method, plan)?;
        Ok(results)
    }

    fn start(&self, plan: &Plan, folder: &Folder) -> Result<Vec<RunningServer>> {
        if let Some(cpus) = &plan.server_cpus {
            // Servers inherit the CPU mask and derive their number of CPUs from it.
            pin(None, cpus)?;
        }
        let mut running = Vec::new();
        for (server_under_test, routes) in self.routes()? {
            for route in routes {
                running.push(server_under_test.start(
                    route,
                    &self.common_flags,
                    folder.path(),
                    self.protocol,
                )?);
            }
        }
        Ok(running)
    }

    fn method(&self, of_set: &str, plan: &Plan) -> Result<String> {
        let pinned = match (&plan.server_cpus, &plan.client_cpus) {
            (Some(servers), Some(clients)) => format!("servers on CPU {servers}, clients on CPU {clients}"),
            _ => "nothing pinned".to_owned(),
        };
        let left_out = self.left_out()?.map_or(String::new(), |left_out| format!("; {left_out}"));
        Ok(format!(
            "{of_set}; {} interleaved rounds; medians of the rounds and of the ratios within each, with the least and the greatest; {pinned}; a \
             process per transport of a server{left_out}",
            plan.rounds
        ))
    }
}

fn names(routes: &[Route]) -> String {
    routes.iter().map(|route| route.name()).collect::<Vec<_>>().join(", ")
}

/// Returns the baseline of a target: the last server over the same transport, or else over its best; `None` for the
/// baseline itself.
fn base<'r>(one: &RunningServer, running: &'r [RunningServer]) -> Option<&'r RunningServer> {
    let last = running.last()?;
    let of_last = || running.iter().filter(|other| other.server_under_test == last.server_under_test);
    let base = of_last()
        .find(|other| other.route == one.route)
        .or_else(|| of_last().max_by_key(|other| other.route))?;
    Some(base)
}

/// Adds the servers' exit status and stderr tail to an error, if they ended.
fn with_stderr_tail(error: anyhow::Error, running: &mut [RunningServer]) -> anyhow::Error {
    running.iter_mut().fold(error, |error, one| match one.ended() {
        Some(how) => error.context(format!("{} ended: {how}\nwhile it was measured", one.target.name)),
        None => error,
    })
}
