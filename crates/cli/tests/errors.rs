//! Errors of the command line.

use std::net::TcpListener;
use std::process::Command;

#[test]
fn refused_connection_is_one_line_without_a_backtrace() {
    let unused = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = unused.local_addr().expect("bound");
    drop(unused);
    let server = format!("tcp://{address}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabcache"));
    command
        .args(["bench", "latency", "--server", &server, "-b", "get", "--min", "4", "--max", "4", "-i", "10"]);
    let output = command.env("RUST_BACKTRACE", "1").output().expect("the program is built");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains(&address.to_string()) && said.contains("refused"), "{said}");
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("fabcache: ")).collect();
    assert_eq!((errors.len(), said.contains("backtrace")), (1, false), "{said}");
    assert!(said.trim_end().ends_with(errors[0]), "nothing follows the error: {said}");
}
