//! What others see of a connection: its entry in `stats conns`, and the log lines about it.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use fabcache_transport::{Kind, Link};

use super::connection::EndReason;
use crate::commands::Context;
use crate::connections::ConnectionInfo;

/// Returns the visible properties of a connection over a link from a listener.
pub(super) fn info_of(ctx: &Context, link: &dyn Link, listener: Option<String>) -> Arc<ConnectionInfo> {
    let fd = link.descriptor().map_or(-1, |fd| fd.as_raw_fd());
    let now = ctx.shared.store.now();
    Arc::new(ConnectionInfo::new(fd, link.kind(), link.peer().to_string(), listener, now))
}

/// Builds a log line about a connection, in memcached's format.
pub(super) fn event(kind: &str, info: &ConnectionInfo, ended: Option<EndReason>) -> String {
    let transport = match info.kind {
        Kind::Tcp | Kind::Fabric | Kind::OpenShmem => "tcp",
        Kind::Udp => "udp",
        Kind::Unix | Kind::Shm | Kind::Memory => "local",
    };
    let address: Option<std::net::SocketAddr> = info.address.parse().ok();
    let host = address.map_or("unix".to_owned(), |address| address.ip().to_string());
    let port = address.map_or(0, |address| address.port());
    let reason = match ended {
        None => String::new(),
        Some(EndReason::Normal) => " reason=normal".to_owned(),
        Some(EndReason::Error | EndReason::Slow) => " reason=error".to_owned(),
        Some(EndReason::Idle) => " reason=idle_timeout".to_owned(),
        Some(EndReason::Shutdown) => " reason=shutdown".to_owned(),
    };
    format!("type={kind} rip={host} rport={port} transport={transport}{reason} cfd={}", info.fd)
}
