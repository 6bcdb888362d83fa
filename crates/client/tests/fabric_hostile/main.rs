//! Broken and malicious servers on the fabric. A client never crashes, never waits longer than its limits, and never
//! returns a wrong value. `FABCACHE_PROVIDER` names libfabric's provider.

#[path = "../common/mod.rs"]
mod common;
mod lines;
mod messages;
mod regions;
mod scripted;
