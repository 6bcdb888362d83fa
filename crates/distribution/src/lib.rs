//! Which server a key belongs to: as libmemcached maps them, so that clients of all languages agree.
//!
//! | ours | libmemcached's behaviours |
//! | --- | --- |
//! | [`Distribution::Modula`] | none set |
//! | [`Distribution::Ketama`] | `KETAMA` |
//! | [`Distribution::KetamaWeighted`] | `KETAMA_WEIGHTED` |
//! | [`Distribution::Custom`] | any others of those that follow |
//! | [`Hashing::hash`] | `HASH` |
//! | [`Hashing::sort_hosts`] | `SORT_HOSTS` |
//! | [`Hashing::namespace_bytes`] | `HASH_WITH_PREFIX_KEY` not set, with a namespace |
//! | [`Placement::Modula`] | `DISTRIBUTION` of `MODULA` |
//! | [`Placement::Ring`] with [`Names::Ketama`], [`Weights::Heard`] | `CONSISTENT` or `CONSISTENT_KETAMA` |
//! | [`Placement::Ring`] with [`Names::Ketama`], [`Weights::Always`] | `CONSISTENT_WEIGHTED` |
//! | [`Placement::Ring`] with [`Names::Spy`] | `CONSISTENT_KETAMA_SPY` |
//! | [`Placement::Random`] | `RANDOM` |
//! | [`Placement::Buckets`] | `VIRTUAL_BUCKET`, `memcached_bucket_set` |
//!
//! `KETAMA_HASH` is not in the table: libmemcached stores it, but computes a ring's points with `HASH`, or with MD5
//! if weights apply.
//!
//! tests/libmemcached.rs compares all of them except the random one with libmemcached, key by key.
#![forbid(unsafe_code)]

mod address;
mod hash;
mod ring;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

pub use address::{Address, AddressError, DEFAULT_PORT, ServerEndpoint};
pub use hash::Hash;
pub use ring::Names;
use ring::Ring;

/// How keys are mapped to servers.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Distribution {
    /// The hash modulo the number of servers: adding a server moves nearly all keys.
    #[default]
    Modula,
    /// Consistent hashing: a new server takes over only its share. Weights apply as soon as one differs from 1.
    Ketama,
    /// Consistent hashing with weights, and with MD5 for the keys, as other ketama clients use.
    KetamaWeighted,
    /// Any other distribution of libmemcached.
    Custom(Hashing),
}

/// How keys are mapped to servers, in full.
///
/// ```
/// use fabcache_distribution::{Address, Distribution, Hash, Hashing, Mapping, Names, Placement, Weights};
///
/// let placement = Placement::Ring { names: Names::Ketama, weights: Weights::Always };
/// let hashing = Hashing { hash: Hash::Fnv32a, placement, ..Hashing::default() };
/// let servers: [Address; 2] = ["10.0.0.5".parse()?, "10.0.0.6".parse()?];
/// let mapping = Mapping::new(&Distribution::Custom(hashing), &servers, |_| true);
/// assert_eq!(mapping.server_of(b"key"), Some(1));
/// # Ok::<(), fabcache_distribution::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Hashing {
    /// The hash of keys.
    pub hash: Hash,
    /// How the hash selects a server.
    pub placement: Placement,
    /// The number of bytes at a key's start that are not hashed. libmemcached hashes its namespace, a prefix of each
    /// key, only with `MEMCACHED_BEHAVIOR_HASH_WITH_PREFIX_KEY`.
    pub namespace_bytes: usize,
    /// Servers are sorted by host and port: `MEMCACHED_BEHAVIOR_SORT_HOSTS`. [`Placement::Buckets`] numbers them in
    /// that order, everything else in the order given.
    pub sort_hosts: bool,
}

/// How a key's hash selects a server.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Placement {
    /// The hash modulo the number of servers is a server's number.
    #[default]
    Modula,
    /// The key belongs to the next server point on a ring: consistent hashing.
    Ring {
        /// The servers' names on the ring.
        names: Names,
        /// Which servers have more points.
        weights: Weights,
    },
    /// Ignores the hash: a random server each time.
    Random,
    /// The hash's lower bits are a bucket number, and this lists each bucket's server by number. Their count should be
    /// a power of two: otherwise some buckets are never chosen, as in libmemcached. If empty, each server is a bucket.
    ///
    /// A bucket's keys stay with its server while that is down, whatever the client's option `auto_eject` says.
    Buckets(Arc<[u32]>),
}

/// When points are by weight: then 160 on average, otherwise 100 each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Weights {
    /// As soon as one is not 1: libmemcached where the distribution is set before the servers.
    #[default]
    Heard,
    /// Even if all are 1.
    Always,
    /// Never: libmemcached where the distribution is set after the servers.
    Never,
}

impl From<&Distribution> for Hashing {
    /// The usual distributions in full.
    fn from(distribution: &Distribution) -> Hashing {
        let ring = |hash, weights| Hashing {
            hash,
            placement: Placement::Ring { names: Names::Ketama, weights },
            ..Hashing::default()
        };
        match distribution {
            Distribution::Modula => Hashing::default(),
            Distribution::Ketama => ring(Hash::OneAtATime, Weights::Heard),
            Distribution::KetamaWeighted => ring(Hash::Md5, Weights::Always),
            Distribution::Custom(hashing) => hashing.clone(),
        }
    }
}

impl Distribution {
    /// Returns the first number in [`Placement::Buckets`] that does not name one of `servers` servers.
    pub fn unknown_server(&self, servers: usize) -> Option<u32> {
        let Distribution::Custom(Hashing { placement: Placement::Buckets(buckets), .. }) = self else {
            return None;
        };
        buckets.iter().copied().find(|server| *server as usize >= servers)
    }
}

/// The servers a key may belong to.
#[derive(Clone, Debug)]
pub struct Mapping {
    hash: Hash,
    namespace_bytes: usize,
    /// The numbers of the servers in use.
    servers: Vec<usize>,
    table: Table,
}

/// Maps a hash to a server.
#[derive(Clone, Debug)]
enum Table {
    Modula,
    Ring(Ring),
    Random,
    /// Each bucket's server; `None` if it names a missing one.
    Buckets(Vec<Option<usize>>),
}

impl Mapping {
    /// Maps keys among the servers whose number `includes` accepts.
    pub fn new(
        distribution: &Distribution,
        servers: &[Address],
        includes: impl Fn(usize) -> bool,
    ) -> Mapping {
        let hash = Hashing::from(distribution).hash;
        Mapping::with_points(distribution, servers, includes, |name| hash.of(name))
    }

    /// Like [`Mapping::new`], for a hash that this library does not have, and servers of equal weight. The caller
    /// hashes keys ([`Mapping::server_at`]).
    pub fn with_points(
        distribution: &Distribution,
        servers: &[Address],
        includes: impl Fn(usize) -> bool,
        point: impl Fn(&[u8]) -> u32,
    ) -> Mapping {
        let Hashing { hash, placement, namespace_bytes, sort_hosts } = distribution.into();
        let mut included: Vec<usize> = (0..servers.len()).collect();
        if sort_hosts {
            included.sort_by_key(|server| servers[*server].host_and_port());
        }
        if !matches!(placement, Placement::Buckets(_)) {
            included.retain(|server| includes(*server));
        }
        let table = match placement {
            Placement::Modula => Table::Modula,
            Placement::Random => Table::Random,
            Placement::Ring { names, weights } => {
                let by_weight = match weights {
                    // Ejected servers count as well: otherwise all keys would move when one leaves.
                    Weights::Heard => servers.iter().any(|server| server.weight != 1),
                    Weights::Always => true,
                    Weights::Never => false,
                };
                let of: Vec<(&Address, usize)> = included.iter().map(|i| (&servers[*i], *i)).collect();
                let ring =
                    if by_weight { Ring::by_weight(&of, names) } else { Ring::of_equals(&of, names, &point) };
                Table::Ring(ring)
            }
            Placement::Buckets(buckets) if buckets.is_empty() => {
                Table::Buckets(included.iter().copied().map(Some).collect())
            }
            Placement::Buckets(buckets) => {
                Table::Buckets(buckets.iter().map(|number| included.get(*number as usize).copied()).collect())
            }
        };
        Mapping { hash, namespace_bytes, servers: included, table }
    }

    /// Returns the number of a key's server; `None` without servers.
    pub fn server_of(&self, key: &[u8]) -> Option<usize> {
        if let [only] = self.servers[..] {
            return Some(only);
        }
        self.server_at(self.hash.of(key.get(self.namespace_bytes..).unwrap_or_default()))
    }

    /// Returns the number of the server for this hash, for hashes that this library does not have.
    pub fn server_at(&self, hash: u32) -> Option<usize> {
        match &self.table {
            Table::Modula => {
                let at = hash.checked_rem(self.servers.len() as u32)?;
                Some(self.servers[at as usize])
            }
            Table::Ring(ring) => ring.server_at(hash),
            Table::Random => {
                // Each state hashes differently.
                let any = RandomState::new().hash_one(hash) as usize;
                Some(self.servers[any.checked_rem(self.servers.len())?])
            }
            Table::Buckets(buckets) => {
                let mask = buckets.len().checked_sub(1)?;
                buckets[hash as usize & mask]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<Address> {
        texts.iter().map(|text| text.parse().expect("an address")).collect()
    }

    fn custom(placement: Placement) -> Distribution {
        Distribution::Custom(Hashing { placement, ..Hashing::default() })
    }

    #[test]
    fn no_servers_map_to_none() {
        let random = custom(Placement::Random);
        for distribution in [Distribution::Modula, Distribution::Ketama, Distribution::KetamaWeighted, random]
        {
            let mapping = Mapping::new(&distribution, &addresses(&["a", "b"]), |_| false);
            assert_eq!(mapping.server_of(b"k"), None);
        }
        let of_none = Mapping::new(&custom(Placement::Buckets(Arc::default())), &[], |_| true);
        assert_eq!(of_none.server_of(b"k"), None);
    }

    #[test]
    fn removing_a_server_moves_only_its_keys() {
        let servers = addresses(&["a", "b", "c:5", "d", "e"]);
        let keys: Vec<String> = (0..2_000).map(|i| format!("key{i}")).collect();
        for distribution in [Distribution::Ketama, Distribution::KetamaWeighted] {
            let all = Mapping::new(&distribution, &servers, |_| true);
            for gone in 0..servers.len() {
                let rest = Mapping::new(&distribution, &servers, |server| server != gone);
                for key in &keys {
                    let (before, after) = (all.server_of(key.as_bytes()), rest.server_of(key.as_bytes()));
                    assert!(before == Some(gone) || after == before, "{key}");
                    assert_ne!(after, Some(gone), "{key}");
                }
            }
        }
    }

    #[test]
    fn random_distribution_is_even_and_ignores_keys() {
        let mapping = Mapping::new(&custom(Placement::Random), &addresses(&["a", "b", "c", "d"]), |i| i != 1);
        let mut keys = [0; 4];
        for _ in 0..3_000 {
            keys[mapping.server_of(b"k").expect("there are servers")] += 1;
        }
        assert_eq!(keys[1], 0);
        for server in [0, 2, 3] {
            assert!((800..1_200).contains(&keys[server]), "{keys:?}");
        }
    }

    #[test]
    fn explicit_buckets_are_kept() {
        let servers = addresses(&["a", "b", "c"]);
        let distribution = custom(Placement::Buckets([2, 0, 1, 2].into()));
        let all = Mapping::new(&distribution, &servers, |_| true);
        let rest = Mapping::new(&distribution, &servers, |server| server == 0);
        for key in (0..100u8).map(|i| [i]) {
            assert_eq!(rest.server_of(&key), all.server_of(&key));
        }
    }
}
