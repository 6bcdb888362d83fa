//! Calls other than those for keys and values, to servers in this process: statistics, libmemcachedutil, pools, SASL
//! credentials, and RDMA-Memcached's requests.

mod common;
mod pool;
mod requests;
mod sasl;
mod statistics;
