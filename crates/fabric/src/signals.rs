//! Preserves the process's signal handlers: some of libfabric's providers replace them, when loaded or opened, by
//! handlers that end the process.

use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{c_int, sigaction};

/// Standard signals are below; no provider is known to replace another.
const SIGNALS_END: c_int = 32;

/// Held while handlers are saved: otherwise a second thread could save a provider's handler as the process's own, and
/// restore it last.
static ALONE: Mutex<()> = Mutex::new(());

/// The saved handlers of all signals, restored on drop. A handler that another thread sets meanwhile is lost. A
/// thread has one at a time.
pub(crate) struct SavedHandlers {
    former: Vec<(c_int, sigaction)>,
    _alone: MutexGuard<'static, ()>,
}

impl SavedHandlers {
    /// Saves the current handlers.
    pub fn new() -> SavedHandlers {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let former = (1..SIGNALS_END).filter_map(|signal| Some((signal, current(signal)?))).collect();
        SavedHandlers { former, _alone: alone }
    }
}

impl Drop for SavedHandlers {
    fn drop(&mut self) {
        for (signal, former) in &self.former {
            let is_same = current(*signal)
                .is_none_or(|now| now.sa_sigaction == former.sa_sigaction && now.sa_flags == former.sa_flags);
            if !is_same {
                // SAFETY: it restores a handler that was installed before, whose validity its installer guarantees.
                unsafe { libc::sigaction(*signal, former, std::ptr::null_mut()) };
            }
        }
    }
}

/// Returns `None` for numbers that are not signals.
fn current(signal: c_int) -> Option<sigaction> {
    // SAFETY: a C structure of numbers and addresses, for which zeros are valid.
    let mut now: sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: with a null new action the call only writes the present one to `now`, which has room for it.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) };
    (result == 0).then_some(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn nothing(_: c_int) {}

    extern "C" fn another(_: c_int) {}

    #[test]
    fn concurrent_open_does_not_restore_a_providers_handler() {
        // Nothing else in this process uses this signal.
        let signal = libc::SIGURG;
        let before = current(signal).expect("a signal").sa_sigaction;
        let kept = SavedHandlers::new();
        let handler = another as extern "C" fn(c_int) as libc::sighandler_t;
        // SAFETY: the handler is a function of the type that signal(2) requires, and does nothing.
        unsafe { libc::signal(signal, handler) };
        let (begin, begun) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            begin.send(()).expect("the other thread waits");
            let kept = SavedHandlers::new();
            ended.recv().expect("the other thread reports");
            drop(kept);
        });
        begun.recv().expect("the other thread started");
        // Long enough for it to act.
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(kept);
        end.send(()).expect("the other thread waits");
        other.join().expect("the handler is restored");
        assert_eq!(current(signal).expect("a signal").sa_sigaction, before);
    }

    #[test]
    fn signal_handlers_are_restored() {
        // Nothing else in this process uses this signal.
        let signal = libc::SIGWINCH;
        let before = current(signal).expect("a signal").sa_sigaction;
        let kept = SavedHandlers::new();
        let handler = nothing as extern "C" fn(c_int) as libc::sighandler_t;
        // SAFETY: the handler is a function of the type that signal(2) requires, and does nothing.
        unsafe { libc::signal(signal, handler) };
        assert_eq!(current(signal).expect("a signal").sa_sigaction, handler);
        drop(kept);
        assert_eq!(current(signal).expect("a signal").sa_sigaction, before);
        assert!(current(0).is_none());
    }
}
