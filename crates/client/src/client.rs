//! The blocking calls.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use fabcache_distribution::{Address, Mapping, ServerEndpoint};
use fabcache_fabric::RegistrationCache;

use crate::answer::{Answer, Flags};
use crate::arithmetic::count;
use crate::bounds::{REGISTERED_BUFFERS_MAX, REGISTERED_BYTES_MAX};
use crate::command::{Action, Command, Initial, Mode};
use crate::error::{Error, Failure};
use crate::item::FastGet;
use crate::item::Found;
use crate::item::Item;
use crate::item::MultigetOutcome;
use crate::item::Stored;
use crate::item::Transport;
use crate::item::Ttl;
use crate::item::checked;
use crate::item::stored;
use crate::item::storing;
use crate::options::{Options, SharedMemory};
use crate::read_result::ReadResult;
use crate::server::Server;
use crate::{admin, multiget};

/// Many servers as one cache. Cheap to clone; clones share connections.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    servers: Vec<Arc<Server>>,
    addresses: Vec<Address>,
    options: Options,
    /// Maps keys while no server is ejected.
    mapping: Arc<Mapping>,
    /// The ejected servers, and how keys map to the rest.
    ejected: Mutex<(Vec<usize>, Arc<Mapping>)>,
    /// Callers' memory that is registered with fabric providers.
    registrations: RegistrationCache,
}

impl Client {
    /// Creates a client of the servers at these addresses ([`Address`]). It connects when a call needs a server.
    ///
    /// # Errors
    /// An address is invalid, or cannot share memory although [`SharedMemory::Required`] asks for it; there are no
    /// addresses; or a bucket names a server that does not exist.
    pub fn new<A: AsRef<str>>(
        addresses: impl IntoIterator<Item = A>,
        options: Options,
    ) -> Result<Client, Error> {
        let parsed: Result<Vec<Address>, Error> =
            addresses.into_iter().map(|address| Ok(address.as_ref().parse()?)).collect();
        let addresses = parsed?;
        if addresses.is_empty() {
            return Err(Error::NoServers);
        }
        let is_local = |address: &&Address| matches!(address.place, ServerEndpoint::Unix(_));
        if options.shared_memory == SharedMemory::Required
            && let Some(remote) = addresses.iter().find(|address| !is_local(address))
        {
            let why = "shared memory is required, and only a Unix socket leads to it: give unix:///PATH";
            return Err(Error::Address { address: remote.to_string(), why });
        }
        if let Some(server) = options.distribution.unknown_server(addresses.len()) {
            return Err(Error::Bucket { server, servers: addresses.len() });
        }
        let servers =
            addresses.iter().map(|address| Arc::new(Server::new(address.clone(), &options))).collect();
        let mapping = Arc::new(Mapping::new(&options.distribution, &addresses, |_| true));
        Ok(Client {
            shared: Arc::new(Shared {
                servers,
                addresses,
                options,
                ejected: Mutex::new((Vec::new(), Arc::clone(&mapping))),
                registrations: RegistrationCache::new(REGISTERED_BUFFERS_MAX, REGISTERED_BYTES_MAX),
                mapping,
            }),
        })
    }

    // ---- reading ----

    /// Returns the item of a key.
    ///
    /// # Errors
    /// The key is invalid, or the server fails.
    pub fn get(&self, key: &[u8]) -> Result<Option<Item>, Error> {
        self.read(key, None)
    }

    /// Returns the item of a key if that takes no waiting: the server shares its memory and is connected.
    ///
    /// A value replaces the contents of `value`. Use this while holding a lock that other threads wait for, such as
    /// an interpreter's.
    ///
    /// # Errors
    /// The key is invalid.
    pub fn try_fast(&self, key: &[u8], value: &mut Vec<u8>) -> Result<FastGet, Error> {
        Ok(match self.server_of(checked(key)?)?.try_fast(key, value) {
            ReadResult::Hit { flags, cas } => FastGet::Found { flags, cas },
            ReadResult::Miss => FastGet::NotFound,
            ReadResult::Fallback(_) | ReadResult::Gone => FastGet::Unknown,
        })
    }

    /// As [`Client::get`], and sets the item's time to live to `ttl`.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub fn get_and_touch(&self, key: &[u8], ttl: Ttl) -> Result<Option<Item>, Error> {
        self.read(key, Some(ttl))
    }

    /// As [`Client::get`], or with a time to live as [`Client::get_and_touch`], into memory that is reused: the value
    /// found replaces the contents of `value`.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub fn get_into<'a>(
        &self,
        key: &[u8],
        ttl: Option<Ttl>,
        value: &'a mut Vec<u8>,
    ) -> Result<Option<Found<'a>>, Error> {
        let server = self.server_of(checked(key)?)?;
        let mut sample = None;
        if ttl.is_none() {
            sample = match server.read(key, value) {
                ReadResult::Hit { flags, cas } => return Ok(Some(Found { value, flags, cas })),
                ReadResult::Miss => return Ok(None),
                ReadResult::Fallback(fallback) => fallback.sample,
                ReadResult::Gone => None,
            };
        }
        let requested = server.get(key, ttl, sample, value)?;
        Ok(requested.map(|Flags { flags, cas, .. }| Found { value, flags, cas }))
    }

    fn read(&self, key: &[u8], ttl: Option<Ttl>) -> Result<Option<Item>, Error> {
        let mut value = Vec::new();
        let found = self.get_into(key, ttl, &mut value)?.map(|found| (found.flags, found.cas));
        Ok(found.map(|(flags, cas)| Item { value, flags, cas }))
    }

    /// Returns whether a key is stored. The meta protocol transfers no value for it.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub fn contains(&self, key: &[u8]) -> Result<bool, Error> {
        let server = self.server_of(checked(key)?)?;
        match server.read(key, &mut Vec::new()) {
            ReadResult::Hit { .. } => return Ok(true),
            ReadResult::Miss => return Ok(false),
            ReadResult::Fallback(_) | ReadResult::Gone => {}
        }
        let command = Command { key, action: Action::Look };
        server.call(|connection| match connection.request(&command, b"", &mut Vec::new())? {
            Answer::Done(_) | Answer::Value(_) => Ok(true),
            Answer::Miss => Ok(false),
            other => Err(Failure::unexpected(&other)),
        })
    }

    /// Returns the items of many keys. All servers are asked concurrently.
    ///
    /// # Errors
    /// A key is invalid. Servers that fail are reported with the answers of the others.
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<MultigetOutcome, Error> {
        let mut items: Vec<Option<Item>> = keys.iter().map(|_| None).collect();
        let failed = self.get_each(keys, |number, Found { value, flags, cas }| {
            items[number] = Some(Item { value: std::mem::take(value), flags, cas });
        })?;
        Ok(MultigetOutcome { items, failed })
    }

    /// Calls `take` with the number of its key for each item found, in any order, without allocating memory for each
    /// value. Returns the servers that failed.
    ///
    /// # Errors
    /// A key is invalid.
    pub fn get_each<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut take: impl FnMut(usize, Found<'_>),
    ) -> Result<Vec<Error>, Error> {
        let mut failed = Vec::new();
        let mut wanted: Vec<Vec<usize>> = vec![Vec::new(); self.shared.servers.len()];
        let mapping = self.mapping();
        for (i, key) in keys.iter().enumerate() {
            let server = mapping.server_of(checked(key.as_ref())?).ok_or(Error::AllDown)?;
            wanted[server].push(i);
        }
        let mut sample = Vec::new();
        for (server, wanted) in self.shared.servers.iter().zip(&mut wanted) {
            let mut unread = Vec::new();
            sample.push(server.read_many(
                wanted.len(),
                |at| keys[wanted[at]].as_ref(),
                |at, read, value| match read {
                    ReadResult::Hit { flags, cas } => take(wanted[at], Found { value, flags, cas }),
                    ReadResult::Miss => {}
                    ReadResult::Fallback(_) | ReadResult::Gone => unread.push(wanted[at]),
                },
            ));
            *wanted = unread;
        }
        let mut requested = Vec::new();
        for ((server, wanted), sample) in self.shared.servers.iter().zip(&wanted).zip(sample) {
            if wanted.is_empty() {
                continue;
            }
            let sent = server.take().and_then(|mut connection| {
                let sent = multiget::send(&mut connection, keys, wanted);
                match sent {
                    Ok(()) => Ok(connection),
                    Err(_) => {
                        server.give_back(connection, &sent);
                        sent.map(|()| unreachable!("it failed"))
                    }
                }
            });
            match sent {
                Ok(connection) => requested.push((server, connection, wanted, sample)),
                Err(failure) => failed.push(server.error(failure)),
            }
        }
        for (server, mut connection, wanted, sample) in requested {
            let mut value_bytes = None;
            let done = multiget::read(&mut connection, keys, wanted, |number, found| {
                value_bytes = Some(found.value.len());
                take(number, found);
            });
            if let (Some(sample), Ok(())) = (sample, &done) {
                server.note_time(sample, Instant::now(), value_bytes);
            }
            server.give_back(connection, &done);
            failed.extend(done.err().map(|failure| server.error(failure)));
        }
        Ok(failed)
    }

    // ---- storing ----

    /// Stores a value.
    ///
    /// # Errors
    /// The key or the value is invalid, or the server fails or refuses: its memory is full, or the value is too large
    /// for it.
    pub fn set(&self, key: &[u8], value: &[u8], ttl: Ttl) -> Result<(), Error> {
        self.set_with_flags(key, value, ttl, 0)
    }

    /// Like [`Client::set`], with flags for the client's own use.
    ///
    /// # Errors
    /// As for [`Client::set`].
    pub fn set_with_flags(&self, key: &[u8], value: &[u8], ttl: Ttl, flags: u32) -> Result<(), Error> {
        self.store(key, value, Mode::Set, ttl, flags).map(|_| ())
    }

    /// Stores a value if the key is absent.
    ///
    /// # Errors
    /// As for [`Client::set`].
    pub fn add(&self, key: &[u8], value: &[u8], ttl: Ttl) -> Result<Stored, Error> {
        self.store(key, value, Mode::Add, ttl, 0)
    }

    /// Stores a value if the key exists.
    ///
    /// # Errors
    /// As for [`Client::set`].
    pub fn replace(&self, key: &[u8], value: &[u8], ttl: Ttl) -> Result<Stored, Error> {
        self.store(key, value, Mode::Replace, ttl, 0)
    }

    /// Appends bytes to an existing value.
    ///
    /// # Errors
    /// As for [`Client::set`].
    pub fn append(&self, key: &[u8], value: &[u8]) -> Result<Stored, Error> {
        self.store(key, value, Mode::Append, Ttl::NEVER, 0)
    }

    /// Prepends bytes to an existing value.
    ///
    /// # Errors
    /// As for [`Client::set`].
    pub fn prepend(&self, key: &[u8], value: &[u8]) -> Result<Stored, Error> {
        self.store(key, value, Mode::Prepend, Ttl::NEVER, 0)
    }

    /// Stores a value if the item is still the one with this [`Item::cas`].
    ///
    /// # Errors
    /// As for [`Client::set`].
    pub fn cas(&self, key: &[u8], value: &[u8], ttl: Ttl, cas: u64) -> Result<Stored, Error> {
        self.store(key, value, Mode::Compare(cas), ttl, 0)
    }

    /// Stores a value in any mode. [`Mode::Append`] and [`Mode::Prepend`] keep the time to live and the flags.
    ///
    /// # Errors
    /// As for [`Client::set`].
    pub fn store(&self, key: &[u8], value: &[u8], mode: Mode, ttl: Ttl, flags: u32) -> Result<Stored, Error> {
        let server = self.server_of(checked(key)?)?;
        let command = Command { key, action: storing(mode, value.len(), ttl, flags)? };
        server.call(|connection| stored(connection.request(&command, value, &mut Vec::new())?))
    }

    // ---- changing ----

    /// Adds to a number and returns the new one, or None if the key is not stored.
    ///
    /// # Errors
    /// The key is invalid, or the server fails or refuses: the value is not a number.
    pub fn incr(&self, key: &[u8], delta: u64) -> Result<Option<u64>, Error> {
        self.arithmetic(key, false, delta)
    }

    /// Adds to a number, or stores an initial one. Returns the stored number.
    ///
    /// # Errors
    /// As for [`Client::incr`].
    pub fn incr_or_set(&self, key: &[u8], delta: u64, initial: u64, ttl: Ttl) -> Result<u64, Error> {
        self.arithmetic_or_set(key, false, delta, initial, ttl)
    }

    /// Subtracts from a number, which does not go below 0.
    ///
    /// # Errors
    /// As for [`Client::incr`].
    pub fn decr(&self, key: &[u8], delta: u64) -> Result<Option<u64>, Error> {
        self.arithmetic(key, true, delta)
    }

    /// Subtracts from a number, or stores an initial one. Returns the stored number.
    ///
    /// # Errors
    /// As for [`Client::incr`].
    pub fn decr_or_set(&self, key: &[u8], delta: u64, initial: u64, ttl: Ttl) -> Result<u64, Error> {
        self.arithmetic_or_set(key, true, delta, initial, ttl)
    }

    fn arithmetic_or_set(
        &self,
        key: &[u8],
        decrement: bool,
        delta: u64,
        initial: u64,
        ttl: Ttl,
    ) -> Result<u64, Error> {
        let initial = Initial { number: initial, exptime: ttl.exptime() };
        let server = self.server_of(checked(key)?)?;
        server.call(|connection| {
            let number = count(connection, key, decrement, delta, Some(initial))?;
            number.ok_or_else(|| Failure::protocol(b"no number, and none stored"))
        })
    }

    fn arithmetic(&self, key: &[u8], decrement: bool, delta: u64) -> Result<Option<u64>, Error> {
        let server = self.server_of(checked(key)?)?;
        server.call(|connection| count(connection, key, decrement, delta, None))
    }

    /// Changes the lifetime of an item to `ttl`. Returns whether the key is stored.
    ///
    /// # Errors
    /// The key is invalid, or the server fails.
    pub fn touch(&self, key: &[u8], ttl: Ttl) -> Result<bool, Error> {
        let command = Command { key: checked(key)?, action: Action::Touch(ttl.exptime()) };
        self.server_of(key)?.call(|connection| match connection.request(&command, b"", &mut Vec::new())? {
            Answer::Done(_) => Ok(true),
            Answer::Miss => Ok(false),
            other => Err(Failure::unexpected(&other)),
        })
    }

    /// Deletes a key. Returns whether it was stored.
    ///
    /// # Errors
    /// The key is invalid, or the server fails.
    pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        let command = Command { key: checked(key)?, action: Action::Delete };
        self.server_of(key)?.call(|connection| match connection.request(&command, b"", &mut Vec::new())? {
            Answer::Done(_) => Ok(true),
            Answer::NotFound => Ok(false),
            other => Err(Failure::unexpected(&other)),
        })
    }

    // ---- all servers ----

    /// Invalidates all items of all servers, after `delay` seconds.
    ///
    /// # Errors
    /// The first server that fails or refuses; the others are asked nevertheless.
    pub fn flush(&self, delay: u32) -> Result<(), Error> {
        let flush = |server: &Arc<Server>| server.call(|connection| admin::flush(connection, delay));
        let done: Vec<_> = self.shared.servers.iter().map(flush).collect();
        done.into_iter().collect()
    }

    /// Sets the log verbosity of all servers, in their order; 0 is least.
    ///
    /// # Errors
    /// For each server: it fails or refuses.
    pub fn verbosity(&self, level: u32) -> Vec<Result<(), Error>> {
        let set = |server: &Arc<Server>| server.call(|connection| admin::verbosity(connection, level));
        self.shared.servers.iter().map(set).collect()
    }

    /// Returns the versions of all servers, in their order.
    ///
    /// # Errors
    /// For each server: it fails.
    pub fn versions(&self) -> Vec<Result<String, Error>> {
        let version = |server: &Arc<Server>| server.call(admin::version);
        self.shared.servers.iter().map(version).collect()
    }

    /// Returns the statistics of all servers, in their order: the general ones, or those of a topic such as `items`.
    ///
    /// # Errors
    /// For each server: it fails or refuses; for all: the topic is invalid.
    pub fn stats(&self, topic: &str) -> Vec<Result<Vec<(String, String)>, Error>> {
        let is_topic = topic.bytes().all(|byte| (b' '..0x7f).contains(&byte));
        let stats = |server: &Arc<Server>| {
            if !is_topic {
                return Err(Error::Topic(topic.into()));
            }
            server.call(|connection| admin::stats(connection, topic))
        };
        self.shared.servers.iter().map(stats).collect()
    }

    /// Returns the keys of all servers, in their order: those of one of memcached's size classes, as far as `stats
    /// cachedump` lists them.
    ///
    /// # Errors
    /// For each server: it fails or refuses, as over the binary protocol.
    pub fn keys(&self, class: u32) -> Vec<Result<Vec<Vec<u8>>, Error>> {
        let keys = |server: &Arc<Server>| server.call(|connection| admin::keys(connection, class));
        self.shared.servers.iter().map(keys).collect()
    }

    /// Returns the transport of each server's last connection, in their order; `None` if it was not connected yet.
    pub fn transports(&self) -> Vec<Option<Transport>> {
        self.shared.servers.iter().map(|server| server.transport()).collect()
    }

    /// Returns the address of the server that a key belongs to.
    ///
    /// # Errors
    /// The key is invalid, or all servers are excluded.
    pub fn address_of(&self, key: &[u8]) -> Result<&Address, Error> {
        Ok(&self.server_of(checked(key)?)?.address)
    }

    /// Returns the registered memory of callers.
    pub(crate) fn registrations(&self) -> &RegistrationCache {
        &self.shared.registrations
    }

    /// Returns the server that a key maps to.
    pub(crate) fn server_of(&self, key: &[u8]) -> Result<&Arc<Server>, Error> {
        let server = self.mapping().server_of(key).ok_or(Error::AllDown)?;
        Ok(&self.shared.servers[server])
    }

    fn mapping(&self) -> Cow<'_, Arc<Mapping>> {
        let shared = &*self.shared;
        if !shared.options.auto_eject {
            return Cow::Borrowed(&shared.mapping);
        }
        let mut ejected = shared.ejected.lock().expect("no thread panics while it maps keys");
        let down: Vec<usize> = (0..shared.servers.len()).filter(|i| shared.servers[*i].is_down()).collect();
        if down != ejected.0 {
            let is_up = |server| !down.contains(&server);
            let among_others = Mapping::new(&shared.options.distribution, &shared.addresses, is_up);
            *ejected = (down, Arc::new(among_others));
        }
        Cow::Owned(Arc::clone(&ejected.1))
    }
}

#[cfg(test)]
mod tests {
    use fabcache_distribution::{Distribution, Hashing, Placement};

    use super::*;

    #[test]
    fn bucket_without_a_server_is_rejected() {
        let with = |buckets: &[u32]| {
            let placement = Placement::Buckets(buckets.into());
            let distribution = Distribution::Custom(Hashing { placement, ..Hashing::default() });
            Client::new(["a", "b"], Options { distribution, ..Options::default() })
        };
        assert!(with(&[0, 1, 1, 0]).is_ok());
        assert!(matches!(with(&[0, 1, 2, 3]), Err(Error::Bucket { server: 2, servers: 2 })));
    }
}
