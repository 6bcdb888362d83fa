//! Which server a key belongs to: as libmemcached maps them, so that clients of all languages agree.
//!
//! | ours | libmemcached's behaviours |
//! | --- | --- |
//! | [`Distribution::Modula`] | none set |
//! | [`Distribution::Ketama`] | `KETAMA` |
//! | [`Distribution::KetamaWeighted`] | `KETAMA_WEIGHTED` |
//!
//! tests/distribution.rs compares all three with libmemcached, key by key.

mod hash;
mod ring;

use crate::address::Address;
use ring::Ring;

/// How keys are mapped to servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Distribution {
    /// The hash modulo the number of servers: another server, and nearly all keys move.
    #[default]
    Modula,
    /// Consistent hashing: another server takes over its share alone. Weights count as soon as one is not 1.
    Ketama,
    /// The same with weights, and with MD5 for the keys, as other ketama clients have it.
    KetamaWeighted,
}

/// The servers a key may belong to.
#[derive(Clone, Debug)]
pub struct Mapping {
    distribution: Distribution,
    /// Numbers of the servers among which keys are mapped.
    servers: Vec<usize>,
    ring: Ring,
}

impl Mapping {
    /// Maps keys among those of the servers that `includes` says, by their number.
    pub fn new(distribution: Distribution, servers: &[Address], includes: impl Fn(usize) -> bool) -> Mapping {
        let included: Vec<usize> = (0..servers.len()).filter(|server| includes(*server)).collect();
        let of = |server: &usize| (&servers[*server], *server);
        let ring = match distribution {
            Distribution::Modula => Ring::default(),
            Distribution::Ketama if included.iter().all(|server| servers[*server].weight == 1) => {
                Ring::of_equals(included.iter().map(of))
            }
            _ => Ring::by_weight(&included.iter().map(of).collect::<Vec<_>>()),
        };
        Mapping { distribution, servers: included, ring }
    }

    /// The number of a key's server; none if there is no server.
    pub fn server_of(&self, key: &[u8]) -> Option<usize> {
        if let [only] = self.servers[..] {
            return Some(only);
        }
        match self.distribution {
            Distribution::Modula => {
                let servers = self.servers.len() as u32;
                let at = hash::one_at_a_time(key).checked_rem(servers)?;
                Some(self.servers[at as usize])
            }
            Distribution::Ketama => self.ring.server_at(hash::one_at_a_time(key)),
            Distribution::KetamaWeighted => self.ring.server_at(hash::md5(key)[0]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<Address> {
        texts.iter().map(|text| text.parse().expect("an address")).collect()
    }

    #[test]
    fn without_a_server_there_is_none() {
        for distribution in [Distribution::Modula, Distribution::Ketama, Distribution::KetamaWeighted] {
            let mapping = Mapping::new(distribution, &addresses(&["a", "b"]), |_| false);
            assert_eq!(mapping.server_of(b"k"), None);
        }
    }

    #[test]
    fn only_keys_of_a_server_that_leaves_move() {
        let servers = addresses(&["a", "b", "c:5", "d", "e"]);
        let keys: Vec<String> = (0..2_000).map(|i| format!("key{i}")).collect();
        for distribution in [Distribution::Ketama, Distribution::KetamaWeighted] {
            let all = Mapping::new(distribution, &servers, |_| true);
            for gone in 0..servers.len() {
                let rest = Mapping::new(distribution, &servers, |server| server != gone);
                for key in &keys {
                    let (before, after) = (all.server_of(key.as_bytes()), rest.server_of(key.as_bytes()));
                    assert!(before == Some(gone) || after == before, "{key}");
                    assert_ne!(after, Some(gone), "{key}");
                }
            }
        }
    }
}
