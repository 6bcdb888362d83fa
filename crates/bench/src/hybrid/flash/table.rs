//! Results of flash tiers as tables: reads, then hits in RAM.

use super::servers::RAM_ONLY;
use super::{Measure, figure};
use crate::engine::table::{self as engine, Column, USUAL};
use crate::results::{Case, Results, Sample};

/// A page cache of more than this part of the bytes that exceed the memory makes a comparison void.
const PAGE_CACHE_PART_MAX: f64 = 0.25;

/// A column of a figure's median over rounds, divided by a number.
macro_rules! column {
    ($heading:literal, $digits:literal, $figure:expr) => {
        column!($heading, $digits, $figure, 1.0)
    };
    ($heading:literal, $digits:literal, $figure:expr, $divisor:expr) => {
        Column {
            heading: $heading,
            digits: $digits,
            figure: |results, target, case| median(results, target, case, $figure) / $divisor,
        }
    };
}

/// Index of the part beside reads of the device in [`figure::HITS_P99_US`].
const BESIDE_FLASH: usize = 2;

const READS: [Column; 8] = [
    column!("success %", 2, figure::SUCCESS, 0.01),
    Column { heading: "times RAM", digits: 2, figure: to_ram },
    column!("items", 0, figure::ITEMS),
    column!("refused", 0, figure::REFUSED),
    column!("fill/s", 0, figure::FILL_PER_S),
    column!("RSS B/item", 1, figure::RESIDENT_BYTES_EACH),
    column!("written/B", 2, figure::WRITTEN_EACH),
    column!("cache MB", 1, figure::PAGE_CACHE_BYTES, f64::from(1 << 20)),
];

const HITS: [Column; 8] = [
    column!("alone p99 us", 1, figure::HITS_P99_US[0]),
    column!("by RAM p99", 1, figure::HITS_P99_US[1]),
    column!("by flash p99", 1, figure::HITS_P99_US[2]),
    Column {
        heading: "flash/alone",
        digits: 2,
        figure: |results, target, case| to(results, target, case, 0),
    },
    Column { heading: "flash/RAM", digits: 2, figure: |results, target, case| to(results, target, case, 1) },
    column!("alone on flash %", 2, figure::ALONE_DEVICE_PART, 0.01),
    column!("RAM/s", 0, figure::OTHER_PER_S[0]),
    column!("flash/s", 0, figure::OTHER_PER_S[1]),
];

fn median(results: &Results, target: &str, case: &Case, figure: &str) -> f64 {
    results.median(target, case, |sample| sample.figures.get(figure).copied())
}

/// Returns the ratio of the operations per second to those of the same server with RAM only.
fn to_ram(results: &Results, target: &str, case: &Case) -> f64 {
    results.ratio(target, &format!("{target}{RAM_ONLY}"), case, |sample| Some(sample.rate()))[0]
}

/// Returns the ratio of the 99th percentile of hits beside reads of the device to that of another part of the same round.
fn to(results: &Results, target: &str, case: &Case, part: usize) -> f64 {
    let of = |sample: &Sample, part: usize| sample.figures.get(figure::HITS_P99_US[part]).copied();
    results.median(target, case, |sample| Some(of(sample, BESIDE_FLASH)? / of(sample, part)?))
}

/// Returns tables of reads and of hits in RAM, and the reasons for which a comparison is void.
pub fn table(results: &Results) -> String {
    let part = |is_of_hits: bool| {
        let mut part = results.clone();
        part.samples.retain(|sample| (sample.case.operation == Measure::RamHits.name()) == is_of_hits);
        part
    };
    let (reads, hits) = (part(false), part(true));
    let usual = || USUAL.iter().filter(|column| column.heading != "p99.9 us");
    let mut text = String::new();
    if !reads.samples.is_empty() {
        text += &engine::table(&reads, &usual().chain(&READS).collect::<Vec<_>>());
    }
    if !hits.samples.is_empty() {
        text += &engine::table(&hits, &HITS.iter().collect::<Vec<_>>());
    }
    text + &void(results)
}

/// Names the results whose page cache held a large part of the items on the device.
fn void(results: &Results) -> String {
    let mut text = String::new();
    for case in results.cases() {
        for target in &results.targets {
            let part = median(results, &target.name, case, figure::PAGE_CACHE_PART);
            if part > PAGE_CACHE_PART_MAX {
                text += &format!(
                    "VOID: {}, {}: the page cache holds {:.0}% of the items that exceed the memory\n",
                    target.name,
                    case.name(),
                    100.0 * part
                );
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::TargetDescription;

    fn sample(target: &str, operation: &str, round: u32, figures: &[(&str, f64)]) -> Sample {
        Sample {
            target: target.into(),
            case: Case::new(operation).with("value_bytes", 100usize),
            round,
            operations: 100 * (u64::from(round) + 1),
            elapsed_ns: 1_000_000_000,
            figures: figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            ..Sample::default()
        }
    }

    #[test]
    fn tiers_are_compared_with_ram_and_alone() {
        let described = |name: &str| TargetDescription { name: name.into(), ..TargetDescription::default() };
        let mut results = Results::new("hybrid", "how".into(), vec![described("m RAM"), described("m")]);
        let [alone, _, beside_flash] = figure::HITS_P99_US;
        results.samples = vec![
            sample("m RAM", "get", 0, &[(figure::SUCCESS, 0.75)]),
            sample("m", "get", 0, &[(figure::SUCCESS, 1.0), (figure::PAGE_CACHE_PART, 0.3)]),
            sample("m", "ram-hits", 0, &[(alone, 10.0), (beside_flash, 15.0)]),
            sample("m", "ram-hits", 1, &[(alone, 20.0), (beside_flash, 22.0)]),
            sample("m", "ram-hits", 2, &[(alone, 20.0), (beside_flash, 28.0)]),
        ];
        results.samples[1].operations = 50;
        let text = table(&results);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let row = |begin: [&str; 3]| {
            let found = lines.iter().find(|line| line.starts_with(&begin) || line.get(1..4) == Some(&begin));
            found.unwrap_or_else(|| panic!("{begin:?} in {text}"))
        };
        let reads = row(["m", "get", "100"]);
        assert!(reads.contains(&"100.00") && reads.contains(&"0.50"), "success and times RAM: {text}");
        assert!(row(["RAM", "get", "100"]).contains(&"75.00"), "{text}");
        assert!(row(["m", "ram-hits", "100"]).contains(&"1.40"), "the median of ratios: {text}");
        let void: Vec<&str> = text.lines().filter(|line| line.starts_with("VOID")).collect();
        assert_eq!(
            void,
            ["VOID: m, get value_bytes=100: the page cache holds 30% of the items that exceed the memory"]
        );
    }
}
