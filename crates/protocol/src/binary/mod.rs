//! The binary protocol: packets of a 24-byte header, extras, a key and a value (BinaryProtocolRevamped).
//!
//! ```text
//! 0 magic   1 opcode   2 key length (2)   4 extras length   5 data type   6 vbucket or status (2)
//! 8 length of extras, key and value (4)   12 opaque (4)   16 CAS value (8)
//! ```
//!
//! Numbers are big-endian. The data type and the vbucket are ignored.

pub(crate) mod decode;
pub(crate) mod encode;

/// First byte of a request.
pub const REQUEST: u8 = 0x80;
/// First byte of an answer.
pub const RESPONSE: u8 = 0x81;
/// Bytes of the header.
pub const HEADER: usize = 24;

/// The opcodes, without the quiet ones: `loud` leads from those to these.
pub mod opcode {
    /// Read a key: answered with its client flags and value.
    pub const GET: u8 = 0x00;
    /// Store a value: extras are client flags and expiry time.
    pub const SET: u8 = 0x01;
    /// Store it if the key is not there.
    pub const ADD: u8 = 0x02;
    /// Store if the key exists.
    pub const REPLACE: u8 = 0x03;
    /// Remove a key.
    pub const DELETE: u8 = 0x04;
    /// Add to a number.
    pub const INCREMENT: u8 = 0x05;
    /// Subtract from it.
    pub const DECREMENT: u8 = 0x06;
    /// Close the connection.
    pub const QUIT: u8 = 0x07;
    /// Forget everything.
    pub const FLUSH: u8 = 0x08;
    /// Noop: answered after all earlier requests.
    pub const NOOP: u8 = 0x0a;
    /// The server's version.
    pub const VERSION: u8 = 0x0b;
    /// Read a key, which is repeated in the answer.
    pub const GETK: u8 = 0x0c;
    /// Append bytes to a value.
    pub const APPEND: u8 = 0x0e;
    /// Add bytes before a value.
    pub const PREPEND: u8 = 0x0f;
    /// Statistics.
    pub const STAT: u8 = 0x10;
    /// Change when a key expires.
    pub const TOUCH: u8 = 0x1c;
    /// Read a key, and change when it expires.
    pub const GAT: u8 = 0x1d;
    /// SASL: which mechanisms there are.
    pub const SASL_LIST: u8 = 0x20;
    /// SASL: begin.
    pub const SASL_AUTH: u8 = 0x21;
    /// Continue SASL.
    pub const SASL_STEP: u8 = 0x22;
    /// Read a key, which is repeated in the answer, and change when it expires.
    pub const GATK: u8 = 0x23;
    /// fabcache's own: `shm attach`.
    pub const SHM_ATTACH: u8 = 0xa0;
    /// fabcache's own: `fabric hello`, whose words are its value.
    pub const FABRIC_HELLO: u8 = 0xa1;
    /// fabcache's own: `fabric attach`, whose words are its value.
    pub const FABRIC_ATTACH: u8 = 0xa2;
}

/// The answering opcode for an operation.
#[derive(Clone, Copy)]
pub(crate) struct LoudOpcode {
    pub(crate) code: u8,
    /// It differs from that of the request.
    pub(crate) quiet: bool,
}

/// Returns the answering opcode for the same operation.
#[inline]
pub(crate) fn loud(code: u8) -> LoudOpcode {
    let (code, quiet) = match code {
        0x09 => (opcode::GET, true),
        0x0d => (opcode::GETK, true),
        0x11..=0x18 => (code - 0x10, true),
        0x19 => (opcode::APPEND, true),
        0x1a => (opcode::PREPEND, true),
        0x1e => (opcode::GAT, true),
        0x24 => (opcode::GATK, true),
        _ => (code, false),
    };
    LoudOpcode { code, quiet }
}

/// Status codes of answers.
pub mod status {
    /// Done.
    pub const OK: u16 = 0x00;
    /// The key, or the group of statistics, does not exist.
    pub const NOT_FOUND: u16 = 0x01;
    /// The key exists, or its CAS value differs.
    pub const EXISTS: u16 = 0x02;
    /// The value can never fit.
    pub const TOO_LARGE: u16 = 0x03;
    /// The packet does not match its opcode.
    pub const INVALID: u16 = 0x04;
    /// Append or prepend without a key to add to.
    pub const NOT_STORED: u16 = 0x05;
    /// The value is not a number.
    pub const NON_NUMERIC: u16 = 0x06;
    /// Not authenticated, or not allowed.
    pub const AUTH: u16 = 0x20;
    /// SASL continues.
    pub const AUTH_CONTINUE: u16 = 0x21;
    /// Unknown opcode.
    pub const UNKNOWN: u16 = 0x81;
    /// Memory is full, and eviction is off.
    pub const OUT_OF_MEMORY: u16 = 0x82;

    /// The text that goes with a status code.
    pub fn text(status: u16) -> &'static str {
        match status {
            OK | AUTH_CONTINUE => "",
            NOT_FOUND => "Not found",
            EXISTS => "Data exists for key.",
            TOO_LARGE => "Too large.",
            INVALID => "Invalid arguments",
            NOT_STORED => "Not stored.",
            NON_NUMERIC => "Non-numeric server-side value for incr or decr",
            AUTH => "Auth failure.",
            UNKNOWN => "Unknown command",
            OUT_OF_MEMORY => "Out of memory",
            _ => "UNHANDLED ERROR",
        }
    }
}
