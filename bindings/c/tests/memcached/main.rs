//! Programs written for libmemcached, as they call the library: over shared memory and over TCP.

mod common;
mod failures;
mod forks;
mod retrieval;
mod servers;
mod settings;
mod storage;
