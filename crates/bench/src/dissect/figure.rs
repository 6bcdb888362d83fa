//! A dissection as a table with bars.

use std::fmt::Write as _;

use super::{HOPS, TOTAL};
use crate::results::{Case, Results};

/// Characters of the bar of a whole call.
const BAR_CHARACTERS: f64 = 50.0;

/// Returns each call's hops: microseconds, share of the total, and a bar.
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
                    let part = ns / whole;
                    let bar = "#".repeat((part.clamp(0.0, 1.0) * BAR_CHARACTERS).round() as usize);
                    let name = hop.trim_end_matches("_ns");
                    let _ =
                        writeln!(text, "  {name:<10} {:>9.2} us {:>6.1}% {bar}", ns / 1_000.0, 100.0 * part);
                }
            }
            let misses: u64 = results.rounds(&target.name, case).map(|sample| sample.misses).sum();
            if misses > 0 {
                let _ = writeln!(text, "  {misses} gets found nothing, as the server evicts");
            }
        }
    }
    text
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
        let figures =
            [("transport_ns", 30_000.0), ("client_ns", -500.0), ("server_ns", 10_500.0), (TOTAL, 40_000.0)];
        results.samples = vec![Sample {
            target: "unix".into(),
            case: Case::new("get").with("value_bytes", 64usize),
            figures: figures.into_iter().map(|(name, ns)| (name.to_owned(), ns)).collect(),
            ..Sample::default()
        }];
        let text = table(&results);
        assert!(text.starts_with("unix, GET of 64 bytes: 40.00 us"), "{text}");
        assert!(text.contains(&format!("30.00 us   75.0% {}\n", "#".repeat(38))), "{text}");
        assert!(text.contains("-0.50 us   -1.2% \n"), "{text}");
        assert!(!text.contains("store"), "{text}");
    }
}
