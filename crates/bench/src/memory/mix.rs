//! Items of given sizes, each determined by its number.

use std::io::Write as _;

use serde::Serialize;

use crate::random::Random;

/// A distribution of item sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mix {
    /// A name for tables.
    pub name: String,
    /// Minimum and maximum key length; all lengths are equally frequent.
    pub key_bytes: (usize, usize),
    /// The same for values.
    pub value_bytes: (usize, usize),
}

impl Mix {
    /// Returns keys of 20 bytes and values of one length.
    pub fn of_values(bytes: usize) -> Mix {
        Mix { name: format!("20 + {bytes}"), key_bytes: (20, 20), value_bytes: (bytes, bytes) }
    }

    /// Returns small objects.
    pub fn small() -> Mix {
        Mix { name: "small".into(), key_bytes: (16, 40), value_bytes: (10, 200) }
    }

    /// Returns the mixes on which memory is judged.
    pub fn main() -> Vec<Mix> {
        vec![Mix::small(), Mix::of_values(100), Mix::of_values(1000), Mix::of_values(1024)]
    }

    /// Returns sizes from 1 byte to memcached's limit near 1 MiB: powers of two and sizes in between.
    pub fn sweep() -> Vec<Mix> {
        let powers = (0..20).step_by(2).chain([17, 19]).map(|shift| 1 << shift);
        let between = (1..20).step_by(2).map(|shift| 3 << (shift - 1));
        let mut sizes: Vec<usize> = powers.chain(between).chain([(1 << 20) - 1024]).collect();
        sizes.sort_unstable();
        sizes.into_iter().map(Mix::of_values).collect()
    }

    /// Returns both, each mix once.
    pub fn all() -> Vec<Mix> {
        let mut all = Mix::main();
        all.extend(Mix::sweep().into_iter().filter(|mix| !Mix::main().contains(mix)));
        all
    }

    /// Returns the mean bytes of key and value.
    pub fn mean_bytes(&self) -> f64 {
        (self.key_bytes.0 + self.key_bytes.1 + self.value_bytes.0 + self.value_bytes.1) as f64 / 2.0
    }

    /// Returns the lengths of key and value of item `i`.
    pub(super) fn lengths(&self, i: u64) -> (usize, usize) {
        let mut random = Random::new(i);
        let mut between =
            |(least, most): (usize, usize)| least + random.below((most - least + 1) as u32) as usize;
        (between(self.key_bytes), between(self.value_bytes))
    }

    pub(super) fn push_key(&self, i: u64, text: &mut Vec<u8>) {
        let (len, _) = self.lengths(i);
        // Writing to a vector cannot fail.
        let _ = write!(text, "{i:0len$}");
    }

    /// Appends the value of item `i`: its number, repeated.
    pub(super) fn push_value(&self, i: u64, text: &mut Vec<u8>) {
        let (_, len) = self.lengths(i);
        let start = text.len();
        let _ = write!(text, "{i:012}");
        while text.len() - start < len {
            let copied = (text.len() - start).min(len - (text.len() - start));
            text.extend_from_within(start..start + copied);
        }
        text.truncate(start + len);
    }

    pub(super) fn push_set(&self, i: u64, text: &mut Vec<u8>) {
        text.extend_from_slice(b"set ");
        self.push_key(i, text);
        let _ = write!(text, " 0 0 {}\r\n", self.lengths(i).1);
        self.push_value(i, text);
        text.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_have_the_sizes_and_numbers_of_the_mix() {
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
    fn requests_are_in_the_text_protocol() {
        let mut request = Vec::new();
        Mix::of_values(5).push_set(7, &mut request);
        assert_eq!(request, b"set 00000000000000000007 0 0 5\r\n00000\r\n");
    }
}
