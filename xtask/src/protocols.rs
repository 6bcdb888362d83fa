//! `cargo xtask protocols`: tests the client library against Debian's memcached in each protocol, with
//! SASL, over a Unix socket, and through twemproxy.
//!
//! Starts them all, and runs the ignored tests of `crates/client/tests/others.rs`. Installs missing
//! packages. Every started process dies with this one.

use std::fs::{self, File};
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fabcache_testbed::ports::free_port;
use fabcache_testbed::server::ServerProcess;

use crate::clients::install::make_packages_ready;
use crate::process::{Guarded, Interrupt, Scratch, describe};
use crate::servers::{self, MEMCACHED, local, server_command};
use crate::workspace;

/// The user of the memcached with SASL.
const USER: &str = "fabcache";
const PASSWORD: &str = "a password";

/// Time limit of the tests, including compilation.
const TEST_TIME_MAX: Duration = Duration::from_secs(1800);

/// Tests the client library against other servers and proxies.
#[derive(clap::Args)]
pub struct Args {}

/// Starts the servers and runs the tests.
///
/// # Errors
/// A requirement is missing and cannot be installed, a server does not start, or a test fails.
pub fn run(_: &Args) -> Result<()> {
    let interrupt = Interrupt::register()?;
    make_packages_ready(&workspace::folder().join("tests/protocols"), &interrupt)?;
    let scratch = Scratch::create()?;
    let started = RunningServers { scratch: scratch.path(), interrupt: &interrupt };
    let servers = started.all()?;
    let mut cargo = workspace::cargo();
    // Built as part of the workspace, to reuse the build of its tests.
    cargo.args(["test", "--workspace", "--test", "others", "--", "--ignored", "--test-threads=1"]);
    for server in &servers {
        cargo.env(server.name, &server.address);
    }
    let output = |from: std::io::Result<std::os::fd::OwnedFd>| from.map(File::from);
    let stdout = output(rustix::io::dup(std::io::stdout()).map_err(Into::into))?;
    let stderr = output(rustix::io::dup(std::io::stderr()).map_err(Into::into))?;
    let mut tests = Guarded::spawn(&mut cargo, stdout, stderr)?;
    match tests.wait(TEST_TIME_MAX, &interrupt)? {
        Some(status) if status.success() => Ok(()),
        Some(status) => bail!("the tests failed: {}", describe(status)),
        None => bail!("the tests did not end within {TEST_TIME_MAX:?}"),
    }
}

/// A server, with its name in the tests' environment.
struct Server {
    name: &'static str,
    address: String,
    _process: ServerProcess,
}

struct RunningServers<'a> {
    scratch: &'a Path,
    interrupt: &'a Interrupt,
}

impl RunningServers<'_> {
    fn all(&self) -> Result<Vec<Server>> {
        let mut servers = Vec::new();
        for name in
            ["FABCACHE_TEST_META", "FABCACHE_TEST_BINARY", "FABCACHE_TEST_TEXT", "FABCACHE_TEST_BEHIND_PROXY"]
        {
            servers.push(self.memcached(name, &[], None)?);
        }
        let behind = servers.last().map(|server| server.address.clone()).unwrap_or_default();
        servers.push(self.proxy("FABCACHE_TEST_PROXY", &behind)?);
        let users = self.users()?;
        servers.push(self.memcached("FABCACHE_TEST_SASL", &["-S"], Some(&users))?);
        servers.push(self.memcached_on_a_socket("FABCACHE_TEST_UNIX")?);
        Ok(servers)
    }

    fn memcached(&self, name: &'static str, flags: &[&str], users: Option<&Path>) -> Result<Server> {
        let command = |port: u16| {
            let mut command = memcached();
            command.args(["-l", "127.0.0.1", "-U", "0", "-p", &port.to_string()]).args(flags);
            if let Some(users) = users {
                command.env("SASL_CONF_PATH", users);
            }
            command
        };
        let (process, address) = ServerProcess::start_on_free_port(name, &command)?;
        Ok(Server { name, address: format!("tcp://{address}"), _process: process })
    }

    fn memcached_on_a_socket(&self, name: &'static str) -> Result<Server> {
        let path = self.scratch.join("memcached.sock");
        let mut command = memcached();
        command.arg("-s").arg(&path);
        let is_up = || UnixStream::connect(&path).is_ok();
        let process = servers::start(name, command, &is_up, self.interrupt)?;
        Ok(Server { name, address: format!("unix://{}", path.display()), _process: process })
    }

    fn proxy(&self, name: &'static str, behind: &str) -> Result<Server> {
        let (port, statistics) = (free_port()?, free_port()?);
        let behind = behind.trim_start_matches("tcp://");
        let settings = self.scratch.join("nutcracker.yml");
        let text = format!(
            "pool:\n  listen: 127.0.0.1:{port}\n  hash: fnv1a_64\n  distribution: ketama\n  servers:\n   - {behind}:1\n"
        );
        fs::write(&settings, text)?;
        let mut command = Command::new("/usr/sbin/nutcracker");
        command.arg("-c").arg(&settings).args(["-a", "127.0.0.1", "-s", &statistics.to_string()]);
        let is_up = || TcpStream::connect(local(port)).is_ok();
        let process = servers::start(name, command, &is_up, self.interrupt)?;
        Ok(Server { name, address: format!("tcp://127.0.0.1:{port}"), _process: process })
    }

    /// Creates a folder with the user database of libsasl2.
    fn users(&self) -> Result<PathBuf> {
        let database = self.scratch.join("sasldb");
        let settings = format!(
            "mech_list: plain\npwcheck_method: auxprop\nauxprop_plugin: sasldb\nsasldb_path: {}\n",
            database.display()
        );
        fs::write(self.scratch.join("memcached.conf"), settings)?;
        // Names without a realm belong to this host.
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let mut command = Command::new("/usr/sbin/saslpasswd2");
        command.args(["-p", "-c", "-a", "memcached", "-u", &host, "-f"]).arg(&database).arg(USER);
        let mut child = command.stdin(Stdio::piped()).spawn().context("saslpasswd2 cannot be started")?;
        child.stdin.take().context("it has an input")?.write_all(PASSWORD.as_bytes())?;
        ensure!(child.wait()?.success(), "saslpasswd2 stores no user");
        Ok(self.scratch.to_owned())
    }
}

fn memcached() -> Command {
    let mut command = server_command(Path::new(MEMCACHED));
    command.args(["-m", "64", "-t", "1"]);
    command
}
