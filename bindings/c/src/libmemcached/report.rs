//! Recorded errors.

use std::ffi::CString;

use super::constants::memcached_return_t;

/// A recorded error.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its code.
    pub code: memcached_return_t,
    /// The system's error number, or 0.
    pub errno: i32,
    /// The query in which it happened.
    pub query_id: u64,
    /// Its text.
    pub text: CString,
}

/// The context that an error is reported with.
#[derive(Clone, Copy, Debug, Default)]
pub struct ErrorContext<'a> {
    /// The system's error number, or 0.
    pub errno: i32,
    /// Additional text.
    pub message: &'a str,
    /// The message is the whole text: a server's answer.
    pub is_verbatim: bool,
}
