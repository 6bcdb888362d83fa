//! A client's options: how keys map to servers, how servers are reached, and for how long.

use std::time::Duration;

use fabcache_distribution::Distribution;

use crate::bounds::{CONNECT_TIMEOUT, RETRY_AFTER, TIMEOUT};

/// A client's options.
#[derive(Clone, Debug)]
pub struct Options {
    /// How keys are mapped to servers.
    pub distribution: Distribution,
    /// The connect timeout. Over the fabric, threads that wait for another thread's connection wait up to twice as
    /// long.
    pub connect_timeout: Duration,
    /// The timeout of a call for each server that it asks. An unanswered GET over the fabric takes up to half as long
    /// again, because it first tries to read.
    pub timeout: Duration,
    /// After this many consecutive failures a server counts as down …
    pub failures_max: u32,
    /// … for this long.
    pub retry_after: Duration,
    /// The other servers take over the keys of a server that is down. Otherwise calls for its keys fail at once.
    pub auto_eject: bool,
    /// The protocol over sockets.
    pub protocol: Protocol,
    /// The user name and password, for servers whose clients authenticate: by the text protocol (`-Y`), or with
    /// [`Protocol::Binary`] by SASL PLAIN (`-S`).
    pub credentials: Option<Credentials>,
    /// Whether memory is shared with servers that are reached by a Unix socket.
    pub shared_memory: SharedMemory,
    /// How servers are reached whose addresses begin with `fab://`.
    pub fabric: Fabric,
}

/// A user of a server.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Name: for text without a space, for SASL without a NUL.
    pub user: String,
    /// Password.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    /// Omits the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The protocol over sockets. It does not concern shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The meta protocol, or the text protocol with servers that do not support it: old servers answer the first
    /// question with an error, and proxies close the connection. The first connection to a server asks, and the first
    /// after a failure asks again.
    #[default]
    Auto,
    /// The meta protocol, which memcached supports from 1.6 on.
    Meta,
    /// The binary protocol. Times are limited to the year 2106, [`crate::Client::contains`] transfers the value, and
    /// [`crate::Client::verbosity`] is refused.
    Binary,
    /// The text protocol. It cannot carry keys with spaces or control characters ([`crate::Failure::Key`]), and
    /// limits times to January 2038. [`crate::Client::contains`] transfers the value, and
    /// [`crate::Client::incr_or_set`] takes more than one request.
    Text,
}

/// Whether to ask servers of this host for their memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedMemory {
    /// Use it if the server offers it: to read items, or only a channel for requests if clients cannot read this
    /// server's memory ([`crate::Transport::Channel`]). Else use the socket.
    #[default]
    Offered,
    /// Items must be readable in it: otherwise calls fail with the reason, and [`crate::Client::new`] refuses addresses other than
    /// Unix sockets.
    Required,
    /// Never.
    Never,
}

/// How the client uses servers whose addresses begin with `fab://`. Others are never asked for the fabric.
///
/// Each connection has an endpoint. Over `tcp;ofi_rxm` libfabric takes some 90 MB for each, and the system about 60
/// ms to provide that memory. Endpoints are opened one after the other, and calls reuse idle ones, so there are fewer
/// than threads unless calls take long. Reads have one more, which the first GET opens. With `FI_OFI_RXM_USE_SRX=1`,
/// `FI_OFI_RXM_MSG_TX_SIZE=64` and `FI_OFI_RXM_MSG_RX_SIZE=64` in the environment an endpoint takes less than half
/// the memory. Non-blocking calls share one connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fabric {
    /// How values are read.
    pub mode: FabricMode,
    /// The provider of libfabric, such as `verbs;ofi_rxm`; default: the server's. A server with another provider is
    /// reported as an error.
    pub provider: Option<String>,
    /// Only this device or network interface, such as `mlx5_0` or `eth0`, or an address of it.
    pub interface: Option<String>,
    /// If the fabric is not available, or no message gets through within [`Options::timeout`], use TCP instead;
    /// [`crate::Transport::InsteadOfFabric`] says why. A connection keeps its transport. Otherwise calls fail with
    /// that reason.
    pub or_tcp: bool,
}

/// How values are read over the fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FabricMode {
    /// Whichever was faster recently, measured separately for single GETs, for windows of non-blocking GETs and for
    /// multigets; requests if the provider needs the server's help with reads.
    #[default]
    Auto,
    /// Reads from the server's memory, without its CPU. Requests only where reads are inconclusive.
    OneSided,
    /// Requests to the server.
    Request,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            distribution: Distribution::default(),
            connect_timeout: CONNECT_TIMEOUT,
            timeout: TIMEOUT,
            failures_max: 1,
            retry_after: RETRY_AFTER,
            auto_eject: false,
            protocol: Protocol::Auto,
            credentials: None,
            shared_memory: SharedMemory::Offered,
            fabric: Fabric::default(),
        }
    }
}
