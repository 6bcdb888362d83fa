//! What goes wrong, as Python's exceptions: those that pymemcache raises in the same case.

use std::io;

use fabcache_client::{Error, Failure};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

mod python {
    //! The classes themselves, which are Python's.
    pyo3::import_exception!(fabcache.exceptions, MemcacheClientError);
    pyo3::import_exception!(fabcache.exceptions, MemcacheIllegalInputError);
    pyo3::import_exception!(fabcache.exceptions, MemcacheServerError);
    pyo3::import_exception!(fabcache.exceptions, MemcacheUnexpectedCloseError);
    pyo3::import_exception!(fabcache.exceptions, MemcacheUnknownCommandError);
    pyo3::import_exception!(fabcache.exceptions, MemcacheUnknownError);
}

/// Maximum number of characters of an invalid answer in an error.
const UNKNOWN_ANSWER_BYTES_MAX: usize = 32;

/// Servers' words where they do not speak text, and what they say where they do.
const IN_TEXT: &[(&str, &str)] = &[
    ("Too large.", "object too large for cache"),
    ("Out of memory", "out of memory storing object"),
    ("Non-numeric server-side value for incr or decr", "cannot increment or decrement non-numeric value"),
    ("Invalid arguments", "bad command line format"),
];

/// Server errors for valid requests.
const SERVERS_FAULTS: &[&str] = &["object too large", "out of memory", "temporary failure"];

/// An exception for what a call came to.
pub fn raised(py: Python<'_>, error: &Error) -> PyErr {
    match error {
        Error::Key(_) => illegal(error.to_string()),
        Error::Value(_) => server_error(py, "object too large for cache"),
        Error::Server { failure, .. } => failed(py, error, failure),
        Error::Address { .. } | Error::NoServers | Error::Bucket { .. } => {
            PyValueError::new_err(error.to_string())
        }
        Error::NothingAsked => PyRuntimeError::new_err(error.to_string()),
        _ => python::MemcacheServerError::new_err(error.to_string()),
    }
}

/// Whether a server understood what was asked, and does not do it.
pub fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Server { failure: Failure::Refused(_), .. } | Error::Value(_))
}

fn failed(py: Python<'_>, error: &Error, failure: &Failure) -> PyErr {
    match failure {
        Failure::Connect(cause) | Failure::Broken(cause) => system(cause, error),
        Failure::Protocol(said) => {
            let said = said.as_bytes();
            let said = &said[..said.len().min(UNKNOWN_ANSWER_BYTES_MAX)];
            python::MemcacheUnknownError::new_err((PyBytes::new(py, said).unbind(),))
        }
        Failure::Refused(said) => refused(py, said),
        // Ours, not an answer to what was asked: it names the server.
        Failure::Rejected(_) => python::MemcacheClientError::new_err(error.to_string()),
        Failure::Key => illegal(error.to_string()),
        _ => python::MemcacheServerError::new_err(error.to_string()),
    }
}

/// A failure of the system: Python makes the class from its number.
fn system(cause: &io::Error, error: &Error) -> PyErr {
    match cause.kind() {
        io::ErrorKind::UnexpectedEof => {
            let server = if let Error::Server { server, .. } = error { &**server } else { "a server" };
            let why =
                format!("{server}: the server closed the connection; a change may or may not have been made");
            python::MemcacheUnexpectedCloseError::new_err(why)
        }
        io::ErrorKind::TimedOut => PyTimeoutError::new_err(("timed out",)),
        _ => match cause.raw_os_error() {
            Some(number) => PyOSError::new_err((number, error.to_string())),
            None => PyOSError::new_err((error.to_string(),)),
        },
    }
}

fn refused(py: Python<'_>, said: &str) -> PyErr {
    if said == "it does not know the command" || said == "Unknown command" {
        return python::MemcacheUnknownCommandError::new_err(said.to_owned());
    }
    let said = IN_TEXT.iter().find(|(words, _)| *words == said).map_or(said, |(_, text)| text);
    if SERVERS_FAULTS.iter().any(|fault| said.contains(fault)) {
        return server_error(py, said);
    }
    client_error(py, said)
}

fn server_error(py: Python<'_>, said: &str) -> PyErr {
    python::MemcacheServerError::new_err((PyBytes::new(py, said.as_bytes()).unbind(),))
}

/// The servers' text for a number that is out of range.
pub const NO_COMMAND: &str = "bad command line format";

/// Returns the error for an argument that servers refuse, with their text.
pub fn client_error(py: Python<'_>, said: &str) -> PyErr {
    python::MemcacheClientError::new_err((PyBytes::new(py, said.as_bytes()).unbind(),))
}

/// Makes the error for an invalid key, value or number.
pub fn illegal(why: String) -> PyErr {
    python::MemcacheIllegalInputError::new_err(why)
}

/// The connection was that of the process that this one was forked from.
pub fn forked() -> PyErr {
    python::MemcacheUnexpectedCloseError::new_err("this was asked for before the process was forked")
}
