//! The process at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;

/// Initial capacity for groups, before the system reports their number.
const USUAL_GROUPS: usize = 32;

/// The supplementary groups of the process that connected, as they were then (SO_PEERGROUPS, since Linux 4.13).
///
/// # Errors
/// The socket is not a connected Unix socket, or the system does not report them.
pub fn groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; USUAL_GROUPS];
    loop {
        let mut bytes = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: the descriptor is open while it is borrowed; `groups` can be written for `bytes` bytes, and any make
        // numbers of groups; both outlive the call.
        let failed = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        } != 0;
        let count = bytes as usize / size_of::<libc::gid_t>();
        if !failed {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // Where there are more it says how many: those of a process that has connected do not change.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use nix::unistd::{Gid, getgroups};
    use rustix::thread::set_thread_groups;

    use super::*;

    #[test]
    fn peer_groups_are_those_at_connect_time() {
        let own = || -> Vec<u32> { getgroups().expect("known").into_iter().map(Gid::as_raw).collect() };
        // The kernel keeps groups per thread.
        let thread = std::thread::spawn(move || {
            for count in [0, 3, USUAL_GROUPS as u32, 100] {
                let wanted: Vec<_> = (4000..4000 + count).map(rustix::process::Gid::from_raw).collect();
                // A process that may not change its groups keeps those it has.
                let may = set_thread_groups(&wanted).is_ok();
                let (peer, _) = UnixStream::pair().expect("sockets");
                let had = own();
                assert!(!may || had == (4000..4000 + count).collect::<Vec<_>>());
                let _ = set_thread_groups(&[]);
                assert_eq!(groups(peer.as_fd()).expect("told"), had);
            }
        });
        thread.join().expect("as it should be");
        let no_socket = std::fs::File::open("/dev/null").expect("it is everywhere");
        assert!(groups(no_socket.as_fd()).is_err());
    }
}
