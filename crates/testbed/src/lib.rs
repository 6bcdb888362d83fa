//! What tests, benchmarks and `cargo xtask` share.
//!
//! | module | what it has |
//! | --- | --- |
//! | [`server`] | starts, watches and stops a server process |
//! | `local` | a server in this process, for tests (feature `in-process`) |
//! | [`cleanup`] | stops server processes and removes folders when a signal ends this process |
//! | [`documents`] | the code blocks of the documents |
//! | [`fabric`] | runs the tests that need libfabric, where it is installed |
//! | [`io_uring`] | whether tests may use io_uring |
//! | [`openshmem`] | jobs of servers that an OpenSHMEM launcher starts |
//! | [`ports`] | free ports |
//! | [`process`] | what `/proc` tells of a process |
//! | [`bytes`] | values whose bytes can be checked |
//! | [`random`] | reproducible random numbers |
//! | [`report`] | lines that the test runner does not capture |
//! | `slow_devices` | flash devices as slow as wanted, by FUSE (feature `slow-devices`) |
//! | [`statistics`] | the median |
//! | [`wait`] | waiting for a condition, with one time limit |

pub mod bytes;
pub mod cleanup;
pub mod documents;
pub mod fabric;
pub mod io_uring;
#[cfg(feature = "in-process")]
pub mod local;
pub mod openshmem;
pub mod ports;
pub mod process;
pub mod random;
pub mod report;
pub mod server;
#[cfg(feature = "slow-devices")]
pub mod slow_devices;
pub mod statistics;
pub mod wait;
