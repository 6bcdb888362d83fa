//! The same bytes to memcached 1.6.18 and to fabcached, and every answer compared byte for byte.
//!
//! ```text
//! generator ── sequence of commands ──> player ── the same bytes ──> theirs, ours
//!   recipes aimed at pairs                │ answers, one a command
//!   of the coverage table                 ├──> comparison: exact, but for CAS values, seconds, the version
//!                                         └──> coverage: (command, answer) pairs, known differences
//! ```
//!
//! All on one thread: a sequence is played step by step, one connection at a time, so that the servers see
//! the same commands in the same order. A run is fixed by its seed. A difference stops its sequence, which is
//! then played again on fresh keys with ever fewer commands, and what is left is printed.
//!
//! Known differences are the exact triples of [`drift`]; there is no other way to explain one away.

#![forbid(unsafe_code)]

pub mod answer;
pub mod compare;
pub mod corpus;
pub mod coverage;
pub mod drift;
pub mod generate;
pub mod link;
pub mod minimise;
pub mod options;
pub mod play;
pub mod repro;
pub mod request;
pub mod run;
pub mod saboteur;
pub mod table;
pub mod unit;

#[cfg(test)]
mod fake;

pub use options::{Options, RunArgs};
pub use play::Servers;
pub use run::{Report, run};
