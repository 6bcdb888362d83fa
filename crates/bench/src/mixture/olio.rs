//! Sizes of values as in the Olio benchmark: three classes, with shares that give a chosen average.
//!
//! Within a class all sizes are equally frequent, so its average is the middle. At 2,048 bytes the
//! shares are 76%, 9.5% and 14.5%. For other averages the latter two keep their ratio, 9.5 to 14.5, and
//! the share of the first follows. An average above 8,341 bytes, that of the latter two together, has
//! none of the first class, and less of the second.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use fabcache_testbed::random::mix;

/// Shares of the three classes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Olio {
    shares: [f64; 3],
}

/// A class of sizes, both ends included.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// Its name.
    pub name: &'static str,
    /// The smallest, in bytes.
    pub min: u64,
    /// The largest, in bytes.
    pub max: u64,
}

/// Ratio of the shares of the second and the third class.
const SMALL_TO_MEDIUM: [f64; 2] = [9.5, 14.5];

impl Class {
    fn middle(&self) -> f64 {
        (self.min + self.max) as f64 / 2.0
    }
}

impl Olio {
    /// The classes.
    pub const CLASSES: [Class; 3] = [
        Class { name: "very small", min: 4, max: 100 },
        Class { name: "small", min: 1_024, max: 2_048 },
        Class { name: "medium", min: 5_120, max: 20_480 },
    ];

    /// Returns the mixture with this average size in bytes.
    ///
    /// # Errors
    /// No mixture has this average.
    pub fn of_average(average: f64) -> Result<Olio> {
        let [very_small, small, medium] = Olio::CLASSES.map(|class| class.middle());
        ensure!(
            (very_small..=medium).contains(&average),
            "an average of {average} bytes: these sizes give from {very_small} to {medium}"
        );
        let [to_small, to_medium] = SMALL_TO_MEDIUM.map(|part| part / SMALL_TO_MEDIUM.iter().sum::<f64>());
        let larger = to_small * small + to_medium * medium;
        let shares = if average <= larger {
            let share = (average - very_small) / (larger - very_small);
            [1.0 - share, share * to_small, share * to_medium]
        } else {
            let share = (average - small) / (medium - small);
            [0.0, 1.0 - share, share]
        };
        Ok(Olio { shares })
    }

    /// Returns the shares of the classes, whose sum is 1.
    pub fn shares(&self) -> [f64; 3] {
        self.shares
    }

    /// Returns the average value size in bytes.
    pub fn average(&self) -> f64 {
        self.shares.iter().zip(Olio::CLASSES).map(|(share, class)| share * class.middle()).sum()
    }

    /// Returns the class of an item.
    #[inline]
    pub fn class(&self, number: u64) -> usize {
        let at = (mix(number) >> 11) as f64 / (1u64 << 53) as f64;
        let [first, second, _] = self.shares;
        usize::from(at >= first) + usize::from(at >= first + second)
    }

    /// Returns the size of an item's value.
    #[inline]
    pub fn value_bytes(&self, number: u64) -> usize {
        let Class { min, max, .. } = Olio::CLASSES[self.class(number)];
        (min + mix(mix(number)) % (max - min + 1)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_shares_are_those_of_2048_bytes() {
        let shares = Olio::of_average(2_048.0).expect("an average").shares();
        for (share, published) in shares.iter().zip([76.0, 9.5, 14.5]) {
            assert!((share * 100.0 - published).abs() < 0.1, "{shares:?}");
        }
    }

    #[test]
    fn items_have_the_requested_average() {
        for average in [52.0, 100.0, 2_048.0, 4_096.0, 8_000.0, 10_000.0, 12_800.0] {
            let olio = Olio::of_average(average).expect("an average");
            assert!((olio.average() - average).abs() < 1e-6);
            assert!((olio.shares().iter().sum::<f64>() - 1.0).abs() < 1e-9);
            let items = 200_000;
            let mut counts = [0u32; 3];
            let mut bytes = 0;
            for number in 0..items {
                let (class, size) = (olio.class(number), olio.value_bytes(number) as u64);
                assert!((Olio::CLASSES[class].min..=Olio::CLASSES[class].max).contains(&size));
                counts[class] += 1;
                bytes += size;
            }
            let found = bytes as f64 / items as f64;
            assert!((found / average - 1.0).abs() < 0.03, "{average}: {found}");
            for (count, share) in counts.iter().zip(olio.shares()) {
                assert!((f64::from(*count) / items as f64 - share).abs() < 0.005, "{counts:?}");
            }
        }
        assert!(Olio::of_average(20.0).is_err() && Olio::of_average(13_000.0).is_err());
        assert!(Olio::of_average(f64::NAN).is_err());
    }
}
