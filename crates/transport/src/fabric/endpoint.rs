//! A worker's endpoint on the fabric.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fabcache_fabric::{Domain, Error, ExposedMemory, RemoteMemory};

use super::bounds::{CLIENTS_MAX, PROOF_TIME_MAX};
use super::link::FabricLink;
use super::link_table::{AttachError, Client, Grant, LinkTable, lock};
use super::resources::Resources;
use crate::contract::{self, Kind, StreamLink};
use crate::source::{Source, WaitMode};

/// Options of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct FabricOptions {
    /// Receive buffers.
    pub receives: u32,
    /// Maximum number of clients, at most [`CLIENTS_MAX`].
    pub clients: usize,
    /// How long a client has to prove its endpoint.
    pub proof_time: Duration,
}

impl Default for FabricOptions {
    fn default() -> FabricOptions {
        FabricOptions { receives: 1024, clients: CLIENTS_MAX, proof_time: PROOF_TIME_MAX }
    }
}

/// A worker's endpoint on the fabric. Clones are handles of the same endpoint, which lasts as long as any of them and
/// its links.
#[derive(Clone, Debug)]
pub struct FabricEndpoint {
    name: Vec<u8>,
    inner: Arc<Mutex<LinkTable>>,
    /// A duplicate of the endpoint's descriptor.
    wait_fd: Option<Arc<OwnedFd>>,
    region: Option<RemoteMemory>,
    is_one_sided: bool,
}

impl FabricEndpoint {
    /// Opens an endpoint with its buffers.
    ///
    /// # Errors
    /// The provider cannot, or there is no memory that can be registered.
    pub fn open(domain: &Arc<Domain>, options: &FabricOptions) -> Result<FabricEndpoint, Error> {
        let shared = Resources::open(domain, options.receives as usize, options.clients)?;
        let wait_fd = shared.endpoint.wait_fd().map(|fd| fd.try_clone_to_owned()).transpose();
        let wait_fd = wait_fd.map_err(|error| Error::System(error.to_string()))?.map(Arc::new);
        let name = shared.endpoint.name().to_vec();
        let inner = LinkTable::new(shared, options.proof_time);
        let is_one_sided = inner.shared.endpoint.is_one_sided();
        Ok(FabricEndpoint { name, inner: Arc::new(Mutex::new(inner)), wait_fd, region: None, is_one_sided })
    }

    /// Lets clients read memory through this endpoint.
    ///
    /// # Errors
    /// Memory cannot be registered.
    pub fn expose(&mut self, region: &ExposedMemory) -> Result<(), Error> {
        self.region = Some(region.by(&mut lock(&self.inner).shared.endpoint)?);
        Ok(())
    }

    /// Returns the exposed memory, if any.
    pub fn region(&self) -> Option<RemoteMemory> {
        self.region
    }

    /// Returns whether reads need no CPU of the peer, in both directions.
    pub fn is_one_sided(&self) -> bool {
        self.is_one_sided
    }

    /// Returns its fabric address.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the bytes of its registered buffers.
    pub fn registered_bytes(&self) -> u64 {
        lock(&self.inner).shared.registered_bytes()
    }

    /// Returns the number of messages received for no link.
    pub fn dropped_messages(&self) -> u64 {
        lock(&self.inner).dropped_messages()
    }

    /// Returns the number of operations in flight of links that have ended.
    pub fn orphaned(&self) -> usize {
        lock(&self.inner).orphaned_operations()
    }

    /// Turns a TCP connection whose client has named its endpoint into a link. [`Source::progress`] reports it as `tag`.
    ///
    /// # Errors
    /// The client's endpoint or memory is invalid, or memory is exhausted. Returns the unchanged connection.
    pub fn attach(
        &mut self,
        link: StreamLink,
        tag: u64,
        client: &Client,
    ) -> Result<(FabricLink, Grant), (StreamLink, AttachError)> {
        let contract::Peer::Socket(peer) = link.peer else { return Err((link, AttachError::Range)) };
        let socket = link.socket;
        let socket = Arc::new(socket);
        let attached = lock(&self.inner).attach(tag, client, &socket, peer.ip());
        match (attached, Arc::try_unwrap(socket)) {
            (Ok((index, granted)), Err(socket)) => {
                Ok((FabricLink::new(Arc::clone(&self.inner), index, socket, peer), granted))
            }
            (Err(error), Ok(socket)) => {
                Err((StreamLink { socket, peer: contract::Peer::Socket(peer) }, error))
            }
            _ => unreachable!("only a link keeps its socket"),
        }
    }
}

impl Source for FabricEndpoint {
    fn progress(&mut self, ready: &mut Vec<u64>) -> io::Result<()> {
        let mut inner = lock(&self.inner);
        let progress = inner.progress();
        inner.take_ready(ready);
        progress.map_err(io::Error::other)
    }

    fn arm(&mut self) -> WaitMode {
        lock(&self.inner).arm(self.wait_fd.is_some())
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.wait_fd.as_ref().map(|fd| fd.as_fd())
    }

    fn links(&self) -> usize {
        lock(&self.inner).shared.links
    }

    fn kind(&self) -> Kind {
        Kind::Fabric
    }

    fn close(&mut self) {
        lock(&self.inner).is_closed = true;
    }
}
