//! Receiving many datagrams by one system call.

use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, SockaddrIn6, SockaddrLike, recvmmsg};

/// Datagrams received by one system call. More save less than a tenth of one each.
pub(super) const BATCH_DATAGRAMS: usize = 32;
/// Room for the largest datagram there is.
const DATAGRAM_BYTES: usize = 64 << 10;

/// A thread's buffers. The system gives them pages when a datagram first needs them: usually one each.
struct ReceiveBuffers {
    bytes: Vec<u8>,
    /// The kernel shortens the room for an address to that of the last one, so each family has its own headers.
    v4: MultiHeaders<SockaddrIn>,
    v6: MultiHeaders<SockaddrIn6>,
}

thread_local! {
    static BUFFERS: RefCell<ReceiveBuffers> = RefCell::new(ReceiveBuffers {
        bytes: vec![0; BATCH_DATAGRAMS * DATAGRAM_BYTES],
        v4: MultiHeaders::preallocate(BATCH_DATAGRAMS, None),
        v6: MultiHeaders::preallocate(BATCH_DATAGRAMS, None),
    });
}

/// Receives at most `max` waiting datagrams, and passes each whole one to `each`; returns how many arrived.
pub(super) fn receive(
    socket: &UdpSocket,
    is_ipv6: bool,
    max: usize,
    each: impl FnMut(SocketAddr, &[u8]),
) -> io::Result<usize> {
    BUFFERS.with_borrow_mut(|ReceiveBuffers { bytes, v4, v6 }| {
        if is_ipv6 {
            receive_into(bytes, v6, socket, max, |peer| SocketAddr::V6(peer.into()), each)
        } else {
            receive_into(bytes, v4, socket, max, |peer| SocketAddr::V4(peer.into()), each)
        }
    })
}

fn receive_into<A: SockaddrLike + Copy>(
    bytes: &mut [u8],
    headers: &mut MultiHeaders<A>,
    socket: &UdpSocket,
    max: usize,
    address: impl Fn(A) -> SocketAddr,
    mut each: impl FnMut(SocketAddr, &[u8]),
) -> io::Result<usize> {
    let mut buffers = bytes.chunks_exact_mut(DATAGRAM_BYTES);
    let mut slices: [[IoSliceMut<'_>; 1]; BATCH_DATAGRAMS] =
        std::array::from_fn(|_| [IoSliceMut::new(buffers.next().unwrap_or_default())]);
    let slices = slices.iter_mut().take(max);
    let mut count = 0;
    for message in recvmmsg(socket.as_raw_fd(), headers, slices, MsgFlags::MSG_DONTWAIT, None)? {
        count += 1;
        if let (Some(peer), false) = (message.address, message.flags.contains(MsgFlags::MSG_TRUNC)) {
            each(address(peer), message.iovs().next().unwrap_or_default());
        }
    }
    Ok(count)
}
