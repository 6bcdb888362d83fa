//! Load generation and measurement against any memcached-protocol server, and of the store by itself.
//!
//! - `target.rs`: a cache that is measured, and the way to it; `items.rs`: what is stored there; `fill.rs` stores it;
//!   `limits.rs`: what its servers take.
//! - `experiment.rs`: how anything is measured, case by case in interleaved rounds; `results.rs`, `histogram.rs`: what comes
//!   of it, and how it is kept.
//! - `dummy/`: a server that does nothing but answer, broken on request; `ceiling.rs`: what clients can do with it at most.
//! - `compare/`: servers side by side, started and stopped.
//!   of it, and how it is kept; `html/`: as a page.
//! - `latency/`: how long a call takes.
//! - `dissect/`: where that time goes.
//! - `nonblocking/`: windows of calls that do not wait; `blocks/`: large values in blocks.
//! - `hybrid/`: what gets take of more than servers have memory for.
//! - `engine/`: many clients at once; `throughput/`: what they come to; `mixture/`: with values of very different sizes;
//!   `multiget/`: with many keys in a request.
//! - `process.rs`: CPU time and memory of a process.
//! - `server.rs`: a server process that is measured: started, pinned, its CPU time read, stopped.
//! - `memory/`: items held in the memory that a process takes.
//! - `report.rs`: figures as a table and as JSON; `plot.rs`: as a picture.
//! - `trace/`: traces, recorded and synthetic, and their replay on servers; `policies/`: miss ratios of the store and of
//!   reference policies on them.
//! - `store/`: the store by itself.
//! - `shm/`: the client library through shared memory; `fabric/`: libfabric, and the client library over it.
//! - `random.rs`: random sequences; `zipf.rs`: ranks that follow Zipf's law; `statistics.rs`: numbers that stand for many.
//! - `machine.rs`: what the machine is.

pub mod blocks;
pub mod compare;
pub mod dissect;
pub mod dummy;
pub mod engine;
pub mod experiment;
pub mod fabric;
pub mod fill;
pub mod histogram;
pub mod html;
pub mod hybrid;
pub mod items;
pub mod latency;
pub mod limits;
pub mod machine;
pub mod memory;
pub mod mixture;
pub mod multiget;
pub mod nonblocking;
pub mod plot;
pub mod policies;
pub mod process;
pub mod random;
pub mod report;
pub mod results;
pub mod server;
pub mod shm;
pub mod store;
pub mod target;
pub mod throughput;
pub mod trace;
pub mod zipf;
