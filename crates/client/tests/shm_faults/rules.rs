//! Who may attach, what they may do with the memory, and when access ends.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fabcache_client::{Client, Options, SharedMemory, Transport, Ttl};
use fabcache_layout::mapping::Mapping;
use fabcache_layout::reader::{Protection, Region};
use fabcache_testbed::report::not_run;
use rustix::fs::{FallocateFlags, OFlags, SealFlags};
use rustix::io::retry_on_intr;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::net::{RecvFlags, recv};
use rustix::process::Gid;
use rustix::thread::set_thread_groups;

use crate::common::Running;
use crate::common::process::{Leftover, Server, at, socket_path, stat, wait_until};
use crate::common::raw::{Raw, request};

fn sharing(name: &str, more: &str) -> (Running, String) {
    let path = socket_path(name);
    (Running::start(&format!("-s {path} --shm {more}")), path)
}

pub fn connect(path: &str) -> UnixStream {
    let socket = UnixStream::connect(path).expect("it listens");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
    socket
}

/// Sends a request and returns the reply, up to a line end.
pub fn exchange(mut socket: impl Read + Write, request: impl AsRef<[u8]>) -> String {
    socket.write_all(request.as_ref()).expect("sent");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\n") {
        let mut byte = [0];
        match socket.read(&mut byte) {
            Ok(1..) => answer.push(byte[0]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("no answer: {error}"),
            _ => answer.extend_from_slice(b"<end>\r\n"),
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// Maps the first page of a file.
pub fn map(file: BorrowedFd<'_>, access: ProtFlags) -> rustix::io::Result<*mut core::ffi::c_void> {
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, access, MapFlags::SHARED, file, 0) }
}

#[test]
fn region_cannot_be_written() {
    let (_server, path) = sharing("sealed", "");
    let raw = Raw::attach(&path).expect("it is let in");
    let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&raw.region));
    let again = rustix::fs::open(again, OFlags::RDWR, rustix::fs::Mode::empty());
    let files: Vec<BorrowedFd<'_>> =
        [Some(raw.region.as_fd()), again.as_ref().ok().map(AsFd::as_fd)].into_iter().flatten().collect();
    for file in files {
        assert!(map(file, ProtFlags::READ | ProtFlags::WRITE).is_err());
        let read = map(file, ProtFlags::READ).expect("it can be read");
        let more = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the page was just mapped, and nothing refers to it.
        let written = unsafe { rustix::mm::mprotect(read, 4096, more) };
        assert!(written.is_err());
        assert!(rustix::io::pwrite(file, b"x", 0).is_err());
        assert!(rustix::fs::ftruncate(file, 0).is_err());
        assert!(rustix::fs::ftruncate(file, raw.region_bytes * 2).is_err());
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(file, flags, 0, raw.region_bytes).is_err());
        assert!(rustix::fs::fcntl_add_seals(file, SealFlags::WRITE).is_err());
    }
    let channel = raw.file.as_fd();
    assert!(rustix::fs::ftruncate(channel, 0).is_err(), "the channel cannot be truncated");
    assert!(rustix::fs::fcntl_add_seals(channel, SealFlags::WRITE).is_err());
}

#[test]
fn memory_is_shared_after_authentication_only() {
    let users = std::env::temp_dir().join(format!("fabcache-users-{}", std::process::id()));
    std::fs::write(&users, "ann:secret\n").expect("a file");
    let (_server, path) = sharing("text-auth", &format!("-Y {}", users.display()));
    let mut socket = connect(&path);
    assert_eq!(exchange(&socket, request()), "CLIENT_ERROR unauthenticated\r\n");
    assert_eq!(exchange(&socket, "set x 0 0 9\r\nann wrong\r\n"), "CLIENT_ERROR authentication failure\r\n");
    assert_eq!(exchange(&socket, request()), "CLIENT_ERROR unauthenticated\r\n");
    assert_eq!(exchange(&socket, "set x 0 0 10\r\nann secret\r\n"), "STORED\r\n");
    socket.write_all(request().as_bytes()).expect("sent");
    let mut raw = Raw::attached(socket).expect("it is let in");
    assert_eq!(raw.request("mn\r\n"), "MN\r\n", "the client stays authenticated");

    let (_server, path) = sharing("binary-auth", &format!("-S --sasl-pwdb {}", users.display()));
    let packet = |opcode: u8, key: &[u8], value: &[u8]| {
        let mut packet = vec![0x80, opcode, 0, key.len() as u8, 0, 0, 0, 0];
        packet.extend_from_slice(&((key.len() + value.len()) as u32).to_be_bytes());
        packet.resize(24, 0);
        [&packet[..], key, value].concat()
    };
    let versions = [fabcache_layout::channel::CHANNEL_VERSION, fabcache_layout::format::FORMAT_VERSION];
    let attach = packet(0xa0, b"", versions.map(u64::to_be_bytes).as_flattened());
    let answer = |mut socket: &UnixStream, request: &[u8]| {
        socket.write_all(request).expect("sent");
        let mut header = [0; 24];
        socket.read_exact(&mut header).expect("answered");
        let len = u32::from_be_bytes(header[8..12].try_into().expect("four bytes"));
        socket.read_exact(&mut vec![0; len as usize]).expect("answered");
        u16::from_be_bytes([header[6], header[7]])
    };
    assert_eq!(answer(&connect(&path), &attach), 0x20, "unauthenticated");
    let mut socket = connect(&path);
    assert_eq!(answer(&socket, &packet(0x21, b"PLAIN", b"\0ann\0secret")), 0);
    socket.write_all(&attach).expect("sent");
    let mut raw = Raw::attached(socket).expect("it is let in");
    assert_eq!(raw.request("mn\r\n"), "MN\r\n");
    let text = exchange(connect(&path), request());
    assert!(!text.starts_with("SHM"), "{text}");
    std::fs::remove_file(users).expect("the test's file");
}

#[test]
fn memory_is_shared_with_listed_groups_only() {
    // The kernel keeps groups per thread. A user who may not add a group uses one that it has, if any.
    let own = rustix::process::getgroups().expect("known");
    let primary = rustix::process::getegid();
    let member = std::thread::spawn(move || {
        let taken = Gid::from_raw(4711);
        let may = set_thread_groups(&[taken, Gid::from_raw(4712)]).is_ok();
        let Some(group) = may.then_some(taken).or_else(|| own.into_iter().find(|group| *group != primary))
        else {
            let why = "this user has no group to become a member of";
            return not_run("memory_is_shared_with_listed_groups_only", &why);
        };
        let (_server, path) = sharing("groups", &format!("--shm-groups 4710,{group}"));
        let mut raw = Raw::attach(&path).expect("a member of the group may attach");
        assert_eq!(raw.request("mn\r\n"), "MN\r\n");
        let (_server, path) = sharing("groups-of-others", "--shm-groups 4710,4713");
        assert!(exchange(connect(&path), request()).contains("--shm-groups"));
    });
    member.join().expect("as it should be");
}

#[test]
fn malformed_attach_requests_are_rejected() {
    let (_server, path) = sharing("otherwise", "");
    for behind in ["mn\r\n", "x", &request()] {
        assert_eq!(exchange(connect(&path), request() + behind), "<end>\r\n", "followed by {behind:?}");
    }
    let mut raw = Raw::attached({
        let mut socket = connect(&path);
        socket.write_all(request().as_bytes()).expect("sent");
        socket
    })
    .expect("it is let in");
    assert!(raw.request(&request()).starts_with("CLIENT_ERROR"), "the link has a channel already");
    assert_eq!(raw.request("mn\r\n"), "MN\r\n");
    raw.send(b"shm attach 1\r\nshm accessed x\r\nshm\r\nmn\r\n");
    assert!(raw.receive("MN\r\n").contains("ERROR"));
    assert!(exchange(connect(&path), "shm attach 0 0\r\n").starts_with("CLIENT_ERROR"));
    assert!(exchange(connect(&path), "shm accessed AAAA\r\n").contains("ERROR"));
    let mut watcher = connect(&path);
    assert_eq!(exchange(&watcher, "watch connevents\r\n"), "OK\r\n");
    watcher.write_all(request().as_bytes()).expect("sent");
    let _other = connect(&path);
    let line = exchange(&watcher, "mn\r\n");
    assert!(line.contains("type=conn_"), "a watcher's requests are ignored: {line}");

    let tcp = Running::tcp(&format!("-s {} --shm", socket_path("beside")));
    let socket =
        std::net::TcpStream::connect(tcp.address().trim_start_matches("tcp://")).expect("it listens");
    assert!(exchange(&socket, request()).starts_with("CLIENT_ERROR"));
    assert_eq!(exchange(&socket, "mn\r\n"), "MN\r\n");
}

#[test]
fn watcher_lines_arrive_through_the_channel() {
    let (_server, path) = sharing("says", "");
    let mut raw = Raw::attach(&path).expect("it is let in");
    assert_eq!(raw.request("watch connevents\r\n"), "OK\r\n");
    for _ in 0..20 {
        let _other = connect(&path);
        assert!(raw.receive("\n").contains("type=conn_"));
    }
}

#[test]
fn stats_conns_lists_shared_memory_links() {
    let (_server, path) = sharing("stats", "");
    let mut raw = Raw::attach(&path).expect("it is let in");
    raw.send(b"stats conns\r\n");
    let stats = raw.receive("END\r\n");
    assert!(stats.contains("addr shm:"), "{stats}");
}

#[test]
fn without_a_channel_clients_use_the_socket() {
    let path = socket_path("no-channel");
    let _leftover = Leftover(path.clone());
    let server = Server::started(&path, "-m 8");
    let never = Options { shared_memory: SharedMemory::Never, ..Options::default() };
    let other = Client::new([format!("unix://{path}")], never).expect("an address");
    wait_until("other connections are closed", || stat(&other, "", "curr_connections") == 1);
    // Leave one descriptor number, which the connection takes.
    let taken = server.descriptors();
    let most = (0..).filter(|number| !taken.contains(number)).nth(1);
    server.limit_descriptors(most.expect("a free number exists"));
    let cache = at(&path);
    cache.set(b"key", b"value", Ttl::NEVER).expect("stored over the socket");
    let transports = cache.transports();
    let [Some(Transport::Unix { why: Some(why) })] = &transports[..] else { panic!("{transports:?}") };
    assert!(why.contains("descriptor"), "{why}");
    assert_eq!(stat(&other, "fabcache", "shm_refused"), 1);
}

#[test]
fn without_descriptor_passing_clients_use_the_socket() {
    let path = socket_path("on-their-way");
    let _leftover = Leftover(path.clone());
    let server = Server::started(&path, "-m 8");
    // The kernel limits the descriptors that a user has in flight to the process's limit.
    server.limit_descriptors(100);
    let requested = |mut socket: &UnixStream| {
        socket.write_all(request().as_bytes()).expect("sent");
        let mut start = [0; 3];
        retry_on_intr(|| recv(socket, &mut start[..], RecvFlags::PEEK)).expect("answered");
        &start == b"SHM"
    };
    let mut takes_nothing = Vec::new();
    let (socket, refusal) = loop {
        let socket = connect(&path);
        if !requested(&socket) {
            // Descriptors that other processes of this user pass are in flight only briefly.
            let refusal = exchange(&socket, "");
            std::thread::sleep(Duration::from_millis(200));
            if !requested(&socket) {
                assert_eq!(exchange(&socket, ""), refusal);
                break (socket, refusal);
            }
        }
        takes_nothing.push(socket);
    };
    assert!(refusal.starts_with("SERVER_ERROR") && refusal.contains("on their way"), "{refusal}");
    assert_eq!(exchange(&socket, "set key 0 0 1\r\nx\r\n"), "STORED\r\n");
    let cache = at(&path);
    assert_eq!(cache.get(b"key").expect("answered").expect("there").value, b"x");
    let transports = cache.transports();
    let [Some(Transport::Unix { why: Some(why) })] = &transports[..] else { panic!("{transports:?}") };
    assert!(refusal.contains(why.as_str()), "{why}");
    assert!(stat(&cache, "fabcache", "shm_refused") >= 3);

    drop(takes_nothing);
    wait_until("the descriptors in flight are received", || {
        let is_given = requested(&socket);
        if !is_given {
            assert_eq!(exchange(&socket, ""), refusal);
        }
        is_given
    });
    let mut raw = Raw::attached(socket).expect("it is let in");
    assert_eq!(raw.request("mn\r\n"), "MN\r\n");
}

#[test]
fn stopping_server_ends_its_channels() {
    let (server, path) = sharing("stops", "");
    let mut raw = Raw::attach(&path).expect("it is let in");
    assert_eq!(raw.request("mn\r\n"), "MN\r\n");
    let region = Region::map(raw.region.as_fd(), raw.region_bytes, Protection::Sealed).expect("a region");
    assert!(region.is_alive());
    raw.put(b"set half 0 0 10\r\nab");
    drop(server);
    assert!(raw.is_ended() && !region.is_alive());
}

#[test]
fn idle_client_is_dropped_after_the_timeout() {
    let (_server, path) = sharing("idle", "-o idle_timeout=1");
    let mut raw = Raw::attach(&path).expect("it is let in");
    assert_eq!(raw.request("mn\r\n"), "MN\r\n");
    wait_until("the idle link is closed", || raw.is_ended());
    let mapping = Mapping::to_read(raw.region.as_fd(), raw.region_bytes);
    assert!(mapping.is_ok(), "the mapped memory stays readable as long as the server lives");
}
