//! A server of a handle, and the calls to it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::CString;

use fabcache_client::{Address, Client, Request};

use super::constants::{memcached_connection_t, memcached_server_state_t};
use super::handle::Report;
use super::types::memcached_st;

/// A server of a handle. Programs cannot look into it.
#[derive(Debug)]
pub struct memcached_instance_st {
    pub(crate) root: *const memcached_st,
    /// Host name, or path of a Unix socket.
    pub(crate) name: CString,
    pub(crate) port: u16,
    pub(crate) kind: memcached_connection_t,
    pub(crate) weight: u32,
    pub(crate) address: Address,
    /// Made when it is needed; none again when the handle's settings changed.
    pub(crate) client: RefCell<Option<Client>>,
    /// What is stored without waiting, until it is waited for.
    pub(crate) buffered: RefCell<Vec<Request>>,
    /// What `memcached_mget` asked for and nobody fetched yet.
    pub(crate) asked: RefCell<VecDeque<Request>>,
    pub(crate) state: Cell<memcached_server_state_t>,
    /// One after the other, at most one a query.
    pub(crate) failures: Cell<u32>,
    pub(crate) failure_query: Cell<u64>,
    /// When it is asked again, after a failure: a Unix time.
    pub(crate) next_retry: Cell<i64>,
    /// Major, minor, micro: all 255 while it is not known.
    pub(crate) version: Cell<[u8; 3]>,
    pub(crate) error: RefCell<Option<Report>>,
}
