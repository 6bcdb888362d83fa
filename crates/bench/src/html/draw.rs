//! Figures as SVG, with colors from the page's style sheet.
//!
//! Series are distinguished by color, and also by marks, dashes or numbers.

use std::fmt::Write as _;

use super::figure::{Axis, Drawing, Figure, Group, Mark, Point, Series};
use super::scale::Scale;
use super::text::{Unit, escape};

const WIDTH: f64 = 360.0;
/// Number of colors and marks before they repeat.
pub(super) const SLOTS: usize = 8;
/// Number of dash patterns.
const DASHES: usize = 4;

const LEFT: f64 = 54.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 40.0;
const CHART_HEIGHT: f64 = 236.0;
/// Width of a label's character in most fonts.
const CHARACTER_WIDTH: f64 = 6.2;
/// From the x axis to the baseline of its labels, which are below those of the y axis.
const LABEL_DROP: f64 = 18.0;
/// Minimum distance between labels of the x axis.
const LABEL_GAP: f64 = 6.0;
const Y_TICKS: usize = 6;
const X_TICKS: usize = 6;

/// Maximum number of characters of a name above bars.
const NAME_MAX: usize = 50;

const BAR_HEIGHT: f64 = 14.0;
const BAR_LEFT: f64 = 16.0;
/// Width of the text to the right of a bar.
const BAR_RIGHT: f64 = 74.0;
/// A part narrower than this has no number.
const NUMBERED_WIDTH_MIN: f64 = 12.0;

/// Marks of lines, around 0 0.
const MARKS: [&str; SLOTS] = [
    "M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z",
    "M-3-3h6v6h-6z",
    "M0-4L3.8 3h-7.6z",
    "M0-4.2L4.2 0L0 4.2L-4.2 0z",
    "M0 4L3.8-3h-7.6z",
    "M-4.5-1.8h9v3.6h-9z",
    "M-1.8-4.5h3.6v9h-3.6z",
    "M-4-1.3L0-4.2L4-1.3L2.5 3.4h-5z",
];

/// Draws a figure and its legend.
pub(super) fn draw(figure: &Figure, id: &str) -> String {
    match &figure.drawing {
        Drawing::Lines { x, y, series } => {
            format!("{}{}", lines(figure, id, x, y, series), legend_of_lines(series))
        }
        Drawing::Bars { unit, series, groups } => {
            let legend = if series.len() > 1 { legend_of_bars(series) } else { String::new() };
            format!("{}{legend}", bars(figure, id, *unit, series.len() > 1, groups))
        }
        Drawing::Stacks { unit, parts, rows } => {
            format!("{}{}", stacks(figure, id, *unit, rows), legend_of_bars(parts))
        }
    }
}

fn open(figure: &Figure, id: &str, height: f64) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=img aria-labelledby=\"{id}-t {id}-d\"><title id={id}-t>{}</title><desc \
         id={id}-d>{}</desc>\n",
        escape(&figure.title),
        escape(&figure.description)
    )
}

fn lines(figure: &Figure, id: &str, x: &Axis, y: &Axis, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|series| &series.points);
    let x_scale = Scale::between(points().map(|point| point.x), x.is_log);
    let in_y = points().flat_map(|point| [point.y, point.range.0, point.range.1]);
    let y_scale =
        if y.unit == Unit::Part { Scale::linear(0.0, 1.0) } else { Scale::holding(in_y, y.is_log, true) };
    let at_x = |number: f64| LEFT + x_scale.at(number) * (WIDTH - LEFT - RIGHT);
    let at_y = |number: f64| CHART_HEIGHT - BOTTOM - y_scale.at(number) * (CHART_HEIGHT - TOP - BOTTOM);
    let mut svg = open(figure, id, CHART_HEIGHT);
    let bottom = CHART_HEIGHT - BOTTOM;
    let right = WIDTH - RIGHT;
    for tick in y_scale.ticks(Y_TICKS) {
        let at = at_y(tick);
        let _ = writeln!(svg, "<path class=grid d=\"M{LEFT} {at:.1}H{right}\"/>");
        let _ = writeln!(
            svg,
            "<text class=end x={} y={:.1}>{}</text>",
            LEFT - 5.0,
            at + 3.5,
            escape(&y.unit.short(tick))
        );
    }
    for tick in x_ticks(x, x_scale, series, at_x) {
        let at = at_x(tick);
        let _ = writeln!(svg, "<path class=grid d=\"M{at:.1} {TOP}V{bottom}\"/>");
        let label = x.unit.short(tick);
        let at = label_middle(&label, at);
        let _ =
            writeln!(svg, "<text class=middle x={at:.1} y={}>{}</text>", bottom + LABEL_DROP, escape(&label));
    }
    let _ = writeln!(svg, "<path class=axis d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>");
    let middle = (LEFT + right) / 2.0;
    let _ =
        writeln!(svg, "<text class=middle x={middle} y={}>{}</text>", CHART_HEIGHT - 6.0, escape(&x.title));
    for line in series {
        svg.push_str(&draw_line(line, x.unit, y.unit, at_x, at_y));
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns ticks at the measured positions if their labels have room; otherwise at round numbers.
fn x_ticks(x: &Axis, scale: Scale, series: &[Series], at: impl Fn(f64) -> f64) -> Vec<f64> {
    let mut numbers: Vec<f64> =
        series.iter().flat_map(|series| series.points.iter().map(|point| point.x)).collect();
    numbers.sort_unstable_by(f64::total_cmp);
    numbers.dedup();
    numbers.retain(|number| number.is_finite() && (!x.is_log || *number > 0.0));
    if numbers.len() > 32 {
        numbers = scale.ticks(X_TICKS);
    }
    let mut ticks: Vec<f64> = Vec::new();
    let mut right = f64::NEG_INFINITY;
    for number in numbers {
        let label = x.unit.short(number);
        let middle = label_middle(&label, at(number));
        if middle - label_width(&label) / 2.0 >= right + LABEL_GAP {
            right = middle + label_width(&label) / 2.0;
            ticks.push(number);
        }
    }
    ticks
}

/// Moves a label's middle so that the edge does not cut it.
fn label_middle(label: &str, at: f64) -> f64 {
    at.min(WIDTH - 1.0 - label_width(label) / 2.0)
}

/// Returns an upper bound of a label's width in most fonts.
fn label_width(label: &str) -> f64 {
    label.chars().count() as f64 * CHARACTER_WIDTH
}

fn draw_line(
    line: &Series,
    x: Unit,
    y: Unit,
    at_x: impl Fn(f64) -> f64,
    at_y: impl Fn(f64) -> f64,
) -> String {
    let mut path = String::new();
    let mut marks = String::new();
    let mut last = None;
    let finite: Vec<&Point> =
        line.points.iter().filter(|point| point.x.is_finite() && point.y.is_finite()).collect();
    for (index, point) in finite.iter().enumerate() {
        let at = (at_x(point.x), at_y(point.y));
        // Invisible steps are omitted, or files would be huge.
        let is_seen = last.is_none_or(|(x, y): (f64, f64)| (x - at.0).abs() + (y - at.1).abs() >= 0.7);
        if is_seen || index + 1 == finite.len() || point.mark != Mark::None {
            let _ = write!(path, "{}{:.1} {:.1}", if last.is_none() { 'M' } else { 'L' }, at.0, at.1);
            last = Some(at);
        }
        let (low, high) = (at_y(point.range.0), at_y(point.range.1));
        if point.range.0.is_finite() && point.range.1.is_finite() && low - high >= 1.0 {
            let _ = writeln!(marks, "<path class=range d=\"M{:.1} {low:.1}V{high:.1}\"/>", at.0);
        }
        let class = match point.mark {
            Mark::None => continue,
            Mark::Full => "m",
            Mark::Hollow => "\"m hollow\"",
        };
        let _ = writeln!(
            marks,
            "<path class={class} transform=\"translate({:.1} {:.1})\" d=\"{}\"><title>{}, {}: {}</title></path>",
            at.0,
            at.1,
            MARKS[line.slot % SLOTS],
            escape(&line.name),
            escape(&x.short(point.x)),
            escape(&y.short(point.y))
        );
    }
    format!(
        "<g class=s{}><path class=\"l d{}\" d=\"{path}\"/>\n{marks}</g>\n",
        line.slot % SLOTS,
        line.dash % DASHES
    )
}

fn legend_of_lines(series: &[Series]) -> String {
    let mut html = String::from("<ul class=legend>\n");
    for line in series {
        let has_marks = line.points.iter().any(|point| point.mark != Mark::None);
        let mark = if has_marks {
            format!("<path class=m transform=\"translate(15 6)\" d=\"{}\"/>", MARKS[line.slot % SLOTS])
        } else {
            String::new()
        };
        let _ = writeln!(
            html,
            "<li><svg class=\"swatch s{}\" viewBox=\"0 0 30 12\" aria-hidden=true><path class=\"l d{}\" d=\"M0 \
             6H30\"/>{mark}</svg> {}",
            line.slot % SLOTS,
            line.dash % DASHES,
            escape(&line.name)
        );
    }
    html.push_str("</ul>\n");
    html
}

fn bars(figure: &Figure, id: &str, unit: Unit, numbered: bool, groups: &[Group]) -> String {
    let count: usize = groups.iter().map(|group| group.bars.len()).sum();
    let has_names = groups.iter().any(|group| !group.name.is_empty());
    let step = BAR_HEIGHT + 3.0;
    let group_height = if has_names { 24.0 } else { 8.0 };
    let height = count as f64 * step + groups.len() as f64 * group_height + 6.0;
    let values = groups.iter().flat_map(|group| group.bars.iter().flat_map(|bar| [bar.1, bar.2.0, bar.2.1]));
    let scale = Scale::holding(values, false, false);
    let at = |number: f64| BAR_LEFT + scale.at(number) * (WIDTH - BAR_LEFT - BAR_RIGHT);
    let zero = at(0.0);
    let mut svg = open(figure, id, height);
    let mut y = 0.0;
    for group in groups {
        y += group_height;
        if has_names {
            let _ = writeln!(
                svg,
                "<text class=name x=0 y={:.1}>{}</text>",
                y - 6.0,
                escape(&cut(&group.name, NAME_MAX))
            );
        }
        for (slot, value, (low, high)) in group.bars.iter().filter(|bar| bar.1.is_finite()) {
            let (from, to) = (zero.min(at(*value)), zero.max(at(*value)));
            let middle = y + BAR_HEIGHT / 2.0;
            if numbered {
                let _ = writeln!(
                    svg,
                    "<text class=end x={} y={:.1}>{}</text>",
                    BAR_LEFT - 4.0,
                    middle + 4.0,
                    slot + 1
                );
            }
            let _ = writeln!(
                svg,
                "<rect class=\"bar s{}\" x={from:.1} y={y:.1} width={:.1} height={BAR_HEIGHT} />",
                slot % SLOTS,
                to - from
            );
            let (low, high) = (at(*low), at(*high));
            if high - low >= 1.0 {
                let _ = writeln!(
                    svg,
                    "<path class=spread d=\"M{low:.1} {middle:.1}H{high:.1}m0-3v6M{low:.1} {:.1}v6\"/>",
                    middle - 3.0
                );
            }
            let label = escape(&unit.short(*value));
            let _ = writeln!(svg, "<text x={:.1} y={:.1}>{label}</text>", to.max(high) + 5.0, middle + 4.0);
            y += step;
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn stacks(figure: &Figure, id: &str, unit: Unit, rows: &[(String, Vec<f64>)]) -> String {
    let step = BAR_HEIGHT + 26.0;
    let sums = |parts: &[f64], sign: f64| -> f64 {
        parts.iter().filter(|part| part.is_finite() && **part * sign > 0.0).sum()
    };
    let ends = rows.iter().flat_map(|(_, parts)| [sums(parts, 1.0), sums(parts, -1.0)]);
    let scale = Scale::holding(ends, false, false);
    let at = |number: f64| 2.0 + scale.at(number) * (WIDTH - 2.0 - BAR_RIGHT);
    let mut svg = open(figure, id, rows.len() as f64 * step + 4.0);
    for (row, (name, parts)) in rows.iter().enumerate() {
        let y = row as f64 * step + 20.0;
        let _ =
            writeln!(svg, "<text class=name x=0 y={:.1}>{}</text>", y - 5.0, escape(&cut(name, NAME_MAX)));
        // Negative values extend to the left.
        let (mut above, mut below) = (0.0, 0.0);
        for (slot, part) in parts.iter().enumerate().filter(|(_, part)| part.is_finite()) {
            let end = if *part >= 0.0 { &mut above } else { &mut below };
            let (from, to) = (at(*end), at(*end + part));
            *end += part;
            let (from, width) = (from.min(to), (to - from).abs());
            let _ = writeln!(
                svg,
                "<rect class=\"bar s{}\" x={from:.1} y={y:.1} width={width:.1} height={BAR_HEIGHT} />",
                slot % SLOTS
            );
            if width >= NUMBERED_WIDTH_MIN {
                let middle = from + width / 2.0;
                let _ = writeln!(
                    svg,
                    "<text class=\"middle on s{}\" x={middle:.1} y={:.1}>{}</text>",
                    slot % SLOTS,
                    y + 11.0,
                    slot + 1
                );
            }
        }
        let label = escape(&unit.short(parts.iter().filter(|part| part.is_finite()).sum()));
        let _ = writeln!(svg, "<text x={:.1} y={:.1}>{label}</text>", at(above) + 5.0, y + 11.0);
    }
    svg.push_str("</svg>\n");
    svg
}

fn legend_of_bars(names: &[String]) -> String {
    let mut html = String::from("<ol class=legend>\n");
    for (slot, name) in names.iter().enumerate() {
        let slot_class = slot % SLOTS;
        let _ = writeln!(
            html,
            "<li><svg class=\"swatch s{slot_class}\" viewBox=\"0 0 12 12\" aria-hidden=true><rect class=bar width=12 height=12 \
             /></svg> {} {}",
            slot + 1,
            escape(name)
        );
    }
    html.push_str("</ol>\n");
    html
}

/// Returns the beginning of a long text; the table has the whole text.
fn cut(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    text.chars().take(characters - 1).chain(['…']).collect()
}
