//! Load generation and measurement against any memcached-protocol server, and of the store by itself.
//!
//! - `workload.rs`: what is asked of a server.
//! - `client.rs`: one connection that asks it and checks the answers.
//! - `server.rs`: a server process that is measured: started, pinned, its CPU time read, stopped.
//! - `compare.rs`: several servers side by side, in interleaved rounds.
//! - `memory/`: items held in the memory that a process takes.
//! - `report.rs`: figures as a table and as JSON; `plot.rs`: as a picture.
//! - `trace/`: miss ratios of the store and of reference policies.
//! - `store/`: the store by itself.
//! - `shm/`: the client library through shared memory.
//! - `random.rs`: random sequences.

pub mod client;
pub mod compare;
pub mod memory;
pub mod plot;
pub mod random;
pub mod report;
pub mod server;
pub mod shm;
pub mod store;
pub mod trace;
pub mod workload;
