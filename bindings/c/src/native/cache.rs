//! Clients, and the servers that they have.

use std::ffi::{CString, c_char};
use std::ptr::null_mut;

use fabcache_client::{Address, Client};

use super::code::{Code, Fault, answer};
use super::ffi;
use super::options::Options;
use crate::guarded;

/// Many servers as one cache. It may be shared among threads, all of which may call at once.
pub struct Cache {
    client: Client,
    /// The servers, in the order in which they were given.
    addresses: Vec<Address>,
    /// The same for C.
    names: Vec<CString>,
}

impl Cache {
    /// The client library's own.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the servers' names, in the order in which they were given.
    pub(super) fn names(&self) -> &[CString] {
        &self.names
    }

    fn open(addresses: &[&str], options: fabcache_client::Options) -> Result<Cache, Fault> {
        let client = Client::new(addresses, options)?;
        let addresses: Result<Vec<Address>, _> = addresses.iter().map(|address| address.parse()).collect();
        let addresses = addresses?;
        // They came as C's texts, so there is no NUL in them.
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
    answer(|| {
        let cache = ffi::wanted(cache, "cache")?;
        // SAFETY: `cache` is the caller's, as `native` says.
        unsafe { ffi::give(cache, null_mut()) };
        // SAFETY: `addresses` is the caller's, as `native` says.
        let addresses = unsafe { ffi::slice(addresses, count, "addresses") }?;
        let text = |address: &*const c_char| {
            // SAFETY: so is each text among them.
            unsafe { ffi::text(*address, "an address") }
        };
        let addresses: Vec<&str> = addresses.iter().map(text).collect::<Result<_, _>>()?;
        let options = if options.is_null() {
            fabcache_client::Options::default()
        } else {
            // SAFETY: `options` is the caller's, as `native` says.
            unsafe { ffi::shared(options, "options") }?.client_options()
        };
        let opened = Box::into_raw(Box::new(Cache::open(&addresses, options)?));
        // SAFETY: `cache` is the caller's, as `native` says.
        unsafe { ffi::give(cache, opened) };
        Ok(Code::Ok)
    })
}

/// Closes a client; NULL is allowed. No other thread may be in a call with it. Its request objects may still be used:
/// they hold what they need.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_close(cache: *mut Cache) {
    guarded((), || {
        if !cache.is_null() {
            // SAFETY: not NULL, so it came from `Box::into_raw` in `fabcache_open`; by the header the caller gives it
            // up here.
            drop(unsafe { Box::from_raw(cache) });
        }
    });
}

/// How many servers the client has; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_server_count(cache: *const Cache) -> usize {
    // SAFETY: `cache` is the caller's, as `native` says.
    guarded(0, || unsafe { ffi::shared(cache, "cache") }.map_or(0, |cache| cache.names.len()))
}

/// The address of a server, which are numbered from 0 on as they were given. Valid until the client is closed; NULL if there
/// is no such server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_server_address(cache: *const Cache, server: usize) -> *const c_char {
    guarded(std::ptr::null(), || {
        // SAFETY: `cache` is the caller's, as `native` says.
        let cache = unsafe { ffi::shared(cache, "cache") };
        let name = cache.ok().and_then(|cache| cache.names.get(server));
        name.map_or(std::ptr::null(), |name| name.as_ptr())
    })
}

/// The number of the server that has a key is put into *server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_server_of(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    server: *mut usize,
) -> Code {
    answer(|| {
        // SAFETY: `cache` is the caller's, as `native` says.
        let cache = unsafe { ffi::shared(cache, "cache") }?;
        // SAFETY: `key` is the caller's, as `native` says.
        let key = unsafe { ffi::key(key, key_length) }?;
        let server = ffi::wanted(server, "server")?;
        let address = cache.client.address_of(key)?;
        let number = cache.addresses.iter().position(|known| known == address);
        let number = number.ok_or_else(|| Fault::new(Code::Internal, "a server that was not given"))?;
        // SAFETY: `server` is the caller's, as `native` says.
        unsafe { ffi::give(server, number) };
        Ok(Code::Ok)
    })
}
