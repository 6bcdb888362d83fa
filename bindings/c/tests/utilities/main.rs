//! Calls beside those for keys and values, to servers in this process: statistics, libmemcachedutil's, pools, names and
//! passwords, and RDMA-Memcached's requests.

mod common;
mod pool;
mod requests;
mod sasl;
mod statistics;
