//! A comparison as a table: each target's figures, and its ratios to the baseline.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::results::{Case, Results, Sample};
use crate::target::TargetDescription;

/// A figure of a round.
struct Figure {
    /// The column heading, with the unit.
    title: &'static str,
    of: fn(&Sample) -> Option<f64>,
}

/// Figures of nearly every experiment.
const FIGURES: [Figure; 4] = [
    Figure { title: "op/s", of: |sample| Some(sample.rate()) },
    Figure { title: "p50 us", of: |sample| percentile_us(sample, 50.0) },
    Figure { title: "p99 us", of: |sample| percentile_us(sample, 99.0) },
    Figure { title: "server ns/op", of: Sample::server_cpu_ns_each },
];

/// Column width of a figure; its ratio and the ratio's spread follow.
const WIDTH: usize = 12;
const RATIO_WIDTH: usize = 7;
const SPREAD_WIDTH: usize = 16;

fn percentile_us(sample: &Sample, percent: f64) -> Option<f64> {
    let latency = sample.latency.as_ref().filter(|latency| latency.count() > 0)?;
    Some(latency.percentile_ns(percent) / 1_000.0)
}

/// Returns each case's figures per target, medians over rounds, and their ratios to the baseline.
///
/// A ratio is the median of the ratios within rounds, with the least and the greatest.
pub fn table(results: &Results) -> String {
    let mut text = targets(results);
    let name_width = results.targets.iter().map(|target| target.name.len()).max().unwrap_or(0);
    for case in results.cases() {
        let title = case.name();
        let _ = write!(text, "\n{title}\n  {:<name_width$}", "");
        for figure in &FIGURES {
            let _ = write!(
                text,
                " {:>WIDTH$} {:>RATIO_WIDTH$} {:<SPREAD_WIDTH$}",
                figure.title, "ratio", "least..most"
            );
        }
        end_line(&mut text);
        for target in &results.targets {
            if results.rounds(&target.name, case).next().is_some() {
                row(&mut text, results, target, case, name_width);
            }
        }
        own_figures(&mut text, results, case, name_width);
        notes(&mut text, results, case);
    }
    let limits = results.limits();
    if !limits.is_empty() {
        text.push('\n');
        text.push_str(&limits);
    }
    text
}

/// Describes the targets and their baselines.
fn targets(results: &Results) -> String {
    let mut text = String::new();
    for target in &results.targets {
        let versions = target.versions.join(", ");
        let started = target.command.as_deref().unwrap_or("was up");
        let base = results.base(target);
        let base = if base == target.name { String::new() } else { format!("; ratios to {base}") };
        let _ = writeln!(text, "{}: {versions}; {}; {started}{base}", target.name, target.urls.join(" "));
    }
    text
}

fn row(text: &mut String, results: &Results, target: &TargetDescription, case: &Case, name_width: usize) {
    let _ = write!(text, "  {:<name_width$}", target.name);
    for figure in &FIGURES {
        columns(text, results, target, case, &figure.of);
    }
    end_line(text);
}

fn columns(
    text: &mut String,
    results: &Results,
    target: &TargetDescription,
    case: &Case,
    figure: &dyn Fn(&Sample) -> Option<f64>,
) {
    let median = results.median(&target.name, case, figure);
    let base = results.base(target);
    let [ratio, least, greatest] = match base == target.name {
        true => [f64::NAN; 3],
        false => results.ratio(&target.name, base, case, figure),
    };
    let spread =
        if least.is_nan() { String::new() } else { format!("{}..{}", number(least), number(greatest)) };
    let _ =
        write!(text, " {:>WIDTH$} {:>RATIO_WIDTH$} {spread:<SPREAD_WIDTH$}", number(median), number(ratio));
}

/// Appends figures that only some experiments report, under their names.
fn own_figures(text: &mut String, results: &Results, case: &Case, name_width: usize) {
    let of_case = results.samples.iter().filter(|sample| sample.case == *case);
    let names: BTreeSet<&String> = of_case.flat_map(|sample| sample.figures.keys()).collect();
    for name in names {
        let _ = writeln!(text, "  {name}");
        for target in &results.targets {
            let figure = |sample: &Sample| sample.figures.get(name).copied();
            if results.rounds(&target.name, case).any(|sample| figure(sample).is_some()) {
                let _ = write!(text, "  {:<name_width$}", target.name);
                columns(text, results, target, case, &figure);
                end_line(text);
            }
        }
    }
}

/// Returns the remarks needed to interpret a case's figures.
fn notes(text: &mut String, results: &Results, case: &Case) {
    for target in &results.targets {
        let rounds = || results.rounds(&target.name, case);
        let name = &target.name;
        for (count, what) in [
            (rounds().map(|sample| sample.misses).sum::<u64>(), "misses"),
            (rounds().map(|sample| sample.errors).sum(), "errors"),
        ] {
            if count > 0 {
                let operations: u64 = rounds().map(|sample| sample.operations).sum();
                let _ = writeln!(text, "  {name}: {count} {what} in {operations} operations");
            }
        }
    }
}

/// Ends a line, without trailing blanks.
fn end_line(text: &mut String) {
    text.truncate(text.trim_end().len());
    text.push('\n');
}

/// Formats a number with its significant digits.
fn number(number: f64) -> String {
    match number.abs() {
        _ if number.is_nan() => "-".to_owned(),
        100.0.. => format!("{number:.0}"),
        10.0.. => format!("{number:.1}"),
        0.1.. => format!("{number:.2}"),
        0.01.. => format!("{number:.3}"),
        0.0001.. => format!("{number:.5}"),
        _ => "0".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Histogram;

    fn sample(target: &str, round: u32, operations: u64, us: u64) -> Sample {
        let mut latency = Histogram::default();
        latency.record(us * 1_000);
        Sample {
            target: target.into(),
            case: Case::new("get").with("value_bytes", 64usize),
            round,
            operations,
            elapsed_ns: 1_000_000_000,
            latency: Some(latency),
            server_cpu_ns: (target != "far tcp").then_some(operations * 500),
            ..Sample::default()
        }
    }

    fn results() -> Results {
        let described = |name: &str, base: &str| TargetDescription {
            name: name.into(),
            versions: vec!["1.2".into()],
            urls: vec!["tcp://h:1".into()],
            base: Some(base.into()),
            ..TargetDescription::default()
        };
        let targets = vec![
            described("ours tcp", "base tcp"),
            described("ours shm", "base unix"),
            described("far tcp", "base tcp"),
            described("base tcp", "base tcp"),
            described("base unix", "base unix"),
        ];
        let mut results = Results::new("quick", "how".into(), targets);
        for round in 0..3u32 {
            let disturbed = 1_000 >> round;
            for (target, operations, us) in
                [("ours tcp", 3 * disturbed, 10), ("ours shm", 8 * disturbed, 1), ("far tcp", disturbed, 90)]
            {
                results.samples.push(sample(target, round, operations, us));
            }
            results.samples.push(sample("base tcp", round, 2 * disturbed, 20));
            results.samples.push(sample("base unix", round, 2 * disturbed + u64::from(round), 15));
        }
        results
    }

    #[test]
    fn small_numbers_keep_their_digits() {
        let texts = [123.4, 12.34, 1.234, 0.012_34, 0.000_123_4, 0.0, f64::NAN].map(number);
        assert_eq!(texts, ["123", "12.3", "1.23", "0.012", "0.00012", "0", "-"]);
    }

    #[test]
    fn ratios_are_to_the_same_way_or_the_best() {
        let mut results = results();
        results.samples[0].misses = 7;
        for sample in &mut results.samples {
            sample.ceiling_per_s = (sample.target == "ours tcp").then(|| sample.rate() * 1.1);
        }
        results.samples[1].figures.insert("hit_ratio".into(), 0.75);
        let text = table(&results);
        let columns = |name: &str, nth: usize| {
            let line = text.lines().filter(|line| line.starts_with(&format!("  {name} "))).nth(nth);
            line.expect(name).split_whitespace().skip(2).map(str::to_owned).collect::<Vec<_>>()
        };
        // A disturbance changes both figures of a round, so their ratio stays.
        assert_eq!(columns("ours tcp", 0)[..6], ["1500", "1.50", "1.50..1.50", "10.0", "0.50", "0.50..0.50"]);
        assert_eq!(columns("ours shm", 0)[..3], ["4000", "4.00", "3.98..4.00"]);
        assert_eq!(columns("base tcp", 0)[..2], ["1000", "-"]);
        assert_eq!(columns("far tcp", 0).last().map(String::as_str), Some("-"), "its CPU time is not known");
        assert_eq!(columns("ours shm", 1)[..1], ["0.75"]);
        assert!(text.contains("ours shm: 1.2; tcp://h:1; was up; ratios to base unix"), "{text}");
        assert!(text.contains("ours tcp: 7 misses in 5250 operations"), "{text}");
        assert!(
            text.contains("Limited by the client: 1 of 1") && text.contains("  ours tcp, get value"),
            "{text}"
        );
    }
}
