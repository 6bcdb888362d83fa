//! Running in the background.
//!
//! The process forks before it has a thread, a mapping or a listener. The foreground process waits for a word through
//! a pipe, so that it can say whether the server came up, and why not.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use nix::unistd::{ForkResult, fork, setsid};

/// The pipe to the foreground process.
#[derive(Debug)]
pub struct Foreground(File);

/// The word that reports success to the foreground process.
const READY: &str = "ready";

/// Continues in a child process with a session of its own. The parent does not return: it exits with the status that
/// the child reports.
///
/// # Errors
/// The system refuses.
pub fn enter() -> Result<Foreground> {
    let (reader, writer) = rustix::pipe::pipe().context("cannot make a pipe to the background process")?;
    // SAFETY: no other thread exists yet, so the child may do anything.
    let forked = unsafe { fork() }.context("cannot fork into the background (-d)")?;
    match forked {
        ForkResult::Parent { .. } => {
            drop(writer);
            std::process::exit(wait_for_word(reader));
        }
        ForkResult::Child => {
            drop(reader);
            setsid().context("cannot start a session")?;
            std::env::set_current_dir("/").context("cannot change to /")?;
            Ok(Foreground(File::from(writer)))
        }
    }
}

fn wait_for_word(reader: OwnedFd) -> i32 {
    let mut word = String::new();
    let failure = match File::from(reader).read_to_string(&mut word) {
        Ok(_) if word == READY => return 0,
        Ok(_) if word.is_empty() => "the background process ended without a word".to_owned(),
        Ok(_) => word,
        Err(error) => format!("cannot hear from the background process: {error}"),
    };
    // Without a reader of stderr, the exit status is all that is left.
    let _ = writeln!(std::io::stderr(), "fabcached: {failure}");
    1
}

impl Foreground {
    /// Reports that the server is ready: the foreground process exits, and the terminal is released.
    ///
    /// # Errors
    /// The system refuses.
    pub fn is_ready(mut self) -> Result<()> {
        let null =
            File::options().read(true).write(true).open("/dev/null").context("cannot open /dev/null")?;
        rustix::stdio::dup2_stdin(&null).context("cannot let the terminal go")?;
        rustix::stdio::dup2_stdout(&null).context("cannot let the terminal go")?;
        rustix::stdio::dup2_stderr(&null).context("cannot let the terminal go")?;
        self.0.write_all(READY.as_bytes()).context("cannot tell the foreground process")
    }

    /// The server did not come up.
    pub fn failed(mut self, error: &anyhow::Error) {
        let _ = write!(self.0, "{error:#}");
    }
}
