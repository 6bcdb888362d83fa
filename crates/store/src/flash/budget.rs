//! The write budget: devices wear out by what is written.

/// Seconds of writing that the budget saves up, at most, while nothing is written.
const SAVED_SECONDS: i64 = 10;
/// Seconds of writing by which items that were read may overdraw the budget.
const OVERDRAWN_SECONDS: i64 = 1;
/// Refused items are tried again when the bytes of this part (1/n) of a second may be written, or those of a write
/// ([`MANY_BYTES_MAX`]) if these are less.
const MANY_DIVISOR: u64 = 20;
const MANY_BYTES_MAX: i64 = 512 << 10;
const NS_PER_SECOND: u64 = 1_000_000_000;

/// Bytes that may be written.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_per_second: Option<u64>,
    /// Bytes that may be written now; below zero, only for items that were read.
    bytes: i64,
    /// When `bytes` was computed, in nanoseconds of the region's clock.
    at_ns: Option<u64>,
}

impl Budget {
    pub(super) fn new(bytes_per_second: Option<u64>) -> Budget {
        Budget { bytes_per_second, bytes: 0, at_ns: None }
    }

    /// Returns whether an item that was read or not may be written now.
    pub(super) fn allows(&mut self, was_read: bool, now_ns: u64) -> bool {
        let Some(rate) = self.bytes_per_second else { return true };
        self.earn(rate, now_ns);
        let least = if was_read { signed(rate).saturating_mul(-OVERDRAWN_SECONDS) } else { 0 };
        self.bytes > least
    }

    /// Returns whether many items that were not read may be written now.
    pub(super) fn allows_many(&mut self, now_ns: u64) -> bool {
        let Some(rate) = self.bytes_per_second else { return true };
        self.earn(rate, now_ns);
        self.bytes > signed(rate / MANY_DIVISOR).min(MANY_BYTES_MAX)
    }

    /// Adds the bytes that were saved up since the last time.
    fn earn(&mut self, rate: u64, now_ns: u64) {
        let rate_signed = signed(rate);
        let saved_max = rate_signed.saturating_mul(SAVED_SECONDS);
        let elapsed = now_ns.saturating_sub(*self.at_ns.get_or_insert(now_ns));
        let earned = u128::from(elapsed) * u128::from(rate) / u128::from(NS_PER_SECOND);
        if earned > 0 {
            self.at_ns = Some(now_ns);
            self.bytes = self.bytes.saturating_add(i64::try_from(earned).unwrap_or(i64::MAX)).min(saved_max);
        }
    }

    /// Subtracts the bytes of an item that is written.
    pub(super) fn spend(&mut self, bytes: u64) {
        if self.bytes_per_second.is_some() {
            self.bytes = self.bytes.saturating_sub(signed(bytes));
        }
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_keeps_to_the_budget() {
        let mut budget = Budget::new(Some(1000));
        let mut written = [0u64; 2];
        for ms in 0..100_000u64 {
            for (was_read, written) in [false, true].into_iter().zip(&mut written) {
                // Of ten unread items one was read.
                if (!was_read || ms % 10 == 0) && budget.allows(was_read, ms * NS_PER_SECOND / 1000) {
                    budget.spend(10);
                    *written += 10;
                }
            }
        }
        let all = written[0] + written[1];
        assert!((100_000..=120_000).contains(&all), "{all} in 100 seconds of 1000 bytes");
        assert!(written[1] >= 50_000, "{} of items that were read", written[1]);
    }

    #[test]
    fn unlimited_budget_allows_everything() {
        let mut budget = Budget::new(None);
        budget.spend(u64::MAX);
        assert!(budget.allows(false, 0) && budget.allows_many(0));
    }

    #[test]
    fn many_items_wait_until_more_is_saved_up() {
        let mut budget = Budget::new(Some(1_000));
        let ms = |ms: u64| ms * NS_PER_SECOND / 1000;
        assert!(!budget.allows_many(0));
        assert!(budget.allows(false, ms(1)) && !budget.allows_many(ms(50)) && budget.allows_many(ms(51)));
        budget.spend(51);
        assert!(!budget.allows_many(ms(60)));
    }
}
