//! Starts the jobs and the server that a run measures.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use fabcache_client::Address;
use fabcache_testbed::cleanup::Folder;
use fabcache_testbed::openshmem::{Job, JobOptions, launcher};

use crate::server::{MeasuredProgram, Server};

/// PEs of a cache: the delegator, and the one whose keys are measured.
const PES: usize = 2;
/// Megabytes of each PE, and of the other server.
const MEGABYTES: &str = "64";

/// What is measured: it runs, or is to be started.
#[derive(Clone, Debug)]
pub enum Source {
    /// A running server.
    Address(String, Address),
    /// A program, with its flags.
    Program(MeasuredProgram),
}

impl std::str::FromStr for Source {
    type Err = anyhow::Error;

    /// Reads NAME=ADDRESS, or NAME=PROGRAM with flags behind it.
    fn from_str(text: &str) -> Result<Source> {
        let (name, source) = text
            .split_once('=')
            .with_context(|| format!("{text:?} is not NAME=PROGRAM or NAME=unix:///PATH"))?;
        if source.contains("://") {
            return Ok(Source::Address(name.to_owned(), source.parse()?));
        }
        let mut words = source.split_whitespace();
        let program = words.next().with_context(|| format!("{text:?} names no program"))?;
        let (program, flags) = (PathBuf::from(program), words.map(str::to_owned).collect());
        Ok(Source::Program(MeasuredProgram { name: name.to_owned(), program, flags }))
    }
}

/// Servers that run until this is dropped.
#[derive(Debug)]
pub struct Servers {
    _jobs: Vec<Job>,
    _other: Option<Server>,
    folder: Folder,
    /// The caches, as NAME=ADDRESS.
    pub caches: Vec<String>,
    /// The other server, too.
    pub against: Option<String>,
}

impl Servers {
    /// Starts the programs: each cache as a job of two PEs on this host, the other server on a Unix socket.
    ///
    /// # Errors
    /// One does not start: with the end of its output.
    pub fn start(caches: &[Source], against: Option<&Source>) -> Result<Servers> {
        let folder = Folder::new("fabcache-bench")?;
        let (mut jobs, mut addresses) = (Vec::new(), Vec::new());
        for cache in caches {
            addresses.push(match cache {
                Source::Address(name, address) => format!("{name}={address}"),
                Source::Program(MeasuredProgram { name, program, flags }) => {
                    let options = JobOptions::new(PES).program(program).server("-m").server(MEGABYTES);
                    let job = flags.iter().fold(options, |options, flag| options.server(flag)).start();
                    let job = job.with_context(|| format!("{name} does not start"))?;
                    let socket = job.socket(0);
                    jobs.push(job);
                    format!("{name}=unix://{}", socket.display())
                }
            });
        }
        let (other, against) = match against {
            None => (None, None),
            Some(Source::Address(name, address)) => (None, Some(format!("{name}={address}"))),
            Some(Source::Program(program)) => {
                let socket = folder.path().join("other.sock");
                let server = Server::start_unix(program, &socket, &["-m", MEGABYTES])?;
                (Some(server), Some(format!("{}=unix://{}", program.name, socket.display())))
            }
        };
        Ok(Servers { _jobs: jobs, _other: other, folder, caches: addresses, against })
    }

    /// Returns a command that starts the benchmark's own job of two PEs; the program and its arguments follow.
    pub fn launcher(&self) -> Command {
        let mut command = launcher(self.folder.path());
        command.args(["-np", "2"]);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_programs_or_addresses() {
        let program = "mutex=target/release/fabcached --openshmem-mutex -t 2".parse().expect("a program");
        let Source::Program(MeasuredProgram { name, program, flags }) = program else {
            panic!("{program:?}")
        };
        assert_eq!((&*name, program.to_str()), ("mutex", Some("target/release/fabcached")));
        assert_eq!(flags, ["--openshmem-mutex", "-t", "2"]);
        let address = "slots=unix:///run/pe.0.sock".parse().expect("an address");
        let Source::Address(name, address) = address else { panic!("{address:?}") };
        assert_eq!((name, address.to_string()), ("slots".to_owned(), "unix:///run/pe.0.sock".to_owned()));
        for wrong in ["fabcached", "slots=", "slots=ftp://x:y"] {
            assert!(wrong.parse::<Source>().is_err(), "{wrong}");
        }
    }
}
