//! A server on a memory file (`-e`).

mod common;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use common::process::{fabcached, spawn, start, start_command};
use common::{Scratch, connect, wait_until};
use rustix::process::Signal;

const NEW: &str = "is new";
const DISCARDED: &str = "discarded the contents of the memory file";

/// Returns the log of a server that refuses to start.
#[track_caller]
fn refused(arguments: &str) -> String {
    let mut process = spawn(fabcached(&format!("-l 127.0.0.1 -p -1 {arguments}")));
    assert!(!process.wait().success(), "{}", process.log());
    process.log()
}

#[test]
fn second_server_is_refused_while_the_first_one_lives() {
    let scratch = Scratch::new("memory-file-in-use");
    let arguments = format!("-m 8 -o relaxed_privileges -e {}", scratch.path("region").display());
    let mut first = start(&arguments);
    assert!(first.log().contains(NEW), "{}", first.log());
    let mut client = connect(first.address());
    client.request("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    for arguments in [arguments.clone(), format!("{arguments} --discard")] {
        let said = refused(&arguments);
        assert!(said.contains("another server uses it"), "{said}");
    }
    client.request("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    first.child.kill().expect("it runs");
    first.wait();
    let second = start(&arguments);
    wait_until("the recovery is finished", || second.log().contains("recovered 1 items"));
    let line = "and recovers its items, because the server that used it did not stop cleanly";
    let is_info = |log: &str| log.lines().any(|logged| logged.contains("INFO") && logged.ends_with(line));
    assert!(is_info(&second.log()), "{}", second.log());
    connect(second.address()).request("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn server_says_how_to_give_up_what_it_refuses() {
    let scratch = Scratch::new("memory-file-foreign");
    let file = scratch.file("region", "some text");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("ours");
    let arguments = format!("-m 8 -e {}", file.display());
    let said = refused(&arguments);
    assert!(said.contains("something else than a region") && said.contains("--discard"), "{said}");
    assert_eq!(std::fs::read(&file).expect("ours"), b"some text");
    let process = start(&format!("{arguments} --discard"));
    assert!(process.log().contains(DISCARDED), "{}", process.log());
    connect(process.address()).request("set a 0 0 1\r\nx\r\n", "STORED\r\n");
}

#[test]
fn server_refuses_an_empty_meta_file() {
    let scratch = Scratch::new("memory-file-meta");
    let meta = scratch.file("region.meta", "");
    let file = scratch.path("region");
    let said = refused(&format!("-m 128 -I 2m -o relaxed_privileges -e {}", file.display()));
    assert!(said.contains("region.meta") && said.contains("chmod 600"), "{said}");
    std::fs::set_permissions(&meta, PermissionsExt::from_mode(0o600)).expect("ours");
    let said = refused(&format!("-m 128 -I 2m -o relaxed_privileges -e {}", file.display()));
    assert!(said.contains("is empty") && said.contains("--discard"), "{said}");
    assert!(!file.exists());
}

#[test]
fn huge_pages_of_a_memory_file_come_from_its_file_system() {
    let scratch = Scratch::new("memory-file-huge");
    let process = start(&format!("-m 8 -L -e {}", scratch.path("region").display()));
    assert!(process.log().contains("-L has no effect on the memory file"), "{}", process.log());
    assert!(!process.log().contains("memory is in huge pages"), "{}", process.log());
}

#[test]
fn next_server_recovers_items_whose_state_cannot_be_saved() {
    let scratch = Scratch::new("memory-file-unsaved");
    let arguments = format!("-m 8 -o relaxed_privileges -e {}", scratch.path("region").display());
    let mut server = start(&arguments);
    connect(server.address()).request("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    let [meta, aside] = ["region.meta", "aside"].map(|name| scratch.path(name));
    std::fs::rename(&meta, &aside).and_then(|()| std::fs::create_dir(&meta)).expect("ours");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(1));
    let line = format!(
        "fabcached: cannot save the state of the memory file {}; the next server recovers its items: ",
        scratch.path("region").display()
    );
    assert!(server.log().lines().any(|logged| logged.starts_with(&line)), "{}", server.log());
    std::fs::remove_dir(&meta).and_then(|()| std::fs::rename(&aside, &meta)).expect("ours");
    let server = start(&arguments);
    wait_until("the recovery is finished", || server.log().contains("recovered 1 items"));
    connect(server.address()).request("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
}

/// Returns the command that starts a server where this limit of the shell holds.
fn limited(limit: &str, arguments: &str) -> Command {
    let mut command = Command::new("sh");
    let line =
        format!("{limit}; exec {} -l 127.0.0.1 -p -1 -t 1 {arguments}", env!("CARGO_BIN_EXE_fabcached"));
    command.args(["-c", &line]);
    command
}

#[test]
fn server_beyond_the_limit_of_file_sizes_says_so() {
    let scratch = Scratch::new("memory-file-limited");
    let file = scratch.path("region");
    let mut refused = spawn(limited("ulimit -f 8", &format!("-m 8 -e {}", file.display())));
    let status = refused.wait();
    assert_eq!((status.code(), status.signal()), (Some(1), None), "{}", refused.log());
    assert!(refused.log().contains("File too large"), "{}", refused.log());
}

#[test]
fn server_without_pages_reports_sigbus() {
    let scratch = Scratch::new("memory-file-cut");
    let file = scratch.path("region");
    let mut server = start_command(limited("ulimit -c 0", &format!("-m 8 -e {}", file.display())));
    let mut client = connect(server.address());
    client.request("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    std::fs::File::options().write(true).open(&file).and_then(|file| file.set_len(0)).expect("ours");
    // The server may end before it reads all.
    let _ = client.stream.write_all(b"set a 0 0 1\r\nx\r\n");
    let status = server.wait();
    assert_eq!(status.signal(), Some(Signal::BUS.as_raw()), "{}", server.log());
    let line = "fabcached: SIGBUS: cannot obtain a page of the memory: the file system of the memory file (-e) is full";
    assert!(server.log().lines().any(|logged| logged.starts_with(line)), "{}", server.log());
}

#[test]
fn server_whose_memory_file_is_removed_says_that_the_items_are_lost() {
    let scratch = Scratch::new("memory-file-removed");
    let file = scratch.path("region");
    let mut server = start(&format!("-e {}", file.display()));
    std::fs::remove_file(&file).expect("it was there");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(1), "{}", server.log());
    let wanted = format!("the items of the memory file {} are lost: the file was removed", file.display());
    assert!(server.log().contains(&wanted), "{}", server.log());
}
