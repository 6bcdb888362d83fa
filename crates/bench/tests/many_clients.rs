//! Small runs of the measurements with many clients on a real server, and their tables.

mod common;

use common::{TestServer, run};
use fabcache_bench::experiment::Experiment;
use fabcache_bench::mixture::{self, Mixture};
use fabcache_bench::multiget::{self, Multiget};
use fabcache_bench::results::Results;
use fabcache_bench::target::Target;
use fabcache_bench::throughput::{self, Saturation, Throughput};
use fabcache_client::Protocol;

fn measured(experiment: &dyn Experiment, targets: &[&Target]) -> Results {
    run(experiment, targets).expect("right answers")
}

fn target_of(server: &TestServer, name: &str, protocol: Protocol) -> Target {
    let mut target = server.target("tcp", protocol);
    target.name = name.into();
    target
}

#[test]
fn throughput_is_measured_and_tabulated() {
    let servers = [TestServer::tcp(), TestServer::tcp()];
    let targets =
        [target_of(&servers[0], "one", Protocol::Meta), target_of(&servers[1], "other", Protocol::Text)];
    let mut throughput = Throughput::standard(true, true, 20).expect("a length");
    (throughput.load.seconds, throughput.clients) = (0.03, vec![1, 3]);
    let results = measured(&throughput, &[&targets[0], &targets[1]]);
    // Two sizes, two numbers of clients, two targets, two rounds.
    assert_eq!(results.samples.len(), 16);
    for sample in &results.samples {
        let latency = sample.latency.as_ref().expect("a histogram");
        assert!(sample.operations > 0 && sample.misses == 0 && sample.elapsed_ns > 0, "{sample:?}");
        assert_eq!((latency.count(), sample.verified), (sample.operations, sample.operations));
        assert!(sample.client_cpu_ns > Some(0), "{sample:?}");
    }
    let table = throughput::table(&results);
    assert_eq!(table.lines().count(), 1 + 8, "{table}");
    for heading in ["clients", "value bytes", "ops/s", "p99.9 us", "server us/op", "ratio"] {
        assert!(table.lines().next().is_some_and(|line| line.contains(heading)), "{table}");
    }

    throughput.rates = vec![1_000.0];
    throughput.sizes = vec![10];
    let results = measured(&throughput, &[&targets[0]]);
    assert!(results.samples.iter().all(|sample| sample.case.number("rate_per_s") == Some(1_000.0)));
    assert!(throughput::table(&results).contains("rate per s"));
    throughput.clients = vec![0];
    assert!(throughput.check().is_err());
}

#[test]
fn the_saturation_search_records_every_step() {
    let server = TestServer::tcp();
    let target = target_of(&server, "one", Protocol::Auto);
    let mut throughput = Throughput::standard(true, false, 20).expect("a length");
    (throughput.load.seconds, throughput.clients, throughput.sizes) = (0.01, vec![2], vec![4]);
    // The bound is an hour, so any rate that is reached stays within it.
    let results = measured(&Saturation { throughput, p99_us_max: 3.6e9 }, &[&target]);
    let table = throughput::table(&results);
    assert_eq!(table.matches("open loop").count(), 14, "{table}");
    assert_eq!(table.matches("within the bound").count(), 2, "{table}");
    for sample in &results.samples {
        let figure = |name: &str| sample.figures[name];
        assert!(figure("closed_loop_per_s") > 0.0);
        assert!(figure("saturation_per_s") <= figure("closed_loop_per_s") * 1.25);
    }
}

#[test]
fn a_mixture_is_tabulated_by_class_and_evicts_nothing() {
    let server = TestServer::tcp();
    let target = target_of(&server, "one", Protocol::Binary);
    let mut mixture = Mixture::standard(true, true, 20).expect("a length");
    (mixture.load.seconds, mixture.clients, mixture.averages) = (0.2, vec![2], vec![2_048.0, 100.0]);
    let results = measured(&mixture, &[&target]);
    for sample in &results.samples {
        assert!(sample.operations > 0 && sample.misses == 0, "{sample:?}");
        assert!(sample.verified > 0 && sample.verified < sample.operations, "a tenth are sets: {sample:?}");
        assert_eq!(sample.figures["evictions"], 0.0);
        assert!(sample.figures["very_small_p99_us"] > 0.0);
    }
    let table = mixture::table(&results);
    assert!(table.contains("medium p99 us") && table.contains("MB/s"), "{table}");
    mixture.averages = vec![20_000.0];
    assert!(mixture.check().is_err());
}

#[test]
fn multigets_are_measured_beside_single_gets() {
    let server = TestServer::tcp();
    let target = target_of(&server, "one", Protocol::Text);
    let mut multiget = Multiget::standard(true, true, 20).expect("a length");
    (multiget.load.seconds, multiget.clients) = (0.03, vec![2]);
    let results = measured(&multiget, &[&target]);
    for sample in &results.samples {
        let requests = sample.latency.as_ref().expect("a histogram").count();
        let batch = sample.case.number("batch").expect("a batch") as u64;
        assert_eq!((sample.operations, sample.verified), (requests * batch, sample.operations));
    }
    assert_eq!(multiget::table(&results).lines().count(), 3);
    multiget.batches = vec![0];
    assert!(multiget.check().is_err());
}
