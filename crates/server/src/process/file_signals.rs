//! Signals of the kernel that end a process which uses a file: SIGBUS and SIGXFSZ.

use anyhow::{Context, Result};
use nix::libc;
use signal_hook::consts::{SIGBUS, SIGXFSZ};
use signal_hook::low_level::{emulate_default_handler, register};

/// The last line of a process that SIGBUS kills.
const NO_PAGE: &[u8] =
    b"fabcached: SIGBUS: cannot obtain a page of the memory: the file system of the memory file (-e) is \
    full, the file was cut, or there are too few huge pages\n";

/// Reports SIGBUS before it ends the process, and lets a write beyond the limit of file sizes fail instead of ending it.
///
/// # Errors
/// The system refuses.
pub fn report() -> Result<()> {
    let fail = || {
        let mut stderr = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
        // A full pipe that nobody reads must not keep the process alive.
        // SAFETY: poll(2) is async-signal-safe; it writes only the one structure.
        let can_write = unsafe { libc::poll(&raw mut stderr, 1, 0) } == 1;
        if can_write {
            // SAFETY: write(2) is async-signal-safe; it reads only the static bytes, of this length.
            unsafe { libc::write(libc::STDERR_FILENO, NO_PAGE.as_ptr().cast(), NO_PAGE.len()) };
        }
        let _ = emulate_default_handler(SIGBUS);
    };
    // SAFETY: the action is async-signal-safe: it calls poll(2), write(2), and `emulate_default_handler`, which promises to be.
    // Neither allocates, locks, panics or unwinds.
    unsafe { register(SIGBUS, fail) }.context("cannot handle SIGBUS")?;
    // SAFETY: the action does nothing.
    unsafe { register(SIGXFSZ, || {}) }.context("cannot handle SIGXFSZ")?;
    Ok(())
}
