//! The numbers that a page must show, computed independently from the files.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Pages show numbers with a few digits.
const TOLERANCE: f64 = 0.006;

/// Longer durations count as an hour.
const NS_MAX: u64 = 3_600_000_000_000;

/// The rows that a section's table of all numbers must have, in any order.
pub(super) struct Section {
    name: String,
    rows: Vec<Row>,
    is_limited: bool,
}

/// A target and a case.
#[derive(Clone, Debug, Default)]
struct Row {
    rounds: usize,
    operations: u64,
    rates: Vec<f64>,
    /// Nanoseconds, with the number of operations.
    latency: BTreeMap<u64, u64>,
}

/// Returns the sections by subcommand, in the order of their first file.
pub(super) fn expected(files: &[Value]) -> Result<Vec<Section>> {
    let mut sections: Vec<Section> = Vec::new();
    for results in files {
        let name = results["subcommand"].as_str().context("a subcommand")?;
        let mut rows: BTreeMap<String, Row> = BTreeMap::new();
        let mut is_limited = false;
        for sample in results["samples"].as_array().context("samples")? {
            let key = format!("{}\n{}\n{}", sample["target"], sample["operation"], sample["parameters"]);
            let row = rows.entry(key).or_default();
            let rate = sample["operations"].as_f64().context("operations")? * 1e9
                / sample["elapsed_ns"].as_f64().context("elapsed_ns")?.max(1.0);
            row.rounds += 1;
            row.operations = row.operations.saturating_add(sample["operations"].as_u64().unwrap_or_default());
            row.rates.push(rate);
            is_limited |= sample["ceiling_per_s"].as_f64().is_some_and(|limit| rate > limit * 0.8);
            for step in sample["latency"]["ns_and_counts"].as_array().into_iter().flatten() {
                let count = row.latency.entry(step[0].as_u64().unwrap_or_default().min(NS_MAX)).or_default();
                *count += step[1].as_u64().unwrap_or_default();
            }
        }
        let rows = rows.into_values();
        match sections.iter_mut().find(|section| section.name == name) {
            Some(section) => {
                section.rows.extend(rows);
                section.is_limited |= is_limited;
            }
            None => sections.push(Section { name: name.to_owned(), rows: rows.collect(), is_limited }),
        }
    }
    Ok(sections)
}

/// Returns the number of results.
pub(super) fn figures(sections: &[Section]) -> usize {
    sections.iter().map(|section| section.rows.len()).sum()
}

/// Compares the numbers read from the page with the expected ones.
pub(super) fn check(read: &Value, expected: &[Section]) -> Result<()> {
    let read = read.as_array().context("sections")?;
    ensure!(read.len() == expected.len(), "{} sections, {} are expected", read.len(), expected.len());
    for (found, expected) in read.iter().zip(expected) {
        ensure!(found["name"] == expected.name.as_str(), "{} is not {}", found["name"], expected.name);
        section(found, expected).with_context(|| format!("section {}", expected.name))?;
    }
    Ok(())
}

fn section(found: &Value, expected: &Section) -> Result<()> {
    let figures = found["figures"].as_array().context("figures")?;
    ensure!(!figures.is_empty(), "no figure");
    let tells = found["notes"].as_array().context("notes")?.iter().filter_map(Value::as_str);
    let is_noted = tells.filter(|note| note.contains("imited by the clients")).count() > 0;
    ensure!(is_noted == expected.is_limited, "the clients' limit: {is_noted}");
    let head: Vec<&str> =
        found["all"]["head"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let column = |name: &str| head.iter().position(|head| *head == name);
    let (rounds, operations) =
        (column("rounds").context("rounds")?, column("operations").context("operations")?);
    let rate = column("operations a second").context("operations a second")?;
    let median = column("p50, µs");
    let rows = found["all"]["rows"].as_array().context("rows")?;
    ensure!(rows.len() == expected.rows.len(), "{} rows, {} are expected", rows.len(), expected.rows.len());
    let is_it = |row: &Value, wanted: &Row| {
        let number = |column: usize| row[column].as_str().and_then(|cell| cell.parse::<f64>().ok());
        let is = |column: usize, wanted: f64| {
            number(column).is_some_and(|found| (found - wanted).abs() <= wanted.abs() * TOLERANCE + 0.5)
        };
        let agrees = match (median.and_then(number), wanted.median_us()) {
            (Some(found), Some(wanted)) => (found - wanted).abs() <= wanted * TOLERANCE + 0.006,
            (found, wanted) => found.is_none() && wanted.is_none(),
        };
        is(rounds, wanted.rounds as f64)
            && is(operations, wanted.operations as f64)
            && is(rate, wanted.rate())
            && agrees
    };
    let fitting = |wanted| (0..rows.len()).filter(|at| is_it(&rows[*at], wanted)).collect();
    let fits: Vec<Vec<usize>> = expected.rows.iter().map(fitting).collect();
    let mut taken = vec![None; rows.len()];
    for (one, wanted) in expected.rows.iter().enumerate() {
        let has_place = place(one, &fits, &mut taken, &mut vec![false; rows.len()]);
        ensure!(has_place, "no row shows {wanted:?}");
    }
    Ok(())
}

/// Assigns a result to one of the rows that fit it, if possible by moving others (an augmenting path).
/// Results of similar speed fit each other's rows.
fn place(one: usize, fits: &[Vec<usize>], taken: &mut [Option<usize>], seen: &mut [bool]) -> bool {
    fits[one].iter().any(|&at| {
        if std::mem::replace(&mut seen[at], true) {
            return false;
        }
        let is_free = taken[at].is_none_or(|other| place(other, fits, taken, seen));
        if is_free {
            taken[at] = Some(one);
        }
        is_free
    })
}

impl Row {
    fn rate(&self) -> f64 {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        let (low, high) = (rates[(rates.len() - 1) / 2], rates[rates.len() / 2]);
        (low + high) / 2.0
    }

    /// Returns the least latency within which half of the operations completed.
    fn median_us(&self) -> Option<f64> {
        let total: u64 = self.latency.values().sum();
        let mut before = 0;
        for (ns, count) in &self.latency {
            before += count;
            if before * 2 >= total {
                return Some(*ns as f64 / 1e3);
            }
        }
        None
    }
}
