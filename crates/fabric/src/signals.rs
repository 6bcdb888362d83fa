//! The process' own signal handlers, which some of libfabric's providers replace when they are loaded or opened, by such as
//! end the process.

use libc::{c_int, sigaction};

/// Standard signals are below; no provider has been seen to take another.
const SIGNALS_END: c_int = 32;

/// What is done on each signal, put back when dropped. A handler that another thread sets meanwhile is lost.
pub(crate) struct Kept(Vec<(c_int, sigaction)>);

impl Kept {
    /// As it is now.
    pub fn new() -> Kept {
        Kept((1..SIGNALS_END).filter_map(|signal| Some((signal, current(signal)?))).collect())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        for (signal, former) in &self.0 {
            let is_same = current(*signal)
                .is_none_or(|now| now.sa_sigaction == former.sa_sigaction && now.sa_flags == former.sa_flags);
            if !is_same {
                // SAFETY: what it was before, which whoever set it answers for.
                unsafe { libc::sigaction(*signal, former, std::ptr::null_mut()) };
            }
        }
    }
}

/// None for numbers that are no signals.
fn current(signal: c_int) -> Option<sigaction> {
    // SAFETY: numbers and addresses, for which zeros are a value.
    let mut now: sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without a new one it only tells of the present one, for which there is room.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) };
    (result == 0).then_some(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn nothing(_: c_int) {}

    #[test]
    fn handlers_are_put_back() {
        // Nobody else in this process uses it.
        let signal = libc::SIGWINCH;
        let before = current(signal).expect("a signal").sa_sigaction;
        let kept = Kept::new();
        let handler = nothing as extern "C" fn(c_int) as libc::sighandler_t;
        // SAFETY: the handler does nothing.
        unsafe { libc::signal(signal, handler) };
        assert_eq!(current(signal).expect("a signal").sa_sigaction, handler);
        drop(kept);
        assert_eq!(current(signal).expect("a signal").sa_sigaction, before);
        assert!(current(0).is_none());
    }
}
