//! A figure of items held by value size, relative to the last server and to the goal.

use super::fill::FilledServer;
use super::report::Results;
use crate::plot::{Axis, COLORS, Line, Panel, Stroke};

/// Returns the panels of a run.
pub fn panels(results: &Results) -> Vec<Panel> {
    let ratio = |one: &FilledServer| results.ratio(one);
    let ratios = results.filled.iter().map(ratio).filter(|ratio| ratio.is_finite());
    // The axis does not begin at zero, so that differences of a tenth are visible.
    let least = ratios.fold(1.0, f64::min);
    let payload = |one: &FilledServer| one.mix.mean_bytes() / one.bytes_per_item() * 100.0;
    vec![
        Panel {
            caption: format!("items in equal memory, to {}", results.header.base()),
            x: values(),
            y_title: "ratio",
            y_from: (least * 10.0 - 1.0).floor() / 10.0,
            lines: lines(results, &ratio),
        },
        Panel {
            caption: "key and value in resident memory".into(),
            x: values(),
            y_title: "%",
            y_from: 0.0,
            lines: lines(results, &payload),
        },
    ]
}

fn values() -> Axis {
    Axis { title: "value, bytes", base: 4.0, label: size }
}

/// Formats a size briefly: 1, 4K, 1M.
fn size(bytes: f64) -> String {
    let units = [("M", f64::from(1 << 20)), ("K", f64::from(1 << 10)), ("", 1.0)];
    let (unit, factor) = units.into_iter().find(|(_, factor)| bytes >= *factor).unwrap_or(("", 1.0));
    format!("{}{unit}", bytes / factor)
}

/// Returns a line per server through the mixes of one size, and one along all sizes for each other mix.
fn lines(results: &Results, figure: &dyn Fn(&FilledServer) -> f64) -> Vec<Line> {
    let mut all = Vec::new();
    for ((server, _), color) in results.header.servers.iter().zip(COLORS.into_iter().cycle()) {
        let stroke = if server == results.header.base() { Stroke::Thin } else { Stroke::Bold };
        let mut points = Vec::new();
        let mut mixed = Vec::new();
        for one in results.filled.iter().filter(|one| one.server == *server) {
            let (least, most) = one.mix.value_bytes;
            let along = [least, most].map(|bytes| (bytes as f64, figure(one)));
            if least == most {
                points.push(along[0]);
            } else {
                let name = format!("{server}, {}", one.mix.name);
                mixed.push(Line { name, color, stroke: Stroke::Dashed, points: along.to_vec() });
            }
        }
        points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        all.push(Line { name: server.clone(), color, stroke, points });
        all.append(&mut mixed);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::mix::Mix;
    use super::*;
    use crate::plot::tests::{check, texts};
    use crate::report::{Header, ServersHeader};

    fn filled(server: &str, mix: Mix, items: u64) -> FilledServer {
        FilledServer {
            server: server.into(),
            mix,
            megabytes: 1,
            stored: 2 * items,
            refused: 0,
            items,
            found: 1,
            sampled: 2,
            resident_bytes: 1 << 20,
            overhead_bytes: None,
        }
    }

    fn results(filled: Vec<FilledServer>) -> Results {
        let servers = ["ours", "theirs"].map(|name| (name.into(), "1.0".into())).to_vec();
        let run = Header::default();
        Results { header: ServersHeader { run, servers, method: String::new() }, filled }
    }

    #[test]
    fn every_server_has_a_line_and_one_for_mixed_sizes() {
        let results = results(vec![
            filled("ours", Mix::small(), 1_500),
            filled("theirs", Mix::small(), 1_000),
            filled("ours", Mix::of_values(1_000), 50),
            filled("theirs", Mix::of_values(1_000), 100),
            filled("ours", Mix::of_values(10), 300),
            filled("theirs", Mix::of_values(10), 200),
        ]);
        let panels = panels(&results);
        let [ratio, payload] = panels.as_slice() else { panic!("{panels:?}") };
        let points = |panel: &Panel, name: &str| {
            let line = panel.lines.iter().find(|line| line.name == name);
            line.map(|line| line.points.clone()).expect("a line of that name")
        };
        assert_eq!(points(ratio, "ours"), [(10.0, 1.5), (1_000.0, 0.5)]);
        assert_eq!(points(ratio, "theirs"), [(10.0, 1.0), (1_000.0, 1.0)]);
        assert_eq!(points(ratio, "ours, small"), [(10.0, 1.5), (200.0, 1.5)]);
        assert_eq!(ratio.y_from, 0.4);
        let share = 100.0 * 1_020.0 * 50.0 / f64::from(1 << 20);
        assert!((points(payload, "ours")[1].1 - share).abs() < 1e-9);
        let svg = check(&panels);
        for text in ["ours", "theirs", "ours, small", "theirs, small"] {
            assert_eq!(texts(&svg, text), 2, "{text}");
        }
        assert_eq!(texts(&svg, "items in equal memory, to theirs"), 1);
    }

    #[test]
    fn sizes_are_brief() {
        assert_eq!([1.0, 256.0, 4096.0, 1_048_576.0].map(size), ["1", "256", "4K", "1M"]);
    }
}
