//! Clients and their servers.

use std::ffi::{CString, c_char};
use std::ptr::null;

use fabcache_client::{Address, Client, Error};

use super::code::{Code, Fault};
use super::ffi::{answer_with, guarded_with, put};
use super::options::Options;

/// A client of many servers that together are one cache. Threads may share it and call it concurrently.
pub struct Cache {
    client: Client,
    /// The servers, in the order in which they were passed.
    addresses: Vec<Address>,
    /// Their texts for C.
    names: Vec<CString>,
}

impl Cache {
    /// Returns the client of the Rust library.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the servers' names, in the order in which they were passed.
    pub(super) fn names(&self) -> &[CString] {
        &self.names
    }

    fn open(addresses: &[&str], options: fabcache_client::Options) -> Result<Cache, Fault> {
        let client = Client::new(addresses, options)?;
        let addresses: Result<Vec<Address>, _> = addresses.iter().map(|address| address.parse()).collect();
        let addresses = addresses.map_err(Error::from)?;
        // They were C texts, so they contain no NUL.
        let names = addresses.iter().map(|address| CString::new(address.to_string()).unwrap_or_default());
        Ok(Cache { client, names: names.collect(), addresses })
    }
}

/// Opens a client of count servers: "tcp://HOST:PORT", "HOST:PORT", "HOST" or "unix:///PATH", each with "?weight=N"
/// behind it to give it more keys than others. Connections are made when they are needed. options may be NULL. *cache
/// receives the client, or NULL after a failure; close it with fabcache_close().
///
/// After fork(), parent and child may both use a client, which makes new connections in the child, if no other thread
/// was in a call with it during the fork. Operations in flight complete in the parent; in the child they have failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_open(
    addresses: *const *const c_char,
    count: usize,
    options: *const Options,
    cache: *mut *mut Cache,
) -> Code {
    answer_with!((
        cache: cleared_out(cache), addresses: addresses(addresses, count), options: optional(options)
    ) => {
        let options = options.map(Options::client_options).unwrap_or_default();
        put(cache, Box::into_raw(Box::new(Cache::open(&addresses, options)?)));
        Ok(Code::Ok)
    })
}

/// Closes a client; NULL is allowed. No other thread may be in a call with it. Its request objects may still be used:
/// they hold what they need.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_close(cache: *mut Cache) {
    guarded_with!((), (cache: given_up(cache)) => drop(cache));
}

/// Returns the number of the client's servers; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_server_count(cache: *const Cache) -> usize {
    guarded_with!(0, (cache: shared(cache)) => cache.names.len())
}

/// Returns the address of a server. Servers are numbered from 0 in the order in which they were passed. The text is valid until
/// the client is closed; NULL if there is no such server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_server_address(cache: *const Cache, server: usize) -> *const c_char {
    guarded_with!(null(), (cache: shared(cache)) => cache.names.get(server).map_or(null(), |name| name.as_ptr()))
}

/// Puts the number of the server that is responsible for a key into *server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_server_of(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    server: *mut usize,
) -> Code {
    answer_with!((cache: shared(cache), key: key(key, key_length), server: required_out(server)) => {
        let address = cache.client.address_of(key)?;
        let number = cache.addresses.iter().position(|known| known == address);
        let number = number.ok_or_else(|| Fault::new(Code::Internal, "the key maps to an unknown server"))?;
        put(server, number);
        Ok(Code::Ok)
    })
}
