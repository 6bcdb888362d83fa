//! Sends the same bytes to memcached 1.6.18 and to fabcached, and compares every answer byte for byte.
//!
//! ```text
//! generator ── sequence of commands ──> player ── the same bytes ──> theirs, ours
//!   recipes aimed at pairs                │ answers, one a command
//!   of the coverage table                 ├──> comparison: exact, but for CAS values, seconds, the version
//!                                         └──> coverage: (command, answer) pairs, known differences
//! ```
//!
//! Everything runs on one thread: a sequence is played step by step, one connection at a time, so that
//! the servers see the same commands in the same order. The seed determines a run. A difference stops
//! its sequence, which is then replayed on fresh keys with fewer and fewer commands; the remaining
//! commands are printed.
//!
//! Known differences are the exact triples of [`drift`]; there is no other way to accept one.

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
