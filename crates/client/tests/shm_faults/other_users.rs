//! Clients of other users and of the server's own: what they may do with the memory, and with the server's process.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use fabcache_client::{Options, SharedMemory, Transport, Ttl};
use fabcache_layout::reader::{Protection, Region};
use fabcache_testbed::cleanup::Folder;
use fabcache_testbed::report::not_run;
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Result;
use rustix::mm::{MprotectFlags, ProtFlags};
use rustix::process::{DumpableBehavior, Gid, Uid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, UnshareFlags, capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    unshare_unsafe,
};

use crate::common::Running;
use crate::common::process::{Leftover, Process, SHIELDED, Server, again, at, socket_path, stat};
use crate::common::raw::{Raw, request};
use crate::rules::{connect, exchange, map};

/// A user of clients; it needs no name.
const OTHER: u32 = 4711;
/// The user, and the group, that stand for all unmapped ones.
const UNMAPPED: u32 = 65534;
/// The server's socket, for a process of its own.
const SOCKET: &str = "FABCACHE_TEST_SOCKET";
/// Every Linux has this user.
const SERVER_USER: &str = "daemon";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs `body` as this user, without groups and capabilities. The kernel keeps a user for each thread.
fn as_user<R: Send>(user: u32, body: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (user, group) = (Uid::from_raw(user), Gid::from_raw(user));
            set_thread_groups(&[]).expect("root may");
            set_thread_res_gid(group, group, group).expect("root may");
            set_thread_res_uid(user, user, user).expect("root may");
            body()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A memory file (`-e`) in a directory of the server's user.
pub struct MemoryFile(Folder);

impl MemoryFile {
    pub fn new(name: &str, owner: u32) -> MemoryFile {
        let folder = Folder::new_in(Path::new("/dev/shm"), &format!("fabcache-{name}"));
        let folder = folder.expect("memory that is shared");
        std::os::unix::fs::chown(folder.path(), Some(owner), None).expect("ours");
        MemoryFile(folder)
    }

    pub fn path(&self) -> PathBuf {
        self.named("region")
    }

    fn named(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn user_number(name: &str) -> u32 {
    let users = std::fs::read_to_string("/etc/passwd").expect("there are users");
    let line = users.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.split(':').nth(1)?.parse().ok()).expect("the user exists")
}

/// A server that shares memory with `OTHER`, sealed or kept. Started by root, it becomes `SERVER_USER`.
fn serving_other(name: &str, file: Option<&Path>, more: impl FnOnce(&mut Command)) -> (Server, Leftover) {
    let socket = Leftover(socket_path(name));
    let file = file.map(|file| format!(" -e {}", file.display())).unwrap_or_default();
    let flags = format!("-m 8 -u {SERVER_USER} -a 0777 --shm-users {OTHER},{UNMAPPED}{file}");
    let server = Server::started_with(&socket.0, &flags, |command| more(command.env(SHIELDED, "1")));
    (server, socket)
}

/// Changes a file, or obtains what can change it.
type Attempt = fn(BorrowedFd<'_>) -> Result<()>;

/// The attempts of a client to change the file of a region. Each succeeds with a file that is the client's own.
const ATTEMPTS: [(&str, Attempt); 11] = [
    ("reopen it for writing", |file| {
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::open(link, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map(drop)
    }),
    ("empty it by reopening", |file| {
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC;
        rustix::fs::open(link, flags, Mode::empty())?;
        rustix::fs::ftruncate(file, 8192)
    }),
    ("map it for writing", |file| unmap(map(file, ProtFlags::READ | ProtFlags::WRITE)?)),
    ("make a mapping writable", |file| {
        let page = map(file, ProtFlags::READ)?;
        // SAFETY: the page was just mapped, and nothing refers to it.
        let changed = unsafe { rustix::mm::mprotect(page, 4096, MprotectFlags::READ | MprotectFlags::WRITE) };
        unmap(page).and(changed)
    }),
    ("write to it", |file| rustix::io::pwrite(file, b"x", 0).map(drop)),
    ("allocate its holes", |file| rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, 4096)),
    ("punch a hole", |file| {
        rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096)
    }),
    ("shrink it", |file| rustix::fs::ftruncate(file, 4096)),
    ("let it grow", |file| rustix::fs::ftruncate(file, 1 << 30)),
    ("change its mode", |file| rustix::fs::fchmod(file, Mode::from_raw_mode(0o666))),
    ("add a seal", |file| rustix::fs::fcntl_add_seals(file, SealFlags::SHRINK)),
];

fn unmap(page: *mut c_void) -> Result<()> {
    // SAFETY: `map` mapped this page, and nothing refers to it.
    unsafe { rustix::mm::munmap(page, 4096) }
}

/// Attaches to the server, and makes each attempt on its region; it may read.
fn attempt_all(socket: &str) {
    let raw = Raw::attach(socket).expect("it is let in");
    let before = rustix::fs::fstat(&raw.region).expect("open");
    for (what, attempt) in ATTEMPTS {
        assert!(attempt(raw.region.as_fd()).is_err(), "a client can {what}");
    }
    let after = rustix::fs::fstat(&raw.region).expect("open");
    assert_eq!((after.st_mode, after.st_size as u64), (before.st_mode, raw.region_bytes));
    let cache = at(socket);
    assert_eq!(cache.get(b"key").expect("answered").expect("there").value, b"value");
    assert_eq!(cache.transports(), [Some(Transport::SharedMemory)]);
}

#[test]
#[ignore = "it is a part of others"]
fn root_of_a_user_namespace() {
    let capabilities = capabilities(None).expect("known").effective;
    assert!(capabilities.contains(CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER));
    attempt_all(&std::env::var(SOCKET).expect("run by another test"));
}

/// Runs [`root_of_a_user_namespace`] in a user namespace that maps `OTHER` to root.
fn attempt_all_in_a_namespace(socket: &str) {
    let mut command = again("other_users::root_of_a_user_namespace");
    command.env(SOCKET, socket).uid(OTHER).gid(OTHER);
    let enter = || {
        // SAFETY: a new user namespace leaves descriptors and memory as they are.
        unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }?;
        // The change of the user made root the owner of the files below.
        set_dumpable_behavior(DumpableBehavior::Dumpable)?;
        let write = |path: &str, text: &[u8]| {
            let file = rustix::fs::open(path, OFlags::WRONLY, Mode::empty())?;
            rustix::io::write(file, text).map(drop)
        };
        Ok(write("/proc/self/uid_map", b"0 4711 1")?)
    };
    // SAFETY: after the fork, the closure only makes system calls, and allocates nothing.
    unsafe { command.pre_exec(enter) };
    match command.status() {
        Ok(status) => assert!(status.success(), "root of a user namespace"),
        Err(error) => not_run("a client that is root of a user namespace", &error),
    }
}

#[test]
fn clients_of_other_users_cannot_write_the_region() {
    if !is_root() {
        return not_run(
            "clients_of_other_users_cannot_write_the_region",
            &"only root can become another user",
        );
    }
    as_user(OTHER, || {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let own = rustix::fs::memfd_create("fabcache-own", flags).expect("memory");
        rustix::fs::ftruncate(&own, 8192).expect("memory");
        for (what, attempt) in ATTEMPTS {
            attempt(own.as_fd()).unwrap_or_else(|error| panic!("cannot {what} although it is ours: {error}"));
        }
    });
    let file = MemoryFile::new("others-write", user_number(SERVER_USER));
    for (name, path, mode) in [("others-sealed", None, 0o400), ("others-kept", Some(file.path()), 0o600)] {
        let (_server, socket) = serving_other(name, path.as_deref(), |_| {});
        at(&socket.0).set(b"key", b"value", Ttl::NEVER).expect("stored");
        as_user(OTHER, || {
            attempt_all(&socket.0);
            let raw = Raw::attach(&socket.0).expect("it is let in");
            assert_eq!(rustix::fs::fstat(&raw.region).expect("open").st_mode & 0o777, mode);
            if let Some(path) = &path {
                assert!(File::open(path).is_err(), "a client can open the file by its name");
            }
        });
        attempt_all_in_a_namespace(&socket.0);
        as_user(UNMAPPED, || {
            let refusal = exchange(connect(&socket.0), request());
            assert!(refusal.starts_with("CLIENT_ERROR user 65534"), "{refusal}");
        });
    }
}

/// Opens files of a process by which its memory can be read or written; returns the first that can be opened.
fn open_door(process: u32) -> Option<&'static str> {
    let of = |name: &str| format!("/proc/{process}/{name}");
    let can_open = |write: bool| OpenOptions::new().read(true).write(write).open(of("mem")).is_ok();
    let doors = [
        ("mem for writing", can_open(true)),
        ("mem for reading", can_open(false)),
        ("maps", std::fs::read(of("maps")).is_ok()),
        ("fd", std::fs::read_dir(of("fd")).is_ok()),
    ];
    doors.into_iter().find_map(|(name, is_open)| is_open.then_some(name))
}

#[test]
fn server_is_closed_to_processes_of_its_own_user() {
    if !is_root() {
        let (server, _socket) = serving_other("own-user", None, |_| {});
        assert_eq!(open_door(server.0.0.id()), None);
        return;
    }
    let user = user_number(SERVER_USER);
    let other = Process(Command::new("sleep").arg("60").uid(user).gid(user).spawn().expect("a process"));
    if as_user(user, || open_door(other.0.id())).is_none() {
        let why = "this system lets no user open the memory of its own processes";
        return not_run("server_is_closed_to_processes_of_its_own_user", &why);
    }
    let file = MemoryFile::new("own-user", user);
    for (name, path) in [("own-user-sealed", None), ("own-user-kept", Some(file.path()))] {
        // The kernel closes a process that becomes another user.
        let (server, _socket) = serving_other(name, path.as_deref(), |command| {
            command.uid(user).gid(user);
        });
        assert_eq!(as_user(user, || open_door(server.0.0.id())), None, "{name}");
    }
}

#[test]
fn clients_of_the_servers_user_get_a_kept_region_if_trusted() {
    let own = rustix::process::geteuid().as_raw();
    let file = MemoryFile::new("same-user", own);
    let socket = socket_path("same-user");
    // A process that another test is about to start holds the lock of the first server's file for a moment.
    let flags = |name| format!("-m 8 -s {socket} --shm -e {}", file.named(name).display());
    let server = Running::start(&format!("{} --shm-users {OTHER},{own}", flags("refusing")));
    let refusal = exchange(connect(&socket), request());
    assert!(refusal.starts_with("CLIENT_ERROR") && refusal.contains("--shm-same-user"), "{refusal}");
    let cache = at(&socket);
    cache.set(b"key", b"value", Ttl::NEVER).expect("stored over the socket");
    let [Some(Transport::Unix { why: Some(why) })] = &cache.transports()[..] else { panic!("by the socket") };
    assert!(why.contains("--shm-same-user"), "{why}");
    assert_eq!(stat(&cache, "fabcache", "shm_refused"), 2);
    drop(server);

    let _server = Running::start(&format!("{} --shm-same-user", flags("trusting")));
    let required = Options { shared_memory: SharedMemory::Required, ..crate::common::with_time_limit() };
    let cache = fabcache_client::Client::new([format!("unix://{socket}")], required).expect("an address");
    cache.set(b"key", b"value", Ttl::NEVER).expect("stored");
    assert_eq!(cache.get(b"key").expect("answered").expect("there").value, b"value");
    let stats = cache.stats("fabcache").remove(0).expect("answered");
    assert!(stats.iter().any(|(name, value)| name == "region" && value == "kept"), "{stats:?}");
    let raw = Raw::attach(&socket).expect("it is let in");
    assert!(Region::map(raw.region.as_fd(), raw.region_bytes, Protection::Kept).is_ok());
    assert!(Region::map(raw.region.as_fd(), raw.region_bytes, Protection::Sealed).is_err());
}
