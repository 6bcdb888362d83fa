//! Servers on the fabric that are broken, or wish nobody well: what a client makes of them. It never crashes, never waits longer
//! than it may, and never takes for a value what is none. `FABCACHE_PROVIDER` names libfabric's provider.

#[path = "../common/mod.rs"]
mod common;
mod lines;
mod messages;
mod regions;
mod scripted;
