//! The answers to datagrams that were received together, sent by as few system calls as possible.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg};

/// Datagrams sent by one system call.
const SENT_TOGETHER_MAX: usize = 64;

/// The datagrams of several answers. The last owner's drop sends those that are left.
#[derive(Debug)]
pub(super) struct Outbox {
    socket: Arc<UdpSocket>,
    unsent: Mutex<Unsent>,
}

#[derive(Debug, Default)]
struct Unsent {
    bytes: Vec<u8>,
    datagrams: Vec<Datagram>,
    /// The number of the next answer.
    next_answer: u32,
}

#[derive(Debug)]
struct Datagram {
    peer: SocketAddrAny,
    answer: u32,
    bytes: Range<usize>,
}

impl Outbox {
    pub(super) fn new(socket: &Arc<UdpSocket>) -> Outbox {
        Outbox { socket: Arc::clone(socket), unsent: Mutex::default() }
    }

    /// Creates an empty one of the same socket.
    pub(super) fn another(&self) -> Outbox {
        Outbox::new(&self.socket)
    }

    /// Adds an answer: `split` passes its datagrams to the function it receives.
    pub(super) fn add(&self, peer: SocketAddr, split: impl FnOnce(super::Send<'_>)) {
        let mut unsent = self.lock();
        let (peer, answer) = (SocketAddrAny::from(peer), unsent.next_answer);
        unsent.next_answer += 1;
        split(&mut |datagram| {
            let start = unsent.bytes.len();
            unsent.bytes.extend_from_slice(datagram);
            let bytes = start..unsent.bytes.len();
            unsent.datagrams.push(Datagram { peer: peer.clone(), answer, bytes });
            if unsent.datagrams.len() == SENT_TOGETHER_MAX {
                unsent.send(&self.socket);
            }
        });
    }

    /// Sends all datagrams.
    pub(super) fn send(&self) {
        self.lock().send(&self.socket);
    }

    fn lock(&self) -> MutexGuard<'_, Unsent> {
        self.unsent.lock().expect("no thread panics while it holds an outbox")
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        if let Ok(unsent) = self.unsent.get_mut() {
            unsent.send(&self.socket);
        }
    }
}

impl Unsent {
    fn send(&mut self, socket: &UdpSocket) {
        send_all(&self.datagrams, |datagrams| {
            let slices: Vec<_> =
                datagrams.iter().map(|d| [IoSlice::new(&self.bytes[d.bytes.clone()])]).collect();
            let mut no_control: Vec<_> = slices.iter().map(|_| SendAncillaryBuffer::default()).collect();
            let parts = slices.iter().zip(&mut no_control);
            let mut headers: Vec<_> = datagrams
                .iter()
                .zip(parts)
                .map(|(datagram, (slice, control))| MMsgHdr::new_with_addr(&datagram.peer, slice, control))
                .collect();
            Ok(sendmmsg(socket, &mut headers, SendFlags::DONTWAIT)?)
        });
        self.datagrams.clear();
        self.bytes.clear();
    }
}

/// Sends all datagrams by `send`, which returns how many it sent. If a datagram cannot be sent, the rest of its answer
/// is lost, as any datagram may be; the other answers are not.
fn send_all(mut datagrams: &[Datagram], mut send: impl FnMut(&[Datagram]) -> io::Result<usize>) {
    let mut is_repeated = false;
    while let Some(first) = datagrams.first() {
        let sent = send(datagrams);
        let refused = matches!(&sent, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused);
        if refused && !is_repeated {
            // The socket's pending error, of an earlier answer whose port was unreachable: reported once, and nothing sent.
            is_repeated = true;
            continue;
        }
        is_repeated = false;
        let done = match sent {
            Ok(sent) if sent > 0 => sent,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            _ => datagrams.iter().take_while(|datagram| datagram.answer == first.answer).count(),
        };
        datagrams = &datagrams[done..];
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    /// Answers 0 to 3, of 1 to 4 datagrams.
    fn datagrams() -> Vec<Datagram> {
        let peer = SocketAddrAny::from(SocketAddr::from(([127, 0, 0, 1], 1)));
        let answers = (0..4u32).flat_map(|answer| (0..=answer).map(move |_| answer));
        answers
            .enumerate()
            .map(|(at, answer)| Datagram { peer: peer.clone(), answer, bytes: at..at + 1 })
            .collect()
    }

    /// Sends at most `most` datagrams by a call, none of those of which `fails` gives an error.
    fn sent(most: usize, mut fails: impl FnMut(usize) -> Option<ErrorKind>) -> Vec<usize> {
        let mut sent = Vec::new();
        send_all(&datagrams(), |datagrams| {
            let before = sent.len();
            for at in datagrams.iter().take(most).map(|datagram| datagram.bytes.start) {
                match fails(at) {
                    // As the system does: the error is that of the first datagram, or the next call's.
                    Some(error) if sent.len() == before => return Err(error.into()),
                    Some(_) => break,
                    None => sent.push(at),
                }
            }
            Ok(sent.len() - before)
        });
        sent
    }

    #[test]
    fn partly_sent_batches_continue() {
        for most in 1..12 {
            assert_eq!(sent(most, |_| None), (0..10).collect::<Vec<_>>(), "{most}");
        }
    }

    #[test]
    fn one_answer_that_cannot_be_sent_loses_no_other() {
        use ErrorKind::{ConnectionRefused, HostUnreachable, WouldBlock};
        for error in [ConnectionRefused, HostUnreachable, WouldBlock] {
            let fails = |at: usize| [0, 4].contains(&at).then_some(error);
            // Datagram 5 is of the same answer as 4.
            assert_eq!(sent(10, fails), [1, 2, 3, 6, 7, 8, 9], "{error}");
        }
    }

    #[test]
    fn pending_error_of_an_earlier_answer_loses_no_answer() {
        for refused in 0..10 {
            let mut is_pending = true;
            let fails = |at| {
                let fails = at == refused && std::mem::take(&mut is_pending);
                fails.then_some(ErrorKind::ConnectionRefused)
            };
            assert_eq!(sent(3, fails), (0..10).collect::<Vec<_>>(), "{refused}");
        }
    }

    #[test]
    fn interrupted_calls_are_repeated() {
        let mut interrupts = 0;
        let fails = |at| {
            interrupts += usize::from(at == 3);
            (at == 3 && interrupts < 5).then_some(ErrorKind::Interrupted)
        };
        assert_eq!(sent(10, fails), (0..10).collect::<Vec<_>>());
    }
}
