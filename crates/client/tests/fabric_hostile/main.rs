//! Broken and malicious servers on the fabric. A client never crashes, never waits longer than its limits, and never
//! returns a wrong value. `FABCACHE_PROVIDER` names libfabric's provider.

#[path = "../common/mod.rs"]
mod common;
mod lines;
mod messages;
mod regions;
mod scripted;

#[test]
fn fabric_tests_run_where_libfabric_is_installed() {
    fabcache_testbed::fabric::run_ignored_tests(fabcache_fabric::Library::open().map(|_| ()));
}
