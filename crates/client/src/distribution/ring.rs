//! The ring of consistent hashing: points of servers in the order of their hashes.

use super::hash;
use crate::address::Address;

/// Points of each server where all weigh the same.
const POINTS_OF_EQUALS: u32 = 100;
/// Points of a server of mean weight.
const POINTS_BY_WEIGHT: f64 = 160.0;
/// Points that one digest makes.
const POINTS_OF_DIGEST: f64 = 4.0;

/// Points of servers, sorted.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    points: Vec<(u32, usize)>,
}

impl Ring {
    /// Servers of the same weight, each with its number.
    pub fn of_equals<'a>(servers: impl Iterator<Item = (&'a Address, usize)>) -> Ring {
        let points = servers.flat_map(|(address, server)| {
            let name = address.name();
            let point = move |i| (hash::one_at_a_time(format!("{name}-{i}").as_bytes()), server);
            (0..POINTS_OF_EQUALS).map(point)
        });
        Ring::of(points.collect())
    }

    /// Servers with as many points as they weigh.
    pub fn by_weight(servers: &[(&Address, usize)]) -> Ring {
        let total: u64 = servers.iter().map(|(address, _)| u64::from(address.weight)).sum();
        let mut points = Vec::new();
        for (address, server) in servers {
            let part = f64::from(address.weight) / total as f64;
            let of_mean = POINTS_BY_WEIGHT / POINTS_OF_DIGEST * servers.len() as f64;
            // As libmemcached rounds.
            let digests = (part * of_mean + 1e-10).floor() as u32;
            for i in 0..digests {
                let words = hash::md5(format!("{}-{i}", address.name()).as_bytes());
                points.extend(words.map(|word| (word, *server)));
            }
        }
        Ring::of(points)
    }

    fn of(mut points: Vec<(u32, usize)>) -> Ring {
        points.sort_by_key(|(hash, _)| *hash);
        Ring { points }
    }

    /// The server of the first point from this hash on, the first of all after the last.
    pub fn server_at(&self, hash: u32) -> Option<usize> {
        let at = self.points.partition_point(|(point, _)| *point < hash);
        self.points.get(at).or(self.points.first()).map(|(_, server)| *server)
    }
}
