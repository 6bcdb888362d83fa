//! Links that this client has closed but whose servers may not know it.
//!
//! With some providers a server writes to this process's memory by address, whatever lies there now: with shm the
//! kernel copies without a check. So a link's memory must not go back to the program before the server has stopped
//! writing. It has stopped once it has closed its end of the link's socket, because it ends the link first; and it
//! closes the socket when it sees that this end is shut down. A stalled server sees that when it resumes. Until then
//! the link is kept. The program neither waits for that nor is written to.

use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::fork_guard::ForkGuard;
use super::link::Link;
use crate::bounds::{KEPT_LINKS_MAX, KEPT_WAIT};
use crate::socket::wait_for_any;

struct LingeringLink {
    _link: ForkGuard<Link>,
    socket: Arc<socket2::Socket>,
}

static KEPT: Mutex<Vec<LingeringLink>> = Mutex::new(Vec::new());

fn kept() -> MutexGuard<'static, Vec<LingeringLink>> {
    KEPT.lock().expect("no thread panics while it holds lingering links")
}

/// Keeps a link until its server has closed the socket.
pub fn keep(link: ForkGuard<Link>, socket: Arc<socket2::Socket>) {
    // A failure means that the socket is closed already.
    let _ = socket.shutdown(Shutdown::Write);
    // Nearly every server closes its end at once.
    let deadline = Instant::now() + KEPT_WAIT;
    while !has_ended(&socket) {
        let mut what = [PollFd::new(&*socket, PollFlags::IN)];
        if Instant::now() >= deadline || wait_for_any(&mut what, deadline).is_err() {
            kept().push(LingeringLink { _link: link, socket });
            return;
        }
    }
}

/// Drops the links that their servers have closed. Returns whether another link may linger.
pub fn has_room() -> bool {
    let mut kept = kept();
    let ended: Vec<LingeringLink> = kept.extract_if(.., |kept| has_ended(&kept.socket)).collect();
    let has_room = kept.len() < KEPT_LINKS_MAX;
    drop(kept);
    drop(ended);
    has_room
}

/// The server has closed its socket or exited.
fn has_ended(socket: &socket2::Socket) -> bool {
    let mut doorbells = [0; 64];
    loop {
        match rustix::net::recv(socket, &mut doorbells[..], RecvFlags::DONTWAIT) {
            Ok((_, 1..)) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return false,
            Ok((_, 0)) | Err(_) => return true,
        }
    }
}
