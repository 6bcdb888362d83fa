//! Sends the same bytes to memcached 1.6.18 and to the PEs of a job, each connection to the next PE, and compares the answers.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use fabcache_differential::generate::Selection;
use fabcache_differential::{Options, Report, Servers};
use fabcache_testbed::openshmem::JobOptions;

use crate::differential;

/// A server that sends nothing for this long has no answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// The flags of the PEs; memory and limits are those of memcached. A busy machine makes no PE count as stopped. Reads go by
/// messages, because `mg KEY h` shows a one-sided read later.
const FLAGS: &str = "-m 256 -I 1m -c 1024 --openshmem-timeout 60000 --openshmem-one-sided=false";

/// Compares the answers to so many commands.
///
/// # Errors
/// A server cannot be started.
pub fn compare(server: &Path, pes: usize, commands: u64) -> Result<Report> {
    let (_memcached, theirs) = differential::start("memcached", &differential::their_program(None)?)?;
    let job = JobOptions::new(pes).program(server).server(FLAGS).start()?;
    let ours = forward((0..pes).map(|pe| job.socket(pe)).collect())?;
    fabcache_differential::run(&Options {
        servers: Servers { theirs, ours },
        commands,
        seed: 1,
        selection: Selection::All,
        time_limit: None,
        differences_max: 1,
        twin: false,
        sharded: true,
        slow: false,
        shrink: true,
        coverage: false,
        timeout: ANSWER_TIME_MAX,
        progress: false,
        stop: Arc::new(AtomicBool::new(false)),
    })
}

/// Listens on a port, and connects each client to the next of these sockets.
fn forward(sockets: Vec<PathBuf>) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for (client, socket) in listener.incoming().zip(sockets.iter().cycle()) {
            // The client's connection ends at once if its server cannot be reached.
            let _ = client.and_then(|client| connect(client, socket));
        }
    });
    Ok(address)
}

/// Copies what both send, in both directions.
fn connect(client: TcpStream, socket: &Path) -> io::Result<()> {
    client.set_nodelay(true)?;
    let server = UnixStream::connect(socket)?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    });
    let (mut from_server, mut to_client) = (server, client);
    thread::spawn(move || {
        let _ = io::copy(&mut from_server, &mut to_client);
        let _ = to_client.shutdown(Shutdown::Both);
    });
    Ok(())
}
