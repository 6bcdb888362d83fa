//! The TCP connections to a server that is read over the fabric. They wake the server, and their end means it is gone.
//!
//! A server has an endpoint for each worker, and a connection belongs to one worker: a doorbell on it wakes only that
//! worker. So each connection is stored with the endpoint that it wakes.

use std::sync::{Arc, Mutex, Weak};

use fabcache_fabric::RemoteMemory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::Socket;

use crate::socket;

/// The poll event of a socket whose peer is gone, however much unread data it holds.
pub const HAS_ENDED: PollFlags = PollFlags::RDHUP;

/// The connections to one server.
#[derive(Debug)]
pub struct Sockets(Mutex<Vec<KnownSocket>>);

#[derive(Debug)]
struct KnownSocket {
    socket: Weak<Socket>,
    /// The server's endpoint that it wakes.
    end: ServerEnd,
}

/// An endpoint of a server.
#[derive(Clone, Debug)]
pub struct ServerEnd {
    /// Its fabric address.
    pub name: Arc<[u8]>,
    /// The region as registered with this endpoint; other endpoints may have other keys for it.
    pub memory: RemoteMemory,
}

impl Sockets {
    /// Returns a set with one connection, which wakes the endpoint of this name.
    pub fn new(socket: &Arc<Socket>, name: &[u8], memory: RemoteMemory) -> Sockets {
        let end = ServerEnd { name: name.into(), memory };
        Sockets(Mutex::new(vec![KnownSocket { socket: Arc::downgrade(socket), end }]))
    }

    /// Adds the connections of another set to the same server.
    pub fn add(&self, other: &Sockets) {
        let mut sockets = self.lock();
        sockets.retain(|known| known.socket.strong_count() > 0);
        sockets.append(&mut other.lock());
    }

    /// Returns the newest connection.
    pub fn newest(&self) -> Option<Arc<Socket>> {
        self.lock().iter().rev().find_map(|known| known.socket.upgrade())
    }

    /// Returns the endpoint that the newest connection wakes.
    pub fn newest_end(&self) -> Option<ServerEnd> {
        let sockets = self.lock();
        let newest = sockets.iter().rev().find(|known| known.socket.strong_count() > 0);
        newest.map(|known| known.end.clone())
    }

    /// Wakes the worker of this endpoint; false if no connection to it is open.
    pub fn notify(&self, end: &[u8]) -> bool {
        let sockets = self.lock();
        let mut waking = sockets.iter().rev().filter(|known| *known.end.name == *end);
        let Some(socket) = waking.find_map(|known| known.socket.upgrade()) else { return false };
        drop(sockets);
        socket::notify(&socket);
        true
    }

    /// Returns whether the server has closed all connections. Those that this client closed do not count.
    pub fn have_ended(&self) -> bool {
        let mut sockets = self.lock();
        let mut any = false;
        sockets.retain(|known| {
            let Some(socket) = known.socket.upgrade() else { return false };
            let has_ended = has_ended(&socket);
            any |= has_ended;
            !has_ended
        });
        any && sockets.is_empty()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<KnownSocket>> {
        self.0.lock().expect("no thread panics while it holds a server's sockets")
    }
}

fn has_ended(socket: &Socket) -> bool {
    let mut what = [PollFd::new(socket, HAS_ENDED)];
    poll(&mut what, Some(&Timespec::default())).is_ok() && !what[0].revents().is_empty()
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn memory(key: u64) -> RemoteMemory {
        RemoteMemory { address: 0, key, bytes: 4096 }
    }

    fn pair() -> (Arc<Socket>, UnixStream) {
        let (own, other) = UnixStream::pair().expect("sockets");
        (Arc::new(Socket::from(std::os::fd::OwnedFd::from(own))), other)
    }

    #[test]
    fn server_with_all_connections_closed_is_gone() {
        let ((first, mut one), (second, two)) = (pair(), pair());
        let sockets = Sockets::new(&first, b"0", memory(1));
        sockets.add(&Sockets::new(&second, b"1", memory(1)));
        // Unread doorbells.
        one.write_all(b"!!").expect("room");
        assert!(!sockets.have_ended());
        drop(two);
        assert!(!sockets.have_ended(), "the server may close one connection and stay");
        drop(one);
        assert!(sockets.have_ended());
        drop((first, second));
        assert!(sockets.newest().is_none() && sockets.newest_end().is_none());
        assert!(!sockets.have_ended(), "connections closed here do not count");
    }

    /// Counts the doorbells received.
    fn heard(mut other: &UnixStream) -> usize {
        other.set_nonblocking(true).expect("a socket");
        let mut doorbells = [0; 64];
        match other.read(&mut doorbells) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn doorbells_go_to_the_endpoint_that_is_read() {
        let ((first, one), (second, two), (third, three)) = (pair(), pair(), pair());
        let sockets = Sockets::new(&first, b"worker 0", memory(1));
        sockets.add(&Sockets::new(&second, b"worker 0", memory(1)));
        sockets.add(&Sockets::new(&third, b"worker 1", memory(2)));
        let all = || [&one, &two, &three].map(heard);
        assert!(sockets.notify(b"worker 0") && all() == [0, 1, 0], "the newest socket of that worker");
        assert!(sockets.notify(b"worker 1") && all() == [0, 0, 1]);
        assert!(!sockets.notify(b"worker 2") && all() == [0; 3], "no other worker is woken instead");
        let newest = || sockets.newest_end().map(|end| (end.name.to_vec(), end.memory.key));
        assert_eq!(newest(), Some((b"worker 1".to_vec(), 2)), "with the key of that endpoint");
        drop((second, third));
        assert!(sockets.notify(b"worker 0"), "the worker has another socket");
        assert_eq!(heard(&one), 1);
        assert!(!sockets.notify(b"worker 1"));
        assert_eq!(newest(), Some((b"worker 0".to_vec(), 1)), "a worker that can be woken");
    }
}
