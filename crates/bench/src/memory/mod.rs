//! Items that each server holds in the memory that its process uses.
//!
//! - `mix.rs`: the sizes of items, and the items.
//! - `fill.rs`: fills servers and counts their items; `client.rs`: a connection to one.
//! - `report.rs`, `plot.rs`: the results.

mod client;
pub mod fill;
pub mod mix;
pub mod plot;
pub mod report;
