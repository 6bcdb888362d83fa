//! How many items each server holds in the memory that its process really takes.
//!
//! - `mix.rs`: the sizes of items, and the items.
//! - `fill.rs`: servers filled, and what they then have; `client.rs`: a connection to one.
//! - `report.rs`, `plot.rs`: what came of it.

mod client;
pub mod fill;
pub mod mix;
pub mod plot;
pub mod report;
