//! One connection under TLS.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::BorrowedFd;

use rustls::ServerConnection;

use crate::contract::{Kind, Link, Peer, Received, StreamLink};

/// Bytes of answers pending in the TLS connection before `send` accepts no more.
const UNSENT_BYTES_MAX: usize = 64 << 10;

/// One connection under TLS.
pub struct TlsLink {
    inner: Box<dyn Link>,
    tls: ServerConnection,
    /// Plain bytes may be waiting inside.
    unread: bool,
    ended: bool,
}

impl TlsLink {
    /// Starts TLS on a link that was just accepted.
    pub fn new(inner: Box<dyn Link>, mut tls: ServerConnection) -> TlsLink {
        tls.set_buffer_limit(Some(UNSENT_BYTES_MAX));
        TlsLink { inner, tls, unread: false, ended: false }
    }

    /// Passes received bytes to the TLS connection; true if there were any.
    fn pull(&mut self) -> io::Result<bool> {
        let mut wire = Wire { link: &mut *self.inner, nothing: false };
        match self.tls.read_tls(&mut wire) {
            Ok(0) => self.ended = true,
            Ok(_) => {}
            Err(_) if wire.nothing => return Ok(false),
            Err(error) => return Err(error),
        }
        if let Err(error) = self.tls.process_new_packets() {
            // Sends the alert, which tells the peer why.
            let _ = self.flush();
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        // A handshake answers on its own.
        self.flush()?;
        Ok(true)
    }
}

impl Link for TlsLink {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Received> {
        loop {
            match self.tls.reader().read(into) {
                Ok(0) => return Ok(Received::End),
                Ok(len) => {
                    self.unread = true;
                    return Ok(Received::Bytes(len));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.unread = false,
                // Closed without a goodbye: all that came before was delivered.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Received::End),
                Err(error) => return Err(error),
            }
            if self.ended {
                return Ok(Received::End);
            }
            if !self.pull()? {
                return Ok(Received::Nothing);
            }
        }
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let taken = self.tls.writer().write_vectored(parts)?;
        self.flush()?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<bool> {
        while self.tls.wants_write() {
            let mut wire = Wire { link: &mut *self.inner, nothing: false };
            match self.tls.write_tls(&mut wire) {
                Ok(_) => {}
                Err(_) if wire.nothing => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.inner.flush()
    }

    fn has_unsent(&self) -> bool {
        self.tls.wants_write() || self.inner.has_unsent()
    }

    fn has_unread(&self) -> bool {
        self.unread
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn peer(&self) -> Peer {
        self.inner.peer()
    }

    fn kind(&self) -> Kind {
        self.inner.kind()
    }

    fn is_encrypted(&self) -> bool {
        true
    }

    fn into_stream(self: Box<Self>) -> Result<StreamLink, Box<dyn Link>> {
        Err(self)
    }
}

impl Drop for TlsLink {
    fn drop(&mut self) {
        self.tls.send_close_notify();
        let _ = self.flush();
    }
}

/// The link below, with the interface that rustls reads and writes.
struct Wire<'l> {
    link: &'l mut dyn Link,
    nothing: bool,
}

impl Wire<'_> {
    fn not_now(&mut self) -> io::Error {
        self.nothing = true;
        io::ErrorKind::WouldBlock.into()
    }
}

impl Read for Wire<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.link.receive(into)? {
            Received::Bytes(len) => Ok(len),
            Received::Nothing => Err(self.not_now()),
            Received::End => Ok(0),
        }
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.link.send(parts)? {
            0 if parts.iter().any(|part| !part.is_empty()) => Err(self.not_now()),
            sent => Ok(sent),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
