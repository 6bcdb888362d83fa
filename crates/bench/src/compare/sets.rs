//! What is measured, by name: experiments as they are by themselves, and some that stand for all.

use anyhow::{Context, Result, bail};

use crate::experiment::{Experiment, Rounds};
use crate::latency::Latency;
use crate::results::Case;
use crate::target::Target;

/// Rounds of each case, with `quick` and otherwise: odd, so that one is in the middle.
const ROUNDS: [u32; 2] = [3, 11];
/// Sizes of values in the set `quick`.
const QUICK_VALUES_BYTES: [usize; 3] = [64, 4 << 10, 128 << 10];

/// A named set of experiments, which is itself one.
pub struct Set {
    name: &'static str,
    parts: Vec<Box<dyn Experiment>>,
    /// Rounds of each case.
    pub rounds: u32,
}

/// How an experiment is made: shorter than its full length, with every byte compared, with keys of so many bytes.
type Make = fn(bool, bool, usize) -> Result<Vec<Box<dyn Experiment>>>;

/// All sets but `all`, which is all of these but `quick`.
const SETS: [(&str, Make); 2] = [("quick", quick), ("latency", latency)];

impl Set {
    /// The names of all sets.
    pub fn names() -> Vec<&'static str> {
        SETS.iter().map(|(name, _)| *name).chain(["all"]).collect()
    }

    /// The sets of these names. `quick` makes each of them short.
    ///
    /// # Errors
    /// There is none of this name; keys cannot be so long.
    pub fn of_names(names: &[String], quick: bool, verify: bool, key_bytes: usize) -> Result<Vec<Set>> {
        let mut sets: Vec<Set> = Vec::new();
        for name in names {
            let is_named = |known: &str| match name.as_str() {
                "all" => known != "quick",
                name => known == name,
            };
            let named: Vec<_> = SETS.iter().filter(|(known, _)| is_named(known)).collect();
            if named.is_empty() {
                bail!("there is no set {name:?}; there are {}", Set::names().join(", "));
            }
            for (name, make) in named {
                if sets.iter().all(|set| set.name != *name) {
                    let parts = make(quick, verify, key_bytes)?;
                    sets.push(Set { name, parts, rounds: ROUNDS[usize::from(!quick)] });
                }
            }
        }
        Ok(sets)
    }
}

/// A few cases of what matters most.
fn quick(_quick: bool, verify: bool, key_bytes: usize) -> Result<Vec<Box<dyn Experiment>>> {
    let latency = Latency::standard(true, verify, key_bytes)?;
    Ok(vec![Box::new(Latency { sizes: QUICK_VALUES_BYTES.to_vec(), ..latency })])
}

fn latency(quick: bool, verify: bool, key_bytes: usize) -> Result<Vec<Box<dyn Experiment>>> {
    Ok(vec![Box::new(Latency::standard(quick, verify, key_bytes)?)])
}

impl Experiment for Set {
    fn name(&self) -> &'static str {
        self.name
    }

    fn method(&self) -> String {
        let parts = self.parts.iter().map(|part| match self.parts.len() {
            1 => part.method(),
            _ => format!("{}: {}", part.name(), part.method()),
        });
        parts.collect::<Vec<_>>().join("; ")
    }

    fn cases(&self) -> Vec<Case> {
        self.parts.iter().flat_map(|part| part.cases()).collect()
    }

    fn prepare<'e>(&'e self, target: &'e Target, case: &Case) -> Result<Box<dyn Rounds + 'e>> {
        let part = self.parts.iter().find(|part| part.cases().contains(case));
        part.with_context(|| format!("{} is of no experiment", case.name()))?.prepare(target, case)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_found_by_name() {
        let of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            Set::of_names(&names, true, false, 20)
        };
        let names = |sets: Vec<Set>| sets.iter().map(|set| set.name).collect::<Vec<_>>();
        assert_eq!(names(of(&["latency", "quick", "latency"]).expect("sets")), ["latency", "quick"]);
        let all = of(&["all"]).expect("sets");
        assert_eq!(all.len(), SETS.len() - 1);
        let error = of(&["latenzy"]).err().expect("there is none").to_string();
        assert!(error.contains("latenzy") && error.contains("quick, latency"), "{error}");
    }

    #[test]
    fn cases_of_a_set_are_told_apart() {
        for (name, make) in SETS {
            let set = Set { name, parts: make(true, false, 20).expect("an experiment"), rounds: 1 };
            let cases = set.cases();
            assert!(!cases.is_empty() && !set.method().is_empty(), "{name}");
            for (i, case) in cases.iter().enumerate() {
                assert!(!cases[..i].contains(case), "{name} has {} twice", case.name());
            }
        }
    }
}
