//! One datagram and its answer.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::Framing;
use super::outbox::Outbox;
use crate::contract::{Kind, Link, Peer, Received, StreamLink};

/// One datagram and its answer.
#[derive(Debug)]
pub struct UdpLink {
    /// Shared with the datagrams that were received at the same time.
    outbox: Arc<Outbox>,
    framing: Framing,
    peer: SocketAddr,
    id: u16,
    request: Vec<u8>,
    read: usize,
    answer: Vec<u8>,
    /// Whether an answer lies in the outbox.
    is_posted: bool,
}

impl UdpLink {
    pub(super) fn new(
        outbox: &Arc<Outbox>,
        framing: Framing,
        peer: SocketAddr,
        id: u16,
        request: Vec<u8>,
    ) -> UdpLink {
        let outbox = Arc::clone(outbox);
        UdpLink { outbox, framing, peer, id, request, read: 0, answer: Vec::new(), is_posted: false }
    }
}

impl Link for UdpLink {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Received> {
        let left = &self.request[self.read..];
        if left.is_empty() {
            return Ok(Received::End);
        }
        let len = left.len().min(into.len());
        into[..len].copy_from_slice(&left[..len]);
        self.read += len;
        Ok(Received::Bytes(len))
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let before = self.answer.len();
        for part in parts {
            self.answer.extend_from_slice(part);
        }
        Ok(self.answer.len() - before)
    }

    fn flush(&mut self) -> io::Result<bool> {
        if !self.has_unsent() {
            // The answer comes later: the others do not wait for it, and are sent now if it is the last.
            self.outbox = Arc::new(self.outbox.another());
        }
        if !self.answer.is_empty() {
            let (framing, id) = (self.framing, self.id);
            self.outbox.add(self.peer, |send| (framing.seal)(id, &self.answer, send));
            self.answer.clear();
            self.is_posted = true;
            if Arc::strong_count(&self.outbox) > 1 {
                // The other answers are due soon, and the last of them sends all.
                return Ok(false);
            }
        }
        if std::mem::take(&mut self.is_posted) {
            self.outbox.send();
        }
        Ok(true)
    }

    fn has_unsent(&self) -> bool {
        self.is_posted || !self.answer.is_empty()
    }

    fn has_unread(&self) -> bool {
        self.read < self.request.len()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn peer(&self) -> Peer {
        Peer::Socket(self.peer)
    }

    fn kind(&self) -> Kind {
        Kind::Udp
    }

    fn into_stream(self: Box<Self>) -> Result<StreamLink, Box<dyn Link>> {
        Err(self)
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;
    use crate::contract::Listener;
    use crate::udp::{UdpListener, UdpOptions};

    /// Receives three datagrams of which the one at `late` is answered last.
    fn answer_late(late: usize) {
        let framing = Framing { open: |_| Some((0, 0)), seal: |_, answer, send| send(answer) };
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = UdpListener::bind(local, framing, &UdpOptions::default()).expect("loopback");
        let client = UdpSocket::bind(local).expect("loopback");
        client.connect(listener.address()).expect("loopback");
        client.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
        (0..3).for_each(|_| _ = client.send(b"request").expect("loopback"));
        let mut links = Vec::new();
        listener.accept_many(3, &mut links).expect("loopback");
        assert_eq!(links.len(), 3);
        let answer = |link: &mut Box<dyn Link>, answer: u8| {
            link.send(&[IoSlice::new(&[answer])]).expect("memory");
            link.flush().expect("loopback");
        };
        let mut heard = [0; 9];
        let mut hear = || (client.recv(&mut heard).expect("an answer"), heard[0]);
        let mut waiting = None;
        for (at, mut link) in links.into_iter().enumerate() {
            if at == late {
                link.flush().expect("nothing to send");
                waiting = Some(link);
            } else {
                answer(&mut link, at as u8);
            }
        }
        for at in (0..3).filter(|at| *at != late) {
            assert_eq!(hear(), (1, at as u8));
        }
        answer(waiting.as_mut().expect("one waits"), 9);
        assert_eq!(hear(), (1, 9));
    }

    #[test]
    fn answers_do_not_wait_for_one_that_comes_later() {
        (0..3).for_each(answer_late);
    }
}
