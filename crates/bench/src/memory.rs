//! How many items each server holds in the memory that its process really takes.
//!
//! A server is filled with distinct items until it has evicted for as much again as it holds. Then its anonymous, shared
//! and huge pages are divided by the items it says it has, and a sample of everything that was stored is read back, byte
//! for byte: it must say about the same.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::client::Client;
use crate::random::Random;
use crate::server::{Candidate, Server};

/// What a server may take for itself of an item, in the plan of how many are stored.
const OVERHEAD_BYTES_MAX: u64 = 64;
/// Bytes of requests that are sent before their answers are read.
const BATCH_BYTES: usize = 48 << 10;
/// Keys that are read back.
const SAMPLE: u64 = 4_000;
/// memcached makes room in the background.
const SETTLE: Duration = Duration::from_secs(2);

/// The sizes of items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mix {
    /// A name for tables.
    pub name: String,
    /// Fewest and most bytes of a key; all lengths are as frequent.
    pub key_bytes: (usize, usize),
    /// The same of a value.
    pub value_bytes: (usize, usize),
}

/// One server filled with one mix.
#[derive(Clone, Debug, Serialize)]
pub struct Filled {
    /// The server.
    pub server: String,
    /// What it is full of.
    pub mix: Mix,
    /// Its memory limit in megabytes.
    pub megabytes: u32,
    /// Items that were stored, all different.
    pub stored: u64,
    /// Items that the server refused.
    pub refused: u64,
    /// Items that it says it has.
    pub items: u64,
    /// Of [`Filled::sampled`] items that were stored, those that were there, byte for byte.
    pub found: u64,
    /// Items looked for.
    pub sampled: u64,
    /// Anonymous, shared and huge pages of the process, in bytes.
    pub resident_bytes: u64,
    /// Of `stats fabcache`: bytes of items but for keys and values, and bytes of the index, for an item. None for a
    /// server that does not tell.
    pub overhead_bytes: Option<f64>,
}

impl Filled {
    /// Resident memory an item.
    pub fn bytes_per_item(&self) -> f64 {
        self.resident_bytes as f64 / self.items as f64
    }
}

/// All of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// When, as seconds since 1970.
    pub unix_time: u64,
    /// Processor, kernel, number of CPUs.
    pub machine: String,
    /// Each server's name and what its `-V` says.
    pub servers: Vec<(String, String)>,
    /// How: what a reader must know to judge the figures.
    pub method: String,
    /// Every server filled with every mix.
    pub filled: Vec<Filled>,
}

impl Mix {
    /// Keys of 20 bytes, and values all as long.
    pub fn of_values(bytes: usize) -> Mix {
        Mix { name: format!("20 + {bytes}"), key_bytes: (20, 20), value_bytes: (bytes, bytes) }
    }

    /// Small objects.
    pub fn small() -> Mix {
        Mix { name: "small".into(), key_bytes: (16, 40), value_bytes: (10, 200) }
    }

    /// The mixes on which memory is judged.
    pub fn main() -> Vec<Mix> {
        vec![Mix::small(), Mix::of_values(100), Mix::of_values(1000), Mix::of_values(1024)]
    }

    /// Sizes from 1 byte to as near 1 MiB as memcached takes, powers of two and in between.
    pub fn sweep() -> Vec<Mix> {
        let powers = (0..20).step_by(2).chain([17, 19]).map(|shift| 1 << shift);
        let between = (1..20).step_by(2).map(|shift| 3 << (shift - 1));
        let mut sizes: Vec<usize> = powers.chain(between).chain([(1 << 20) - 1024]).collect();
        sizes.sort_unstable();
        sizes.into_iter().map(Mix::of_values).collect()
    }

    /// Both, each mix once.
    pub fn all() -> Vec<Mix> {
        let mut all = Mix::main();
        all.extend(Mix::sweep().into_iter().filter(|mix| !Mix::main().contains(mix)));
        all
    }

    /// Mean bytes of key and value.
    pub fn mean_bytes(&self) -> f64 {
        (self.key_bytes.0 + self.key_bytes.1 + self.value_bytes.0 + self.value_bytes.1) as f64 / 2.0
    }

    /// Lengths of the key and the value of item `i`.
    fn lengths(&self, i: u64) -> (usize, usize) {
        let mut random = Random::new(i);
        let mut between =
            |(least, most): (usize, usize)| least + random.below((most - least + 1) as u32) as usize;
        (between(self.key_bytes), between(self.value_bytes))
    }

    fn push_key(&self, i: u64, text: &mut Vec<u8>) {
        let (len, _) = self.lengths(i);
        // Writing to a vector cannot fail.
        let _ = write!(text, "{i:0len$}");
    }

    /// The value of item `i`: its number, over and over.
    fn push_value(&self, i: u64, text: &mut Vec<u8>) {
        let (_, len) = self.lengths(i);
        let start = text.len();
        let _ = write!(text, "{i:012}");
        while text.len() - start < len {
            let copied = (text.len() - start).min(len - (text.len() - start));
            text.extend_from_within(start..start + copied);
        }
        text.truncate(start + len);
    }

    fn push_set(&self, i: u64, text: &mut Vec<u8>) {
        text.extend_from_slice(b"set ");
        self.push_key(i, text);
        let _ = write!(text, " 0 0 {}\r\n", self.lengths(i).1);
        self.push_value(i, text);
        text.extend_from_slice(b"\r\n");
    }
}

/// Fills every server with every mix, each in a fresh process.
///
/// # Errors
/// A server does not come up, answers wrongly, or has not what it says it has.
pub fn fill_all(
    servers: &[Candidate],
    mixes: &[Mix],
    megabytes: u32,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Filled>> {
    let mut filled = Vec::new();
    for mix in mixes {
        for candidate in servers {
            progress(&format!("{}: {}", mix.name, candidate.name));
            let one = fill(candidate, mix, megabytes);
            filled.push(one.with_context(|| format!("{} with {}", candidate.name, mix.name))?);
        }
    }
    Ok(filled)
}

fn fill(candidate: &Candidate, mix: &Mix, megabytes: u32) -> Result<Filled> {
    let (server, address) = Server::start(candidate, &["-m", &megabytes.to_string()])?;
    let mut client = Client::connect(address)?;
    let budget = u64::from(megabytes) << 21;
    let written = (budget as f64 / (mix.mean_bytes() + OVERHEAD_BYTES_MAX as f64)) as u64;
    let mut stored = 0;
    let mut next = 0;
    let mut request = Vec::new();
    while next < written {
        request.clear();
        let first = next;
        while next < written && (next == first || request.len() < BATCH_BYTES) {
            mix.push_set(next, &mut request);
            next += 1;
        }
        stored += client.store(&request, next - first)?;
    }
    std::thread::sleep(SETTLE);
    let resident_bytes = server.resident_bytes()?;
    let items = client.stat("curr_items")?;
    let own = client.stats("stats fabcache").unwrap_or_default();
    let own = |name: &str| {
        own.iter().find(|(known, _)| known == name).and_then(|(_, value)| value.parse::<f64>().ok())
    };
    let overhead_bytes = own("item_bytes").zip(own("index_bytes")).map(|(item_bytes, index_bytes)| {
        // What was stored first went first.
        let payload: u64 =
            (written - items..written).map(|i| mix.lengths(i)).map(|(k, v)| (k + v) as u64).sum();
        (item_bytes - payload as f64 + index_bytes) / items as f64
    });
    let (found, sampled) = read_back(&mut client, mix, written)?;
    let share = found as f64 / sampled as f64;
    let expected = items as f64 / written as f64;
    let deviation = (expected * (1.0 - expected) / sampled as f64).sqrt();
    ensure!(
        (share - expected).abs() < 0.02 + 5.0 * deviation,
        "it says that it has {items} of {written} items, but {found} of {sampled} were found"
    );
    Ok(Filled {
        server: candidate.name.clone(),
        mix: mix.clone(),
        megabytes,
        stored,
        refused: written - stored,
        items,
        found,
        sampled,
        resident_bytes,
        overhead_bytes,
    })
}

/// Looks for items spread evenly over all that were stored: how many were there, of how many.
fn read_back(client: &mut Client, mix: &Mix, written: u64) -> Result<(u64, u64)> {
    let sampled = written.min(SAMPLE);
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let mut found = 0;
    for step in 0..sampled {
        let i = step * written / sampled;
        key.clear();
        mix.push_key(i, &mut key);
        if let Some(answer) = client.get(&key)? {
            value.clear();
            mix.push_value(i, &mut value);
            ensure!(*answer == *value, "item {i} came back with another value");
            found += 1;
        }
    }
    Ok((found, sampled))
}

impl Results {
    /// A table; the ratio is of the items that fit in equal memory, to those of the server named last.
    pub fn table(&self) -> String {
        let mut text = format!("{}\n{}\n\n", self.machine, self.method);
        let base = self.servers.last().map_or("", |(name, _)| name);
        let _ = writeln!(
            text,
            "{:<14} {:<12} {:>9} {:>9} {:>11} {:>11} {:>7}",
            "key + value", "server", "items", "MB", "bytes/item", "overhead", "ratio"
        );
        for one in &self.filled {
            let peer = self.filled.iter().find(|other| other.server == base && other.mix == one.mix);
            let ratio = peer.map_or(f64::NAN, |peer| peer.bytes_per_item() / one.bytes_per_item());
            let overhead = one.overhead_bytes.map_or("-".to_owned(), |bytes| format!("{bytes:.2}"));
            let _ = writeln!(
                text,
                "{:<14} {:<12} {:>9} {:>9.1} {:>11.1} {overhead:>11} {ratio:>7.3}",
                one.mix.name,
                one.server,
                one.items,
                one.resident_bytes as f64 / f64::from(1 << 20),
                one.bytes_per_item(),
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_of_the_mix_and_tell_whose_they_are() {
        let mix = Mix::small();
        let mut lengths = (0, 0);
        for i in 0..10_000 {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            mix.push_key(i, &mut key);
            mix.push_value(i, &mut value);
            assert!((16..=40).contains(&key.len()) && (10..=200).contains(&value.len()));
            assert_eq!(mix.lengths(i), (key.len(), value.len()));
            assert!(key.ends_with(i.to_string().as_bytes()));
            assert!(format!("{i:012}").repeat(20).as_bytes().starts_with(&value));
            lengths = (lengths.0 + key.len(), lengths.1 + value.len());
        }
        let mean = (lengths.0 + lengths.1) as f64 / 10_000.0;
        assert!((mean - mix.mean_bytes()).abs() < 2.0, "{mean}");
    }

    #[test]
    fn the_sweep_goes_from_one_byte_to_a_megabyte() {
        let sizes: Vec<usize> = Mix::sweep().iter().map(|mix| mix.value_bytes.0).collect();
        assert!(
            sizes.is_sorted() && sizes.windows(2).all(|pair| pair[0] < pair[1] && pair[1] <= 4 * pair[0])
        );
        assert_eq!((sizes[0], *sizes.last().expect("not empty")), (1, 1_047_552));
    }

    #[test]
    fn requests_are_memcached_s() {
        let mut request = Vec::new();
        Mix::of_values(5).push_set(7, &mut request);
        assert_eq!(request, b"set 00000000000000000007 0 0 5\r\n00000\r\n");
    }
}
