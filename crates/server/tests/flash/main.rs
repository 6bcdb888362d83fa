//! Items on flash, as clients see them: every command, the order of answers, full memory, clients that leave, and devices that
//! fail.

#[path = "../common/mod.rs"]
mod common;

mod commands;
mod matches;
mod model;
mod order;
mod pair;
mod pressure;
mod tier;
