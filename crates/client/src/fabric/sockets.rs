//! The TCP connections to a server whose items are read from afar: they ring for it, and their end is the server's.

use std::sync::{Arc, Mutex, Weak};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SendFlags;
use socket2::Socket;

/// What a socket tells of when the other end is gone, whatever lies in it unread.
pub const HAS_ENDED: PollFlags = PollFlags::RDHUP;

/// Those that there are of the connections of one server.
#[derive(Debug)]
pub struct Sockets(Mutex<Vec<Weak<Socket>>>);

impl Sockets {
    /// The first.
    pub fn new(socket: &Arc<Socket>) -> Sockets {
        Sockets(Mutex::new(vec![Arc::downgrade(socket)]))
    }

    /// Those of the other are connections of the same server.
    pub fn add(&self, other: &Sockets) {
        let mut sockets = self.lock();
        sockets.retain(|socket| socket.strong_count() > 0);
        sockets.append(&mut other.lock());
    }

    /// The newest.
    pub fn newest(&self) -> Option<Arc<Socket>> {
        self.lock().iter().rev().find_map(Weak::upgrade)
    }

    /// Wakes the server.
    pub fn ring(&self) {
        if let Some(socket) = self.newest() {
            // A socket full of bells rings as well.
            let _ = rustix::net::send(&*socket, b"!", SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// The server has ended all that there were. Where this client has closed them itself nothing is known.
    pub fn have_ended(&self) -> bool {
        let mut sockets = self.lock();
        let mut any = false;
        sockets.retain(|socket| {
            let Some(socket) = socket.upgrade() else { return false };
            let has_ended = has_ended(&socket);
            any |= has_ended;
            !has_ended
        });
        any && sockets.is_empty()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Socket>>> {
        self.0.lock().expect("no thread panics while it looks at a server's sockets")
    }
}

fn has_ended(socket: &Socket) -> bool {
    let mut what = [PollFd::new(socket, HAS_ENDED)];
    poll(&mut what, Some(&Timespec::default())).is_ok() && !what[0].revents().is_empty()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> (Arc<Socket>, UnixStream) {
        let (own, other) = UnixStream::pair().expect("sockets");
        (Arc::new(Socket::from(std::os::fd::OwnedFd::from(own))), other)
    }

    #[test]
    fn a_server_has_left_when_it_has_ended_them_all() {
        let ((first, mut one), (second, two)) = (pair(), pair());
        let sockets = Sockets::new(&first);
        sockets.add(&Sockets::new(&second));
        // Bells that nobody took.
        one.write_all(b"!!").expect("room");
        assert!(!sockets.have_ended());
        drop(two);
        assert!(!sockets.have_ended(), "it may end a connection and stay");
        drop(one);
        assert!(sockets.have_ended());
        drop((first, second));
        assert!(sockets.newest().is_none());
        assert!(!sockets.have_ended(), "of those that were closed here nothing is known");
    }
}
