//! Errors of a handle and of its servers: recorded during a query, and reported until the next.

use std::ffi::{CStr, CString, c_char, c_int};
use std::io::Write;

use super::constants::{MEMCACHED_INVALID_ARGUMENTS, MEMCACHED_SUCCESS, memcached_return_t};
use super::instance::memcached_instance_st;
use super::report::{ErrorContext, Report};
use super::strerror::in_words;
use super::types::{memcached_server_st, memcached_st};
use crate::guarded;

/// Maximum number of errors kept of one query, because calls that start none can fail repeatedly.
const REPORTS_MAX: usize = 32;

impl memcached_st {
    /// Notes an error, and returns its code.
    #[cold]
    pub(crate) fn fail(&self, code: memcached_return_t) -> memcached_return_t {
        self.note(code, ErrorContext::default(), None)
    }

    /// As [`memcached_st::fail`], with a text.
    #[cold]
    pub(crate) fn fail_with(&self, code: memcached_return_t, message: &str) -> memcached_return_t {
        self.note(code, ErrorContext { message, ..ErrorContext::default() }, None)
    }

    /// As [`memcached_st::fail`], with a context: the system's error, or a verbatim text.
    #[cold]
    pub(crate) fn fail_told(
        &self,
        code: memcached_return_t,
        reported: ErrorContext<'_>,
    ) -> memcached_return_t {
        self.note(code, reported, None)
    }

    /// Notes an error of a server, also with that.
    #[cold]
    pub(crate) fn fail_of(
        &self,
        server: &memcached_instance_st,
        code: memcached_return_t,
        reported: ErrorContext<'_>,
    ) -> memcached_return_t {
        self.note(code, reported, Some(server))
    }

    fn note(
        &self,
        code: memcached_return_t,
        reported: ErrorContext<'_>,
        server: Option<&memcached_instance_st>,
    ) -> memcached_return_t {
        let Some(inner) = self.inner() else { return code };
        let text = text(self, code, reported, server);
        let report = Report { code, errno: reported.errno, query_id: self.query_id.get(), text };
        if let Some(server) = server {
            let mut errors = server.errors.borrow_mut();
            errors.retain(|former| former.query_id == report.query_id);
            keep(&mut errors, report.clone());
        }
        keep(&mut inner.errors.borrow_mut(), report);
        code
    }
}

fn keep(errors: &mut Vec<Report>, report: Report) {
    if errors.len() == REPORTS_MAX {
        errors.remove(0);
    }
    errors.push(report);
}

/// Returns the text in libmemcached's form, without the position in its source.
fn text(
    memc: &memcached_st,
    code: memcached_return_t,
    ErrorContext { errno, message, is_verbatim }: ErrorContext<'_>,
    server: Option<&memcached_instance_st>,
) -> CString {
    let mut text = format!("({memc:p}) ").into_bytes();
    if !is_verbatim {
        text.extend_from_slice(in_words(code).to_bytes());
        if errno != 0 {
            text.push(b'(');
            text.extend_from_slice(system_words(errno).as_bytes());
            text.push(b')');
        }
        if !message.is_empty() {
            text.extend_from_slice(b", ");
        }
    }
    text.extend_from_slice(message.as_bytes());
    if let Some(server) = server {
        text.extend_from_slice(server.place().as_bytes());
    }
    text.retain(|byte| *byte != 0);
    CString::new(text).unwrap_or_default()
}

/// The system's words for its error, without its number.
fn system_words(errno: i32) -> String {
    let words = std::io::Error::from_raw_os_error(errno).to_string();
    words.split(" (os error").next().unwrap_or_default().to_owned()
}

fn last(memc: &memcached_st) -> Option<Report> {
    memc.inner()?.errors.borrow().last().cloned()
}

/// The last error in words. They stay until the next query.
fn last_words(ptr: Option<&memcached_st>) -> *const c_char {
    let Some(memc) = ptr else { return in_words(MEMCACHED_INVALID_ARGUMENTS).as_ptr() };
    let Some(inner) = memc.inner() else { return in_words(MEMCACHED_INVALID_ARGUMENTS).as_ptr() };
    inner.errors.borrow().last().map_or(in_words(MEMCACHED_SUCCESS).as_ptr(), |report| report.text.as_ptr())
}

/// The last error in words.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_error(ptr: Option<&memcached_st>) -> *const c_char {
    guarded(c"".as_ptr(), || last_words(ptr))
}

/// The last error in words.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_last_error_message(ptr: Option<&memcached_st>) -> *const c_char {
    guarded(c"".as_ptr(), || last_words(ptr))
}

/// The last error.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_last_error(ptr: Option<&memcached_st>) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
        last(memc).map_or(MEMCACHED_SUCCESS, |report| report.code)
    })
}

/// The system's number of the last error, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_last_error_errno(ptr: Option<&memcached_st>) -> c_int {
    guarded(0, || ptr.and_then(last).map_or(0, |report| report.errno))
}

/// Prints all errors of the last query, the newest first, to the standard error output.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_error_print(ptr: Option<&memcached_st>) {
    guarded((), || {
        let Some(inner) = ptr.and_then(memcached_st::inner) else { return };
        let mut printed = Vec::new();
        let mut print = |errors: &[Report]| {
            for report in errors.iter().rev() {
                printed.push(b'\t');
                printed.extend_from_slice(in_words(report.code).to_bytes());
                printed.push(b' ');
                printed.extend_from_slice(report.text.to_bytes());
                printed.push(b'\n');
            }
        };
        print(&inner.errors.borrow());
        inner.instances.borrow().iter().for_each(|server| print(&server.errors.borrow()));
        // A failure to print cannot be reported anywhere.
        let _ = std::io::stderr().write_all(&printed);
    });
}

/// The last error of a server in words; null for none.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_server_error(ptr: Option<&memcached_instance_st>) -> *const c_char {
    guarded(std::ptr::null(), || {
        let Some(server) = ptr else { return std::ptr::null() };
        let errors = server.errors.borrow();
        errors.last().map_or(in_words(MEMCACHED_SUCCESS), |report| CStr::as_ref(&report.text)).as_ptr()
    })
}

/// The last error of a server.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_server_error_return(ptr: Option<&memcached_instance_st>) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        let Some(server) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
        server.errors.borrow().last().map_or(MEMCACHED_SUCCESS, |report| report.code)
    })
}

/// Forgets the errors of one server of a list, which never has any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_server_error_reset(_ptr: *mut memcached_server_st) {}
