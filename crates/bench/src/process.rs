//! Processes of this host whose CPU time and memory are measured.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

/// A process, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(pub u32);

impl Process {
    /// Memory that it alone has: anonymous, shared (its memory files among it), and huge pages, in bytes.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn resident_bytes(&self) -> Result<u64> {
        let path = format!("/proc/{}/status", self.0);
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let kilobytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let parts = ["RssAnon:", "RssShmem:", "HugetlbPages:"];
        Ok(parts.iter().filter_map(|name| kilobytes(name)).sum::<u64>() << 10)
    }

    /// Pins all its threads to a CPU.
    ///
    /// # Errors
    /// The system refuses.
    pub fn pin(&self, cpu: usize) -> Result<()> {
        for task in self.tasks()? {
            pin(Some(task), cpu)?;
        }
        Ok(())
    }

    /// CPU time of all its threads so far.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn cpu_time(&self) -> Result<Duration> {
        let mut total = 0;
        for task in self.tasks()? {
            let path = format!("/proc/{}/task/{}/schedstat", self.0, task.as_raw_nonzero());
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
            total += text
                .split_whitespace()
                .next()
                .and_then(|ns| ns.parse::<u64>().ok())
                .context("no CPU time")?;
        }
        Ok(Duration::from_nanos(total))
    }

    fn tasks(&self) -> Result<Vec<Pid>> {
        let path = format!("/proc/{}/task", self.0);
        let entries = std::fs::read_dir(Path::new(&path)).with_context(|| format!("cannot list {path}"))?;
        let mut tasks = Vec::new();
        for entry in entries {
            let id = entry?.file_name().to_string_lossy().parse().context("a task is a number")?;
            tasks.extend(Pid::from_raw(id));
        }
        Ok(tasks)
    }

    /// How long ago it began, to a second or so.
    ///
    /// # Errors
    /// There is no such process.
    pub fn age(&self) -> Result<Duration> {
        let path = format!("/proc/{}/stat", self.0);
        let stat = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        // The name, in brackets, may hold anything; the time is the 22nd field, and the third follows the name.
        let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace());
        let ticks =
            fields.and_then(|mut fields| fields.nth(19)?.parse::<u64>().ok()).context("no start time")?;
        let uptime = std::fs::read_to_string("/proc/uptime").context("cannot read /proc/uptime")?;
        let uptime: f64 =
            uptime.split_whitespace().next().and_then(|s| s.parse().ok()).context("no time since boot")?;
        let began = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        Ok(Duration::from_secs_f64((uptime - began).max(0.0)))
    }
}

/// Pins a thread, or the calling one, to a CPU.
///
/// # Errors
/// The system refuses.
pub fn pin(thread: Option<Pid>, cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(thread, &set).with_context(|| format!("cannot pin to CPU {cpu}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_known() {
        let process = Process(std::process::id());
        assert!(process.age().expect("an age") < Duration::from_secs(24 * 3600));
        assert!(process.cpu_time().expect("a time") > Duration::ZERO);
        assert!(process.resident_bytes().expect("a size") > 0);
        let error = Process(u32::MAX >> 1).cpu_time().expect_err("there is no such process");
        assert!(error.to_string().contains("/proc/"), "{error}");
    }
}
