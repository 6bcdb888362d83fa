//! Types of callbacks that get a server.

#![allow(missing_docs)] // libmemcached's.

use std::ffi::{c_char, c_void};

use super::constants::memcached_return_t;
use super::instance::memcached_instance_st;
use super::types::memcached_st;

pub type memcached_server_fn = Option<
    unsafe extern "C" fn(
        *const memcached_st,
        *const memcached_instance_st,
        *mut c_void,
    ) -> memcached_return_t,
>;
pub type memcached_stat_fn = Option<
    unsafe extern "C" fn(
        *const memcached_instance_st,
        *const c_char,
        usize,
        *const c_char,
        usize,
        *mut c_void,
    ) -> memcached_return_t,
>;
