//! Figures of shared memory: reads by value size, beside a copy and the other server, and requests by
//! the number in flight.

use super::gets::Gets;
use super::report::Results;
use crate::plot::{Axis, COLORS, Line, Panel, Stroke};

/// Returns the panels of a run.
pub fn panels(results: &Results) -> Vec<Panel> {
    let bandwidth = by_value(
        results,
        "bytes a second, of a copy's",
        "percent",
        &[
            ("hot", Stroke::Dashed, |gets| 100.0 * gets.floors.copy_hot_ns / gets.hot.p50_ns),
            ("cold", Stroke::Bold, |gets| 100.0 * gets.floors.copy_cold_ns / gets.cold.p50_ns),
        ],
    );
    let beside = by_value(
        results,
        "hot reads beside the other server",
        "its median over ours",
        &[("hot", Stroke::Bold, Gets::against_to_hot)],
    );
    vec![bandwidth, beside, windows(results)]
}

/// A name, its line style, and its value.
type Figure = (&'static str, Stroke, fn(&Gets) -> f64);

/// Returns a line per figure and number of items.
fn by_value(results: &Results, caption: &str, y_title: &'static str, figures: &[Figure]) -> Panel {
    let gets = &results.figures.gets;
    let mut items: Vec<u64> = gets.iter().map(|gets| gets.wanted_items).collect();
    items.sort_unstable();
    items.dedup();
    let line = |items: u64, color, (name, stroke, figure): &Figure| {
        let of_items = gets.iter().filter(|gets| gets.wanted_items == items);
        let mut points: Vec<_> = of_items.map(|gets| (gets.value_bytes as f64, figure(gets))).collect();
        points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        Line { name: format!("{name}, {items} items"), color, stroke: *stroke, points }
    };
    let colors = [COLORS[0], COLORS[2], COLORS[3], COLORS[4]];
    let lines = items.iter().zip(colors.into_iter().cycle());
    let lines = lines.flat_map(|(items, color)| figures.iter().map(move |figure| (*items, color, figure)));
    let x = Axis { title: "bytes of a value", base: 10.0, label: |bytes| format!("{bytes}") };
    Panel {
        caption: caption.into(),
        x,
        y_title,
        y_from: 0.0,
        lines: lines.map(|(items, color, figure)| line(items, color, figure)).collect(),
    }
}

fn windows(results: &Results) -> Panel {
    let lines =
        results.figures.sets.iter().zip([COLORS[0], COLORS[2], COLORS[1]]).flat_map(|(requests, color)| {
            let line = |name: &str, stroke, per_s: fn(&super::sets::Window) -> f64| Line {
                name: format!("{name}, {}", requests.way),
                color,
                stroke,
                points: requests.windows.iter().map(|w| (w.requests as f64, per_s(w) / 1e3)).collect(),
            };
            [
                line("iset", Stroke::Bold, |window| window.iset_per_s),
                line("bset", Stroke::Dashed, |window| window.bset_per_s),
            ]
        });
    Panel {
        caption: "SETs by how many are in flight".into(),
        x: Axis { title: "in flight", base: 2.0, label: |requests| format!("{requests}") },
        y_title: "thousand/s",
        y_from: 0.0,
        lines: lines.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::results;
    use super::*;
    use crate::plot::tests::{check, texts};

    #[test]
    fn reads_and_requests_are_drawn() {
        let panels = panels(&results());
        let svg = check(&panels);
        assert_eq!(panels[0].lines[1].points, [(64.0, 20.0), (65_536.0, 20.0)]);
        assert_eq!(panels[1].lines[1].points, [(64.0, 500.0)]);
        assert_eq!(panels[2].lines[0].points, [(1.0, 1_000.0), (8.0, 1_000.0), (32.0, 1_000.0)]);
        for (text, times) in [("cold, 1000 items", 1), ("hot, 100000 items", 2), ("bset, theirs", 1)] {
            assert_eq!(texts(&svg, text), times, "{text}");
        }
    }
}
