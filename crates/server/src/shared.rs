//! What all workers share.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crossbeam_utils::CachePadded;
use fabcache_store::{FlashSums, Store, StoreSums};
use fabcache_transport::tls::TlsContext;

use crate::bounds::PINS_WANTED_EVERY;
use crate::connections::Connections;
use crate::counters::{ServerCounters, ServerSums};
use crate::credentials::Credentials;
use crate::fabric::Fabric;
use crate::flash::FlashTier;
use crate::housekeeping::Housekeeping;
use crate::openshmem::Pes;
use crate::output::UnsentBytes;
use crate::prefixes::Prefixes;
use crate::settings::{Settings, TlsSettings};
use crate::shm::LoggedRefusals;
use crate::watch::Watchers;
use crate::worker::inbox::Inbox;

/// memcached's default of `ext_item_size`, which it shows also without a flash tier.
const MEMCACHED_EXT_ITEM_SIZE: u32 = 512;

/// Requests to the process from signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessRequest {
    /// Complete requests in flight, and stop.
    Stop,
    /// Let clients leave, then stop.
    StopGracefully,
    /// Read users and certificates again.
    Reload,
}

/// The server's run state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Running.
    Running = 0,
    /// Accepts no more connections, and serves the existing ones.
    Leaving = 1,
    /// Completes requests in flight.
    Draining = 2,
    /// Stops now.
    Stopped = 3,
}

/// Certificates of the TLS listeners.
#[derive(Debug)]
pub struct TlsContexts {
    /// Their files.
    pub settings: TlsSettings,
    /// For listeners that do as `ssl_verify_mode` says.
    pub usual: Arc<TlsContext>,
    /// For listeners that require client certificates.
    pub mutual: Option<Arc<TlsContext>>,
    /// When they were last loaded.
    pub read_at: Mutex<Instant>,
}

/// Switches that clients change, shown in `stats settings`.
#[derive(Debug)]
pub struct Switches {
    /// `verbosity`.
    pub verbosity: AtomicU32,
    /// `lru_crawler enable|disable`.
    pub crawler: AtomicBool,
    /// `lru_crawler sleep`.
    pub crawler_sleep: AtomicU32,
    /// `lru_crawler tocrawl`.
    pub crawler_tocrawl: AtomicU32,
    /// `slabs automove`.
    pub automove: AtomicU32,
}

/// The state of all workers together.
#[derive(Debug)]
pub struct Shared {
    /// The server's settings.
    pub settings: Settings,
    /// The items.
    pub store: Arc<Store>,
    /// Its start time.
    pub started: Instant,
    /// What each worker counts.
    pub counters: Box<[CachePadded<ServerCounters>]>,
    /// Inboxes of the workers, for new links.
    pub inboxes: Box<[Arc<Inbox>]>,
    /// All connections.
    pub connections: Connections,
    /// Their number, not counting listeners.
    pub connections_now: AtomicU32,
    /// The clients that watch.
    pub watchers: Arc<Watchers>,
    /// Unsent answers of all connections.
    pub unsent: Arc<UnsentBytes>,
    /// Counts by prefix.
    pub prefixes: Prefixes,
    /// Users of text clients.
    pub users: Option<Credentials>,
    /// Users of binary clients.
    pub sasl_users: Option<Credentials>,
    /// Certificates.
    pub tls: Option<TlsContexts>,
    /// The fabric, if there is one.
    pub fabric: Fabric,
    /// The flash tier, if there is one.
    pub flash: Option<FlashTier>,
    /// The other PEs, in an OpenSHMEM job.
    pub pes: Option<Arc<Pes>>,
    /// Refusals of shared memory that the log has.
    pub shm_refusals: LoggedRefusals,
    /// Switches.
    pub switches: Switches,
    /// The state of the housekeeping thread.
    pub housekeeping: Housekeeping,
    /// Pauses of accepting at the connection limit, and their total in microseconds.
    pub listen_disabled: AtomicU64,
    /// Microseconds of that.
    pub listen_disabled_us: AtomicU64,
    /// Accepting rests now.
    pub listen_disabled_now: AtomicBool,
    /// When workers were last asked to give up pins, in milliseconds of the store's clock.
    pub pins_wanted_ms: AtomicU64,
    /// The values at the last `stats reset`; subtracted from those shown.
    pub baseline: Mutex<(ServerSums, StoreSums, FlashSums)>,
    /// Requests to the code that runs the process.
    pub orders: Mutex<Sender<ProcessRequest>>,
    phase: AtomicU8,
}

impl Shared {
    /// A server's state; the phase is running.
    #[expect(clippy::too_many_arguments, reason = "the parts that start-up makes, in its order")]
    pub fn new(
        settings: Settings,
        store: Arc<Store>,
        inboxes: Box<[Arc<Inbox>]>,
        watchers: Arc<Watchers>,
        users: Option<Credentials>,
        sasl_users: Option<Credentials>,
        tls: Option<TlsContexts>,
        fabric: Fabric,
        flash: Option<FlashTier>,
        pes: Option<Arc<Pes>>,
        orders: Sender<ProcessRequest>,
    ) -> Shared {
        let given = |name: &str, default: u32| {
            settings.extended.given.get(name).and_then(|value| value.parse().ok()).unwrap_or(default)
        };
        let switches = Switches {
            verbosity: AtomicU32::new(u32::from(settings.verbosity)),
            crawler: AtomicBool::new(settings.extended.lru_crawler.unwrap_or(true)),
            crawler_sleep: AtomicU32::new(given("lru_crawler_sleep", 100)),
            crawler_tocrawl: AtomicU32::new(given("lru_crawler_tocrawl", 0)),
            automove: AtomicU32::new(settings.extended.slab_automove.unwrap_or(1)),
        };
        if settings.flash.is_none() {
            store.set_flash_item_bytes_min(
                settings.extended.ext_item_bytes.unwrap_or(MEMCACHED_EXT_ITEM_SIZE),
            );
        }
        Shared {
            started: Instant::now(),
            counters: inboxes.iter().map(|_| CachePadded::default()).collect(),
            inboxes,
            connections: Connections::default(),
            connections_now: AtomicU32::new(0),
            watchers,
            prefixes: Prefixes::new(settings.prefix_delimiter, settings.detail),
            unsent: Arc::default(),
            users,
            sasl_users,
            tls,
            fabric,
            flash,
            pes,
            shm_refusals: LoggedRefusals::default(),
            switches,
            housekeeping: Housekeeping::default(),
            listen_disabled: AtomicU64::new(0),
            listen_disabled_us: AtomicU64::new(0),
            listen_disabled_now: AtomicBool::new(false),
            pins_wanted_ms: AtomicU64::new(0),
            baseline: Mutex::default(),
            orders: Mutex::new(orders),
            phase: AtomicU8::new(Phase::Running as u8),
            settings,
            store,
        }
    }

    /// Returns the run state.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Running,
            1 => Phase::Leaving,
            2 => Phase::Draining,
            _ => Phase::Stopped,
        }
    }

    /// Goes on to a later phase, and wakes all workers.
    pub fn enter(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
        for inbox in &self.inboxes {
            inbox.wake();
        }
    }

    /// Asks all workers to give up what slow clients pin, at most once in [`PINS_WANTED_EVERY`].
    pub fn want_pins(&self) {
        let now_ms = self.store.clock_ns() / 1_000_000;
        let last_ms = self.pins_wanted_ms.load(Ordering::Relaxed);
        let is_due = now_ms >= last_ms + PINS_WANTED_EVERY.as_millis() as u64;
        let swap =
            || self.pins_wanted_ms.compare_exchange(last_ms, now_ms, Ordering::Relaxed, Ordering::Relaxed);
        if is_due && swap().is_ok() {
            self.inboxes.iter().for_each(|inbox| inbox.wake());
        }
    }

    /// Sends an order to the code that runs the process.
    pub fn order(&self, order: ProcessRequest) {
        // Without a receiver the process is stopping already.
        let _ = self.orders.lock().expect("no thread panics while it sends an order").send(order);
    }

    /// What all workers counted, ever.
    pub fn sums(&self) -> ServerSums {
        let mut sums = ServerSums::default();
        for counters in &self.counters {
            sums.add(counters);
        }
        sums
    }

    /// What all workers and the store counted since the last `stats reset`.
    pub fn sums_since_reset(&self) -> (ServerSums, StoreSums) {
        let (server, store) = {
            let baseline = self.baseline.lock().expect("no thread panics while it holds the baseline");
            (baseline.0, baseline.1)
        };
        (self.sums().since(&server), self.store.sums().since(&store))
    }

    /// What the flash tier counted ever, and since the last `stats reset`; none without one.
    pub fn flash_sums(&self) -> Option<(FlashSums, FlashSums)> {
        let sums = self.store.flash_sums()?;
        let baseline = self.baseline.lock().expect("no thread panics while it holds the baseline");
        let since = sums.since(&baseline.2);
        Some((sums, since))
    }

    /// Counts from zero again.
    pub fn reset_sums(&self) {
        let now = (self.sums(), self.store.sums(), self.store.flash_sums().unwrap_or_default());
        *self.baseline.lock().expect("no thread panics while it holds the baseline") = now;
        self.store.reset_simulation_counts();
        self.prefixes.clear();
    }

    /// Sends a line to the watchers of a topic; the line is formatted only if there are any.
    #[inline]
    pub fn notify_watchers(&self, topic: u32, line: impl FnOnce() -> String) {
        if self.watchers.wants(topic) {
            self.notify_watchers_now(topic, &line());
        }
    }

    #[cold]
    fn notify_watchers_now(&self, topic: u32, line: &str) {
        for worker in self.watchers.publish(topic, line) {
            self.inboxes[worker].wake();
        }
    }

    /// Reloads users and certificates, independently of each other.
    ///
    /// # Errors
    /// A file cannot be read; its previous version stays in use.
    pub fn reload(&self) -> anyhow::Result<()> {
        let users = [&self.users, &self.sasl_users].into_iter().flatten().map(Credentials::reload);
        users.fold(Ok(()), Result::and).and(self.reload_certificates())
    }

    /// Reads certificates again.
    ///
    /// # Errors
    /// As for [`Shared::reload`].
    pub fn reload_certificates(&self) -> anyhow::Result<()> {
        if let Some(tls) = &self.tls {
            let usual = crate::certificates::load(&tls.settings, false)?;
            if let Some(mutual) = &tls.mutual {
                mutual.replace(crate::certificates::load(&tls.settings, true)?);
            }
            tls.usual.replace(usual);
            *tls.read_at.lock().expect("no thread panics while it holds a time") = Instant::now();
        }
        Ok(())
    }
}
