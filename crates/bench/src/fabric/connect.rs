//! Connections to the measured servers, and the keys stored there.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use fabcache_client::{Client, Fabric, FabricMode, Options, Protocol, Transport, Ttl};
use fabcache_fabric::Provider;

use super::HOT_KEYS;
use crate::store::keys::{KEY_BYTES, key};
use crate::target::ANSWER_TIMEOUT;

/// Total bytes of the values of one size, so that all sizes fit a small server.
const BYTES_OF_A_SIZE: usize = 32 << 20;
/// Maximum number of keys of one size: as many GETs by key fit in a round.
const KEYS_MAX: u64 = 4096;
/// Returns the number of keys whose values have so many bytes.
pub fn keys_of(bytes: usize) -> u64 {
    (BYTES_OF_A_SIZE as u64 / bytes.max(1) as u64).clamp(HOT_KEYS / 2, KEYS_MAX)
}

/// Returns the key with this number; each value size has its own keys.
pub fn sized_key(number: u64, bytes: usize) -> [u8; KEY_BYTES] {
    key((bytes as u64) << 32 | number)
}

/// How a client reaches a server.
#[derive(Clone, Debug)]
pub struct Connect {
    /// The server's TCP address.
    pub address: SocketAddr,
    /// The fabric mode; `None` for TCP.
    pub mode: Option<FabricMode>,
    /// The client's provider.
    pub provider: Option<Provider>,
}

impl Connect {
    /// Returns a connected client.
    ///
    /// # Errors
    /// The server cannot be reached, or only over another transport.
    pub fn client(&self) -> Result<Client> {
        let Connect { address, mode, provider } = self;
        let Some(mode) = *mode else { return tcp(*address) };
        let provider = provider.as_ref().context("it has a provider")?;
        let at = provider.address.map_or(provider.interface.clone(), |at| at.to_string());
        let fabric =
            Fabric { mode, provider: Some(provider.name.clone()), interface: Some(at), ..Fabric::default() };
        let options = Options {
            fabric,
            timeout: ANSWER_TIMEOUT,
            connect_timeout: ANSWER_TIMEOUT,
            ..Options::default()
        };
        let client = Client::new([format!("fab://{address}")], options)?;
        client.set(b"connected", b"", Ttl::seconds(1))?;
        let transports = client.transports();
        let is_so = matches!(&transports[..], [Some(Transport::Fabric { .. })]);
        ensure!(is_so, "the client uses another transport: {transports:?}");
        Ok(client)
    }
}

/// Returns a client connected over TCP.
pub fn tcp(address: SocketAddr) -> Result<Client> {
    let protocol = Protocol::Meta;
    let options =
        Options { protocol, timeout: ANSWER_TIMEOUT, connect_timeout: ANSWER_TIMEOUT, ..Options::default() };
    let client = Client::new([format!("tcp://{address}")], options)?;
    client.set(b"connected", b"", Ttl::seconds(1))?;
    Ok(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_values_are_fewer_and_keys_are_unique() {
        assert_eq!((keys_of(4), keys_of(1 << 20), keys_of(64 << 20)), (KEYS_MAX, 32, HOT_KEYS / 2));
        assert_ne!(sized_key(7, 64), sized_key(7, 65));
        assert_ne!(sized_key(7, 64), sized_key(8, 64));
    }
}
