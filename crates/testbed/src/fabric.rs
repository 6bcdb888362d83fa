//! Runs the tests that need libfabric, where it is installed.
//!
//! They are ignored, and one test of their program starts that program again for them: each of them takes many endpoints of
//! tens of megabytes, and relies on settings that libfabric reads once for a process. So they run one at a time, in a process
//! of their own. `cargo xtask rdma` runs the same tests over other providers.

use std::fmt::Display;
use std::process::Command;
use std::time::Duration;

use crate::report::{available, not_run, report};
use crate::server::ServerProcess;

/// The environment that `fabcached` sets for itself, for servers in the processes of tests. With its registration
/// cache, libfabric lets peers write memory that was registered for reading. Without the shared context, ofi_rxm of
/// 1.17 crashes over verbs at a message without a posted receive, and takes more memory with each peer.
pub const ENVIRONMENT: &[(&str, &str)] = &[
    ("FI_MR_CACHE_MAX_COUNT", "0"),
    ("FI_OFI_RXM_USE_SRX", "1"),
    ("FI_AV_REMOVE_CLEANUP", "1"),
    ("FI_OFI_RXM_USE_RNDV_WRITE", "0"),
    ("FI_TCP_ZEROCOPY_SIZE", "-1"),
    ("FI_OFI_RXM_MSG_TX_SIZE", "64"),
    ("FI_OFI_RXM_MSG_RX_SIZE", "64"),
];

/// Leaves the tests to `cargo xtask rdma`, which runs them over the same provider, too: a variable of the environment.
const LEFT_TO_RDMA: &str = "FABCACHE_LEFT_TO_RDMA";
/// The provider that every libfabric has. Its killed clients leave no lock behind, unlike those of `shm`.
const PROVIDER: &str = "tcp;ofi_rxm";
/// Far more than the tests of a program take: a call that never returns ends here.
const TIME_MAX: Duration = Duration::from_secs(900);

/// Runs the ignored tests of this test program if `library` is `Ok`; otherwise reports that and why they are not run. So it does if
/// the environment leaves them to `cargo xtask rdma`.
///
/// # Panics
/// A test fails, or they do not end.
pub fn run_ignored_tests<E: Display>(library: Result<(), E>) {
    let program = std::env::current_exe().expect("the system knows this program");
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let tests = format!("the tests of {name} that need libfabric");
    if std::env::var_os(LEFT_TO_RDMA).is_some() {
        return not_run(&tests, &"they are left to cargo xtask rdma");
    }
    if available(&tests, library).is_none() {
        return;
    }
    let mut command = Command::new(&program);
    command.args(["--ignored", "--test-threads=1"]);
    // The user's choice of providers, such as verbs alone, is not the tests'.
    command.envs(ENVIRONMENT.iter().copied()).env("FABCACHE_PROVIDER", PROVIDER).env_remove("FI_PROVIDER");
    let mut tests = ServerProcess::start(&name, command, &|| true).expect("the program starts");
    let status = tests.wait_for_output(TIME_MAX);
    let output = tests.output_tail();
    assert!(
        status.is_some_and(|status| status.success()),
        "the tests of {name} over {PROVIDER}: {status:?}{output}"
    );
    let result = output.lines().rfind(|line| line.contains("test result: ")).unwrap_or_default();
    report(&format!("{name} over {PROVIDER}: {}", result.trim()));
}
