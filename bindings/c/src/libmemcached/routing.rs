//! Which server a key belongs to.

use std::borrow::Cow;
use std::rc::Rc;

use fabcache_client::distribution::{Hashing, Mapping, Names, Placement, Weights};
use fabcache_client::{Address, Distribution, ServerEndpoint};

use super::constants::*;
use super::handle::State;
use super::hash::of_number;
use super::instance::memcached_instance_st;
use super::types::{flags, memcached_st};
use crate::libmemcached::clock::now;

impl memcached_st {
    /// Returns the server of a key, or of its group key.
    ///
    /// # Errors
    /// No server is left.
    #[inline]
    pub(crate) fn server_of(
        &self,
        inner: &State,
        group: Option<&[u8]>,
        key: &[u8],
    ) -> Result<Rc<memcached_instance_st>, memcached_return_t> {
        let instances = inner.instances.borrow();
        if let [only] = &instances[..] {
            return Ok(Rc::clone(only));
        }
        drop(instances);
        let at = self.position_of(group.unwrap_or(key)).ok_or(MEMCACHED_NO_SERVERS)?;
        inner.instances.borrow().get(at).cloned().ok_or(MEMCACHED_NO_SERVERS)
    }

    /// The position of a key's server.
    pub(crate) fn position_of(&self, key: &[u8]) -> Option<usize> {
        let inner = self.inner()?;
        match inner.instances.borrow().len() {
            0 => return None,
            1 => return Some(0),
            _ => {}
        }
        self.redistribute_if_due();
        let key = self.hashed(inner, key);
        if inner.mapping.borrow().is_none() {
            let mapping = self.mapping(inner);
            *inner.mapping.borrow_mut() = Some(mapping);
        }
        // Not by the mapping's own: it may have been changed since the servers got their places.
        let hash = self.hashkit.digest(&key);
        inner.mapping.borrow().as_ref()?.server_at(hash)
    }

    /// The servers that have copies of a key: those behind its own.
    pub(crate) fn replicas(
        &self,
        inner: &State,
        group: Option<&[u8]>,
        key: &[u8],
    ) -> Vec<Rc<memcached_instance_st>> {
        let Some(at) = self.position_of(group.unwrap_or(key)) else { return Vec::new() };
        let servers = inner.instances.borrow();
        let others = servers.len().saturating_sub(1).min(self.number_of_replicas.get() as usize);
        (1..=others).map(|behind| Rc::clone(&servers[(at + behind) % servers.len()])).collect()
    }

    /// Returns the part of a key that is hashed.
    fn hashed<'k>(&self, inner: &State, key: &'k [u8]) -> Cow<'k, [u8]> {
        if !self.has(flags::HASH_WITH_NAMESPACE) {
            return Cow::Borrowed(key);
        }
        let namespace = inner.namespace.borrow();
        Cow::Owned([namespace.to_bytes(), key].concat())
    }

    /// Recomputes the mapping of keys.
    pub(crate) fn redistribute(&self) {
        let Some(inner) = self.inner() else { return };
        if self.has(flags::USE_SORT_HOSTS) {
            let mut instances = inner.instances.borrow_mut();
            instances.sort_by(|a, b| (a.name(), a.port.get()).cmp(&(b.name(), b.port.get())));
        }
        *inner.mapping.borrow_mut() = None;
        inner.placed_by.set(self.hashkit.base_hash.number());
        self.ketama.next_distribution_rebuild.set(0);
        if self.has(flags::AUTO_EJECT_HOSTS) {
            let now = now();
            let instances = inner.instances.borrow();
            let retries = instances.iter().map(|server| server.next_retry.get()).filter(|retry| *retry > now);
            self.ketama.next_distribution_rebuild.set(retries.min().unwrap_or(0));
        }
    }

    /// As above, if an ejected server is to be retried.
    #[inline]
    pub(crate) fn redistribute_if_due(&self) {
        let due = self.ketama.next_distribution_rebuild.get();
        if due > 0 && self.has(flags::AUTO_EJECT_HOSTS) && now() > due {
            self.redistribute();
        }
    }

    fn mapping(&self, inner: &State) -> Mapping {
        // A hash of the caller's, called below, may call us again.
        let instances = inner.instances.borrow().clone();
        // Only names and weights count for it, and libmemcached calls a socket by its path and the port it was given.
        let place = |server: &memcached_instance_st| ServerEndpoint::Tcp {
            host: server.host().into_owned(),
            port: server.port.get(),
        };
        let addresses: Vec<Address> =
            instances.iter().map(|server| Address { place: place(server), weight: server.weight }).collect();
        let weights = if self.ketama.weighted.get() == 0 { Weights::Never } else { Weights::Always };
        let ring = |names, weights| Placement::Ring { names, weights };
        let placement = match self.distribution.get() {
            MEMCACHED_DISTRIBUTION_CONSISTENT | MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA => {
                ring(Names::Ketama, weights)
            }
            MEMCACHED_DISTRIBUTION_CONSISTENT_WEIGHTED => ring(Names::Ketama, Weights::Always),
            MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA_SPY => ring(Names::Spy, weights),
            MEMCACHED_DISTRIBUTION_RANDOM => Placement::Random,
            MEMCACHED_DISTRIBUTION_VIRTUAL_BUCKET => Placement::Buckets(inner.buckets.borrow().clone()),
            _ => Placement::Modula,
        };
        let is_ring = matches!(placement, Placement::Ring { .. });
        let hash = of_number(inner.placed_by.get());
        let distribution = Distribution::Custom(Hashing { placement, ..Hashing::default() });
        // A hash of the caller's also gives places.
        let point = |name: &[u8]| hash.map_or_else(|| self.hashkit.digest(name), |hash| hash.of(name));
        let ejects = is_ring && self.has(flags::AUTO_EJECT_HOSTS);
        let now = now();
        let is_in = |at: usize| !ejects || instances[at].next_retry.get() <= now;
        Mapping::with_points(&distribution, &addresses, is_in, point)
    }
}
