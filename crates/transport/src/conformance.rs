//! The suite that every way in passes: what `contract.rs` promises, seen from both ends.
//!
//! A test passes a [`TransportUnderTest`] to [`run`]: its listener, and how a client connects. [`run_source`] checks
//! what `source.rs` promises.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::contract::{Link, Listener, Received};
use crate::source::{Source, WaitMode};

/// Far longer than any step of the suite takes.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// The client's end of a link. It may block.
pub trait Client: Send {
    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// The server's end is closed.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Receives the next bytes; empty at the end.
    ///
    /// # Errors
    /// The link is broken.
    fn receive(&mut self) -> io::Result<Vec<u8>>;
}

/// A way in, under test.
pub trait TransportUnderTest: Sync {
    /// The listener.
    fn listener(&self) -> &dyn Listener;

    /// A client that connects. It may wait for the server to accept.
    ///
    /// # Errors
    /// The client cannot connect.
    fn connect(&self) -> io::Result<Box<dyn Client>>;

    /// A link carries one request and one answer, and neither is larger than a packet or two.
    fn is_one_shot(&self) -> bool {
        false
    }
}

/// Runs the suite.
///
/// # Panics
/// The transport violates the contract.
pub fn run(way: &dyn TransportUnderTest) {
    answers_come_back(way);
    links_do_not_mix(way);
    a_client_that_leaves_ends_its_link(way);
    if !way.is_one_shot() {
        long_streams_arrive_whole(way);
        two_buffers_fill_in_order(way);
        a_client_that_does_not_read_is_told_by_zero(way);
        dropping_a_link_is_seen_after_its_last_bytes(way);
    }
}

/// Accepts, waiting for it.
fn accept(way: &dyn TransportUnderTest) -> Box<dyn Link> {
    let end = Instant::now() + TIME_LIMIT;
    while Instant::now() < end {
        if let Some(link) = way.listener().accept().expect("accepting works") {
            return link;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("no link arrived");
}

/// Waits for the next bytes; `None` at the end.
fn receive(link: &mut dyn Link) -> io::Result<Option<Vec<u8>>> {
    let end = Instant::now() + TIME_LIMIT;
    let mut buffer = vec![0; 10_000];
    while Instant::now() < end {
        match link.receive(&mut buffer)? {
            Received::Bytes(len) => {
                assert!(len > 0 && len <= buffer.len(), "bytes received are at least one and fit");
                return Ok(Some(buffer[..len].to_vec()));
            }
            Received::End => return Ok(None),
            Received::Nothing => std::thread::sleep(Duration::from_micros(200)),
        }
    }
    panic!("nothing arrived");
}

/// Sends all, waiting for it.
fn send_all(link: &mut dyn Link, mut bytes: &[u8]) {
    let end = Instant::now() + TIME_LIMIT;
    while !bytes.is_empty() {
        assert!(Instant::now() < end, "sending does not get on");
        let (first, second) = bytes.split_at(bytes.len() / 2);
        let sent = link.send(&[IoSlice::new(first), IoSlice::new(second)]).expect("sending works");
        assert!(sent <= bytes.len(), "at most the given bytes are sent");
        bytes = &bytes[sent..];
        if sent == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    while !link.flush().expect("flushing works") {
        assert!(Instant::now() < end, "flushing does not get on");
        std::thread::sleep(Duration::from_micros(200));
    }
    assert!(!link.has_unsent(), "nothing is left after flush");
}

/// Runs a client beside the server's part.
fn with_client<R: Send>(
    way: &dyn TransportUnderTest,
    client: impl FnOnce(Box<dyn Client>) -> R + Send,
    server: impl FnOnce(),
) -> R {
    std::thread::scope(|scope| {
        let client = scope.spawn(|| client(way.connect().expect("connecting works")));
        server();
        client.join().expect("the client found nothing wrong")
    })
}

fn answers_come_back(way: &dyn TransportUnderTest) {
    let client = |mut client: Box<dyn Client>| {
        client.send(b"get a\r\n").expect("sending works");
        let mut answer = Vec::new();
        while answer.len() < 9 {
            answer.extend(client.receive().expect("receiving works"));
        }
        assert_eq!(answer, b"the value");
    };
    with_client(way, client, || {
        let mut link = accept(way);
        assert_eq!(link.kind(), way.listener().kind());
        let mut request = Vec::new();
        while request.len() < 7 {
            request.extend(receive(&mut *link).expect("receiving works").expect("the client stays"));
        }
        assert_eq!(request, b"get a\r\n");
        send_all(&mut *link, b"the value");
    });
}

fn links_do_not_mix(way: &dyn TransportUnderTest) {
    let count = 20;
    let client = |_first: Box<dyn Client>| {
        std::thread::scope(|scope| {
            for i in 0..count {
                scope.spawn(move || {
                    let mut client = way.connect().expect("connecting works");
                    let name = [b'a' + i; 3];
                    client.send(&name).expect("sending works");
                    let mut answer = Vec::new();
                    while answer.len() < 3 {
                        answer.extend(client.receive().expect("receiving works"));
                    }
                    assert_eq!(answer, name);
                });
            }
        });
    };
    let serve = || {
        let mut served = 0;
        let mut links: Vec<(Box<dyn Link>, Vec<u8>)> = Vec::new();
        let end = Instant::now() + TIME_LIMIT;
        while served < count {
            assert!(Instant::now() < end, "not all links are served");
            let mut accepted = Vec::new();
            way.listener().accept_many(7, &mut accepted).expect("accepting works");
            assert!(accepted.len() <= 7, "at most the wanted number is accepted");
            links.extend(accepted.into_iter().map(|link| (link, Vec::new())));
            for (link, request) in &mut links {
                let mut buffer = [0; 64];
                if let Ok(Received::Bytes(len)) = link.receive(&mut buffer) {
                    request.extend_from_slice(&buffer[..len]);
                    if request.len() == 3 {
                        send_all(&mut **link, &request.clone());
                        served += 1;
                    }
                }
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    };
    with_client(way, client, serve);
}

fn a_client_that_leaves_ends_its_link(way: &dyn TransportUnderTest) {
    let client = |mut client: Box<dyn Client>| client.send(b"bye").expect("sending works");
    with_client(way, client, || {
        let mut link = accept(way);
        let mut got = Vec::new();
        // An error is an end as well, but not before everything sent has arrived.
        while let Ok(Some(bytes)) = receive(&mut *link) {
            got.extend(bytes);
        }
        assert_eq!(got, b"bye");
        assert!(!matches!(link.receive(&mut [0; 8]), Ok(Received::Bytes(_))), "nothing follows the end");
    });
}

/// Returns bytes that depend on their position.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn long_streams_arrive_whole(way: &dyn TransportUnderTest) {
    let len = 3_000_000;
    let client = |mut client: Box<dyn Client>| {
        client.send(&pattern(len)).expect("sending works");
        let mut answer = Vec::new();
        while answer.len() < len {
            let bytes = client.receive().expect("receiving works");
            assert!(!bytes.is_empty(), "the link ended after {} bytes", answer.len());
            answer.extend(bytes);
        }
        assert!(answer == pattern(len), "the answer arrived as it was sent");
    };
    with_client(way, client, || {
        let mut link = accept(way);
        let mut got = Vec::new();
        while got.len() < len {
            got.extend(receive(&mut *link).expect("receiving works").expect("the client stays"));
        }
        assert!(got == pattern(len), "the request arrived as it was sent");
        send_all(&mut *link, &got);
    });
}

fn two_buffers_fill_in_order(way: &dyn TransportUnderTest) {
    let len = 300_000;
    let client = |mut client: Box<dyn Client>| {
        client.send(&pattern(len)).expect("sending works");
        assert_eq!(client.receive().expect("receiving works"), b"all");
    };
    with_client(way, client, || {
        let mut link = accept(way);
        let mut got: Vec<u8> = Vec::new();
        let end = Instant::now() + TIME_LIMIT;
        while got.len() < len {
            assert!(Instant::now() < end, "{} of {len} bytes arrived", got.len());
            let (mut first, mut second) = ([0; 1_000], [0; 3_000]);
            let available = usize::try_from(link.available()).expect("fewer than memory holds").min(4_000);
            let received = link.receive_in_two(&mut first, &mut second).expect("receiving works");
            assert!(available == 0 || matches!(received, Received::Bytes(count) if count >= available));
            match received {
                Received::Bytes(count) => got.extend(first.iter().chain(&second).take(count)),
                Received::Nothing => std::thread::yield_now(),
                Received::End => panic!("the client stays"),
            }
        }
        assert!(got == pattern(len), "the request arrived as it was sent");
        send_all(&mut *link, b"all");
    });
}

fn a_client_that_does_not_read_is_told_by_zero(way: &dyn TransportUnderTest) {
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let client = move |mut client: Box<dyn Client>| {
        client.send(b"x").expect("sending works");
        // Holds the link open, reading nothing.
        let _ = stopped.recv_timeout(TIME_LIMIT);
    };
    with_client(way, client, move || {
        let mut link = accept(way);
        while receive(&mut *link).expect("receiving works").is_none() {}
        let block = vec![b'y'; 1 << 20];
        let mut taken = 0u64;
        loop {
            let sent = link.send(&[IoSlice::new(&block)]).expect("a slow client is no error");
            taken += sent as u64;
            assert!(taken < 1 << 30, "a link accepts endless unread bytes");
            if sent == 0 && !(link.has_unsent() && link.flush().is_ok_and(|done| done)) {
                break;
            }
        }
        drop(stop);
    });
}

fn dropping_a_link_is_seen_after_its_last_bytes(way: &dyn TransportUnderTest) {
    let client = |mut client: Box<dyn Client>| {
        client.send(b"x").expect("sending works");
        let mut answer = Vec::new();
        loop {
            let bytes = client.receive().expect("the end is not an error");
            if bytes.is_empty() {
                break;
            }
            answer.extend(bytes);
        }
        assert_eq!(answer, b"last words");
    };
    with_client(way, client, || {
        let mut link = accept(way);
        assert_eq!(receive(&mut *link).expect("receiving works"), Some(b"x".to_vec()));
        send_all(&mut *link, b"last words");
    });
}

// ---- sources ----

/// A source under test, which has one link.
pub trait SourceUnderTest {
    /// The source.
    fn source(&mut self) -> &mut dyn Source;

    /// The tag of its link.
    fn tag(&self) -> u64;

    /// Returns a function that makes one event of the link.
    fn notifier(&mut self) -> Box<dyn FnMut() + Send>;

    /// Serves the link after an event was reported.
    fn serve(&mut self) {}

    /// Drops the link.
    fn drop_link(&mut self);

    /// The number of events that race with a worker that falls asleep.
    fn races(&self) -> u32 {
        5_000
    }
}

/// Runs the suite of sources.
///
/// # Panics
/// The source violates the contract.
pub fn run_source(tested: &mut dyn SourceUnderTest) {
    assert_eq!(tested.source().links(), 1);
    event_after_arm_makes_the_descriptor_readable(tested);
    event_before_arm_prevents_sleep(tested);
    no_wakeup_is_lost(tested);
    closed_source_loses_its_links(tested);
}

/// Returns whether the descriptor becomes readable in this time.
fn is_readable(source: &dyn Source, within: Duration) -> bool {
    let mut descriptors = [PollFd::from_borrowed_fd(source.wait_fd().expect("a descriptor"), PollFlags::IN)];
    let within = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    poll(&mut descriptors, Some(&within)).expect("poll works") > 0
}

/// Arms the source, which has no event, so that a worker can sleep.
fn fall_asleep(source: &mut dyn Source) {
    let end = Instant::now() + TIME_LIMIT;
    while source.arm() != WaitMode::Sleep {
        assert!(Instant::now() < end, "the source does not let its worker sleep");
        let mut ready = Vec::new();
        source.progress(&mut ready).expect("the source works");
        assert_eq!(ready, [], "there is no event");
    }
    assert!(!is_readable(source, Duration::ZERO), "there is no event");
}

/// Makes progress until the link is reported, and serves it.
fn serve_event(tested: &mut dyn SourceUnderTest) {
    let (tag, end) = (tested.tag(), Instant::now() + TIME_LIMIT);
    let mut ready = Vec::new();
    while ready.is_empty() {
        assert!(Instant::now() < end, "the event is not reported");
        tested.source().progress(&mut ready).expect("the source works");
    }
    assert_eq!(ready, [tag]);
    tested.serve();
}

fn event_after_arm_makes_the_descriptor_readable(tested: &mut dyn SourceUnderTest) {
    let mut notify = tested.notifier();
    for _ in 0..3 {
        fall_asleep(tested.source());
        notify();
        assert!(is_readable(tested.source(), TIME_LIMIT), "an event wakes the worker");
        tested.source().disarm();
        serve_event(tested);
    }
    fall_asleep(tested.source());
    tested.source().disarm();
}

fn event_before_arm_prevents_sleep(tested: &mut dyn SourceUnderTest) {
    let mut notify = tested.notifier();
    // Another sleep before must make no difference.
    fall_asleep(tested.source());
    tested.source().disarm();
    notify();
    let end = Instant::now() + TIME_LIMIT;
    while !tested.source().has_events() {
        assert!(Instant::now() < end, "a worker that spins does not see the event");
    }
    for _ in 0..2 {
        assert_eq!(tested.source().arm(), WaitMode::Spin, "the event is not reported yet");
    }
    serve_event(tested);
    fall_asleep(tested.source());
    tested.source().disarm();
}

fn no_wakeup_is_lost(tested: &mut dyn SourceUnderTest) {
    let (mut notify, races) = (tested.notifier(), tested.races());
    let served = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..races {
                let end = Instant::now() + TIME_LIMIT;
                while served.load(Ordering::Acquire) < number {
                    if Instant::now() >= end {
                        // The worker has reported what is wrong.
                        return;
                    }
                    std::thread::yield_now();
                }
                // Hits the worker at different steps on its way to sleep.
                (0..number % 64).for_each(|_| std::hint::spin_loop());
                notify();
            }
        });
        let mut ready = Vec::new();
        while served.load(Ordering::Relaxed) < races {
            tested.source().progress(&mut ready).expect("the source works");
            if !ready.is_empty() {
                assert_eq!(ready, [tested.tag()], "an event is reported once");
                ready.clear();
                tested.serve();
                served.fetch_add(1, Ordering::Release);
            }
            if tested.source().arm() != WaitMode::Spin {
                // The last event has no successor.
                let is_last = served.load(Ordering::Relaxed) == races;
                assert!(is_last || is_readable(tested.source(), TIME_LIMIT), "a wakeup is lost");
                tested.source().disarm();
            }
        }
    });
}

fn closed_source_loses_its_links(tested: &mut dyn SourceUnderTest) {
    tested.source().close();
    tested.drop_link();
    let (mut ready, end) = (Vec::new(), Instant::now() + TIME_LIMIT);
    while tested.source().links() > 0 {
        assert!(Instant::now() < end, "a dropped link stays");
        tested.source().progress(&mut ready).expect("the source works");
    }
}
