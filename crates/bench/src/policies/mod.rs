//! Miss ratios: traces replayed through the real store and through reference policies with the same memory.
//!
//! - `policy/`: the reference policies and their driver.
//! - `replay.rs`: the store.
//! - `client.rs`: a server; `servers.rs`: two servers with the same memory.
//! - `compare.rs`: store and policies side by side; `report.rs`, `summary.rs`, `plot.rs`: the results.
//!
//! Traces are replayed cache-aside: a request is a GET, and a miss is followed by a SET.

pub mod client;
pub mod compare;
pub mod plot;
pub mod policy;
pub mod replay;
pub mod report;
pub mod servers;
pub mod summary;

pub use fabcache_store::EvictionPolicy;
