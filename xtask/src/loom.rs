//! `cargo xtask loom`: checks models of the lock-free code, in every interleaving within their bounds.
//!
//! The models are tests of a separate build (`--cfg loom`, profile `loom`), in a separate target
//! folder. Each runs in its own process, so that an aborted one is reported by name.
//!
//! Some models must fail without a guard or an ordering of the code, which shows that they detect the error:
//! `fabcache_layout::sync::without` leaves it out when the program runs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::workspace;

/// The crates that have models.
const PACKAGES: &[&str] = &["fabcache-layout", "fabcache-shmem", "fabcache-store"];

/// The readers' guards and the server's orderings, each with models that must fail without it.
const GUARDS: &[(&str, &[&str])] = &[
    ("dead_mark", &["without_dead_mark_fails"]),
    ("generation", &["without_generation_fails"]),
    ("moved", &["without_moved_fails"]),
    ("wake_fence", &["without_wake_fence_fails"]),
    ("dead_first", &["old_version_is_not_read_at_its_location"]),
    ("dead_checked", &["dead_item_is_not_read_after_its_mark"]),
    ("count_last", &["segment_is_reused_only_after_slots_of_its_dead_items_changed"]),
    ("count_release", &["segment_is_reused_only_after_slots_of_its_dead_items_changed"]),
    ("seen_reload", &["batched_read_meets_a_reused_segment", "successor_of_an_expired_item_is_not_removed"]),
    ("unverified_first", &["damaged_item_is_not_read_though_its_segment_is_verified"]),
    ("intact_reload", &["damaged_item_is_not_read_though_its_segment_is_verified"]),
    ("verified_release", &["damaged_item_is_not_read_though_its_segment_is_verified"]),
    ("generation_first", &["unchanged_counter_shows_that_the_item_was_not_overwritten"]),
    ("limit_first", &["cas_is_not_given_before_its_limit_is_stored"]),
    ("liveness_release", &["reader_of_an_incarnation_sees_its_recovery"]),
    ("generation_before_free", &["reader_of_a_reused_segment_sees_its_generation_end"]),
    ("recovered_release", &["dropped_item_is_not_read_after_its_group_is_checked"]),
    (
        "recovered_once",
        &["group_is_checked_once_before_it_is_written", "key_is_replaced_beside_a_second_recovery"],
    ),
    (
        "copy_first",
        &["key_is_read_beside_a_second_recovery", "key_is_read_on_the_same_host_beside_a_second_recovery"],
    ),
    ("recovered_last", &["recovery_ends_after_its_last_group"]),
    ("reserve_acquire", &["late_reservation_has_the_new_generation"]),
    ("reserve_fence", &["reader_of_a_reused_segment_sees_its_generation_end"]),
    ("seal_last", &["sealed_is_published_after_the_last_commit"]),
    ("return_release", &["returned_space_is_reserved_once_and_sealed_whole"]),
    ("return_last", &["space_with_a_reservation_behind_it_is_not_returned"]),
    ("index_fence", &["key_is_found_though_its_old_table_is_reused"]),
    ("pin_fence", &["pinned_segment_is_not_reused"]),
    ("free_fence", &["pinned_segment_is_not_reused"]),
    ("unpin_release", &["pinned_segment_is_not_reused"]),
    ("flash_pin_fence", &["flash_segment_is_not_freed_while_it_is_read"]),
    ("flash_free_fence", &["flash_segment_is_not_freed_while_it_is_read"]),
    ("flash_live_first", &["item_returns_to_flash_unless_its_segment_is_retired"]),
    ("flash_retiring_first", &["item_returns_to_flash_unless_its_segment_is_retired"]),
    ("flash_death_first", &["search_for_dead_segments_misses_no_death"]),
    ("flash_moved_is_same", &["item_changed_while_it_is_moved_on_flash_stays"]),
    ("slot_fence", &["messages_arrive_whole_and_in_order", "data_is_seen_with_the_message_about_it"]),
    ("slot_acquire", &["messages_arrive_whole_and_in_order", "data_is_seen_with_the_message_about_it"]),
    ("sleep_fence", &["work_is_seen_or_wakes_a_thread"]),
    ("sleep_wake_fence", &["work_is_seen_or_wakes_a_thread"]),
    ("polling_fence", &["work_is_seen_or_wakes_a_thread"]),
    ("lock_is_work", &["work_behind_a_lock"]),
    ("slot_lock_acquire", &["mutex_orders"]),
    ("slot_unlock_fence", &["mutex_orders"]),
    ("slot_copy_first", &["slot_is_written_again_only_after_its_message_was_copied"]),
    ("insert_first", &["key_in_the_first_slot_is_found", "key_in_its_home_bucket_is_found"]),
];

/// Checks models of the lock-free code.
#[derive(clap::Args)]
pub struct Args {
    /// Only models whose names contain this
    filter: Option<String>,
    /// Models to run at a time [default: one per CPU]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Explore each model for at most so many seconds [default: until no interleaving is left]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
}

/// A test of a built program.
struct Model {
    program: PathBuf,
    name: String,
    /// The guard that is left out.
    without: Option<&'static str>,
    /// The longest time to explore it.
    seconds_max: Option<u32>,
}

/// The result of one model.
struct Outcome {
    time: Duration,
    /// Its output, if it failed.
    failure: Option<String>,
}

/// Builds the models and runs them in parallel.
///
/// # Errors
/// The models do not build, no name matches, or a model failed.
pub fn run(args: &Args) -> Result<()> {
    let started = Instant::now();
    let mut models = Vec::new();
    for program in build()? {
        models.extend(models_of(&program, args)?);
    }
    ensure!(!models.is_empty(), "no model has {:?} in its name", args.filter.as_deref().unwrap_or_default());
    let jobs = args.jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from)).max(1);
    let failed = run_all(&models, jobs, None)?;
    if let Some(first) = failed.first() {
        bail!(
            "{} of {} models failed; run one alone with `cargo xtask loom {first}`",
            failed.len(),
            models.len()
        );
    }
    for (guard, names) in GUARDS {
        check_guard(guard, names, &models, jobs, args.filter.is_none())?;
    }
    println!("{} models hold, {:.0?} with the build", models.len(), started.elapsed());
    println!("one alone: cargo xtask loom NAME; deeper: LOOM_MAX_PREEMPTIONS=3 cargo xtask loom NAME");
    Ok(())
}

/// Runs the models about a guard without it, and checks that they fail. `all`: every model was selected.
fn check_guard(guard: &'static str, names: &[&str], models: &[Model], jobs: usize, all: bool) -> Result<()> {
    let mut controls = Vec::new();
    for name in names {
        let about = models.iter().filter(|model| model.name.contains(name));
        let before = controls.len();
        controls.extend(about.map(|model| Model {
            program: model.program.clone(),
            name: model.name.clone(),
            without: Some(guard),
            seconds_max: None,
        }));
        ensure!(controls.len() > before || !all, "no model has {name:?} in its name, as {guard} needs");
    }
    if controls.is_empty() { Ok(()) } else { check_all_fail(guard, &controls, jobs) }
}

fn check_all_fail(without: &str, controls: &[Model], jobs: usize) -> Result<()> {
    println!("without {without}:");
    let failed = run_all(controls, jobs, Some("FAILED, as it must"))?;
    if let Some(held) = controls.iter().find(|control| !failed.contains(&&*control.name)) {
        bail!("{} holds without {without}: it does not detect the error", held.name);
    }
    Ok(())
}

/// Builds the models; returns the programs.
fn build() -> Result<Vec<PathBuf>> {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--quiet", "--profile", "loom", "--lib", "--no-run"]);
    cargo
        .args(["--message-format", "json-render-diagnostics", "--target-dir"])
        .arg(workspace::target().join("loom"));
    for package in PACKAGES {
        cargo.args(["--package", package]);
    }
    cargo.env("RUSTFLAGS", "--cfg loom").env_remove("CARGO_ENCODED_RUSTFLAGS");
    let output = cargo.stderr(Stdio::inherit()).output();
    let output = output.context("cargo cannot be started")?;
    ensure!(output.status.success(), "the models do not build");
    let messages = String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")?;
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).context("cargo's message is not JSON")?;
        if let Some(program) = message["executable"].as_str() {
            programs.push(program.into());
        }
    }
    ensure!(programs.len() == PACKAGES.len(), "{} programs were built, not one a crate", programs.len());
    Ok(programs)
}

fn models_of(program: &Path, args: &Args) -> Result<Vec<Model>> {
    let output = Command::new(program).arg("--list").args(args.filter.as_deref()).output()?;
    ensure!(output.status.success(), "{} does not tell its models", program.display());
    let list = String::from_utf8(output.stdout)?;
    let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
    let model = |name: &str| Model {
        program: program.into(),
        name: name.into(),
        without: None,
        seconds_max: args.seconds,
    };
    Ok(names.map(model).collect())
}

/// Runs all models; returns the names of those that failed. An expected failure is reported in the
/// words of `expected`, another one with the model's output.
fn run_all<'m>(models: &'m [Model], jobs: usize, expected: Option<&str>) -> Result<Vec<&'m str>> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    let work = || -> Result<()> {
        while let Some(model) = models.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = model.run()?;
            let seconds = outcome.time.as_secs_f64();
            match outcome.failure {
                None if model.seconds_max.is_some_and(|max| seconds >= max.into()) => {
                    println!("{seconds:6.1} s  {}: holds so far", model.name);
                }
                None => println!("{seconds:6.1} s  {}", model.name),
                Some(output) => {
                    let words = expected.map_or_else(|| format!("FAILED\n{output}"), str::to_owned);
                    println!("{seconds:6.1} s  {} {words}", model.name);
                    failed.lock().expect("no thread panics while it notes a failure").push(&*model.name);
                }
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })?;
    Ok(failed.into_inner().expect("no thread panics while it notes a failure"))
}

impl Model {
    fn run(&self) -> Result<Outcome> {
        let started = Instant::now();
        let mut command = Command::new(&self.program);
        command.args(["--exact", &self.name, "--test-threads", "1"]);
        match self.without {
            Some(guard) => command.env("FABCACHE_WITHOUT", guard),
            None => command.env_remove("FABCACHE_WITHOUT"),
        };
        if let Some(seconds) = self.seconds_max {
            // It looks at the clock once in so many interleavings.
            command.env("LOOM_MAX_DURATION", seconds.to_string()).env("LOOM_CHECKPOINT_INTERVAL", "1000");
        }
        let output =
            command.output().with_context(|| format!("{} cannot be started", self.program.display()))?;
        let failure = (!output.status.success()).then(|| {
            let text = [output.stdout, output.stderr].concat();
            format!("{}\n{}", String::from_utf8_lossy(&text).trim(), output.status)
        });
        Ok(Outcome { time: started.elapsed(), failure })
    }
}
