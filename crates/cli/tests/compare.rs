//! `fabcache bench compare` with servers that it starts: dummies, and fabcached in this test program,
//! run again.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use fabcache_bench::results::Results;
use fabcache_testbed::cleanup::Folder;
use fabcache_testbed::local::LocalServer;
use fabcache_testbed::ports::free_address;
use rustix::process::{Pid, Signal, kill_process};

/// The tool.
const FABCACHE: &str = env!("CARGO_BIN_EXE_fabcache");
/// Far longer than any step takes, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Few rounds, and no figure that depends on the number of CPUs.
const SHORT: [&str; 5] = ["--quick", "--rounds", "1", "--no-pin", "--no-ceiling"];

/// Returns a dummy as a server with {socket} in its flags.
fn dummy(name: &str, flags: &str) -> String {
    format!("{name}={FABCACHE} bench dummy --listen unix://{{socket}} {flags}")
}

/// Returns this test program as a server: its ignored test `serve` reads the arguments.
fn again(name: &str, reported: &str) -> String {
    let program = std::env::current_exe().expect("it runs");
    format!("{name}={} --exact serve --ignored --nocapture -- {reported}", program.display())
}

fn compare(arguments: &[&str]) -> Output {
    let mut command = Command::new(FABCACHE);
    command.args(["bench", "compare"]).args(arguments);
    command.output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a comparison that must fail, and returns its error.
fn error(servers: &[&str]) -> String {
    let output = compare(&[&SHORT[..], servers].concat());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    text(&output.stderr)
}

/// Returns the other processes with this text in their command lines.
fn processes(with: &str) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").expect("a list").flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        text(&line).contains(with) && *pid != std::process::id() as i32
    };
    numbers.filter(has).collect()
}

fn argument(name: &str) -> Option<String> {
    std::env::args().find_map(|argument| argument.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
}

#[test]
#[ignore = "is a server that other tests start"]
fn serve() {
    if let Some(port) = argument("stranger") {
        let listener = TcpListener::bind(format!("127.0.0.1:{port}")).expect("a free port");
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let _ = stream.read(&mut [0; 64]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    }
    let Some(socket) = argument("socket") else { return };
    let flags = format!("-t 1 -s {socket} --shm");
    let server = LocalServer::start(&flags).expect("a server");
    if argument("mortal").is_some() {
        // Exit only once items are stored, which means that the measurement runs.
        while server.server().shared().store.sums().total_items == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        eprintln!("it had enough");
        std::process::exit(3);
    }
    loop {
        std::thread::park();
    }
}

/// Reads the results of one set.
fn results(file: &Path) -> Results {
    Results::read(file).expect("results")
}

#[test]
fn servers_are_started_compared_and_stopped() {
    let folder = Folder::new("fabcache-compare-test").expect("a folder");
    let file = folder.path().join("results.json");
    let file = file.to_str().expect("text");
    let (ours, base) = (again("ours", "socket={socket} --shm"), dummy("base", "--threads 2"));
    let output = compare(&[&SHORT[..], &[&ours, &base, "--verify", "--json", file]].concat());
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{err}");
    assert_eq!(err, "", "no progress without a terminal");
    let results = results(Path::new(file));
    let targets: Vec<_> =
        results.targets.iter().map(|target| (&*target.name, results.base(target))).collect();
    let base_name = "base unix";
    assert_eq!(targets, [("ours unix", base_name), ("ours shm", base_name), (base_name, base_name)]);
    for target in &results.targets {
        let command = target.command.as_deref().expect("it was started");
        assert!(command.contains(target.urls[0].split_once("//").expect("a URL").1), "{command}");
        assert!(!target.versions[0].is_empty(), "{target:?}");
        let line = out.lines().find(|line| line.starts_with(&format!("{}: ", target.name)));
        assert!(line.is_some_and(|line| line.contains(command)), "{out}");
    }
    assert!(results.targets[2].program.as_deref().is_some_and(|version| version.contains("fabcache")));
    assert_eq!(results.targets[0].settings.get("num_threads").map(String::as_str), Some("1"));
    for sample in &results.samples {
        assert!(sample.operations > 0 && sample.misses == 0 && sample.errors == 0, "{sample:?}");
        assert!(sample.server_cpu_ns.is_some(), "{}: its process is known", sample.target);
        assert_eq!(sample.verified > 0, sample.case.operation != "set", "{sample:?}");
    }
    let cases = results.cases().len();
    assert_eq!(results.samples.len(), 3 * cases);
    assert!(
        out.contains("not measured, because the server lacks the transport: ours over tcp, fab; base over tcp, fab, shm"),
        "{out}"
    );
    for case in results.cases() {
        let rows = out.lines().skip_while(|line| *line != case.name()).skip(2).take(3);
        let names: Vec<String> =
            rows.map(|row| row.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            names,
            targets.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            "{}: {out}",
            case.name()
        );
    }
    let socket = results.targets[0].urls[0].strip_prefix("unix://").expect("a socket");
    assert_eq!(processes(socket), [] as [i32; 0]);
    assert!(!Path::new(socket).parent().expect("a folder").exists());
}

#[test]
fn several_sets_go_into_a_folder() {
    let folder = Folder::new("fabcache-compare-test").expect("a folder");
    let files = folder.path().join("results");
    let server = dummy("a", "");
    // A server that is up is compared as well.
    let up = free_address().expect("a free port");
    let mut other = Command::new(FABCACHE)
        .args(["bench", "dummy", "--until-input-ends", "--listen", &format!("tcp://{up}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a server");
    let mut line = [0; 6];
    other.stdout.take().expect("a pipe").read_exact(&mut line).expect("it says where it listens");
    let up = format!("b=tcp://{up}");
    let json = files.to_str().expect("text");
    let sets = ["--set", "latency,quick", "--json", json];
    let output = compare(&[&SHORT[..], &[&server, &up], &sets].concat());
    drop(other.stdin.take());
    let _ = other.wait();
    assert!(output.status.success(), "{}", text(&output.stderr));
    for set in ["latency", "quick"] {
        let results = results(&files.join(format!("{set}.json")));
        let [a, b] = &results.targets[..] else { panic!("two targets") };
        assert_eq!((results.subcommand.as_str(), results.base(a), b.name.as_str()), (set, "b tcp", "b tcp"));
        assert_eq!((&b.command, &b.program), (&None, &None));
    }
}

#[test]
fn failures_are_reported() {
    let good = dummy("good", "");
    for fault in ["wrong@20", "foreign@20", "truncated@20", "cut@20"] {
        let reported = error(&[&dummy("broken", &format!("--fault {fault}")), &good, "--verify"]);
        assert!(
            reported.contains("broken unix") && !reported.contains("good unix ended"),
            "{fault}: {reported}"
        );
    }
    let reported = error(&[&dummy("broken", "--fault wrong@20"), &good, "--verify"]);
    assert!(reported.contains("a wrong value under the key bench-"), "{reported}");
    let reported = error(&[&again("mortal", "socket={socket} mortal=yes"), &good]);
    assert!(
        reported.contains("mortal unix ended: exit status: 3") && reported.contains("it had enough"),
        "{reported}"
    );
    let reported = error(&[&again("web", "stranger={port}"), &good]);
    assert!(reported.contains("web tcp does not speak the memcached protocol"), "{reported}");
    let reported = error(&["lame=/bin/sh -c 'echo out of legs >&2; exit 9' {port}", &good]);
    assert!(
        reported.contains("lame tcp did not come up: exit status: 9") && reported.contains("out of legs"),
        "{reported}"
    );
    let reported = error(&["none=/no/such/program", &good]);
    assert!(reported.contains("none tcp: cannot start /no/such/program"), "{reported}");
    let reported = error(&["far=tcp://127.0.0.1:1", &good]);
    assert!(reported.contains("far tcp") && reported.contains("127.0.0.1:1"), "{reported}");
    let reported = error(&[&good, &good]);
    assert!(reported.contains("two servers have the name good"), "{reported}");
    let reported = error(&[&good, "--over", "tcp"]);
    assert!(reported.contains("good can be reached over unix only"), "{reported}");
    let reported = error(&["m=memcached -p 11211", &good]);
    assert!(reported.contains("m: -p is set by the benchmark"), "{reported}");
    let reported = error(&[&good, "--set", "latenzy"]);
    assert!(reported.contains("unknown set \"latenzy\""), "{reported}");
    let reported = error(&[&good, "--common-flags", "'x"]);
    assert!(reported.contains("--common-flags") && reported.contains("not closed"), "{reported}");
}

#[test]
fn a_signal_removes_processes_and_sockets() {
    let server = dummy("a", "");
    let folder = Folder::new("fabcache-compare-test").expect("a folder");
    for signal in [Signal::INT, Signal::TERM] {
        let mut tool = Command::new(FABCACHE)
            .args(["bench", "compare", &server, "--no-pin", "--set", "latency", "--rounds", "1000"])
            .env("TMPDIR", folder.path())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let ours = format!("fabcache-compare-{}-", tool.id());
        let until = Instant::now() + TIMEOUT;
        let mut servers = Vec::new();
        while servers.is_empty() {
            assert!(
                Instant::now() < until && tool.try_wait().expect("a child").is_none(),
                "no server started"
            );
            servers = processes(&ours);
        }
        kill_process(Pid::from_child(&tool), signal).expect("it runs");
        let status = tool.wait().expect("a child");
        assert_eq!(status.code(), Some(128 + signal.as_raw()));
        let mut said = String::new();
        tool.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
        assert_eq!(said, "", "an interruption is no failure of a server");
        assert_eq!(processes(&ours), [] as [i32; 0]);
        // The dummy exits when it notices that its parent has exited.
        while std::fs::read_dir(folder.path()).expect("a folder").count() > 0 {
            assert!(Instant::now() < until, "files remain");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
