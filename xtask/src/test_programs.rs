//! Test programs whose ignored tests need more than Rust: their executables, and whether all tests ran.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::{Guarded, Interrupt, Scratch, describe, read};
use crate::workspace;

/// A test program of a package.
#[derive(Clone, Copy)]
pub struct Test {
    pub package: &'static str,
    pub name: &'static str,
    /// The tests to run in a place, such as a provider or an arrangement of machines; all where none is given.
    pub parts: &'static [(&'static str, Part)],
}

/// A selection of a program's tests, by parts of their names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Part {
    All,
    Only(&'static [&'static str]),
    /// All but these, with the reason.
    Without(&'static [&'static str], &'static str),
    /// No test, with the reason.
    None(&'static str),
}

impl Test {
    fn part(&self, there: &str) -> Part {
        self.parts.iter().find(|(name, _)| *name == there).map_or(Part::All, |(_, part)| *part)
    }
}

/// Tests that are not run, with the reason.
pub struct LeftOut {
    /// Parts of their names; empty for all.
    pub tests: &'static [&'static str],
    pub why: &'static str,
}

/// Time limit of a build from scratch.
const BUILD_TIME_MAX: Duration = Duration::from_secs(1800);

/// A test program.
pub struct Program {
    test: Test,
    path: PathBuf,
    /// The folder in which cargo would run it.
    folder: PathBuf,
}

impl Program {
    /// Returns the name to print.
    pub fn name(&self) -> String {
        format!("{} {}", self.test.package, self.test.name)
    }

    /// Returns the tests that are not run in this place.
    pub fn left_out(&self, there: &str) -> Option<LeftOut> {
        match self.test.part(there) {
            Part::Without(tests, why) => Some(LeftOut { tests, why }),
            Part::None(why) => Some(LeftOut { tests: &[], why }),
            Part::All | Part::Only(_) => None,
        }
    }

    /// Returns the command that runs the program in this place.
    pub fn command(&self, there: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.args(self.arguments(there)).current_dir(&self.folder);
        command
    }

    /// Returns the bash command that runs the program in this place, with a time limit.
    pub fn script(&self, there: &str, time_max: Duration) -> String {
        let (folder, path) = (quoted(&self.folder.display()), quoted(&self.path.display()));
        let (seconds, arguments) = (time_max.as_secs(), self.arguments(there).join(" "));
        format!("cd {folder} && exec timeout -k 5 {seconds} {path} {arguments}")
    }

    fn arguments(&self, there: &str) -> Vec<&'static str> {
        let mut arguments = ARGUMENTS.to_vec();
        match self.test.part(there) {
            Part::All | Part::None(_) => {}
            Part::Only(names) => arguments.extend(names),
            Part::Without(names, _) => arguments.extend(names.iter().flat_map(|name| ["--skip", name])),
        }
        arguments
    }
}

/// One test at a time: there are few CPUs, and most tests have time limits.
const ARGUMENTS: &[&str] = &["--ignored", "--test-threads=1"];

/// Builds the programs of these tests.
///
/// # Errors
/// A program does not build, or does not exist.
pub fn build(tests: &[Test], interrupt: &Interrupt) -> Result<Vec<Program>> {
    let scratch = Scratch::create()?;
    let list = scratch.path().join("list");
    let mut cargo = workspace::cargo();
    // Built as part of the workspace, to reuse the build of its tests.
    cargo.args(["test", "--workspace", "--no-run", "--message-format", "json-render-diagnostics"]);
    let mut names: Vec<&str> = tests.iter().map(|test| test.name).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        cargo.args(["--test", name]);
    }
    let stderr = File::from(rustix::io::dup(std::io::stderr())?);
    let mut build = Guarded::spawn(&mut cargo, File::create(&list)?, stderr)?;
    match build.wait(BUILD_TIME_MAX, interrupt)? {
        Some(status) if status.success() => {}
        Some(status) => bail!("the tests do not build: {}", describe(status)),
        None => bail!("the tests are not built within {BUILD_TIME_MAX:?}"),
    }
    let list = read(&list);
    tests
        .iter()
        .map(|test| {
            let program = list.lines().find_map(|line| found(line, test));
            program.with_context(|| format!("cargo built no test {} of {}", test.name, test.package))
        })
        .collect()
}

/// Returns the program, if this is cargo's message about it.
fn found(line: &str, test: &Test) -> Option<Program> {
    let Test { package, name, .. } = *test;
    let message: Value = serde_json::from_str(line).ok()?;
    let manifest = PathBuf::from(message["manifest_path"].as_str()?);
    let id = message["package_id"].as_str()?;
    let is_package = id.contains(&format!("/{package}#")) || id.contains(&format!("#{package}@"));
    let is_test = message["target"]["name"] == name && message["target"]["kind"][0] == "test";
    let path = PathBuf::from(message["executable"].as_str()?);
    let folder = manifest.parent()?.to_owned();
    (is_package && is_test).then_some(Program { test: *test, path, folder })
}

/// Returns the number of passed tests in the output of a test program.
///
/// # Errors
/// No test was run.
pub fn passed(output: &str) -> Result<u32, String> {
    let results = output.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    let count = results.filter_map(|rest| rest.split(' ').next()?.parse::<u32>().ok()).sum();
    if count > 0 { Ok(count) } else { Err("no test was run".to_owned()) }
}

/// Returns the lines in the output of a test program about tests that could not run.
pub fn not_run(output: &str) -> String {
    // They may follow the name of a test.
    let lines = output.lines().filter_map(|line| Some(&line[line.find("NOT RUN: ")?..]));
    lines.collect::<Vec<_>>().join("\n")
}

/// Quotes a text as one bash word.
pub fn quoted(text: &impl ToString) -> String {
    format!("'{}'", text.to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted() {
        let text = "\nrunning 3 tests\ntest a ... ok\n\ntest result: ok. 3 passed; 0 failed; 0 ignored; finished in 0.00s\n";
        assert_eq!(passed(text).unwrap(), 3);
        assert!(passed(&text.replace('3', "0")).is_err());
        assert!(passed("").is_err());
    }

    #[test]
    fn tests_that_could_not_run_are_reported() {
        let text = "running 2 tests\ntest a ... NOT RUN: a: why\nok\nNOT RUN: b: why\ntest b ... ok\n";
        assert_eq!(not_run(text), "NOT RUN: a: why\nNOT RUN: b: why");
        assert_eq!(not_run("test a ... ok\n"), "");
    }

    #[test]
    fn programs_are_found_in_cargos_messages() {
        let line = |id: &str, kind: &str, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"{id}","manifest_path":"/w/crates/fabric/Cargo.toml",
                "target":{{"kind":["{kind}"],"name":"providers"}},"executable":{executable}}}"#
            )
        };
        let test = Test { package: "fabcache-fabric", name: "providers", parts: &[] };
        let find = |line: &str| found(line, &test);
        for id in
            ["path+file:///w/crates/fabric#fabcache-fabric@0.1.0", "path+file:///w/fabcache-fabric#0.1.0"]
        {
            let program = find(&line(id, "test", r#""/t/providers-1""#)).expect("it is there");
            assert_eq!(program.path, PathBuf::from("/t/providers-1"));
            assert_eq!(program.folder, PathBuf::from("/w/crates/fabric"));
            assert!(find(&line(id, "bin", r#""/t/x""#)).is_none());
            assert!(find(&line(id, "test", "null")).is_none());
        }
        let other = "path+file:///w/crates/fabric#fabcache-fabric-too@0.1.0";
        assert!(find(&line(other, "test", r#""/t/x""#)).is_none());
        assert!(find(r#"{"reason":"build-finished","success":true}"#).is_none());
    }

    #[test]
    fn parts_are_selected_by_place() {
        let parts = &[
            ("one", Part::Only(&["a", "b"])),
            ("no", Part::None("why")),
            ("but", Part::Without(&["c"], "so")),
        ];
        let test = Test { package: "p", name: "t", parts };
        let program = Program { test, path: "/t/t-1".into(), folder: "/p".into() };
        let arguments = |there: &str| program.arguments(there)[ARGUMENTS.len()..].join(" ");
        assert_eq!(arguments("one"), "a b");
        let why = |there| program.left_out(there).map(|left_out| left_out.why);
        assert_eq!((arguments("other"), why("other")), (String::new(), None));
        assert_eq!((&*arguments("but"), why("but")), ("--skip c", Some("so")));
        assert_eq!((why("no"), why("one")), (Some("why"), None));
    }

    #[test]
    fn quoted_words_stay_single_words() {
        assert_eq!(quoted(&"a b"), "'a b'");
        assert_eq!(quoted(&"it's"), r"'it'\''s'");
    }
}
