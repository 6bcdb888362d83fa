//! What `/proc` tells of a process (proc(5)).

use std::fs;
use std::time::Duration;

use rustix::process::Pid;

fn threads(pid: Pid) -> impl Iterator<Item = fs::DirEntry> {
    let threads = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
    threads.into_iter().flatten().flatten()
}

/// Returns the CPU time of a process's threads, but for those that have ended.
pub fn cpu_time(pid: Pid) -> Duration {
    let of = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    Duration::from_nanos(threads(pid).filter_map(of).sum())
}

/// Returns whether a process runs, and all its threads are in this state, such as `S` (asleep) or `T` (stopped).
pub fn are_all_threads(pid: Pid, state: char) -> bool {
    let mut threads = threads(pid).peekable();
    threads.peek().is_some()
        && threads.all(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(state))
        })
}

/// Returns the processes whose command line contains these bytes.
pub fn named_on_command_line(bytes: &[u8]) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_named = |process: &fs::DirEntry| {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        line.windows(bytes.len()).any(|window| window == bytes)
    };
    processes
        .filter(|process| process.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit))
        .filter(is_named)
        .filter_map(|process| Pid::from_raw(process.file_name().to_str()?.parse().ok()?))
        .collect()
}
