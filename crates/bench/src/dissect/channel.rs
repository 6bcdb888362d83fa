//! The client's end of a channel without the client library. It waits as the library does.

use std::hint::spin_loop;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fabcache_layout::channel::{CHANNEL_VERSION, Channel, ProtocolError, SpinPolicy};
use fabcache_layout::format::NO_REGION;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recv, recvmsg, send};

/// Polls between readings of the clock.
const POLLS_PER_CLOCK: u32 = 64;
/// Longer than any answer to the request for memory.
const ANSWER_BYTES_MAX: usize = 256;

/// A channel to a server that shares memory.
pub struct ChannelClient {
    channel: Channel,
    /// Carries notifications; the channel ends with it.
    socket: UnixStream,
    spin: SpinPolicy,
    timeout: Timespec,
}

/// The condition that ends a wait.
#[derive(Clone, Copy)]
enum Wanted {
    Data,
    Room,
}

impl ChannelClient {
    /// Requests a channel at a Unix socket, and a region of this version or none.
    ///
    /// # Errors
    /// The server cannot be reached, or shares no memory.
    pub fn attach(path: &Path, region: u64, timeout: Duration) -> Result<ChannelClient> {
        let mut socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(timeout))?;
        socket.write_all(format!("shm attach {CHANNEL_VERSION} {region}\r\n").as_bytes())?;
        let mut answer = [0; ANSWER_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut answer)];
        let len = recvmsg(&socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
        let expected = 1 + usize::from(region != NO_REGION);
        let Some(channel) = descriptors.pop().filter(|_| descriptors.len() + 1 == expected) else {
            bail!("no memory is shared: {}", String::from_utf8_lossy(&answer[..len]).trim_end());
        };
        let channel = Channel::open(channel.as_fd()).context("the channel")?;
        let timeout = Timespec::try_from(timeout)?;
        Ok(ChannelClient { channel, socket, spin: SpinPolicy::default(), timeout })
    }

    fn notify(&self) {
        // A full socket wakes the server as well.
        let _ = send(&self.socket, b"!", SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    /// Spins, then sleeps, until the server has sent or consumed bytes.
    fn wait(&mut self, wanted: Wanted) -> io::Result<()> {
        let spin = self.spin;
        if let Some(time) = spin.spin_time()
            && self.spin(wanted, time)?
        {
            self.spin = spin.after_success();
            return Ok(());
        }
        let began = Instant::now();
        self.sleep(wanted)?;
        self.spin = spin.after_sleep(began.elapsed());
        Ok(())
    }

    fn is_ready(&mut self, wanted: Wanted) -> io::Result<bool> {
        match wanted {
            Wanted::Data => Ok(self.channel.has_incoming()),
            Wanted::Room => self.channel.outgoing().has_room().map_err(broken),
        }
    }

    /// Polls for this time; returns whether that was successful.
    fn spin(&mut self, wanted: Wanted, time: Duration) -> io::Result<bool> {
        let begun = Instant::now();
        while begun.elapsed() < time {
            for _ in 0..POLLS_PER_CLOCK {
                if self.is_ready(wanted)? {
                    return Ok(true);
                }
                spin_loop();
            }
        }
        Ok(false)
    }

    /// Sleeps until the server notifies this end.
    fn sleep(&mut self, wanted: Wanted) -> io::Result<()> {
        match wanted {
            Wanted::Data => self.channel.incoming().want_data(),
            Wanted::Room => self.channel.outgoing().want_room(),
        }
        if !self.is_ready(wanted)? {
            let mut waited = [PollFd::new(&self.socket, PollFlags::IN)];
            if retry_on_intr(|| poll(&mut waited, Some(&self.timeout)))? == 0 {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer through a channel"));
            }
        }
        match wanted {
            Wanted::Data => _ = self.channel.incoming().unwant_data(),
            Wanted::Room => self.channel.outgoing().unwant_room(),
        }
        match recv(&self.socket, &mut [0; 64][..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Write for ChannelClient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let sent = self.channel.outgoing().send(&[IoSlice::new(bytes)]).map_err(broken)?;
            if sent > 0 {
                if self.channel.outgoing().must_notify() {
                    self.notify();
                }
                return Ok(sent);
            }
            self.wait(Wanted::Room)?;
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for ChannelClient {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let came = self.channel.incoming().receive(into).map_err(broken)?;
            if came > 0 {
                if self.channel.incoming().must_notify() {
                    self.notify();
                }
                return Ok(came);
            }
            self.wait(Wanted::Data)?;
        }
    }
}

fn broken(error: ProtocolError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use fabcache_client::{Protocol, Ttl};
    use fabcache_layout::channel::Shape;
    use fabcache_layout::format::FORMAT_VERSION;

    use super::super::raw::Raw;
    use super::super::{Call, store};
    use crate::dummy::{Dummy, Listen, Settings, SharedMemoryDummy, record_call};
    use crate::items::Items;
    use crate::process::Cpus;
    use crate::target::{Target, Url};

    use super::*;

    #[test]
    fn calls_go_through_memory() {
        let items = Items::new(20).expect("a length");
        let timeout = Duration::from_secs(20);
        let other = Dummy::start(&Settings::new(vec![Listen::private_socket()])).expect("it listens");
        let other_url: Url = other.urls()[0].parse().expect("a URL");
        let target =
            Target::new("other", std::slice::from_ref(&other_url), Protocol::Auto).expect("it answers");
        let call = Call { items: &items, sets: true, value_bytes: 1, verify: true };
        let handle = store::shared(&call, &target.client().expect("it answers"), 1).expect("memory");
        let dummy = SharedMemoryDummy::start(handle, &Cpus::current().expect("some")).expect("it listens");
        let url: Url = dummy.url().parse().expect("a URL");
        for len in [1usize, 3_000, 3_000_000] {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            items.key(0, &mut key);
            items.value(0, len, &mut value);
            let heard = record_call(Protocol::Binary, (0, len as u32), |client| {
                Ok(client.set(&key, &value, Ttl::NEVER)?)
            });
            let heard = heard.expect("an answer");
            let long =
                record_call(Protocol::Binary, (0, len as u32), |client| Ok(client.get(&key).map(drop)?));
            let long = long.expect("an answer");
            let echo = Raw::to_echo(&url, &heard, &key, timeout).expect("a channel");
            let other_echo = Raw::to_echo(&url, &long, &key, timeout).expect("a channel");
            let dummy = Raw::to_dummy(&url, &heard, &key, timeout).expect("a channel");
            for mut client in [echo, other_echo, dummy] {
                for number in 0..20 {
                    client.call(&items, number, &mut Vec::new()).expect("an answer");
                }
                let woken = (0..5).map(|number| {
                    // Long enough that the dummy sleeps.
                    std::thread::sleep(Duration::from_millis(20));
                    client.call(&items, number, &mut Vec::new()).expect("an answer")
                });
                assert!(woken.min() < Some(Duration::from_millis(100)), "it wakes by itself after 250");
            }
        }
        let path = Path::new(other.urls()[0].strip_prefix("unix://").expect("a path"));
        let error = ChannelClient::attach(path, FORMAT_VERSION, timeout).err().expect("it shares no memory");
        assert!(format!("{error:#}").contains("no memory is shared"), "{error:#}");
    }

    #[test]
    fn it_sleeps_until_notified() {
        const BYTES: usize = 3 << 20;
        let shape = Shape { slots: 2, slot_bytes: 64, staging_bytes: 4096 };
        let (mut server, file) = Channel::create(&shape).expect("memory");
        let (mut bells, socket) = UnixStream::pair().expect("sockets");
        let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
        let channel = Channel::open(file.as_fd()).expect("a channel");
        let mut client = ChannelClient { channel, socket, spin: SpinPolicy::default(), timeout };
        let served = std::thread::spawn(move || {
            let (mut buffer, mut come) = (vec![0; BYTES], 0);
            while come < BYTES {
                // Long enough that the client sleeps, at first.
                std::thread::sleep(Duration::from_millis(if come < 8 << 10 { 20 } else { 0 }));
                come += server.incoming().receive(&mut buffer[come..]).expect("a client");
                if server.incoming().must_notify() {
                    bells.write_all(b"!").expect("a client");
                }
            }
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(server.outgoing().send(&[IoSlice::new(b"answer")]).expect("a client"), 6);
            assert!(server.outgoing().must_notify(), "it sleeps");
            bells.write_all(b"!").expect("a client");
            buffer
        });
        let request: Vec<u8> = (0..BYTES).map(|at| (at / 7) as u8).collect();
        client.write_all(&request).expect("it is received");
        let mut answer = [0; 6];
        client.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"answer");
        assert!(served.join().expect("no panic") == request);
        let error = client.read_exact(&mut answer).expect_err("the server has left");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
