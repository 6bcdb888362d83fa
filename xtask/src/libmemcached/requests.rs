//! A program of RDMA-Memcached, linked with libfabcache.so: over shared memory, and over TCP to memcached, under valgrind,
//! which finds no invalid access and no leak; and over the fabric. Then a program of libmemcached over the fabric, which forks,
//! and whose server dies.

use std::ffi::{OsStr, OsString};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::recorded;
use crate::capi::install::soname;
use crate::clients::install::make_packages_ready;
use crate::process::Interrupt;
use crate::servers::START_TIME_MAX;
use crate::workspace;

/// Of libfabric, on any machine.
const PROVIDER: &str = "tcp;ofi_rxm";

/// Builds the program and runs it.
///
/// # Errors
/// Something that it needs is missing, or it found something wrong.
pub fn run(library: &Path, interrupt: &Interrupt) -> Result<()> {
    make_packages_ready(&workspace::folder().join("tests/rdma"), interrupt)?;
    let scratch = workspace::target().join("libmemcached");
    std::fs::create_dir_all(&scratch).with_context(|| format!("{} cannot be made", scratch.display()))?;
    // By the names that the linker and the loader look for.
    for name in ["libfabcache.so".to_owned(), soname()] {
        let link = scratch.join(name);
        // It may not be there.
        let _ = std::fs::remove_file(&link);
        symlink(library, &link).with_context(|| format!("{} cannot be made", link.display()))?;
    }
    let include = workspace::folder().join("bindings/c/include");
    let mut path = OsString::from("-Wl,-rpath,");
    path.push(&scratch);
    let link = [
        OsStr::new("-I"),
        include.as_os_str(),
        OsStr::new("-include"),
        OsStr::new("libmemcached/requests.h"),
        OsStr::new("-L"),
        scratch.as_os_str(),
        OsStr::new("-lfabcache"),
        &path,
    ];
    let program = recorded::build("requests", &link)?;
    let socket = scratch.join(format!("requests-{}.sock", std::process::id()));
    let fabcached =
        Server::start(Command::new(workspace::build_server()?).arg("-s").arg(&socket).arg("--shm"), || {
            UnixStream::connect(&socket).is_ok()
        })?;
    ask(&program, socket.as_os_str(), "fabcached over shared memory")?;
    drop(fabcached);

    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let mut memcached = Command::new("memcached");
    memcached.args(["-l", "127.0.0.1", "-U", "0", "-p", &port.to_string()]);
    let _memcached =
        Server::start(&mut memcached, || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok())?;
    ask(&program, OsStr::new(&format!("127.0.0.1:{port}")), "memcached over TCP")?;
    over_fabric(
        &program,
        &recorded::build(
            "fabric",
            &[OsStr::new("-L"), scratch.as_os_str(), OsStr::new("-lfabcache"), &path],
        )?,
    )
}

/// Not under valgrind: libfabric has findings of its own.
fn over_fabric(requests: &Path, program: &Path) -> Result<()> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let mut fabcached = Command::new(workspace::build_server()?);
    fabcached.args(["-l", "127.0.0.1", "-p", &port.to_string(), "--fabric", PROVIDER]);
    let server = Server::start(&mut fabcached, || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok())?;
    let address = format!("127.0.0.1:{port}");
    succeeds(Command::new(requests).arg(format!("fab://{address}")), "requests over the fabric")?;
    let mut command = Command::new(program);
    command.arg(&address).arg(server.0.id().to_string());
    succeeds(&mut command, "a program over the fabric, which forks, and whose server dies")
}

fn succeeds(command: &mut Command, what: &str) -> Result<()> {
    let output = command.output().with_context(|| format!("{what}: it cannot be started"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{what}: {}\n{errors}", output.status);
    println!("{what}");
    Ok(())
}

fn ask(program: &Path, servers: &OsStr, what: &str) -> Result<()> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--leak-check=full", "--error-exitcode=9"]).arg(program).arg(servers);
    let output = valgrind.output().context("valgrind cannot be started: install valgrind")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "requests to {what}: {}\n{errors}", output.status);
    println!("requests: to {what}, under valgrind");
    Ok(())
}

/// A server that is killed when this is dropped.
struct Server(Child);

impl Server {
    fn start(command: &mut Command, is_up: impl Fn() -> bool) -> Result<Server> {
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        command.args(["-m", "256"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| {
            format!("{} cannot be started: install it", PathBuf::from(command.get_program()).display())
        })?;
        let mut server = Server(child);
        let deadline = Instant::now() + START_TIME_MAX;
        while !is_up() {
            if let Some(status) = server.0.try_wait()? {
                bail!("a server ended at once: {status}");
            }
            ensure!(Instant::now() < deadline, "a server does not answer");
            sleep(Duration::from_millis(10));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
