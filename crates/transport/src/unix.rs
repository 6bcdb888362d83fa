//! Where connections over a Unix socket arrive.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::contract::{Kind, Link, Listener, Peer, StreamLink};
use crate::socket;

/// A listening Unix socket. Its file is removed on drop, if it is still the same.
#[derive(Debug)]
pub struct UnixListener {
    socket: Socket,
    path: PathBuf,
    inode: Option<u64>,
}

impl UnixListener {
    /// Listens at `path`, with the file's permissions set to `mode`. A stale socket is replaced; one that a server
    /// listens on, or another kind of file, is not.
    ///
    /// # Errors
    /// The path is taken, or the system's.
    pub fn bind(path: &Path, mode: u32, backlog: u32) -> io::Result<UnixListener> {
        remove_stale(path)?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        // No client may connect before the permissions are right.
        let restrictive = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
        let bound = socket.bind(&SockAddr::unix(path)?);
        rustix::process::umask(restrictive);
        bound?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        socket.listen(backlog.min(i32::MAX as u32) as i32)?;
        let inode = Some(fs::symlink_metadata(path)?.ino());
        Ok(UnixListener { socket, path: path.to_owned(), inode })
    }

    /// Adopts a listening socket that another process opened, which keeps the file.
    ///
    /// # Errors
    /// It is not a Unix socket.
    pub fn adopt(fd: OwnedFd) -> io::Result<UnixListener> {
        let socket = Socket::from(fd);
        socket.set_nonblocking(true)?;
        let local = socket.local_addr()?;
        if !local.is_unix() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a Unix socket"));
        }
        let path = local.as_pathname().map(Path::to_owned).unwrap_or_default();
        Ok(UnixListener { socket, path, inode: None })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn remove_stale(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        let text = "the path exists and is not a socket";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A live server that accepts nothing now must not delay this one.
    probe.set_nonblocking(true)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there")),
    }
}

impl Listener for UnixListener {
    fn accept(&self) -> io::Result<Option<Box<dyn Link>>> {
        let accepted = socket::accept(&self.socket)?;
        Ok(accepted.map(|(socket, _)| Box::new(StreamLink::unix(socket, self.path.clone())) as Box<dyn Link>))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn local(&self) -> Peer {
        Peer::Local(self.path.clone())
    }

    fn kind(&self) -> Kind {
        Kind::Unix
    }
}

impl Drop for UnixListener {
    fn drop(&mut self) {
        let now = fs::symlink_metadata(&self.path).map(|file| file.ino());
        if self.inode.is_some() && now.ok() == self.inode {
            let _ = fs::remove_file(&self.path);
        }
    }
}
