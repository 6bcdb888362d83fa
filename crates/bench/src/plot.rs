//! Figures as SVG: panels side by side, each with lines over a logarithmic axis and a legend.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;

const COLUMNS: usize = 3;
const CHART_WIDTH: u32 = 380;
const PANEL_HEIGHT: u32 = 300;
/// Font height of the legend.
const FONT_HEIGHT: i32 = 11;
/// Width of a character at that height in most fonts; the pictures name no font.
const CHARACTER_WIDTH: i32 = 7;
/// Width of the stroke before a name.
const SAMPLE_WIDTH: i32 = 16;
const GAP: i32 = 6;
/// The legend begins here, below the caption and a margin.
const NAMES_TOP: i32 = 40;
/// Maximum number of labelled parts of the x axis. From ten on, plotters would put lines between
/// powers.
const X_LABELS: usize = 9;

/// The first color is for the measured server, the others for the servers compared with it.
pub const COLORS: [RGBColor; 6] = [
    RGBColor(208, 28, 28),
    RGBColor(120, 120, 120),
    RGBColor(31, 119, 180),
    RGBColor(44, 140, 44),
    RGBColor(148, 103, 189),
    RGBColor(0, 0, 0),
];

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    /// The measured server.
    Bold,
    /// The baseline.
    Thin,
    /// A bound, or a figure measured differently.
    Dashed,
}

/// A line through points.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Its color.
    pub color: RGBColor,
    /// The style.
    pub stroke: Stroke,
    /// The points; those that are not finite are left out.
    pub points: Vec<(f64, f64)>,
}

/// A logarithmic axis.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// The axis title with its unit.
    pub title: &'static str,
    /// Its labels are at powers of this.
    pub base: f64,
    /// Formats a label.
    pub label: fn(f64) -> String,
}

/// A chart with a caption.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Its caption.
    pub caption: String,
    /// The x axis.
    pub x: Axis,
    /// The title of the y axis with its unit.
    pub y_title: &'static str,
    /// The least value of the y axis.
    pub y_from: f64,
    /// The lines; earlier ones are drawn below later ones.
    pub lines: Vec<Line>,
}

/// Draws panels to a file.
///
/// # Errors
/// The file cannot be written.
pub fn save(panels: &[Panel], path: &Path) -> Result<()> {
    let svg = draw(panels).map_err(|error| anyhow!("cannot draw {}: {error}", path.display()))?;
    std::fs::write(path, svg).map_err(|error| anyhow!("cannot write {}: {error}", path.display()))
}

type Drawn<T> = Result<T, Box<dyn std::error::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw(panels: &[Panel]) -> Drawn<String> {
    let panels: Vec<Panel> = panels.iter().cloned().filter_map(Panel::of_finite).collect();
    let names = panels.iter().flat_map(|panel| &panel.lines).map(|line| line.name.chars().count());
    let names_width = SAMPLE_WIDTH + 3 * GAP + CHARACTER_WIDTH * names.max().unwrap_or(0) as i32;
    let columns = panels.len().clamp(1, COLUMNS);
    let rows = panels.len().div_ceil(columns).max(1);
    let width = (CHART_WIDTH + names_width as u32) * columns as u32;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (width, PANEL_HEIGHT * rows as u32)).into_drawing_area();
        root.fill(&WHITE)?;
        for (area, panel) in root.split_evenly((rows, columns)).iter().zip(&panels) {
            let (chart, names) = area.split_horizontally(CHART_WIDTH);
            draw_chart(&chart, panel)?;
            draw_names(&names, &panel.lines)?;
        }
        root.present()?;
    }
    Ok(svg)
}

fn draw_chart(area: &Area<'_>, panel: &Panel) -> Drawn<()> {
    let (x_from, x_to) = panel.x_range();
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.caption, ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(60)
        .build_cartesian_2d((x_from..x_to).log_scale().base(panel.x.base), panel.y_from..panel.y_to())?;
    chart
        .configure_mesh()
        .x_desc(panel.x.title)
        .y_desc(panel.y_title)
        .light_line_style(TRANSPARENT)
        .x_labels(X_LABELS)
        .x_label_formatter(&|x| (panel.x.label)(*x))
        .y_labels(6)
        // Sums of steps are inexact.
        .y_label_formatter(&|y| format!("{}", (y * 1e6).round() / 1e6))
        .draw()?;
    for line in &panel.lines {
        let points = line.points.iter().copied();
        chart.draw_series(points.clone().map(|point| Circle::new(point, 2, line.color.filled())))?;
        match line.stroke {
            Stroke::Dashed => chart.draw_series(DashedLineSeries::new(points, 4, 3, line.style()))?,
            Stroke::Bold | Stroke::Thin => chart.draw_series(LineSeries::new(points, line.style()))?,
        };
    }
    Ok(())
}

fn draw_names(area: &Area<'_>, lines: &[Line]) -> Drawn<()> {
    for (row, line) in (0..).zip(lines) {
        let middle = NAMES_TOP + row * (FONT_HEIGHT + 3);
        let sample = [(GAP, middle), (GAP + SAMPLE_WIDTH, middle)];
        match line.stroke {
            Stroke::Dashed => area.draw(&DashedPathElement::new(sample, 4, 3, line.style()))?,
            Stroke::Bold | Stroke::Thin => area.draw(&PathElement::new(sample, line.style()))?,
        }
        let beside = (SAMPLE_WIDTH + 2 * GAP, middle - FONT_HEIGHT / 2);
        area.draw(&Text::new(line.name.clone(), beside, ("sans-serif", FONT_HEIGHT)))?;
    }
    Ok(())
}

impl Line {
    fn style(&self) -> ShapeStyle {
        self.color.stroke_width(if self.stroke == Stroke::Bold { 3 } else { 1 })
    }
}

impl Panel {
    /// Drops points that are not finite, and empty lines; `None` if nothing is left.
    fn of_finite(mut self) -> Option<Panel> {
        for line in &mut self.lines {
            line.points.retain(|(x, y)| x.is_finite() && y.is_finite());
        }
        self.lines.retain(|line| !line.points.is_empty());
        (!self.lines.is_empty()).then_some(self)
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        self.lines.iter().flat_map(|line| line.points.iter().copied())
    }

    /// Returns the range of all points with some room, and at least one power of the base.
    fn x_range(&self) -> (f64, f64) {
        let from = self.points().map(|(x, _)| x).fold(f64::MAX, f64::min) * 0.8;
        let to = self.points().map(|(x, _)| x).fold(0.0, f64::max) * 1.25;
        let power = self.x.base.powf(to.log(self.x.base).floor());
        (from.min(power * 0.99), to)
    }

    fn y_to(&self) -> f64 {
        let highest = self.points().map(|(_, y)| y).fold(self.y_from, f64::max);
        if highest > self.y_from { highest * 1.05 } else { self.y_from + 1.0 }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Draws panels; asserts that each line's name appears, and that tags are closed.
    pub(crate) fn check(panels: &[Panel]) -> String {
        let svg = draw(panels).expect("it can be drawn");
        let mut open = Vec::new();
        for tag in svg.split('<').skip(1) {
            let (tag, _) = tag.split_once('>').expect("a tag ends");
            let name = tag.split_whitespace().next().expect("a tag has a name");
            if let Some(name) = name.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name));
            } else if !tag.ends_with('/') {
                open.push(name);
            }
        }
        assert!(open.is_empty() && svg.starts_with("<svg "), "{open:?}");
        for line in panels.iter().flat_map(|panel| &panel.lines) {
            let lines = panels.iter().flat_map(|panel| &panel.lines);
            let drawn = lines.filter(|other| other.name == line.name && !other.points.is_empty()).count();
            assert_eq!(texts(&svg, &line.name), drawn, "{}", line.name);
        }
        svg
    }

    /// Returns how often a text appears.
    pub(crate) fn texts(svg: &str, text: &str) -> usize {
        svg.lines().filter(|line| *line == text).count()
    }

    fn panel(points: &[(f64, f64)]) -> Panel {
        let line = |name: &str, stroke| Line {
            name: name.into(),
            color: COLORS[0],
            stroke,
            points: points.to_vec(),
        };
        Panel {
            caption: "a caption".into(),
            x: Axis { title: "items", base: 10.0, label: |x| format!("{x}") },
            y_title: "ns",
            y_from: 0.0,
            lines: vec![line("one", Stroke::Bold), line("two", Stroke::Thin), line("three", Stroke::Dashed)],
        }
    }

    #[test]
    fn every_line_is_drawn_and_named() {
        let svg = check(&[panel(&[(1.0, 2.0), (20.0, 3.0)])]);
        for text in ["a caption", "items", "ns", "one", "two", "three", "10"] {
            assert_eq!(texts(&svg, text), 1, "{text}");
        }
        assert_eq!(svg.matches("<circle").count(), 6);
        assert!(svg.contains("stroke-width=\"3\""));
    }

    #[test]
    fn axes_hold_all_points_and_a_label() {
        let panel = panel(&[(4_000.0, 7.0), (5_000.0, 2.0)]);
        assert_eq!((panel.x_range(), panel.y_to()), ((990.0, 6_250.0), 7.0 * 1.05));
        assert_eq!(texts(&check(&[panel]), "1000"), 1);
    }

    #[test]
    fn points_that_are_not_finite_are_left_out() {
        let svg = check(&[panel(&[(1.0, f64::NAN), (2.0, 3.0), (3.0, f64::INFINITY)])]);
        assert_eq!(svg.matches("<circle").count(), 3);
        assert_eq!(texts(&check(&[panel(&[]), panel(&[(1.0, 0.0)])]), "a caption"), 1);
        assert!(check(&[]).contains("<rect"));
    }
}
