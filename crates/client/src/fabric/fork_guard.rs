//! A guard for values that belong to the process that made them. A child of fork(2) neither uses nor closes them, as
//! their kernel and device state is its parent's.

use std::ops::{Deref, DerefMut};

use fabcache_layout::process::Process;

/// A value that is dropped only in the process that made it.
#[derive(Debug)]
pub struct ForkGuard<T> {
    value: Option<T>,
    process: Process,
}

impl<T> ForkGuard<T> {
    /// Guards a value of this process.
    pub fn new(value: T) -> ForkGuard<T> {
        ForkGuard { value: Some(value), process: Process::current() }
    }

    /// Moves the value out of a guard that is being dropped.
    pub fn take(&mut self) -> ForkGuard<T> {
        ForkGuard { value: self.value.take(), process: self.process }
    }

    /// Returns the value in the process that created it.
    pub fn into_inner(mut self) -> Option<T> {
        if self.is_current() { self.value.take() } else { None }
    }

    /// Returns whether this process made the value.
    pub fn is_current(&self) -> bool {
        self.process.is_current()
    }
}

const HELD: &str = "present until dropped";

impl<T> Deref for ForkGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect(HELD)
    }
}

impl<T> DerefMut for ForkGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect(HELD)
    }
}

impl<T> Drop for ForkGuard<T> {
    fn drop(&mut self) {
        if !self.process.is_current() {
            std::mem::forget(self.value.take());
        }
    }
}
