//! Load generation and measurement against any memcached-protocol server, and of the store by itself.
//!
//! **What is measured**
//! - `target.rs`: a cache and the transport to it; `server.rs`: a server process, started, pinned and stopped.
//! - `items.rs`: keys and values; `fill.rs` stores them; `limits.rs`: the longest keys and values that a server accepts.
//! - `dummy/`: a server that only answers, broken on request.
//!
//! **How it is measured and reported**
//! - `experiment/`: interleaved rounds of all cases, and the clients' own limit against the dummy server.
//! - `results.rs`, `histogram.rs`: samples and their file format; `report.rs`: tables and JSON; `plot.rs`, `html/`: pictures.
//! - `process.rs`: CPU time and memory of a process; `machine.rs`: the machine; `random.rs`, `zipf.rs`: distributions.
//!
//! **Benchmarks over the network**
//! - `latency/`: the time of one call; `dissect/`: its parts; `nonblocking/`: windows of non-blocking calls.
//! - `engine/`: many clients at once, used by `throughput/`, `multiget/` and `mixture/` (mixed value sizes).
//! - `blocks/`: large values in blocks; `hybrid/`: working sets larger than memory, and flash tiers; `compare/`: servers side by side.
//! - `restart/`: servers with a memory file, stopped and started again.
//!
//! **Benchmarks of one part**
//! - `store/`: the store by itself; `memory/`: items held for the memory used.
//! - `trace/`: traces and their replay; `policies/`: their miss ratios under the store and reference policies.
//! - `shm/`: the client through shared memory; `fabric/`: libfabric itself, and the client over it;
//!   `openshmem/`: OpenSHMEM itself, and the client of a job's cache.

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
pub mod openshmem;
pub mod plot;
pub mod policies;
pub mod process;
pub mod random;
pub mod report;
pub mod restart;
pub mod results;
pub mod server;
pub mod shm;
pub mod store;
pub mod target;
pub mod throughput;
pub mod trace;
pub mod zipf;
