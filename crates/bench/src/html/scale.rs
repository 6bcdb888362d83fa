//! The scale of an axis: positions of numbers, and the labelled ones.

/// Maximum number of decades on a logarithmic axis.
const DECADES_MAX: f64 = 15.0;

/// A linear or logarithmic range of numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    from: f64,
    to: f64,
    is_log: bool,
}

impl Scale {
    /// Returns a scale for all finite numbers: linear ones begin at zero, logarithmic ones omit numbers
    /// that are not positive. With `room` it extends beyond the last.
    pub(super) fn holding(numbers: impl Iterator<Item = f64>, is_log: bool, room: bool) -> Scale {
        let mut from = f64::INFINITY;
        let mut to = f64::NEG_INFINITY;
        for number in numbers.filter(|number| number.is_finite() && (!is_log || *number > 0.0)) {
            from = from.min(number);
            to = to.max(number);
        }
        if from > to {
            (from, to) = (1.0, 1.0);
        }
        if is_log {
            from = from.max(to / 10f64.powf(DECADES_MAX)).max(f64::MIN_POSITIVE);
            let part = if from == to { 2.0 } else { (to / from).powf(if room { 0.08 } else { 0.03 }) };
            return Scale { from: from / part, to: (to * part).min(f64::MAX), is_log };
        }
        let from = from.min(0.0);
        let to = if to <= from { from + 1.0 } else { to };
        let to = if room { to + (to - from) * 0.08 } else { to };
        Scale { from, to: to.min(f64::MAX), is_log }
    }

    /// Returns a scale from the least to the greatest number, with some room on both sides.
    pub(super) fn between(numbers: impl Iterator<Item = f64>, is_log: bool) -> Scale {
        if is_log {
            return Scale::holding(numbers, true, false);
        }
        let (mut from, mut to) = (f64::INFINITY, f64::NEG_INFINITY);
        for number in numbers.filter(|number| number.is_finite()) {
            (from, to) = (from.min(number), to.max(number));
        }
        let room = match to - from {
            span if span > 0.0 && span.is_finite() => span * 0.05,
            _ => return Scale::holding([from, to].into_iter(), false, true),
        };
        Scale::linear(from - room, to + room)
    }

    /// Returns a linear scale with exactly these ends.
    pub(super) fn linear(from: f64, to: f64) -> Scale {
        Scale { from, to, is_log: false }
    }

    /// Returns the position of a number, from 0 to 1; outside numbers are at the edge.
    pub(super) fn at(self, number: f64) -> f64 {
        let (from, to, number) = if self.is_log {
            (self.from.ln(), self.to.ln(), number.max(f64::MIN_POSITIVE).ln())
        } else {
            (self.from, self.to, number)
        };
        let part = (number / 2.0 - from / 2.0) / (to / 2.0 - from / 2.0);
        if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Returns round numbers, at most about `count` of them.
    pub(super) fn ticks(self, count: usize) -> Vec<f64> {
        if self.is_log { self.log_ticks(count) } else { self.linear_ticks(count) }
    }

    fn linear_ticks(self, count: usize) -> Vec<f64> {
        let span = self.to - self.from;
        if !(span.is_finite() && span > 0.0) {
            return vec![self.from];
        }
        let rough = span / count.max(1) as f64;
        let power = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0];
        let step = steps.iter().map(|step| step * power).find(|step| *step >= rough).unwrap_or(rough);
        let first = (self.from / step).ceil();
        (0..=count + 1)
            .map(|i| (first + i as f64) * step)
            .filter(|tick| *tick <= self.to * 1.000_001)
            .collect()
    }

    fn log_ticks(self, count: usize) -> Vec<f64> {
        let powers = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
        let inside = |tick: &f64| (self.from..=self.to).contains(tick);
        let of = |digits: &[f64]| -> Vec<f64> {
            let all =
                powers.clone().flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)));
            all.filter(inside).collect()
        };
        let mut ticks = Vec::new();
        for digits in
            [&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0][..], &[1.0, 2.0, 5.0], &[1.0, 3.0], &[1.0]]
        {
            ticks = of(digits);
            if ticks.len() <= count {
                break;
            }
        }
        let step = ticks.len().div_ceil(count.max(1)).max(1);
        let thinned: Vec<f64> = ticks.iter().copied().step_by(step).collect();
        // The range may be too narrow for round numbers.
        if thinned.len() < 2 { vec![self.from, self.to] } else { thinned }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let scale = Scale::holding([3.0, 97.0].into_iter(), false, false);
        assert_eq!(scale.ticks(5), [0.0, 20.0, 40.0, 60.0, 80.0]);
        assert_eq!((scale.at(0.0), scale.at(97.0), scale.at(200.0)), (0.0, 1.0, 1.0));
        let log = Scale::holding([900.0, 120_000.0].into_iter(), true, true);
        assert_eq!(log.ticks(6), [1e3, 3e3, 1e4, 3e4, 1e5]);
        assert!(log.at(900.0) > 0.0 && log.at(120_000.0) < 1.0);
    }

    #[test]
    fn anything_has_a_scale() {
        for numbers in [
            vec![],
            vec![f64::NAN],
            vec![0.0],
            vec![5.0],
            vec![-3.0, 4.0],
            vec![f64::MAX, f64::MIN],
            vec![5e-324, 1e308],
            vec![1.000, 1.001],
        ] {
            for is_log in [false, true] {
                let scale = Scale::holding(numbers.iter().copied(), is_log, true);
                let ticks = scale.ticks(6);
                let between = Scale::between(numbers.iter().copied(), is_log);
                assert!(
                    numbers.iter().all(|number| (0.0..=1.0).contains(&between.at(*number))),
                    "{numbers:?}"
                );
                assert!(!ticks.is_empty() && ticks.len() <= 8, "{numbers:?} {is_log} {ticks:?}");
                for number in &numbers {
                    assert!((0.0..=1.0).contains(&scale.at(*number)), "{numbers:?} {is_log}");
                }
            }
        }
    }
}
