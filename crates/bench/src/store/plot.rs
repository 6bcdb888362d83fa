//! Figures of the store: a panel for each operation by resident items, and two by threads.

use super::operations::{Operation, Resident};
use super::report::Results;
use super::scaling::{Mix, ScalingFigures};
use crate::plot::{Axis, COLORS, Line, Panel, Stroke};

/// Returns the panels of a run, without those not measured.
pub fn panels(results: &Results) -> Vec<Panel> {
    let mut panels = Vec::new();
    if !results.resident.is_empty() {
        panels.extend(Operation::ALL.map(|operation| operation_panel(operation, &results.resident)));
    }
    if !results.scaling.is_empty() {
        let cpu = |scaled: &ScalingFigures| scaled.cpu_ns;
        panels.push(scaling_panel("CPU time by threads", "CPU ns an operation", results, &cpu));
        let rate = |scaled: &ScalingFigures| scaled.operations_per_s / 1e6;
        panels.push(scaling_panel("throughput by threads", "million operations/s", results, &rate));
    }
    panels
}

fn operation_panel(operation: Operation, resident: &[Resident]) -> Panel {
    let mut resident: Vec<&Resident> = resident.iter().collect();
    resident.sort_by_key(|one| one.items);
    let line = |name: &str, color, stroke, figure: &dyn Fn(&Resident) -> Option<f64>| Line {
        name: name.into(),
        color,
        stroke,
        points: resident.iter().filter_map(|one| Some((one.items as f64, figure(one)?))).collect(),
    };
    let cost = |one: &Resident| one.costs.iter().find(|cost| cost.operation == operation).cloned();
    let mut lines = vec![
        line("cold", COLORS[0], Stroke::Bold, &|one| cost(one)?.cold_ns),
        line("hot", COLORS[2], Stroke::Bold, &|one| cost(one)?.hot_ns),
        // Hot items may be in the cache.
        line("dependent load", COLORS[5], Stroke::Dashed, &|one| {
            cost(one)?.cold_ns.map(|_| one.floors.dependent_load_ns)
        }),
    ];
    if operation.copies_value() {
        let copy = |one: &Resident| Some(one.floors.copy_ns);
        lines.push(line("copy of the value", COLORS[1], Stroke::Dashed, &copy));
    }
    Panel {
        caption: operation.name().into(),
        x: Axis { title: "items", base: 10.0, label: count },
        y_title: "CPU ns an operation",
        y_from: 0.0,
        lines,
    }
}

fn scaling_panel(
    caption: &str,
    y_title: &'static str,
    results: &Results,
    figure: &dyn Fn(&ScalingFigures) -> f64,
) -> Panel {
    let line = |(mix, color): (Mix, _)| {
        let scaled = results.scaling.iter().filter(|scaled| scaled.mix == mix);
        let mut points: Vec<_> = scaled.map(|scaled| (scaled.threads as f64, figure(scaled))).collect();
        points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        Line { name: mix.name().into(), color, stroke: Stroke::Bold, points }
    };
    Panel {
        caption: format!("{caption}, {} items", count(results.scaling_items as f64)),
        x: Axis { title: "threads", base: 2.0, label: |threads| format!("{threads}") },
        y_title,
        y_from: 0.0,
        lines: Mix::ALL.into_iter().zip([COLORS[2], COLORS[0], COLORS[4]]).map(line).collect(),
    }
}

/// Formats a number briefly: 1, 10k, 100M.
fn count(number: f64) -> String {
    let (unit, factor) = match number {
        1e6.. => ("M", 1e6),
        1e3.. => ("k", 1e3),
        _ => ("", 1.0),
    };
    format!("{}{unit}", number / factor)
}

#[cfg(test)]
mod tests {
    use super::super::floors::Floors;
    use super::super::operations::Cost;
    use super::*;
    use crate::plot::tests::{check, texts};
    use crate::report::Header;

    fn resident(items: u64, ns: f64) -> Resident {
        let floors = Floors { bytes: 1 << 20, dependent_load_ns: 70.0, copy_ns: 4.0 };
        let cost = |operation| Cost {
            operation,
            cold_ns: (operation != Operation::Incr).then_some(ns),
            hot_ns: Some(ns / 2.0),
        };
        Resident { items, memory_bytes: 1 << 20, floors, costs: Operation::ALL.map(cost).to_vec() }
    }

    fn results() -> Results {
        let scaled = |mix, threads| ScalingFigures { mix, threads, cpu_ns: 500.0, operations_per_s: 2.5e6 };
        Results {
            header: Header::default(),
            value_bytes: 100,
            resident: vec![resident(100_000, 300.0), resident(1_000, 200.0)],
            instructions: None,
            scaling_items: 1_000_000,
            scaling: Mix::ALL.iter().flat_map(|mix| [1, 2, 4].map(|threads| scaled(*mix, threads))).collect(),
            stalls: Vec::new(),
        }
    }

    #[test]
    fn operations_and_threads_are_drawn() {
        let panels = panels(&results());
        assert_eq!(panels.len(), 8);
        assert_eq!(panels[0].lines[0].points, [(1_000.0, 200.0), (100_000.0, 300.0)]);
        assert_eq!(panels[7].lines[0].points, [(1.0, 2.5), (2.0, 2.5), (4.0, 2.5)]);
        let svg = check(&panels);
        for operation in Operation::ALL {
            assert_eq!(texts(&svg, operation.name()), 1, "{operation:?}");
        }
        for (text, times) in [
            ("cold", 5),
            ("hot", 6),
            ("dependent load", 5),
            ("copy of the value", 3),
            ("90% get", 2),
            ("10k", 6),
            ("throughput by threads, 1M items", 1),
        ] {
            assert_eq!(texts(&svg, text), times, "{text}");
        }
    }

    #[test]
    fn missing_measurements_have_no_panel() {
        let few = Results { resident: Vec::new(), ..results() };
        assert_eq!(panels(&few).len(), 2);
        assert!(panels(&Results { scaling: Vec::new(), ..few }).is_empty());
    }
}
