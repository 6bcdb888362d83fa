//! `fabcache fabric` as a process: with libfabric, and without it.

use std::path::Path;
use std::process::{Command, Output};

fn fabric(arguments: &[&str], library: Option<&Path>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabcache"));
    command.arg("fabric").args(arguments).env_remove("RUST_BACKTRACE");
    if let Some(library) = library {
        command.env("FABCACHE_LIBFABRIC", library);
    }
    command.output().expect("the program is there")
}

fn reported(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    (text(&output.stdout), text(&output.stderr))
}

/// Returns the provider under test, without its interface.
fn provider() -> String {
    let named = std::env::var("FABCACHE_PROVIDER").unwrap_or("tcp;ofi_rxm".into());
    named.split(',').next().expect("a text has a first part").to_owned()
}

/// Returns it with `FABCACHE_SERVER_INTERFACE`, if set: network hardware is local only if it is named.
fn with_interface() -> String {
    let named = std::env::var("FABCACHE_PROVIDER").unwrap_or("tcp;ofi_rxm".into());
    match std::env::var("FABCACHE_SERVER_INTERFACE") {
        Ok(interface) if !named.contains(',') => format!("{named},{interface}"),
        _ => named,
    }
}

#[test]
fn a_missing_libfabric_names_the_package() {
    for arguments in [&[][..], &["--json"], &["verbs,mlx5_0"]] {
        let output = fabric(arguments, Some(Path::new("/nowhere/libfabric.so.1")));
        let (listed, error) = reported(&output);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert_eq!(listed, "", "nothing is listed");
        for culprit in ["/nowhere/libfabric.so.1", "FABCACHE_LIBFABRIC", "libfabric1", "1.17"] {
            assert!(error.contains(culprit), "{error}");
        }
    }
}

#[test]
fn an_invalid_library_is_reported() {
    let file = std::env::temp_dir().join(format!("fabcache-no-library-{}", std::process::id()));
    std::fs::write(&file, "not a library").expect("a file");
    let output = fabric(&[], Some(&file));
    std::fs::remove_file(&file).expect("it was there");
    let (_, error) = reported(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("libfabric cannot be used") && error.contains("fabcache-no-library"), "{error}");
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn providers_are_listed_and_opened() {
    let (provider, requirements) = (provider(), with_interface());
    // A time limit for a busy machine.
    let with_time_limit = ["--patience", "60"];
    let output = fabric(&[&[&*requirements], &with_time_limit[..]].concat(), None);
    let (listed, error) = reported(&output);
    assert!(output.status.success(), "{listed}\n{error}");
    for part in
        ["libfabric 1.", "Order of preference: cxi", &format!("uses {provider},"), "used", "one-sided"]
    {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    let output = fabric(&[&[&*requirements, "--json"], &with_time_limit[..]].concat(), None);
    let listing: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let usable = listing["usable"].as_array().expect("a list");
    let of_it: Vec<_> = usable.iter().filter(|one| one["provider"] == *provider).collect();
    assert!(!of_it.is_empty(), "{listing}");
    for one in &of_it {
        assert!(one["opened"]["name"].is_string(), "{one}");
        assert_eq!(one["opened"]["waits"], provider != "shm", "{one}");
        assert_eq!(one["one_sided"], provider.starts_with("verbs"), "{one}");
    }
    let taken = of_it.iter().filter(|one| one["why_not_networks"].is_null()).count();
    assert_eq!(taken, 1, "{listing}");
    let others = usable.iter().filter(|one| one["provider"] != *provider);
    assert!(others.clone().all(|one| one["why_not_networks"].is_string()), "{listing}");
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn plain_libfabric_is_measured() {
    let file = std::env::temp_dir().join(format!("fabcache-fabric-{}.json", std::process::id()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabcache"));
    command.args(["bench", "fabric", "--quick", "--provider", &with_interface(), "--json"]).arg(&file);
    let (table, error) = reported(&command.output().expect("the program is there"));
    assert!(table.contains("libfabric alone"), "{table}\n{error}");
    let text = std::fs::read(&file).expect("results");
    std::fs::remove_file(&file).expect("it was there");
    let results: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let figures = results["figures"].as_array().expect("a list");
    // Three sizes with four single operations each; one size in three windows with two operations each.
    assert_eq!(figures.len(), 3 * 4 + 3 * 2, "{figures:?}");
    let measured = |figure: &serde_json::Value| {
        let is_window = figure["window"] != 0;
        figure[if is_window { "per_s" } else { "p50_ns" }].as_f64().is_some_and(|number| number > 0.0)
    };
    assert!(figures.iter().all(|figure| figure["way"] == "raw" && measured(figure)), "{figures:?}");
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn requirements_that_nothing_meets_are_reported() {
    for (requirements, culprits) in [
        ("nothing-of-the-kind", ["nothing-of-the-kind", "there are"]),
        ("udp", ["\"udp\"", "only datagrams"]),
        (&format!("{},nowhere0", provider()), ["nowhere0", "there are"]),
    ] {
        let output = fabric(&[requirements], None);
        let (listed, error) = reported(&output);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(listed.contains("uses nothing"), "{listed}");
        assert!(culprits.iter().all(|culprit| error.contains(culprit)), "{error}");
    }
}

#[test]
fn fabric_tests_run_where_libfabric_is_installed() {
    fabcache_testbed::fabric::run_ignored_tests(fabcache_fabric::Library::open().map(|_| ()));
}
