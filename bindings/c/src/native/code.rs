//! Return codes and error texts.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io::ErrorKind;

use fabcache_client::{Error, Failure};

use crate::guarded;

/// The result of a function. Codes up to FABCACHE_BUFFER_TOO_SMALL are answers; those from FABCACHE_INVALID_ARGUMENT on are
/// failures, which fabcache_last_error() describes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Done, or found.
    Ok = 0,
    /// The key is absent.
    NotFound = 1,
    /// Not stored: the key was present for fabcache_add(), or absent for fabcache_replace(), fabcache_append() or
    /// fabcache_prepend().
    NotStored = 2,
    /// Not stored: another client changed the item since it was read (fabcache_cas()).
    Exists = 3,
    /// The operation has not ended.
    InProgress = 4,
    /// The value was found and is longer than the buffer, into which nothing was written.
    BufferTooSmall = 5,

    /// An argument is NULL where that is not allowed, or a number is out of range.
    InvalidArgument = 16,
    /// A server address is invalid.
    BadAddress = 17,
    /// No server was passed.
    NoServers = 18,
    /// The key is empty, longer than 250 bytes, or has bytes that the protocol does not allow.
    BadKey = 19,
    /// The value is longer than any server accepts.
    BadValue = 20,
    /// No operation was started with this request object.
    NothingAsked = 21,
    /// The server cannot be reached.
    Unreachable = 22,
    /// The connection broke. The request may or may not have taken effect.
    Broken = 23,
    /// The server did not answer in time. The request may or may not have taken effect.
    TimedOut = 24,
    /// The server's answer violates the protocol. The request may or may not have taken effect.
    Protocol = 25,
    /// The server failed recently and counts as down.
    Down = 26,
    /// All servers failed recently and count as down.
    AllDown = 27,
    /// The server refused: its memory is full or not shared, the value is too large for it, the stored value is not a
    /// number, or the reason in its text.
    Refused = 28,
    /// Some servers failed; the answers of the others were passed on.
    Partial = 29,
    /// Memory for the value could not be allocated.
    OutOfMemory = 30,
    /// An internal error of the library.
    Internal = 31,
}

impl Code {
    const ALL: [Code; 22] = [
        Code::Ok,
        Code::NotFound,
        Code::NotStored,
        Code::Exists,
        Code::InProgress,
        Code::BufferTooSmall,
        Code::InvalidArgument,
        Code::BadAddress,
        Code::NoServers,
        Code::BadKey,
        Code::BadValue,
        Code::NothingAsked,
        Code::Unreachable,
        Code::Broken,
        Code::TimedOut,
        Code::Protocol,
        Code::Down,
        Code::AllDown,
        Code::Refused,
        Code::Partial,
        Code::OutOfMemory,
        Code::Internal,
    ];

    fn text(self) -> &'static CStr {
        match self {
            Code::Ok => c"done",
            Code::NotFound => c"not found",
            Code::NotStored => c"not stored",
            Code::Exists => c"changed by another client since it was read",
            Code::InProgress => c"in progress",
            Code::BufferTooSmall => c"the buffer is too small for the value",
            Code::InvalidArgument => c"invalid argument",
            Code::BadAddress => c"invalid server address",
            Code::NoServers => c"no servers",
            Code::BadKey => c"invalid key",
            Code::BadValue => c"value too long",
            Code::NothingAsked => c"no operation was started with this request",
            Code::Unreachable => c"cannot connect",
            Code::Broken => c"connection broke",
            Code::TimedOut => c"timed out",
            Code::Protocol => c"protocol violation in the answer",
            Code::Down => c"server is down after recent failures",
            Code::AllDown => c"all servers are down after recent failures",
            Code::Refused => c"server refused the request",
            Code::Partial => c"some servers failed",
            Code::OutOfMemory => c"out of memory",
            Code::Internal => c"internal error",
        }
    }
}

/// A failure with its text.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    code: Code,
    text: Cow<'static, str>,
}

impl Fault {
    pub(super) fn new(code: Code, text: impl Into<Cow<'static, str>>) -> Fault {
        Fault { code, text: text.into() }
    }

    /// An argument is NULL where that is not allowed.
    pub(super) fn null(what: &str) -> Fault {
        Fault::new(Code::InvalidArgument, format!("{what} is NULL"))
    }

    /// Stores the text for [`fabcache_last_error`] and returns the code.
    pub(super) fn report(&self) -> Code {
        let text = CString::new(self.text.replace('\0', "\\0")).unwrap_or_default();
        // A thread that is ending has no such memory any more.
        let _ = LAST_ERROR.try_with(|last| last.replace(text));
        self.code
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        let code = match &error {
            Error::Address { .. } => Code::BadAddress,
            Error::NoServers => Code::NoServers,
            Error::Bucket { .. } | Error::Topic(_) => Code::InvalidArgument,
            Error::Key(_) => Code::BadKey,
            Error::Value(_) => Code::BadValue,
            Error::NothingAsked => Code::NothingAsked,
            Error::AllDown => Code::AllDown,
            Error::Server { failure, .. } => match failure {
                Failure::Connect(_) => Code::Unreachable,
                Failure::Broken(error)
                    if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) =>
                {
                    Code::TimedOut
                }
                Failure::Broken(_) => Code::Broken,
                Failure::Protocol(_) => Code::Protocol,
                Failure::Down => Code::Down,
                Failure::Refused(_) | Failure::Rejected(_) => Code::Refused,
                Failure::Key => Code::BadKey,
            },
        };
        Fault::new(code, error.to_string())
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs a function's body and stores the text of a failure. Catches panics.
pub(super) fn answer(body: impl FnOnce() -> Result<Code, Fault>) -> Code {
    let done = guarded(Err(None), || body().map_err(Some));
    done.unwrap_or_else(|fault| {
        let panicked =
            || Fault::new(Code::Internal, "internal error: the library panicked; stderr has the details");
        guarded(Code::Internal, || fault.unwrap_or_else(panicked).report())
    })
}

/// Returns a code's meaning: a constant, never NULL, also for numbers that are not codes.
#[unsafe(no_mangle)]
pub extern "C" fn fabcache_error_text(code: c_int) -> *const c_char {
    let known = Code::ALL.into_iter().find(|known| *known as c_int == code);
    known.map_or(c"unknown fabcache code", Code::text).as_ptr()
}

/// Returns why this thread's last failed call failed, with the server's name and the cause; empty if none failed. Valid until
/// the thread's next failing call, or its end.
#[unsafe(no_mangle)]
pub extern "C" fn fabcache_last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the library's version, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn fabcache_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no NUL"),
        };
    VERSION.as_ptr()
}
