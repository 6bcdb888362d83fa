//! `stats conns` and `stats detail dump`.

use std::io::Write as _;

use fabcache_protocol::{Encoding, Protocol, Reply};
use fabcache_transport::Kind;

use super::super::protocol;
use super::{Context, Report};

pub fn connections(ctx: &Context, mut report: Report<'_>) {
    let now = ctx.shared.store.now();
    for info in ctx.shared.connections.all() {
        let prefix = match info.kind {
            Kind::Tcp if info.address.starts_with('[') => "tcp6",
            Kind::Tcp => "tcp",
            Kind::Udp if info.address.starts_with('[') => "udp6",
            Kind::Udp => "udp",
            Kind::Unix => "unix",
            Kind::Shm => "shm",
            Kind::Fabric => "fab",
            Kind::Memory => "memory",
        };
        let fd = info.fd;
        if info.kind == Kind::Udp {
            report.stat(&format!("{fd}:UDP"), "UDP");
        }
        report.stat(&format!("{fd}:addr"), format_args!("{prefix}:{}", info.address));
        if let Some(listener) = &info.listener {
            report.stat(&format!("{fd}:listen_addr"), format_args!("{prefix}:{listener}"));
        }
        report.stat(&format!("{fd}:state"), info.state_name());
        report.stat(&format!("{fd}:secs_since_last_cmd"), now.saturating_sub(info.last_command()));
    }
    report.end();
}

/// Text gets the lines as they are, binary all of them in one packet, as memcached sends them.
pub fn prefixes(ctx: &Context, encoding: &Encoding<'_>, out: &mut Vec<u8>) {
    let mut lines = Vec::new();
    for (prefix, counts) in ctx.shared.prefixes.all() {
        lines.extend_from_slice(b"PREFIX ");
        lines.extend_from_slice(&prefix);
        let (gets, hits) = (counts.gets, counts.hits);
        let _ = write!(lines, " get {gets} hit {hits} set {} del {}\r\n", counts.sets, counts.deletes);
    }
    if protocol(encoding) == Protocol::Text {
        out.extend_from_slice(&lines);
    } else {
        lines.extend_from_slice(b"END\r\n");
        encoding.reply(&Reply::Stat { name: b"detailed", value: &lines }, out);
    }
    encoding.reply(&Reply::StatsEnd, out);
}
