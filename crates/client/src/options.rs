//! A client's options: how keys map to servers, how servers are reached, and for how long.

use std::time::Duration;

use crate::bounds::{CONNECT_TIMEOUT, RETRY_AFTER, TIMEOUT};
use crate::distribution::Distribution;

/// A client's options.
#[derive(Clone, Debug)]
pub struct Options {
    /// How keys are mapped to servers.
    pub distribution: Distribution,
    /// How long connecting may take. Over the fabric, where threads wait for a connection that another makes, as long again.
    pub connect_timeout: Duration,
    /// How long a call may take, for each server that it asks. A get over the fabric that nobody answers takes half as long
    /// again: it tries to read first.
    pub timeout: Duration,
    /// After so many failures one after the other a server is down …
    pub failures_max: u32,
    /// … for so long.
    pub retry_after: Duration,
    /// Keys of a server that is down belong to the others meanwhile. Otherwise calls for them fail at once.
    pub auto_eject: bool,
    /// What is spoken over sockets.
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
    /// Without the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// What is spoken with servers over sockets. Through shared memory it makes no difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The meta protocol, or the text protocol with servers that do not know it: old servers answer the first
    /// question with an error, and proxies close the connection. The first connection to a server asks, and again
    /// after the server failed.
    #[default]
    Auto,
    /// The meta protocol, which any memcached from 1.6 on takes.
    Meta,
    /// The binary protocol. A time beyond the year 2106 is that year's, [`crate::Client::contains`] moves the value all the
    /// same, and [`crate::Client::verbosity`] is refused.
    Binary,
    /// The text protocol. It takes no key with spaces or control characters ([`crate::Failure::Key`]), and times beyond
    /// January 2038 are then. [`crate::Client::contains`] moves the value all the same, and [`crate::Client::incr_or_set`]
    /// takes more than one request.
    Text,
}

/// Whether to ask servers of this host for their memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedMemory {
    /// Where they share it; else the socket does.
    #[default]
    Offered,
    /// It must be shared: otherwise calls fail, and say why.
    Required,
    /// Never.
    Never,
}

/// The fabric: what of it is used with servers whose addresses begin with `fab://`. Others are never asked for it.
///
/// Each connection has an endpoint: over `tcp;ofi_rxm` libfabric takes some 90 MB for each, and the system about 60 ms to give that
/// memory. They are opened one after the other, and calls take those that others have done with meanwhile, so there are fewer
/// than threads unless calls take long. Reads have one more, which the first get opens. Less than half of the memory will do where the program's environment has
/// `FI_OFI_RXM_USE_SRX=1`, `FI_OFI_RXM_MSG_TX_SIZE=64` and `FI_OFI_RXM_MSG_RX_SIZE=64`; calls that do not wait share one connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fabric {
    /// How values are got.
    pub mode: FabricMode,
    /// Only this provider of libfabric, as `verbs;ofi_rxm`. Otherwise the server's; a server that has another one is told as
    /// an error.
    pub provider: Option<String>,
    /// Only this device or network interface, as `mlx5_0` or `eth0`, or an address of it.
    pub interface: Option<String>,
    /// Where the fabric is not to be had, or nothing gets through within [`Options::timeout`], TCP serves instead, and
    /// [`crate::Transport::InsteadOfFabric`] says why. A connection stays what it was made. Otherwise calls fail, and say so.
    pub or_tcp: bool,
}

/// How values are got over the fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FabricMode {
    /// As has taken less time lately, which is found out apart for gets one by one, for windows of those that do not wait, and
    /// for many keys in a call; by requests, where the provider needs the server's help with reads.
    #[default]
    Auto,
    /// They are read from the server's memory, without the server. It is asked for what cannot be told so.
    OneSided,
    /// The server is asked.
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
