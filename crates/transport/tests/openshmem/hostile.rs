//! Whatever lies in slots, staging and landing memory: it breaks its link, or is bytes, and nothing else happens.

use fabcache_shmem::RemoteHeaps;
use fabcache_shmem::local::LocalJob;
use fabcache_shmem::slots::SlotWriter;
use fabcache_testbed::random::SplitMix64;
use fabcache_transport::openshmem::{ClientLink, HeapPlan, LinkError, PipeLink, Progress, ServerLink};
use fabcache_transport::{Link, Received};

use super::Awake;
use super::pair::{Pair, SERVER, SHAPE};

/// The number of random runs, unless this environment variable sets it.
const ROUNDS: u64 = 40;
const ROUNDS_VARIABLE: &str = "FABCACHE_HOSTILE_ROUNDS";
const STEPS: u64 = 3_000;

fn rounds() -> u64 {
    std::env::var(ROUNDS_VARIABLE).ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS)
}

fn run_any_order_of_steps(plan: HeapPlan) {
    for seed in 0..rounds() {
        let (mut random, job) = (SplitMix64::new(seed), LocalJob::new(2, plan.bytes()));
        let mut pair = Pair::new(&job, plan, 1);
        if random.once_in(2) {
            pair.interleave(seed);
        }
        // Some runs prefer one kind of step.
        let favourite = random.next_u64();
        for _ in 0..STEPS {
            let what = if random.once_in(3) { favourite } else { random.next_u64() };
            pair.act(what, random.next_u64() >> random.below(64));
            if random.once_in(200) {
                pair.settle();
            }
        }
        pair.finish();
    }
}

#[test]
fn all_bytes_arrive_and_links_restart_in_any_order_of_steps() {
    run_any_order_of_steps(Pair::plan(2));
}

#[test]
fn all_bytes_arrive_through_mutexes_in_any_order_of_steps() {
    run_any_order_of_steps(Pair::plan_with_mutexes(2));
}

#[test]
fn bytes_behind_a_full_pipe_arrive() {
    let plan = Pair::plan(2);
    let mut pair = Pair::new(&LocalJob::new(2, plan.bytes()), plan, 1);
    // The client sends, both ends progress; the worker receives nothing.
    while pair.act(0, 100_000) | pair.act(3, 0) | pair.act(6, 0) {}
    pair.finish();
}

#[test]
fn hostile_contents_break_only_their_link() {
    run_hostile_contents(Pair::plan(4));
}

#[test]
fn hostile_contents_break_only_their_link_with_mutexes() {
    run_hostile_contents(Pair::plan_with_mutexes(4));
}

fn run_hostile_contents(plan: HeapPlan) {
    let mut broken = [0; 2];
    for seed in 0..rounds() {
        let (mut random, job) = (SplitMix64::new(seed), LocalJob::new(4, plan.bytes()));
        // Memory of another PE, which nothing may change.
        let untouched = plan.requests(3);
        job.memory(SERVER).copy_in(untouched.start, &vec![7; (untouched.end - untouched.start) as usize]);
        let (mut attacked, mut other) = (Pair::new(&job, plan, 1), Pair::new(&job, plan, 2));
        for _ in 0..STEPS {
            let (what, amount) = (random.next_u64(), random.next_u64() >> random.below(64));
            other.act(what, amount);
            if random.once_in(20) {
                let bytes: Vec<u8> = (0..random.below(200)).map(|_| random.next_u64() as u8).collect();
                attacked.harm(random.below(2), random.next_u64(), random.next_u64(), &bytes);
            } else {
                attacked.act(random.next_u64(), amount);
            }
        }
        other.finish();
        attacked.settle();
        for (count, error) in broken.iter_mut().zip(attacked.broken()) {
            *count += u64::from(error.is_some());
        }
        let mut bytes = vec![0; (untouched.end - untouched.start) as usize];
        job.memory(SERVER).copy_out(untouched.start, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 7));
    }
    assert!(broken.iter().all(|count| *count > rounds() / 2), "{broken:?} links broke");
}

/// A server's end that is open, with its worker, and what writes its slots.
fn server(job: &LocalJob) -> (ServerLink, PipeLink, SlotWriter) {
    let plan = Pair::plan(2);
    let memory = |at, len| job.part(SERVER, at, len);
    let mut server =
        ServerLink::new(&plan, 1, SERVER, memory, std::sync::Arc::new(Awake)).expect("a descriptor");
    let worker = server.open(&mut job.of(SERVER)).expect("a descriptor");
    (server, worker, SlotWriter::new(SERVER, plan.requests(1).start, SHAPE.ring()))
}

/// A client's end that is closed, and what writes its slots.
fn client(job: &LocalJob) -> (ClientLink, SlotWriter) {
    let plan = Pair::plan(2);
    let client = ClientLink::new(&plan, 1, SERVER, |at, len| job.part(1, at, len));
    (client, SlotWriter::new(1, plan.answers(SERVER).start, SHAPE.ring()))
}

/// A message of this kind and number.
fn message(kind: u8, number: u32, rest: &[u64]) -> Vec<u8> {
    let mut message = [0; 16].to_vec();
    message[8] = kind;
    message[12..].copy_from_slice(&number.to_le_bytes());
    message.extend(rest.iter().flat_map(|word| word.to_le_bytes()));
    message
}

const DATA: u8 = 1;
const LONG: u8 = 2;
const BYE: u8 = 7;
const PROOF: u8 = 9;
const LENT: u8 = 10;

#[test]
fn messages_to_a_server_that_break_the_rules_end_its_link() {
    let long = |at, len| message(LONG, 2, &[at, len]);
    // After a message and the proof that it requires.
    for (last, what) in [
        (Vec::new(), "opens a link that is open"),
        (vec![0; 7], "has no token"),
        ([&[1; 8][..], &message(DATA, 2, &[7])[8..]].concat(), "has another token"),
        (message(LENT, 2, &[1 << 40, 9, 100]), "lends memory"),
        (message(LENT, 2, &[0, 0, 1, 1]), "lends memory behind bytes"),
        (long((64 << 10) - 1, 2), "is beyond the staging memory"),
        (long(u64::MAX, 2), "is beyond all memory"),
        (long(0, (64 << 10) + 1), "is longer than the staging memory"),
        (long(0, 0), "is about nothing"),
        (message(DATA, 3, &[7]), "leaves a gap"),
        (message(DATA, 1, &[7]), "comes again"),
        (message(0, 2, &[]), "is of no kind"),
        (message(PROOF, 2, &[0]), "proves what is proven"),
    ] {
        let job = LocalJob::new(2, Pair::plan(2).bytes());
        let (mut server, mut worker, mut slots) = server(&job);
        for message in [message(DATA, 0, &[5]), message(PROOF, 1, &[0])] {
            slots.write(&mut job.of(1), &message);
            server.progress(&mut job.of(SERVER)).expect("valid");
        }
        slots.write(&mut job.of(1), &last);
        slots.write(&mut job.of(1), &message(DATA, 3, &[6]));
        let error = server.progress(&mut job.of(SERVER)).expect_err(what);
        assert_eq!(server.progress(&mut job.of(SERVER)), Err(error), "a message that {what}");
        assert!(!server.has_work() && !server.has_ended(), "a message that {what}");
        let ends =
            (0..3).any(|_| worker.receive(&mut [0; 100]).expect("bytes that came before") == Received::End);
        assert!(ends, "a message that {what}");
        worker.send(&[std::io::IoSlice::new(b"x")]).expect_err("the link has ended");
    }
}

#[test]
fn messages_after_the_last_end_the_link() {
    for last in [message(DATA, 1, &[7]), message(BYE, 1, &[])] {
        let job = LocalJob::new(2, Pair::plan(2).bytes());
        let (mut server, mut worker, mut slots) = server(&job);
        slots.write(&mut job.of(1), &message(BYE, 0, &[]));
        slots.write(&mut job.of(1), &last);
        server.progress(&mut job.of(SERVER)).expect_err("nothing follows the last");
        assert_eq!(worker.receive(&mut [0; 9]).expect("the end"), Received::End);
    }
}

#[test]
fn messages_to_a_closed_server_are_errors() {
    let (plan, job) = (Pair::plan(2), LocalJob::new(2, Pair::plan(2).bytes()));
    let memory = |at, len| job.part(SERVER, at, len);
    let mut server =
        ServerLink::new(&plan, 1, SERVER, memory, std::sync::Arc::new(Awake)).expect("a descriptor");
    let mut slots = SlotWriter::new(SERVER, plan.requests(1).start, SHAPE.ring());
    slots.write(&mut job.of(1), &message(DATA, 0, &[7]));
    assert_eq!(server.progress(&mut job.of(SERVER)), Err(LinkError::Closed(24)));
    // Both ends have ended the link: nothing follows the empty message.
    let job = LocalJob::new(2, plan.bytes());
    let (mut server, worker, mut slots) = self::server(&job);
    drop(worker);
    server.progress(&mut job.of(SERVER)).expect("valid");
    slots.write(&mut job.of(1), &[]);
    slots.write(&mut job.of(1), &[]);
    assert_eq!(server.progress(&mut job.of(SERVER)), Err(LinkError::Closed(0)));
}

#[test]
fn messages_to_a_client_that_break_the_rules_end_its_link() {
    const PUT: u8 = 4;
    for (last, what) in [
        (Vec::new(), "opens a link that is open"),
        (vec![0; 7], "has no token"),
        (message(LONG, 0, &[0, 1]), "is for a server"),
        (message(LENT, 0, &[1 << 40, 9, 100]), "lends memory"),
        (message(PUT, 0, &[(64 << 10) - 1, 2]), "is beyond the landing memory"),
        (message(PUT, 0, &[u64::MAX, 2]), "is beyond all memory"),
        (message(3, 0, &[1]), "returns what was not sent"),
    ] {
        let job = LocalJob::new(2, Pair::plan(2).bytes());
        let ((mut client, mut slots), mut received) = (client(&job), Vec::new());
        slots.write(&mut job.of(SERVER), &[]);
        assert_eq!(client.progress(&mut job.of(1), &mut received), Ok(Progress::Restarted));
        slots.write(&mut job.of(SERVER), &last);
        slots.write(&mut job.of(SERVER), &message(DATA, 1, &[6]));
        let error = client.progress(&mut job.of(1), &mut received).expect_err(what);
        assert_eq!(client.progress(&mut job.of(1), &mut received), Err(error), "a message that {what}");
        assert!(!client.has_come() && received.is_empty(), "a message that {what}");
        assert_eq!(client.send(&mut job.of(1), b"x"), 0, "a message that {what}");
    }
}

#[test]
fn messages_to_a_closed_client_are_errors() {
    let job = LocalJob::new(2, Pair::plan(2).bytes());
    let ((mut client, mut slots), mut received) = (client(&job), Vec::new());
    slots.write(&mut job.of(SERVER), &message(DATA, 0, &[7]));
    assert_eq!(client.progress(&mut job.of(1), &mut received), Err(LinkError::Closed(24)));
    assert!(received.is_empty());
}

/// Heaps of which nothing can be read.
struct Unreadable(fabcache_shmem::local::LocalHeaps);

impl RemoteHeaps for Unreadable {
    fn pe(&self) -> usize {
        RemoteHeaps::pe(&self.0)
    }

    fn pes(&self) -> usize {
        RemoteHeaps::pes(&self.0)
    }

    fn get(&mut self, _: usize, _: u64, _: &mut [u8]) {}

    fn put(&mut self, pe: usize, offset: u64, from: &[u8]) {
        self.0.put(pe, offset, from);
    }

    fn put_word(&mut self, pe: usize, offset: u64, word: u64) {
        self.0.put_word(pe, offset, word);
    }

    fn compare_swap(&mut self, pe: usize, offset: u64, expected: u64, new: u64) -> u64 {
        self.0.compare_swap(pe, offset, expected, new)
    }

    fn atomic_set(&mut self, pe: usize, offset: u64, word: u64) {
        self.0.atomic_set(pe, offset, word);
    }

    fn fence(&mut self) {
        self.0.fence();
    }

    fn progress(&mut self) {}
}

#[test]
fn staged_bytes_that_cannot_be_read_are_not_passed_on() {
    let job = LocalJob::new(2, Pair::plan(2).bytes());
    let (mut server, mut worker, mut slots) = server(&job);
    slots.write(&mut job.of(1), &message(LONG, 0, &[0, 16 << 10]));
    server.progress(&mut job.of(SERVER)).expect("valid");
    slots.write(&mut job.of(1), &message(PROOF, 1, &[0]));
    let progress = server.progress(&mut Unreadable(job.of(SERVER)));
    assert_eq!(progress, Err(LinkError::Unread(16 << 10)));
    assert_eq!(worker.receive(&mut [0; 9]).expect("the end"), Received::End);
}
