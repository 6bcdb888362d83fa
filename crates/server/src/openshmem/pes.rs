//! The other PEs of the job, as workers and progress threads share them.

use std::collections::VecDeque;
use std::iter;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fabcache_distribution::Mapping;
use fabcache_shmem::{SymmetricHeap, sleep};
use fabcache_transport::openshmem::{HeapPlan, OpenShmemListener, SLEEPERS_MAX, Wake};

use super::gets::{OneSidedGets, RemoteRegion};
use super::mapped_reads::MappedRegion;
use super::operation::Operation;
use super::pe::Pe;
use super::settings::OpenShmemSettings;
use super::start::StartedJob;
use super::threads::{LEAVE_TIME_MAX, SPARE_THREADS};

/// How long a stop waits for the threads.
const STOP_TIME_MAX: Duration = LEAVE_TIME_MAX.saturating_add(Duration::from_secs(2));
const STOP_PAUSE: Duration = Duration::from_millis(2);

const NO_PANIC_IN_PHASE: &str = "no thread panics while it holds the phase";

/// How far the stop of this server has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum JobPhase {
    /// It serves.
    Running,
    /// It stops: others are told, and links that end are not opened again.
    Leaving,
    /// And no worker needs the threads any more.
    Stopping,
}

/// What others see of a progress thread.
#[derive(Debug, Default)]
pub struct ThreadState {
    /// The PE whose memory it accesses, plus one; 0 for none.
    pub busy_with: AtomicUsize,
    /// Since when, in milliseconds of the job's clock.
    pub busy_since_ms: AtomicU64,
    /// It accesses nothing any more.
    pub has_ended: AtomicBool,
}

/// Which thread has each PE.
#[derive(Debug)]
pub struct Assignment {
    /// By PE.
    pub of: Box<[AtomicUsize]>,
    /// The threads.
    pub threads: Box<[ThreadState]>,
    /// The PEs whose links workers drive while they are awake.
    near: Box<[bool]>,
    heap: Arc<dyn SymmetricHeap>,
    plan: HeapPlan,
}

impl Assignment {
    /// Returns the word on which a thread sleeps.
    pub fn sleep_word(&self, thread: usize) -> &AtomicU32 {
        let own = self.heap.pe();
        self.heap.word(own, self.plan.sleep_word(own, thread)).expect("a PE has its own heap mapped")
    }

    /// Returns the word that counts the workers that are awake.
    fn polling(&self) -> &AtomicU32 {
        let own = self.heap.pe();
        self.heap.word(own, self.plan.polling_word(own)).expect("a PE has its own heap mapped")
    }

    /// Wakes the thread that has a PE, unless a worker does its work.
    pub fn wake(&self, pe: usize) {
        self.wake_unless(self.near[pe].then(|| self.polling()), pe);
    }

    /// Wakes the thread that has a PE.
    pub fn wake_thread_of(&self, pe: usize) {
        self.wake_unless(None, pe);
    }

    fn wake_unless(&self, polling: Option<&AtomicU32>, pe: usize) {
        // The thread is looked up after the fence: another may have taken the PE over.
        sleep::wake(polling, iter::once_with(|| self.sleep_word(self.of[pe].load(Ordering::Relaxed))));
    }
}

/// Wakes the thread that has a PE.
#[derive(Debug)]
pub struct PeWake {
    assignment: Arc<Assignment>,
    pe: usize,
}

impl Wake for PeWake {
    fn wake(&self) {
        self.assignment.wake(self.pe);
    }
}

/// Operations for one PE that the driver of its links has not taken.
#[derive(Debug, Default)]
pub struct Queue {
    operations: Mutex<VecDeque<Operation>>,
    has_any: AtomicBool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Operation>> {
        self.operations.lock().expect("no thread panics while it holds a queue")
    }

    /// Returns whether there are operations.
    pub fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Relaxed)
    }

    /// Takes the first operations, at most so many; those behind the first only as long as their requests have fewer bytes together.
    pub fn take(&self, most: usize, bytes: usize) -> Vec<Operation> {
        let mut operations = self.lock();
        let mut sum = 0usize;
        let fits = |operation: &Operation| {
            let before = sum;
            sum = sum.saturating_add(operation.request.len());
            before < bytes
        };
        let count = operations.iter().take(most).map(fits).take_while(|fits| *fits).count();
        let taken = operations.drain(..count).collect();
        self.has_any.store(!operations.is_empty(), Ordering::Relaxed);
        taken
    }
}

/// The PEs of the job.
#[derive(Debug)]
pub struct Pes {
    /// The options.
    pub settings: OpenShmemSettings,
    /// The symmetric memory.
    pub heap: Arc<dyn SymmetricHeap>,
    /// What lies where in it.
    pub plan: HeapPlan,
    /// Where other PEs' links come in.
    pub listener: Arc<OpenShmemListener>,
    /// Which thread has which PE.
    pub assignment: Arc<Assignment>,
    names: Vec<String>,
    mapping: Mapping,
    own: usize,
    /// By PE; that of this one is unused.
    pub queues: Box<[Queue]>,
    /// The regions of PEs that workers read themselves.
    pub mapped: Box<[Option<MappedRegion>]>,
    /// The links to each PE; none to this one.
    pub states: Box<[Option<Mutex<Pe>>]>,
    /// Whether a PE shows no sign of life.
    pub silent: Box<[AtomicBool]>,
    /// Whether a PE has left the job.
    pub left: Box<[AtomicBool]>,
    /// Whether a PE broke the rules.
    pub lost: Box<[AtomicBool]>,
    /// Changed under this lock, with which threads without PEs wait for it.
    phase: Mutex<JobPhase>,
    has_phase_changed: Condvar,
    /// A copy for those that do not wait.
    phase_number: AtomicU8,
    started: Instant,
    /// Requests for other PEs.
    pub forwarded: AtomicU64,
    /// Those of them that progress threads answered by reading the PE's memory.
    pub direct_reads: AtomicU64,
    /// Requests that failed because their PE does not respond.
    pub unanswered: AtomicU64,
}

impl Pes {
    /// Sets up what leads to other PEs. Progress threads read those that `regions` has, and workers those that `mapped` has. The
    /// threads begin to drive it when they start.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new(
        settings: OpenShmemSettings,
        job: StartedJob,
        regions: Vec<Option<RemoteRegion>>,
        mapped: Vec<Option<MappedRegion>>,
    ) -> Result<Pes> {
        let StartedJob { heap, plan, names, mapping, .. } = job;
        let (own, pes) = (heap.pe(), heap.pes());
        let (first_threads, threads) = (settings.threads, settings.threads + SPARE_THREADS);
        let near = |pe: usize| pe != own && !settings.offload && heap.is_mapped(pe);
        // No access to another host delays the spare thread that has the near PEs.
        let thread = |pe: usize| if near(pe) { first_threads } else { pe % first_threads };
        let assignment = Arc::new(Assignment {
            of: (0..pes).map(|pe| AtomicUsize::new(thread(pe))).collect(),
            threads: (0..threads).map(|_| ThreadState::default()).collect(),
            near: (0..pes).map(near).collect(),
            heap: Arc::clone(&heap),
            plan,
        });
        let state = |pe: usize| {
            if pe == own {
                return Ok(None);
            }
            let wake = Arc::new(PeWake { assignment: Arc::clone(&assignment), pe });
            let gets =
                regions[pe].as_ref().and_then(|region| OneSidedGets::new(pe, pes, region, pe as u32 + 1));
            let pe = Pe::new(pe, &plan, &*heap, wake, gets).context("cannot make the links to other PEs")?;
            anyhow::Ok(Some(Mutex::new(pe)))
        };
        let states = (0..pes).map(state).collect::<Result<_>>()?;
        let flags = || (0..pes).map(|_| AtomicBool::new(false)).collect();
        Ok(Pes {
            listener: Arc::new(OpenShmemListener::new(own).context("cannot listen for other PEs")?),
            settings,
            heap,
            plan,
            assignment,
            names,
            mapping,
            own,
            queues: (0..pes).map(|_| Queue::default()).collect(),
            mapped: mapped.into(),
            states,
            silent: flags(),
            left: flags(),
            lost: flags(),
            phase: Mutex::new(JobPhase::Running),
            has_phase_changed: Condvar::new(),
            phase_number: AtomicU8::new(JobPhase::Running as u8),
            started: Instant::now(),
            forwarded: AtomicU64::new(0),
            direct_reads: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
        })
    }

    /// Returns the number of this PE.
    pub fn own(&self) -> usize {
        self.own
    }

    /// Returns whether there is work for these near PEs. Links that another thread has are work: it may have looked before the work
    /// was made, and its maker woke nobody, as a thread was awake.
    pub fn has_near_work(&self, near: &[usize]) -> bool {
        let has_work = |pe: usize| {
            self.states[pe].is_some() && self.links_to(pe).is_none_or(|links| links.has_work(self))
        };
        near.iter().any(|pe| !self.is_silent(*pe) && has_work(*pe))
    }

    /// Returns whether workers drive the links to a PE while they are awake: its heap is mapped here, and this one's there.
    pub fn is_near(&self, pe: usize) -> bool {
        self.assignment.near[pe]
    }

    /// Returns the word that counts the workers that are awake, and drive the links to near PEs.
    pub fn polling(&self) -> &AtomicU32 {
        self.assignment.polling()
    }

    /// Wakes a PE's threads after something was written for it, if it is near and no worker of it is awake. One elsewhere finds it
    /// when its sleep is over.
    pub fn wake_threads_of(&self, pe: usize) {
        let word = |offset| self.heap.word(pe, offset);
        if let Some(polling) = word(self.plan.polling_word(pe)) {
            let words = (0..SLEEPERS_MAX).filter_map(|thread| word(self.plan.sleep_word(pe, thread)));
            sleep::wake(Some(polling), words);
        }
    }

    /// Returns the milliseconds since the start.
    pub fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Returns the names of all PEs.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the PE that has this key.
    pub fn owner(&self, key: &[u8]) -> usize {
        self.mapping.server_of(key).unwrap_or(self.own)
    }

    /// Returns the other PEs.
    pub fn others(&self) -> impl Iterator<Item = usize> {
        let own = self.own;
        (0..self.names.len()).filter(move |pe| *pe != own)
    }

    /// Returns whether a PE does not respond, or broke the rules.
    pub fn is_silent(&self, pe: usize) -> bool {
        self.silent[pe].load(Ordering::Relaxed) || self.lost[pe].load(Ordering::Relaxed)
    }

    /// Locks the links to a PE, unless another thread has them. Where that thread failed, they are lost.
    pub fn links_to(&self, pe: usize) -> Option<MutexGuard<'_, Pe>> {
        let state = self.states[pe].as_ref()?;
        match state.try_lock() {
            Ok(links) => Some(links),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(poisoned)) => {
                state.clear_poison();
                self.lost[pe].store(true, Ordering::Relaxed);
                Some(poisoned.into_inner())
            }
        }
    }

    /// Returns the phase of this server.
    #[inline]
    pub fn phase(&self) -> JobPhase {
        match self.phase_number.load(Ordering::Relaxed) {
            number if number == JobPhase::Running as u8 => JobPhase::Running,
            number if number == JobPhase::Leaving as u8 => JobPhase::Leaving,
            _ => JobPhase::Stopping,
        }
    }

    /// Begins a phase, and wakes the threads.
    pub fn enter(&self, phase: JobPhase) {
        *self.phase.lock().expect(NO_PANIC_IN_PHASE) = phase;
        self.phase_number.store(phase as u8, Ordering::Relaxed);
        self.has_phase_changed.notify_all();
        for thread in 0..self.assignment.threads.len() {
            sleep::wake(None, [self.assignment.sleep_word(thread)]);
        }
    }

    /// Waits for a phase after this one, for this time at most.
    pub fn wait_for_phase_after(&self, phase: JobPhase, time: Duration) {
        let now = self.phase.lock().expect(NO_PANIC_IN_PHASE);
        // Whether the time is over makes no difference to the caller.
        let waited = self.has_phase_changed.wait_timeout_while(now, time, |now| *now == phase);
        drop(waited.expect(NO_PANIC_IN_PHASE));
    }

    /// Waits until the threads have ended; not for one that waits for a silent PE's memory.
    pub fn wait_for_threads(&self) {
        let until = Instant::now() + STOP_TIME_MAX;
        let is_waiting = |thread: &ThreadState| {
            let pe = thread.busy_with.load(Ordering::Relaxed).checked_sub(1);
            let is_silent =
                |pe: usize| self.silent[pe].load(Ordering::Relaxed) && !self.left[pe].load(Ordering::Relaxed);
            !thread.has_ended.load(Ordering::Acquire) && !pe.is_some_and(is_silent)
        };
        while self.assignment.threads.iter().any(is_waiting) && Instant::now() < until {
            std::thread::sleep(STOP_PAUSE);
        }
    }

    /// Returns the word that another PE changes as long as it runs.
    #[inline]
    pub fn heartbeat(&self, pe: usize) -> u64 {
        let range = self.plan.heartbeat(pe);
        self.heap.memory(range.start, range.end - range.start).load(0, Ordering::Relaxed)
    }

    /// Returns the state of a PE in a word.
    pub fn state_of(&self, pe: usize) -> &'static str {
        if self.left[pe].load(Ordering::Relaxed) {
            "left"
        } else if self.silent[pe].load(Ordering::Relaxed) {
            "silent"
        } else if self.lost[pe].load(Ordering::Relaxed) {
            "lost"
        } else {
            "up"
        }
    }

    /// Forwards an operation to another PE.
    pub fn submit(&self, pe: usize, operation: Operation) {
        self.forwarded.fetch_add(operation.completion.is_awaited().into(), Ordering::Relaxed);
        let queue = &self.queues[pe];
        let mut operations = queue.lock();
        operations.push_back(operation);
        queue.has_any.store(true, Ordering::Relaxed);
        drop(operations);
        self.assignment.wake(pe);
    }

    /// Returns whether each other PE has left the job, or does not respond.
    pub fn are_all_gone(&self) -> bool {
        self.others().all(|pe| self.silent[pe].load(Ordering::Relaxed))
    }

    /// Returns whether all other PEs have left the job, and no thread accesses their memory.
    pub fn have_all_left(&self) -> bool {
        let have_threads_ended =
            self.assignment.threads.iter().all(|thread| thread.has_ended.load(Ordering::Acquire));
        have_threads_ended && self.others().all(|pe| self.left[pe].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::super::operation::Completion;
    use super::*;

    #[test]
    fn long_requests_are_taken_one_by_one() {
        let queue = Queue::default();
        let operation = |bytes: usize| Operation {
            request: vec![0; bytes],
            direct: None,
            strips_end: false,
            completion: Completion::Unawaited,
        };
        queue.lock().extend([9, 3, 4, 4, 4, 0, 0, 0].map(operation));
        let take = || queue.take(3, 8).iter().map(|operation| operation.request.len()).collect::<Vec<_>>();
        assert_eq!(take(), [9]);
        assert_eq!(take(), [3, 4, 4]);
        assert_eq!(take(), [4, 0, 0]);
        assert_eq!(take(), [0]);
        assert!(take().is_empty() && !queue.has_any());
    }
}
