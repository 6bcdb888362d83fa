//! Links between the PEs of a job, whose PEs are threads here.

#[path = "openshmem/hostile.rs"]
mod hostile;
#[path = "openshmem/pair.rs"]
mod pair;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fabcache_shmem::local::{LocalHeaps, LocalJob};
use fabcache_transport::conformance::{Client, TransportUnderTest, pattern, run};
use fabcache_transport::openshmem::{
    ClientLink, HeapPlan, LinkShape, OpenShmemListener, Progress, ServerLink, Wake,
};
use fabcache_transport::{Link, Listener, Received};
use pair::SERVER;

/// Clients beside the server, the PE whose links are tested.
const PES: usize = 40;
/// A client takes nothing more while it has so many bytes.
const UNREAD_MAX: usize = 100_000;
const TIME_LIMIT: Duration = Duration::from_secs(20);

const SHAPE: LinkShape = LinkShape { slots: 16, slot_bytes: 512, buffer_bytes: 64 << 10, has_mutexes: false };

/// Wakes nobody: the server's thread does not sleep for long.
#[derive(Debug)]
struct Awake;

impl Wake for Awake {
    fn wake(&self) {}
}

/// A job whose PE 0 serves the others.
struct Job {
    job: LocalJob,
    plan: HeapPlan,
    listener: Arc<OpenShmemListener>,
    links: Arc<Mutex<Vec<ServerLink>>>,
    next: AtomicUsize,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Job {
    /// Links that ended open again if `reopens`.
    fn start(shape: LinkShape, reopens: bool) -> Job {
        assert_eq!(shape.check(), Ok(()));
        let plan = HeapPlan::new(PES, shape, 64, 0);
        let job = LocalJob::new(PES, plan.bytes());
        let listener = Arc::new(OpenShmemListener::new(SERVER).expect("a descriptor"));
        let links: Arc<Mutex<Vec<ServerLink>>> = Arc::default();
        let ended = Arc::new(AtomicBool::new(false));
        let (served, from, is_over) = (Arc::clone(&links), Arc::clone(&listener), Arc::clone(&ended));
        let mut heaps = job.of(SERVER);
        let thread = thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                for link in served.lock().expect("no panic").iter_mut() {
                    link.progress(&mut heaps).expect("clients keep the rules");
                    if reopens && link.has_ended() {
                        from.add(link.open(&mut heaps).expect("a descriptor"));
                    }
                }
                thread::sleep(Duration::from_micros(20));
            }
        });
        Job { job, plan, listener, links, next: AtomicUsize::new(1), ended, thread: Some(thread) }
    }

    fn client(&self) -> PeClient {
        let client = self.next.fetch_add(1, Ordering::Relaxed);
        let memory = |pe: usize| {
            let job = self.job.clone();
            move |at, len| job.part(pe, at, len)
        };
        let mut server = ServerLink::new(&self.plan, client, SERVER, memory(SERVER), Arc::new(Awake))
            .expect("a descriptor");
        let mut heaps = self.job.of(SERVER);
        self.listener.add(server.open(&mut heaps).expect("a descriptor"));
        self.links.lock().expect("no panic").push(server);
        let link = ClientLink::new(&self.plan, client, SERVER, memory(client));
        PeClient::start(self.job.of(client), link)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let ended = self.thread.take().expect("it runs").join();
        assert!(ended.is_ok() || thread::panicking(), "the server's thread failed");
    }
}

impl TransportUnderTest for Job {
    fn listener(&self) -> &dyn Listener {
        &*self.listener
    }

    fn connect(&self) -> io::Result<Box<dyn Client>> {
        Ok(Box::new(self.client()))
    }
}

/// A client's end, which a thread drives.
struct PeClient {
    driven: Arc<Mutex<Driven>>,
    /// Ends that `receive` has returned.
    ends: u32,
    thread: Option<JoinHandle<()>>,
}

struct Driven {
    heaps: LocalHeaps,
    link: ClientLink,
    received: Vec<u8>,
    /// How often the server has opened it.
    opened: u32,
    is_over: bool,
}

impl Driven {
    fn send(&mut self, bytes: &[u8]) -> usize {
        self.link.send(&mut self.heaps, bytes)
    }

    /// Returns how often the link has ended.
    fn ends(&self) -> u32 {
        self.opened - u32::from(self.link.is_open())
    }
}

impl PeClient {
    fn start(heaps: LocalHeaps, link: ClientLink) -> PeClient {
        let driven =
            Arc::new(Mutex::new(Driven { heaps, link, received: Vec::new(), opened: 0, is_over: false }));
        let shared = Arc::clone(&driven);
        let thread = thread::spawn(move || {
            loop {
                let mut driven = shared.lock().expect("no panic");
                let Driven { heaps, link, received, opened, is_over } = &mut *driven;
                if *is_over {
                    link.leave();
                }
                if received.len() < UNREAD_MAX || *is_over {
                    let progress = link.progress(heaps, received).expect("the server keeps the rules");
                    *opened += u32::from(progress == Progress::Restarted);
                }
                if *is_over && !link.is_open() {
                    return;
                }
                drop(driven);
                thread::sleep(Duration::from_micros(20));
            }
        });
        PeClient { driven, ends: 0, thread: Some(thread) }
    }

    /// Calls `step` until it returns something.
    fn until<T>(&self, mut step: impl FnMut(&mut Driven) -> Option<T>) -> io::Result<T> {
        let end = Instant::now() + TIME_LIMIT;
        loop {
            if let Some(done) = step(&mut self.driven.lock().expect("no panic")) {
                return Ok(done);
            }
            if Instant::now() > end {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(Duration::from_micros(20));
        }
    }
}

impl Client for PeClient {
    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.until(|driven| {
            bytes = &bytes[driven.send(bytes)..];
            bytes.is_empty().then_some(())
        })
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let seen = self.ends;
        let (bytes, ends) = self.until(|driven| {
            let ends = driven.ends();
            let is_closed = ends > 0 && !driven.link.is_open();
            let is_there = !driven.received.is_empty() || ends > seen || is_closed;
            is_there.then(|| (std::mem::take(&mut driven.received), ends))
        })?;
        if bytes.is_empty() {
            self.ends = ends;
        }
        Ok(bytes)
    }
}

impl Drop for PeClient {
    fn drop(&mut self) {
        let mut driven = self.driven.lock().expect("no panic");
        driven.is_over = true;
        drop(driven);
        let ended = self.thread.take().expect("it runs").join();
        assert!(ended.is_ok() || thread::panicking(), "the client's thread failed");
    }
}

#[test]
fn links_of_a_job_conform() {
    run(&Job::start(SHAPE, false));
}

#[test]
fn links_with_the_fewest_slots_conform() {
    run(&Job::start(LinkShape { slots: 8, slot_bytes: 128, ..SHAPE }, false));
}

#[test]
fn links_with_mutexes_conform() {
    run(&Job::start(LinkShape { has_mutexes: true, ..SHAPE }, false));
}

fn accepted(job: &Job) -> Box<dyn Link> {
    let end = Instant::now() + TIME_LIMIT;
    loop {
        if let Some(link) = job.listener.accept().expect("it works") {
            return link;
        }
        assert!(Instant::now() < end, "no link");
        thread::yield_now();
    }
}

fn received(link: &mut dyn Link, len: usize) -> Vec<u8> {
    let (mut got, mut buffer, end) = (Vec::new(), [0; 4096], Instant::now() + TIME_LIMIT);
    while got.len() < len {
        assert!(Instant::now() < end, "{} of {len} bytes", got.len());
        match link.receive(&mut buffer).expect("it works") {
            Received::Bytes(count) => got.extend_from_slice(&buffer[..count]),
            Received::Nothing => thread::yield_now(),
            Received::End => panic!("it ended after {} bytes", got.len()),
        }
    }
    got
}

/// The client is woken after progress alone, and may sleep long.
#[test]
fn last_message_counts_as_progress() {
    let plan = HeapPlan::new(2, SHAPE, 64, 0);
    let job = LocalJob::new(2, plan.bytes());
    let memory = |pe: usize| {
        let job = job.clone();
        move |at, len| job.part(pe, at, len)
    };
    let mut server =
        ServerLink::new(&plan, 1, SERVER, memory(SERVER), Arc::new(Awake)).expect("a descriptor");
    let mut client = ClientLink::new(&plan, 1, SERVER, memory(1));
    let worker = server.open(&mut job.of(SERVER)).expect("a descriptor");
    let opened = client.progress(&mut job.of(1), &mut Vec::new()).expect("the server keeps the rules");
    assert_eq!(opened, Progress::Restarted);
    assert!(!server.progress(&mut job.of(SERVER)).expect("the client keeps the rules"));
    drop(worker);
    assert!(server.progress(&mut job.of(SERVER)).expect("the client keeps the rules"));
    assert!(client.has_come());
}

#[test]
fn closed_links_open_again_with_nothing_of_before() {
    let job = Job::start(SHAPE, true);
    let mut client = job.client();
    for round in 0..20usize {
        let mut link = accepted(&job);
        let request = pattern(1 + round * 3_000);
        let sent = thread::scope(|scope| {
            let sending = scope.spawn(|| client.send(&request));
            assert!(received(&mut *link, request.len()) == request, "round {round}");
            sending.join().expect("no panic")
        });
        sent.expect("sent");
        // What the worker never receives is lost with the link.
        for unread in 0..round {
            client.driven.lock().expect("no panic").send(&[unread as u8; 100]);
        }
        drop(link);
        assert_eq!(client.receive().expect("the end is no error"), b"", "round {round}");
    }
}
