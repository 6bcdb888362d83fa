//! Rounds of many clients as a table: a row for each case of each target.

use std::fmt::Write as _;

use crate::results::{Case, Parameter, Results, Sample};

/// A column: its heading, and a figure of a case on a target.
pub struct Column {
    /// Its heading, with the unit.
    pub heading: &'static str,
    /// Digits after the decimal point.
    pub digits: usize,
    /// Returns the figure, or NaN if it does not exist.
    pub figure: fn(&Results, &str, &Case) -> f64,
}

const WIDTH_MIN: usize = 9;

/// Operations per second, latencies, CPU time per operation, misses.
pub const USUAL: [Column; 7] = [
    Column { heading: "ops/s", digits: 0, figure: |results, target, case| rate(results, target, case) },
    Column { heading: "p50 us", digits: 1, figure: |results, target, case| us(results, target, case, 50.0) },
    Column { heading: "p99 us", digits: 1, figure: |results, target, case| us(results, target, case, 99.0) },
    Column {
        heading: "p99.9 us",
        digits: 1,
        figure: |results, target, case| us(results, target, case, 99.9),
    },
    Column {
        heading: "server us/op",
        digits: 2,
        figure: |results, target, case| {
            results.median(target, case, |sample| Some(sample.server_cpu_ns_each()? / 1e3))
        },
    },
    Column {
        heading: "client us/op",
        digits: 2,
        figure: |results, target, case| results.median(target, case, client_us_each),
    },
    Column {
        heading: "misses",
        digits: 0,
        figure: |results, target, case| results.rounds(target, case).map(|sample| sample.misses as f64).sum(),
    },
];

/// Millions of value bytes per second.
pub const MEGABYTES: Column = Column {
    heading: "MB/s",
    digits: 1,
    figure: |results, target, case| {
        results.median(target, case, |sample| Some(sample.figures.get("value_bytes_per_s")? / 1e6))
    },
};

fn rate(results: &Results, target: &str, case: &Case) -> f64 {
    results.median(target, case, |sample| Some(sample.rate()))
}

fn us(results: &Results, target: &str, case: &Case, percent: f64) -> f64 {
    results.latency(target, case).map_or(f64::NAN, |latency| latency.percentile_ns(percent) / 1e3)
}

fn client_us_each(sample: &Sample) -> Option<f64> {
    let ns = sample.client_cpu_ns.filter(|_| sample.operations > 0)?;
    Some(ns as f64 / sample.operations as f64 / 1e3)
}

/// Returns a row per case and target. With several targets it has their names and throughput ratios to
/// the last.
pub fn table(results: &Results, columns: &[&Column]) -> String {
    let several = results.targets.len() > 1;
    let base = results.targets.last().map_or("", |target| &target.name);
    let mut rows = vec![heading(results, columns, several)];
    let cases = results.cases();
    let parameters = parameters(&cases);
    for case in &cases {
        for target in &results.targets {
            let target = &target.name;
            let mut row = vec![case.operation.clone()];
            if several {
                row.insert(0, target.clone());
            }
            row.extend(parameters.iter().map(|name| case.parameters.get(name).map_or("-".into(), shown)));
            row.extend(
                columns.iter().map(|column| number((column.figure)(results, target, case), column.digits)),
            );
            if several {
                let [median, least, most] = results.ratio(target, base, case, |sample| Some(sample.rate()));
                row.push(format!("{median:.2} ({least:.2} to {most:.2})"));
            }
            rows.push(row);
        }
    }
    aligned(&rows)
}

fn heading(results: &Results, columns: &[&Column], several: bool) -> Vec<String> {
    let mut heading = vec!["operation".to_owned()];
    if several {
        heading.insert(0, "target".to_owned());
    }
    heading.extend(parameters(&results.cases()).iter().map(|name| name.replace('_', " ")));
    heading.extend(columns.iter().map(|column| column.heading.to_owned()));
    if several {
        heading.push("ratio".to_owned());
    }
    heading
}

/// Returns the names of all conditions that any case has.
fn parameters(cases: &[&Case]) -> Vec<String> {
    let mut names: Vec<String> = cases.iter().flat_map(|case| case.parameters.keys().cloned()).collect();
    names.sort();
    names.dedup();
    names
}

fn shown(parameter: &Parameter) -> String {
    match parameter {
        Parameter::Number(number) if number.fract() != 0.0 => format!("{number:.2}"),
        other => other.to_string(),
    }
}

fn number(number: f64, digits: usize) -> String {
    if number.is_nan() { "-".into() } else { format!("{number:.digits$}") }
}

/// Returns lines with aligned columns, numbers to the right.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let widest = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        widest.unwrap_or(0).max(WIDTH_MIN)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Writing to a string cannot fail.
            let _ = if at == 0 { write!(line, "{cell:<width$}") } else { write!(line, "  {cell:>width$}") };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
