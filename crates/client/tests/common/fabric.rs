//! Servers and clients on the fabric. `FABCACHE_PROVIDER` names libfabric's provider, `FABCACHE_SERVER_INTERFACE` and
//! `FABCACHE_CLIENT_INTERFACE` the interfaces of the two endpoints.

pub use fabcache_testbed::ports::free_port;
use std::process::Command;
use std::time::Duration;

use fabcache_client::{Client, Fabric, FabricMode, Options, Transport};

use super::process::{Leftover, Server, socket_path};

/// libfabric's provider.
pub fn provider() -> String {
    std::env::var("FABCACHE_PROVIDER").unwrap_or("tcp;ofi_rxm".into())
}

/// Returns the server's flags for the fabric.
pub fn flags(rest: &str) -> String {
    let interface =
        std::env::var("FABCACHE_SERVER_INTERFACE").map_or(String::new(), |name| format!(",{name}"));
    format!("--fabric {}{interface} {rest}", provider())
}

pub fn options(mode: FabricMode) -> Options {
    let interface = std::env::var("FABCACHE_CLIENT_INTERFACE").ok();
    let fabric = Fabric { mode, interface, ..Fabric::default() };
    // Emulation is slow, with few CPUs.
    Options {
        fabric,
        timeout: Duration::from_secs(30),
        connect_timeout: Duration::from_secs(20),
        ..Options::default()
    }
}

/// A client of the server at this socket path, with the fabric clients' timeouts.
pub fn beside(path: &str) -> Client {
    let fabric = Fabric::default();
    Client::new([format!("unix://{path}")], Options { fabric, ..options(FabricMode::Auto) })
        .expect("an address")
}

/// A client over the fabric, of the server at this TCP address.
pub fn over(address: &str, options: Options) -> Client {
    Client::new([address.replace("tcp://", "fab://")], options).expect("an address")
}

pub fn is_one_sided(cache: &Client) -> bool {
    match &cache.transports()[..] {
        [Some(Transport::Fabric { one_sided, .. })] => *one_sided,
        other => panic!("not over the fabric: {other:?}"),
    }
}

/// Starts a server in its own process, and returns its TCP address. With both endpoints in one process, providers for
/// one host let one write to memory that the other has released.
pub fn served(name: &str, rest: &str) -> (Server, String, Leftover) {
    served_with(name, rest, |_| {})
}

/// Like [`served`], with changes to the server process's command.
pub fn served_with(name: &str, rest: &str, more: impl FnOnce(&mut Command)) -> (Server, String, Leftover) {
    let path = socket_path(name);
    let port = free_port().expect("a free port");
    let server = Server::started_with(&path, &flags(&format!("-l 127.0.0.1 -p {port} {rest}")), more);
    (server, format!("tcp://127.0.0.1:{port}"), Leftover(path))
}
