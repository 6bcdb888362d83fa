//! Programs that fork with a handle: the child opens its own connections.

use fabcache::libmemcached::create::memcached_quit;
use fabcache::libmemcached::fetch::memcached_fetch;
use fabcache::libmemcached::*;

use crate::common::*;

/// Runs `body` in a child process, which exits with its result.
fn in_child(body: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child is a copy of this thread alone. It uses a handle of this thread and C library memory, whose
    // locks survive a fork, and exits without running other threads' code.
    match unsafe { libc::fork() } {
        0 => {
            let is_well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
            // SAFETY: it has no preconditions.
            unsafe { libc::_exit(i32::from(!is_well)) }
        }
        child => {
            assert!(child > 0);
            child
        }
    }
}

fn was_well(child: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: the status is a local variable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

/// Stores and reads keys that only this process uses.
fn is_by_itself(handle: &Handle, name: &str) -> bool {
    (0..300).all(|i| {
        let (key, value) = (format!("{name}{}", i % 7), format!("{name} has stored {i}"));
        handle.set(&key, &value) == MEMCACHED_SUCCESS
            && handle.get(&key).as_ref() == Ok(&value)
            && handle.get(&format!("{name}-nothing")) == Err(MEMCACHED_NOTFOUND)
    })
}

/// Returns the next result of `memcached_mget`.
fn fetched(handle: &Handle) -> Result<String, memcached_return_t> {
    let (len, code) = (out(), out());
    let value =
        call!(memcached_fetch(Some(handle), std::ptr::null_mut(), None, Some(&len), None, Some(&code)));
    if taken(&code) != MEMCACHED_SUCCESS {
        return Err(taken(&code));
    }
    Ok(text_and_free(value, taken(&len)))
}

#[test]
fn parent_and_child_share_a_handle() {
    let server = Running::start();
    for handle in server.handles() {
        assert!(is_by_itself(&handle, "before"));
        let children = ["first", "second"].map(|name| in_child(|| is_by_itself(&handle, name)));
        assert!(is_by_itself(&handle, "parent"));
        assert_eq!(children.map(was_well), [true; 2]);
        assert!(is_by_itself(&handle, "parent"), "the child's exit does not affect the parent");
    }
}

#[test]
fn replies_to_the_parent_stay_with_the_parent() {
    let server = Running::start();
    for handle in server.handles() {
        assert_eq!([handle.set("a", "of a"), handle.set("b", "of b")], [MEMCACHED_SUCCESS; 2]);
        assert_eq!(handle.mget(&["a", "b"]), MEMCACHED_SUCCESS);
        let child = in_child(|| {
            // Read from memory, or lost.
            let of_parent = fetched(&handle);
            let is_right = matches!(of_parent.as_deref(), Ok("of a") | Err(&MEMCACHED_CONNECTION_FAILURE));
            is_right && handle.get("b").as_deref() == Ok("of b") && is_by_itself(&handle, "child")
        });
        assert!(was_well(child));
        assert_eq!([fetched(&handle), fetched(&handle)], [Ok("of a".into()), Ok("of b".into())]);
        assert_eq!(fetched(&handle), Err(MEMCACHED_END));
    }
}

#[test]
fn buffered_stores_are_sent_once_by_the_parent() {
    let server = Running::start();
    for handle in server.handles() {
        handle.behave(MEMCACHED_BEHAVIOR_BUFFER_REQUESTS, 1);
        for i in 0..100 {
            assert_eq!(handle.set(&format!("later{i}"), "stored"), MEMCACHED_BUFFERED);
        }
        let child = in_child(|| {
            call!(memcached_quit(Some(&handle)));
            handle.get("never") == Err(MEMCACHED_NOTFOUND)
                && handle.set("of-child", "1") == MEMCACHED_BUFFERED
        });
        assert!(was_well(child));
        assert!((0..100).all(|i| handle.get(&format!("later{i}")).as_deref() == Ok("stored")));
    }
}
