//! The fabric of a running server: the region as peers may read it, and what workers reach their clients by.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::{Context, Error, Result};
use fabcache_fabric::{Domain, ExposedMemory, Library, Provider, ProviderRequirements, ip_of};
use fabcache_store::Store;
use fabcache_transport::fabric::{FabricEndpoint, FabricOptions};
use rustix::process::{Resource, getrlimit};

use super::{BEST, FabricSettings};

/// Whether clients can attach over a fabric.
#[derive(Debug)]
pub enum Fabric {
    /// It was not requested.
    Off,
    /// It failed; clients are told the reason.
    Failed(&'static str),
    /// It is open.
    Open(Box<OpenFabric>),
}

/// A fabric that clients can come by.
#[derive(Debug)]
pub struct OpenFabric {
    provider: Provider,
    // For opening the workers' endpoints, and reopening them.
    domain: Arc<Domain>,
    options: FabricOptions,
    is_one_sided: bool,
    region_bytes: u64,
    /// While it lives, peers can read the region.
    exposed: Mutex<Option<ExposedMemory>>,
    /// The bytes that each worker has registered for messages.
    buffer_bytes: Box<[AtomicU64]>,
}

impl Fabric {
    /// Opens the fabric, if it was requested, and an endpoint for each worker, for so many clients. If any fabric would
    /// do, a failure is logged, and the other listeners work nevertheless.
    ///
    /// # Errors
    /// The requested provider or interface cannot be used.
    pub fn open(
        settings: Option<&FabricSettings>,
        store: &Arc<Store>,
        workers: usize,
        clients: usize,
    ) -> Result<(Fabric, Vec<FabricEndpoint>)> {
        let Some(settings) = settings else { return Ok((Fabric::Off, Vec::new())) };
        match OpenFabric::open(settings, store, workers, clients) {
            Ok((fabric, ports)) => Ok((Fabric::Open(Box::new(fabric)), ports)),
            Err(error) if settings.is_named() => Err(error).with_context(|| {
                format!(
                    "cannot start the fabric --fabric {}; choose another (`fabcache fabric` lists them), or give --fabric \
                     {BEST} to take what there is and go on without",
                    settings.requirements()
                )
            }),
            Err(error) => {
                tracing::error!("cannot start the fabric listener (--fabric): {error:#}");
                // Leaked: clients may receive it as long as the server lives, and a process starts one server.
                Ok((Fabric::Failed(format!("there is no fabric: {error:#}").leak()), Vec::new()))
            }
        }
    }

    /// Returns the fabric if it is open.
    pub fn opened(&self) -> Option<&OpenFabric> {
        match self {
            Fabric::Open(fabric) => Some(fabric),
            Fabric::Off | Fabric::Failed(_) => None,
        }
    }

    /// Returns the bytes of the region, if peers can read it.
    pub fn region_bytes(&self) -> u64 {
        self.opened().map_or(0, |fabric| fabric.region_bytes)
    }

    /// Returns the number of workers with an endpoint.
    pub fn ports(&self) -> u64 {
        let workers = self.opened().into_iter().flat_map(|fabric| &fabric.buffer_bytes);
        workers.filter(|bytes| bytes.load(Ordering::Relaxed) > 0).count() as u64
    }

    /// Returns the bytes registered for messages.
    pub fn buffer_bytes(&self) -> u64 {
        let workers = self.opened().into_iter().flat_map(|fabric| &fabric.buffer_bytes);
        workers.map(|bytes| bytes.load(Ordering::Relaxed)).sum()
    }

    /// Ends remote access to the region.
    pub fn close(&self) {
        if let Fabric::Open(fabric) = self {
            fabric.exposed().take();
        }
    }
}

impl OpenFabric {
    fn open(
        settings: &FabricSettings,
        store: &Arc<Store>,
        workers: usize,
        clients: usize,
    ) -> Result<(OpenFabric, Vec<FabricEndpoint>)> {
        let requirements = ProviderRequirements {
            provider: settings.provider.clone(),
            interface: settings.interface.clone(),
            only_this_host: settings.peers.are_local(),
        };
        let library = Library::open()?;
        let provider = library.pick(&requirements).map_err(|error| {
            let elsewhere = ProviderRequirements { only_this_host: false, ..requirements.clone() };
            // Listing networks would not help if they cannot reach it either.
            if requirements.only_this_host && library.pick(&elsewhere).is_ok() {
                let who = "only clients on this host are allowed, unless --fabric-peers names others";
                return Error::new(error).context(who);
            }
            error.into()
        })?;
        let domain = Domain::open(&provider)?;
        let options = FabricOptions { receives: settings.receives, clients, ..FabricOptions::default() };
        let ports = (0..workers).map(|_| FabricEndpoint::open(&domain, &options));
        let reported = |error| explained(error, &provider, store.region_bytes(), workers);
        let mut ports: Vec<FabricEndpoint> = ports.collect::<Result<_, _>>().map_err(reported)?;
        let exposed = expose(&domain, store).and_then(|exposed| {
            ports.iter_mut().try_for_each(|port| port.expose(&exposed))?;
            Ok(exposed)
        });
        let exposed = exposed.map_err(reported).context("cannot expose the items to readers")?;
        if provider.pins_memory {
            // A file-backed page replaced by the kernel would leave the hardware reading the old page.
            store.keep_pages();
        }
        let region_bytes = store.region_bytes();
        if provider.trusts_peers() {
            tracing::warn!(
                "libfabric's provider shm trusts its peers: clients that come by it can do to this server what they like, and \
                 one that is killed can stop a worker for good"
            );
        }
        if !provider.delivers_words() {
            tracing::warn!(
                "libfabric's provider {} is not known to deliver the upper half of eight bytes no earlier than the lower one, \
                 and one-sided readers may miss items if it does: name a provider that is known, or let clients send requests",
                provider.name
            );
        }
        if provider.is_only_this_host() && !settings.peers.are_local() {
            tracing::warn!(
                "--fabric-peers lets clients of {} come, and other hosts do not reach {provider}: name an interface that they \
                 do, or none; `fabcache fabric` lists them",
                settings.peers
            );
        }
        for (worker, port) in ports.iter().enumerate() {
            tracing::debug!(worker, endpoint = endpoint(port.name()), "a worker's end of the fabric");
        }
        tracing::info!(
            provider = provider.name,
            interface = provider.interface,
            endpoint = ports.first().map(|port| endpoint(port.name())),
            peers = %settings.peers,
            "clients can connect over the fabric, and read all {} bytes of memory, {}",
            region_bytes,
            if provider.pins_memory { "which are pinned" } else { "none of which is pinned" }
        );
        let buffer_bytes = ports.iter().map(|port| AtomicU64::new(port.registered_bytes())).collect();
        let is_one_sided = ports.iter().all(FabricEndpoint::is_one_sided);
        let exposed = Mutex::new(Some(exposed));
        Ok((
            OpenFabric { provider, domain, options, is_one_sided, region_bytes, exposed, buffer_bytes },
            ports,
        ))
    }

    /// Reopens a worker's endpoint.
    ///
    /// # Errors
    /// The provider cannot, or there is no memory that can be registered.
    pub fn open_port(&self) -> Result<FabricEndpoint> {
        let port = FabricEndpoint::open(&self.domain, &self.options).and_then(|mut port| {
            if let Some(exposed) = &*self.exposed() {
                port.expose(exposed)?;
            }
            Ok(port)
        });
        port.map_err(|error| explained(error, &self.provider, self.region_bytes, self.buffer_bytes.len()))
    }

    /// The provider that clients are to take.
    pub fn provider(&self) -> &Provider {
        &self.provider
    }

    /// Returns the number of clients that read items without the server's help.
    pub fn is_one_sided(&self) -> bool {
        self.is_one_sided
    }

    fn exposed(&self) -> MutexGuard<'_, Option<ExposedMemory>> {
        self.exposed.lock().expect("no thread panics while it opens or closes the region")
    }

    /// Sets the bytes that a worker has registered; does nothing without an endpoint.
    pub fn set_buffer_bytes(&self, worker: usize, bytes: u64) {
        self.buffer_bytes[worker].store(bytes, Ordering::Relaxed);
    }
}

fn expose(domain: &Arc<Domain>, store: &Arc<Store>) -> Result<ExposedMemory, fabcache_fabric::Error> {
    let bytes = usize::try_from(store.region_bytes()).expect("it is mapped");
    // SAFETY: the region is mapped as long as the store lives, which is given to be kept; it is written by way of
    // `layout::Memory` alone, which makes no references.
    unsafe { ExposedMemory::new(domain, store.region_base(), bytes, Arc::clone(store) as _) }
}

/// Adds the limit to an error about locked memory, and the memory required.
fn explained(error: fabcache_fabric::Error, provider: &Provider, items: u64, workers: usize) -> Error {
    let is_memory = error.is_memory() && provider.pins_memory;
    let error = Error::new(error);
    match getrlimit(Resource::Memlock).current {
        Some(limit) if is_memory => error.context(format!(
            "memory cannot be pinned, of which this process may have {limit} bytes: {items} of items, the buffers of \
             {workers} worker(s), some 14 MiB each, and as much again of libfabric's own"
        )),
        _ => error,
    }
}

/// An endpoint's name as people read it.
fn endpoint(name: &[u8]) -> String {
    let port = name.get(2..4).map(|port| u16::from_be_bytes([port[0], port[1]]));
    match (ip_of(name), port) {
        (Some(IpAddr::V4(host)), Some(port)) => format!("{host}:{port}"),
        (Some(IpAddr::V6(host)), Some(port)) => format!("[{host}]:{port}"),
        _ => name.strip_suffix(&[0]).unwrap_or(name).escape_ascii().to_string(),
    }
}
