//! `cargo xtask rdma`: tests the fabric over real libfabric providers.
//!
//! On this machine it uses the software providers. For verbs it emulates a machine with QEMU, whose kernel has soft-RoCE:
//! first within one device, then between two devices whose packets cross between network interfaces. Times there are
//! the emulator's.

mod archive;
mod kernel;
mod machine;
mod programs;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fabcache_testbed::fabric::ENVIRONMENT;

use crate::clients::install::make_packages_ready;
use crate::process::{self, Interrupt, Scratch};
use crate::test_programs::{self, Program};
use crate::test_results::{Results, indented, is_left_out};
use crate::workspace;

use kernel::Kernel;
use machine::{Machine, Step, StepResult};
use programs::TESTS;

/// The software providers, available on every machine.
const SOFTWARE: &[&str] = &["tcp;ofi_rxm", "shm"];

/// The environment of tests in the virtual machine: everything is emulated there, so they repeat less; and the
/// command that takes the link between rxe0 and rxe1 down or up.
const IN_MACHINE: &[(&str, &str)] = &[("FABCACHE_EMULATED", "1"), ("FABCACHE_LINK", "'bash /steps/link.sh'")];

/// The environment of the long tests.
const LONG: &[(&str, &str)] = &[("FABCACHE_LONG", "1"), ("FABCACHE_TORTURE_READS", "300000")];

/// The provider of a machine with RDMA.
const VERBS: &str = "verbs;ofi_rxm";

/// Time limits of one test program: on this machine, with `--long`, and in the emulated machine.
const PLAIN_TIME_MAX: Duration = Duration::from_secs(300);
const LONG_TIME_MAX: Duration = Duration::from_secs(3600);
const STEP_TIME_MAX: Duration = Duration::from_secs(600);

/// The name of the check that soft-RoCE works, and its time limit.
const CHECK: &str = "soft-RoCE itself";
const CHECK_SECONDS_MAX: u32 = 100;

/// Arrangements of a test's ends on devices: FABCACHE_SERVER_INTERFACE and FABCACHE_CLIENT_INTERFACE.
const ARRANGEMENTS: &[Arrangement] = &[
    Arrangement { name: "looped", server: "rxe0", client: "rxe0", crosses: false },
    Arrangement { name: "crossing", server: "rxe0", client: "rxe1", crosses: true },
];

struct Arrangement {
    name: &'static str,
    server: &'static str,
    client: &'static str,
    crosses: bool,
}

/// Runs the fabric tests over real providers.
#[derive(clap::Args)]
pub struct Args {
    /// Only run on this machine, over its software providers
    #[arg(long, conflicts_with_all = ["machine", "command"])]
    plain: bool,
    /// Only run in the emulated machine, over verbs
    #[arg(long)]
    machine: bool,
    /// Only run this bash command in the emulated machine, as root; its status is the exit status
    ///
    /// The machine has rxe0 (10.77.0.1) and rxe1 (10.77.0.2), and this machine's files, read-only.
    #[arg(long, value_name = "CMD", conflicts_with = "machine")]
    command: Option<String>,
    /// With --command: packets between rxe0 and rxe1 cross between interfaces
    #[arg(long, requires = "command")]
    cross: bool,
    /// Run the long forms of tests: gigabytes, two hundred clients, hundreds of thousands of reads
    #[arg(long, requires = "plain")]
    long: bool,
    /// Time limit of the emulated machine
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    limit: u64,
    /// Keep the output of every test, not only of failed ones
    #[arg(long)]
    keep_log: bool,
}

/// Runs the tests, or the command.
///
/// # Errors
/// A requirement is missing and cannot be installed, no kernel can be fetched, or a test fails.
pub fn run(args: &Args) -> Result<()> {
    let status = Session::new(args)?.run()?;
    if status != 0 {
        std::process::exit(status);
    }
    Ok(())
}

struct Session<'a> {
    args: &'a Args,
    /// The folder for logs, and for files that are kept between runs.
    folder: PathBuf,
    interrupt: Interrupt,
}

impl<'a> Session<'a> {
    fn new(args: &'a Args) -> Result<Self> {
        let interrupt = Interrupt::register()?;
        let packages = workspace::folder().join("tests/rdma");
        make_packages_ready(&packages, &interrupt)?;
        if !args.plain {
            ensure!(cfg!(target_arch = "x86_64"), "the emulated machine, and what it runs, are x86-64's");
            make_packages_ready(&packages.join("machine"), &interrupt)?;
        }
        let folder = workspace::target().join("rdma");
        fs::create_dir_all(&folder).with_context(|| format!("{} cannot be created", folder.display()))?;
        Ok(Self { args, folder, interrupt })
    }

    /// Returns the exit status of this program.
    fn run(&self) -> Result<i32> {
        if let Some(command) = &self.args.command {
            return self.run_command(command);
        }
        let programs = test_programs::build(TESTS, &self.interrupt)?;
        let mut results = Results::new(&self.folder, self.args.keep_log)?;
        if !self.args.machine {
            self.run_plain(&programs, &mut results)?;
        }
        if !self.args.plain {
            self.run_in_machine(&programs, &mut results)?;
        }
        results.end()?;
        Ok(0)
    }

    fn run_plain(&self, programs: &[Program], results: &mut Results) -> Result<()> {
        for provider in SOFTWARE {
            for program in programs {
                let name = format!("{}, {provider}", program.name());
                if is_left_out(program, provider, &name) {
                    continue;
                }
                let scratch = Scratch::create()?;
                let mut command = program.command(provider);
                command.envs(ENVIRONMENT.iter().copied()).env("FABCACHE_PROVIDER", provider);
                if self.args.long {
                    command.envs(LONG.iter().copied());
                }
                let time_max = if self.args.long { LONG_TIME_MAX } else { PLAIN_TIME_MAX };
                let begun = Instant::now();
                let run = process::run(&mut command, scratch.path(), time_max, &self.interrupt)?;
                let output = format!("{}{}", run.stdout, run.stderr);
                results.add_tests(&name, &output, run.failure, begun.elapsed())?;
                remove_leftover_files();
            }
        }
        Ok(())
    }

    fn run_in_machine(&self, programs: &[Program], results: &mut Results) -> Result<()> {
        let mut steps = Vec::new();
        for Arrangement { name, server, client, crosses } in ARRANGEMENTS {
            let arrangement = *name;
            let check =
                format!("exec timeout -k 5 {CHECK_SECONDS_MAX} bash /steps/check.sh {server} {client}");
            let name = format!("{VERBS} {name}");
            steps.push(Step { name: format!("{CHECK}, {name}"), script: check, crosses: *crosses });
            let environment = exported()
                + &format!(
                    "export FABCACHE_PROVIDER='{VERBS}' FABCACHE_SERVER_INTERFACE={server} FABCACHE_CLIENT_INTERFACE={client}\n"
                );
            for program in programs {
                let name = format!("{}, {name}", program.name());
                if !is_left_out(program, arrangement, &name) {
                    let script = environment.clone() + &program.script(arrangement, STEP_TIME_MAX);
                    steps.push(Step { name, script, crosses: *crosses });
                }
            }
        }
        self.machine(&self.kernel()?).run(&steps, self.limit(), false, |step, ended| {
            let StepResult { status, output, time } = ended;
            let failure = match status {
                0 => None,
                124 | 137 => Some("it did not end within its time".to_owned()),
                status => Some(format!("it ended with status {status}")),
            };
            if step.name.starts_with(CHECK) {
                let outcome = failure.map_or_else(|| Ok(format!("\n{}", indented(&output))), Err);
                return results.add(&step.name, &output, outcome, time);
            }
            results.add_tests(&step.name, &output, failure, time)
        })
    }

    fn run_command(&self, command: &str) -> Result<i32> {
        let step = Step { name: command.to_owned(), script: exported() + command, crosses: self.args.cross };
        let mut status = None;
        self.machine(&self.kernel()?).run(&[step], self.limit(), true, |_, ended| {
            status = Some(ended.status);
            Ok(())
        })?;
        status.context("the command was not run")
    }

    fn kernel(&self) -> Result<Kernel> {
        Kernel::ready(&self.folder, &self.interrupt)
    }

    fn machine<'k>(&'k self, kernel: &'k Kernel) -> Machine<'k> {
        Machine { kernel, console: self.folder.join("console.log"), interrupt: &self.interrupt }
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(self.args.limit)
    }
}

/// Removes files of the provider shm that killed processes left: some megabytes each, named `PID:DOMAIN:ENDPOINT`.
fn remove_leftover_files() {
    let Ok(files) = fs::read_dir("/dev/shm") else { return };
    for file in files.flatten() {
        let name = file.file_name();
        let numbers: Option<Vec<u32>> =
            name.to_str().and_then(|name| name.split(':').map(|word| word.parse().ok()).collect());
        if let Some([process, _, _]) = numbers.as_deref()
            && !Path::new(&format!("/proc/{process}")).exists()
        {
            // Fails for files of other users.
            let _ = fs::remove_file(file.path());
        }
    }
}

/// Returns the environment of all programs in the machine, as bash commands.
fn exported() -> String {
    let all = ENVIRONMENT.iter().chain(IN_MACHINE);
    all.map(|(name, value)| format!("export {name}={value}\n")).collect()
}
