//! A client that runs, or omits, each step of the shared memory protocol itself.

use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fabcache_layout::channel::{CHANNEL_VERSION, Channel};
use fabcache_layout::format::FORMAT_VERSION;
use rustix::io::retry_on_intr;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recv, recvmsg};

/// Far longer than any reply takes.
const TIME_LIMIT: Duration = Duration::from_secs(20);

pub fn request() -> String {
    format!("shm attach {CHANNEL_VERSION} {FORMAT_VERSION}\r\n")
}

/// A client with a channel.
pub struct Raw {
    pub socket: UnixStream,
    pub channel: Channel,
    pub region: OwnedFd,
    pub region_bytes: u64,
    /// The channel's file.
    pub file: OwnedFd,
}

impl Raw {
    /// Requests shared memory and receives it.
    pub fn attach(path: &str) -> std::io::Result<Raw> {
        let mut socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(TIME_LIMIT))?;
        socket.write_all(request().as_bytes())?;
        Raw::attached(socket)
    }

    /// Receives the shared memory that was requested.
    pub fn attached(socket: UnixStream) -> std::io::Result<Raw> {
        let (line, descriptors) = receive(&socket)?;
        let none = || std::io::Error::other(line.clone());
        let [region, file] = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| none())?;
        let region_bytes = line.split(' ').nth(1).and_then(|bytes| bytes.parse().ok()).ok_or_else(none)?;
        let channel = Channel::open(file.as_fd())?;
        Ok(Raw { socket, channel, region, region_bytes, file })
    }

    pub fn ring(&self) {
        let _ = rustix::net::send(&self.socket, b"!", SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    /// Returns whether the server closed the socket.
    pub fn is_ended(&self) -> bool {
        let mut doorbells = [0; 4096];
        loop {
            match rustix::net::recv(&self.socket, &mut doorbells[..], RecvFlags::DONTWAIT) {
                Ok((_, 1..)) => {}
                Err(rustix::io::Errno::AGAIN) => return false,
                Ok((_, 0)) | Err(_) => return true,
            }
        }
    }

    /// Fills slots as far as there is room; returns the number of bytes.
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        self.channel.outgoing().send(&[IoSlice::new(bytes)]).expect("the server follows the protocol")
    }

    /// Sends all bytes, ringing where due.
    pub fn send(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let sent = self.put(bytes);
            bytes = &bytes[sent..];
            if self.channel.outgoing().must_notify() {
                self.ring();
            }
            if sent == 0 {
                self.sleep(false);
            }
        }
    }

    /// Receives until the bytes end with `end`.
    pub fn receive(&mut self, end: &str) -> String {
        let mut came = Vec::new();
        while !came.ends_with(end.as_bytes()) {
            let len = self
                .channel
                .incoming()
                .append_to(&mut came, 1 << 20)
                .expect("the server follows the protocol");
            if len == 0 {
                self.sleep(true);
            } else if self.channel.incoming().must_notify() {
                self.ring();
            }
        }
        String::from_utf8_lossy(&came).into_owned()
    }

    pub fn request(&mut self, request: &str) -> String {
        self.send(request.as_bytes());
        self.receive("\r\n")
    }

    /// Sleeps until rung, unless data or room is there already.
    fn sleep(&mut self, for_data: bool) {
        let ready = if for_data {
            self.channel.incoming().want_data();
            self.channel.has_incoming()
        } else {
            self.channel.outgoing().want_room();
            self.channel.outgoing().has_room().expect("the server follows the protocol")
        };
        if !ready {
            // A stopped and resumed process gets EINTR from a receive with a timeout: see signal(7).
            let mut doorbells = [0; 64];
            let came = retry_on_intr(|| recv(&self.socket, &mut doorbells[..], RecvFlags::empty()));
            assert!(came.expect("a notification").1 > 0, "the server has closed the socket");
        }
    }
}

fn receive(socket: &UnixStream) -> std::io::Result<(String, Vec<OwnedFd>)> {
    let (mut line, mut descriptors) = (Vec::new(), Vec::new());
    while !line.ends_with(b"\n") {
        let mut bytes = [0; 64];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let len = retry_on_intr(|| recvmsg(socket, &mut into, &mut ancillary, flags))?.bytes;
        if len == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(came) = message {
                descriptors.extend(came);
            }
        }
        line.extend_from_slice(&bytes[..len]);
    }
    Ok((String::from_utf8_lossy(&line).into_owned(), descriptors))
}
