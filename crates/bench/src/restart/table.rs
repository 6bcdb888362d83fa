//! Restarts as a table: a figure a row, a server a column.

use std::fmt::Write as _;

use super::figure;
use crate::results::{Results, Sample};

/// Rows of a case: a figure, its title, and its decimals.
const ROWS: [(&str, &str, usize); 5] = [
    (figure::STOP_MS, "stop, ms", 1),
    (figure::FIRST_ANSWER_MS, "first answer, ms", 1),
    (figure::RECOVERY_MS, "90% of the speed, ms", 1),
    (figure::HIT_RATIO, "hit ratio", 4),
    (figure::HITS_BEFORE_PER_S, "hits a second before", 0),
];
/// Width of a server's column.
const WIDTH: usize = 12;

/// Returns the medians over rounds, and the ratio of the first server's figure to that of the last.
pub fn table(results: &Results) -> String {
    let names: Vec<&str> = results.targets.iter().map(|target| target.name.as_str()).collect();
    let width = names.iter().map(|name| name.len()).max().unwrap_or(0).max(WIDTH);
    let (first, base) = (names.first().copied().unwrap_or(""), names.last().copied().unwrap_or(""));
    let compares = names.len() > 1;
    let mut text = format!("{:>10} {:<6} {:<21}", "items", "stop", "");
    for name in &names {
        let _ = write!(text, " {name:>width$}");
    }
    text.push_str(if compares { "    ratio  least..most\n" } else { "\n" });
    for case in results.cases() {
        let condition = |name: &str| case.parameters.get(name).map(ToString::to_string).unwrap_or_default();
        let (items, stop) = (condition("items"), condition("stop"));
        for (name, title, decimals) in ROWS {
            // A missing time is infinite, so that the median counts the rounds that never recover.
            let of = |sample: &Sample| Some(sample.figures.get(name).copied().unwrap_or(f64::INFINITY));
            let _ = write!(text, "{items:>10} {stop:<6} {title:<21}");
            for target in &names {
                let _ =
                    write!(text, " {:>width$}", number(results.median(target, case, of), decimals, "never"));
            }
            if compares {
                let [ratio, least, most] =
                    results.ratio(first, base, case, of).map(|ratio| number(ratio, 3, "-"));
                let _ = write!(text, " {ratio:>8}  {least}..{most}");
            }
            text.push('\n');
        }
    }
    text
}

fn number(value: f64, decimals: usize, infinite: &str) -> String {
    if value.is_finite() {
        return format!("{value:.decimals$}");
    }
    if value.is_nan() { "-".to_owned() } else { infinite.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Case;
    use crate::target::TargetDescription;

    fn sample(target: &str, round: u32, stop_ms: f64, recovery_ms: Option<f64>, hit_ratio: f64) -> Sample {
        let figures = [
            (figure::STOP_MS, Some(stop_ms)),
            (figure::FIRST_ANSWER_MS, Some(2.0 * stop_ms)),
            (figure::RECOVERY_MS, recovery_ms),
            (figure::HIT_RATIO, Some(hit_ratio)),
            (figure::HITS_BEFORE_PER_S, Some(1e6)),
        ];
        let case = Case::new("restart").with("items", 1_000u64).with("stop", "kill");
        Sample {
            target: target.into(),
            case,
            round,
            figures: figures.into_iter().filter_map(|(name, value)| Some((name.into(), value?))).collect(),
            ..Sample::default()
        }
    }

    #[test]
    fn medians_and_ratios_are_in_the_table() {
        let described = |name: &str| TargetDescription { name: name.into(), ..TargetDescription::default() };
        let mut results = Results::new("restart", "how".into(), vec![described("ours"), described("base")]);
        results.samples = vec![
            sample("ours", 0, 10.0, Some(30.0), 1.0),
            sample("base", 0, 40.0, None, 0.0),
            sample("ours", 1, 20.0, None, 0.5),
            sample("base", 1, 40.0, None, 0.0),
            sample("ours", 2, 30.0, Some(40.0), 1.0),
            sample("base", 2, 40.0, None, 0.0),
        ];
        let text = table(&results);
        let text = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        let rows: Vec<String> = text.collect();
        assert_eq!(
            rows,
            [
                "items stop ours base ratio least..most",
                "1000 kill stop, ms 20.0 40.0 0.500 0.250..0.750",
                "1000 kill first answer, ms 40.0 80.0 0.500 0.250..0.750",
                "1000 kill 90% of the speed, ms 40.0 never 0.000 0.000..0.000",
                "1000 kill hit ratio 1.0000 0.0000 - -..-",
                "1000 kill hits a second before 1000000 1000000 1.000 1.000..1.000",
            ]
        );
        results.targets.pop();
        results.samples.retain(|sample| sample.target == "ours");
        let text = table(&results);
        assert!(!text.contains("ratio  least") && !text.contains("base"), "{text}");
    }
}
