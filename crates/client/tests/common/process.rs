//! Servers in processes of their own: the test's own program, run again.

use fabcache_testbed::process::{are_all_threads, cpu_time};
pub use fabcache_testbed::wait::wait_until;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use fabcache_client::{Client, Options};
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit, set_dumpable_behavior,
};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::{Running, client, with_time_limit};

const SOCKET: &str = "FABCACHE_TEST_SOCKET";
const FLAGS: &str = "FABCACHE_TEST_FLAGS";

/// A server with this variable in its environment stays closed to other processes of its user. Tests read `/proc` of the
/// others.
pub const SHIELDED: &str = "FABCACHE_TEST_SHIELDED";

/// A server with this variable in its environment stops cleanly when its standard input ends.
const STOPPABLE: &str = "FABCACHE_TEST_STOPPABLE";

/// The server process of [`Server::start`]: body of the ignored test `serve` of each test program.
pub fn serve() {
    // The server must not outlive the test, however that ends.
    let end_with_test = || {
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    };
    end_with_test();
    obey_limits();
    let path = std::env::var(SOCKET).expect("run by another test");
    let flags = std::env::var(FLAGS).expect("run by another test");
    let server = Running::start(&format!("-s {path} --shm {flags}"));
    // A change of the user undid it.
    end_with_test();
    if std::env::var_os(SHIELDED).is_none() {
        set_dumpable_behavior(DumpableBehavior::Dumpable).expect("Linux has it");
    }
    if std::env::var_os(STOPPABLE).is_some() {
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("a pipe from the test");
        return drop(server);
    }
    loop {
        std::thread::park();
    }
}

/// Drops root's exemption from resource limits.
fn obey_limits() {
    let mut sets = capabilities(None).expect("reading own capabilities is allowed");
    sets.effective.remove(CapabilitySet::SYS_RESOURCE | CapabilitySet::SYS_ADMIN);
    set_capabilities(None, sets).expect("dropping capabilities is allowed");
}

/// Runs the test program again, for one ignored test.
pub fn again(test: &str) -> Command {
    // Another user may start it by this name, whatever its directory allows.
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", test, "--ignored", "--nocapture"]).stdout(Stdio::null());
    command
}

/// A process that is killed on drop.
pub struct Process(pub Child);

impl Process {
    pub fn kill(&mut self) -> ExitStatus {
        let _ = self.0.kill();
        self.0.wait().expect("a child")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A server that shares memory, in a process of its own.
pub struct Server(pub Process);

impl Server {
    /// Starts the server without waiting for it.
    pub fn start(path: &str, flags: &str) -> Server {
        Server::start_with(path, flags, |_| {})
    }

    fn start_with(path: &str, flags: &str, more: impl FnOnce(&mut Command)) -> Server {
        let mut command = again("serve");
        command.env(SOCKET, path).env(FLAGS, flags);
        more(&mut command);
        Server(Process(command.spawn().expect("this program starts")))
    }

    /// Starts the server and waits until it answers.
    pub fn started(path: &str, flags: &str) -> Server {
        Server::started_with(path, flags, |_| {})
    }

    /// Like [`Server::started`], with changes to the process's command.
    pub fn started_with(path: &str, flags: &str, more: impl FnOnce(&mut Command)) -> Server {
        let server = Server::start_with(path, flags, more);
        let cache = patient(path);
        until_up(|| cache.set(b"up", b"", fabcache_client::Ttl::NEVER).is_ok());
        server
    }

    /// Like [`Server::started`], for [`Server::stop_cleanly`].
    pub fn started_stoppable(path: &str, flags: &str) -> Server {
        Server::started_with(path, flags, |command| {
            command.env(STOPPABLE, "1").stdin(Stdio::piped());
        })
    }

    /// Stops the server as a signal does, and waits for its end.
    pub fn stop_cleanly(mut self) {
        drop(self.0.0.stdin.take().expect("it was started as stoppable"));
        let status = self.0.0.wait().expect("a child");
        assert!(status.success(), "{status}");
    }

    pub fn is_running(&mut self) -> bool {
        self.0.0.try_wait().expect("a child").is_none()
    }

    /// Returns the CPU time of the server's threads.
    pub fn cpu_time(&self) -> Duration {
        cpu_time(self.pid())
    }

    /// Stops the server while it sleeps: over shm, a server stopped at work may hold a lock that its clients wait for.
    /// A runnable server counts as working.
    pub fn stop_asleep(&self) {
        wait_until("the server sleeps", || {
            let before = self.cpu_time();
            std::thread::sleep(Duration::from_millis(5));
            are_all_threads(self.pid(), 'S') && self.cpu_time() == before
        });
        self.stop();
    }

    /// Stops the server in any state. Until every thread has received the signal, some may still run.
    pub fn stop(&self) {
        kill_process(self.pid(), Signal::STOP).expect("ours");
        wait_until("the server stops", || are_all_threads(self.pid(), 'T'));
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0.0)
    }

    /// Resumes a stopped server.
    pub fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).expect("ours");
    }

    fn proc(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.0.0.id())
    }

    /// Limits the server's descriptors from now on.
    pub fn limit_descriptors(&self, most: u64) {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        prlimit(Some(self.pid()), Resource::Nofile, limit).expect("a parent may set limits");
    }

    /// Sets the soft limit only, so that it can be raised again.
    pub fn allow_descriptors(&self, most: u64) {
        let limit = Rlimit { current: Some(most), ..getrlimit(Resource::Nofile) };
        prlimit(Some(self.pid()), Resource::Nofile, limit).expect("a parent may set limits");
    }

    pub fn descriptors(&self) -> BTreeSet<u64> {
        let entries = std::fs::read_dir(self.proc("fd")).expect("it runs");
        let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers.collect()
    }

    /// Returns the number of channels that the server maps.
    pub fn channels(&self) -> usize {
        let maps = std::fs::read_to_string(self.proc("maps")).expect("it runs");
        maps.lines().filter(|line| line.contains("fabcache-channel")).count()
    }

    /// Returns the kilobytes of shared memory that the server has touched.
    pub fn shared_kb(&self) -> u64 {
        let status = std::fs::read_to_string(self.proc("status")).expect("it runs");
        let line = status.lines().find(|line| line.starts_with("RssShmem")).expect("on Linux");
        line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).expect("a number")
    }
}

/// A client that retries a failed server at once.
pub fn patient(path: &str) -> Client {
    let options = Options { retry_after: Duration::from_millis(1), ..with_time_limit() };
    Client::new([format!("unix://{path}")], options).expect("an address")
}

pub fn until_up(request: impl FnMut() -> bool) {
    wait_until("a server comes up", request);
}

/// Returns one number of a server's statistics.
pub fn stat(cache: &Client, topic: &str, name: &str) -> u64 {
    let stats = cache.stats(topic).remove(0).expect("the server answers");
    let found = stats.iter().find(|(stat, _)| stat == name);
    found.and_then(|(_, value)| value.parse().ok()).unwrap_or_else(|| panic!("no number {name} in {stats:?}"))
}

/// Returns a path for a server's socket.
pub fn socket_path(name: &str) -> String {
    let path = std::env::temp_dir().join(format!("fabcache-{name}-{}", std::process::id()));
    path.display().to_string()
}

/// Removes the socket file that a killed server left.
pub struct Leftover(pub String);

impl Drop for Leftover {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(Path::new(&self.0));
    }
}

/// A client of the server at this socket path.
pub fn at(path: &str) -> Client {
    client(&format!("unix://{path}"))
}
