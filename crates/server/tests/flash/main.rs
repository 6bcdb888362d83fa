//! Items on flash, as clients see them: every command, the order of answers, full memory, clients that leave, and devices that
//! fail.

#[path = "../common/mod.rs"]
mod common;

mod admin;
mod auth;
mod binary;
mod clients;
mod commands;
mod datagrams;
mod devices;
mod dumps;
mod long;
mod matches;
mod model;
mod order;
mod pair;
mod pressure;
mod random;
mod slow;
mod tier;
mod watch;
