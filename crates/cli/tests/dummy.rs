//! The dummy as a process, and the client's limit measured with it: `fabcache bench …` against itself.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

fn fabcache(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabcache"));
    command.arg("bench").args(arguments);
    command
}

/// Stopped when the test is over.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A dummy, and where it listens.
fn dummy(arguments: &[&str]) -> (Running, Vec<String>) {
    let mut command = fabcache(&["dummy", "--until-input-ends"]);
    let mut child = command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program is there");
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    let listeners = arguments.iter().filter(|argument| **argument == "--listen").count();
    let urls = output.lines().take(listeners).map(|line| line.expect("it says where it listens")).collect();
    (Running(child), urls)
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("fabcache-cli-{name}-{}", std::process::id()))
}

fn latency(arguments: &[&str]) -> (bool, String) {
    let short = ["latency", "--quick", "--min", "64", "--max", "64", "-i", "30", "--verify"];
    let output = fabcache(&short).args(arguments).output().expect("the program is there");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).expect("text"))
}

#[test]
fn the_clients_limit_is_measured_and_told() {
    let socket = format!("unix://{}", file("limit.sock").display());
    let (_running, urls) = dummy(&["--listen", "tcp://127.0.0.1:0", "--listen", &socket]);
    let json = file("limit.json");
    for url in &urls {
        let path = json.to_str().expect("text");
        let (done, text) = latency(&["--server", url, "--json", path]);
        assert!(done, "{text}");
        let kept = std::fs::read_to_string(&json).expect("it was written");
        assert_eq!(kept.matches("\"ceiling_per_s\":null").count(), 0, "{kept}");
        assert_eq!(kept.matches("\"ceiling_per_s\":").count(), 3, "SET, GET and MIX: {kept}");
        let (done, text) = latency(&["--server", url, "--json", path, "--no-ceiling"]);
        assert!(done && !text.contains("Limited by the client"), "{text}");
        let kept = std::fs::read_to_string(&json).expect("it was written");
        assert_eq!(kept.matches("\"ceiling_per_s\":null").count(), 3, "{kept}");
    }
    std::fs::remove_file(json).expect("its own");
}

#[test]
fn a_dummy_ends_with_its_input_and_a_broken_one_is_noticed() {
    let (mut running, urls) = dummy(&["--listen", "tcp://127.0.0.1:0", "--fault", "wrong@20"]);
    let (done, text) = latency(&["--server", &urls[0]]);
    assert!(!done && text.contains("a wrong value under the key bench-"), "{text}");
    drop(running.0.stdin.take());
    assert!(running.0.wait().expect("it ends").success());
}
