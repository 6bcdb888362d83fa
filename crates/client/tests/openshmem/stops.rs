//! A job stops within seconds, and leaves nothing. Idle, it takes no CPU time to speak of.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use fabcache_testbed::openshmem::{Job, JobOptions, MESSAGES_VARIABLE, server_program};
use fabcache_testbed::report::{not_run, report};
use fabcache_testbed::wait::wait_until;
use rustix::process::Signal;

use crate::jobs::{pes, start, started};

const STOPPED: Duration = Duration::from_secs(10);
/// Far more than the CPU time that a PE takes to become idle.
const SETTLED: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(5);
/// CPU time of an idle PE a second, woken by all others …
const IDLE_CPU_TIME_MAX: Duration = Duration::from_millis(1);
/// … and without, where it polls ten times a second: each time takes about 0.1 ms of a virtual machine's CPU, whose caches it finds
/// empty.
const POLLING_CPU_TIME_MAX: Duration = Duration::from_millis(4);

/// Returns the files in shared memory that the PEs have mapped, under names that still lead to them.
fn shared_files(job: &Job) -> BTreeSet<PathBuf> {
    let maps =
        |pe| fs::read_to_string(format!("/proc/{}/maps", job.pid(pe).as_raw_nonzero())).expect("it runs");
    let maps: String = (0..job.pes()).map(maps).collect();
    let files = maps.lines().filter_map(|line| line.split_once(" /dev/shm/").map(|(_, name)| name.trim()));
    files.map(|name| PathBuf::from("/dev/shm").join(name)).filter(|path| path.exists()).collect()
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn pes_stop_cleanly_together() {
    // Where Open MPI's own files usually are.
    let mut job = start(&JobOptions::new(pes()).environment(MESSAGES_VARIABLE, "/dev/shm").server("-m 32"));
    let files = shared_files(&job);
    for pe in 0..job.pes() {
        job.signal(pe, Signal::TERM);
    }
    let status = job.wait(STOPPED).unwrap_or_else(|| panic!("it does not stop{}", job.output_tail()));
    assert!(status.success(), "{status}{}", job.output_tail());
    assert!(job.processes().is_empty(), "{:?} are left", job.processes());
    let left: Vec<_> = files.iter().filter(|path| path.exists()).collect();
    assert!(left.is_empty(), "{left:?} are left of {files:?}");
    let in_folder = fs::read_dir(job.folder()).expect("a folder").flatten();
    let in_folder: Vec<_> = in_folder.map(|file| file.file_name()).collect();
    assert!(in_folder.is_empty(), "{in_folder:?} are left");
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn launcher_stops_all_pes() {
    let mut job = started("-m 32");
    let files = shared_files(&job);
    job.terminate();
    let status = job.wait(STOPPED).unwrap_or_else(|| panic!("it does not stop{}", job.output_tail()));
    assert!(!status.success(), "oshrun takes a job that it was told to end for failed");
    // The launcher does not wait for those that it has killed.
    wait_until("all PEs have ended", || job.processes().is_empty());
    let left: Vec<_> = files.iter().filter(|path| path.exists()).collect();
    assert!(left.is_empty(), "{left:?} are left");
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn idle_pes_take_no_cpu_time() {
    let server = server_program().expect("the server is built");
    if server.components().any(|part| part.as_os_str() == "debug") {
        return not_run("idle_pes_take_no_cpu_time", &"the server is not built for release");
    }
    let job = started("-m 32");
    thread::sleep(SETTLED);
    let times = || (0..job.pes()).map(|pe| job.cpu_time(pe)).collect::<Vec<_>>();
    let before = times();
    thread::sleep(IDLE);
    let a_second = |(after, before): (Duration, Duration)| (after - before).div_f64(IDLE.as_secs_f64());
    let taken: Vec<Duration> = times().into_iter().zip(before).map(a_second).collect();
    report(&format!("idle PEs take {taken:?} of CPU time a second"));
    let polls = std::env::var_os("UCX_TLS").is_some();
    let time_max = if polls { POLLING_CPU_TIME_MAX } else { IDLE_CPU_TIME_MAX };
    assert!(taken.iter().all(|taken| *taken < time_max), "{taken:?}");
}
