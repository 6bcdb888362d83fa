//! The results: figures of each target, as a table and as JSON.

use std::fmt::Write as _;

use fabcache_testbed::statistics::median;
use serde::Serialize;

use crate::report::ServersHeader;

/// The target that is OpenSHMEM by itself.
pub const RAW: &str = "OpenSHMEM";

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// A GET. Of OpenSHMEM by itself: a read of another PE's memory.
    Get,
    /// A SET. Of OpenSHMEM by itself: a write of another PE's memory and a flag, until its flag comes back.
    Set,
}

/// A figure of one round.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The label of the target.
    pub target: String,
    /// What was measured.
    pub what: What,
    /// Bytes of the value.
    pub bytes: usize,
    /// Which round.
    pub round: u32,
    /// Median duration.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
}

/// Operations per second of one round.
#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    /// The label of the target.
    pub target: String,
    /// What was measured.
    pub what: What,
    /// Clients, each in a thread of its own.
    pub clients: usize,
    /// Operations under way of each.
    pub window: usize,
    /// Bytes of the value.
    pub bytes: usize,
    /// Which round.
    pub round: u32,
    /// Operations per second of all clients together.
    pub per_s: f64,
}

/// The results.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// When, where and how.
    #[serde(flatten)]
    pub header: ServersHeader,
    /// Durations.
    pub figures: Vec<Figure>,
    /// Rates.
    pub rates: Vec<Rate>,
}

/// Returns each value once, in the order of the first ones.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut distinct, value| {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
        distinct
    })
}

fn cell(values: &[f64]) -> String {
    if values.is_empty() { "-".to_owned() } else { format!("{:.2}", median(values.iter().copied())) }
}

impl Results {
    /// Returns the medians of the rounds of a target, in microseconds.
    fn rounds_us(&self, target: &str, what: What, bytes: usize) -> Vec<f64> {
        let of = self.figures.iter();
        let of = of.filter(|figure| figure.target == target && figure.what == what && figure.bytes == bytes);
        of.map(|figure| figure.p50_ns / 1e3).collect()
    }

    /// Returns the cells of an operation: its time, and the ratio to OpenSHMEM by itself in the same round.
    fn cells(&self, target: &str, what: What, bytes: usize) -> [String; 2] {
        let (times, raw) = (self.rounds_us(target, what, bytes), self.rounds_us(RAW, what, bytes));
        let ratios: Vec<f64> = times.iter().zip(&raw).map(|(time, raw)| time / raw).collect();
        [cell(&times), cell(&ratios)]
    }

    /// Returns the results as text.
    pub fn table(&self) -> String {
        let mut text = format!("{}\n\n", self.header.method);
        let targets = distinct(self.figures.iter().map(|figure| &*figure.target));
        let width = targets.iter().map(|target| target.len()).max().unwrap_or(0).max("target".len());
        let line = |text: &mut String, bytes: &str, target: &str, cells: [&str; 4]| {
            let [get, of_get, set, of_set] = cells;
            let _ =
                writeln!(text, "{bytes:>9}  {target:<width$} {get:>10} {of_get:>7} {set:>10} {of_set:>7}");
        };
        line(&mut text, "bytes", "target", ["GET us", "ratio", "SET us", "ratio"]);
        for bytes in distinct(self.figures.iter().map(|figure| figure.bytes)) {
            for target in &targets {
                let [get, of_get] = self.cells(target, What::Get, bytes);
                let [set, of_set] = self.cells(target, What::Set, bytes);
                line(&mut text, &bytes.to_string(), target, [&get, &of_get, &set, &of_set]);
            }
        }
        let _ =
            writeln!(text, "{RAW}: a get, and a put with a flag until a flag comes back; ratios are to it");
        text + &self.rates_table()
    }

    fn rates_table(&self) -> String {
        let mut text = String::new();
        let cases = distinct(self.rates.iter().map(|rate| (rate.what, rate.clients, rate.window)));
        for (what, clients, window) in cases {
            let name = if what == What::Get { "GETs" } else { "SETs" };
            let _ = write!(text, "{clients} client(s), {window} {name} under way each, a second:");
            for target in distinct(self.rates.iter().map(|rate| &*rate.target)) {
                let of = self.rates.iter().filter(|rate| {
                    (&*rate.target, rate.what, rate.clients, rate.window) == (target, what, clients, window)
                });
                let _ = write!(text, " {target} {:.0}", median(of.map(|rate| rate.per_s)));
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Header;

    #[test]
    fn table_has_a_line_for_each_target_and_size() {
        let figure = |target: &str, what, bytes, round, p50_ns| {
            let target = target.to_owned();
            Figure { target, what, bytes, round, p50_ns, p99_ns: 2.0 * p50_ns }
        };
        let mut figures = Vec::new();
        for (round, factor) in [(0, 1.0), (1, 3.0)] {
            for bytes in [64, 4096] {
                figures.push(figure(RAW, What::Get, bytes, round, 1000.0 * factor));
                figures.push(figure("slots", What::Get, bytes, round, 2000.0 * factor));
                figures.push(figure("mutex", What::Get, bytes, round, 5000.0 * factor));
            }
        }
        let rate = |target: &str, per_s| Rate {
            target: target.to_owned(),
            what: What::Set,
            clients: 16,
            window: 1,
            bytes: 64,
            round: 0,
            per_s,
        };
        let header = ServersHeader { run: Header::now(), servers: Vec::new(), method: "method".to_owned() };
        let results = Results { header, figures, rates: vec![rate("slots", 7000.0), rate("mutex", 5000.0)] };
        let table = results.table();
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let lines: Vec<Vec<String>> = table.lines().map(words).collect();
        for bytes in ["64", "4096"] {
            for expected in [
                [bytes, RAW, "2.00", "1.00", "-", "-"],
                [bytes, "slots", "4.00", "2.00", "-", "-"],
                [bytes, "mutex", "10.00", "5.00", "-", "-"],
            ] {
                assert!(lines.iter().any(|line| *line == expected), "{expected:?}\n{table}");
            }
        }
        assert!(
            table.ends_with("16 client(s), 1 SETs under way each, a second: slots 7000 mutex 5000\n"),
            "{table}"
        );
    }
}
