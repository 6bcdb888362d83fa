//! Results of flash tiers as tables: reads, then hits in RAM.

use super::servers::RAM_ONLY;
use super::{Measure, figure};
use crate::engine::table::{self as engine, Column, USUAL};
use crate::results::{Case, Results, Sample};

/// A page cache of more than this part of the bytes that exceed the memory makes a comparison void.
const PAGE_CACHE_PART_MAX: f64 = 0.25;

const READS: [Column; 8] = [
    Column {
        heading: "success %",
        digits: 2,
        figure: |results, target, case| 100.0 * median(results, target, case, figure::SUCCESS),
    },
    Column { heading: "times RAM", digits: 2, figure: |results, target, case| to_ram(results, target, case) },
    Column {
        heading: "items",
        digits: 0,
        figure: |results, target, case| median(results, target, case, figure::ITEMS),
    },
    Column {
        heading: "refused",
        digits: 0,
        figure: |results, target, case| median(results, target, case, figure::REFUSED),
    },
    Column {
        heading: "fill/s",
        digits: 0,
        figure: |results, target, case| median(results, target, case, figure::FILL_PER_S),
    },
    Column {
        heading: "RSS B/item",
        digits: 1,
        figure: |results, target, case| median(results, target, case, figure::RESIDENT_BYTES_EACH),
    },
    Column {
        heading: "written/B",
        digits: 2,
        figure: |results, target, case| median(results, target, case, figure::WRITTEN_EACH),
    },
    Column {
        heading: "cache MB",
        digits: 1,
        figure: |results, target, case| {
            median(results, target, case, figure::PAGE_CACHE_BYTES) / f64::from(1 << 20)
        },
    },
];

const HITS: [Column; 6] = [
    Column {
        heading: "alone p99 us",
        digits: 1,
        figure: |results, target, case| median(results, target, case, figure::HITS_P99_US[0]),
    },
    Column {
        heading: "by RAM p99",
        digits: 1,
        figure: |results, target, case| median(results, target, case, figure::HITS_P99_US[1]),
    },
    Column {
        heading: "by flash p99",
        digits: 1,
        figure: |results, target, case| median(results, target, case, figure::HITS_P99_US[2]),
    },
    Column {
        heading: "flash/alone",
        digits: 2,
        figure: |results, target, case| {
            let ratio = |sample: &Sample| {
                Some(
                    sample.figures.get(figure::HITS_P99_US[2])?
                        / sample.figures.get(figure::HITS_P99_US[0])?,
                )
            };
            results.median(target, case, ratio)
        },
    },
    Column {
        heading: "RAM/s",
        digits: 0,
        figure: |results, target, case| median(results, target, case, figure::OTHER_PER_S[0]),
    },
    Column {
        heading: "flash/s",
        digits: 0,
        figure: |results, target, case| median(results, target, case, figure::OTHER_PER_S[1]),
    },
];

fn median(results: &Results, target: &str, case: &Case, figure: &str) -> f64 {
    results.median(target, case, |sample| sample.figures.get(figure).copied())
}

/// Returns the ratio of the operations per second to those of the same server with RAM only.
fn to_ram(results: &Results, target: &str, case: &Case) -> f64 {
    results.ratio(target, &format!("{target}{RAM_ONLY}"), case, |sample| Some(sample.rate()))[0]
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
