//! Results in drawing order: every target and case with its rounds and figures.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use crate::histogram::Histogram;
use crate::results::{Case, Parameter, Results, Sample};
use fabcache_testbed::statistics::median;

use super::text::{Unit, condition, spoken};

/// The operation of a case, treated as a condition.
pub(super) const OPERATION: &str = "operation";
/// The total of a dissection, which is not one of its parts.
pub(super) const TOTAL: &str = "total_ns";

/// A figure of a round.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Metric {
    /// The latency at this percentile.
    Percentile(f64),
    /// Operations per second.
    Rate,
    /// Time per operation, independent of the number in flight.
    TimeEach,
    /// CPU time of the servers per operation.
    ServerCpu,
    /// The fraction of operations that missed.
    Misses,
    /// Another figure, by its name.
    Figure(String),
}

/// All rounds of a case on a target.
#[derive(Debug, Default)]
pub(super) struct Cell<'r> {
    pub(super) rounds: Vec<&'r Sample>,
    /// The latencies of all rounds together.
    pub(super) latency: Option<Histogram>,
}

/// The data of one figure or table.
#[derive(Debug)]
pub(super) struct Data<'r> {
    pub(super) targets: Vec<String>,
    pub(super) cases: Vec<&'r Case>,
    cells: HashMap<(usize, usize), Cell<'r>>,
}

impl Metric {
    pub(super) fn name(&self) -> String {
        match self {
            Metric::Percentile(percent) => format!("p{percent}"),
            Metric::Rate => "operations a second".to_owned(),
            Metric::TimeEach => "time an operation".to_owned(),
            Metric::ServerCpu => "server's CPU time an operation".to_owned(),
            Metric::Misses => "misses".to_owned(),
            Metric::Figure(name) => spoken(name),
        }
    }

    pub(super) fn unit(&self) -> Unit {
        match self {
            Metric::Percentile(_) | Metric::TimeEach | Metric::ServerCpu => Unit::Time,
            Metric::Rate => Unit::PerSecond,
            Metric::Misses => Unit::Part,
            Metric::Figure(name) => Unit::of_figure(name),
        }
    }

    /// Returns the figure of one round.
    pub(super) fn of_round(&self, sample: &Sample) -> Option<f64> {
        let value = match self {
            Metric::Percentile(percent) => sample.latency.as_ref()?.percentile_ns(*percent),
            Metric::Rate => sample.rate(),
            Metric::ServerCpu => sample.server_cpu_ns_each()?,
            Metric::Misses if sample.operations == 0 => return None,
            Metric::Misses => sample.misses as f64 / sample.operations as f64,
            Metric::TimeEach if sample.operations == 0 => return None,
            Metric::TimeEach => sample.elapsed_ns as f64 / sample.operations as f64,
            Metric::Figure(name) => *sample.figures.get(name)? * Unit::scale_of_figure(name),
        };
        value.is_finite().then_some(value)
    }
}

impl Cell<'_> {
    /// Returns the figure over all rounds: the median; for latencies, the percentile of all rounds
    /// together.
    pub(super) fn value(&self, metric: &Metric) -> f64 {
        match (metric, &self.latency) {
            (Metric::Percentile(percent), Some(latency)) => latency.percentile_ns(*percent),
            _ => median(self.rounds.iter().filter_map(|sample| metric.of_round(sample))),
        }
    }

    /// Returns the least and the greatest of the rounds.
    pub(super) fn range(&self, metric: &Metric) -> (f64, f64) {
        let rounds = || self.rounds.iter().filter_map(|sample| metric.of_round(sample));
        (rounds().fold(f64::NAN, f64::min), rounds().fold(f64::NAN, f64::max))
    }

    /// Returns whether the clients were at their limit in at least half of the rounds.
    pub(super) fn is_clients_limit(&self) -> bool {
        let limited = self.rounds.iter().filter(|sample| sample.is_clients_limit()).count();
        limited > 0 && limited * 2 >= self.rounds.len()
    }
}

impl<'r> Data<'r> {
    pub(super) fn of(results: &'r Results) -> Data<'r> {
        let mut targets: Vec<String> = Vec::new();
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        let named = results.targets.iter().map(|target| target.name.as_str());
        for name in named.chain(results.samples.iter().map(|sample| sample.target.as_str())) {
            numbers.entry(name).or_insert_with(|| {
                targets.push(name.to_owned());
                targets.len() - 1
            });
        }
        let mut cases: Vec<&Case> = Vec::new();
        let mut cases_by_name: HashMap<String, usize> = HashMap::new();
        let mut cells: HashMap<(usize, usize), Cell<'r>> = HashMap::new();
        for sample in &results.samples {
            let case = *cases_by_name.entry(format!("{:?}", sample.case)).or_insert_with(|| {
                cases.push(&sample.case);
                cases.len() - 1
            });
            let cell = cells.entry((numbers[sample.target.as_str()], case)).or_default();
            cell.rounds.push(sample);
            if let Some(latency) = &sample.latency {
                cell.latency.get_or_insert_default().add(latency);
            }
        }
        Data { targets, cases, cells }
    }

    pub(super) fn cell(&self, target: usize, case: usize) -> Option<&Cell<'r>> {
        self.cells.get(&(target, case))
    }

    /// Returns all measured cells, case by case.
    pub(super) fn cells(&self) -> impl Iterator<Item = (usize, usize, &Cell<'r>)> {
        let all =
            (0..self.cases.len()).flat_map(|case| (0..self.targets.len()).map(move |target| (target, case)));
        all.filter_map(|(target, case)| Some((target, case, self.cell(target, case)?)))
    }

    /// Returns whether a condition is another name of the target, such as its transport.
    pub(super) fn is_of_target(&self, name: &str, cases: &[usize]) -> bool {
        let mut varies = false;
        let mut first: Option<Parameter> = None;
        for target in 0..self.targets.len() {
            let own = cases.iter().filter(|case| self.cell(target, **case).is_some());
            let mut values = own.filter_map(|case| condition_of(self.cases[*case], name));
            let Some(value) = values.next() else { continue };
            if values.any(|other| other != value) {
                return false;
            }
            varies |= first.as_ref().is_some_and(|first| *first != value);
            first.get_or_insert(value);
        }
        varies
    }

    fn samples(&self) -> impl Iterator<Item = &'r Sample> + '_ {
        self.cells().flat_map(|(_, _, cell)| cell.rounds.iter().copied())
    }

    /// Returns the names of all other figures.
    pub(super) fn figures(&self) -> BTreeSet<&'r str> {
        self.samples().flat_map(|sample| sample.figures.keys().map(String::as_str)).collect()
    }

    /// Returns the figures that judge performance; the others describe the work.
    pub(super) fn judging_figures(&self) -> Vec<&'r str> {
        let judges = |name: &&str| !matches!(Unit::of_figure(name), Unit::Plain | Unit::Bytes);
        self.figures().into_iter().filter(judges).collect()
    }

    pub(super) fn has(&self, metric: &Metric) -> bool {
        self.samples().any(|sample| metric.of_round(sample).is_some())
    }

    pub(super) fn has_misses(&self) -> bool {
        self.samples().any(|sample| sample.misses > 0)
    }

    /// Returns all conditions of these cases, the operation first, each with its values in order of appearance.
    pub(super) fn conditions(&self, cases: &[usize]) -> Vec<(&'r str, Vec<Parameter>)> {
        let mut operations = Vec::new();
        let mut conditions: BTreeMap<&str, Vec<Parameter>> = BTreeMap::new();
        for case in cases.iter().map(|case| self.cases[*case]) {
            let operation = Parameter::Text(case.operation.clone());
            if !operations.contains(&operation) {
                operations.push(operation);
            }
            for (name, value) in &case.parameters {
                let values = conditions.entry(name).or_default();
                if !values.contains(value) {
                    values.push(value.clone());
                }
            }
        }
        std::iter::once((OPERATION, operations)).chain(conditions).collect()
    }
}

/// A condition's value in a case; the operation counts as one.
pub(super) fn condition_of(case: &Case, name: &str) -> Option<Parameter> {
    if name == OPERATION {
        return Some(Parameter::Text(case.operation.clone()));
    }
    case.parameters.get(name).cloned()
}

/// Describes these conditions of a case.
pub(super) fn words(case: &Case, names: &[&str]) -> String {
    let phrase = |name: &&str| match condition_of(case, name)? {
        Parameter::Text(operation) if *name == OPERATION => Some(operation),
        value => Some(condition(name, &value)),
    };
    names.iter().filter_map(phrase).collect::<Vec<_>>().join(", ")
}

/// Describes all conditions of a case, without the operation.
pub(super) fn all_words(case: &Case) -> String {
    words(case, &case.parameters.keys().map(String::as_str).collect::<Vec<_>>())
}

/// Merges files of one subcommand: targets of the same name are distinguished by their file.
pub(super) fn merged(files: &[(String, Results)]) -> Option<Results> {
    let (_, first) = files.first()?;
    if files.len() == 1 {
        return Some(first.clone());
    }
    let mut all = Results { targets: Vec::new(), samples: Vec::new(), ..first.clone() };
    let times = |name: &str| {
        files.iter().filter(|(_, results)| results.targets.iter().any(|target| target.name == name)).count()
    };
    let mut taken = BTreeSet::new();
    for (file, results) in files {
        let stem = Path::new(file).file_stem().map_or(file.as_str().into(), |stem| stem.to_string_lossy());
        let mut names: HashMap<&str, String> = HashMap::new();
        for target in &results.targets {
            let mut name = target.name.clone();
            if times(&target.name) > 1 {
                name = format!("{name} ({stem})");
            }
            let plain = name.clone();
            for number in 2.. {
                if taken.insert(name.clone()) {
                    break;
                }
                name = format!("{plain} {number}");
            }
            names.insert(&target.name, name.clone());
            all.targets.push(crate::target::TargetDescription { name, ..target.clone() });
        }
        for sample in &results.samples {
            let target = names.get(sample.target.as_str()).unwrap_or(&sample.target).clone();
            all.samples.push(Sample { target, ..sample.clone() });
        }
    }
    Some(all)
}
