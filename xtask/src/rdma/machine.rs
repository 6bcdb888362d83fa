//! A machine emulated by QEMU, with soft-RoCE, that runs commands on this machine's files.
//!
//! It mounts this machine's root read-only below a file system in memory, so its writes are lost when it stops. A shared
//! folder passes steps in, and their output and status back. It has no external network.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::kernel::Kernel;
use crate::process::{Guarded, Interrupt, Scratch, describe, read};
use crate::test_results::{indented, last_lines};

const INIT: &str = include_str!("init.sh");
const GUEST: &str = include_str!("guest.sh");
const CROSS: &str = include_str!("cross.sh");
const CHECK: &str = include_str!("check.sh");
const LINK: &str = include_str!("link.sh");

/// The emulator's number of CPUs: with more, CPUs that spin on completion queues would run instead of those with work.
const CPUS: &str = "2";

/// Memory limit; allocated on use.
const MEMORY: &str = "3G";

/// Time limit from the start to the first step; it takes seven seconds on an idle host.
const START_TIME_MAX: Duration = Duration::from_secs(240);

/// Time limit from the last step to the end.
const STOP_TIME_MAX: Duration = Duration::from_secs(20);

/// A command to run in the machine.
pub struct Step {
    /// The name to print.
    pub name: String,
    /// The bash script, run as root.
    pub script: String,
    /// From this step on, packets between the two devices cross between interfaces.
    pub crosses: bool,
}

/// The result of a step.
pub struct StepResult {
    pub status: i32,
    pub output: String,
    pub time: Duration,
}

/// A machine that is not yet running.
pub struct Machine<'a> {
    pub kernel: &'a Kernel,
    /// The file that keeps the machine's console output.
    pub console: PathBuf,
    pub interrupt: &'a Interrupt,
}

impl Machine<'_> {
    /// Starts the machine, runs the steps, and reports each as it ends; with `aloud`, prints their output too.
    ///
    /// # Errors
    /// It does not start, or stops before all steps have run, or they exceed the time limit.
    pub fn run(
        &self,
        steps: &[Step],
        time_max: Duration,
        aloud: bool,
        mut ended: impl FnMut(&Step, StepResult) -> Result<()>,
    ) -> Result<()> {
        let scratch = Scratch::create()?;
        let mut qemu = self.start(steps, scratch.path())?;
        let outcome = self.watch(&mut qemu, steps, scratch.path(), time_max, aloud, &mut ended);
        if outcome.is_ok() {
            qemu.wait(STOP_TIME_MAX, self.interrupt)?;
        }
        if outcome.is_err() {
            let (console, faults) = (read(&self.console), read(&scratch.path().join("qemu")));
            println!("      the machine's console, in {}, ends so:", self.console.display());
            print!("{}", indented(&last_lines(&format!("{faults}{console}"), 30)));
        }
        outcome
    }

    fn start(&self, steps: &[Step], folder: &Path) -> Result<Guarded> {
        let shared = folder.join("steps");
        fs::create_dir(&shared)?;
        fs::write(shared.join("guest.sh"), GUEST)?;
        fs::write(shared.join("cross.sh"), CROSS)?;
        fs::write(shared.join("check.sh"), CHECK)?;
        fs::write(shared.join("link.sh"), LINK)?;
        for (n, step) in steps.iter().enumerate() {
            let before = if step.crosses { "/bin/bash /steps/cross.sh || exit\n" } else { "" };
            fs::write(shared.join(format!("{n}.sh")), format!("{before}{}\n", step.script))?;
        }
        let initial = folder.join("initial");
        fs::write(&initial, self.kernel.initial_files(INIT)?)?;
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", CPUS]);
        qemu.args(["-m", MEMORY, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        qemu.arg("-kernel").arg(self.kernel.image()).arg("-initrd").arg(&initial);
        let options = "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off tsc=reliable no_timer_check";
        qemu.args(["-append", options, "-serial"]).arg(format!("file:{}", escaped(&self.console)));
        let root = "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap";
        qemu.args(["-fsdev", root, "-device", "virtio-9p-pci,fsdev=root,mount_tag=root"]);
        let steps = format!("local,id=steps,path={},security_model=none", escaped(&shared));
        qemu.args(["-fsdev", &steps, "-device", "virtio-9p-pci,fsdev=steps,mount_tag=steps"]);
        // An old file would be mistaken for the new one.
        let _ = fs::remove_file(&self.console);
        let output = File::create(folder.join("qemu"))?;
        Guarded::spawn(&mut qemu, output.try_clone()?, output)
    }

    fn watch(
        &self,
        qemu: &mut Guarded,
        steps: &[Step],
        folder: &Path,
        time_max: Duration,
        aloud: bool,
        ended: &mut impl FnMut(&Step, StepResult) -> Result<()>,
    ) -> Result<()> {
        let shared = folder.join("steps");
        let started = Instant::now();
        self.wait_for(qemu, &shared.join("up"), started + START_TIME_MAX.min(time_max), || Ok(()))
            .context("the machine does not start")?;
        println!(
            "      the machine is up after {:.1} s, Linux {}",
            started.elapsed().as_secs_f64(),
            self.kernel.version()
        );
        for (n, step) in steps.iter().enumerate() {
            let begun = Instant::now();
            let log = shared.join(format!("{n}.log"));
            let mut reported = 0;
            let mut tell = || if aloud { print_appended(&log, &mut reported) } else { Ok(()) };
            let status = shared.join(format!("{n}.status"));
            self.wait_for(qemu, &status, started + time_max, &mut tell)
                .inspect_err(|_| {
                    print!("      {} went so far:\n{}", step.name, indented(&last_lines(&read(&log), 30)))
                })
                .with_context(|| step.name.clone())?;
            tell()?;
            let status = read(&status).trim().parse().context("a step's status is no number")?;
            ended(step, StepResult { status, output: read(&log), time: begun.elapsed() })?;
        }
        Ok(())
    }

    /// Waits for a file that the machine creates, and calls `meanwhile` repeatedly.
    fn wait_for(
        &self,
        qemu: &mut Guarded,
        file: &Path,
        deadline: Instant,
        mut meanwhile: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        loop {
            // Checked before the file, which may be the last thing that the machine created.
            let status = qemu.status()?;
            if file.exists() {
                return Ok(());
            }
            if let Some(status) = status {
                bail!("the machine stopped: {}", describe(status));
            }
            ensure!(Instant::now() < deadline, "all of it took longer than it may");
            meanwhile()?;
            for _ in 0..10 {
                self.interrupt.pause()?;
            }
        }
    }
}

/// Prints what was appended to a file since the last call.
fn print_appended(file: &Path, reported: &mut u64) -> Result<()> {
    let Ok(mut file) = File::open(file) else { return Ok(()) };
    file.seek(SeekFrom::Start(*reported))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    *reported += bytes.len() as u64;
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&bytes)?;
    Ok(stdout.flush()?)
}

/// Escapes a path for QEMU's options, where a comma is doubled.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}
