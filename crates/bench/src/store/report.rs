//! Figures of the store as a table and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::instructions::Instructions;
use super::operations::{HOT_KEYS, Resident};
use super::scaling::{Mix, ScalingFigures};
use super::stalls::Stalls;
use crate::report::Header;

/// The results of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// When and where.
    #[serde(flatten)]
    pub header: Header,
    /// Value size; keys have 20 bytes.
    pub value_bytes: usize,
    /// Figures by resident items.
    pub resident: Vec<Resident>,
    /// `None` without callgrind.
    pub instructions: Option<Vec<Instructions>>,
    /// Resident items while threads were scaled.
    pub scaling_items: u64,
    /// Figures by threads.
    pub scaling: Vec<ScalingFigures>,
    /// The longest operations.
    pub stalls: Vec<Stalls>,
}

impl Results {
    /// Returns all figures as tables.
    pub fn table(&self) -> String {
        let mut text = format!("{}\nkeys of 20 bytes, values of {}\n", self.header.machine, self.value_bytes);
        self.operations(&mut text);
        self.scaling(&mut text);
        self.stalls(&mut text);
        text
    }

    fn operations(&self, text: &mut String) {
        let _ =
            writeln!(text, "\nmedian CPU ns an operation, cold (any of the items) / hot ({HOT_KEYS} keys)");
        let _ = write!(text, "{:<22}{:>8}", "items", "instr.");
        for resident in &self.resident {
            let _ = write!(text, "{:>18}", resident.items);
        }
        let figure = |ns: Option<f64>| ns.map_or("-".into(), |ns| format!("{ns:.0}"));
        for operation in super::operations::Operation::ALL {
            let counted = self.instructions.iter().flatten().find(|counted| counted.operation == operation);
            let each = counted.map_or("-".into(), |counted| format!("{:.0}", counted.each));
            let _ = write!(text, "\n{:<22}{each:>8}", operation.name());
            for resident in &self.resident {
                if let Some(cost) = resident.costs.iter().find(|cost| cost.operation == operation) {
                    let both = format!("{} / {}", figure(cost.cold_ns), figure(cost.hot_ns));
                    let _ = write!(text, "{both:>18}");
                }
            }
        }
        let _ = write!(text, "\n{:<30}", "floor: a dependent load");
        for resident in &self.resident {
            let _ = write!(text, "{:>18.0}", resident.floors.dependent_load_ns);
        }
        let _ = write!(text, "\n{:<30}", "floor: a copy of the value");
        for resident in &self.resident {
            let _ = write!(text, "{:>18.1}", resident.floors.copy_ns);
        }
        text.push('\n');
    }

    fn scaling(&self, text: &mut String) {
        if self.scaling.is_empty() {
            return;
        }
        let _ = writeln!(text, "\nCPU ns an operation / million a second, {} items", self.scaling_items);
        let _ = write!(text, "{:<10}", "threads");
        for mix in Mix::ALL {
            let _ = write!(text, "{:>18}", mix.name());
        }
        let mut threads: Vec<usize> = self.scaling.iter().map(|scaled| scaled.threads).collect();
        threads.sort_unstable();
        threads.dedup();
        for threads in threads {
            let _ = write!(text, "\n{threads:<10}");
            for mix in Mix::ALL {
                let here = self.scaling.iter().find(|scaled| scaled.mix == mix && scaled.threads == threads);
                let both =
                    here.map(|here| format!("{:.0} / {:.2}", here.cpu_ns, here.operations_per_s / 1e6));
                let _ = write!(text, "{:>18}", both.unwrap_or_default());
            }
        }
        text.push('\n');
    }

    fn stalls(&self, text: &mut String) {
        if self.stalls.is_empty() {
            return;
        }
        let _ = writeln!(
            text,
            "\nlongest operations of two workers, us\n{:<14}{:>10}{:>12}{:>10}{:>12}{:>10}{:>9}{:>12}{:>16}",
            "beside",
            "ops",
            "wall p99.99",
            "max",
            "CPU p99.99",
            "max",
            "waited",
            "longest",
            "back: items, ms"
        );
        for s in &self.stalls {
            let [wall, wall_max] = s.wall_us;
            let [cpu, cpu_max] = s.cpu_us;
            let (name, operations, waited, longest) =
                (s.activity.name(), s.operations, s.waited, s.waited_us_max);
            let back = format!("{}, {:.0}", s.reclaimed, s.reclaimed_ms);
            let _ = writeln!(
                text,
                "{name:<14}{operations:>10}{wall:>12.0}{wall_max:>10.0}{cpu:>12.0}{cpu_max:>10.0}{waited:>9}{longest:>12.0}{back:>16}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Plan, operations, scaling};
    use super::*;

    #[test]
    fn every_figure_is_in_the_table() {
        let plan = Plan {
            items: vec![2_000],
            value_bytes: 64,
            threads: vec![1, 3],
            scaling_items: 1_000,
            time: Duration::from_millis(1),
            stalls: false,
        };
        let results = Results {
            header: Header { machine: "a machine".into(), ..Header::default() },
            value_bytes: plan.value_bytes,
            resident: vec![operations::measure(2_000, &plan).expect("memory for a test")],
            instructions: None,
            scaling_items: plan.scaling_items,
            scaling: scaling::measure(&plan).expect("memory for a test"),
            stalls: Vec::new(),
        };
        let figures: Vec<f64> =
            results.resident[0].costs.iter().flat_map(|cost| [cost.cold_ns, cost.hot_ns]).flatten().collect();
        assert!(figures.len() == 9 && figures.iter().all(|ns| *ns > 0.0), "{figures:?}");
        assert_eq!(results.scaling.len(), 6);
        assert!(results.scaling.iter().all(|scaled| scaled.cpu_ns > 0.0 && scaled.operations_per_s > 0.0));
        let table = results.table();
        for operation in operations::Operation::ALL {
            let name = operation.name();
            let line = table.lines().find(|line| line.starts_with(name)).expect("a line each");
            assert!(line.split_whitespace().any(|word| word.parse::<f64>().is_ok()), "{line}");
        }
        assert!(table.lines().any(|line| line.starts_with("3 ")));
    }
}
