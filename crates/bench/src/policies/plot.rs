//! Miss ratios as a figure: a panel per trace, a line for the store and each policy.

use super::compare::Row;
use super::policy::Name;
use crate::plot::{Axis, COLORS, Line, Panel, Stroke};

/// Returns the panels of a run.
pub fn panels(rows: &[Row]) -> Vec<Panel> {
    let mut traces: Vec<&str> = rows.iter().map(|row| row.trace.as_str()).collect();
    traces.dedup();
    let panel = |trace: &str| {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.trace == trace).collect();
        Panel {
            caption: trace.to_owned(),
            x: Axis {
                title: "memory, % of the footprint",
                base: 10.0,
                label: |percent| format!("{percent}"),
            },
            y_title: "misses, %",
            y_from: 0.0,
            lines: lines(&rows),
        }
    };
    traces.into_iter().map(panel).collect()
}

fn lines(rows: &[&Row]) -> Vec<Line> {
    let store = rows.iter().filter_map(|row| Some((row.percent, row.store_ratio()? * 100.0))).collect();
    let policy = |name: Name| {
        let points = rows.iter().map(|row| (row.percent, row.policy_ratio(name) * 100.0)).collect();
        (name.heading(), Stroke::Thin, points)
    };
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

    fn row(trace: &str, percent: f64, misses: u64) -> Row {
        Row {
            trace: trace.into(),
            percent,
            memory_bytes: 1,
            requests: 100,
            objects: 1,
            overhead_bytes: 0.0,
            store: (percent < 10.0).then(|| StoreRun { misses, ..StoreRun::default() }),
            policies: Name::ALL.map(|name| (name, misses)).to_vec(),
        }
    }

    #[test]
    fn every_trace_has_a_panel() {
        let rows = [row("one", 1.0, 50), row("one", 10.0, 20), row("two", 1.0, 60), row("three", 5.0, 7)];
        let svg = check(&panels(&rows));
        for text in ["one", "two", "three"] {
            assert_eq!(texts(&svg, text), 1, "{text}");
        }
        for text in Name::ALL.map(Name::heading).into_iter().chain(["store"]) {
            assert_eq!(texts(&svg, text), 3, "{text}");
        }
        assert_eq!(panels(&rows)[0].lines[0].points, [(1.0, 50.0)]);
    }
}
