//! A handle: its flags, and what of it is ours.

use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::rc::Rc;
use std::sync::Arc;

use fabcache_client::Ttl;
use fabcache_client::distribution::Mapping;

use super::constants::hashkit_hash_algorithm_t;
use super::instance::memcached_instance_st;
use super::report::Report;
use super::sasl_data::SaslData;
use super::types::{flags, memcached_st};

/// The private part of a handle: made by `memcached_create`, freed by `memcached_free`.
///
/// Nothing in it stays borrowed while a callback runs, because the callback may call this library again.
#[derive(Debug, Default)]
pub struct State {
    /// The servers by position. Callers have pointers to them, which hold until the servers are reset.
    pub instances: RefCell<Vec<Rc<memcached_instance_st>>>,
    /// How keys are mapped to them; none before it is needed.
    pub mapping: RefCell<Option<Mapping>>,
    /// The hash of the servers' points on a ring: changing only the keys' hash moves none.
    pub placed_by: Cell<hashkit_hash_algorithm_t>,
    /// `memcached_bucket_set`: each bucket's server.
    pub buckets: RefCell<Arc<[u32]>>,
    /// What went wrong in the current query, the newest last.
    pub errors: RefCell<Vec<Report>>,
    /// The prefix of each key; empty for none.
    pub namespace: RefCell<CString>,
    /// The server that was lost last.
    pub last_disconnected: RefCell<Option<Rc<memcached_instance_st>>>,
    /// Name and password, of `memcached_set_sasl_auth_data`.
    pub sasl: RefCell<Option<Rc<SaslData>>>,
    /// The file that it was configured by.
    pub file: RefCell<Option<Vec<u8>>>,
    /// Memory for a value on its way to the caller.
    pub value: RefCell<Vec<u8>>,
    /// Results of `memcached_mget` may still be fetched.
    pub is_asking: Cell<bool>,
    /// `memcached_free` is at work.
    pub is_going: Cell<bool>,
    /// The key of `memcached_set_encoding_key`.
    pub encoding_key: RefCell<Option<Vec<u8>>>,
}

impl memcached_st {
    /// Returns the private part; `None` before `memcached_create` and after `memcached_free`.
    #[inline]
    pub(crate) fn inner(&self) -> Option<&State> {
        // SAFETY: NULL, or the state from `memcached_create`, which only `memcached_free` takes away. By the manual a
        // program does not use a freed handle, nor one handle from two threads at a time.
        unsafe { self.servers.get().cast::<State>().as_ref() }
    }

    #[inline]
    pub(crate) fn has(&self, flag: u16) -> bool {
        u16::from_le_bytes(self.flags.get()) & flag != 0
    }

    pub(crate) fn set_flag(&self, flag: u16, to: bool) {
        let others = u16::from_le_bytes(self.flags.get()) & !flag;
        self.flags.set((others | if to { flag } else { 0 }).to_le_bytes());
    }

    /// Calls are answered as the binary protocol's.
    pub(crate) fn is_binary(&self) -> bool {
        self.has(flags::BINARY_PROTOCOL)
    }

    /// Servers have copies of each other's keys: by the binary protocol only, as in libmemcached.
    pub(crate) fn is_replicated(&self) -> bool {
        self.is_binary() && self.number_of_replicas.get() > 0
    }

    /// Returns whether lookups return CAS values.
    #[inline]
    pub(crate) fn tells_cas(&self) -> bool {
        self.has(flags::SUPPORT_CAS | flags::BINARY_PROTOCOL)
    }

    /// Returns an expiration in the terms of the protocol: packets have 32 unsigned bits, where a negative time never
    /// expires.
    pub(crate) fn ttl(&self, expiration: i64) -> Ttl {
        match expiration as u32 {
            _ if !self.is_binary() => Ttl::exact(expiration),
            0x8000_0000.. => Ttl::NEVER,
            packed => Ttl::exact(packed.into()),
        }
    }

    /// Answers are waited for.
    pub(crate) fn is_replying(&self) -> bool {
        self.has(flags::REPLY)
    }
}
