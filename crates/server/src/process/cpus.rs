//! Pinning threads to CPUs.

use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPUs that the process may use.
///
/// # Errors
/// The system does not report them.
pub fn usable() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("cannot ask which CPUs may be used")?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Returns the CPUs of a list such as `0-3,8`, in its order. All must be among the `usable` ones.
///
/// # Errors
/// The list does not parse, or names another CPU.
pub fn of_list(list: &str, usable: &[usize]) -> Result<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else {
            bail!("--cpus takes CPUs such as 0-3,8, not {part:?}");
        };
        ensure!(first <= last, "--cpus takes a range from its first CPU to its last, not {part:?}");
        for cpu in first..=last {
            ensure!(
                usable.contains(&cpu),
                "--cpus {list}: this process may not use CPU {cpu}, only {usable:?}; leave it out, or change the \
                 affinity or the cpuset that the process starts with"
            );
            cpus.push(cpu);
        }
    }
    Ok(cpus)
}

/// Pins the calling thread.
///
/// # Errors
/// The system refuses.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).context("the system refuses")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_order() {
        let usable = [0, 1, 2, 3, 8, 9];
        for (list, cpus) in [("0", vec![0]), ("8,0-2", vec![8, 0, 1, 2]), ("3,3", vec![3, 3])] {
            assert_eq!(of_list(list, &usable).expect(list), cpus);
        }
    }

    #[test]
    fn errors_name_the_culprit() {
        let usable = [0, 1, 3];
        for (list, culprit) in [
            ("", "\"\""),
            ("1,a", "\"a\""),
            ("0,-1", "\"-1\""),
            ("3-1", "\"3-1\""),
            ("0-3", "CPU 2"),
            ("0,", "\"\""),
        ] {
            let error = of_list(list, &usable).expect_err(list).to_string();
            assert!(error.contains(culprit), "{list}: {error}");
        }
        let huge = format!("5-{}", usize::MAX);
        assert!(of_list(&huge, &usable).expect_err("not usable").to_string().contains("CPU 5"));
    }
}
