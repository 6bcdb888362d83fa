//! Both ends of a link, driven step by step, and what others may write into its memory. Checks what holds at any time.

use std::cell::{Cell, RefCell};
use std::io::IoSlice;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use fabcache_shmem::RemoteHeaps;
use fabcache_shmem::local::{LocalHeaps, LocalJob};
use fabcache_testbed::random::SplitMix64;
use fabcache_transport::openshmem::{
    ClientLink, HeapPlan, LinkError, LinkShape, PipeLink, Progress, ServerLink, Wake,
};
use fabcache_transport::{Link, PolledLink, Received};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The PE that serves the others.
pub const SERVER: usize = 0;
/// The smallest: credits and memory run out soon.
pub const SHAPE: LinkShape =
    LinkShape { slots: 8, slot_bytes: 128, buffer_bytes: 64 << 10, has_mutexes: false };
/// The most bytes of one stream that an end holds: in slots and memory, in a pipe, and in a chunk that was read.
const HELD_BYTES_MAX: u64 = 8 * 128 + (64 << 10) + (256 << 10) + (64 << 10);
const MESSAGE_BYTES: u64 = 120;
/// The bytes of streams repeat: a prime, so that no multiple of a size of the link's is one of it.
const PERIOD: usize = 65_521;
/// The kinds of messages (`fabcache_fabric::channel`), and two invalid ones.
const KINDS: u64 = 12;
const DATA: u64 = 1;
const CREDITS: u64 = 6;

/// Counts calls.
#[derive(Debug, Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Access to the parts of one other PE's heap that belong to the link.
struct Watched {
    heaps: LocalHeaps,
    pe: usize,
    /// The parts that the link may read …
    readable: Vec<Range<u64>>,
    /// … and written.
    writable: Vec<Range<u64>>,
    /// The mutexes of both rings, if they have one: their PEs, and where they lie.
    mutexes: Rc<[(usize, u64)]>,
    /// That of the mutexes which this side holds.
    held: Option<(usize, u64)>,
    /// The other side, if it makes steps after each write of a slot.
    between: Option<(Weak<RefCell<dyn Side>>, SplitMix64)>,
}

impl Watched {
    fn new(
        heaps: LocalHeaps,
        pe: usize,
        readable: &[Range<u64>],
        writable: &[Range<u64>],
        mutexes: &Rc<[(usize, u64)]>,
    ) -> Watched {
        let (readable, writable) = (readable.into(), writable.into());
        Watched { heaps, pe, readable, writable, mutexes: mutexes.clone(), held: None, between: None }
    }

    /// Lets the other side make a step, at random.
    fn step(&mut self) {
        if let Some((side, random)) = &mut self.between
            && random.once_in(2)
            && let Some(side) = side.upgrade()
            && let Ok(mut side) = side.try_borrow_mut()
        {
            side.step(random);
        }
    }
}

/// One side of the link: an end, and its user.
trait Side {
    /// Makes a step, at random.
    fn step(&mut self, random: &mut SplitMix64);
}

fn check(parts: &[Range<u64>], offset: u64, len: usize) {
    let end = offset + len as u64;
    assert!(parts.iter().any(|part| part.start <= offset && end <= part.end), "{len} bytes at {offset}");
}

impl RemoteHeaps for Watched {
    fn pe(&self) -> usize {
        RemoteHeaps::pe(&self.heaps)
    }

    fn pes(&self) -> usize {
        RemoteHeaps::pes(&self.heaps)
    }

    fn get(&mut self, pe: usize, offset: u64, into: &mut [u8]) {
        assert_eq!(pe, self.pe);
        check(&self.readable, offset, into.len());
        self.heaps.get(pe, offset, into);
    }

    fn put(&mut self, pe: usize, offset: u64, from: &[u8]) {
        assert_eq!(pe, self.pe);
        check(&self.writable, offset, from.len());
        self.heaps.put(pe, offset, from);
    }

    fn put_word(&mut self, pe: usize, offset: u64, word: u64) {
        assert_eq!(pe, self.pe);
        check(&self.writable, offset, 8);
        self.heaps.put_word(pe, offset, word);
        if self.mutexes.is_empty() {
            self.step();
        } else {
            // The other side waits for the mutex until this one releases it.
            assert_eq!(self.held.map(|(pe, _)| pe), Some(pe), "a slot is written without its mutex");
        }
    }

    fn compare_swap(&mut self, pe: usize, offset: u64, expected: u64, new: u64) -> u64 {
        assert!(self.mutexes.contains(&(pe, offset)), "no mutex of the link's");
        assert_eq!(self.held.replace((pe, offset)), None, "an end takes a second mutex");
        let was = self.heaps.compare_swap(pe, offset, expected, new);
        assert_eq!(was, expected, "nobody holds it between steps");
        was
    }

    fn atomic_set(&mut self, pe: usize, offset: u64, word: u64) {
        assert_eq!(self.held.take(), Some((pe, offset)), "an end releases what it does not hold");
        self.heaps.atomic_set(pe, offset, word);
        self.step();
    }

    fn fence(&mut self) {
        self.heaps.fence();
    }

    fn progress(&mut self) {}
}

fn is_readable(link: &PipeLink) -> bool {
    let descriptor = link.descriptor().expect("it has one");
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&at_once)).expect("it works") > 0
}

/// One direction's bytes since the link was opened, as one of its users sees it.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// How often the link has been opened, and the direction.
    name: u64,
    bytes: u64,
}

impl Stream {
    /// Returns the next bytes.
    fn next(&self, count: usize) -> Vec<u8> {
        static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
            let mut random = SplitMix64::new(0);
            (0..PERIOD).map(|_| random.next_u64() as u8).collect()
        });
        let mut next = Vec::with_capacity(count);
        while next.len() < count {
            let at = (self.bytes as usize + next.len() + 1_009 * self.name as usize) % PERIOD;
            next.extend_from_slice(&BYTES[at..PERIOD.min(at + count - next.len())]);
        }
        next
    }

    fn restart(&mut self) {
        *self = Stream { name: self.name + 2, bytes: 0 };
    }
}

/// State of both sides.
#[derive(Debug)]
struct Common {
    /// Only the ends have written the link's memory.
    is_honest: Cell<bool>,
    /// The answers that the worker before has sent.
    answers_before: Cell<u64>,
}

/// The client's end, and who uses it.
struct ClientSide {
    link: ClientLink,
    heaps: Watched,
    /// Sent …
    requests: Stream,
    /// … and received.
    answers: Stream,
    /// The client has left since the link was opened.
    has_left: bool,
    broken: Option<LinkError>,
    common: Rc<Common>,
}

impl ClientSide {
    fn send(&mut self, count: u64) -> bool {
        let sent = self.link.send(&mut self.heaps, &self.requests.next(count as usize)) as u64;
        assert!(sent <= count);
        self.requests.bytes += sent;
        sent > 0
    }

    fn leave(&mut self) -> bool {
        self.has_left |= self.link.is_open();
        self.link.leave();
        true
    }

    fn progress(&mut self) -> bool {
        let had_come = self.link.has_come();
        let mut received = Vec::new();
        let progress = self.link.progress(&mut self.heaps, &mut received);
        assert!(received.len() as u64 <= HELD_BYTES_MAX);
        let is_honest = self.common.is_honest.get();
        assert!(!is_honest || received == self.answers.next(received.len()), "answers at {:?}", self.answers);
        self.answers.bytes += received.len() as u64;
        let Ok(progress) = progress else {
            assert!(!is_honest, "{progress:?}");
            assert!(self.broken.is_none() || self.broken == progress.err(), "a broken link stays broken");
            self.broken = progress.err();
            assert!(!self.link.has_come(), "nothing can be done for a broken link");
            return false;
        };
        assert_eq!(progress != Progress::Nothing, had_come);
        if progress == Progress::Restarted {
            if is_honest && !self.has_left {
                let before = self.common.answers_before.get();
                assert_eq!(self.answers.bytes, before, "a worker's last bytes arrive");
            }
            self.requests.restart();
            self.answers.restart();
            self.has_left = false;
        }
        progress != Progress::Nothing
    }
}

impl Side for ClientSide {
    fn step(&mut self, random: &mut SplitMix64) {
        match random.below(8) {
            0..4 => _ = self.progress(),
            4 => _ = self.send(random.next_u64() % 60_000),
            _ => _ = self.send(random.next_u64() % 200),
        }
    }
}

/// The server's end, and its worker.
struct ServerSide {
    link: ServerLink,
    heaps: Watched,
    wakes: Arc<Wakes>,
    worker: Option<PipeLink>,
    /// The worker does nothing until the descriptor is readable.
    is_asleep: bool,
    /// The worker has more to send than there was room for.
    wants_room: bool,
    /// Received …
    requests: Stream,
    /// … and sent.
    answers: Stream,
    broken: Option<LinkError>,
    common: Rc<Common>,
}

impl ServerSide {
    fn progress(&mut self) -> bool {
        let (is_new, had_work) = (self.requests.name == 0, self.link.has_work());
        let progress = self.link.progress(&mut self.heaps);
        let Ok(mut any) = progress else {
            assert!(!self.common.is_honest.get(), "{progress:?}");
            assert!(self.broken.is_none() || self.broken == progress.err(), "a broken link stays broken");
            self.broken = progress.err();
            assert!(!self.link.has_work(), "nothing can be done for a broken link");
            return false;
        };
        assert!(had_work || !any, "there was nothing to do");
        if is_new || self.link.has_ended() {
            any = true;
            self.common.answers_before.set(self.answers.bytes);
            self.requests.restart();
            self.answers.restart();
            // A worker may wait for a new link's descriptor before it does anything else.
            (self.is_asleep, self.wants_room) = (self.answers.name % 4 == 1, false);
            self.worker = Some(self.link.open(&mut self.heaps).expect("a descriptor"));
        }
        any
    }

    /// Lets the worker poll, or sleep.
    fn sleep(&mut self, polls: bool) -> bool {
        if self.wants_room {
            // The notification may have come before.
            self.send(1_000);
        }
        let Some(worker) = self.worker.as_mut().filter(|_| !self.is_asleep).and_then(|link| link.as_polled())
        else {
            return false;
        };
        if polls {
            worker.start_polling();
        }
        self.is_asleep = !polls && worker.arm_wakeup();
        true
    }

    /// Runs what the worker does if it is awake, and checks that the thread hears of it.
    fn works<R>(&mut self, work: impl FnOnce(&mut PipeLink) -> R) -> Option<R> {
        let worker = self.worker.as_mut()?;
        if self.is_asleep && is_readable(worker) {
            worker.drain_wakeup();
            self.is_asleep = false;
        }
        if self.is_asleep {
            return None;
        }
        let (had_work, wakes) = (self.link.has_work(), self.wakes.0.load(Ordering::Relaxed));
        let done = work(worker);
        let is_woken = self.wakes.0.load(Ordering::Relaxed) > wakes;
        assert!(had_work || is_woken == self.link.has_work() || self.broken.is_some());
        Some(done)
    }

    fn receive(&mut self, count: u64) -> bool {
        let mut into = vec![0; count as usize];
        match self.works(|worker| (worker.has_unread(), worker.receive(&mut into).expect("it works"))) {
            Some((has_unread, Received::Bytes(len))) => {
                assert!(has_unread);
                let is_honest = self.common.is_honest.get();
                assert!(
                    !is_honest || into[..len] == self.requests.next(len),
                    "requests at {:?}",
                    self.requests
                );
                self.requests.bytes += len as u64;
                true
            }
            Some((has_unread, Received::End)) => {
                assert!(has_unread);
                // A worker closes such a link.
                self.close()
            }
            Some((has_unread, Received::Nothing)) => {
                assert!(!has_unread);
                false
            }
            None => false,
        }
    }

    fn send(&mut self, count: u64) -> bool {
        let bytes = self.answers.next(count as usize);
        let (first, second) = bytes.split_at(bytes.len() / 3);
        let sent =
            self.works(|worker| worker.send(&[IoSlice::new(first), IoSlice::new(second)]).unwrap_or(0));
        let Some(sent) = sent.map(|sent| sent as u64) else { return false };
        assert!(sent <= count);
        self.wants_room = sent < count;
        self.answers.bytes += sent;
        sent > 0
    }

    fn close(&mut self) -> bool {
        let had_worker = self.worker.is_some();
        self.is_asleep = false;
        let (had_work, wakes) = (self.link.has_work(), self.wakes.0.load(Ordering::Relaxed));
        self.worker = None;
        let is_woken = self.wakes.0.load(Ordering::Relaxed) > wakes;
        assert!(!had_worker || had_work || is_woken && self.link.has_work() || self.broken.is_some());
        had_worker
    }
}

impl Side for ServerSide {
    fn step(&mut self, random: &mut SplitMix64) {
        match random.below(8) {
            0..4 => _ = self.progress(),
            4 => _ = self.send(random.next_u64() % 60_000),
            5 => _ = self.send(random.next_u64() % 200),
            6 => _ = self.receive(60_000),
            _ if random.once_in(8) => _ = self.close(),
            _ => {}
        }
    }
}

/// Both sides of a link.
pub struct Pair {
    job: LocalJob,
    plan: HeapPlan,
    number: usize,
    client: Rc<RefCell<ClientSide>>,
    server: Rc<RefCell<ServerSide>>,
    common: Rc<Common>,
}

impl Pair {
    /// Returns the plan of a job whose PEs have links only.
    pub fn plan(pes: usize) -> HeapPlan {
        HeapPlan::new(pes, SHAPE, 64, 0)
    }

    /// The same, with mutexes.
    pub fn plan_with_mutexes(pes: usize) -> HeapPlan {
        HeapPlan::new(pes, LinkShape { has_mutexes: true, ..SHAPE }, 64, 0)
    }

    /// Returns the link of this PE. The memory is zeroed.
    pub fn new(job: &LocalJob, plan: HeapPlan, number: usize) -> Pair {
        let part = |pe| move |at, len| job.part(pe, at, len);
        let wakes = Arc::<Wakes>::default();
        let common = Rc::new(Common { is_honest: Cell::new(true), answers_before: Cell::new(0) });
        let mutexes = [(number, plan.answers_mutex(SERVER)), (SERVER, plan.requests_mutex(number))];
        let mutexes = mutexes.into_iter().filter_map(|(pe, mutex)| Some((pe, mutex?))).collect();
        let server = ServerSide {
            link: ServerLink::new(&plan, number, SERVER, part(SERVER), wakes.clone()).expect("a descriptor"),
            heaps: Watched::new(
                job.of(SERVER),
                number,
                &[plan.staging(SERVER)],
                &[plan.answers(SERVER), plan.landing(SERVER)],
                &mutexes,
            ),
            wakes,
            worker: None,
            is_asleep: false,
            wants_room: false,
            requests: Stream::default(),
            answers: Stream { name: 1, bytes: 0 },
            broken: None,
            common: common.clone(),
        };
        let client = ClientSide {
            link: ClientLink::new(&plan, number, SERVER, part(number)),
            heaps: Watched::new(job.of(number), SERVER, &[], &[plan.requests(number)], &mutexes),
            requests: Stream::default(),
            answers: Stream { name: 1, bytes: 0 },
            has_left: false,
            broken: None,
            common: common.clone(),
        };
        Pair {
            job: job.clone(),
            plan,
            number,
            client: Rc::new(RefCell::new(client)),
            server: Rc::new(RefCell::new(server)),
            common,
        }
    }

    /// Lets each side make steps whenever the other has written a slot.
    pub fn interleave(&mut self, seed: u64) {
        let mut random = SplitMix64::new(seed);
        let (client, server): (Weak<RefCell<ClientSide>>, Weak<RefCell<ServerSide>>) =
            (Rc::downgrade(&self.client), Rc::downgrade(&self.server));
        self.client.borrow_mut().heaps.between = Some((server, random.split()));
        self.server.borrow_mut().heaps.between = Some((client, random.split()));
    }

    /// Returns why the client's end and the server's are broken.
    pub fn broken(&self) -> [Option<LinkError>; 2] {
        [self.client.borrow().broken, self.server.borrow().broken]
    }

    /// Does what a user of the link does, or the thread of an end. Returns whether that had an effect.
    pub fn act(&mut self, what: u64, amount: u64) -> bool {
        let (client, server) = (&self.client, &self.server);
        match what % 16 {
            0..3 => client.borrow_mut().send(amount % 200_000),
            3..6 => client.borrow_mut().progress(),
            6..9 => server.borrow_mut().progress(),
            9..12 => server.borrow_mut().receive(1 + amount % 60_000),
            12..15 => server.borrow_mut().send(amount % 300_000),
            // Once in a while.
            _ if amount.is_multiple_of(8) => server.borrow_mut().close(),
            _ if amount % 8 < 4 => server.borrow_mut().sleep(amount % 8 == 1),
            _ if amount % 16 == 4 => client.borrow_mut().leave(),
            _ => false,
        }
    }

    /// Lets both ends do all that they have to do, and the worker receive everything.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut any = self.client.borrow_mut().progress();
            any |= self.server.borrow_mut().progress();
            any |= self.server.borrow_mut().receive(HELD_BYTES_MAX);
            any |= self.client.borrow().link.has_come() || self.server.borrow().link.has_work();
            if !any {
                return self.check_settled();
            }
        }
        panic!("the ends do not settle");
    }

    fn check_settled(&self) {
        if !self.common.is_honest.get() {
            return;
        }
        let (client, server) = (self.client.borrow(), self.server.borrow());
        assert!(client.link.is_open(), "the link does not restart");
        // No answers are sent before the first request.
        if client.requests.bytes > 0 {
            assert!(server.worker.is_some(), "the link does not restart");
            assert!(!server.is_asleep || !server.wants_room, "the worker is not woken for room");
            assert_eq!(client.requests.bytes, server.requests.bytes);
            assert_eq!(client.answers.bytes, server.answers.bytes);
        }
    }

    /// Checks that all bytes arrive, and that the link restarts.
    pub fn finish(&mut self) {
        assert!(self.common.is_honest.get());
        self.client.borrow_mut().heaps.between = None;
        self.server.borrow_mut().heaps.between = None;
        self.settle();
        for _ in 0..2 {
            assert!(self.client.borrow_mut().send(1));
            self.settle();
        }
        assert!(self.server.borrow().requests.bytes > 0);
        self.server.borrow_mut().close();
        self.settle();
        let server = self.server.borrow();
        assert!(server.requests.bytes == 0 && server.worker.is_some(), "the link does not restart");
    }

    // ---- what others write ----

    /// Returns the heap with the slots to this end, and where they begin.
    fn slots(&self, end: usize) -> (usize, u64) {
        if end == 0 {
            (self.number, self.plan.answers(SERVER).start)
        } else {
            (SERVER, self.plan.requests(self.number).start)
        }
    }

    /// Returns the flag of the slot of a message, and its offset.
    fn slot(&self, end: usize, number: u64) -> (u64, u64) {
        let (pe, start) = self.slots(end);
        let at = start + number % u64::from(SHAPE.slots) * u64::from(SHAPE.slot_bytes);
        (self.job.memory(pe).load(at, Ordering::Relaxed), at)
    }

    /// Returns the number that follows the latest message's in the slots to this end, and that of its contents.
    fn next(&self, end: usize) -> (u64, u32) {
        let flags = (0..u64::from(SHAPE.slots)).map(|slot| self.slot(end, slot).0);
        let number = flags.max().map_or(0, |flag| flag >> 32);
        let (flag, at) = self.slot(end, number.wrapping_sub(1));
        let mut header = [0; 16];
        self.job.memory(self.slots(end).0).copy_out(at + 8, &mut header);
        let sequence = u32::from_le_bytes(header[12..].try_into().expect("four bytes"));
        (number, if flag as u32 == 0 { 0 } else { sequence.wrapping_add(1) })
    }

    /// Writes a message into the next slot.
    fn write(&mut self, end: usize, number: u64, message: &[u8]) {
        let (memory, at) = (self.job.memory(self.slots(end).0), self.slot(end, number).1);
        memory.copy_in(at + 8, message);
        memory.store(at, (number + 1) << 32 | message.len() as u64, Ordering::Release);
    }

    /// Writes a message of the next number: mostly one that its receiver could get.
    fn forge(&mut self, end: usize, choice: u64, bytes: &[u8]) {
        let (number, sequence) = self.next(end);
        let kind = choice % KINDS;
        let at_limits = [0, 1, 100, 16 << 10, 65_535, 64 << 10, 1 << 30, u64::MAX - 5, u64::MAX];
        let number_at = |shift: u32| at_limits[(choice >> shift) as usize % at_limits.len()];
        let credits = if kind == CREDITS { 1 } else { [0, 0, 0, 1, 3, u16::MAX][(choice >> 8) as usize % 6] };
        let wrong = choice >> 16 & 15;
        let mut message = u64::from(wrong == 1).to_le_bytes().to_vec();
        message.extend([kind as u8, u8::from(wrong == 2)]);
        message.extend(credits.to_le_bytes());
        message.extend(sequence.wrapping_add(u32::from(wrong == 3) * bytes.len() as u32).to_le_bytes());
        let numbers = match kind {
            2 | 4 => 2,
            3 | 5 | 8 | 9 => 1,
            10 => 3,
            _ => 0,
        };
        message.extend((0..numbers).flat_map(|i| number_at(20 + 5 * i).to_le_bytes()));
        if kind == DATA || kind == 10 || wrong == 4 {
            message.push(choice as u8);
            message.extend(bytes);
        }
        message.truncate(MESSAGE_BYTES as usize);
        self.write(end, number, &message);
    }

    /// Writes what another PE may write into the memory of this end: 0 is the client's, 1 the server's.
    pub fn harm(&mut self, end: usize, what: u64, choice: u64, bytes: &[u8]) {
        self.common.is_honest.set(false);
        let (pe, start) = self.slots(end);
        let memory = self.job.memory(pe).clone();
        let (number, _) = self.next(end);
        let ring_bytes = u64::from(SHAPE.slots * SHAPE.slot_bytes);
        match what % 16 {
            // Any word of the slots.
            0 => memory.store(start + choice % ring_bytes / 8 * 8, choice.rotate_left(17), Ordering::Relaxed),
            // A flag for the next message.
            1 => {
                let len = [0, 1, 119, 120, 121, u64::from(u32::MAX)][(choice % 6) as usize];
                memory.store(self.slot(end, number).1, (number + 1) << 32 | len, Ordering::Relaxed);
            }
            // A flag of another number.
            2 => memory.store(self.slot(end, number).1, choice, Ordering::Relaxed),
            // An empty message, which opens or ends a link.
            3 => self.write(end, number, &[]),
            // Another byte in a message that has been written.
            4 => {
                let at = self.slot(end, number.wrapping_sub(1 + choice / 256 % 4)).1 + 8 + choice % 40;
                let mut byte = [0];
                memory.copy_out(at, &mut byte);
                memory.copy_in(at, &[byte[0] ^ (1 << (choice >> 32 & 7))]);
            }
            // An earlier message.
            5 => {
                let mut message = [0; MESSAGE_BYTES as usize];
                let (flag, at) = self.slot(end, number.wrapping_sub(1 + choice % 8));
                memory.copy_out(at + 8, &mut message);
                self.write(end, number, &message[..message.len().min(flag as u32 as usize)]);
            }
            // Staging and landing memory.
            6 | 7 => {
                let part = if what % 16 == 6 { self.plan.staging(SERVER) } else { self.plan.landing(SERVER) };
                let at = part.start + choice % (64 << 10);
                let len = bytes.len().min((part.end - at) as usize);
                self.job.memory(self.number).copy_in(at, &bytes[..len]);
            }
            _ => self.forge(end, choice, bytes),
        }
    }
}
