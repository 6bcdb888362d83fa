//! Miss ratios compared over all traces and sizes.

use std::fmt;

use serde::Serialize;

use super::report::Line;
use crate::trace::tally::Part;

/// How one column's miss ratios compare with another's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Which requests count.
    pub of: &'static str,
    /// The compared column.
    pub name: String,
    /// The column it is compared with.
    pub base: String,
    /// The number of ratios in the mean.
    pub count: u32,
    /// The mean of its misses over the base's, where the base misses anything.
    pub relative: Option<f64>,
    /// The largest difference: percentage points by which it misses more.
    pub behind_points: f64,
    /// Where the difference is the largest.
    pub behind_at: String,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { of, name, base, count, behind_points, behind_at, .. } = self;
        write!(f, "{of}: {name} over {base}: ")?;
        if let Some(relative) = self.relative {
            write!(f, "mean {relative:.4} of {count}, ")?;
        }
        write!(f, "largest difference {behind_points:+.3} points ({behind_at})")
    }
}

/// Returns summaries of all requests, of those after the warm-up, and of the reads of bursts.
pub fn of(
    lines: &[Line<'_>],
    (name, column): (&str, usize),
    (base, base_column): (&str, usize),
) -> Vec<Summary> {
    let place =
        |line: &Line<'_>, part, at| Some((line.ratio(column, part)?, line.ratio(base_column, part)?, at));
    let whole = |part| lines.iter().filter_map(|line| place(line, part, line.label())).collect();
    let bursts = lines.iter().flat_map(|line| {
        let at = |burst| format!("{}, burst {}", line.label(), burst + 1);
        (0..line.requests.bursts.len()).filter_map(move |burst| place(line, Part::Burst(burst), at(burst)))
    });
    let summary = |(of, ratios): (&'static str, Vec<(f64, f64, String)>)| {
        let (behind_points, behind_at) = ratios
            .iter()
            .map(|(ratio, base, at)| ((ratio - base) * 100.0, at.clone()))
            .max_by(|one, other| one.0.total_cmp(&other.0))?;
        let relative = ratios.iter().filter(|(_, base, _)| *base > 0.0).map(|(ratio, base, _)| ratio / base);
        let (count, sum) = relative.fold((0u32, 0.0), |(count, sum), relative| (count + 1, sum + relative));
        Some(Summary {
            of,
            name: name.into(),
            base: base.into(),
            count,
            relative: (count > 0).then(|| sum / f64::from(count)),
            behind_points,
            behind_at,
        })
    };
    let parts = [
        ("all requests", whole(Part::All)),
        ("after the warm-up", whole(Part::Warm)),
        ("reads of bursts", bursts.collect()),
    ];
    parts.into_iter().filter_map(summary).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::tally::Tally;

    #[test]
    fn means_and_largest_differences() {
        let tally = |all, warm, bursts: &[u64]| Tally { all, warm, bursts: bursts.to_vec() };
        let requests = [tally(100, 50, &[]), tally(100, 50, &[10, 10])];
        let ours = [tally(40, 10, &[]), tally(33, 20, &[0, 3])];
        let theirs = [tally(50, 20, &[]), tally(30, 25, &[0, 1])];
        let line = |at: usize, percent| Line {
            trace: ["one", "two"][at],
            percent,
            requests: &requests[at],
            misses: vec![Some(&ours[at]), Some(&theirs[at])],
        };
        let skipped = Line { misses: vec![None, Some(&theirs[0])], ..line(0, 1.0) };
        let summaries = of(&[line(0, 10.0), skipped, line(1, 30.0)], ("ours", 0), ("theirs", 1));
        let text: Vec<String> = summaries.iter().map(Summary::to_string).collect();
        assert_eq!(
            text,
            [
                "all requests: ours over theirs: mean 0.9500 of 2, largest difference +3.000 points (two 30%)",
                "after the warm-up: ours over theirs: mean 0.6500 of 2, largest difference -10.000 points (two 30%)",
                "reads of bursts: ours over theirs: mean 3.0000 of 1, largest difference +20.000 points \
                 (two 30%, burst 2)",
            ]
        );
    }
}
