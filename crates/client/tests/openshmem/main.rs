//! Clients of the PEs of an OpenSHMEM job. `FABCACHE_PES` says how many PEs, `UCX_TLS` over which transports of UCX.

mod alike;
mod attached;
#[path = "../common/mod.rs"]
mod common;
mod counters;
mod direct;
mod failures;
mod jobs;
mod one_sided;
mod shards;
mod starts;
mod stops;
#[path = "../common/torture/mod.rs"]
mod torture;
