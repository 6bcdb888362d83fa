//! Restarts servers that are this test program, run again: one with a memory file, and one that ignores it.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::Parser;
use common::NoProgress;
use fabcache_bench::experiment::{self, Plan};
use fabcache_bench::restart::servers::Servers;
use fabcache_bench::restart::{Restart, Stop, table};
use fabcache_bench::server::MeasuredProgram;
use fabcache_server::options::CommandLine;
use fabcache_server::process::signals;
use fabcache_server::{Server, Settings};
use fabcache_testbed::cleanup::Folder;

/// Begins the argument with the flags of the server.
const FLAGS: &str = "flags=";
const ITEMS: u64 = 2_000;

/// Returns a program that takes a server's flags: this test program, whose ignored test `serve` reads them. `shell` may
/// change the flags, `$@`.
fn program(name: &str, folder: &Path, shell: &str) -> MeasuredProgram {
    let this = std::env::current_exe().expect("it runs");
    let script = format!(
        "#!/bin/sh\n{shell}\nexec {} --exact serve --ignored --nocapture -- \"{FLAGS}$*\"\n",
        this.display()
    );
    let program = folder.join(name);
    std::fs::write(&program, script).expect("a script");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).expect("its owner may");
    MeasuredProgram { name: name.into(), program, flags: Vec::new() }
}

#[test]
#[ignore = "is a server that another test starts"]
fn serve() {
    let flags = std::env::args().find_map(|argument| Some(argument.strip_prefix(FLAGS)?.to_owned()));
    let Some(flags) = flags else { return };
    let line = format!("fabcached -t 1 {flags}");
    let parsed = CommandLine::try_parse_from(line.split_whitespace()).expect("flags");
    let settings = Settings::new(&parsed.options, &|_| None).expect("settings");
    let server = Server::start(settings, Vec::new()).expect("a server");
    signals::become_orders(server.order_sender()).expect("signals");
    server.run_until_stopped(|_| (), || ()).expect("no thread failed");
}

fn restart(servers: Servers, directory: PathBuf) -> Restart {
    Restart {
        items: vec![ITEMS],
        stops: Stop::ALL.to_vec(),
        value_bytes: 50,
        verify: true,
        directory,
        servers,
    }
}

#[test]
fn kept_and_lost_items_are_told_apart() {
    let folder = Folder::new("fabcache-restart-test").expect("a folder");
    let directory = folder.path().join("files");
    std::fs::create_dir(&directory).expect("a folder");
    // Drops all flags after `-u root -s SOCKET`: -m and -e.
    let forgets = "set -- \"$1\" \"$2\" \"$3\" \"$4\"";
    let programs = [program("keeps", folder.path(), ""), program("forgets", folder.path(), forgets)];
    let restart = restart(Servers::start(&programs).expect("servers"), directory.clone());
    restart.check().expect("a few items fit");
    let plan = Plan { rounds: 1, ..Plan::default() };
    let results =
        experiment::run(&restart, &restart.servers.targets(), &plan, &NoProgress).expect("right answers");
    assert_eq!(results.samples.len(), 4, "two stops of two servers");
    for sample in &results.samples {
        let figure = |name: &str| sample.figures.get(name).copied();
        assert_eq!((sample.operations, sample.verified + sample.misses), (10_000, 10_000), "{sample:?}");
        assert!(figure("stop_ms") > Some(0.0) && figure("first_answer_ms") > Some(0.0), "{sample:?}");
        assert!(figure("hits_before_per_s") > Some(0.0), "{sample:?}");
        let stop = sample.case.parameters["stop"].to_string();
        match (sample.target.as_str(), stop.as_str()) {
            ("keeps", "clean") => {
                assert_eq!((figure("hit_ratio"), sample.misses), (Some(1.0), 0), "{sample:?}");
                assert!(figure("recovery_ms") > figure("first_answer_ms"), "{sample:?}");
            }
            ("forgets", _) => {
                assert_eq!((figure("hit_ratio"), sample.misses), (Some(0.0), 10_000), "{sample:?}");
                assert_eq!(figure("recovery_ms"), None, "{sample:?}");
            }
            _ => {}
        }
    }
    let text = table(&results);
    assert!(text.contains("2000 clean  hit ratio") && text.contains("never"), "{text}");
    drop(restart);
    assert_eq!(std::fs::read_dir(directory).expect("a folder").count(), 0, "no memory file remains");
}

#[test]
fn items_that_do_not_fit_are_rejected() {
    let none = Servers::start(&[]).expect("no server");
    let many = Restart { items: vec![ITEMS, 1 << 40], ..restart(none, "/dev/shm".into()) };
    let error = many.check().expect_err("too many").to_string();
    assert!(error.contains("1099511627776 items need") && error.contains("--items"), "{error}");
    let error = Restart { items: vec![u64::MAX], ..many }.check().expect_err("too many").to_string();
    assert!(error.contains("address space"), "{error}");
}
