//! The systemd unit that docs/operating.md prints.

mod common;

use std::path::Path;
use std::process::Command;

use common::Scratch;
use fabcache_testbed::report::not_run;

/// Returns the page, and the unit in it.
fn page_and_unit() -> (String, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating.md");
    let page = std::fs::read_to_string(path).expect("the page is in the tree");
    let after = page.split_once("```ini\n").expect("the page has a unit").1;
    let unit = after.split_once("```").expect("it ends").0.to_owned();
    (page, unit)
}

/// Returns the value of a key of a section.
fn value<'u>(unit: &'u str, section: &str, key: &str) -> Option<&'u str> {
    let (_, rest) = unit.split_once(&format!("[{section}]\n"))?;
    let section = rest.split("\n[").next()?;
    section.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
}

#[test]
fn documented_unit_can_be_enabled_and_makes_the_sockets_folder() {
    let (page, unit) = page_and_unit();
    // `notify-reload` needs systemd 253; Debian 12 has 252. Without it, a reload needs a command.
    assert_eq!(value(&unit, "Service", "Type"), Some("notify"));
    assert_eq!(value(&unit, "Service", "ExecReload"), Some("/bin/kill -HUP $MAINPID"));
    assert_eq!(value(&unit, "Install", "WantedBy"), Some("multi-user.target"));
    // Only root may make files in /run itself.
    let folder = value(&unit, "Service", "RuntimeDirectory").expect("a folder for sockets");
    let (allowed, all) = (format!("/run/{folder}/"), page.matches("/run/").count());
    assert_eq!(page.matches(&allowed).count(), all, "every path in /run is in {allowed}");
}

#[test]
fn documented_unit_is_valid() {
    let scratch = Scratch::new("systemd");
    let unit = page_and_unit().1.replace("/usr/local/bin/fabcached", env!("CARGO_BIN_EXE_fabcached"));
    let file = scratch.file("fabcached.service", &unit);
    let mut command = Command::new("systemd-analyze");
    let output = match command.args(["verify", "--man=no"]).arg(&file).output() {
        Ok(output) => output,
        Err(error) => return not_run("documented_unit_is_valid, which needs systemd-analyze", &error),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("fabcached"), "{said}");
}
