//! Compares the output of two runs of the differential program line by line.
//!
//! A line is `SCENARIO<tab>FUNCTION<tab>CALL<tab>ANSWER`. The n-th answer of a call in a scenario is
//! compared with the n-th of the same call in the same scenario, so that a run which ends early, or
//! fetches more, does not make all further lines differ.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Result, ensure};

/// The answer of a scenario or call that crashed the library.
const CRASH: &str = "crashed by signal";

/// A line of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) scenario: String,
    pub(super) function: String,
    pub(super) call: String,
    pub(super) text: String,
}

/// Scenario, call, and the number of the answer.
type Key = (String, String, usize);

/// A pair of different answers; `None` if there was no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) scenario: String,
    pub(super) function: String,
    pub(super) call: String,
    pub(super) number: usize,
    pub(super) theirs: Option<String>,
    pub(super) ours: Option<String>,
}

/// Parses the lines of a run.
pub(super) fn parse(text: &str) -> Result<Vec<Answer>> {
    text.lines()
        .map(|line| {
            let fields: Vec<&str> = line.splitn(4, '\t').collect();
            ensure!(fields.len() == 4, "the differential program printed a line of its own: {line}");
            let [scenario, function, call, text] = std::array::from_fn(|n| fields[n].to_owned());
            Ok(Answer { scenario, function, call, text })
        })
        .collect()
}

fn keyed(answers: &[Answer]) -> (Vec<Key>, HashMap<Key, &Answer>) {
    let mut counts: HashMap<(&str, &str), usize> = HashMap::new();
    let mut order = Vec::with_capacity(answers.len());
    let mut map = HashMap::with_capacity(answers.len());
    for answer in answers {
        let count = counts.entry((&answer.scenario, &answer.call)).or_default();
        let key = (answer.scenario.clone(), answer.call.clone(), *count);
        *count += 1;
        order.push(key.clone());
        map.insert(key, answer);
    }
    (order, map)
}

/// Returns our answers that differ from theirs, in the order of theirs. Where libmemcached crashes,
/// ours must only not crash.
pub(super) fn differences(theirs: &[Answer], ours: &[Answer]) -> Vec<Difference> {
    let ((their_order, their_map), (our_order, our_map)) = (keyed(theirs), keyed(ours));
    let crashed: Vec<&Answer> = theirs.iter().filter(|answer| answer.text.starts_with(CRASH)).collect();
    let ended_early: BTreeSet<&str> = crashed
        .iter()
        .filter(|answer| answer.call == answer.scenario)
        .map(|answer| answer.scenario.as_str())
        .collect();
    let mut found = Vec::new();
    for key in &their_order {
        let (their, our) = (their_map[key], our_map.get(key));
        let both_crash = our.is_some_and(|our| our.text.starts_with(CRASH));
        let free = their.text.starts_with(CRASH) && !both_crash;
        if !free && (both_crash || our.is_none_or(|our| our.text != their.text)) {
            found.push(difference(key, Some(their), our.copied()));
        }
    }
    for key in our_order.iter().filter(|key| !their_map.contains_key(*key)) {
        let our = our_map[key];
        let inside_crash =
            crashed.iter().any(|answer| answer.scenario == our.scenario && answer.call.contains(&our.call));
        if our.text.starts_with(CRASH) || !(inside_crash || ended_early.contains(our.scenario.as_str())) {
            found.push(difference(key, None, Some(our)));
        }
    }
    found
}

fn difference(key: &Key, theirs: Option<&Answer>, ours: Option<&Answer>) -> Difference {
    let function = theirs.or(ours).map(|answer| answer.function.clone()).unwrap_or_default();
    Difference {
        scenario: key.0.clone(),
        function,
        call: key.1.clone(),
        number: key.2,
        theirs: theirs.map(|answer| answer.text.clone()),
        ours: ours.map(|answer| answer.text.clone()),
    }
}

/// Removes differences where the library's own answers vary: `again` is a second run of it.
pub(super) fn without_varying(
    found: Vec<Difference>,
    theirs: &[Answer],
    again: &[Answer],
) -> Vec<Difference> {
    let unsteady: BTreeSet<(String, String, usize)> = differences(theirs, again)
        .into_iter()
        .filter(|difference| !difference.ours.as_ref().is_some_and(|text| text.starts_with(CRASH)))
        .map(|difference| (difference.scenario, difference.call, difference.number))
        .collect();
    found
        .into_iter()
        .filter(|difference| {
            !unsteady.contains(&(difference.scenario.clone(), difference.call.clone(), difference.number))
        })
        .collect()
}

/// Groups the differences by function.
pub(super) fn by_function(found: &[Difference]) -> BTreeMap<&str, Vec<&Difference>> {
    let mut functions: BTreeMap<&str, Vec<&Difference>> = BTreeMap::new();
    for difference in found {
        functions.entry(&difference.function).or_default().push(difference);
    }
    functions
}

/// Intended differences: `SCENARIO | CALL | REASON` per line. A `*` at the end of a scenario or a call
/// matches any remainder.
pub(super) struct Drift {
    entries: Vec<Entry>,
}

struct Entry {
    line: usize,
    scenario: String,
    call: String,
}

impl Drift {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut entries = Vec::new();
        for (line, text) in text.lines().enumerate() {
            if text.trim().is_empty() || text.starts_with('#') {
                continue;
            }
            let fields: Vec<&str> = text.splitn(3, " | ").map(str::trim).collect();
            ensure!(
                fields.len() == 3 && fields.iter().all(|field| !field.is_empty()),
                "drift.txt, line {}: not SCENARIO | CALL | REASON",
                line + 1
            );
            entries.push(Entry { line: line + 1, scenario: fields[0].into(), call: fields[1].into() });
        }
        Ok(Self { entries })
    }

    /// Returns the differences that are not listed; adds the lines of the listed ones to `used`.
    pub(super) fn unlisted(&self, found: Vec<Difference>, used: &mut BTreeSet<usize>) -> Vec<Difference> {
        found
            .into_iter()
            .filter(|difference| {
                let entry = self.entries.iter().find(|entry| {
                    matches(&entry.scenario, &difference.scenario) && matches(&entry.call, &difference.call)
                });
                used.extend(entry.map(|entry| entry.line));
                entry.is_none()
            })
            .collect()
    }

    /// Returns the lines that no difference used.
    pub(super) fn unused(&self, used: &BTreeSet<usize>) -> Vec<usize> {
        self.entries.iter().map(|entry| entry.line).filter(|line| !used.contains(line)).collect()
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => text.starts_with(start),
        None => text == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(lines: &[&str]) -> Vec<Answer> {
        parse(&lines.join("\n").replace('|', "\t")).expect("they are lines")
    }

    #[test]
    fn equal_runs_do_not_differ() {
        let lines = ["s|f|f(1)|SUCCESS", "s|f|f(1)|FAILURE", "s|g|g()|SUCCESS", "s|s|s|ended"];
        assert_eq!(differences(&run(&lines), &run(&lines)), []);
    }

    #[test]
    fn each_difference_is_reported_once() {
        let theirs = run(&["s|f|f(1)|SUCCESS", "s|f|f(1)|FAILURE", "s|g|g()|1", "s|s|s|ended"]);
        let ours = run(&["s|f|f(1)|SUCCESS", "s|f|f(1)|SUCCESS", "s|s|s|ended", "s|h|h()|2"]);
        let found = differences(&theirs, &ours);
        let reported: Vec<_> = found.iter().map(|one| (one.function.as_str(), one.number)).collect();
        assert_eq!(reported, [("f", 1), ("g", 0), ("h", 0)]);
        assert_eq!(by_function(&found).len(), 3);
    }

    #[test]
    fn ours_must_not_crash_where_theirs_does() {
        let theirs = run(&["s|f|NUMBER(f(NULL))|crashed by signal 11", "s|s|s|ended"]);
        let survives = run(&["s|f|f(NULL)|0", "s|f|NUMBER(f(NULL))|ended", "s|s|s|ended"]);
        assert_eq!(differences(&theirs, &survives), []);
        assert_eq!(differences(&theirs, &theirs).len(), 1, "a crash of both counts");
        assert_eq!(differences(&survives, &theirs).len(), 2);
    }

    #[test]
    fn unsteady_answers_are_left_out() {
        let theirs = run(&["s|f|f()|1", "s|g|g()|1"]);
        let again = run(&["s|f|f()|2", "s|g|g()|1"]);
        let ours = run(&["s|f|f()|3", "s|g|g()|3"]);
        let found = without_varying(differences(&theirs, &ours), &theirs, &again);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].function, "g");
    }

    #[test]
    fn drift_is_listed_with_its_reason() {
        let drift = Drift::parse("# why\n\ns | f(* | because\nt* | g() | because\n").expect("it is a list");
        let found = differences(&run(&["s|f|f(1)|1", "s|g|g()|1"]), &run(&["s|f|f(1)|2", "s|g|g()|2"]));
        let mut used = BTreeSet::new();
        let left = drift.unlisted(found, &mut used);
        assert_eq!(left.len(), 1);
        assert_eq!(drift.unused(&used), [4]);
        assert!(Drift::parse("s | f()").is_err(), "a reason is missing");
    }
}
