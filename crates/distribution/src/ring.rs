//! The ring of consistent hashing: points of servers in the order of their hashes.

use super::hash;
use crate::address::{Address, DEFAULT_PORT};

/// Points of each server if all weights are equal.
const POINTS_OF_EQUALS: u32 = 100;
/// Points of a server of mean weight.
const POINTS_BY_WEIGHT: f32 = 160.0;
/// Points per digest.
const POINTS_OF_DIGEST: f32 = 4.0;

/// The naming scheme of servers on a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Names {
    /// The host, and its port if that is not memcached's.
    #[default]
    Ketama,
    /// A slash, the host, and its port: spymemcached's name for a server that is given by its IP address.
    Spy,
}

/// Points of servers, sorted.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    points: Vec<(u32, usize)>,
}

impl Names {
    /// Returns a server's name on the ring. A Unix socket's host is its path, its port 0.
    fn of(self, address: &Address) -> String {
        match (self, address.host_and_port()) {
            (Names::Ketama, (host, DEFAULT_PORT)) => host.into_owned(),
            (Names::Ketama, (host, port)) => format!("{host}:{port}"),
            (Names::Spy, (host, port)) => format!("/{host}:{port}"),
        }
    }
}

impl Ring {
    /// Returns the ring of servers with equal weights, each with its number, with points by this hash.
    pub fn of_equals(servers: &[(&Address, usize)], names: Names, hash: impl Fn(&[u8]) -> u32) -> Ring {
        let points = servers.iter().flat_map(|(address, server)| {
            let name = names.of(address);
            let hash = &hash;
            let point = move |i| (hash(format!("{name}-{i}").as_bytes()), *server);
            (0..POINTS_OF_EQUALS).map(point)
        });
        Ring::of(points.collect())
    }

    /// Returns the ring of servers with points in proportion to their weights. The points are computed with MD5,
    /// whatever hashes the keys.
    pub fn by_weight(servers: &[(&Address, usize)], names: Names) -> Ring {
        let total: u64 = servers.iter().map(|(address, _)| u64::from(address.weight)).sum();
        let mut points = Vec::new();
        for (address, server) in servers {
            let name = names.of(address);
            for i in 0..digests_of(address.weight, total, servers.len()) {
                let words = hash::md5(format!("{name}-{i}").as_bytes());
                points.extend(words.map(|word| (word, *server)));
            }
        }
        Ring::of(points)
    }

    fn of(mut points: Vec<(u32, usize)>) -> Ring {
        points.sort_by_key(|(hash, _)| *hash);
        Ring { points }
    }

    /// Returns the server of the first point at or after this hash, wrapping around.
    pub fn server_at(&self, hash: u32) -> Option<usize> {
        let at = self.points.partition_point(|(point, _)| *point < hash);
        self.points.get(at).or(self.points.first()).map(|(_, server)| *server)
    }
}

/// Returns the number of digests of a server's points. libmemcached computes it in single precision and in this
/// order, which decides whether 25 servers of equal weight have 40 or 39 each.
fn digests_of(weight: u32, total: u64, servers: usize) -> u32 {
    let part = weight as f32 / total as f32;
    (part * POINTS_BY_WEIGHT / POINTS_OF_DIGEST * servers as f32 + 1e-10).floor() as u32
}
