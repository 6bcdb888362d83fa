//! One connection to one server, used by one call at a time.

use std::io::{self, Read, Write};
use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::address::{Address, Place};
use crate::bounds::{LINE_BYTES_MAX, RECEIVE_BYTES};
use crate::error::Failure;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
    /// Received and not yet read, from `at` on.
    buffer: Vec<u8>,
    at: usize,
    deadline: Instant,
}

impl Connection {
    /// Connects within `patience`.
    ///
    /// # Errors
    /// The system's, of the last of the host's addresses.
    pub fn open(address: &Address, patience: Duration) -> Result<Connection, Failure> {
        let socket = match &address.place {
            Place::Unix(path) => {
                SockAddr::unix(path).and_then(|address| connect(Domain::UNIX, &address, patience))
            }
            Place::Tcp { host, port } => connect_to_host(host, *port, patience),
        };
        let socket = socket.map_err(Failure::Connect)?;
        Ok(Connection { socket, buffer: Vec::new(), at: 0, deadline: Instant::now() })
    }

    /// The server has neither closed it nor said anything that was not asked for.
    pub fn is_idle(&self) -> bool {
        let mut byte = [std::mem::MaybeUninit::uninit()];
        let peeked = self.socket.set_nonblocking(true).and_then(|()| self.socket.peek(&mut byte));
        let is_quiet = peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        is_quiet && self.at == self.buffer.len() && self.socket.set_nonblocking(false).is_ok()
    }

    /// Begins a call that is to be over within `patience`.
    pub fn begin(&mut self, patience: Duration) {
        self.deadline = Instant::now() + patience;
    }

    /// Sends all of the parts.
    ///
    /// # Errors
    /// It broke, or takes too long.
    pub fn send(&mut self, parts: &[&[u8]]) -> Result<(), Failure> {
        for part in parts {
            self.socket.set_write_timeout(Some(self.left()?))?;
            self.socket.write_all(part)?;
        }
        Ok(())
    }

    /// The next line, without its end.
    ///
    /// # Errors
    /// It broke, takes too long, or the line has no end.
    pub fn line(&mut self) -> Result<String, Failure> {
        let mut looked = 0;
        let end = loop {
            let unread = &self.buffer[self.at..];
            if let Some(end) = memchr::memchr(b'\n', &unread[looked..]) {
                break looked + end;
            }
            looked = unread.len();
            if looked > LINE_BYTES_MAX {
                return Err(protocol(&unread[..64]));
            }
            self.receive()?;
        };
        let line = &self.buffer[self.at..self.at + end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = String::from_utf8(line.to_vec()).map_err(|_| protocol(line))?;
        self.at += end + 1;
        Ok(line)
    }

    /// The next `len` bytes and the line end behind them.
    ///
    /// # Errors
    /// It broke, takes too long, or the bytes end otherwise.
    pub fn value(&mut self, len: usize) -> Result<Vec<u8>, Failure> {
        let here = (self.buffer.len() - self.at).min(len);
        let mut value = Vec::with_capacity(len);
        value.extend_from_slice(&self.buffer[self.at..self.at + here]);
        self.at += here;
        // The rest goes where it belongs.
        while value.len() < len {
            self.socket.set_read_timeout(Some(self.left()?))?;
            let missing = (len - value.len()) as u64;
            if (&self.socket).take(missing.min(RECEIVE_BYTES as u64)).read_to_end(&mut value)? == 0 {
                return Err(ended());
            }
        }
        while self.buffer.len() - self.at < 2 {
            self.receive()?;
        }
        let end = &self.buffer[self.at..self.at + 2];
        if end != b"\r\n" {
            return Err(protocol(end));
        }
        self.at += 2;
        Ok(value)
    }

    fn receive(&mut self) -> Result<(), Failure> {
        if self.at == self.buffer.len() {
            self.buffer.clear();
            self.at = 0;
        }
        self.socket.set_read_timeout(Some(self.left()?))?;
        let len = self.buffer.len();
        self.buffer.resize(len + RECEIVE_BYTES, 0);
        let received = self.socket.read(&mut self.buffer[len..]);
        self.buffer.truncate(len + received.as_ref().map_or(0, |received| *received));
        match received {
            Ok(0) => Err(ended()),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn left(&self) -> Result<Duration, Failure> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::Error::from(io::ErrorKind::WouldBlock).into()) } else { Ok(left) }
    }
}

fn ended() -> Failure {
    Failure::Broken(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"))
}

/// What a server said that is no answer.
pub fn protocol(said: &[u8]) -> Failure {
    Failure::Protocol(String::from_utf8_lossy(said).into_owned())
}

fn connect_to_host(host: &str, port: u16, patience: Duration) -> io::Result<Socket> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match connect(Domain::for_address(address), &address.into(), patience) {
            Ok(socket) => {
                socket.set_tcp_nodelay(true)?;
                return Ok(socket);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn connect(domain: Domain, address: &SockAddr, patience: Duration) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::STREAM, None)?;
    socket.connect_timeout(address, patience)?;
    Ok(socket)
}
