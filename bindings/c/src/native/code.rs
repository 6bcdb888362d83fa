//! What functions return, and the texts of failures.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io::ErrorKind;

use fabcache_client::{Error, Failure};

use crate::guarded;

/// What a function came to. Up to FABCACHE_BUFFER_TOO_SMALL these are answers; from FABCACHE_INVALID_ARGUMENT on they are
/// failures, of which fabcache_last_error() tells more.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// It is done, or found.
    Ok = 0,
    /// There is no such key.
    NotFound = 1,
    /// It is not stored: the key was there for fabcache_add(), or was not for fabcache_replace(), fabcache_append() or
    /// fabcache_prepend().
    NotStored = 2,
    /// It is not stored: another changed the item since it was read (fabcache_cas()).
    Exists = 3,
    /// The operation is not over yet.
    InProgress = 4,
    /// The value was found and is longer than the buffer, into which nothing was written.
    BufferTooSmall = 5,

    /// An argument is NULL that must not be, or a number is out of its range.
    InvalidArgument = 16,
    /// A server address is invalid.
    BadAddress = 17,
    /// No server is named.
    NoServers = 18,
    /// A key has 1 to 250 bytes.
    BadKey = 19,
    /// A value is longer than any server takes.
    BadValue = 20,
    /// Nothing was asked for with this request object.
    NothingAsked = 21,
    /// The server cannot be reached.
    Unreachable = 22,
    /// The connection broke. Whether the server did what was asked is not known.
    Broken = 23,
    /// No answer came in time. Whether the server did what was asked is not known.
    TimedOut = 24,
    /// The server answered what the protocol does not know. Whether it did what was asked is not known.
    Protocol = 25,
    /// The server failed of late and is not asked again yet.
    Down = 26,
    /// All servers failed of late.
    AllDown = 27,
    /// The server refuses: its memory is full or not shared, the value is too large for it, the stored value is not a
    /// number, or as its text says.
    Refused = 28,
    /// Some servers failed; what the others answered was told.
    Partial = 29,
    /// There is no memory for the value.
    OutOfMemory = 30,
    /// A fault of the library.
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
            Code::Exists => c"changed by another since it was read",
            Code::InProgress => c"in progress",
            Code::BufferTooSmall => c"the buffer is too small for the value",
            Code::InvalidArgument => c"an argument is none of those that it may be",
            Code::BadAddress => c"no address of a server",
            Code::NoServers => c"no server is named",
            Code::BadKey => c"no key that servers take",
            Code::BadValue => c"a value longer than servers take",
            Code::NothingAsked => c"nothing was asked for with this request",
            Code::Unreachable => c"cannot connect",
            Code::Broken => c"the connection broke",
            Code::TimedOut => c"no answer in time",
            Code::Protocol => c"an answer that is none",
            Code::Down => c"the server failed of late and is not asked again yet",
            Code::AllDown => c"all servers failed of late",
            Code::Refused => c"the server refuses",
            Code::Partial => c"some servers failed",
            Code::OutOfMemory => c"out of memory",
            Code::Internal => c"a fault of the library",
        }
    }
}

/// A failure, told in full.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    code: Code,
    text: Cow<'static, str>,
}

impl Fault {
    pub(super) fn new(code: Code, text: impl Into<Cow<'static, str>>) -> Fault {
        Fault { code, text: text.into() }
    }

    /// An argument that may not be NULL is.
    pub(super) fn null(what: &str) -> Fault {
        Fault::new(Code::InvalidArgument, format!("{what} is NULL"))
    }

    /// Leaves the text to [`fabcache_last_error`], and returns the code.
    pub(super) fn tell(&self) -> Code {
        let text = CString::new(self.text.replace('\0', "\\0")).unwrap_or_default();
        // A thread that is about to end has nobody left to ask.
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

/// Runs what a function does, and has its failure told. No panic leaves it.
pub(super) fn answer(body: impl FnOnce() -> Result<Code, Fault>) -> Code {
    let done = guarded(Err(None), || body().map_err(Some));
    done.unwrap_or_else(|fault| {
        let panicked = || Fault::new(Code::Internal, "a fault of the library: it panicked; stderr has more");
        guarded(Code::Internal, || fault.unwrap_or_else(panicked).tell())
    })
}

/// A code in words: a constant, never NULL, also for numbers that are no code.
#[unsafe(no_mangle)]
pub extern "C" fn fabcache_error_text(code: c_int) -> *const c_char {
    let known = Code::ALL.into_iter().find(|known| *known as c_int == code);
    known.map_or(c"no code of fabcache", Code::text).as_ptr()
}

/// What made the last call of this thread that failed do so, with the server's name and the cause; empty if none has. Valid
/// until the thread's next call that fails, or its end.
#[unsafe(no_mangle)]
pub extern "C" fn fabcache_last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The library's version, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn fabcache_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no NUL"),
        };
    VERSION.as_ptr()
}
