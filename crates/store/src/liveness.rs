//! The sign of life: a word of the region that the kernel takes away when this process ends, however it ends.
//!
//! It is a robust futex (get_robust_list(2)): when a thread ends, the kernel walks its list of such words and marks
//! those that the thread still holds. It does so before the process closes its descriptors, and with them its
//! listening sockets. glibc keeps such a list for its own mutexes, so a dedicated thread holds the region's word.
//!
//! The list is in a shared mapping. When memory runs out, the kernel kills a process and may drop its private pages, stacks
//! included, before the threads end (`mm/oom_kill.c`, the OOM reaper); a list there would be lost, and readers would trust
//! a region that no server maintains.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::JoinHandle;

use fabcache_layout::format::LIVENESS_AT;
use fabcache_layout::header;
use fabcache_layout::sync::Ordering;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

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

/// A list with one link, which the kernel walks.
#[repr(C)]
struct RobustList {
    head: RobustListHead,
    link: RobustListNode,
}

/// A shared mapping for the list.
struct SharedPage(NonNull<RobustList>);

impl SharedPage {
    fn new() -> io::Result<SharedPage> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let page = unsafe { mmap_anonymous(anywhere, size_of::<RobustList>(), access, MapFlags::SHARED) }?;
        Ok(SharedPage(NonNull::new(page.cast()).expect("a mapping is not at address 0")))
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping; `hold` restores the thread's former list before it drops this one.
        let unmapped = unsafe { munmap(self.0.as_ptr().cast(), size_of::<RobustList>()) };
        debug_assert!(unmapped.is_ok());
    }
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
    let page = match SharedPage::new() {
        Ok(page) => page,
        Err(error) => return meanwhile(Err(error)),
    };
    let list = page.0.as_ptr();
    // SAFETY: the mapping has room for a list, so the pointer to its part is within it; nothing is read.
    let first = unsafe { &raw mut (*list).head.list };
    // SAFETY: as for `first`.
    let link = unsafe { &raw mut (*list).link };
    let futex_offset = (word as isize).wrapping_sub(link as isize) as libc::c_long;
    let head =
        RobustListHead { list: RobustListNode { next: link }, futex_offset, pending: std::ptr::null_mut() };
    // SAFETY: as above; the mapping begins at a page, which is aligned for every type.
    unsafe { list.write(RobustList { head, link: RobustListNode { next: first } }) };
    let mut former: *mut libc::c_void = std::ptr::null_mut();
    let mut former_len = 0usize;
    // SAFETY: get_robust_list(2) writes the two words that it is given.
    let got = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut former, &raw mut former_len) };
    // SAFETY: the list has the format that the kernel walks, its one link points to a mapped word, and both stay in
    // place until the previous list is restored below.
    let set = unsafe { libc::syscall(libc::SYS_set_robust_list, list, size_of::<RobustListHead>()) };
    if got != 0 || set != 0 {
        return meanwhile(Err(io::Error::last_os_error()));
    }
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    header::hold_liveness(&store.memory, thread);
    meanwhile(Ok(()));
    store.memory.store_u32(LIVENESS_AT, 0, Ordering::SeqCst);
    // SAFETY: the list that the C library had registered for this thread, which it keeps until the thread ends.
    unsafe { libc::syscall(libc::SYS_set_robust_list, former, former_len) };
    drop(page);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::StoreOptions;

    #[test]
    fn robust_list_is_in_a_shared_mapping() {
        let store = Store::open(StoreOptions::default()).expect("memory for a test");
        hold(&store, |held| {
            held.expect("robust futexes");
            let (mut list, mut len): (*mut libc::c_void, usize) = (std::ptr::null_mut(), 0);
            // SAFETY: get_robust_list(2) writes the two words that it is given.
            let got = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut list, &raw mut len) };
            assert_eq!((got, len), (0, size_of::<RobustListHead>()));
            let maps = std::fs::read_to_string("/proc/self/maps").expect("proc(5)");
            let of_list = maps.lines().find(|line| {
                let (from, to) =
                    line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
                let [from, to] = [from, to].map(|at| usize::from_str_radix(at, 16).expect("an address"));
                (from..to).contains(&list.addr())
            });
            assert!(of_list.is_some_and(|line| line.contains("rw-s")), "{of_list:?}");
        });
    }
}
