//! The dummy as a process, and the client's limit measured with it: `fabcache bench …` against its own
//! dummy.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

fn fabcache(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabcache"));
    command.arg("bench").args(arguments);
    command
}

/// A child process, stopped on drop.
struct ChildDummy(Child);

impl Drop for ChildDummy {
    fn drop(&mut self) {
        // The dummy exits at the end of its input, and removes its socket.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Starts a dummy; returns its URLs.
fn dummy(arguments: &[&str]) -> (ChildDummy, Vec<String>) {
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
    (ChildDummy(child), urls)
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("fabcache-cli-{name}-{}", std::process::id()))
}

fn latency(arguments: &[&str]) -> (bool, String) {
    let short = ["latency", "--quick", "-i", "30", "--verify"];
    let sizes = ["--min", "64", "--max", "64"];
    let sizes = if arguments.contains(&"--max") { &[][..] } else { &sizes };
    run(&[&short, sizes, arguments].concat())
}

fn run(arguments: &[&str]) -> (bool, String) {
    let output = fabcache(arguments).output().expect("the program is there");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).expect("text"))
}

#[test]
fn results_are_kept_if_the_pipe_is_closed() {
    let (_running, urls) = dummy(&["--listen", "tcp://127.0.0.1:0"]);
    let json = file("unread.json");
    let mut command =
        fabcache(&["latency", "--quick", "--min", "64", "--max", "64", "--no-ceiling", "--json"]);
    command.arg(&json).args(["--server", &urls[0]]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program is there");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fabcache_bench::results::Results::read(&json).expect("results");
    let _ = std::fs::remove_file(json);
}

#[test]
fn an_unwritable_file_is_reported_first() {
    let (_running, urls) = dummy(&["--listen", "tcp://127.0.0.1:0"]);
    let file = file("missing").join("file");
    for option in ["--json", "--report"] {
        let path = file.to_str().expect("text");
        let (done, text) = latency(&["--server", &urls[0], option, path]);
        assert!(!done && text.contains(&format!("{option} {path} cannot be written")), "{text}");
        assert!(!text.contains("64 byte:"), "no table: {text}");
    }
}

#[test]
fn a_server_named_twice_is_rejected() {
    let (_running, urls) = dummy(&["--listen", "tcp://127.0.0.1:0"]);
    let (done, text) = latency(&["--server", &urls[0], "--server", &urls[0]]);
    assert!(!done && text.contains(&format!("{} is given twice", urls[0])), "{text}");
}

#[test]
fn values_over_the_clients_limit_are_rejected() {
    let (_running, urls) = dummy(&["--listen", "tcp://127.0.0.1:0"]);
    let size = (1usize << 40).to_string();
    let arguments = ["latency", "--no-ceiling", "--server", &urls[0], "--min", &size, "--max", &size];
    let output = fabcache(&arguments).output().expect("the program is there");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("give at most 1073741824"), "{text}");
}

#[test]
fn the_clients_limit_is_measured_and_reported() {
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
fn a_dummy_exits_with_its_input_and_a_broken_one_is_detected() {
    let (mut running, urls) = dummy(&["--listen", "tcp://127.0.0.1:0", "--fault", "wrong@20"]);
    let (done, text) = latency(&["--server", &urls[0]]);
    assert!(!done && text.contains("a wrong value under the key bench-"), "{text}");
    drop(running.0.stdin.take());
    assert!(running.0.wait().expect("it ends").success());
}

#[test]
fn invalid_arguments_do_not_panic() {
    let (_running, urls) = dummy(&["--listen", "tcp://127.0.0.1:0"]);
    for (sizes, reported) in [("18446744073709551615", "give at most 1073741824"), ("64", "byte:")] {
        let (_, text) = latency(&["--server", &urls[0], "--no-ceiling", "--min", sizes, "--max", sizes]);
        assert!(text.contains(reported) && !text.contains("panicked"), "{text}");
    }
    let (done, text) =
        run(&["throughput", "--quick", "--server", &urls[0], "--sizes", "18446744073709551615"]);
    assert!(!done && text.contains("give at most 1073741824") && !text.contains("panicked"), "{text}");
    // A path need not be UTF-8, and the command line is recorded.
    let path = file("odd").into_os_string();
    let path = OsString::from_vec([path.as_bytes(), b"-\xff.json"].concat());
    let mut command = fabcache(&["latency", "--quick", "--min", "64", "--max", "64", "-i", "30"]);
    let output = command.args(["--no-ceiling", "--server", &urls[0], "--json"]).arg(&path).output();
    let output = output.expect("the program is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let kept = std::fs::read_to_string(&path).expect("it was written");
    assert!(kept.contains("-\u{fffd}.json"), "{kept}");
    std::fs::remove_file(path).expect("its own");
}
