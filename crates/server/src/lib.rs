//! fabcached: the server.
//!
//! - `options.rs`, `extended_options.rs`, `addresses.rs`, `settings/`: configuration.
//! - `server.rs`: starting and stopping; `threads.rs`: its threads; `shared.rs`: state that the workers share.
//! - `housekeeping.rs`: periodic maintenance, and crawls; `restart.rs`: what a start over a memory file leaves to do.
//! - `populating.rs`: maps the pages of a region that was taken over.
//! - `worker/`: the event loop and its connections.
//! - `commands/`: what each command does; `tickets.rs`: answers that are given later, as those from flash.
//! - `watch.rs`, `prefixes.rs`, `counters.rs`, `connections.rs`: statistics and logs for clients.
//! - `credentials.rs`, `certificates.rs`, `networks.rs`: access control; `shm.rs`, `fabric/`: access to the memory.
//! - `flash/`: the devices of the flash tier, and the I/O on them.
//! - `process/`: the process around the server.

pub mod addresses;
pub mod bounds;
pub mod certificates;
pub mod commands;
pub mod connections;
pub mod counters;
pub mod credentials;
pub mod extended_options;
pub mod fabric;
pub mod flash;
pub mod housekeeping;
pub mod networks;
pub mod openshmem;
pub mod options;
mod output;
mod populating;
pub mod prefixes;
pub mod process;
mod restart;
pub mod server;
pub mod settings;
pub mod shared;
pub mod shm;
mod threads;
pub mod tickets;
pub mod watch;
pub mod worker;

pub use server::Server;
pub use settings::Settings;
