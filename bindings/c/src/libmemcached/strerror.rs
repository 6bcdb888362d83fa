//! Texts of return codes.

use std::ffi::{CStr, c_char};

use super::constants::memcached_return_t;
use super::types::memcached_st;

/// A code in words.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_strerror(
    _handle: Option<&memcached_st>,
    rc: memcached_return_t,
) -> *const c_char {
    in_words(rc).as_ptr()
}

/// A code in words.
pub fn in_words(code: memcached_return_t) -> &'static CStr {
    usize::try_from(code).ok().and_then(|code| TEXTS.get(code)).unwrap_or(&c"INVALID memcached_return_t")
}

/// By number; programs compare them.
const TEXTS: [&CStr; 50] = [
    c"SUCCESS",
    c"FAILURE",
    c"getaddrinfo() or getnameinfo() HOSTNAME LOOKUP FAILURE",
    c"CONNECTION FAILURE",
    c"CONNECTION BIND FAILURE",
    c"WRITE FAILURE",
    c"READ FAILURE",
    c"UNKNOWN READ FAILURE",
    c"PROTOCOL ERROR",
    c"CLIENT ERROR",
    c"SERVER ERROR",
    c"ERROR was returned by server",
    c"CONNECTION DATA EXISTS",
    c"CONNECTION DATA DOES NOT EXIST",
    c"NOT STORED",
    c"STORED",
    c"NOT FOUND",
    c"MEMORY ALLOCATION FAILURE",
    c"PARTIAL READ",
    c"SOME ERRORS WERE REPORTED",
    c"NO SERVERS DEFINED",
    c"SERVER END",
    c"SERVER DELETE",
    c"SERVER VALUE",
    c"STAT VALUE",
    c"ITEM VALUE",
    c"SYSTEM ERROR",
    c"COULD NOT OPEN UNIX SOCKET",
    c"ACTION NOT SUPPORTED",
    c"A KEY LENGTH OF ZERO WAS PROVIDED",
    c"FETCH WAS NOT COMPLETED",
    c"A TIMEOUT OCCURRED",
    c"ACTION QUEUED",
    c"A BAD KEY WAS PROVIDED/CHARACTERS OUT OF RANGE",
    c"THE HOST TRANSPORT PROTOCOL DOES NOT MATCH THAT OF THE CLIENT",
    c"SERVER IS MARKED DEAD",
    c"ENCOUNTERED AN UNKNOWN STAT KEY",
    c"ITEM TOO BIG",
    c"INVALID ARGUMENTS",
    c"KEY RETURNED FROM SERVER WAS TOO LARGE",
    c"FAILED TO SEND AUTHENTICATION TO SERVER",
    c"AUTHENTICATION FAILURE",
    c"CONTINUE AUTHENTICATION",
    c"ERROR OCCURED WHILE PARSING",
    c"USER INITIATED ERROR OCCURED WHILE PARSING",
    c"DEPRECATED",
    c"OPERATION IN PROCESS",
    c"SERVER HAS FAILED AND IS DISABLED UNTIL TIMED RETRY",
    c"SERVER FAILED TO ALLOCATE OBJECT",
    c"INVALID memcached_return_t",
];
