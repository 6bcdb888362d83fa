//! The progress threads: only they call OpenSHMEM, as an access by it may block for as long as a PE sleeps.
//!
//! Workers drive the links to PEs of this host while one is awake (`source.rs`); these threads drive all others, and access
//! the memory of PEs on other hosts. Each PE is assigned to one thread. A thread that an access blocks keeps that PE, and the others take over the rest of its
//! PEs. There are a few more threads than the option says, for this case.
//!
//! ```text
//!   progress of each PE ── something? ── yes: again
//!                             └ no: spin (SpinPolicy), then sleep; an operation wakes it, and so does a PE that has its heap
//!                               mapped. If another one does not, the sleep is the longer the pause
//! ```
//! Each PE writes a *heartbeat* into all heaps, where it is read locally: reading a stopped PE's memory would block.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fabcache_layout::channel::SpinPolicy;
use fabcache_shmem::{MappedHeaps, RemoteHeaps, sleep};
use fabcache_transport::openshmem::SLEEPERS_MAX;

use super::pes::{JobPhase, Pes, ThreadState};

/// Threads beyond those of the option, which take over the PEs of threads that an access blocks.
pub const SPARE_THREADS: usize = 2;

/// Heartbeats in the time after which a PE without one is taken to be stopped. An idle thread that all other PEs wake does
/// nothing else.
const BEATS_PER_TIMEOUT: u32 = 4;
/// The shortest sleep.
const SLEEP_MIN: Duration = Duration::from_micros(50);
/// A sleep takes this part of the time since there was last something to do: a message waits for little longer than the pause
/// before it took.
const SLEEP_PART: u32 = 8;
/// How long a stop waits for the other PEs to stop as well …
pub const LEAVE_TIME_MAX: Duration = Duration::from_secs(10);
/// … and the longest sleep meanwhile.
const LEAVE_PAUSE: Duration = Duration::from_millis(20);

/// A heartbeat is a word: the count, from this bit on, two flags, and the number of the thread that wrote it, so that it changes
/// whichever thread writes it.
const BEAT_SHIFT: u32 = 8;
/// The PE leaves the job.
const LEAVING: u64 = 1 << 7;
/// The PE has the reader's heap mapped, and wakes its threads when it writes there.
const WAKES: u64 = 1 << 6;
const _: () = assert!(SLEEPERS_MAX as u64 <= WAKES);

/// Starts the threads, and waits until each has its access to the other PEs.
///
/// # Errors
/// A thread cannot be started, or has no access.
pub fn start(pes: &Arc<Pes>) -> Result<()> {
    let (sender, ready) = channel();
    let beats = Arc::new(Mutex::new(Beats::new(pes)));
    for number in 0..pes.assignment.threads.len() {
        let (pes, beats, sender) = (Arc::clone(pes), Arc::clone(&beats), sender.clone());
        let run = move || {
            let _ended = EndedThread(&pes.assignment.threads[number]);
            run(&pes, &beats, number, &sender);
        };
        let thread = Builder::new().name(format!("openshmem-{number}")).spawn(run);
        thread.context("cannot start a thread for OpenSHMEM")?;
    }
    // A thread that fails before it is ready closes the channel.
    drop(sender);
    for _ in &pes.assignment.threads {
        ready.recv().context("a thread for OpenSHMEM has failed")??;
    }
    Ok(())
}

/// Notes the end of a thread.
struct EndedThread<'p>(&'p ThreadState);

impl Drop for EndedThread<'_> {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Release);
    }
}

fn run(pes: &Pes, beats: &Mutex<Beats>, number: usize, ready: &Sender<Result<()>>) {
    let opened = pes.heap.open().context("a thread has no access to other PEs' memory");
    let mut heaps = match opened {
        Ok(heaps) => heaps,
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let _ = ready.send(Ok(()));
    let now = Instant::now();
    let thread = ProgressThread {
        pes,
        number,
        mapped: MappedHeaps::new(&*pes.heap),
        spin: SpinPolicy::default(),
        active_at: now,
        has_spun: false,
        beat_at: now,
        beats: 0,
        phase: JobPhase::Running,
        leaves_until: None,
    };
    thread.run(&mut *heaps, beats);
}

struct ProgressThread<'p> {
    pes: &'p Pes,
    number: usize,
    /// Access to near PEs.
    mapped: MappedHeaps,
    spin: SpinPolicy,
    /// When there was last something to do.
    active_at: Instant,
    /// It has spun since.
    has_spun: bool,
    /// The next heartbeat.
    beat_at: Instant,
    /// Heartbeats so far.
    beats: u64,
    /// The phase of the server that this thread has noticed.
    phase: JobPhase,
    /// It has told the others that this PE leaves, and waits until then for them to leave as well.
    leaves_until: Option<Instant>,
}

impl ProgressThread<'_> {
    fn run(mut self, heaps: &mut dyn RemoteHeaps, beats: &Mutex<Beats>) {
        let pes = self.pes;
        loop {
            self.phase = pes.phase();
            let mut any = self.progress(heaps);
            let now = Instant::now();
            let is_due = now >= self.beat_at;
            let must_announce = self.phase != JobPhase::Running && self.leaves_until.is_none();
            if is_due || must_announce {
                self.beat(heaps);
                self.beat_at = now + pes.settings.timeout / BEATS_PER_TIMEOUT;
            }
            if must_announce {
                self.leaves_until = Some(now + LEAVE_TIME_MAX);
            }
            if (is_due || self.leaves_until.is_some())
                && let Ok(mut beats) = beats.try_lock()
            {
                let seen = beats.check(pes, self.number, now);
                any |= seen.has_news;
                if seen.has_taken_over {
                    // The other thread may not have shown for a while that this PE lives.
                    self.beat_at = now;
                }
            }
            let is_over = self.leaves_until.is_some_and(|until| pes.are_all_gone() || now >= until);
            if is_over && self.phase == JobPhase::Stopping {
                return;
            }
            if any {
                (self.active_at, self.has_spun) = (now, false);
            } else {
                self.rest(heaps);
            }
        }
    }

    /// Returns whether a PE is this thread's.
    fn has(&self, pe: usize) -> bool {
        self.pes.assignment.of[pe].load(Ordering::Relaxed) == self.number
    }

    fn own(&self) -> impl Iterator<Item = usize> {
        self.pes.others().filter(|pe| self.has(*pe))
    }

    /// Accesses a PE's memory; `heaps` is for PEs elsewhere, which may block.
    fn access<R>(
        &mut self,
        pe: usize,
        heaps: &mut dyn RemoteHeaps,
        access: impl FnOnce(&mut dyn RemoteHeaps) -> R,
    ) -> R {
        if self.pes.is_near(pe) {
            return access(&mut self.mapped);
        }
        let state = &self.pes.assignment.threads[self.number];
        state.busy_since_ms.store(self.pes.now_ms(), Ordering::Relaxed);
        state.busy_with.store(pe + 1, Ordering::Relaxed);
        let result = access(heaps);
        state.busy_with.store(0, Ordering::Relaxed);
        result
    }

    /// Makes progress with all PEs of this thread. Returns whether there was anything to do.
    fn progress(&mut self, heaps: &mut dyn RemoteHeaps) -> bool {
        let (pes, mut any, mut has_far) = (self.pes, false, false);
        for pe in pes.others() {
            if !self.has(pe) {
                continue;
            }
            has_far |= !pes.is_near(pe);
            // Another thread may still be blocked with it.
            let Some(mut pe_state) = self.pes.links_to(pe) else { continue };
            if self.pes.is_silent(pe) {
                any |= pe_state.give_up(self.pes);
                continue;
            }
            any |= self.access(pe, heaps, |heaps| pe_state.progress(self.pes, heaps));
        }
        if has_far {
            heaps.progress();
        }
        any
    }

    /// Returns whether there is something to do for this thread, without access to other PEs' memory.
    fn has_work(&self) -> bool {
        let pes = self.pes;
        if pes.phase() != self.phase {
            return true;
        }
        let is_polled = sleep::is_polled(pes.polling());
        self.own().any(|pe| match pes.is_silent(pe) {
            // Requests for it fail.
            true => pes.queues[pe].has_any(),
            // A worker does it.
            false if is_polled && pes.is_near(pe) => false,
            false if pes.is_near(pe) => pes.has_near_work(&[pe]),
            false => pes.links_to(pe).is_some_and(|links| links.has_work(pes)),
        })
    }

    /// Spins, and then sleeps.
    fn rest(&mut self, heaps: &mut dyn RemoteHeaps) {
        if self.own().next().is_none() {
            // Not on a word: other PEs would wake it with each message.
            let pause = self.pes.settings.timeout / BEATS_PER_TIMEOUT;
            let time = self.leaves_until.map_or(pause, |_| LEAVE_PAUSE);
            return self.pes.wait_for_phase_after(self.phase, time);
        }
        // What near PEs write goes to a worker, which spins, or must be woken in any case.
        if !std::mem::replace(&mut self.has_spun, true)
            && self.own().any(|pe| !self.pes.is_near(pe))
            && let Some(time) = self.spin.spin_time()
        {
            let end = Instant::now() + time;
            while Instant::now() < end {
                heaps.progress();
                if self.has_work() {
                    self.spin = self.spin.after_success();
                    return;
                }
                std::hint::spin_loop();
            }
        }
        let began = Instant::now();
        let mut time = self.beat_at.saturating_duration_since(began);
        if !self.own().all(|pe| self.pes.heartbeat(pe) & WAKES != 0) {
            let since_work = began - self.active_at;
            time = time.min((since_work / SLEEP_PART).max(SLEEP_MIN)).min(self.pes.settings.sleep_max);
        }
        if self.leaves_until.is_some() {
            time = time.min(LEAVE_PAUSE);
        }
        let word = self.pes.assignment.sleep_word(self.number);
        sleep::sleep(word, time, &mut || self.has_work());
        self.spin = self.spin.after_sleep(began.elapsed());
    }

    /// Shows the PEs of this thread that this one lives.
    fn beat(&mut self, heaps: &mut dyn RemoteHeaps) {
        self.beats += 1;
        let word = self.pes.plan.heartbeat(self.pes.own()).start;
        let leaving = if self.phase == JobPhase::Running { 0 } else { LEAVING };
        let (pes, beat) = (self.pes, self.beats << BEAT_SHIFT | leaving | self.number as u64);
        for pe in pes.others() {
            if self.has(pe) {
                let wakes = if pes.heap.is_mapped(pe) { WAKES } else { 0 };
                // Another thread may have counted before: only a change is looked at.
                self.access(pe, heaps, |heaps| heaps.put_word(pe, word, beat | wakes));
            }
        }
        // Also for PEs that are near for this one, but not the reverse.
        heaps.progress();
    }
}

/// The changes that a check of the heartbeats has found.
#[derive(Clone, Copy, Debug)]
struct Changes {
    /// A PE has become silent, or responds again.
    has_news: bool,
    /// The thread has taken over PEs of others.
    has_taken_over: bool,
}

/// What was seen of the other PEs' heartbeats.
#[derive(Debug)]
struct Beats {
    /// The last one of each PE, and when it changed.
    last: Vec<(u64, Instant)>,
    has_reported_blocked: bool,
    checked_at: Instant,
}

impl Beats {
    fn new(pes: &Pes) -> Beats {
        let now = Instant::now();
        Beats { last: vec![(0, now); pes.names().len()], has_reported_blocked: false, checked_at: now }
    }

    /// Looks for PEs that show no sign of life, and for threads that an access blocks.
    fn check(&mut self, pes: &Pes, thread: usize, now: Instant) -> Changes {
        let gap = now.saturating_duration_since(std::mem::replace(&mut self.checked_at, now));
        if gap > pes.settings.timeout / 2 {
            // This PE was stopped itself: what the others have written meanwhile may not have come yet.
            self.last.iter_mut().for_each(|(_, since)| *since = now);
        }
        let mut has_news = false;
        for pe in pes.others() {
            let beat = pes.heartbeat(pe);
            if beat & LEAVING != 0 {
                pes.left[pe].store(true, Ordering::Relaxed);
            }
            let (last, since) = &mut self.last[pe];
            if beat != *last {
                (*last, *since) = (beat, now);
            }
            let has_left = pes.left[pe].load(Ordering::Relaxed);
            let is_silent = has_left || now.saturating_duration_since(*since) > pes.settings.timeout;
            if pes.silent[pe].swap(is_silent, Ordering::Relaxed) != is_silent {
                let name = &pes.names()[pe];
                if has_left {
                    tracing::info!(pe, name, "a PE has left the job");
                } else if is_silent {
                    tracing::warn!(
                        pe,
                        name,
                        "a PE does not respond: its keys are misses, and changes of them fail"
                    );
                } else {
                    tracing::info!(pe, name, "a PE responds again");
                }
                has_news = true;
                // Its thread gives up what waits for it; workers do not.
                pes.assignment.wake_thread_of(pe);
            }
        }
        Changes { has_news, has_taken_over: self.take_over(pes, thread) }
    }

    /// Takes over the PEs of threads that an access blocks, but for the one that it is about. Returns whether there were any.
    fn take_over(&mut self, pes: &Pes, thread: usize) -> bool {
        let limit_ms = (pes.settings.timeout / 4).as_millis() as u64;
        let (mut blocked, mut any) = (0, false);
        for (number, state) in pes.assignment.threads.iter().enumerate() {
            let with = state.busy_with.load(Ordering::Relaxed);
            let since_ms = state.busy_since_ms.load(Ordering::Relaxed);
            if with == 0 || number == thread || pes.now_ms().saturating_sub(since_ms) < limit_ms {
                continue;
            }
            blocked += 1;
            for pe in pes.others().filter(|pe| pe + 1 != with) {
                let of = &pes.assignment.of[pe];
                if of.compare_exchange(number, thread, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                    any = true;
                    tracing::debug!(pe, thread, "a thread takes over another's PE");
                }
            }
        }
        let is_last = blocked + 1 == pes.assignment.threads.len();
        if is_last && !std::mem::replace(&mut self.has_reported_blocked, true) {
            tracing::error!(
                "all threads but one wait for PEs that do not respond; more --openshmem-threads help"
            );
        }
        self.has_reported_blocked &= is_last;
        any
    }
}
