//! Measures servers that are this test program, run again: one stands for a flash tier by having more memory.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use common::NoProgress;
use fabcache_bench::experiment::{self, Plan};
use fabcache_bench::hybrid::flash::servers::{Flags, Kind, Servers};
use fabcache_bench::hybrid::flash::{FlashTier, Measure, PageCache, table};
use fabcache_bench::server::MeasuredProgram;
use fabcache_server::options::CommandLine;
use fabcache_server::process::signals;
use fabcache_server::{Server, Settings};
use fabcache_testbed::cleanup::Folder;

/// Begins the argument with the flags of the server.
const FLAGS: &str = "flags=";
const MEMORY_BYTES: u64 = 8 << 20;

/// Returns a program that takes memcached's flags: this test program, whose ignored test `serve` reads them. With a
/// device, it has 64 MB instead.
fn program(folder: &Path) -> MeasuredProgram {
    let this = std::env::current_exe().expect("it runs");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *ext_path*) set -- \"$1\" \"$2\" \"$3\" \"$4\" -m 64;; esac\n\
         exec {} --exact serve --ignored --nocapture -- \"{FLAGS}$*\"\n",
        this.display()
    );
    let program = folder.join("server");
    std::fs::write(&program, script).expect("a script");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).expect("its owner may");
    MeasuredProgram { name: "tier".into(), program, flags: Vec::new() }
}

#[test]
#[ignore = "is a server that another test starts"]
fn serve() {
    let flags = std::env::args().find_map(|argument| Some(argument.strip_prefix(FLAGS)?.to_owned()));
    let Some(flags) = flags else { return };
    let line = format!("fabcached {flags}");
    let parsed = CommandLine::try_parse_from(line.split_whitespace()).expect("flags");
    let settings = Settings::new(&parsed.options, &|_| None).expect("settings");
    let server = Server::start(settings, Vec::new()).expect("a server");
    signals::become_orders(server.order_sender()).expect("signals");
    server.run_until_stopped(|_| (), || ()).expect("no thread failed");
}

fn tier(servers: Servers, directory: PathBuf) -> FlashTier {
    FlashTier {
        measures: vec![Measure::Get, Measure::RamHits],
        value_sizes: vec![1_000],
        spills: vec![2.0],
        memory_bytes: MEMORY_BYTES,
        index_memory_bytes: MEMORY_BYTES,
        clients: 2,
        window: 4,
        fill_megabytes_per_s: Some(50.0),
        time: Duration::from_millis(100),
        verify: true,
        page_cache: PageCache::of(&directory),
        directory,
        slow_devices: None,
        servers,
    }
}

#[test]
fn a_tier_has_what_memory_evicts() {
    let folder = Folder::new("fabcache-flash-test").expect("a folder");
    let flags = Flags { threads: 1, ext_threads: 1, ext_io_depth: 1 };
    let programs = [(program(folder.path()), Kind::Memcached)];
    let servers = Servers::start(&programs, &[false, true], flags).expect("servers");
    let directory = folder.path().join("devices");
    std::fs::create_dir(&directory).expect("a folder");
    let tier = tier(servers, directory.clone());
    tier.check().expect("values in range");
    let plan = Plan { rounds: 2, ..Plan::default() };
    let results = experiment::run(&tier, &tier.servers.targets(), &plan, &NoProgress).expect("right answers");
    assert_eq!(results.samples.len(), 8, "two measures of two servers");
    for sample in &results.samples {
        let figure = |name: &str| sample.figures.get(name).copied().unwrap_or(f64::NAN);
        assert_eq!(sample.verified + sample.misses, sample.operations, "{sample:?}");
        let success = figure("success_part");
        match (sample.target.as_str(), sample.case.operation.as_str()) {
            ("tier RAM", "get") => assert!((0.2..0.6).contains(&success), "{sample:?}"),
            _ => assert_eq!(success, 1.0, "{sample:?}"),
        }
        match sample.case.operation.as_str() {
            "get" => {
                assert_eq!(figure("items"), (2 * MEMORY_BYTES / 1_020) as f64, "{sample:?}");
                assert!(
                    figure("resident_bytes_each") > 1_020.0 && figure("fill_per_s") < 5e4 * 1.1,
                    "{sample:?}"
                );
                assert!(sample.server_cpu_ns > Some(0), "{sample:?}");
            }
            _ => {
                assert!(figure("alone_p99_us") > 0.0 && figure("beside_flash_p99_us") > 0.0, "{sample:?}");
                assert!(sample.base_latency.is_some() && figure("other_ram_per_s") > 0.0, "{sample:?}");
            }
        }
        assert_eq!(
            sample.figures.contains_key("page_cache_bytes"),
            tier.page_cache == PageCache::Limited,
            "{sample:?}"
        );
    }
    let text = table(&results);
    assert!(text.contains("success %") && text.contains("flash/alone"), "{text}");
    drop(tier);
    assert_eq!(std::fs::read_dir(directory).expect("a folder").count(), 0, "no device remains");
}

#[test]
fn values_out_of_range_are_rejected() {
    let flags = Flags { threads: 1, ext_threads: 1, ext_io_depth: 1 };
    let none = || Servers::start(&[], &[true], flags).expect("no server");
    let with = |change: &dyn Fn(&mut FlashTier)| {
        let mut tier = tier(none(), "/dev/shm".into());
        change(&mut tier);
        tier.check().expect_err("out of range").to_string()
    };
    assert!(with(&|tier| tier.value_sizes = vec![1 << 20]).contains("1000000"));
    assert!(with(&|tier| tier.spills = vec![0.0]).contains("spill"));
    assert!(with(&|tier| tier.memory_bytes = 100).contains("0 items"));
}

#[test]
fn clients_of_the_library_read_shared_memory() {
    let folder = Folder::new("fabcache-flash-test").expect("a folder");
    let flags = Flags { threads: 1, ext_threads: 1, ext_io_depth: 1 };
    let server = MeasuredProgram { flags: vec!["--shm".into()], ..program(folder.path()) };
    let servers = Servers::start(&[(server, Kind::FabcachedShm)], &[false], flags).expect("servers");
    let measures = vec![Measure::Get];
    let tier = FlashTier { measures, ..tier(servers, folder.path().to_owned()) };
    let plan = Plan { rounds: 1, ..Plan::default() };
    let results = experiment::run(&tier, &tier.servers.targets(), &plan, &NoProgress).expect("right answers");
    assert_eq!(results.targets[0].transport, "shm");
    let sample = &results.samples[0];
    assert!(sample.operations > 1_000, "{sample:?}");
    assert_eq!(sample.verified + sample.misses, sample.operations, "{sample:?}");
    let hits = sample.verified as f64 / sample.operations as f64;
    assert!((0.2..0.6).contains(&hits), "{sample:?}");
    assert_eq!(sample.latency.as_ref().map(|latency| latency.count()), Some(sample.operations));
}
