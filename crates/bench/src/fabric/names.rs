//! Names of the measured calls, in tables and results.

/// GETs of values whose location is cached.
pub const LOCATED: &str = "located";
/// The same into registered memory, without a copy; also SETs from registered memory.
pub const REGISTERED: &str = "registered";
/// GETs of values whose location the client does not know.
pub const BY_KEY: &str = "by key";
/// GETs and SETs by request over the fabric.
pub const REQUEST: &str = "request";
/// GETs of the same keys as [`LOCATED`], by a client that chooses the path.
pub const AUTO: &str = "auto";
/// GETs of the same keys as [`BY_KEY`], by a client that chooses the path.
pub const AUTO_BY_KEY: &str = "auto by key";
/// The store, in this process.
pub const STORE: &str = "store";
