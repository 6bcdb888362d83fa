//! Kill points: the moments between a thread's stores to a region, at each of which SIGKILL may end the server.
//!
//! With the feature `kill-points`, which only tests enable, an observer sees each of them, and can copy the region as a kill
//! would leave it. The thread then goes on. Without the feature nothing is left of this.

#[cfg(feature = "kill-points")]
pub(crate) use observed::around;
#[cfg(all(feature = "kill-points", not(loom)))]
pub(crate) use observed::in_halves;
#[cfg(feature = "kill-points")]
pub use observed::{KillPoint, Moment, observe};

/// Stores to the region.
#[cfg(not(feature = "kill-points"))]
#[inline(always)]
pub(crate) fn around<R>(store: impl FnOnce() -> R) -> R {
    store()
}

/// Copies bytes to the region: `copy` gets a part of them and where it begins.
#[cfg(not(any(feature = "kill-points", loom)))]
#[inline(always)]
pub(crate) fn in_halves(bytes: &[u8], copy: impl Fn(usize, &[u8])) {
    copy(0, bytes);
}

#[cfg(feature = "kill-points")]
mod observed {
    use std::cell::RefCell;
    use std::panic::Location;

    /// Which part of a store is done.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Moment {
        /// Nothing.
        Before,
        /// The first half of the bytes that are copied. A model copies word by word, and each has its moments.
        #[cfg(not(loom))]
        Halfway,
        /// All of it.
        After,
    }

    /// A moment at which a kill may end the server.
    #[derive(Clone, Copy, Debug)]
    pub struct KillPoint {
        /// Which part of the store is done.
        pub moment: Moment,
        /// The code that calls [`Memory`](crate::Memory).
        pub code: &'static Location<'static>,
    }

    type Observer = Box<dyn FnMut(KillPoint)>;

    thread_local! {
        static OBSERVER: RefCell<Option<Observer>> = const { RefCell::new(None) };
    }

    /// Does `work`, and calls `observer` at each kill point of this thread meanwhile. It does not observe its own stores, but
    /// may call this again for another observer to do so. An observer that unwinds is not called again. The threads of a model
    /// are one thread here.
    pub fn observe<R>(observer: impl FnMut(KillPoint) + 'static, work: impl FnOnce() -> R) -> R {
        let before = OBSERVER.replace(Some(Box::new(observer)));
        let result = work();
        OBSERVER.set(before);
        result
    }

    #[track_caller]
    fn pass(moment: Moment) {
        let code = Location::caller();
        if let Some(mut observer) = OBSERVER.take() {
            observer(KillPoint { moment, code });
            OBSERVER.set(Some(observer));
        }
    }

    /// Stores to the region.
    #[track_caller]
    pub(crate) fn around<R>(store: impl FnOnce() -> R) -> R {
        pass(Moment::Before);
        let result = store();
        pass(Moment::After);
        result
    }

    /// Copies bytes to the region: `copy` gets a part of them and where it begins.
    #[cfg(not(loom))]
    #[track_caller]
    pub(crate) fn in_halves(bytes: &[u8], copy: impl Fn(usize, &[u8])) {
        let (first, second) = bytes.split_at(bytes.len() / 2);
        pass(Moment::Before);
        copy(0, first);
        pass(Moment::Halfway);
        copy(first.len(), second);
        pass(Moment::After);
    }

    #[cfg(all(test, not(loom)))]
    mod tests {
        use std::cell::RefCell;
        use std::ptr::NonNull;
        use std::rc::Rc;
        use std::sync::atomic::Ordering;

        use super::*;
        use crate::Memory;

        #[repr(align(64))]
        struct Line([u8; 64]);

        #[test]
        fn each_store_is_observed_before_it_and_after_it() {
            let mut line = Box::new(Line([0; 64]));
            let base = NonNull::new(line.0.as_mut_ptr()).expect("boxed");
            // SAFETY: the line outlives the memory, and nothing else accesses it.
            let memory = unsafe { Memory::new(base, 64) };
            let seen = Rc::new(RefCell::new(Vec::new()));
            let (observed, noted) = (memory.clone(), Rc::clone(&seen));
            let observer = move |point: KillPoint| {
                assert_eq!(point.code.file(), file!());
                noted.borrow_mut().push((point.moment, observed.load(0, Ordering::Relaxed)));
                // Nobody observes this.
                observed.store(56, 1, Ordering::Relaxed);
            };
            observe(observer, || {
                memory.store(0, 1, Ordering::Relaxed);
                memory.fetch_add(0, 2, Ordering::Relaxed);
                memory.copy_in(0, &[1, 1, 1, 1]);
            });
            memory.store(0, 9, Ordering::Relaxed);
            let (before, after) = (Moment::Before, Moment::After);
            let wanted = [(before, 0), (after, 1), (before, 1), (after, 3), (before, 3)];
            assert_eq!(seen.borrow()[..5], wanted);
            assert_eq!(seen.borrow()[5..], [(Moment::Halfway, 0x0101), (after, 0x0101_0101)]);
        }
    }
}
