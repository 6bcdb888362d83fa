//! The servers, each on its own Unix socket, with a memory file.

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fabcache_testbed::cleanup::Folder;

use crate::experiment::MeasuredTarget;
use crate::items::Items;
use crate::server::{MeasuredProgram, Server};
use crate::target::{ANSWER_TIMEOUT, Target};

/// Time of connecting without a delay before it is checked whether the server has ended.
const CONNECT_TIME: Duration = Duration::from_secs(1);

/// The servers, in the order of the table.
#[derive(Debug)]
pub struct Servers {
    servers: Vec<RestartedServer>,
    // Declared last: the servers stop before their sockets are removed.
    _folder: Folder,
}

/// A server that is started and stopped.
#[derive(Debug)]
pub struct RestartedServer {
    program: MeasuredProgram,
    socket: PathBuf,
    target: Target,
    /// A process without items that describes the target, until the first round.
    idle: RefCell<Option<Server>>,
}

/// A started server.
#[derive(Debug)]
pub struct StartedServer {
    /// The process.
    pub server: Server,
    /// When it was started.
    pub begun: Instant,
    /// The time until it answered a get.
    pub first_answer: Duration,
}

impl Servers {
    /// Starts each program without items.
    ///
    /// # Errors
    /// A program does not start, or does not speak memcached's protocol.
    pub fn start(programs: &[MeasuredProgram]) -> Result<Servers> {
        let folder = Folder::new("fabcache-restart")?;
        let server = |(number, program): (usize, &MeasuredProgram)| {
            RestartedServer::idle(program, folder.path().join(number.to_string()))
        };
        let servers: Result<Vec<_>> = programs.iter().enumerate().map(server).collect();
        Ok(Servers { servers: servers?, _folder: folder })
    }

    /// Returns the targets of an experiment, each with its command.
    pub fn targets(&self) -> Vec<MeasuredTarget<'_>> {
        let command =
            |program: &MeasuredProgram| format!("{} -m MEGABYTES -e FILE", program.program.display());
        self.servers.iter().map(|server| (&server.target, Some(command(&server.program)))).collect()
    }

    /// Returns a target's server.
    ///
    /// # Errors
    /// The target is not one of [`Servers::targets`].
    pub fn of(&self, target: &Target) -> Result<&RestartedServer> {
        let server = self.servers.iter().find(|server| server.target.urls == target.urls);
        server.with_context(|| format!("{} was not started by this benchmark", target.name))
    }
}

impl RestartedServer {
    fn idle(program: &MeasuredProgram, socket: PathBuf) -> Result<RestartedServer> {
        let (server, target) = Target::start_idle(program, &socket, "unix")?;
        Ok(RestartedServer { program: program.clone(), socket, target, idle: RefCell::new(Some(server)) })
    }

    /// Stops the process that described the target, if it still runs.
    pub fn stop_idle(&self) {
        self.idle.take();
    }

    /// Returns the target, whose clients reach the process that runs.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Starts the server with a memory file and connects to it, without a delay between attempts, until it answers a
    /// get of the item 0.
    ///
    /// # Errors
    /// The server does not start; the error has the end of its output.
    pub fn start(&self, file: &Path, megabytes: u64, keys: &Items) -> Result<StartedServer> {
        let socket = self.socket.to_str().context("the socket's path is not text")?;
        let file = file.to_str().with_context(|| format!("{} is not text", file.display()))?;
        let megabytes = megabytes.to_string();
        let command = self.program.command(&["-s", socket], &["-m", &megabytes, "-e", file]);
        let mut key = Vec::new();
        keys.key(0, &mut key);
        let request = [b"get ", &key[..], b"\r\n"].concat();
        let begun = Instant::now();
        let answered = Cell::new(None);
        let is_up = || {
            let until = Instant::now() + CONNECT_TIME;
            while Instant::now() < until {
                if self.answers(&request) {
                    answered.set(Some(begun.elapsed()));
                    return true;
                }
            }
            false
        };
        let server = Server::launch(&self.program.name, command, &is_up)?;
        let first_answer = answered.get().context("a server that is up has answered")?;
        Ok(StartedServer { server, begun, first_answer })
    }

    /// Returns whether the server accepts a connection and answers a get, with a value or a miss.
    fn answers(&self, request: &[u8]) -> bool {
        let Ok(mut stream) = UnixStream::connect(&self.socket) else { return false };
        let is_sent =
            stream.set_read_timeout(Some(ANSWER_TIMEOUT)).is_ok() && stream.write_all(request).is_ok();
        let (mut answer, mut part) = (Vec::new(), [0; 4096]);
        while is_sent && !answer.ends_with(b"END\r\n") {
            match stream.read(&mut part) {
                Ok(len @ 1..) => answer.extend_from_slice(&part[..len]),
                _ => return false,
            }
        }
        is_sent
    }
}
