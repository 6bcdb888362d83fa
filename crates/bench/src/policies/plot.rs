//! Miss ratios as a figure: two panels per trace, of all requests and of those after the warm-up, with a line for the
//! store and each policy.

use super::compare::Row;
use super::policy::Name;
use crate::plot::{Axis, COLORS, Line, Panel, Stroke};
use crate::trace::tally::Part;

/// Returns the panels of a run.
pub fn panels(rows: &[Row]) -> Vec<Panel> {
    let mut traces: Vec<&str> = rows.iter().map(|row| row.trace.as_str()).collect();
    traces.dedup();
    let panel = |trace: &str, part: Part, suffix: &str| {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.trace == trace).collect();
        Panel {
            caption: format!("{trace}{suffix}"),
            x: Axis {
                title: "memory, % of the footprint",
                base: 10.0,
                label: |percent| format!("{percent}"),
            },
            y_title: "misses, %",
            y_from: 0.0,
            lines: lines(&rows, part),
        }
    };
    let both = |trace| [panel(trace, Part::All, ""), panel(trace, Part::Warm, ", after warm-up")];
    traces.into_iter().flat_map(both).collect()
}

fn lines(rows: &[&Row], part: Part) -> Vec<Line> {
    let points = |ratio: &dyn Fn(&Row) -> Option<f64>| {
        rows.iter().filter_map(|row| Some((row.percent, ratio(row)? * 100.0))).collect()
    };
    let store = points(&|row| row.store_ratio(part));
    let policy = |name: Name| (name.heading(), Stroke::Thin, points(&|row| row.policy_ratio(name, part)));
    let all = [("store", Stroke::Bold, store)].into_iter().chain(Name::ALL.map(policy));
    let line = |((name, stroke, points), color): ((&str, _, _), _)| Line {
        name: name.to_owned(),
        color,
        stroke,
        points,
    };
    all.zip(COLORS).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::replay::StoreRun;
    use super::*;
    use crate::plot::tests::{check, texts};
    use crate::trace::tally::Tally;

    fn row(trace: &str, percent: f64, misses: u64) -> Row {
        let misses = Tally { all: misses, warm: misses / 2, bursts: Vec::new() };
        Row {
            trace: trace.into(),
            percent,
            memory_bytes: 1,
            requests: Tally { all: 100, warm: 80, bursts: Vec::new() },
            objects: 1,
            overhead_bytes: 0.0,
            store: (percent < 10.0).then(|| StoreRun { misses: misses.clone(), ..StoreRun::default() }),
            policies: Name::ALL.map(|name| (name, misses.clone())).to_vec(),
        }
    }

    #[test]
    fn every_trace_has_two_panels() {
        let rows = [row("one", 1.0, 50), row("one", 10.0, 20), row("two", 1.0, 60), row("three", 5.0, 7)];
        let svg = check(&panels(&rows));
        for text in ["one", "two", "three"] {
            assert_eq!(texts(&svg, text), 1, "{text}");
            assert_eq!(texts(&svg, &format!("{text}, after warm-up")), 1, "{text}");
        }
        for text in Name::ALL.map(Name::heading).into_iter().chain(["store"]) {
            assert_eq!(texts(&svg, text), 6, "{text}");
        }
        assert_eq!(panels(&rows)[0].lines[0].points, [(1.0, 50.0)]);
        assert_eq!(panels(&rows)[1].lines[0].points, [(1.0, 31.25)]);
    }
}
