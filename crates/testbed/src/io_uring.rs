//! Whether tests may use io_uring, which most containers refuse.

use crate::report::available;

/// Returns whether this process may use io_uring for files; otherwise it reports that tests are not run.
pub fn is_there_for_files() -> bool {
    available("the tests that need io_uring for files", fabcache_uring::probe_files()).is_some()
}

/// Returns whether this process may use io_uring for sockets; otherwise it reports that tests are not run.
pub fn is_there_for_sockets() -> bool {
    available("the tests that need io_uring for sockets", fabcache_uring::probe()).is_some()
}

/// Returns the engines of a server in this process: `epoll`, and `io_uring` if this process may use it.
pub fn engines() -> Vec<&'static str> {
    let io_uring = is_there_for_sockets().then_some("io_uring");
    ["epoll"].into_iter().chain(io_uring).collect()
}
