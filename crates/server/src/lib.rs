//! fabcached: the server.
//!
//! - `options.rs`, `extended.rs`, `addresses.rs`, `settings/`: what it is told to do.
//! - `server.rs`: starting and stopping; `shared.rs`: what its workers share.
//! - `housekeeping.rs`: what the clock brings about, and crawls.
//! - `worker/`: the event loop and its connections.
//! - `commands/`: what each command does.
//! - `watch.rs`, `prefixes.rs`, `sizes.rs`, `counters.rs`, `connections.rs`: what it can tell.
//! - `credentials.rs`, `certificates.rs`, `networks.rs`: who may use it; `shm.rs`, `fabric.rs`: who may read the memory.
//! - `process/`: the process around it.

pub mod addresses;
pub mod bounds;
pub mod certificates;
pub mod commands;
pub mod connections;
pub mod counters;
pub mod credentials;
pub mod extended_options;
pub mod fabric;
pub mod housekeeping;
pub mod networks;
pub mod options;
mod output;
pub mod prefixes;
pub mod process;
pub mod server;
pub mod settings;
pub mod shared;
pub mod shm;
pub mod sizes;
pub mod watch;
pub mod worker;

pub use server::Server;
pub use settings::Settings;
