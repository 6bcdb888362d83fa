//! Removes the commands that a failure does not need.

use std::time::{Duration, Instant};

/// Limits of a minimisation.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Maximum number of attempts.
    pub attempts: usize,
    /// Maximum duration.
    pub time: Duration,
}

/// Returns the smallest found part of `items`, in order, that still fails.
///
/// Removes smaller and smaller chunks (delta debugging). At the end no single item can be removed,
/// unless the budget ran out.
pub fn minimise<T: Clone>(items: &[T], budget: Budget, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let deadline = Instant::now() + budget.time;
    let mut attempts = 0;
    let mut kept = items.to_vec();
    let mut piece = kept.len().div_ceil(2);
    while piece > 0 {
        let mut removed = false;
        let mut start = 0;
        while start < kept.len() {
            if attempts == budget.attempts || Instant::now() > deadline {
                return kept;
            }
            let end = (start + piece).min(kept.len());
            let rest = [&kept[..start], &kept[end..]].concat();
            attempts += 1;
            if !rest.is_empty() && fails(&rest) {
                kept = rest;
                removed = true;
            } else {
                start = end;
            }
        }
        // If no single item can be removed, stop.
        piece = match (piece, removed) {
            (1, false) => 0,
            (1, true) => 1,
            _ => piece / 2,
        };
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Budget = Budget { attempts: 10_000, time: Duration::from_secs(60) };

    #[test]
    fn unneeded_items_are_removed() {
        let items: Vec<u32> = (0..500).collect();
        let needs = [3, 77, 78, 400];
        let mut tried = 0;
        let kept = minimise(&items, BUDGET, |part| {
            tried += 1;
            needs.iter().all(|need| part.contains(need))
        });
        assert_eq!(kept, needs);
        assert!(tried < 400, "{tried} attempts");
    }

    #[test]
    fn order_is_kept_if_all_items_are_needed() {
        let items = [5, 1, 4];
        assert_eq!(minimise(&items, BUDGET, |part| part == [5, 1, 4]), items);
    }

    #[test]
    fn a_failure_that_does_not_recur_keeps_all_items() {
        let items: Vec<u32> = (0..50).collect();
        assert_eq!(minimise(&items, BUDGET, |_| false), items);
    }

    #[test]
    fn the_budget_ends_the_search() {
        let items: Vec<u32> = (0..1000).collect();
        let mut tried = 0;
        let few = Budget { attempts: 5, ..BUDGET };
        minimise(&items, few, |_| {
            tried += 1;
            false
        });
        assert_eq!(tried, 5);
    }
}
