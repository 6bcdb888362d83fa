//! A job that cannot start ends soon, and its PEs say why.

use std::process::{Command, Stdio};
use std::time::Duration;

use fabcache_testbed::openshmem::{JobOptions, Names, server_program};

use crate::jobs::pes;

/// A job that cannot start ends sooner.
const TIME_MAX: Duration = Duration::from_secs(30);

/// Runs a job whose PEs agree on such an error: all say it before the first ends, upon which the launcher ends the others.
#[track_caller]
fn all_fail_with(options: &JobOptions, error: &str) {
    assert_eq!(fails_with(options, error), pes(), "each PE says it");
}

/// Runs a job whose PEs fail with such an error. Returns how many say it: the launcher ends all when the first has ended.
#[track_caller]
fn fails_with(options: &JobOptions, error: &str) -> usize {
    let ended = options.run(TIME_MAX).unwrap_or_else(|error| panic!("{error:#}"));
    let (status, output) = (ended.status, ended.output);
    assert!(!status.success(), "{status}{output}");
    assert!(ended.left.is_empty(), "{:?} are left", ended.left);
    let errors = output.lines().filter(|line| line.contains("fabcached: ") && line.contains(error)).count();
    assert!((1..=pes()).contains(&errors), "{errors} PEs say {error:?}{output}");
    errors
}

fn job() -> JobOptions {
    JobOptions::new(pes())
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn unequal_options_are_refused() {
    let unequal = job().server_of(pes() - 1, "-m 40");
    all_fail_with(&unequal, "the PEs of a job need equal options");
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn equal_names_are_refused() {
    all_fail_with(&job().names(Names::Same), "PE 0 and PE 1 are both called everyone");
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn names_are_of_the_host_and_port_unless_given() {
    let job = job().names(Names::Default).server("-m 32").start();
    job.unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn too_small_heaps_are_reported() {
    let small = job().server("-m 64").environment("SHMEM_SYMMETRIC_HEAP_SIZE", "16m");
    all_fail_with(&small, "SHMEM_SYMMETRIC_HEAP_SIZE (now 16m)");
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn missing_library_is_reported() {
    let without = job().environment("FABCACHE_LIBOSHMEM", "/none/liboshmem.so.40");
    fails_with(&without, "cannot open OpenSHMEM: /none/liboshmem.so.40");
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn options_that_do_not_go_with_a_job_are_refused() {
    for (options, error) in [
        ("-d", "does not go with -d"),
        ("-e /none/file", "does not go with -e"),
        ("-L", "does not go with -L"),
    ] {
        fails_with(&job().server(options), error);
    }
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn servers_without_a_launcher_are_told_to_use_one() {
    let mut command = Command::new(server_program().expect("the server is built"));
    command.args(["--fabric", "openshmem", "-l", "127.0.0.1", "-p", "-1"]);
    for variable in ["OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "PMI_SIZE"] {
        command.env_remove(variable);
    }
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{why}");
    assert!(why.contains("start it by oshrun or srun"), "{why}");
}
