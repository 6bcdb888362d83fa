//! Selects the figures for results: which conditions become the axis, lines, or separate figures.

use crate::dissect::{HOPS, NOISE};
use crate::results::Parameter;

use super::data::{Cell, Data, Metric, OPERATION, TOTAL, condition_of, words};
use super::draw::SLOTS;
use super::figure::{Axis, Drawing, Figure, Group, Mark, Point, Series};
use super::table::Table;
use super::text::{Unit, spoken};

/// A logarithmic axis is used if the greatest number is this many times the least.
const LOG_FROM: f64 = 12.0;
/// Maximum number of figures for one metric; the rest is in the table of all numbers.
const PICTURES_MAX: usize = 24;
/// Maximum number of distribution figures.
const DISTRIBUTIONS_MAX: usize = 12;
/// Maximum number of bar groups in a figure.
const GROUPS_MAX: usize = 40;
/// Up to this many lines, both percentiles are drawn.
const LINES_FOR_BOTH: usize = 4;
/// Maximum number of points named beside a figure.
const NAMED_MAX: usize = 6;
/// The prefix of figures of blocking calls.
const BLOCKING: &str = "blocking_";
/// The dashes of a level that is constant along the axis.
const LEVEL_DASH: usize = 3;
/// Percentiles in tables of distributions.
const PERCENTILES: [f64; 10] = [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 100.0];
/// Percentiles with marks on a distribution's line.
const MARKED: [f64; 3] = [0.5, 0.9, 0.99];

/// The layout of a subcommand's results. Conditions not named here are found by what varies.
struct Layout {
    /// The x axis: the first of these that varies.
    x: &'static [&'static str],
    /// Conditions with separate lines in the same figure.
    lines: &'static [&'static str],
    /// Whether operations per second add information to the latency.
    shows_rate: bool,
    /// Whether a case with fewer conditions appears in all figures, for comparison.
    joins: bool,
    /// Whether to draw figures that describe the work rather than its performance.
    draws_all: bool,
}

fn layout(subcommand: &str) -> Layout {
    let rate = Layout {
        x: &["rate_per_s", "clients"],
        lines: &[],
        shows_rate: true,
        joins: false,
        draws_all: false,
    };
    match subcommand {
        "latency" => {
            Layout { x: &["value_bytes"], lines: &[], shows_rate: false, joins: false, draws_all: false }
        }
        "multiget" => {
            Layout { x: &["clients"], lines: &[OPERATION, "batch", "keys_per_request"], joins: true, ..rate }
        }
        "nonblocking" => Layout { x: &["window", "value_bytes"], lines: &[OPERATION], joins: true, ..rate },
        "hybrid" => Layout { x: &["spill_factor"], lines: &["scan", "pattern"], ..rate },
        "blocks" => {
            Layout { x: &["window"], lines: &["mode"], shows_rate: false, joins: true, draws_all: false }
        }
        "dissect" => Layout { x: &["value_bytes"], shows_rate: false, ..rate },
        "restart" => Layout { x: &["items"], lines: &["stop"], shows_rate: false, ..rate },
        "throughput" | "mixture" | "trace" => rate,
        _ => Layout { draws_all: true, ..rate },
    }
}

/// Cases with the same conditions, and the assignment of the conditions.
struct Part<'d> {
    data: &'d Data<'d>,
    x: Option<&'d str>,
    lines: Vec<&'d str>,
    facets: Vec<Facet>,
    /// Each variant's conditions, in the order of `lines`.
    variants: Vec<Vec<Option<Parameter>>>,
}

/// The cases of one figure.
struct Facet {
    name: String,
    cases: Vec<usize>,
}

/// A bar's name and its parts.
type StackRow = (String, Vec<f64>);

/// Returns all figures of the results.
pub(super) fn figures(subcommand: &str, data: &Data<'_>) -> Vec<Figure> {
    let layout = layout(subcommand);
    let mut figures = stacks(data);
    for cases in parts(data, layout.joins) {
        let part = Part::new(data, &layout, &cases);
        for metrics in part.metrics(&layout) {
            figures.extend(part.pictures(&metrics));
        }
        figures.extend(part.distributions());
    }
    figures.retain(|figure| !figure.is_empty());
    figures
}

/// Groups metrics that belong into one figure: percentiles of several classes, and blocking calls
/// beside non-blocking ones. Hops of a dissection have their own figures.
fn together(names: &[&str]) -> Vec<Vec<Metric>> {
    let mut metrics: Vec<(&str, Vec<Metric>)> = Vec::new();
    for name in names.iter().filter(|name| !name.ends_with("_ns")) {
        let percentile = ["p50_us", "p99_us"].into_iter().find(|end| name.ends_with(end));
        let kind = percentile.unwrap_or(name.strip_prefix(BLOCKING).unwrap_or(name));
        let metric = Metric::Figure((*name).to_owned());
        match metrics.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, metrics)) => metrics.push(metric),
            None if *name == "blocking_ns_each" => metrics.push((kind, vec![metric, Metric::TimeEach])),
            None => metrics.push((kind, vec![metric])),
        }
    }
    metrics.into_iter().map(|(_, metrics)| metrics).collect()
}

/// Groups cases by the names of their conditions.
fn parts(data: &Data<'_>, joins: bool) -> Vec<Vec<usize>> {
    if joins {
        return vec![(0..data.cases.len()).collect()];
    }
    let mut parts: Vec<(Vec<&String>, Vec<usize>)> = Vec::new();
    for (index, case) in data.cases.iter().enumerate() {
        let names: Vec<&String> = case.parameters.keys().collect();
        match parts.iter_mut().find(|(known, _)| *known == names) {
            Some((_, cases)) => cases.push(index),
            None => parts.push((names, vec![index])),
        }
    }
    parts.into_iter().map(|(_, cases)| cases).collect()
}

impl<'d> Part<'d> {
    fn new(data: &'d Data<'d>, layout: &Layout, cases: &[usize]) -> Part<'d> {
        let conditions = data.conditions(cases);
        let varies: Vec<&(&str, Vec<Parameter>)> = conditions
            .iter()
            .filter(|(name, values)| values.len() > 1 && !data.is_of_target(name, cases))
            .collect();
        let is_number = |name: &str| {
            let values = &varies.iter().find(|(known, _)| *known == name)?.1;
            values
                .iter()
                .all(|value| matches!(value, Parameter::Number(n) if n.is_finite()))
                .then_some(values.len())
        };
        let first = layout.x.iter().copied().find(|name| is_number(name).is_some());
        let free = || varies.iter().map(|(name, _)| *name).filter(|name| !layout.lines.contains(name));
        let x = first
            .or_else(|| free().filter(|name| is_number(name).is_some()).max_by_key(|name| is_number(name)));
        let is_line = |name: &&str| layout.lines.contains(name) && Some(*name) != x;
        let mut lines: Vec<&str> = varies.iter().map(|(name, _)| *name).filter(is_line).collect();
        let mut variants = variants(data, cases, &lines);
        if variants.len() * data.targets.len() > SLOTS && variants.len() > 1 {
            lines.clear();
            variants = vec![Vec::new()];
        }
        let mut rest: Vec<&str> = varies.iter().map(|(name, _)| *name).collect();
        rest.retain(|name| Some(*name) != x && !lines.contains(name));
        let facets = facets(data, cases, &rest, !lines.contains(&OPERATION));
        Part { data, x, lines, facets, variants }
    }

    /// Returns the metrics of each figure.
    fn metrics(&self, layout: &Layout) -> Vec<Vec<Metric>> {
        let latency = [Metric::Percentile(50.0), Metric::Percentile(99.0)];
        let is_crowded = self.variants.len() * self.data.targets.len() > LINES_FOR_BOTH || self.x.is_none();
        let mut metrics =
            if is_crowded { latency.map(|metric| vec![metric]).to_vec() } else { vec![latency.to_vec()] };
        if layout.shows_rate {
            metrics.insert(0, vec![Metric::Rate]);
        }
        let names = if layout.draws_all {
            self.data.figures().into_iter().collect()
        } else {
            self.data.judging_figures()
        };
        let tells_misses = names.iter().any(|name| ["_ratio", "_rate"].iter().any(|end| name.ends_with(end)));
        metrics.extend(together(&names));
        if self.data.has_misses() && !tells_misses {
            metrics.push(vec![Metric::Misses]);
        }
        metrics.push(vec![Metric::ServerCpu]);
        metrics.retain(|metrics| metrics.iter().any(|metric| self.data.has(metric)));
        metrics
    }

    fn pictures(&self, metrics: &[Metric]) -> Vec<Figure> {
        let Some(x) = self.x else { return vec![self.bars(metrics)] };
        let facets: Vec<&Facet> =
            self.facets.iter().filter(|facet| self.is_drawn(facet, &metrics[0])).collect();
        let shown = facets.iter().take(PICTURES_MAX);
        let mut figures: Vec<Figure> = shown.map(|facet| self.lines(x, facet, metrics)).collect();
        if let Some(last) = figures.last_mut().filter(|_| facets.len() > PICTURES_MAX) {
            last.notes.push(format!(
                "{} more such pictures are left out; their numbers are in the table of everything.",
                facets.len() - PICTURES_MAX
            ));
        }
        figures
    }

    /// Misses are drawn only if there are any.
    fn is_drawn(&self, facet: &Facet, metric: &Metric) -> bool {
        let cells = facet
            .cases
            .iter()
            .flat_map(|case| (0..self.data.targets.len()).filter_map(|target| self.data.cell(target, *case)));
        *metric != Metric::Misses || cells.into_iter().any(|cell| cell.value(metric) > 0.0)
    }

    /// Returns the target's name with the conditions that distinguish its lines.
    fn series_name(&self, target: usize, variant: usize) -> String {
        let conditions = self.lines.iter().zip(&self.variants[variant]);
        let phrase = |(name, value): (&&str, &Option<Parameter>)| match value {
            Some(Parameter::Text(text)) if *name == OPERATION || *name == "mode" => Some(text.clone()),
            Some(value) => Some(super::text::condition(name, value)),
            None => None,
        };
        let words = conditions.filter_map(phrase).collect::<Vec<_>>().join(", ");
        match (words.is_empty(), self.data.targets.len()) {
            (true, _) => self.data.targets[target].clone(),
            (false, 1) => words,
            (false, _) => format!("{}, {words}", self.data.targets[target]),
        }
    }

    /// Returns all lines of a figure: target, variant, and its cases.
    fn members<'p>(&'p self, cases: &'p [usize]) -> impl Iterator<Item = (usize, usize, Vec<usize>)> + 'p {
        let targets = self.data.targets.len();
        (0..self.variants.len()).flat_map(move |variant| {
            let own: Vec<usize> = cases
                .iter()
                .copied()
                .filter(|case| self.variant_of(*case) == self.variants[variant])
                .collect();
            (0..targets).map(move |target| (target, variant, own.clone()))
        })
    }

    fn variant_of(&self, case: usize) -> Vec<Option<Parameter>> {
        self.lines.iter().map(|name| condition_of(self.data.cases[case], name)).collect()
    }

    fn slot(&self, target: usize, variant: usize) -> usize {
        variant * self.data.targets.len() + target
    }

    fn lines(&self, x: &str, facet: &Facet, metrics: &[Metric]) -> Figure {
        let number = |case: usize| self.data.cases[case].number(x);
        let numbers: Vec<f64> = sorted(facet.cases.iter().filter_map(|case| number(*case)));
        let mut series = Vec::new();
        let mut limited = Vec::new();
        for (dash, metric) in metrics.iter().enumerate() {
            for (target, variant, cases) in self.members(&facet.cases) {
                let mut points = Vec::new();
                for case in cases {
                    let Some(cell) = self.data.cell(target, case) else { continue };
                    if dash == 0 && cell.is_clients_limit() {
                        limited.push(limit_name(&self.series_name(target, variant), x, number(case)));
                    }
                    match number(case) {
                        Some(x) => points.push(point(x, cell, metric)),
                        // A constant level along the axis.
                        None => points.extend(
                            ends(&numbers).map(|x| Point { mark: Mark::None, ..point(x, cell, metric) }),
                        ),
                    }
                }
                points.retain(|point| point.y.is_finite());
                points.sort_by(|a, b| a.x.total_cmp(&b.x));
                let mut name = self.series_name(target, variant);
                if metrics.len() > 1 {
                    name = format!("{name}, {}", metric.name());
                }
                let slot = self.slot(target, variant);
                let is_level = points.iter().all(|point| point.mark == Mark::None);
                let dash = if is_level { LEVEL_DASH } else { dash + slot / SLOTS };
                series.push(Series { name, slot, dash, points });
            }
        }
        series.retain(|series| !series.points.is_empty());
        let unit = metrics[0].unit();
        let table = lines_table(&title(metrics, &facet.name), x, unit, &numbers, &series);
        if x == "rate_per_s" && metrics[0] == Metric::Rate {
            let offered =
                ends(&numbers).map(|x| Point { x, y: x, range: (x, x), mark: Mark::None }).collect();
            series.push(Series {
                name: "as many as offered".into(),
                slot: SLOTS - 1,
                dash: 2,
                points: offered,
            });
        }
        let y_is_log =
            unit == Unit::Time && series.iter().all(|series| series.points.iter().all(|point| point.y > 0.0));
        let x_unit = if x == "rate_per_s" { Unit::PerSecond } else { Unit::of_figure(x) };
        let is_log = numbers
            .first()
            .is_some_and(|least| *least > 0.0 && numbers[numbers.len() - 1] / least >= LOG_FROM);
        Figure {
            title: title(metrics, &facet.name),
            description: format!(
                "{} over {}, {} lines. Vertical strokes go from the least to the greatest round. The numbers are in the table below.",
                names(metrics),
                spoken(x),
                series.len()
            ),
            drawing: Drawing::Lines {
                x: Axis { title: spoken(x), unit: x_unit, is_log },
                y: Axis { title: names(metrics), unit, is_log: y_is_log },
                series,
            },
            hint: "",
            notes: limit_notes(limited, true),
            table,
        }
    }

    fn bars(&self, metrics: &[Metric]) -> Figure {
        let mut series: Vec<String> = Vec::new();
        let mut groups = Vec::new();
        let mut limited = Vec::new();
        let mut rows = Vec::new();
        let unit = metrics[0].unit();
        for facet in &self.facets {
            let mut bars = Vec::new();
            for (cell, name, metric) in self.bars_of(facet, metrics) {
                if cell.is_clients_limit() && *metric == metrics[0] {
                    limited.push(format!("{name}, {}", facet.name));
                }
                let slot = series.iter().position(|known| *known == name).unwrap_or(series.len());
                if slot == series.len() {
                    series.push(name.clone());
                }
                let (least, greatest) = cell.range(metric);
                let numbers = [cell.value(metric), least, greatest].map(|value| unit.cell(value));
                rows.push([vec![facet.name.clone(), name], numbers.to_vec()].concat());
                bars.push((slot, cell.value(metric), (least, greatest)));
            }
            if !bars.is_empty() {
                groups.push(Group { name: facet.name.clone(), bars });
            }
        }
        let mut notes = limit_notes(limited, false);
        if groups.len() > GROUPS_MAX {
            notes.push(format!("{} more are in the table.", groups.len() - GROUPS_MAX));
            groups.truncate(GROUPS_MAX);
        }
        let title = title(metrics, "");
        let numbers = ["median", "least", "greatest"].map(|name| heading(name, unit));
        Figure {
            description: format!(
                "{title}: {} groups of bars. The numbers are in the table below.",
                groups.len()
            ),
            drawing: Drawing::Bars { unit, series, groups },
            hint: "",
            notes,
            table: Table {
                caption: title.clone(),
                names: 2,
                head: [vec!["case".to_owned(), "series".to_owned()], numbers.to_vec()].concat(),
                rows,
            },
            title,
        }
    }

    /// Returns each bar's rounds, name and value.
    fn bars_of<'p>(
        &'p self,
        facet: &'p Facet,
        metrics: &'p [Metric],
    ) -> Vec<(&'p Cell<'p>, String, &'p Metric)> {
        let mut bars = Vec::new();
        for metric in metrics {
            for (target, variant, cases) in self.members(&facet.cases) {
                let found = cases.iter().find_map(|case| self.data.cell(target, *case));
                let Some(cell) = found.filter(|cell| cell.value(metric).is_finite()) else { continue };
                let mut name = self.series_name(target, variant);
                if metrics.len() > 1 {
                    name = format!("{name}, {}", metric.name());
                }
                bars.push((cell, name, metric));
            }
        }
        bars
    }

    /// Returns latency distributions at the least, a middle and the greatest value of the x axis.
    fn distributions(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        for facet in &self.facets {
            let Some(x) = self.x else {
                figures.extend(self.distribution(facet.name.clone(), &facet.cases));
                continue;
            };
            let numbers = sorted(facet.cases.iter().filter_map(|case| self.data.cases[*case].number(x)));
            let mut picked = vec![0, numbers.len() / 2, numbers.len().saturating_sub(1)];
            if self.facets.len() * picked.len() > DISTRIBUTIONS_MAX {
                picked = vec![numbers.len() / 2];
            }
            picked.dedup();
            for number in picked.into_iter().filter_map(|index| numbers.get(index)) {
                let is_there = |case: &usize| self.data.cases[*case].number(x).is_none_or(|x| x == *number);
                let cases: Vec<usize> = facet.cases.iter().copied().filter(is_there).collect();
                let here = super::text::condition(x, &Parameter::Number(*number));
                let name = if facet.name.is_empty() { here } else { format!("{}, {here}", facet.name) };
                figures.extend(self.distribution(name, &cases));
            }
        }
        figures.truncate(DISTRIBUTIONS_MAX);
        figures
    }

    fn distribution(&self, name: String, cases: &[usize]) -> Option<Figure> {
        let mut series = Vec::new();
        let mut rows = Vec::new();
        for (target, variant, cases) in self.members(cases) {
            let cell = cases.iter().find_map(|case| self.data.cell(target, *case));
            let Some(latency) =
                cell.and_then(|cell| cell.latency.as_ref()).filter(|latency| latency.count() > 0)
            else {
                continue;
            };
            let slot = self.slot(target, variant);
            let name = self.series_name(target, variant);
            let mut row = vec![name.clone(), latency.count().to_string()];
            row.extend(PERCENTILES.map(|percent| Unit::Time.cell(latency.percentile_ns(percent))));
            rows.push(row);
            series.push(Series { name, slot, dash: slot / SLOTS, points: steps(latency) });
        }
        let title = format!("Distribution of latencies: {name}");
        let percentile =
            |percent: f64| if percent == 100.0 { "longest, µs".into() } else { format!("p{percent}, µs") };
        let mut head = vec!["series".to_owned(), "operations".to_owned()];
        head.extend(PERCENTILES.map(percentile));
        (!series.is_empty()).then(|| Figure {
            description: "The part of all operations that were done within a time, over that time. Marks are at half of them, 90% \
                          and 99%. Percentiles are in the table below."
                .into(),
            drawing: Drawing::Lines {
                x: Axis { title: "latency".into(), unit: Unit::Time, is_log: true },
                y: Axis { title: "part of operations".into(), unit: Unit::Part, is_log: false },
                series,
            },
            hint: "Marks are at 50%, 90% and 99%.",
            notes: Vec::new(),
            table: Table { caption: title.clone(), names: 1, head, rows },
            title,
        })
    }
}

/// Returns the breakdown of each operation's time into parts.
fn stacks(data: &Data<'_>) -> Vec<Figure> {
    let found = data.figures();
    let mut parts: Vec<&str> = HOPS.into_iter().filter(|hop| found.contains(hop)).collect();
    let is_other = |name: &&str| !HOPS.contains(name) && *name != TOTAL && !name.ends_with(NOISE);
    parts.extend(found.iter().copied().filter(|name| name.ends_with("_ns") && is_other(name)));
    if parts.len() < 2 {
        return Vec::new();
    }
    let all: Vec<usize> = (0..data.cases.len()).collect();
    let conditions = data.conditions(&all);
    let is_drawn = |name: &&str| *name != OPERATION && !data.is_of_target(name, &all);
    let reported: Vec<&str> = conditions.iter().map(|(name, _)| *name).filter(is_drawn).collect();
    let mut figures: Vec<(String, Vec<StackRow>)> = Vec::new();
    for (target, index, cell) in data.cells() {
        let case = data.cases[index];
        let values: Vec<f64> =
            parts.iter().map(|part| cell.value(&Metric::Figure((*part).to_owned()))).collect();
        if values.iter().all(|value| value.is_nan()) {
            continue;
        }
        let row = (format!("{}, {}", data.targets[target], words(case, &reported)), values);
        match figures.iter_mut().find(|(operation, _)| *operation == case.operation) {
            Some((_, rows)) => rows.push(row),
            None => figures.push((case.operation.clone(), vec![row])),
        }
    }
    let names: Vec<String> = parts.iter().map(|part| spoken(part)).collect();
    figures.into_iter().map(|(operation, rows)| stack(&operation, &names, rows)).collect()
}

fn stack(operation: &str, parts: &[String], mut rows: Vec<StackRow>) -> Figure {
    let title = format!("Where the time goes: {operation}");
    let mut head = vec!["case".to_owned()];
    head.extend(parts.iter().map(|part| heading(part, Unit::Time)));
    head.push(heading("sum", Unit::Time));
    let row = |(name, values): &(String, Vec<f64>)| {
        let sum: f64 = values.iter().filter(|value| value.is_finite()).sum();
        let cells = values.iter().chain([&sum]).map(|value| Unit::Time.cell(*value));
        std::iter::once(name.clone()).chain(cells).collect()
    };
    let table = Table { caption: title.clone(), names: 1, head, rows: rows.iter().map(row).collect() };
    let mut notes = Vec::new();
    if rows.iter().any(|(_, values)| values.iter().any(|value| *value < 0.0)) {
        notes.push(
            "Hops are differences of measurements: what is below zero is drawn to the left. It is noise, or a part that is \
             faster than its stand-in."
                .into(),
        );
    }
    if rows.len() > GROUPS_MAX {
        notes.push(format!("{} more are in the table.", rows.len() - GROUPS_MAX));
        rows.truncate(GROUPS_MAX);
    }
    Figure {
        description: format!(
            "{} bars of {} parts each. The numbers are in the table below.",
            rows.len(),
            parts.len()
        ),
        drawing: Drawing::Stacks { unit: Unit::Time, parts: parts.to_vec(), rows },
        hint: "",
        notes,
        table,
        title,
    }
}

/// Returns each combination of these conditions that occurs.
fn variants(data: &Data<'_>, cases: &[usize], lines: &[&str]) -> Vec<Vec<Option<Parameter>>> {
    let mut variants = Vec::new();
    for case in cases {
        let variant: Vec<_> = lines.iter().map(|name| condition_of(data.cases[*case], name)).collect();
        if !variants.contains(&variant) {
            variants.push(variant);
        }
    }
    variants
}

/// Groups cases by these conditions. A case that lacks some of them belongs to every group that it does
/// not contradict.
fn facets(data: &Data<'_>, cases: &[usize], names: &[&str], names_operation: bool) -> Vec<Facet> {
    let of = |case: usize| -> Vec<Option<Parameter>> {
        names.iter().map(|name| condition_of(data.cases[case], name)).collect()
    };
    let mut named = names.to_vec();
    if names_operation && !named.contains(&OPERATION) {
        named.insert(0, OPERATION);
    }
    let mut keys: Vec<(Vec<Option<Parameter>>, Facet)> = Vec::new();
    let (whole, fewer): (Vec<usize>, Vec<usize>) =
        cases.iter().partition(|case| of(**case).iter().all(Option::is_some));
    for case in whole {
        match keys.iter_mut().find(|(key, _)| *key == of(case)) {
            Some((_, facet)) => facet.cases.push(case),
            None => keys.push((of(case), Facet { name: words(data.cases[case], &named), cases: vec![case] })),
        }
    }
    for case in fewer {
        let key = of(case);
        let agrees = |other: &[Option<Parameter>]| {
            key.iter().zip(other).all(|(own, other)| own.is_none() || own == other)
        };
        let mut is_alone = true;
        for (_, facet) in keys.iter_mut().filter(|(other, _)| agrees(other)) {
            facet.cases.push(case);
            is_alone = false;
        }
        if is_alone {
            keys.push((key, Facet { name: words(data.cases[case], &named), cases: vec![case] }));
        }
    }
    keys.into_iter().map(|(_, facet)| facet).collect()
}

fn point(x: f64, cell: &Cell<'_>, metric: &Metric) -> Point {
    let mark = if cell.is_clients_limit() { Mark::Hollow } else { Mark::Full };
    Point { x, y: cell.value(metric), range: cell.range(metric), mark }
}

/// Converts a histogram to the points of a line, with marks.
fn steps(latency: &crate::histogram::Histogram) -> Vec<Point> {
    let mut marks = MARKED.into_iter().peekable();
    let step = |(x, y): (f64, f64)| {
        let mut mark = Mark::None;
        while marks.next_if(|marked| *marked <= y).is_some() {
            mark = Mark::Full;
        }
        Point { x, y, range: (f64::NAN, f64::NAN), mark }
    };
    latency.cumulative().map(step).collect()
}

fn lines_table(caption: &str, x: &str, unit: Unit, numbers: &[f64], series: &[Series]) -> Table {
    let x_unit = if x == "rate_per_s" { Unit::PerSecond } else { Unit::of_figure(x) };
    let mut head = vec![heading(&spoken(x), x_unit)];
    head.extend(series.iter().map(|series| heading(&series.name, unit)));
    let at = |series: &Series, x: f64| {
        let found = series.points.iter().find(|point| point.x == x).or_else(|| {
            // A constant level has the same value everywhere.
            series.points.first().filter(|point| point.mark == Mark::None)
        });
        found.map_or(String::new(), |point| unit.cell(point.y))
    };
    let row = |number: &f64| {
        let cells = series.iter().map(|series| at(series, *number));
        std::iter::once(format!("{number}")).chain(cells).collect()
    };
    Table { caption: caption.to_owned(), names: 1, head, rows: numbers.iter().map(row).collect() }
}

pub(super) fn heading(name: &str, unit: Unit) -> String {
    match unit.heading() {
        "" => name.to_owned(),
        unit => format!("{name}, {unit}"),
    }
}

fn sorted(numbers: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers.dedup();
    numbers
}

fn ends(numbers: &[f64]) -> impl Iterator<Item = f64> {
    let first = numbers.first().copied();
    first.into_iter().chain(numbers.last().copied().filter(move |last| first != Some(*last)))
}

fn names(metrics: &[Metric]) -> String {
    let names = metrics.iter().map(Metric::name).collect::<Vec<_>>().join(" and ");
    match metrics {
        [Metric::Percentile(_), ..] => format!("latency, {names}"),
        _ => names,
    }
}

fn title(metrics: &[Metric], facet: &str) -> String {
    let name = sentence(&names(metrics));
    if facet.is_empty() { name } else { format!("{name}: {facet}") }
}

fn sentence(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or(String::new(), |first| first.to_uppercase().chain(characters).collect())
}

fn limit_name(series: &str, x: &str, number: Option<f64>) -> String {
    match number {
        Some(number) => format!("{series}, {}", super::text::condition(x, &Parameter::Number(number))),
        None => series.to_owned(),
    }
}

fn limit_notes(limited: Vec<String>, is_marked: bool) -> Vec<String> {
    if limited.is_empty() {
        return Vec::new();
    }
    let mark = if is_marked { " (hollow marks)" } else { "" };
    let more = limited.len().saturating_sub(NAMED_MAX);
    let and = if more > 0 { format!("; and {more} more") } else { String::new() };
    let named = limited.into_iter().take(NAMED_MAX).collect::<Vec<_>>().join("; ");
    vec![format!("Limited by the clients and their way to the server{mark}: {named}{and}.")]
}
