//! Shared memory among clients that are killed, that misbehave, or that are not authorized.

#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod killed;
mod other_users;
mod restarts;
mod rules;
mod workers;

/// The server of the tests, in a process of its own.
#[test]
#[ignore = "it is a part of others"]
fn serve() {
    common::process::serve();
}
