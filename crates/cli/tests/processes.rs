//! Client processes, as `fabcache bench` starts them.

use std::path::PathBuf;
use std::process::{Command, Output};

use fabcache_bench::results::Results;
use fabcache_testbed::local::LocalServer;

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("fabcache-{name}-{}", std::process::id()))
}

fn bench(line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fabcache")).arg("bench").args(line.split(' ')).output().expect("it runs")
}

#[test]
fn clients_run_in_several_processes() {
    let json = temporary("processes.json");
    let (server, socket) = LocalServer::unix("processes", "--shm");
    for scheme in ["unix", "shm"] {
        let output = bench(&format!(
            "throughput --server {scheme}://{} --quick --verify --sizes 100 --clients 3 --processes 2 --seconds 0.05 --json {}",
            socket.display(),
            json.display()
        ));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let results = Results::read(&json).expect("results");
        let [sample] = &results.samples[..] else { panic!("{results:?}") };
        assert_eq!(sample.case.number("processes"), Some(2.0));
        assert!(sample.operations > 0 && sample.verified == sample.operations, "{sample:?}");
        assert!(sample.client_cpu_ns > Some(0) && sample.latency.is_some(), "{sample:?}");
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(table.contains("processes") && table.contains("p99.9 us"), "{table}");
        assert!(output.stderr.is_empty(), "no progress without a terminal");
    }
    server.stop().expect("no thread failed");
    let _ = std::fs::remove_file(json);
}

#[test]
fn invalid_options_are_rejected_by_name() {
    let nowhere = "--server unix:///nowhere/at/all";
    for (line, reported) in [
        (format!("throughput {nowhere}"), "/nowhere/at/all"),
        (format!("throughput {nowhere} --clients 0"), "at least 1 client"),
        (format!("throughput {nowhere} --seconds 0"), "rounds of 0 s"),
        (format!("throughput {nowhere} --rate 0"), "rates are above 0"),
        (format!("mixture {nowhere} --average 5"), "an average of 5 bytes"),
        (format!("mixture {nowhere} --get-share 2"), "a get share of 2"),
        (format!("multiget {nowhere} --batch 1000"), "a batch of 1000 keys"),
    ] {
        let output = bench(&line);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(reported), "{line}: {error}");
    }
}
