//! Durations of operations: HDR histograms and their stored form.

use hdrhistogram::Histogram as Hdr;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Values are accurate to three digits.
const SIGNIFICANT_DIGITS: u8 = 3;
/// Maximum duration: an hour in nanoseconds; longer ones count as that.
const NS_MAX: u64 = 3_600_000_000_000;
/// Maximum count in a file: more than any round has, and small enough that sums do not overflow.
const COUNT_MAX: u64 = 1 << 40;

/// Durations in nanoseconds, accurate to three digits.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram(Hdr<u64>);

/// The stored form: the values that occurred, in order, each with its count. A value is the highest of
/// those that are indistinguishable.
#[derive(Serialize, Deserialize)]
struct StoredHistogram {
    ns_and_counts: Vec<(u64, u64)>,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram(Hdr::new_with_bounds(1, NS_MAX, SIGNIFICANT_DIGITS).expect("the bounds are right"))
    }
}

impl Histogram {
    /// Counts an operation of this duration.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds another histogram.
    pub fn add(&mut self, other: &Histogram) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// Returns the number of operations.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the nanoseconds within which so many percent completed; NaN if none did.
    pub fn percentile_ns(&self, percent: f64) -> f64 {
        if self.0.is_empty() { f64::NAN } else { self.0.value_at_percentile(percent) as f64 }
    }

    /// Returns the mean, in nanoseconds; NaN if nothing was counted.
    pub fn mean_ns(&self) -> f64 {
        if self.0.is_empty() { f64::NAN } else { self.0.mean() }
    }

    /// Returns the longest duration, in nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.0.max()
    }

    /// Returns each value that occurred, in nanoseconds, with the fraction of operations up to it.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, f64)> {
        let total = self.0.len().max(1) as f64;
        let mut sum = 0;
        self.0.iter_recorded().map(move |step| {
            sum += step.count_at_value();
            (step.value_iterated_to() as f64, sum as f64 / total)
        })
    }
}

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let steps = self.0.iter_recorded();
        let ns_and_counts = steps.map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
        StoredHistogram { ns_and_counts }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Histogram, D::Error> {
        let mut histogram = Histogram::default();
        for (ns, count) in StoredHistogram::deserialize(deserializer)?.ns_and_counts {
            histogram.0.saturating_record_n(ns, count);
            if count > COUNT_MAX || histogram.count() > COUNT_MAX {
                return Err(Error::custom(format!("a histogram of more than {COUNT_MAX} operations")));
            }
        }
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serialization_keeps_the_counts() {
        let mut histogram = Histogram::default();
        (0..100_000u64).for_each(|i| histogram.record(i * i % 7_919 * 100));
        let text = serde_json::to_string(&histogram).expect("JSON");
        let read: Histogram = serde_json::from_str(&text).expect("what was written");
        assert_eq!(read.count(), 100_000);
        for percent in [1.0, 50.0, 99.0, 99.9, 100.0] {
            assert_eq!(read.percentile_ns(percent), histogram.percentile_ns(percent));
        }
        assert_eq!(read.cumulative().last().map(|(_, part)| part), Some(1.0));
        histogram.add(&read);
        assert_eq!(histogram.count(), 200_000);
        assert!(Histogram::default().mean_ns().is_nan());
    }

    #[test]
    fn invalid_counts_are_rejected() {
        let of =
            |count: u64| format!("{{\"ns_and_counts\":[[1000,{count}],[2000,{count}],[{},1]]}}", u64::MAX);
        for count in [COUNT_MAX, u64::MAX] {
            let error = serde_json::from_str::<Histogram>(&of(count)).expect_err("too many").to_string();
            assert!(error.contains("a histogram of more than"), "{error}");
        }
        let mut many: Histogram = serde_json::from_str(&of(COUNT_MAX / 3)).expect("as many as may be");
        let one = many.clone();
        (0..1_000).for_each(|_| many.add(&one));
        assert!(many.percentile_ns(99.9) > 0.0 && many.cumulative().count() == 3);
    }
}
