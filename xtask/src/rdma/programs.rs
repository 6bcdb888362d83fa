//! The tests that need a fabric: which they are, where cargo put them, and whether they were run.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::process::{Guarded, Interrupt, Scratch, describe, read};
use crate::workspace;

/// The programs, of which the ignored tests are run.
const TESTS: &[Test] = &[
    Test { package: "fabcache-fabric", name: "providers", left_out: &[], in_machine: &[] },
    Test { package: "fabcache-transport", name: "fabric", left_out: &[slow("crossing")], in_machine: &[] },
    Test { package: "fabcache-server", name: "links", left_out: &[slow("crossing")], in_machine: &[] },
    Test {
        package: "fabcache-client",
        name: "fabric",
        left_out: &[LeftOut {
            there: "shm",
            tests: "killed_clients",
            why: "a client that is killed while it sends or reads holds the lock of the server's queue in libfabric 1.17, \
                  whose calls then never return",
        }],
        in_machine: &["a_stopped_server_is_read", "who_may_not_pin_memory"],
    },
    Test {
        package: "fabcache-cli",
        name: "fabric",
        left_out: &[slow("looped"), slow("crossing")],
        in_machine: &[],
    },
];

/// What is not run, and why.
pub struct LeftOut {
    /// A provider, or a way.
    there: &'static str,
    /// What the names of the tests begin with; empty: all.
    tests: &'static str,
    pub why: &'static str,
}

const fn slow(there: &'static str) -> LeftOut {
    LeftOut { there, tests: "", why: "takes the emulator minutes" }
}

impl LeftOut {
    /// The whole program.
    pub fn is_all(&self) -> bool {
        self.tests.is_empty()
    }

    /// For who looks on.
    pub fn name(&self) -> &'static str {
        if self.is_all() { "all" } else { self.tests }
    }
}

struct Test {
    package: &'static str,
    name: &'static str,
    left_out: &'static [LeftOut],
    /// The tests that are run in the emulated machine, by what their names begin with; none: all.
    in_machine: &'static [&'static str],
}

/// For a build from nothing.
const BUILD_TIME_MAX: Duration = Duration::from_secs(1800);

/// A program of tests.
pub struct Program {
    package: &'static str,
    test: &'static str,
    path: PathBuf,
    /// Where cargo would run it.
    folder: PathBuf,
    left_out: &'static [LeftOut],
    in_machine: &'static [&'static str],
}

impl Program {
    /// For who looks on.
    pub fn name(&self) -> String {
        format!("{} {}", self.package, self.test)
    }

    /// What is not run of it over this provider, or in this way.
    pub fn left_out(&self, there: &str) -> impl Iterator<Item = &'static LeftOut> {
        self.left_out.iter().filter(move |left_out| left_out.there == there)
    }

    fn arguments(&self, there: &str) -> Vec<&'static str> {
        let skipped = self.left_out(there).flat_map(|left_out| ["--skip", left_out.tests]);
        ARGUMENTS.iter().copied().chain(skipped).collect()
    }

    /// What runs it over a provider.
    pub fn command(&self, provider: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.args(self.arguments(provider)).current_dir(&self.folder);
        command
    }

    /// For bash: runs it in a way, within a time.
    pub fn script(&self, way: &str, time_max: Duration) -> String {
        let (folder, path) = (quoted(&self.folder.display()), quoted(&self.path.display()));
        let arguments = [&self.arguments(way), self.in_machine].concat().join(" ");
        let seconds = time_max.as_secs();
        format!("cd {folder} && exec timeout -k 5 {seconds} {path} {arguments}")
    }
}

/// One after the other: there are few processors, and most tests are about time limits, too.
const ARGUMENTS: &[&str] = &["--ignored", "--test-threads=1"];

/// Builds the programs.
///
/// # Errors
/// One does not build, or is not there.
pub fn build(interrupt: &Interrupt) -> Result<Vec<Program>> {
    let scratch = Scratch::create()?;
    let list = scratch.path().join("list");
    let mut cargo = workspace::cargo();
    // As a part of all: what the workspace's tests were built with is used.
    cargo.args(["test", "--workspace", "--no-run", "--message-format", "json-render-diagnostics"]);
    let mut names: Vec<&str> = TESTS.iter().map(|test| test.name).collect();
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
    TESTS
        .iter()
        .map(|test| {
            let program = list.lines().find_map(|line| found(line, test));
            program.with_context(|| format!("cargo built no test {} of {}", test.name, test.package))
        })
        .collect()
}

/// The program, if this is cargo's line about it.
fn found(line: &str, test: &Test) -> Option<Program> {
    let Test { package, name, left_out, in_machine } = *test;
    let message: Value = serde_json::from_str(line).ok()?;
    let manifest = PathBuf::from(message["manifest_path"].as_str()?);
    let id = message["package_id"].as_str()?;
    let is_package = id.contains(&format!("/{package}#")) || id.contains(&format!("#{package}@"));
    let is_test = message["target"]["name"] == name && message["target"]["kind"][0] == "test";
    let path = PathBuf::from(message["executable"].as_str()?);
    let folder = manifest.parent()?.to_owned();
    (is_package && is_test).then_some(Program { package, test: name, path, folder, left_out, in_machine })
}

/// How many tests passed, of what a program of tests printed.
///
/// # Errors
/// None was run.
pub fn passed(output: &str) -> Result<u32> {
    let results = output.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    let count = results.filter_map(|rest| rest.split(' ').next()?.parse::<u32>().ok()).sum();
    ensure!(count > 0, "no test was run");
    Ok(count)
}

/// As one word for bash.
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
    fn programs_are_found_in_what_cargo_says() {
        let line = |id: &str, kind: &str, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"{id}","manifest_path":"/w/crates/fabric/Cargo.toml",
                "target":{{"kind":["{kind}"],"name":"providers"}},"executable":{executable}}}"#
            )
        };
        let test = Test { package: "fabcache-fabric", name: "providers", left_out: &[], in_machine: &[] };
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
    fn words_stay_words() {
        assert_eq!(quoted(&"a b"), "'a b'");
        assert_eq!(quoted(&"it's"), r"'it'\''s'");
    }
}
