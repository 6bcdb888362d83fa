//! Clients in separate processes, each `fabcache bench worker`.
//!
//! A worker reads a line, its [`Plan`], connects, and reports that it is ready. Each further line is a [`Round`]: it
//! runs it and reports the result. All lines are JSON. It exits at the end of its input.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::{Engine, Outcome, Plan, Round, parts};
use crate::experiment::process_cpu_ns;

/// A worker's reply.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Reply {
    Ready,
    Done(Box<Outcome>),
    Failed(String),
}

/// Worker processes.
#[derive(Debug)]
pub struct Workers {
    workers: Vec<Worker>,
    clients: usize,
}

/// A worker process, killed when dropped.
#[derive(Debug)]
struct Worker {
    child: Child,
    orders: ChildStdin,
    replies: BufReader<ChildStdout>,
    clients: usize,
}

/// Runs a worker until its input ends.
///
/// # Errors
/// A command cannot be parsed.
pub fn worker(orders: &mut dyn BufRead, replies: &mut dyn Write) -> Result<()> {
    let mut lines = orders.lines();
    let plan = lines.next().context("no plan was received")??;
    let plan: Plan = serde_json::from_str(&plan).context("the first line is not a plan")?;
    let mut engine = match Engine::connect(&plan) {
        Ok(engine) => engine,
        Err(error) => return say(replies, &Reply::Failed(format!("{error:#}"))),
    };
    say(replies, &Reply::Ready)?;
    for line in lines {
        let round: Round = serde_json::from_str(&line?).context("a line is not a round")?;
        let before_ns = process_cpu_ns();
        let reply = match engine.run(&round) {
            Ok(outcome) => {
                let client_cpu_ns = process_cpu_ns() - before_ns;
                Reply::Done(Box::new(Outcome { client_cpu_ns, ..outcome }))
            }
            Err(error) => Reply::Failed(format!("{error:#}")),
        };
        say(replies, &reply)?;
    }
    Ok(())
}

fn say(to: &mut dyn Write, what: &impl Serialize) -> Result<()> {
    serde_json::to_writer(&mut *to, what)?;
    to.write_all(b"\n")?;
    Ok(to.flush()?)
}

impl Workers {
    /// Starts `processes` processes of `program`, distributes the clients over them, and waits until they
    /// connected.
    ///
    /// # Errors
    /// A process does not start, or cannot connect.
    pub fn start(program: &Path, plan: &Plan, processes: usize) -> Result<Workers> {
        ensure!(
            (1..=plan.clients).contains(&processes),
            "{processes} processes for {} clients: give from 1 to as many as there are clients",
            plan.clients
        );
        let mut workers = Vec::new();
        for clients in parts(plan.clients, processes) {
            let threads = plan.threads.min(clients);
            let mut worker = Worker::start(program, clients)?;
            worker.order(&Plan { clients, threads, ..plan.clone() })?;
            workers.push(worker);
        }
        for worker in &mut workers {
            match worker.reply()? {
                Reply::Ready => {}
                other => bail!("a client process answered wrongly: {other:?}"),
            }
        }
        Ok(Workers { workers, clients: plan.clients })
    }

    /// Runs a round in all of them.
    ///
    /// # Errors
    /// As for [`Engine::run`]; or a process ended.
    pub fn run(&mut self, round: &Round) -> Result<Outcome> {
        for (which, worker) in self.workers.iter_mut().enumerate() {
            let part = round.part(worker.clients, self.clients, which);
            worker.order(&part)?;
        }
        let mut all = Outcome::default();
        for worker in &mut self.workers {
            match worker.reply()? {
                Reply::Done(outcome) => all.add(&outcome),
                other => bail!("a client process answered wrongly: {other:?}"),
            }
        }
        Ok(all)
    }
}

impl Worker {
    fn start(program: &Path, clients: usize) -> Result<Worker> {
        let mut command = Command::new(program);
        command.args(["bench", "worker"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {} for client processes", program.display()))?;
        let orders = child.stdin.take().context("a child has an input")?;
        let replies = BufReader::new(child.stdout.take().context("a child has an output")?);
        Ok(Worker { child, orders, replies, clients })
    }

    fn order(&mut self, what: &impl Serialize) -> Result<()> {
        match say(&mut self.orders, what) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.exit_error()),
        }
    }

    fn reply(&mut self) -> Result<Reply> {
        let mut line = String::new();
        if self.replies.read_line(&mut line).unwrap_or(0) == 0 {
            return Err(self.exit_error());
        }
        match serde_json::from_str(&line).with_context(|| format!("a client process wrote {line:?}"))? {
            Reply::Failed(why) => bail!("in client process {}: {why}", self.child.id()),
            reply => Ok(reply),
        }
    }

    /// Returns an error with the process's exit status.
    fn exit_error(&mut self) -> anyhow::Error {
        let id = self.child.id();
        match self.child.wait() {
            Ok(status) => anyhow::anyhow!("client process {id} ended before its round did: {status}"),
            Err(error) => anyhow::anyhow!("client process {id} ended before its round did: {error}"),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may be in the middle of an abandoned round.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::work::tests::work;

    fn plan(clients: usize) -> Plan {
        let urls = vec!["unix:///nowhere/at/all".into()];
        Plan { urls, protocol: "text".into(), timeout_ns: 1_000_000_000, work: work(), clients, threads: 1 }
    }

    #[test]
    fn a_worker_reports_its_error() {
        let mut orders = serde_json::to_vec(&plan(1)).expect("JSON");
        orders.push(b'\n');
        let mut replies = Vec::new();
        worker(&mut &orders[..], &mut replies).expect("it says why");
        let reply: Reply = serde_json::from_slice(&replies).expect("a reply");
        assert!(matches!(reply, Reply::Failed(why) if why.contains("/nowhere/at/all")));
        assert!(worker(&mut &b"nonsense\n"[..], &mut replies).is_err());
    }

    #[test]
    fn an_exited_worker_is_an_error() {
        let error = Workers::start(Path::new("/bin/false"), &plan(2), 2).expect_err("it ends at once");
        assert!(error.to_string().contains("exit status: 1"), "{error}");
        let error = Workers::start(Path::new("/no/such/program"), &plan(1), 1).expect_err("there is none");
        assert!(error.to_string().contains("/no/such/program"), "{error}");
        assert!(Workers::start(Path::new("/bin/false"), &plan(1), 2).is_err());
    }
}
