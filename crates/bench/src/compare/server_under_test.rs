//! A server under test: a program started once per transport, or a running server.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fabcache_client::Protocol;
use fabcache_testbed::cleanup;
use rustix::process::Pid;

use super::words::{joined, words};
use crate::server::Server;
use crate::target::{Target, Url};

/// Placeholder in a program's flags for the TCP port to listen on, on this host.
const PORT: &str = "{port}";
/// Placeholder for the path of the Unix socket.
const SOCKET: &str = "{socket}";
/// The flag that makes a program share its memory.
const SHARES_MEMORY: &str = "--shm";
/// The flag that makes a server open a fabric endpoint.
const HAS_FABRIC: &str = "--fabric";
/// Time limit for a program to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum length of a version.
const VERSION_BYTES_MAX: u64 = 1_000;
/// Flags of memcached that select a listener or the background.
const CHOSEN_FLAGS: [&str; 8] = ["-p", "-l", "-s", "-d", "--port", "--listen", "--unix-socket", "--daemon"];

/// A transport to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Route {
    /// TCP on this host, or to the host of a URL.
    Tcp,
    /// The server's fabric.
    Fabric,
    /// A Unix socket.
    Unix,
    /// The server's shared memory.
    Shm,
}

/// A server under test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUnderTest {
    /// Its name in tables.
    pub name: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// The program and its flags.
    Program(Vec<String>),
    /// The servers of one running cache.
    Up(Vec<Url>),
}

/// A running server under test, reached over one transport.
#[derive(Debug)]
pub struct RunningServer {
    /// The measured target.
    pub target: Target,
    /// The name of the server under test.
    pub server_under_test: String,
    /// The transport.
    pub route: Route,
    /// The command that started it, if one did.
    pub command: Option<String>,
    /// The output of the program's `-V`.
    pub program: Option<String>,
    /// The server's process, if this process started it.
    server: Option<Server>,
}

impl Route {
    /// All transports, the best last.
    pub const ALL: [Route; 4] = [Route::Tcp, Route::Fabric, Route::Unix, Route::Shm];

    /// Returns the transport's name.
    pub fn name(self) -> &'static str {
        match self {
            Route::Tcp => "tcp",
            Route::Fabric => "fab",
            Route::Unix => "unix",
            Route::Shm => "shm",
        }
    }
}

impl FromStr for Route {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Route> {
        let known = Route::ALL.into_iter().find(|route| route.name() == text);
        known
            .with_context(|| format!("unknown transport {text:?}; the transports are tcp, fab, unix and shm"))
    }
}

impl FromStr for ServerUnderTest {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<ServerUnderTest> {
        const FORM: &str = "a server is NAME=PROGRAM, NAME='PROGRAM FLAGS' or NAME=URL";
        let (name, given) = text.split_once('=').with_context(|| format!("{text:?}: {FORM}"))?;
        ensure!(!name.is_empty() && !name.contains(char::is_whitespace), "{text:?} has no name; {FORM}");
        let given = words(given)?;
        let first = given.first().with_context(|| format!("{text:?} has no program; {FORM}"))?;
        let kind = if first.contains("://") {
            let urls: Vec<Url> = given.iter().map(|url| url.parse()).collect::<Result<_>>()?;
            let route = urls[0].transport();
            ensure!(
                urls.iter().all(|url| url.transport() == route),
                "{text:?}: all servers of one cache must use the same transport"
            );
            Kind::Up(urls)
        } else {
            Kind::Program(given)
        };
        Ok(ServerUnderTest { name: name.to_owned(), kind })
    }
}

impl ServerUnderTest {
    /// Returns whether this process starts the program.
    pub fn is_started(&self) -> bool {
        matches!(self.kind, Kind::Program(_))
    }

    /// Returns the server's transports, the best last. `common` are flags beside its own.
    ///
    /// # Errors
    /// Its flags select a listener.
    pub fn routes(&self, common: &[String]) -> Result<Vec<Route>> {
        let flags = match &self.kind {
            Kind::Up(urls) => return Ok(vec![urls[0].transport().parse()?]),
            Kind::Program(words) => [&words[1..], common].concat(),
        };
        let has = |placeholder| flags.iter().any(|flag| flag.contains(placeholder));
        let (port, socket) = (has(PORT), has(SOCKET));
        let as_memcached = !port && !socket;
        if as_memcached {
            let culprit = flags.iter().find(|flag| is_chosen(flag));
            ensure!(
                culprit.is_none(),
                "{}: {} is set by the benchmark; leave it out, or write {PORT} or {SOCKET} in its place",
                self.name,
                culprit.map_or("", String::as_str)
            );
        }
        let mut routes = Vec::new();
        if port || as_memcached {
            routes.push(Route::Tcp);
        }
        if as_memcached && has_fabric(&flags) {
            routes.push(Route::Fabric);
        }
        if socket || as_memcached {
            routes.push(Route::Unix);
            if flags.iter().any(|flag| flag == SHARES_MEMORY) {
                routes.push(Route::Shm);
            }
        }
        Ok(routes)
    }

    /// Starts a fresh server reached over this transport, or uses the running one. Its socket is in
    /// `folder`.
    ///
    /// # Errors
    /// The server does not start or cannot be reached; the error contains its stderr tail.
    pub fn start(
        &self,
        route: Route,
        common: &[String],
        folder: &Path,
        protocol: Protocol,
    ) -> Result<RunningServer> {
        let name = format!("{} {}", self.name, route.name());
        let given = match &self.kind {
            Kind::Program(words) => words,
            Kind::Up(urls) => {
                let target = Target::new(&name, urls, protocol)?;
                let server_under_test = self.name.clone();
                return Ok(RunningServer {
                    target,
                    server_under_test,
                    route,
                    command: None,
                    program: None,
                    server: None,
                });
            }
        };
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
        let address = free.local_addr()?;
        drop(free);
        let socket = folder.join(name.replace([' ', '/'], "-"));
        let words = self.command(given, common, route, address, &socket)?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        let is_up = || match route {
            Route::Tcp | Route::Fabric => TcpStream::connect(address).is_ok(),
            Route::Unix | Route::Shm => UnixStream::connect(&socket).is_ok(),
        };
        let mut server = Server::launch(&name, command, &is_up)?;
        let url: Url = match route {
            Route::Tcp | Route::Fabric => format!("{}://{address}", route.name()),
            Route::Unix | Route::Shm => format!("{}://{}", route.name(), socket.display()),
        }
        .parse()?;
        let reached = Target::new(&name, &[url], protocol).and_then(|target| own(target, &server));
        let target = reached.map_err(|error| {
            let words = match server.ended(Duration::from_millis(200)) {
                Some(how) => format!("it ended: {how}"),
                None => format!("it is up{}", server.output_tail()),
            };
            error.context(format!("{name} does not speak the memcached protocol; {words}"))
        })?;
        Ok(RunningServer {
            target,
            server_under_test: self.name.clone(),
            route,
            command: Some(joined(&words)),
            program: version(&words[0]),
            server: Some(server),
        })
    }

    /// Returns the command line that starts the server.
    fn command(
        &self,
        given: &[String],
        common: &[String],
        route: Route,
        address: SocketAddr,
        socket: &Path,
    ) -> Result<Vec<String>> {
        let path = socket.to_str().with_context(|| format!("{} is not text", socket.display()))?;
        let port = address.port().to_string();
        let all = [given, common].concat();
        if all.iter().any(|word| word.contains(PORT) || word.contains(SOCKET)) {
            return Ok(all.iter().map(|word| word.replace(PORT, &port).replace(SOCKET, path)).collect());
        }
        let shares = all.iter().any(|word| word == SHARES_MEMORY);
        let mut words = vec![all[0].clone(), "-u".into(), "root".into()];
        // Fabric clients connect over TCP first.
        if matches!(route, Route::Tcp | Route::Fabric) || has_fabric(&all) {
            words.extend(["-l".into(), address.ip().to_string(), "-p".into(), port]);
        }
        if matches!(route, Route::Unix | Route::Shm) || shares {
            words.extend(["-s".into(), path.into()]);
        }
        words.extend_from_slice(&all[1..]);
        Ok(words)
    }
}

fn has_fabric(flags: &[String]) -> bool {
    flags.iter().any(|flag| flag.split('=').next() == Some(HAS_FABRIC))
}

/// Assigns the started server's process to the target.
fn own(target: Target, server: &Server) -> Result<Target> {
    let started = server.process();
    match target.processes() {
        [] => Ok(target.of_processes(vec![started])),
        // The started program may have started the server as its child.
        [reported] if reported.descends_from(started) => Ok(target),
        others => {
            bail!("process {} answers, which is not the one that was started, {}", others[0].0, started.0)
        }
    }
}

/// Returns whether a flag of a server like memcached is one that the benchmark sets.
fn is_chosen(flag: &str) -> bool {
    match flag.starts_with("--") {
        true => CHOSEN_FLAGS.contains(&flag.split('=').next().unwrap_or(flag)),
        false => CHOSEN_FLAGS.iter().any(|chosen| flag.starts_with(chosen)),
    }
}

/// Returns the first line that a program prints for `-V`; `None` if it prints nothing or keeps running.
fn version(program: &str) -> Option<String> {
    let (reader, writer) = std::io::pipe().ok()?;
    let mut command = Command::new(program);
    command.arg("-V").stdin(Stdio::null()).stdout(writer.try_clone().ok()?).stderr(writer);
    let mut child = cleanup::start_server(&mut command).ok()?;
    drop(command);
    let until = Instant::now() + VERSION_TIMEOUT;
    let tells = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.success(),
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            _ => break false,
        }
    };
    // Killing a process that has ended has no effect.
    let _ = child.kill();
    let _ = child.wait();
    cleanup::forget_server(Pid::from_child(&child));
    if !tells {
        return None;
    }
    // A child of its own may still hold the other end: do not wait for further output.
    rustix::io::ioctl_fionbio(&reader, true).ok()?;
    let lines = BufReader::new(reader.take(VERSION_BYTES_MAX)).lines();
    lines.map_while(Result::ok).find(|line| !line.trim().is_empty())
}

impl RunningServer {
    /// Returns the server's exit status and stderr tail, if it has ended.
    pub fn ended(&mut self) -> Option<String> {
        self.server.as_mut()?.ended(Duration::from_millis(200))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use fabcache_testbed::cleanup::Folder;

    fn server_under_test(text: &str) -> ServerUnderTest {
        text.parse().expect(text)
    }

    #[test]
    fn servers_are_read() {
        let routes = |text: &str, common: &str| {
            let routes = server_under_test(text).routes(&words(common).expect("words")).expect(text);
            routes.into_iter().map(Route::name).collect::<Vec<_>>()
        };
        assert_eq!(routes("m=memcached", ""), ["tcp", "unix"]);
        assert_eq!(routes("f=fabcached --shm -t 1", ""), ["tcp", "unix", "shm"]);
        assert_eq!(routes("f=fabcached", "--shm"), ["tcp", "unix", "shm"]);
        assert_eq!(routes("f=fabcached --fabric=shm", "--shm"), ["tcp", "fab", "unix", "shm"]);
        assert_eq!(routes("r=redis-like --port {port}", ""), ["tcp"]);
        assert_eq!(routes("r=x --socket={socket} -p 3", ""), ["unix"]);
        assert_eq!(routes("u=shm:///s", ""), ["shm"]);
        assert_eq!(routes("u=fab://h", ""), ["fab"]);
        assert_eq!(routes("u=tcp://a:1 tcp://b:2", ""), ["tcp"]);
        for (text, culprit) in [
            ("memcached", "NAME=PROGRAM"),
            ("=memcached", "no name"),
            ("a b=memcached", "no name"),
            ("m=", "has no program"),
            ("m='x", "not closed"),
            ("m=tcp://a:1 unix:///s", "same transport"),
            ("m=tcp://a:1 fab://b", "same transport"),
        ] {
            let error = format!("{:#}", text.parse::<ServerUnderTest>().expect_err(text));
            assert!(error.contains(culprit), "{error}");
        }
        for flag in ["-p 1", "-p1", "-l h", "--port=1", "-s /s", "-d"] {
            let error =
                server_under_test(&format!("m=memcached {flag}")).routes(&[]).expect_err(flag).to_string();
            let flag = flag.split(' ').next().unwrap_or(flag);
            assert!(
                error.contains(&format!("m: {flag} is set by the benchmark")) && error.contains(PORT),
                "{error}"
            );
        }
    }

    #[test]
    fn commands_select_the_listeners() {
        let command = |text: &str, common: &str, route| {
            let server_under_test = server_under_test(text);
            let Kind::Program(given) = &server_under_test.kind else { panic!("a program") };
            let address = "127.0.0.1:9".parse().expect("an address");
            let common = words(common).expect("words");
            joined(&server_under_test.command(given, &common, route, address, Path::new("/s")).expect("text"))
        };
        assert_eq!(command("m=mc -t 2", "-m 9", Route::Tcp), "mc -u root -l 127.0.0.1 -p 9 -t 2 -m 9");
        assert_eq!(command("m=mc", "", Route::Unix), "mc -u root -s /s");
        assert_eq!(command("m=mc --shm", "", Route::Tcp), "mc -u root -l 127.0.0.1 -p 9 -s /s --shm");
        assert_eq!(command("m=mc --shm", "", Route::Shm), "mc -u root -s /s --shm");
        assert_eq!(command("m=mc --fabric", "", Route::Fabric), "mc -u root -l 127.0.0.1 -p 9 --fabric");
        assert_eq!(command("m=mc --fabric", "", Route::Unix), "mc -u root -l 127.0.0.1 -p 9 -s /s --fabric");
        assert_eq!(command("r=rd --port {port}", "-t 1", Route::Tcp), "rd --port 9 -t 1");
    }

    #[test]
    fn versions_are_read_from_programs() {
        assert_eq!(version("/no/such/program"), None);
        // `cat` does not support the flag.
        assert_eq!(version("cat"), None);
        let folder = Folder::new("fabcache-version").expect("a folder");
        let program = folder.path().join("program");
        let left = VERSION_TIMEOUT.as_secs() * 30;
        let script = format!("#!/bin/sh\necho; echo $1 is 1.2; sleep {left} & echo $! > $0.left\n");
        std::fs::write(&program, script).expect("a script");
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).expect("its owner may");
        let program = program.to_str().expect("text");
        // A child of another test may hold the script open, which then cannot be executed.
        let begun = Instant::now();
        let reported = std::iter::repeat_with(|| version(program)).take(1_000).flatten().next();
        assert_eq!(reported.as_deref(), Some("-V is 1.2"));
        assert!(begun.elapsed().as_secs() < left, "it does not wait for the program's child");
        let of_left = std::fs::read_to_string(format!("{program}.left")).expect("it left one");
        let left = of_left.trim().parse().ok().and_then(Pid::from_raw).expect("a process");
        rustix::process::kill_process(left, rustix::process::Signal::TERM).expect("it is there");
    }
}
