//! Miss ratios as an SVG picture: a panel for each trace, a line for the store and each policy.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::compare::Row;
use super::policy::Name;

const COLUMNS: usize = 3;
const PANEL_WIDTH: u32 = 380;
const PANEL_HEIGHT: u32 = 300;
/// Of the store, then of the policies.
const COLORS: [RGBColor; 6] = [
    RGBColor(208, 28, 28),
    RGBColor(120, 120, 120),
    RGBColor(31, 119, 180),
    RGBColor(44, 140, 44),
    RGBColor(148, 103, 189),
    RGBColor(0, 0, 0),
];

/// Draws the rows of a run.
///
/// # Errors
/// The file cannot be written.
pub fn save(rows: &[Row], path: &Path) -> Result<()> {
    let svg = draw(rows).map_err(|error| anyhow!("cannot draw miss ratios: {error}"))?;
    std::fs::write(path, svg).map_err(|error| anyhow!("cannot write {}: {error}", path.display()))
}

type Drawn<T> = Result<T, Box<dyn std::error::Error>>;

fn draw(rows: &[Row]) -> Drawn<String> {
    let mut traces: Vec<&str> = rows.iter().map(|row| row.trace.as_str()).collect();
    traces.dedup();
    let lines = traces.len().div_ceil(COLUMNS).max(1);
    let size = (PANEL_WIDTH * COLUMNS as u32, PANEL_HEIGHT * lines as u32);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        let panels = root.split_evenly((lines, COLUMNS));
        for (panel, trace) in panels.iter().zip(traces) {
            let rows: Vec<&Row> = rows.iter().filter(|row| row.trace == trace).collect();
            draw_panel(panel, trace, &rows)?;
        }
        root.present()?;
    }
    Ok(svg)
}

fn draw_panel(panel: &DrawingArea<SVGBackend<'_>, Shift>, trace: &str, rows: &[&Row]) -> Drawn<()> {
    let percents = || rows.iter().map(|row| row.percent);
    let (from, to) = (percents().fold(f64::MAX, f64::min) * 0.8, percents().fold(0.0, f64::max) * 1.25);
    let lines = lines(rows);
    let highest = lines.iter().flat_map(|(_, points)| points).map(|point| point.1).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(panel)
        .caption(trace, ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(52)
        .build_cartesian_2d((from..to).log_scale(), 0.0..highest * 1.05)?;
    chart
        .configure_mesh()
        .x_desc("memory, % of the footprint")
        .y_desc("misses, %")
        .light_line_style(TRANSPARENT)
        .x_labels(4)
        .x_label_formatter(&|percent| format!("{percent}"))
        .y_labels(6)
        .draw()?;
    for ((name, points), color) in lines.into_iter().zip(COLORS) {
        let style = color.stroke_width(if name == "store" { 3 } else { 1 });
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 2, color.filled())))?;
        chart
            .draw_series(LineSeries::new(points, style))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
        .background_style(WHITE.mix(0.8))
        .label_font(("sans-serif", 11))
        .draw()?;
    Ok(())
}

/// Names, and points of percent and miss ratio.
fn lines<'r>(rows: &[&'r Row]) -> Vec<(&'r str, Vec<(f64, f64)>)> {
    let store = rows.iter().filter_map(|row| Some((row.percent, row.store_ratio()? * 100.0))).collect();
    let policy = |name: Name| {
        let points = rows.iter().map(|row| (row.percent, row.policy_ratio(name) * 100.0)).collect();
        (name.heading(), points)
    };
    [("store", store)].into_iter().chain(Name::ALL.map(policy)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(trace: &str, percent: f64, misses: u64) -> Row {
        Row {
            trace: trace.into(),
            percent,
            memory_bytes: 1,
            requests: 100,
            objects: 1,
            overhead_bytes: 0.0,
            store: None,
            policies: Name::ALL.map(|name| (name, misses)).to_vec(),
        }
    }

    #[test]
    fn every_trace_has_a_panel() {
        let rows = [row("one", 1.0, 50), row("one", 10.0, 20), row("two", 1.0, 60), row("three", 5.0, 7)];
        let svg = draw(&rows).expect("it can be drawn");
        for text in ["one", "two", "three", "S3-FIFO", "Belady", "store"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(draw(&[]).expect("nothing can be drawn").starts_with("<svg"));
    }
}
