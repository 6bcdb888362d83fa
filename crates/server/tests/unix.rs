//! Unix sockets: with TCP and alone, their permissions, and ownership of the file.

mod common;

use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use common::process::start;
use common::{Scratch, connect, connect_unix, serve, try_serve, wait_until};
use fabcache_layout::channel::CHANNEL_VERSION;
use fabcache_layout::format::{FORMAT_VERSION, NO_REGION, SHARD_REGION};
use fabcache_testbed::local::LocalServer;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

fn mode(path: &Path) -> u32 {
    path.metadata().expect("the file exists").permissions().mode() & 0o777
}

#[test]
fn unix_socket_alone_disables_tcp() {
    let scratch = Scratch::new("alone");
    let path = scratch.path("socket");
    let server = serve(&format!("-s {}", path.display()));
    assert_eq!((server.addresses().len(), server.server().local().len()), (0, 1));
    assert!(path.metadata().expect("the file exists").file_type().is_socket());
    assert_eq!(mode(&path), 0o700);
    let mut c = connect_unix(&path);
    c.request("set a 0 0 1\r\nx\r\nget a\r\n", "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    assert_eq!(c.stat("settings", "domain_socket"), path.display().to_string());
    assert_eq!((c.stat("settings", "tcpport"), c.stat("settings", "udpport")), ("0".into(), "0".into()));
    server.stop();
    c.hear_end();
    assert!(!path.exists(), "the file goes with the server");
}

#[test]
fn unix_socket_serves_alongside_tcp() {
    let scratch = Scratch::new("beside");
    let (one, other) = (scratch.path("one"), scratch.path("other"));
    let server = serve(&format!("-s {} -s {} -p -1 -l 127.0.0.1", one.display(), other.display()));
    assert_eq!(server.addresses().len(), 1);
    server.connect().request("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    for path in [one, other] {
        connect_unix(&path).request("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    }
}

#[test]
fn socket_permissions_follow_the_mask() {
    let scratch = Scratch::new("permissions");
    for mask in ["777", "0660", "600", "755"] {
        let path = scratch.path(mask);
        let server = serve(&format!("-s {} -a {mask}", path.display()));
        assert_eq!(mode(&path), u32::from_str_radix(mask, 8).expect("octal"));
        assert_eq!(connect_unix(&path).stat("settings", "umask"), mask.trim_start_matches('0'));
        drop(server);
    }
}

#[test]
fn stale_socket_is_replaced_and_a_live_one_kept() {
    let scratch = Scratch::new("whose");
    let path = scratch.path("socket");
    drop(UnixListener::bind(&path).expect("a free path"));
    assert!(path.exists(), "the socket is stale");
    let flags = format!("-s {}", path.display());
    let first = serve(&flags);
    let mut c = connect_unix(&path);
    c.request("mn\r\n", "MN\r\n");
    let error = format!("{:#}", try_serve(&flags).err().expect("the first server runs"));
    assert!(error.contains("another server listens there") && error.contains("-s"), "{error}");
    assert!(error.contains(&path.display().to_string()), "{error}");
    c.request("mn\r\n", "MN\r\n");
    connect_unix(&path).request("mn\r\n", "MN\r\n");
    drop(first);
    scratch.file("socket", "precious");
    let error = format!("{:#}", try_serve(&flags).err().expect("a file is in the way"));
    assert!(error.contains("not a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).expect("the file exists"), "precious");
    let nowhere = scratch.path("none/socket");
    let error = format!("{:#}", try_serve(&format!("-s {}", nowhere.display())).err().expect("no directory"));
    assert!(error.contains(&nowhere.display().to_string()), "{error}");
}

#[test]
fn unsupported_shm_versions_are_refused_with_the_supported_ones() {
    let scratch = Scratch::new("versions");
    let path = scratch.path("socket");
    let _server = serve(&format!("-s {} --shm", path.display()));
    let versions = format!("channels of version {CHANNEL_VERSION}, and a region of version {FORMAT_VERSION}");
    let why = format!("CLIENT_ERROR this server's memory has formats of other versions: {versions}\r\n");
    let others = [FORMAT_VERSION + 1, SHARD_REGION].map(|region| (CHANNEL_VERSION, region));
    for others in others.into_iter().chain([(0, FORMAT_VERSION), (0, 0)]) {
        connect_unix(&path).request(format!("shm attach {} {}\r\n", others.0, others.1), &why);
    }
}

/// Returns the line that answers a request, and how many descriptors came with it.
fn line_and_descriptors(client: &UnixStream, request: &str) -> (String, usize) {
    (&mut &*client).write_all(request.as_bytes()).expect("sent");
    let (mut bytes, mut space) = ([0; 256], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))]);
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(client, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC).expect("an answer");
    let descriptors = ancillary.drain().map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.count(),
        _ => 0,
    });
    (String::from_utf8_lossy(&bytes[..received.bytes]).into_owned(), descriptors.sum())
}

#[test]
fn channel_is_handed_out_without_the_region_if_the_client_asks_for_that() {
    let scratch = Scratch::new("channel-only");
    let path = scratch.path("socket");
    let flags = format!("-t 1 -s {} --shm -m 8", path.display());
    let both = format!("shm attach {CHANNEL_VERSION} {FORMAT_VERSION}\r\n");
    let channel = format!("shm attach {CHANNEL_VERSION} {NO_REGION}\r\n");
    let connect = || UnixStream::connect(&path).expect("it listens");
    let stat = |name| connect_unix(&path).stat("fabcache", name);
    for is_unmappable in [false, true] {
        let start = if is_unmappable { LocalServer::over_unmappable_memory } else { LocalServer::start };
        let _server = start(&flags).expect("a server");
        let (line, descriptors) = line_and_descriptors(&connect(), &both);
        if is_unmappable {
            assert_eq!(line, "CHANNEL the server's memory is not a file that clients could map\r\n");
            assert_eq!(descriptors, 0);
        } else {
            assert!(line.starts_with(&format!("SHM {} ", 8 << 20)), "{line}");
            assert_eq!(descriptors, 2);
        }
        let client = connect();
        if is_unmappable {
            // As a client that knows no such answer does.
            line_and_descriptors(&client, &both);
            assert_eq!(line_and_descriptors(&client, "mn\r\n"), ("MN\r\n".into(), 0));
        }
        let (line, descriptors) = line_and_descriptors(&client, &channel);
        assert!(line.starts_with("SHM 0 ") && line.ends_with("\r\n"), "{line}");
        assert_eq!(descriptors, 1);
        assert_eq!(stat("shm_attached"), if is_unmappable { "1" } else { "2" });
        assert_eq!(stat("shm_channel_only"), "1");
        assert_eq!(stat("shm_refused"), "0");
        assert_eq!(stat("region"), if is_unmappable { "unshared" } else { "sealed" });
    }
}

#[test]
fn shard_is_handed_out_if_the_client_asks_for_that() {
    let scratch = Scratch::new("shard");
    let path = scratch.path("socket");
    let flags = format!("-t 1 -s {} --shm -m 8", path.display());
    let attach = |region: u64| format!("shm attach {CHANNEL_VERSION} {region}\r\n");
    let connect = || UnixStream::connect(&path).expect("it listens");
    let _server = LocalServer::over_symmetric_memory(&flags).expect("a server");
    let client = connect();
    let only = "SHARD the server's memory has a part of the keys that it answers for\r\n".to_owned();
    assert_eq!(line_and_descriptors(&client, &attach(FORMAT_VERSION)), (only, 0));
    // As a client that knows no such answer does.
    assert_eq!(line_and_descriptors(&client, "mn\r\n"), ("MN\r\n".into(), 0));
    let (line, descriptors) = line_and_descriptors(&client, &attach(SHARD_REGION));
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let ["SHM", bytes, _, "shard", offset] = words[..] else { panic!("{line}") };
    assert_eq!((bytes.parse(), descriptors), (Ok(8 << 20), 2), "{line}");
    assert!(offset.parse::<u64>().is_ok_and(|offset| offset > 0), "{line}: after the links");
    let (line, descriptors) = line_and_descriptors(&connect(), &attach(NO_REGION));
    assert!(line.starts_with("SHM 0 ") && descriptors == 1, "{line}");
    let stat = |name| connect_unix(&path).stat("fabcache", name);
    assert_eq!([stat("region"), stat("shm_attached"), stat("shm_channel_only")], ["symmetric", "2", "1"]);
}

#[test]
fn refusals_of_shared_memory_are_logged_once_with_the_user() {
    let scratch = Scratch::new("refusals");
    for (flags, why) in [("", "shared memory is off"), ("--shm --shm-users 4242", "see --shm-users")] {
        let path = scratch.path(if flags.is_empty() { "off" } else { "others" });
        let process = start(&format!("-s {} {flags}", path.display()));
        let user = rustix::process::geteuid().as_raw();
        for _ in 0..3 {
            let mut client = connect_unix(&path);
            client.say(format!("shm attach {CHANNEL_VERSION} {FORMAT_VERSION}\r\n"));
            let answer = client.hear_until("\r\n");
            assert!(answer.contains(why), "{answer}");
        }
        let line = format!("a client of user {user} asked for shared memory and keeps its socket: ");
        wait_until("the refusal is logged", || process.log().contains(&line));
        connect_unix(&path).request("mn\r\n", "MN\r\n");
        let log = process.log();
        let logged: Vec<&str> = log.lines().filter(|logged| logged.contains(&line)).collect();
        assert!(logged.len() == 1 && logged[0].contains(why), "{log}");
    }
}

#[test]
fn protection_of_shared_memory_is_named() {
    let scratch = Scratch::new("protection");
    let on_file = format!("--shm -e {} --discard", scratch.path("region").display());
    for (flags, region, said) in [
        ("--shm".into(), "sealed", "shared memory is sealed"),
        ("--shm -r".into(), "sealed", "there are no core dumps (-r) with --shm"),
        (format!("{on_file} --shm-users 4242"), "kept", "clients that could write it are refused"),
        (format!("{on_file} --shm-same-user"), "kept", "are trusted (--shm-same-user)"),
        ("-r".into(), "private", "ready"),
    ] {
        let process = start(&format!("-m 8 -s {} {flags}", scratch.path("socket").display()));
        assert!(process.log().contains(said), "{flags}: {}", process.log());
        assert_eq!(process.log().contains("core dumps"), flags.contains("--shm -r"), "{}", process.log());
        assert_eq!(connect(process.address()).stat("fabcache", "region"), region);
    }
}

#[test]
fn memory_file_that_could_be_shared_with_nobody_is_refused() {
    let scratch = Scratch::new("nobody");
    let (socket, region) = (scratch.path("socket"), scratch.path("region"));
    let own = rustix::process::geteuid().as_raw();
    for users in [String::new(), format!("--shm-users {own},65534")] {
        let error = try_serve(&format!("-s {} --shm -e {} {users}", socket.display(), region.display()));
        let error = format!("{:#}", error.err().expect("it would share its memory with nobody"));
        assert!(error.contains("--shm-users") && error.contains("--shm-same-user"), "{error}");
        assert!(!region.exists());
    }
}
