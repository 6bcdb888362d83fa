//! A dummy as a child process, so that its CPU time and the clients' are separate.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fabcache_testbed::cleanup;

use super::Listen;
use crate::limits::Limits;
use crate::process::Process;

/// How long the child process may take to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// The child process. It exits when dropped, or with this process.
#[derive(Debug)]
pub struct Child {
    child: std::process::Child,
    /// Open as long as this process lives; the child exits when it closes.
    input: Option<ChildStdin>,
    urls: Vec<String>,
}

impl Child {
    /// Starts `program`, the command-line tool, as a dummy with these listeners, limits and threads.
    ///
    /// # Errors
    /// The child process does not start.
    pub fn start(program: &Path, listen: &[Listen], limits: Limits, threads: usize) -> Result<Child> {
        let mut command = Command::new(program);
        command.args(["bench", "dummy", "--until-input-ends"]);
        command.arg("--threads").arg(threads.max(1).to_string());
        command.arg("--memory-bytes").arg(limits.memory_bytes.to_string());
        command.arg("--item-bytes").arg(limits.item_bytes.to_string());
        for place in listen {
            command.arg("--listen").arg(place.to_string());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if cleanup::handles_signals() {
            // A terminal's signals go to the benchmark; the child exits with this process, and removes its
            // sockets.
            command.process_group(0);
        }
        let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut started = Child { child, input, urls: Vec::new() };
        let output = output.context("the output is not piped")?;
        let lines = BufReader::new(output).lines().take(listen.len());
        started.urls = lines.collect::<Result<_, _>>()?;
        ensure!(started.urls.len() == listen.len(), "the dummy, {}, ended at once", program.display());
        Ok(started)
    }

    /// Returns the URLs of its listeners, in the requested order.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Returns its process.
    pub fn process(&self) -> Process {
        Process(self.child.id())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.input.take());
        let until = Instant::now() + EXIT_TIMEOUT;
        while Instant::now() < until {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
