//! A server in this process: listeners, workers, housekeeping.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fabcache_protocol::udp;
use fabcache_shmem::Process;
use fabcache_store::backing::{Locking, Sharing};
use fabcache_store::liveness::Liveness;
use fabcache_store::restart::{KeepError, Unclean};
use fabcache_store::{ItemInfo, Observer, Opening, Store, StoreOptions};
use fabcache_transport::fabric::FabricEndpoint;
use fabcache_transport::tcp::{TcpListener, TcpOptions};
use fabcache_transport::tls::{TlsContext, TlsListener};
use fabcache_transport::udp::{Framing, UdpListener, UdpOptions};
use fabcache_transport::unix::UnixListener;
use fabcache_transport::{Kind, Listener, Peer};

use crate::addresses::{ListenAddress, Tls};
use crate::bounds::{FABRIC_GRACE, GRACEFUL_TIME_MAX};
use crate::commands::ITEM_CLASS;
use crate::connections::ConnectionInfo;
use crate::credentials::Credentials;
use crate::fabric::Fabric;
use crate::flash::FlashTier;
use crate::openshmem::{self, StartedJob};
use crate::settings::{AcceptMode, Engine, ListenerSettings, Settings};
use crate::shared::{Phase, ProcessRequest, Shared, TlsContexts};
use crate::shm::{SharedMemory, ShmSettings};
use crate::threads::Threads;
use crate::watch::{Watchers, encoded, topic};
use crate::worker::ListenerEntry;
use crate::worker::inbox::Inbox;
use crate::{certificates, process};

/// memcached's datagram header in front of each request and answer.
const UDP_FRAMING: Framing = Framing {
    open: |datagram| udp::parse(datagram).map(|frame| (frame.id, datagram.len() - frame.payload.len())),
    seal: |id, answer, send| {
        for (header, part) in udp::split(id, answer).into_iter().flatten() {
            send(&[&header, part].concat());
        }
    },
};

/// A running server. It runs until [`Server::stop`], or what [`Server::run_until_stopped`] waits for.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    threads: Threads,
    orders: Receiver<ProcessRequest>,
    order_sender: Sender<ProcessRequest>,
    local: Vec<Peer>,
    /// While memory is shared.
    life: Option<Liveness>,
    /// Held until the liveness word is released: only then may another server use these addresses.
    listeners: Arc<[ListenerEntry]>,
}

impl Server {
    /// Binds all listeners, makes the store, and starts the workers. `inherited` are listening sockets that a service
    /// manager opened; with any, no other is opened.
    ///
    /// # Errors
    /// Something is unavailable; the error says what, and what to do.
    pub fn start(settings: Settings, inherited: Vec<OwnedFd>) -> Result<Server> {
        Server::start_with_orders(settings, inherited, None, channel())
    }

    /// Starts a server that processes the orders of this channel, also those from before it is ready. `process` is this one's
    /// part of a job, if it is in one.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_with_orders(
        settings: Settings,
        inherited: Vec<OwnedFd>,
        process: Option<&dyn Process>,
        (order_sender, orders): (Sender<ProcessRequest>, Receiver<ProcessRequest>),
    ) -> Result<Server> {
        let job = job(&settings, process)?;
        let tls = tls_contexts(&settings)?;
        let mut listeners = listeners(&settings, inherited, tls.as_ref())?;
        if let Some(user) = &settings.user {
            process::privileges::become_user(user)?;
        }
        check_engine(settings.engine)?;
        let users = settings.auth_file.as_deref().map(Credentials::load).transpose()?;
        let sasl_file = settings.sasl_file.as_deref().filter(|_| settings.sasl);
        let sasl_users = sasl_file.map(Credentials::load).transpose()?;
        // In a job the other PEs open this process's files.
        if settings.shm.is_some() && settings.openshmem.is_none() {
            process::protection::forbid_access_by_own_user()?;
        }
        let mut flash = settings.flash.as_ref().map(FlashTier::open).transpose()?;
        let store = Arc::new(make_store(&settings, flash.as_ref(), job.as_ref())?);
        let unused = UnusedStore::new(&store, &settings);
        flash.as_mut().map_or(Ok(()), FlashTier::begin)?;
        if settings.lock_memory {
            lock_memory(&settings, &store)?;
        }
        if let Some(shm) = &settings.shm {
            share_region(&store, shm)?;
        }
        let clients = settings.connections_max as usize;
        let (fabric, ports) = Fabric::open(settings.fabric.as_ref(), &store, settings.threads, clients)?;
        let is_shared = settings.shm.is_some() || fabric.opened().is_some() || settings.openshmem.is_some();
        let life = is_shared.then(|| start_liveness(&store)).transpose()?;
        let watchers = Arc::new(Watchers::default());
        let openshmem = settings.openshmem.clone().zip(job);
        let in_job = |(openshmem, job)| openshmem::join(openshmem, job, &store).map(Arc::new);
        let pes = openshmem.map(in_job).transpose()?;
        listeners.extend(pes.iter().map(|pes| ListenerEntry {
            listener: Box::new(Arc::clone(&pes.listener)),
            protocol: None,
            auth: false,
            worker: None,
        }));
        let inboxes: std::io::Result<Box<[_]>> =
            (0..settings.threads).map(|_| Inbox::new().map(Arc::new)).collect();
        let local: Vec<Peer> = places(&listeners).map(|entry| entry.listener.local()).collect();
        let sender = order_sender.clone();
        let inboxes = inboxes.context("cannot make the workers' inboxes")?;
        let shared = Arc::new(Shared::new(
            settings, store, inboxes, watchers, users, sasl_users, tls, fabric, flash, pes, sender,
        ));
        shared.store.observe(Box::new(StoreObserver(Arc::downgrade(&shared))));
        write_port_file(&shared.settings, &listeners)?;
        register(&shared, &listeners);
        let listeners: Arc<[ListenerEntry]> = listeners.into();
        // Readers of a server that was just killed here may rely on its lease this long.
        std::thread::sleep(shared.settings.lease);
        unused.mark_used();
        let threads = Threads::default();
        let server = Server { shared, threads, orders, order_sender, local, life, listeners };
        server.start_threads(ports)
    }

    /// Starts the threads. Clients may be served before the last one starts, so an error stops the server cleanly.
    fn start_threads(mut self, ports: Vec<FabricEndpoint>) -> Result<Server> {
        let Err(error) = self.threads.start(&self.shared, &self.listeners, ports) else { return Ok(self) };
        self.give_up();
        Err(error)
    }

    /// Returns the listen addresses; ports are the actual ones.
    pub fn local(&self) -> &[Peer] {
        &self.local
    }

    /// Returns the listen addresses as text, with UDP named.
    pub fn places(&self) -> Vec<String> {
        let name = |entry: &ListenerEntry| match entry.listener.kind() {
            Kind::Udp => format!("{} (UDP)", entry.listener.local()),
            _ => entry.listener.local().to_string(),
        };
        places(&self.listeners).map(name).collect()
    }

    /// The state of its workers.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns the sender of signals and other external requests.
    pub fn order_sender(&self) -> Sender<ProcessRequest> {
        self.order_sender.clone()
    }

    /// Processes orders until a stop is complete.
    pub fn run_until_stopped(self, mut reloading: impl FnMut(bool), stopping: impl FnOnce()) -> Result<()> {
        while let Ok(order) = self.orders.recv() {
            match order {
                ProcessRequest::Reload => {
                    reloading(true);
                    match self.shared.reload() {
                        Ok(()) => tracing::info!("users and certificates were reloaded"),
                        Err(error) => tracing::error!("not all was read again: {error:#}"),
                    }
                    reloading(false);
                }
                ProcessRequest::Stop => break,
                ProcessRequest::StopGracefully => {
                    tracing::info!("accepting no more connections; waiting for clients to disconnect");
                    self.shared.enter(Phase::Leaving);
                    self.wait_for_clients();
                    break;
                }
            }
        }
        stopping();
        self.stop()
    }

    fn wait_for_clients(&self) {
        let until = Instant::now() + GRACEFUL_TIME_MAX;
        while self.shared.connections_now.load(std::sync::atomic::Ordering::Relaxed) > 0
            && Instant::now() < until
        {
            // An impatient operator may still say stop.
            if let Ok(ProcessRequest::Stop) = self.orders.recv_timeout(Duration::from_millis(50)) {
                return;
            }
        }
    }

    /// Stops because the start failed: the items are kept, and the reason of the failed start is what the caller reports.
    pub fn give_up(self) {
        if let Err(error) = self.stop() {
            tracing::warn!("{error:#}");
        }
    }

    /// Completes the requests in flight, and stops.
    ///
    /// # Errors
    /// A worker had failed.
    pub fn stop(self) -> Result<()> {
        if let Some(pes) = &self.shared.pes {
            // Before the links end: the others need not wait for answers.
            pes.enter(openshmem::JobPhase::Leaving);
        }
        self.shared.enter(Phase::Draining);
        let background = self.threads.join_workers();
        if let Some(pes) = &self.shared.pes {
            pes.enter(openshmem::JobPhase::Stopping);
            pes.wait_for_threads();
        }
        drop(self.life);
        self.shared.fabric.close();
        self.shared.housekeeping.stop();
        if let Some(flash) = &self.shared.flash {
            flash.writer_control.stop();
        }
        if !background.join() {
            bail!("a thread of the server had failed; see the log");
        }
        let kept = keep_items(&self.shared);
        drop(self.listeners);
        kept
    }
}

/// Reports evictions to watchers, untouched memory to the housekeeper, and writes to the flash tier's thread.
#[derive(Debug)]
struct StoreObserver(std::sync::Weak<Shared>);

impl StoreObserver {
    fn wake_flash_writer(&self) {
        if let Some(shared) = self.0.upgrade()
            && let Some(flash) = &shared.flash
        {
            flash.writer_control.notify();
        }
    }
}

impl Observer for StoreObserver {
    fn is_listening(&self) -> bool {
        self.0.upgrade().is_some_and(|shared| shared.watchers.wants(topic::EVICTIONS))
    }

    fn evicted(&self, key: &[u8], info: &ItemInfo) {
        let Some(shared) = self.0.upgrade() else { return };
        shared.notify_watchers(topic::EVICTIONS, || {
            format!("type=eviction {} size={}", item_fields(key, info), info.len)
        });
    }

    fn demoted(&self, key: &[u8], info: &ItemInfo) {
        let Some(shared) = self.0.upgrade() else { return };
        // Flash has no buckets: memcached's default one.
        shared.notify_watchers(topic::EVICTIONS, || {
            format!("type=extwrite {} bucket=0", item_fields(key, info))
        });
    }

    fn memory_is_untouched(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.housekeeping.touch_ahead();
        }
    }

    fn flash_has_writes(&self) {
        self.wake_flash_writer();
    }

    fn flash_lacks_room(&self) {
        self.wake_flash_writer();
    }

    fn flash_has_reads(&self) {
        if let Some(shared) = self.0.upgrade()
            && let Some(flash) = &shared.flash
        {
            flash.maintenance_control.notify();
        }
    }
}

/// Returns the fields that watchers see of each item that leaves memory.
fn item_fields(key: &[u8], info: &ItemInfo) -> String {
    let fetch = if info.fetched { "yes" } else { "no" };
    let ttl = info.ttl.map_or(-1, i64::from);
    format!("key={} fetch={fetch} ttl={ttl} la={} clsid={ITEM_CLASS}", encoded(key), info.idle)
}

/// Agrees with the other PEs, in a job.
fn job(settings: &Settings, process: Option<&dyn Process>) -> Result<Option<StartedJob>> {
    match (&settings.openshmem, process) {
        (None, _) => Ok(None),
        (Some(openshmem), Some(process)) => StartedJob::agree(process, settings, openshmem).map(Some),
        (Some(_), None) => {
            bail!("--fabric openshmem needs a process that a launcher started as part of a job")
        }
    }
}

fn make_store(settings: &Settings, flash: Option<&FlashTier>, job: Option<&StartedJob>) -> Result<Store> {
    let store = Store::open(StoreOptions {
        given: job.map(StartedJob::region).transpose()?,
        memory_bytes: settings.memory_bytes,
        memory_bytes_max: settings.memory_bytes_max,
        backing: settings.backing.clone(),
        evict: settings.evict,
        eviction: settings.eviction,
        cas: settings.cas,
        // One for each worker and one for the housekeeper.
        threads: settings.threads + 1,
        // The one that finishes a restart, and the two of the flash tier.
        background_threads: 3,
        flash: settings.flash.as_ref().zip(flash).map(|(settings, flash)| flash.options(settings)),
        grace: if settings.has_remote_readers() { FABRIC_GRACE } else { Duration::ZERO },
        lease: if settings.has_remote_readers() { settings.lease } else { Duration::ZERO },
        ..StoreOptions::default()
    })?;
    if let Some(file) = &settings.backing.file {
        log_opening(file, &store);
        crate::flash::log_opening(&store, flash);
    }
    if !settings.lock_memory && settings.backing.huge_pages && settings.backing.file.is_none() {
        tracing::info!("memory is in huge pages, touched on demand and never swapped");
    }
    Ok(store)
}

/// Locks the memory (`-k`).
fn lock_memory(settings: &Settings, store: &Store) -> Result<()> {
    // Touching the pages of a region that was taken over would delay the first answer: `populating.rs` does it.
    let is_takeover = store.opening().0.is_takeover();
    let locking = if is_takeover { Locking::OnTouch } else { Locking::Now };
    store
        .lock_memory(locking)
        .context("cannot lock the memory (-k); raise the memlock limit or leave it out")?;
    if is_takeover {
        tracing::info!("memory is locked as it is touched, which goes on in the background");
    } else {
        log_locked(settings.memory_bytes_max);
    }
    Ok(())
}

/// A store that no thread uses yet, and its memory file. Dropped by a start that fails, it keeps its items: the takeover
/// used up what the last server had saved.
struct UnusedStore(Option<(Arc<Store>, PathBuf)>);

impl UnusedStore {
    fn new(store: &Arc<Store>, settings: &Settings) -> UnusedStore {
        UnusedStore(settings.backing.file.clone().map(|file| (Arc::clone(store), file)))
    }

    fn mark_used(mut self) {
        self.0 = None;
    }
}

impl Drop for UnusedStore {
    fn drop(&mut self) {
        if let Some((store, file)) = self.0.take()
            && let Err(error) = keep(&store, &file)
        {
            tracing::warn!("{error:#}");
        }
    }
}

/// Logs that so many bytes of memory are locked.
pub(crate) fn log_locked(bytes: u64) {
    tracing::info!("all {bytes} bytes of memory are touched and locked");
}

/// Logs how the memory file was opened.
fn log_opening(file: &Path, store: &Store) {
    let (file, (opening, took)) = (file.display(), store.opening());
    match opening {
        Opening::New => tracing::info!("the memory file {file} is new"),
        Opening::Kept { items, clock_went_back } => {
            tracing::info!("took over the memory file {file} with {items} items in {took:?}");
            if clock_went_back {
                tracing::warn!(
                    "the system's clock is earlier than when the last server stopped: items live longer by that time"
                );
            }
        }
        Opening::Recovered { why } => {
            let line =
                format!("took over the memory file {file} in {took:?} and recovers its items, because {why}");
            match why {
                Unclean::NotStopped => tracing::info!("{line}"),
                Unclean::State(_) => tracing::warn!("{line}"),
            }
        }
        Opening::Discarded(reason) => {
            tracing::warn!("discarded the contents of the memory file {file}: {reason}");
        }
    }
}

/// Saves what the next server needs to take the memory file over.
fn keep_items(shared: &Shared) -> Result<()> {
    let Some(file) = &shared.settings.backing.file else { return Ok(()) };
    let began = Instant::now();
    let items = keep(&shared.store, file)?;
    tracing::info!("kept {items} items in the memory file {} in {:?}", file.display(), began.elapsed());
    Ok(())
}

/// Saves the store, whose region is in this file. Returns the number of items.
fn keep(store: &Store, file: &Path) -> Result<u64> {
    let kept = store.keep().map_err(|error| {
        let consequence = not_kept(&error, file);
        anyhow::Error::new(error).context(consequence)
    });
    Ok(kept?.unwrap_or(0))
}

/// Returns what failed, and what becomes of the items.
fn not_kept(error: &KeepError, file: &Path) -> String {
    let file = file.display();
    match error {
        KeepError::Replaced => format!("the items of the memory file {file} are lost"),
        KeepError::StillInUse(_) | KeepError::Meta(_) | KeepError::Sync(_) => {
            format!("cannot save the state of the memory file {file}; the next server recovers its items")
        }
    }
}

/// Protects the region against the clients that it is shared with.
fn share_region(store: &Store, shm: &ShmSettings) -> Result<()> {
    let sharing =
        store.share_region().context("cannot open the memory so that clients can only read it (--shm)")?;
    // In a job clients may get channels alone.
    let Some(sharing) = sharing else { return Ok(()) };
    ensure!(
        (sharing == Sharing::Sealed) == (shm.memory == SharedMemory::Sealed),
        "the memory is shared in another way than --shm admits clients for"
    );
    shm.log_protection();
    Ok(())
}

/// Takes the liveness word, which shows readers of the memory that its server is alive.
fn start_liveness(store: &Arc<Store>) -> Result<Liveness> {
    Liveness::keep(store).context(
        "cannot give a sign of life that the system takes away when this process ends (--shm, --fabric); it takes robust \
         futexes",
    )
}

fn tls_contexts(settings: &Settings) -> Result<Option<TlsContexts>> {
    let Some(tls) = &settings.tls else { return Ok(None) };
    let usual = Arc::new(TlsContext::new(certificates::load(tls, false)?));
    let has_mutual = settings.listeners.iter().any(|listener| listener.tls == Tls::Mutual);
    let mutual =
        if has_mutual { Some(Arc::new(TlsContext::new(certificates::load(tls, true)?))) } else { None };
    Ok(Some(TlsContexts { settings: tls.clone(), usual, mutual, read_at: Instant::now().into() }))
}

/// Opens the listeners of the settings, or adopts inherited sockets.
fn listeners(
    settings: &Settings,
    inherited: Vec<OwnedFd>,
    tls: Option<&TlsContexts>,
) -> Result<Vec<ListenerEntry>> {
    let mut entries = Vec::new();
    if !inherited.is_empty() {
        let Some(like) = settings.listeners.first() else {
            bail!(
                "sockets of the service manager take their options from the first listener; leave out -p 0"
            );
        };
        for fd in inherited {
            entries.push(entry(adopt(fd)?, like, tls, None));
        }
        return Ok(entries);
    }
    for wanted in &settings.listeners {
        let local = settings.accept == AcceptMode::Local && !matches!(wanted.place, ListenAddress::Unix(_));
        let workers: Vec<_> = if local { (0..settings.threads).map(Some).collect() } else { vec![None] };
        let mut place = wanted.place.clone();
        for worker in workers {
            match open(settings, &place, wanted, worker) {
                Ok(listener) => {
                    // All workers listen on the same free port.
                    if let ListenAddress::Tcp(address) | ListenAddress::Udp(address) = &mut place
                        && let Peer::Socket(real) = listener.local()
                    {
                        address.set_port(real.port());
                    }
                    entries.push(entry(listener, wanted, tls, worker));
                }
                Err(error) if wanted.implied && is_family_missing(&error) => {
                    tracing::debug!("not listening at {place:?}: {error}");
                }
                Err(error) => return Err(cannot_listen(&place, error)),
            }
        }
    }
    if entries.is_empty() && !settings.listeners.is_empty() {
        bail!("none of the addresses to listen on is one of this host's");
    }
    Ok(entries)
}

fn open(
    settings: &Settings,
    place: &ListenAddress,
    wanted: &ListenerSettings,
    worker: Option<usize>,
) -> std::io::Result<Box<dyn Listener>> {
    let cpu = worker.and_then(|worker| settings.worker_cpu(worker));
    let options = TcpOptions { backlog: settings.backlog, share_address: worker.is_some(), cpu };
    Ok(match place {
        ListenAddress::Tcp(address) => Box::new(TcpListener::bind(*address, &options)?),
        ListenAddress::Udp(address) => {
            let options = UdpOptions { share_address: worker.is_some(), cpu };
            Box::new(UdpListener::bind(*address, UDP_FRAMING, &options)?)
        }
        ListenAddress::Unix(path) => Box::new(UnixListener::bind(path, wanted.mask, settings.backlog)?),
    })
}

fn entry(
    listener: Box<dyn Listener>,
    wanted: &ListenerSettings,
    tls: Option<&TlsContexts>,
    worker: Option<usize>,
) -> ListenerEntry {
    let context = match (wanted.tls, tls) {
        (Tls::On, Some(tls)) => Some(&tls.usual),
        (Tls::Mutual, Some(tls)) => tls.mutual.as_ref(),
        _ => None,
    };
    let listener: Box<dyn Listener> = match context {
        Some(context) => Box::new(TlsListener::new(listener, Arc::clone(context))),
        None => listener,
    };
    ListenerEntry { listener, protocol: wanted.protocol, auth: wanted.auth, worker }
}

/// Adopts a socket, by trying the possible kinds.
fn adopt(fd: OwnedFd) -> Result<Box<dyn Listener>> {
    let again = || fd.try_clone().context("cannot take over an inherited socket");
    if let Ok(listener) = UnixListener::adopt(again()?) {
        return Ok(Box::new(listener));
    }
    if let Ok(listener) = UdpListener::adopt(again()?, UDP_FRAMING) {
        return Ok(Box::new(listener));
    }
    let listener = TcpListener::adopt(fd).context("an inherited descriptor is no listening socket")?;
    Ok(Box::new(listener))
}

fn is_family_missing(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{AddrNotAvailable, Unsupported};
    // EAFNOSUPPORT has no `ErrorKind`.
    matches!(error.kind(), AddrNotAvailable | Unsupported) || error.raw_os_error() == Some(97)
}

fn cannot_listen(place: &ListenAddress, error: std::io::Error) -> anyhow::Error {
    let name = match place {
        ListenAddress::Tcp(address) => format!("TCP {address}"),
        ListenAddress::Udp(address) => format!("UDP {address}"),
        ListenAddress::Unix(path) => format!("the Unix socket {}", path.display()),
    };
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            anyhow::anyhow!(
                "cannot listen on {name}: another server listens there already; stop it or choose another (-p, -l, -s)"
            )
        }
        std::io::ErrorKind::PermissionDenied => {
            anyhow::anyhow!(
                "cannot listen on {name}: not permitted; ports below 1024 and foreign directories need more rights"
            )
        }
        _ => anyhow::anyhow!("cannot listen on {name}: {error}"),
    }
}

/// Returns one listener for each address of clients.
fn places(listeners: &[ListenerEntry]) -> impl Iterator<Item = &ListenerEntry> {
    let is_of_clients = |entry: &&ListenerEntry| entry.listener.kind() != Kind::OpenShmem;
    listeners.iter().filter(|entry| entry.worker.is_none_or(|worker| worker == 0)).filter(is_of_clients)
}

/// Writes the ports to the file of `MEMCACHED_PORT_FILENAME`, whole or not at all.
fn write_port_file(settings: &Settings, listeners: &[ListenerEntry]) -> Result<()> {
    let Some(path) = &settings.port_file else { return Ok(()) };
    let mut lines = String::new();
    for entry in places(listeners) {
        if let Peer::Socket(address) = entry.listener.local() {
            let transport = if entry.listener.kind() == Kind::Udp { "UDP" } else { "TCP" };
            let family = if address.is_ipv6() { "INET6" } else { "INET" };
            lines.push_str(&format!("{transport} {family}: {}\n", address.port()));
        }
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".lck");
    let write = || -> std::io::Result<()> {
        std::fs::File::create(&beside)?.write_all(lines.as_bytes())?;
        std::fs::rename(&beside, path)
    };
    write().with_context(|| format!("cannot write the ports to {} (MEMCACHED_PORT_FILENAME)", path.display()))
}

/// Puts the listeners among the connections of `stats conns`.
fn register(shared: &Shared, listeners: &[ListenerEntry]) {
    use std::os::fd::AsRawFd as _;
    for entry in listeners {
        let fd = entry.listener.descriptor().as_raw_fd();
        let address = entry.listener.local().to_string();
        let info = ConnectionInfo::new(fd, entry.listener.kind(), address, None, shared.store.now());
        shared.connections.add(&Arc::new(info));
    }
}

/// Checks that this process may use the engine.
fn check_engine(engine: Engine) -> Result<()> {
    if engine == Engine::Epoll {
        return Ok(());
    }
    fabcache_uring::probe().context(
        "cannot use io_uring (--engine io_uring): it needs Linux 6.1, and the seccomp profiles of containers and \
         kernel.io_uring_disabled often forbid it; allow the calls io_uring_setup, io_uring_enter and io_uring_register, \
         or use --engine epoll",
    )
}
