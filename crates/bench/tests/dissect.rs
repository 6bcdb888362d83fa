//! Dissects calls to a fabcached in this process, over its socket and its memory, and to another
//! server.

mod common;

use common::{TestServer, run};
use fabcache_bench::dissect::{Dissect, HOPS, ONE_SIDED, TOTAL, noise_name, table};
use fabcache_bench::dummy::{Dummy, Listen, Settings};
use fabcache_bench::results::Sample;
use fabcache_bench::target::Target;
use fabcache_client::Protocol;
use fabcache_shmem::local::LocalProcess;
use fabcache_testbed::local::LocalServer;

fn dissect() -> Dissect {
    let standard = Dissect::standard(true, true, 20).expect("a length");
    Dissect { sizes: vec![64, 20_000], iterations: 20, ..standard }
}

/// Asserts that the sample has exactly these hops and that they add up to the total.
fn assert_hops(sample: &Sample, hops: &[&str]) {
    let found: Vec<&str> = HOPS.into_iter().filter(|hop| sample.figures.contains_key(*hop)).collect();
    assert_eq!(found, hops, "{:?}", sample.figures);
    let sum: f64 = hops.iter().map(|hop| sample.figures[*hop]).sum();
    let whole = sample.figures[TOTAL];
    assert!((sum - whole).abs() < 1.0 && whole > 0.0, "{:?}", sample.figures);
    // The store is not measured in turn with the stages.
    for hop in hops.iter().filter(|hop| **hop != "store_ns") {
        assert!(sample.figures[&noise_name(hop)] >= 0.0, "{hop}: {:?}", sample.figures);
    }
    assert_eq!((sample.operations, sample.misses), (20, 0));
    assert_eq!(sample.verified, if sample.case.operation == "get" { 20 } else { 0 });
}

#[test]
fn each_transport_has_its_hops() {
    let server = TestServer::start("dissect", "-m 32");
    let sockets = ["client_ns", "transport_ns", "protocol_ns", "server_ns", "store_ns"];
    for protocol in [Protocol::Auto, Protocol::Text, Protocol::Binary] {
        let results = run(&dissect(), &[&server.target("unix", protocol)]).expect("right answers");
        assert_eq!(results.samples.len(), 8, "two operations, two sizes, two rounds");
        results.samples.iter().for_each(|sample| assert_hops(sample, &sockets));
    }
    // Values of a megabyte are in chunks.
    let dissect = Dissect { sizes: vec![64, 20_000, 1_000_000], ..dissect() };
    let results = run(&dissect, &[&server.target("shm", Protocol::Auto)]).expect("right answers");
    for sample in &results.samples {
        let gets = sample.case.operation == "get";
        assert_hops(
            sample,
            if gets { &["client_ns", "server_ns", "lookup_ns", "copy_ns"] } else { &sockets },
        );
    }
    let text = table(&results);
    assert!(text.contains("shm, GET of 64 bytes") && text.contains("shm, SET of 20000 bytes"), "{text}");
}

/// Starts a job of two PEs, with these flags too; returns them and the path of a PE's socket.
fn job(name: &str, flags: &str) -> (Vec<LocalServer>, String) {
    let socket =
        |pe: usize| std::env::temp_dir().join(format!("fabcache-bench-{name}-{pe}-{}", std::process::id()));
    let servers = std::thread::scope(|scope| {
        let starting: Vec<_> = LocalProcess::start_on_files(2)
            .into_iter()
            .enumerate()
            .map(|(pe, process)| {
                let flags = format!(
                    "--fabric openshmem --openshmem-name pe{pe} -t 1 -m 32 --shm -s {} {flags}",
                    socket(pe).display()
                );
                scope.spawn(move || LocalServer::start_in(&flags, Some(&process)).expect("it starts"))
            })
            .collect();
        starting.into_iter().map(|started| started.join().expect("no panic")).collect()
    });
    (servers, socket(0).display().to_string())
}

#[test]
fn job_has_the_hop_to_the_other_pe() {
    let hops = ["client_ns", "transport_ns", "protocol_ns", "server_ns", "store_ns", "forward_ns"];
    for (transport, flags, reads) in [("shm", "", 1.0), ("unix", "--openshmem-one-sided=false", 0.0)] {
        let (servers, socket) = job(transport, flags);
        let url = format!("{transport}://{socket}").parse().expect("a URL");
        let target = Target::new(transport, &[url], Protocol::Auto).expect("it is up");
        let results = run(&Dissect { sizes: vec![20_000], ..dissect() }, &[&target]).expect("right answers");
        assert_eq!(results.samples.len(), 4, "two operations, two rounds");
        for sample in &results.samples {
            assert_hops(sample, &hops);
            let expected = if sample.case.operation == "get" { reads } else { 0.0 };
            // At most one in twenty finds the item while it moves.
            assert!((sample.figures[ONE_SIDED] - expected).abs() < 0.05, "{:?}", sample.figures);
        }
        let text = table(&results);
        assert!(text.contains(&format!("{:.0}% by reads of its memory", 100.0 * reads)), "{text}");
        // Each waits for the others.
        std::thread::scope(|scope| servers.into_iter().for_each(|server| drop(scope.spawn(|| drop(server)))));
    }
}

#[test]
fn other_servers_have_no_store_hop() {
    let dummy =
        Dummy::start(&Settings::new(vec![Listen::Tcp(([127, 0, 0, 1], 0).into())])).expect("it listens");
    let url = dummy.urls()[0].parse().expect("a URL");
    let target = Target::new("other", &[url], Protocol::Meta).expect("it answers");
    let results = run(&dissect(), &[&target]).expect("right answers");
    let hops = ["client_ns", "transport_ns", "protocol_ns", "server_ns"];
    results.samples.iter().for_each(|sample| assert_hops(sample, &hops));
}
