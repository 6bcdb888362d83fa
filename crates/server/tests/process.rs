//! The process: signals, files, the service manager, options and their errors.

mod common;

use std::io::Read;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::process::{Process, fabcached, spawn, start, start_command};
use common::{REPLY_TIMEOUT, Scratch, UdpClient, connect, connect_unix, wait_until};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit, test_kill_process};

/// Runs fabcached to its end, for invocations that do not serve.
fn output(arguments: &str) -> Output {
    fabcached(arguments).stdin(Stdio::null()).output().expect("the binary is built")
}

/// Returns the error of a failed start.
#[track_caller]
fn refusal(arguments: &str) -> String {
    let output = output(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && output.stdout.is_empty(), "{arguments}: {said}");
    said
}

#[test]
fn stop_answers_pending_requests() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut process = start("");
        let (mut idle, mut busy) = (connect(process.address()), connect(process.address()));
        idle.request("set v 0 0 3\r\nabc\r\n", "STORED\r\n");
        busy.request("mn\r\n", "MN\r\n");
        // When the last command is answered, all of these were received; the value is incomplete.
        busy.say("set late 0 0 100000\r\n");
        busy.say("x".repeat(99_000));
        wait_until("the value is being received", || {
            idle.stats("conns").iter().any(|(_, value)| value == "conn_nread")
        });
        process.signal(signal);
        idle.hear_end();
        busy.say("x".repeat(1_000) + "\r\n");
        busy.hear("STORED\r\n");
        busy.hear_end();
        assert_eq!(process.wait().code(), Some(0));
        assert!(process.log().contains("stopping"), "{}", process.log());
    }
}

/// The CPUs that this process may use, as `--cpus` takes them.
fn usable_cpus() -> Vec<String> {
    let set = rustix::thread::sched_getaffinity(None).expect("an affinity");
    let usable = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
    usable.map(|cpu| cpu.to_string()).collect()
}

#[test]
fn workers_are_pinned_to_the_listed_cpus_in_turn() {
    let mut cpus: Vec<String> = usable_cpus().into_iter().take(2).collect();
    cpus.reverse();
    for accept in ["balanced", "local"] {
        let process = start(&format!("-t 3 --cpus {} --accept {accept}", cpus.join(",")));
        // Workers pin themselves before they serve.
        let expected: Vec<&String> = cpus.iter().cycle().take(3).collect();
        wait_until("each worker is on its CPU", || {
            process.cpus_of_threads("worker-").iter().eq(expected.clone())
        });
        for _ in 0..10 {
            connect(process.address()).request("mn\r\n", "MN\r\n");
        }
    }
}

#[test]
fn unusable_cpus_are_refused_by_name() {
    let said = refusal("-p -1 --cpus 0-99999");
    let first =
        (0..).map(|cpu| cpu.to_string()).find(|cpu| !usable_cpus().contains(cpu)).expect("there is an end");
    assert!(said.contains(&format!("may not use CPU {first}, only")), "{said}");
}

#[test]
fn clients_do_not_time_out_while_the_server_is_stopped() {
    let process = start("-t 1 --stall-timeout 5");
    // More than a worker serves before it checks timeouts.
    let mut clients: Vec<_> = (0..400).map(|_| connect(process.address())).collect();
    for client in &mut clients {
        client.request("mn\r\n", "MN\r\n");
        client.say("set a 0 0 6\r\nabc");
    }
    wait_until("all requests are being received", || {
        let states = connect(process.address()).stats("conns");
        states.iter().filter(|(_, state)| state == "conn_nread").count() == 400
    });
    process.signal(Signal::STOP);
    std::thread::sleep(Duration::from_secs(7));
    for client in &mut clients {
        client.say("def\r\n");
    }
    process.signal(Signal::CONT);
    for client in &mut clients {
        client.hear("STORED\r\n");
    }
}

#[test]
fn graceful_stop_ends_although_clients_stay() {
    let mut process = start("");
    let address = process.address();
    let (mut idle, mut busy) = (connect(address), connect(address));
    busy.say("set late 0 0 100000\r\n");
    busy.say("x".repeat(99_000));
    wait_until("the value is being received", || {
        idle.stats("conns").iter().any(|(_, value)| value == "conn_nread")
    });
    let began = Instant::now();
    process.signal(Signal::USR1);
    wait_until("accepting stops", || process.log().contains("accepting no more connections"));
    busy.say("x".repeat(1_000) + "\r\n");
    busy.hear("STORED\r\n");
    idle.hear_end();
    busy.hear_end();
    assert_eq!(process.wait().code(), Some(0));
    // It is no measurement: a wait for idle clients took half a minute.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    // A plain stop does not wait.
    let mut process = start("");
    let mut c = connect(process.address());
    c.request("mn\r\n", "MN\r\n");
    process.signal(Signal::USR1);
    process.signal(Signal::TERM);
    c.hear_end();
    assert_eq!(process.wait().code(), Some(0));
}

#[test]
fn sighup_reloads_users() {
    let scratch = Scratch::new("hangup");
    let users = scratch.file("users", "ann:secret\n");
    let mut process = start(&format!("-Y {}", users.display()));
    scratch.file("users", "ann:changed\n");
    process.signal(Signal::HUP);
    wait_until("the users are reloaded", || process.log().contains("were reloaded"));
    let mut c = connect(process.address());
    c.request("set a 0 0 10\r\nann secret\r\n", "CLIENT_ERROR authentication failure\r\n");
    c.request("set a 0 0 11\r\nann changed\r\n", "STORED\r\n");
    scratch.file("users", "no colon");
    process.signal(Signal::HUP);
    wait_until("the log gives the reason", || {
        process.log().contains("line 1: not of the form user:password")
    });
    c.request("mn\r\n", "MN\r\n");
    process.signal(Signal::TERM);
    assert!(process.wait().success());
}

#[test]
fn shutdown_command_works_only_if_enabled() {
    let process = start("");
    connect(process.address()).request("shutdown\r\n", "SERVER_ERROR: shutdown not enabled\r\n");
    for command in ["shutdown\r\n", "shutdown graceful\r\n"] {
        let mut process = start("-A");
        let mut c = connect(process.address());
        c.request("shutdown nonsense\r\n", "CLIENT_ERROR invalid shutdown mode\r\n");
        c.say(command);
        c.hear_end();
        assert_eq!(process.wait().code(), Some(0));
    }
}

#[test]
fn pid_file_holds_the_process_id() {
    let scratch = Scratch::new("pid");
    let file = scratch.path("run.pid");
    let beside = scratch.file("run.tmp", "precious");
    let mut process = start(&format!("-P {}", file.display()));
    assert_eq!(std::fs::read_to_string(&file).expect("the file exists"), format!("{}\n", process.child.id()));
    process.signal(Signal::TERM);
    process.wait();
    assert!(!file.exists());
    assert_eq!(std::fs::read_to_string(beside).expect("the file exists"), "precious");
    // The file of an exited process is stale.
    scratch.file("run.pid", "4194304\n");
    let process = start(&format!("-P {}", file.display()));
    assert!(!process.log().contains("is running"));
    let said = refusal(&format!("-l 127.0.0.1 -p -1 -P {}", scratch.path("none/run.pid").display()));
    assert!(said.contains("none/run.pid") && said.contains("-P"), "{said}");
}

/// Terminates a daemon on drop.
struct Daemon(Pid);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

#[test]
fn daemon_detaches_from_the_terminal() {
    let scratch = Scratch::new("daemon");
    let here = scratch.path("");
    scratch.file("users", "ann:secret\n");
    // Paths are relative to the directory in which the server started.
    let mut command = fabcached("-d -s socket -P run.pid -Y users -t 1");
    let output = command.current_dir(&here).stdin(Stdio::null()).output().expect("the binary is built");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let pid = std::fs::read_to_string(scratch.path("run.pid"))
        .expect("the file is written before the parent exits");
    let pid = Pid::from_raw(pid.trim().parse().expect("a number")).expect("not 0");
    let daemon = Daemon(pid);
    assert_eq!(
        std::fs::read_link(format!("/proc/{}/cwd", pid.as_raw_nonzero())).expect("it runs"),
        Path::new("/")
    );
    let mut c = connect_unix(&scratch.path("socket"));
    c.request("set a 0 0 10\r\nann secret\r\nmn\r\n", "STORED\r\nMN\r\n");
    // Also when the file is reloaded.
    scratch.file("users", "ann:changed\n");
    kill_process(pid, Signal::HUP).expect("it runs");
    wait_until("the users are reloaded", || {
        let mut c = connect_unix(&scratch.path("socket"));
        c.say("set a 0 0 11\r\nann changed\r\n");
        c.hear_until("\r\n") == "STORED\r\n"
    });
    kill_process(pid, Signal::TERM).expect("it runs");
    c.hear_end();
    wait_until("the files are removed", || {
        !scratch.path("run.pid").exists() && !scratch.path("socket").exists()
    });
    wait_until("the process exits", || test_kill_process(pid).is_err() || is_zombie(pid));
    drop(daemon);
}

/// Returns whether the process has ended and was not waited for.
fn is_zombie(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
    status.map_or(true, |status| status.contains("State:\tZ"))
}

#[test]
fn daemon_reports_why_it_cannot_start() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = taken.local_addr().expect("bound");
    let said = refusal(&format!("-d -l {address}"));
    assert!(said.contains(&address.to_string()) && said.contains("another server listens there"), "{said}");
}

#[test]
fn second_server_reports_the_running_one() {
    let first = start("");
    let port = first.address().port();
    let said = refusal(&format!("-l 127.0.0.1 -p {port}"));
    assert!(
        said.starts_with("fabcached: cannot listen on TCP 127.0.0.1:") || said.contains("\nfabcached: "),
        "{said}"
    );
    for needle in [&port.to_string(), "another server listens there already", "-p"] {
        assert!(said.contains(needle), "{said}");
    }
    connect(first.address()).request("mn\r\n", "MN\r\n");
}

#[test]
fn ports_are_written_to_a_file() {
    let scratch = Scratch::new("ports");
    let file = scratch.path("ports.txt");
    scratch.file("ports.lck", "precious");
    let mut command = fabcached("-l 127.0.0.1,::1 -p -1 -U -1");
    command.env("MEMCACHED_PORT_FILENAME", &file);
    let process = start_command(command);
    let at = process.addresses();
    let port = |index: usize| at[index].port();
    let expected = format!(
        "TCP INET: {}\nUDP INET: {}\nTCP INET6: {}\nUDP INET6: {}\n",
        port(0),
        port(1),
        port(2),
        port(3)
    );
    assert_eq!(std::fs::read_to_string(&file).expect("the file exists"), expected);
    connect(at[2]).request("mn\r\n", "MN\r\n");
    UdpClient::new(at[3]).request(1, "mn\r\n", "MN\r\n");
    // No temporary file is left, and existing files are untouched.
    assert_eq!(std::fs::read_dir(scratch.path("")).expect("the directory exists").count(), 2);
    assert_eq!(std::fs::read_to_string(scratch.path("ports.lck")).expect("the file exists"), "precious");
}

#[test]
fn log_names_udp_and_says_when_tcp_is_off() {
    let process = start("-U -1");
    let at = process.addresses();
    let expected = format!("clients at {}, {} (UDP) ", at[0], at[1]);
    assert!(process.log().contains(&expected), "{}", process.log());
    let scratch = Scratch::new("ways");
    let log = |flags: &str| {
        let flags = format!("-s {} --shm {flags}", scratch.path("socket").display());
        start_command(fabcached(&flags)).log()
    };
    let alone = log("");
    assert!(alone.contains("-s turns TCP off") && alone.contains("-p 11211"), "{alone}");
    for flags in ["-p 0", "-p -1 -l 127.0.0.1"] {
        assert!(!log(flags).contains("turns TCP off"), "{flags}");
    }
}

/// Starts fabcached like a service manager, with this socket.
fn activated(socket: OwnedFd, arguments: &str) -> Process {
    let binary = env!("CARGO_BIN_EXE_fabcached");
    let mut command = Command::new("sh");
    let line = format!("export LISTEN_PID=$$ LISTEN_FDS=1; exec {binary} {arguments} 3<&0 0</dev/null");
    command.args(["-c", &line]).stdin(Stdio::from(socket));
    start_command(command)
}

#[test]
fn service_manager_sockets_are_inherited() {
    let tcp = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = tcp.local_addr().expect("bound");
    let mut process = activated(tcp.into(), "-p 11211");
    assert_eq!(process.addresses(), [address], "with an inherited socket no other is opened");
    connect(address).request("mn\r\n", "MN\r\n");
    process.signal(Signal::TERM);
    assert!(process.wait().success());
    let scratch = Scratch::new("activated");
    let path = scratch.path("socket");
    let unix = UnixListener::bind(&path).expect("a free path");
    let mut process = activated(unix.into(), "");
    connect_unix(&path).request("mn\r\n", "MN\r\n");
    process.signal(Signal::TERM);
    assert!(process.wait().success() && path.exists(), "the manager owns the file");
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let address = udp.local_addr().expect("bound");
    let _process = activated(udp.into(), "");
    UdpClient::new(address).request(1, "mn\r\n", "MN\r\n");
}

#[test]
fn low_descriptor_limit_for_fabric_clients_warns() {
    // This needs no libfabric: the limit is raised before.
    let limited = |limit: &str, more: &str| {
        let mut command = Command::new("sh");
        let line =
            format!("{limit}; exec {} -l 127.0.0.1 -p -1 -t 1 -c 60 {more}", env!("CARGO_BIN_EXE_fabcached"));
        command.args(["-c", &line]).env("FABCACHE_LIBFABRIC", "/nonexistent");
        start_command(command)
    };
    assert_eq!(limited("ulimit -S -n 150", "").open_files_max(), 150, "enough without a fabric");
    assert!(limited("ulimit -S -n 150", "--fabric").open_files_max() >= 3 * 60);
    let process = limited("ulimit -n 150", "--fabric");
    let is_raised = process.open_files_max() >= 3 * 60;
    let is_said = process.log().contains("up to 3 open files each: -c 60 of them need");
    assert_ne!(is_raised, is_said, "{}", process.log());
}

#[test]
fn service_manager_receives_status() {
    let scratch = Scratch::new("notify");
    let path = scratch.path("notify");
    let manager = UnixDatagram::bind(&path).expect("a free path");
    manager.set_read_timeout(Some(REPLY_TIMEOUT)).expect("a socket");
    let hear = || {
        let mut buffer = [0; 1024];
        let len = manager.recv(&mut buffer).expect("a status message");
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    };
    let mut command = fabcached("-l 127.0.0.1 -p -1");
    command.env("NOTIFY_SOCKET", &path);
    let mut process = start_command(command);
    assert!(hear().contains("READY=1"));
    process.signal(Signal::HUP);
    assert!(hear().contains("RELOADING=1"));
    assert!(hear().contains("READY=1"));
    process.signal(Signal::TERM);
    assert!(hear().contains("STOPPING=1"));
    assert!(process.wait().success());
}

#[test]
fn command_line_overrides_the_configuration_file() {
    let scratch = Scratch::new("config");
    let file = scratch.file(
        "fabcached.toml",
        "port = -1\nlisten = [\"127.0.0.1\"]\nmemory-limit = 32\nthreads = 2\ndisable-cas = true\nconn-limit = 50\n\
         extended = [\"idle_timeout=100\"]\n",
    );
    let process = start_command(fabcached(&format!("--config {} -t 3 -C=false", file.display())));
    let mut c = connect(process.address());
    for (name, value) in [
        ("maxbytes", "33554432"),
        ("num_threads", "3"),
        ("cas_enabled", "yes"),
        ("maxconns", "50"),
        ("idle_timeout", "100"),
    ] {
        assert_eq!(c.stat("settings", name), value, "{name}");
    }
}

#[test]
fn addresses_on_the_command_line_replace_listeners_of_the_file() {
    let scratch = Scratch::new("replaced");
    let taken = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = taken.local_addr().expect("bound");
    let table = format!("[[listener]]\naddress = \"tcp://{address}\"\n");
    let file = scratch.file("fabcached.toml", &table);
    // The file's port is in use, so the server starts only if it leaves that alone.
    let process = start(&format!("--config {}", file.display()));
    assert_eq!(process.addresses().len(), 1);
    assert!(process.log().contains("replace the 1 [[listener]] of the file"), "{}", process.log());
    // Port 0 names none.
    for flags in ["", "-U 0", "-p 0"] {
        let said = refusal(&format!("-t 1 {flags} --config {}", file.display()));
        assert!(said.contains(&address.to_string()), "{flags}: {said}");
    }
}

#[test]
fn configuration_file_errors_are_reported() {
    let scratch = Scratch::new("mistakes");
    for (content, needles) in [
        ("port = 5\nthread = 3\n", &["line 2", "unknown key `thread`; is `threads` meant?"][..]),
        ("port = 5\nmemory-limt = 3\n", &["line 2", "is `memory-limit` meant?"]),
        ("memory_limit = 3\n", &["line 1", "is `memory-limit` meant?"]),
        ("x = 3\n", &["unknown key `x`; the keys"]),
        ("colour = 3\n", &["line 1", "unknown key `colour`", "fabcached -h"]),
        ("port = \"x\"\n", &["line 1", "port", "expected a whole number"]),
        ("memory-limit = \n", &["line 1"]),
        ("listen = \"127.0.0.1\"\n", &["line 1", "expected a list such as"]),
        ("disable-cas = 5\n", &["line 1", "expected true or false"]),
        ("slab-growth-factor = \"x\"\n", &["line 1", "expected a number such as 1.25"]),
        ("prefix-delimiter = \"::\"\n", &["line 1", "expected one character"]),
        ("user = 5\n", &["line 1", "expected text in quotes"]),
        ("conn-limit = 5000000000\n", &["line 1", "from 0 to 4294967295"]),
        ("memory-limit = 99999999999999999999\n", &["line 1", "a size such as 64"]),
        ("[[listener]]\ntls = \"on\"\n", &["line 1", "missing key `address`"]),
        ("[[listener]]\naddress = \"tcp://127.0.0.1\"\ntsl = \"on\"\n", &["line 3", "is `tls` meant?"]),
        ("listener = [5]\n", &["line 1", "a table [[listener]]"]),
        ("port = 70000\n", &["-p takes a port", "70000"]),
        ("memory-limit = -5\n", &["line 1", "memory-limit", "-5", "a size such as 64"]),
        ("memory-limit = 1.5\n", &["-m takes a whole number", "1536k"]),
        ("flash = \"/x:1g\"\n", &["line 1", "flash", "expected a list such as"]),
        ("flash-segment = true\n", &["line 1", "flash-segment", "a size such as 64"]),
        ("flash-dwpd = \"x\"\n", &["line 1", "flash-dwpd", "expected a number such as 1.25"]),
        ("max-item-size = true\n", &["line 1", "max-item-size", "a size such as 64"]),
        ("threads = -1\n", &["line 1", "threads", "-1", "expected a whole number"]),
        ("[[listener]]\naddress = \"127.0.0.1\"\n", &["127.0.0.1", "tcp://"]),
    ] {
        let file = scratch.file("bad.toml", content);
        let said = refusal(&format!("--config {}", file.display()));
        assert!(needles.iter().all(|needle| said.contains(needle)), "{content}: {said}");
        for foreign in
            ["usize", "i32", "u32", "f64", "i128", "struct", "sequence", "field", "expected one of"]
        {
            assert!(!said.contains(foreign), "{content}: {said}");
        }
        if content.contains("70000")
            || content.contains("1.5")
            || content.starts_with("[[listener]]\naddress = \"127")
        {
            continue;
        }
        assert!(said.contains("bad.toml"), "{content}: {said}");
    }
    let said = refusal(&format!("--config {}", scratch.path("none.toml").display()));
    assert!(said.contains("none.toml"), "{said}");
}

#[test]
fn command_line_errors_are_reported() {
    for (arguments, needles) in [
        ("--memory-limt 64", &["--memory-limit"][..]),
        ("-o idle_timeot=3", &["idle_timeot", "is idle_timeout meant?"]),
        ("-o ext_path=/x", &["-o ext_path takes PATH:SIZE", "\"/x\" has no size"]),
        ("-o ext_path=/x:1g:warm", &["-o ext_path=/x:1g:warm", "\"warm\" is no bucket"]),
        ("-o ext_item_size=x", &["-o ext_item_size takes a number", "x"]),
        ("--flash /x", &["--flash takes PATH:SIZE", "\"/x\" has no size"]),
        ("--flash /x:5q", &["--flash /x: takes a size such as", "\"5q\""]),
        ("--flash /x:33m", &["2 segments of 16 MiB", "65m or more"]),
        ("--flash /x:9t", &["--flash names 9216 GiB in all", "at most 8192 GiB"]),
        ("--flash /x:1g --flash /x:1g", &["--flash names /x twice"]),
        ("--flash /x:1g -e /x", &["--flash and the memory file (-e) both name /x"]),
        ("--flash /x:1g --flash-segment 8m", &["--flash-segment takes 16m, 32m or 64m, not \"8m\""]),
        (
            "--flash /x:1g --flash-write-mb-s 0",
            &["--flash-write-mb-s takes a number of megabytes greater than 0"],
        ),
        ("--flash /x:1g --flash-write-mb-s many", &["--flash-write-mb-s", "'many'", "whole number"]),
        ("--flash /x:1g --flash-dwpd -1", &["--flash-dwpd takes a number greater than 0", "-1"]),
        ("--flash /x:1g --flash-item-size x", &["--flash-item-size", "'x'", "whole number"]),
        ("--flash-dwpd 1", &["--flash-dwpd", "needs --flash: give it too"]),
        ("-m none", &["-m", "none"]),
        ("-m -5", &["-m takes a size", "-5"]),
        ("-p 70000", &["-p takes a port from 1 to 65535", "70000\n"]),
        ("-p x", &["--port", "'x'", "a port from 1 to 65535"]),
        ("-R -1", &["--max-reqs-per-event", "'-1'", "whole number from 0 to 4294967295"]),
        ("-c many", &["--conn-limit", "'many'", "whole number"]),
        ("-t -1", &["--threads", "'-1'", "whole number"]),
        ("--fabric-receives 64", &["--fabric-receives", "needs --fabric: give it too"]),
        ("--fabric verbs,", &["--fabric takes PROVIDER or PROVIDER,INTERFACE"]),
        ("--fabric --fabric-peers 10.0.0.1/8", &["--fabric-peers", "10.0.0.0/8 for the network"]),
        ("-f x", &["--slab-growth-factor", "'x'", "1.25"]),
        ("-o lru_crawler=foo", &["-o lru_crawler takes no value", "foo"]),
        ("-o slab_automove=foo", &["-o slab_automove takes a number from 0 to 2", "foo"]),
        ("-l 127.0.0.1:port", &["-l 127.0.0.1:port: \"port\" is no port"]),
        (
            "-l 127.0.0.1:70000",
            &["\"70000\" is no port from 0 to 65535, in the address \"127.0.0.1:70000\"\n"],
        ),
        ("-e /nonexistent/region -p -1 -l 127.0.0.1", &["the memory file /nonexistent/region: No such file"]),
        ("--discard", &["--discard", "needs the memory file (-e)"]),
        ("-Y /nonexistent/users -p -1 -l 127.0.0.1", &["/nonexistent/users"]),
        ("-Z", &["ssl_chain_cert"]),
        ("-S", &["MEMCACHED_SASL_PWDB"]),
    ] {
        let said = refusal(arguments);
        assert!(needles.iter().all(|needle| said.contains(needle)), "{arguments}: {said}");
        let reasons: Vec<&str> = said.trim_end().split(": ").collect();
        assert!(reasons.windows(2).all(|two| two[0] != two[1]), "{arguments}: {said}");
    }
}

#[test]
fn slab_options_are_accepted_with_a_warning() {
    let process =
        start("-f 1.1 -n 96 -o slab_automove=2,slab_reassign,hash_algorithm=murmur3,modern,hot_lru_pct=10");
    for name in [
        "-f",
        "-n",
        "-o slab_automove",
        "-o slab_reassign",
        "-o hash_algorithm",
        "-o modern",
        "-o hot_lru_pct",
    ] {
        assert!(process.log().contains(&format!("{name} has no effect")), "{name}: {}", process.log());
    }
    connect(process.address()).request("mn\r\n", "MN\r\n");
}

#[test]
fn extstore_options_without_effect_are_accepted_with_a_warning() {
    // memcached accepts them without ext_path too.
    let words = "ext_wbuf_size=8,ext_threads=2,ext_io_depth=3,ext_item_age=4,ext_low_ttl=5,ext_drop_unread,ext_recache_rate=6,\
                 ext_compact_under=7,ext_drop_under=8,ext_max_frag=0.5,ext_max_sleep=9,ext_page_size=64,ext_item_size=512";
    let process = start(&format!("-o {words}"));
    for word in words.split(',') {
        let name = word.split('=').next().unwrap_or_default();
        assert!(process.log().contains(&format!("-o {name} has no effect: ")), "{name}: {}", process.log());
    }
    connect(process.address()).request("mn\r\n", "MN\r\n");
}

#[test]
fn memory_beyond_the_machine_warns() {
    let system = rustix::system::sysinfo();
    let megabytes = (system.totalram * u64::from(system.mem_unit)) >> 20;
    let warns = |megabytes: u64| {
        let process = start(&format!("-m {megabytes} -t 1"));
        connect(process.address()).request("set a 0 0 1\r\nx\r\n", "STORED\r\n");
        process.log().contains("this machine has")
    };
    assert!(warns(megabytes + 1024));
    assert!(!warns(megabytes / 2));
}

#[test]
fn help_version_and_licence_go_to_stdout() {
    let said = |arguments: &str| {
        let output = output(arguments);
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments}");
        String::from_utf8(output.stdout).expect("text")
    };
    for help in ["-h", "--help"] {
        let help = said(help);
        for option in
            ["--port", "--memory-limit", "--conn-limit", "--listen", "--enable-ssl", "--config", "--extended"]
        {
            assert!(help.contains(option), "{option}");
        }
    }
    for version in ["-V", "--version"] {
        let version = said(version);
        assert!(version.starts_with(concat!("fabcached ", env!("CARGO_PKG_VERSION"))), "{version}");
    }
    assert!(said("--version").contains("1.6.45"));
    assert!(said("-i").contains("Apache License"));
}

#[test]
fn the_log_may_be_json() {
    let process = start("--log-format json");
    let log = process.log();
    assert!(log.lines().all(|line| line.starts_with('{') && line.ends_with('}')), "{log}");
}

#[test]
fn lingering_client_does_not_delay_the_stop() {
    let mut process = start("");
    let mut c = connect(process.address());
    c.say("set a 0 0 10\r\nhalf");
    let mut other = connect(process.address());
    other.request("mn\r\n", "MN\r\n");
    process.signal(Signal::TERM);
    assert!(process.wait().success());
    let _ = c.stream.read(&mut [0; 16]);
}

#[test]
fn failed_start_leaves_no_files() {
    let scratch = Scratch::new("fails");
    let (socket, pid) = (scratch.path("socket"), scratch.path("run.pid"));
    let flags = format!("-s {} -P {} -Y /nonexistent/users", socket.display(), pid.display());
    let mut process = spawn(fabcached(&flags));
    assert!(!process.wait().success());
    assert!(!socket.exists() && !pid.exists());
}

#[test]
fn descriptor_shortage_is_logged_once_and_survived() {
    let process = start("-t 1");
    let mut first = connect(process.address());
    first.request("mn\r\n", "MN\r\n");
    let pid = Pid::from_child(&process.child);
    let open = std::fs::read_dir(format!("/proc/{}/fd", process.child.id())).expect("it runs").count() as u64;
    let allow = |current| {
        let maximum = getrlimit(Resource::Nofile).maximum;
        prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(current), maximum })
            .expect("a parent may set limits");
    };
    allow(open);
    // Some connections reuse numbers freed below.
    let late: Vec<_> = (0..20).map(|_| connect(process.address())).collect();
    wait_until("several accepts fail", || {
        first
            .stats("fabcache")
            .iter()
            .any(|(name, value)| name == "accept_pauses" && value.parse().is_ok_and(|pauses: u64| pauses > 5))
    });
    assert_eq!(process.log().matches("cannot accept").count(), 1, "{}", process.log());
    allow(open + 40);
    late.into_iter().for_each(|mut client| client.request("mn\r\n", "MN\r\n"));
}
