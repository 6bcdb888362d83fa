//! Whole runs against test servers: no difference between equal servers, and every fault is found.

use std::sync::Arc;

use super::*;
use crate::fake::{self, Fault};
use crate::generate::Selection;
use crate::play::Servers;
use crate::saboteur::{Harm, Saboteur};
use crate::unit::{Ending, Step};

fn options(servers: Servers, timeout: Duration) -> Options {
    Options {
        servers,
        commands: 3000,
        seed: 1,
        selection: Selection::All,
        time_limit: None,
        differences_max: 1,
        twin: true,
        sharded: false,
        slow: false,
        shrink: true,
        coverage: false,
        timeout,
        progress: false,
        stop: Arc::default(),
    }
}

/// Returns sequences without the commands that end a connection, which the fake does not support.
fn open_sequences(selection: Selection, count: usize) -> Vec<Sequence> {
    let mut generator = Generator::new(7, selection);
    let mut sequences: Vec<_> = (0..count).map(|_| generator.next_sequence()).collect();
    for sequence in &mut sequences {
        sequence.steps.retain(|step| step.unit().is_some_and(|unit| unit.ending == Ending::Open));
        // The fake does not have the known differences.
        sequence.steps.retain(|step| step.unit().is_some_and(|unit| unit.drift.is_none()));
    }
    sequences
}

struct Outcome {
    commands: u64,
    differences: Vec<String>,
}

fn played(options: &Options, sequences: &[Sequence]) -> Outcome {
    let mut run = Run {
        options,
        start: Instant::now(),
        player: Player::new(options, options.timeout),
        rng: SplitMix64::new(3),
        commands: 0,
        replays: 0,
        found: Vec::new(),
        shown: Instant::now(),
    };
    for sequence in sequences {
        if run.found.len() == options.differences_max {
            break;
        }
        run.one(sequence).expect("the servers can be reached");
    }
    Outcome { commands: run.commands, differences: run.found.into_iter().map(Found::reported).collect() }
}

const PATIENT: Duration = Duration::from_secs(20);

#[test]
fn equal_servers_do_not_differ() {
    let servers = Servers { theirs: fake::start(Fault::None), ours: fake::start(Fault::None) };
    let outcome = played(&options(servers, PATIENT), &open_sequences(Selection::All, 60));
    assert_eq!(outcome.differences, Vec::<String>::new());
    assert!(outcome.commands > 3000, "{} commands", outcome.commands);
}

#[test]
fn cas_values_may_start_elsewhere() {
    let servers = Servers { theirs: fake::start(Fault::None), ours: fake::start(Fault::CountsElsewhere) };
    let outcome = played(&options(servers, PATIENT), &open_sequences(Selection::All, 40));
    assert_eq!(outcome.differences, Vec::<String>::new());
}

#[test]
fn a_fault_is_found_and_minimised() {
    let servers = Servers { theirs: fake::start(Fault::None), ours: fake::start(Fault::CountsWrong) };
    let outcome = played(&options(servers, PATIENT), &open_sequences(Selection::Text, 200));
    let text = outcome.differences.first().expect("a difference");
    // A set with the flags, an incr, and a get if the incr has no answer.
    assert!(text.contains("shrunk to 2 commands") || text.contains("shrunk to 3 commands"), "{text}");
    assert!(text.contains("sent (incr"), "{text}");
    assert!(text.contains("seed 1"), "{text}");
}

#[test]
fn similar_differences_are_reported_once() {
    let servers = Servers { theirs: fake::start(Fault::None), ours: fake::start(Fault::CountsWrong) };
    let options = Options { differences_max: 100, shrink: false, ..options(servers, PATIENT) };
    let outcome = played(&options, &open_sequences(Selection::Text, 300));
    assert!(outcome.differences.len() < 5, "{:?}", outcome.differences);
    assert!(outcome.differences.iter().any(|text| text.contains("more of this sort")));
}

#[test]
fn faults_across_answers_are_found() {
    for fault in [Fault::KeepsCas, Fault::IgnoresNoreply] {
        let servers = Servers { theirs: fake::start(Fault::None), ours: fake::start(fault) };
        let outcome = played(&options(servers, PATIENT), &open_sequences(Selection::Text, 200));
        assert!(!outcome.differences.is_empty(), "{fault:?} was not noticed");
    }
}

/// Alters answers in one way, rarely, and checks that it is detected.
fn harm(harm: Harm) {
    let theirs = fake::start(Fault::None);
    let saboteur = Saboteur::start(fake::start(Fault::None), harm, 5).expect("a proxy");
    let servers = Servers { theirs, ours: saboteur.address() };
    let options = Options { shrink: false, ..options(servers, Duration::from_secs(2)) };
    let outcome = played(&options, &open_sequences(Selection::All, 300));
    assert!(saboteur.done() > 0, "no opportunity for {harm:?}");
    assert!(!outcome.differences.is_empty(), "{harm:?} was not noticed");
}

#[test]
fn altered_answers_are_detected() {
    for kind in [Harm::Flip, Harm::Extra, Harm::NotStored, Harm::Hit, Harm::Status, Harm::BinaryCas] {
        harm(kind);
    }
}

#[test]
fn altered_meta_flags_are_detected() {
    for kind in [Harm::Cas, Harm::Win, Harm::Ttl] {
        harm(kind);
    }
}

#[test]
fn missing_answers_are_detected() {
    for kind in [Harm::Drop, Harm::Close, Harm::Silence] {
        harm(kind);
    }
}

#[test]
fn a_known_difference_must_match_exactly() {
    let entry = &drift::TABLE[0];
    assert!(entry.check(entry.theirs.as_bytes(), entry.ours.as_bytes(), false).is_ok());
    assert!(entry.check(entry.theirs.as_bytes(), entry.theirs.as_bytes(), true).is_ok());
    assert!(entry.check(entry.theirs.as_bytes(), entry.theirs.as_bytes(), false).is_err());
    assert!(entry.check(entry.ours.as_bytes(), entry.ours.as_bytes(), false).is_err());
    assert!(entry.check(entry.theirs.as_bytes(), b"ERROR \r\n", false).is_err());
}

#[test]
fn known_differences_are_unique_and_real() {
    let mut sent: Vec<_> = drift::TABLE.iter().map(|drift| (drift.setup, drift.sent)).collect();
    sent.sort_unstable();
    sent.dedup();
    assert_eq!(sent.len(), drift::TABLE.len());
    assert!(drift::TABLE.iter().all(|drift| drift.theirs != drift.ours && !drift.reason.is_empty()));
}

#[test]
fn an_incomplete_report_fails() {
    let report = Report {
        commands: 10,
        elapsed: Duration::ZERO,
        seed: 1,
        differences: Vec::new(),
        table: String::new(),
        rare: Vec::new(),
        unlisted: Vec::new(),
        unmet: Vec::new(),
        drifts: Vec::new(),
    };
    assert!(report.passed());
    assert!(report.text().contains("passed: 10 commands with seed 1"));
    let unmet = Report { unmet: vec!["get".into()], ..report.clone() };
    assert!(!unmet.passed());
    let rare = Report { rare: vec!["set".into()], ..report };
    assert!(!rare.passed() && rare.text().contains("Too rare"));
}

#[test]
fn pauses_are_between_batches() {
    let servers = Servers { theirs: fake::start(Fault::None), ours: fake::start(Fault::None) };
    let options = options(servers, PATIENT);
    let mut steps = open_sequences(Selection::Text, 1).remove(0).steps;
    steps.insert(1, Step::Pause(Duration::from_millis(30)));
    let start = Instant::now();
    let outcome = played(&options, &[Sequence { number: 9, steps }]);
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert!(outcome.differences.is_empty());
}
