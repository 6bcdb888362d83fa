//! A dissection as a table with bars.

use std::fmt::Write as _;

use super::{HOPS, ONE_SIDED, TOTAL, noise_name};
use crate::results::{Case, Results};

/// Characters of the bar of a whole call.
const BAR_CHARACTERS: f64 = 50.0;

/// Returns each call's hops: microseconds, noise, share of the total, and a bar.
pub fn table(results: &Results) -> String {
    let mut text = String::new();
    for case in results.cases() {
        for target in &results.targets {
            let of =
                |name: &str| results.median(&target.name, case, |sample| sample.figures.get(name).copied());
            let whole = of(TOTAL);
            if !whole.is_finite() {
                continue;
            }
            let _ = writeln!(text, "{}, {}: {:.2} us (p50)", target.name, spoken(case), whole / 1_000.0);
            for hop in HOPS {
                let ns = of(hop);
                if ns.is_finite() {
                    let noise = of(&noise_name(hop));
                    let _ =
                        writeln!(text, "  {:<10} {}", hop.trim_end_matches("_ns"), told(ns, noise, whole));
                }
            }
            let one_sided = of(ONE_SIDED);
            if one_sided.is_finite() {
                let reads = 100.0 * one_sided;
                let _ = writeln!(
                    text,
                    "  forwarded to another PE: {reads:.0}% by reads of its memory, the rest by messages"
                );
            }
            let misses: u64 = results.rounds(&target.name, case).map(|sample| sample.misses).sum();
            if misses > 0 {
                let _ = writeln!(text, "  {misses} gets found nothing, as the server evicts");
            }
        }
    }
    text
}

/// Returns a hop's line; the noise is NaN where it is unknown.
fn told(ns: f64, noise: f64, whole: f64) -> String {
    let margin = if noise.is_finite() { format!("+-{:.2}", noise / 1_000.0) } else { String::new() };
    if ns.abs() <= noise {
        return format!("within noise {margin:>7}");
    }
    let part = ns / whole;
    let end = if ns < 0.0 {
        "this stage is faster than the one before".to_owned()
    } else {
        "#".repeat((part.min(1.0) * BAR_CHARACTERS).round() as usize)
    };
    format!("{:>9.2} us {margin:>7} {:>6.1}% {end}", ns / 1_000.0, 100.0 * part)
}

fn spoken(case: &Case) -> String {
    format!("{} of {} bytes", case.operation.to_uppercase(), case.number("value_bytes").unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Sample;
    use crate::target::TargetDescription;

    #[test]
    fn hops_are_drawn() {
        let described = TargetDescription { name: "unix".into(), ..TargetDescription::default() };
        let mut results = Results::new("dissect", "how".into(), vec![described]);
        let figures = [
            ("transport_ns", 30_000.0),
            ("transport_noise_ns", 700.0),
            ("protocol_ns", -500.0),
            ("protocol_noise_ns", 500.0),
            ("client_ns", -500.0),
            ("client_noise_ns", 400.0),
            ("server_ns", 10_500.0),
            ("server_noise_ns", 100.0),
            ("store_ns", 500.0),
            (TOTAL, 40_000.0),
            (ONE_SIDED, 0.995),
        ];
        results.samples = vec![Sample {
            target: "unix".into(),
            case: Case::new("get").with("value_bytes", 64usize),
            figures: figures.into_iter().map(|(name, ns)| (name.to_owned(), ns)).collect(),
            ..Sample::default()
        }];
        let text = table(&results);
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "unix, GET of 64 bytes: 40.00 us (p50)",
            "client -0.50 us +-0.40 -1.2% this stage is faster than the one before",
            &format!("transport 30.00 us +-0.70 75.0% {}", "#".repeat(38)),
            "protocol within noise +-0.50",
            &format!("server 10.50 us +-0.10 26.2% {}", "#".repeat(13)),
            "store 0.50 us 1.2% #",
            "forwarded to another PE: 100% by reads of its memory, the rest by messages",
        ];
        assert_eq!(lines, expected);
    }
}
