//! Runs a program of RDMA-Memcached linked with libfabcache.so: over shared memory, over TCP to
//! memcached (both under valgrind, without invalid accesses or leaks), and over the fabric. Then runs a
//! libmemcached program over the fabric that forks, and whose server is killed.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fabcache_testbed::server::ServerProcess;

use super::recorded;
use crate::capi::install::soname;
use crate::clients::install::make_packages_ready;
use crate::process::Interrupt;
use crate::servers::{self, MEMCACHED, server_command};
use crate::workspace;

/// A libfabric provider of every machine.
const PROVIDER: &str = "tcp;ofi_rxm";

/// Builds the program and runs it.
///
/// # Errors
/// A requirement is missing, or the program fails.
pub fn run(library: &Path, interrupt: &Interrupt) -> Result<()> {
    make_packages_ready(&workspace::folder().join("tests/rdma"), interrupt)?;
    let scratch = workspace::target().join("libmemcached");
    std::fs::create_dir_all(&scratch).with_context(|| format!("{} cannot be made", scratch.display()))?;
    // Under the names that the linker and the loader search for.
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
    let mut command = command(&workspace::build_server()?);
    command.arg("-s").arg(&socket).arg("--shm");
    let is_up = || UnixStream::connect(&socket).is_ok();
    let fabcached = servers::start("fabcached", command, &is_up, interrupt)?;
    request(&program, socket.as_os_str(), "fabcached over shared memory")?;
    drop(fabcached);

    let (memcached, address) = on_port(Path::new(MEMCACHED), &["-U", "0"])?;
    request(&program, OsStr::new(&address), "memcached over TCP")?;
    drop(memcached);
    over_fabric(
        &program,
        &recorded::build(
            "fabric",
            &[OsStr::new("-L"), scratch.as_os_str(), OsStr::new("-lfabcache"), &path],
        )?,
    )
}

/// Without valgrind, which reports errors in libfabric itself.
fn over_fabric(requests: &Path, program: &Path) -> Result<()> {
    let (server, address) = on_port(&workspace::build_server()?, &["--fabric", PROVIDER])?;
    succeeds(Command::new(requests).arg(format!("fab://{address}")), "requests over the fabric")?;
    let mut command = Command::new(program);
    command.arg(&address).arg(server.id().to_string());
    succeeds(&mut command, "a program over the fabric, which forks, and whose server dies")
}

fn succeeds(command: &mut Command, what: &str) -> Result<()> {
    let output = command.output().with_context(|| format!("{what}: it cannot be started"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{what}: {}\n{errors}", output.status);
    println!("{what}");
    Ok(())
}

fn request(program: &Path, servers: &OsStr, what: &str) -> Result<()> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--leak-check=full", "--error-exitcode=9"]).arg(program).arg(servers);
    let output = valgrind.output().context("valgrind cannot be started: install valgrind")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "requests to {what}: {}\n{errors}", output.status);
    println!("requests: to {what}, under valgrind");
    Ok(())
}

fn on_port(program: &Path, flags: &[&str]) -> Result<(ServerProcess, String)> {
    let command = |port: u16| {
        let mut command = command(program);
        command.args(["-l", "127.0.0.1", "-p", &port.to_string()]).args(flags);
        command
    };
    let (server, address) = ServerProcess::start_on_free_port(&program.display().to_string(), &command)?;
    Ok((server, address.to_string()))
}

fn command(program: &Path) -> Command {
    let mut command = server_command(program);
    command.args(["-m", "256"]);
    command
}
