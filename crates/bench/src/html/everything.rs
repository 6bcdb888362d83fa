//! Tables of a run: its targets, their ratios, and all numbers.

use std::collections::BTreeMap;

use crate::results::Results;
use crate::target::TargetDescription;
use fabcache_testbed::statistics::median;

use super::data::{Cell, Data, Metric, all_words};
use super::plots::heading;
use super::table::Table;
use super::text::{Unit, spoken};

/// Returns a table of the measured targets.
pub(super) fn targets(results: &Results) -> Table {
    let row = |target: &TargetDescription| {
        vec![
            target.name.clone(),
            target.versions.join(", "),
            target.transport.clone(),
            target.protocol.clone(),
            target.urls.join(" "),
            target.command.clone().unwrap_or_default(),
        ]
    };
    let rows: Vec<Vec<String>> = results.targets.iter().map(row).collect();
    let head =
        ["target", "version", "transport", "protocol", "URL", "started as"].map(str::to_owned).to_vec();
    without_empty_columns(Table { caption: "Targets".into(), names: 1, head, rows })
}

/// Returns the remarks that concern all results.
pub(super) fn notes(data: &Data<'_>) -> Vec<String> {
    let mut failed = BTreeMap::new();
    let mut limited = 0;
    let mut all = 0;
    for (target, _, cell) in data.cells() {
        all += 1;
        limited += usize::from(cell.is_clients_limit());
        let errors: u64 = cell.rounds.iter().map(|sample| sample.errors).fold(0, u64::saturating_add);
        if errors > 0 {
            let sum: &mut u64 = failed.entry(target).or_default();
            *sum = sum.saturating_add(errors);
        }
    }
    let mut notes: Vec<String> = failed
        .iter()
        .map(|(target, errors)| format!("Operations of {} that failed: {errors}.", data.targets[*target]))
        .collect();
    if limited > 0 {
        notes.push(format!(
            "{limited} of {all} results are limited by the clients and their way to the server: with one that does nothing they do hardly more."
        ));
    }
    notes
}

/// Returns the ratios of targets to the baseline: the last target, or its server over the same transport.
pub(super) fn ratios(results: &Results, file: Option<&str>) -> Vec<Table> {
    let data = Data::of(results);
    let metrics = compared(&data);
    let pairs: Vec<(&TargetDescription, &TargetDescription)> =
        results.targets.iter().filter_map(|target| Some((target, base(results, target)?))).collect();
    if pairs.is_empty() || metrics.is_empty() {
        return Vec::new();
    }
    let number = |name: &str| data.targets.iter().position(|target| target == name);
    let mut rows = Vec::new();
    let mut means = Vec::new();
    for (target, base) in pairs {
        let (Some(own), Some(others)) = (number(&target.name), number(&base.name)) else { continue };
        let to = format!("{} / {}", target.name, base.name);
        let mut logs: Vec<Vec<f64>> = vec![Vec::new(); metrics.len()];
        for (index, case) in data.cases.iter().enumerate() {
            let (Some(own), Some(others)) = (data.cell(own, index), data.cell(others, index)) else {
                continue;
            };
            let mut row = vec![to.clone(), case.operation.clone(), all_words(case)];
            for (metric, logs) in metrics.iter().zip(&mut logs) {
                let ratio = ratio(own, others, metric);
                logs.extend(Some(ratio[0].ln()).filter(|log| log.is_finite()));
                row.push(spread(ratio));
            }
            rows.push(row);
        }
        let mean = |logs: &Vec<f64>| match logs.len() {
            0 => String::new(),
            count => format!("{:.3}", (logs.iter().sum::<f64>() / count as f64).exp()),
        };
        means.push(std::iter::once(to).chain(logs.iter().map(mean)).collect());
    }
    let of = file.map_or(String::new(), |file| format!(" ({file})"));
    let names = || metrics.iter().map(Metric::name);
    let head = |first: &[&str]| first.iter().map(|name| (*name).to_owned()).chain(names()).collect();
    let each = Table {
        caption: format!("Ratios in the same round: median, least .. greatest{of}"),
        names: 3,
        head: head(&["ratio", "operation", "conditions"]),
        rows,
    };
    let mean = Table {
        caption: format!("Geometric means of the ratios of all cases{of}"),
        names: 1,
        head: head(&["ratio"]),
        rows: means,
    };
    if each.rows.is_empty() {
        Vec::new()
    } else {
        vec![mean, each].into_iter().map(without_empty_columns).collect()
    }
}

/// Returns the baseline of a target: the last server over the same transport, or else the last target; `None` for the
/// last server's own.
fn base<'r>(results: &'r Results, target: &TargetDescription) -> Option<&'r TargetDescription> {
    let last = results.targets.last()?;
    let server = |target: &TargetDescription| target.name.split(' ').next().unwrap_or_default().to_owned();
    if target.name == last.name || (server(target) == server(last) && last.name.contains(' ')) {
        return None;
    }
    let peer = |peer: &&TargetDescription| peer.transport == target.transport && server(peer) == server(last);
    results.targets.iter().filter(|_| last.name.contains(' ')).find(peer).or(Some(last))
}

fn compared(data: &Data<'_>) -> Vec<Metric> {
    let mut metrics =
        vec![Metric::Rate, Metric::Percentile(50.0), Metric::Percentile(99.0), Metric::ServerCpu];
    metrics.extend(data.judging_figures().into_iter().map(|name| Metric::Figure(name.to_owned())));
    metrics.retain(|metric| data.has(metric));
    metrics
}

/// Returns the median, the least and the greatest of the ratios of each round.
fn ratio(own: &Cell<'_>, others: &Cell<'_>, metric: &Metric) -> [f64; 3] {
    let bases: BTreeMap<u32, f64> =
        others.rounds.iter().filter_map(|sample| Some((sample.round, metric.of_round(sample)?))).collect();
    let ratios: Vec<f64> = own
        .rounds
        .iter()
        .filter_map(|sample| Some(metric.of_round(sample)? / bases.get(&sample.round)?))
        .filter(|ratio| ratio.is_finite())
        .collect();
    let least = ratios.iter().copied().fold(f64::NAN, f64::min);
    let greatest = ratios.iter().copied().fold(f64::NAN, f64::max);
    [median(ratios), least, greatest]
}

fn spread([median, least, greatest]: [f64; 3]) -> String {
    if !median.is_finite() {
        return String::new();
    }
    if least == greatest {
        format!("{median:.3}")
    } else {
        format!("{median:.3} ({least:.3} .. {greatest:.3})")
    }
}

/// Returns all numbers of all cases on all targets.
pub(super) fn table(subcommand: &str, data: &Data<'_>) -> Table {
    let percentiles = [50.0, 90.0, 99.0, 99.9];
    let figures = data.figures();
    let mut head: Vec<String> =
        ["target", "operation", "conditions", "rounds", "operations"].map(str::to_owned).to_vec();
    head.extend(["operations a second".to_owned(), "mean, µs".to_owned()]);
    head.extend(percentiles.iter().map(|percent| format!("p{percent}, µs")));
    head.extend(
        [
            "longest, µs",
            "misses",
            "errors",
            "verified",
            "server CPU an operation, µs",
            "client CPU an operation, µs",
        ]
        .map(str::to_owned),
    );
    head.push("most the clients can do, 1/s".into());
    head.extend(figures.iter().map(|name| heading(&spoken(name), Unit::of_figure(name))));
    let mut rows = Vec::new();
    for (target, index, cell) in data.cells() {
        let case = data.cases[index];
        let sum = |of: fn(&crate::results::Sample) -> u64| {
            cell.rounds.iter().map(|sample| of(sample)).fold(0, u64::saturating_add)
        };
        let none_if_zero = |count: u64| if count == 0 { String::new() } else { count.to_string() };
        let latency = cell.latency.as_ref();
        let time = |ns: Option<f64>| ns.map_or(String::new(), |ns| Unit::Time.cell(ns));
        let mut row = vec![data.targets[target].clone(), case.operation.clone(), all_words(case)];
        row.extend([cell.rounds.len().to_string(), sum(|sample| sample.operations).to_string()]);
        row.push(Unit::PerSecond.cell(cell.value(&Metric::Rate)));
        row.push(time(latency.map(|latency| latency.mean_ns())));
        row.extend(percentiles.map(|percent| time(latency.map(|latency| latency.percentile_ns(percent)))));
        row.push(time(latency.filter(|latency| latency.count() > 0).map(|latency| latency.max_ns() as f64)));
        row.extend([sum(|s| s.misses), sum(|s| s.errors), sum(|s| s.verified)].map(none_if_zero));
        row.push(Unit::Time.cell(cell.value(&Metric::ServerCpu)));
        let client = cell.rounds.iter().filter(|sample| sample.operations > 0);
        row.push(Unit::Time.cell(median(
            client.filter_map(|sample| Some(sample.client_cpu_ns? as f64 / sample.operations as f64)),
        )));
        row.push(Unit::PerSecond.cell(median(cell.rounds.iter().filter_map(|sample| sample.ceiling_per_s))));
        row.extend(
            figures
                .iter()
                .map(|name| Unit::of_figure(name).cell(cell.value(&Metric::Figure((*name).to_owned())))),
        );
        rows.push(row);
    }
    without_empty_columns(Table { caption: format!("{subcommand}: all of it"), names: 3, head, rows })
}

fn without_empty_columns(mut table: Table) -> Table {
    let is_used: Vec<bool> = (0..table.head.len())
        .map(|column| {
            column == 0 || table.rows.iter().any(|row| row.get(column).is_some_and(|cell| !cell.is_empty()))
        })
        .collect();
    let used = |row: &[String]| -> Vec<String> {
        row.iter().zip(&is_used).filter(|(_, used)| **used).map(|(cell, _)| cell.clone()).collect()
    };
    table.names = is_used.iter().take(table.names).filter(|used| **used).count();
    table.head = used(&table.head);
    table.rows = table.rows.iter().map(|row| used(row)).collect();
    table
}
