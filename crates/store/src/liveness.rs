//! The sign of life: a word of the region that the kernel takes away when this process ends, however it ends.
//!
//! It is a robust futex (get_robust_list(2)): when a thread ends, the kernel walks its list of such words and marks
//! those that the thread still holds. It does so before the process closes its descriptors, and with them its
//! listening sockets. glibc keeps such a list for its own mutexes, so a dedicated thread holds the region's word.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::JoinHandle;

use fabcache_layout::format::LIVENESS_AT;
use fabcache_layout::sync::Ordering;

use crate::store::Store;

/// The kernel's `struct robust_list` (linux/futex.h).
#[repr(C)]
struct RobustListNode {
    next: *mut RobustListNode,
}

/// `struct robust_list_head`.
#[repr(C)]
struct RobustListHead {
    list: RobustListNode,
    /// Offset from a link to its futex, in bytes.
    futex_offset: libc::c_long,
    pending: *mut RobustListNode,
}

/// The sign of life of one store's region, until it is dropped.
#[derive(Debug)]
pub struct Liveness {
    stop: Option<Sender<()>>,
    keeper: Option<JoinHandle<()>>,
}

impl Liveness {
    /// Starts the thread that holds it.
    ///
    /// # Errors
    /// No thread can be started, or the kernel has no robust futexes.
    pub fn keep(store: &Arc<Store>) -> io::Result<Liveness> {
        let (stop, stopped) = channel::<()>();
        let (tell, reported) = sync_channel(1);
        let store = Arc::clone(store);
        let keeper = std::thread::Builder::new().name("life".into()).spawn(move || {
            hold(&store, |held| {
                let _ = tell.send(held);
                let _ = stopped.recv();
            });
        })?;
        let held = reported
            .recv()
            .map_err(|_| io::Error::other("the thread that holds the liveness word has failed"))?;
        held.map(|()| Liveness { stop: Some(stop), keeper: Some(keeper) })
    }
}

impl Drop for Liveness {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(keeper) = self.keeper.take() {
            // A panic there was already reported.
            let _ = keeper.join();
        }
    }
}

/// Holds the word while `meanwhile` runs, which gets the result of taking it.
fn hold(store: &Store, meanwhile: impl FnOnce(io::Result<()>)) {
    let word = store.memory.pointer(LIVENESS_AT, 4);
    let mut head = RobustListHead {
        list: RobustListNode { next: std::ptr::null_mut() },
        futex_offset: 0,
        pending: std::ptr::null_mut(),
    };
    let mut link = RobustListNode { next: &raw mut head.list };
    head.list.next = &raw mut link;
    head.futex_offset = (word as isize).wrapping_sub(&raw const link as isize) as libc::c_long;
    let mut former: *mut libc::c_void = std::ptr::null_mut();
    let mut former_len = 0usize;
    // SAFETY: get_robust_list(2) writes the two words that it is given.
    let got = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut former, &raw mut former_len) };
    // SAFETY: the list has the format that the kernel walks, its one link points to a mapped word, and both stay in
    // place until the previous list is restored below.
    let set = unsafe { libc::syscall(libc::SYS_set_robust_list, &raw mut head, size_of::<RobustListHead>()) };
    if got != 0 || set != 0 {
        return meanwhile(Err(io::Error::last_os_error()));
    }
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    store.memory.store_u32(LIVENESS_AT, thread, Ordering::Release);
    meanwhile(Ok(()));
    store.memory.store_u32(LIVENESS_AT, 0, Ordering::SeqCst);
    // SAFETY: the list that the C library had registered for this thread, which it keeps until the thread ends.
    unsafe { libc::syscall(libc::SYS_set_robust_list, former, former_len) };
}
