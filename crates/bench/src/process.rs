//! Processes of this host, with their CPU time and memory.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Positions in `/proc/PID/stat` after the name, which is the second field: the parent, and the start
/// time.
const PARENT: usize = 1;
const START: usize = 19;

/// A set of CPUs by number, written as the kernel does: `0-3,5`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus(Vec<usize>);

/// A process, by its ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(pub u32);

impl Process {
    /// Returns the unshared memory: anonymous, shared (including memory files) and huge pages, in bytes.
    ///
    /// # Errors
    /// The system does not report it.
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

    /// Pins all threads to CPUs.
    ///
    /// # Errors
    /// The system refuses.
    pub fn pin(&self, cpus: &Cpus) -> Result<()> {
        self.tasks()?.into_iter().try_for_each(|task| match set_cpus(Some(task), cpus) {
            Err(Errno::SRCH) => Ok(()),
            done => done.with_context(|| format!("cannot pin to CPU {cpus}")),
        })
    }

    /// Returns the CPU time of all threads.
    ///
    /// # Errors
    /// The system does not report it.
    pub fn cpu_time(&self) -> Result<Duration> {
        let mut total = 0;
        for task in self.tasks()? {
            let path = format!("/proc/{}/task/{}/schedstat", self.0, task.as_raw_nonzero());
            let text = match std::fs::read_to_string(&path) {
                // The thread has ended since it was listed.
                Err(error)
                    if [Errno::NOENT, Errno::SRCH].map(Some).contains(&Errno::from_io_error(&error)) =>
                {
                    continue;
                }
                text => text.with_context(|| format!("cannot read {path}"))?,
            };
            total += text
                .split_whitespace()
                .next()
                .and_then(|ns| ns.parse::<u64>().ok())
                .context("no CPU time")?;
        }
        ensure!(total > 0, "process {} has ended", self.0);
        Ok(Duration::from_nanos(total))
    }

    /// Returns the bytes that the process caused to be written to devices.
    ///
    /// # Errors
    /// The system does not report it.
    pub fn written_bytes(&self) -> Result<u64> {
        let path = format!("/proc/{}/io", self.0);
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let bytes = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        bytes.and_then(|bytes| bytes.parse().ok()).with_context(|| format!("{path} has no write_bytes"))
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

    /// Returns the time since the process started, in whole seconds.
    ///
    /// # Errors
    /// There is no such process.
    pub fn age(&self) -> Result<Duration> {
        let ticks: u64 = self.stat(START)?;
        let uptime = std::fs::read_to_string("/proc/uptime").context("cannot read /proc/uptime")?;
        let uptime: f64 =
            uptime.split_whitespace().next().and_then(|s| s.parse().ok()).context("no time since boot")?;
        let began = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        Ok(Duration::from_secs_f64((uptime - began).max(0.0)))
    }

    /// Returns whether the process is `ancestor` or one of its descendants.
    pub fn descends_from(self, ancestor: Process) -> bool {
        let mut one = self;
        while one != ancestor {
            match one.stat(PARENT) {
                Ok(0) | Err(_) => return false,
                Ok(parent) => one = Process(parent),
            }
        }
        true
    }

    /// Returns a number of `/proc/PID/stat`, by its position after the name.
    fn stat<N: FromStr>(&self, place: usize) -> Result<N> {
        let path = format!("/proc/{}/stat", self.0);
        let stat = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        // The name, in brackets, may contain anything.
        let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace());
        let number = fields.and_then(|mut fields| fields.nth(place)?.parse().ok());
        number.with_context(|| format!("{path} is not as proc_pid_stat(5) has it"))
    }
}

/// Pins a thread, or the calling one, to CPUs.
///
/// # Errors
/// The system refuses.
pub fn pin(thread: Option<Pid>, cpus: &Cpus) -> Result<()> {
    set_cpus(thread, cpus).with_context(|| format!("cannot pin to CPU {cpus}"))
}

fn set_cpus(thread: Option<Pid>, cpus: &Cpus) -> Result<(), Errno> {
    let mut set = CpuSet::new();
    cpus.0.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(thread, &set)
}

impl Cpus {
    /// Returns the CPUs that the calling thread may use.
    ///
    /// # Errors
    /// The system does not report them.
    pub fn current() -> Result<Cpus> {
        let set = sched_getaffinity(None).context("cannot tell on which CPUs this runs")?;
        Ok(Cpus((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()))
    }

    /// Returns the number of CPUs.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl From<usize> for Cpus {
    fn from(cpu: usize) -> Cpus {
        Cpus(vec![cpu])
    }
}

impl FromStr for Cpus {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Cpus> {
        let wrong = || format!("{text:?} is not a list of CPUs such as 0, 0-3 or 0-3,5");
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let [first, last] = [first, last].map(str::parse::<usize>);
            let (first, last) = (first.with_context(wrong)?, last.with_context(wrong)?);
            ensure!(first <= last, wrong());
            ensure!(last < CpuSet::MAX_CPU, "no CPU {last}: {} is the last", CpuSet::MAX_CPU - 1);
            cpus.extend(first..=last);
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(Cpus(cpus))
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for cpu in &self.0 {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
                _ => runs.push((*cpu, *cpu)),
            }
        }
        let written = runs.into_iter().map(|(first, last)| match last - first {
            0 => first.to_string(),
            _ => format!("{first}-{last}"),
        });
        f.write_str(&written.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn cpus_are_read_and_written() {
        for (text, written) in [("0", "0"), ("0-3,5", "0-3,5"), ("2,1,0,2", "0-2"), ("7,9", "7,9")] {
            assert_eq!(text.parse::<Cpus>().expect(text).to_string(), written);
        }
        assert_eq!("0-3,5,2".parse::<Cpus>().expect("some").count(), 5);
        for text in ["", "a", "3-1", "1,", "-1", "0-99999999"] {
            let error = text.parse::<Cpus>().expect_err(text).to_string();
            assert!(error.contains("CPU"), "{error}");
        }
    }

    #[test]
    fn threads_may_end_while_they_are_read() {
        let (process, cpus) = (Process(std::process::id()), Cpus::current().expect("some"));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    scope.spawn(|| {}).join().expect("no panic");
                }
            });
            let looked: Vec<_> = (0..2_000).map(|_| (process.cpu_time(), process.pin(&cpus))).collect();
            is_over.store(true, Ordering::Relaxed);
            assert!(looked.iter().all(|(time, pinned)| time.is_ok() && pinned.is_ok()), "{looked:?}");
        });
    }

    #[test]
    fn this_process_is_known() {
        let process = Process(std::process::id());
        assert!(process.age().expect("an age") < Duration::from_secs(24 * 3600));
        assert!(process.cpu_time().expect("a time") > Duration::ZERO);
        assert!(process.resident_bytes().expect("a size") > 0);
        process.written_bytes().expect("a number");
        assert!(
            process.descends_from(process)
                && process.descends_from(Process(process.stat(PARENT).expect("it has one")))
        );
        assert!(!process.descends_from(Process(u32::MAX >> 1)));
        let error = Process(u32::MAX >> 1).cpu_time().expect_err("there is no such process");
        assert!(error.to_string().contains("/proc/"), "{error}");
    }
}
